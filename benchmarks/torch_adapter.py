"""The PyTorch adapter against a plain PyTorch loop over clients, for the methods in examples/.

The loop trains the same module on the same samples with the same optimisers, one client after
another: load the client's parameters, then per batch one forward pass, one backward pass and one
step. It is written as fast as such a loop gets without special code: samples are drawn by Unskew
and batches are slices of tensors, with no DataLoader. Optimisers step over whole tables, as they do
for an ``nn.Embedding``.

A random sample of a round's clients is trained, and its seconds are scaled by batches, as in
``torch_loop``. Tensors are small, so PyTorch may be faster with one thread than with two: the ratio
is against the faster of both.
"""

from __future__ import annotations

import copy
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Row, Setting, take_turns
from benchmarks.torch_loop import OWN_CORE
from unskew.engine import Federation
from unskew.kernels import draw_samples, get_threads

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
METHODS = ("PFedCLR", "PFedRec", "Perceptron")
"""Classes in examples/torch_methods.py."""
BAR = 5.0
"""The least ratio asked for on ML-100K."""


class ClientLoop:
    """The clients of one round, trained one after another."""

    def __init__(self, federation: Federation, state: Any) -> None:
        self.method: Any = federation.method
        self._config = self.method.config
        users = federation.cohort_of(state.round + 1)
        cohort = federation.cohort(users, state.round + 1)
        self._private = state.devices.take(users)
        self._samples = draw_samples(cohort, self._config.negatives)
        self._phases = self.method.phases(cohort.n_items)
        self.batches = -(-self._samples.counts() // self._config.batch)
        self.batches *= self._config.local_epochs * len(self._phases)
        self._order = np.random.default_rng(0).permutation(len(users)).tolist()
        self.trained: list[int] = []
        self.losses: list[float] = []
        self.core_shares: list[float] = []
        self._model = self.method.build(cohort.n_items)
        download = self.method.download(state.server)
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                value = getattr(download, name.replace(".", "_"), None)
                if value is not None:
                    parameter.copy_(torch.from_numpy(value).reshape(parameter.shape))

    def lap(self, seconds: float, threads: int) -> float:
        """Train clients for about this long; returns the seconds of a whole round."""
        torch.set_num_threads(threads)
        spent, batches = 0.0, 0
        began_lap, busy = time.perf_counter(), time.thread_time()
        while spent < seconds or not batches:
            client = self._order[len(self.trained) % len(self._order)]
            self.trained.append(client)
            began = time.perf_counter()
            self._train(client)
            spent += time.perf_counter() - began
            batches += int(self.batches[client])
        self.core_shares.append((time.thread_time() - busy) / (time.perf_counter() - began_lap))
        return spent * float(self.batches.sum()) / batches

    def _train(self, client: int) -> dict[str, Any]:
        """Train one client; returns the changes of the shared parameters."""
        model = copy.deepcopy(self._model)
        self._load(model, client)
        run = slice(*self._samples.indptr[client : client + 2])
        items = torch.from_numpy(self._samples.touched.of(client)[self._samples.row[run]])
        labels = torch.from_numpy(self._samples.label[run])
        changes: dict[str, Any] = {}
        for phase in self._phases:
            loss = self._train_phase(model, phase, items, labels)
            if not changes:
                self.losses.append(loss)
                server = dict(self._model.named_parameters())
                for name, parameter in model.named_parameters():
                    if name in self.method.shared:
                        changes[name] = parameter.detach() - server[name].detach()
        return changes

    def _load(self, model: Any, client: int) -> None:
        """The parameters that stay on the client's device."""
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                own = getattr(self._private, name.replace(".", "_"))
                if name in self.method.shared:
                    continue
                if hasattr(own, "indptr"):
                    run = slice(*own.indptr[client : client + 2])
                    values = torch.from_numpy(own.values[run])
                    parameter[torch.from_numpy(own.items[run]).long()] = values
                else:
                    parameter.copy_(torch.from_numpy(own[client]))

    def _train_phase(self, model: Any, phase: Any, items: Any, labels: Any) -> float:
        named, config = dict(model.named_parameters()), self._config
        for name, parameter in named.items():
            parameter.requires_grad_(name in phase.names)
        optimizers = [
            phase.optimizer([{"params": [named[name]], "lr": rate} for name, rate in group.items()])
            for group in phase.groups
        ]
        total = mean = previous = 0.0
        for epoch in range(config.local_epochs):
            order = torch.randperm(len(items))
            for batch in order.split(config.batch):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                    chosen = items[batch]
                    logits = model(chosen) if phase.score is None else phase.score(model, chosen)
                    loss = phase.loss(logits, labels[batch]).mean()
                    loss.backward()
                    optimizer.step()
                total += loss.item() * len(batch)
            mean = total / (len(items) * (epoch + 1))
            if epoch and abs(mean - previous) / abs(previous + 1e-5) < config.tolerance:
                break
            previous = mean
        return mean


def measure(name: str, setting: Setting) -> Row:
    """The row of an example: the loop over clients against the adapter, from the same state."""
    import torch_methods  # in examples/

    torch.manual_seed(0)
    kind = getattr(torch_methods, name)
    split, effort = setting
    seconds = effort.seconds / effort.laps / 2
    federation = Federation(kind(kind.Config()), split, seed=0)
    state = federation.start()
    federation.step(state)
    threads = torch.get_num_threads()
    ClientLoop(federation, state).lap(0.5, threads)  # PyTorch is slow at first
    loop = ClientLoop(federation, state)
    by_threads: dict[int, list[float]] = {1: [], threads: []}

    def against() -> float:
        for count, found in by_threads.items():
            found.append(loop.lap(seconds, count))
        torch.set_num_threads(threads)
        return min(found[-1] for found in by_threads.values())

    def unskew() -> float:
        rounds = max(1, effort.rounds // 2)
        return float(median(federation.step(state)["seconds"] for _ in range(rounds)))

    download, cohort = federation.method.download(state.server), federation.cohort_of(2)
    own = federation.method.local(
        download, state.devices.take(cohort), federation.cohort(cohort, 2)
    )[2]
    figures, cores = take_turns(effort.laps, against, unskew)
    trained = np.array(loop.trained)
    details = {
        "threads": get_threads(),
        "clients": len(loop.batches),
        "clients_sampled": len(set(loop.trained)),
        "batches": int(loop.batches.sum()),
        "batches_sampled": int(loop.batches[trained].sum()),
        "loss_against": float(np.mean(loop.losses)),
        "loss_unskew": float(own[trained].mean()),
        "main_thread_share": median(loop.core_shares),
        "unskew_cores_used": cores,
    } | {f"seconds_against_{count}_threads": median(s) for count, s in by_threads.items()}
    sentence = (
        f"{kind.name} on {split.data}: {figures.ratio:.1f} times as fast as a PyTorch loop over "
        f"clients ({figures.ratio_low:.1f} to {figures.ratio_high:.1f} over {effort.laps} laps): "
        f"the loop {figures.seconds_against:.1f} s a round, scaled from {len(set(loop.trained))} "
        f"of {len(loop.batches)} clients, the adapter {figures.seconds_unskew:.2f} s"
    )
    disturbed = median(loop.core_shares) < OWN_CORE
    bar = BAR if split.data == "ml-100k" else None
    label = f"{kind.name} round"
    return Row(
        label, split.data, "PyTorch loop over clients", figures, sentence, bar, disturbed, details
    )
