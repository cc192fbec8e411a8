"""The paper's three tables on local differential privacy, cell by cell, its figures beside ours.

``ldp``: PFedCLR with noise of strength 0.5 on every data set; ``ldp-methods``: what the same noise
costs each method on ML-100K; ``ldp-noise``: PFedCLR at every strength. FedRefit stands beside it in
all of them. A table is a list of cells (one command each) and a function that makes Markdown of
their rows.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from unskew.experiments._paper import DATASETS
from unskew.experiments._pool import on_common_seeds
from unskew.experiments._reproduce import Cell
from unskew.types import UnskewError

TABLES = ("ldp", "ldp-methods", "ldp-noise")
STRENGTH = 0.5
"""The paper's choice."""
STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
COMPARED = ("fedmf", "fedncf", "pfedgraph", "gpfedrec", "pfedrec", "fedrap", "pfedclr")
"""In the paper's order of columns."""
BESIDE = ("fedrefit",)
"""What else stands in the table of methods, though the paper has no figures for it."""

# HR@10 and NDCG@10 by strength of noise, as the paper prints them for PFedCLR.
_BY_STRENGTH = {
    "filmtrust": ".9102 .7798 .9092 .7797 .9122 .7763 .9122 .7776 .9072 .7809 .9122 .7741 .8882 "
    ".6965",
    "ml-100k": ".9989 .9225 .9979 .9212 .9989 .9211 .9989 .9215 .9979 .9177 .9979 .9215 .9968 "
    ".9059",
    "ml-1m": ".9603 .8402 .9608 .8402 .9609 .8394 .9586 .8385 .9594 .8401 .9586 .8379 .9593 .8358",
    "lastfm-2k": ".7778 .7164 .7770 .7123 .7730 .7102 .7738 .7064 .7581 .6914 .7526 .6816 .7155 "
    ".6509",
}
# HR@10 and NDCG@10 without noise, then with, on ML-100K.
_BY_METHOD = {
    "fedmf": ".4846 .2723 .4920 .2665",
    "fedncf": ".4252 .2290 .4199 .2237",
    "pfedgraph": ".6204 .4937 .6193 .4857",
    "gpfedrec": ".6840 .3982 .6448 .3876",
    "pfedrec": ".6702 .3929 .6405 .3624",
    "fedrap": ".8823 .7980 .8441 .7115",
    "pfedclr": ".9989 .9225 .9979 .9215",
}


class LdpCell(Cell):
    """A cell whose setting ``ldp-noise`` is an option of the command, not of the method."""

    def arguments(self) -> list[str]:
        own = tuple(pair for pair in self.settings if pair[0] != "ldp-noise")
        plain = Cell(*self._replace(settings=own)).arguments()
        noise = [f"--ldp-noise={value}" for key, value in self.settings if key == "ldp-noise"]
        return [*plain, *noise]

    @property
    def command(self) -> str:
        return shlex.join(["unskew", *self.arguments()])


def published(method: str, data: str, noise: float) -> tuple[float, float] | None:
    """HR@10 and NDCG@10 as the paper prints them, where it does."""
    if method == "pfedclr" and data in _BY_STRENGTH and noise in STRENGTHS:
        figures, at = _BY_STRENGTH[data].split(), 2 * STRENGTHS.index(noise)
    elif data == "ml-100k" and method in _BY_METHOD and noise in (0.0, STRENGTH):
        figures, at = _BY_METHOD[method].split(), 2 * (noise > 0)
    else:
        return None
    return float(figures[at]), float(figures[at + 1])


def methods_of(table: str) -> tuple[str, ...]:
    """The methods of a table, the paper's first."""
    return (*(COMPARED if table == "ldp-methods" else ("pfedclr",)), *BESIDE)


