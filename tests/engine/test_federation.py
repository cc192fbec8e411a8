"""The round loop end to end: who is evaluated with what, which round is best, what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from unskew.engine import Federation, Scoreboard, State
from unskew.evaluation import prepare
from unskew.kernels import set_threads
from unskew.methods import create
from unskew.methods.pfedclr import Config, PFedCLR
from unskew.types import Cohort, Int64, Interactions, Split, Upload

ROUNDS = 8
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedmf": ("fedmf", {}),
    "fedmf-af": ("fedmf-af", {}),
    "pfedclr": ("pfedclr", {}),
    "pfedclr-full": ("pfedclr", {"buffer": "full"}),
    "alone": ("fedmf", {"aggregate_from": 0}),
}


class Played(NamedTuple):
    """A federation after some rounds, and its ranks after each of them."""

    federation: Federation
    state: State
    boards: list[dict[str, Any]]
    cohorts: list[Int64]
    uploads: list[list[Upload]]


def play(name: str, split: Split, rounds: int, seed: int = 0, **settings: Any) -> Played:
    sent: list[Upload] = []

    def record(upload: Upload, cohort: Cohort) -> Upload:
        sent.append(upload)
        return upload

    method = create(name, **settings)
    federation = Federation(method, split, seed, chunk=50, transform=record)
    state = federation.start()
    boards, cohorts, uploads = [copied(state.scoreboard)], [], []
    for round in range(1, rounds + 1):
        sent.clear()
        federation.step(state)
        boards.append(copied(state.scoreboard))
        cohorts.append(federation.cohort_of(round))
        uploads.append(list(sent))
    return Played(federation, state, boards, cohorts, uploads)


def copied(board: Scoreboard) -> dict[str, Any]:
    """Ranks and lists of all users."""
    arrays = board.arrays()
    del arrays["outdated"]
    return {name: array.copy() for name, array in arrays.items()}


@pytest.fixture(scope="module", params=VARIANTS)
def played(request: pytest.FixtureRequest, small_split: Split) -> Played:
    name, settings = VARIANTS[request.param]
    quick = {"dim": 8, "local_epochs": 4, "participation": 0.3}
    return play(name, small_split, ROUNDS, **{**quick, **settings})


def places(split: Split, board: str, users: Int64) -> Int64:
    """Where a board's array holds these users' entries."""
    if board == "top":
        return users
    indptr = getattr(split, board.partition(".")[0]).indptr
    return np.concatenate([np.arange(indptr[u], indptr[u + 1]) for u in users])


def test_fedmf_learns(small_split: Split) -> None:
    played = play("fedmf", small_split, 40, participation=1.0, learning_rate=0.02)
    first = Scoreboard(small_split)
    first.load(played.boards[0])
    before, after = first.means("validation"), played.state.rows[-1]["validation"]
    for metric in ("hr@10", "ndcg@10"):
        assert after[metric] > 1.5 * before[metric]
    ranks = [board["validation.all"].mean() for board in (played.boards[0], played.boards[-1])]
    assert ranks[1] < 0.8 * ranks[0]
    losses = [row["loss"] for row in played.state.rows]
    assert losses[-1] < 0.8 * losses[0]


def test_a_client_is_evaluated_as_it_was_after_its_last_round(played: Played) -> None:
    """Ranks and lists of clients that sat a round out stand as they were."""
    split = played.federation.split
    everyone = np.arange(split.n_users)
    for number, users in enumerate(played.cohorts, 1):
        before, after = played.boards[number - 1], played.boards[number]
        absent = np.setdiff1d(everyone, users)
        assert len(absent)
        for board in after:
            still, moved = places(split, board, absent), places(split, board, users)
            np.testing.assert_array_equal(after[board][still], before[board][still])
            assert (after[board][moved] != before[board][moved]).any(), "the others' change"


def test_a_client_that_never_took_part_keeps_the_initial_model(played: Played) -> None:
    split, state = played.federation.split, played.state
    never = np.setdiff1d(np.arange(split.n_users), np.concatenate(played.cohorts))
    assert len(never), "the fixture has such clients"
    for board, ranks in played.boards[-1].items():
        where = places(split, board, never)
        np.testing.assert_array_equal(ranks[where], played.boards[0][board][where])
    assert (state.devices.version[never] == 0).all()
    server, fresh = played.federation.method.init(split.n_users, split.n_items, 0)
    held = state.devices.take(never)
    np.testing.assert_array_equal(held.p, fresh.p[never])
    np.testing.assert_array_equal(state.devices.downloads[0].Q, server.Q)


def test_saved_devices_reproduce_the_last_ranks(played: Played) -> None:
    """Each device scored again, alone, with the download it remembers."""
    split, devices = played.federation.split, played.state.devices
    again = Scoreboard(split)
    for user in range(split.n_users):
        one = np.array([user])
        download = devices.downloads[int(devices.version[user])]
        scores = played.federation.method.score(download, devices.take(one))
        again.update(one, scores, scores)
    for board, ranks in copied(again).items():
        np.testing.assert_array_equal(ranks, played.boards[-1][board])


@pytest.mark.parametrize("name", ["fedmf", "pfedgraph", "fednext"])
def test_fewer_evaluations_end_with_the_same_ranks(name: str, small_split: Split) -> None:
    """Rounds without an evaluation leave the last figures standing; what is due is caught up."""
    rounds, method = 7, create(name, **({"participation": 0.3} if name != "fednext" else {}))
    every = Federation(method, small_split, 0).run(rounds)
    federation = Federation(method, small_split, 0, evaluate_every=3)
    boards: list[dict[str, Any]] = []
    state = federation.run(rounds, on_round=lambda at, _: boards.append(copied(at.scoreboard)))
    for board, ranks in copied(every.scoreboard).items():
        np.testing.assert_array_equal(copied(state.scoreboard)[board], ranks)
    for number in (3, 6, 7):
        assert state.rows[number - 1]["test"] == every.rows[number - 1]["test"]
    for earlier, later in ((0, 1), (2, 3), (2, 4)):
        for board, ranks in boards[earlier].items():
            np.testing.assert_array_equal(boards[later][board], ranks)
    assert state.best_round in (3, 6, 7)


@pytest.mark.parametrize("name", ["fedmf", "fednext"])
def test_some_users_are_evaluated_in_rounds_and_everybody_at_the_end(
    name: str, small_split: Split
) -> None:
    rounds, method = 7, create(name, **({"participation": 0.3} if name != "fednext" else {}))
    every = Federation(method, small_split, 0).run(rounds)
    federation = Federation(method, small_split, 0, evaluate_users=40)
    ranks: list[Any] = []
    state = federation.run(
        rounds, on_round=lambda at, _: ranks.append(at.scoreboard.ranks["test", "all"].copy())
    )
    for board, wanted in copied(every.scoreboard).items():
        np.testing.assert_array_equal(copied(state.scoreboard)[board], wanted)
    assert 0 < np.count_nonzero(ranks[5]) <= 40
    assert np.count_nonzero(ranks[6]) == len(ranks[6]), "everybody at the end"
    (counted,) = np.nonzero(ranks[5])
    some = every.scoreboard.per_user("test", "all")["ndcg@10"]
    held = np.flatnonzero(small_split.test.counts())[counted]
    assert state.rows[-1]["test"]["ndcg@10"] == pytest.approx(some[held].mean())
    best = Federation(method, small_split, 0).run(state.best_round)
    for board, wanted in copied(best.scoreboard).items():
        np.testing.assert_array_equal(copied(state.best_scoreboard)[board], wanted)


def test_the_best_round_is_the_best_on_validation(played: Played) -> None:
    state = played.state
    ndcg = [row["validation"]["ndcg@10"] for row in state.rows]
    best = int(np.argmax(ndcg)) + 1
    assert state.best_round == best, "the first of equals"
    for board, ranks in copied(state.best_scoreboard).items():
        np.testing.assert_array_equal(ranks, played.boards[best][board])
    assert state.best_scoreboard.means("validation")["ndcg@10"] == ndcg[best - 1]


def test_the_best_state_is_that_of_its_round(small_split: Split) -> None:
    """Stopped at the best round, the run has the state that a longer run kept as its best."""
    # Rates this high make validation worse after a few rounds, so the best is not the last.
    settings: dict[str, Any] = {
        "dim": 8,
        "local_epochs": 4,
        "participation": 0.5,
        "learning_rate": 1.0,
    }
    long = play("fedmf", small_split, ROUNDS, **settings).state
    assert 1 <= long.best_round < ROUNDS, "else this test shows nothing"
    short = play("fedmf", small_split, long.best_round, **settings).state
    ours, theirs = long.best_devices.arrays(), short.devices.arrays()
    assert list(ours) == list(theirs)
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def test_the_figures_of_a_round(played: Played) -> None:
    split = played.federation.split
    for number, row in enumerate(played.state.rows, 1):
        users = played.cohorts[number - 1]
        assert row["round"] == number
        assert row["clients"] == len(users) == int(0.3 * split.n_users)
        assert row["bytes_up"] == sum(upload.nbytes for upload in played.uploads[number - 1])
        table = split.n_items * 8 * np.dtype(np.float32).itemsize
        assert row["bytes_down"] == table * len(users)
        board = Scoreboard(split)
        board.load(played.boards[number])
        for part in ("validation", "test"):
            means = board.means(part)
            assert row[part] == {name: means[name] for name in ("hr@10", "ndcg@10")}


def test_cohorts_are_drawn_without_replacement_and_afresh(played: Played) -> None:
    n_users = played.federation.split.n_users
    for users in played.cohorts:
        assert (np.diff(users) > 0).all()
        assert users[0] >= 0
        assert users[-1] < n_users
    assert len({tuple(users.tolist()) for users in played.cohorts}) == ROUNDS
    counts = np.zeros(n_users)
    for round in range(1, 401):
        counts[played.federation.cohort_of(round)] += 1
    expected = 400 * int(0.3 * n_users) / n_users
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all(), "everybody equally often"


def test_devices_keep_rows_and_never_tables(played: Played) -> None:
    """A device keeps rows of items it touched; one copy of a download serves all who have it."""
    split, config = played.federation.split, played.federation.method.config
    arrays = played.state.devices.arrays()
    tables = {name: array.nbytes for name, array in arrays.items() if name.startswith("download")}
    assert len(tables) <= ROUNDS, "no more than the rounds there were"
    assert set(tables.values()) == {split.n_items * config.dim * 4}
    live = {int(name.split(".")[1]) for name in tables}
    assert set(np.unique(played.state.devices.version).tolist()) <= live
    private = sum(array.nbytes for name, array in arrays.items() if name not in tables)
    assert private <= most_bytes(split, config.dim, played.cohorts)


def most_bytes(split: Split, dim: int, cohorts: list[Int64]) -> int:
    """What two sets of touched rows per client can come to, and a few vectors beside them."""
    taken_part = np.zeros(split.n_users, np.int64)
    for users in cohorts:
        taken_part[users] += 1
    # Each time, a client touches at most its positives and four negatives for each.
    rows = np.minimum(taken_part * 5 * split.train.counts(), split.n_items).sum()
    per_row, per_user = dim * 4 + 4, 8 + 3 * dim * 4 + 2 * 8
    return int(2 * rows * per_row + split.n_users * per_user + 64)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_array_of_users_by_items_by_dimensions(variant: str) -> None:
    """Forty users with few items each of a catalogue of three thousand."""
    name, settings = VARIANTS[variant]
    n_users, n_items, n_rows = 40, 3000, 6
    generator = np.random.default_rng(0)
    items = np.concatenate([generator.permutation(n_items)[:n_rows] for _ in range(n_users)])
    interactions = Interactions(
        name="sparse",
        users=np.repeat(np.arange(n_users, dtype=np.int32), n_rows),
        items=items.astype(np.int32),
        user_ids=[str(user) for user in range(n_users)],
        item_ids=[str(item) for item in range(n_items)],
    )
    # A split's catalogue is the items that somebody has; this one also has the others.
    split = replace(prepare(interactions), item_ids=interactions.item_ids)
    played = play(name, split, 3, **{"dim": 16, "local_epochs": 1, **settings})
    arrays = played.state.devices.arrays()
    private = [array.nbytes for key, array in arrays.items() if not key.startswith("download")]
    assert sum(private) <= most_bytes(split, 16, played.cohorts)
    assert sum(private) < n_users * n_items * 16 * 4 / 10
    assert len(played.state.devices.downloads) <= 3


@pytest.mark.parametrize("threads", [1, 3])
def test_who_looks_at_uploads_sees_them_in_the_order_of_the_cohort(
    threads: int, small_split: Split, threads_restored: None
) -> None:
    seen: list[int] = []

    def look(upload: Upload, cohort: Cohort) -> Upload:
        seen.extend(cohort.users.tolist())
        return upload

    set_threads(threads)
    method = create("fedmf", dim=4, local_epochs=1)
    federation = Federation(method, small_split, 0, chunk=20, transform=look)
    federation.step(federation.start())
    assert seen == federation.cohort_of(1).tolist()


@pytest.mark.parametrize("aggregate_from", [0, 1, 3])
def test_leaves_said_to_be_unread_are_not_read(aggregate_from: int, small_split: Split) -> None:
    """A round that is given everything ends with the same bits."""
    named = []
    for unread in (PFedCLR.unread_fields, lambda self, round: ()):
        method = PFedCLR(Config(dim=4, local_epochs=1, aggregate_from=aggregate_from))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PFedCLR, "unread_fields", unread)
            federation = Federation(method, small_split, 0)
            state = federation.start()
            for _ in range(4):
                federation.step(state)
        named.append({**state.devices.arrays(), "Q": state.server.Q})
    for name, array in named[0].items():
        np.testing.assert_array_equal(array, named[1][name], err_msg=name)
