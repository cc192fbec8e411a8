"""Sizes, agreement with Python and speed of exported models.

    python experiments/export.py RUN [RUN ...]

For each finished run, and for ONNX (float32, float16) and the page: the file's size, the largest
difference from Python's scores on 500 random histories (relative to the largest score; with the
file's tables, and with those as trained), how many of their ten best items are the same, and the
median time per recommendation, on one thread of onnxruntime and in headless Chromium. The rows go
to results/export.jsonl; they replace earlier rows of the same method, data and format.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from unskew.engine import newcomer_scores
from unskew.export import Exported, to_onnx, to_page
from unskew.files import read_json_lines, write_json_lines
from unskew.ragged import distinct
from unskew.runs import Run, open_run
from unskew.types import Cohort, Float32, Ragged

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from browser import Browser, chromium  # noqa: E402

RESULTS = ROOT / "results" / "export.jsonl"
N_HISTORIES, MAX_LENGTH, K = 500, 60, 10
Answers = tuple[list[Float32], list[list[int]], dict[str, float]]
"""Scores of each history, its best items, and times in milliseconds."""


def draw_histories(n_items: int) -> Ragged:
    random = np.random.default_rng(0)
    lists = [
        random.permutation(n_items)[: random.integers(1, MAX_LENGTH)] for _ in range(N_HISTORIES)
    ]
    return Ragged(np.cumsum([0, *map(len, lists)]), np.concatenate(lists).astype(np.int32))


def answers_of_onnx(content: bytes, histories: Ragged) -> Answers:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options)
    scores, best, times = [], [], []
    for number in range(N_HISTORIES):
        history = histories.of(number).astype(np.int64)
        start = time.perf_counter()
        found = session.run(None, {"history": history})
        times.append(1000 * (time.perf_counter() - start))
        scores.append(found[0])
        best.append(found[1].tolist())
    return scores, best, {"milliseconds": statistics.median(times)}


def answers_of_page(content: bytes, histories: Ragged) -> Answers:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "index.html"
        page.write_bytes(content)
        browser = Browser(chromium() or "chromium", Path(folder) / "profile")
        try:
            browser.open(page)
            while not browser.run("Boolean(window.unskew)"):
                time.sleep(0.01)
            click = browser.run(
                "(() => { const start = performance.now(); "
                "document.querySelector('#hits input').click(); "
                "return performance.now() - start; })()"
            )
            ready = browser.run("performance.now()")
            scores, best, times = [], [], []
            for number in range(N_HISTORIES):
                history = json.dumps(histories.of(number).tolist())
                scores.append(np.array(browser.run(f"[...unskew.scores({history})]"), np.float32))
                found, took = browser.run(
                    f"(() => {{ const start = performance.now(), b = unskew.best({history}, {K}); "
                    "return [b.map(one => one.item), performance.now() - start]; })()"
                )
                best.append(found)
                times.append(took)
            assert browser.complaints() == []
            assert browser.requests() == [page.as_uri()]
        finally:
            browser.close()
    taken = {"milliseconds": statistics.median(times), "first_click_milliseconds": click}
    return scores, best, taken | {"loaded_milliseconds": ready}


def error(found: Float32, wanted: Float32) -> float:
    return float(np.abs(found - wanted).max() / max(float(np.abs(wanted).max()), 1e-30))


def same_best(items: list[int], wanted: Float32, history: Any) -> bool:
    """Whether these are the ten best items, near-ties aside."""
    best = np.sort(np.delete(wanted, history))[::-1][:K]
    return bool(np.abs(wanted[items] - best).max() <= 1e-5 * np.abs(wanted).max())


def measure(
    run: Run, name: str, exported: Exported, answers: Callable[[bytes, Ragged], Answers]
) -> dict[str, Any]:
    recommender, n_items = exported.recommender, exported.recommender.split.n_items
    histories = draw_histories(n_items)
    users = np.arange(N_HISTORIES)
    cohort = Cohort(users, histories, distinct(histories), n_items, 0, 1)
    trained = newcomer_scores(*recommender.model, cohort)
    same = exported.scores(histories)
    scores, best, times = answers(exported.content, histories)
    ndcg = exported.ndcg or (None, None)
    return {
        "command": f"python experiments/export.py {run.folder}",
        "trained_by": run.result().command,
        "method": run.spec.method,
        "data": run.spec.data,
        "format": name,
        "tables": dict(exported.facts)["Tables"],
        "items": n_items,
        "bytes": len(exported.content),
        "histories": N_HISTORIES,
        "largest_error": max(map(error, scores, same)),
        "largest_error_as_trained": max(map(error, scores, trained)),
        "same_ten": sum(map(same_best, best, same, map(histories.of, range(N_HISTORIES)))),
        "ndcg_as_trained": ndcg[0],
        "ndcg_of_file": ndcg[1],
        **{key: round(value, 3) for key, value in times.items()},
    }


def main(folders: list[str]) -> None:
    for folder in folders:
        run = open_run(Path(folder))
        made = [
            measure(run, "onnx float32", to_onnx(run), answers_of_onnx),
            measure(run, "onnx float16", to_onnx(run, float16=True), answers_of_onnx),
            measure(run, "web", to_page(run), answers_of_page),
        ]
        rows = read_json_lines(RESULTS) if RESULTS.exists() else []
        kept = [row for row in rows if all(key_of(row) != key_of(one) for one in made)]
        write_json_lines(RESULTS, [*kept, *made])
        for row in made:
            print(row["method"], row["data"], row["format"], row["bytes"], row["same_ten"])


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    return row["method"], row["data"], row["format"]


if __name__ == "__main__":
    main(sys.argv[1:])
