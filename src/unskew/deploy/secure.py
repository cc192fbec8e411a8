"""Secure aggregation with Flower's SecAgg+ (Bell et al., CCS 2020): the server learns the sum only.

Flower's workflow computes a weighted mean of vectors with quantised entries, and reveals the
weights. So every node sends with weight one, and its own weight as one more masked entry:

    vector = scale * (sum of the node's weighted item rows | dense part | weight) / max_weight

The scale is 1, or less if an entry would leave SecAgg+'s range: a node beyond ``max-weight`` or
``secure-clip`` then counts for less, in the same direction. The mean times the number of nodes is
the sum, up to the quantisation error: per node and entry at most max-weight times one step, which
is 2 secure-clip / (number of steps).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import bytes_to_public_key

from unskew.deploy.exchange import MAX_SMALL_REPLY_BYTES, Exchange
from unskew.deploy.messages import Named, Rejected, decode_array
from unskew.deploy.task import RunConfig
from unskew.files import read_json, write_json
from unskew.privacy import Shape
from unskew.text import log_text
from unskew.types import Float64, UploadSum

BOND, VERSION = "unskew-secure-round", 1
"""Format name of ``secure.json`` and its version."""
MASK_RANGE = 2**32
"""Masks and masked entries are below this."""
CheckAbout = Callable[[int, Message], None]
"""Raises :class:`Rejected` if a node's reply belongs to another round, or to other users."""
log = logging.getLogger("flwr")


def quantisation_steps(n_nodes: int) -> int:
    """Number of steps to which SecAgg+ quantises an entry of a node's vector: the largest for which
    the sum over ``n_nodes`` nodes fits into 32 bits."""
    return 1 << (31 - max(n_nodes - 1, 1).bit_length())


def is_secure(message: Message) -> bool:
    """Whether a message belongs to Flower's SecAgg+ protocol."""
    return RECORD_KEY_CONFIGS in message.content.config_records


def secure_content(upload: Named, rules: RunConfig) -> RecordDict:
    """Encode a node's upload as one vector (item rows, dense part and weight, scaled to SecAgg+'s
    range) in the message layout that Flower's SecAgg+ mod masks."""
    width = upload["values"].shape[1]
    rows = np.zeros((rules.items, width))
    rows[upload["items"]] = upload["values"]
    vector = np.concatenate([rows.ravel(), upload["dense"], upload["weight"]]) / rules.max_weight
    most = max(float(np.abs(vector[:-1]).max()) / rules.secure_clip, float(vector[-1]), 1.0)
    if most > 1.0:
        log.warning("This node's sum is beyond the agreed range and counts for 1/%.4g of it", most)
        vector /= most
    vector[-1] *= rules.secure_clip  # the weight, at most 1, uses the whole range
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 1, {})
    return recorddict_compat.fitres_to_recorddict(result, keep_input=False)


class Bond:
    """The nodes that have masked their uploads of a round for each other, in ``secure.json``.

    A device masks a round's upload for one set of nodes and removes masks for one subset, so the
    server repeats a round only with the same ones."""

    def __init__(self, folder: Path, round: int) -> None:
        self._path, self.round = folder / "secure.json", round
        self.nodes, self.active = list[int](), list[int]()
        if self._path.exists():
            saved = read_json(self._path, BOND, VERSION, sealed=True)
            if saved["round"] == round:
                self.nodes, self.active = saved["nodes"], saved["active"]

    def save(self) -> None:
        named = {"round": self.round, "nodes": self.nodes, "active": self.active}
        write_json(self._path, {"format": BOND, "version": VERSION, **named})


