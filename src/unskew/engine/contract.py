"""Check the values that a method returns, in the first round of every run and in ``unskew check``.

A problem is reported in one sentence that names the method, the function, the field and the usual
remedy.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unskew.types import Cohort, Float64, Rows, UnskewError, Upload

STATE_TYPES = (np.float32, np.int32, np.int64)
"""NumPy types that arrays in the state of the server or of clients may have."""
RESERVED_NAMES = {"version", "download", "round", "rounds_trained", "due", "device", "beside"}
"""Names that no field of a private state can have: other arrays in files of devices have them."""


class Contract:
    """Checks the results of one method. Each check raises an UnskewError if it fails.
    ``step`` is the name of the method's function whose result is checked."""

    def __init__(self, method: Any) -> None:
        self._name = getattr(method, "name", type(method).__name__)

    def state(self, step: str, what: str, state: Any, n_users: int | None = None) -> None:
        """Check that a state is a NamedTuple of finite arrays and, for the private state of
        ``n_users`` users, that the first axis of each array is the user."""
        if not hasattr(state, "_fields"):
            self._fail(
                step,
                f"returned {what} as {_kind(state)}",
                "a state is a NamedTuple of arrays, so that it can be saved and sent",
            )
        for name, leaf in zip(state._fields, state, strict=True):
            parts = leaf._asdict() if isinstance(leaf, Rows) else {"": leaf}
            for part, array in parts.items():
                where = f"{what}.{name}{'.' if part else ''}{part}"
                self._array(step, where, array, STATE_TYPES)
                self._finite(step, where, array)
            if n_users is not None:
                if name in RESERVED_NAMES:
                    self._fail(
                        step,
                        f"returned {what}.{name}, a name that saved devices use themselves",
                        "rename the field",
                    )
                n = len(leaf.indptr) - 1 if isinstance(leaf, Rows) else _length(leaf)
                if n != n_users:
                    self._fail(
                        step,
                        f"returned {what}.{name} for {n} users instead of {n_users}",
                        "the first axis of a private state is the user",
                    )
            if isinstance(leaf, Rows):
                self._rows(step, f"{what}.{name}", leaf)

    def losses(self, losses: Any, n_users: int) -> None:
        """Check that there is one finite loss per client."""
        if not isinstance(losses, np.ndarray) or losses.shape != (n_users,):
            shape = losses.shape if isinstance(losses, np.ndarray) else _kind(losses)
            self._fail(
                "local", f"returned losses as {shape}", f"it is one per client: ({n_users},)"
            )
        self._finite("local", "losses", losses)

    def upload(self, upload: Any, cohort: Cohort, download: Any) -> None:
        """Check that an upload has, for each client, changes of item rows (item numbers ascending
        and in range), a dense vector and a weight, and that all values are finite."""
        n, step = len(cohort.users), "local"
        if not isinstance(upload, Upload):
            self._fail(step, f"returned an upload of type {_kind(upload)}", "return unskew.Upload")
        rows, dense, weight = upload
        self._array(step, "upload.rows.indptr", rows.indptr, (np.int64,))
        self._array(step, "upload.rows.items", rows.items, (np.int32,))
        self._array(step, "upload.rows.values", rows.values, (np.float32,))
        self._array(step, "upload.dense", dense, (np.float32,))
        self._array(step, "upload.weight", weight, (np.float64,))
        lengths = {"rows": len(rows.indptr) - 1, "dense": _length(dense), "weight": _length(weight)}
        for name, length in lengths.items():
            if length != n:
                self._fail(
                    step,
                    f"returned upload.{name} for {length} clients instead of {n}",
                    "the first axis of an upload is the client",
                )
        if dense.ndim != 2 or rows.values.ndim != 2 or weight.ndim != 1:
            self._fail(
                step,
                "returned an upload whose parts have the wrong number of axes",
                "rows.values and dense have two, weight has one",
            )
        self._rows(step, "upload.rows", rows)
        if len(rows.items) and int(rows.items.max()) >= cohort.n_items:
            self._fail(
                step,
                f"returned upload.rows.items up to {int(rows.items.max())}",
                f"items are numbered from 0 to {cohort.n_items - 1}",
            )
        for name, array in (("rows.values", rows.values), ("dense", dense), ("weight", weight)):
            self._finite(step, f"upload.{name}", array)
        if (weight < 0).any():
            self._fail(step, "returned a negative upload.weight", "weights are at least 0")
        self._differences(upload, download)

    def scores(self, scores: Any) -> None:
        """Check that scores are a matrix of finite float32 values, users x items."""
        self._array("score", "scores", scores, (np.float32,))
        if scores.ndim != 2:
            self._fail("score", f"returned shape {scores.shape}", "scores are users x items")
        self._finite("score", "scores", scores)

    def unchanged(self, step: str, before: Mapping[str, int], **inputs: Any) -> None:
        """Check that a function has not modified its inputs: their checksums equal ``before``."""
        for name, checksum in fingerprint(**inputs).items():
            if before[name] != checksum:
                self._fail(step, f"changed its input {name}", "copy before you change")

    def _differences(self, upload: Upload, download: Any) -> None:
        """Check that uploaded rows are differences from the downloaded rows. Rows that are nearer
        to the downloaded ones than to zero are taken for the trained rows themselves."""
        values = upload.rows.values
        for name, table in zip(download._fields, download, strict=True):
            if not (isinstance(table, np.ndarray) and table.ndim == 2 and values.size):
                continue
            if table.shape[1] != values.shape[1] or len(table) <= upload.rows.items.max():
                continue
            there = table[upload.rows.items]
            if np.square(values - there).sum() < 0.5 * np.square(values).sum():
                self._fail(
                    "local",
                    f"returned upload.rows that are almost download.{name} itself",
                    "send differences from the download, not the rows themselves",
                )

    def _rows(self, step: str, where: str, rows: Rows) -> None:
        counts = np.diff(rows.indptr)
        if (
            rows.indptr[0] != 0
            or (counts < 0).any()
            or not rows.indptr[-1] == len(rows.items) == len(rows.values)
        ):
            self._fail(
                step,
                f"returned {where} whose indptr does not fit its items and values",
                "client c has the entries indptr[c] to indptr[c + 1]",
            )
        if len(rows.items) and int(rows.items.min()) < 0:
            self._fail(step, f"returned a negative number in {where}.items", "items count from 0")
        ends = rows.indptr[1:-1]
        rises = np.diff(rows.items) > 0
        rises[ends[(ends > 0) & (ends < len(rows.items))] - 1] = True
        if not rises.all():
            self._fail(
                step,
                f"returned {where} whose items are not ascending within a client, none twice",
                "sort the items of each client with their values",
            )

    def _array(self, step: str, where: str, array: Any, kinds: tuple[Any, ...]) -> None:
        if not isinstance(array, np.ndarray):
            self._fail(step, f"returned {where} as {_kind(array)}", "return a NumPy array")
        if array.dtype not in kinds:
            wanted = " or ".join(np.dtype(kind).name for kind in kinds)
            self._fail(
                step, f"returned {where} as {array.dtype}", f"convert it with .astype to {wanted}"
            )

    def _finite(self, step: str, where: str, array: NDArray[Any]) -> None:
        if not np.isfinite(array).all():
            self._fail(
                step,
                f"returned NaN or infinity in {where}",
                "look for a rate that is too high, a division by zero or the log of zero",
            )

    def _fail(self, step: str, what: str, hint: str) -> None:
        raise UnskewError(f"{self._name}: {step} {what}; {hint}.")


