"""Run folders with a file that is flipped, cut, exchanged or deleted: every use of the run says so
in one sentence or gives the same results as before. Resuming mends what can be mended."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import unskew
from unskew.cli._results import write_report
from unskew.engine import checkpoints
from unskew.runs import RunSpec, open_recommender, read_spec, run
from unskew.types import UnskewError

SETTINGS = {"rounds": 4, "dim": 4, "local_epochs": 2, "participation": 0.5, "learning_rate": 1.0}
"""Rates this high make validation worse after a round or two: the best is not the last."""


class Stop(BaseException):
    """The process ends here."""


def train(place: Path, *, rate: float = 1.0, rounds_until_stop: int | None = None) -> Path:
    """A run in the folder ``place/run``, stopped in a round if asked."""
    lines = [f"u{u},i{(u * 3 + k) % 20},{10**9 + k}" for u in range(24) for k in range(6)]
    place.mkdir()
    data = place / "own.csv"
    data.write_text("user,item,timestamp\n" + "\n".join(lines) + "\n")

    def stop(seed: int, row: dict[str, Any], rounds: int) -> None:
        if row["round"] == rounds_until_stop:
            raise Stop

    spec = RunSpec("fedmf", SETTINGS | {"learning_rate": rate}, str(data))
    try:
        run(spec, spec.load(), out=place / "run", on_round=stop)
    except Stop:
        assert rounds_until_stop is not None
    return place / "run"


def resume(folder: Path) -> Any:
    spec, command = read_spec(folder)
    result = run(spec, spec.load(), out=folder, resume=True, command=command).result()
    same = ("metrics", "last_round", "best_rounds", "model_sha256", "rounds")
    return {name: value for name, value in result.to_json().items() if name in same}


def recommend(folder: Path) -> Any:
    return open_recommender(folder).recommend_all(5).rows()


def compare(folder: Path) -> Any:
    (row,) = unskew.compare(folder).to_json()["runs"]
    return {name: value for name, value in row.items() if name != "run"}


def report(folder: Path) -> Any:
    page = folder.parent / "report.html"
    write_report([folder], page)
    return page.read_text()


def reopen(folder: Path) -> Any:
    opened = unskew.open_run(folder)
    return opened.summary(), opened.history.rows(), repr(opened.per_user.rows())


USES: dict[str, Callable[[Path], Any]] = {
    "resume": resume,
    "recommend": recommend,
    "compare": compare,
    "report": report,
    "open_run": reopen,
}


class Case(NamedTuple):
    """A run, one of the same kind with other results, and what the uses of the first one give."""

    run: Path
    foreign: Path
    wanted: dict[str, Any]

    def copy(self) -> Path:
        """A fresh copy of the run, always in the same place, which results name."""
        folder = self.run.parent.parent / "copy" / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.run, folder)
        return folder


def make_case(place: Path, rounds_until_stop: int | None) -> Case:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "MAX_WRITING_SHARE", 1e9)  # every round is saved
        own = train(place / "own", rounds_until_stop=rounds_until_stop)
        foreign = train(place / "foreign", rate=0.5, rounds_until_stop=rounds_until_stop)
    case = Case(own, foreign, {})
    folder = case.copy()
    case.wanted.update({use: attempt(USES[use], folder) for use in READ_ONLY})
    case.wanted["resume"] = attempt(resume, folder)
    case.wanted.update({f"{use} after": attempt(USES[use], folder) for use in MENDED})
    return case


@pytest.fixture(scope="module", params=["finished", "stopped"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(
        tmp_path_factory.mktemp(request.param), 3 if request.param == "stopped" else None
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("again"), None)


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def flip(path: Path, foreign: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 5))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, foreign: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.choice((0, rng.randrange(len(content)), len(content) - 1))])


def exchange(path: Path, foreign: Path, rng: random.Random) -> None:
    """With a file of the same kind, of another run or of this one."""
    alike = [p for p in foreign.rglob(f"{path.name[:8]}*{path.suffix}") if p.is_file()]
    alike += [p for p in path.parent.glob(f"{path.name[:4]}*{path.suffix}") if p != path]
    if alike:
        path.write_bytes(rng.choice(sorted(alike)).read_bytes())


def delete(path: Path, foreign: Path, rng: random.Random) -> None:
    path.unlink()


DAMAGES = (flip, cut, exchange, delete)


def attempt(use: Callable[[Path], Any], folder: Path) -> Any:
    """The result of a use of the run, or the sentence with which it is refused."""
    try:
        return use(folder)
    except UnskewError as error:
        return str(error)


def check(case: Case, name: str, damage: Any, seed: int) -> None:
    """Damage a file of a copy of a run, use the run in every way, and resume it."""
    folder, about = case.copy(), f"seed {seed}: {damage.__name__} {name}"
    damage(folder / name, case.foreign, random.Random(seed))
    for use in READ_ONLY:
        found = attempt(USES[use], folder)
        if found != case.wanted[use]:
            assert isinstance(found, str), f"{about}: {use} gives other results"
            assert Path(name).name in found or "manifest.json" in found, f"{about}: {found}"
            assert "\n" not in found, f"{about}: {found}"
    resumed = attempt(resume, folder)
    if resumed != case.wanted["resume"]:
        assert isinstance(resumed, str), f"{about}: resume gives other results"
        assert Path(name).name in resumed, f"{about}: {resumed}"
        return
    for use in MENDED:
        after = attempt(USES[use], folder)
        assert after == case.wanted[f"{use} after"], f"{about}: {use} afterwards"


READ_ONLY = ("recommend", "compare", "report", "open_run")
"""Uses that change nothing in the run's folder."""
MENDED = ("recommend", "compare")
"""Uses that give the same results after a run is resumed as without damage."""


