"""A device's bounds on the item space U that FedRefit's and FedNext's servers send.

A device answers with x (U^T x)^T. If a column of U is the unit vector of one item, that column of
the sum shows what the item's owners have; if they are few, that is their histories. An honest
column is spread over items that have users in common. It is concentrated only where users have a
single item that nobody else has, as in federations of a few users.
"""

from __future__ import annotations

import numpy as np

from unskew.types import Float32

MAX_SHARE_OF_ONE_ITEM = 0.9
"""Share of a column's squares on one item above which the column is concentrated."""
MAX_CONCENTRATED = 8
"""Number of concentrated columns that a device accepts, and at most half of all."""


def fault_of_space(U: Float32, users: Float32) -> str | None:
    """Why a device must refuse an item space or its counts of users; None if it need not."""
    if not (users >= 1).all():
        return "an item has less than one user"
    squares = np.square(U, dtype=np.float64)
    length = squares.sum(axis=0)
    used = length > 1e-6 * length.max(initial=0.0)
    concentrated = squares.max(axis=0, initial=0.0)[used] > MAX_SHARE_OF_ONE_ITEM * length[used]
    if concentrated.sum() > min(MAX_CONCENTRATED, used.sum() / 2):
        return f"{concentrated.sum()} columns of its item space show single items"
    return None
