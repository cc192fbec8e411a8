"""The table of all runs side by side, sortable by its column heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from unskew.report._charts import swatch
from unskew.report._entries import Entry, Figure, amount, count, grouped, metric, text


class Cell(NamedTuple):
    """What a cell shows, and what it sorts by (nothing: always last)."""

    html: str
    key: str | float | None
    kind: str = "number"


class Column(NamedTuple):
    """``first`` is the direction of the first click: the good end of the column on top."""

    head: str
    cell: Callable[[Entry], Cell]
    first: str = "descending"


def _word(field: str) -> Callable[[Entry], Cell]:
    def cell(entry: Entry) -> Cell:
        value = getattr(entry, field)
        tag = ' <span class="tag">leaks</span>' if field == "protocol" and entry.leaky else ""
        return Cell(text(value) + tag, value.lower(), "word")

    return cell


def _metric(part: str, name: str) -> Callable[[Entry], Cell]:
    def cell(entry: Entry) -> Cell:
        figure = entry.figure(part, name)
        return Cell(_stacked(figure), figure.mean)

    return cell


def _stacked(figure: Figure) -> str:
    if figure.mean is None or figure.std is None:
        return metric(figure.mean)
    return f'{metric(figure.mean)} <span class="spread">± {figure.std:.4f}</span>'


def _rounds(entry: Entry) -> Cell:
    return Cell(count(entry.value("rounds")), entry.value("rounds"))


def _seconds(entry: Entry) -> Cell:
    value = entry.value("seconds_per_round")
    return Cell(amount(value), value)


def _kilobytes(key: str) -> Callable[[Entry], Cell]:
    def cell(entry: Entry) -> Cell:
        return Cell(amount(entry.kilobytes(key)), entry.kilobytes(key))

    return cell


_METRICS = (("HR@10", "hr@10"), ("NDCG@10", "ndcg@10"))
_UP = "ascending"

GROUPS: tuple[tuple[str, tuple[Column, ...]], ...] = (
    (
        "Run",
        (
            Column("Method", _word("label"), _UP),
            Column("Data", _word("data"), _UP),
            Column("Protocol", _word("protocol"), _UP),
            Column("What is ranked", _word("ranking"), _UP),
        ),
    ),
    ("Best validation round", tuple(Column(h, _metric("metrics", m)) for h, m in _METRICS)),
    ("Last round", tuple(Column(h, _metric("last_round", m)) for h, m in _METRICS)),
    ("Among 99 sampled", tuple(Column(h, _metric("sampled99", m)) for h, m in _METRICS)),
    (
        "Cost",
        (
            Column("Rounds", _rounds, _UP),
            Column("Seconds per round", _seconds, _UP),
            Column("KB up", _kilobytes("bytes_up"), _UP),
            Column("KB down", _kilobytes("bytes_down"), _UP),
        ),
    ),
)


def table(entries: Sequence[Entry]) -> str:
    columns = [column for _, group in GROUPS for column in group]
    groups = "".join(
        f'<th scope="colgroup" colspan="{len(group)}">{text(name)}</th>' for name, group in GROUPS
    )
    heads = "".join(
        f'<th scope="col" data-head="{text(column.head)}"><button type="button" '
        f'data-first="{column.first}">{text(column.head)}</button></th>'
        for column in columns
    )
    leaks = "Leaks: training can find out the held-out item. "
    leaks = leaks if any(entry.leaky for entry in entries) else ""
    winners = _winners(entries)
    body = "".join(
        f"<tr{' class=best' if entry in winners else ''}>"
        + "".join(_cell(column.cell(entry), at, entry) for at, column in enumerate(columns))
        + "</tr>"
        for entry in entries
    )
    colgroups = "".join(f'<colgroup span="{len(group)}"></colgroup>' for _, group in GROUPS)
    return (
        '<div class="scroll" role="region" aria-labelledby="runs-caption" tabindex="0">'
        '<table class="runs"><caption id="runs-caption"><span>Test metrics, mean ± standard '
        "deviation over seeds (a mean alone: one seed). Bold: the best NDCG@10 on its data under "
        f"its protocol. KB: thousands of bytes per client and round. {leaks}"
        "Select a column head to sort. "
        '<span class="narrow">Scroll the table sideways for the figures.</span>'
        f"</span></caption>{colgroups}<thead><tr>{groups}</tr><tr>{heads}</tr></thead>"
        f'<tbody>{body}</tbody></table></div><p class="unseen" role="status" id="sorted"></p>'
    )


def _cell(cell: Cell, at: int, entry: Entry) -> str:
    key = "" if cell.key is None else text(cell.key)
    if at == 0:
        shown = f'<span class="name">{swatch(entry.style)}<span>{cell.html}</span></span>'
        return f'<th scope="row" class="{cell.kind}" data-key="{key}">{shown}</th>'
    return f'<td class="{cell.kind}" data-key="{key}">{cell.html}</td>'


def _winners(entries: Sequence[Entry]) -> list[Entry]:
    """The best run of each data set and protocol, where there is something to be better than."""
    winners = []
    for of_data in grouped(entries, "data").values():
        for rivals in grouped(of_data, "protocol").values():
            scores = [e.figure("metrics", "ndcg@10").mean for e in rivals]
            known = [score for score in scores if score is not None]
            if len(known) > 1:
                winners += [e for e, s in zip(rivals, scores, strict=True) if s == max(known)]
    return winners