class CheckedMethod:
    """Wraps a method and checks the states, uploads, losses and scores that it returns. All other
    attributes are the method's."""

    def __init__(self, method: Any) -> None:
        self._method, self._contract = method, Contract(method)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Any, Any]:
        server, private = self._method.init(n_users, n_items, seed)
        self._contract.state("init", "server", server)
        self._contract.state("init", "private", private, n_users)
        return server, private

    def local(self, download: Any, private: Any, cohort: Cohort) -> tuple[Any, Upload, Float64]:
        result = self._call("local", download=download, private=private, cohort=cohort)
        if not isinstance(result, tuple) or len(result) != 3:
            raise UnskewError(
                f"{self._method.name}: local returned {_kind(result)}; "
                "it returns the private state, the upload and the losses."
            )
        after, upload, losses = result
        self._contract.state("local", "private", after, len(cohort.users))
        self._contract.upload(upload, cohort, download)
        self._contract.losses(losses, len(cohort.users))
        return after, upload, losses

    def personalize(self, download: Any, private: Any, cohort: Cohort) -> Any:
        after = self._call("personalize", download=download, private=private, cohort=cohort)
        self._contract.state("personalize", "private", after, len(cohort.users))
        return after

    def fold_in(self, download: Any, private: Any, cohort: Cohort) -> Any:
        after = self._call("fold_in", download=download, private=private, cohort=cohort)
        self._contract.state("fold_in", "private", after, len(cohort.users))
        return after

    def aggregate(self, server: Any, total: Any) -> Any:
        after = self._call("aggregate", server=server, total=total)
        self._contract.state("aggregate", "server", after)
        for name, was, now in zip(server._fields, server, after, strict=True):
            if (was.shape[1:], was.ndim, was.dtype) != (now.shape[1:], now.ndim, now.dtype):
                raise UnskewError(
                    f"{self._method.name}: aggregate returned server.{name} as {now.dtype} "
                    f"{now.shape} instead of {was.dtype} {was.shape}; a state keeps types and axes."
                )
        return after

    def epoch(self, server: Any, private: Any, everyone: Cohort) -> tuple[Any, Any, float]:
        after, own, loss = self._call("epoch", server=server, private=private, cohort=everyone)
        self._contract.state("epoch", "server", after)
        self._contract.state("epoch", "private", own, len(everyone.users))
        return after, own, loss

    def score(self, download: Any, private: Any) -> Any:
        scores = self._call("score", download=download, private=private)
        self._contract.scores(scores)
        return scores

    def _call(self, step: str, **inputs: Any) -> Any:
        before = fingerprint(**inputs)
        result = getattr(self._method, step)(*inputs.values())
        self._contract.unchanged(step, before, **inputs)
        return result


def fingerprint(**inputs: Any) -> dict[str, int]:
    """CRC-32 checksums of the arrays in the arguments, by dotted name such as ``private.items``."""
    return {
        name: zlib.crc32(np.ascontiguousarray(array).tobytes())
        for name, array in _arrays("", inputs)
        if array.size
    }


def _arrays(prefix: str, value: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, np.ndarray):
        yield prefix, value
        return
    named = value if isinstance(value, dict) else getattr(value, "_asdict", dict)()
    for name, part in named.items():
        yield from _arrays(f"{prefix}.{name}" if prefix else name, part)


def _length(array: Any) -> int:
    return len(array) if np.ndim(array) else 0


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
