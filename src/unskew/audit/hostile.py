"""Hostile nodes in the simulator: what they send in place of an honest update.

``promote`` pushes one unpopular item. Its row moves in the direction that raises its scores most,
which is read off the round itself: least squares of what the round changes in all items' scores on
the items' rows. Similar attacks with public code are PIECK, A-hum and FedRecAttack. ``degrade``
sends reversed updates. Both send them a thousand times as large as usual, with a huge weight.

``promote-adaptive`` and ``degrade-adaptive`` know the defence and all updates of the round. They
try several updates, from those that no bound touches to those that saturate every bound, on the
target alone and on all items at once, aggregate each as the server would, and send what serves them
best. To see how well an update serves, they score items with their own users' data and devices.
A real attacker knows less, so the figures are those of a strong one, but of one that looks only one
round ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from unskew.ragged import indptr_from_counts, owners
from unskew.types import Bool, Float32, Float64, Method, Ragged, Rows, Upload, UploadSum

Attack = Literal["none", "promote", "promote-adaptive", "degrade", "degrade-adaptive"]
ATTACKS: tuple[Attack, ...] = ("promote", "promote-adaptive", "degrade", "degrade-adaptive")
HUGE = 1000.0
"""Size of a row or an update, as a multiple of the usual one, that no rule may let through."""
SCALES = (1.0, HUGE)
"""Sizes that an adaptive attacker tries."""
CLAIMED_WEIGHT = 10.0
"""The weight that hostile nodes claim, as a multiple of the round's largest."""


class Insider(NamedTuple):
    """The attacker's own users: their devices' state and their items in order of time."""

    private: Any
    history: Ragged


class Attacker:
    """All hostile nodes together. ``target`` is the item that they push."""

    def __init__(self, method: Method, attack: Attack, target: int) -> None:
        self._method, self._attack, self._target = method, attack, target
        self._insider: Insider

    def look(self, insider: Insider) -> None:
        """Take note, before a round, of what the attacker's own devices hold."""
        self._insider = insider

    def replace(
        self, server: Any, nodes: Upload, hostile: Bool, aggregate: Callable[[Upload], UploadSum]
    ) -> Upload:
        """The round's updates, those of the ``hostile`` nodes replaced by what they send instead.
        ``aggregate`` is the server's rule."""
        if self._attack == "none" or not hostile.any():
            return nodes
        adaptive = self._attack.endswith("-adaptive")
        scales = SCALES if adaptive else (HUGE,)
        if self._promotes:
            aim = self._direction(server, aggregate(nodes))
            choices = _promotions(nodes, hostile, self._target, aim, scales, adaptive)
        else:
            choices = _reversals(nodes, hostile, scales, adaptive)
        if not adaptive:
            return next(choices)
        gains = ((self._gain(server, aggregate(choice)), choice) for choice in choices)
        return max(gains, key=lambda pair: pair[0])[1]

    @property
    def _promotes(self) -> bool:
        return self._attack.startswith("promote")

    def _gain(self, server: Any, total: UploadSum) -> float:
        """How well an aggregation serves the attacker, by its own users' scores: how few items are
        above the target, or how many are above the users' own items."""
        scores = self._scores(server, total)
        if self._promotes:
            return -float((scores > scores[:, [self._target]]).sum(1).mean())
        ranks = np.argsort(np.argsort(-scores, axis=1), axis=1)
        history = self._insider.history
        return float(ranks[owners(history.indptr), history.items].mean())

    def _scores(self, server: Any, total: UploadSum) -> Float32:
        """Scores of the attacker's own users after this aggregation."""
        private, history = self._insider
        download = self._method.download(self._method.aggregate(server, total))
        return self._method.score(download, self._method.refresh(download, private, history))

    def _direction(self, server: Any, total: UploadSum) -> Float64:
        """The direction in which an item's row raises the item's mean score most: least squares of
        what a round changes in the scores of all items on their rows."""
        without = total._replace(rows=np.zeros_like(total.rows))
        after, before = (
            self._scores(server, one).mean(0, dtype=np.float64) for one in (total, without)
        )
        squares = total.rows.T @ total.rows
        squares += np.eye(len(squares)) * max(1e-6 * float(np.trace(squares)), 1e-30)
        gain: Float64 = np.linalg.solve(squares, total.rows.T @ (after - before))
        return gain / max(float(np.linalg.norm(gain)), 1e-30)


