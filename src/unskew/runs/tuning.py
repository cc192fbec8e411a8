"""Search the settings of a method for the best validation NDCG@10, with Optuna.

A search is a folder. ``trials.jsonl`` has a header that says what is searched, then one line per
finished trial. To resume, the lines are added to a fresh study. The sampler of every trial is
seeded by the search's seed and the trial's number, so a resumed search finds what an uninterrupted
one finds. Test metrics are neither read nor kept.
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
from unskew.files import append_json_line, read_json_lines, write_bytes
from unskew.methods import METHODS, parse_settings
from unskew.runs.spec import RunSpec
from unskew.types import Interactions, Split, UnskewError

FORMAT, VERSION = "unskew-tune", 1


@dataclass(frozen=True)
class Dimension:
    """Values of a setting: one of ``choices``, or a number from ``low`` to ``high``."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    """Whether to sample on a logarithmic scale."""
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


def _logarithmic(low: float, high: float, whole: bool = False) -> Dimension:
    return Dimension(low, high, True, whole)


def _linear(low: float, high: float, whole: bool = False) -> Dimension:
    return Dimension(low, high, False, whole)


OVERRIDES: dict[str, dict[str, Dimension | None]] = {
    "": {  # every method that has the field; None: not searched
        "rounds": None,  # the best round is chosen anyway
        "participation": None,  # belongs to the deployment
        "aggregate_from": None,
        "tolerance": None,
        "batch": None,
        "dim": Dimension(choices=(8, 16, 32, 64)),
        "negatives": _linear(1, 8, True),
        "local_epochs": _logarithmic(1, 20, True),
    },
    "pfedclr": {"rank": _logarithmic(1, 16, True), "buffer": None},
    "fedrefit": {
        "dim": Dimension(choices=(16, 32, 64, 128)),
        "space_rounds": None,  # changes what a round is
        "item_power": _linear(0, 0.5),
        "fast": _linear(0.1, 0.9),
        "slow": _linear(0.5, 1),
        "horizon": _linear(0.5, 1),
        "far_horizon": _linear(0.5, 1),
        "discount": _linear(0, 0.5),
        "order": None,  # chosen on validation already
    },
    "fedrap": {"batch_decay": _linear(0.8, 1), "round_decay": _linear(0.9, 1)},
    "pfedgraph": {"evenness": _linear(0.1, 2)},
    "gpfedrec": {"threshold": _linear(0.5, 2)},
    "lightgcn": {"layers": _linear(1, 4, True), "batches": None},
}
"""Dimensions that replace the default ones, by method; a method's own entry comes first."""


def default_space(method: str) -> Space:
    """The search space of a method, from the fields of its Config.

    A positive real setting is searched within a factor of ten of its default on a logarithmic
    scale, a positive whole number within a factor of four, and a choice over all its values.
    """
    config = METHODS[method].Config
    hints, overrides = get_type_hints(config), OVERRIDES[""] | OVERRIDES.get(method, {})
    space: Space = {}
    for field in dataclasses.fields(config):
        chosen = (
            overrides[field.name]
            if field.name in overrides
            else _dimension_by_type(hints[field.name], field.default)
        )
        if chosen is not None:
            space[field.name] = chosen
    return space


def _dimension_by_type(kind: Any, default: Any) -> Dimension | None:
    if get_origin(kind) is Literal:
        return Dimension(choices=get_args(kind))
    if kind is bool:
        return Dimension(choices=(False, True))
    if kind is int and default > 0:
        return _logarithmic(max(1, default // 4), default * 4, True)
    if kind is float and default > 0:
        return _logarithmic(default / 10, default * 10)
    return None  # a default of 0 sets no scale: searched only on request


def parse_space(method: str, text: str) -> Space:
    """Parse ``rank=2:16,learning_rate=0.001:0.1,dim=8|16|32``.

    A range over a factor of ten or more is searched on a logarithmic scale.
    """
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
    """Settings that were tried, with the validation NDCG@10 of their best round or a problem."""

    number: int
    settings: dict[str, Any]
    value: float | None
    best_rounds: list[int]
    seconds: float
    problem: str | None = None


@dataclass(frozen=True)
class Search:
    """A run and the space of its settings; settings outside ``space`` stay as in ``spec``."""

    spec: RunSpec
    space: Space
    seed: int = 0

    def header(self) -> dict[str, Any]:
        """The first line of ``trials.jsonl``, as JSON reads it back."""
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
"""Called after a trial with it and all trials so far."""


def tune(
    search: Search,
    interactions: Interactions,
    folder: Path,
    trials: int,
    on_trial: OnTrial | None = None,
) -> list[Trial]:
    """Search until the folder holds ``trials`` trials, those of earlier calls included."""
    optuna = import_optuna()
    split = prepare(interactions, search.spec.protocol)
    log = folder / "trials.jsonl"
    done = _read_trials(log, search)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spaces = {name: _distribution(optuna, one) for name, one in search.space.items()}
    study = optuna.create_study(direction="maximize")
    for trial in done:
        failed = trial.value is None
        state = optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                params=trial.settings, distributions=spaces, value=trial.value, state=state
            )
        )
    if not done and (defaults := _default_settings(search)):
        study.enqueue_trial(defaults)  # so that the best trial is no worse than the defaults
    for number in range(len(done), trials):
        # The sampler of a trial depends only on the trials before it and on its number.
        study.sampler = optuna.samplers.TPESampler(seed=search.seed * 1_000_003 + number)
        asked = study.ask(spaces)
        trial = _run_trial(search, dict(asked.params), number, split)
        if trial.value is None:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, trial.value)
        append_json_line(log, trial._asdict())
        done.append(trial)
        if on_trial is not None:
            on_trial(trial, done)
    return done


