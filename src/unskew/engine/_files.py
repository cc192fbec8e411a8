"""Safe files: a temporary file, forced to the disk, a rename; a name and a version in every format.

Tensors are saved as safetensors. Their writer wants every tensor whole in memory; the devices of a
federation are many small arrays, so :func:`write_tensors` streams them in the same published
format (an 8-byte length, a JSON header, the raw bytes) and safetensors itself reads them back.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from unskew.types import UnskewError

_DTYPES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64"}


class Tensor(NamedTuple):
    """A named array, in one or many parts that follow each other along the first axis."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: Sequence[NDArray[Any]]

    @staticmethod
    def whole(name: str, array: NDArray[Any]) -> Tensor:
        return Tensor(name, array.dtype, array.shape, (array,))

    def array(self) -> NDArray[Any]:
        return np.concatenate(self.parts).reshape(self.shape) if len(self.parts) else np.empty(0)


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that at any moment the old or the new one is there, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """What was renamed in a folder stays renamed after a power cut, where the system can promise
    it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def read_json(path: Path, format: str, version: int) -> dict[str, Any]:
    """A JSON object that says it is of this format and a version we know."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnskewError(f"There is no {path}; is {path.parent} a finished run?") from None
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
    """SHA-256 over names, types, shapes and bytes: the same for the same model, however stored."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.name} {tensor.dtype.name} {tensor.shape}\n".encode())
        for part in tensor.parts:
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
