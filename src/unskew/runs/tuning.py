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
from typing import Any, NamedTuple

from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.files import append_json_line, read_json_lines
from unskew.runs.space import Dimension, Space
from unskew.runs.spec import RunSpec
from unskew.types import Interactions, Split, UnskewError

FORMAT, VERSION = "unskew-tune", 1


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
        append_json_line(log, trial._asdict())
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
    rows = read_json_lines(log, skip_damaged=True) if log.exists() else []
    if not rows:
        append_json_line(log, search.header())
        return []
    try:
        if rows[0] != search.header():
            raise UnskewError(f"{log} is of another search; give another --out or its own options.")
        return [Trial(**row) for row in rows[1:]]
    except TypeError as error:
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
