"""Rules of this repository for its own methods, beside the checks that every method passes
(``unskew.testing``), and what the tests of methods share.

Each ``check_`` function fails by assertion. A method that cannot promise something says so by an
attribute (``aggregation``), and the check looks at that, never at a name.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from unskew.engine import Federation
from unskew.kernels import draw_samples
from unskew.methods import METHODS, create, parse_settings
from unskew.methods._next_item import NextItemMethod
from unskew.testing import ROUNDS, SEED, Case, make_case
from unskew.testing import arrays as leaves
from unskew.testing import one_client as of_client
from unskew.testing.checks import Arrays
from unskew.types import Cohort, Int64, Rows, Split, UnskewError

__all__ = ["SEED", "Case", "leaves", "make", "make_case", "make_cohort", "of_client"]
QUICK: dict[str, Any] = {"dim": 8, "local_epochs": 3, "participation": 0.6}
"""Settings that make a check cheap, for the methods that have them."""


def make(name: str, **settings: Any) -> Any:
    """A method with quick settings. The test is skipped if the method needs PyTorch and it is not
    installed."""
    if issubclass(METHODS[name], NextItemMethod):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    known = {field.name for field in dataclasses.fields(METHODS[name].Config)}
    quick = {key: value for key, value in QUICK.items() if key in known}
    return create(name, **{**quick, **settings})


def make_cohort(split: Split, users: Int64, round: int, seed: int = SEED) -> Cohort:
    return Federation(create("fedmf"), split, seed).cohort(users, round)


def is_random(method: Any) -> bool:
    """Whether the seed matters: not to the baselines that only count."""
    return method.aggregation != "central" or hasattr(method.config, "dim")


def assert_same_bits(ours: Arrays, theirs: Arrays) -> None:
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        other = theirs[name]
        assert (array.dtype, array.shape) == (other.dtype, other.shape), name
        assert array.tobytes() == other.tobytes(), f"{name} differs"


def differ(ours: Arrays, theirs: Arrays) -> bool:
    return any(array.tobytes() != theirs[name].tobytes() for name, array in ours.items())


def check_the_seed_matters(case: Case) -> None:
    """In the initial values and after training."""
    if not is_random(case.method):
        pytest.skip("the method draws no random numbers")
    first, other = (case.method.init(7, 11, seed) for seed in (3, 4))
    assert any(differ(leaves(a), leaves(b)) for a, b in zip(first, other, strict=True))
    trained = Federation(case.method, case.split, SEED + 1).run(ROUNDS).server
    assert differ(leaves(case.server), leaves(trained))


def check_the_upload(case: Case) -> None:
    """Clients send something, and only rows of the items in their samples."""
    users = case.users
    _, upload, _ = case.train(users)
    sends = getattr(case.method.config, "aggregate_from", 1) != 0
    assert bool(upload.rows.values.any()) == bool(upload.weight.any()) == sends
    if case.method.aggregation != "sum" or not sends:
        return
    assert (upload.weight > 0).all()
    total = case.received(users, upload)
    assert differ(leaves(case.method.aggregate(case.server, total)), leaves(case.server))
    if hasattr(case.method.config, "negatives"):
        touched = draw_samples(case.cohort(users), case.method.config.negatives).touched
        for client in range(len(users)):
            items = of_client(upload, client).rows.items
            assert set(items.tolist()) <= set(touched.of(client).tolist()), "only touched rows"


def check_what_must_not_leave_does_not_leave(case: Case, stays_home: tuple[str, ...]) -> None:
    """The upload depends on nothing that Step 2 makes for the device: the private fields
    ``stays_home``."""
    users = case.users
    download, cohort = case.method.download(case.server), case.cohort(users)
    private = case.devices.take(users)
    _, upload, _ = case.method.local(download, private, cohort)
    for field in stays_home:
        changed = private._replace(**{field: perturbed(getattr(private, field))})
        assert differ(leaves(private), leaves(changed)), f"{field} has nothing to perturb"
        _, other, _ = case.method.local(download, changed, cohort)
        assert_same_bits(leaves(upload), leaves(other))


def perturbed(leaf: Any) -> Any:
    rng = np.random.default_rng(5)
    if isinstance(leaf, Rows):
        return leaf._replace(values=perturbed(leaf.values))
    return (leaf + rng.standard_normal(leaf.shape)).astype(leaf.dtype)


def check_it_learns_from_users(case: Case) -> None:
    """Scores tell items apart, and folding in changes a newcomer's state."""
    method, users = case.method, case.users
    download = method.download(case.server)
    assert len(np.unique(method.score(download, case.devices.take(users))[0])) > 1
    _, fresh = method.init(len(users), case.split.n_items, SEED)
    assert differ(leaves(method.fold_in(download, fresh, case.cohort(users))), leaves(fresh))


