"""Attack success is counted right, and the attacks find what is there and nothing else."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from unskew.audit.attacks import (
    Classifier,
    Shadows,
    auc,
    auc_of_one,
    dense_uploads,
    direction,
    main_direction,
    measure,
    mid_ranks,
    owner_success,
    personal_auc,
    presence,
    support,
)
from unskew.audit.privacy import (
    audit_privacy,
    privacy_tables,
    strongest_attack,
    trade_off_chart,
    with_noise,
)
from unskew.audit.server import CuriousServer
from unskew.display import draw_svg
from unskew.engine import Federation, model_checksum
from unskew.methods import METHODS, create
from unskew.runs import RunSpec
from unskew.types import Interactions, Rows, Split, UnskewError, Upload

draw = np.random.default_rng(0)


def test_auc_is_the_mann_whitney_statistic() -> None:
    scores = draw.integers(0, 6, (20, 40)).astype(float)
    owned = draw.random((20, 40)) < 0.3
    for found, row, has in zip(auc(mid_ranks(scores), owned), scores, owned, strict=True):
        expected = scipy.stats.mannwhitneyu(row[has], row[~has]).statistic
        assert found == pytest.approx(expected / (has.sum() * (~has).sum()))


def test_personal_auc_counts_pairs_of_users_over_the_same_item() -> None:
    ranks = draw.integers(0, 5, (12, 30)).astype(float)
    owned = draw.random((12, 30)) < 0.4
    found = personal_auc(ranks, owned)
    for u in range(12):
        wins = []
        for i in np.flatnonzero(owned[u]):
            others = ranks[~owned[:, i], i]
            if len(others):
                wins.append(((ranks[u, i] > others) + 0.5 * (ranks[u, i] == others)).mean())
        assert found[u] == pytest.approx(np.mean(wins))


def test_what_is_known_of_everybody_is_not_personal() -> None:
    """Popularity finds many items of everyone, and tells nothing about anyone."""
    popularity = draw.random(200)
    owned = draw.random((50, 200)) < 0.5 * popularity
    success = measure(np.tile(popularity, (50, 1)), owned)
    assert success.auc.mean > 0.6
    assert success.personal_auc.mean == 0.5


def test_perfect_and_blind_attacks() -> None:
    owned = draw.random((60, 300)) < 0.1
    perfect = measure(owned.astype(float), owned)
    assert perfect.auc.mean == perfect.precision.mean == perfect.recovered.mean == 1
    blind = measure(draw.random((60, 300)), owned)
    assert blind.auc.low < 0.5 < blind.auc.high
    assert blind.personal_auc.low < 0.5 < blind.personal_auc.high
    assert blind.recovered.mean == 0
    silent = measure(np.full((3, 300), np.nan), owned[:3])
    assert silent.users == 0


def test_direction_finds_the_smaller_side() -> None:
    """Rows moved along a vector, few one way and many the other, the rest not at all."""
    p = draw.standard_normal(8)
    sides = np.zeros(100)
    sides[:6], sides[6:30] = 1.0, -1.0
    D = (sides[:, None] * p * draw.uniform(0.5, 1, (100, 1))).astype(np.float32)[None]
    along = direction(D, main_direction(D))[0]
    assert set(np.argsort(-along)[:6]) == set(range(6))
    assert np.all(support(D)[0, 30:] == 0)
    assert auc_of_one(D[0], np.arange(100) < 6) == 1.0
    hidden = D[0] + draw.laplace(0, 50, D[0].shape).astype(np.float32)
    assert auc_of_one(hidden, np.arange(100) < 6) < 0.9


def test_a_row_that_is_sent_shows_even_if_it_is_zero() -> None:
    rows = Rows(np.array([0, 2]), np.array([1, 3], np.int32), np.zeros((2, 4), np.float32))
    upload = Upload(rows, np.zeros((1, 0), np.float32), np.ones(1))
    assert np.flatnonzero(support(dense_uploads(upload, np.array([0]), 5))[0]).tolist() == [1, 3]


def test_who_took_part_shows_in_sums_despite_a_trend() -> None:
    there = draw.random((60, 20)) < 0.6
    owned = draw.random((20, 80)) < 0.2
    trend = np.linspace(1, 9, 60)[:, None] ** 2 * draw.random((1, 80))
    found = measure(presence(there @ owned + trend, there), owned)
    assert found.personal_auc.low > 0.6
    always = presence(there @ owned + trend, np.ones_like(there))
    assert measure(always, owned).personal_auc.mean == pytest.approx(0.5, abs=1e-9)


def test_what_is_known_beforehand_is_used_as_far_as_it_helps() -> None:
    y = draw.random(4000) < 0.5
    blind = draw.standard_normal((4000, 3)).astype(np.float32)
    telling = (y + 0.3 * draw.standard_normal(4000)).astype(np.float32)
    assert Classifier(blind, y, telling).prior_weight > 1
    assert abs(Classifier(blind, y, blind[:, 0][::-1].copy()).prior_weight) < 0.2


def test_the_known_item_itself_is_no_success() -> None:
    owned = np.array([[True, True, False, False]])
    scores = np.array([[9.0, 1.0, 2.0, 0.0]])
    found = owner_success(scores, np.array([0]), owned)
    assert found["auc"]["mean"] == 0.5
    assert (found["precision"]["mean"], found["items"]) == (0.0, 1)


SETTINGS = {"rounds": 6, "local_epochs": 3}


@pytest.fixture(scope="module")
def few(demo_data: Interactions) -> Interactions:
    """The demo's first users and its more popular items."""
    popularity = np.bincount(demo_data.items, minlength=len(demo_data.item_ids))
    popular = np.argsort(-popularity, kind="stable")[:300]
    keep = (demo_data.users < 150) & np.isin(demo_data.items, popular)
    columns = ("users", "items", "ratings", "timestamps")
    there = {name: getattr(demo_data, name) for name in columns}
    return replace(demo_data, **{n: None if c is None else c[keep] for n, c in there.items()})


