"""Bytes off the disk, with every way this can fail turned into one sentence.

Compression is recognised by content, not by name, so a renamed file still opens and a broken one
is told apart from a plain one.
"""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from unskew.types import UnskewError

_GZIP = b"\x1f\x8b"
_ZIP = b"PK\x03\x04"
_PARQUET = b"PAR1"


def read_bytes(path: Path) -> bytes:
    """The file's content, unpacked if it is gzip."""
    raw = _read_raw(path)
    if raw.startswith(_GZIP):
        try:
            raw = gzip.decompress(raw)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UnskewError(
                f"{path}: the gzip file is truncated or damaged; get it again or unpack a good copy"
            ) from error
    elif path.suffix == ".gz":
        raise UnskewError(
            f"{path}: not a gzip file in spite of its name; rename it or compress it with gzip"
        )
    if raw.startswith(_ZIP):
        raise UnskewError(f"{path}: this is a zip archive; unpack it and give the file inside")
    if not raw.strip():
        raise UnskewError(f"{path}: the file is empty; it needs a header line and rows below it")
    return raw


def is_parquet(path: Path) -> bool:
    """Whether the file claims to be Parquet, by name or by its first bytes."""
    if path.suffix.lower() in {".parquet", ".pq"}:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_PARQUET)) == _PARQUET
    except OSError:
        return False


def check_readable(path: Path) -> None:
    """Refuse what is not an ordinary file before any reader meets it."""
    if os.path.isdir(path):
        raise UnskewError(f"{path}: this is a folder; give a file with interactions")
    if not os.path.exists(path):
        raise UnskewError(f"{path}: no such file; check the path")


def decode_utf8(path: Path, raw: bytes) -> str:
    """The text with ``\\n`` line ends; the place of the first byte that is not UTF-8 otherwise."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UnskewError(f"{path}, line 1: the text is UTF-16; save the file as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        line = before.count(b"\n") + 1
        raise UnskewError(
            f"{path}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8 "
            "text (perhaps Latin-1 or Windows-1252); save the file as UTF-8"
        ) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UnskewError(
            f"{path}, line {line}: a zero byte, so this is not UTF-8 text; "
            "save the file as CSV in UTF-8 or as Parquet"
        )
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def _read_raw(path: Path) -> bytes:
    check_readable(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnskewError(
            f"{path}: cannot be read ({error.strerror or error}); check its permissions"
        ) from error
