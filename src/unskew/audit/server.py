"""An honest-but-curious server: it follows the protocol and keeps what it receives.

It stands behind the devices' privacy mechanism and in front of the aggregation. It looks at uploads
in two ways at once: one by one, and as under secure aggregation only at their sum over a round's
cohort. It keeps the scores of a client's latest upload ("one round") and running totals over all of
them ("whole run"), where repeated participation shows through noise.

Under secure aggregation a round's sum says the same about everyone in it. The server still knows
who took part when: the mean of the sums with a client minus the mean of those without (the plain
mean for a client that was never absent). It may also know that a client has a rare item, whose row
of the sum is then about the few clients who have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from unskew.audit.attacks import (
    Classifier,
    Shadows,
    Transform,
    dense_uploads,
    direction,
    features,
    inversion,
    main_direction,
    owner_scores,
    presence,
    support,
)
from unskew.kernels import empty_sum, fold
from unskew.types import Cohort, Float32, Float64, Int64, Upload, UploadSum

SPANS = ("one round", "whole run")
"""The uploads an attack uses: a client's latest, or all of them."""
InvertDense = Callable[[Any, Float32], Float64]
"""From the download and clients' dense parts to item scores: how much each client's upload makes
the shared network favour an item."""


class CuriousServer:
    """A transform for the engine that passes uploads on unchanged and remembers them."""

    def __init__(
        self,
        targets: Int64,
        n_items: int,
        cohorts: Sequence[Int64],
        *,
        device: Transform | None = None,
        shadow_device: Transform | None = None,
        noise: float = 0.0,
        shadows: Shadows | None = None,
        invert_dense: InvertDense | None = None,
        rare: Int64 | None = None,
    ) -> None:
        """``targets`` are the attacked users, ``cohorts`` the users of each round, ``rare`` items
        of few clients who are known to have them."""
        self._targets, self._n_items = targets, n_items
        self._device, self._noise, self._shadows = device, noise, shadows
        self._shadow_device, self._invert_dense = shadow_device, invert_dense
        self._rare = np.zeros(0, np.int64) if rare is None else rare
        self.owners = np.zeros((len(self._rare), n_items))
        """Item scores by the row of each rare item in the sums."""
        self._contrasts = _contrasts(targets, cohorts)
        # Single uploads. Sums are by width: a method may send rows of another width later on.
        self._latest: dict[str, Float64] = {}
        self._totals: dict[str, Float64] = {}
        self._upload_sums: dict[int, Float32] = {}
        self._upload_counts = np.zeros(len(targets), np.int64)
        self._prior_weights: list[float] = []
        self._side = 0.0
        # Sums over cohorts.
        self._latest_of_sum: dict[str, Float64] = {}
        self._contrast_sums: dict[int, Float32] = {}
        self._moves: dict[int, list[tuple[int, Float64]]] = {}
        self._axis: dict[int, Float64] = {}
        self._axis_sign: dict[int, float] = {}
        # The round at hand.
        self._classifier: Classifier | None = None
        self._total: UploadSum | None = None
        self._download: Any = None

    def begin_round(self, download: Any, round: int, seed: int) -> None:
        """Note what is sent out, and train the shadow clients on it."""
        self._download, self._total = download, None
        if self._shadows is not None:
            self._classifier = self._shadows.learn(
                download, round, seed, self._shadow_device, self._noise
            )

    def __call__(self, upload: Upload, cohort: Cohort) -> Upload:
        sent = upload if self._device is None else self._device(upload, cohort)
        total = empty_sum(self._n_items, sent) if self._total is None else self._total
        self._total = fold(total, sent)
        place = np.searchsorted(self._targets, cohort.users)
        place[place == len(self._targets)] = 0
        chosen = (self._targets[place] == cohort.users) & (sent.weight > 0)
        clients = np.flatnonzero(chosen)
        if len(clients):
            D = dense_uploads(sent, clients, self._n_items)
            self._attack_uploads(place[clients], D, sent.dense[clients])
        return sent

    def end_round(self, round: int) -> None:
        """Attack the complete sum, which is all that secure aggregation shows."""
        if self._total is None or self._total.weight == 0:
            return
        mean = (self._total.rows / self._total.weight).astype(np.float32)[None]
        side = 1.0 if self._classifier is None else self._classifier.side
        vector = main_direction(mean, 0.0) * side
        scores = {"support": support(mean)[0], "direction": direction(mean, vector)[0]}
        there = self._contrasts[round - 1] > 0
        for name, values in scores.items():
            self._store(self._latest_of_sum, name, np.flatnonzero(there), values)
        # Sums shrink as training goes on: put each on the same scale.
        unit = mean[0] / (np.sqrt((mean**2).sum()) + 1e-30)
        weights = self._contrasts[round - 1][:, None, None].astype(np.float32)
        self._sums_of_width(self._contrast_sums, unit.shape[1])[:] += weights * unit
        self._note_moves(round, unit.astype(np.float64), vector[0])
        table = getattr(self._download, "Q", getattr(self._download, "U", None))
        if table is not None and 0 <= unit.shape[1] - table.shape[1] <= 1:
            for at, item in enumerate(self._rare):
                self.owners[at] += owner_scores(self._total.rows[item], table)

    def findings(self, secure: bool) -> dict[tuple[str, str], Float64]:
        """Scores (targets × items) by attack and span, of single uploads or (secure) of sums."""
        latest = self._latest_of_sum if secure else self._latest
        found = {(name, SPANS[0]): scores for name, scores in latest.items()}
        sign = 1.0 if self._side >= 0 else -1.0
        if secure and self._contrast_sums:
            sums = list(self._contrast_sums.values())
            along = _combine(direction(one, main_direction(one, 0.0)) for one in sums)
            found["support", SPANS[1]] = _combine(support(one) for one in sums)
            found["direction", SPANS[1]] = along * sign
            found["presence", SPANS[1]] = self._presence_scores()
        if not secure and self._upload_sums:
            silent = self._upload_counts == 0
            noise = self._noise * float(np.sqrt(np.maximum(self._upload_counts, 1).mean()))
            sums = list(self._upload_sums.values())
            along = _combine(direction(one, main_direction(one, noise)) for one in sums)
            totals = {**self._totals, "direction": along * sign}
            if self._shadows is not None and "shadow" in totals:
                prior = float(np.mean(self._prior_weights)) * self._shadows.prior
                totals["shadow"] = totals["shadow"] + prior
            for name, scores in totals.items():
                scores[silent] = np.nan
                found[name, SPANS[1]] = scores
        return found

    def _attack_uploads(self, targets: Int64, D: Float32, dense: Float32) -> None:
        found = main_direction(D, self._noise)
        side = 1.0 if self._classifier is None else self._classifier.side
        self._side += side
        vectors = found * side
        scores = {"support": support(D), "direction": direction(D, vectors)}
        totals = {"support": scores["support"] ** 2}
        Q = getattr(self._download, "Q", None)
        if Q is not None and Q.shape == D.shape[1:]:
            scores["inversion"] = totals["inversion"] = inversion(D, vectors, Q)
        if self._invert_dense is not None and dense.shape[1]:
            scores["dense"] = totals["dense"] = self._invert_dense(self._download, dense)
        if self._classifier is not None and self._shadows is not None:
            totals["shadow"] = self._classifier.log_odds(features(D, found))
            prior = self._classifier.prior_weight * self._shadows.prior
            scores["shadow"] = totals["shadow"] + prior
            self._prior_weights.append(self._classifier.prior_weight)
        for name, values in scores.items():
            self._store(self._latest, name, targets, values)
        for name, values in totals.items():
            if name not in self._totals:
                self._totals[name] = np.zeros((len(self._targets), self._n_items))
            self._totals[name][targets] += values
        self._sums_of_width(self._upload_sums, D.shape[2])[targets] += D
        self._upload_counts[targets] += 1

    def _note_moves(self, round: int, unit: Float64, vector: Float64) -> None:
        """Note how far each item moved along the sum's main direction.

        The direction changes little between rounds; which of its ends belongs to positives is
        decided over all rounds.
        """
        width = unit.shape[1]
        axis = vector if vector @ self._axis.get(width, vector) >= 0 else -vector
        self._axis[width] = axis
        self._axis_sign[width] = self._axis_sign.get(width, 0.0) + float(np.sign(axis @ vector))
        self._moves.setdefault(width, []).append((round, unit @ axis))

    def _presence_scores(self) -> Float64:
        parts = []
        for width, noted in self._moves.items():
            rounds = [round - 1 for round, _ in noted]
            moves = np.stack([move for _, move in noted])
            signed = moves if self._axis_sign[width] >= 0 else -moves
            parts.append(presence(signed, self._contrasts[rounds] > 0))
        return _combine(parts)

    def _sums_of_width(self, sums: dict[int, Float32], width: int) -> Float32:
        if width not in sums:
            sums[width] = np.zeros((len(self._targets), self._n_items, width), np.float32)
        return sums[width]

    def _store(self, into: dict[str, Float64], name: str, targets: Int64, values: Float64) -> None:
        if name not in into:
            into[name] = np.full((len(self._targets), self._n_items), np.nan)
        into[name][targets] = values


def _combine(parts: Iterable[Float64]) -> Float64:
    """The sum of scores from rows of several widths, each in units of its standard deviation."""
    scaled = [part / (part.std(axis=1, keepdims=True) + 1e-30) for part in parts]
    return np.asarray(sum(scaled), np.float64)


def _contrasts(targets: Int64, cohorts: Sequence[Int64]) -> Float64:
    """Rounds × targets: 1 / (rounds with the client), or -1 / (rounds without)."""
    there = np.array([np.isin(targets, cohort) for cohort in cohorts])
    with_it, without = there.sum(0), (~there).sum(0)
    share = np.where(there, 1 / np.maximum(with_it, 1), -1 / np.maximum(without, 1))
    return np.asarray(share, np.float64)
