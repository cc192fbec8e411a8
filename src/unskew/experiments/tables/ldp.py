"""The three tables on local differential privacy; what they are stands in ``_ldp``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from unskew.experiments._ldp import STRENGTH, ldp_cells, ldp_table, methods_of, noise_of
from unskew.experiments._paper import DATASETS
from unskew.experiments._reproduce import Cell
from unskew.experiments.tables._plan import Plan, Row, Stores, Table, by_data, plain


def _cells(name: str, *own: str) -> Callable[[Plan], list[Cell]]:
    def cells(plan: Plan) -> list[Cell]:
        data = plan.sources(*own)
        chosen = None
        if plan.methods is not None:
            chosen = [method for method in methods_of(name) if method in plan.methods]
        made = ldp_cells(name, data, plan.protocols, plan.seeds, chosen)
        if plan.quick and name == "ldp-noise":
            ends = ("0.1", "1")
            made = [cell for cell in made if dict(cell.settings).get("ldp-noise", "1") in ends]
        return [plan.shortened(cell) for cell in made]

    return cells


def _rows(stores: Stores, name: str) -> list[Row]:
    private = [row for row in stores["ldp"] if "privacy" in row and not row["settings"]]
    rows = [*plain(stores["main"]), *plain(stores["ldp"]), *private]
    methods = methods_of(name)
    rows = [row for row in rows if row["method"] in methods]
    if name != "ldp-noise":
        rows = [row for row in rows if noise_of(row) in (0.0, STRENGTH)]
    noisy = {(row["method"], row["data"], row["protocol"]) for row in rows if noise_of(row)}
    if name == "ldp-methods":  # one method alone is no comparison
        several = Counter((data, protocol) for _, data, protocol in noisy)
        noisy = {one for one in noisy if several[one[1:]] > 1}
    kept = [row for row in rows if (row["method"], row["data"], row["protocol"]) in noisy]
    return by_data(sorted(kept, key=lambda row: methods.index(row["method"])))


def _markdown(name: str) -> Callable[[Stores], str]:
    return lambda stores: ldp_table(_rows(stores, name), name)


def _table(name: str, title: str, about: str, *own: str) -> Table:
    return Table(name, title, about, "ldp", _cells(name, *own), _markdown(name))


TABLES = (
    _table(
        "ldp",
        "Local differential privacy",
        "PFedCLR, and FedRefit beside it, with Laplace noise of the paper's strength on uploads.",
        *DATASETS,
    ),
    _table(
        "ldp-methods",
        "The same noise on every method",
        "What noise of strength 0.5 costs each method.",
        "ml-100k",
    ),
    _table(
        "ldp-noise",
        "Every strength of noise",
        "PFedCLR, and FedRefit beside it, under noise of growing strength.",
        *DATASETS,
    ),
)
