"""What each protocol keeps, holds out, hides from training and ranks against."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from evaluation_twins import as_lists, make_interactions

from unskew.evaluation import PROTOCOLS, EvaluationProtocol, prepare
from unskew.rng import Purpose, below, stream, value
from unskew.types import Float32, Int64, Interactions, Split, UnskewError


def noise(
    seed: int = 0, n_users: int = 40, n_items: int = 150, repeats: bool = True
) -> Interactions:
    """Random rows with few distinct times (many ties) and, if asked, repeated pairs."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int | None]] = []
    for user in range(n_users):
        for item in rng.integers(0, n_items, rng.integers(12, 40)):
            rows.append((user, int(item), int(rng.integers(0, 30))))
            if repeats and rng.random() < 0.2:
                rows.append((user, int(item), int(rng.integers(0, 30))))
    return make_interactions([rows[place] for place in rng.permutation(len(rows))])


def plain_leave_one_out(data: Interactions, user: str, ties: int = 1) -> tuple[list[str], str, str]:
    """Training items in time order, the validation and the test item of one user, as labels. Of
    rows with equal times the first one in the file is the latest; the last one if ties is -1."""
    number = list(data.user_ids).index(user)
    rows = np.flatnonzero(data.users == number).tolist()
    clock = data.timestamps if data.timestamps is not None else np.arange(len(data.users))
    latest_first = sorted(rows, key=lambda row: (-clock[row], ties * row))
    test, validation = latest_first[:2]
    train = sorted(set(rows) - {test, validation}, key=lambda row: (clock[row], row))
    labels = [data.item_ids[item] for item in data.items]
    return [labels[row] for row in train], labels[validation], labels[test]


@pytest.mark.parametrize("protocol", ["paper", "leak-free", "sequential"])
def test_leave_one_out_against_the_plain_rule(protocol: str) -> None:
    data = noise(repeats=protocol == "paper")
    if protocol != "paper":
        pairs = np.stack([data.users, data.items], 1)
        first = np.sort(np.unique(pairs, axis=0, return_index=True)[1])
        assert data.timestamps is not None
        data = replace(
            data,
            users=data.users[first],
            items=data.items[first],
            timestamps=data.timestamps[first],
        )
    split = prepare(data, protocol)
    for number, user in enumerate(split.user_ids):
        ties = -1 if protocol == "sequential" else 1
        train, validation, test = plain_leave_one_out(data, user, ties)
        assert [split.item_ids[item] for item in split.train.of(number)] == train
        assert [split.item_ids[item] for item in split.validation.of(number)] == [validation]
        assert [split.item_ids[item] for item in split.test.of(number)] == [test]


def test_among_tied_latest_rows_the_first_in_the_file_is_tested() -> None:
    data = make_interactions([(0, 0, 9), (0, 1, 5), (0, 2, 9), (0, 3, 9), (0, 4, 5)])
    split = prepare(data, "paper")
    assert as_lists(split.test) == [[0]]
    assert as_lists(split.validation) == [[2]]
    assert as_lists(split.train) == [[1, 4, 3]]


def test_sequential_keeps_the_order_of_the_file_among_ties() -> None:
    data = make_interactions([(0, 0, 9), (0, 1, 5), (0, 2, 9), (0, 3, 9), (0, 4, 5)])
    split = prepare(data, "sequential")
    assert as_lists(split.test) == [[3]]
    assert as_lists(split.validation) == [[2]]
    assert as_lists(split.train) == [[1, 4, 0]]
    assert split.validation_in_history
    assert split.rank_all


def test_a_tie_for_second_place_goes_to_the_first_in_the_file() -> None:
    data = make_interactions([(0, 0, 5), (0, 1, 9), (0, 2, 5), (0, 3, 1)])
    split = prepare(data, "leak-free")
    assert (as_lists(split.test), as_lists(split.validation)) == ([[1]], [[0]])
    assert as_lists(split.train) == [[3, 2]]


