"""The report's summary sentences: the best run, the effect of the leak, the cost of a round."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from unskew.report.comparison import Pair, find_pairs
from unskew.report.entries import LEAKY, Entry, amount, group_by, kilobytes, spread

MAX_NEGLIGIBLE_KB = 0.1
"""Kilobytes sent per client and round up to which a method counts as sending nothing."""


def summarise(entries: Sequence[Entry]) -> list[str]:
    """Summary sentences as HTML: on each data set's best run, on the leak, and on the cost."""
    # Entries are sorted, so the first of a data set is its best under an honest protocol.
    winners = [of_data[0] for of_data in group_by(entries, "data").values()]
    verdicts = [_verdict(winner, _rivals(entries, winner)) for winner in winners]
    leak, cost = _leak(entries), _cost(_rivals(entries, winners[0]))
    return [*verdicts, *([leak] if leak else []), cost]


def _rivals(entries: Sequence[Entry], entry: Entry) -> list[Entry]:
    """Runs with the same data and protocol as ``entry``, itself included, best first."""
    same = group_by(entries, "data")[entry.result.data]
    return group_by(same, "protocol")[entry.result.protocol]


def _verdict(best: Entry, rivals: Sequence[Entry]) -> str:
    data, protocol = escape(best.result.data), escape(best.result.protocol)
    where = f"On {data} under the <code>{protocol}</code> protocol"
    name = f"<strong>{escape(best.label)}</strong>"
    if len(rivals) == 1:
        said = f"{name} reaches NDCG@10 {spread(best.score)} (no other method to compare with)"
    else:
        kind = "methods" if len(group_by(rivals, "method")) == len(rivals) else "runs"
        said = (
            f"{name} is the best of {len(rivals)} {kind} with NDCG@10 {spread(best.score)}, ahead "
            f"of {escape(rivals[1].label)} with {spread(rivals[1].score)}"
            f"{_certainty(best, rivals[1])}"
        )
    warning = (
        "; but that protocol lets training find out the held-out item, so read it "
        "beside the literature only and run <code>leak-free</code> to see what was learned"
    )
    return f"{where}, {said}{warning if best.leaky else ''}."


def _certainty(first: Entry, second: Entry) -> str:
    lead = first.score.mean - second.score.mean
    if lead == 0:
        return " (a tie)"
    if min(len(first.result.seeds), len(second.result.seeds)) == 1:
        return " (one seed says nothing about chance)"
    within = lead <= first.score.std + second.score.std
    return " (a lead within the spread over seeds)" if within else ""


def _leak(entries: Sequence[Entry]) -> str:
    """One sentence that compares the protocols ``paper`` and ``leak-free`` by the pair of runs with
    the largest drop on each data set; empty if there are no runs under both."""
    by_data = group_by(entries, "data").values()
    pairs = [pair for of_data in by_data for pair in find_pairs(of_data)[:1]]
    if not pairs:
        return ""
    lead = f"Ranked among 99 sampled candidates both times, under <code>{LEAKY}</code> "
    spreads = [sum(one.result.sampled99["ndcg@10"].std for one in pair) for pair in pairs]
    clear = [pair for pair, spread in zip(pairs, spreads, strict=True) if pair.drop > spread]
    clear.sort(key=lambda pair: -pair.drop)
    if not clear:
        said = "; ".join(_both_figures(pair) for pair in pairs)
        return f"{lead}{said}: no gap beyond the spread, so no leak shows."
    gaps = "; ".join(f"{_both_figures(pair)}, {pair.drop:+.4f}" for pair in clear)
    rows = any(free.result.notes != paper.result.notes for free, paper in clear)
    extra = ", together with the rows the notes below say one protocol drops" if rows else ""
    return (
        f"{lead}{gaps}: that is the leak{extra}, since training there never draws the held-out "
        "item as a negative and so learns which one it is."
    )


def _both_figures(pair: Pair) -> str:
    free, paper = (entry.result.sampled99["ndcg@10"].mean for entry in pair)
    name, data = escape(pair.free.label), escape(pair.free.result.data)
    return f"{name} on {data} shows NDCG@10 {paper:.4f} instead of {free:.4f}"


def _cost(rivals: Sequence[Entry]) -> str:
    """One sentence on the best run's time and traffic, and on the run that sends least."""
    best, result = rivals[0], rivals[0].result
    sent = [(kilobytes(entry.result.bytes_up) or 0.0, entry.label) for entry in rivals]
    least, label = min((one for one in sent if one[0] > MAX_NEGLIGIBLE_KB), default=sent[0])
    compared = ""
    if least < sent[0][0] and amount(least) != amount(sent[0][0]):
        compared = f" (the least was {amount(least)}\xa0KB sent, by {escape(label)})"
    return (
        f"On {escape(result.data)} a round of {escape(best.label)} took "
        f"{amount(result.seconds_per_round)}\xa0s to simulate, and each "
        f"client taking part sent {amount(kilobytes(result.bytes_up))}\xa0KB "
        f"and received {amount(kilobytes(result.bytes_down))}\xa0KB{compared}."
    )
