"""A federated round as the field's research code plays it: one PyTorch client after another.

Per client: the server's dense model is deep-copied and the client's own state loaded into it; a
DataLoader shuffles single (user, item, label) samples into batches; a fresh dense Adam steps over
whole tables, touched or not; state dicts are copied for the server and for the client's next round.
Sampled negatives, early stopping and the server's average are as in Unskew, from the same state of
the same federation, and neither side is timed while evaluating.

**Scaling.** A whole round takes minutes to hours, so a random sample of the round's clients is
played. Dense Adam makes a batch cost the same whoever owns it, so the sample's seconds are scaled
by work: seconds of the round = seconds of the sample x (batches of the round / batches of the
sample), counting the batches planned, ceil(samples / 256) x epochs for each phase; clients that
stop early do so in the sample as often as in the round. What is done once per client (deep copies,
negatives, aggregation) is in the sample's seconds and scaled with them.

**Threads.** The ratio is against PyTorch with as many threads as Unskew has. Its tensors are so
small here that one thread can be as fast, so that is measured too and stands beside. On a busy
machine PyTorch's threads wait for each other and the loop becomes tens of times slower: a row in
which they did (its main thread without a core to itself, or far slower than one thread) says so and
is not held to its bar.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.timing import Row, Setting, take_turns
from unskew.engine import Federation
from unskew.kernels import get_threads
from unskew.methods import create

State = dict[str, Any]
"""A state dict."""
OWN_CORE = 0.9
"""The least share of a core that PyTorch's main thread has on an idle machine."""
HELD_UP = 1.5
"""Times slower than one thread, above which PyTorch's threads only wait for each other."""


class Phase(NamedTuple):
    """One local training: what is trained, at which setting's rate, and the score it is trained
    on. All other parameters are frozen."""

    rates: Mapping[str, str]
    score: Callable[[Any, Any, Any], Any]


class Twin(NamedTuple):
    """A method as research code writes it. Its first phase ends with the upload of the items."""

    name: str
    build: Callable[[int, Any], Any]
    """The dense model, from the number of items and the method's config."""
    state: Callable[[Any, Any, int], State]
    """A client's state dict, from its place in the private state."""
    phases: tuple[Phase, ...]
    bars: Mapping[str, float]
    """The least ratio asked for, by data set."""
    loop: Any = None
    """A subclass of ``Loop``, for methods that train a batch in their own way."""


class SampleSet:
    """What a DataLoader needs: single samples as tensors."""

    def __init__(self, users: list[int], items: list[int], labels: list[float]) -> None:
        self.users = torch.LongTensor(users)
        self.items = torch.LongTensor(items)
        self.labels = torch.FloatTensor(labels)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        return self.users[index], self.items[index], self.labels[index]

    def __len__(self) -> int:
        return len(self.items)


