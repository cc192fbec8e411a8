"""The skew audit: measure the user-embedding skew of the PFedCLR paper while a method trains.

After a round a client has a user vector and an item table that it trained. The server aggregates
the tables of all clients, and the result replaces the client's table. Skew is a difference of two
gradients of the loss in the user vector, on the training samples of the round: with the aggregated
table minus with the client's. See :mod:`unskew.audit.skew_formulas` for the paper's formulas.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from unskew.audit import skew_formulas as formulas
from unskew.audit.skew_formulas import Client, Feedback, History, Row
from unskew.display import Table
from unskew.engine import Federation, State
from unskew.evaluation import prepare
from unskew.kernels import draw_samples, overlay
from unskew.methods import create, parse_settings
from unskew.types import Cohort, Float64, Interactions, Method, UnskewError


class Variant(NamedTuple):
    """A method with settings, whose skew can be measured."""

    method: str
    settings: dict[str, Any]
    solved: bool = False
    """True if a user vector is the exact optimum for its items, not trained by gradient steps."""


VARIANTS = {
    "fedmf": Variant("fedmf", {}),
    "af": Variant("fedmf-af", {}),
    "cf": Variant("pfedclr", {"buffer": "full"}),
    "clr": Variant("pfedclr", {}),
    "fedrefit": Variant("fedrefit", {}, solved=True),
}
"""Methods by name: FedMF, the paper's ablations with a full matrix, PFedCLR, and FedRefit."""


class SkewSpec(NamedTuple):
    """Specification of a skew measurement: method variant, settings, data and protocol."""

    variant: str
    data: str = "demo"
    protocol: str = "leak-free"
    rounds: int = 20
    clients: int = 200
    """Maximum number of clients that are measured."""
    seed: int = 0
    settings: Mapping[str, Any] = {}

    @property
    def command(self) -> str:
        """The ``unskew audit skew`` command line that makes this measurement."""
        given = {"methods": self.variant} | self._asdict()
        words = ["methods", "data", "protocol", "rounds", "clients", "seed"]
        options = [part for word in words for part in (f"--{word}", str(given[word]))]
        changed = [f"--set={key}={value}" for key, value in self.settings.items()]
        return shlex.join(["unskew", "audit", "skew", *options, *changed])


def trained_clients(
    method: Method, before: Any, after: Any, private: Any, cohort: Cohort
) -> Iterator[Client]:
    """Yield each user's data for the skew formulas, for methods that train user vectors by gradient
    steps: FedMF, FedMF with adapted items (AF), and PFedCLR (full or low-rank matrix)."""
    c, samples = method.config, draw_samples(cohort, method.config.negatives)
    touched = samples.touched
    local = overlay(before.Q[touched.items], touched, private.Q).astype(np.float64)
    shared = after.Q[touched.items].astype(np.float64)
    at = samples.row + np.repeat(touched.indptr[:-1], samples.counts())
    count = np.bincount(at, minlength=len(touched.items)).astype(np.float64)
    label = np.bincount(at, samples.label, len(touched.items)).astype(np.float64)
    buffer = method.item_buffer(private, touched)
    W = np.zeros_like(local) if buffer is None else buffer.astype(np.float64)
    rates = (c.learning_rate, None if buffer is None else c.buffer_rate)
    for i, user in enumerate(cohort.users):
        own = slice(touched.indptr[i], touched.indptr[i + 1])
        p, feedback = private.p[i].astype(np.float64), Feedback(count[own], label[own])
        answer, used = (p, shared[own] + W[own]), (local[own] + W[own], feedback)
        items = (local[own], shared[own])
        yield Client(int(user), touched.items[own], p, *items, feedback, answer, used, *rates)


def solved_clients(
    method: Method, before: Any, after: Any, private: Any, cohort: Cohort
) -> Iterator[Client]:
    """Yield each user's data for the skew formulas, for FedRefit. Its user vector is the
    least-squares solution for the item table, computed again when a new table arrives."""
    d = before.U.shape[1]
    again = method.fold_in(after, private, cohort).p.astype(np.float64)
    local, shared = before.U.astype(np.float64), after.U.astype(np.float64)
    items, ones = np.arange(len(local), dtype=np.int32), np.ones(len(local))

    def feedback(i: int, users: Any) -> Feedback:
        own = np.unique(cohort.positives.of(i))
        x = np.zeros(len(local))
        x[own] = users[own].astype(np.float64) ** -method.config.item_power / np.sqrt(len(own))
        return Feedback(ones, x, "identity")

    for i, user in enumerate(cohort.users):
        p, x = private.p[i, :d].astype(np.float64), feedback(i, after.users)
        answer, used = (again[i, :d], shared), (local, feedback(i, before.users))
        yield Client(int(user), items, p, local, shared, x, answer, used)


