"""What federated methods score if a device ranks with the shared parts as it downloaded them, not
as it trained them: `python experiments/downloaded_items.py METHOD DATA SEEDS`, for example
`pfedrec ml-100k 0,1,2`. Training is the same; a row goes to results/downloaded_items.jsonl.

The PFedCLR paper does not say which of the two it evaluates for its baselines.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data import load
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.methods import METHODS
from unskew.runs.results import summarise
from unskew.types import Float32, Rows

RESULTS = Path(__file__).resolve().parents[1] / "results" / "downloaded_items.jsonl"


def as_downloaded(download: Any, private: Any) -> Any:
    """What a device holds, with all that it trained of the shared parts taken out."""
    n = len(private.Q.indptr) - 1
    taken_out: dict[str, Any] = {"Q": Rows.empty(n, private.Q.values.shape[1])}
    if "mlp" in download._fields:  # FedNCF's network is shared, too
        taken_out["mlp"] = np.tile(download.mlp, (n, 1))
    if "factor" in private._fields:  # GPFedRec: 1 is the common table, as it was downloaded
        taken_out["factor"] = np.ones(n, np.float32)
    return private._replace(**taken_out)


def without_own_items(name: str) -> Any:
    """The method, but for a score that sees nothing a device trained of the shared parts."""
    method: Any = METHODS[name]

    class Downloaded(method):  # type: ignore[misc]
        def score(self, download: Any, private: Any) -> Float32:
            scores: Float32 = super().score(download, as_downloaded(download, private))
            return scores

    return Downloaded()


def best_round(method: Any, data: str, seed: int) -> dict[str, float]:
    """Test figures at the round with the best validation NDCG@10, under `paper`."""
    federation = Federation(method, prepare(load(data), "paper"), seed)
    state = federation.start()
    rows = [federation.step(state) for _ in range(method.config.rounds)]
    best = max(rows, key=lambda row: row["validation"]["ndcg@10"])
    print(f"seed {seed}: round {best['round']}, {best['test']}", flush=True)
    figures: dict[str, float] = best["test"]
    return figures


def main(name: str, data: str, seeds: str) -> None:
    method = without_own_items(name)
    found = [best_round(method, data, int(seed)) for seed in seeds.split(",")]
    row = {
        "command": f"python experiments/downloaded_items.py {name} {data} {seeds}",
        "method": name,
        "data": data,
        "protocol": "paper",
        "seeds": [int(seed) for seed in seeds.split(",")],
        "metrics": summarise(found),
    }
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