def _promotions(
    nodes: Upload,
    hostile: Bool,
    target: int,
    aim: Float64,
    scales: tuple[float, ...],
    everywhere: bool,
) -> Iterator[Upload]:
    """Updates that move the target's row along ``aim``; with ``everywhere`` also those that move
    all other rows of the round the other way."""
    others = np.setdiff1d(nodes.rows.items, [target])
    for scale in scales:
        row = (aim * _usual_row(nodes) * scale).astype(np.float32)
        yield _send_instead(nodes, hostile, np.array([target], np.int32), row[None])
        if everywhere:
            items = np.sort(np.append(others, np.int32(target)))
            rows = np.where((items == target)[:, None], row, -row)
            yield _send_instead(nodes, hostile, items, rows)


def _reversals(
    nodes: Upload, hostile: Bool, scales: tuple[float, ...], together: bool
) -> Iterator[Upload]:
    """The hostile nodes' own updates reversed; with ``together`` also the reversed direction of the
    round's sum on every row, the same from all of them."""
    theirs = hostile[owners(nodes.rows.indptr)][:, None]
    for scale in scales:
        back = np.float32(-scale)
        values = np.where(theirs, back * nodes.rows.values, nodes.rows.values)
        dense = np.where(hostile[:, None], back * nodes.dense, nodes.dense)
        rows = nodes.rows._replace(values=values)
        reversed_ = Upload(rows, dense, _claimed(nodes, hostile))
        yield reversed_
        if together:
            items = np.unique(nodes.rows.items)
            place = np.searchsorted(items, nodes.rows.items)
            mean = np.zeros((len(items), nodes.rows.values.shape[1]))
            weight = nodes.weight[owners(nodes.rows.indptr)]
            np.add.at(mean, place, nodes.rows.values * weight[:, None])
            unit = mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-30)
            against = (-scale * _usual_row(nodes) * unit).astype(np.float32)
            yield _send_instead(reversed_, hostile, items, against)


def _send_instead(nodes: Upload, hostile: Bool, items: Any, rows: Float32) -> Upload:
    """The updates with the same item rows from all hostile nodes; their dense parts stay."""
    sent = nodes.rows
    counts = np.where(hostile, len(items), np.diff(sent.indptr))
    indptr, n_hostile = indptr_from_counts(counts), int(hostile.sum())
    theirs, honest = hostile[owners(indptr)], ~hostile[owners(sent.indptr)]
    new_items = np.empty(len(theirs), np.int32)
    values = np.empty((len(theirs), sent.values.shape[1]), np.float32)
    new_items[~theirs], values[~theirs] = sent.items[honest], sent.values[honest]
    new_items[theirs], values[theirs] = np.tile(items, n_hostile), np.tile(rows, (n_hostile, 1))
    return Upload(Rows(indptr, new_items, values), nodes.dense, _claimed(nodes, hostile))


def _claimed(nodes: Upload, hostile: Bool) -> Float64:
    honest = nodes.weight[~hostile].max(initial=0.0) or 1.0
    return np.where(hostile, CLAIMED_WEIGHT * honest, nodes.weight)


def _usual_row(nodes: Upload) -> float:
    """Median norm of the rows in a round's updates."""
    sizes = np.linalg.norm(nodes.rows.values, axis=1)
    return float(np.median(sizes[sizes > 0])) if sizes.any() else 1.0
