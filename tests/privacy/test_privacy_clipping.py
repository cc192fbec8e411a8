"""Clipping: the bound holds for whatever an upload contains, and small uploads pass untouched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.privacy import Mechanism, PrivateUploads, Shape, sensitivity
from unskew.types import Cohort, Float32, Ragged, Rows, Upload

N_ITEMS, WIDTH, DENSE = 9, 3, 4
awkward = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True),
    st.sampled_from([0.0, -0.0, 3.4e38, -3.4e38, 1e-45, math.inf, -math.inf, math.nan]),
    st.floats(-2, 2, width=32),
)
vectors = st.lists(awkward, min_size=N_ITEMS * WIDTH + DENSE, max_size=N_ITEMS * WIDTH + DENSE)


def sent(vector: Any, clip: float, norm: Any) -> Upload:
    """What a client with this upload sends, clipped and without noise."""
    flat = np.array(vector, np.float32)
    rows = Rows(
        np.array([0, N_ITEMS]),
        np.arange(N_ITEMS, dtype=np.int32),
        flat[: N_ITEMS * WIDTH].reshape(N_ITEMS, WIDTH),
    )
    upload = Upload(rows, flat[N_ITEMS * WIDTH :][None], np.array([17.0]))
    none = Ragged(np.zeros(2, np.int64), np.zeros(0, np.int32))
    cohort = Cohort(np.array([0]), none, none, N_ITEMS, 0, 1)
    return PrivateUploads(Mechanism(0.0, "laplace", clip, norm))(upload, cohort)


def flat(upload: Upload) -> Float32:
    return np.concatenate([upload.rows.values.ravel(), upload.dense.ravel()])


@given(vectors, st.floats(1e-3, 1e3), st.sampled_from(["l1", "l2", "row"]))
@settings(max_examples=300, deadline=None)
def test_the_bound_holds_for_adversarial_uploads(
    vector: list[float], clip: float, norm: str
) -> None:
    upload = sent(vector, clip, norm)
    x = flat(upload).astype(np.float64)
    assert np.isfinite(x).all()
    if norm == "l1":
        assert np.abs(x).sum() <= clip
    elif norm == "l2":
        assert math.sqrt((x**2).sum()) <= clip
    else:
        rows = [*upload.rows.values.astype(np.float64), upload.dense[0].astype(np.float64)]
        assert max(math.sqrt((row**2).sum()) for row in rows) <= clip
    assert upload.weight.tolist() == [1.0], "a weight would tell how much the client has"


@given(st.lists(st.floats(-1, 1, width=32), min_size=31, max_size=31))
@settings(max_examples=50, deadline=None)
def test_an_upload_within_the_bound_passes_bit_for_bit(vector: list[float]) -> None:
    for norm in ("l1", "l2", "row"):
        assert np.array_equal(flat(sent(vector, 100.0, norm)), np.array(vector, np.float32))


def test_clipping_keeps_the_direction() -> None:
    vector = np.random.default_rng(0).standard_normal(31)
    x = flat(sent(vector, 0.5, "l2"))
    assert np.allclose(x, vector / np.linalg.norm(vector) * 0.5, rtol=1e-5)


@pytest.mark.parametrize("norm", ["l1", "l2", "row"])
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_no_two_clipped_uploads_lie_further_apart_than_the_sensitivity(
    kind: Any, norm: Any
) -> None:
    """Among random pairs and the worst pairs there are: opposite signs, one entry or all equal."""
    clip, shape = 0.7, Shape(N_ITEMS, WIDTH, DENSE)
    bound = sensitivity(Mechanism(1.0, kind, clip, norm), shape)
    draw = np.random.default_rng(0)
    vectors = [draw.standard_normal(31) * s for s in (0.1, 1, 10, 100)] + [np.full(31, 1e3)]
    vectors += [np.eye(31)[0] * 1e6]
    most = 0.0
    for a in vectors:
        for b in [*vectors, -a]:
            apart = flat(sent(a, clip, norm)).astype(float) - flat(sent(b, clip, norm))
            most = max(most, np.abs(apart).sum() if kind == "laplace" else np.linalg.norm(apart))
    assert most <= bound
    assert most >= 0.99 * bound, "and the bound is reached, so it is not larger than it must be"
