"""The decorator that compiles every kernel, and the disk cache of compiled kernels.

numba's cache notices a change of the file that defines a kernel, but not of the files from which
that file imports. Here the cache folder is named by a hash of all source files that kernels use, so
machine code compiled from older sources is never loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
from numba.core import caching, config

_Function = TypeVar("_Function", bound=Callable[..., Any])

_LOG = logging.getLogger(__name__)
"""Says when kernels have to be compiled; the command prints it."""
_PACKAGE = Path(__file__).parent
"""Folder of the package's source files."""
_MAX_FOLDERS = 16
"""Maximum number of cache folders to keep, one per version of the sources, latest used first."""
_MIN_AGE_SECONDS = 24 * 3600.0
"""A cache folder used within this many seconds is never deleted: a process may be writing to it."""


def jit(function: _Function) -> _Function:
    """Compile ``function`` with numba, cache it on disk, and release the GIL while it runs.

    Without fast-math: each operation is IEEE and in the order written, so a kernel gives the same
    bits freshly compiled, loaded from the cache, inlined or not. With NumPy's error model, because
    a check for division by zero would keep loops from being vectorised.
    """
    compiled: Any = numba.njit(nogil=True, error_model="numpy")(function)
    compiled._cache = _NoCache() if cache_folder() is None else _Cache(function)
    return cast(_Function, compiled)


@cache
def _announce_once() -> None:
    _LOG.info("Compiling kernels, which takes up to a minute; later starts find them compiled.")


@cache
def cache_folder() -> Path | None:
    """Folder of the kernels compiled from the current sources, or None if no folder is writable.

    It is in ``NUMBA_CACHE_DIR`` if that is set, otherwise in the package's ``__pycache__`` or, if
    that is not writable, in the user's cache folder.
    """
    chosen = getattr(config, "CACHE_DIR", "")
    places = [Path(chosen)] if chosen else [_PACKAGE / "__pycache__"]
    if not chosen:
        with contextlib.suppress(RuntimeError):  # services may run as a user without a home
            user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            places.append(Path(user) / "unskew")
    for place in places:
        try:
            folder = place / f"kernels-{_source_hash()}"
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            os.utime(folder)
        except OSError:
            continue
        _remove_old_folders(place)
        return folder
    return None


def _source_hash() -> str:
    """Hash of numba's and llvmlite's versions and of all source files that kernels use."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    shared = (_PACKAGE / name for name in ("jit.py", "rng.py", "types.py"))
    for path in sorted([*shared, *(_PACKAGE / "kernels").rglob("*.py")]):
        digest.update(f"{path.relative_to(_PACKAGE)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _remove_old_folders(place: Path) -> None:
    used = {}
    for folder in place.glob("kernels-*"):
        with contextlib.suppress(OSError):  # another process may have removed it
            used[folder] = folder.stat().st_mtime
    for folder in sorted(used, key=used.__getitem__)[:-_MAX_FOLDERS]:
        if time.time() - used[folder] > _MIN_AGE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


class _Locator(caching._CacheLocator):
    """Tells numba in which folder and under which file name to cache a compiled function."""

    def __init__(self, function: Callable[..., Any], path: str) -> None:
        self._line = function.__code__.co_firstlineno
        self._file_hash = hashlib.sha256(Path(path).read_bytes()).hexdigest()

    @classmethod
    def from_function(cls, function: Callable[..., Any], path: str) -> _Locator:
        return cls(function, path)

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> str:
        return self._file_hash

    def get_disambiguator(self) -> str:
        return f"{self._file_hash[:16]}-{self._line}"


class _Results(caching.CompileResultCacheImpl):
    _locator_classes: list[Any] = [_Locator]  # noqa: RUF012 (numba declares it without ClassVar)


class _Announced:
    """A cache that logs when a kernel is not in it, so that numba is about to compile."""

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        loaded = super().load_overload(signature, target_context)  # type: ignore[misc]
        if loaded is None:
            _announce_once()
        return loaded


class _NoCache(_Announced, caching.NullCache):
    """Stands for the cache where no folder is writable."""


class _Cache(_Announced, caching.FunctionCache):
    """numba's function cache, with file errors (a missing or read-only folder) ignored."""

    _impl_class = _Results

    @contextlib.contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with contextlib.suppress(OSError):
            yield
