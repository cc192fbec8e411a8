"""docs/results.md, made from committed rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unskew.experiments.tables import TABLES, Row, Stores

_HEAD = """# Results

Made by `unskew reproduce` from the rows in `results/`; do not edit by hand. Figures are taken at
the round with the best validation NDCG@10, but for those that follow a run round by round. The
table of methods gives mean ± standard deviation over seeds, and one seed where no deviation stands;
tables that compare variants of a run (ablation, noise, rank, learning rate) compare them on the
seeds that all of a data set's variants have.
"""
_QUICK_HEAD = """# Results of a quick run

**Quick: a few rounds, one seed, parts of the grids. These figures say that everything works, and
nothing about any method.** Made by `unskew reproduce --quick`.
"""


def document(
    stores: Stores, figures: Mapping[str, Sequence[str]] | None = None, quick: bool = False
) -> str:
    """The whole page; ``figures`` are paths of pictures by the table they belong to."""
    sections = [_QUICK_HEAD if quick else _HEAD]
    for table in TABLES.values():
        text = table.markdown(stores) if table.markdown is not None else ""
        images = [f"![{table.title}]({path})" for path in (figures or {}).get(table.name, ())]
        parts = [part for part in (text, "\n\n".join(images)) if part]
        if parts:
            mark = " (quick)" if quick else ""
            parts = [f"## {table.title}{mark}", table.about, *parts]
            sections.append("\n\n".join(parts) + "\n")
    sections.append(f"## Commands\n\n```\n{_commands(stores)}\n```\n")
    return "\n".join(sections)


def _commands(stores: Stores) -> str:
    """What made the rows; curves come with the runs they belong to."""
    rows: list[Row] = [row for name, rows in stores.items() if name != "curves" for row in rows]
    return "\n".join(dict.fromkeys(row["command"] for row in rows))
