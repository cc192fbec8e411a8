"""What the skew audit looks at: one client right after its round, whatever its method keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from unskew.audit import Feedback
from unskew.kernels import draw_samples, gather, overlay
from unskew.types import Cohort, Float64, Int32, Method


class Client(NamedTuple):
    """One client right after its round, in float64."""

    user: int
    items: Int32
    p: Float64
    local: Float64
    shared: Float64
    """Its own items, and the aggregated ones that replace them."""
    feedback: Feedback
    answer: tuple[Float64, Float64]
    """The vector and items it meets the new ones with: its buffer added, or p solved anew."""
    used: tuple[Float64, Feedback]
    """The items that its vector was made for, and what it was made from."""
    buffered: bool
    rate: float | None
    """Of the vector's steps (eta); None if it is solved for."""
    buffer_rate: float


def trained(
    method: Method, before: Any, after: Any, private: Any, cohort: Cohort
) -> Iterator[Client]:
    """Clients whose vector is trained by gradient: FedMF, AF, CF and CLR."""
    c, samples = method.config, draw_samples(cohort, method.config.negatives)
    touched = samples.touched
    local = overlay(gather(before.Q, touched), touched, private.Q).astype(np.float64)
    shared = gather(after.Q, touched).astype(np.float64)
    at = samples.row + np.repeat(touched.indptr[:-1], samples.counts())
    count = np.bincount(at, minlength=len(touched.items)).astype(np.float64)
    label = np.bincount(at, samples.label, len(touched.items)).astype(np.float64)
    buffered = hasattr(private, "A")  # AF's matrix is for scoring: no vector is trained against it
    A = np.zeros((len(local), 0))
    if buffered:
        empty = np.zeros((len(local), private.A.values.shape[1]), np.float32)
        A = overlay(empty, touched, private.A).astype(np.float64)
    for i, user in enumerate(cohort.users):
        own = slice(touched.indptr[i], touched.indptr[i + 1])
        p, feedback = private.p[i].astype(np.float64), Feedback(count[own], label[own])
        W: Any = 0.0
        if buffered:
            W = A[own] @ private.B[i].astype(np.float64) if private.B.shape[1] else A[own]
        yield Client(
            int(user),
            touched.items[own],
            p,
            local[own],
            shared[own],
            feedback,
            (p, shared[own] + W),
            (local[own] + W, feedback),
            buffered,
            c.learning_rate,
            getattr(c, "buffer_rate", c.learning_rate),
        )


def solved(
    method: Method, before: Any, after: Any, private: Any, cohort: Cohort
) -> Iterator[Client]:
    """FedRefit's clients: |x_u - U p|^2 over all items, and p solved for again when U arrives."""
    d = before.U.shape[1]
    again = method.fold_in(after, private, cohort).p.astype(np.float64)
    local, shared = before.U.astype(np.float64), after.U.astype(np.float64)
    items, ones = np.arange(len(local), dtype=np.int32), np.ones(len(local))

    def feedback(i: int, users: Any) -> Feedback:
        own = np.unique(cohort.positives.of(i))
        x = np.zeros(len(local))
        x[own] = users[own].astype(np.float64) ** -method.config.item_power / np.sqrt(len(own))
        return Feedback(ones, x, "identity")

    for i, user in enumerate(cohort.users):
        p, x = private.p[i, :d].astype(np.float64), feedback(i, after.users)
        answer, used = (again[i, :d], shared), (local, feedback(i, before.users))
        yield Client(int(user), items, p, local, shared, x, answer, used, False, None, 0.0)
