"""The three local trainers against their twins in float64, and the same bits however they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import twins

from unskew.kernels import (
    Schedule,
    Training,
    draw_samples,
    no_pull,
    set_threads,
    train_joint,
    train_low_rank,
    train_rows,
)
from unskew.ragged import select
from unskew.rng import Purpose
from unskew.types import Cohort, Float32, Float64, Int64, Samples

SIZES = (1, 60, 3, 7, 25, 52, 2, 12)
SHUFFLE = Purpose.SHUFFLE_LOCAL


class State(NamedTuple):
    p: Float32
    Q: Float32
    A: Float32
    B: Float32


class Trainer(NamedTuple):
    """One of the kernels with all its rates, called alike, and what its twin is to train."""

    run: Callable[[Training, State], Float64]
    rates: dict[str, float]
    low_rank: bool = False


TRAINERS = {
    "rows": Trainer(lambda step, s: step.run(train_rows, s.p, s.Q, 0.02), {"Q": 0.02}),
    "joint": Trainer(
        lambda step, s: step.run(train_joint, s.p, s.Q, 0.01, 0.03, *no_pull(s.p)),
        {"p": 0.01, "Q": 0.03},
    ),
    "joint, items frozen": Trainer(
        lambda step, s: step.run(train_joint, s.p, s.Q, 0.01, 0.0, *no_pull(s.p)),
        {"p": 0.01},
    ),
    "low-rank": Trainer(
        lambda step, s: step.run(train_low_rank, s.p, s.Q, s.A, s.B, 0.01, 0.02),
        {"p": 0.01, "A": 0.02, "B": 0.02},
        low_rank=True,
    ),
}


def make_cohort(round: int = 1) -> Cohort:
    """Eight clients of very different sizes, one of them with repeated positives."""
    generator = np.random.default_rng(11)
    positives = [generator.permutation(70)[:size].tolist() for size in SIZES]
    positives[4] = positives[4][:10] * 2 + positives[4][:5]
    barred = twins.ragged([sorted(set(items)) for items in positives])
    users = np.array([40, 3, 17, 5, 99, 1000, 2, 8], np.int64)
    return Cohort(users, twins.ragged(positives), barred, 90, 7, round)


def make_state(samples: Samples, n_clients: int, dim: int, rank: int) -> State:
    """Small enough values that no logit saturates; A is not zero, so that B has a gradient."""
    generator = np.random.default_rng(dim)
    n_rows = len(samples.touched.items)

    def draw(*shape: int) -> Float32:
        return (0.7 * generator.standard_normal(shape)).astype(np.float32)

    return State(
        draw(n_clients, dim), draw(n_rows, dim), draw(n_rows, rank), draw(n_clients, rank, dim)
    )


def copied(state: State) -> State:
    return State(*(array.copy() for array in state))


def relative(ours: Any, theirs: Any) -> float:
    return float(np.linalg.norm(ours - theirs) / (np.linalg.norm(theirs) or 1.0))


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
@pytest.mark.parametrize(
    ("dim", "rank", "schedule"),
    [
        (16, 2, Schedule(4, 256, 0.0)),
        (5, 3, Schedule(3, 7, 0.0)),
        (1, 1, Schedule(2, 1, 0.0)),
        (33, 4, Schedule(5, 64, 0.0)),
        (8, 2, Schedule(10, 256, 0.015)),
    ],
    ids=["d16", "d5-batch7", "d1-batch1", "d33-batch64", "d8-early-stop"],
)
def test_training_agrees_with_the_plain_twin(
    trainer: Trainer, dim: int, rank: int, schedule: Schedule
) -> None:
    cohort = make_cohort()
    samples = draw_samples(cohort, 4)
    start = make_state(samples, len(SIZES), dim, rank)
    state = copied(start)
    step = Training(cohort, samples, schedule, SHUFFLE)
    losses = trainer.run(step, state)
    buffer = (start.A, start.B) if trainer.low_rank else ()
    twin, twin_losses = twins.train(step, start.p, start.Q, trainer.rates, *buffer)
    for name in State._fields:
        ours, began = getattr(state, name), getattr(start, name)
        if name in trainer.rates:
            # By how far they have moved, not by where they began.
            assert relative(ours - began, twin[name] - began) < 1e-4, name
        else:
            np.testing.assert_array_equal(ours, began, err_msg=f"{name} is frozen")
    np.testing.assert_allclose(losses, twin_losses, rtol=1e-5)


def run_in_parts(
    trainer: Trainer, cohort: Cohort, samples: Samples, start: State, parts: list[Int64]
) -> tuple[State, Float64]:
    """Train the clients part by part and put the results back where they belong."""
    state, losses = copied(start), np.zeros(len(cohort.users))
    indptr = samples.touched.indptr
    for part in parts:
        mine = cohort._replace(
            users=cohort.users[part],
            positives=select(cohort.positives, part),
            excluded=select(cohort.excluded, part),
        )
        rows = np.concatenate([np.arange(indptr[c], indptr[c + 1]) for c in part])
        piece = State(start.p[part], start.Q[rows], start.A[rows], start.B[part])
        step = Training(mine, draw_samples(mine, 4), Schedule(3, 64, 0.02), SHUFFLE)
        losses[part] = trainer.run(step, piece)
        state.p[part], state.B[part] = piece.p, piece.B
        state.Q[rows], state.A[rows] = piece.Q, piece.A
    return state, losses


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
def test_threads_chunks_and_order_give_the_same_bits(trainer: Trainer) -> None:
    cohort = make_cohort()
    samples = draw_samples(cohort, 4)
    start = make_state(samples, len(SIZES), 16, 2)
    everyone = np.arange(len(SIZES))
    set_threads(1)
    expected, expected_losses = run_in_parts(trainer, cohort, samples, start, [everyone])
    ways = [
        (2, [everyone]),
        (5, [everyone]),
        (1, [np.array([client]) for client in everyone]),
        (2, np.array_split(everyone, 3)),
        (2, [np.random.default_rng(3).permutation(everyone)]),
    ]
    for threads, parts in ways:
        set_threads(threads)
        state, losses = run_in_parts(trainer, cohort, samples, start, parts)
        for ours, theirs in zip(state, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(losses, expected_losses)


def test_another_round_or_purpose_visits_samples_in_another_order() -> None:
    cohort = make_cohort()
    samples = draw_samples(cohort, 4)
    start = make_state(samples, len(SIZES), 5, 2)

    def trained(cohort: Cohort, purpose: Purpose) -> Float32:
        rows = start.Q.copy()
        step = Training(cohort, samples, Schedule(2, 16, 0.0), purpose)
        step.run(train_rows, start.p, rows, 0.02)
        return rows

    first = trained(cohort, Purpose.SHUFFLE_LOCAL)
    np.testing.assert_array_equal(first, trained(cohort, Purpose.SHUFFLE_LOCAL))
    for other in (
        trained(cohort, Purpose.SHUFFLE_PERSONAL),
        trained(cohort._replace(round=2), Purpose.SHUFFLE_LOCAL),
        trained(cohort._replace(seed=8), Purpose.SHUFFLE_LOCAL),
    ):
        assert (first != other).any()


def test_a_client_without_samples_keeps_what_it_has() -> None:
    cohort = make_cohort()
    nobody = twins.ragged([[] for _ in SIZES])
    cohort = cohort._replace(positives=nobody, excluded=nobody)
    samples = draw_samples(cohort, 4)
    start = make_state(samples, len(SIZES), 5, 2)
    for trainer in TRAINERS.values():
        state = copied(start)
        trainer.run(Training(cohort, samples, Schedule(2, 16, 1e-4), SHUFFLE), state)
        for ours, theirs in zip(state, start, strict=True):
            np.testing.assert_array_equal(ours, theirs)
