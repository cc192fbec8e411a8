"""What the mechanism and its account say in numbers, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from unskew.privacy import (
    LocalPrivacy,
    Mechanism,
    PrivateUploads,
    Shape,
    local_epsilon,
    privacy_report,
    sensitivity,
)
from unskew.types import Cohort, Ragged, Rows, UnskewError, Upload

SHAPE = Shape(n_items=9, width=4, dense=16)


@pytest.mark.parametrize(
    ("kind", "norm", "expected"),
    [
        ("laplace", "l1", 2.0),
        ("laplace", "l2", 2 * math.sqrt(9 * 4 + 16)),
        ("laplace", "row", 2 * (9 * 2 + 4)),
        ("gaussian", "l1", 2.0),
        ("gaussian", "l2", 2.0),
        ("gaussian", "row", 2 * math.sqrt(9 + 1)),
    ],
)
def test_how_far_two_clipped_uploads_lie_apart(kind: Any, norm: Any, expected: float) -> None:
    for clip in (1.0, 2.5):
        assert sensitivity(Mechanism(1.0, kind, clip, norm), SHAPE) == pytest.approx(
            clip * expected
        )
    assert sensitivity(Mechanism(1.0, kind, None, norm), SHAPE) == math.inf


def test_rows_alone_have_no_dense_part_to_differ_in() -> None:
    assert sensitivity(Mechanism(1.0, "gaussian", 1.0, "row"), Shape(9, 4, 0)) == pytest.approx(6)
    assert Shape(9, 4, 16).entries == 52


def test_no_rounds_no_noise_and_endless_noise() -> None:
    for kind in ("laplace", "gaussian"):
        assert local_epsilon(kind, 1.0, 0) == 0.0
        assert local_epsilon(kind, 0.0, 3) == math.inf
        assert local_epsilon(kind, math.inf, 3) == 0.0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "laplace"),
        ({"norm": "l2"}, "laplace"),
        ({"clip": 1.0}, "laplace"),
        ({"clip": 1.0, "norm": "row"}, "laplace"),
        ({"clip": 1.0, "norm": "l2"}, "gaussian"),
        ({"clip": 1.0, "norm": "l2", "kind": "laplace"}, "laplace"),
        ({"kind": "gaussian"}, "gaussian"),
    ],
)
def test_which_noise_is_drawn_where_none_is_named(values: dict[str, Any], expected: str) -> None:
    asked = LocalPrivacy(noise=0.5, **values)
    assert asked.noise_kind == expected
    wanted = Mechanism(2.0, expected, values.get("clip"), values.get("norm", "l1"))  # type: ignore[arg-type]
    assert asked.with_noise(2.0) == wanted


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_bounds_must_be_finite_and_positive(value: float) -> None:
    for name in ("clip", "delta", "epsilon"):
        values: dict[str, Any] = {"epsilon": 1.0, "clip": 1.0} | {name: value}
        with pytest.raises(UnskewError, match=name):
            LocalPrivacy(**values)
    if value != 0:
        with pytest.raises(UnskewError, match="noise"):
            LocalPrivacy(noise=value)


@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_the_least_number_of_users_is_a_whole_number(value: Any) -> None:
    with pytest.raises(UnskewError, match="least_users"):
        LocalPrivacy(noise=1.0, least_users=value)
    assert LocalPrivacy(noise=1.0, least_users=1).least_users == 1


@pytest.mark.parametrize(
    ("kind", "norm", "fits"),
    [
        ("laplace", "l1", True),
        ("gaussian", "l1", True),
        ("gaussian", "l2", True),
        ("laplace", "l2", False),
        ("laplace", "row", False),
        ("gaussian", "row", False),
    ],
)
def test_a_budget_needs_a_norm_that_its_noise_answers_to(kind: Any, norm: Any, fits: bool) -> None:
    if fits:
        assert LocalPrivacy(epsilon=1.0, clip=1.0, norm=norm, kind=kind).noise_kind == kind
        return
    with pytest.raises(UnskewError, match="A budget epsilon needs"):
        LocalPrivacy(epsilon=1.0, clip=1.0, norm=norm, kind=kind)


def three_clients() -> tuple[Upload, Cohort]:
    """Rows of items 0 and 2, of item 1, and of none; lengths 5, 2 and 0 (L1: 7, 2 and 0)."""
    values = np.array([[3, 0], [0, 4], [0, -2]], np.float32)
    rows = Rows(np.array([0, 2, 3, 3]), np.array([0, 2, 1], np.int32), values)
    upload = Upload(rows, np.zeros((3, 0), np.float32), np.array([30.0, 10.0, 0.0]))
    nothing = Ragged(np.zeros(4, np.int64), np.zeros(0, np.int32))
    return upload, Cohort(np.array([4, 6, 9]), nothing, nothing, 5, 3, 4)


def test_the_figures_of_a_round_without_a_clip() -> None:
    upload, cohort = three_clients()
    transform = PrivateUploads(Mechanism(0.0))
    sent = transform(upload, cohort)
    np.testing.assert_array_equal(sent.weight, [30, 10, 0])
    assert transform.round_figures() == {
        "sent": 2,
        "senders": [4, 6],
        "largest_l1": 7.0,
        "largest_l2": 5.0,
        "largest_share": 0.75,
        "median_share": 0.5,
        "shape": [5, 2, 0],
    }
    transform(upload._replace(weight=np.ones(3)), cohort)
    again = transform.round_figures()
    assert again["sent"] == 3, "the round before is forgotten"
    assert "senders" not in again
    assert again["largest_share"] == pytest.approx(1 / 3)


def test_with_a_clip_clients_count_alike_and_are_bounded() -> None:
    upload, cohort = three_clients()
    for norm, bound, lengths in (("l1", 3.5, (3.5, 2)), ("l2", 2.5, (2.5, 2)), ("row", 2, (3, 2))):
        transform = PrivateUploads(Mechanism(0.0, "laplace", bound, norm))  # type: ignore[arg-type]
        sent = transform(upload, cohort)
        assert sent.weight.tolist() == [1, 1, 0]
        for client, length in enumerate(lengths):
            run = slice(sent.rows.indptr[client], sent.rows.indptr[client + 1])
            values = sent.rows.values[run]
            ours = np.abs(values).sum() if norm == "l1" else np.linalg.norm(values)
            if norm == "row":
                assert np.linalg.norm(values, axis=1).max() <= bound + 1e-6
            else:
                assert ours == pytest.approx(length, rel=1e-5)
        figures = transform.round_figures()
        assert (figures["largest_l1"], figures["largest_l2"]) == (7.0, 5.0), "before the clip"
        assert figures["largest_share"] == figures["median_share"] == 0.5


def test_withheld_rows_are_neither_sent_nor_counted() -> None:
    upload, cohort = three_clients()
    withheld = np.array([False, True, True, False, False])
    transform = PrivateUploads(Mechanism(0.0), withheld=withheld)
    sent = transform(upload, cohort)
    nonzero = np.flatnonzero(sent.rows.values.any(axis=1))
    assert sent.rows.items[nonzero].tolist() == [0]
    assert sent.rows.values[nonzero].tolist() == [[3, 0]]
    assert transform.round_figures()["largest_l1"] == 3.0


def figures_of(**changed: Any) -> dict[str, Any]:
    figures: dict[str, Any] = {"sent": 3, "largest_l1": 40.0, "largest_l2": 2.0}
    figures |= {"largest_share": 0.5, "median_share": 0.2, "shape": [10, 4, 0]}
    return {"ldp": figures | changed}


def test_a_report_takes_the_worst_round_and_the_largest_upload() -> None:
    asked = LocalPrivacy(noise=4.0, clip=1.0, norm="l2", kind="laplace", least_users=3)
    rows = [
        figures_of(shape=[10, 1, 0]),
        figures_of(largest_share=0.8, median_share=0.4),
        figures_of(shape=[10, 4, 24], median_share=0.3),
    ]
    report = privacy_report(asked, asked.with_noise(4.0), np.array([3, 1, 0, 1]), rows)
    apart = 2 * math.sqrt(64)
    paper = report["paper_epsilon"]
    assert paper["share"] == {"worst": 0.8, "median": 0.3}
    assert paper["update_bound"] == pytest.approx(apart / 2)
    assert paper["update_bound_is"] == "the clip"
    assert paper["epsilon"]["worst"] == pytest.approx(2 * 0.8 * 8 / 4)
    assert paper["epsilon"]["median"] == pytest.approx(2 * 0.3 * 8 / 4)
    local = report["local_guarantee"]
    assert local["sensitivity"] == pytest.approx(apart)
    assert local["epsilon"]["worst"] == local_epsilon("laplace", 4 / apart, 3)
    assert local["epsilon"]["median"] == local["epsilon"]["one_round"]
    assert local["epsilon"]["one_round"] == local_epsilon("laplace", 4 / apart, 1)
    assert local["epsilon_at_delta_0"] == pytest.approx(3 * apart / 4)
    assert local["epsilon_of_sum"] is None
    assert "(3 uploads)" in local["statement"]
    about = {name: report[name] for name in ("kind", "noise", "clip", "norm", "least_users")}
    assert about == {"kind": "laplace", "noise": 4.0, "clip": 1.0, "norm": "l2", "least_users": 3}
    assert report["equal_weights"] is True
    assert report["rounds"] == {"worst_client": 3, "median_client": 1}


def test_without_a_clip_the_largest_upload_seen_stands_for_the_bound() -> None:
    rows = [figures_of(), figures_of(largest_l1=60.0, largest_l2=3.0)]
    for kind, seen in (("laplace", 60.0), ("gaussian", 3.0)):
        asked = LocalPrivacy(noise=2.0, kind=kind)  # type: ignore[arg-type]
        report = privacy_report(asked, asked.with_noise(2.0), np.array([1]), rows)
        assert report["paper_epsilon"]["update_bound"] == seen
        assert report["paper_epsilon"]["epsilon"]["worst"] == pytest.approx(2 * 0.5 * seen / 2)
        assert report["equal_weights"] is False
        assert report["norm"] is None
