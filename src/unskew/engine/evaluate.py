"""Score users with the models on their devices, and store the ranks of their held-out items.

Chunks of users are evaluated on all threads. A user's scores do not depend on the other users of
its chunk, so neither chunks nor threads change any rank.
"""

from __future__ import annotations

import numpy as np

from unskew.engine.devices import Devices
from unskew.engine.executor import ThreadExecutor, batches
from unskew.engine.scoreboard import Scoreboard
from unskew.kernels import get_threads
from unskew.ragged import append_lists, select
from unskew.types import Float32, Int64, Method, Split

MAX_SCORE_BYTES = 8 * 2**20
"""Maximum bytes of the scores of the users evaluated together by one thread."""


def evaluate(
    method: Method, split: Split, devices: Devices, board: Scoreboard, users: Int64, most: int
) -> None:
    """Score ``users``, at most ``most`` at a time, each with the download that its device received
    last, and store the ranks of their held-out items in ``board``."""
    # Central methods call matrix libraries, which use all threads themselves.
    workers = 1 if method.aggregation == "central" else get_threads()
    most = min(most, -(-len(users) // workers), MAX_SCORE_BYTES // (4 * split.n_items))
    versions = devices.version[users]
    chunks = [
        chunk
        for version in np.unique(versions)
        for chunk in batches(users[versions == version], max(most, 1))
    ]

    def score(chunk: Int64) -> None:
        download = devices.downloads[int(devices.version[chunk[0]])]
        board.update(chunk, *score_parts(method, download, devices.take(chunk), split, chunk))

    for _ in ThreadExecutor(workers).map_chunks(score, chunks):
        pass


def score_parts(
    method: Method, download: object, private: object, split: Split, users: Int64
) -> tuple[Float32, Float32]:
    """Scores of all items for ``users``, for validation and for testing. They differ if the
    history before the test items has the validation items, too, and the method can refresh its
    states with them."""
    scores = method.score(download, private)
    if not split.validation_in_history:
        return scores, scores
    history = append_lists(select(split.train, users), select(split.validation, users))
    refreshed = method.refresh(download, private, history)
    return scores, scores if refreshed is private else method.score(download, refreshed)