@pytest.fixture(scope="module")
def audits(few: Interactions) -> dict[tuple[str, float], dict[str, Any]]:
    """FedMF with and without noise on the demo data, forty users attacked."""
    spec = RunSpec("fedmf", SETTINGS | {"participation": 1.0}, "demo")
    return {
        ("fedmf", noise): audit_privacy(with_noise(spec, noise), few, targets=40)
        for noise in (0.0, 0.2, 100.0)
    }


def test_plain_uploads_give_the_items_away(audits: Any) -> None:
    view = audits["fedmf", 0.0]["single_uploads"]
    for span in ("one round", "whole run"):
        assert view[span]["direction"]["auc"]["mean"] > 0.95
        assert view[span]["shadow"]["auc"]["mean"] > 0.95
    assert strongest_attack(view, "whole run", "auc")["recovered"]["mean"] > 0.5


def test_strong_noise_hides_them(audits: Any) -> None:
    for attack in audits["fedmf", 100.0]["single_uploads"]["one round"].values():
        assert abs(attack["personal_auc"]["mean"] - 0.5) < 0.05


def test_taking_part_again_and_again_undoes_noise(audits: Any) -> None:
    view = audits["fedmf", 0.2]["single_uploads"]
    once, always = (
        strongest_attack(view, span, "auc")["auc"] for span in ("one round", "whole run")
    )
    assert always["low"] > once["high"]


def test_a_sum_over_everyone_tells_nobody_apart(audits: Any) -> None:
    view = audits["fedmf", 0.0]["secure_aggregation"]
    for span in ("one round", "whole run"):
        for attack in view[span].values():
            assert attack["personal_auc"]["mean"] == pytest.approx(0.5, abs=1e-9)
            assert attack["heaviest"]["mean"] == pytest.approx(0.5, abs=1e-9)
    assert strongest_attack(view, "one round", "auc")["auc"]["mean"] > 0.5, (
        "what is popular is not hidden"
    )


