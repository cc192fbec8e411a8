"""The behaviour suite that every registered method passes: what the simulator, the deployment and
the audits rely on, whatever the method computes.

Each ``check_`` function takes a :class:`Case` and fails by assertion. A method that cannot promise
something says so by an attribute (``aggregation``), and the check looks at that, never at a name.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from numpy.typing import NDArray

from unskew.engine import Federation
from unskew.kernels import add_uploads, draw_samples, empty_sum, set_threads
from unskew.methods import METHODS, create, parse_settings
from unskew.ragged import select
from unskew.types import Cohort, Int64, Rows, Split, UnskewError, Upload, Uploads

Leaves = dict[str, NDArray[Any]]
ROUNDS = 2
SEED = 1
QUICK: dict[str, Any] = {"dim": 8, "local_epochs": 3, "participation": 0.6}
"""Settings that make a check cheap, for the methods that have them."""


class Case(NamedTuple):
    """A method, a federation, and the federation after two rounds of it."""

    method: Any
    split: Split
    server: Any
    devices: Any
    stays_home: tuple[str, ...] = ()
    """Private fields that nothing of the upload may depend on."""

    def cohort(self, users: Int64, round: int = ROUNDS + 1) -> Cohort:
        return make_cohort(self.split, users, round)

    def everyone(self) -> Int64:
        return np.arange(self.split.n_users)

    @property
    def is_federated(self) -> bool:
        """Whether it has the three steps of a round; a central baseline has an ``epoch``."""
        return bool(self.method.aggregation != "central")

    @property
    def is_random(self) -> bool:
        """Whether the seed matters: not to the baselines that only count."""
        return self.is_federated or hasattr(self.method.config, "dim")

    @property
    def sends(self) -> bool:
        """Whether clients send anything: not where the server is switched off."""
        return getattr(self.method.config, "aggregate_from", 1) != 0


def make(name: str, **settings: Any) -> Any:
    known = {field.name for field in dataclasses.fields(METHODS[name].Config)}
    quick = {key: value for key, value in QUICK.items() if key in known}
    return create(name, **{**quick, **settings})


def make_case(method: Any, split: Split, stays_home: tuple[str, ...] = ()) -> Case:
    federation = Federation(method, split, SEED)
    state = federation.run(ROUNDS)
    return Case(method, split, state.server, state.devices, stays_home)


def make_cohort(split: Split, users: Int64, round: int, seed: int = SEED) -> Cohort:
    train, excluded = select(split.train, users), select(split.excluded, users)
    return Cohort(users, train, excluded, split.n_items, seed, round)


# Values as named arrays, whole or of one client.


def leaves(value: Any, name: str = "") -> Leaves:
    """Every array of a NamedTuple of arrays and NamedTuples."""
    if isinstance(value, np.ndarray):
        return {name: value}
    if isinstance(value, float | int):
        return {name: np.array(value)}
    if value is None:
        return {}
    named: Leaves = {}
    for field, part in zip(value._fields, value, strict=True):
        named |= leaves(part, f"{name}.{field}" if name else field)
    return named


def copied(value: Any) -> Leaves:
    return {name: array.copy() for name, array in leaves(value).items()}


def of_client(value: Any, client: int) -> Any:
    """What a private state or an upload holds of one client of the cohort."""
    if isinstance(value, Rows):
        run = slice(value.indptr[client], value.indptr[client + 1])
        indptr = np.array([0, run.stop - run.start], np.int64)
        return Rows(indptr, value.items[run], value.values[run])
    if isinstance(value, np.ndarray):
        return value[client : client + 1]
    return type(value)(*(of_client(part, client) for part in value))


def assert_same_bits(ours: Leaves, theirs: Leaves) -> None:
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        other = theirs[name]
        assert (array.dtype, array.shape) == (other.dtype, other.shape), name
        assert array.tobytes() == other.tobytes(), f"{name} differs"


def differ(ours: Leaves, theirs: Leaves) -> bool:
    return any(array.tobytes() != theirs[name].tobytes() for name, array in ours.items())


def received(case: Case, users: Int64, upload: Upload) -> Any:
    """What the server gets: the sum, or each client's upload."""
    if case.method.aggregation == "sum":
        return add_uploads(empty_sum(case.split.n_items, upload), upload)
    return Uploads(users, upload)


def round_of(case: Case, users: Int64) -> tuple[Any, Upload, Any]:
    """Both steps of a round for these users: state after Step 1, upload, state after Step 2."""
    download, cohort = case.method.download(case.server), case.cohort(users)
    after_1, upload, losses = case.method.local(download, case.devices.take(users), cohort)
    assert losses.shape == (len(users),)
    return after_1, upload, case.method.personalize(download, after_1, cohort)


# The checks.


