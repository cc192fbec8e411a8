"""The ONNX form of a model: a newcomer's scores from the ordered item numbers of a history.

Input ``history`` (int64, any length, oldest first; only an item's first mention counts, negative
numbers are padding). Outputs ``scores`` (float32, one per item), and ``top_items`` and
``top_scores``: the best items that are not in the history, best first. A loop over the history
becomes a product with a matrix of powers.

Lists over the history have one entry more than there are items: item 0 in front, with weight 0,
so that no list is empty when the history is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unskew.export.tables import Codes, Prepared
from unskew.kernels.fednext import FLOOR
from unskew.kernels.history_network import EPSILON, GROUPS, decay_factors, unpack
from unskew.kernels.transitions import Fading
from unskew.methods.newcomers import (
    DecayedFactors,
    HistoryNetwork,
    ItemWeights,
    Neighbours,
    SameForAll,
)
from unskew.types import Float32, UnskewError

OPSET, IR_VERSION = 17, 8
"""Versions of ONNX's operators and of its file format; runtimes since 2022 read them."""


def import_onnx() -> Any:
    """Import onnx, an optional dependency; raises an UnskewError if it is not installed."""
    try:
        import onnx
    except ImportError:
        raise UnskewError(
            "The format onnx needs the package onnx, which is not installed; get it with "
            "`pip install 'unskew[onnx]'`."
        ) from None
    return onnx


def build_graph(prepared: Prepared, k: int, facts: Mapping[str, str]) -> Any:
    """The model as an ONNX object. ``k`` is the length of the list of best items, ``facts`` are
    written into the file's metadata."""
    onnx = import_onnx()
    graph = _Graph(onnx, prepared)
    graph.read_history()
    scores = graph.add("Identity", _scores(graph, prepared.arithmetic), output="scores")
    graph.add_best(scores, k)
    kinds = onnx.TensorProto
    describe = onnx.helper.make_tensor_value_info
    built = onnx.helper.make_graph(
        graph.nodes,
        "newcomer",
        [describe("history", kinds.INT64, ["length"])],
        [
            describe("scores", kinds.FLOAT, ["items"]),
            describe("top_items", kinds.INT64, ["best"]),
            describe("top_scores", kinds.FLOAT, ["best"]),
        ],
        graph.constants,
    )
    opset = onnx.helper.make_opsetid("", OPSET)
    model = onnx.helper.make_model(
        built, opset_imports=[opset], ir_version=IR_VERSION, producer_name="unskew"
    )
    onnx.helper.set_model_props(model, dict(facts))
    onnx.checker.check_model(model)
    return model


class _Graph:
    """A graph under construction. The name of a value stands for the value: ``add`` returns the
    name of an operator's output."""

    def __init__(self, onnx: Any, prepared: Prepared) -> None:
        self._onnx, self._prepared = onnx, prepared
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._stored: dict[int, tuple[NDArray[Any], str]] = {}
        """Constants by the ``id`` of their array, which is kept so that no other array gets it."""

    def add(self, operator: str, *inputs: Any, output: str = "", **attributes: Any) -> str:
        """Add an operator. Arrays and numbers among its inputs become constants."""
        names = [one if isinstance(one, str) else self.constant(np.asarray(one)) for one in inputs]
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(operator, names, [output], **attributes))
        return output

    def constant(self, array: NDArray[Any]) -> str:
        """A constant. A rounded table is stored as float16 and converted when it is used."""
        if id(array) in self._stored:
            return self._stored[id(array)][1]
        stored = self._prepared.smallest(array) if array.dtype == np.float32 else array
        assert not isinstance(stored, Codes)  # pages only
        value = f"constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(stored), value))
        if stored.dtype == np.float16:
            value = self.add("Cast", value, to=self._onnx.TensorProto.FLOAT)
        self._stored[id(array)] = array, value
        return value

    def as_float(self, value: str) -> str:
        return self.add("Cast", value, to=self._onnx.TensorProto.FLOAT)

    def read_history(self) -> None:
        """Add what all models share: the distinct items, and their ages."""
        known = self.add("GreaterOrEqual", "history", np.int64(0))
        self._items = self.add("Unique", self.add("Compress", "history", known, axis=0), sorted=0)
        self._count = self.add("Shape", self._items)
        self.items = self.add("Concat", np.zeros(1, np.int64), self._items, axis=0)
        newest = self.add("Squeeze", self._count)
        ages = self.add("Range", newest, np.int64(-1), np.int64(-1))
        self._ages = self.as_float(ages)
        self._is_real = self.as_float(self.add("Less", ages, newest))
        self.any_item = self.as_float(self.add("Greater", self._count, np.int64(0)))

    def powers(self, rates: Any) -> str:
        """rate^age, one row per rate (a column of rates); 0 for the item in front."""
        return self.add("Mul", self.add("Pow", rates, self._ages), self._is_real)

    def fading(self, fading: Fading) -> str:
        """The weight of each item by its age."""
        rates, shares = (part.astype(np.float32)[:, None] for part in fading)
        terms = self.add("Mul", self.powers(rates), shares)
        return self.add("ReduceSum", terms, np.zeros(1, np.int64), keepdims=0)

    def rows(self, table: Any) -> str:
        """The rows of ``table`` for the history's items."""
        return self.add("Gather", table, self.items)

    def last(self, value: str) -> str:
        """The row of ``value`` for the newest item."""
        return self.add("Gather", value, self._count)

    def normalise(self, x: str, gain: Float32, shift: Float32) -> str:
        return self.add("LayerNormalization", x, gain, shift, epsilon=float(EPSILON))

    def flat(self, value: str) -> str:
        return self.add("Reshape", value, np.array([-1]))

    def add_best(self, scores: str, k: int) -> None:
        """Add the outputs ``top_items`` and ``top_scores``."""
        lowest = self.add("Expand", np.float32(-np.inf), self._count)
        unseen = self.add("ScatterElements", scores, self._items, lowest)
        left = self.add("Sub", self.add("Shape", scores), self._count)
        length = self.add("Min", left, np.array([k]))
        helper = self._onnx.helper
        outputs = ["top_scores", "top_items"]
        self.nodes.append(helper.make_node("TopK", [unseen, length], outputs))


