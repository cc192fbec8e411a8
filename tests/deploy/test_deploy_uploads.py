"""What the server accepts from a node, to the exact limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

from deploy_grid import reply
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from unskew.deploy.messages import (
    Limits,
    Rejected,
    download_digest,
    each_message,
    merge_uploads,
    read_arrays,
    read_each,
    read_metric_sums,
    read_sum,
    select_uploads,
    sum_message,
)
from unskew.methods import create
from unskew.privacy import Shape
from unskew.types import Rows, Upload, Uploads, UploadSum

SHAPE = Shape(n_items=6, width=3, dense=2)
ANY = Limits()
Named = dict[str, Any]


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


def f32(values: Any) -> Any:
    return np.array(values, np.float32)


def single_uploads() -> Named:
    """User 7 sends items 1 and 4, user 9 items 0 and 5."""
    return {
        "users": np.array([7, 9]),
        "indptr": np.array([0, 2, 4]),
        "items": i32(1, 4, 0, 5),
        "values": np.ones((4, 3), np.float32),
        "dense": np.ones((2, 2), np.float32),
        "weight": np.array([2.0, 3.0]),
    }


def one_bad(shape: tuple[int, ...], value: float, dtype: Any = np.float32) -> Any:
    """An array of ones whose last entry is ``value``."""
    array = np.ones(shape, dtype)
    array.flat[-1] = value
    return array


BAD_SINGLE_UPLOADS: list[tuple[str, Named]] = [
    ("it holds .* p, .*instead of dense, indptr", {"p": f32([1.0])}),
    ("users is int32 instead of int64", {"users": i32(7, 9)}),
    ("indptr is int32 instead of int64", {"indptr": i32(0, 2, 4)}),
    ("items is int64 instead of int32", {"items": np.array([1, 4, 0, 5])}),
    ("values is float64 instead of float32", {"values": np.ones((4, 3))}),
    ("weight is float32 instead of float64", {"weight": f32([1.0, 1.0])}),
    ("users has shape", {"users": np.array([[7, 9]])}),
    ("indptr has shape", {"indptr": np.array([0, 4])}),
    ("items has shape", {"items": i32(1, 4, 0, 5).reshape(2, 2)}),
    ("values has shape", {"values": np.ones((4, 4), np.float32)}),
    ("values has shape", {"values": np.ones((3, 3), np.float32)}),
    ("dense has shape", {"dense": np.ones((2, 3), np.float32)}),
    ("weight has shape", {"weight": np.ones(3)}),
    ("one run per user", {"indptr": np.array([1, 2, 4])}),
    ("one run per user", {"indptr": np.array([0, 5, 4])}),
    ("one run per user", {"indptr": np.array([0, 2, 3])}),
    ("outside 0 to 5", {"items": i32(1, 4, 0, 6)}),
    ("outside 0 to 5", {"items": i32(-1, 4, 0, 5)}),
    ("ascending order within a user", {"items": i32(1, 4, 5, 0)}),
    ("ascending order within a user", {"items": i32(4, 4, 0, 5)}),
    ("distinct", {"users": np.array([9, 9])}),
    ("distinct", {"users": np.array([-1, 9])}),
    ("values holds NaN or infinity", {"values": one_bad((4, 3), np.nan)}),
    ("values holds NaN or infinity", {"values": one_bad((4, 3), -np.inf)}),
    ("dense holds NaN or infinity", {"dense": one_bad((2, 2), np.nan)}),
    ("dense holds NaN or infinity", {"dense": one_bad((2, 2), np.inf)}),
    ("weight holds NaN or infinity", {"weight": one_bad((2,), np.nan, np.float64)}),
    ("weight holds NaN or infinity", {"weight": one_bad((2,), np.inf, np.float64)}),
    ("a weight is negative", {"weight": one_bad((2,), -1e-9, np.float64)}),
    ("its weight 11 is above 10", {"weight": np.array([10.0, 1.0])}),
    ("its norm .* is above 9", {"values": one_bad((4, 3), 10.0)}),
    ("its norm .* is above 9", {"dense": one_bad((2, 2), -10.0)}),
]


@pytest.mark.parametrize(("reason", "change"), BAD_SINGLE_UPLOADS)
def test_bad_single_uploads_are_rejected_with_the_reason(reason: str, change: Named) -> None:
    limits = Limits(norm=9.0, weight=10.0)
    read_each(single_uploads(), SHAPE, limits)
    with pytest.raises(Rejected, match=reason):
        read_each(single_uploads() | change, SHAPE, limits)


BAD_SUMS: list[tuple[str, Named]] = [
    ("it holds dense, items, p, values, weight instead of dense, items, v", {"p": f32([1.0])}),
    ("values is float64 instead of float32", {"values": np.ones((2, 3))}),
    ("values has shape", {"values": np.ones((2, 4), np.float32)}),
    ("dense has shape", {"dense": np.ones((2, 2), np.float32)}),
    ("weight has shape", {"weight": np.array(8.0)}),
    ("outside 0 to 5", {"items": i32(1, 6)}),
    ("outside 0 to 5", {"items": i32(-1, 4)}),
    ("ascending", {"items": i32(4, 4)}),
    ("values holds NaN", {"values": np.full((2, 3), np.nan, np.float32)}),
    ("dense holds NaN or infinity", {"dense": f32([np.inf, 1.0])}),
    ("weight holds NaN", {"weight": np.array([np.nan])}),
    ("negative", {"weight": np.array([-1.0])}),
    ("values but no weight", {"weight": np.array([0.0])}),
    (r"its weight 2e\+06 is above 1e\+06", {"weight": np.array([2e6])}),
    ("its norm", {"values": np.full((2, 3), 1e6, np.float32)}),
]


@pytest.mark.parametrize(("reason", "change"), BAD_SUMS)
def test_bad_sums_are_rejected_with_the_reason(reason: str, change: Named) -> None:
    limits = Limits(norm=1e4, weight=1e6)
    good = {"items": i32(1, 4), "values": np.ones((2, 3), np.float32), "dense": f32([1, 1])}
    good["weight"] = np.array([8.0])
    assert read_sum(good, SHAPE, limits).weight == 8.0
    with pytest.raises(Rejected, match=reason):
        read_sum(good | change, SHAPE, limits)
    with pytest.raises(Rejected, match="it holds items, values instead of"):
        read_sum({name: good[name] for name in ("items", "values")}, SHAPE, limits)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["values", "dense", "weight"])
def test_not_a_number_is_rejected_without_limits_too(name: str, value: float) -> None:
    single = single_uploads()
    single[name].flat[0] = value
    with pytest.raises(Rejected, match=f"{name} holds NaN or infinity"):
        read_each(single, SHAPE, ANY)
    summed = {"items": i32(1), "values": np.ones((1, 3), np.float32), "dense": f32([1, 1])}
    summed["weight"] = np.ones(1)
    summed[name].flat[0] = value
    with pytest.raises(Rejected, match=f"{name} holds NaN or infinity"):
        read_sum(summed, SHAPE, ANY)


def test_single_uploads_are_read_as_they_were_sent() -> None:
    named = single_uploads()
    named["values"] = np.arange(12, dtype=np.float32).reshape(4, 3)
    users, upload = read_each(named, SHAPE, ANY)
    assert users.tolist() == [7, 9]
    assert upload.rows.indptr.tolist() == [0, 2, 4]
    assert upload.rows.items.tolist() == [1, 4, 0, 5]
    np.testing.assert_array_equal(upload.rows.values, named["values"])
    np.testing.assert_array_equal(upload.dense, named["dense"])
    assert upload.weight.tolist() == [2.0, 3.0]


def test_a_user_may_send_nothing_and_user_0_exists() -> None:
    named = single_uploads() | {"users": np.array([0, 9]), "indptr": np.array([0, 0, 4])}
    named["items"] = i32(0, 1, 4, 5)
    assert read_each(named, SHAPE, ANY).upload.rows.indptr.tolist() == [0, 0, 4]
    empty = {
        "users": np.zeros(0, np.int64),
        "indptr": np.zeros(1, np.int64),
        "items": i32(),
        "values": np.zeros((0, 3), np.float32),
        "dense": np.zeros((0, 2), np.float32),
        "weight": np.zeros(0),
    }
    assert len(read_each(empty, SHAPE, Limits(1.0, 1.0)).users) == 0


def test_the_norm_of_single_uploads_is_each_users_own() -> None:
    """User 7 has rows of length 2 and a dense part of length 1; user 9 a row of length 4."""
    named = single_uploads() | {
        "values": f32([[2, 0, 0], [0, 0, 0], [0, 4, 0], [0, 0, 0]]),
        "dense": f32([[0, 1], [0, 0]]),
    }
    read_each(named, SHAPE, Limits(norm=4.0))
    with pytest.raises(Rejected, match=r"its norm 4 is above 3\.999"):
        read_each(named, SHAPE, Limits(norm=3.999))
    named["values"] = f32([[2, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    read_each(named, SHAPE, Limits(norm=2.2361))  # the weights, 2 and 3, do not matter
    with pytest.raises(Rejected, match=r"its norm 2\.23607 is above"):
        read_each(named, SHAPE, Limits(norm=2.236))


def test_the_weights_of_a_nodes_users_are_limited_together() -> None:
    assert read_each(single_uploads(), SHAPE, Limits(weight=5.0)).upload.weight.sum() == 5.0
    with pytest.raises(Rejected, match=r"its weight 5 is above 4\.99"):
        read_each(single_uploads(), SHAPE, Limits(weight=4.99))


def node_sum_message(length: float, weight: float) -> Named:
    """A sum whose rows and dense part together have this Euclidean length."""
    return {
        "items": i32(0, 5),
        "values": f32([[0.6 * length, 0, 0], [0, 0, 0]]),
        "dense": f32([0, 0.8 * length]),
        "weight": np.array([weight]),
    }


def test_the_norm_of_a_sum_is_per_unit_of_weight() -> None:
    named = node_sum_message(20.0, 4.0)
    part = read_sum(named, SHAPE, Limits(norm=5.0001, weight=4.0))
    assert (part.items.tolist(), part.weight) == ([0, 5], 4.0)
    np.testing.assert_array_equal(part.values, named["values"])
    np.testing.assert_array_equal(part.dense, named["dense"])
    with pytest.raises(Rejected, match=r"its norm 5 is above 4\.999"):
        read_sum(named, SHAPE, Limits(norm=4.999))
    with pytest.raises(Rejected, match=r"its weight 4 is above 3\.999"):
        read_sum(named, SHAPE, Limits(weight=3.999))
    read_sum(node_sum_message(1e8, 1e8), SHAPE, ANY)
    for length, weight in ((1e9, 1.0), (1.0, 1e9)):  # an exact sum cannot hold them
        with pytest.raises(Rejected, match=r"is above 2\.68435e\+08"):
            read_sum(node_sum_message(length, weight), SHAPE, ANY)


def test_a_sum_of_nobody_is_accepted_and_values_without_weight_are_not() -> None:
    assert read_sum(node_sum_message(0.0, 0.0), SHAPE, Limits(1.0, 1.0)).weight == 0.0
    with pytest.raises(Rejected, match="values but no weight"):
        read_sum(node_sum_message(0.01, 0.0), SHAPE, ANY)
    half = node_sum_message(1.0, 0.5)
    with pytest.raises(Rejected, match="its norm 2 is above 1"):
        read_sum(half, SHAPE, Limits(norm=1.0))


def test_messages_hold_what_was_uploaded_and_no_zero_rows() -> None:
    rows = np.zeros((6, 3))
    rows[[1, 4]] = [[0, 0, 0.5], [1, -2, 3]]
    named = sum_message(UploadSum(rows, np.array([7.0, 0.0]), 9.5, 3))
    assert {name: array.dtype.name for name, array in named.items()} == {
        "items": "int32",
        "values": "float32",
        "dense": "float32",
        "weight": "float64",
    }
    part = read_sum(named, SHAPE, ANY)
    assert part.items.tolist() == [1, 4]
    assert part.values.tolist() == [[0, 0, 0.5], [1, -2, 3]]
    assert (part.dense.tolist(), part.weight) == ([7.0, 0.0], 9.5)
    uploads = read_each(single_uploads(), SHAPE, ANY)
    again = each_message(*uploads)
    assert again.keys() == single_uploads().keys()
    for name, array in single_uploads().items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


def test_the_digest_of_a_download_changes_with_any_entry() -> None:
    method = create("fedmf", dim=4)
    download = method.download(method.init(3, 5, 0)[0])
    digest = download_digest(download)
    assert len(digest) == 4
    np.testing.assert_array_equal(digest, download_digest(download._replace(Q=download.Q.copy())))
    for place in (0, -1):
        changed = download.Q.copy()
        changed.flat[place] += 1e-6
        assert (download_digest(download._replace(Q=changed)) != digest).any()


def uploads(users: list[int], runs: list[list[int]]) -> Uploads:
    """Each row holds its user's number, each dense part and weight too."""
    owner = np.repeat(users, [len(run) for run in runs])
    indptr = np.concatenate(([0], np.cumsum([len(run) for run in runs])))
    items = [item for run in runs for item in run]
    rows = Rows(indptr, i32(*items), np.tile(f32(owner)[:, None], (1, 3)))
    dense = np.tile(f32(users)[:, None], (1, 2))
    return Uploads(np.array(users), Upload(rows, dense, np.array(users, np.float64)))


