"""The noise: distributed as stated, the same however the work is cut, on everything that leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from unskew import rng
from unskew.engine import Federation, model_checksum
from unskew.kernels import set_threads
from unskew.kernels.noise import GAUSSIAN, LAPLACE, NO_CLIP, VALUES_PER_TILE, Noise, send_privately
from unskew.methods import METHODS, create
from unskew.privacy import Mechanism, PrivateUploads
from unskew.types import Cohort, Float32, Ragged, Rows, Split, Upload

N = 300_000
FEDERATED = [name for name, m in METHODS.items() if m.aggregation != "central"]
SILENT = "local"


def noise_vector(seed: int, round: int, user: int, kind: int, scale: float, n: int) -> Float32:
    """A client's noise on an empty upload of ``n`` items of one number each."""
    upload = Upload(Rows.empty(1, 1), np.zeros((1, 0), np.float32), np.ones(1))
    noise = Noise(seed, round, kind, scale, NO_CLIP, 0.0)
    return send_privately(upload, np.array([user]), n, noise, np.zeros(1)).rows.values[:, 0]


def distribution(kind: int, scale: float) -> scipy.stats.rv_continuous:
    return scipy.stats.laplace(scale=scale) if kind == LAPLACE else scipy.stats.norm(scale=scale)


@pytest.mark.parametrize("kind", [LAPLACE, GAUSSIAN])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_noise_fits_its_distribution(kind: int, scale: float) -> None:
    x = noise_vector(0, 3, 5, kind, scale, N).astype(np.float64)
    stated = distribution(kind, scale)
    assert scipy.stats.kstest(x, stated.cdf).pvalue > 0.01
    edges = stated.ppf(np.linspace(0, 1, 201))
    counts = np.histogram(x, edges)[0]
    assert scipy.stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("kind", [LAPLACE, GAUSSIAN])
def test_the_tails_are_there(kind: int) -> None:
    x = noise_vector(1, 1, 1, kind, 1.0, 4_000_000).astype(np.float64)
    stated = distribution(kind, 1.0)
    for level in (1e-3, 1e-4, 1e-5):
        for beyond in ((x > stated.isf(level)).sum(), (x < stated.ppf(level)).sum()):
            expected = level * len(x)
            assert abs(beyond - expected) < 4 * math.sqrt(expected)


