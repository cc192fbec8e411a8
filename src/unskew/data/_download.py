"""Download a published data set: resumable, checked, and never half there.

A download grows in a ``.part`` file and gets its name only when complete and checked; the needed
members are unpacked the same way. ``checksums.json`` beside them holds the SHA-256 of everything
downloaded. An archive without a sum on record is trusted the first time and must match that sum
ever after.
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
from http import HTTPStatus
from pathlib import Path, PurePosixPath

from unskew.data._sources import Source, cache_folder, find_source, sources
from unskew.files import write_bytes, write_json
from unskew.types import UnskewError

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and the total (None if the server does not say)."""

_CHUNK_BYTES = 1 << 16
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
    """Download a data set into ``folder`` (the cache by default) and return the folder.

    Files that are already there are kept unless ``force``. ``base_url``, or ``$UNSKEW_MIRROR``,
    replaces the publisher's address by a mirror with the same layout. ``timeout`` is in seconds."""
    source = find_source(name)
    if source is None:
        names = ", ".join(known.name for known in sources())
        raise UnskewError(f"no data set is named {name!r}; choose from {names}")
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
        sums = dict(sorted({**record, archive.name: digest, **members}.items()))
        write_json(target / _RECORD, {"version": _RECORD_VERSION, "sha256": sums})
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
    """Download ``url`` to ``path``, resuming from ``path.part`` if present; returns the SHA-256."""
    part = path.with_name(path.name + ".part")
    _receive(url, part, progress, timeout)
    got, digest = part.stat().st_size, _sha256(part)
    if (size is not None and got != size) or (sha256 is not None and digest != sha256):
        _delete(part)
        raise UnskewError(
            f"{url}: the file received ({got} bytes, SHA-256 {digest[:12]}…) is not the one on "
            f"record ({size or 'any'} bytes, SHA-256 {(sha256 or 'any')[:12]}…); it was deleted, "
            "fetch it again or get it from the publisher by hand"
        )
    os.replace(part, path)
    _delete(part)
    return digest


def verify(folder: Path) -> None:
    """Check the files of a folder against the sums remembered when they were downloaded."""
    for name, digest in _read_record(folder).items():
        path = folder / name
        if path.is_file() and _sha256(path) != digest:
            raise UnskewError(
                f"{path}: differs from what was downloaded; delete the folder {folder} and fetch "
                "it again"
            )


class _UnreachableError(Exception):
    """The publisher did not answer; the message says why in a few words."""


def _receive(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """Append the missing bytes to ``part``, or start over if the server sends the whole file.

    The server's ETag or date is kept beside ``part``, so that the parts of two versions of a file
    are never joined."""
    tag = _tag_file(part)
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "unskew", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    if done and tag.exists():
        headers["If-Range"] = tag.read_text()
    try:
        request = urllib.request.Request(url, headers=headers)
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if done and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            _delete(part)
            return _receive(url, part, progress, timeout)
        raise _UnreachableError(f"{url} answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _UnreachableError(f"{url}: {_reason(getattr(error, 'reason', error))}") from error
    except ValueError as error:
        raise _UnreachableError(f"{url!r} is not an address") from error
    with response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            _delete(part)
            done = 0
            version = response.headers.get("ETag") or response.headers.get("Last-Modified")
            if version and not version.startswith("W/"):
                tag.write_text(version)
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        broken = ""
        with part.open("ab") as file:
            try:
                while chunk := response.read(_CHUNK_BYTES):
                    file.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
            except (
                http.client.HTTPException,
                ConnectionError,
                TimeoutError,
                ssl.SSLError,
            ) as error:
                broken = _reason(error)
            file.flush()
            os.fsync(file.fileno())
    if broken or (total is not None and done < total):
        of = "" if total is None else f" of {total}"
        why = f" ({broken})" if broken else ""
        raise UnskewError(
            f"{url}: the connection ended after {done}{of} bytes{why}; run it again to go on from "
            f"{part}"
        )


def _unpack(archive: Path, folder: Path, files: Iterable[str]) -> dict[str, str]:
    """Write the named members, and only these, under their bare names; returns their SHA-256."""
    sums = {}
    try:
        with zipfile.ZipFile(archive) as opened:
            members = {PurePosixPath(name).name: name for name in opened.namelist()}
            for file in files:
                if file not in members:
                    raise UnskewError(f"{archive}: holds no {file}; delete it and fetch it again")
                content = opened.read(members[file])
                write_bytes(folder / file, content)
                sums[file] = hashlib.sha256(content).hexdigest()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        archive.unlink(missing_ok=True)
        raise UnskewError(
            f"{archive}: the download is not a sound zip archive and was deleted; fetch it again"
        ) from error
    return sums


def _read_record(folder: Path) -> dict[str, str]:
    """The SHA-256 by file name, as remembered in the folder."""
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


def _by_hand(source: Source, folder: Path, why: str) -> str:
    """How to get a data set without this program."""
    what = f"{source.base_url}{source.archive}" if source.archive else source.files[0]
    where = f"from {source.url} " if source.archive is None else ""
    unpack = "unpack its files" if source.archive else "put it"
    return (
        f"{source.name} {why}; get {what} {where}yourself and {unpack} into {folder} or "
        f"<folder>/{source.name} with UNSKEW_DATA=<folder> (licence: {source.licence})"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: object) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _tag_file(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def _delete(part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag_file(part).unlink(missing_ok=True)
