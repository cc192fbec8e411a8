"""What a table is: cells to run, and pure functions from their rows to Markdown and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from unskew.experiments._against import DATA as ORDER
from unskew.experiments._paper import DATASETS
from unskew.experiments._reproduce import Cell
from unskew.experiments.tables._chart import Chart
from unskew.methods import METHODS

Row = dict[str, Any]
Stores = Mapping[str, Sequence[Row]]
"""Rows by the name of the file they are kept in."""
QUICK_ROUNDS = 4
_SHORT = 10
"""Methods that need no more rounds than this are not cut short by a quick run."""


class Task(NamedTuple):
    """A row that is not a run's: statistics of a data set, or the points of a picture."""

    command: str
    methods: tuple[str, ...]
    make: Callable[[Path | None], Row]


@dataclass(frozen=True)
class Plan:
    """What was asked for: which data, protocols, seeds and methods, and whether only quickly."""

    data: tuple[str, ...] | None = None
    """None: the table's own."""
    protocols: tuple[str, ...] = ("paper", "leak-free")
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] | None = None
    quick: bool = False

    def sources(self, *own: str) -> tuple[str, ...]:
        return self.data or own or DATASETS

    def cell(self, method: str, data: str, protocol: str, **settings: Any) -> Cell:
        pairs = tuple((key, str(value)) for key, value in settings.items())
        return self.shortened(Cell(method, data, protocol, self.seeds, pairs))

    def shortened(self, cell: Cell) -> Cell:
        """The cell as it is or, for a quick run, with few rounds."""
        given, needed = dict(cell.settings), METHODS[cell.method].Config().rounds
        if not self.quick or "rounds" in given or needed <= _SHORT:
            return cell
        return cell._replace(settings=(*cell.settings, ("rounds", str(QUICK_ROUNDS))))

    def grid(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """All values of a sweep; of a quick one the first, the middle one and the last."""
        if not self.quick:
            return tuple(values)
        return tuple(dict.fromkeys((values[0], values[len(values) // 2], values[-1])))


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper."""

    name: str
    title: str
    about: str
    """One or two sentences to stand under the title."""
    store: str
    """The file its own rows go to."""
    cells: Callable[[Plan], Sequence[Cell | Task]]
    markdown: Callable[[Stores], str] | None = None
    """The tables; an empty text where there are no rows."""
    charts: Callable[[Stores], dict[str, Chart]] | None = None
    """Charts by name, as far as there are rows."""
    curves: bool = False
    """Whether it needs the figures of every round."""


def by_data(rows: Sequence[Row]) -> list[Row]:
    def place(row: Row) -> int:
        return ORDER.index(row["data"]) if row["data"] in ORDER else len(ORDER)

    return sorted(rows, key=place)


def in_order(rows: Sequence[Row]) -> list[Row]:
    """By method as registered, then by data set."""
    order = list(METHODS)
    known = [row for row in by_data(rows) if row["method"] in order]
    return sorted(known, key=lambda row: order.index(row["method"]))


def plain(rows: Sequence[Row]) -> list[Row]:
    """Runs of methods as they come: no settings, no noise."""
    return [row for row in rows if not row["settings"] and "privacy" not in row]


def having(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def distinct(rows: Sequence[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def latest(rows: Sequence[Row]) -> Row | None:
    """Of several rows for one thing the one with most seeds, and of those the last."""
    return max(enumerate(rows), key=lambda at: (len(at[1]["seeds"]), at[0]))[1] if rows else None


def figure(row: Row | None, metric: str) -> float | None:
    return None if row is None else float(row["metrics"][metric]["mean"])


def shown(value: float | None, published: float | None = None, digits: int = 3) -> str:
    """A figure, and in brackets what the paper prints."""
    text = "–" if value is None else f"{value:.{digits}f}"
    return text if published is None else f"{text} ({published:.{digits}f})"


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|" + "---|" * len(head)
    return "\n".join(["| " + " | ".join(line) + " |" for line in [head]] + [rule]) + "".join(
        "\n| " + " | ".join(line) + " |" for line in lines
    )


def by_protocol(make: Callable[[list[Row], str], str], rows: Sequence[Row]) -> str:
    """A table per protocol that has rows, each under its name, data sets in the usual order."""
    rows = by_data(rows)
    present = [p for p in ("paper", "leak-free", "time") if having(rows, protocol=p)]
    return "\n\n".join(
        f"Protocol `{name}`\n\n{make(having(rows, protocol=name), name)}" for name in present
    )
