"""Speed: what `make bench` measured on an idle machine, both sides in one run."""

from __future__ import annotations

from unskew.experiments.tables._plan import Row, Stores, Table, by_data, having, markdown_table

STORE = "bench"


def seconds(stores: Stores, method: str, data: str) -> float | None:
    """Of one round of all clients and the server, if it was benchmarked."""
    found = having(stores.get(STORE, ()), name=f"{method} round", data=data)
    return float(found[-1]["seconds_unskew"]) if found else None


def markdown(stores: Stores) -> str:
    head = ["what", "data", "against", "its seconds", "ours", "ratio", "lowest to highest", "bar"]
    lines = [_line(row) for row in by_data(stores.get(STORE, ()))]
    return markdown_table(head, lines) if lines else ""


def _line(row: Row) -> list[str]:
    digits = 0 if row["ratio"] >= 10 else 2
    ratio, low, high = (f"{row[key]:.{digits}f}" for key in ("ratio", "ratio_low", "ratio_high"))
    bar = "–"
    if row["bar"] is not None:
        bar = f"{row['bar']:g}: {'met' if row['passed'] else '**missed**'}"
    times = [f"{row[key]:.3g}" for key in ("seconds_against", "seconds_unskew")]
    return [row["name"], row["data"], row["against"], *times, ratio, f"{low} to {high}", bar]


TABLE = Table(
    "speed",
    "Speed",
    "`make bench` on two idle cores: a method's round against a loop over its clients in PyTorch "
    "(a sample of the clients, scaled), the Step 1 kernel against straightforward C, a round with "
    "noise against one without (there the ratio is a price), and pFedGraph's programmes against a "
    "general solver. Medians over laps taken in turns.",
    STORE,
    lambda plan: (),
    markdown,
)
