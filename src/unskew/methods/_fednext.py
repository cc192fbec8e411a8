"""State of FedNext (``methods/fednext.py``), its first stage, and the server's Adam step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.kernels.fednext import Shared
from unskew.kernels.history_network import count_weights, unpack
from unskew.kernels.refit import history_rows
from unskew.methods import fedrefit
from unskew.methods._item_space import fault_of_space
from unskew.methods.fedrefit import FedRefit
from unskew.methods.newcomers import Arithmetic, HistoryNetwork
from unskew.rng import Purpose, generator
from unskew.types import (
    Cohort,
    Float32,
    Float64,
    Int32,
    Int64,
    Ragged,
    Rows,
    Upload,
    UploadSum,
)

POPULARITY_STEP = 5
"""Value of ``step`` (rounds done) in the popularity round: devices send nothing, and after it the
first fit's scores count together with the recent popularity."""
FIRST_STAGE_ROUNDS = 8
"""Rounds of the first stage: four for U, a fit of V, the popularity round, two more fits of V."""

_BETAS = (0.9, 0.98)
"""Decay factors of Adam's first and second moments, on the server."""
_SCALE_SHARE = 0.05
"""``scale`` in g(y) = log(softplus(y / scale) + 1e-4), as a share of the scores' root mean
square."""
_HALF_LIFE = 0.01
"""Age at which an interaction counts half in the recent popularity, as a share of the time between
the oldest and the newest interaction."""
_AGELESS_WEIGHT = 1 / 64
"""Weight of an interaction of unknown age in the recent popularity: about the mean of
0.5^(age / _HALF_LIFE) over all ages, so that devices with and without times count alike."""
_MAX_TIED = 3
"""Largest mean number of items of a device with the same time at which their order counts."""
_RECENT_FLOOR = 0.05
"""Added to the recent popularity before its logarithm, as a share of its mean."""


class Server(NamedTuple):
    """FedRefit's state, the model of the second stage, Adam's moments and the rounds done."""

    U: Float32
    users: Float32
    V: Float32
    step: Int32
    spread: Float32
    """Root mean square of FedRefit's scores V_i . f_t."""
    recent: Float32
    """Recent popularity of each item: its interactions, weighted by age; the mean is one."""
    R: Float32
    """A row per item: its vector E_i, then its bias b_i."""
    net: Float32
    """Weights of the network, see ``kernels.history_network.unpack``."""
    moments_R: Float32
    """Adam's first and second moment of each entry of R, side by side."""
    moments_net: Float32
    seed: Int64
    """Seed of the negatives, which the server draws."""


class Download(NamedTuple):
    """The server's state without Adam's moments, and the round's negatives."""

    U: Float32
    users: Float32
    V: Float32
    step: Int32
    spread: Float32
    recent: Float32
    R: Float32
    net: Float32
    negatives: Int32


class Private(NamedTuple):
    """State of a device, computed from the last download: FedRefit's features of the user's history
    and the network's vector."""

    p: Float32
    h: Float32


def initial_server(refit: fedrefit.Server, d: int, seed: int) -> Server:
    """The server's state before the first round. The network's last gain is zero, so that at the
    start of the second stage its vectors h are zero and FedRefit's logits decide alone."""
    n_items, random = len(refit.U), generator(seed, Purpose.INIT_DENSE)
    net = np.zeros(count_weights(d), np.float32)
    weights = unpack(net, d)
    for matrix in weights[:4]:
        matrix[:] = random.standard_normal(matrix.shape) / np.sqrt(d)
    weights.W2[:] = random.standard_normal(weights.W2.shape) * 0.5 / np.sqrt(d)
    weights.norms[[0, 2]] = 1.0
    decay = np.linspace(0.2, 0.98, len(weights.decay_logits))
    weights.decay_logits[:] = np.log(decay / (1 - decay))
    weights.tau[0] = 1.0
    R = np.zeros((n_items, d + 1), np.float32)
    extra = generator(seed, Purpose.INIT_ITEMS, 1).standard_normal((n_items, d))
    R[:, :d] = extra * 0.3 / np.sqrt(d)
    return Server(
        *refit,
        np.ones(1, np.float32),
        np.ones(n_items, np.float32),
        R,
        net,
        np.zeros((n_items, 2 * d + 2), np.float32),
        np.zeros(2 * len(net), np.float32),
        np.array([seed], np.int64),
    )


