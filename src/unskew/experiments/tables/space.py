"""Space: parameters on a client and on the server, counted as the paper counts them.

The paper counts float32 parameters in units of 2^20 bytes. A client holds all its tables; the
server holds the global model and one upload of every client (which a server that sums need not).
With n clients, m items, embedding size d, rank r and s = n / 10 clients aggregated by pFedGraph:
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unskew.experiments.tables._plan import (
    Row,
    Stores,
    Table,
    distinct,
    having,
    markdown_table,
    plain,
)
from unskew.experiments.tables.datasets import statistics_tasks
from unskew.methods import METHODS

MB = 2**20 / 4
"""Parameters in a megabyte of float32."""


def _network(d: int) -> int:
    """A perceptron 2d -> d -> d / 2 -> 1 with biases."""
    return (2 * d + 1) * d + (d + 1) * (d // 2) + d // 2 + 1


Count = Callable[[int, int, int, int], int]
"""Parameters, from n, m, d and r."""
FORMULAS: dict[str, tuple[str, Count, str, Count]] = {
    "fedmf": (
        "(m + 1) d",
        lambda n, m, d, r: (m + 1) * d,
        "(n + 1) m d",
        lambda n, m, d, r: (n + 1) * m * d,
    ),
    "fedncf": (
        "(m + 1) d + network",
        lambda n, m, d, r: (m + 1) * d + _network(d),
        "(n + 1) (m d + network)",
        lambda n, m, d, r: (n + 1) * (m * d + _network(d)),
    ),
    "pfedgraph": (
        "(m + 1) d",
        lambda n, m, d, r: (m + 1) * d,
        "(n + s) m d + s²",
        lambda n, m, d, r: (n + n // 10) * m * d + (n // 10) ** 2,
    ),
    "gpfedrec": (
        "(m + 1) d + network",
        lambda n, m, d, r: (m + 1) * d + _network(d),
        "(2n + 1) m d + n²",
        lambda n, m, d, r: (2 * n + 1) * m * d + n * n,
    ),
    "pfedrec": (
        "(m + 1) d + 1",
        lambda n, m, d, r: (m + 1) * d + 1,
        "(n + 1) m d + n",
        lambda n, m, d, r: (n + 1) * m * d + n,
    ),
    "fedrap": (
        "(2m + 1) d + 1",
        lambda n, m, d, r: (2 * m + 1) * d + 1,
        "(n + 1) m d",
        lambda n, m, d, r: (n + 1) * m * d,
    ),
    "fedmf-af": (
        "(2m + 1) d",
        lambda n, m, d, r: (2 * m + 1) * d,
        "(n + 1) m d",
        lambda n, m, d, r: (n + 1) * m * d,
    ),
    "pfedclr": (
        "(m + 1) d + (m + d) r",
        lambda n, m, d, r: (m + 1) * d + (m + d) * r,
        "(n + 1) m d",
        lambda n, m, d, r: (n + 1) * m * d,
    ),
    "fedrefit": (
        "m (3d + 2) + 2d + 1",
        lambda n, m, d, r: m * (3 * d + 2) + 2 * d + 1,
        "m (3d + 2) + m (2d + 1) + (2d + 1)²: sums only",
        lambda n, m, d, r: m * (5 * d + 3) + (2 * d + 1) ** 2,
    ),
}
COUNTED = {"lastfm-2k": (1269, 12322)}
"""Clients and items behind the paper's figures where they are not those of its statistics: its
LastFM-2K here has exactly the users with at least 10 rows, not the 1,600 it names."""
# Client and server on FilmTrust, ML-100K, ML-1M, HetRec2011, LastFM-2K.
_COLUMNS = ("filmtrust", "ml-100k", "ml-1m", "hetrec2011", "lastfm-2k")
_PUBLISHED = {
    "fedmf": ".1247 125.0077 .1027 96.9121 .2263 1366.4518 .6171 1304.3473 .7521 955.1355",
    "fedncf": ".1273 127.5827 .1053 99.3356 .2288 1381.9608 .6196 1309.7745 .7547 958.3960",
    "pfedgraph": ".1247 137.3846 .1027 106.4933 .2263 1504.2398 .6171 1434.0880 .7521 1049.2055",
    "gpfedrec": ".1273 253.7207 .1053 197.1138 .2288 2871.8436 .6196 2625.1093 .7547 1915.6620",
    "pfedrec": ".1247 125.0115 .1027 96.9157 .2263 1366.4748 .6171 1304.3554 .7521 955.1403",
    "fedrap": ".2493 125.0077 .2054 96.9121 .4525 1366.4518 1.2341 1304.3473 1.5042 955.1355",
    "pfedclr": ".1404 125.0077 .1157 96.9121 .2547 1366.4518 .6943 1304.3473 .8463 955.1355",
}


def megabytes(method: str, n: int, m: int, rank: int = 2) -> tuple[float, float]:
    """On a client and on the server, with the method's own embedding size."""
    _, client, _, server = FORMULAS[method]
    d = min(METHODS[method].Config().dim, m)
    return client(n, m, d, rank) / MB, server(n, m, d, rank) / MB


def published(method: str, data: str) -> tuple[float, float] | None:
    if method not in _PUBLISHED or data not in _COLUMNS:
        return None
    figures, at = _PUBLISHED[method].split(), 2 * _COLUMNS.index(data)
    return float(figures[at]), float(figures[at + 1])


def markdown(stores: Stores) -> str:
    sources: list[Row] = list(stores["datasets"])
    if not sources:
        return ""
    names = [row["data"] for row in sources]
    parts = []
    for at, part in enumerate(("client", "server")):
        lines = []
        for method, formulas in FORMULAS.items():
            cells = []
            for row in sources:
                ours = megabytes(method, row["n_users"], row["n_items"])[at]
                printed = published(method, row["data"])
                cells.append(f"{ours:.4f}" + (f" ({printed[at]:.4f})" if printed else ""))
            formula = (formulas[0], formulas[2])[at]
            lines.append([method, formula, *cells])
        parts.append(markdown_table([f"{part}, MB", "parameters", *names], lines))
    measured = plain(stores["main"])
    methods = dict.fromkeys((*FORMULAS, *distinct(measured, "method")))
    lines = [
        [method, *(_peak(having(measured, method=method, data=name)) for name in names)]
        for method in methods
    ]
    parts.append(
        "Measured: peak memory of the whole simulation, all clients and the interpreter included, "
        "as each protocol was run last; the largest of them.\n\n"
        + markdown_table(["MB", *names], lines)
    )
    return "\n\n".join(parts)


def _peak(rows: Sequence[Row]) -> str:
    peaks = [row["peak_rss_mb"] for row in rows if row["peak_rss_mb"]]
    return f"{max(peaks):.0f}" if peaks else "–"


TABLE = Table(
    "space",
    "Space",
    "Parameters in MB of float32, in brackets what the paper prints. n clients, m items, embedding "
    "size d (16, FedRefit 64), rank r = 2, s = n / 10. On LastFM-2K the paper's figures are those "
    "of 1,269 clients and 12,322 items, the users with at least 10 rows, not of the 1,600 and "
    "12,454 it names.",
    "datasets",
    statistics_tasks,
    markdown,
)
