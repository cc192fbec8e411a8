"""Read and write JSON and tensor files. Writing is atomic: a flushed temporary file is renamed.

Every JSON and tensor file names its format and version, and holds a checksum of itself, which
reading checks. Tensors are saved as safetensors. The safetensors library can only write tensors
that are whole in memory, but the state of all devices consists of many small arrays. So
``write_tensors`` streams them in the same published format (an 8-byte length, a JSON header, the
raw bytes), and the safetensors library reads them back.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from unskew.types import UnskewError

_DTYPES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64", "uint8": "U8"}
"""The safetensors code of each NumPy dtype that can be saved."""
_NO_CHECKSUM = "0" * 64
"""What stands in place of a tensor file's checksum while that is computed."""
_CHECKSUM_LINE = ',\n"checksum": "'
"""Start of the last line of a JSON file, which has the SHA-256 of everything before it."""


class Tensor(NamedTuple):
    """A named array, held as one or more arrays to be concatenated along the first axis."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: Iterable[NDArray[Any]]

    @staticmethod
    def whole(name: str, array: NDArray[Any]) -> Tensor:
        return Tensor(name, array.dtype, array.shape, (array,))

    def array(self) -> NDArray[Any]:
        return np.concatenate([np.empty(0, self.dtype), *map(np.ravel, self.parts)]).reshape(
            self.shape
        )


def write_atomically(
    path: Path, write: Callable[[BinaryIO], object], *, mode: int = 0o666, sync: bool = True
) -> None:
    """Write a file atomically: at any moment it has its whole old or its whole new content.

    ``mode`` are the permissions of the new file, less the process's umask. Without ``sync``, the
    file may be lost in a power cut until `sync_file` is called."""
    if path.is_dir():
        raise UnskewError(f"{path} is a folder; give the name of a file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Flush a file to disk that was written without ``sync``. Its folder has to follow."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, where the system can, so that renames in it survive a power cut."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    write_atomically(path, lambda file: file.write(data), mode=mode)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any], *, compact: bool = False) -> None:
    """Write a JSON object as readable text, or as a single line with ``compact``. If it has a
    format, a last line has the checksum of the text before it."""
    text = json.dumps(value, indent=None if compact else 2, ensure_ascii=False)
    # A path or command need not be Unicode. Python marks its other bytes by lone halves of
    # characters, which UTF-8 cannot write, but JSON has escapes for them.
    text = text.encode(errors="backslashreplace").decode()
    if "format" in value:
        body = text[:-1].rstrip("\n")
        digest = hashlib.sha256(body.encode()).hexdigest()
        text = f'{body}{_CHECKSUM_LINE}{digest}"\n}}'
    write_text(path, text + "\n")


def read_json(path: Path, format: str, version: int, *, sealed: bool = False) -> dict[str, Any]:
    """Read a JSON object. Raise an error unless its "format" and "version" are the given ones and
    its text is as it was written. Files of versions of this package that wrote no checksum are
    accepted unless ``sealed``."""
    try:
        text = path.read_bytes().decode()
        value = json.loads(text)
    except FileNotFoundError:
        raise UnskewError(f"There is no {path}; check the path.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UnskewError(f"{path} cannot be read ({error}); restore it or run again.") from None
    if not isinstance(value, dict) or value.get("format") != format:
        raise UnskewError(f"{path} is not a {format} file; give a folder that unskew wrote.")
    if value.get("version") != version:
        raise UnskewError(
            f"{path} has version {value.get('version')} of {format}, this unskew reads {version}; "
            "use the unskew that wrote it, or run again."
        )
    if sealed or "checksum" in value:
        body, _, rest = text.rpartition(_CHECKSUM_LINE)
        if rest != f'{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n':
            raise changed(path)
        del value["checksum"]
    return value


def changed(path: Path) -> UnskewError:
    """The error that a file is not as it was written."""
    return UnskewError(f"{path} has changed since it was written; restore it or run again.")


def file_checksum(path: Path) -> str:
    """SHA-256 of a file's content."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise UnskewError(f"{path} is missing; restore it or run again.") from None
    except OSError as error:
        raise UnskewError(f"{path} cannot be read ({error}); restore it or run again.") from None


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line, replacing the file."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def append_json_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append one JSON object as a line, in a single write. If the last line is incomplete because a
    process was killed while writing it, a line break is written first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row, ensure_ascii=False) + "\n"
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else "\n" + line
        file.write(line.encode())
        file.flush()