def import_optuna() -> Any:
    """Import Optuna, an optional dependency."""
    try:
        import optuna
    except ImportError:
        raise UnskewError(
            "Tuning needs Optuna, which is not installed; get it with `pip install 'unskew[tune]'`."
        ) from None
    return optuna


def best_trial(trials: list[Trial]) -> Trial:
    """The trial with the highest value, the first of equals."""
    valued = [trial for trial in trials if trial.value is not None]
    if not valued:
        reason = trials[-1].problem if trials else "none was run"
        raise UnskewError(f"No trial succeeded ({reason}); give another --space.")
    return max(valued, key=lambda trial: trial.value or 0.0)


def config_text(search: Search, best: Trial) -> str:
    """The best settings as a file for ``unskew run --config``."""
    spec = search.spec
    values: dict[str, Any] = {
        "method": spec.method,
        "data": spec.data,
        "protocol": spec.protocol,
        "seeds": list(spec.seeds),
        "skip_bad_rows": spec.skip_bad_rows,
        "min_user_rows": spec.min_user_rows,
    }
    lines = [
        f"# Best of the search so far: trial {best.number}, validation NDCG@10 {best.value:.4f}.",
        *_toml_lines({key: value for key, value in values.items() if value is not None}),
    ]
    tables = {"columns": spec.columns, "settings": {**spec.settings, **best.settings}}
    for table, entries in tables.items():
        if entries:
            lines += ["", f"[{table}]", *_toml_lines(entries)]
    return "\n".join([*lines, ""])


def _toml_lines(values: Mapping[str, Any]) -> list[str]:
    """JSON writes strings, numbers, booleans and lists of them as TOML does."""
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


def _run_trial(search: Search, chosen: dict[str, Any], number: int, split: Split) -> Trial:
    began, values, rounds = time.monotonic(), [], []
    settings = {**search.spec.settings, **chosen}
    try:
        for seed in search.spec.seeds:
            method = dataclasses.replace(search.spec, settings=settings).build()
            federation = Federation(method, split, seed)
            state = federation.run()
            best = max(state.rows, key=lambda row: row["validation"]["ndcg@10"])
            values.append(best["validation"]["ndcg@10"])
            rounds.append(best["round"])
    except UnskewError as error:
        return Trial(number, chosen, None, [], time.monotonic() - began, str(error))
    value = math.fsum(values) / len(values)
    if not math.isfinite(value):
        return Trial(number, chosen, None, rounds, time.monotonic() - began, "it diverged")
    return Trial(number, chosen, value, rounds, time.monotonic() - began)


def _read_trials(log: Path, search: Search) -> list[Trial]:
    """Read the finished trials; a line that a kill cut short is dropped and tried again."""
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
    """The settings without a search if the space contains them, otherwise nothing."""
    config = search.spec.build().config
    values = {name: getattr(config, name) for name in search.space}
    inside = all(one.contains(values[name]) for name, one in search.space.items())
    return values if inside else {}


def _distribution(optuna: Any, one: Dimension) -> Any:
    if one.choices:
        return optuna.distributions.CategoricalDistribution(one.choices)
    if one.whole:
        return optuna.distributions.IntDistribution(int(one.low), int(one.high), log=one.log)
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.log)
