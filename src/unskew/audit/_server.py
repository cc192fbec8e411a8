"""An honest-but-curious server: it follows the protocol, and keeps what it receives.

It stands behind the devices' own privacy mechanism and in front of the aggregation, and looks at
the uploads in two ways at once: one by one, and, as under secure aggregation, only their sum over a
round's cohort. Of a client's uploads it keeps the latest scores ("one round") and running totals
("whole run"): totals of noisy uploads are where repeated participation shows.

Under secure aggregation a round's sum says the same about everyone in it. What is left to the
server is who took part when: the mean of the sums with a client less the mean of those without
(the plain mean for a client that was never absent). And what it may know already: that a client
has an item which few others have, whose row of the sum is then about those few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from unskew.audit._attacks import (
    dense_uploads,
    direction,
    features,
    inversion,
    main_direction,
    owner_of,
    presence,
    support,
)
from unskew.audit._shadow import Classifier, Shadows
from unskew.kernels import empty_sum, fold
from unskew.types import Cohort, Float32, Float64, Int64, Upload, UploadSum

Transform = Callable[[Upload, Cohort], Upload]
Invert = Callable[[Any, Float32], Float64]
"""From the download and some clients' dense parts, a score per item: how much each one's shared
network now favours it."""


class CuriousServer:
    """The engine's transform: what devices send goes on unchanged, and is remembered."""

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
        invert_dense: Invert | None = None,
        rare: Int64 | None = None,
    ) -> None:
        """``rare``: items of few clients, who are known to have them."""
        self._targets, self._n_items = targets, n_items
        self._device, self._noise, self._shadows = device, noise, shadows
        self._shadow_device, self._invert_dense = shadow_device, invert_dense
        self._latest: dict[str, Float64] = {}
        self._totals: dict[str, Float64] = {}
        # By width: a method may send rows of another kind in later rounds.
        self._sums: dict[int, Float32] = {}
        self._heard = np.zeros(len(targets), np.int64)
        self._latest_of_sum: dict[str, Float64] = {}
        self._contrast: dict[int, Float32] = {}
        self._contrasts = _contrasts(targets, cohorts)
        self._moves: dict[int, list[tuple[int, Float64]]] = {}
        self._axis: dict[int, Float64] = {}
        self._turn: dict[int, float] = {}
        self._rare = np.zeros(0, np.int64) if rare is None else rare
        self.owners = np.zeros((len(self._rare), n_items))
        """What each of those items tells about the others of whoever has it."""
        self._trust: list[float] = []
        self._classifier: Classifier | None = None
        self._side = 0.0
        self._total: UploadSum | None = None
        self._download: Any = None

    def begin_round(self, download: Any, round: int, seed: int) -> None:
        """The server prepares: it knows what it sends out."""
        self._download, self._total = download, None
        if self._shadows is not None:
            # Whether a method's positives are the smaller side is seen on the shadows, too.
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
            self._look(place[clients], D, sent.dense[clients])
        return sent

    def end_round(self, round: int) -> None:
        """Now the sum is complete, and all that secure aggregation would have shown."""
        if self._total is None or self._total.weight == 0:
            return
        mean = (self._total.rows / self._total.weight).astype(np.float32)[None]
        side = 1.0 if self._classifier is None else self._classifier.side
        vector = main_direction(mean, 0.0) * side
        scores = {"support": support(mean)[0], "direction": direction(mean, vector)[0]}
        there = self._contrasts[round - 1] > 0
        for name, values in scores.items():
            self._keep(self._latest_of_sum, name, np.flatnonzero(there), values)
        # Rounds differ in size as training goes on: each is put on the same scale.
        unit = mean[0] / (np.sqrt((mean**2).sum()) + 1e-30)
        weights = self._contrasts[round - 1][:, None, None].astype(np.float32)
        self._running(self._contrast, unit.shape[1])[:] += weights * unit
        self._note_move(round, unit.astype(np.float64), vector[0])
        table = getattr(self._download, "Q", getattr(self._download, "U", None))
        if table is not None and 0 <= unit.shape[1] - table.shape[1] <= 1:
            for at, item in enumerate(self._rare):
                self.owners[at] += owner_of(self._total.rows[item], table)

    def _note_move(self, round: int, unit: Float64, vector: Float64) -> None:
        """How each item moved along the sum's own direction, which changes little from one round to
        the next; which of its ends is the positives' is decided over all rounds."""
        width = unit.shape[1]
        axis = vector if vector @ self._axis.get(width, vector) >= 0 else -vector
        self._axis[width] = axis
        self._turn[width] = self._turn.get(width, 0.0) + float(np.sign(axis @ vector))
        self._moves.setdefault(width, []).append((round, unit @ axis))

    def _present(self) -> Float64:
        parts = []
        for width, noted in self._moves.items():
            rounds = [round - 1 for round, _ in noted]
            moves = np.stack([move for _, move in noted])
            turned = moves if self._turn[width] >= 0 else -moves
            parts.append(presence(turned, self._contrasts[rounds] > 0))
        return _together(parts)

    def findings(self, secure: bool) -> dict[tuple[str, str], Float64]:
        """Scores, targets × items, by attack and by what was used: "one round", "whole run"."""
        found: dict[tuple[str, str], Float64] = {}
        latest = self._latest_of_sum if secure else self._latest
        for name, scores in latest.items():
            found[name, "one round"] = scores
        if secure:
            if self._contrast:
                contrasts = list(self._contrast.values())
                found["support", "whole run"] = _together(support(one) for one in contrasts)
                along = _together(direction(one, main_direction(one, 0.0)) for one in contrasts)
                found["direction", "whole run"] = along * (1.0 if self._side >= 0 else -1.0)
                found["presence", "whole run"] = self._present()
            return found
        if self._sums:
            silent = self._heard == 0
            noise = self._noise * float(np.sqrt(np.maximum(self._heard, 1).mean()))
            along = _together(
                direction(one, main_direction(one, noise)) for one in self._sums.values()
            )
            totals = {**self._totals, "direction": along * (1.0 if self._side >= 0 else -1.0)}
            if self._shadows is not None and "shadow" in totals:
                known = float(np.mean(self._trust)) * self._shadows.known
                totals["shadow"] = totals["shadow"] + known
            for name, scores in totals.items():
                scores[silent] = np.nan
                found[name, "whole run"] = scores
        return found

    def _look(self, targets: Int64, D: Float32, dense: Float32) -> None:
        found = main_direction(D, self._noise)
        side = 1.0 if self._classifier is None else self._classifier.side
        self._side += side
        vectors = found * side
        scores = {"support": support(D), "direction": direction(D, vectors)}
        totals = {"support": scores["support"] ** 2}
        Q = getattr(self._download, "Q", None)
        if Q is not None and Q.shape == D.shape[1:]:
            scores["inversion"] = inversion(D, vectors, Q)
            totals["inversion"] = scores["inversion"]
        if self._invert_dense is not None and dense.shape[1]:
            scores["dense"] = self._invert_dense(self._download, dense)
            totals["dense"] = scores["dense"]
        if self._classifier is not None and self._shadows is not None:
            totals["shadow"] = self._classifier.log_odds(features(D, found))
            known = self._classifier.trust * self._shadows.known
            scores["shadow"] = totals["shadow"] + known
            self._trust.append(self._classifier.trust)
        for name, values in scores.items():
            self._keep(self._latest, name, targets, values)
        for name, values in totals.items():
            if name not in self._totals:
                self._totals[name] = np.zeros((len(self._targets), self._n_items))
            self._totals[name][targets] += values
        self._running(self._sums, D.shape[2])[targets] += D
        self._heard[targets] += 1

    def _running(self, totals: dict[int, Float32], width: int) -> Float32:
        if width not in totals:
            shape = (len(self._targets), self._n_items, width)
            totals[width] = np.zeros(shape, np.float32)
        return totals[width]

    def _keep(self, kept: dict[str, Float64], name: str, targets: Int64, values: Float64) -> None:
        if name not in kept:
            kept[name] = np.full((len(self._targets), self._n_items), np.nan)
        kept[name][targets] = values


def _together(parts: Iterable[Float64]) -> Float64:
    """Scores from several kinds of rows, each in units of its own spread, added up."""
    scaled = [part / (part.std(axis=1, keepdims=True) + 1e-30) for part in parts]
    return np.asarray(sum(scaled), np.float64)


def _contrasts(targets: Int64, cohorts: Sequence[Int64]) -> Float64:
    """Rounds × targets: 1 / (rounds with the client), or -1 / (rounds without)."""
    there = np.array([np.isin(targets, cohort) for cohort in cohorts])
    with_it, without = there.sum(0), (~there).sum(0)
    share = np.where(there, 1 / np.maximum(with_it, 1), -1 / np.maximum(without, 1))
    return np.asarray(share, np.float64)
