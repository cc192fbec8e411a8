"""All tables and figures of ``unskew reproduce``, written as docs/results.md or as the contents of
a report. Both are made from the saved result rows alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from unskew.audit import privacy_tables, trade_off_chart
from unskew.display import to_markdown
from unskew.files import write_text
from unskew.paper import cost, methods, noise, pictures, published, rounds, skew, variants
from unskew.paper.plan import Exhibit, method_checksum
from unskew.paper.rows import Results, find, read_results
from unskew.report import Chapter, Extras, FinishedRun
from unskew.types import UnskewError

EXHIBITS: dict[str, Exhibit] = {
    exhibit.name: exhibit
    for exhibit in (
        cost.DATASETS_TABLE,
        methods.MAIN,
        methods.AGAINST,
        methods.PARTS_REMOVED,
        variants.ABLATION,
        *noise.EXHIBITS,
        cost.SPACE,
        cost.SPEED,
        cost.TIME,
        cost.COST,
        skew.SKEW,
        rounds.MOTIVATION,
        rounds.TRAJECTORY,
        pictures.EMBEDDING,
        pictures.UPLOADS,
        rounds.CONVERGENCE,
        rounds.BUDGET,
        cost.EFFICIENCY,
        variants.RANK,
        variants.BETA,
    )
}
"""Tables and figures by name, in the order of the document."""
RUN_STORES = tuple(dict.fromkeys(exhibit.store for exhibit in EXHIBITS.values()))
"""Names of the JSON-lines files with results of runs and tasks, without suffix."""
STORES = (*RUN_STORES, "curves")
"""Names of all JSON-lines files with results, learning curves included, without suffix."""
_HEAD = """# Results

Made by `unskew reproduce` from the rows in `results/`; do not edit by hand. The commands that made
the rows are in `results/commands.txt`. Figures are taken at the round with the best validation
NDCG@10, except those that follow a run round by round. The table of methods gives mean ± standard
deviation over seeds, or one seed without a deviation. Tables that compare variants of a run
(ablation, noise, rank, learning rate) use the seeds that all variants on a data set have.
"""
"""Beginning of docs/results.md."""
_QUICK_HEAD = """# Results of a quick run

**Quick: a few rounds, one seed, parts of the grids. These figures show that everything works, and
nothing about any method.** Made by `unskew reproduce --quick`.
"""
"""Beginning of the document that a quick run writes."""


def document(
    results: Results, figures: Mapping[str, Sequence[str]] | None = None, quick: bool = False
) -> str:
    """The text of docs/results.md. ``figures`` are the paths of chart files by exhibit name."""
    sections = [_QUICK_HEAD if quick else _HEAD]
    mark = " (quick)" if quick else ""
    older = {
        row.method
        for row in results.runs
        if row.method_checksum not in (None, method_checksum(row.method))
    }
    if older:
        sections.append(
            f"Some rows of {', '.join(sorted(older))} were made by an earlier version of the "
            "method, whose results differ a little; `unskew reproduce` makes them again.\n"
        )
    for exhibit in EXHIBITS.values():
        tables = [to_markdown(table) for table in exhibit.tables(results)]
        images = [f"![{exhibit.title}]({path})" for path in (figures or {}).get(exhibit.name, ())]
        if tables or images:
            head = [f"## {exhibit.title}{mark}", exhibit.about]
            sections.append("\n\n".join([*head, *tables, *images]) + "\n")
    return "\n".join(sections)


def fill_table(page: Path, table: str, name: str = "table") -> None:
    """Replace the text between the comments ``NAME:begin`` and ``NAME:end`` of a text file."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(f"<!-- {name}:begin")
    comment, end, after = rest.partition(f"<!-- {name}:end")
    if not (begin and end):
        raise UnskewError(f"{page} has no <!-- {name}:begin --> and <!-- {name}:end --> marks.")
    head = comment.partition("-->")[0]
    write_text(page, f"{before}{begin}{head}-->\n{table}\n{end}{after}")


def fill_readme(page: Path, results: Results) -> None:
    """Rewrite the README's tables: the protocols ``paper`` and ``leak-free`` side by side, and
    FedNext beside models that read the order."""
    fill_table(page, to_markdown(methods.side_by_side(results, ("ml-1m",))))
    fill_table(page, to_markdown(methods.order_table(results)), "order")


def report_contents(folder: Path) -> tuple[str, list[FinishedRun], Extras]:
    """Title, runs and extra sections of an HTML report on the result rows in a folder."""
    stores = (*STORES, "privacy")
    results, mark = read_results(folder, stores), ""
    if not results.runs:
        results = read_results(folder, stores, quick=True)
        mark = "QUICK RUN, figures that mean nothing. "
    runs = []
    for row in results.default_runs():
        setup = {"method": row.method, "data": row.data, "protocol": row.protocol, "settings": {}}
        curves = find(results.curves, **setup)
        runs.append(FinishedRun(row, [curves.validation["ndcg@10"]] if curves else []))
    if not runs:
        raise UnskewError(
            f"There are no rows of the main table in {folder}; `unskew reproduce main` makes them."
        )
    chapters = [_chapter(exhibit, results) for exhibit in EXHIBITS.values()]
    extras = Extras(
        published_figures(runs),
        privacy=_attacks(results),
        chapters=[chapter for chapter in chapters if chapter.tables or chapter.charts],
        commands=results.commands(),
    )
    return f"{mark}Federated recommendation: the paper's tables, remade", runs, extras


def published_figures(runs: Iterable[FinishedRun]) -> dict[tuple[str, str], published.Pair]:
    """HR@10 and NDCG@10 that the paper prints for the methods and data sets of these runs."""
    pairs = {(run.result.method, run.result.data) for run in runs}
    return {pair: found for pair in pairs if (found := published.quality(*pair))}


def _attacks(results: Results) -> list[Chapter]:
    """Report chapters on privacy attacks, one per data set and protocol."""
    return [
        Chapter(
            f"privacy-{number}",
            f"Privacy against quality on {Path(data).name}",
            "Up and left is good: useful and silent. The server watches a whole run; a line joins "
            "growing strengths of noise λ.",
            privacy_tables(rows),
            [trade_off_chart(rows)],
        )
        for number, ((data, _), rows) in enumerate(results.by_pair("privacy").items(), 1)
    ]


def _chapter(exhibit: Exhibit, results: Results) -> Chapter:
    """Make a report chapter of an exhibit. Left out are t-SNE pictures, which have no axes, and
    convergence charts, because the page already shows learning curves."""
    charts = [
        chart
        for chart in exhibit.charts(results).values()
        if exhibit is not rounds.CONVERGENCE and all(panel.x_label for panel in chart.panels)
    ]
    return Chapter(exhibit.name, exhibit.title, exhibit.about, exhibit.tables(results), charts)
