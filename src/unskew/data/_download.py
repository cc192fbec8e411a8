"""Fetching a published data set: resumable, checked, and never half there.

A download grows in a ``.part`` file and takes its name only when complete and checked; the members
that are needed are unpacked the same way. ``checksums.json`` beside them remembers the SHA-256 of
everything fetched: an archive without a sum on record is trusted the first time and held to that
sum ever after.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from unskew.data import _registry
from unskew.data._named import cache_folder
from unskew.data._registry import Source
from unskew.files import write_bytes, write_json
from unskew.types import UnskewError

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and the total (None if the server does not say)."""

_CHUNK = 1 << 16
_RECORD = "checksums.json"
_RECORD_VERSION = 1


def fetch(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    base_url: str | None = None,
    progress: Progress | None = None,
    force: bool = False,
    timeout: float = 30.0,
) -> Path:
    """Download a data set from its publisher into ``folder`` (the cache by default) and return the
    folder. What is already there is kept unless ``force``. ``base_url``, or ``$UNSKEW_MIRROR``,
    replaces the publisher's address by a mirror with the same layout."""
    source = _registry.get(name)
    target = Path(folder).expanduser() if folder is not None else cache_folder(name)
    if source.name == "demo":
        raise UnskewError("demo is generated, there is nothing to fetch; load it by its name")
    if source.archive is None:
        raise UnskewError(_by_hand(source, target, "is not downloaded, its publisher is gone"))
    if not force and all((target / file).is_file() for file in source.files):
        verify(target)
        return target
    base = base_url or os.environ.get("UNSKEW_MIRROR") or source.base_url
    url = f"{base.rstrip('/')}/{source.archive}"
    archive = target / PurePosixPath(source.archive).name
    record = _read_record(target)
    known = source.sha256 or record.get(archive.name)
    try:
        target.mkdir(parents=True, exist_ok=True)
        digest = download(
            url, archive, size=source.size, sha256=known, progress=progress, timeout=timeout
        )
        members = _unpack(archive, target, source.files)
        archive.unlink()
        _write_record(target, {**record, archive.name: digest, **members})
    except _UnreachableError as error:
        raise UnskewError(_by_hand(source, target, f"could not be fetched ({error})")) from error
    except OSError as error:
        raise UnskewError(
            f"{target}: cannot be written ({error.strerror or error}); free some space or choose "
            "another folder"
        ) from error
    return target


