"""The part of a federation that a Ray worker has, in this process: what it computes, and how a
process that replaces a dead one goes on. `test_ray.py` has the same with Ray."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import run_unskew
from unskew.engine import Federation
from unskew.engine.ray import divide
from unskew.engine.shard import NOT_PLACED, Loaded, Shard, split_part
from unskew.kernels import merge_sums
from unskew.methods import create
from unskew.privacy import LocalPrivacy, PrivateUploads
from unskew.types import Split

SETTINGS = {"dim": 4, "participation": 0.5, "local_epochs": 1}


def a_shard(split: Split, folder: Path, first: int, end: int) -> Shard:
    def load() -> Loaded:
        return Loaded(lambda: create("fedmf", **SETTINGS), split, {})

    return Shard(load, first, end, folder, 1, None, 256)


def placed(shard: Shard, federation: Federation, first: int, end: int) -> Any:
    """Give a shard its users' devices before the first round; returns the first download."""
    state = federation.start()
    download, devices = federation.method.download(state.server), state.devices
    users = np.arange(first, end)
    shard.place({0: download})
    shard.put(users - first, devices.take(users), devices.version[users])
    shard.placed(best=True)
    shard.placed(best=False)
    return download


def test_users_are_divided_by_their_items_and_cores(small_split: Split) -> None:
    cuts = divide(small_split, [1, 3])
    assert (cuts[0], cuts[-1], len(cuts)) == (0, small_split.n_users, 3)
    items = small_split.train.indptr[cuts[1]] / small_split.train.indptr[-1]
    assert 0.2 < items < 0.3
    few = divide(small_split, [1] * (small_split.n_users + 5))
    assert few == sorted(set(few))
    assert all(end > first for first, end in pairwise(few))


def test_a_part_of_a_split_has_its_users_and_no_others(small_split: Split) -> None:
    part = split_part(small_split, 7, 20)
    assert part.n_users == 13
    for name in ("train", "seen", "excluded", "validation", "test"):
        for user in range(13):
            whole = getattr(small_split, name).of(user + 7)
            np.testing.assert_array_equal(getattr(part, name).of(user), whole)
    np.testing.assert_array_equal(part.sampled, small_split.sampled[7:20])
    assert part.train_timestamps is not None
    assert len(part.train_timestamps) == len(part.train.items)


def test_shards_add_up_to_the_federation(small_split: Split, tmp_path: Path) -> None:
    federation = Federation(create("fedmf", **SETTINGS), small_split, 0)
    users, half = federation.cohort_of(1), small_split.n_users // 2
    cuts, totals, losses = (0, half, small_split.n_users), [], []
    for n, (first, end) in enumerate(pairwise(cuts)):
        shard = a_shard(small_split, tmp_path / str(n), first, end)
        assert shard.begin(0, None) == NOT_PLACED
        download = placed(shard, federation, first, end)
        own = users[(users >= first) & (users < end)] - first
        report, total = shard.train(1, own, 1, download)
        totals.append(total)
        losses.append(report.losses)
    state = federation.start()
    whole = federation.train(state.devices, users, 1, download)
    assert whole.total is not None
    merged = merge_sums(*totals)
    for mine, theirs in zip(merged, whole.total, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(np.concatenate(losses), whole.losses)


def test_a_new_process_repeats_the_calls_after_the_checkpoint(
    small_split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unskew.engine.shard.MAX_WRITING_SHARE", 0.0)
    monkeypatch.setattr("unskew.engine.shard.MAX_UNSAVED_CALLS", 2)
    federation = Federation(create("fedmf", **SETTINGS), small_split, 0)
    shard = a_shard(small_split, tmp_path, 0, 40)
    shard.begin(0, None)
    download, users = placed(shard, federation, 0, 40), np.arange(10, 30)
    for number in (1, 2, 3):
        report, total = shard.train(number, users, number, download)
    again = a_shard(small_split, tmp_path, 0, 40)
    assert again.begin(0, None) == report.saved == 2
    repeated, same = again.train(3, users, 3, download)
    assert total is not None
    assert same is not None
    np.testing.assert_array_equal(same.rows, total.rows)
    np.testing.assert_array_equal(repeated.losses, report.losses)
    wanted, found = (s.evaluate(users, best=False) for s in (shard, again))
    for name, ranks in wanted.items():
        np.testing.assert_array_equal(found[name], ranks)
    # The driver cannot know what the dead process had sent, so it gets everybody's devices.
    message = again.fetch(np.zeros(0, np.int64), best=False)
    assert message is not None
    np.testing.assert_array_equal(message[0], np.arange(40))
    assert again.fetch(message[0], best=False) is None


def test_a_call_is_not_made_twice(small_split: Split, tmp_path: Path) -> None:
    federation = Federation(create("fedmf", **SETTINGS), small_split, 0)
    shard = a_shard(small_split, tmp_path, 0, 40)
    shard.begin(0, None)
    download = placed(shard, federation, 0, 40)
    shard.train(1, np.arange(5), 1, download)
    with pytest.raises(RuntimeError, match="call 1 after call 1"):
        shard.train(1, np.arange(5), 1, download)


def test_records_of_private_uploads_can_be_sent(small_split: Split) -> None:
    def uploads() -> PrivateUploads:
        return PrivateUploads(LocalPrivacy(noise=0.1, clip=1.0).with_noise(0.1))

    whole, parts, driver = uploads(), uploads(), uploads()
    for transform in (whole, parts):
        federation = Federation(create("fedmf", **SETTINGS), small_split, 0, transform=transform)
        federation.train(federation.start().devices, federation.cohort_of(1), 1, _first(federation))
    driver.add_records(parts.take_records())
    assert driver.round_figures() == whole.round_figures()
    assert parts.take_records() == []


def _first(federation: Federation) -> Any:
    return federation.method.download(federation.start().server)


@pytest.mark.parametrize(
    ("method", "why"),
    [("ease", "trains on all data in one place"), ("gpfedrec", "needs every single upload")],
)
def test_methods_without_sums_are_refused_by_name(method: str, why: str, tmp_path: Path) -> None:
    _, err = run_unskew("run", "--method", method, "--ray", "local", cwd=tmp_path, expect=2)
    assert f"{method} cannot be trained on several machines" in err
    assert why in err
    assert not (tmp_path / "runs").exists()
