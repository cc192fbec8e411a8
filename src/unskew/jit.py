"""The decorator that compiles every kernel, and the cache of compiled code.

numba's own cache notices an edit of the file a kernel stands in, but not of a file the kernel
imports from. Here the folder is named by a hash over the contents of all files that kernels are
made of, so machine code of other sources is never loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
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

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parent
_MAX_FOLDERS = 16
"""Maximum number of cache folders to keep: the current one and those used last before it."""
_MIN_AGE_SECONDS = 24 * 3600.0
"""Seconds for which an unused cache folder is always kept: a process may still write to it."""


def jit(function: F) -> F:
    """Compile ``function`` with numba, without the interpreter lock, and keep the result on disk.

    No fast-math: each operation is IEEE and in the order written, so a kernel gives the same bits
    freshly compiled, loaded from the cache, inlined or not. NumPy's error model, because a test for
    division by zero would keep loops from being vectorised.
    """
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy")(function)
    if cache_folder() is not None:
        dispatcher._cache = _Cache(function)
    return cast(F, dispatcher)


@cache
def cache_folder() -> Path | None:
    """The cache folder for the present sources; None where nothing can be written.

    The first that can be written of: ``NUMBA_CACHE_DIR``, ``__pycache__`` of the package, and the
    user's cache folder.
    """
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unskew"
    chosen = getattr(config, "CACHE_DIR", "")
    places = [Path(chosen)] if chosen else [_PACKAGE / "__pycache__", user]
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
    """A hash over the versions of the compiler and every file that a kernel can be made of."""
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
    """Tells numba which folder and file name to use for a function."""

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


class _Cache(caching.FunctionCache):
    """numba's function cache, without errors when its folder is missing or read-only."""

    _impl_class = _Results

    @contextlib.contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with contextlib.suppress(OSError):
            yield
