"""Data that comes already split: three tables in memory, three files, or a folder with such files.

A folder holds ``train``, ``validation`` and ``test`` files (CSV, Parquet ...; ``valid`` is
understood too), or RecBole's ``name.train.inter``, ``name.valid.inter`` and ``name.test.inter``.
Files ``users`` and ``items`` (RecBole: ``name.user``, ``name.item``) may list all users and items:
their order fixes the numbers of users and items, and they may have titles and items that are not in
training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import polars as pl

from unskew.data._checks import Rules, columns_to_read, count, find_usual_name
from unskew.data._frames import table_from_memory
from unskew.data._rows import number_labels, to_interactions
from unskew.data._tables import Choice, Table, check_flat, read_table
from unskew.files import write_atomically
from unskew.types import Interactions, UnskewError

Format = Literal["csv", "parquet", "recbole"]
"""Formats in which a split is written."""
_FILE_NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid"),
    "test": ("test",),
    "users": ("users",),
    "items": ("items",),
}
"""Recognised file names without ending, for each table of a split. A prefix such as ``ml-1m.`` may
precede them."""
_RECBOLE_ENDINGS = {".user": "users", ".item": "items"}
"""Endings of RecBole's lists of users and items, and the names of these tables here."""
_RECBOLE_FILES = {
    "train": ".train.inter",
    "validation": ".valid.inter",
    "test": ".test.inter",
    "users": ".user",
    "items": ".item",
}
"""Endings of the files of a split in RecBole's format, after the name of the data set."""
_RECBOLE_COLUMNS = {
    "user": "user_id:token",
    "item": "item_id:token",
    "rating": "rating:float",
    "timestamp": "timestamp:float",
    "title": "title:token_seq",
}
"""Columns in the header of a file in RecBole's format (name and type), by our column names."""


def load_split(
    train: Any,
    validation: Any = None,
    test: Any = None,
    *,
    users: Any = None,
    items: Any = None,
    name: str | None = None,
    columns: Mapping[str, str | None] | None = None,
    skip_bad_rows: bool = False,
    min_user_rows: int | None = None,
) -> Interactions:
    """Read data that you have split: each part is a file or anything in memory that `load` takes.

    ``users`` and ``items`` may list all labels, which are then numbered in this order. A held-out
    item that is neither in training nor among ``items`` is an error, unless ``skip_bad_rows`` drops
    its rows.
    """
    rules = Rules(skip_bad_rows=skip_bad_rows, min_user_rows=min_user_rows or 1)
    given = {"train": train, "validation": validation, "test": test}
    if test is None and validation is None:
        raise UnskewError("A split needs test or validation rows beside the training rows.")
    parts = {
        part: to_interactions(_read(rows, part, columns_to_read(columns)), part, columns, rules)
        for part, rows in given.items()
        if rows is not None
    }
    notes = [f"{part}: {note}" for part, one in parts.items() for note in one.notes]
    user_labels, item_labels = _labels(users, "user"), _labels(items, "item")
    frames = [
        pl.DataFrame(
            {
                "user": pl.Series(one.user_ids, dtype=pl.String)[one.users],
                "item": pl.Series(one.item_ids, dtype=pl.String)[one.items],
                "rating": one.ratings,
                "timestamp": one.timestamps,
                "part": np.full(len(one.users), list(given).index(part), np.int8),
            }
        )
        for part, one in parts.items()
    ]
    rows = pl.concat(frames, how="vertical_relaxed")
    rows = _drop_unknown_items(rows, item_labels, rules, notes)
    numbered_users, user_ids = _number(rows["user"], user_labels)
    numbered_items, item_ids = _number(rows["item"], item_labels)
    held = [int((rows["part"] == part).sum()) for part in (1, 2)]
    notes.append(f"split as given: {held[0]:,} validation and {held[1]:,} test rows")
    complete = {field for field in ("rating", "timestamp") if not rows[field].null_count()}
    times = rows["timestamp"].to_numpy(writable=True) if "timestamp" in complete else None
    return Interactions(
        name=name or "data",
        users=numbered_users,
        items=numbered_items,
        user_ids=user_ids,
        item_ids=item_ids,
        ratings=rows["rating"].to_numpy(writable=True) if "rating" in complete else None,
        timestamps=times,
        clock="none" if times is None else "time",
        min_user_rows=rules.min_user_rows,
        notes=tuple(notes),
        parts=rows["part"].to_numpy(writable=True),
    )


