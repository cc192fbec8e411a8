"""Every method of the package through the shipped checks, and the rules of this repository."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import conformance
from conformance import Case
from unskew.methods import METHODS, create, parse_settings
from unskew.testing import CHECKS, applies
from unskew.types import Split, UnskewError

STAYS_HOME: dict[str, tuple[str, ...]] = {
    "pfedclr": ("A", "B"),
    "fedmf-af": ("tuned",),
}
"""Private fields that Step 1 does not need, so that no upload may depend on them. A method that has
such fields gets a line."""

EXTRA: list[tuple[str, dict[str, Any]]] = [
    ("pfedclr", {"buffer": "full"}),
]
"""Settings that change a method enough to be run through the suite again."""
FEDERATED = [name for name in METHODS if METHODS[name].aggregation != "central"]


def stays_home(name: str, settings: dict[str, Any]) -> tuple[str, ...]:
    fields = STAYS_HOME.get(name, ())
    return tuple(f for f in fields if not (f == "B" and settings.get("buffer") == "full"))


def named(variant: tuple[str, dict[str, Any]]) -> str:
    return "-".join([variant[0], *map(str, variant[1].values())])


@pytest.fixture(scope="module")
def cases(tiny_split: Split) -> Callable[[tuple[str, dict[str, Any]]], Case]:
    made: dict[str, Case] = {}

    def case_of(variant: tuple[str, dict[str, Any]]) -> Case:
        name, settings = variant
        key = named(variant)
        if key not in made:
            method = conformance.make(name, **settings)
            made[key] = conformance.make_case(method, tiny_split)
        return made[key]

    return case_of


@pytest.fixture(params=[*((name, {}) for name in FEDERATED), *EXTRA], ids=named)
def federated(request: pytest.FixtureRequest, cases: Callable[[Any], Case]) -> Case:
    return cases(request.param)


@pytest.fixture(params=[*((name, {}) for name in METHODS), *EXTRA], ids=named)
def case(request: pytest.FixtureRequest, cases: Callable[[Any], Case]) -> Case:
    return cases(request.param)


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("check", CHECKS)
def test_the_contract(check: str, case: Case) -> None:
    if not applies(check, case.method):
        pytest.skip("the check is about another kind of method")
    CHECKS[check](case)


def test_the_seed_matters(case: Case) -> None:
    conformance.check_the_seed_matters(case)


def test_the_upload(federated: Case) -> None:
    conformance.check_the_upload(federated)


@pytest.mark.parametrize("variant", [*((name, {}) for name in STAYS_HOME), *EXTRA], ids=named)
def test_what_must_not_leave_does_not_leave(
    variant: tuple[str, dict[str, Any]], cases: Callable[[Any], Case]
) -> None:
    fields = stays_home(*variant)
    conformance.check_what_must_not_leave_does_not_leave(cases(variant), fields)


def test_it_learns_from_users(case: Case) -> None:
    conformance.check_it_learns_from_users(case)


@pytest.mark.parametrize("name", METHODS)
def test_settings(name: str) -> None:
    conformance.check_settings(name)


@pytest.mark.parametrize("name", METHODS)
def test_documentation(name: str) -> None:
    conformance.check_the_documentation(name)


@pytest.mark.parametrize("name", FEDERATED)
def test_clients_that_never_aggregate_send_nothing(name: str, tiny_split: Split) -> None:
    try:
        method = conformance.make(name, aggregate_from=0)
    except UnskewError:
        pytest.skip("the method cannot be run without its server")
    case = conformance.make_case(method, tiny_split)
    _, upload, _ = case.train(case.users)
    assert len(upload.rows.items) == 0
    assert not upload.dense.any()
    assert not upload.weight.any()


def test_an_unknown_method_is_refused_by_name() -> None:
    for call in (lambda: create("nonsense"), lambda: parse_settings("nonsense", {})):
        with pytest.raises(UnskewError, match=r'no method "nonsense".*pfedclr'):
            call()
