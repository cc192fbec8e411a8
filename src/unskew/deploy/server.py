"""Flower's ServerApp: runs the rounds with the connected nodes, and saves the model after each.

A round uses every valid upload and logs the node of every invalid one. A node that does not
answer is left out of the round. With too few nodes the server waits, logs that, and stops after a
time; started again with the same state folder it continues after the last complete round.

Every training message names the best round so far, by the validation NDCG@10 that nodes report; a
last message does so after the last round. Nodes save their state of the best round.

The state folder holds ``federation.json`` (the federation), ``server.safetensors`` (the model
after the last complete round), ``rounds.jsonl`` (statistics and metrics of each round) and
``outcome.json`` (how the run ended).
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
from numpy.typing import NDArray

from unskew.deploy import secure
from unskew.deploy.messages import (
    Limits,
    NodeSum,
    Rejected,
    add_node,
    merge_uploads,
    read_arrays,
    read_each,
    read_metric_sums,
    read_sum,
    select_uploads,
    upload_shape,
)
from unskew.deploy.node_data import owner_only
from unskew.deploy.robust import mean_metrics, robust_sum, settle_owners
from unskew.deploy.task import Task, read_run_config
from unskew.files import (
    named_tensors,
    read_json,
    read_json_lines,
    read_tensors,
    write_json,
    write_json_lines,
    write_tensors,
)
from unskew.kernels import empty_sum
from unskew.privacy import Shape
from unskew.types import Int64, Method, UnskewError, Uploads, UploadSum

FORMAT, STATE, OUTCOME, VERSION = "unskew-federation", "unskew-server", "unskew-outcome", 1
"""Format names of the federation, model and outcome files, and their version."""
_POLL_SECONDS = 0.5
"""Seconds between two checks for new nodes or replies."""
_MAX_ATTEMPTS = 3
"""Number of attempts at a round, all without a valid upload, after which the run stops."""
log = logging.getLogger("flwr")


def claim_folder(folder: Path, task: Task) -> None:
    """Record the task in a server's state folder; an error if the folder has another federation."""
    path = folder / "federation.json"
    if path.exists():
        task.check_folder(folder, read_json(path, FORMAT, VERSION)["task"])
    write_json(path, {"format": FORMAT, "version": VERSION, "task": vars(task)})


def read_model(folder: Path, server: Any) -> tuple[int, Any]:
    """Read the last round number and server state, typed as ``server``; (0, ``server``) if none."""
    saved = _read_tensors(folder)
    if not saved:
        return 0, server
    return int(saved["round"][0]), type(server)(*(saved[name] for name in server._fields))


