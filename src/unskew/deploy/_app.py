"""The Flower app as a folder: a pyproject.toml with the run's settings, and two files of one line.

``flwr run FOLDER`` packs and sends it; everything else is the ``unskew`` installed on the machines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unskew.deploy._task import DEFAULTS, read_run_config
from unskew.files import write_text

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "unskew-app"
version = "1.0.0"
description = "Unskew on Flower"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "unskew"

[tool.flwr.app.components]
serverapp = "unskew_app.server:app"
clientapp = "unskew_app.client:app"

[tool.flwr.app.config]
"""


def write_app(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the app; a mistake in its run-config is found here, not on the first node."""
    values = {**DEFAULTS, **config}
    read_run_config(values)
    # JSON's strings, numbers and truths are TOML's too.
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    files = {
        "pyproject.toml": _PYPROJECT + lines,
        "unskew_app/__init__.py": "",
        "unskew_app/client.py": 'from unskew.deploy.client import app\n\n__all__ = ["app"]\n',
        "unskew_app/server.py": 'from unskew.deploy.server import app\n\n__all__ = ["app"]\n',
    }
    for name, text in files.items():
        write_text(folder / name, text)