def download(
    url: str,
    path: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> str:
    """Fetch ``url`` to ``path``, going on from ``path.part`` if it is there; the file's SHA-256."""
    part = path.with_name(path.name + ".part")
    total = _transfer(url, part, progress, timeout)
    got = part.stat().st_size
    if total is not None and got < total:
        raise UnskewError(
            f"{url}: the connection ended after {got} of {total} bytes; run it again to go on from "
            f"{part}"
        )
    digest = file_sha256(part)
    if (size is not None and got != size) or (sha256 is not None and digest != sha256):
        _discard(part)
        raise UnskewError(
            f"{url}: the file received ({got} bytes, SHA-256 {digest[:12]}…) is not the one on "
            f"record ({size or 'any'} bytes, SHA-256 {(sha256 or 'any')[:12]}…); it was deleted, "
            "fetch it again or get it from the publisher by hand"
        )
    os.replace(part, path)
    _discard(part)
    return digest


def verify(folder: Path) -> None:
    """Check the files of a folder against the sums remembered when they were fetched."""
    for name, digest in _read_record(folder).items():
        path = folder / name
        if path.is_file() and file_sha256(path) != digest:
            raise UnskewError(
                f"{path}: differs from what was downloaded; delete the folder {folder} and fetch "
                "it again"
            )


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _UnreachableError(Exception):
    """The publisher did not answer; the message says why in a few words."""


def _transfer(url: str, part: Path, progress: Progress | None, timeout: float) -> int | None:
    """Append what is missing to ``part``; the total size if the server told it. The validator the
    server gave with the first bytes is kept beside, so two versions are never joined."""
    have = part.stat().st_size if part.exists() else 0
    tag = _tag_file(part)
    headers = {"User-Agent": "unskew", "Accept-Encoding": "identity"}
    if have and tag.exists():
        headers |= {"Range": f"bytes={have}-", "If-Range": tag.read_text()}
    elif have:
        headers |= {"Range": f"bytes={have}-"}
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
            resumed = resumed and _range_start(response.headers.get("Content-Range")) == have
            if response.status == http.HTTPStatus.PARTIAL_CONTENT and not resumed:
                _discard(part)
                raise UnskewError(f"{url}: the server resumed at the wrong place; run it again")
            start = have if resumed else 0
            length = response.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else None
            validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
            if not resumed:
                tag.unlink(missing_ok=True)
                if validator and not validator.startswith("W/"):
                    tag.write_text(validator)
            _append(response, part, start, total, progress)
            return total
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            _discard(part)
            return _transfer(url, part, progress, timeout)
        raise _UnreachableError(f"{url} answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _UnreachableError(f"{url}: {_reason(error.reason)}") from error
    except ValueError as error:
        raise _UnreachableError(f"{url!r} is not an address") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        got = part.stat().st_size if part.exists() else 0
        raise UnskewError(
            f"{url}: the connection broke after {got} bytes ({_reason(error)}); run it again to go "
            f"on from {part}"
        ) from error


def _append(
    response: Any, part: Path, start: int, total: int | None, progress: Progress | None
) -> None:
    done = start
    with part.open("ab" if start else "wb") as file:
        try:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
        finally:
            file.flush()
            os.fsync(file.fileno())


def _unpack(archive: Path, folder: Path, files: Iterable[str]) -> dict[str, str]:
    """Write the named members, and only these, under their bare names; their SHA-256 sums."""
    sums = {}
    try:
        with zipfile.ZipFile(archive) as opened:
            by_name = {
                PurePosixPath(member.filename).name: member
                for member in opened.infolist()
                if not member.is_dir()
            }
            for file in files:
                if file not in by_name:
                    raise UnskewError(f"{archive}: holds no {file}; delete it and fetch it again")
                data = opened.read(by_name[file])
                write_bytes(folder / file, data)
                sums[file] = hashlib.sha256(data).hexdigest()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        archive.unlink(missing_ok=True)
        raise UnskewError(
            f"{archive}: the download is not a sound zip archive and was deleted; fetch it again"
        ) from error
    return sums


def _read_record(folder: Path) -> dict[str, str]:
    path = folder / _RECORD
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["version"] != _RECORD_VERSION:
            raise ValueError(f"version {record['version']}")
        return {str(name): str(digest) for name, digest in record["sha256"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnskewError(
            f"{path}: not a record this version can read; delete it and fetch the data again"
        ) from error


def _write_record(folder: Path, sums: dict[str, str]) -> None:
    record = {"version": _RECORD_VERSION, "sha256": dict(sorted(sums.items()))}
    write_json(folder / _RECORD, record)


def _by_hand(source: Source, folder: Path, why: str) -> str:
    what = f"{source.base_url}{source.archive}" if source.archive else source.files[0]
    where = f"from {source.url} " if source.archive is None else ""
    unpack = "unpack its files" if source.archive else "put it"
    return (
        f"{source.name} {why}; get {what} {where}yourself and {unpack} into {folder} or "
        f"<folder>/{source.name} with UNSKEW_DATA=<folder> (licence: {source.licence})"
    )


def _range_start(header: str | None) -> int | None:
    start = (header or "").removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdigit() else None


def _reason(error: object) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _tag_file(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def _discard(part: Path) -> None:
    for leftover in (part, _tag_file(part)):
        with suppress(OSError):
            leftover.unlink(missing_ok=True)
