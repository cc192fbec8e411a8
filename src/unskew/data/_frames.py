"""Interactions that are already in memory: data frames, sparse matrices, lists of tuples.

They become the same ``Table`` as a file, so the same checks apply. pandas is not a dependency: its
frames are converted column by column through methods of the given object, without importing pandas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from unskew.data._tables import Table, bytes_as_text
from unskew.types import UnskewError

_TUPLE_COLUMNS = ("user", "item", "rating", "timestamp")
"""Columns that the fields of a tuple become, in this order; the last two are optional."""
_NUMBER_KINDS = "biufM"
"""NumPy's letters for the types of pandas columns that stay unchanged: numbers and times."""

_NO_ORDER = "a matrix has no order in time; each user's items are taken in random order"
"""Note for users of the package who load data from a sparse matrix."""


def table_from_memory(data: Any, name: str) -> Table:
    """Convert a frame, a sparse matrix or a list of tuples to a ``Table`` of the name ``name``."""
    notes: tuple[str, ...] = ()
    module = type(data).__module__.partition(".")[0]
    if module == "scipy":
        frame, notes = _from_matrix(data), (_NO_ORDER,)
    elif module == "pandas":
        frame = _from_pandas(data)
    elif isinstance(data, pl.LazyFrame):
        frame = data.collect()
    elif isinstance(data, pl.DataFrame):
        frame = data
    elif hasattr(data, "__arrow_c_stream__"):
        frame = pl.DataFrame(data)
    elif isinstance(data, Sequence | Iterable) and not isinstance(data, str | bytes):
        frame = _from_tuples(data, name)
    else:
        raise UnskewError(
            f"A {type(data).__name__} is no data; give a name, a path, a data frame, a sparse "
            "matrix or a list of (user, item) tuples."
        )
    if frame.height == 0:
        raise UnskewError(f"{name} has no rows; it needs at least one interaction")
    return Table(name, bytes_as_text(name, frame), "row", first=0, notes=notes)


def _from_matrix(matrix: Any) -> pl.DataFrame:
    """A row for each stored entry of a SciPy matrix with users as rows and items as columns.

    A matrix has no order in time. Each user's entries are put into random order (always the same),
    because otherwise the items in the last columns would be held out for every user."""
    entries = matrix.tocoo()
    order = np.random.default_rng(0).permutation(len(entries.data))
    order = order[np.argsort(entries.row[order], kind="stable")]
    values = np.asarray(entries.data[order], np.float64)
    return pl.DataFrame({"user": entries.row[order], "item": entries.col[order], "rating": values})


def _from_pandas(frame: Any) -> pl.DataFrame:
    if not hasattr(frame, "columns"):
        raise UnskewError(
            f"A pandas {type(frame).__name__} is no table; give a DataFrame with a user and an "
            "item column."
        )
    names = [str(name) for name in frame.columns]
    return pl.DataFrame([_pandas_column(frame.iloc[:, at], name) for at, name in enumerate(names)])


def _pandas_column(column: Any, name: str) -> pl.Series:
    if getattr(column.dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in _NUMBER_KINDS:
        return pl.Series(name, column.to_numpy(), nan_to_null=True)
    missing = column.isna().tolist()
    values = zip(column.tolist(), missing, strict=True)
    return _column(name, [None if gone else value for value, gone in values])


def _from_tuples(rows: Iterable[Any], name: str) -> pl.DataFrame:
    tuples = list(rows)
    width = len(tuples[0]) if tuples and isinstance(tuples[0], Sequence) else 0
    for number, row in enumerate(tuples):
        fits = isinstance(row, Sequence) and not isinstance(row, str) and len(row) == width
        if not fits or not 2 <= width <= len(_TUPLE_COLUMNS):
            raise UnskewError(
                f"{name}, row {number}: {str(row)[:60]!r} is no tuple such as (user, item), "
                "(user, item, rating) or (user, item, rating, timestamp); give all rows the same "
                "fields"
            )
    columns = zip(_TUPLE_COLUMNS, zip(*tuples, strict=True), strict=False)
    return pl.DataFrame([_column(role, list(values)) for role, values in columns])


def _column(name: str, values: list[Any]) -> pl.Series:
    """A column of Python values; values of different types, such as 42 and "x7", become text."""
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, pl.exceptions.PolarsError, OverflowError):
        return pl.Series(name, [None if value is None else str(value) for value in values])
