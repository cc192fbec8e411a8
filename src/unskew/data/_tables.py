"""Read a file as a table of columns, each row with the line number that an editor shows.

Compression and Parquet are recognised by content, so a renamed file still opens. Well-formed text
is parsed by polars (``_blocks``). If anything is doubtful (a missing field, a blank line, a line
break inside quotes), the text is read again line by line, which is slower but knows the line number
of every problem.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal, cast

import numpy as np
import polars as pl

from unskew.data._blocks import QUOTING_SEPARATORS, parse_lines, read_blocks
from unskew.types import Int64, UnskewError

_GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of every gzip file."""
Choice = Callable[[str, Sequence[str]], Collection[str]]
"""Chooses the columns to read, from the place of the header (for messages) and all names."""
_PARQUET_MAGIC = b"PAR1"
"""First bytes of every Parquet file."""
_SEPARATORS = ("::", "\t", ";", "|", ",")
"""Field separators looked for in the header line; a space is used if none of these occurs."""
_PARQUET_PROBE = """
import os, sys, polars
frame = polars.scan_parquet(sys.argv[1], glob=False, hive_partitioning=False)
frame.sink_ipc(os.devnull, compression="uncompressed")
"""
"""Python program that decodes a Parquet file in bounded memory and fails if it is damaged."""
_RECBOLE_NAME = re.compile(r"(.+):(token|float|token_seq|float_seq)")
"""Column name and type in the header of a RecBole file, such as ``user_id:token``."""


@dataclass(frozen=True)
class Table:
    """The rows of a file or frame, with those of its columns that were asked for. Row ``n`` stands
    in line (or, in Parquet files and frames, in row) ``first + n``, unless ``lines`` says where.
    ``path`` is the table's name in messages. ``ragged`` lists the lines left out because their
    number of fields is wrong: (line number, number of fields)."""

    path: Path | str
    frame: pl.DataFrame
    unit: Literal["line", "row"]
    first: int
    lines: Int64 | None = None
    ragged: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences for the user about how the table was read."""

    @property
    def header(self) -> str:
        """Place of the column names, for messages, such as ``ratings.csv, line 1``."""
        return header_place(self.path) if self.unit == "line" else str(self.path)

    def line(self, row: int) -> int:
        return self.first + row if self.lines is None else int(self.lines[row])


def header_place(path: Path | str) -> str:
    """Place of a text file's column names, for messages."""
    return f"{path}, line 1"


def read_table(path: Path, choose: Choice | None = None) -> Table:
    """Read any supported file: Parquet, or delimited text with a header line."""
    if "\0" in str(path):  # as a config file can name it; opening it would be a ValueError
        raise UnskewError(f"{path}: no such file; check the path")
    return _read_parquet(path, choose) if _is_parquet(path) else read_text(path, choose=choose)


def read_text(
    path: Path,
    separator: str | None = None,
    names: Sequence[str] | None = None,
    choose: Choice | None = None,
) -> Table:
    """Read delimited text. Without ``separator``, the separator is guessed from the header line.
    ``names`` are the column names of a file without a header line."""
    table = _read_fast(path, separator, names, choose)
    return _read_line_by_line(path, separator, names) if table is None else table


def _read_fast(
    path: Path, separator: str | None, names: Sequence[str] | None, choose: Choice | None
) -> Table | None:
    """Read text in blocks; None if anything in it is doubtful."""
    try:
        with _open(path) as file:
            blocks = read_blocks(file)
            start = next(blocks, b"").removeprefix(codecs.BOM_UTF8)
            body = start.lstrip(b"\n")
            line = len(start) - len(body) + 1
            if b"\0" in body or not body.strip():
                return None
            first, _, below = body.partition(b"\n")
            header = first.decode()
            separator = separator or _guess_separator(header)
            if names is None:
                names = _column_names(path, line, header, separator)
                body, line = below, line + 1
            keep = names if choose is None else choose(header_place(path), names)
            frame = parse_lines(chain([body], blocks), separator, names, keep)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error):
        return None
    return None if frame is None else Table(path, frame, "line", line)


def _open(path: Path) -> BinaryIO:
    """Open a file for reading, also if it is gzip."""
    with path.open("rb") as file:
        packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")