def test_without_timestamps_the_file_is_the_clock() -> None:
    split = prepare(make_interactions([(0, item, None) for item in (3, 1, 0, 2)]))
    assert [split.item_ids[item] for item in split.train.items] == ["i3", "i1"]
    assert split.item_ids[split.validation.items[0]] == "i0"
    assert split.item_ids[split.test.items[0]] == "i2"


def test_numbers_follow_first_appearance_among_kept_rows_and_labels_come_along() -> None:
    rows = [(0, 9, 0), (2, 5, 0), (2, 9, 1), (1, 3, 0), (2, 7, 2), (1, 5, 1), (1, 8, 2)]
    split = prepare(make_interactions(rows))
    assert list(split.user_ids) == ["u2", "u1"]
    assert list(split.item_ids) == ["i5", "i9", "i3", "i7", "i8"]
    assert split.titles is not None
    assert list(split.titles) == ["t5", "t9", "t3", "t7", "t8"]
    assert any("1 users with fewer than 3 rows" in note for note in split.notes)


def test_ratings_that_are_not_positive_do_not_count() -> None:
    rows = [(0, item, item) for item in range(6)]
    split = prepare(make_interactions(rows, ratings=[1, 0, 2, -1, float("nan"), 0.5]))
    assert list(split.item_ids) == ["i0", "i2", "i5"]
    assert any("3 rows without a positive rating" in note for note in split.notes)


def test_repeats_count_as_rows_under_paper_and_once_under_leak_free() -> None:
    rows = [(0, 0, 0), (0, 1, 1), (0, 1, 2), (0, 2, 3), (1, 0, 0), (1, 0, 1), (1, 1, 2)]
    data = make_interactions(rows)
    paper, leak_free = prepare(data, "paper"), prepare(data, "leak-free")
    assert (paper.n_users, leak_free.n_users) == (2, 1)
    assert as_lists(paper.train) == [[0, 1], [0]]
    assert as_lists(paper.validation) == [[1], [0]]
    assert (as_lists(leak_free.train), as_lists(leak_free.validation)) == ([[0]], [[1]])


def test_deduplication_keeps_the_first_row_in_the_file_even_if_it_is_the_later() -> None:
    rows = [(0, 0, 9), (0, 1, 5), (0, 2, 6), (0, 0, 1)]
    split = prepare(make_interactions(rows), "leak-free")
    assert (as_lists(split.train), as_lists(split.test)) == ([[1]], [[0]])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_training_may_draw_and_what_is_ranked(protocol: str) -> None:
    data = noise()
    split = prepare(data, protocol)
    ever: dict[str, set[str]] = {}
    for user, item in zip(data.users, data.items, strict=True):
        ever.setdefault(data.user_ids[user], set()).add(data.item_ids[item])
    for number, user in enumerate(split.user_ids):
        train, held = set(split.train.of(number)), set(split.test.of(number))
        held |= set(split.validation.of(number))
        assert split.seen.of(number).tolist() == sorted(train)
        known = sorted(item for item, name in enumerate(split.item_ids) if name in ever[user])
        excluded = split.excluded.of(number).tolist()
        assert excluded == (known if protocol == "paper" else sorted(train))
        if protocol != "paper":
            assert not train & held
            assert len(split.train.of(number)) == len(train)
        candidates = split.sampled[number].tolist()
        assert len(set(candidates)) == PROTOCOLS[protocol].candidates
        assert min(candidates) >= 0
        assert not set(candidates) & set(known)
    assert split.rank_all == (protocol != "paper")


def test_candidates_follow_the_seed_and_nothing_else_does() -> None:
    data = noise()
    one, again, other = prepare(data, seed=1), prepare(data, seed=1), prepare(data, seed=2)
    assert np.array_equal(one.sampled, again.sampled)
    assert (one.sampled != other.sampled).mean() > 0.9
    assert np.array_equal(one.train.items, other.train.items)
    assert np.array_equal(one.test.items, other.test.items)