class Loop:
    """The clients of one round in random order, played until the time is up."""

    def __init__(self, twin: Twin, federation: Federation, state: Any) -> None:
        self.twin, self.config = twin, federation.method.config
        self.download = federation.method.download(state.server)
        users = federation.cohort_of(state.round + 1)
        self.cohort = federation.cohort(users, state.round + 1)
        self.private = state.devices.take(users)
        pool = self.cohort.n_items - self.cohort.excluded.counts()
        per_positive = 1 + np.minimum(self.config.negatives, pool)
        samples = self.cohort.positives.counts() * per_positive
        epochs = self.config.local_epochs * len(twin.phases)
        self.batches = -(-samples // self.config.batch) * epochs
        self.order = np.random.default_rng(0).permutation(len(users)).tolist()
        self.played: list[int] = []
        self.losses: list[float] = []
        self.busy: list[float] = []
        self.batches_run = 0
        self.model = twin.build(self.cohort.n_items, self.config)
        with torch.no_grad():
            self.model["item"].weight.copy_(torch.from_numpy(self.download.Q))

    def lap(self, seconds: float, threads: int) -> float:
        """Play clients for about this long; returns the seconds a whole round would take."""
        torch.set_num_threads(threads)
        spent, batches, uploads = 0.0, 0, []
        busy = time.thread_time()
        while spent < seconds or not batches:
            client = self.order[len(self.played) % len(self.order)]
            self.played.append(client)
            held = self.twin.state(self.model, self.private, client)
            began = time.perf_counter()
            uploads.append(self._client(client, held))
            spent += time.perf_counter() - began
            batches += int(self.batches[client])
        if threads > 1:
            self.busy.append((time.thread_time() - busy) / spent)
        began = time.perf_counter()
        self._aggregate(uploads)
        spent += time.perf_counter() - began
        return spent * float(self.batches.sum()) / batches + self.server_seconds(threads)

    def server_seconds(self, threads: int) -> float:
        """What the server of the whole round needs beyond the mean; nothing for most methods."""
        return 0.0

    def _client(self, client: int, held: State) -> tuple[State, int]:
        dataset = self._samples(client)
        model = copy.deepcopy(self.model)
        own = copy.deepcopy(held)
        own["item.weight"] = copy.deepcopy(self.model.state_dict()["item.weight"])
        model.load_state_dict(own)
        loader = DataLoader(dataset, batch_size=self.config.batch, shuffle=True)  # type: ignore[arg-type,var-annotated,unused-ignore]
        upload: State = {}
        for phase in self.twin.phases:
            loss = self._train(model, phase, loader, len(dataset))
            if not upload:
                self.losses.append(loss)
                upload = {"item.weight": copy.deepcopy(model.state_dict()["item.weight"])}
        held.update(copy.deepcopy(model.state_dict()))
        return upload, len(dataset)

    def _samples(self, client: int) -> SampleSet:
        excluded = set(self.cohort.excluded.of(client).tolist())
        pool = [item for item in range(self.cohort.n_items) if item not in excluded]
        users, items, labels = [], [], []
        for positive in self.cohort.positives.of(client).tolist():
            negatives = random.sample(pool, min(self.config.negatives, len(pool)))
            users += [0] * (1 + len(negatives))
            items += [positive, *negatives]
            labels += [1.0] + [0.0] * len(negatives)
        return SampleSet(users, items, labels)

    def _train(self, model: Any, phase: Phase, loader: Any, n: int) -> float:
        step = self._stepper(model, phase)
        total = mean = previous = 0.0
        for epoch in range(self.config.local_epochs):
            for users, items, labels in loader:
                total += step(users, items, labels) * len(labels)
                self.batches_run += 1
            mean = total / (n * (epoch + 1))
            if epoch and abs(mean - previous) / abs(previous + 1e-5) < self.config.tolerance:
                break
            previous = mean
        return mean

    def _stepper(self, model: Any, phase: Phase) -> Callable[[Any, Any, Any], float]:
        """A function that trains a batch (users, items, labels) and returns its mean loss."""
        groups = []
        for name, parameter in model.named_parameters():
            trained = name in phase.rates
            parameter.requires_grad_(trained)
            if trained:
                groups.append(
                    {"params": [parameter], "lr": getattr(self.config, phase.rates[name])}
                )
        optimiser = torch.optim.Adam(groups)
        criterion = nn.BCELoss()

        def step(users: Any, items: Any, labels: Any) -> float:
            optimiser.zero_grad()
            loss = criterion(torch.sigmoid(phase.score(model, users, items)), labels)
            loss.backward()
            optimiser.step()
            return float(loss.item())

        return step

    def _aggregate(self, uploads: list[tuple[State, int]]) -> State:
        total = sum(weight for _, weight in uploads)
        mean = copy.deepcopy(uploads[0][0])
        for name, value in mean.items():
            value.zero_()
            for upload, weight in uploads:
                value += upload[name] * (weight / total)
        return mean


def measure(twin: Twin, setting: Setting) -> Row:
    """The row of a method: its PyTorch twin against Unskew, both from the same state."""
    torch.manual_seed(0)
    random.seed(0)
    split, effort = setting
    threads, seconds = get_threads(), effort.seconds / effort.laps / 2
    federation = Federation(create(twin.name), split, seed=0)
    state = federation.start()
    federation.step(state)  # the first round compiles
    play = twin.loop or Loop
    play(twin, federation, state).lap(seconds, threads)  # PyTorch, too, is slow at first
    loop = play(twin, federation, state)
    with_one_thread: list[float] = []

    def pytorch() -> float:
        with_one_thread.append(loop.lap(seconds, 1))
        return loop.lap(seconds, threads)

    def unskew() -> float:
        return float(median(federation.step(state)["seconds"] for _ in range(effort.rounds)))

    figures, cores = take_turns(effort.laps, pytorch, unskew)
    own_losses = federation.method.local(loop.download, loop.private, loop.cohort)[2]
    played = np.array(loop.played)
    one, share = median(with_one_thread), median(loop.busy or [1.0])
    details = {
        "threads": threads,
        "seconds_against_one_thread": one,
        "ratio_one_thread": one / figures.seconds_unskew,
        "clients": len(loop.batches),
        "clients_sampled": len(set(loop.played)),
        "batches": int(loop.batches.sum()),
        "batches_sampled": int(loop.batches[played].sum()),
        "batches_run_share": loop.batches_run / float(loop.batches[played].sum()),
        "loss_against": float(np.mean(loop.losses)),
        "loss_unskew": float(own_losses[played].mean()),
        "main_thread_share": share,
        "unskew_cores_used": cores,
    }
    sentence = (
        f"{twin.name} on {split.data}: {figures.ratio:.0f} times as fast as the PyTorch loop "
        f"({figures.ratio_low:.0f} to {figures.ratio_high:.0f} over {effort.laps} laps): "
        f"PyTorch {figures.seconds_against:.1f} s a round, scaled from {len(set(loop.played))} "
        f"of {len(loop.batches)} clients, on {threads} threads ({one:.1f} s on one: "
        f"{details['ratio_one_thread']:.0f}), Unskew {figures.seconds_unskew:.3f} s"
    )
    name, bar = f"{twin.name} round", twin.bars.get(split.data)
    disturbed = share < OWN_CORE or figures.seconds_against > HELD_UP * one
    return Row(name, split.data, "PyTorch loop", figures, sentence, bar, disturbed, details)