def audit_skew(
    spec: SkewSpec,
    interactions: Interactions,
    on_round: Callable[[str, Row], None] | None = None,
    on_client: Callable[[Row], None] | None = None,
) -> Row:
    """Train a method and measure how aggregation skews the user vectors of some clients, in every
    round they take part in. Returns JSON: medians over all clients and rounds, and by round."""
    name = spec.variant
    if name not in VARIANTS:
        raise UnskewError(f'There is no skew to measure of "{name}"; give {", ".join(VARIANTS)}.')
    variant = VARIANTS[name]
    given = {**variant.settings, **spec.settings, "rounds": spec.rounds}
    settings = parse_settings(variant.method, given)
    if variant.solved:  # afterwards its items stand still
        space_rounds = create(variant.method, **settings).config.space_rounds
        settings["rounds"] = min(spec.rounds, space_rounds)
    method, split = create(variant.method, **settings), prepare(interactions, spec.protocol)
    federation = Federation(method, split, spec.seed)
    read = solved_clients if variant.solved else trained_clients
    watched = np.unique(np.linspace(0, split.n_users - 1, spec.clients).astype(np.int64))
    histories: dict[int, History] = {}
    downloads: list[Any] = []
    every: list[Row] = []
    each_round: list[Row] = []

    def before_round(state: State) -> None:
        downloads[:] = [method.download(state.server)]

    def after_round(state: State, _: Row) -> None:
        users = np.intersect1d(federation.cohort_of(state.round), watched)
        if not len(users):
            return
        private, cohort = state.devices.take(users), federation.cohort(users, state.round)
        found, vectors = [], []
        after = method.download(state.server)
        for client in read(method, downloads[0], after, private, cohort):
            history = histories.setdefault(client.user, History(len(client.p)))
            row, pair = formulas.measure(client, state.round, history)
            vectors.append(pair)
            found.append(row | {"variant": name, "user": str(split.user_ids[client.user])})
            if on_client is not None:
                on_client(found[-1])
        every.extend(found)
        medians = _figures(found).median().row(0, named=True)
        line = {"round": state.round, "clients": len(found), **medians}
        line["correlation"] = _correlation(vectors)
        each_round.append(line)
        if on_round is not None:
            on_round(name, line)

    federation.run(before_round=before_round, on_round=after_round)
    figures = _figures(every)
    cosines = pl.col("calibration_cosine", "buffer_cosine")
    opposed, buffer_opposed = figures.select(cosines.lt(0).mean()).row(0)
    lemma = None  # a solved vector takes no steps that could be bounded
    if not variant.solved:
        lemma = formulas.measure_bounds(list(histories.values()), method.config.learning_rate)
    row = {
        "variant": name,
        "method": variant.method,
        "settings": settings,
        "data": spec.data,
        "protocol": spec.protocol,
        "seed": spec.seed,
        "rounds": settings["rounds"],
        "clients": len(histories),
        "client_rounds": len(every),
        "median": figures.median().row(0, named=True),
        "correlation": float(np.median([line["correlation"] for line in each_round])),
        "opposed": opposed,
        "buffer_opposed": buffer_opposed,
        "lemma": lemma,
        "by_round": each_round,
    }
    six_digits: Row = json.loads(json.dumps(row), parse_float=lambda x: float(f"{float(x):.6g}"))
    return six_digits


def _figures(rows: Sequence[Row]) -> pl.DataFrame:
    """Data frame of the measured skew values, one row per client and round."""
    table = pl.DataFrame(rows, infer_schema_length=None)
    return table.select(pl.exclude("round", "user", "variant").cast(pl.Float64))


def _correlation(pairs: Sequence[tuple[Float64, Float64]]) -> float:
    """Pearson correlation of true skew and first-order approximation; 0 if one is constant."""
    true, formula = (np.concatenate(side) for side in zip(*pairs, strict=True))
    if true.std() == 0 or formula.std() == 0:
        return 0.0
    return float(np.corrcoef(true, formula)[0, 1])


_COLUMNS = (
    "",
    "skew, of the gradient's pull",
    "scaling : shift",
    "formula: correlation, error",
    "gamma: median, largest",
    "accumulated, of Eq. 21's bound",
    "calibration: size, cosine",
    "buffer: size, cosine",
    "skew left",
    "off optimum",
)
"""Column heads of :func:`skew_table`; a comma or colon separates two numbers of one cell."""


