"""Files that commands write at places the user chose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from unskew.files import write_atomically
from unskew.types import UnskewError


def write_file(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file, or say in one sentence why it cannot be written."""
    if path.is_dir():
        raise UnskewError(f"{path} is a folder; give the name of a file.")
    try:
        write_atomically(path, write)
    except OSError as error:
        reason = error.strerror or error
        raise UnskewError(f"{path} cannot be written ({reason}); choose another place.") from None


def write_text(path: Path, text: str) -> None:
    write_file(path, lambda file: file.write(text.encode()))
