"""Findings of the skew audit: a table of medians, and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from unskew.report import Table

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


def skew_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Medians over all rounds and clients, a row per variant."""
    return Table.of(_COLUMNS, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    m, lemma = row["median"], row["lemma"]
    return [
        row["variant"],
        f"{m['skew']:.3g}, {m['skew_of_pull']:.1%}",
        f"{m['scaling']:.3g} : {m['shift']:.3g}",
        f"{row['correlation']:.2f}, {m['error']:.0%}",
        f"{lemma['gamma_median']:.2f}, {lemma['gamma_largest']:.2f}" if lemma else "–",
        f"{lemma['accumulated']:.3g}, {lemma['of_stepwise_bound']:.1%}" if lemma else "–",
        f"{m['calibration']:.1%}, {m['calibration_cosine']:+.2f}" if _buffered(row) else "–",
        f"{m['buffer']:.0%}, {m['buffer_cosine']:+.2f}" if _buffered(row) else "–",
        f"{m['left']:.0%}" if m["left"] > 1e-4 else f"{m['left']:.0e}",
        f"{m['off_optimum']:.1%}" if m["off_optimum"] > 1e-5 else f"{m['off_optimum']:.0e}",
    ]


def findings(row: dict[str, Any]) -> Iterator[str]:
    """Sentences about a row, above all where the assumption of a lemma does not hold."""
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
    if not _buffered(row):
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


def _bound_findings(lemma: dict[str, Any]) -> Iterator[str]:
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


def _buffered(row: dict[str, Any]) -> bool:
    return row["median"]["calibration"] is not None
