"""Plain versions of the kernels: Python integers, NumPy in float64, one client at a time.

Same names and signatures as in ``unskew.kernels``; whatever a kernel changes in place, its twin
returns instead.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from unskew.kernels import Schedule, Training
from unskew.rng import Purpose
from unskew.types import Cohort, Float32, Float64, Ragged, Rows, Samples, Upload, UploadSum

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def ragged(lists: list[list[int]]) -> Ragged:
    indptr = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return Ragged(indptr, np.array([x for row in lists for x in row], np.int32))


def as_lists(value: Ragged) -> list[list[int]]:
    return [value.of(client).tolist() for client in range(len(value.indptr) - 1)]


def as_tables(rows: Rows, n_items: int) -> Float64:
    """A dense table per client, NaN where the client has no row."""
    tables = np.full((len(rows.indptr) - 1, n_items, rows.values.shape[1]), np.nan)
    for client in range(len(tables)):
        for j in range(rows.indptr[client], rows.indptr[client + 1]):
            assert np.isnan(tables[client, rows.items[j]]).all(), "an item stands twice"
            tables[client, rows.items[j]] = rows.values[j]
    return tables


# Randomness: SplitMix64 on unbounded integers.


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def stream(seed: int, round: int, user: int, purpose: int) -> int:
    state = 0
    for coordinate in (seed, round, user, purpose):
        state = mix(state ^ ((coordinate + GOLDEN) & MASK))
    return state


def value(state: int, counter: int) -> int:
    return mix((state + (counter + 1) * GOLDEN) & MASK)


def below(bits: int, n: int) -> int:
    return ((bits >> 32) * n) >> 32


def shuffled(order: list[int], key: int, counter: int) -> tuple[list[int], int]:
    """Fisher-Yates from the end; also the stream's next counter."""
    order = list(order)
    for i in range(len(order) - 1, 0, -1):
        j = below(value(key, counter), i + 1)
        counter += 1
        order[i], order[j] = order[j], order[i]
    return order, counter


def draw_samples(cohort: Cohort, negatives: int) -> Samples:
    rows: list[int] = []
    labels: list[float] = []
    counts, touched_lists = [], []
    for client, user in enumerate(cohort.users.tolist()):
        pool = sorted(set(range(cohort.n_items)) - set(cohort.excluded.of(client).tolist()))
        key, counter = stream(cohort.seed, cohort.round, user, Purpose.NEGATIVES), 0
        items: list[int] = []
        for positive in cohort.positives.of(client).tolist():
            drawn: list[int] = []
            while len(drawn) < min(negatives, len(pool)):
                item = pool[below(value(key, counter), len(pool))]
                counter += 1
                if item not in drawn:
                    drawn.append(item)
            items += [positive, *drawn]
            labels += [1.0, *[0.0] * len(drawn)]
        touched = sorted(set(items))
        rows += [touched.index(item) for item in items]
        counts.append(len(items))
        touched_lists.append(touched)
    return Samples(
        np.cumsum([0, *counts]).astype(np.int64),
        np.array(rows, np.int32),
        np.array(labels, np.float32),
        ragged(touched_lists),
    )


# Tables.


def overlay(base: Float32, touched: Ragged, held: Rows) -> Float32:
    out = base.copy()
    for client in range(len(touched.indptr) - 1):
        mine = range(held.indptr[client], held.indptr[client + 1])
        own = {int(held.items[j]): held.values[j] for j in mine}
        for j in range(touched.indptr[client], touched.indptr[client + 1]):
            out[j] = own.get(int(touched.items[j]), out[j])
    return out


def merge(held: Rows, new: Rows) -> Rows:
    lists, values = [], []
    for client in range(len(held.indptr) - 1):
        together: dict[int, Float32] = {}
        for rows in (held, new):
            for j in range(rows.indptr[client], rows.indptr[client + 1]):
                together[int(rows.items[j])] = rows.values[j]
        lists.append(sorted(together))
        values += [together[item] for item in sorted(together)]
    width = new.values.shape[1]
    return Rows(*ragged(lists), np.array(values, np.float32).reshape(-1, width))


def add_uploads(upload: Upload, n_items: int) -> UploadSum:
    rows = np.nan_to_num(as_tables(upload.rows, n_items))
    return UploadSum(
        np.einsum("u,uid->id", upload.weight, rows),
        upload.weight @ upload.dense.astype(np.float64),
        math.fsum(upload.weight),
        len(upload.weight),
    )