def test_laplace_noise_is_the_inverse_distribution_of_the_streams_words() -> None:
    """Value for value, against Python's own integers and logarithm."""
    n = VALUES_PER_TILE + 301
    x = noise_vector(7, 2, 9, LAPLACE, 2.0, n)
    state = rng.stream(7, 2, 9, int(rng.Purpose.NOISE))
    for start in (0, VALUES_PER_TILE):
        count = min(VALUES_PER_TILE, n - start)
        half = (count + 1) // 2
        for i in (0, 1, 17, half - 1, half, half + 5, count - 1):
            word = int(rng.value(np.uint64(state), start // 2 + i % half))
            bits = (word if i < half else word >> 32) & 0xFFFFFFFF
            magnitude = -math.log(((bits >> 1) + 0.5) / 2**31)
            expected = 2.0 * magnitude * (-1 if bits & 1 else 1)
            assert x[start + i] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", [LAPLACE, GAUSSIAN])
def test_clients_rounds_and_entries_are_independent(kind: int) -> None:
    a = noise_vector(0, 1, 1, kind, 1.0, N)
    others = [
        noise_vector(0, 1, 2, kind, 1.0, N),
        noise_vector(0, 2, 1, kind, 1.0, N),
        noise_vector(1, 1, 1, kind, 1.0, N),
        np.roll(a, 1),
        np.roll(a, VALUES_PER_TILE // 2),
        np.roll(a, VALUES_PER_TILE),
    ]
    for b in others:
        for first, second in ((a, b), (np.abs(a), np.abs(b)), (a**2, b)):
            assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / math.sqrt(N)


def upload_of(counts: list[int], n_items: int, width: int, dense: int) -> tuple[Upload, Cohort]:
    draw = np.random.default_rng(0)
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    items = [np.sort(draw.permutation(n_items)[:n]) for n in counts]
    values = draw.standard_normal((indptr[-1], width)).astype(np.float32)
    n = len(counts)
    upload = Upload(
        Rows(indptr, np.concatenate(items).astype(np.int32), values),
        draw.standard_normal((n, dense)).astype(np.float32),
        np.arange(1.0, n + 1),
    )
    nothing = Ragged(np.zeros(n + 1, np.int64), np.zeros(0, np.int32))
    return upload, Cohort(np.arange(n), nothing, nothing, n_items, 3, 4)


def test_noise_falls_on_every_row_and_on_the_dense_part() -> None:
    """Untouched rows are pure noise, touched ones the upload plus the very same noise."""
    upload, cohort = upload_of([5, 0, 40], 130, 16, 7)
    sent = PrivateUploads(Mechanism(0.5))(upload, cohort)
    assert np.array_equal(np.diff(sent.rows.indptr), [130] * 3)
    for c in range(3):
        table = sent.rows.values[c * 130 : (c + 1) * 130].copy()
        assert np.array_equal(sent.rows.items[c * 130 : (c + 1) * 130], np.arange(130))
        own = slice(upload.rows.indptr[c], upload.rows.indptr[c + 1])
        table[upload.rows.items[own]] -= upload.rows.values[own]
        noise = noise_vector(3, 4, c, LAPLACE, 0.5, 130 * 16)
        assert np.allclose(table.ravel(), noise, atol=1e-6)
    added = sent.dense - upload.dense
    assert np.all(np.abs(added) > 0)
    assert len(np.unique(added)) == added.size, "the dense parts' noise is their own"
    assert np.array_equal(sent.weight, upload.weight)


def test_who_sends_nothing_goes_on_sending_nothing() -> None:
    upload, cohort = upload_of([5, 0, 40], 130, 16, 0)
    upload = upload._replace(weight=np.array([1.0, 0.0, 2.0]))
    transform = PrivateUploads(Mechanism(0.5))
    sent = transform(upload, cohort)
    assert np.array_equal(np.diff(sent.rows.indptr), [130, 0, 130])
    figures = transform.round_figures()
    assert figures["sent"] == 2
    assert figures["senders"] == [0, 2]
    assert figures["largest_share"] == pytest.approx(2 / 3)


def test_a_key_of_its_own_makes_other_noise_and_no_seed_finds_it() -> None:
    upload, cohort = upload_of([5, 6], 130, 16, 0)
    public = PrivateUploads(Mechanism(0.5))(upload, cohort)
    secret = PrivateUploads(Mechanism(0.5), key=2**40 + 1)(upload, cohort)
    assert not np.any(public.rows.values == secret.rows.values)


def after_two_rounds(split: Split, name: str, mechanism: Mechanism, chunk: int) -> str:
    method = create(name, rounds=2)
    federation = Federation(method, split, 0, chunk=chunk, transform=PrivateUploads(mechanism))
    state = federation.start()
    for _ in range(2):
        federation.step(state)
    for leaf in state.server:
        if leaf.dtype.kind == "f":
            assert np.isfinite(leaf).all()
    return model_checksum(state)


@pytest.mark.parametrize("name", FEDERATED)
def test_every_method_works_unchanged_whatever_the_chunks_and_threads(
    name: str, tiny_split: Split, threads_restored: None
) -> None:
    mechanism = Mechanism(0.1, "gaussian", clip=5.0, norm="l2")
    set_threads(1)
    one = after_two_rounds(tiny_split, name, mechanism, chunk=256)
    set_threads(2)
    assert after_two_rounds(tiny_split, name, mechanism, chunk=7) == one
    plain = after_two_rounds(tiny_split, name, Mechanism(0.0), chunk=256)
    assert (plain == one) == (name == SILENT), "noise changes every federation that sends anything"
