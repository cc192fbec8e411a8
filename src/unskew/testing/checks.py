"""Checks of the behaviour that the simulator, the deployment and the audits expect of every method.

A method whose results are not bit-identical each time sets ``exact = False``; its results may then
differ within tolerances. A check that fails raises an ``UnskewError`` with one sentence: what is
wrong and its usual cause.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.data import load
from unskew.engine import Federation
from unskew.engine.contract import CheckedMethod, Contract, fingerprint
from unskew.evaluation import prepare
from unskew.kernels import add_uploads, empty_sum, get_threads, set_threads
from unskew.ragged import select
from unskew.settings import parse_settings
from unskew.types import Cohort, Int64, Rows, Split, UnskewError, Upload, Uploads

Arrays = dict[str, NDArray[Any]]
ROUNDS = 2
"""Number of rounds that a method is trained for before the checks, and in checks that train."""
SEED = 1
"""Random seed of the training in the checks."""
USERS = 40
"""Number of users of the demo data that methods are checked on."""
RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""Tolerances, relative and absolute, for methods whose results are not bit-identical."""


class Case(NamedTuple):
    """A method, a small data set, and the states of the server and the devices after two rounds."""

    method: Any
    split: Split
    server: Any
    devices: Any

    @property
    def exact(self) -> bool:
        return bool(getattr(self.method, "exact", True))

    @property
    def federated(self) -> bool:
        return bool(self.method.aggregation != "central")

    @property
    def users(self) -> Int64:
        return np.arange(self.split.n_users)

    def cohort(self, users: Int64) -> Cohort:
        return Federation(self.method, self.split, SEED).cohort(users, ROUNDS + 1)

    def train(self, users: Int64) -> tuple[Any, Upload, Any]:
        """Train these users for a round. Returns their private state after Step 1 (training before
        the upload), the upload, and the private state after Step 2 (training after it)."""
        download, cohort = self.method.download(self.server), self.cohort(users)
        first, upload, _ = self.method.local(download, self.devices.take(users), cohort)
        return first, upload, self.method.personalize(download, first, cohort)

    def received(self, users: Int64, upload: Upload) -> Any:
        """The input of the server's aggregation: the sum of the uploads or, for methods that need
        them, the uploads of the individual clients."""
        if self.method.aggregation == "sum":
            return add_uploads(None, upload, self.split.n_items).result()
        return Uploads(users, upload)

    def require_equal(self, ours: Arrays, theirs: Arrays, what: str, hint: str) -> None:
        """Raise an UnskewError unless two sets of arrays are equal (inexact methods: close)."""
        for name, array in ours.items():
            other = theirs[name]
            same = array.shape == other.shape and array.dtype == other.dtype
            if same and self.exact:
                same = array.tobytes() == other.tobytes()
            elif same:
                same = np.allclose(array, other, RELATIVE, ABSOLUTE)
            require(same, f"{self.method.name}: {name} {what}; {hint}.")


def require(holds: object, sentence: str) -> None:
    """Raise an UnskewError with the message ``sentence`` unless ``holds`` is true."""
    if not holds:
        raise UnskewError(sentence)


def small_split() -> Split:
    """The data split of a few users of the demo data, with made-up ratings and item features."""
    demo = load("demo")
    few = demo.users < USERS
    small = dataclasses.replace(
        demo, users=demo.users[few], items=demo.items[few], user_ids=demo.user_ids[:USERS]
    )
    if demo.ratings is not None:
        small = dataclasses.replace(small, ratings=demo.ratings[few])
    if demo.timestamps is not None:
        small = dataclasses.replace(small, timestamps=demo.timestamps[few])
    split = prepare(small, "leak-free")
    return dataclasses.replace(  # for methods that need more than items
        split,
        train_ratings=(1 + split.train.items % 5).astype(np.float32),
        item_features=np.sin(np.arange(4.0 * split.n_items)).reshape(-1, 4).astype(np.float32),
    )


def make_case(method: Any, split: Split | None = None) -> Case:
    """Train the method for two rounds on ``split`` (default: a small part of the demo data)."""
    split = small_split() if split is None else split
    state = Federation(method, split, SEED).run(ROUNDS)
    return Case(method, split, state.server, state.devices)


def arrays(value: Any, name: str = "") -> Arrays:
    """All arrays in nested NamedTuples, by dotted name such as ``upload.rows.values``."""
    if isinstance(value, np.ndarray):
        return {name: value}
    if isinstance(value, float | int):
        return {name: np.array(value)}
    named: Arrays = {}
    for field, part in zip(value._fields, value, strict=True) if value is not None else ():
        named |= arrays(part, f"{name}.{field}" if name else field)
    return named


def one_client(value: Any, client: int) -> Any:
    """One client's part of a private state or an upload of several clients."""
    if isinstance(value, Rows):
        return select(value, np.array([client]))
    if isinstance(value, np.ndarray):
        return value[client : client + 1]
    return type(value)(*(one_client(part, client) for part in value))