def score_table(vectors: Float32, table: Float32) -> Float64:
    return vectors.astype(np.float64) @ table.astype(np.float64).T


def own_scores(scores: Float32, vectors: Float32, held: Rows) -> Float64:
    """By a client's own rows, NaN where it has none."""
    own: Float64 = np.einsum(
        "uid,ud->ui", as_tables(held, scores.shape[1]), vectors.astype(np.float64)
    )
    return own


def replace_scores(scores: Float32, vectors: Float32, held: Rows) -> Float64:
    own = own_scores(scores, vectors, held)
    return np.where(np.isnan(own), scores.astype(np.float64), own)


def add_scores(scores: Float32, vectors: Float32, held: Rows) -> Float64:
    return scores.astype(np.float64) + np.nan_to_num(own_scores(scores, vectors, held))


# Training. Each step below gets one client's arrays in float64, touched rows only.

Array = NDArray[np.float64]


class Adam:
    """torch's, with its defaults."""

    def __init__(self, x: Array, rate: float) -> None:
        self.x, self.rate = x, rate
        self.m, self.v, self.t = np.zeros_like(x), np.zeros_like(x), 0

    def step(self, gradient: Array) -> None:
        self.t += 1
        self.m += 0.1 * (gradient - self.m)
        self.v += 0.001 * (gradient**2 - self.v)
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        self.x -= self.rate * m / (np.sqrt(v) + 1e-8)


def logistic_loss(z: Array, y: Array) -> Array:
    return np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))


def sigmoid(z: Array) -> Array:
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0, e) / (1.0 + e)


class Model:
    """The items are Q + A B (B may be missing, then Q alone); what ``rates`` names is trained."""

    def __init__(self, rates: dict[str, float], **parts: Array) -> None:
        self.parts = parts
        self.adams = {name: Adam(parts[name], rate) for name, rate in rates.items()}

    def items(self) -> Array:
        part = self.parts
        return part["Q"] + part["A"] @ part["B"] if "B" in part else part["Q"]

    def train_on(self, rows: NDArray[np.int32], y: Array) -> float:
        p, items = self.parts["p"], self.items()
        z = items[rows] @ p
        dz = (sigmoid(z) - y) / len(y)
        dp = items[rows].T @ dz
        d_items = np.zeros_like(items)
        np.add.at(d_items, rows, np.outer(dz, p))
        gradients = {"p": dp, "Q": d_items}
        if "B" in self.parts:
            gradients["A"] = d_items @ self.parts["B"].T
            gradients["B"] = self.parts["A"].T @ d_items
        for name, adam in self.adams.items():
            adam.step(gradients[name])
        return float(logistic_loss(z, y).sum())

    def train(
        self,
        rows: NDArray[np.int32],
        y: Array,
        schedule: Schedule,
        name: tuple[int, int, int, int],
    ) -> float:
        """All epochs, or fewer once the running mean loss stands still; returns that mean."""
        key, counter, order = stream(*name), 0, list(range(len(rows)))
        total, mean, previous = 0.0, 0.0, math.nan
        for epoch in range(1, schedule.epochs + 1):
            order, counter = shuffled(order, key, counter)
            for low in range(0, len(order), schedule.batch):
                batch = order[low : low + schedule.batch]
                total += self.train_on(rows[batch], y[batch])
            mean = total / (epoch * len(order))
            if abs(mean - previous) / previous < schedule.tolerance:
                break
            previous = mean
        return mean


def train(
    step: Training,
    p: Float32,
    rows: Float32,
    rates: dict[str, float],
    A: Float32 | None = None,
    B: Float32 | None = None,
) -> tuple[dict[str, Float64], Float64]:
    """Any of the three trainers: the trained arrays by name, and the mean losses."""
    cohort, samples, schedule, purpose = step
    given = {"p": p, "Q": rows, "A": A, "B": B}
    out = {name: array.astype(np.float64) for name, array in given.items() if array is not None}
    losses = np.zeros(len(cohort.users))
    for client, user in enumerate(cohort.users.tolist()):
        mine = slice(samples.indptr[client], samples.indptr[client + 1])
        own = slice(samples.touched.indptr[client], samples.touched.indptr[client + 1])
        parts = {
            name: array[own] if name in ("Q", "A") else array[client] for name, array in out.items()
        }
        model = Model(rates, **parts)
        labels = samples.label[mine].astype(np.float64)
        stream_name = (cohort.seed, cohort.round, user, purpose)
        losses[client] = model.train(samples.row[mine], labels, schedule, stream_name)
    return out, losses
