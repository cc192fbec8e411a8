"""Running a specification: every seed, with checkpoints, into a folder or only in memory."""

from __future__ import annotations

import hashlib
import json
import platform
import resource
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from unskew.engine import CHUNK, Checkpoints, Federation, State, return_freed
from unskew.evaluation import prepare
from unskew.files import read_json, write_atomically, write_json, write_json_lines
from unskew.privacy import PrivateUploads
from unskew.runs.private import account, mechanism_of, over_seeds, uploads_of
from unskew.runs.recommender import Recommender, saved_recommender
from unskew.runs.results import SeedOutcome, outcome_of, per_client, summarise
from unskew.runs.spec import RunSpec
from unskew.types import Interactions, Split, UnskewError

FORMAT, RESULT_FORMAT, VERSION = "unskew-run", "unskew-result", 1

OnRound = Callable[[int, dict[str, Any], int], None]
"""Called after every round with the seed, the round's row and the number of rounds in all."""


@dataclass(frozen=True)
class Run:
    """A finished run: its specification, its figures, and its models, ready to recommend."""

    spec: RunSpec
    split: Split
    outcomes: list[SeedOutcome]
    recommenders: dict[int, Recommender]
    """By seed: all of a run that is only in memory, of a saved one those that were asked for."""
    folder: Path | None
    command: str
    accounts: tuple[dict[str, Any], ...] = ()
    """Of a private run: each seed's privacy account."""

    @property
    def metrics(self) -> dict[str, float]:
        """Mean over seeds of every metric at the best validation round."""
        return {name: s["mean"] for name, s in self.summary()["metrics"].items()}

    def summary(self) -> dict[str, Any]:
        """The figures as one JSON object: what ``--json`` prints and ``result.json`` holds."""
        rows = [row for outcome in self.outcomes for row in outcome.rows]
        private = {"privacy": over_seeds(self.accounts)} if self.accounts else {}
        return {
            "method": self.spec.method,
            "settings": dict(self.spec.settings),
            "data": self.spec.data,
            "protocol": self.spec.protocol,
            "seeds": list(self.spec.seeds),
            "rounds": max(len(outcome.rows) for outcome in self.outcomes),
            "best_rounds": [outcome.best_round for outcome in self.outcomes],
            "ranking": "all unseen items" if self.split.rank_all else "99 sampled candidates",
            "users": self.split.n_users,
            "items": self.split.n_items,
            "metrics": summarise([outcome.best for outcome in self.outcomes]),
            "last_round": summarise([outcome.last for outcome in self.outcomes]),
            "sampled99": summarise([outcome.best_sampled for outcome in self.outcomes]),
            "sampled99_last_round": summarise([o.last_sampled for o in self.outcomes]),
            "seconds_per_round": statistics.median(row["seconds"] for row in rows),
            "peak_rss_mb": peak_rss_mb(),
            "bytes_up": per_client(self.outcomes, "bytes_up"),
            "bytes_down": per_client(self.outcomes, "bytes_down"),
            "model_sha256": _combined([outcome.model_sha256 for outcome in self.outcomes]),
            "model_sha256_per_seed": [outcome.model_sha256 for outcome in self.outcomes],
            "versions": versions(),
            "command": self.command,
            "notes": list(self.split.notes),
            "run_dir": None if self.folder is None else str(self.folder),
            **private,
        }

    def recommender(self, seed: int | None = None) -> Recommender:
        """Recommendations from the best round of a seed (default: the first)."""
        chosen = self.spec.seeds[0] if seed is None else seed
        if self.folder is not None and chosen not in self.recommenders:
            federation = Federation(self.spec.build(), self.split, chosen)
            self.recommenders[chosen] = saved_recommender(self.folder, federation)
        return self.recommenders[chosen]

    def recommend(self, user: str, k: int = 10) -> list[dict[str, Any]]:
        """The best ``k`` unseen items of a user, each with item, title and score."""
        return self.recommender().recommend(user, k)


def run(
    spec: RunSpec,
    interactions: Interactions,
    *,
    out: Path | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    command: str = "",
    chunk: int = CHUNK,
) -> Run:
    """Train every seed and gather the figures; ``out`` gets a run folder with checkpoints."""
    split = prepare(interactions, spec.protocol)
    if out is not None:
        _open_folder(out, spec, split, resume, command)
    outcomes, recommenders, accounts = [], {}, []
    mechanism = mechanism_of(spec, split)
    for seed in spec.seeds:
        transform = uploads_of(spec, split, mechanism)
        federation = Federation(spec.build(), split, seed, chunk=chunk, transform=transform)
        folder = None if out is None else out / f"seed-{seed}"
        state = _train(federation, folder, on_round, transform)
        outcomes.append(outcome_of(seed, state, split))
        if mechanism is not None and spec.ldp is not None:
            accounts.append(account(spec.ldp, mechanism, federation, state.rows))
        if folder is None:
            recommenders[seed] = Recommender(federation.method, split, state.best_devices, seed)
        else:
            _write_per_user(folder / "users.parquet", split, outcomes[-1])
        # What is on disk need not stay in memory: many seeds take no more of it than one.
        del state
        return_freed()
    finished = Run(spec, split, outcomes, recommenders, out, command, tuple(accounts))
    if out is not None:
        write_json(
            out / "result.json",
            {"format": RESULT_FORMAT, "version": VERSION} | finished.summary(),
        )
    return finished


