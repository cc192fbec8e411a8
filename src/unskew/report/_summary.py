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
    honest = [entry for entry in winners if not entry.leaky]
    sentences = []
    if honest:
        clauses = "; ".join(_verdict(entry, _rivals(entries, entry)) for entry in honest)
        sentences.append(f"O{clauses[1:]}.")
    leaky = [entry for entry in winners if entry.leaky]
    if leaky:
        names = "; ".join(_verdict(entry, _rivals(entries, entry)) for entry in leaky)
        sentences.append(
            f"O{names[1:]}; but that protocol lets training find out the held-out item, so read it "
            "beside the literature only and run <code>leak-free</code> to see what was learned."
        )
    return sentences


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
    but the protocol."""
    pairs = [pair for winner in winners for pair in _pairs(entries, winner)[:1]]
    gaps: list[str] = []
    none: list[str] = []
    for free, paper in pairs:
        low, high = free.figure("sampled99", "ndcg@10"), paper.figure("sampled99", "ndcg@10")
        if low.mean is None or high.mean is None:
            continue
        gap = high.mean - low.mean
        shown = (
            f"{text(free.label)} on {text(free.data)} shows NDCG@10 {metric(high.mean)} instead of "
            f"{metric(low.mean)}"
        )
        clear = gap > (low.std or 0.0) + (high.std or 0.0)
        (gaps if clear else none).append(f"{shown}, {gap:+.4f}" if clear else shown)
    lead = f"Ranked among 99 sampled candidates both times, under <code>{LEAKY}</code> "
    sentences = []
    if gaps:
        rows = any(free.summary.get("notes") != paper.summary.get("notes") for free, paper in pairs)
        extra = ", together with the rows the notes below say one protocol drops" if rows else ""
        sentences.append(
            f"{lead}{'; '.join(gaps)}: that gap is the leak{extra}, since training there never "
            "draws the held-out item as a negative and so learns which one it is."
        )
    if none:
        sentences.append(f"{lead}{'; '.join(none)}: no gap beyond the spread, so no leak shows.")
    return sentences


def _pairs(entries: Sequence[Entry], winner: Entry) -> list[tuple[Entry, Entry]]:
    """Leak-free and paper runs with the same settings on the winner's data, its method first."""
    same_data = [entry for entry in entries if entry.data == winner.data]
    found = [
        (free, paper)
        for free in same_data
        for paper in same_data
        if free.protocol == "leak-free"
        and paper.leaky
        and free.method == paper.method
        and free.summary.get("settings") == paper.summary.get("settings")
    ]
    return sorted(found, key=lambda pair: pair[0] is not winner)


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
    rivals = [e for e in _rivals(entries, best) if e.kilobytes("bytes_up") is not None]
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
