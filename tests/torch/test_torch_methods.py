"""PyTorch methods through the adapter: the same contract, and the same figures as our kernels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unskew.engine import Federation
from unskew.methods import create
from unskew.types import Rows, Split, UnskewError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import torch_methods  # noqa: E402

from unskew.testing import check_method  # noqa: E402
from unskew.torch import Phase, TorchConfig, bpr, federate, softmax  # noqa: E402

QUICK: dict[str, Any] = {"rounds": 2, "local_epochs": 2, "tolerance": 0.0, "dim": 8}


class Dot(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A user vector and item rows."""

    def __init__(self, n_items: int) -> None:
        super().__init__()
        self.user = torch.nn.Parameter(torch.randn(8))
        self.items = torch.nn.Embedding(n_items, 8)

    def forward(self, items: Any) -> Any:
        return self.items(items) @ self.user


@pytest.mark.parametrize("kind", ["PFedCLR", "PFedRec", "Perceptron"])
def test_the_contract(kind: str, tiny_split: Split) -> None:
    method = getattr(torch_methods, kind)
    check_method(method(method.Config(**QUICK)), tiny_split)


def test_pfedclr_agrees_with_our_kernels(tiny_split: Split) -> None:
    """After two rounds on the same samples, from the same initial values."""
    ours = Federation(create("pfedclr", **QUICK), tiny_split, 0)
    method = torch_methods.PFedCLR(torch_methods.PFedCLRConfig(**QUICK))
    theirs = Federation(method, tiny_split, 0)
    a, b = ours.start(), theirs.start()
    b.server = b.server._replace(items_weight=a.server.Q.copy())
    everyone = np.arange(tiny_split.n_users)
    start = a.devices.take(everyone)
    b.devices.put(everyone, b.devices.take(everyone)._replace(user=start.p, B=start.B), 0)
    b.devices.downloads = {0: method.download(b.server)}
    ours.run(2, state=a)
    theirs.run(2, state=b)
    np.testing.assert_allclose(b.server.items_weight, a.server.Q, atol=1e-4)
    one, other = a.devices.take(everyone), b.devices.take(everyone)
    np.testing.assert_allclose(other.user, one.p, atol=1e-4)
    np.testing.assert_allclose(other.B, one.B, atol=1e-4)
    np.testing.assert_array_equal(other.A_weight.items, one.A.items)
    np.testing.assert_allclose(other.A_weight.values, one.A.values, atol=1e-4)
    np.testing.assert_allclose(b.rows[-1]["loss"], a.rows[-1]["loss"], rtol=1e-5)


def test_pfedrec_agrees_with_our_kernels(tiny_split: Split) -> None:
    ours = Federation(create("pfedrec", rounds=1, dim=8), tiny_split, 0)
    method = torch_methods.PFedRec(torch_methods.PFedRecConfig(rounds=1, dim=8))
    theirs = Federation(method, tiny_split, 0)
    a, b = ours.start(), theirs.start()
    b.server = b.server._replace(items_weight=a.server.Q.copy())
    everyone = np.arange(tiny_split.n_users)
    start = a.devices.take(everyone)
    held = b.devices.take(everyone)._replace(
        affine_weight=start.theta[:, None, :], affine_bias=start.bias[:, None]
    )
    b.devices.put(everyone, held, 0)
    ours.run(1, state=a)
    theirs.run(1, state=b)
    np.testing.assert_allclose(b.server.items_weight, a.server.Q, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("loss", [bpr, softmax])
def test_losses_of_positives_against_negatives_learn(loss: Any, tiny_split: Split) -> None:
    phases = [Phase({"user": 0.05, "items.weight": 0.05}, loss=loss)]
    method = federate(Dot, ["items.weight"], phases, rounds=4, local_epochs=3)
    rows = Federation(method, tiny_split, 0).run(4).rows
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_only_shared_parameters_leave_the_device(tiny_split: Split) -> None:
    method = federate(Dot, ["items.weight"], rounds=1)
    federation = Federation(method, tiny_split, 0)
    state = federation.start()
    users = np.arange(4)
    cohort = method.draw(federation.cohort(users, 1))
    _, upload, _ = method.local(method.download(state.server), state.devices.take(users), cohort)
    assert upload.dense.shape == (4, 0)
    assert upload.rows.values.shape[1] == 8
    assert cohort.samples is not None
    np.testing.assert_array_equal(upload.rows.items, cohort.samples.touched.items)


def test_a_proximal_term_keeps_parameters_near(tiny_split: Split) -> None:
    def moved(proximal: float) -> float:
        phases = [Phase({"user": 0.05, "items.weight": 0.05}, proximal=proximal)]
        method = federate(Dot, ["items.weight"], phases, rounds=1, tolerance=0.0)
        federation = Federation(method, tiny_split, 0)
        before = federation.start().server.items_weight
        after = federation.run(1).server.items_weight
        return float(np.abs(after - before).sum())

    assert moved(10.0) < 0.5 * moved(0.0)


@pytest.mark.parametrize("optimizer", ["fedavg", "fedavgm", "fedadam", "fedyogi"])
def test_server_optimisers(optimizer: str, tiny_split: Split) -> None:
    settings = {"rounds": 2, "server_optimizer": optimizer, "server_rate": 0.1}
    method = federate(Dot, ["items.weight"], **settings)
    state = Federation(method, tiny_split, 0).run(2)
    assert np.isfinite(state.server.items_weight).all()
    sizes = {"fedavg": (0, 0), "fedavgm": (1, 0), "fedadam": (1, 1), "fedyogi": (1, 1)}
    held = (state.server.items_weight_first, state.server.items_weight_second)
    assert tuple(int(part.size > 0) for part in held) == sizes[optimizer]


def test_modules_that_cannot_be_federated() -> None:
    with pytest.raises(UnskewError, match="shares nothing"):
        federate(Dot, []).init(2, 3, 0)
    with pytest.raises(UnskewError, match="shares weights"):
        federate(Dot, ["weights"]).init(2, 3, 0)
    with pytest.raises(UnskewError, match="row per item"):
        federate(lambda n: torch.nn.Linear(2, 1), ["weight"]).init(2, 3, 0)

    def with_statistics(n_items: int) -> Any:
        return torch.nn.Sequential(torch.nn.Embedding(n_items, 4), torch.nn.BatchNorm1d(4))

    with pytest.raises(UnskewError, match="BatchNorm"):
        federate(with_statistics, ["0.weight"]).init(2, 3, 0)


def test_settings_are_those_of_a_method() -> None:
    method = federate(Dot, ["items.weight"], rounds=7)
    assert isinstance(method.config, TorchConfig)
    assert method.config.rounds == 7
    assert isinstance(method.init(2, 3, 0)[1].items_weight, Rows)
