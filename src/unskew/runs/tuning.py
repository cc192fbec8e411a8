"""Search the settings of a method for the best validation NDCG@10, with Optuna.

A search is stored in a folder. The first line of ``trials.jsonl`` describes the search; then there
is one line per finished trial. To resume, the finished trials are added to a new Optuna study. The
sampler of every trial is seeded by the search's seed and the trial's number, so a resumed search
gives the same result as an uninterrupted one. Test metrics are neither read nor stored.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.files import append_json_line, read_json_lines, write_bytes
from unskew.methods import find_method, parse_settings
from unskew.runs.spec import RunSpec
from unskew.types import Interactions, Split, UnskewError

FORMAT, VERSION = "unskew-tune", 1
"""Name and version of the format of ``trials.jsonl``."""


@dataclass(frozen=True)
class Dimension:
    """Search range of one setting: one of ``choices``, or a number from ``low`` to ``high``."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    """True to sample on a logarithmic scale."""
    whole: bool = False
    choices: tuple[Any, ...] = ()

    def contains(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        if self.choices:
            return "|".join(map(str, self.choices))
        return f"{self.low:g}:{self.high:g}" + (" (log)" if self.log else "")


Space = dict[str, Dimension]


NEXT_ITEM: dict[str, Dimension | None] = {
    "dim": Dimension(choices=(32, 64, 128)),
    "negatives": Dimension(128, 2048, log=True, whole=True),
    "dropout": Dimension(0.05, 0.5),
    "window": None,
    "warm_up": None,
    "clip": None,
    "least_steps": None,
}
"""Search ranges of the methods that predict the next item."""
OVERRIDES: dict[str, dict[str, Dimension | None]] = {
    "": {  # every method that has the field; None: not searched
        "rounds": None,  # the best round is chosen anyway
        "participation": None,  # belongs to the deployment
        "aggregate_from": None,
        "tolerance": None,
        "batch": None,
        "clients_at_once": None,  # changes no result
        "server_optimizer": None,  # each wants its own server_rate: searched on request
        "server_rate": None,
        "server_momentum": None,
        "server_second": None,
        "server_adaptivity": None,
        "dim": Dimension(choices=(8, 16, 32, 64)),
        "negatives": Dimension(1, 8, whole=True),
        "local_epochs": Dimension(1, 20, log=True, whole=True),
    },
    "pfedclr": {"rank": Dimension(1, 16, log=True, whole=True), "buffer": None},
    "fedrefit": {
        "dim": Dimension(choices=(16, 32, 64, 128)),
        "space_rounds": None,  # changes what a round is
        "item_power": Dimension(0, 0.5),
        "fast": Dimension(0.1, 0.9),
        "slow": Dimension(0.5, 1),
        "horizon": Dimension(0.5, 1),
        "far_horizon": Dimension(0.5, 1),
        "discount": Dimension(0, 0.5),
        "order": None,  # chosen on validation already
    },
    "fedrap": {"batch_decay": Dimension(0.8, 1), "round_decay": Dimension(0.9, 1)},
    "pfedgraph": {"evenness": Dimension(0.1, 2)},
    "gpfedrec": {"threshold": Dimension(0.5, 2)},
    "sasrec": NEXT_ITEM | {"heads": None},
    "gru4rec": NEXT_ITEM,
    "fednext": NEXT_ITEM | {"cohort": None, "base_dim": None, "horizon": Dimension(0.2, 0.95)},
    "lightgcn": {"layers": Dimension(1, 4, whole=True), "batches": None},
    "markov": {
        "decay": Dimension(0.3, 1),
        "fade": Dimension(0.3, 1),
        "discount": Dimension(0, 0.5),
    },
    "slist": {
        "fast": Dimension(0, 0.8),
        "slow": Dimension(0.8, 1),
        "slow_share": Dimension(0, 1),
        "horizon": Dimension(0, 1),
        "backward": Dimension(0, 1),
        "discount": Dimension(0, 0.5),
    },
}
"""Search ranges that replace the default ones, by method ("": all methods) and setting. A setting
with None is not searched."""


def default_space(method: str) -> Space:
    """The search space of a method, from the fields of its Config.

    A positive real setting is searched within a factor of ten of its default on a logarithmic
    scale, a positive whole number within a factor of four, and a choice over all its values.
    """
    config = find_method(method).Config
    hints, defaults = get_type_hints(config), dataclasses.asdict(config())
    space = {name: _dimension_by_type(hints[name], default) for name, default in defaults.items()}
    overrides = OVERRIDES[""] | OVERRIDES.get(method, {})
    space |= {name: one for name, one in overrides.items() if name in space}
    return {name: one for name, one in space.items() if one is not None}


def _dimension_by_type(kind: Any, default: Any) -> Dimension | None:
    if get_origin(kind) is Literal:
        return Dimension(choices=get_args(kind))
    if kind is bool:
        return Dimension(choices=(False, True))
    if kind is int and default > 0:
        return Dimension(max(1, default // 4), default * 4, log=True, whole=True)
    if kind is float and default > 0:
        return Dimension(default / 10, default * 10, log=True)
    return None  # a default of 0 sets no scale: searched only on request


def parse_space(method: str, text: str) -> Space:
    """Parse a search space such as ``rank=2:16,learning_rate=0.001:0.1,dim=8|16|32``.

    A range over a factor of ten or more is searched on a logarithmic scale.
    """
    hints = get_type_hints(find_method(method).Config)
    space: Space = {}
    for part in text.split(","):
        name, _, values = part.partition("=")
        name = name.strip()
        low, colon, high = values.partition(":")
        if "|" in values:
            given = [parse_settings(method, {name: one.strip()})[name] for one in values.split("|")]
            space[name] = Dimension(choices=tuple(given))
        elif colon:
            ends = [parse_settings(method, {name: end.strip()})[name] for end in (low, high)]
            if hints[name] not in (int, float) or not ends[0] < ends[1]:
                raise UnskewError(f'--space "{part}": give low:high with low below high, or a|b|c.')
            log = ends[0] > 0 and ends[1] >= 10 * ends[0]
            space[name] = Dimension(float(ends[0]), float(ends[1]), log, hints[name] is int)
        else:
            raise UnskewError(f'--space "{part}" must look like rank=2:16 or dim=8|16|32.')
    return space


class Trial(NamedTuple):
    """One trial: its settings, and the validation NDCG@10 of its best round or an error message."""

    number: int
    settings: dict[str, Any]
    value: float | None
    best_rounds: list[int]
    seconds: float
    problem: str | None = None


@dataclass(frozen=True)
class Search:
    """The run to tune and the search range of each setting; other settings stay as in ``spec``."""

    spec: RunSpec
    space: Space
    seed: int = 0

    def header(self) -> dict[str, Any]:
        """The first line of ``trials.jsonl``: format, run specification, search space and seed."""
        value = {
            "format": FORMAT,
            "version": VERSION,
            "spec": self.spec.to_json(),
            "space": {name: dataclasses.asdict(one) for name, one in self.space.items()},
            "seed": self.seed,
        }
        read_back: dict[str, Any] = json.loads(json.dumps(value))
        return read_back


OnTrial = Callable[[Trial, list[Trial]], None]
"""Callback after a trial: the trial and all trials so far."""


def tune(
    search: Search,
    interactions: Interactions,
    folder: Path,
    trials: int,
    on_trial: OnTrial,
) -> list[Trial]:
    """Run trials until the folder holds ``trials`` of them, including those of earlier calls."""
    optuna = import_optuna()
    split = prepare(interactions, search.spec.evaluation)
    if not len(split.validation.items):
        raise UnskewError(
            f"Nobody in {interactions.name} has validation items to choose settings by; give data "
            "in which some users have three rows or more."
        )
    log = folder / "trials.jsonl"
    done = _read_trials(log, search)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spaces = {name: _distribution(optuna, one) for name, one in search.space.items()}
    study = optuna.create_study(direction="maximize")
    for trial in done:
        study.add_trial(
            optuna.trial.create_trial(
                params=trial.settings,
                distributions=spaces,
                value=trial.value,
                state=_state(optuna, trial),
            )
        )
    if not done and (defaults := _default_settings(search)):
        study.enqueue_trial(defaults)  # so that the best trial is no worse than the defaults
    for number in range(len(done), trials):
        study.sampler = optuna.samplers.TPESampler(seed=search.seed * 1_000_003 + number)
        asked = study.ask(spaces)
        trial = _run_trial(search, dict(asked.params), number, split)
        study.tell(asked, trial.value, _state(optuna, trial))
        append_json_line(log, trial._asdict())
        done.append(trial)
        on_trial(trial, done)
    return done


def import_optuna() -> Any:
    """Import Optuna, an optional dependency; raises an UnskewError if it is not installed."""
    try:
        import optuna
    except ImportError:
        raise UnskewError(
            "Tuning needs Optuna, which is not installed; get it with `pip install 'unskew[tune]'`."
        ) from None
    return optuna


def best_trial(trials: list[Trial]) -> Trial:
    """The trial with the highest validation NDCG@10, the first one in a tie."""
    valued = [trial for trial in trials if trial.value is not None]
    if not valued:
        reason = trials[-1].problem if trials else "none was run"
        raise UnskewError(f"No trial succeeded ({reason}); give another --space.")
    return max(valued, key=lambda trial: trial.value or 0.0)


def config_text(search: Search, best: Trial) -> str:
    """The run with its best settings as the text of a TOML file for ``unskew run --config``."""
    spec = replace(search.spec, settings={**search.spec.settings, **best.settings})
    lines = [
        f"# Best of the search so far: trial {best.number}, validation NDCG@10 {best.value:.4f}."
    ]
    values = {key: value for key, value in spec.to_json().items() if value not in (None, {})}
    for key in sorted(values, key=lambda key: isinstance(values[key], dict)):  # tables come last
        table = isinstance(values[key], dict)
        lines += ["", f"[{key}]"] if table else []
        for name, value in (values[key] if table else {key: values[key]}).items():
            # JSON writes strings, numbers, booleans and lists of them as TOML does.
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join([*lines, ""])


def _run_trial(search: Search, chosen: dict[str, Any], number: int, split: Split) -> Trial:
    began, values, rounds = time.monotonic(), [], []
    settings = {**search.spec.settings, **chosen}
    value = problem = None
    try:
        for seed in search.spec.seeds:
            method = replace(search.spec, settings=settings).build()
            rows = Federation(method, split, seed).run().rows
            best = max(rows, key=lambda row: row["validation"]["ndcg@10"])
            values.append(best["validation"]["ndcg@10"])
            rounds.append(best["round"])
        value = math.fsum(values) / len(values)
    except UnskewError as error:
        problem = str(error)
    if value is not None and not math.isfinite(value):
        value, problem = None, "it diverged"
    return Trial(number, chosen, value, rounds, time.monotonic() - began, problem)


def _read_trials(log: Path, search: Search) -> list[Trial]:
    """Read the finished trials. An incomplete last line, left by a killed process, is dropped."""
    text = log.read_bytes() if log.exists() else b""
    if not text.endswith(b"\n"):
        write_bytes(log, text[: text.rfind(b"\n") + 1])
    rows = read_json_lines(log)
    if not rows:
        append_json_line(log, search.header())
        return []
    if rows[0] != search.header():
        raise UnskewError(f"{log} is of another search; give another --out or its own options.")
    try:
        return [Trial(**row) for row in rows[1:]]
    except TypeError as error:
        raise UnskewError(f"{log} cannot be read ({error}); give another --out.") from None


def _default_settings(search: Search) -> dict[str, Any]:
    """The values before tuning of the searched settings; empty if one is outside its range."""
    config = search.spec.build().config
    values = {name: getattr(config, name) for name in search.space}
    inside = all(one.contains(values[name]) for name, one in search.space.items())
    return values if inside else {}


def _state(optuna: Any, trial: Trial) -> Any:
    states = optuna.trial.TrialState
    return states.FAIL if trial.value is None else states.COMPLETE


def _distribution(optuna: Any, one: Dimension) -> Any:
    if one.choices:
        return optuna.distributions.CategoricalDistribution(one.choices)
    if one.whole:
        return optuna.distributions.IntDistribution(int(one.low), int(one.high), log=one.log)
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.log)
