"""The doctor: every planted mistake is found and named, and a sound set-up has no finding."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deploy_samples import write_nodes

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

from typer.testing import CliRunner

from unskew.cli._deploy import app
from unskew.deploy.doctor import examine
from unskew.deploy.keys import write_keys
from unskew.deploy.node_data import write_catalogue
from unskew.types import Split, UnskewError


@pytest.fixture
def folder(tmp_path: Path, tiny_split: Split) -> Path:
    """Keys, a catalogue and the data of two nodes, as they should be."""
    write_keys(tmp_path / "keys", (), 2)
    write_nodes(tmp_path, tiny_split, 2)
    write_catalogue(tmp_path / "catalogue.json", tiny_split)
    return tmp_path


def _wrong(folder: Path, server: str | None = None) -> list[str]:
    return [finding.text for finding in examine(folder, server) if not finding.ok]


def test_a_sound_folder_has_no_finding(folder: Path) -> None:
    assert _wrong(folder) == []
    done = CliRunner().invoke(app, ["doctor", str(folder)])
    assert done.exit_code == 0, done.output
    (folder / "keys" / "trusted.yaml").unlink()
    assert CliRunner().invoke(app, ["doctor", str(folder)]).exit_code == 1


def test_certificates_of_another_authority_or_key_are_found(folder: Path) -> None:
    other = folder.parent / f"{folder.name}-other"
    write_keys(other, (), 1)
    shutil.copy(other / "server.crt", folder / "keys" / "server.crt")
    shutil.copy(other / "node-1.key", folder / "keys" / "node-1.key")
    (folder / "keys" / "node-2.crt").write_text("nothing")
    first, second, third = _wrong(folder)
    assert "node-1.key does not belong to" in first
    assert "node-2.crt is not a certificate" in second
    assert "server.crt is not signed by" in third


def test_certificates_about_to_end_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unskew.deploy.doctor.MIN_DAYS", 900)
    found = _wrong(folder)
    assert len(found) == 3  # of the server and two nodes; the CA's lasts ten years
    assert all("ends on" in text and "unskew deploy keys" in text for text in found)


def test_files_open_to_others_are_found(folder: Path) -> None:
    for path in (folder / "keys" / "node-1.auth", folder / "data-2" / "data.safetensors"):
        os.chmod(path, 0o640)
    found = _wrong(folder)
    assert [text.split(" can be")[0] for text in found] == [
        str(folder / "data-2" / "data.safetensors"),
        str(folder / "keys" / "node-1.auth"),
    ]


@pytest.mark.parametrize("text", ["{}", "nothing", '{"fpk_1": "ssh-rsa AAAA"}'])
def test_nodes_that_trust_nobody_in_particular_are_found(folder: Path, text: str) -> None:
    (folder / "keys" / "trusted.yaml").write_text(text)
    assert ["names no key" in found for found in _wrong(folder)] == [True]


def test_users_on_two_nodes_and_other_items_are_found(folder: Path, tiny_split: Split) -> None:
    shutil.copytree(folder / "data-1", folder / "data-3")
    (found,) = _wrong(folder)
    assert "data-3" in found
    assert "both have user 0" in found
    shutil.rmtree(folder / "data-3")
    reverse = replace(tiny_split, item_ids=list(tiny_split.item_ids)[::-1])
    write_catalogue(folder / "catalogue.json", reverse)
    assert [text.split(" has other")[0] for text in _wrong(folder)] == [
        str(folder / "data-1"),
        str(folder / "data-2"),
    ]


def test_a_server_that_does_not_answer_is_found(folder: Path) -> None:
    (found,) = _wrong(folder, "127.0.0.1:1")
    assert "127.0.0.1:1 does not answer" in found
    with pytest.raises(UnskewError, match="must look like"):
        _wrong(folder, "fed.example.org")
    with pytest.raises(UnskewError, match="There is no folder"):
        _wrong(folder / "nowhere")