def ldp_cells(
    table: str,
    data: Sequence[str] = DATASETS,
    protocols: Sequence[str] = ("paper", "leak-free"),
    seeds: tuple[int, ...] = (0, 1, 2),
    methods: Sequence[str] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[LdpCell]:
    """The runs of a table. ``settings`` by method, for example the presets of a data set."""
    if table not in TABLES:
        raise UnskewError(f'There is no table "{table}"; there are {", ".join(TABLES)}.')
    chosen = methods_of(table) if methods is None else methods
    strengths = STRENGTHS if table == "ldp-noise" else (0.0, STRENGTH)
    return [
        _cell(method, source, protocol, seeds, noise, (settings or {}).get(method, {}))
        for source in data
        for protocol in protocols
        for method in chosen
        for noise in strengths
    ]


def ldp_table(rows: Sequence[Mapping[str, Any]], table: str) -> str:
    """Markdown for the rows of a table's cells, a section per protocol; the paper's figures, which
    are ``paper`` figures, in brackets."""
    make = _by_strength if table == "ldp-noise" else _with_and_without
    protocols = [p for p in ("paper", "leak-free") if any(r["protocol"] == p for r in rows)]
    sections = []
    for protocol in protocols:
        same = [row for row in rows if row["protocol"] == protocol]
        sections.append(f"Protocol `{protocol}`\n\n{make(same, protocol)}")
    return "\n\n".join(sections)


def noise_of(row: Mapping[str, Any]) -> float:
    """The strength of noise of a run's row."""
    return float(row["privacy"]["noise"]) if "privacy" in row else 0.0


def _cell(
    method: str,
    source: str,
    protocol: str,
    seeds: tuple[int, ...],
    noise: float,
    settings: Mapping[str, Any],
) -> LdpCell:
    pairs = tuple((key, str(value)) for key, value in settings.items())
    private = (("ldp-noise", f"{noise:g}"),) if noise else ()
    return LdpCell(method, source, protocol, seeds, (*pairs, *private))


def _with_and_without(rows: Sequence[Mapping[str, Any]], protocol: str) -> str:
    """Without noise, with, and what it cost; the paper's after a comma in brackets."""
    lines = [
        "| data | method | metric | without | with λ = 0.5 | change |",
        "|---|---|---|---|---|---|",
    ]
    cells = {(row["data"], row["method"], noise_of(row)): row for row in rows}
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        pair = _alike([cells.get((data, method, noise)) for noise in (0.0, STRENGTH)])
        theirs = [published(method, data, noise) for noise in (0.0, STRENGTH)]
        for at, metric in enumerate(("hr@10", "ndcg@10")):
            ours = [None if row is None else float(_figures(row)[metric]["mean"]) for row in pair]
            printed = [None if both is None else both[at] for both in theirs]
            shown = [_beside(o, p, protocol) for o, p in zip(ours, printed, strict=True)]
            change = _beside_change(_change(*ours), _change(*printed), protocol)
            name = metric.upper()
            lines.append(f"| {data} | {method} | {name} | {shown[0]} | {shown[1]} | {change} |")
    return "\n".join(lines)


def _by_strength(rows: Sequence[Mapping[str, Any]], protocol: str) -> str:
    head = " | ".join(f"λ = {noise:g}" for noise in STRENGTHS)
    lines = [f"| data | method | metric | {head} |", "|---|---|---|" + "---|" * len(STRENGTHS)]
    cells = {(row["data"], row["method"], noise_of(row)): row for row in rows}
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        found = _alike([cells.get((data, method, noise)) for noise in STRENGTHS])
        for at, metric in enumerate(("hr@10", "ndcg@10")):
            shown = []
            for row, noise in zip(found, STRENGTHS, strict=True):
                printed = published(method, data, noise)
                ours = None if row is None else float(_figures(row)[metric]["mean"])
                shown.append(_beside(ours, None if printed is None else printed[at], protocol))
            name = metric.upper()
            lines.append(f"| {data} | {method} | {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _alike(rows: Sequence[Mapping[str, Any] | None]) -> list[Mapping[str, Any] | None]:
    """The same rows, those that there are on the seeds they have in common."""
    there = iter(on_common_seeds([dict(row) for row in rows if row is not None]))
    return [None if row is None else next(there) for row in rows]


def _figures(row: Mapping[str, Any]) -> Mapping[str, Any]:
    figures: Mapping[str, Any] = row["metrics"]
    return figures


def _beside(ours: float | None, printed: float | None, protocol: str) -> str:
    own = "–" if ours is None else f"{ours:.4f}"
    return own if printed is None or protocol != "paper" else f"{own} ({printed:.4f})"


def _change(without: float | None, with_noise: float | None) -> float | None:
    if not without or with_noise is None:
        return None
    return with_noise / without - 1


def _beside_change(ours: float | None, printed: float | None, protocol: str) -> str:
    own = "–" if ours is None else f"{ours:+.2%}"
    return own if printed is None or protocol != "paper" else f"{own} ({printed:+.2%})"