NONSENSE: dict[str, tuple[Any, ...]] = {
    "rounds": (0, -1),
    "participation": (0.0, 1.5, -0.1, float("nan")),
    "dim": (0, -3),
    "local_epochs": (0, -1),
    "batch": (0, -1),
    "learning_rate": (0.0, -0.1, float("nan"), float("inf")),
    "negatives": (-1,),
    "tolerance": (-1e-4, float("nan")),
    "aggregate_from": (-1,),
    "rank": (0, -1),
    "buffer": ("diagonal",),
    "buffer_rate": (-0.1, float("nan"), float("inf")),
}


def check_settings(name: str) -> None:
    """Bad settings get one sentence that names the setting; good ones survive being text."""
    fields = {field.name: field for field in dataclasses.fields(METHODS[name].Config)}
    for key, values in NONSENSE.items():
        for value in values if key in fields else ():
            refuses(key, lambda key=key, value=value: create(name, **{key: value}))
    for wrong in (lambda: create(name, nonsense=1), lambda: parse_settings(name, {"nonsense": 1})):
        refuses("nonsense", wrong)
    hints = get_type_hints(METHODS[name].Config)
    for key in fields:
        for value in (float("nan"), float("inf"), "-inf") if hints[key] is float else ():
            refuses(key, lambda key=key, value=value: create(name, **{key: value}))
        for value in wrong_values(hints[key]):
            refuses(key, lambda key=key, value=value: parse_settings(name, {key: value}))
            refuses(key, lambda key=key, value=value: create(name, **{key: value}))
    config = METHODS[name].Config()
    settings = dataclasses.asdict(config)
    as_text = {key: str(value) for key, value in settings.items()}
    assert parse_settings(name, as_text) == settings
    assert parse_settings(name, settings) == settings
    assert create(name, **parse_settings(name, as_text)).config == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, next(iter(fields)), 1)


def wrong_values(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return ("nonsense", 0) if 0 not in get_args(kind) else ("nonsense",)
    wrong: dict[Any, tuple[Any, ...]] = {
        int: ("ten", "1.5", 1.5, [1], None, True),
        float: ("ten", [0.1], None, "0,1"),
        bool: ("maybe", 2, None),
    }
    return wrong.get(kind, ())


def refuses(key: str, call: Any) -> None:
    with pytest.raises(UnskewError) as caught:
        call()
    message = str(caught.value)
    assert key in message, message
    assert "\n" not in message
    assert message.endswith(".")


def check_the_documentation(name: str) -> None:
    """A paper, a docstring under each setting, a file short enough to read."""
    method = METHODS[name]
    assert method.name == name
    assert method.aggregation in ("sum", "individual", "central")
    for attribute in ("summary", "citation"):
        text = getattr(method, attribute)
        assert text, f"{name} has no {attribute}"
        assert "\n" not in text
    assert re.search(r"\b(19|20)\d\d\b", method.citation), "the citation has a year"
    module = sys.modules[method.__module__]
    docstring = inspect.getdoc(module) or ""
    assert re.search(r"\b(19|20)\d\d\b|\bpaper\b", docstring), "the module names its paper"
    undocumented = sorted(config_fields(method.Config) - documented_fields(method.Config))
    assert not undocumented, f"no docstring under {undocumented}"
    source = Path(inspect.getsourcefile(method) or "")
    assert len(source.read_text().splitlines()) < 200, f"{source.name} is too long"


def config_fields(config: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(config)}


def documented_fields(config: Any) -> set[str]:
    """Fields with a string right below them, in the class or in those it inherits from."""
    documented: set[str] = set()
    for owner in config.__mro__[:-1]:
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
                and below.value.value.strip()
            ):
                documented.add(statement.target.id)
    return documented
