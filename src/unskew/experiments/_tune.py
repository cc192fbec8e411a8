"""Searching a method's settings on validation NDCG@10, with Optuna.

A search is a folder: ``trials.jsonl`` has a header that says what is searched, then a line per
finished trial. Going on replays the lines into a fresh study. Every trial's sampler is seeded by
the search's seed and the trial's number, so a stopped search finds what it would have found.
Test figures are neither looked at nor kept.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.experiments._spec import RunSpec
from unskew.methods import METHODS, parse_settings
from unskew.types import Interactions, Split, UnskewError

FORMAT, VERSION = "unskew-tune", 1


@dataclass(frozen=True)
class Dimension:
    """What a setting may be: one of ``choices``, or a number from ``low`` to ``high``."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        if self.choices:
            return "|".join(map(str, self.choices))
        return f"{self.low:g}:{self.high:g}" + (" (log)" if self.log else "")


Space = dict[str, Dimension]


def _logarithmic(low: float, high: float, whole: bool = False) -> Dimension:
    return Dimension(low, high, True, whole)


def _linear(low: float, high: float, whole: bool = False) -> Dimension:
    return Dimension(low, high, False, whole)


_SIZES = Dimension(choices=(8, 16, 32, 64))
OVERRIDES: dict[str, dict[str, Dimension | None]] = {
    "": {  # every method, where it has the field; None: not searched
        "rounds": None,  # the best round is chosen anyway
        "participation": None,  # the deployment's, not the model's
        "aggregate_from": None,
        "tolerance": None,
        "batch": None,
        "dim": _SIZES,
        "negatives": _linear(1, 8, True),
        "local_epochs": _logarithmic(1, 20, True),
    },
    "pfedclr": {"rank": _logarithmic(1, 16, True), "buffer": None},
    "fedrefit": {
        "dim": Dimension(choices=(16, 32, 64, 128)),
        "space_rounds": None,  # it would change what a round is
        "item_power": _linear(0, 0.5),
        "fast": _linear(0.1, 0.9),
        "slow": _linear(0.5, 1),
        "horizon": _linear(0.5, 1),
        "far_horizon": _linear(0.5, 1),
        "discount": _linear(0, 0.5),
        "order": None,  # validation chooses already
    },
    "fedrap": {"batch_decay": _linear(0.8, 1), "round_decay": _linear(0.9, 1)},
    "pfedgraph": {"evenness": _linear(0.1, 2)},
    "gpfedrec": {"threshold": _linear(0.5, 2)},
    "lightgcn": {"layers": _linear(1, 4, True), "batches": None},
}
"""Where a rule by type would make no sense, per method; the method's own line comes first."""


def default_space(method: str) -> Space:
    """From the fields of the method's Config: a rate or a weight within a factor of ten of its
    default on a logarithmic scale, a number of things within a factor of four, every choice."""
    config = METHODS[method].Config
    hints, overrides = get_type_hints(config), OVERRIDES.get(method, {})
    space: Space = {}
    for field in dataclasses.fields(config):
        chosen: Dimension | None
        if field.name in overrides:
            chosen = overrides[field.name]
        elif field.name in OVERRIDES[""]:
            chosen = OVERRIDES[""][field.name]
        else:
            chosen = _by_type(hints[field.name], field.default)
        if chosen is not None:
            space[field.name] = chosen
    return space


def _by_type(kind: Any, default: Any) -> Dimension | None:
    if get_origin(kind) is Literal:
        return Dimension(choices=get_args(kind))
    if kind is bool:
        return Dimension(choices=(False, True))
    if kind is int and default > 0:
        return _logarithmic(max(1, default // 4), default * 4, True)
    if kind is float and default > 0:
        return _logarithmic(default / 10, default * 10)
    return None  # around 0 there is no scale to go by: such a field is searched when asked for


def parse_space(method: str, text: str) -> Space:
    """``rank=2:16,learning_rate=0.001:0.1,dim=8|16|32``; a range over a factor of ten or more is
    searched on a logarithmic scale."""
    hints = get_type_hints(METHODS[method].Config)
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
    """Settings that were tried, and the validation NDCG@10 of their best round or what failed."""

    number: int
    settings: dict[str, Any]
    value: float | None
    best_rounds: list[int]
    seconds: float
    problem: str | None = None


@dataclass(frozen=True)
class Search:
    """What is searched: settings of ``spec`` that are not in ``space`` stay as they are."""

    spec: RunSpec
    space: Space
    seed: int = 0

    def header(self) -> dict[str, Any]:
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
"""Called after a trial with it and all there are."""


def tune(
    search: Search,
    interactions: Interactions,
    folder: Path,
    trials: int,
    on_trial: OnTrial | None = None,
) -> list[Trial]:
    """Go on until there are ``trials`` of them; those in the folder count."""
    optuna = import_optuna()
    split = prepare(interactions, search.spec.protocol)
    log = folder / "trials.jsonl"
    done = _open_log(log, search)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spaces = {name: _distribution(optuna, one) for name, one in search.space.items()}
    study = optuna.create_study(direction="maximize")
    for trial in done:
        study.add_trial(_frozen(optuna, trial, spaces))
    if not done and (defaults := _defaults(search)):
        study.enqueue_trial(defaults)  # so that the search is never worse than not searching
    for number in range(len(done), trials):
        # The sampler of a trial depends on the trials before it and on its number alone.
        study.sampler = optuna.samplers.TPESampler(seed=search.seed * 1_000_003 + number)
        asked = study.ask(spaces)
        trial = _try(search, dict(asked.params), number, split)
        if trial.value is None:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, trial.value)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(trial._asdict(), ensure_ascii=False) + "\n")
            file.flush()
        done.append(trial)
        if on_trial is not None:
            on_trial(trial, done)
    return done


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UnskewError(
            "Tuning needs Optuna, which is not installed; get it with `pip install 'unskew[tune]'`."
        ) from None
    return optuna