def check_init(case: Case) -> None:
    """Check that ``init`` returns NamedTuples of finite arrays, equal ones for equal seeds."""
    first, again = (CheckedMethod(case.method).init(7, 11, 3) for _ in range(2))
    for name, one, other in zip(("server", "private"), first, again, strict=True):
        what, hint = "differs between two calls of init with one seed", DRAW
        case.require_equal(arrays(one, name), arrays(other, name), what, hint)


DRAW = (
    "draw from unskew.rng.generator(seed, purpose, round, user), not from a generator of your own"
)
"""Advice in the message of a check that fails because results differ for the same seed."""


def _run(case: Case, chunk: int = 256) -> Arrays:
    """Train two rounds; returns the arrays of the model and, for an exact method, the ranks of all
    held-out items."""
    state = Federation(case.method, case.split, SEED, chunk=chunk).run(ROUNDS)
    ranks = state.scoreboard.arrays() if case.exact else {}
    return arrays(state.server, "server") | state.devices.arrays() | ranks


def check_same_seed(case: Case) -> None:
    """Check that two runs with the same seed give the same model."""
    case.require_equal(_run(case), _run(case), "differs between two runs with one seed", DRAW)


def check_threads_and_chunks(case: Case) -> None:
    """Check that results do not depend on the number of threads or of clients trained at a time."""
    threads = get_threads()
    hint = "a client must not depend on who else is in its chunk"
    try:
        set_threads(1)
        expected = _run(case)
        for count, chunk in ((2, 256), (2, 7), (2, 1)):
            set_threads(count)
            what = f"changes with {count} threads and chunks of {chunk} clients"
            case.require_equal(_run(case, chunk), expected, what, hint)
    finally:
        set_threads(threads)


def check_a_cohort_of_one(case: Case) -> None:
    """Check that a client gets the same results alone, as on a device, as together with others."""
    together = case.train(case.users)
    hint = "key random numbers by cohort.users and look at each client by itself"
    for client in (0, 3, len(case.users) - 1):
        alone = case.train(case.users[client : client + 1])
        names = ("private after local", "upload", "private after personalize")
        for name, crowd, single in zip(names, together, alone, strict=True):
            ours, theirs = arrays(one_client(crowd, client), name), arrays(single, name)
            case.require_equal(ours, theirs, "differs for a client alone", hint)


def check_order_of_the_cohort(case: Case) -> None:
    """Check that the order of the clients changes neither their results nor the server's."""
    order = np.random.default_rng(0).permutation(len(case.users))
    ordered, shuffled = case.train(case.users), case.train(case.users[order])
    for ours, theirs in zip(ordered, shuffled, strict=True):
        for place, client in enumerate(order.tolist()):
            one, other = arrays(one_client(ours, client)), arrays(one_client(theirs, place))
            hint = "key random numbers by cohort.users, not by position"
            case.require_equal(one, other, "depends on the order of the cohort", hint)
    if case.method.aggregation == "sum":
        uploads = (ordered[1], shuffled[1])
        totals = [case.received(case.users, upload) for upload in uploads]
        ours, theirs = (arrays(case.method.aggregate(case.server, one)) for one in totals)
        for name, array in ours.items():
            require(
                np.allclose(array, theirs[name], RELATIVE, ABSOLUTE),
                f"{case.method.name}: server.{name} depends on the order of the cohort; "
                "compute it from the sum of the uploads alone.",
            )


def check_upload(case: Case) -> None:
    """Check that the upload of a client with weight 0 is empty."""
    _, upload, _ = case.train(case.users)
    for client in np.flatnonzero(upload.weight == 0).tolist():
        sent = one_client(upload, client)
        require(
            not len(sent.rows.items) and not sent.dense.any(),
            f"{case.method.name}: local returned an upload of weight 0 that is not empty; "
            "a client that is not to be counted sends nothing.",
        )


def check_steps(case: Case) -> None:
    """Check that the method's functions return valid values and do not modify their inputs."""
    method, users = CheckedMethod(case.method), case.users
    download, cohort = method.download(case.server), case.cohort(users)
    private = case.devices.take(users)
    scores, wanted = method.score(download, private), (len(users), case.split.n_items)
    require(
        scores.shape == wanted,
        f"{method.name}: score returned shape {scores.shape}; it is users x items: {wanted}.",
    )
    method.fold_in(download, private, cohort)
    if not case.federated:
        method.epoch(case.server, private, cohort)
        return
    after, upload, _ = method.local(download, private, cohort)
    sent = fingerprint(upload=upload)
    method.personalize(download, after, cohort)
    Contract(method).unchanged("personalize", sent, upload=upload)
    method.aggregate(case.server, case.received(users, upload))


def check_a_sum_of_nothing(case: Case) -> None:
    """Check that a round in which no client uploads anything does not change the server's state."""
    _, upload, _ = case.train(case.users[:2])
    shape = case.split.n_items, upload.rows.values.shape[1], upload.dense.shape[1]
    after = case.method.aggregate(case.server, empty_sum(*shape).result())
    what, hint = "changes although nobody sent anything", "return the server if total.weight is 0"
    case.require_equal(arrays(after, "server"), arrays(case.server, "server"), what, hint)


