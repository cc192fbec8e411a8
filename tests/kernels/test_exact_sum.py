"""Exact sums of uploads: the same bits in any order and grouping, and close to the true sum."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import twins

from unskew.kernels import MAX_PRODUCT, ExactSum, add_uploads, empty_sum, merge_sums
from unskew.kernels.exact_sum import MAX_CLIENTS
from unskew.ragged import indptr_from_counts, select
from unskew.types import Int64, Rows, UnskewError, Upload, UploadSum

N_ITEMS, WIDTH, DENSE = 7, 3, 2


def adversarial_upload(n_clients: int, seed: int) -> Upload:
    """Values of all magnitudes down to subnormal ones; most cancel against another client's."""
    random = np.random.default_rng(seed)

    def values(*shape: int) -> np.ndarray:
        exponent = random.integers(-148, 20, shape)
        size = np.ldexp(random.uniform(0.5, 1, shape), exponent).astype(np.float32)
        size[shape[0] // 2 :] = -size[: shape[0] - shape[0] // 2]
        return size

    counts = random.integers(0, N_ITEMS + 1, n_clients)
    items = [np.sort(random.permutation(N_ITEMS)[:count]) for count in counts]
    flat = np.concatenate(items).astype(np.int32)
    rows = Rows(indptr_from_counts(counts), flat, values(len(flat), WIDTH))
    weight = random.choice([1.0, 3.0, 1 / 3, 250.0, 1e-9], n_clients)
    return Upload(rows, values(n_clients, DENSE), weight)


def some_clients(upload: Upload, clients: Int64) -> Upload:
    return Upload(select(upload.rows, clients), upload.dense[clients], upload.weight[clients])


def require_equal(one: UploadSum, other: UploadSum) -> None:
    assert one.rows.tobytes() == other.rows.tobytes()
    assert one.dense.tobytes() == other.dense.tobytes()
    assert (one.weight, one.clients) == (other.weight, other.clients)


def test_any_order_and_grouping_gives_the_same_bits() -> None:
    upload = adversarial_upload(100_000, 0)
    whole = add_uploads(None, upload, N_ITEMS).result()
    random = np.random.default_rng(1)
    for parts in (1, 2, 17):
        order = random.permutation(100_000)
        cuts = np.sort(random.integers(0, 100_000, parts - 1))
        sums = [
            add_uploads(None, some_clients(upload, part), N_ITEMS) for part in np.split(order, cuts)
        ]
        while len(sums) > 1:  # a random tree
            first, second = (sums.pop(random.integers(len(sums))) for _ in range(2))
            sums.append(merge_sums(first, second))
        require_equal(sums[0].result(), whole)


def test_a_float_sum_of_these_uploads_depends_on_the_order() -> None:
    upload = adversarial_upload(2_000, 0)
    back = some_clients(upload, np.arange(2_000)[::-1])
    one, other = (twins.add_uploads(part, N_ITEMS).rows for part in (upload, back))
    assert (one != other).any()


def test_the_sum_is_that_of_the_exact_products() -> None:
    upload = adversarial_upload(300, 2)
    total = add_uploads(None, upload, N_ITEMS).result()
    rows = twins.as_tables(upload.rows, N_ITEMS)
    for item in range(N_ITEMS):
        for k in range(WIDTH):
            products = [
                Fraction(float(weight * row[item, k]))
                for weight, row in zip(upload.weight, rows, strict=True)
                if not np.isnan(row[item, k])
            ]
            error = abs(Fraction(total.rows[item, k]) - sum(products))
            assert error <= 300 * Fraction(2) ** -54 + abs(sum(products)) * Fraction(2) ** -52


def test_it_equals_a_float_sum_that_does_not_round() -> None:
    random = np.random.default_rng(3)
    upload = adversarial_upload(50, 3)
    whole = random.integers(-1000, 1000, upload.rows.values.shape).astype(np.float32) / 64
    upload = upload._replace(rows=upload.rows._replace(values=whole), weight=np.arange(50.0))
    upload = upload._replace(dense=np.round(upload.dense).clip(-1e6, 1e6))
    require_equal(add_uploads(None, upload, N_ITEMS).result(), twins.add_uploads(upload, N_ITEMS))


def test_an_upload_that_is_not_finite_makes_the_whole_sum_nan() -> None:
    upload = adversarial_upload(5, 4)
    broken = adversarial_upload(5, 5)
    broken.dense[3, 1] = np.inf
    total = add_uploads(add_uploads(None, broken, N_ITEMS), upload, N_ITEMS)
    for one in (total, merge_sums(add_uploads(None, upload, N_ITEMS), total)):
        result = one.result()
        assert np.isnan(result.rows).all()
        assert np.isnan(result.dense).all()
        assert np.isnan(result.weight)


def test_too_large_a_product_is_refused_with_a_sentence() -> None:
    upload = adversarial_upload(5, 4)
    upload.dense[3, 1], upload.weight[3] = MAX_PRODUCT / 4, 4.0
    with pytest.raises(UnskewError, match="lower the learning rate"):
        add_uploads(None, upload, N_ITEMS)


def test_too_many_uploads_are_refused_with_a_sentence() -> None:
    full = empty_sum(N_ITEMS, WIDTH, DENSE)._replace(clients=MAX_CLIENTS)
    with pytest.raises(UnskewError, match="lower the participation"):
        add_uploads(full, adversarial_upload(1, 0), N_ITEMS)
    one = add_uploads(None, adversarial_upload(1, 0), N_ITEMS)
    with pytest.raises(UnskewError, match="lower the participation"):
        merge_sums(full, one)


def test_the_largest_sum_does_not_overflow() -> None:
    """As many products as fit, each as large as it may be."""
    largest = np.full((1, DENSE), np.nextafter(np.float32(MAX_PRODUCT), np.float32(0)))
    one = Upload(Rows.empty(1, WIDTH), largest, np.ones(1))
    total: ExactSum = add_uploads(None, one, N_ITEMS)
    while total.clients < MAX_CLIENTS:
        parts = (part.copy() for part in total[:3])
        total = merge_sums(total, ExactSum(*parts, total.clients, True))
    assert total.result().dense.tolist() == [float(largest[0, 0]) * MAX_CLIENTS] * DENSE


def test_the_sum_of_nothing_is_zero() -> None:
    total = empty_sum(N_ITEMS, WIDTH, DENSE).result()
    assert (total.rows.shape, total.dense.shape) == ((N_ITEMS, WIDTH), (DENSE,))
    assert not total.rows.any()
    assert not total.dense.any()
    assert (total.weight, total.clients) == (0.0, 0)