def find_split_files(folder: Path) -> dict[str, Path]:
    """Find the files of a split in a folder. Keys of the result are "train", and those of
    "validation", "test", "users" and "items" that exist."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        stem, _, ending = path.name.removesuffix(".gz").rpartition(".")
        last = stem.rpartition(".")[2]
        what = _RECBOLE_ENDINGS.get("." + ending) or next(
            (what for what, names in _FILE_NAMES.items() if last in names), None
        )
        if what is None or not path.is_file():
            continue
        if what in found:
            raise UnskewError(
                f"{folder}: both {found[what].name} and {path.name} could be the {what} rows; "
                "leave one of them"
            )
        found[what] = path
    if "train" not in found or not {"validation", "test"} & found.keys():
        raise UnskewError(
            f"{folder} is a folder without train and test files; give a file, or a folder with "
            "train.csv, validation.csv and test.csv or RecBole's name.train.inter and so on"
        )
    return found


def write_split(
    frames: Mapping[str, pl.DataFrame], folder: Path, format: Format, name: str
) -> list[Path]:
    """Write the tables of a split ("train", "validation", "test", "users", "items") to a folder;
    names of RecBole's files begin with ``name``, the data set's name. Returns the files' paths."""
    written = []
    for what, frame in frames.items():
        path = folder / (f"{what}.{format}" if format != "recbole" else name + _RECBOLE_FILES[what])
        if format == "recbole":
            frame = _without_tabs(frame).rename(_RECBOLE_COLUMNS, strict=False)
        write_atomically(path, partial(_write, frame, format))
        written.append(path)
    return written


def _write(frame: pl.DataFrame, format: Format, file: BinaryIO) -> None:
    if format == "parquet":
        frame.write_parquet(file)
    elif format == "csv":
        frame.write_csv(file)
    else:
        frame.write_csv(file, separator="\t", quote_style="never")


def _without_tabs(frame: pl.DataFrame) -> pl.DataFrame:
    """Replace tabs and line breaks in titles; raise an UnskewError if a label has any."""
    for label in ("user", "item"):
        if label in frame.columns and frame[label].str.contains(r"[\t\r\n]").any():
            raise UnskewError(
                f"A {label} label contains a tab or a line break, which RecBole's files cannot "
                "hold; use --format csv or parquet."
            )
    if "title" in frame.columns:
        frame = frame.with_columns(pl.col("title").str.replace_all(r"\s+", " "))
    return frame


def _read(rows: Any, part: str, choose: Choice | None = None) -> Table:
    if isinstance(rows, str | os.PathLike):
        return read_table(Path(os.path.expanduser(rows)), choose)
    return table_from_memory(rows, part)


def _labels(given: Any, role: str) -> list[str]:
    """Read labels from a file, a frame or a list. If ``given`` is None, the result is empty."""
    if given is None:
        return []
    if isinstance(given, list | tuple):
        return [str(label) for label in given]
    table = _read(given, f"{role}s")
    column = find_usual_name(role, table.frame.columns)
    if column is None:
        raise UnskewError(f"{table.header}: no {role} column; name it {role}")
    check_flat(table.path, table.frame.select(column))
    labels: list[str] = table.frame[column].cast(pl.String).str.strip_chars().to_list()
    return labels


def _number(labels: pl.Series, known: list[str]) -> tuple[Any, list[Any]]:
    """Convert labels to numbers and return these with the list of labels by number. Labels in
    ``known`` come first, in this order; other labels follow by first appearance."""
    listed = pl.Series(labels.name, known, dtype=pl.String)
    numbers, names = number_labels(pl.concat([listed, labels]))
    return numbers[len(known) :], names.to_list()


def _drop_unknown_items(
    rows: pl.DataFrame, catalogue: list[str], rules: Rules, notes: list[str]
) -> pl.DataFrame:
    trained = rows.filter(pl.col("part") == 0)["item"].unique()
    known = pl.concat([trained, pl.Series(catalogue, dtype=pl.String)])
    unknown = rows.filter(~pl.col("item").is_in(known.implode()))
    if not unknown.height:
        return rows
    if not rules.skip_bad_rows:
        part = list(_FILE_NAMES)[unknown["part"][0]]
        raise UnskewError(
            f"Item {unknown['item'][0]!r} of the {part} rows is not in training; list all items in "
            "an items file, or drop such rows with --skip-bad-rows (in Python: skip_bad_rows=True)"
        )
    notes.append(f"dropped {count(unknown.height, 'held-out row')} of items not in training")
    return rows.filter(pl.col("item").is_in(known.implode()))
