"""An honest-but-curious server: it follows the protocol but analyses what it receives.

It sees uploads after the devices' privacy mechanism and before aggregation. It attacks them in two
ways at once: one by one, and only their sum over a round's cohort, as under secure aggregation. It
stores attack scores from a client's latest upload ("one round") and totals over all its uploads
("whole run"), because repeated participation averages noise out.

A round's sum says the same about every client in it, but the server knows who took part when. It
subtracts the mean of the rounds without a client from the mean of the rounds with that client (or
takes the mean of all rounds if the client took part in all). It may also know that a client has a
rare item. That item's row of the sum comes only from the few clients who have it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from unskew.audit.attacks import (
    Classifier,
    Shadows,
    dense_uploads,
    direction,
    features,
    inversion,
    main_direction,
    owner_scores,
    presence,
    support,
)
from unskew.engine import Devices, Federation, Transform
from unskew.kernels import ExactSum, add_uploads
from unskew.types import Bool, Cohort, Float32, Float64, Int64, Upload

SPANS = ("one round", "whole run")
"""Names of the two attack spans: a client's latest upload, or all its uploads."""
MAX_EXTRA_COLUMNS = 2
"""Largest number of columns (a bias, counts) that an uploaded row may have beside those of an item
embedding for the rare-item attack to use it."""