def test_the_account_stands_in_the_row(audits: Any) -> None:
    assert "privacy" not in audits["fedmf", 0.0]
    said = audits["fedmf", 0.2]["privacy"]["local_guarantee"]["statement"]
    assert said.startswith("no guarantee")
    tables = privacy_tables(list(audits.values()))
    names = [row[0].text for table in tables for row in table.rows]
    assert names == ["fedmf, full cohort"] * 2 * len(audits)
    assert strongest_attack(audits["fedmf", 0.0]["single_uploads"], "never") == {}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("fedncf", "gpfedrec") else name
        for name, method in METHODS.items()
        if method.aggregation != "central" and name != "local"
    ],
)
def test_every_federated_method_can_be_audited(name: str, few: Interactions) -> None:
    row = audit_privacy(RunSpec(name, {"rounds": 2}, "demo"), few, targets=10)
    assert {"support", "direction", "shadow"} <= set(row["single_uploads"]["whole run"])
    individual = create(name).aggregation == "individual"
    assert ("refused" in row["secure_aggregation"]) == individual
    assert ("dense" in row["single_uploads"]["one round"]) == (name == "fedncf")


def test_central_methods_have_nothing_to_audit(few: Interactions) -> None:
    with pytest.raises(UnskewError, match="not federated"):
        audit_privacy(RunSpec("ease"), few)


def test_a_watched_federation_trains_as_an_unwatched_one(tiny_split: Split) -> None:
    method = create("fedmf", rounds=2)

    plan = Federation(method, tiny_split, 0)
    popularity = np.bincount(tiny_split.seen.items, minlength=tiny_split.n_items)
    shadows = Shadows(method, tiny_split.n_users, popularity, 0, None, 0.0)
    server = CuriousServer(plan, np.arange(5), np.zeros(0, np.int64), shadows)
    watched = Federation(method, tiny_split, 0, transform=server).run(
        before_round=lambda state: server.begin_round(
            method.download(state.server), state.round + 1
        ),
        on_round=lambda state, row: server.end_round(state.round),
    )
    assert server.findings(secure=False)
    assert model_checksum(watched) == model_checksum(plan.run())


def test_an_audit_is_the_same_every_time(few: Interactions) -> None:
    spec = RunSpec("pfedclr", {"rounds": 2, "local_epochs": 1}, "demo")
    rows = [audit_privacy(with_noise(spec, 0.3), few, targets=10) for _ in range(2)]
    assert rows[0] == rows[1]
    other = audit_privacy(replace(with_noise(spec, 0.3), seeds=(1,)), few, targets=10)
    assert other["single_uploads"] != rows[0]["single_uploads"]


def test_the_chart_has_a_line_per_method_for_uploads_and_sums() -> None:
    def row(method: str, noise: float, sums: bool) -> dict[str, Any]:
        success = {"mean": 0.9 - noise / 2}
        attack = {"users": 5, "auc": success, "personal_auc": success}
        shared = {"data": "demo", "protocol": "leak-free", "settings": {}, "ldp": None}
        view = {"whole run": {"direction": attack}}
        return shared | {
            "method": method,
            "noise": noise,
            "quality": {"best_ndcg@10": 0.07 - noise / 100},
            "single_uploads": view,
            "secure_aggregation": view if sums else {"refused": "needs every upload"},
        }

    rows = [row("fedmf", 1.0, True), row("fedmf", 0.0, True), row("gpfedrec", 0.5, False)]
    chart = trade_off_chart(rows)
    single, sums = ({one.label: one for one in panel.series} for panel in chart.panels)
    assert set(single) == {"fedmf", "gpfedrec"}
    assert set(sums) == {"fedmf"}, "GPFedRec cannot be summed"
    assert list(single["fedmf"].x) == [0.9, 0.4], "in the order of noise"
    texts = [node.text for node in ElementTree.fromstring(draw_svg(chart)).iter()]
    assert "λ 1" in texts
