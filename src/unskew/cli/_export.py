"""The command ``unskew export``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.filesize import decimal
from typer import Argument, Option

from unskew.cli import _options as opt
from unskew.cli._output import print_json, stdout
from unskew.export import MAX_PAGE_MB, to_onnx, to_page, write_onnx, write_page
from unskew.runs import open_run


def export(
    folder: Annotated[Path, Argument(metavar="RUN")],
    out: Annotated[Path, Argument(metavar="DIR", help="The folder for the files.")],
    format: Annotated[
        Literal["onnx", "web"],
        Option(help="onnx: a model file for apps; web: one page that recommends in the browser."),
    ],
    float16: Annotated[
        bool, Option("--float16", help="Half the size (a page's default; with it, never 8 bits).")
    ] = False,
    k: Annotated[int, Option("-k", help="Length of the list of best items.", min=1)] = 10,
    neighbours: Annotated[
        int | None,
        Option(help="Keep only so many item-item weights per item (ease, markov, slist).", min=1),
    ] = None,
    max_mb: Annotated[float, Option(help="Largest page, in MB.", min=0.0)] = MAX_PAGE_MB,
    seed: Annotated[int | None, Option(help="Which seed's model.")] = None,
    method: opt.MethodOfRun = None,
    json: opt.Json = False,
) -> None:
    """Write a run's model for devices without Python, as ONNX or as a web page."""
    run, command = open_run(folder, method), shlex.join(["unskew", *sys.argv[1:]])
    common: dict[str, Any] = {"float16": float16, "k": k, "neighbours": neighbours}
    if format == "onnx":
        exported = to_onnx(run, seed, **common)
        files = write_onnx(exported, out, command)
    else:
        exported = to_page(run, seed, **common, max_mb=max_mb)
        files = write_page(exported, out, command)
    if json:
        sizes = {str(path): path.stat().st_size for path in files}
        ndcg = exported.ndcg and {"trained": exported.ndcg[0], "file": exported.ndcg[1]}
        print_json({"run": str(folder), "format": format, "files": sizes, "ndcg@10": ndcg})
        return
    stdout.print(f"Tables: {dict(exported.facts)['Tables']}.")
    for path in files:
        stdout.print(f"{path}: {decimal(path.stat().st_size)}")