class CuriousServer:
    """Attacks the uploads of a federation while it trains, and passes them on unchanged.

    ``plan`` is the attacked federation, ``targets`` are the attacked users, ``rare`` are items that
    few clients have, and the server knows which. ``device`` transforms uploads before they arrive,
    with noise of strength ``noise``.
    """

    def __init__(
        self,
        plan: Federation,
        targets: Int64,
        rare: Int64,
        shadows: Shadows,
        device: Transform | None = None,
        noise: float = 0.0,
    ) -> None:
        self._method, self._n_items = plan.method, plan.split.n_items
        self._targets, self._rare, self._shadows = targets, rare, shadows
        self._device, self._noise = device, noise
        server, private = plan.method.init(1, self._n_items, plan.seed)
        self._fresh = Devices(private, plan.method.download(server))
        self._plan = plan
        self._there: dict[int, Bool] = {}
        """By round: which targets took part."""
        self.owners = np.zeros((len(rare), self._n_items))
        """Scores (rare items × items) of the rare-item attack, summed over rounds."""
        table = (len(targets), self._n_items)
        # Single uploads. Sums are by width: a method may send rows of another width later on.
        self._latest = defaultdict[str, Float64](lambda: np.full(table, np.nan))
        self._totals = defaultdict[str, Float64](lambda: np.zeros(table))
        self._upload_sums: dict[int, Float32] = {}
        self._upload_counts = np.zeros(len(targets), np.int64)
        self._prior_weights: list[float] = []
        self._sides = 0.0
        # Sums over cohorts.
        self._latest_of_sum = defaultdict[str, Float64](lambda: np.full(table, np.nan))
        self._sums_with: dict[int, Float32] = {}
        """By width: for each target, the total of the rounds' sums with it."""
        self._sums_of_all: dict[int, Float32] = {}
        """By width: the total of all rounds' sums."""
        self._moves = defaultdict[int, list[tuple[int, Float64, Float64]]](list)
        """By width: the round, the sum's main direction, and each item's coordinate along it."""
        # The round at hand.
        self._classifier: Classifier | None = None
        self._side = 1.0
        self._total: ExactSum | None = None
        self._download: Any = None

    def begin_round(self, download: Any, round: int) -> None:
        """Store the model that clients download this round, and train the shadow clients on it."""
        self._download, self._total = download, None
        self._classifier = self._shadows.learn(download, round)
        self._side = 1.0 if self._classifier is None else self._classifier.side

    def __call__(self, upload: Upload, cohort: Cohort) -> Upload:
        sent = upload if self._device is None else self._device(upload, cohort)
        self._total = add_uploads(self._total, sent, self._n_items)
        _, places, clients = np.intersect1d(self._targets, cohort.users, True, True)
        some = sent.weight[clients] > 0
        if some.any():
            D = dense_uploads(sent, clients[some], self._n_items)
            self._attack_uploads(places[some], D, sent.dense[clients[some]])
        return sent

    def end_round(self, round: int) -> None:
        """Attack the sum of the round's uploads, which is all that secure aggregation shows."""
        if self._total is None:
            return
        total = self._total.result()
        if total.weight == 0:
            return
        mean = (total.rows / total.weight).astype(np.float32)[None]
        vector = main_direction(mean) * self._side
        there = np.isin(self._targets, self._plan.cohort_of(round))
        self._there[round] = there
        self._latest_of_sum["support"][there] = support(mean)[0]
        self._latest_of_sum["direction"][there] = direction(mean, vector)[0]
        # Sums shrink as training goes on: put each on the same scale.
        unit = mean[0] / (np.sqrt((mean**2).sum()) + 1e-30)
        width = unit.shape[1]
        self._sums_of_width(self._sums_with, width)[there] += unit
        self._sums_of_all[width] = self._sums_of_all.get(width, np.float32(0)) + unit
        move = unit.astype(np.float64) @ vector[0]
        self._moves[width].append((round, vector[0], move))
        table = self._method.item_table(self._download)
        if 0 <= width - table.shape[1] <= MAX_EXTRA_COLUMNS:
            for at, item in enumerate(self._rare):
                self.owners[at] += owner_scores(total.rows[item], table)

    def findings(self, secure: bool) -> dict[tuple[str, str], Float64]:
        """Item scores (attacked users × items) by (attack, span of rounds), from individual uploads
        or, if ``secure``, from sums of uploads."""
        latest = self._latest_of_sum if secure else self._latest
        found = {(name, SPANS[0]): scores for name, scores in latest.items()}
        sign = 1.0 if self._sides >= 0 else -1.0
        whole: dict[str, Float64] = {}
        if secure and self._sums_with:
            sums = [self._contrasts(width) for width in self._sums_with]
            whole["support"] = _combine(support(one) for one in sums)
            whole["direction"] = sign * _combine(
                direction(one, main_direction(one)) for one in sums
            )
            whole["presence"] = _combine(map(self._presence_scores, self._moves))
        if not secure and self._upload_sums:
            sums = list(self._upload_sums.values())
            noise = self._noise * float(np.sqrt(np.maximum(self._upload_counts, 1).mean()))
            along = _combine(direction(one, main_direction(one, noise)) for one in sums)
            whole = {**self._totals, "direction": sign * along}
            if self._prior_weights:
                whole["shadow"] += float(np.mean(self._prior_weights)) * self._shadows.prior
            for scores in whole.values():
                scores[self._upload_counts == 0] = np.nan
        return found | {(name, SPANS[1]): scores for name, scores in whole.items()}

    def _attack_uploads(self, targets: Int64, D: Float32, dense: Float32) -> None:
        found = main_direction(D, self._noise)
        self._sides += self._side
        vectors = found * self._side
        scores = {"support": support(D), "direction": direction(D, vectors)}
        totals = {"support": scores["support"] ** 2}
        table = self._method.item_table(self._download)
        if table.shape == D.shape[1:]:
            scores["inversion"] = totals["inversion"] = inversion(D, vectors, table)
        favoured = self._network_inversion(dense)
        if favoured is not None:
            scores["dense"] = totals["dense"] = favoured
        if self._classifier is not None:
            totals["shadow"] = self._classifier.log_odds(features(D, found))
            prior = self._classifier.prior_weight * self._shadows.prior
            scores["shadow"] = totals["shadow"] + prior
            self._prior_weights.append(self._classifier.prior_weight)
        for name, values in scores.items():
            self._latest[name][targets] = values
        for name, values in totals.items():
            self._totals[name][targets] += values
        self._sums_of_width(self._upload_sums, D.shape[2])[targets] += D
        self._upload_counts[targets] += 1

    def _network_inversion(self, dense: Float32) -> Float64 | None:
        """Attack (e) on a shared scoring network: how much each item's prediction, for the initial
        user vector, rises when the upload is added. None if the method shares no network."""
        fresh = self._fresh.take(np.zeros(len(dense), np.int64))
        before, after = (
            self._method.score_dense(self._download, fresh, change)
            for change in (np.zeros_like(dense), dense)
        )
        return None if before is None or after is None else (after - before).astype(np.float64)

    def _presence_scores(self, width: int) -> Float64:
        """Item scores (users × items) of attack (c) on summed uploads whose rows have this width.

        An item's change in a round is its coordinate along the sum's main direction. The direction
        changes little between rounds, but its sign is arbitrary. Signs are aligned from round to
        round; their common sign is the one that most rounds had before."""
        rounds, vectors, moves = map(np.array, zip(*self._moves[width], strict=True))
        same_side = np.einsum("td,td->t", vectors[1:], vectors[:-1]) >= 0
        signs = np.cumprod([1.0, *np.where(same_side, 1.0, -1.0)])
        signs *= 1.0 if signs.sum() >= 0 else -1.0
        there = np.array([self._there[round] for round in rounds.tolist()])
        return presence(signs[:, None] * moves, there)

    def _contrasts(self, width: int) -> Float32:
        """For each target, the mean of the sums with it minus the mean of those without, among the
        rounds whose rows have this width."""
        there = np.array([self._there[round] for round, _, _ in self._moves[width]])
        present, absent = (
            np.maximum(part.sum(0), 1).astype(np.float32)[:, None, None] for part in (there, ~there)
        )
        sums_with = self._sums_with[width]
        found: Float32 = sums_with / present - (self._sums_of_all[width] - sums_with) / absent
        return found

    def _sums_of_width(self, sums: dict[int, Float32], width: int) -> Float32:
        if width not in sums:
            sums[width] = np.zeros((len(self._targets), self._n_items, width), np.float32)
        return sums[width]


def _combine(parts: Iterable[Float64]) -> Float64:
    """Sum arrays of item scores, each user's scores divided by their standard deviation."""
    scaled = [part / (part.std(axis=1, keepdims=True) + 1e-30) for part in parts]
    return np.asarray(sum(scaled), np.float64)