def check_init(case: Case) -> None:
    """Shapes with the user axis first; the seed decides everything."""
    method, n_users, n_items = case.method, 7, 11
    server, private = method.init(n_users, n_items, 3)
    assert leaves(server)
    for name, array in {**leaves(server), **leaves(private)}.items():
        assert np.isfinite(array).all(), name
        assert array.dtype in (np.float32, np.int32, np.int64), name
    for name, leaf in zip(private._fields, private, strict=True):
        n = len(leaf.indptr) - 1 if isinstance(leaf, Rows) else len(leaf)
        assert n == n_users, f"{name} has {n} users"
    again, other = method.init(n_users, n_items, 3), method.init(n_users, n_items, 4)
    for first, second in zip((server, private), again, strict=True):
        assert_same_bits(leaves(first), leaves(second))
    if case.is_random:
        assert differ(together(server, private), together(*other))


def together(server: Any, private: Any) -> Leaves:
    return {**leaves(server, "server"), **leaves(private, "private")}


def run(case: Case, seed: int = SEED, **how: Any) -> tuple[Leaves, list[dict[str, Any]]]:
    """All that two rounds leave behind, apart from how long they took."""
    federation = Federation(case.method, case.split, seed, **how)
    state = federation.start()
    rows = [federation.step(state) for _ in range(ROUNDS)]
    figures = [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in rows]
    named = {**leaves(state.server, "server"), **state.devices.arrays()}
    return {**named, **state.scoreboard.arrays()}, figures


def check_same_seed_same_bits(case: Case) -> None:
    first, rows = run(case)
    again, same_rows = run(case)
    assert_same_bits(first, again)
    assert rows == same_rows
    if case.is_random:
        other, _ = run(case, seed=SEED + 1)
        assert differ(leaves_of_server(first), leaves_of_server(other))


def leaves_of_server(named: Leaves) -> Leaves:
    return {name: array for name, array in named.items() if name.startswith("server")}


def check_threads_and_chunks_change_nothing(case: Case) -> None:
    """The caller puts the number of threads back."""
    set_threads(1)
    expected, rows = run(case)
    for threads, chunk in ((2, 256), (5, 7), (2, 1)):
        set_threads(threads)
        arrays, same_rows = run(case, chunk=chunk)
        assert_same_bits(arrays, expected)
        assert same_rows == rows


def check_a_cohort_of_one(case: Case) -> None:
    """What a Flower client computes for its user is what the simulator computes in the crowd."""
    users = case.everyone()
    after_1, upload, after_2 = round_of(case, users)
    for client in (0, 3, len(users) - 1):
        alone = round_of(case, users[client : client + 1])
        for crowd, single in zip((after_1, upload, after_2), alone, strict=True):
            assert_same_bits(leaves(of_client(crowd, client)), leaves(single))


def check_the_order_of_the_cohort_does_not_matter(case: Case) -> None:
    users = case.everyone()
    order = np.random.default_rng(0).permutation(len(users))
    sorted_, shuffled = round_of(case, users), round_of(case, users[order])
    for ours, theirs in zip(sorted_, shuffled, strict=True):
        for place, client in enumerate(order):
            mine, yours = of_client(ours, int(client)), of_client(theirs, place)
            assert_same_bits(leaves(mine), leaves(yours))
    if case.method.aggregation == "sum":
        servers = []
        for upload in (sorted_[1], shuffled[1]):
            total = received(case, users, upload)
            servers.append(leaves(case.method.aggregate(case.server, total)))
        for name, array in servers[0].items():
            np.testing.assert_allclose(array, servers[1][name], rtol=1e-6, atol=1e-6)


def check_inputs_are_left_alone(case: Case) -> None:
    method, users = case.method, case.everyone()
    download, cohort = method.download(case.server), case.cohort(users)
    private = case.devices.take(users)
    before = copied(download), copied(private), copied(cohort), copied(case.server)

    def unchanged(step: str, *more: tuple[Leaves, Any]) -> None:
        inputs = zip(before, (download, private, cohort, case.server), strict=True)
        for was, value in (*inputs, *more):
            try:
                assert_same_bits(leaves(value), was)
            except AssertionError as error:
                raise AssertionError(f"{step} changed its input: {error}") from error

    method.score(download, private)
    unchanged("score")
    method.fold_in(download, private, cohort)
    unchanged("fold_in")
    if not case.is_federated:
        method.epoch(case.server, private, cohort)
        unchanged("epoch")
        return
    after_1, upload, _ = method.local(download, private, cohort)
    unchanged("local")
    was_1, was_upload = copied(after_1), copied(upload)
    method.personalize(download, after_1, cohort)
    unchanged("personalize", (was_1, after_1), (was_upload, upload))
    total = received(case, users, upload)
    was_total = copied(total)
    method.aggregate(case.server, total)
    unchanged("aggregate", (was_total, total), (was_upload, upload))