def read_json_lines(path: Path, *, skip_damaged: bool = False) -> list[dict[str, Any]]:
    """Read one JSON object per line. A line that is not a complete JSON object raises an error or,
    with ``skip_damaged``, is skipped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UnskewError(f"{path} cannot be read ({error}); restore it or run again.") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not a JSON object")
            rows.append(row)
        except ValueError as error:
            if not skip_damaged:
                raise UnskewError(
                    f"{path}, line {number} cannot be read ({error}); restore it or run again."
                ) from None
    return rows


def named_tensors(named: Mapping[str, NDArray[Any]]) -> list[Tensor]:
    """Convert a mapping from names to arrays into a list of tensors, in the same order."""
    return [Tensor.whole(name, array) for name, array in named.items()]


def write_tensors(
    path: Path, tensors: Iterable[Tensor], format: str, version: int, *, sync: bool = True
) -> str:
    """Write a safetensors file; returns its checksum, which is in the file, too. ``sync`` is that
    of `write_atomically`."""
    tensors = list(tensors)
    about = {"format": format, "version": str(version), "sha256": _NO_CHECKSUM}
    header: dict[str, Any] = {"__metadata__": about}
    offset = 0
    for tensor in tensors:
        size = int(np.prod(tensor.shape, dtype=np.int64)) * tensor.dtype.itemsize
        header[tensor.name] = {
            "dtype": _DTYPES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(head)

    def write(file: BinaryIO) -> None:
        file.write(head)
        for tensor in tensors:
            for part in tensor.parts:
                data = np.ascontiguousarray(part).data
                digest.update(data)
                file.write(data)
        file.seek(head.index(_NO_CHECKSUM.encode()))
        file.write(digest.hexdigest().encode())

    write_atomically(path, write, sync=sync)
    return digest.hexdigest()


def read_tensors(
    path: Path, format: str, version: int, sha256: str | None = None
) -> dict[str, NDArray[Any]]:
    """Read the arrays of a safetensors file, after `check_tensors`."""
    check_tensors(path, format, version, sha256)
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def check_tensors(path: Path, format: str, version: int, sha256: str | None = None) -> None:
    """Raise an UnskewError unless a safetensors file is of this format and version and as it was
    written, with the checksum ``sha256`` if one is given. Only without one, files of versions of
    this package that wrote no checksum are accepted."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
        if about.get("format") != format or about.get("version") != str(version):
            raise UnskewError(
                f"{path} is not version {version} of {format}; use the unskew that wrote it."
            )
        if sha256 is None and about.keys() == {"format", "version"}:
            return
        found, digest = about.get("sha256", ""), hashlib.sha256()
        with path.open("rb") as content:
            head = content.read(8)
            head += content.read(int.from_bytes(head, "little"))
            digest.update(head.replace(found.encode() or b" ", _NO_CHECKSUM.encode(), 1))
            while block := content.read(2**20):
                digest.update(block)
    except (OSError, SafetensorError) as error:
        raise UnskewError(f"{path} cannot be read ({error}); restore it or run again.") from None
    if found != digest.hexdigest() or found != (sha256 or found):
        raise changed(path)


class MappedTensors:
    """Arrays of a safetensors file, mapped into memory: what is read of them is loaded from the
    file on demand. This process wrote the file, or called `check_tensors`."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = 8 + int.from_bytes(self._map[:8], "little")
        header = json.loads(self._map[8:start])
        names = {code: np.dtype(name) for name, code in _DTYPES.items()}
        self.arrays: dict[str, NDArray[Any]] = {}
        for name, about in header.items():
            if name != "__metadata__":
                low, high = about["data_offsets"]
                flat = np.frombuffer(self._map, np.uint8, high - low, start + low)
                self.arrays[name] = flat.view(names[about["dtype"]]).reshape(about["shape"])

    def release(self) -> None:
        """Give back the memory of what was read. The arrays can still be used."""
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)


def checksum(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the tensors' names, types, shapes and bytes, however they are split into parts."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.name} {tensor.dtype.name} {tensor.shape}\n".encode())
        for part in tensor.parts:
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
