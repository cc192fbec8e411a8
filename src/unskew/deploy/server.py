"""The ServerApp: rounds over the nodes that are there, checked uploads, a checkpoint after each.

A round takes in every upload that is right and names the node of every one that is not. A node that
does not answer costs the round its contribution. Too few nodes: the server waits and says for what,
then stops; started again with the same state folder it goes on after the last complete round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from unskew.deploy import _secure
from unskew.deploy._checkpoint import ServerFiles
from unskew.deploy._robust import robust_sum
from unskew.deploy._task import read_run_config
from unskew.deploy._wire import (
    Limits,
    NodeSum,
    Rejected,
    Shape,
    add,
    all_of,
    no_sum,
    read_each,
    read_sum,
    shape_of,
)
from unskew.types import Method, UnskewError, Uploads, UploadSum

_POLL_SECONDS = 0.5
_REMIND_SECONDS = 15.0
_ATTEMPTS = 3
"""Rounds in a row without a single good upload before the run stops."""
log = logging.getLogger("flwr")


class Conductor:
    """One run of a federation, between its checkpoint and its last round."""

    def __init__(self, grid: Grid, context: Context) -> None:
        self._grid, self._context = grid, context
        self._task, self._rules = read_run_config(context.run_config)
        self._method: Method = self._task.build()
        folder = str(context.run_config.get("state", ""))
        if not folder:
            raise UnskewError('The run-config must name the server\'s state folder: state="...".')
        self._files = ServerFiles(Path(folder), self._task)
        server, _ = self._method.init(1, self._task.n_items, self._task.seed)
        if self._method.aggregation == "individual":  # their servers keep something per user
            server, _ = self._method.init(self._task.n_users, self._task.n_items, self._task.seed)
        self._round, self._server, self._rows = self._files.load(server)

    def run(self) -> None:
        rounds: int = self._method.config.rounds
        if self._round:
            log.info("Going on after round %d of %d", self._round, rounds)
        failed = 0
        while self._round < rounds:
            nodes = self._wait_for_nodes()
            if nodes is None:
                return
            if self._play(nodes):
                failed = 0
                continue
            failed += 1
            if failed == _ATTEMPTS:
                return self._stop(f"{_ATTEMPTS} times no node sent an upload that could be used")
        self._stop("all rounds played")

    def _play(self, nodes: list[int]) -> bool:
        """One round; whether anything came of it."""
        began, round = time.monotonic(), self._round + 1
        shape = shape_of(self._method, self._download(), self._task.n_items, round)
        exchange = self._secure_round if self._rules.secure else self._plain_round
        total, report = exchange(round, nodes, shape)
        if total is None:
            log.error("Round %d: no upload could be used; it will be played again", round)
            return False
        self._server, self._round = self._method.aggregate(self._server, total), round
        row = {"round": round, "seconds": time.monotonic() - began, "nodes": len(nodes), **report}
        self._rows.append(row)
        self._files.save(round, self._server, self._rows)
        rounds, every = self._method.config.rounds, self._rules.evaluate_every
        if every >= 0 and (round == rounds or (every and round % every == 0)):
            row |= self._evaluate(round, nodes)
            self._files.save(round, self._server, self._rows)
        log.info("Round %d of %d: %d of %d nodes", round, rounds, row["accepted"], len(nodes))
        return True

    def _plain_round(
        self, round: int, nodes: list[int], shape: Shape
    ) -> tuple[UploadSum | Uploads | None, dict[str, Any]]:
        limits = Limits(self._rules.max_norm, self._rules.max_weight)
        individual, robust = self._method.aggregation == "individual", self._rules.robust
        total, sums, each = no_sum(shape), list[NodeSum](), list[Uploads]()
        rejected, accepted, received = dict[str, str](), 0, 0
        message = self._content(round)
        for node, reply in self._ask("train", round, dict.fromkeys(nodes, message)):
            try:
                named = _arrays(reply)
                received += sum(array.nbytes for array in named.values())
                if individual:
                    each.append(read_each(named, shape, limits))
                    self._check_users(each)
                elif robust == "none":
                    total = add(total, read_sum(named, shape, limits))
                else:
                    sums.append(read_sum(named, shape, limits))
                accepted += 1
            except Rejected as error:
                rejected[str(node)] = str(error)
                log.warning("Round %d: upload of node %d rejected: %s", round, node, error)
        report = {"accepted": accepted, "rejected": rejected, "bytes_up": received}
        report["bytes_down"] = len(nodes) * sum(a.nbytes for a in self._download())
        if not accepted:
            return None, report
        if individual:
            return all_of(each, shape), report
        if robust != "none":
            total = robust_sum(sums, shape, robust, self._rules.trim)
        return total, report

    def _secure_round(
        self, round: int, nodes: list[int], shape: Shape
    ) -> tuple[UploadSum | None, dict[str, Any]]:
        make = lambda: self._content(round)  # noqa: E731
        vector, n = _secure.secure_sum(self._grid, self._context, round, nodes, make, self._rules)
        report: dict[str, Any] = {"accepted": n, "rejected": {}}
        if vector is None or not np.isfinite(vector).all():
            return None, report
        return _secure.unmasked(vector, shape, self._rules, n), report

    def _evaluate(self, round: int, nodes: list[int]) -> dict[str, Any]:
        """Means of the metrics over all users of all nodes that answer, from sums alone."""
        sums: dict[str, list[float]] = {}
        for node, reply in self._ask("evaluate", round, dict.fromkeys(nodes, RecordDict())):
            try:
                for name, pair in _sums(reply).items():
                    known = sums.setdefault(name, [0.0, 0.0])
                    sums[name] = [known[0] + pair[0], known[1] + pair[1]]
            except Rejected as error:
                log.warning("Round %d: metrics of node %d rejected: %s", round, node, error)
        means = {name: total / count for name, (total, count) in sums.items() if count}
        log.info(
            "Round %d: validation NDCG@10 %.4f, test NDCG@10 %.4f",
            round,
            means.get("validation.ndcg@10", float("nan")),
            means.get("test.ndcg@10", float("nan")),
        )
        return {"metrics": means}

    def _ask(
        self, kind: str, round: int, contents: dict[int, RecordDict]
    ) -> Iterator[tuple[int, Message]]:
        """Send, and hand out the replies as they come; errors and silence are logged by node."""
        messages = [
            Message(content, dst_node_id=node, message_type=kind, group_id=str(round))
            for node, content in contents.items()
        ]
        names = list(self._grid.push_messages(messages)) or [""] * len(contents)
        waiting = {name: node for name, node in zip(names, contents, strict=True) if name}
        for node in contents.keys() - set(waiting.values()):
            log.warning("Round %d: the message to node %d could not be sent", round, node)
        ends = time.monotonic() + self._rules.round_timeout
        while waiting and time.monotonic() < ends:
            for reply in self._grid.pull_messages(list(waiting)):
                if reply.metadata.reply_to_message_id not in waiting:
                    continue
                node = waiting.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    reason = reply.error.reason
                    log.warning("Round %d: node %d could not %s: %s", round, node, kind, reason)
                    continue
                yield node, reply
            if waiting:
                time.sleep(_POLL_SECONDS)
        for node in waiting.values():
            log.warning("Round %d: node %d did not answer in time", round, node)

    def _wait_for_nodes(self) -> list[int] | None:
        wanted, ends = self._rules.min_nodes, time.monotonic() + self._rules.wait_for_nodes
        remind = 0.0
        while True:
            nodes = sorted(self._grid.get_node_ids())
            if len(nodes) >= wanted:
                return nodes
            left = ends - time.monotonic()
            if left <= 0:
                self._stop(f"only {len(nodes)} of {wanted} nodes were there")
                return None
            if time.monotonic() >= remind:
                log.info(
                    "Waiting for nodes: %d of %d are here, %.0f s to go", len(nodes), wanted, left
                )
                remind = time.monotonic() + _REMIND_SECONDS
            time.sleep(_POLL_SECONDS)

    def _stop(self, reason: str) -> None:
        self._files.end(self._round, reason)
        log.info("Stopped after round %d: %s", self._round, reason)

    def _download(self) -> Any:
        return self._method.download(self._server)

    def _content(self, round: int) -> RecordDict:
        download = self._download()
        arrays = zip(download._fields, download, strict=True)
        record = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays})
        return RecordDict({"download": record, "round": ConfigRecord({"round": round})})

    def _check_users(self, each: list[Uploads]) -> None:
        """No node speaks for a user of another one, or for one the federation does not have."""
        fresh, known = each[-1].users, [part.users for part in each[:-1]]
        strange = np.any(fresh >= self._task.n_users)
        if strange or (known and np.isin(fresh, np.concatenate(known)).any()):
            each.pop()
            raise Rejected("it speaks for users that are not its own")


def _arrays(reply: Message) -> dict[str, Any]:
    records = reply.content.array_records
    if set(records) != {"upload"} or len(reply.content) != 1:
        raise Rejected(f"the reply holds {', '.join(sorted(reply.content)) or 'nothing'}")
    try:
        named = {name: array.numpy() for name, array in records["upload"].items()}
    except Exception as error:  # what a hostile node can put into an array is not for us to list
        raise Rejected(f"an array cannot be read ({type(error).__name__})") from None
    if not all(isinstance(array, np.ndarray) for array in named.values()):
        raise Rejected("an array is none")
    return named


def _sums(reply: Message) -> dict[str, tuple[float, float]]:
    if set(reply.content) != {"sums"} or "sums" not in reply.content.metric_records:
        raise Rejected(f"the reply holds {', '.join(sorted(reply.content)) or 'nothing'}")
    found = {}
    for name, pair in reply.content.metric_records["sums"].items():
        if not isinstance(pair, list) or len(pair) != 2 or not np.isfinite(pair).all():
            raise Rejected(f"{name} is not a sum and a count")
        total, count = float(pair[0]), float(pair[1])
        if not 0 <= total <= count * (1 + 1e-9):
            raise Rejected(f"{name} is outside what {count:g} users can have")
        found[str(name)] = (total, count)
    return found


def main(grid: Grid, context: Context) -> None:
    Conductor(grid, context).run()


def server_app() -> ServerApp:
    app = ServerApp()
    app.main()(main)
    return app


app = server_app()
