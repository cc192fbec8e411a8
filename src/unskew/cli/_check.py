"""``unskew check``: the conformance checks of :mod:`unskew.testing`, for any method."""

from __future__ import annotations

import json as json_format
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from unskew.cli import _options as opt
from unskew.cli._output import print_json, print_table, stdout
from unskew.methods import admit_method, create
from unskew.testing import Finding, run_checks
from unskew.types import UnskewError


def check(
    method: Annotated[
        str, Argument(metavar="METHOD", help="A method's name or package.module:Class.")
    ],
    set_: opt.Settings = None,
    bounds: Annotated[
        bool,
        Option("--bounds", help="Compile kernels with checks of every index; slow at first."),
    ] = False,
    json: opt.Json = False,
) -> None:
    """Check that a method keeps to the contract that the simulator, devices and audits rely on.

    Exits with 1 if a check fails.
    """
    if bounds:
        findings = _check_bounds(method, set_ or [])
    else:
        name, _ = admit_method(method)
        findings = run_checks(create(name, **opt.parse_pairs(set_ or [], "--set")))
    failed = [one for one in findings if one.problem is not None]
    if json:
        print_json({"method": method, "checks": [one._asdict() for one in findings]})
    else:
        rows = [[one.check, one.problem or "passed"] for one in findings]
        print_table(["check", "result"], rows, title=f"{method}: the contract of a method")
        stdout.print(f"{len(findings) - len(failed)} of {len(findings)} checks passed.")
    if failed:
        raise Exit(1)


def _check_bounds(method: str, pairs: list[str]) -> list[Finding]:
    """Run the checks in a separate process, whose compiled code checks every array index. The
    process has a separate cache folder, because numba's cache does not distinguish compiled code
    with index checks from code without them."""
    cache = os.environ.get("NUMBA_CACHE_DIR") or Path.home() / ".cache" / "unskew"
    variables = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(Path(cache, "bounds"))}
    command = [sys.executable, "-m", "unskew", "check", method, "--json"]
    command += [f"--set={pair}" for pair in pairs]
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    try:
        checks = json_format.loads(done.stdout)["checks"]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        raise UnskewError(last.removeprefix("unskew: ")) from None
    return [Finding(**one) for one in checks]
