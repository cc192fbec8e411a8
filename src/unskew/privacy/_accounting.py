"""Privacy accounting. Two epsilons that must not be confused:

* the paper's epsilon, S_u / lambda, lambda the noise scale. S_u = 2 p_u eta C is the sensitivity of
  the **aggregate** to client u in one round: p_u its share, eta the learning rate, C the gradient
  bound. It guarantees nothing against a server that sees individual uploads;
* the guarantee of the local mechanism: two uploads clipped to norm C differ by at most 2C whatever
  the client's data, so noise of scale b gives each upload epsilon 2C / b, and the rounds of a
  client compose. Google's ``dp-accounting`` composes privacy loss distributions, which is tight up
  to rounding, and rounds to the safe side.

Vector Laplace noise at L1 distance D is at least as private as scalar noise at that distance, and
so is vector Gaussian noise at L2 distance D. So the accountant's scalar mechanisms apply.
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
"""Default delta of an (epsilon, delta) guarantee."""
MIN_LOSS_STEPS = 2000
"""Minimum number of discretisation steps from 0 to a mechanism's largest privacy loss."""
FINEST_STEP, COARSEST_STEP = 1e-4, 1.0
"""Range of a discretisation step of the privacy loss. If a coarser one is needed (epsilon in the
thousands), the simple bound is used."""


def sensitivity(mechanism: Mechanism, shape: Shape) -> float:
    """Largest possible distance between two clipped uploads, in L1 for Laplace and in L2 for
    Gaussian noise; infinite without a clip."""
    if mechanism.clip is None:
        return math.inf
    factors = {"l1": 1.0, "l2": 1.0, "row": math.sqrt(shape.n_items + (shape.dense > 0))}
    if mechanism.kind == "laplace":
        by_row = shape.n_items * math.sqrt(shape.width) + math.sqrt(shape.dense)
        factors = {"l1": 1.0, "l2": math.sqrt(shape.entries), "row": by_row}
    return 2 * mechanism.clip * factors[mechanism.norm]


def local_epsilon(kind: str, ratio: float, rounds: int, delta: float = DELTA) -> float:
    """epsilon (at ``delta``) of a client's ``rounds`` uploads; ``ratio`` is noise / sensitivity."""
    if rounds == 0:
        return 0.0
    if not 0 < ratio < math.inf:
        return math.inf if ratio <= 0 else 0.0
    pld = _import_accountant()
    if kind == "laplace":
        interval, simple = max(FINEST_STEP, 1 / ratio / MIN_LOSS_STEPS), rounds / ratio
        make = pld.from_laplace_mechanism
    else:
        # mu^2 / 2 + mu sqrt(2 ln(1 / delta)): Bun & Steinke, 2016, Proposition 1.3.
        mu = math.sqrt(rounds) / ratio
        simple = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
        interval = max(FINEST_STEP, (0.5 / ratio**2 + 6 / ratio) / MIN_LOSS_STEPS)
        make = pld.from_gaussian_mechanism
    if interval > COARSEST_STEP:
        return simple
    one = make(ratio, value_discretization_interval=interval)
    return min(float(one.self_compose(rounds).get_epsilon_for_delta(delta)), simple)


def calibrated_noise(wanted: LocalPrivacy, rounds: int) -> float:
    """Smallest noise that keeps a client's ``rounds`` uploads within the epsilon of ``wanted``."""
    assert wanted.epsilon is not None
    assert wanted.clip is not None
    apart = sensitivity(wanted.with_noise(1.0), Shape(1, 1, 0))
    low, high = 1e-3, 1.0
    while local_epsilon(wanted.noise_kind, high, rounds, wanted.delta) > wanted.epsilon:
        low, high = high, high * 4
        if high > 1e9:
            raise UnskewError(f"No noise reaches epsilon = {wanted.epsilon:g}; ask for more.")
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        within = local_epsilon(wanted.noise_kind, middle, rounds, wanted.delta) <= wanted.epsilon
        low, high = (low, middle) if within else (middle, high)
    return high * apart


def sum_epsilon(
    mechanism: Mechanism, shape: Shape, clients: int, rounds: int, delta: float = DELTA
) -> float | None:
    """epsilon of the summed uploads under secure aggregation; None unless clipped and Gaussian.

    The noise of all clients adds up to sqrt(clients) times one client's, while the sensitivity to
    one client stays the same. Sums of Laplace noise are not Laplace.
    """
    if mechanism.kind != "gaussian" or mechanism.clip is None:
        return None
    ratio = mechanism.noise * math.sqrt(clients) / sensitivity(mechanism, shape)
    return local_epsilon("gaussian", ratio, rounds, delta)


def compositions(
    cohorts: Sequence[Int64], rows: Sequence[Mapping[str, Any]], n_users: int
) -> Int64:
    """Number of rounds in which each client has sent an upload."""
    counts = np.zeros(n_users, np.int64)
    for users, row in zip(cohorts, rows, strict=True):
        sent = row["ldp"]
        if sent["sent"]:
            counts[np.asarray(sent.get("senders", users), np.int64)] += 1
    return counts


def privacy_report(
    asked: LocalPrivacy, mechanism: Mechanism, counts: Int64, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Privacy of one seed's run, for JSON: mechanism, the paper's epsilon and local guarantee."""
    figures = [row["ldp"] for row in rows]
    # A method may send more in some rounds than in others: take the largest upload.
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
        "paper_epsilon": _paper_epsilon(mechanism, shape, figures),
        "local_guarantee": _local_guarantee(asked, mechanism, shape, worst, median, figures),
    }


def _paper_epsilon(
    mechanism: Mechanism, shape: Shape, figures: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The paper's epsilon. Here the upload itself is clipped, so the sensitivity is 2 x the
    client's share of the aggregate x the bound on its L1 (Laplace) or L2 norm (Gaussian)."""
    bound, source = sensitivity(mechanism, shape) / 2, "the clip"
    if mechanism.clip is None:
        norm = "largest_l1" if mechanism.kind == "laplace" else "largest_l2"
        bound, source = max(f[norm] for f in figures), "the largest upload seen, not a bound"
    shares = {
        "worst": max(f["largest_share"] for f in figures),
        "median": statistics.median(f["median_share"] for f in figures),
    }
    epsilons = {
        name: 2 * share * bound / mechanism.noise if mechanism.noise else None
        for name, share in shares.items()
    }
    return {
        "definition": "2 p_u eta C / lambda, of the aggregate, one round",
        "epsilon": epsilons,
        "share": shares,
        "update_bound": bound,
        "update_bound_is": source,
    }


def _local_guarantee(
    asked: LocalPrivacy,
    mechanism: Mechanism,
    shape: Shape,
    worst: int,
    median: int,
    figures: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    if mechanism.clip is None or mechanism.noise == 0:
        why = "uploads are clipped but carry no noise"
        if mechanism.clip is None:
            why = "uploads are not clipped, so no noise bounds what one of them gives away"
        return {"holds": False, "statement": f"no guarantee: {why}"}
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


def _import_accountant() -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError:
        raise UnskewError(
            'Accounting for clipped noise needs dp-accounting: pip install "unskew[privacy]".'
        ) from None
    return privacy_loss_distribution


def check_accountant(asked: LocalPrivacy) -> None:
    """Raise an error if the privacy report will need ``dp-accounting`` and it is not installed."""
    if asked.clip is not None:
        _import_accountant()