def test_every_file_is_checked(case: Case) -> None:
    """One file of each kind; many more damages take a while."""
    names = {Path(name).name[:8]: name for name in files_of(case.run)}
    assert len(names) >= 9
    for seed, name in enumerate(sorted(names.values())):
        check(case, name, DAMAGES[seed % len(DAMAGES)], seed)


@pytest.mark.slow
def test_many_damages(case: Case) -> None:
    for seed in range(400):
        rng = random.Random(seed)
        check(case, rng.choice(files_of(case.run)), rng.choice(DAMAGES), seed)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(finished: Case) -> None:
    folder, trained = finished.copy(), list[int]()
    current = json.loads((folder / "seed-0/state/current.json").read_text())
    path = folder / "seed-0/state" / current["server"]
    path.write_bytes(path.read_bytes()[:-1])
    spec, _ = read_spec(folder)
    again = run(
        spec,
        spec.load(),
        out=folder,
        resume=True,
        on_round=lambda seed, row, rounds: trained.append(row["round"]),
    ).result()
    assert trained == [4]
    (note,) = [note for note in again.notes if path.name in note]
    assert "went on from round 3" in note
    assert again.model_sha256 == finished.wanted["resume"]["model_sha256"]


def test_a_run_without_any_whole_checkpoint_says_how_to_train_again(finished: Case) -> None:
    folder = finished.copy()
    for path in folder.glob("seed-0/state/*.safetensors"):
        path.write_bytes(b"no longer a file of tensors")
    with pytest.raises(UnskewError, match="to train this seed again, delete the folder"):
        resume(folder)
    shutil.rmtree(folder / "seed-0/state")
    assert resume(folder) == finished.wanted["resume"]


def test_a_run_of_an_older_version_says_so(finished: Case) -> None:
    folder = finished.copy()
    header = json.loads((folder / "run.json").read_text()) | {"version": 1}
    (folder / "run.json").write_text(json.dumps(header))
    for use in USES.values():
        with pytest.raises(UnskewError, match=r"version 1 of unskew-run.*or run again"):
            use(folder)
