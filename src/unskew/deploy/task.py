"""The settings of a deployed federation: Flower's run-config, and the app that contains it.

The server and the nodes read the same run-config, so they build the same method. Values are
numbers, booleans and strings, as Flower allows; the method's settings are one string of
``key=value`` pairs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from unskew.deploy.node_data import catalogue_digest, read_catalogue
from unskew.engine import draw_cohort
from unskew.engine.robust import Robust, check_rule
from unskew.files import write_text
from unskew.methods import create
from unskew.settings import Settings, parse_settings, setting
from unskew.types import Int64, Method, UnskewError

_Config = TypeVar("_Config", bound=Settings)

_PYPROJECT = """\
[project]
name = "unskew-app"
version = "1.0.0"
description = "Unskew on Flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "unskew"

[tool.flwr.app.components]
serverapp = "unskew_app.server:app"
clientapp = "unskew_app.client:app"

[tool.flwr.app.config]
"""
"""The start of the app's ``pyproject.toml``; the run-config follows."""

_ADMIT = """
from unskew.methods import admit_method

admit_method({method!r})
"""
"""Lines added to the app's server module if the method is given as ``package.module:Class``. They
allow this class to be imported."""


@dataclass(frozen=True)
class Task:
    """The method, seed and size of a federation, on which nodes and server must agree."""

    method: str
    settings: str
    seed: int
    n_users: int
    n_items: int

    def build(self) -> Method:
        pairs = (pair.partition("=") for pair in self.settings.split())
        method = create(self.method, **{key: value for key, _, value in pairs})
        if getattr(method, "needs", ()):
            raise UnskewError(
                f"{self.method} needs {', '.join(method.needs)}, which nodes do not have; deploy "
                "another method."
            )
        return method

    def cohort_of(self, round: int) -> Int64:
        """Numbers of the users who train in a round, drawn as in the simulator."""
        size = self.build().cohort_size(round, self.n_users)
        return draw_cohort(self.seed, round, self.n_users, size)

    def check_folder(self, folder: Path, saved: Mapping[str, Any]) -> None:
        """Raise an error if the state in ``folder`` is of another federation. ``saved`` is the task
        that the folder was created with; only the number of rounds may differ."""
        known = Task(**saved)
        if known._identity() != self._identity():
            raise UnskewError(
                f"{folder} holds the state of another federation ({known}); go on with the same "
                "method, settings (but for rounds), seed and size, or give another state folder."
            )

    def _identity(self) -> dict[str, Any]:
        config = asdict(self.build().config)
        del config["rounds"]
        return vars(self) | {"settings": config}


@dataclass(frozen=True)
class RunConfig(Settings):
    """Flower's run-config: the federation, how the server runs rounds, its limits on uploads."""

    method: str = "pfedclr"
    settings: str = ""
    """The method's settings: ``key=value`` pairs with spaces in between."""
    seed: int = 0
    users: int = setting(0, at_least=1)
    """Number of users of the whole federation."""
    items: int = setting(0, at_least=1)
    """Number of items of the catalogue."""
    catalogue: str = ""
    """Digest of the item labels in order, which nodes compare with their own; empty: no check.
    :func:`write_app` also takes the path of a ``catalogue.json``."""
    state: str = ""
    """The server's state folder."""
    min_nodes: int = setting(2, at_least=1)
    """Nodes that must be connected before a round starts."""
    min_uploads: int = 0
    """Uploads that must be accepted for a round to count; 0: ``min_nodes``."""
    wait_for_nodes: float = 600.0
    """Seconds to wait for ``min_nodes`` nodes before the run stops."""
    round_timeout: float = setting(600.0, above=0)
    """Seconds a node has to reply."""
    evaluate_every: int = setting(0, at_least=-1)
    """Rounds between federated evaluations; 0: only after the last, -1: never."""
    max_norm: float = 1e4
    """Largest norm of an update per unit of weight; 0: no limit."""
    max_weight: float = 0.0
    """Largest weight of a node; 0: what as many users as it may have can weigh, and with ``robust``
    no node counts for more than the median node. Secure aggregation needs a limit."""
    robust: Robust = "none"
    """Robust aggregation of the nodes' sums (see :mod:`unskew.engine.robust`)."""
    trim: float = setting(0.2, at_most=0.49)
    """For ``trimmed``: share of nodes dropped at each end, per coordinate."""
    secure: bool = False
    """Whether nodes mask their uploads with SecAgg+."""
    secure_clip: float = setting(8.0, above=0)
    """Largest absolute value, in SecAgg+, of an entry of a node's sum divided by ``max_weight``."""

    @property
    def quorum(self) -> int:
        """Number of uploads that must be accepted for a round to count."""
        return self.min_uploads or self.min_nodes

    @property
    def task(self) -> Task:
        return Task(self.method, self.settings, self.seed, self.users, self.items)


