"""Flower's ServerApp: runs the rounds with the connected nodes, and saves the model after each.

A round uses every valid upload and logs the node of every invalid one. A node that does not
answer is left out of the round. With too few nodes the server waits, with too few valid uploads it
repeats the round, and after a time it stops; started again with the same state folder it continues
after the last complete round.

Every training message names the best round so far, by the validation NDCG@10 that nodes report; a
last message does so after the last round. Nodes save their state of the best round.

The state folder holds ``federation.json`` (the federation), ``nodes.json`` (whose users are whose,
written by the operator), ``server.safetensors`` (the model after the last complete round),
``rounds.jsonl`` (statistics and metrics of each round), ``secure.json`` (the nodes of the last
masked round) and ``outcome.json`` (how the run ended). One run at a time uses it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from unskew.deploy import secure
from unskew.deploy.exchange import Exchange
from unskew.deploy.messages import (
    About,
    Limits,
    NodeSum,
    Rejected,
    add_node,
    download_digest,
    max_upload_bytes,
    merge_uploads,
    read_about,
    read_arrays,
    read_each,
    read_metric_sums,
    read_sum,
    upload_bounds,
)
from unskew.deploy.node_data import lock_folder, owner_only
from unskew.deploy.owners import Owners, shared_users
from unskew.deploy.robust import mean_metrics, robust_sum
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
from unskew.text import log_text, plain
from unskew.types import Method, UnskewError, Uploads, UploadSum

FORMAT, STATE, OUTCOME, VERSION = "unskew-federation", "unskew-server", "unskew-outcome", 1
"""Format names of the federation, model and outcome files, and their version."""
_MAX_ATTEMPTS = 3
"""Number of attempts at a round, all with too few valid uploads, after which the run stops."""
log = logging.getLogger("flwr")


def claim_folder(folder: Path, task: Task) -> None:
    """Record the task in a server's state folder; an error if the folder has another federation."""
    path = folder / "federation.json"
    if path.exists():
        task.check_folder(folder, read_json(path, FORMAT, VERSION)["task"])
    write_json(path, {"format": FORMAT, "version": VERSION, "task": vars(task)})


