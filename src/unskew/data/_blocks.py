"""Read delimited text fast: in blocks of whole lines that polars parses, on all threads.

Only one block of text is in memory at a time. A column of whole numbers is kept as integers, which
is several times as fast as text. As "7", "07" and "+7" are different labels, that is done only for
columns whose integers, written out again, would give the same text: then the lengths of all fields
add up to the length of the block. Numbers of separators and lines show that no field is missing.

For text with anything else (a missing field, a blank line, a line break in quotes, bytes that are
not UTF-8) ``parse_lines`` returns None. The caller then reads the text line by line.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import BinaryIO

import numpy as np
import polars as pl

from unskew.data._threads import map_ahead

QUOTING_SEPARATORS = {",", ";"}
"""Text with these separators may have quoted fields; elsewhere a quote is an ordinary character."""
_BLOCK_BYTES = 1 << 24
"""Bytes of a block, rounded up to whole lines."""
_UNIT_SEPARATOR = "\x1f"
"""Character that replaces ``::`` for polars, whose separators must be single characters."""


def read_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield a text file in blocks of whole lines, with ``\\n`` as line end and without the blank
    lines at the end of the file."""
    block = file.read(_BLOCK_BYTES)
    while block:
        block += file.readline()
        rest = file.read(_BLOCK_BYTES)
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield block if rest else block.rstrip(b"\n")
        block = rest


def parse_lines(
    blocks: Iterable[bytes], separator: str, names: Sequence[str], keep: Collection[str]
) -> pl.DataFrame | None:
    """Parse lines of fields, whose columns have these names, and return the columns ``keep`` as
    integers or text. None if there is no line, or one that only the slow reader understands."""
    rest = filter(None, blocks)
    first = _parse(next(rest, b"\0"), separator, names, [])
    if first is None:
        return None
    first = _with_integers(first, names)
    whole = [name for name in names if first[name].dtype == pl.Int64]

    def parse(block: bytes) -> pl.DataFrame | None:
        frame = _parse(block, separator, names, whole)
        if frame is None and whole:
            frame = _parse(block, separator, names, [])
            frame = None if frame is None else _with_integers(frame, whole)
        return None if frame is None else frame.select(keep)

    frames = [first.select(keep)]
    for frame in map_ahead(parse, rest):
        if frame is None:
            return None
        frames.append(frame)
    return _stack(frames)


def _parse(
    block: bytes, separator: str, names: Sequence[str], whole: Sequence[str]
) -> pl.DataFrame | None:
    """Parse the columns ``whole`` as integers and the others as text; None if in doubt."""
    quoted = separator in QUOTING_SEPARATORS and b'"' in block
    if b"\0" in block or (quoted and whole):
        return None
    if block.startswith(codecs.BOM_UTF8):  # polars would leave it out: here it is part of a label
        return None
    if separator == "::":
        if _UNIT_SEPARATOR.encode() in block:
            return None
        block, separator = block.replace(b"::", _UNIT_SEPARATOR.encode()), _UNIT_SEPARATOR
    try:
        frame = pl.read_csv(
            block,
            has_header=False,
            separator=separator,
            quote_char='"' if quoted else None,
            schema={name: pl.Int64() if name in whole else pl.String() for name in names},
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    characters = np.frombuffer(block, np.uint8)
    n_breaks = int(np.count_nonzero(characters == ord("\n")))
    if frame.height != n_breaks + (not block.endswith(b"\n")):
        return None
    if quoted or len(names) == 1:
        return None if sum(frame.null_count().row(0)) else frame
    n_separators = int(np.count_nonzero(characters == ord(separator)))
    lengths = sum(_text_length(column) for column in frame) if whole else None
    sound = n_separators == frame.height * (len(names) - 1) and (
        lengths is None or lengths == len(block) - n_separators - n_breaks
    )
    return frame if sound else None


def _text_length(column: pl.Series) -> int:
    """Number of bytes of the values, written as text."""
    if column.dtype == pl.String:
        return int(column.str.len_bytes().sum())
    values = column.drop_nulls().to_numpy()
    if not len(values):
        return 0
    length = len(values) + int(np.count_nonzero(values < 0))
    low, high = int(values.min()), int(values.max())
    power = 10
    while power <= max(high, -low):
        length += int(np.count_nonzero(values >= power)) if power <= high else 0
        length += int(np.count_nonzero(values <= -power)) if power <= -low else 0
        power *= 10
    return length


def _with_integers(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Convert those of the columns to integers whose text the integers give back."""
    converted = []
    for name in names:
        text = frame[name]
        integers = text.cast(pl.Int64, strict=False)
        if integers.null_count() == text.null_count() and (
            integers.cast(pl.String).eq_missing(text).all()
        ):
            converted.append(integers)
    return frame.with_columns(converted)


def _stack(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Put frames below each other. A column that is text in any of them, or has empty fields,
    becomes text."""
    texts = {
        column.name
        for frame in frames
        for column in frame
        if column.dtype == pl.String or column.null_count()
    }
    as_text = [pl.col(name).cast(pl.String).fill_null("") for name in texts]
    return pl.concat([frame.with_columns(as_text) for frame in frames] if texts else frames)
