"""The ServerApp: rounds over the nodes that are there, checked uploads, a checkpoint after each.

A round takes in every upload that is right and names the node of every one that is not. A node that
does not answer costs the round its contribution. Too few nodes: the server waits and says for what,
then stops; started again with the same state folder it goes on after the last complete round.

Every message names the best round so far, by the validation NDCG@10 that nodes report when they are
evaluated; a last one does so after the last round. Nodes keep their state as of that round.
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
from unskew.deploy._checkpoint import ServerFiles, best_round
from unskew.deploy._owners import settle
from unskew.deploy._replies import mean_of, read_arrays, read_sums
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
    only,
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
        self._owners = np.zeros(0, np.int64)
        if self._method.aggregation == "individual":  # their servers keep something per user
            server, _ = self._method.init(self._task.n_users, self._task.n_items, self._task.seed)
            self._owners = self._files.owners(self._task.n_users)
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
        self._name_best()
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
        self._save()
        rounds, every = self._method.config.rounds, self._rules.evaluate_every
        if every >= 0 and (round == rounds or (every and round % every == 0)):
            row |= self._evaluate(round, nodes)
            self._save()
        log.info("Round %d of %d: %d of %d nodes", round, rounds, row["accepted"], len(nodes))
        return True

    def _plain_round(
        self, round: int, nodes: list[int], shape: Shape
    ) -> tuple[UploadSum | Uploads | None, dict[str, Any]]:
        limits = Limits(self._rules.max_norm, self._rules.max_weight)
        individual, robust = self._method.aggregation == "individual", self._rules.robust
        total, sums, each = no_sum(shape), list[NodeSum](), dict[int, Uploads]()
        rejected, accepted, received = dict[str, str](), 0, 0
        message, cohort = self._content(round), self._task.cohort_of(round)
        for node, reply in self._ask("train", round, dict.fromkeys(nodes, message)):
            try:
                named = read_arrays(reply)
                received += sum(array.nbytes for array in named.values())
                if individual:
                    part = read_each(named, shape, limits)
                    if not np.isin(part.users, cohort).all():
                        raise Rejected("it speaks for users whose turn it is not")
                    each[node] = part
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
            own = self._own(round, each, rejected)
            report["accepted"] = len(own)
            return (all_of(own, shape) if own else None), report
        if robust != "none":
            total = robust_sum(sums, shape, robust, self._rules.trim, self._rules.max_weight)
        return total, report

    def _own(self, round: int, each: dict[int, Uploads], rejected: dict[str, str]) -> list[Uploads]:
        """What each node says of its own users; where it speaks for others it is not heard."""
        claims = {node: part.users for node, part in each.items()}
        self._owners, holds = settle(self._owners, claims)
        for node, hold in holds.items():
            if not hold.all():
                rejected[str(node)] = f"{int((~hold).sum())} of its users are claimed by others too"
                log.warning("Round %d: node %d: %s", round, node, rejected[str(node)])
        heard = [node for node, hold in holds.items() if hold.any() or not len(hold)]
        return [only(each[node], holds[node]) for node in heard]

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
        answers, n_users = {}, self._task.n_users
        for node, reply in self._ask("evaluate", round, dict.fromkeys(nodes, RecordDict())):
            try:
                answers[node] = read_sums(reply, n_users)
            except Rejected as error:
                log.warning("Round %d: metrics of node %d rejected: %s", round, node, error)
        means, refused = mean_of(answers, n_users)
        for node in refused:
            log.warning("Round %d: metrics of node %d rejected: too many users", round, node)
        log.info(
            "Round %d: validation NDCG@10 %.4f, test NDCG@10 %.4f",
            round,
            means.get("validation.ndcg@10", float("nan")),
            means.get("test.ndcg@10", float("nan")),
        )
        return {"metrics": means}

    def _name_best(self) -> None:
        """Say once more which round was best, unless nodes were told of no other than the last."""
        best = best_round(self._rows)
        if sum("metrics" in row for row in self._rows) > 1:
            log.info("The best round on validation is %d", best)
            content = RecordDict({"best": ConfigRecord({"best": best})})
            nodes = list(self._grid.get_node_ids())
            for _ in self._ask("query", self._round, dict.fromkeys(nodes, content)):
                pass

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
        about = ConfigRecord({"round": round, "best": best_round(self._rows)})
        return RecordDict({"download": record, "round": about})

    def _save(self) -> None:
        self._files.save(self._round, self._server, self._rows, self._owners)


def main(grid: Grid, context: Context) -> None:
    Conductor(grid, context).run()


def server_app() -> ServerApp:
    app = ServerApp()
    app.main()(main)
    return app


app = server_app()