def _read_line_by_line(path: Path, separator: str | None, names: Sequence[str] | None) -> Table:
    """Read text with all its columns, and note the lines that cannot be used."""
    text = _decode_utf8(path, read_bytes(path))
    body = text.lstrip("\n")
    line = len(text) - len(body) + 1
    header, _, below = body.partition("\n")
    separator = separator or _guess_separator(header)
    if names is None:
        names = _column_names(path, line, header, separator)
        body, line = below, line + 1
    if not body.strip():
        raise UnskewError(
            f"{path}, line {line - 1}: a header but no rows below it; add the interactions"
        )
    rows: list[list[str]] = []
    lines: list[int] = []
    ragged: list[tuple[int, int]] = []
    for at, fields in _records(path, body, separator, line):
        if len(fields) == len(names):
            rows.append(fields)
            lines.append(at)
        elif fields and (len(fields) > 1 or fields[0].strip()):
            ragged.append((at, len(fields)))
    schema = dict.fromkeys(names, pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return Table(path, frame, "line", 0, np.array(lines, np.int64), tuple(ragged))


def read_bytes(path: Path) -> bytes:
    """The file's content, decompressed if it is gzip."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UnskewError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and permissions"
        ) from error
    if raw.startswith(_GZIP_MAGIC):
        try:
            raw = gzip.decompress(raw)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UnskewError(
                f"{path}: the gzip file is truncated or damaged; get it again or unpack a good copy"
            ) from error
    if not raw.strip():
        raise UnskewError(f"{path}: the file is empty; it needs a header line and rows below it")
    return raw


def _is_parquet(path: Path) -> bool:
    """Whether the file's name or its first bytes are those of a Parquet file."""
    if path.suffix.lower() in {".parquet", ".pq"}:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError:
        return False


def _read_parquet(path: Path, choose: Choice | None) -> Table:
    """Read a Parquet file. A damaged one can crash the whole process, not just raise, so the file
    is first decoded in a separate process."""
    refusal = f"{path}: not a readable Parquet file (damaged or cut short); write it again"
    probe = [sys.executable, "-P", "-c", _PARQUET_PROBE, str(path)]
    if sys.executable and subprocess.run(probe, capture_output=True, check=False).returncode:
        raise UnskewError(refusal)
    try:
        rows = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        names = rows.collect_schema().names()
        frame = (rows if choose is None else rows.select(choose(str(path), names))).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise UnskewError(refusal) from error
    if frame.height == 0:
        raise UnskewError(f"{path}: the file has no rows; it needs at least one interaction")
    return Table(path, bytes_as_text(path, frame), "row", 1)


def check_flat(path: Path | str, frame: pl.DataFrame) -> None:
    """Raise an UnskewError if a column holds lists or objects; ``path`` is for messages."""
    for name, kind in frame.schema.items():
        if kind.is_nested() or kind == pl.Object:
            raise UnskewError(f"{path}: column {name!r} has the type {kind}; give text or numbers")


def bytes_as_text(path: Path | str, frame: pl.DataFrame) -> pl.DataFrame:
    """Decode columns of bytes, as which some programs write text; ``path`` is for messages."""
    for name, kind in frame.schema.items():
        if kind == pl.Binary:
            try:
                frame = frame.with_columns(pl.col(name).cast(pl.String))
            except pl.exceptions.PolarsError:
                raise UnskewError(
                    f"{path}: column {name!r} holds bytes that are not UTF-8 text; write it as text"
                ) from None
    return frame


def _decode_utf8(path: Path, raw: bytes) -> str:
    """Decode text, with ``\\n`` line ends; an error names the line of the first invalid byte."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    bad = raw.find(b"\0")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        bad = error.start
    if bad >= 0:
        line = len(raw[: bad + 1].splitlines())
        raise UnskewError(
            f"{path}, line {line}: byte 0x{raw[bad]:02x} is not UTF-8 text (perhaps a zip archive, "
            "UTF-16, Latin-1 or Windows-1252); unpack the file or save it as UTF-8"
        )
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _guess_separator(header: str) -> str:
    """The separator that occurs most often in the header line; a space if no other occurs."""
    best = max(_SEPARATORS, key=header.count)
    return best if best in header else " "


def _column_names(path: Path, line: int, header: str, separator: str) -> list[str]:
    _, cells = next(_records(path, header, separator, line))
    names = [name.strip() for name in cells]
    recbole = [_RECBOLE_NAME.fullmatch(name) for name in names]
    if all(recbole):
        names = [match.group(1) for match in recbole if match]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UnskewError(
            f"{path}, line {line}: the header names column {twice!r} twice; rename one of them"
        )
    return names


def _records(
    path: Path, body: str, separator: str, first_line: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the fields of every record, also of blank lines. A record with line
    breaks in quotes has the number of its first line."""
    if separator not in QUOTING_SEPARATORS or '"' not in body:
        yield from enumerate((line.split(separator) for line in body.split("\n")), first_line)
        return
    reader = csv.reader(io.StringIO(body), delimiter=separator)
    line = first_line
    try:
        for fields in reader:
            yield line, fields
            line = first_line + reader.line_num
    except csv.Error as error:
        raise UnskewError(
            f"{path}, line {line}: a quoted field that does not end ({error}); close the quote"
        ) from error
