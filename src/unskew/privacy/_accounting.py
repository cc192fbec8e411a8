"""What noise guarantees. Two figures that must not be confused:

* the paper's epsilon, S_u / lambda with S_u = 2 p_u eta C, the sensitivity of the **aggregate** to
  one client, one round at a time. A server that sees single uploads is not bound by it;
* the guarantee of the local mechanism itself: two uploads clipped to norm C differ by at most 2C
  whatever the client's data, so noise of scale b gives each upload 2C / b, and the rounds a client
  takes part in compose. Composition is computed by Google's ``dp-accounting`` from privacy loss
  distributions, which is tight up to rounding against privacy.

A vector's Laplace noise at L1 distance D is never easier to see through than one number's at that
distance, nor is a Gaussian's at L2 distance D, so the accountant's one-number mechanisms serve.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unskew.privacy._mechanism import LocalPrivacy, Mechanism, Shape
from unskew.types import Int64, UnskewError

DELTA = 1e-5
_STEPS = 2000
"""Discretisation: this many steps per mechanism's largest privacy loss, or finer."""
_FINEST, _COARSEST = 1e-4, 1.0
"""Coarser than that, with an epsilon in the thousands, the simple bound is as good."""


def sensitivity(mechanism: Mechanism, shape: Shape) -> float:
    """How far two clipped uploads can lie apart, in the norm the noise answers to: L1 for Laplace,
    L2 for the Gaussian. Infinite without a clip."""
    if mechanism.clip is None:
        return math.inf
    bound = mechanism.clip
    rows = shape.n_items + (shape.dense > 0)
    if mechanism.kind == "laplace":
        by_row = shape.n_items * math.sqrt(shape.width) + math.sqrt(shape.dense)
        return (
            2 * bound * {"l1": 1.0, "l2": math.sqrt(shape.entries), "row": by_row}[mechanism.norm]
        )
    return 2 * bound * {"l1": 1.0, "l2": 1.0, "row": math.sqrt(rows)}[mechanism.norm]


def local_epsilon(kind: str, ratio: float, rounds: int, delta: float = DELTA) -> float:
    """epsilon at ``delta`` of ``rounds`` uploads under noise ``ratio`` times their sensitivity."""
    if rounds == 0:
        return 0.0
    if not 0 < ratio < math.inf:
        return math.inf if ratio <= 0 else 0.0
    pld = _distributions()
    if kind == "laplace":
        interval, simple = max(_FINEST, 1 / ratio / _STEPS), rounds / ratio
        make = pld.from_laplace_mechanism
    else:
        # mu^2 / 2 + mu sqrt(2 ln(1 / delta)): Bun & Steinke, 2016, Proposition 1.3.
        mu = math.sqrt(rounds) / ratio
        simple = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
        interval = max(_FINEST, (0.5 / ratio**2 + 6 / ratio) / _STEPS)
        make = pld.from_gaussian_mechanism
    if interval > _COARSEST:
        return simple
    one = make(ratio, value_discretization_interval=interval)
    return min(float(one.self_compose(rounds).get_epsilon_for_delta(delta)), simple)


def calibrated_noise(wanted: LocalPrivacy, rounds: int) -> float:
    """The least noise with which ``rounds`` uploads stay within the budget, by bisection."""
    assert wanted.epsilon is not None
    assert wanted.clip is not None
    apart = sensitivity(wanted.with_noise(1.0), Shape(1, 1, 0))
    low, high = 1e-3, 1.0
    while local_epsilon(wanted.drawn, high, rounds, wanted.delta) > wanted.epsilon:
        low, high = high, high * 4
        if high > 1e9:
            raise UnskewError(f"No noise reaches epsilon = {wanted.epsilon:g}; ask for more.")
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        within = local_epsilon(wanted.drawn, middle, rounds, wanted.delta) <= wanted.epsilon
        low, high = (low, middle) if within else (middle, high)
    return high * apart


def sum_epsilon(
    mechanism: Mechanism, shape: Shape, clients: int, rounds: int, delta: float = DELTA
) -> float | None:
    """epsilon of a sum seen under secure aggregation: Gaussian noise of all its clients adds up to
    sqrt(clients) times one's, while one client moves it no further. None for Laplace, whose sums
    are of another kind."""
    if mechanism.kind != "gaussian" or mechanism.clip is None:
        return None
    ratio = mechanism.noise * math.sqrt(clients) / sensitivity(mechanism, shape)
    return local_epsilon("gaussian", ratio, rounds, delta)


