"""Item features: a table with an item column and numbers, aligned with the items of a data set."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from unskew.data._checks import count, find_usual_name, quote_names
from unskew.data._frames import table_from_memory
from unskew.data._tables import check_flat, read_table
from unskew.types import Interactions, UnskewError


def with_item_features(interactions: Interactions, features: Any) -> Interactions:
    """Return the interactions with item features, from a file or a frame with a column of item
    labels; all its other columns are numbers. Items without a row get zeros; a note counts them."""
    if isinstance(features, str | os.PathLike):
        table = read_table(Path(os.path.expanduser(features)))
    else:
        table = table_from_memory(features, "item_features")
    check_flat(table.path, table.frame)
    names = table.frame.columns
    item = find_usual_name("item", names)
    if item is None or len(names) < 2:
        raise UnskewError(
            f"{table.header}: item features need a column item and columns of numbers, not "
            f"{quote_names(names)}; rename the header"
        )
    labels = table.frame[item].cast(pl.String).str.strip_chars()
    columns = [_numbers(table.frame[name], str(table.path)) for name in names if name != item]
    if table.ragged:
        line, fields = table.ragged[0]
        raise UnskewError(
            f"{table.path}, line {line}: {fields} fields where the header has {len(names)}; "
            "give every item all features"
        )
    row = {label: at for at, label in enumerate(labels)}
    place = np.array([row.get(label, -1) for label in interactions.item_ids], np.int64)
    values = np.column_stack(columns).astype(np.float32)
    aligned = np.where(place[:, None] >= 0, values[place], np.float32(0))
    missing = int(np.count_nonzero(place < 0))
    if missing == len(place):
        raise UnskewError(
            f"{table.path}: no item of {interactions.name} has features; items there are labelled "
            f"like {labels[0]!r}, here like {interactions.item_ids[0]!r}"
        )
    notes = [f"{count(missing, 'item')} without features; zeros are used"] if missing else []
    return replace(interactions, item_features=aligned, notes=(*interactions.notes, *notes))


def _numbers(column: pl.Series, where: str) -> Any:
    text = column.dtype in (pl.Categorical, pl.Enum)
    numbers = (column.cast(pl.String) if text else column).cast(pl.Float64, strict=False)
    # Features are kept as float32, in which larger numbers are infinite.
    numbers = numbers.set(numbers.abs() > np.finfo(np.float32).max, None)
    bad = numbers.is_null() | ~numbers.is_finite().fill_null(False)
    if bad.any():
        at = int(bad.arg_max() or 0)
        raise UnskewError(
            f"{where}: feature {column.name!r} of row {at} is {str(column[at])[:40]!r}, not a "
            "finite number; encode features as numbers"
        )
    return numbers.to_numpy()
