"""Runs made up for the report's tests, in the shape real ones have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unskew.display import Cell, Chart, Panel, Series, Table
from unskew.report import Chapter, Client, Extras, FinishedRun
from unskew.runs import ClientView, Result, Summary

METHODS = ("pfedclr", "fedmf", "pfedrec", "gpfedrec", "fedrap", "pfedgraph", "fedncf", "fedmf-af")
ROUNDS = 12


def _figures(ndcg: float, seeds: int) -> dict[str, Summary]:
    def over_seeds(mean: float) -> Summary:
        values = [mean + (0.001 if seed else -0.001) * (seeds > 1) for seed in range(seeds)]
        return Summary(mean, 0.0014 if seeds > 1 else 0.0, values)

    return {"hr@10": over_seeds(ndcg * 1.8), "ndcg@10": over_seeds(ndcg)}


def sample(
    method: str,
    protocol: str = "leak-free",
    data: str = "demo",
    level: float = 0.05,
    sampled: float = 0.15,
    seeds: int = 2,
    **changes: Any,
) -> FinishedRun:
    """A run whose NDCG@10 rises to ``level``, or to ``sampled`` among 99 candidates; ``changes``
    are other values of its result."""
    result = Result(
        method=method,
        settings={"rounds": ROUNDS},
        data=data,
        protocol=protocol,
        seeds=list(range(seeds)),
        rounds=ROUNDS,
        best_rounds=[ROUNDS] * seeds,
        ranking="99 sampled candidates" if protocol == "paper" else "all unseen items",
        users=1000,
        items=1500,
        metrics=_figures(level, seeds),
        last_round=_figures(level * 0.99, seeds),
        sampled99=_figures(sampled, seeds),
        seconds_per_round=0.25,
        peak_rss_mb=339.19,
        bytes_up=18_687.2,
        bytes_down=96_000.0,
        model_sha256_per_seed=["5caf" * 16] * seeds,
        versions={"python": "3.11.7", "unskew": "0.1.0", "numpy": "2.4.6"},
        command=f"unskew run {method} --data {data} --protocol {protocol}",
        notes=[],
    )
    curves = [
        [level * (0.3 + 0.7 * round / ROUNDS) + 0.001 * seed for round in range(1, ROUNDS + 1)]
        for seed in range(seeds)
    ]
    return FinishedRun(replace(result, **changes), curves)


def samples(count: int) -> list[FinishedRun]:
    """Distinct runs: eight methods leak-free, two of them under the paper's protocol as well."""
    runs = [sample(method, level=0.02 + 0.004 * at) for at, method in enumerate(METHODS)]
    runs += [sample(m, "paper", level=0.3 + 0.1 * i) for i, m in enumerate(METHODS[:2])]
    return runs[:count]


HISTORY = [f"Film {at:02}" for at in range(30)]


def extras(word: str = "") -> Extras:
    """Everything a page can show beside ``samples(10)``; ``word`` goes wherever text goes."""
    client = Client(
        f"demo{word}",
        f"picked for a test{word}",
        {0: _view(3, word), 8: _view(1, word), 9: _view(0, word)},
    )
    attacked = tuple(
        Series(name, name, [0.99, 0.8], [ndcg, ndcg], notes=[f"λ 0{word}", f"λ 0.5{word}"])
        for name, ndcg in (("pfedclr", 0.02), (f"unheard-of{word}", 0.03))
    )
    panels = [
        Panel(f"The server sees {what}", "AUC", "NDCG@10", attacked) for what in ("all", "sums")
    ]
    trade_off = Chart(f"What uploads give away{word}", tuple(panels))
    auc = Cell("0.99", 0.99, "[0.98, 1.00]")
    table = Table.of(["method", "λ", "AUC"], [[f"pfedclr{word}", 0, auc]])
    series = Series(f"HR@10{word}", "HR@10", [0, 1, 2], [0.1, 0.3, 0.2])
    bubble = Series("pfedclr", "pfedclr", [1.5], [0.4], "points", sizes=[1.0])
    sweep = Panel(f"demo{word}", f"rank r{word}", "HR@10", (series,), names=("1", "2", "4"))
    charts = [
        Chart(f"By rank{word}", (sweep,)),
        Chart("Efficiency", (Panel("demo", "MB", "HR@10", (bubble,)),)),
    ]
    chapter = Chapter("rank", f"Rank{word}", f"By the rank `r`{word}.", [paper_table(word)], charts)
    return Extras(
        {("pfedclr", "demo"): (0.9989, 0.9225)},
        client,
        [Chapter("privacy-1", f"Privacy on demo{word}", "Up is good.", [table], [trade_off])],
        [chapter],
        [f"unskew reproduce rank{word}"],
    )


def paper_table(word: str) -> Table:
    return Table.of(
        ["data", "method", "HR@10"],
        [
            ["a", "first", Cell.number(0.3, 3, 0.01, 0.91)],
            ["a", "second", Cell.number(None, 3, published=0.5)],
            ["b", f"third{word}", Cell.number(0.9, 3)],
            ["b", "fourth", Cell.number(0.04, 4)],
        ],
        f"Protocol `paper`{word}",
        f"See [the page](page.md) on **this**{word}.",
        [f"Order on a: first, **not** second{word}."],
    )


def _view(hit: int, word: str) -> ClientView:
    """Ten films, the held-out one in place ``hit`` unless that is 0."""
    top = [(f"Film {40 + at}{word}", "") for at in range(10)]
    if hit:
        top[hit - 1] = (f"The held-out film{word}", "test")
        top[hit] = (f"A validation film{word}", "validation")
    return ClientView(
        f"client 7{word}",
        [*HISTORY, f"Last film{word}"],
        [f"A validation film{word}"],
        [(f"The held-out film{word}", hit or 321)],
        top,
        1470,
    )
