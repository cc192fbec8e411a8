"""Mistakes that a new method makes: each is found, by a sentence that names it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from conftest import run_unskew
from unskew.engine import Federation
from unskew.engine.contract import RESERVED_NAMES, Contract
from unskew.kernels import draw_samples
from unskew.methods.training import TrainingConfig
from unskew.rng import Purpose, generator
from unskew.testing import check_method, run_checks
from unskew.types import Cohort, Method, Rows, Split, UnskewError, Upload, UploadSum

HERE = str(Path(__file__).parent)


class Server(NamedTuple):
    Q: Any


class Private(NamedTuple):
    p: Any


@dataclass(frozen=True)
class Honest(Method):
    """A NumPy method: one gradient step on the user vector and on each touched item."""

    config: Any = field(default_factory=lambda: TrainingConfig(rounds=2, dim=4))

    Config: ClassVar = TrainingConfig
    name = "honest"
    aggregation = "sum"
    summary = "one step of gradient descent in NumPy"
    citation = "none"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Any, Any]:
        draw = generator(seed, Purpose.INIT_ITEMS)
        Q = draw.standard_normal((n_items, self.config.dim), np.float32)
        return Server(Q), Private(np.ones((n_users, self.config.dim), np.float32))

    def local(self, download: Any, private: Any, cohort: Cohort) -> Any:
        samples = draw_samples(cohort, self.config.negatives)
        rows = download.Q[samples.touched.items]
        p, losses = private.p.copy(), np.zeros(len(cohort.users))
        for c in range(len(cohort.users)):
            mine = slice(samples.touched.indptr[c], samples.touched.indptr[c + 1])
            here = slice(samples.indptr[c], samples.indptr[c + 1])
            row, label = samples.row[here], samples.label[here]
            error = 1 / (1 + np.exp(-rows[mine][row] @ p[c])) - label
            losses[c] = np.abs(error).mean()
            step = np.zeros_like(rows[mine])
            np.add.at(step, row, error[:, None].astype(np.float32) * p[c])
            rows[mine] -= np.float32(0.05) * step
        changed = Rows(*samples.touched, rows - download.Q[samples.touched.items])
        weight = samples.counts().astype(np.float64)
        return Private(p), Upload(changed, np.zeros((len(p), 0), np.float32), weight), losses

    def aggregate(self, server: Any, total: UploadSum) -> Any:
        if total.weight == 0:
            return server
        return Server((server.Q + total.rows / total.weight).astype(np.float32))

    def score(self, download: Any, private: Any) -> Any:
        # One user at a time: the rounding of a product of matrices depends on their shapes.
        return np.stack([download.Q @ p for p in private.p])

    def fold_in(self, download: Any, private: Any, cohort: Cohort) -> Any:
        return private


class AbsoluteRows(Honest):
    def local(self, download: Any, private: Any, cohort: Cohort) -> Any:
        after, upload, losses = super().local(download, private, cohort)
        rows = upload.rows._replace(values=upload.rows.values + download.Q[upload.rows.items])
        return after, upload._replace(rows=rows), losses


class NotANumber(Honest):
    def local(self, download: Any, private: Any, cohort: Cohort) -> Any:
        after, upload, losses = super().local(download, private, cohort)
        upload.rows.values[0, 0] = np.nan
        return after, upload, losses


class ChangedInput(Honest):
    def local(self, download: Any, private: Any, cohort: Cohort) -> Any:
        private.p[:] += 0.1
        return super().local(download, private, cohort)


class UnsortedRows(Honest):
    def local(self, download: Any, private: Any, cohort: Cohort) -> Any:
        after, upload, losses = super().local(download, private, cohort)
        rows = upload.rows
        flipped = rows._replace(items=rows.items[::-1].copy(), values=rows.values[::-1].copy())
        return after, upload._replace(rows=flipped), losses


class DoublePrecision(Honest):
    def aggregate(self, server: Any, total: UploadSum) -> Any:
        return server if total.weight == 0 else Server(server.Q + total.rows / total.weight)


class WrongAxis(Honest):
    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Any, Any]:
        server, private = super().init(n_users, n_items, seed)
        return server, Private(private.p.T.copy())


class ScalarLoss(Honest):
    def local(self, download: Any, private: Any, cohort: Cohort) -> Any:
        after, upload, losses = super().local(download, private, cohort)
        return after, upload, float(losses.mean())


class DictState(Honest):
    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Any, Any]:
        server, private = super().init(n_users, n_items, seed)
        return server._asdict(), private


class OwnGenerator(Honest):
    def local(self, download: Any, private: Any, cohort: Cohort) -> Any:
        after, upload, losses = super().local(download, private, cohort)
        noise = np.random.default_rng().standard_normal(upload.rows.values.shape) / 100
        rows = upload.rows._replace(values=upload.rows.values + noise.astype(np.float32))
        return after, upload._replace(rows=rows), losses


IN_THE_FIRST_ROUND: list[tuple[type, str]] = [
    (AbsoluteRows, "local returned upload.rows that are almost download.Q itself"),
    (NotANumber, "local returned NaN or infinity in upload.rows.values"),
    (ChangedInput, "local changed its input private.p; copy before you change"),
    (UnsortedRows, "local returned upload.rows whose items are not ascending"),
    (DoublePrecision, "aggregate returned server.Q as float64"),
    (WrongAxis, "init returned private.p for 4 users"),
    (ScalarLoss, "local returned losses as a float; it is one per client"),
    (DictState, "init returned server as a dict"),
]


def test_an_honest_method_passes() -> None:
    check_method(Honest())


@pytest.mark.parametrize(("mistake", "sentence"), IN_THE_FIRST_ROUND)
def test_found_in_the_first_round(
    mistake: Callable[[], Any], sentence: str, tiny_split: Split
) -> None:
    with pytest.raises(UnskewError) as caught:
        Federation(mistake(), tiny_split, 0).run(1)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("honest: ")


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_a_private_field_named_like_an_array_of_saved_devices(name: str) -> None:
    """Its values would replace that array, or be replaced by it."""
    state = NamedTuple("State", [(name, Any)])(np.zeros((3, 2), np.float32))  # type: ignore[misc]
    with pytest.raises(UnskewError, match=rf"private\.{name}.*rename the field"):
        Contract("honest").state("init", "private", state, 3)
    Contract("honest").state("init", "server", state)


def test_a_generator_of_its_own_is_found(tiny_split: Split) -> None:
    found = {one.check: one.problem for one in run_checks(OwnGenerator(), tiny_split)}
    assert "draw from unskew.rng.generator" in (found["same seed"] or "")


CARELESS = """
import numba
import numpy as np
from test_contract_mistakes import Honest