class CheckedGrid:
    """The grid that Flower's workflow talks to. Replies are opened one by one; one that its stage
    does not allow is dropped and its node named, so that it cannot end the run."""

    def __init__(self, exchange: Exchange, bond: Bond, check_about: CheckAbout, size: int) -> None:
        self._exchange, self._bond, self._size = exchange, bond, size
        self._check_about, self._keys = check_about, set[Any]()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        messages = list(messages)
        asked = {message.metadata.dst_node_id: _configs(message) for message in messages}
        stage = next(iter(asked.values()))[Key.STAGE] if asked else None
        if not self._agreed(stage, sorted(asked)):
            return []
        heard = list[Message]()
        round = self._bond.round
        for node, reply in self._exchange.send(messages, round, MAX_SMALL_REPLY_BYTES):
            try:
                self._check(stage, node, reply, asked)
            except Rejected as error:
                reason = log_text(error)
            except Exception as error:  # a hostile node can make reading fail in any way
                reason = log_text(f"it cannot be read ({type(error).__name__})")
            else:
                # Whose reply it is, is known from the question, not from what it says.
                reply.metadata.__dict__["_src_node_id"] = node
                heard.append(reply)
                continue
            log.warning("Round %d: %s of node %d rejected: %s", round, stage, node, reason)
        if stage != Stage.COLLECT_MASKED_VECTORS or not self._bond.active:
            return heard
        again = [reply for reply in heard if reply.metadata.src_node_id in self._bond.active]
        return again if len(again) == len(self._bond.active) else []

    def _agreed(self, stage: Any, nodes: list[int]) -> bool:
        """Record which nodes are bound to each other from this stage on. Returns false if they are
        bound to others already."""
        bond = self._bond
        if stage == Stage.COLLECT_MASKED_VECTORS:
            if bond.nodes not in ([], nodes):
                log.warning("Round %d needs the nodes %s, which began it", bond.round, bond.nodes)
                return False
            bond.nodes = nodes
            bond.save()
        if stage == Stage.UNMASK and not bond.active:
            bond.active = nodes
            bond.save()
        return bool(nodes)

    def _check(self, stage: Any, node: int, reply: Message, asked: dict[int, Any]) -> None:
        found = _configs(reply)
        if stage == Stage.SETUP:
            keys = [found[Key.PUBLIC_KEY_1], found[Key.PUBLIC_KEY_2]]
            if not all(bytes_to_public_key(key).curve.name == "secp384r1" for key in keys):
                raise Rejected("its keys are of another kind")
            if len({*keys} - self._keys) < 2:
                raise Rejected("its keys are not new")
            self._keys.update(keys)
        elif stage == Stage.SHARE_KEYS:
            to, shares = found[Key.DESTINATION_LIST], found[Key.CIPHERTEXT_LIST]
            if sorted(to) != sorted(asked.keys() - {node}) or not _are_bytes(shares, len(to)):
                raise Rejected("it has not one share for each other node")
        elif stage == Stage.COLLECT_MASKED_VECTORS:
            self._check_about(node, reply)
            recorddict_compat.recorddict_to_fitres(reply.content, keep_input=True)
            factor, vector = map(decode_array, found[Key.MASKED_PARAMETERS])
            if factor.shape != (1,) or vector.shape != (self._size,):
                raise Rejected(f"its vector has shape {vector.shape} instead of {(self._size,)}")
            for array in (factor, vector):
                if array.dtype != np.int64 or array.min() < 0 or array.max() >= MASK_RANGE:
                    raise Rejected("its vector is not masked")
        elif stage == Stage.UNMASK:
            nodes = [*asked[node][Key.ACTIVE_NODE_ID_LIST], *asked[node][Key.DEAD_NODE_ID_LIST]]
            if found[Key.NODE_ID_LIST] != nodes or not _are_bytes(
                found[Key.SHARE_LIST], len(nodes)
            ):
                raise Rejected("it has not one share for each node")


def secure_sum(
    grid: CheckedGrid,
    context: Context,
    bond: Bond,
    nodes: list[int],
    content: Any,
    rules: RunConfig,
) -> tuple[Float64 | None, int]:
    """Run SecAgg+ for one round; returns the sum of the nodes' vectors (None on failure) and the
    number of nodes in the sum. ``content`` makes the message that is sent to a node."""
    means: list[tuple[Float64, int]] = []

    def receive(_: int, results: list[Any], failures: list[Any]) -> tuple[None, dict[str, Any]]:
        for failure in failures:
            log.warning("A node dropped out of secure aggregation: %s", log_text(failure))
        mean = parameters_to_ndarrays(results[0][1].parameters)[0].astype(np.float64)
        means.append((mean, len(results)))
        return None, {}

    # The parts of a Flower strategy and client manager that the workflow uses.
    fit = FitIns(Parameters([], ""), {})
    strategy: Any = SimpleNamespace(
        configure_fit=lambda *_: [(SimpleNamespace(node_id=node), fit) for node in nodes],
        num_available=lambda: len(nodes),
        aggregate_fit=receive,
    )
    legacy = LegacyContext(context, strategy=strategy, client_manager=strategy)
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord(
        {WorkflowKey.CURRENT_ROUND: bond.round}
    )
    legacy.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
    workflow = _Workflow(
        content,
        num_shares=1.0,
        reconstruction_threshold=len(nodes) // 2 + 1,  # so that any two removals share a node
        max_weight=1.0,
        clipping_range=rules.secure_clip,
        quantization_range=quantisation_steps(len(nodes)),
        timeout=rules.round_timeout,
    )
    try:
        workflow(cast("Grid", grid), legacy)
    except httpx.HTTPError:
        raise
    except Exception as error:  # shares that a hostile node made up
        log.warning("Round %d: masks cannot be removed: %s", bond.round, log_text(repr(error)))
    if not means:
        return None, 0
    mean, n_nodes = means[0]
    # A masked vector cannot be looked at, only the sum can.
    inside = np.abs(mean) <= rules.secure_clip * (1 + 1e-6)
    if not inside.all() or mean[-1] < 0:
        log.warning("Round %d: the masked sum cannot be right; some node sent nonsense", bond.round)
        return None, 0
    return mean * n_nodes, n_nodes


def to_upload_sum(vector: Float64, shape: Shape, rules: RunConfig, n_nodes: int) -> UploadSum:
    """Decode the summed vector into item rows, dense part and weight, for ``aggregate``."""
    vector = vector * rules.max_weight
    cut = shape.n_items * shape.width
    rows = vector[:cut].reshape(shape.n_items, shape.width)
    return UploadSum(rows, vector[cut:-1], float(vector[-1]) / rules.secure_clip, n_nodes)


def _configs(message: Message) -> dict[str, Any]:
    """The protocol's part of a message."""
    return dict(message.content.config_records[RECORD_KEY_CONFIGS])


def _are_bytes(values: Any, count: int) -> bool:
    return len(values) == count and all(type(value) is bytes for value in values)


class _Workflow(SecAggPlusWorkflow):
    """Flower's SecAgg+ workflow, but sending this package's training messages to the nodes."""

    def __init__(self, content: Any, **options: Any) -> None:
        super().__init__(**options)
        self._content = content

    def setup_stage(self, grid: Grid, context: LegacyContext, state: Any) -> bool:
        ready = bool(super().setup_stage(grid, context, state))
        state.nid_to_fitins = {node: self._content() for node in state.nid_to_fitins}
        return ready