def test_single_uploads_of_all_nodes_come_in_the_order_of_their_users() -> None:
    nobody = uploads([], [])
    joined = merge_uploads(
        [uploads([8, 2], [[1, 2], [0]]), nobody, uploads([5], [[3, 4, 5]])], SHAPE
    )
    assert joined.users.tolist() == [2, 5, 8]
    assert joined.upload.rows.indptr.tolist() == [0, 1, 4, 6]
    assert joined.upload.rows.items.tolist() == [0, 3, 4, 5, 1, 2]
    assert joined.upload.rows.values[:, 2].tolist() == [2, 5, 5, 5, 8, 8]
    assert joined.upload.dense[:, 1].tolist() == [2, 5, 8]
    assert joined.upload.weight.tolist() == [2, 5, 8]
    assert len(merge_uploads([nobody], SHAPE).users) == 0


def test_a_part_of_a_nodes_users() -> None:
    part = select_uploads(uploads([3, 5, 8], [[1, 2], [0], [4, 5]]), np.array([0, 2]))
    assert part.users.tolist() == [3, 8]
    assert part.upload.rows.indptr.tolist() == [0, 2, 4]
    assert part.upload.rows.items.tolist() == [1, 2, 4, 5]
    assert part.upload.rows.values[:, 0].tolist() == [3, 3, 8, 8]
    assert part.upload.dense[:, 0].tolist() == [3, 8]
    assert part.upload.weight.tolist() == [3, 8]


