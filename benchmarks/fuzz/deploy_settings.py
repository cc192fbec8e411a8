"""Settings of a deployment: the run-config, through ``unskew deploy app``, and the node-config.

What is accepted must stand in the app as it was given, and the method must be built from it.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.fuzz.cases import NUMBERS, WORDS, Failure, Kind, attempt, command, pick_some
from benchmarks.fuzz.run_settings import METHOD_NAMES
from unskew.deploy.client import NodeConfig, _transform
from unskew.deploy.task import RunConfig, read_config, read_run_config
from unskew.methods import METHODS

GOOD: dict[str, tuple[str, ...]] = {
    "robust": ("none", "clip", "median", "trimmed", "mean"),
    "secure": ("true", "false", "True", "yes", "1"),
    "max-weight": ("0", "5", "1e6"),
    "min-nodes": ("1", "3", "100"),
    "state": ("state", "", "~/x", "a b", "é🎬", "/", 'quo"te', "back\\slash"),
}
"""Values of the run-config that are right, or wrong in an interesting way."""
NODE_VALUES: dict[str, tuple[Any, ...]] = {
    "data": ("data", "", 3, True),
    "state": ("state", "", 0.5),
    "method": ("", "fedmf", "no.such:Thing", "json:JSONDecoder"),
    "transform": ("", "os:getcwd", "no.such:thing", "json", ":", "a:b:c", "é"),
    "ldp-noise": (0.1, 0, -1, "nan", "1e400", "a", True),
    "ldp-clip": (1.0, 0, "inf", "-1"),
    "ldp-norm": ("l1", "l2", "row", "l3", 1),
    "ldp-kind": ("laplace", "gaussian", "x"),
    "require-secure": (True, False, "true", "maybe", 1),
    "shared-seed": (True, "False", 0),
    "step2-at-once": (True, "x"),
}


class DeploySettings(Kind):
    name, share = "deploy-settings", 0.15

    def play(self, rng: random.Random) -> str | None:
        return self._node(rng) if rng.random() < 0.3 else self._app(rng)

    def _app(self, rng: random.Random) -> str | None:
        """Write an app, and read its run-config as server and nodes do."""
        shutil.rmtree("app", ignore_errors=True)
        given = {"users": "24", "items": "20", "method": rng.choice(tuple(METHODS)[:10])}
        if rng.random() < 0.2:
            given["method"] = rng.choice(METHOD_NAMES)
        for name in pick_some(rng, [f.name for f in dataclasses.fields(RunConfig)], 5):
            key = name.replace("_", rng.choice("-----_"))
            given[key] = rng.choice((*GOOD.get(key, NUMBERS), rng.choice((*WORDS, *NUMBERS))))
        fields = (
            dataclasses.fields(METHODS[given["method"]].Config)
            if given["method"] in METHODS
            else ()
        )
        if rng.random() < 0.6:
            chosen = [(f.name, rng.choice((*NUMBERS, *WORDS))) for f in pick_some(rng, fields, 3)]
            given["settings"] = rng.choice((" ", "  ", ",")).join("=".join(one) for one in chosen)
        if rng.random() < 0.05:
            given[rng.choice(WORDS)] = rng.choice(WORDS)
        words = [part for pair in given.items() for part in ("--set", "=".join(pair))]
        self.about = ["deploy app " + json.dumps(words)]
        refusal = command("deploy", "app", "app", *words).refusal
        if refusal is None:
            text = Path("app/pyproject.toml").read_bytes().decode()
            found = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
            config = read_run_config(found)
            typed = {key.strip(): value.strip() for key, value in given.items()}
            if typed.get("state"):
                typed["state"] = str(Path(typed["state"]).expanduser().resolve())
            if config != read_run_config(typed):
                raise Failure(f"the app has another run-config: {config}")
            if config.users < 10**6 and config.seed < 2**63:
                config.task.cohort_of(1)
        return refusal

    def _node(self, rng: random.Random) -> str | None:
        """Read a node-config, whose values Flower passes as numbers, booleans and texts."""
        given: dict[str, Any] = {"data": "data", "state": "state"}
        for key in pick_some(rng, NODE_VALUES, 4):
            given[key] = rng.choice((*NODE_VALUES[key], rng.choice(WORDS)))
        if rng.random() < 0.05:
            given[rng.choice(WORDS)] = 1
        self.about = ["node-config " + repr(given)]

        def read() -> None:
            _transform(read_config(NodeConfig, given, "The node-config"), 3)

        return attempt(read)[1]
