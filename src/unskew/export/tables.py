"""The tables of an exported model: rounded, thinned out, and compared with the original.

Rounding changes the *download*, from which the method's own hook ``export`` then makes the
arithmetic. So Python can score with exactly the numbers that a file holds.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.engine import batches, newcomer_scores
from unskew.evaluation import held_out_ranks, mean_metrics, per_user
from unskew.methods.newcomers import Arithmetic, ItemWeights, Neighbours
from unskew.ragged import append_lists, select
from unskew.types import Cohort, Float32, Int8, Method, Split, UnskewError

Precision = Literal["float32", "float16", "int8"]
"""How tables are stored; ``int8`` has a scale per row and per column."""
MIN_TABLE_COLUMNS = 4
"""An array is rounded if it has more numbers than this for each item. Smaller ones, such as a
popularity per item, stay float32: they take little space and decide between equal scores."""
MEASURED_USERS = 2_000
"""Largest number of users on which the cost of rounding is measured."""
LARGEST_CODE = 63
"""Largest 8-bit integer that stands for a table's number. Codes up to 127 would be an eighth larger
once compressed, and no better: the cost in quality is within chance for either."""


class Codes(NamedTuple):
    """A table as 8-bit integers: entry (i, j) is ``whole[i, j] rows[i] columns[j]``."""

    whole: Int8
    rows: Float32
    columns: Float32

    @staticmethod
    def of(table: Float32) -> Codes:
        columns = np.abs(table).max(0, initial=1e-30)
        scaled = table / columns
        rows = (np.abs(scaled).max(1, initial=1e-30) / LARGEST_CODE).astype(np.float32)
        return Codes(np.rint(scaled / rows[:, None]).astype(np.int8), rows, columns)

    def table(self) -> Float32:
        table: Float32 = self.whole * self.rows[:, None] * self.columns
        return table


class Prepared(NamedTuple):
    """A model to be written: the rounded download and the arithmetic made of it."""

    download: Any
    arithmetic: Arithmetic
    precision: Precision
    codes: dict[int, Codes]
    """8-bit forms of arrays of the download, by the array's ``id``."""

    def smallest(self, array: NDArray[Any]) -> NDArray[Any] | Codes:
        """The smallest form that holds exactly the numbers of ``array``."""
        if id(array) in self.codes:
            return self.codes[id(array)]
        if array.dtype == np.float32 and self.precision != "float32":
            half = array.astype(np.float16)
            return half if (half == array).all() else array
        if array.dtype == np.int32:
            return array.astype(np.uint16) if array.max(initial=0) < 2**16 else array
        return array


def describe(method: Method, download: Any) -> Arithmetic:
    """The arithmetic that scores newcomers; raises an UnskewError if the method has none."""
    arithmetic: Arithmetic | None = method.export(download)
    if arithmetic is None:
        raise UnskewError(
            f"{method.name} cannot be exported: scoring a newcomer takes Python (a training step, "
            "or PyTorch); export fedrefit or fednext, or use `unskew recommend --items`."
        )
    return arithmetic


def prepare(
    method: Method,
    download: Any,
    n_items: int,
    precision: Precision,
    neighbours: int | None = None,
) -> Prepared:
    """Round the tables of a download. Of a matrix of item-item weights, only each item's
    ``neighbours`` strongest are kept; None keeps all."""
    arithmetic, codes = describe(method, download), {}
    if neighbours is not None and isinstance(arithmetic, ItemWeights):
        thinned = _dense(strongest(arithmetic, neighbours))
        download = _replaced(download, {id(arithmetic.weights): thinned})
    rounded = {}
    for array in download:
        if array.dtype != np.float32 or array.size <= MIN_TABLE_COLUMNS * n_items:
            continue
        if precision == "int8" and array.ndim == 2:
            code = Codes.of(array)
            rounded[id(array)] = table = code.table()
            codes[id(table)] = code
        elif precision != "float32":
            with np.errstate(over="ignore"):
                half = array.astype(np.float16)
            if not np.isfinite(half).all():
                raise UnskewError(
                    f"A table of {method.name} has numbers that float16 cannot hold; export it "
                    "as ONNX without --float16."
                )
            rounded[id(array)] = half.astype(np.float32)
    download = _replaced(download, rounded)
    arithmetic = describe(method, download)
    if neighbours is not None and isinstance(arithmetic, ItemWeights):
        arithmetic = strongest(arithmetic, neighbours)
    return Prepared(download, arithmetic, precision, codes)


def _replaced(download: Any, arrays: dict[int, Any]) -> Any:
    """The download with other arrays in place of those whose ``id`` is a key."""
    return type(download)(*(arrays.get(id(array), array) for array in download))


def strongest(model: ItemWeights, k: int) -> Neighbours:
    """The ``k`` weights of largest absolute value towards each item, largest first."""
    k = min(k, len(model.weights))
    towards = np.ascontiguousarray(model.weights.T)
    order = np.argsort(-np.abs(towards), axis=1, kind="stable")[:, :k].astype(np.int32)
    return Neighbours(order, np.take_along_axis(towards, order, axis=1), model.fading)


def _dense(model: Neighbours) -> Float32:
    """The matrix of weights whose entries that ``model`` does not have are zero."""
    towards = np.zeros((len(model.neighbours),) * 2, np.float32)
    np.put_along_axis(towards, model.neighbours, model.similarity, axis=1)
    return np.ascontiguousarray(towards.T)


def quality(method: Method, download: Any, split: Split) -> float:
    """NDCG@10 of the test items among all unseen items, with everybody scored as a newcomer from
    the training items. At most ``MEASURED_USERS`` users, spread evenly."""
    have_test = np.flatnonzero(split.test.counts())
    if not len(have_test):
        return float("nan")
    users = have_test[:: -(-len(have_test) // MEASURED_USERS)]
    ranks = []
    for chunk in batches(users):
        history = select(split.train, chunk)
        if split.validation_in_history:
            history = append_lists(history, select(split.validation, chunk))
        seen = select(split.seen, chunk)
        cohort = Cohort(chunk, history, seen, split.n_items, 0, 1)
        scores = newcomer_scores(method, download, cohort)
        ranks.append(held_out_ranks(scores, chunk, split, "test", False))
    held = select(split.test, users)
    return mean_metrics(per_user(np.concatenate(ranks), held.indptr, [10]))["ndcg@10"]
