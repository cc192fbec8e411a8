"""The report in three sentences: who is best, what the paper's protocol adds, what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from unskew.report._entries import (
    LEAKY,
    Entry,
    Figure,
    amount,
    grouped,
    metric,
    text,
    with_spread,
)
from unskew.report._sides import Pair, pairs_of

FEW = 2
"""With more data sets than that, sentences name winners, not each winner's rival."""

NOTHING = 0.1
"""Kilobytes up to which a method sends nothing worth naming: it is central or purely local."""


def summarise(entries: Sequence[Entry]) -> list[str]:
    """Sentences as HTML."""
    winners = [_winner(of_data) for of_data in grouped(entries, "data").values()]
    found = [entry for entry in winners if entry is not None]
    sentences = [*_best(entries, found), *_leak(entries, found), *_cost(entries, found)]
    return sentences or ["These runs hold no figures yet."]


def _rivals(entries: Sequence[Entry], entry: Entry) -> list[Entry]:
    """All runs on the same data under the same protocol that have a figure, best first."""
    return [
        e
        for e in entries
        if (e.data, e.protocol) == (entry.data, entry.protocol) and _score(e).mean is not None
    ]


def _winner(of_data: Sequence[Entry]) -> Entry | None:
    """The best run under the first honest protocol; under the paper's if there is no other."""
    ranked = [entry for entry in of_data if _score(entry).mean is not None]
    return ranked[0] if ranked else None


def _score(entry: Entry) -> Figure:
    return entry.figure("metrics", "ndcg@10")


def _best(entries: Sequence[Entry], winners: Sequence[Entry]) -> list[str]:
    if not winners:
        return []
    honest = [entry for entry in winners if not entry.leaky]
    if len(honest) > FEW:
        clauses = [_by_method(entries, honest)]
    else:
        clauses = [_verdict(entry, _rivals(entries, entry)) for entry in honest]
    leaky = [entry for entry in winners if entry.leaky]
    clauses += [_verdict(entry, _rivals(entries, entry)) for entry in leaky]
    warning = (
        "; but that protocol lets training find out the held-out item, so read it "
        "beside the literature only and run <code>leak-free</code> to see what was learned"
    )
    told = "; ".join(clauses)
    return [f"{told[0].upper()}{told[1:]}{warning if leaky else ''}."]


def _by_method(entries: Sequence[Entry], winners: Sequence[Entry]) -> str:
    """Many data sets in one breath: who is the best where."""
    parts = []
    for same in sorted(grouped(winners, "label").values(), key=lambda some: -len(some)):
        where = [f"{text(e.data)} ({with_spread(_score(e))})" for e in same]
        parts.append(f"<strong>{text(same[0].label)}</strong> on {_listed(where)}")
    counts = [len(_rivals(entries, entry)) for entry in winners]
    most = f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else f"{counts[0]}"
    protocols = _listed([f"<code>{text(p)}</code>" for p in grouped(winners, "protocol")])
    return f"of {most} runs under {protocols}, the best by NDCG@10 is {'; '.join(parts)}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _verdict(best: Entry, rivals: Sequence[Entry]) -> str:
    where = f"on {text(best.data)} under the <code>{text(best.protocol)}</code> protocol"
    name, score = f"<strong>{text(best.label)}</strong>", with_spread(_score(best))
    others = [entry for entry in rivals if entry is not best]
    if not others:
        return f"{where}, {name} reaches NDCG@10 {score} (no other method to compare with)"
    second = others[0]
    kind = "methods" if len(grouped(rivals, "method")) == len(rivals) else "runs"
    said = (
        f"{where}, {name} is the best of {len(rivals)} {kind} with NDCG@10 {score}, "
        f"ahead of {text(second.label)} with {with_spread(_score(second))}"
    )
    return said + _certainty(_score(best), _score(second))


def _certainty(first: Figure, second: Figure) -> str:
    assert first.mean is not None
    assert second.mean is not None
    if first.mean == second.mean:
        return " (a tie)"
    if first.std is None or second.std is None:
        return " (one seed says nothing about chance)"
    within = first.mean - second.mean <= first.std + second.std
    return " (a lead within the spread over seeds)" if within else ""


def _leak(entries: Sequence[Entry], winners: Sequence[Entry]) -> list[str]:
    """One sentence on paper against leak-free, ranked alike; only for pairs that differ in nothing
    but the protocol: the winner's where it has one, else the deepest fall."""
    pairs, telling = [], len(winners) > FEW
    for winner in winners:
        found = pairs_of([entry for entry in entries if entry.data == winner.data])
        known = [pair for pair in found if pair.fall is not None]
        own = [pair for pair in known if pair.free is winner and not telling]
        pairs += sorted(own or known, key=lambda pair: -(pair.fall or 0.0))[:1]
    clear = [pair for pair in pairs if _clear(pair)]
    alike = all(pair.part == "sampled99" for pair in pairs)
    lead = (
        f"Ranked {'among 99 sampled candidates' if alike else 'alike'} both times, "
        f"under <code>{LEAKY}</code> "
    )
    if not pairs:
        return []
    if not clear:
        told = "; ".join(_shown(pair) for pair in pairs)
        return [f"{lead}{told}: no gap beyond the spread, so no leak shows."]
    if telling:
        clear = sorted(clear, key=lambda pair: -(pair.fall or 0.0))
    gaps = "; ".join(f"{_shown(pair)}, {pair.fall:+.4f}" for pair in clear)
    rows = any(free.summary.get("notes") != paper.summary.get("notes") for free, paper in clear)
    extra = ", together with the rows the notes below say one protocol drops" if rows else ""
    gap = "these gaps are" if len(clear) > 1 else "that gap is"
    return [
        f"{lead}{gaps}: {gap} the leak{extra}, since training there never draws the held-out item "
        "as a negative and so learns which one it is."
    ]


def _clear(pair: Pair) -> bool:
    low, high = pair.figures("ndcg@10")
    return (pair.fall or 0.0) > (low.std or 0.0) + (high.std or 0.0)


def _shown(pair: Pair) -> str:
    low, high = pair.figures("ndcg@10")
    return (
        f"{text(pair.free.label)} on {text(pair.free.data)} shows NDCG@10 {metric(high.mean)} "
        f"instead of {metric(low.mean)}"
    )


def _cost(entries: Sequence[Entry], winners: Sequence[Entry]) -> list[str]:
    if not winners:
        return []
    best = winners[0]
    sentence = (
        f"On {text(best.data)} a round of {text(best.label)} took "
        f"{amount(best.value('seconds_per_round'))}\N{NO-BREAK SPACE}s to simulate, and each "
        f"client taking part sent {amount(best.kilobytes('bytes_up'))}\N{NO-BREAK SPACE}KB "
        f"and received {amount(best.kilobytes('bytes_down'))}\N{NO-BREAK SPACE}KB"
    )
    rivals = [e for e in _rivals(entries, best) if (e.kilobytes("bytes_up") or 0.0) > NOTHING]
    if len(rivals) > 1:
        sent = [amount(e.kilobytes("bytes_up")) for e in rivals]
        least = min(rivals, key=lambda e: e.kilobytes("bytes_up") or 0.0)
        if len(set(sent)) == 1:
            sentence += " (all methods there send as much)"
        elif amount(least.kilobytes("bytes_up")) == amount(best.kilobytes("bytes_up")):
            sentence += " (no other sent less)"
        else:
            fewest = amount(least.kilobytes("bytes_up"))
            sentence += (
                f" (the least was {fewest}\N{NO-BREAK SPACE}KB sent, by {text(least.label)})"
            )
    return [f"{sentence}."]