def _train(
    federation: Federation,
    folder: Path | None,
    on_round: OnRound | None,
    transform: PrivateUploads | None,
) -> State:
    rounds = federation.method.config.rounds
    checkpoints = None if folder is None else Checkpoints(folder / "state")
    state = None if checkpoints is None else checkpoints.load(federation)
    if state is None:
        state = federation.start()
    while state.round < rounds:
        row = federation.step(state)
        if transform is not None:
            # In the round's row, so that a resumed run's account covers all rounds.
            row["ldp"] = transform.round_figures()
        if checkpoints is not None and folder is not None:
            checkpoints.after_round(state, final=state.round == rounds)
            write_json_lines(folder / "rounds.jsonl", state.rows)
        if on_round is not None:
            on_round(federation.seed, row, rounds)
    return state


def _open_folder(out: Path, spec: RunSpec, split: Split, resume: bool, command: str) -> None:
    if (out / "run.json").exists():
        if not resume:
            raise UnskewError(
                f"{out} already holds a run; go on with `unskew resume {out}` or give another "
                "--out."
            )
        _check_split(out, spec.data, split)
    header = {"format": FORMAT, "version": VERSION, "command": command, "versions": versions()}
    found = {"spec": spec.to_json(), "split_sha256": split_checksum(split)}
    write_json(out / "run.json", header | found)
    write_catalogue(out, split)


def _check_split(out: Path, data: str, split: Split) -> None:
    """Refuse to go on with other data than the run began with; nothing is written before this."""
    known = read_header(out).get("split_sha256")
    if known is not None:
        same = known == split_checksum(split)
    elif (out / "items.parquet").exists() and (out / "users.parquet").exists():
        # A run from before checksums were kept: its catalogue tells nearly as much.
        items, users = _catalogue(split)
        same = read_frame(out / "items.parquet", "item")["item"].equals(items["item"])
        same = same and read_frame(out / "users.parquet").equals(users)
    else:
        same = True  # stopped before anything was trained
    if not same:
        raise UnskewError(
            f"{data} is not what the run in {out} was trained on; put the data back as it "
            "was, or start afresh with `unskew run`."
        )


def split_checksum(split: Split) -> str:
    """SHA-256 of who is in a split, what each trains on in which order, and what is held out."""
    digest = hashlib.sha256()
    for labels in (split.user_ids, split.item_ids):
        digest.update(json.dumps(list(labels)).encode())
    for part in (split.train, split.validation, split.test):
        for numbers in part:
            digest.update(f"{len(numbers)} ".encode() + numbers.astype("<i8").tobytes())
    return digest.hexdigest()


def write_catalogue(out: Path, split: Split) -> None:
    """What recommending needs besides the model: labels, titles, and what each device has seen."""
    for name, frame in zip(("items", "users"), _catalogue(split), strict=True):
        write_atomically(out / f"{name}.parquet", frame.write_parquet)


def _catalogue(split: Split) -> tuple[pl.DataFrame, pl.DataFrame]:
    items = {"item": list(split.item_ids), "title": list(split.titles or split.item_ids)}
    users = {
        "user": list(split.user_ids),
        **{
            part: [getattr(split, part).of(user).tolist() for user in range(split.n_users)]
            for part in ("seen", "validation", "test")
        },
    }
    lists = pl.List(pl.Int32)
    schema: dict[str, Any] = {"user": pl.String, "seen": lists, "validation": lists, "test": lists}
    return pl.DataFrame(items), pl.DataFrame(users, schema=schema)


def read_frame(path: Path, *columns: str) -> pl.DataFrame:
    """A table of a run folder, which has these columns."""
    try:
        frame = pl.read_parquet(path, glob=False, hive_partitioning=False)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = "it is missing" if isinstance(error, FileNotFoundError) else "it is damaged"
    else:
        lacking = [name for name in columns if name not in frame.columns]
        if not lacking:
            return frame
        why = f"it has no column {lacking[0]}"
    raise UnskewError(f"{path} cannot be used: {why}; restore it or run again.")


def read_header(folder: Path) -> dict[str, Any]:
    """What ``run.json`` says about the run in a folder."""
    if not (folder / "run.json").exists():
        raise UnskewError(f"There is no {folder / 'run.json'}; give the folder of a run.")
    header = read_json(folder / "run.json", FORMAT, VERSION)
    if not isinstance(header.get("spec"), dict):
        raise UnskewError(
            f"{folder / 'run.json'} does not say what was run; restore it or run again."
        )
    return header


def read_spec(folder: Path) -> tuple[RunSpec, str]:
    """The specification of the run in a folder, and the command that started it."""
    header = read_header(folder)
    return RunSpec.from_mapping(header["spec"]), header.get("command", "")


def _write_per_user(path: Path, split: Split, outcome: SeedOutcome) -> None:
    frames = [
        pl.DataFrame({"user": list(split.user_ids), **values}).with_columns(
            pl.lit(round).alias("round"), pl.lit(ranking).alias("ranking")
        )
        for (round, ranking), values in outcome.per_user.items()
    ]
    write_atomically(path, pl.concat(frames).write_parquet)


def _combined(checksums: list[str]) -> str:
    """One checksum for the run: a single seed's own, or that of all seeds' in order."""
    if len(checksums) == 1:
        return checksums[0]
    return hashlib.sha256("".join(checksums).encode()).hexdigest()


def versions() -> dict[str, str]:
    names = ("unskew", "numpy", "numba", "polars")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
