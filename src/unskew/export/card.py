"""What is known about an exported model: how it was made, how good it is, on what terms."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from unskew.data import sources
from unskew.engine import Recommender
from unskew.runs import Run, metric_label

ONNX_INTERFACE = """\
Input `history`: item numbers (int64, any length, oldest first; 0 is the first item of
`items.json`). Only an item's first mention counts; negative numbers are ignored, and an empty
history is allowed. Outputs: `scores` (float32, one per item), `top_items` (int64) and
`top_scores`: the best items that are not in the history, best first."""
"""How to use ``model.onnx``, for its model card."""
PAGE_INTERFACE = """\
`index.html` needs no server and no network. In the browser's console, `unskew.scores([3, 1])` gives
the scores of all items for a history of item numbers, `unskew.best([3, 1], 10)` the best ones."""
"""How to use ``index.html``, for its model card."""
LIMITS = """\
- The file scores by what its user's history says. It learns nothing: new items and new tastes of
  others come with a new file.
- It holds the items' tables, labels and titles, and a page also the number of users per item. It
  holds no user's history and no user's state."""
"""What an exported model does not do, and what it holds."""


def model_facts(run: Run, recommender: Recommender) -> list[tuple[str, str]]:
    """Facts on a run's model, each with its name."""
    result, method, spec = run.result(), recommender.model[0], run.spec
    at = list(result.seeds).index(recommender.seed)
    source = next((one for one in sources() if one.name == spec.data), None)
    data = Path(spec.data).name if source is None else f"{spec.data} ({source.title})"
    licence = "of your own data: see to it" if source is None else source.licence
    metrics = ", ".join(
        f"{metric_label(name)} {summary.mean:.4f}"
        for name, summary in result.metrics.items()
        if name.endswith("@10")
    )
    settings = ", ".join(f"{key} = {value}" for key, value in result.settings.items())
    facts = [
        ("Method", f"{method.name}: {getattr(method, 'summary', '')}"),
        ("Settings", settings or "the method's defaults"),
        ("Data", f"{data}: {result.users:,} users, {result.items:,} items"),
        ("Terms of the data", licence),
        ("Protocol", f"{result.protocol}, {result.ranking} ranked"),
        ("Test metrics", f"{metrics} ({_seeds(result.seeds)})"),
        ("Model", f"seed {recommender.seed}, round {result.best_rounds[at]} of {result.rounds}"),
        ("Trained by", result.command or "Python"),
        ("Versions", ", ".join(f"{name} {number}" for name, number in result.versions.items())),
        ("Checksum of the trained model", (result.model_sha256_per_seed or ["none"])[at]),
    ]
    if result.privacy is not None:
        facts.append(("Noise on uploads", f"{result.privacy['kind']}, scale {result.noise:.4g}"))
    return facts


def model_card(
    facts: Sequence[tuple[str, str]], content: bytes, interface: str, command: str
) -> str:
    """The model card of the file ``content``, as Markdown."""
    rows = [
        *facts,
        ("Exported by", command or "Python"),
        ("Size", f"{len(content):,} bytes"),
        ("Checksum of the file (SHA-256)", hashlib.sha256(content).hexdigest()),
    ]
    table = "\n".join(f"| {key} | {_cell(value)} |" for key, value in rows)
    return (
        f"# Model card: {_cell(facts[0][1].partition(':')[0])}\n\n"
        f"| | |\n|---|---|\n{table}\n\n## Use\n\n{interface}\n\n## Limits\n\n{LIMITS}\n"
    )


def _cell(text: str) -> str:
    """Text that can stand in a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").replace("<", "\\<").split())


def _seeds(seeds: Sequence[int]) -> str:
    many = f"mean over seeds {', '.join(map(str, seeds))}"
    return many if len(seeds) > 1 else f"seed {seeds[0]}"