def check_the_upload(case: Case) -> None:
    """An allow-list: the touched rows, finite and in order, a weight above zero, nothing else; of
    a client that is not asked to send, nothing."""
    users = case.everyone()
    _, upload, _ = round_of(case, users)
    assert type(upload) is Upload
    rows = upload.rows
    assert rows.values.dtype == upload.dense.dtype == np.float32
    assert rows.items.dtype == np.int32
    assert upload.weight.dtype == np.float64
    assert len(rows.indptr) - 1 == len(upload.dense) == len(upload.weight) == len(users)
    assert len(rows.items) == len(rows.values) == rows.indptr[-1]
    for name, array in leaves(upload).items():
        assert np.isfinite(array).all(), name
    assert (upload.weight >= 0).all()
    assert bool(rows.values.any()) == bool(upload.weight.any()) == case.sends
    if case.method.aggregation == "sum" and case.sends:
        assert (upload.weight > 0).all()
    touched = None
    if case.method.aggregation == "sum" and hasattr(case.method.config, "negatives"):
        touched = draw_samples(case.cohort(users), case.method.config.negatives).touched
    for client in range(len(users)):
        items = of_client(rows, client).items
        if upload.weight[client] == 0:
            assert len(items) == 0
            assert not upload.dense[client].any()
        assert (np.diff(items) > 0).all(), "ascending, none twice"
        assert items.min(initial=0) >= 0
        assert items.max(initial=0) < case.split.n_items
        if touched is not None:
            assert set(items.tolist()) <= set(touched.of(client).tolist()), "only touched rows"
    parts = (rows.items, rows.values, upload.dense, upload.weight)
    assert upload.nbytes == sum(part.nbytes for part in parts)


def check_what_must_not_leave_does_not_leave(case: Case) -> None:
    """The upload exists before Step 2 and depends on nothing that Step 2 makes for the device."""
    users = case.everyone()
    download, cohort = case.method.download(case.server), case.cohort(users)
    private = case.devices.take(users)
    _, upload, _ = case.method.local(download, private, cohort)
    for field in case.stays_home:
        changed = private._replace(**{field: perturbed(getattr(private, field))})
        assert differ(leaves(private), leaves(changed)), f"{field} has nothing to perturb"
        _, other, _ = case.method.local(download, changed, cohort)
        assert_same_bits(leaves(upload), leaves(other))


def perturbed(leaf: Any) -> Any:
    rng = np.random.default_rng(5)
    if isinstance(leaf, Rows):
        return leaf._replace(values=perturbed(leaf.values))
    return (leaf + rng.standard_normal(leaf.shape)).astype(leaf.dtype)


def check_a_sum_of_nothing_changes_nothing(case: Case) -> None:
    if case.method.aggregation != "sum":
        pytest.skip("the method aggregates uploads one by one")
    _, upload, _ = round_of(case, case.everyone()[:2])
    total = empty_sum(case.split.n_items, upload)
    assert_same_bits(leaves(case.method.aggregate(case.server, total)), leaves(case.server))
    moved = case.method.aggregate(case.server, add_uploads(total, upload))
    assert differ(leaves(moved), leaves(case.server)) == case.sends, "a real sum moves the server"
    for name, array in leaves(moved).items():
        before = leaves(case.server)[name]
        assert (array.dtype, array.shape) == (before.dtype, before.shape), name


def check_scores(case: Case) -> None:
    users = case.everyone()
    download = case.method.download(case.server)
    scores = case.method.score(download, case.devices.take(users))
    assert scores.shape == (len(users), case.split.n_items)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    assert len(np.unique(scores[0])) > 1, "it tells items apart"
    for user in users[:5]:
        alone = case.method.score(download, case.devices.take(np.array([user])))
        np.testing.assert_array_equal(alone, scores[user : user + 1])
    kept = case.method.retained_download(download)
    np.testing.assert_array_equal(case.method.score(kept, case.devices.take(users)), scores)


def check_folding_in_newcomers(case: Case) -> None:
    """A newcomer's state comes from a fresh device and its own items, whoever else is new."""
    method, users = case.method, case.everyone()
    download = method.download(case.server)
    _, fresh = method.init(len(users), case.split.n_items, SEED)
    folded = method.fold_in(download, fresh, case.cohort(users))
    assert list(leaves(folded)) == list(leaves(fresh))
    assert differ(leaves(folded), leaves(fresh))
    for name, array in leaves(folded).items():
        assert np.isfinite(array).all(), name
    one = method.fold_in(download, of_client(fresh, 3), case.cohort(users[3:4]))
    assert_same_bits(leaves(one), leaves(of_client(folded, 3)))
    assert np.isfinite(method.score(download, folded)).all()
    kept = method.fold_in(method.retained_download(download), fresh, case.cohort(users))
    assert_same_bits(leaves(kept), leaves(folded))


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
