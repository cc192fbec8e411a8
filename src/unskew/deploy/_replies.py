"""What the server reads from a node's reply, whatever a hostile node may have put into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Message

from unskew.deploy._wire import Rejected
from unskew.evaluation import per_user

Sums = dict[str, tuple[float, int]]

METRICS = frozenset(
    f"{part}.{name}"
    for part in ("validation", "test")
    for name in per_user(np.zeros(0, np.int32), np.zeros(1, np.int64))
)
"""All that a node may report: the metrics of the evaluation itself."""


def read_arrays(reply: Message) -> dict[str, Any]:
    """The upload's arrays, by name; what they hold is for others to check."""
    records = reply.content.array_records
    if set(records) != {"upload"} or len(reply.content) != 1:
        raise Rejected(f"the reply holds {', '.join(sorted(reply.content)) or 'nothing'}")
    try:
        named = {name: array.numpy() for name, array in records["upload"].items()}
    except Exception as error:  # what a hostile node can put into an array is not for us to list
        raise Rejected(f"an array cannot be read ({type(error).__name__})") from None
    if not all(isinstance(array, np.ndarray) for array in named.values()):
        raise Rejected("an array is none")
    return named


def read_sums(reply: Message, n_users: int) -> Sums:
    """Of each metric, its sum over the node's users and over how many."""
    if set(reply.content) != {"sums"} or "sums" not in reply.content.metric_records:
        raise Rejected(f"the reply holds {', '.join(sorted(reply.content)) or 'nothing'}")
    found: Sums = {}
    for name, pair in reply.content.metric_records["sums"].items():
        if name not in METRICS:
            raise Rejected("it reports something that is no metric")
        if not isinstance(pair, list) or len(pair) != 2 or not np.isfinite(pair).all():
            raise Rejected(f"{name} is not a sum and a count")
        total, count = float(pair[0]), float(pair[1])
        if not (0 <= count <= n_users and count == int(count)):
            raise Rejected(f"{name} is of {count:g} users; the federation has {n_users}")
        if not 0 <= total <= count * (1 + 1e-9):
            raise Rejected(f"{name} is outside what {count:g} users can have")
        found[name] = (total, int(count))
    return found


def mean_of(answers: Mapping[int, Sums], n_users: int) -> tuple[dict[str, float], list[int]]:
    """Means over the users of all nodes, and the nodes left out: together nodes cannot have more
    users than the federation, and who claims most is believed last."""
    size = {node: max((n for _, n in sums.values()), default=0) for node, sums in answers.items()}
    heard, refused, users = list[Sums](), list[int](), 0
    for node in sorted(answers, key=lambda node: (size[node], node)):
        users += size[node]
        if users <= n_users:
            heard.append(answers[node])
        else:
            refused.append(node)
    means = {}
    for name in sorted(METRICS):
        pairs = [sums[name] for sums in heard if name in sums]
        count = sum(n for _, n in pairs)
        if count:
            means[name] = sum(total for total, _ in pairs) / count
    return means, refused
