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
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.common import recorddict_compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid

from unskew.deploy.messages import Named
from unskew.deploy.task import RunConfig
from unskew.privacy import Shape
from unskew.types import Float64, UploadSum

log = logging.getLogger("flwr")


def quantisation_steps(n_nodes: int) -> int:
    """Number of steps to which SecAgg+ quantises an entry of a node's vector: the largest for which
    the sum over ``n_nodes`` nodes fits into 32 bits."""
    return 1 << (31 - max(n_nodes - 1, 1).bit_length())


def is_secure(message: Message) -> bool:
    """Whether a message belongs to Flower's SecAgg+ protocol."""
    return RECORD_KEY_CONFIGS in message.content.config_records


def mask_if_asked(message: Message, context: Context, call_next: Any) -> Message:
    """Apply Flower's SecAgg+ mod to messages of its protocol; pass other messages on unchanged."""
    if is_secure(message):
        return secaggplus_mod(message, context, call_next)
    return call_next(message, context)


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


def secure_sum(
    grid: Grid, context: Context, round: int, nodes: list[int], content: Any, rules: RunConfig
) -> tuple[Float64 | None, int]:
    """Run SecAgg+ for one round; returns the sum of the nodes' vectors (None on failure) and the
    number of nodes in the sum. ``content`` makes the message that is sent to a node."""
    means: list[tuple[Float64, int]] = []

    def receive(_: int, results: list[Any], failures: list[Any]) -> tuple[None, dict[str, Any]]:
        for failure in failures:
            log.warning("A node dropped out of secure aggregation: %s", failure)
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
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: round})
    legacy.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
    workflow = _Workflow(
        content,
        num_shares=1.0,
        reconstruction_threshold=0.6,
        max_weight=1.0,
        clipping_range=rules.secure_clip,
        quantization_range=quantisation_steps(len(nodes)),
        timeout=rules.round_timeout,
    )
    workflow(grid, legacy)
    if not means:
        return None, 0
    mean, n_nodes = means[0]
    return mean * n_nodes, n_nodes


def to_upload_sum(vector: Float64, shape: Shape, rules: RunConfig, n_nodes: int) -> UploadSum:
    """Decode the summed vector into item rows, dense part and weight, for ``aggregate``."""
    vector = vector * rules.max_weight
    cut = shape.n_items * shape.width
    rows = vector[:cut].reshape(shape.n_items, shape.width)
    return UploadSum(rows, vector[cut:-1], float(vector[-1]) / rules.secure_clip, n_nodes)


class _Workflow(SecAggPlusWorkflow):
    """Flower's SecAgg+ workflow, but sending this package's training messages to the nodes."""

    def __init__(self, content: Any, **options: Any) -> None:
        super().__init__(**options)
        self._content = content

    def setup_stage(self, grid: Grid, context: LegacyContext, state: Any) -> bool:
        ready = bool(super().setup_stage(grid, context, state))
        state.nid_to_fitins = {node: self._content() for node in state.nid_to_fitins}
        return ready