@numba.njit
def touch(values):
    values[len(values)] = 0.0

class Careless(Honest):
    name = "careless"

    def init(self, n_users, n_items, seed):
        touch(np.zeros(64))
        return super().init(n_users, n_items, seed)
"""


def test_a_write_out_of_bounds_is_found(tmp_path: Path) -> None:
    """Only a bounds-checked kernel sees it, so the command runs kernels that way."""
    (tmp_path / "careless.py").write_text(CARELESS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{HERE}:{Path(HERE).parent}:{os.environ.get('PYTHONPATH', '')}")
        arguments = ("check", "careless:Careless", "--bounds", "--json")
        said, _ = run_unskew(*arguments, cwd=tmp_path, expect=1)
    problems = [one["problem"] for one in json.loads(said)["checks"] if one["problem"]]
    assert len(problems) == 1
    assert "careless: IndexError (index is out of bounds)" in problems[0]
    assert "careless.py, line 14: touch(np.zeros(64))" in problems[0]


def test_the_command_prints_a_table_and_fails_with_1(tmp_path: Path) -> None:
    (tmp_path / "mistaken.py").write_text(
        "from test_contract_mistakes import *\nHonest, ScalarLoss = Honest, ScalarLoss\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        said, _ = run_unskew("check", "mistaken:ScalarLoss", cwd=tmp_path, expect=1)
        assert "local returned losses as a float" in said
        said, _ = run_unskew("check", "mistaken:Honest", "--set", "dim=3", cwd=tmp_path)
    assert "12 of 12 checks passed." in said


def test_an_exception_in_a_method_is_a_finding(tiny_split: Split) -> None:
    class Raises(Honest):
        def aggregate(self, server: Any, total: UploadSum) -> Any:
            raise ValueError("two\nlines")

    (found,) = run_checks(Raises(), tiny_split)
    assert "ValueError (two lines) in test_contract_mistakes.py, line" in (found.problem or "")
