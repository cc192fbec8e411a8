"""Download a published data set: resumable, checked, and never visible half-written.

An archive is received into a ``.part`` file. When it is complete and checked, the needed files are
unpacked, each written atomically. ``checksums.json`` beside them holds the SHA-256 of the archive
and of these files. If the SHA-256 of an archive is not known in advance, the first download is
trusted, and later ones must match it.
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
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path, PurePosixPath

from unskew.data._sources import Source, cache_folder, find_source, sources
from unskew.files import write_bytes, write_json
from unskew.types import UnskewError

Progress = Callable[[int, int | None], None]
"""Called with the bytes or rows that are done and the total (None if a server does not say it)."""

_CHUNK_BYTES = 1 << 16
"""Bytes read from the network at a time."""
_TIMEOUT_SECONDS = 30.0
"""Maximum seconds to wait for the publisher's server to answer."""
_RECORD, _RECORD_VERSION = "checksums.json", 1
"""Name of the file with the SHA-256 of downloaded files, and the version of its format."""


def fetch(
    name: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    force: bool = False,
) -> Path:
    """Download a data set into ``folder`` (the cache by default) and return the folder.

    Files that are already there are kept unless ``force``. ``$UNSKEW_MIRROR`` replaces the
    publisher's address by a mirror with the same layout."""
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
    base = os.environ.get("UNSKEW_MIRROR") or source.base_url
    try:
        target.mkdir(parents=True, exist_ok=True)
        _download(f"{base.rstrip('/')}/{source.archive}", target, source, progress)
    except _UnreachableError as error:
        raise UnskewError(_by_hand(source, target, f"could not be fetched ({error})")) from error
    except OSError as error:
        raise UnskewError(
            f"{target}: cannot be written ({error.strerror or error}); free some space or choose "
            "another folder"
        ) from error
    return target


def verify(folder: Path) -> None:
    """Raise an error if a file in the folder differs from the SHA-256 recorded at its download."""
    for name, digest in _read_record(folder).items():
        path = folder / name
        if path.is_file() and _sha256(path) != digest:
            raise UnskewError(
                f"{path}: differs from what was downloaded; delete the folder {folder} and fetch "
                "it again"
            )


class _UnreachableError(Exception):
    """The publisher's server did not deliver the file; the message gives the reason."""


def _download(url: str, folder: Path, source: Source, progress: Progress | None) -> None:
    """Download the archive, check it, unpack the needed files and record their SHA-256."""
    name, record = PurePosixPath(url).name, _read_record(folder)
    part = folder / f"{name}.part"
    _receive(url, part, progress)
    digest = _sha256(part)
    known = source.sha256 or record.get(name, digest)
    if digest != known:
        part.unlink()
        raise UnskewError(
            f"{url}: the file received (SHA-256 {digest[:12]}…) is not the one on record "
            f"({known[:12]}…); it was deleted, fetch it again or get it from the publisher by hand"
        )
    sums = {**record, name: digest, **_unpack(url, part, source.files)}
    write_json(folder / _RECORD, {"version": _RECORD_VERSION, "sha256": dict(sorted(sums.items()))})
    part.unlink()


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    """Download ``url`` into the file ``part``: append missing bytes, or start over if the server
    sends the whole file. The caller checks the SHA-256, which detects a mix of two versions."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "unskew", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        request = urllib.request.Request(url, headers=headers)
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if done and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()
            return _receive(url, part, progress)
        raise _UnreachableError(f"{url} answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _UnreachableError(f"{url}: {getattr(error, 'reason', error)}") from error
    with response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            part.unlink(missing_ok=True)
            done = 0
        length = response.headers.get("Content-Length", "")
        total, broken = done + int(length) if length.isdigit() else None, ""
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
                broken = f" ({error})"
    if broken or done < (total or 0):
        raise UnskewError(
            f"{url}: the connection ended after {done} of {total or 'unknown'} bytes{broken}; run "
            f"it again to go on from {part}"
        )


def _unpack(url: str, archive: Path, files: tuple[str, ...]) -> dict[str, str]:
    """Unpack only ``files`` from the zip archive into its folder; returns the SHA-256 of each."""
    sums = {}
    try:
        with zipfile.ZipFile(archive) as opened:
            members = {PurePosixPath(name).name: name for name in opened.namelist()}
            for file in files:
                if file not in members:
                    raise UnskewError(f"{url}: the archive holds no {file}; get it by hand")
                content = opened.read(members[file])
                write_bytes(archive.with_name(file), content)
                sums[file] = hashlib.sha256(content).hexdigest()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        archive.unlink()
        raise UnskewError(
            f"{url}: the download is not a sound zip archive and was deleted; fetch it again"
        ) from error
    return sums


def _read_record(folder: Path) -> dict[str, str]:
    """SHA-256 of each file downloaded into the folder, as recorded in its ``checksums.json``."""
    path = folder / _RECORD
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["version"] == _RECORD_VERSION:
            return dict(record["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UnskewError(
        f"{path}: not a record this version can read; delete it and fetch the data again"
    )


def _by_hand(source: Source, folder: Path, why: str) -> str:
    """An error message that says how to download a data set by hand."""
    if source.archive:
        what = f"get {source.base_url}{source.archive} yourself and unpack its files"
    else:
        what = f"get {source.files[0]} from {source.url} yourself and put it"
    return (
        f"{source.name} {why}; {what} into {folder} or <folder>/{source.name} with "
        f"UNSKEW_DATA=<folder> (licence: {source.licence})"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