def best_of(trials: list[Trial]) -> Trial:
    """The trial with the highest value, the first of equals."""
    valued = [trial for trial in trials if trial.value is not None]
    if not valued:
        reason = trials[-1].problem if trials else "none was run"
        raise UnskewError(f"No trial succeeded ({reason}); give another --space.")
    return max(valued, key=lambda trial: trial.value or 0.0)


def config_text(search: Search, best: Trial) -> str:
    """The best settings as a file for ``unskew run --config``."""
    spec = search.spec
    lines = [
        f"# Best of the search so far: trial {best.number}, validation NDCG@10 {best.value:.4f}.",
        f"method = {_toml(spec.method)}",
        f"data = {_toml(spec.data)}",
        f"protocol = {_toml(spec.protocol)}",
        f"seeds = {list(spec.seeds)}",
        f"skip_bad_rows = {_toml(spec.skip_bad_rows)}",
    ]
    if spec.min_user_rows is not None:
        lines.append(f"min_user_rows = {spec.min_user_rows}")
    for table, values in (
        ("columns", spec.columns),
        ("settings", {**spec.settings, **best.settings}),
    ):
        if values:
            lines += ["", f"[{table}]", *(f"{key} = {_toml(one)}" for key, one in values.items())]
    return "\n".join([*lines, ""])


def _toml(value: Any) -> str:
    """JSON writes strings, numbers and booleans as TOML does."""
    return json.dumps(value, ensure_ascii=False)


def _try(search: Search, chosen: dict[str, Any], number: int, split: Split) -> Trial:
    began, values, rounds = time.monotonic(), [], []
    settings = {**search.spec.settings, **chosen}
    try:
        for seed in search.spec.seeds:
            method = dataclasses.replace(search.spec, settings=settings).build()
            federation = Federation(method, split, seed)
            state = federation.start()
            while state.round < method.config.rounds:
                federation.step(state)
            best = max(state.rows, key=lambda row: row["validation"]["ndcg@10"])
            values.append(best["validation"]["ndcg@10"])
            rounds.append(best["round"])
    except UnskewError as error:
        return Trial(number, chosen, None, [], time.monotonic() - began, str(error))
    value = math.fsum(values) / len(values)
    if not math.isfinite(value):
        return Trial(number, chosen, None, rounds, time.monotonic() - began, "it diverged")
    return Trial(number, chosen, value, rounds, time.monotonic() - began)


def _open_log(log: Path, search: Search) -> list[Trial]:
    """The trials there are; a line that was cut off by a kill is dropped and tried again."""
    header = json.dumps(search.header(), ensure_ascii=False) + "\n"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    if lines and not lines[-1].endswith("\n"):
        with log.open("r+b") as file:
            file.truncate(sum(len(line.encode()) for line in lines[:-1]))
        lines = lines[:-1]
    if not lines:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(header, encoding="utf-8")
        return []
    try:
        read = [json.loads(line) for line in lines]
        if read[0] != search.header():
            raise UnskewError(f"{log} is of another search; give another --out or its own options.")
        return [Trial(**row) for row in read[1:]]
    except (ValueError, TypeError) as error:
        raise UnskewError(f"{log} cannot be read ({error}); give another --out.") from None


def _defaults(search: Search) -> dict[str, Any]:
    """What the method has without a search, if the space contains it."""
    config = search.spec.build().config
    values = {name: getattr(config, name) for name in search.space}
    inside = all(one.holds(values[name]) for name, one in search.space.items())
    return values if inside else {}


def _distribution(optuna: Any, one: Dimension) -> Any:
    if one.choices:
        return optuna.distributions.CategoricalDistribution(one.choices)
    if one.whole:
        return optuna.distributions.IntDistribution(int(one.low), int(one.high), log=one.log)
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.log)


def _frozen(optuna: Any, trial: Trial, spaces: Mapping[str, Any]) -> Any:
    failed = trial.value is None
    state = optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE
    return optuna.trial.create_trial(
        params=trial.settings, distributions=dict(spaces), value=trial.value, state=state
    )
