"""Mistakes that a new method makes: each is found, by a sentence that names it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from unskew.engine import Federation
from unskew.kernels import difference, draw_samples, gather
from unskew.methods import TrainingConfig
from unskew.rng import Purpose, generator
from unskew.testing import check_method, run_checks
from unskew.types import Cohort, Method, Rows, Split, UnskewError, Upload, UploadSum


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
        rows = gather(download.Q, samples.touched)
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
        changed = difference(Rows(*samples.touched, rows), download.Q)
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


def test_a_generator_of_its_own_is_found(tiny_split: Split) -> None:
    found = {one.check: one.problem for one in run_checks(OwnGenerator(), tiny_split)}
    assert "draw from unskew.rng.generator" in (found["same seed"] or "")


def test_a_write_out_of_bounds_is_found(tmp_path: Path) -> None:
    """Only a bounds-checked kernel sees it, so the command runs kernels that way."""
    (tmp_path / "careless.py").write_text(
        textwrap.dedent(
            """
            import numba
            import numpy as np
            from unskew.methods.fedmf import FedMF

            @numba.njit
            def touch(values):
                values[len(values)] = 0.0

            class Careless(FedMF):
                name = "careless"

                def aggregate(self, server, total):
                    touch(np.zeros(64))
                    return super().aggregate(server, total)
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "unskew", "check", "careless:Careless", "--bounds"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode != 0
    assert "out of bounds" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