def check_scores_alone(case: Case) -> None:
    """Check that a user's scores depend neither on the other users that are scored nor on the part
    of the download that a device does not retain after a round."""
    method, download = case.method, case.method.download(case.server)
    scores = {"scores": method.score(download, case.devices.take(case.users))}
    for user in case.users[:3].tolist():
        alone = method.score(download, case.devices.take(np.array([user])))
        ours, hint = {"scores": scores["scores"][user : user + 1]}, "score each user by itself"
        case.require_equal(ours, {"scores": alone}, "differ for a user alone", hint)
    retained = method.score(method.retained_download(download), case.devices.take(case.users))
    hint = "retained_download must keep what score reads"
    case.require_equal(scores, {"scores": retained}, "differ with the retained download", hint)


def check_newcomers(case: Case) -> None:
    """Check that the state of a user who joins after training depends neither on other users nor on
    the part of the download that a device does not retain after a round."""
    method, download = case.method, case.method.download(case.server)
    _, fresh = method.init(len(case.users), case.split.n_items, SEED)
    together = method.fold_in(download, fresh, case.cohort(case.users))
    alone = method.fold_in(download, one_client(fresh, 3), case.cohort(case.users[3:4]))
    ours, theirs = arrays(one_client(together, 3), "private"), arrays(alone, "private")
    case.require_equal(
        ours, theirs, "of fold_in differs for a newcomer alone", "see a cohort of one"
    )
    kept = method.fold_in(method.retained_download(download), fresh, case.cohort(case.users))
    hint = "retained_download must keep what fold_in reads"
    what = "of fold_in differs with the retained download"
    case.require_equal(arrays(together, "private"), arrays(kept, "private"), what, hint)
    CheckedMethod(method).score(download, together)


def check_settings(case: Case) -> None:
    """Check that settings are a frozen dataclass and do not change if written and read as text."""
    name, kind = case.method.name, type(case.method.config)
    require(
        dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen,  # type: ignore[attr-defined]
        f"{name}: Config must be a frozen dataclass; write @dataclass(frozen=True) above it.",
    )
    settings = dataclasses.asdict(case.method.config)
    read = parse_settings(kind, {key: str(value) for key, value in settings.items()}, name)
    require(
        read == settings,
        f"{name}: its settings change when they are read from text; "
        "use int, float, bool, str or Literal for each.",
    )


CHECKS: dict[str, Callable[[Case], None]] = {
    "initial state": check_init,
    "steps": check_steps,
    "same seed": check_same_seed,
    "threads and chunks": check_threads_and_chunks,
    "a cohort of one": check_a_cohort_of_one,
    "order of the cohort": check_order_of_the_cohort,
    "upload": check_upload,
    "a sum of nothing": check_a_sum_of_nothing,
    "scores": check_scores_alone,
    "newcomers": check_newcomers,
    "settings": check_settings,
}
"""All checks by name."""
FEDERATED_ONLY = ("a cohort of one", "order of the cohort", "upload", "a sum of nothing")
"""Names of the checks that apply to federated methods only, not to centrally trained ones."""


class Finding(NamedTuple):
    """The outcome of one check; ``problem`` is None if it passed."""

    check: str
    problem: str | None


def applies(check: str, method: Any) -> bool:
    """True if a check applies to the method, which depends on how the method aggregates uploads."""
    if check == "a sum of nothing":
        return bool(method.aggregation == "sum")
    return method.aggregation != "central" or check not in FEDERATED_ONLY


def run_checks(method: Any, split: Split | None = None) -> list[Finding]:
    """Run every check that applies to the method. An exception in the method is a failed check."""
    try:
        case = make_case(method, split)
    except Exception as error:
        return [Finding("two rounds", problem_of(method, error))]
    findings = [Finding("two rounds", None)]
    for name, check in CHECKS.items():
        if not applies(name, method):
            continue
        try:
            check(case)
            findings.append(Finding(name, None))
        except Exception as error:
            findings.append(Finding(name, problem_of(method, error)))
    return findings


def problem_of(method: Any, error: Exception) -> str:
    """One sentence about an exception in a method, with the line that raised it."""
    if isinstance(error, UnskewError):
        return str(error)
    at = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(str(error).split()).rstrip(".")
    hint = "run it in a debugger to see with which values"
    if isinstance(error, IndexError):
        hint = "an index there, or in the kernel called there, lies outside of its array"
    return (
        f"{method.name}: {type(error).__name__} ({said}) in {Path(at.filename).name}, line "
        f"{at.lineno}: {at.line}; {hint}."
    )


def check_method(method: Any, split: Split | None = None) -> None:
    """Raise an ``AssertionError`` that lists every failed check."""
    problems = [one.problem for one in run_checks(method, split) if one.problem]
    assert not problems, "\n".join(map(str, problems))
