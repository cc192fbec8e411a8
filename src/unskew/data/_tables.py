"""A file as a table of text columns, each row with the line number an editor shows.

Well-formed text goes through polars in one sweep. Whenever the outcome is in doubt (a field
missing, a blank line, a line break inside quotes) the file is walked line by line instead, which
is slower but knows which line is to blame.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from unskew.data._files import check_readable, decode_utf8, is_parquet, read_bytes
from unskew.types import Int64, UnskewError

_SEPARATORS = ("::", "\t", ";", "|", ",", " ")
_QUOTED = {",", ";"}
"""Only these dialects use quotes; in the others a quote is part of the text."""
_UNIT_SEPARATOR = "\x1f"
"""Stands in for ``::``, because the fast reader knows single characters only."""
_PROBE = "import sys, polars; polars.read_parquet(sys.argv[1], glob=False, hive_partitioning=False)"
_TYPED = re.compile(r"(.+):(token|float|token_seq|float_seq)")


@dataclass(frozen=True)
class Table:
    """Rows as read. ``lines[n]`` is where row ``n`` stands; ``ragged`` are rows left out of
    ``frame`` because their number of fields is wrong: (line, fields found)."""

    path: Path
    frame: pl.DataFrame
    lines: Int64
    unit: Literal["line", "row"]
    ragged: tuple[tuple[int, int], ...] = ()


def read_table(path: Path) -> Table:
    """Any supported file: Parquet, or delimited text with a header line."""
    check_readable(path)
    return read_parquet(path) if is_parquet(path) else read_text(path)


def read_parquet(path: Path) -> Table:
    """A Parquet file. A damaged one can make the decoder end the whole process, not just fail, so
    the file is decoded in a process of its own first."""
    refusal = f"{path}: not a readable Parquet file (damaged or cut short); write it again"
    probe = [sys.executable, "-P", "-c", _PROBE, str(path)]
    if sys.executable and subprocess.run(probe, capture_output=True, check=False).returncode:
        raise UnskewError(refusal)
    try:
        frame = pl.read_parquet(path, glob=False, hive_partitioning=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise UnskewError(refusal) from error
    if frame.height == 0:
        raise UnskewError(f"{path}: the file has no rows; it needs at least one interaction")
    return Table(path, frame, np.arange(1, frame.height + 1, dtype=np.int64), "row")


def read_text(
    path: Path, separator: str | None = None, names: Sequence[str] | None = None
) -> Table:
    """Delimited text. Without ``separator`` it is guessed from the header; with ``names`` the file
    has no header line and these are its columns."""
    text = decode_utf8(path, read_bytes(path))
    first = len(text) - len(text.lstrip("\n"))
    end = text.find("\n", first)
    header_line = text[first:] if end < 0 else text[first:end]
    separator = separator or guess_separator(header_line)
    if names is None:
        names = _header(path, first + 1, header_line, separator)
        body = "" if end < 0 else text[end + 1 :]
        first_line = first + 2
    else:
        body, first_line = text[first:], first + 1
    if not body.strip():
        raise UnskewError(
            f"{path}, line {first + 1}: a header but no rows below it; add the interactions"
        )
    frame = _read_fast(body, separator, names)
    if frame is not None:
        lines = np.arange(first_line, first_line + frame.height, dtype=np.int64)
        return Table(path, frame, lines, "line")
    return _read_slow(path, body, separator, names, first_line)


def guess_separator(header: str) -> str:
    """The separator that cuts the header into most pieces; a space only where no other does."""
    pieces = {mark: header.count(mark) for mark in _SEPARATORS[:-1]}
    best = max(pieces, key=lambda mark: pieces[mark])
    return best if pieces[best] else " "


def _header(path: Path, line: int, text: str, separator: str) -> list[str]:
    try:
        cells = next(csv.reader([text], delimiter=separator)) if separator in _QUOTED else None
    except csv.Error as error:
        raise UnskewError(
            f"{path}, line {line}: this is no header ({error}); "
            "start the file with column names such as user,item,rating,timestamp"
        ) from error
    names = [name.strip() for name in cells or text.split(separator)]
    typed = [_TYPED.fullmatch(name) for name in names]
    if all(typed):
        names = [match.group(1) for match in typed if match]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UnskewError(
            f"{path}, line {line}: the header names column {twice!r} twice; rename one of them"
        )
    return names


def _read_fast(body: str, separator: str, names: Sequence[str]) -> pl.DataFrame | None:
    """The whole text at once, or None if any line is not beyond doubt."""
    quoted = separator in _QUOTED and '"' in body
    if separator == "::":
        if _UNIT_SEPARATOR in body:
            return None
        body, separator = body.replace("::", _UNIT_SEPARATOR), _UNIT_SEPARATOR
    n_lines = body.count("\n") + (not body.endswith("\n"))
    try:
        frame = pl.read_csv(
            body.encode(),
            has_header=False,
            separator=separator,
            quote_char='"' if quoted else None,
            infer_schema=False,
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    if frame.height != n_lines or frame.width != len(names):
        return None
    if sum(frame.null_count().row(0)):
        return None
    frame.columns = list(names)
    return frame


def _read_slow(
    path: Path, body: str, separator: str, names: Sequence[str], first_line: int
) -> Table:
    rows: list[list[str]] = []
    lines: list[int] = []
    ragged: list[tuple[int, int]] = []
    for line, fields in _records(path, body, separator, first_line):
        if len(fields) == len(names):
            rows.append(fields)
            lines.append(line)
        elif fields and (len(fields) > 1 or fields[0].strip()):
            ragged.append((line, len(fields)))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    frame = pl.DataFrame(
        [pl.Series(name, column, pl.String) for name, column in zip(names, columns, strict=True)]
    )
    return Table(path, frame, np.array(lines, np.int64), "line", tuple(ragged))


def _records(path: Path, body: str, separator: str, first_line: int) -> list[tuple[int, list[str]]]:
    """(line the record starts on, its fields) for every record, blank lines included."""
    if separator not in _QUOTED or '"' not in body:
        split = (line.split(separator) for line in body.split("\n"))
        return list(enumerate(split, first_line))
    reader = csv.reader(io.StringIO(body), delimiter=separator)
    records: list[tuple[int, list[str]]] = []
    try:
        start = 0
        for fields in reader:
            records.append((first_line + start, fields))
            start = reader.line_num
    except csv.Error as error:
        raise UnskewError(
            f"{path}, line {first_line + start}: a quoted field that does not end ({error}); "
            "close the quote"
        ) from error
    return records