def compositions(
    cohorts: Sequence[Int64], rows: Sequence[Mapping[str, Any]], n_users: int
) -> Int64:
    """In how many rounds each client has sent something."""
    counts = np.zeros(n_users, np.int64)
    for users, row in zip(cohorts, rows, strict=True):
        sent = row["ldp"]
        if sent["sent"]:
            counts[np.asarray(sent.get("senders", users), np.int64)] += 1
    return counts


def privacy_report(
    asked: LocalPrivacy, mechanism: Mechanism, counts: Int64, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The account of one seed's run, as JSON: what was done, both figures, and a sentence each."""
    figures = [row["ldp"] for row in rows]
    # A method may send more in some rounds than in others.
    shape = max((Shape(*f["shape"]) for f in figures), key=lambda shape: shape.entries)
    worst, median = int(counts.max(initial=0)), int(statistics.median_high(counts.tolist()))
    return {
        "kind": mechanism.kind,
        "noise": mechanism.noise,
        "clip": mechanism.clip,
        "norm": None if mechanism.clip is None else mechanism.norm,
        "equal_weights": mechanism.clip is not None,
        "least_users": asked.least_users,
        "rounds": {"worst_client": worst, "median_client": median},
        "paper_epsilon": _paper(mechanism, shape, figures),
        "local_guarantee": _guarantee(asked, mechanism, shape, worst, median, figures),
    }


def _paper(
    mechanism: Mechanism, shape: Shape, figures: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """eta C bounds the update, and the update is what we clip: S_u = 2 p_u C, with C the bound in
    the norm that the noise is for, L1 for Laplace and L2 for Gaussian."""
    seen = max(f["largest_l1" if mechanism.kind == "laplace" else "largest_l2"] for f in figures)
    bound = seen if mechanism.clip is None else sensitivity(mechanism, shape) / 2
    shares = {
        "worst": max(f["largest_share"] for f in figures),
        "median": statistics.median(f["median_share"] for f in figures),
    }
    epsilons = {
        name: 2 * share * bound / mechanism.noise if mechanism.noise else None
        for name, share in shares.items()
    }
    source = "the clip" if mechanism.clip is not None else "the largest upload seen, not a bound"
    return {
        "definition": "2 p_u eta C / lambda, of the aggregate, one round",
        "epsilon": epsilons,
        "share": shares,
        "update_bound": bound,
        "update_bound_is": source,
    }


def _guarantee(
    asked: LocalPrivacy,
    mechanism: Mechanism,
    shape: Shape,
    worst: int,
    median: int,
    figures: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    if mechanism.clip is None or mechanism.noise == 0:
        missing = "clipping" if mechanism.clip is None else "noise"
        return {"holds": False, "statement": f"no guarantee: {_WHY[missing]}"}
    apart = sensitivity(mechanism, shape)
    ratio = mechanism.noise / apart
    epsilons = {
        name: local_epsilon(mechanism.kind, ratio, rounds, asked.delta)
        for name, rounds in (("worst", worst), ("median", median), ("one_round", 1))
    }
    simple = worst / ratio if mechanism.kind == "laplace" else None
    clients = min((f["sent"] for f in figures if f["sent"]), default=1)
    return {
        "holds": True,
        "delta": asked.delta,
        "epsilon": epsilons,
        "epsilon_at_delta_0": simple,
        "sensitivity": apart,
        "epsilon_of_sum": sum_epsilon(mechanism, shape, clients, worst, asked.delta),
        "statement": (
            f"({epsilons['worst']:.3g}, {asked.delta:g})-local differential privacy for the client "
            f"that sent most often ({worst} uploads), {epsilons['median']:.3g} for the median one "
            f"({median})"
        ),
    }


_WHY = {
    "clipping": "uploads are not clipped, so no noise bounds what one of them gives away",
    "noise": "uploads are clipped but carry no noise",
}


def _distributions() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError:
        raise UnskewError(
            'Accounting for clipped noise needs dp-accounting: pip install "unskew[privacy]".'
        ) from None
    return privacy_loss_distribution


def check_accountant(asked: LocalPrivacy) -> None:
    """Say before a run, not after it, that its account cannot be made."""
    if asked.clip is not None:
        _distributions()
