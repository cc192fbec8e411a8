"""The report in three sentences: which run is best, what the leak adds, what a round costs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from unskew.report.comparison import Pair, find_pairs
from unskew.report.entries import LEAKY, Entry, Figure, amount, group_by, metric

MAX_DATA_SETS_WITH_RIVALS = 2
"""With more data sets, the first sentence names winners only, not the runner-up of each."""

MAX_NEGLIGIBLE_KB = 0.1
"""Up to this many kilobytes sent, a method counts as sending nothing: it is central or local."""


def summarise(entries: Sequence[Entry]) -> list[str]:
    """The sentences as HTML."""
    scored = [entry for entry in entries if entry.score.mean is not None]
    # Entries are sorted, so the first of a data set is its best under an honest protocol.
    winners = [of_data[0] for of_data in group_by(scored, "data").values()]
    if not winners:
        return ["These runs hold no figures yet."]
    return [_best(scored, winners), *_leak(entries, winners), _cost(scored, winners[0])]


def _rivals(scored: Sequence[Entry], entry: Entry) -> list[Entry]:
    """Runs with a figure on the same data under the same protocol, best first."""
    return [e for e in scored if (e.data, e.protocol) == (entry.data, entry.protocol)]


def _best(scored: Sequence[Entry], winners: Sequence[Entry]) -> str:
    honest = [entry for entry in winners if not entry.leaky]
    leaky = [entry for entry in winners if entry.leaky]
    if len(honest) > MAX_DATA_SETS_WITH_RIVALS:
        clauses = [_winners_by_method(scored, honest)]
    else:
        clauses = [_verdict(entry, _rivals(scored, entry)) for entry in honest]
    clauses += [_verdict(entry, _rivals(scored, entry)) for entry in leaky]
    warning = (
        "; but that protocol lets training find out the held-out item, so read it "
        "beside the literature only and run <code>leak-free</code> to see what was learned"
    )
    said = "; ".join(clauses)
    return f"{said[0].upper()}{said[1:]}{warning if leaky else ''}."


def _winners_by_method(scored: Sequence[Entry], winners: Sequence[Entry]) -> str:
    """Many data sets in one clause: which method is best on which."""
    parts = []
    for same in sorted(group_by(winners, "label").values(), key=lambda some: -len(some)):
        where = [f"{escape(entry.data)} ({entry.score})" for entry in same]
        parts.append(f"<strong>{escape(same[0].label)}</strong> on {_enumerate(where)}")
    counts = [len(_rivals(scored, entry)) for entry in winners]
    most = f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else f"{counts[0]}"
    protocols = _enumerate([f"<code>{escape(p)}</code>" for p in group_by(winners, "protocol")])
    return f"of {most} runs under {protocols}, the best by NDCG@10 is {'; '.join(parts)}"


def _enumerate(parts: Sequence[str]) -> str:
    """Parts as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _verdict(best: Entry, rivals: Sequence[Entry]) -> str:
    where = f"on {escape(best.data)} under the <code>{escape(best.protocol)}</code> protocol"
    name = f"<strong>{escape(best.label)}</strong>"
    if len(rivals) == 1:
        return f"{where}, {name} reaches NDCG@10 {best.score} (no other method to compare with)"
    second = next(entry for entry in rivals if entry is not best)
    kind = "methods" if len(group_by(rivals, "method")) == len(rivals) else "runs"
    return (
        f"{where}, {name} is the best of {len(rivals)} {kind} with NDCG@10 {best.score}, ahead of "
        f"{escape(second.label)} with {second.score}{_certainty(best.score, second.score)}"
    )


def _certainty(first: Figure, second: Figure) -> str:
    lead = (first.mean or 0.0) - (second.mean or 0.0)
    if lead == 0:
        return " (a tie)"
    if first.std is None or second.std is None:
        return " (one seed says nothing about chance)"
    return " (a lead within the spread over seeds)" if lead <= first.std + second.std else ""


def _leak(entries: Sequence[Entry], winners: Sequence[Entry]) -> list[str]:
    """One sentence on the paper's protocol against leak-free, ranked alike.

    Each data set is told by its winner's pair of runs, or by the pair with the largest drop.
    """
    pairs, many = [], len(winners) > MAX_DATA_SETS_WITH_RIVALS
    for winner in winners:
        found = find_pairs([entry for entry in entries if entry.data == winner.data])
        known = [pair for pair in found if pair.drop is not None]
        own = [pair for pair in known if pair.free is winner and not many]
        pairs += sorted(own or known, key=lambda pair: -(pair.drop or 0.0))[:1]
    if not pairs:
        return []
    sampled = all(pair.part == "sampled99" for pair in pairs)
    lead = (
        f"Ranked {'among 99 sampled candidates' if sampled else 'alike'} both times, "
        f"under <code>{LEAKY}</code> "
    )
    clear = [pair for pair in pairs if _beyond_spread(pair)]
    if not clear:
        said = "; ".join(_both_figures(pair) for pair in pairs)
        return [f"{lead}{said}: no gap beyond the spread, so no leak shows."]
    if many:
        clear = sorted(clear, key=lambda pair: -(pair.drop or 0.0))
    gaps = "; ".join(f"{_both_figures(pair)}, {pair.drop:+.4f}" for pair in clear)
    rows = any(free.summary.get("notes") != paper.summary.get("notes") for free, paper in clear)
    extra = ", together with the rows the notes below say one protocol drops" if rows else ""
    gap = "these gaps are" if len(clear) > 1 else "that gap is"
    return [
        f"{lead}{gaps}: {gap} the leak{extra}, since training there never draws the held-out item "
        "as a negative and so learns which one it is."
    ]


def _beyond_spread(pair: Pair) -> bool:
    low, high = pair.figures("ndcg@10")
    return (pair.drop or 0.0) > (low.std or 0.0) + (high.std or 0.0)


def _both_figures(pair: Pair) -> str:
    low, high = pair.figures("ndcg@10")
    return (
        f"{escape(pair.free.label)} on {escape(pair.free.data)} shows NDCG@10 {metric(high.mean)} "
        f"instead of {metric(low.mean)}"
    )


def _cost(scored: Sequence[Entry], best: Entry) -> str:
    sent = {
        entry.label: entry.kilobytes("bytes_up") or 0.0
        for entry in _rivals(scored, best)
        if (entry.kilobytes("bytes_up") or 0.0) > MAX_NEGLIGIBLE_KB
    }
    compared = ""
    if len(sent) > 1:
        label, least = min(sent.items(), key=lambda part: part[1])
        if len(set(map(amount, sent.values()))) == 1:
            compared = " (all methods there send as much)"
        elif amount(least) == amount(best.kilobytes("bytes_up")):
            compared = " (no other sent less)"
        else:
            compared = f" (the least was {amount(least)}\xa0KB sent, by {escape(label)})"
    return (
        f"On {escape(best.data)} a round of {escape(best.label)} took "
        f"{amount(best.value('seconds_per_round'))}\xa0s to simulate, and each "
        f"client taking part sent {amount(best.kilobytes('bytes_up'))}\xa0KB "
        f"and received {amount(best.kilobytes('bytes_down'))}\xa0KB{compared}."
    )
