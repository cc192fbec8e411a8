"""The table of all runs side by side, sortable by its column heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from unskew.report._charts import swatch
from unskew.report._entries import Entry, Figure, amount, count, grouped, metric, text
from unskew.report._sortable import Cell, Group, Head, sortable

MANY = 24
"""With more rows than that the table scrolls in a box of its own."""


class Column(NamedTuple):
    head: Head
    cell: Callable[[Entry], Cell]


def named(entry: Entry) -> Cell:
    """The run's name beside a bit of its line."""
    shown = f'<span class="name">{swatch(entry.style)}<span>{text(entry.label)}</span></span>'
    return Cell(shown, entry.label.lower(), "word")


def stacked(figure: Figure) -> Cell:
    """A mean, and below it its spread."""
    if figure.mean is None or figure.std is None:
        return Cell(metric(figure.mean), figure.mean)
    spread = f'<span class="spread">± {figure.std:.4f}</span>'
    return Cell(f"{metric(figure.mean)} {spread}", figure.mean)


def _word(field: str) -> Callable[[Entry], Cell]:
    def cell(entry: Entry) -> Cell:
        value = getattr(entry, field)
        tag = ' <span class="tag">leaks</span>' if field == "protocol" and entry.leaky else ""
        return Cell(text(value) + tag, value.lower(), "word")

    return cell


def _metric(part: str, name: str) -> Callable[[Entry], Cell]:
    return lambda entry: stacked(entry.figure(part, name))


def _rounds(entry: Entry) -> Cell:
    return Cell(count(entry.value("rounds")), entry.value("rounds"))


def _seconds(entry: Entry) -> Cell:
    value = entry.value("seconds_per_round")
    return Cell(amount(value), value)


def _kilobytes(key: str) -> Callable[[Entry], Cell]:
    return lambda entry: Cell(amount(entry.kilobytes(key)), entry.kilobytes(key))


def _named_column(name: str, cell: Callable[[Entry], Cell]) -> Column:
    return Column(Head(name, "ascending", "word"), cell)


def _cost_column(name: str, cell: Callable[[Entry], Cell]) -> Column:
    return Column(Head(name, "ascending"), cell)


def _metrics(part: str) -> tuple[Column, ...]:
    names = (("HR@10", "hr@10"), ("NDCG@10", "ndcg@10"))
    return tuple(Column(Head(head), _metric(part, name)) for head, name in names)


GROUPS: tuple[tuple[str, tuple[Column, ...]], ...] = (
    (
        "Run",
        (
            _named_column("Method", named),
            _named_column("Data", _word("data")),
            _named_column("Protocol", _word("protocol")),
            _named_column("What is ranked", _word("ranking")),
        ),
    ),
    ("Best validation round", _metrics("metrics")),
    ("Last round", _metrics("last_round")),
    ("Among 99 sampled", _metrics("sampled99")),
    (
        "Cost",
        (
            _cost_column("Rounds", _rounds),
            _cost_column("Seconds per round", _seconds),
            _cost_column("KB up", _kilobytes("bytes_up")),
            _cost_column("KB down", _kilobytes("bytes_down")),
        ),
    ),
)


def table(entries: Sequence[Entry]) -> str:
    columns = [column for _, group in GROUPS for column in group]
    groups = [Group(text(name), [column.head for column in group]) for name, group in GROUPS]
    leaks = "Leaks: training can find out the held-out item. "
    leaks = leaks if any(entry.leaky for entry in entries) else ""
    winners = _winners(entries)
    return sortable(
        "all-runs",
        groups,
        [[column.cell(entry) for column in columns] for entry in entries],
        "Test metrics, mean ± standard deviation over seeds (a mean alone: one seed). Bold: the "
        "best NDCG@10 on its data under its protocol. KB: thousands of bytes per client and "
        f"round. {leaks}",
        "runs many" if len(entries) > MANY else "runs",
        [entry in winners for entry in entries],
    )


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