def skew_table(rows: Sequence[Row]) -> Table:
    """A table of skew measures: medians over all rounds and clients, a row per method variant."""
    return Table.of(_COLUMNS, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    m, lemma = row["median"], row["lemma"]
    return [
        row["variant"],
        f"{m['skew']:.3g}, {m['skew_of_pull']:.1%}",
        f"{m['scaling']:.3g} : {m['shift']:.3g}",
        f"{row['correlation']:.2f}, {m['error']:.0%}",
        f"{lemma['gamma_median']:.2f}, {lemma['gamma_largest']:.2f}" if lemma else "–",
        f"{lemma['accumulated']:.3g}, {lemma['of_stepwise_bound']:.1%}" if lemma else "–",
        f"{m['calibration']:.1%}, {m['calibration_cosine']:+.2f}" if _has_buffer(row) else "–",
        f"{m['buffer']:.0%}, {m['buffer_cosine']:+.2f}" if _has_buffer(row) else "–",
        f"{m['left']:.0%}" if m["left"] > 1e-4 else f"{m['left']:.0e}",
        f"{m['off_optimum']:.1%}" if m["off_optimum"] > 1e-5 else f"{m['off_optimum']:.0e}",
    ]


def findings(row: Row) -> Iterator[str]:
    """Sentences on a result of ``audit_skew``, mainly on lemmas whose assumptions do not hold."""
    m, lemma = row["median"], row["lemma"]
    if row["variant"] == "fedrefit":
        yield (
            f"The vector is solved for again whenever items arrive: of the {m['skew_of_pull']:.1%} "
            f"that new items pull at the old vector {m['left']:.0e} is left, float32's rounding. "
            f"The lemmas are about steps and have nothing to bound here."
        )
        yield (
            f"Once the rounds of its space are over its items stand still. The first-order formula "
            f"misses by {m['error']:.0%}: a solved basis turns freely from round to round."
        )
        return
    yield (
        f"Lemma 3.2: the first-order formula has correlation {row['correlation']:.2f} with the "
        f"true difference of gradients; it misses by {m['error']:.0%} of it, as items differ by "
        f"{m['delta']:.2f} at the median, which is not small."
    )
    if lemma is None:
        yield "Lemma 3.3 needs clients with two rounds or more: give more --rounds."
    else:
        yield from _bound_findings(lemma)
    if not _has_buffer(row):
        how = "has no buffer" if row["variant"] == "fedmf" else "keeps its matrix for scoring"
        yield f"Step 2: {row['variant']} {how}, its vector meets the whole skew."
        return
    sign = "holds" if row["opposed"] == 1 else "does not hold everywhere"
    yield (
        f"Lemma 4.1, the calibration's sign: it points against the skew for {row['opposed']:.1%} "
        f"of clients and rounds (median cosine {m['calibration_cosine']:+.2f}): the sign {sign}; "
        f"there is no delta in it. One step of it is {m['calibration']:.1%} of the skew."
    )
    yield (
        f"Its proof takes L1 = s - r from (0, 1): it is below 0 for every positive, "
        f"{m['negative_slopes']:.0%} of a client's items."
    )
    effect = f"removes {1 - m['left']:.0%}" if m["left"] < 1 else f"adds {m['left'] - 1:.0%}"
    yield (
        f"The buffer as trained changes the gradient by {m['buffer']:.0%} of the skew (against it "
        f"for {row['buffer_opposed']:.1%}, cosine {m['buffer_cosine']:+.2f}) and {effect}: against "
        f"the local items {m['left']:.0%} of the skew is left."
    )
    yield (
        f"Compared with the items it trains with (its buffer added), the vector meets "
        f"{m['met_of_pull']:.1%} of the pull; without the buffer {m['skew_of_pull']:.1%}."
    )


def _bound_findings(lemma: Row) -> Iterator[str]:
    below, clients = lemma["clients_with_gamma_below_1"], lemma["clients"]
    verdict = "holds" if below == clients else "DOES NOT HOLD"
    yield (
        f"Lemma 3.3 assumes gamma < 1, which {verdict}: |delta| grew for {lemma['grew']:.0%} of "
        f"items from a client's round to its next (median {lemma['gamma_median']:.2f}, largest "
        f"{lemma['gamma_largest']:.2f}); gamma < 1 for {below} of {clients} clients, so the bound "
        f"of Eq. 5 exists for {below}."
    )
    at_median = "is infinite for most clients"
    if lemma["of_bound_at_median_gamma"] > 0:
        at_median = f"is used to {lemma['of_bound_at_median_gamma']:.2%}"
        broken = lemma["bound_at_median_gamma_broken"]
        at_median += f" and broken by {broken:.0%} of clients" if broken else ""
    yield (
        f"The accumulated skew (median {lemma['accumulated']:.3g}) is "
        f"{lemma['of_stepwise_bound']:.1%} of the bound added up step by step (Eq. 21), "
        f"{lemma['of_bound_at_largest_gamma']:.2g} of Eq. 22 with the largest gamma; Eq. 5 with "
        f"a client's median gamma {at_median}."
    )
    worst = "holds" if lemma["beyond_first"] == 0 else "DOES NOT HOLD"
    yield (
        f"Its worst case, |p.delta| |q| largest in the first round, {worst}: larger later for "
        f"{lemma['beyond_first']:.0%} of items. The lemma takes plain gradient steps of eta, the "
        f"runs Adam's; C1 is taken as max |s - r|, {lemma['c1']:.3f} (as printed, without the "
        f"absolute value, it is {lemma['c1_printed']:.3f} here and below 0 for positives)."
    )


def _has_buffer(row: Row) -> bool:
    return row["median"]["calibration"] is not None
