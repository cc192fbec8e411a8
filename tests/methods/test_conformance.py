"""Every registered method through the same suite (see ``conformance.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import conformance
from conformance import Case
from unskew.methods import METHODS, create, parse_settings
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
            made[key] = conformance.make_case(method, tiny_split, stays_home(name, settings))
        return made[key]

    return case_of


@pytest.fixture(params=[*((name, {}) for name in FEDERATED), *EXTRA], ids=named)
def federated(request: pytest.FixtureRequest, cases: Callable[[Any], Case]) -> Case:
    return cases(request.param)


@pytest.fixture(params=[*((name, {}) for name in METHODS), *EXTRA], ids=named)
def case(request: pytest.FixtureRequest, cases: Callable[[Any], Case]) -> Case:
    return cases(request.param)


def test_init(case: Case) -> None:
    conformance.check_init(case)


def test_same_seed_same_bits(case: Case) -> None:
    conformance.check_same_seed_same_bits(case)


@pytest.mark.usefixtures("threads_restored")
def test_threads_and_chunks_change_nothing(case: Case) -> None:
    conformance.check_threads_and_chunks_change_nothing(case)


def test_a_cohort_of_one(federated: Case) -> None:
    conformance.check_a_cohort_of_one(federated)


def test_the_order_of_the_cohort_does_not_matter(federated: Case) -> None:
    conformance.check_the_order_of_the_cohort_does_not_matter(federated)


def test_inputs_are_left_alone(case: Case) -> None:
    conformance.check_inputs_are_left_alone(case)


def test_the_upload(federated: Case) -> None:
    conformance.check_the_upload(federated)


def test_what_must_not_leave_does_not_leave(federated: Case) -> None:
    conformance.check_what_must_not_leave_does_not_leave(federated)


def test_a_sum_of_nothing_changes_nothing(federated: Case) -> None:
    conformance.check_a_sum_of_nothing_changes_nothing(federated)


def test_scores(case: Case) -> None:
    conformance.check_scores(case)


def test_folding_in_newcomers(case: Case) -> None:
    conformance.check_folding_in_newcomers(case)


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
    _, upload, _ = conformance.round_of(case, case.everyone())
    assert len(upload.rows.items) == 0
    assert not upload.dense.any()
    assert not upload.weight.any()


def test_an_unknown_method_is_refused_by_name() -> None:
    for call in (lambda: create("nonsense"), lambda: parse_settings("nonsense", {})):
        with pytest.raises(UnskewError, match=r'no method "nonsense".*pfedclr'):
            call()