def test_candidates_are_uniform_over_what_the_user_never_touched() -> None:
    rows = [(user, item, item) for user in range(3000) for item in (0, 1, 2)]
    rows += [(3000, item, item) for item in range(3, 13)]
    rules = EvaluationProtocol("few", True, "leave-one-out", "training", True, candidates=3)
    sampled = prepare(make_interactions(rows), rules).sampled[:3000]
    counts = np.bincount(sampled.ravel(), minlength=13)
    assert counts[:3].tolist() == [0, 0, 0]
    expected = 3000 * 3 / 10
    assert abs(counts[3:] - expected).max() < 5 * np.sqrt(expected)


def test_too_few_items_for_the_candidates_ends_in_minus_one() -> None:
    rows = [(0, item, item) for item in range(3)] + [(1, item, item) for item in range(5)]
    sampled = prepare(make_interactions(rows)).sampled
    assert sampled.shape == (2, 99)
    assert sampled[0, :3].tolist() == [3, 4, -1]
    assert (sampled[1] == -1).all()


def test_time_split_never_trains_on_the_future() -> None:
    data = noise(seed=4)
    assert data.timestamps is not None
    split = prepare(data, "time")
    first_time: dict[tuple[str, str], int] = {}
    for user, item, time in zip(data.users, data.items, data.timestamps, strict=True):
        first_time.setdefault((data.user_ids[user], data.item_ids[item]), int(time))

    def times(part: str) -> list[int]:
        lists = as_lists(getattr(split, part))
        return [
            first_time[split.user_ids[user], split.item_ids[item]]
            for user, row in enumerate(lists)
            for item in row
        ]

    assert max(times("train")) < min(times("validation"))
    assert max(times("validation")) < min(times("test"))
    total = len(first_time)
    assert 0.1 * total <= len(times("test")) <= 0.2 * total
    for row in as_lists(split.train):
        assert row


def test_time_split_leaves_out_late_users_and_items_nobody_trained_on() -> None:
    rows = [(user, item, 10 * item + user) for user in range(4) for item in range(5)]
    rows += [(0, 5, 100), (1, 0, 101), (5, 0, 102), (5, 1, 103), (5, 6, 104)]
    rows += [(1, 4, 101), (2, 7, 105)]
    data = make_interactions(rows)
    split = prepare(data, "time")
    assert list(split.user_ids) == ["u0", "u1", "u2", "u3"]
    assert split.n_items == 8
    assert any("1 users without a row before" in note for note in split.notes)
    assert any("nobody had their item in training" in note for note in split.notes)
    held = set(split.test.items.tolist()) | set(split.validation.items.tolist())
    assert held <= set(split.train.items.tolist())


@pytest.mark.parametrize("clock", ["order", "none"])
def test_time_split_needs_real_time(clock: str) -> None:
    data = replace(noise(), clock=clock)  # type: ignore[arg-type]
    with pytest.raises(UnskewError, match=r"needs real timestamps.*leak-free"):
        prepare(data, "time")


def test_time_split_of_one_moment_is_refused() -> None:
    data = make_interactions([(user, item, 7) for user in range(3) for item in range(9)])
    with pytest.raises(UnskewError, match="too few different timestamps"):
        prepare(data, "time")


@pytest.mark.parametrize("protocol", ["paper", "leak-free"])
def test_users_too_short_to_hold_out_from_only_train(protocol: str) -> None:
    rows = [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 0), (1, 1, 1), (2, 2, 0)]
    split = prepare(make_interactions(rows, None, 1), protocol)
    assert split.train.counts().tolist() == [1, 2, 1]
    assert split.validation.counts().tolist() == split.test.counts().tolist() == [1, 0, 0]
    assert any("2 users with fewer than 3 rows" in note for note in split.notes)
    without = prepare(make_interactions(rows[:3], None, 1), protocol)
    assert (split.test.of(0), split.validation.of(0)) == (
        without.test.of(0),
        without.validation.of(0),
    )


