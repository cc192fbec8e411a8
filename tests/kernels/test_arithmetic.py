"""Inner product and logistic function against double precision."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import scipy.special
import twins

from unskew.kernels.arithmetic import Batch, batch_arrays, logistic_batch
from unskew.kernels.vectors import inner
from unskew.types import Float32, Float64

call_inner = numba.njit(lambda x, y, n: inner(x, y, n))

WIDE = np.concatenate(
    [
        [0.0, -0.0, 200.0, -200.0, 87.0, -87.0, 88.0, -88.0, 1e-30, -1e-30, 1e4, -1e4],
        np.linspace(-30, 30, 4001),
        np.geomspace(1e-12, 100, 500),
        -np.geomspace(1e-12, 100, 500),
    ]
).astype(np.float32)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 7, 8, 9, 15, 16, 31, 32, 33, 40, 63, 64, 71, 100, 1000])
def test_inner_is_the_dot_product_of_the_first_n(n: int) -> None:
    rng = np.random.default_rng(n)
    for offset in (0, 1, 3):
        x, y = rng.standard_normal((2, n + 20), np.float32)[:, offset:]
        x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
        exact = x[:n].astype(np.float64) @ y[:n].astype(np.float64)
        size = np.abs(x[:n].astype(np.float64)) @ np.abs(y[:n].astype(np.float64))
        assert abs(call_inner(x, y, n) - exact) <= 1e-6 * size


def test_inner_reads_views_that_start_anywhere() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 60), np.float32)
    for start in range(9):
        exact = x[start : start + 45].astype(np.float64) @ y[2:47].astype(np.float64)
        assert call_inner(x[start:], y[2:], 45) == pytest.approx(exact, abs=1e-5)


def test_inner_sums_in_the_stated_order() -> None:
    """Four chains of eight lanes, then what is left in steps of eight on the first chain, then the
    rest: rounding by rounding, so that no compiler may choose another order."""
    rng = np.random.default_rng(2)
    for n in (3, 8, 21, 32, 45, 64, 77, 130) * 20:
        x, y = rng.standard_normal((2, n), np.float32)
        assert call_inner(x, y, n) == in_stated_order(x * y)


def in_stated_order(products: Float32) -> np.float32:
    chains = np.zeros((4, 8), np.float32)
    strides, eights = len(products) // 32 * 32, len(products) // 8 * 8
    for stride in products[:strides].reshape(-1, 4, 8):
        chains += stride
    for vector in products[strides:eights].reshape(-1, 8):
        chains[0] += vector
    total = np.float32(0)
    for product in products[eights:]:
        total += product
    for lane in (chains[0] + chains[1]) + (chains[2] + chains[3]):
        total += lane
    return total


def run(z: Float32, y: Float32) -> tuple[Float64, Float64, float]:
    """Gradients times n, losses, and the summed loss."""
    losses, gradients = z.copy(), np.empty_like(z)
    batch = Batch(losses, y, gradients, np.empty(len(z), np.int32))
    total = logistic_batch(batch, len(z))
    return gradients.astype(np.float64) * len(z), losses.astype(np.float64), total


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_the_logistic_loss_over_a_wide_range(label: float) -> None:
    y = np.full(len(WIDE), label, np.float32)
    z64, y64 = WIDE.astype(np.float64), y.astype(np.float64)
    gradients, losses, total = run(WIDE, y)
    exact_losses = np.logaddexp(0, np.where(y64 == 1, -z64, z64))
    np.testing.assert_allclose(losses, exact_losses, rtol=5e-7, atol=2e-7)
    np.testing.assert_allclose(gradients, scipy.special.expit(z64) - y64, rtol=0, atol=2e-7)
    assert total == pytest.approx(losses.sum(), rel=1e-12)
    assert total == pytest.approx(exact_losses.sum(), rel=1e-6)


def test_the_gradient_of_a_negative_is_exact_to_rounding() -> None:
    """sigmoid(z) itself, also far down where it is tiny."""
    gradients, _, _ = run(WIDE, np.zeros(len(WIDE), np.float32))
    near = np.abs(WIDE) < 80
    exact = scipy.special.expit(WIDE.astype(np.float64))
    np.testing.assert_allclose(gradients[near], exact[near], rtol=6e-7)


def test_the_logistic_loss_of_zero() -> None:
    labels = np.array([0, 0, 1, 1], np.float32)
    gradients, losses, _ = run(np.array([0.0, -0.0] * 2, np.float32), labels)
    assert gradients.tolist() == [0.5, 0.5, -0.5, -0.5]
    np.testing.assert_allclose(losses, np.log(2), rtol=1e-7)


def test_saturated_logits_stay_finite() -> None:
    z = np.array([200, -200, 200, -200, 3e38, -3e38], np.float32)
    y = np.array([0, 0, 1, 1, 0, 1], np.float32)
    gradients, losses, _ = run(z, y)
    np.testing.assert_allclose(gradients, [1, 0, 0, -1, 1, -1], atol=1e-30)
    np.testing.assert_allclose(losses, [200, 0, 0, 200, 3e38, 3e38], rtol=1e-6, atol=1e-30)


def test_only_the_first_n_are_looked_at() -> None:
    z, y = np.array([[1, 2, np.nan], [1, 0, 1]], np.float32)
    s, bits = np.full(3, 7, np.float32), np.zeros(3, np.int32)
    total = logistic_batch(Batch(z, y, s, bits), 2)
    assert total == pytest.approx(twins.logistic_loss(np.array([1.0, 2]), np.array([1.0, 0])).sum())
    assert np.isnan(z[2])
    assert s[2] == 7


def test_the_mean_is_over_the_batch_and_not_the_buffer() -> None:
    batch = batch_arrays(8)
    batch.z[:], batch.y[:] = 0.0, 1.0
    logistic_batch(batch, 5)
    assert batch.s[:5].tolist() == [np.float32(-0.1)] * 5
