"""Read and write JSON and tensor files. Writing is atomic: a flushed temporary file is renamed.

Every JSON and tensor file names its format and version. Tensors are saved as safetensors. The
safetensors library can only write tensors that are whole in memory, but the state of all devices
consists of many small arrays. So ``write_tensors`` streams them in the same published format (an
8-byte length, a JSON header, the raw bytes), and the safetensors library reads them back.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from unskew.types import UnskewError

_DTYPES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64"}
"""The safetensors code of each NumPy dtype that can be saved."""


class Tensor(NamedTuple):
    """A named array, held as one or more arrays to be concatenated along the first axis."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: Sequence[NDArray[Any]]

    @staticmethod
    def whole(name: str, array: NDArray[Any]) -> Tensor:
        return Tensor(name, array.dtype, array.shape, (array,))

    def array(self) -> NDArray[Any]:
        return np.concatenate(self.parts).reshape(self.shape) if len(self.parts) else np.empty(0)


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, mode: int = 0o666) -> None:
    """Write a file atomically: at any moment it has its whole old or its whole new content.

    ``mode`` are the permissions of the new file, less the process's umask."""
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
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


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


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, format: str, version: int) -> dict[str, Any]:
    """Read a JSON object. Raise an error unless its "format" and "version" are the given ones."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnskewError(f"There is no {path}; check the path.") from None
    except (OSError, ValueError) as error:
        raise UnskewError(f"{path} cannot be read ({error}); restore it or run again.") from None
    if not isinstance(value, dict) or value.get("format") != format:
        raise UnskewError(f"{path} is not a {format} file; give a folder that unskew wrote.")
    if value.get("version") != version:
        raise UnskewError(
            f"{path} has version {value.get('version')} of {format}, this unskew reads {version}; "
            "use the unskew that wrote it."
        )
    return value


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


def write_tensors(path: Path, tensors: Iterable[Tensor], format: str, version: int) -> None:
    tensors = list(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": format, "version": str(version)}}
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

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors:
            for part in tensor.parts:
                file.write(np.ascontiguousarray(part).data)

    write_atomically(path, write)


def read_tensors(path: Path, format: str, version: int) -> dict[str, NDArray[Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != format or metadata.get("version") != str(version):
                raise UnskewError(
                    f"{path} is not version {version} of {format}; use the unskew that wrote it."
                )
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UnskewError(f"{path} cannot be read ({error}); restore it or run again.") from None


def checksum(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the tensors' names, types, shapes and bytes, however they are split into parts."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.name} {tensor.dtype.name} {tensor.shape}\n".encode())
        for part in tensor.parts:
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