def read_config(kind: type[_Config], given: Mapping[str, Any], owner: str) -> _Config:
    """Read a Flower configuration into the settings class ``kind``; hyphens in its keys become
    underscores. ``owner`` is the configuration's name in error messages."""
    try:
        named = {key.replace("-", "_"): value for key, value in given.items()}
        return kind(**parse_settings(kind, named, owner))
    except UnskewError as error:
        raise UnskewError(str(error).replace("_", "-")) from None


def read_run_config(given: Mapping[str, Any]) -> RunConfig:
    """Read a run-config and check that the method works with its aggregation settings."""
    config = read_config(RunConfig, given, "The run-config")
    method = config.task.build()
    individual = method.aggregation == "individual"
    if method.aggregation == "central":
        raise UnskewError(
            f"{method.name} is not federated: it needs all interactions in one place."
        )
    if config.secure and individual:
        raise UnskewError(
            f"{method.name} needs every upload by itself, which secure aggregation hides; "
            "set secure = false or choose a method whose aggregation is a sum."
        )
    if config.robust != "none" and (individual or config.secure):
        raise UnskewError(
            f'robust = "{config.robust}" compares the sums of nodes; it goes neither with secure '
            "aggregation nor with methods that need every upload by itself."
        )
    check_rule(config.robust, config.trim, config.min_nodes, config.users, "set min-nodes to")
    if config.secure and (config.max_weight == 0 or config.min_nodes < 3):
        raise UnskewError(
            "secure = true needs a max-weight above 0, and min-nodes of at least 3 because two "
            "nodes see through each other."
        )
    return config


def _toml(value: str | float) -> str:
    """A value in TOML, which writes texts, numbers and booleans as JSON does, but has no escapes
    for halves of characters, and none of its texts holds a plain DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_app(folder: Path, given: Mapping[str, Any]) -> None:
    """Write a Flower app: the folder that ``flwr run FOLDER`` packs and sends.

    The app is a ``pyproject.toml`` with the run-config, which is checked here, and two modules that
    import the apps from the ``unskew`` installed on the machines.
    """
    catalogue = str(given.get("catalogue", ""))
    if catalogue.endswith(".json"):
        given = {**given, "catalogue": catalogue_digest(read_catalogue(Path(catalogue))["items"])}
    config = read_run_config(given)
    values = vars(config).items()
    lines = (f"{name.replace('_', '-')} = {_toml(value)}\n" for name, value in values)
    files = {
        "pyproject.toml": _PYPROJECT + "".join(lines),
        "unskew_app/__init__.py": "",
        "unskew_app/client.py": 'from unskew.deploy.client import app\n\n__all__ = ["app"]\n',
        "unskew_app/server.py": 'from unskew.deploy.server import app\n\n__all__ = ["app"]\n',
    }
    if ":" in config.method:  # named by whoever writes the app; nodes name it in their node-config
        files["unskew_app/server.py"] += _ADMIT.format(method=config.method)
    for name, text in files.items():
        write_text(folder / name, text)
