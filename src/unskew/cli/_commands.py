"""The commands of ``unskew``: where each is defined, and its line in ``unskew --help``.

Only the command that is called is imported, so that ``unskew --help`` does not load compilers and
data libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

COMMANDS = {
    "run": ("_run.run", "Train a federation and evaluate it."),
    "resume": (
        "_run.resume",
        "Resume a stopped run. The result is bit-identical to an uninterrupted one.",
    ),
    "compare": (
        "_results.compare",
        "Compare runs: each against the first by a paired test over users.",
    ),
    "recommend": (
        "_results.recommend",
        "Recommend items from a saved run, with titles; the training set is not needed.",
    ),
    "export": (
        "_export.export",
        "Write a run's model for devices without Python, as ONNX or as a web page.",
    ),
    "methods": (
        "_results.methods",
        "List the methods of this package and of installed ones, a line each.",
    ),
    "report": (
        "_results.report",
        "Write one self-contained HTML file about some runs, or all rows of `unskew reproduce`.",
    ),
    "check": (
        "_check.check",
        "Check that a method keeps to the contract that the simulator, devices and audits rely on.",
    ),
    "demo": (
        "_run.demo",
        "Train on the embedded demo data under both protocols; write a report, and a page that "
        "recommends in the browser.",
    ),
    "reproduce": (
        "_reproduce.reproduce",
        "Run what has no saved row, then write tables and figures. Stop and restart at any time.",
    ),
    "tune": (
        "_tune.tune",
        "Search settings by validation NDCG@10. The same command resumes a stopped search.",
    ),
    "data": ("_data.app", "Data sets: list, describe, download, make, export a split."),
    "audit": ("_audit.app", "Audits: does the evaluation leak, what do uploads give away?"),
    "deploy": (
        "_deploy.app",
        "Run a federation on Flower: up, keys, data, app, sign, gate, doctor.",
    ),
    "device": ("_device.app", "A device's own state: status, recommend, evaluate."),
}
"""For each command the module and name of its function (or group), and the beginning of its
docstring."""


def add_commands(app: typer.Typer, called: str | None) -> None:
    """Add all commands, but import only the one that is called; the others are only listed."""
    for name, (_, summary) in COMMANDS.items():
        command = load(name) if name == called else _listed
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, help=summary if command is _listed else None)(command)


def load(name: str) -> Any:
    """The function of a command, or the ``Typer`` of a group."""
    module, _, attribute = COMMANDS[name][0].partition(".")
    return getattr(import_module(f"unskew.cli.{module}"), attribute)


def _listed() -> None:
    """Stands for a command that is not called."""
