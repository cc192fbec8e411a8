"""Two histories in one evaluation, models without parameters per user, rounds without an
evaluation, and the ages of interactions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl
import pytest

import unskew
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.methods import create
from unskew.runs.results import bytes_per_client, bytes_per_device
from unskew.types import Cohort, Float32, Method, Ragged, Rows, Split, Upload


class Server(NamedTuple):
    bonus: Float32


class Private(NamedTuple):
    last: Float32


class Follow(Method):
    """Scores highest the item whose number is three more than that of the last item in the history,
    and one more after every round. There are no parameters per user."""

    name = "follow"
    stateless = True
    uses_ages = True
    config: Any = create("fedmf").config
    met: ClassVar[list[Cohort]] = []

    def init(self, n_users: int, n_items: int, seed: int) -> Any:
        return Server(np.zeros((1, 1), np.float32)), Private(np.full((n_users, 1), -1, np.float32))

    def download(self, server: Server) -> Server:
        return server

    def cohort_size(self, round: int, n_users: int) -> int:
        return 3

    def evaluated(self, round: int) -> bool:
        return round % 2 == 0

    def local(self, download: Server, private: Private, cohort: Cohort) -> Any:
        self.met.append(cohort)
        n = len(cohort.users)
        upload = Upload(Rows.empty(n, 1), np.ones((n, 1), np.float32), np.ones(n))
        return private, upload, np.zeros(n)

    def aggregate(self, server: Server, total: Any) -> Server:
        return Server(server.bonus + np.float32(1))

    def refresh(self, download: Server, private: Private, history: Ragged) -> Private:
        last = [of[-1] if len(of) else -1 for of in map(history.of, range(len(history.counts())))]
        return Private(np.array(last, np.float32)[:, None])

    def score(self, download: Server, private: Private) -> Float32:
        steps = np.arange(self.n_items, dtype=np.float32) - private.last
        return -abs(steps - 3 - download.bonus)


def follow(split: Split) -> Any:
    method: Any = Follow()
    method.n_items = split.n_items
    Follow.met.clear()
    return method


@pytest.fixture
def counting() -> Split:
    """Each item of a user is the number of the one before plus five."""
    rows = [(u, u + 5 * t, 100 * t + u) for u in range(12) for t in range(6)]
    rows.sort(key=lambda row: row[1])  # items get their own numbers
    frame = pl.DataFrame(rows, ["user", "item", "timestamp"], orient="row")
    return prepare(unskew.load(frame), "sequential")


def test_the_test_item_is_predicted_with_the_validation_item(counting: Split) -> None:
    """After two rounds. From the training items alone, items before it are ranked higher."""
    state = Federation(follow(counting), counting, 0).run(2)
    ranks = state.scoreboard.ranks
    assert (ranks["validation", "all"] == 1).all()
    assert (ranks["test", "all"] == 1).all()
    stale = Federation(follow(counting), replace(counting, validation_in_history=False), 0).run(2)
    assert (stale.scoreboard.ranks["validation", "all"] == 1).all()
    assert (stale.scoreboard.ranks["test", "all"] > 1).all()


def test_everybody_is_scored_with_the_newest_download(counting: Split) -> None:
    """Three of twelve train; after an evaluated round all have the newest model."""
    federation = Federation(follow(counting), counting, 0)
    state = federation.start()
    rows = [federation.step(state) for _ in range(2)]
    assert set(state.devices.version.tolist()) == {2}
    assert float(state.devices.downloads[2].bonus[0, 0]) == 2
    size = 4
    assert [row["clients"] for row in rows] == [3, 3]
    assert [row["bytes_down"] for row in rows] == [3 * size, 3 * size]
    assert rows[1]["evaluation_bytes_down"] == 12 * size
    outcome: Any = SimpleNamespace(rows=rows)
    assert bytes_per_client([outcome], "bytes_down") == size
    assert bytes_per_device([outcome], "bytes_down", 12) == (6 * size + 12 * size) / 12


def test_between_evaluations_there_is_one_download(counting: Split) -> None:
    """Or every round's cohort would keep a download of its own until the next evaluation."""
    federation = Federation(follow(counting), counting, 0)
    state = federation.start()
    for _ in range(3):
        federation.step(state)
    assert set(state.devices.downloads) == {2}


def test_a_round_without_an_evaluation_repeats_the_last_figures(counting: Split) -> None:
    federation = Federation(follow(counting), counting, 0)
    state = federation.start()
    rows = [federation.step(state) for _ in range(3)]
    assert rows[2]["test"] == rows[1]["test"]
    assert rows[1]["test"] != rows[0]["test"]


def test_ages_go_from_the_newest_to_the_oldest_interaction(counting: Split) -> None:
    method = follow(counting)
    federation = Federation(method, counting, 0)
    everyone = federation.cohort(np.arange(counting.n_users), 1)
    assert everyone.ages is not None
    assert counting.train_timestamps is not None
    times = counting.train_timestamps
    np.testing.assert_allclose(everyone.ages, (times.max() - times) / np.ptp(times))
    assert (everyone.ages.min(), everyone.ages.max()) == (0, 1)
    one = federation.cohort(np.array([4]), 1)
    place = slice(counting.train.indptr[4], counting.train.indptr[5])
    np.testing.assert_array_equal(one.ages, everyone.ages[place])
    oldest, newest = times.min(), times.max()
    assert counting.period == (oldest, newest)
    short = replace(counting, period=(int(oldest) + 10, int(newest)))
    assert short.train_ages is not None
    assert short.train_ages.max() == 1, "older than the period counts as its beginning"
    timeless = Federation(method, replace(counting, train_timestamps=None), 0)
    assert timeless.cohort(np.array([4]), 1).ages is None


def test_a_run_says_when_a_method_cannot_refresh(tiny_split: Split) -> None:
    split = replace(tiny_split, validation_in_history=True, protocol="sequential")
    told = unskew.fit("fedmf", split, rounds=1).result().notes
    assert any("fedmf tests with the states it trained" in note for note in told)
    quiet = unskew.fit("popularity", split).result().notes
    assert not any("tests with the states" in note for note in quiet)
