"""What a run needs is known before it is taken, and refused with both figures."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unskew
from unskew.engine import Federation, memory
from unskew.methods import create
from unskew.types import Split, UnskewError

GB = 2**30


@pytest.fixture
def with_memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_available(size: int) -> None:
        monkeypatch.setattr(memory, "available_memory", lambda: size)

    return set_available


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedmf", {"dim": 10**6}),
        ("fedmf", {"dim": 10**10}),
        ("pfedclr", {"rank": 10**9}),
        ("pfedclr", {"dim": 10**6, "rank": 10**6}),
        ("gpfedrec", {"dim": 10**7}),
        ("fednext", {"dim": 10**7}),
        ("mf", {"dim": 10**9}),
    ],
)
def test_large_settings_are_refused_before_memory_is_taken(
    small_split: Split, with_memory: Any, method: str, settings: dict[str, int]
) -> None:
    with_memory(GB)
    began = time.process_time()
    with pytest.raises(UnskewError) as told:
        Federation(create(method, **settings), small_split, 0).run(1)
    assert time.process_time() - began < 60, "nothing of that size is made"
    need = re.search(rf"{method} needs about ([\d,]+(\.\d)?) GB", str(told.value))
    assert need is not None
    assert float(need[1].replace(",", "")) > 1
    assert "and 1.0 GB is available; lower" in str(told.value)
    for name, value in settings.items():
        assert f"{name} = {value}" in str(told.value)


def test_dimensions_are_not_taken_for_a_number_per_item(
    small_split: Split, with_memory: Any
) -> None:
    """FedRefit has no more dimensions than items, so states of few items are smaller than later."""
    with_memory(32 * 2**20)
    more = ["" for _ in range(20_000)]
    large = dataclasses.replace(small_split, item_ids=more)
    memory.check_memory(create("fedrefit"), large, 0, state_on_disk=False)


def test_items_times_items_are_seen(small_split: Split, with_memory: Any) -> None:
    """EASE has a number for each pair of items."""
    table = small_split.n_items**2 * 4
    for available, refused in ((table, True), (4 * table, False)):
        with_memory(available)
        federation = Federation(create("ease"), small_split, 0)
        if refused:
            with pytest.raises(UnskewError, match="ease needs about"):
                federation.start()
        else:
            federation.start()


def test_samples_of_a_chunk_are_counted(small_split: Split, with_memory: Any) -> None:
    with_memory(2**24)
    Federation(create("fedmf", negatives=1), small_split, 0).start()
    with pytest.raises(UnskewError, match=r"lower negatives = 1000"):
        Federation(create("fedmf", negatives=1000), small_split, 0).start()


def test_a_huge_batch_is_no_reason_to_refuse(tiny_split: Split) -> None:
    settings = {"rounds": 2, "dim": 4, "local_epochs": 2}
    whole = unskew.fit("fedmf", tiny_split, batch=10**5, **settings)
    huge = unskew.fit("fedmf", tiny_split, batch=10**12, **settings)
    assert huge.result().model_sha256 == whole.result().model_sha256


def test_memory_that_runs_out_is_explained(tiny_split: Split) -> None:
    method = create("fedmf", rounds=1)

    def local(*_: Any) -> Any:
        return np.empty((2**20, 2**40), np.float32)

    method.local = local  # type: ignore[method-assign]
    with pytest.raises(UnskewError, match=r"fedmf needs at least [\d,]+ GB of memory for") as told:
        Federation(method, tiny_split, 0).run()
    assert "is available" in str(told.value)


def test_what_a_control_group_leaves_is_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least of what the machine, the process's group and the groups above it leave."""
    group = tmp_path / "groups" / "a" / "b"
    group.mkdir(parents=True)
    (tmp_path / "meminfo").write_text("MemTotal: 64 kB\nMemAvailable:   8000 kB\nBuffers: 1 kB\n")
    (tmp_path / "own").write_text("0::/a/b\n")
    for place, limit, used in ((group, "max", 0), (group.parent, str(5000 * 1024), 3000 * 1024)):
        (place / "memory.max").write_text(f"{limit}\n")
        (place / "memory.current").write_text(f"{used}\n")
        (place / "memory.stat").write_text(f"anon 1\ninactive_file {1000 * 1024}\nslab 3\n")
    names = {"_MEMINFO": "meminfo", "_OWN_GROUP": "own", "_GROUPS": "groups"}
    for name, path in names.items():
        monkeypatch.setattr(memory, name, tmp_path / path)
    assert memory.available_memory() == 3000 * 1024
    (group.parent / "memory.max").write_text("max\n")
    assert memory.available_memory() == 8000 * 1024
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert memory.available_memory() is None
