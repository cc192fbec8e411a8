"""The page: head, sentences, table, charts, costs and origins, in one file that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from unskew.report._entries import Entry, grouped, read, text
from unskew.report._sections import cost_bars, learning_curves, provenance
from unskew.report._summary import summarise
from unskew.report._table import table

TITLE = "Federated recommendation: the runs compared"


def render(runs: Sequence[Mapping[str, Any]], title: str = TITLE) -> str:
    """An HTML page on finished runs, each ``{"summary": result, "rounds": {seed: rows}}``.

    ``summary`` is the object in a run's ``result.json``, ``rounds`` its rows by seed. Values that
    are missing or not a number appear as a dash; the same input always gives the same page.
    """
    entries = read(runs)
    style, script = _asset("_page.css"), _asset("_page.js")
    lead = "".join(f'<p class="lead">{sentence}</p>' for sentence in summarise(entries))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<header><h1>{text(title)}</h1><p class="sizes">{_contents(entries)}</p></header>\n'
        "<main>\n"
        f'<section aria-labelledby="summary"><h2 id="summary">In short</h2>'
        f"{lead}</section>\n"
        f'<section aria-labelledby="runs"><h2 id="runs">All runs</h2>{table(entries)}</section>\n'
        f'<section aria-labelledby="curves"><h2 id="curves">Learning curves</h2>'
        f"{learning_curves(entries)}</section>\n"
        f'<section aria-labelledby="cost"><h2 id="cost">Cost</h2><p class="note">Seconds are the '
        "median time to simulate a whole round on one machine, without evaluation; bytes are what "
        f"one client taking part sends and receives.</p>{cost_bars(entries)}</section>\n"
        f'<section aria-labelledby="origin"><h2 id="origin">How each run was made</h2>'
        f"{provenance(entries)}</section>\n"
        f"</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _contents(entries: Sequence[Entry]) -> str:
    counts = (
        (len(entries), "run", "runs"),
        (len(grouped(entries, "method")), "method", "methods"),
        (len(grouped(entries, "data")), "data set", "data sets"),
        (len(grouped(entries, "protocol")), "protocol", "protocols"),
    )
    return " · ".join(f"{n} {one if n == 1 else many}" for n, one, many in counts)


def _policy(script: str) -> str:
    """Nothing is fetched, and no script runs but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _asset(name: str) -> str:
    return files("unskew.report").joinpath(name).read_text(encoding="utf-8")
