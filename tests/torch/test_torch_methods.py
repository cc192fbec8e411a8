"""PyTorch methods through the adapter: the same contract, and the same figures as our kernels."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unskew
from conftest import cut_down
from unskew.deploy.messages import read_download, upload_shape
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.methods import create
from unskew.types import Interactions, Rows, Split, UnskewError

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


@pytest.mark.parametrize(
    "kind", [pytest.param("PFedCLR", marks=pytest.mark.slow), "PFedRec", "Perceptron"]
)
def test_the_contract(kind: str, demo_data: Interactions) -> None:
    method = getattr(torch_methods, kind)
    few = prepare(cut_down(demo_data, 16, 40))
    check_method(method(method.Config(**QUICK | {"local_epochs": 1})), few)


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
    ours = Federation(create("pfedrec", rounds=2, dim=8), tiny_split, 0)
    method = torch_methods.PFedRec(torch_methods.PFedRecConfig(rounds=2, dim=8))
    theirs = Federation(method, tiny_split, 0)
    a, b = ours.start(), theirs.start()
    b.server = b.server._replace(items_weight=a.server.Q.copy())
    everyone = np.arange(tiny_split.n_users)
    start = a.devices.take(everyone)
    held = b.devices.take(everyone)._replace(
        affine_weight=start.theta[:, None, :], affine_bias=start.bias[:, None]
    )
    b.devices.put(everyone, held, 0)
    ours.run(2, state=a)
    theirs.run(2, state=b)
    scale = float(np.abs(a.server.Q).max())
    np.testing.assert_allclose(b.server.items_weight, a.server.Q, atol=1e-4 * scale)
    one, other = a.devices.take(everyone), b.devices.take(everyone)
    np.testing.assert_allclose(other.affine_weight[:, 0], one.theta, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(b.rows[-1]["loss"], a.rows[-1]["loss"], rtol=1e-4)


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


class Dropped(Dot):
    """A user vector, two item tables, a bias per item, and dropout."""

    def __init__(self, n_items: int) -> None:
        super().__init__(n_items)
        self.tags = torch.nn.Embedding(n_items, 4, padding_idx=0)
        self.bias = torch.nn.Parameter(torch.zeros(n_items))
        self.level = torch.nn.Parameter(torch.zeros(n_items, 1))
        self.drop = torch.nn.Dropout(0.3)
        self.out = torch.nn.Linear(12, 1)

    def forward(self, items: Any) -> Any:
        both = torch.cat((self.items(items) * self.user, self.tags(items)), -1)
        own = self.bias[items] + self.level[items].squeeze(-1)
        return self.out(self.drop(both)).squeeze(-1) + own


def test_dropout_several_tables_and_biases(tiny_split: Split) -> None:
    """Masks depend on the seed alone: not on chunks, threads or PyTorch's own generator."""
    shared = ["items.weight", "tags.weight", "bias", "level", "out.weight", "out.bias"]
    method = federate(Dropped, shared, rounds=2, local_epochs=2, tolerance=0.0)
    one = Federation(method, tiny_split, 0).run(2)
    torch.manual_seed(12345)
    other = Federation(method, tiny_split, 0, chunk=5).run(2)
    for name, ours, theirs in zip(one.server._fields, one.server, other.server, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=name)
    assert method.item_table(method.download(one.server)).shape == (tiny_split.n_items, 14)
    still = federate(Dropped, shared, rounds=1, local_epochs=1)
    users = np.arange(2)
    scores = [still.score(still.download(one.server), one.devices.take(users)) for _ in range(2)]
    np.testing.assert_array_equal(*scores)
    before = Federation(method, tiny_split, 0).start().server.tags_weight
    assert not np.array_equal(one.server.tags_weight[0], before[0]), "item 0 is an item like others"


def test_dropout_masks_have_their_share() -> None:
    from unskew.torch.rows import _Dropout

    layer = _Dropout(0.3)
    masks = []
    for key in (1, 2):
        layer.key = torch.tensor(key)
        masks.append(layer(torch.ones(100, 200)))
        assert abs(float((masks[-1] == 0).float().mean()) - 0.3) < 0.02
        assert abs(float(masks[-1].mean()) - 1) < 0.03
    both = ((masks[0] == 0) & (masks[1] == 0)).float().mean()
    assert abs(float(both) - 0.09) < 0.02


def test_a_device_that_does_not_exist(tiny_split: Split) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UnskewError, match="device = cuda: PyTorch has no such device here"):
        Federation(federate(Dot, ["items.weight"], device="cuda"), tiny_split, 0).run(1)


def test_uploaded_layers_can_be_scored(tiny_split: Split) -> None:
    """The hook of the privacy audit: a device's network, put together from its upload."""
    method = torch_methods.Perceptron(TorchConfig(rounds=1, local_epochs=1))
    federation = Federation(method, tiny_split, 0)
    state, users = federation.start(), np.arange(3)
    download, private = method.download(state.server), state.devices.take(users)
    after, upload, _ = method.local(download, private, federation.cohort(users, 1))
    expected = method.score(download, after._replace(items_weight=private.items_weight))
    found = method.score_dense(
        download, after._replace(items_weight=private.items_weight), upload.dense
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    dot = federate(Dot, ["items.weight"])
    assert dot.score_dense(None, None, np.zeros((3, 0), np.float32)) is None


def test_modules_that_need_a_change() -> None:
    def padded(n_items: int) -> Any:
        return torch.nn.Embedding(n_items + 1, 4, padding_idx=0)

    def bounded(n_items: int) -> Any:
        return torch.nn.Embedding(n_items, 4, max_norm=1.0)

    with pytest.raises(UnskewError, match="has 3 rows for 2 items"):
        federate(padded, ["weight"]).init(2, 3, 0)
    with pytest.raises(UnskewError, match="max_norm"):
        federate(bounded, ["weight"]).init(2, 3, 0)
    with pytest.raises(UnskewError, match="federate takes a function"):
        federate(Dot(3), ["items.weight"])  # type: ignore[arg-type]


def test_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    """Every block of docs/torch.md runs, in order."""
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    names: dict[str, Any] = {"__name__": "documentation"}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert 0 < float(capsys.readouterr().out) < 1
    method = names["method"]
    split = prepare(cut_down(unskew.load("demo"), 16, 40))
    assert Federation(method, split, 0).run(2).round == 2
    assert Federation(names["MyMethod"](TorchConfig(rounds=1)), split, 0).run(1).round == 1


def test_pfedclr_is_short() -> None:
    """The module, the settings and the method: what an author writes."""
    parts = (torch_methods.CalibratedItems, torch_methods.PFedCLRConfig, torch_methods.PFedCLR)
    assert sum(len(inspect.getsource(part).splitlines()) for part in parts) <= 60


def test_a_node_knows_the_shape_of_an_upload(tiny_split: Split) -> None:
    """Flower's messages are checked against what a dummy user sends; a resumed state is plain
    arrays."""
    method = torch_methods.Perceptron(TorchConfig(local_epochs=1))
    server, _ = method.init(3, tiny_split.n_items, 0)
    shape = upload_shape(method, method.download(server), tiny_split.n_items, 2)
    assert (shape.width, shape.dense) == (16, 32 * 16 + 16 + 16 + 1)
    named = method.download(server)._asdict()
    read = read_download(method, named, 3, tiny_split.n_items)
    np.testing.assert_array_equal(read.items_weight, server.items_weight)
