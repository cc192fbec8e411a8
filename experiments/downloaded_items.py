"""Score federated methods with the shared parts as downloaded, not as the device trained them.

    python experiments/downloaded_items.py METHOD DATA SEEDS

For example `pfedrec ml-100k 0,1,2`. Training is unchanged. The row goes to
results/downloaded_items.jsonl. The PFedCLR paper does not say which of the two it evaluates for its
baselines.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data import load
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.files import append_json_line
from unskew.methods import METHODS
from unskew.runs.results import summarise
from unskew.types import Float32, Rows

RESULTS = Path(__file__).resolve().parents[1] / "results" / "downloaded_items.jsonl"


def strip_trained_parts(download: Any, private: Any) -> Any:
    """A device's private state without what it trained of the shared parts."""
    n = len(private.Q.indptr) - 1
    stripped: dict[str, Any] = {"Q": Rows.empty(n, private.Q.values.shape[1])}
    if "mlp" in download._fields:  # FedNCF shares its network too
        stripped["mlp"] = np.tile(download.mlp, (n, 1))
    if "factor" in private._fields:  # GPFedRec: 1 stands for the common table as downloaded
        stripped["factor"] = np.ones(n, np.float32)
    return private._replace(**stripped)


def scoring_as_downloaded(name: str) -> Any:
    """The method with scores that ignore what a device trained of the shared parts."""
    method: Any = METHODS[name]

    class Downloaded(method):  # type: ignore[misc]
        def score(self, download: Any, private: Any) -> Float32:
            scores: Float32 = super().score(download, strip_trained_parts(download, private))
            return scores

    return Downloaded()


def best_figures(method: Any, data: str, seed: int) -> dict[str, float]:
    """Test figures at the round with the best validation NDCG@10, under `paper`."""
    federation = Federation(method, prepare(load(data), "paper"), seed)
    state = federation.start()
    rows = [federation.step(state) for _ in range(method.config.rounds)]
    best = max(rows, key=lambda row: row["validation"]["ndcg@10"])
    print(f"seed {seed}: round {best['round']}, {best['test']}", flush=True)
    figures: dict[str, float] = best["test"]
    return figures


def main(name: str, data: str, seeds: str) -> None:
    method = scoring_as_downloaded(name)
    found = [best_figures(method, data, int(seed)) for seed in seeds.split(",")]
    row = {
        "command": f"python experiments/downloaded_items.py {name} {data} {seeds}",
        "method": name,
        "data": data,
        "protocol": "paper",
        "seeds": [int(seed) for seed in seeds.split(",")],
        "metrics": summarise(found),
    }
    append_json_line(RESULTS, row)


if __name__ == "__main__":
    main(*sys.argv[1:])
