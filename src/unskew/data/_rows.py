"""From a table of text to numbered interactions, refusing or dropping what is not one.

Every check marks rows; the first marked row is reported (strict) or all marked rows are dropped
and counted (``skip_bad_rows``). Files users bring are held to more than published data sets: no
repeated pairs, no impossible dates, no user too short to hold anything out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from unskew.data._clock import read_clock
from unskew.data._columns import find_columns
from unskew.data._problems import (
    Problems,
    Rules,
    mark_unparsed,
    plural,
    refuse_types,
    stripped,
)
from unskew.data._tables import Table
from unskew.types import Float64, Int32, Int64, Interactions, UnskewError


class _Columns(NamedTuple):
    users: pl.Series
    items: pl.Series
    ratings: Float64 | None
    timestamps: Int64 | None


def to_interactions(
    table: Table, name: str, columns: Mapping[str, str | None] | None, rules: Rules
) -> Interactions:
    """The interactions of a table, numbered in order of first appearance."""
    chosen = find_columns(table.path, table.frame.columns, columns)
    if rules.ignore_ratings:
        chosen.pop("rating", None)
    problems = Problems(table, rules)
    read = _Columns(
        _labels(table.frame[chosen["user"]], "user", problems),
        _labels(table.frame[chosen["item"]], "item", problems),
        _ratings(table.frame[chosen["rating"]], problems) if "rating" in chosen else None,
        read_clock(table.frame[chosen["timestamp"]], problems) if "timestamp" in chosen else None,
    )
    problems.settle()
    if not rules.published:
        _mark_duplicates(read, problems)
        problems.settle()
        _mark_short_users(read, problems)
    keep = ~problems.bad
    if not keep.any():
        raise UnskewError(f"{table.path}: no usable rows are left; mend the file's rows")
    users, user_ids = _numbered(read.users.filter(pl.Series(keep)))
    items, item_ids = _numbered(read.items.filter(pl.Series(keep)))
    return Interactions(
        name=name,
        users=users,
        items=items,
        user_ids=user_ids,
        item_ids=item_ids,
        ratings=None if read.ratings is None else read.ratings[keep].astype(np.float32),
        timestamps=None if read.timestamps is None else read.timestamps[keep],
        clock="none" if read.timestamps is None else "time",
        min_user_rows=rules.min_user_rows,
        notes=problems.notes(),
    )


def with_order_as_clock(interactions: Interactions) -> Interactions:
    """The order of first appearance of an item in place of a clock, for sources without one.
    Items are numbered in exactly that order."""
    if interactions.timestamps is None:
        interactions = replace(interactions, timestamps=interactions.items.astype(np.int64))
    return replace(interactions, clock="order")


def _labels(column: pl.Series, role: str, problems: Problems) -> pl.Series:
    refuse_types(column, not column.dtype.is_nested(), f"one {role} per row", problems)
    if column.dtype.is_float() and (column.fill_nan(0.0).fill_null(0.0) % 1 == 0).all():
        column = column.cast(pl.Int64, strict=False)
    labels = column.cast(pl.String, strict=False).str.strip_chars().fill_null("")
    problems.mark((labels == "").to_numpy(), f"missing {role}", f"the {role} is missing")
    return labels


def _ratings(column: pl.Series, problems: Problems) -> Float64:
    numeric = column.dtype.is_numeric() or column.dtype in (pl.String, pl.Boolean, pl.Null)
    refuse_types(column, numeric, "ratings as numbers", problems)
    text = stripped(column)
    ratings = text.cast(pl.Float64, strict=False)
    mark_unparsed(text, ratings, "rating", problems)
    values = ratings.fill_null(0.0).to_numpy()
    problems.mark(np.isnan(values), "NaN rating", "the rating is NaN, not a number")
    problems.mark(np.isinf(values), "infinite rating", "the rating is infinite")
    return values


def _mark_duplicates(read: _Columns, problems: Problems) -> None:
    pairs = pl.DataFrame({"user": read.users, "item": read.items}).with_row_index("row")
    pairs = pairs.filter(pl.Series(~problems.bad))
    later = pairs.filter(~pl.struct("user", "item").is_first_distinct())
    if later.height == 0:
        return
    _, user, item = later.row(0)
    first = pairs.filter((pl.col("user") == user) & (pl.col("item") == item))["row"][0]
    repeated = np.zeros(len(problems.bad), np.bool_)
    repeated[later["row"].to_numpy()] = True
    where = f"{problems.table.unit} {problems.table.lines[first]}"
    text = f"user {user!r} and item {item!r} already stand on {where}"
    problems.mark(repeated, "duplicate pair", text)


def _mark_short_users(read: _Columns, problems: Problems) -> None:
    """Users without enough positive rows to hold one out for validation and one for testing."""
    if not problems.rules.refuse_short_users:
        return
    counted = ~problems.bad if read.ratings is None else ~problems.bad & (read.ratings > 0)
    rows = pl.DataFrame({"user": read.users, "counted": pl.Series(counted)}).with_columns(
        total=pl.col("counted").sum().over("user")
    )
    least = problems.rules.min_user_rows
    short = (rows["total"].to_numpy() < least) & ~problems.bad
    if not short.any():
        return
    row = int(short.argmax())
    count = int(rows["total"][row])
    text = (
        f"user {read.users[row]!r} has {count} usable {plural('row', count)} where at least "
        f"{least} are needed"
    )
    n_users = read.users.filter(pl.Series(short)).n_unique()
    problems.mark_users(short, n_users, text)
    problems.settle()


def _numbered(labels: pl.Series) -> tuple[Int32, list[str]]:
    names = labels.unique(maintain_order=True)
    numbers = pl.Series(np.arange(len(names), dtype=np.int32))
    return labels.replace_strict(names, numbers, return_dtype=pl.Int32).to_numpy(), names.to_list()