def _scores(g: _Graph, model: Any) -> str:
    """Scores of all items by one of the kinds of arithmetic."""
    if isinstance(model, SameForAll):
        return g.constant(model.scores)
    if isinstance(model, ItemWeights):
        return g.add("MatMul", g.fading(model.fading), g.rows(model.weights))
    if isinstance(model, Neighbours):
        n_items = len(model.neighbours)
        zeros = np.zeros(n_items, np.float32)
        own = g.add("ScatterElements", zeros, g.items, g.fading(model.fading), reduction="add")
        near = g.add("Gather", own, model.neighbours)
        weighted = g.add("Mul", near, model.similarity)
        return g.add("ReduceSum", weighted, np.ones(1, np.int64), keepdims=0)
    if isinstance(model, DecayedFactors):
        return _decayed_factors(g, model)
    assert isinstance(model, HistoryNetwork)
    return _history_network(g, model)


def _decayed_factors(g: _Graph, model: DecayedFactors) -> str:
    damping = g.rows(model.damping[:, None])
    powers = g.powers(model.decays[:, None])
    sums = g.add("MatMul", powers, g.add("Mul", g.rows(model.U), damping))
    counts = g.add("ReduceSum", powers, np.ones(1, np.int64), keepdims=1)
    size = g.add("Sqrt", g.add("Max", counts, np.float32(1)))
    features = g.flat(g.add("Div", sums, size))
    return g.add("MatMul", model.V, g.add("Concat", features, np.ones(1, np.float32), axis=0))


def _history_network(g: _Graph, model: HistoryNetwork) -> str:
    share = g.add("Div", _decayed_factors(g, model.refit), np.float32(model.scale))
    refit = g.add("Log", g.add("Add", g.add("Softplus", share), FLOOR))
    z = g.add("Mul", refit, model.net[-1:])
    one = np.ones(1, np.float32)
    d = model.R.shape[1] - 1
    if d == 0:
        return g.add("Add", z, model.R[:, 0])
    h = g.add("Mul", _user_vector(g, model.R, model.net, d), g.any_item)
    return g.add("Add", z, g.add("MatMul", model.R, g.add("Concat", h, one, axis=0)))


def _user_vector(g: _Graph, R: Float32, net: Float32, d: int) -> str:
    """The network's vector after the newest item; see ``kernels.history_network``."""
    w, width = unpack(net, d), d // GROUPS
    norms = w.norms
    whole = g.rows(R)
    x0 = g.add("Slice", whole, np.array([0]), np.array([d]), np.array([1]))
    y1 = g.normalise(x0, norms[0], norms[1])
    powers = g.powers(decay_factors(w.decay_logits)[:, None])
    # Each group sums y1 with its own weights, and then only its columns of Wv count.
    sums = g.add("Unsqueeze", g.add("MatMul", powers, y1), np.array([1]))
    by_group = w.Wv.reshape(d, GROUPS, width).transpose(1, 0, 2)
    values = g.add("Squeeze", g.add("MatMul", sums, by_group), np.array([1]))
    counts = g.add("ReduceSum", powers, np.ones(1, np.int64), keepdims=1)
    means = g.flat(g.add("Div", values, g.add("Max", counts, np.float32(1))))
    gate = g.flat(g.add("Sigmoid", g.add("MatMul", g.last(y1), w.Wg)))
    q = g.add("MatMul", g.add("Mul", means, gate), w.Wo)
    x1 = g.add("Add", g.flat(g.last(x0)), q)
    y2 = g.normalise(x1, norms[2], norms[3])
    hidden = g.add("Relu", g.add("Add", g.add("MatMul", y2, w.W1), w.b1))
    x2 = g.add("Add", x1, g.add("Add", g.add("MatMul", hidden, w.W2), w.b2))
    return g.normalise(x2, norms[4], norms[5])