def test_a_reply_is_one_record_of_arrays() -> None:
    arrays = ArrayRecord({"items": Array(i32(1, 2))})
    about = ConfigRecord()
    read = read_arrays(reply({"upload": arrays, "about": about}))
    assert read["items"].tolist() == [1, 2]
    more = ConfigRecord({"x": 1})
    for content in (
        {},
        {"upload": arrays},
        {"other": arrays, "about": about},
        {"upload": about, "about": about},
        {"upload": arrays, "about": about, "more": arrays},
        {"upload": arrays, "about": about, "more": more},
    ):
        with pytest.raises(Rejected, match="the reply holds"):
            read_arrays(reply(content))
    pickled = Array("int32", (2,), "numpy.ndarray", b"not an array")
    with pytest.raises(Rejected, match="cannot be read"):
        read_arrays(reply({"upload": ArrayRecord({"items": pickled}), "about": about}))


def read_metric(pair: Any, name: str = "test.hr@10") -> Any:
    return read_metric_sums(reply({"sums": MetricRecord({name: pair})}), 8)


def test_metrics_are_bounded_by_the_number_of_users() -> None:
    assert read_metric([8.0, 8.0]) == {"test.hr@10": (8.0, 8)}
    assert read_metric([0.0, 0.0]) == {"test.hr@10": (0.0, 0)}
    for pair in ([8.001, 8.0], [-0.001, 8.0]):
        with pytest.raises(Rejected, match="outside what 8 users can have"):
            read_metric(pair)
    with pytest.raises(Rejected, match="of 9 users; it has at most 8"):
        read_metric([1.0, 9.0])
    for users in (-1.0, 0.5):
        with pytest.raises(Rejected, match=f"of {users:g} users"):
            read_metric([0.0, users])
    for pair in ([1.0], [1.0, 2.0, 3.0], 1.0, [1.0, np.inf], [np.nan, 6.0]):
        with pytest.raises(Rejected, match="not a sum and a count"):
            read_metric(pair)
    with pytest.raises(Rejected, match="no metric"):
        read_metric([1.0, 2.0], "train.hr@10")
    sums = MetricRecord({"test.hr@10": [1.0, 2.0]})
    for content in ({}, {"sums": sums, "more": sums}, {"sums": ConfigRecord({"x": 1})}):
        with pytest.raises(Rejected, match="the reply holds"):
            read_metric_sums(reply(content), 8)