def read_model(folder: Path, server: Any) -> tuple[int, Any]:
    """Read the last round number and server state, typed as ``server``; (0, ``server``) if none."""
    path = folder / "server.safetensors"
    if not path.exists():
        return 0, server
    saved = read_tensors(path, STATE, VERSION)
    return int(saved["round"][0]), type(server)(*(saved[name] for name in server._fields))


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
        self._context, self._rules = context, read_run_config(context.run_config)
        self._exchange = Exchange(grid, self._rules.round_timeout)
        if not self._rules.state:
            raise UnskewError('The run-config must name the server\'s state folder: state="...".')
        self._folder, self._task, self._round = Path(self._rules.state), self._rules.task, 0
        self._method: Method = self._task.build()
        claim_folder(self._folder, self._task)
        (self._folder / "outcome.json").unlink(missing_ok=True)
        with self._outcome_of_errors():
            # Servers of methods that need single uploads have state per user.
            individual, n_users = self._method.aggregation == "individual", self._task.n_users
            needed = self._method.name if individual else ""
            self._owners = Owners.read(self._folder, n_users, needed=needed)
            sizes = n_users if individual else 1, self._task.n_items
            server, _ = self._method.init(*sizes, self._task.seed)
            self._round, self._server = read_model(self._folder, server)
            self._rows = [row for row in read_rows(self._folder) if row["round"] <= self._round]

    def run(self) -> None:
        """Run the remaining rounds; how that ends is in ``outcome.json``, also after an error."""
        with self._outcome_of_errors():
            self._stop(self._run_rounds())

    def _run_rounds(self) -> str:
        """Run the remaining rounds; returns why it stopped."""
        rounds: int = self._method.config.rounds
        if self._round:
            log.info("Going on after round %d of %d", self._round, rounds)
        failed = 0
        while self._round < rounds:
            nodes = self._wait_for_nodes()
            if isinstance(nodes, str):
                return nodes
            failed = 0 if self._run_round(nodes) else failed + 1
            if failed == _MAX_ATTEMPTS:
                quorum = self._rules.quorum
                return (
                    f"{_MAX_ATTEMPTS} times fewer than {quorum} nodes sent an upload that could be "
                    "used (min-uploads)"
                )
        self._finish()
        return "all rounds played"

    def _run_round(self, nodes: list[int]) -> bool:
        """Run one round with these nodes; returns whether any upload could be used."""
        began, round = time.monotonic(), self._round + 1
        bounds = upload_bounds(self._method, self._download(), self._task.n_items, round)
        exchange = self._secure_round if self._rules.secure else self._plain_round
        total, report = exchange(round, nodes, *bounds)
        if total is None or report["accepted"] < self._rules.quorum:
            log.error(
                "Round %d: %d of %d uploads needed could be used; it will be repeated",
                round,
                report["accepted"],
                self._rules.quorum,
            )
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
        self, round: int, nodes: list[int], shape: Shape, user_weight: float
    ) -> tuple[UploadSum | Uploads | None, dict[str, Any]]:
        rules = self._rules
        individual = self._method.aggregation == "individual"
        total, sums, each = empty_sum(*shape), list[NodeSum](), list[Uploads]()
        rejected, heard, received = dict[str, str](), dict[int, About](), 0
        cohort, contents = self._task.cohort_of(round), dict.fromkeys(nodes, self._content(round))
        size = max_upload_bytes(shape, self._owners.largest() if individual else 1)
        for node, reply in self._exchange.ask("train", round, contents, size):
            try:
                about = self._check_about(round, node, reply)
                named = read_arrays(reply)
                received += sum(array.nbytes for array in named.values())
                # What is added up is at most the norm times the weight, so both have a bound.
                weight = rules.max_weight or user_weight * self._owners.size(node)
                limits = Limits(rules.max_norm, weight)
                if individual:
                    part = read_each(named, shape, limits)
                    if not np.isin(part.users, cohort).all():
                        raise Rejected("it has uploads of users who do not train in this round")
                    self._owners.check_users(node, part.users)
                    each.append(part)
                elif rules.robust == "none":
                    total = add_node(total, read_sum(named, shape, limits))
                else:
                    sums.append(read_sum(named, shape, limits))
                heard[node] = about
            except Rejected as error:
                rejected[str(node)] = log_text(error)
                log.warning(
                    "Round %d: upload of node %d rejected: %s", round, node, log_text(error)
                )
        for pair in shared_users(heard):
            log.warning("Round %d: nodes %d and %d say that they have the same users", round, *pair)
        down = len(nodes) * sum(array.nbytes for array in self._download())
        report = {"accepted": len(heard), "rejected": rejected}
        report |= {"bytes_up": received, "bytes_down": down}
        if not heard:
            return None, report
        if individual:
            return merge_uploads(each, shape), report
        if rules.robust != "none":
            return robust_sum(sums, shape, rules.robust, rules.trim, rules.max_weight), report
        return total.result(), report

    def _secure_round(
        self, round: int, nodes: list[int], shape: Shape, _: float
    ) -> tuple[UploadSum | None, dict[str, Any]]:
        def check_about(node: int, reply: Message) -> None:
            self._check_about(round, node, reply)

        bond = secure.Bond(self._folder, round)
        size = shape.entries + 1  # and the weight
        grid = secure.CheckedGrid(self._exchange, bond, check_about, size)
        make = lambda: self._content(round)  # noqa: E731
        vector, n = secure.secure_sum(grid, self._context, bond, nodes, make, self._rules)
        report: dict[str, Any] = {"accepted": n, "rejected": {}}
        if vector is None:
            return None, report
        return secure.to_upload_sum(vector, shape, self._rules, n), report

    def _check_about(self, round: int, node: int, reply: Message) -> About:
        """What a reply says about itself; raises :class:`Rejected` if it is not of this round, this
        download and the node's own users."""
        about = read_about(reply, round, download_digest(self._download()))
        self._owners.check(node, about)
        return about

    def _evaluate(self, round: int, nodes: list[int]) -> dict[str, Any]:
        """Ask the nodes for metric sums; returns the mean over the users of nodes that answered."""
        answers, n_users = {}, self._task.n_users
        content = self._content(round, self._method.stateless)
        for node, reply in self._exchange.ask("evaluate", round, dict.fromkeys(nodes, content)):
            try:
                answers[node] = read_metric_sums(reply, self._owners.size(node))
            except Rejected as error:
                reason = log_text(error)
                log.warning("Round %d: metrics of node %d rejected: %s", round, node, reason)
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
            contents = dict.fromkeys(self._exchange.nodes(), content)
            for _ in self._exchange.ask("query", self._round, contents):
                pass

    def _wait_for_nodes(self) -> list[int] | str:
        """Wait for the nodes of the next round; returns them, or which ones did not come."""
        wanted, round = self._rules.min_nodes, self._round + 1
        bound = secure.Bond(self._folder, round).nodes if self._rules.secure else []

        def missing(nodes: list[int]) -> str:
            lost = sorted(set(bound) - set(nodes))
            if lost:
                return f"round {round} was masked with the nodes {lost} too and needs them again"
            return "" if len(nodes) >= wanted else f"only {len(nodes)} of {wanted} nodes were there"

        nodes = self._exchange.wait_for_nodes(missing, self._rules.wait_for_nodes)
        return nodes if isinstance(nodes, str) else bound or nodes

    @contextmanager
    def _outcome_of_errors(self) -> Iterator[None]:
        try:
            yield
        except (SystemExit, KeyboardInterrupt):
            self._stop("the run was told to stop")
            raise
        except BaseException as error:
            said = error if isinstance(error, UnskewError) else repr(error)
            self._stop(f"an error: {plain(said)}")
            raise

    def _stop(self, reason: str) -> None:
        outcome = {"format": OUTCOME, "version": VERSION, "run": str(self._context.run_id)}
        outcome |= {"round": self._round, "reason": reason}
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
        named |= {"round": np.array([self._round])}
        write_tensors(self._folder / "server.safetensors", named_tensors(named), STATE, VERSION)


def main(grid: Grid, context: Context) -> None:
    """Run a federation; an error if another run uses its state folder."""
    state = read_run_config(context.run_config).state
    with (
        owner_only(),  # the state holds what nodes have sent
        lock_folder(Path(state), wait=False) if state else nullcontext(),
    ):
        Coordinator(grid, context).run()


app = ServerApp()
app.main()(main)