def refit_part(state: Server | Download) -> fedrefit.Server:
    """FedRefit's part of a state. Steps after the popularity round, which FedRefit does not have,
    count one less."""
    step = state.step - (state.step > POPULARITY_STEP).astype(np.int32)
    return fedrefit.Server(state.U, state.users, state.V, step)


def first_stage_download(refit: FedRefit, server: Server, negatives: Int32) -> Download:
    """A download of the first stage: FedRefit's, and the recent popularity."""
    whole, V = Download(*server[:8], negatives), refit.download(refit_part(server)).V
    return whole._replace(V=V, R=server.R[:0], net=server.net[:0])


def first_stage_upload(
    refit: FedRefit, download: Download, private: Private, cohort: Cohort
) -> tuple[Private, Upload, Float64]:
    """A device's round in the first stage: FedRefit's, and in rounds 1 to 4 also the recency of
    each of its items. In the popularity round there is nothing to send."""
    part, mine, n = refit_part(download), fedrefit.Private(private.p), len(cohort.users)
    if download.step[0] == POPULARITY_STEP:
        p = refit.refresh(part, mine, cohort.positives).p
        upload = Upload(Rows.empty(n, 1), np.zeros((n, 0), np.float32), np.ones(n))
        return private._replace(p=p), upload, np.zeros(n)
    mine, upload, losses = refit.local(part, mine, cohort)
    if download.step[0] < refit.config.space_rounds:
        rows = upload.rows
        values = np.column_stack([rows.values, _recency(cohort, rows)])
        upload = upload._replace(rows=rows._replace(values=values))
    return private._replace(p=mine.p), upload, losses


def _recency(cohort: Cohort, own: Rows) -> Float32:
    """For each distinct item of each client, the sum of 0.5^(age / _HALF_LIFE) over its
    interactions."""
    rows = history_rows(cohort.positives, Ragged(own.indptr, own.items), cohort.n_items)
    place = rows.items + np.repeat(own.indptr[:-1], rows.counts())
    weights = np.full(len(place), _AGELESS_WEIGHT)
    if cohort.ages is not None:
        weights = 0.5 ** (cohort.ages / _HALF_LIFE)
    return np.bincount(place, weights, len(own.items)).astype(np.float32)


def shuffle_ties(cohort: Cohort) -> Cohort:
    """The cohort without ages. Where more than ``_MAX_TIED`` items share a time on average, the
    clock is too coarse to tell their order (days, say): items of the same time get a random order,
    so that the network does not learn the order in which a file lists them."""
    ages, history = cohort.ages, cohort.positives
    cohort = cohort._replace(ages=None)
    if ages is None:
        return cohort
    items = history.items.copy()
    for user, low, high in zip(cohort.users, history.indptr, history.indptr[1:], strict=False):
        own = ages[low:high]
        if len(own) > _MAX_TIED * len(np.unique(own)):
            random = generator(cohort.seed, Purpose.TIES, cohort.round, int(user))
            items[low:high] = items[low:high][np.lexsort((random.random(len(own)), -own))]
    return cohort._replace(positives=history._replace(items=items))


def first_stage_update(refit: FedRefit, server: Server, total: UploadSum) -> Server:
    """The server's state after a round of the first stage."""
    step = server.step[0]
    if step < refit.config.space_rounds:
        counts = total.rows[:, -1]
        recent = (counts / max(counts.mean(), 1e-30)).astype(np.float32)
        server, total = server._replace(recent=recent), total._replace(rows=total.rows[:, :-1])
    if step != POPULARITY_STEP:
        fitted = refit.aggregate(refit_part(server), total)
        server = server._replace(U=fitted.U, users=fitted.users, V=fitted.V)
        if step >= refit.config.space_rounds:
            server = server._replace(spread=_spread(fitted.V, total.dense))
    server = server._replace(step=server.step + 1)
    return _start_second_stage(server) if server.step[0] == FIRST_STAGE_ROUNDS else server


def log_recent(download: Download) -> Float32:
    """Logarithm of the items' recent popularity."""
    logarithm: Float32 = np.log(download.recent.clip(0) + np.float32(_RECENT_FLOOR))
    return logarithm