def _read_tensors(folder: Path) -> dict[str, NDArray[Any]]:
    path = folder / "server.safetensors"
    return read_tensors(path, STATE, VERSION) if path.exists() else {}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Read the statistics and metrics of every round so far, one row per round."""
    path = folder / "rounds.jsonl"
    return read_json_lines(path) if path.exists() else []


def best_round(rows: list[dict[str, Any]]) -> int:
    """Number of the first round with the highest validation NDCG@10; 0 if none was evaluated."""
    found = {row["round"]: row.get("metrics", {}).get("validation.ndcg@10") for row in rows}
    known = {round: figure for round, figure in found.items() if figure is not None}
    return max(known, key=lambda round: known[round], default=0)


class Coordinator:
    """Runs a federation's rounds on the server, from the last checkpoint to the last round."""

    def __init__(self, grid: Grid, context: Context) -> None:
        self._grid, self._context = grid, context
        self._rules = read_run_config(context.run_config)
        if not self._rules.state:
            raise UnskewError('The run-config must name the server\'s state folder: state="...".')
        self._folder, self._task = Path(self._rules.state), self._rules.task
        self._method: Method = self._task.build()
        claim_folder(self._folder, self._task)
        (self._folder / "outcome.json").unlink(missing_ok=True)
        # Servers of methods that need single uploads have state per user, and users have owners.
        n_users = self._task.n_users if self._method.aggregation == "individual" else 0
        server, _ = self._method.init(n_users or 1, self._task.n_items, self._task.seed)
        self._round, self._server = read_model(self._folder, server)
        self._owners: Int64 = _read_tensors(self._folder).get("owners", np.zeros(n_users, np.int64))
        self._rows = [row for row in read_rows(self._folder) if row["round"] <= self._round]

    def run(self) -> None:
        rounds: int = self._method.config.rounds
        if self._round:
            log.info("Going on after round %d of %d", self._round, rounds)
        failed = 0
        while self._round < rounds:
            nodes = self._wait_for_nodes()
            if nodes is None:
                return
            if self._run_round(nodes):
                failed = 0
                continue
            failed += 1
            if failed == _MAX_ATTEMPTS:
                return self._stop(
                    f"{_MAX_ATTEMPTS} times no node sent an upload that could be used"
                )
        self._finish()
        self._stop("all rounds played")

    def _run_round(self, nodes: list[int]) -> bool:
        """Run one round with these nodes; returns whether any upload could be used."""
        began, round = time.monotonic(), self._round + 1
        shape = upload_shape(self._method, self._download(), self._task.n_items, round)
        exchange = self._secure_round if self._rules.secure else self._plain_round
        total, report = exchange(round, nodes, shape)
        if total is None:
            log.error("Round %d: no upload could be used; it will be repeated", round)
            return False
        self._server, self._round = self._method.aggregate(self._server, total), round
        row = {"round": round, "seconds": time.monotonic() - began, "nodes": len(nodes), **report}
        self._rows.append(row)
        self._save()
        rounds, every = self._method.config.rounds, self._rules.evaluate_every
        if every >= 0 and (round == rounds or (every and round % every == 0)):
            row |= self._evaluate(round, nodes)
            if self._method.stateless and "bytes_down" in row:
                row["bytes_down"] += len(nodes) * sum(array.nbytes for array in self._download())
            self._save()
        log.info("Round %d of %d: %d of %d nodes", round, rounds, row["accepted"], len(nodes))
        return True

    def _plain_round(
        self, round: int, nodes: list[int], shape: Shape
    ) -> tuple[UploadSum | Uploads | None, dict[str, Any]]:
        limits = Limits(self._rules.max_norm, self._rules.max_weight)
        individual, robust = self._method.aggregation == "individual", self._rules.robust
        total, sums, each = empty_sum(*shape), list[NodeSum](), dict[int, Uploads]()
        rejected, accepted, received = dict[str, str](), 0, 0
        message, cohort = self._content(round), self._task.cohort_of(round)
        for node, reply in self._ask("train", round, dict.fromkeys(nodes, message)):
            try:
                named = read_arrays(reply)
                received += sum(array.nbytes for array in named.values())
                if individual:
                    part = read_each(named, shape, limits)
                    if not np.isin(part.users, cohort).all():
                        raise Rejected("it has uploads of users who do not train in this round")
                    each[node] = part
                elif robust == "none":
                    total = add_node(total, read_sum(named, shape, limits))
                else:
                    sums.append(read_sum(named, shape, limits))
                accepted += 1
            except Rejected as error:
                rejected[str(node)] = str(error)
                log.warning("Round %d: upload of node %d rejected: %s", round, node, error)
        if individual:
            own = self._owned_uploads(round, each, rejected)
            accepted = len(own)
        down = len(nodes) * sum(array.nbytes for array in self._download())
        report = {"accepted": accepted, "rejected": rejected}
        report |= {"bytes_up": received, "bytes_down": down}
        if not accepted:
            return None, report
        if individual:
            return merge_uploads(own, shape), report
        if robust != "none":
            rules = self._rules
            return robust_sum(sums, shape, robust, rules.trim, rules.max_weight), report
        return total.result(), report

    def _owned_uploads(
        self, round: int, each: dict[int, Uploads], rejected: dict[str, str]
    ) -> list[Uploads]:
        """Select the uploads of users whom the sending node owns; logs and records the others."""
        claims = {node: part.users for node, part in each.items()}
        self._owners, holds = settle_owners(self._owners, claims)
        for node, hold in holds.items():
            if not hold.all():
                rejected[str(node)] = f"{int((~hold).sum())} of its users are claimed by others too"
                log.warning("Round %d: node %d: %s", round, node, rejected[str(node)])
        heard = [node for node, hold in holds.items() if hold.any() or not len(hold)]
        return [select_uploads(each[node], np.flatnonzero(holds[node])) for node in heard]

    def _secure_round(
        self, round: int, nodes: list[int], shape: Shape
    ) -> tuple[UploadSum | None, dict[str, Any]]:
        make = lambda: self._content(round)  # noqa: E731
        vector, n = secure.secure_sum(self._grid, self._context, round, nodes, make, self._rules)
        report: dict[str, Any] = {"accepted": n, "rejected": {}}
        if vector is None or not np.isfinite(vector).all():
            return None, report
        return secure.to_upload_sum(vector, shape, self._rules, n), report

    def _evaluate(self, round: int, nodes: list[int]) -> dict[str, Any]:
        """Ask the nodes for metric sums; returns the mean over the users of nodes that answered."""
        answers, n_users = {}, self._task.n_users
        content = self._content(round, self._method.stateless)
        for node, reply in self._ask("evaluate", round, dict.fromkeys(nodes, content)):
            try:
                answers[node] = read_metric_sums(reply, n_users)
            except Rejected as error:
                log.warning("Round %d: metrics of node %d rejected: %s", round, node, error)
        means, refused = mean_metrics(answers, n_users)
        for node in refused:
            log.warning("Round %d: metrics of node %d rejected: too many users", round, node)
        log.info(
            "Round %d: validation NDCG@10 %.4f, test NDCG@10 %.4f",
            round,
            means.get("validation.ndcg@10", float("nan")),
            means.get("test.ndcg@10", float("nan")),
        )
        return {"metrics": means}

    def _finish(self) -> None:
        """Send the best round's number to the nodes, unless only the last round was evaluated. A
        stateless method's nodes also get the last download, in any case."""
        several = sum("metrics" in row for row in self._rows) > 1
        if several:
            log.info("The best round on validation is %d", best_round(self._rows))
        if several or self._method.stateless:
            content = self._content(self._round, self._method.stateless)
            nodes = list(self._grid.get_node_ids())
            for _ in self._ask("query", self._round, dict.fromkeys(nodes, content)):
                pass

    def _ask(
        self, kind: str, round: int, contents: dict[int, RecordDict]
    ) -> Iterator[tuple[int, Message]]:
        """Send each node its message; yield replies as they come and log nodes without a reply."""
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
        logged = -1
        while len(nodes := sorted(self._grid.get_node_ids())) < wanted:
            if time.monotonic() >= ends:
                self._stop(f"only {len(nodes)} of {wanted} nodes were there")
                return None
            if len(nodes) != logged:
                log.info("Waiting for nodes: %d of %d are here", len(nodes), wanted)
                logged = len(nodes)
            time.sleep(_POLL_SECONDS)
        return nodes

    def _stop(self, reason: str) -> None:
        outcome = {"format": OUTCOME, "version": VERSION, "round": self._round, "reason": reason}
        write_json(self._folder / "outcome.json", outcome)
        log.info("Stopped after round %d: %s", self._round, reason)

    def _download(self) -> Any:
        return self._method.download(self._server)

    def _content(self, round: int, with_download: bool = True) -> RecordDict:
        about = ConfigRecord({"round": round, "best": best_round(self._rows)})
        if not with_download:
            return RecordDict({"round": about})
        arrays = self._download()._asdict().items()
        record = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays})
        return RecordDict({"download": record, "round": about})

    def _save(self) -> None:
        # The rows first: a crash in between leaves one row too many, which the next start drops.
        write_json_lines(self._folder / "rounds.jsonl", self._rows)
        named = self._server._asdict()
        named |= {"round": np.array([self._round]), "owners": self._owners}
        write_tensors(self._folder / "server.safetensors", named_tensors(named), STATE, VERSION)


def main(grid: Grid, context: Context) -> None:
    with owner_only():  # the state holds what nodes have sent
        Coordinator(grid, context).run()


app = ServerApp()
app.main()(main)
