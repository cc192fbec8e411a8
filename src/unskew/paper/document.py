"""docs/results.md and the figures of the report, made from rows alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from unskew.files import write_text
from unskew.paper.cells import method_checksum
from unskew.paper.exhibits import EXHIBITS
from unskew.paper.methods import SIDE_BY_SIDE_METHODS, side_by_side
from unskew.paper.rows import Results
from unskew.report import to_markdown
from unskew.types import UnskewError

README_DATA = ("ml-100k", "ml-1m")
"""Data sets of the small table in a page."""
_HEAD = """# Results

Made by `unskew reproduce` from the rows in `results/`; do not edit by hand. The commands that made
the rows are in `results/commands.txt`. Figures are taken at the round with the best validation
NDCG@10, except those that follow a run round by round. The table of methods gives mean ± standard
deviation over seeds, or one seed without a deviation. Tables that compare variants of a run
(ablation, noise, rank, learning rate) use the seeds that all variants on a data set have.
"""
_QUICK_HEAD = """# Results of a quick run

**Quick: a few rounds, one seed, parts of the grids. These figures show that everything works, and
nothing about any method.** Made by `unskew reproduce --quick`.
"""


def document(
    results: Results, figures: Mapping[str, Sequence[str]] | None = None, quick: bool = False
) -> str:
    """The whole page. ``figures`` are paths of charts by the name of their exhibit."""
    sections = [_QUICK_HEAD if quick else _HEAD]
    mark = " (quick)" if quick else ""
    older = [name for name, sums in results.checksums.items() if sums - {method_checksum(name)}]
    if older:
        sections.append(
            f"Some rows of {', '.join(sorted(older))} were made by an earlier version, whose "
            "arithmetic differs in the last digits; `unskew reproduce` makes them again.\n"
        )
    for exhibit in EXHIBITS.values():
        tables = [to_markdown(table) for table in exhibit.tables(results)]
        images = [f"![{exhibit.title}]({path})" for path in (figures or {}).get(exhibit.name, ())]
        if tables or images:
            head = [f"## {exhibit.title}{mark}", exhibit.about]
            sections.append("\n\n".join([*head, *tables, *images]) + "\n")
    return "\n".join(sections)


def fill_table(page: Path, table: str) -> None:
    """Replace the text between a page's table marks."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition("<!-- table:begin")
    comment, end, after = rest.partition("<!-- table:end")
    if not (begin and end):
        raise UnskewError(f"{page} has no <!-- table:begin --> and <!-- table:end --> marks.")
    head = comment.partition("-->")[0]
    write_text(page, f"{before}{begin}{head}-->\n{table}\n{end}{after}")


def fill_readme(page: Path, results: Results) -> None:
    """Renew the small table that shows both protocols side by side."""
    fill_table(page, to_markdown(side_by_side(results, README_DATA, SIDE_BY_SIDE_METHODS)))
