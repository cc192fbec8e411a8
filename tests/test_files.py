"""Files that are whole or absent, in a format that says what it is."""

from __future__ import annotations

import json
import os
import stat
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from safetensors.numpy import load_file

from unskew.files import (
    MappedTensors,
    Tensor,
    checksum,
    named_tensors,
    read_json,
    read_tensors,
    write_atomically,
    write_json,
    write_tensors,
)
from unskew.types import UnskewError


def test_json_holds_names_that_are_not_unicode(tmp_path: Path) -> None:
    """As the system gives them to Python: other bytes are lone halves of characters."""
    value = {"format": "f", "version": 1, "path": os.fsdecode(b"\xff/\xc3\xa9"), "title": "🎬"}
    write_json(tmp_path / "f.json", value)
    assert read_json(tmp_path / "f.json", "f", 1, sealed=True) == value
    assert "é" in (tmp_path / "f.json").read_text(encoding="utf-8"), "text stays readable"


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "file"
    write_atomically(path, lambda file: file.write(b"old"))

    def cut_short(file: BinaryIO) -> None:
        file.write(b"new but inco")
        file.flush()
        assert path.read_bytes() == b"old", "the new bytes are in another file until they are whole"
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, cut_short)
    assert path.read_bytes() == b"old"
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_the_new_file_is_on_the_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written and synchronised, then renamed, then the folder synchronised."""
    path, events = tmp_path / "file", list[str]()
    sync, replace = os.fsync, os.replace

    def record_sync(handle: int) -> None:
        state = os.fstat(handle)
        kind = "folder" if stat.S_ISDIR(state.st_mode) else f"{state.st_size} bytes"
        events.append(f"sync {kind}")
        sync(handle)

    def record_replace(source: Any, target: Any, **_: Any) -> None:
        events.append(f"rename to {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    monkeypatch.setattr(Path, "replace", lambda self, target: record_replace(self, target))
    write_atomically(path, lambda file: file.write(b"12345"))
    assert events == ["sync 5 bytes", "rename to file", "sync folder"]


@pytest.mark.parametrize("kind", ["json", "tensors"])
def test_an_old_file_that_is_read_stays_as_it_was(tmp_path: Path, kind: str) -> None:
    """Writing a new version never touches the bytes of the old one."""
    path = tmp_path / "file"

    def write(number: int) -> None:
        if kind == "json":
            write_json(path, {"format": "test", "version": 1, "number": number})
        else:
            write_tensors(path, [Tensor.whole("number", np.array([number]))], "test", 1)

    write(1)
    os.link(path, tmp_path / "old")
    before = path.read_bytes()
    write(2)
    assert (tmp_path / "old").read_bytes() == before
    assert path.read_bytes() != before


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    """In parts or whole, of every type, empty ones too; safetensors itself reads the file."""
    parts = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((1, 3), np.float32)]
    tensors = [
        Tensor("parts", np.dtype(np.float32), (3, 3), parts),
        Tensor.whole("int32", np.array([[1], [-2]], np.int32)),
        Tensor.whole("int64", np.array([2**40])),
        Tensor.whole("float64", np.array([[0.1, np.inf]])[:, ::-1]),
        Tensor.whole("empty", np.zeros((0, 4), np.float32)),
    ]
    write_tensors(tmp_path / "file", tensors, "test", 3)
    for read in (read_tensors(tmp_path / "file", "test", 3), load_file(tmp_path / "file")):
        assert set(read) == {tensor.name for tensor in tensors}
        for tensor in tensors:
            assert read[tensor.name].dtype == tensor.dtype
            np.testing.assert_array_equal(read[tensor.name], tensor.array(), tensor.name)
    assert int.from_bytes((tmp_path / "file").read_bytes()[:8], "little") % 8 == 0


def test_a_file_of_another_kind_or_version_is_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t", [Tensor.whole("x", np.zeros(1))], "test", 1)
    write_json(tmp_path / "j", {"format": "test", "version": 1})
    for format, version in (("test", 2), ("other", 1)):
        with pytest.raises(UnskewError, match=f"is not version {version} of {format}"):
            read_tensors(tmp_path / "t", format, version)
    with pytest.raises(UnskewError, match="j has version 1 of test, this unskew reads 2"):
        read_json(tmp_path / "j", "test", 2)
    with pytest.raises(UnskewError, match="j is not a other file"):
        read_json(tmp_path / "j", "other", 1)
    (tmp_path / "list").write_text("[]")
    with pytest.raises(UnskewError, match="list is not a test file"):
        read_json(tmp_path / "list", "test", 1)


def test_a_file_that_has_changed_is_one_sentence(tmp_path: Path) -> None:
    """Every byte of both kinds of files is covered, and a file of the same kind is not another."""
    tensors, text = tmp_path / "t", tmp_path / "j"
    sha256 = write_tensors(tensors, [Tensor.whole("x", np.arange(3))], "test", 1)
    write_json(text, {"format": "test", "version": 1, "x": [1, 2.5]})
    for path, read in ((tensors, read_tensors), (text, partial(read_json, sealed=True))):
        whole = path.read_bytes()
        for at in range(len(whole)):
            for other in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:at]):
                path.write_bytes(other)
                with pytest.raises(UnskewError, match=path.name):
                    read(path, "test", 1)
        path.write_bytes(whole)
        read(path, "test", 1)
    read_tensors(tensors, "test", 1, sha256)
    write_tensors(tensors, [Tensor.whole("x", np.arange(3) + 1)], "test", 1)
    read_tensors(tensors, "test", 1)
    with pytest.raises(UnskewError, match="t has changed since it was written"):
        read_tensors(tensors, "test", 1, sha256)


def test_mapped_arrays_are_those_of_the_file(tmp_path: Path) -> None:
    arrays = {"x": np.arange(6.0).reshape(3, 2), "none": np.zeros((0, 4), np.float32)}
    write_tensors(tmp_path / "t", named_tensors(arrays), "test", 1)
    mapped = MappedTensors(tmp_path / "t")
    for _ in range(2):  # once more after the memory is given back
        assert mapped.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            assert mapped.arrays[name].dtype == array.dtype
            np.testing.assert_array_equal(mapped.arrays[name], array)
        mapped.release()
    with pytest.raises(ValueError, match="read-only"):
        mapped.arrays["x"][0] = 1


@pytest.mark.parametrize("content", [b"", b"\x00" * 8, b"{", b"\xff\xfe"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UnskewError, match="file cannot be read"):
        read_json(tmp_path / "file", "test", 1)
    with pytest.raises(UnskewError, match="file cannot be read"):
        read_tensors(tmp_path / "file", "test", 1)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnskewError, match=r"There is no .*absent; check the path"):
        read_json(tmp_path / "absent", "test", 1)
    with pytest.raises(UnskewError, match="absent cannot be read"):
        read_tensors(tmp_path / "absent", "test", 1)


def test_a_folder_in_the_place_of_a_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnskewError, match="is a folder; give the name of a file"):
        write_json(tmp_path, {})


def test_json_is_readable_text(tmp_path: Path) -> None:
    write_json(tmp_path / "file", {"format": "test", "version": 1, "title": "Amélie"})
    text = (tmp_path / "file").read_text(encoding="utf-8")
    assert "Amélie" in text
    assert text.endswith("}\n")
    assert text.count("\n") > 3
    read = read_json(tmp_path / "file", "test", 1)
    assert json.loads(text) == {**read, "checksum": json.loads(text)["checksum"]}


def test_a_checksum_depends_on_every_name_type_shape_and_byte() -> None:
    array = np.arange(6, dtype=np.float32)
    base = Tensor.whole("x", array)
    one = checksum([base])
    assert one == checksum([Tensor("x", array.dtype, array.shape, (array[:2], array[2:]))])
    other = array.copy()
    other[-1] += 1
    for changed in (
        [Tensor.whole("y", array)],
        [Tensor.whole("x", array.view(np.int32))],
        [Tensor.whole("x", array.reshape(2, 3))],
        [Tensor.whole("x", other)],
        [base, base],
        [],
    ):
        assert checksum(changed) != one
