"""Checks that a device makes before it takes part in a masked sum (SecAgg+).

Flower's device follows whatever the server asks: a sum over one node, a threshold of one, a second
sum with one node less (the difference is that node), or both shares of one node's secrets. Here a
device compares each message of the protocol with its own bounds and with what it has answered in
this round, which it keeps in ``masked.json``. For a round it masks its upload for one set of nodes
only, and helps to remove masks for one subset only.

A majority of the nodes is needed to remove masks, so any two removals have a node in common, and
that node refuses the second if it is another one. What a device cannot see: whether the public keys
of the other nodes belong to other nodes, or all to the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context, Message
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)

from unskew.deploy.node_data import lock_folder
from unskew.deploy.secure import MASK_RANGE, quantisation_steps
from unskew.deploy.task import RunConfig
from unskew.files import read_json, write_json
from unskew.types import UnskewError

MASKED, VERSION = "unskew-device-masked", 1
"""Format name of ``masked.json`` and its version."""


class Least(NamedTuple):
    """A device's bounds: the least number of nodes in a sum, and the share of them of which more
    are needed to remove masks."""

    nodes: int
    share: float


def check_masked(
    message: Message, context: Context, folder: Path, rules: RunConfig, least: Least
) -> None:
    """Raise an error if a message of the protocol asks for more than this device gives; record what
    it agrees to in its state ``folder``."""
    asked: dict[str, Any] = dict(message.content.config_records[RECORD_KEY_CONFIGS])
    session = context.state.config_records.get(RECORD_KEY_STATE, {})
    stage, me = asked.pop(Key.STAGE, None), message.metadata.dst_node_id
    if stage == Stage.SETUP:
        _check_setup(asked, rules, least)
    elif stage == Stage.SHARE_KEYS:
        _check_size(len(asked), least)
    elif stage == Stage.COLLECT_MASKED_VECTORS:
        round = int(str(message.content.config_records["round"]["round"]))
        cohort = sorted([me, *asked.get(Key.SOURCE_LIST, [])])
        _check_size(len(set(cohort)), least)
        if len(set(cohort)) < len(cohort) or len(cohort) > session.get("sample_num", 0):
            raise UnskewError(
                "The nodes of the masked sum are not distinct, or more than announced."
            )
        with lock_folder(folder):
            _agree_on_cohort(folder, round, cohort)
    elif stage == Stage.UNMASK:
        active, dead = asked.get(Key.ACTIVE_NODE_ID_LIST, []), asked.get(Key.DEAD_NODE_ID_LIST, [])
        _check_size(len(set(active)), least)
        with lock_folder(folder):
            _agree_on_removal(folder, me, sorted(active), sorted(dead))


def check_plain(folder: Path, round: int) -> None:
    """Raise an error if the device has masked its upload of this or a later round."""
    if _read(folder)["round"] >= round:
        raise UnskewError(
            f"This node has answered round {round} masked and sends nothing unmasked."
        )


def _check_setup(asked: dict[str, Any], rules: RunConfig, least: Least) -> None:
    n_nodes, threshold = asked.get(Key.SAMPLE_NUMBER, 0), asked.get(Key.THRESHOLD, 0)
    _check_size(n_nodes, least)
    if not least.share * n_nodes < threshold <= n_nodes:
        raise UnskewError(
            f"{threshold} of {n_nodes} nodes could remove the masks of the sum; this node demands "
            f"more than {least.share:.0%} of them (secure-share)."
        )
    expected = {
        Key.SAMPLE_NUMBER: n_nodes,
        Key.SHARE_NUMBER: n_nodes,
        Key.THRESHOLD: threshold,
        Key.CLIPPING_RANGE: rules.secure_clip,
        Key.TARGET_RANGE: quantisation_steps(n_nodes),
        Key.MOD_RANGE: MASK_RANGE,
        Key.MAX_WEIGHT: 1.0,
    }
    if asked != expected:
        raise UnskewError("The settings of the masked sum are not those of the run-config.")


def _check_size(n_nodes: int, least: Least) -> None:
    if n_nodes < least.nodes:
        raise UnskewError(
            f"The masked sum is over {n_nodes} nodes; this node demands {least.nodes} or more "
            "(secure-nodes)."
        )


def _agree_on_cohort(folder: Path, round: int, cohort: list[int]) -> None:
    known = _read(folder)
    if round < known["round"] or (round == known["round"] and cohort != known["cohort"]):
        raise UnskewError(
            f"This node has masked its upload of round {known['round']} for other nodes; a masked "
            "round is repeated with the same nodes only."
        )
    if round > known["round"]:
        _write(folder, round, cohort, [])


def _agree_on_removal(folder: Path, me: int, active: list[int], dead: list[int]) -> None:
    known = _read(folder)
    if sorted(active + dead) != known["cohort"] or me not in active:
        raise UnskewError(
            "The nodes whose masks should be removed are not those of the masked sum, each once."
        )
    if known["active"] not in ([], active):
        raise UnskewError(
            f"This node has helped to remove the masks of round {known['round']} for other nodes "
            "and does so once."
        )
    _write(folder, known["round"], known["cohort"], active)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "masked.json"
    nothing = {"round": 0, "cohort": [], "active": []}
    return read_json(path, MASKED, VERSION, sealed=True) if path.exists() else nothing


def _write(folder: Path, round: int, cohort: list[int], active: list[int]) -> None:
    about = {"format": MASKED, "version": VERSION, "round": round}
    write_json(folder / "masked.json", {**about, "cohort": cohort, "active": active})