def test_nobody_to_evaluate_is_said() -> None:
    split = prepare(make_interactions([(0, 0, 0), (1, 0, 0), (1, 1, 1)], None, 1))
    assert split.n_users == 2
    assert "nobody has test items, so there are no metrics" in split.notes


def test_nothing_left_and_unknown_names_are_refused() -> None:
    data = make_interactions([(0, 0, 0), (0, 1, 1)])
    with pytest.raises(UnskewError, match="No user of hand-made"):
        prepare(data)
    with pytest.raises(UnskewError, match="paper, leak-free, sequential, time, ratio"):
        prepare(data, "leakfree")
    with pytest.raises(UnskewError, match="at least 1"):
        EvaluationProtocol("none", True, "time", "training", True, candidates=0)


def published(name: str, min_user_rows: int, with_ratings: bool) -> Interactions:
    pl = pytest.importorskip("polars")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("UNSKEW_DATA", beside))
    path = folder / name / "ratings.csv.gz"
    if not path.exists():
        pytest.skip(f"no {name} data: set UNSKEW_DATA to the folder that holds it")
    table = pl.read_csv(path)

    def numbered(column: str) -> tuple[Int64, list[str]]:
        labels = table[column].unique(maintain_order=True)
        place = {label: number for number, label in enumerate(labels)}
        return np.array([place[label] for label in table[column]]), [str(x) for x in labels]

    users, user_ids = numbered("user")
    items, item_ids = numbered("item")
    ratings: Float32 | None = (
        table["rating"].to_numpy().astype(np.float32) if with_ratings else None
    )
    return Interactions(
        name=name,
        users=users.astype(np.int32),
        items=items.astype(np.int32),
        user_ids=user_ids,
        item_ids=item_ids,
        ratings=ratings,
        timestamps=table["timestamp"].to_numpy().astype(np.int64),
        clock="time",
        min_user_rows=min_user_rows,
    )


def shape(split: Split) -> tuple[int, int, int]:
    return split.n_users, split.n_items, len(split.train.items) + 2 * split.n_users


def test_lastfm_repeats_put_most_test_pairs_into_other_rows() -> None:
    """999 of 1,600 test pairs have another row: 816 of them in training proper, the others only as
    the validation row."""
    data = published("lastfm-2k", 5, with_ratings=False)
    split = prepare(data, "paper")
    assert shape(split) == (1600, 12454, 185650)
    in_training = in_other_rows = 0
    for user in range(split.n_users):
        test = split.test.of(user)[0]
        trained = test in split.seen.of(user)
        in_training += trained
        in_other_rows += trained or test == split.validation.of(user)[0]
    assert (in_other_rows, in_training) == (999, 816)
    assert "816 of 1,600 test pairs also stand in training" in split.notes
    clean = prepare(data, "leak-free")
    assert not any("stand in training" in note for note in clean.notes)


def test_filmtrust_has_the_published_size() -> None:
    assert shape(prepare(published("filmtrust", 10, True), "paper")) == (1002, 2042, 33372)


def test_candidates_come_from_the_users_own_stream() -> None:
    """These numbers are part of every sampled metric that was ever published."""
    rows = [(user, item, item) for user in range(3) for item in range(user, 200, 3)]
    rules = EvaluationProtocol("few", True, "leave-one-out", "training", True, candidates=5)
    split = prepare(make_interactions(rows), rules, seed=7)
    for user in range(3):
        known = set(split.seen.of(user).tolist())
        known |= {int(split.validation.of(user)[0]), int(split.test.of(user)[0])}
        state = np.uint64(stream(7, 0, user, int(Purpose.CANDIDATES)))
        drawn, counter = list[int](), 0
        while len(drawn) < 5:
            item = below(np.uint64(value(state, counter)), split.n_items)
            counter += 1
            if item not in known and item not in drawn:
                drawn.append(item)
        assert split.sampled[user].tolist() == drawn