def _spread(V: Float32, dense: Float64) -> Float32:
    """Root mean square of FedRefit's scores. ``dense`` is the sum of f f^T over all clients and
    positions (upper triangle, flat)."""
    K = V.shape[1]
    M = np.zeros((K, K))
    M[np.triu_indices(K)] = dense
    M += np.triu(M, 1).T
    # The last entry of f is 1, so M[-1, -1] is the (weighted) number of positions.
    square = ((V.astype(np.float64) @ (M / max(M[-1, -1], 1e-12))) * V).sum(1).mean()
    return np.array([np.sqrt(max(square, 0.0))], np.float32)


def _start_second_stage(server: Server) -> Server:
    """Set the item vectors E to U's rows, scaled to length 1."""
    R, d = server.R.copy(), min(server.U.shape[1], server.R.shape[1] - 1)
    length = np.linalg.norm(server.U, axis=1, keepdims=True).clip(1e-9)
    R[:, :d] = (server.U / length)[:, :d]
    return server._replace(R=R)


def fault_of(download: Download) -> str | None:
    """Why a device must refuse a download whose arrays have allowed shapes; None if it need not."""
    n_items, negatives = len(download.U), download.negatives
    full = [
        len(download.R) > 0,
        len(download.net) > 0,
        download.step[0] >= FIRST_STAGE_ROUNDS,
    ]
    if any(full) and not (all(full) and download.V.shape[1] == 2 * download.U.shape[1] + 1):
        return "it mixes the two stages"
    if (np.diff(negatives) <= 0).any() or ((negatives < 0) | (negatives >= n_items)).any():
        return "its negatives are not item numbers in ascending order"
    return fault_of_space(download.U, download.users)


def shared_part(download: Download, config: fedrefit.Config) -> Shared:
    """The part of a download that all clients' training reads."""
    drawn = download.negatives
    rows = download.R[drawn]
    return Shared(
        download.net,
        drawn,
        np.ascontiguousarray(rows[:, :-1].T),
        rows[:, -1].copy(),
        np.ascontiguousarray(download.V[drawn].T),
        float(np.log(len(download.R) / len(drawn))),
        scale(download),
        np.array([config.fast, config.slow], np.float32),
    )


def scale(download: Download) -> float:
    """The number ``scale`` by which g divides FedRefit's scores."""
    return max(_SCALE_SHARE * float(download.spread[0]), 1e-12)


def arithmetic_of(refit: FedRefit, download: Download) -> Arithmetic:
    """The arithmetic that scores newcomers from a download of either stage."""
    first = refit.export(refit_part(download))._replace(network_follows=True)
    size = scale(download)
    if len(download.R):
        return HistoryNetwork(first, download.R, download.net, size)
    if download.step[0] == POPULARITY_STEP + 1:
        biases = log_recent(download)[:, None]
        return HistoryNetwork(first, biases, np.ones(1, np.float32), size)
    return first


def second_stage_update(
    server: Server, total: UploadSum, negatives: Int32, step: int, rate: float
) -> Server:
    """Step number ``step`` of Adam, along the mean gradient of the round's positions. ``negatives``
    are the items whose gradients are in the dense part."""
    width, n = server.R.shape[1], len(negatives)
    vectors, biases, net = np.split(total.dense, [n * (width - 1), n * width])
    rows = total.rows.copy()
    rows[negatives, :-1] += vectors.reshape(n, width - 1)
    rows[negatives, -1] += biases
    rows, net = rows / total.weight, net / total.weight
    change_R, moments_R = _adam(rows, server.moments_R, step)
    change_net, moments_net = _adam(net, server.moments_net, step)
    return server._replace(
        step=server.step + 1,
        R=(server.R - rate * change_R).astype(np.float32),
        net=(server.net - rate * change_net).astype(np.float32),
        moments_R=moments_R,
        moments_net=moments_net,
    )


def _adam(gradient: Float64, moments: Float32, step: int) -> tuple[Float64, Float32]:
    """Adam's change of each entry, per unit of the learning rate, and the new moments: first and
    second one side by side in the last axis."""
    first, second = np.split(moments.astype(np.float64), 2, axis=-1)
    first = _BETAS[0] * first + (1 - _BETAS[0]) * gradient
    second = _BETAS[1] * second + (1 - _BETAS[1]) * gradient**2
    size = np.sqrt(second / (1 - _BETAS[1] ** step)) + 1e-8
    change = first / (1 - _BETAS[0] ** step) / size
    return change, np.concatenate([first, second], axis=-1).astype(np.float32)
