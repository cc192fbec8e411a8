"""The methods once more, in plain PyTorch: one client after another, dense tables, autograd.

Written from the papers and from how this line of research implements them, not from the kernels:
every device holds a whole item table, torch's own Adam moves it, and the server averages whole
tables. Only what is random is shared with the package: initial values, samples, and the order in
which an epoch visits them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unskew import rng
from unskew.kernels import draw_samples
from unskew.types import Cohort, Int64, Split

torch.set_num_threads(1)  # Tensors this small only lose by waiting for a second thread.

Variant = Literal["fedmf", "fedmf-af", "pfedclr-low-rank", "pfedclr-full"]


@dataclass
class Device:
    """One client: its vector, its whole item table, and its buffer."""

    p: Tensor
    Q: Tensor
    A: Tensor
    """Whole table; for a full buffer this is W."""
    B: Tensor
    epochs: dict[str, list[int]] = field(default_factory=dict)
    """How many epochs each step took, round after round."""


@dataclass
class Data:
    items: Tensor
    labels: Tensor


class EpochOrders:
    """Fisher-Yates on the stream named (seed, round, user, purpose), running on across epochs."""

    def __init__(self, n: int, cohort: Cohort, user: int, purpose: rng.Purpose) -> None:
        self._key = np.uint64(rng.stream(cohort.seed, cohort.round, user, int(purpose)))
        self._counter = 0
        self._order = list(range(n))

    def next(self) -> Tensor:
        order = self._order
        for i in reversed(range(1, len(order))):
            j = rng.below(np.uint64(rng.value(self._key, self._counter)), i + 1)
            self._counter += 1
            order[i], order[j] = order[j], order[i]
        return torch.tensor(order, dtype=torch.long)


class Oracle:
    """A federation of devices and a server, for one of the four variants."""

    def __init__(
        self, variant: Variant, method: Any, split: Split, seed: int, dtype: torch.dtype
    ) -> None:
        self.variant, self.config, self.split, self.seed = variant, method.config, split, seed
        self.dtype = dtype
        server, private = method.init(split.n_users, split.n_items, seed)
        self.Q = torch.tensor(server.Q, dtype=dtype)
        n_items, dim = self.Q.shape
        self.devices = []
        for user in range(split.n_users):
            width = dim
            B = torch.zeros(0, dim, dtype=dtype)
            if variant == "pfedclr-low-rank":
                B = torch.tensor(private.B[user], dtype=dtype)
                width = len(B)
            A = torch.zeros(n_items, width, dtype=dtype)
            p = torch.tensor(private.p[user], dtype=dtype)
            self.devices.append(Device(p, self.Q.clone(), A, B))

    def play(self, round: int, users: Int64) -> tuple[dict[int, Tensor], dict[int, float]]:
        """One round. Returns what each participant sent (None of it in a round without
        aggregation) as its table minus the server's, and its aggregation weight."""
        config = self.config
        tables: dict[int, Tensor] = {}
        weights: dict[int, float] = {}
        for user in map(int, users):
            cohort = self._cohort_of_one(user, round)
            data = self._samples(cohort)
            device = self.devices[user]
            if config.aggregate_from != 0 and round > config.aggregate_from:
                device.Q = self.Q.clone()  # downloaded; before that, it goes on with its own
            self._step_1(device, data, cohort)
            if config.aggregate_from != 0 and round >= config.aggregate_from:
                tables[user] = device.Q.clone()
                weights[user] = float(len(data.items))
            self._step_2(device, data, cohort)
        uploads = {user: table - self.Q for user, table in tables.items()}
        if tables:
            whole = sum(weights.values())
            self.Q = torch.stack([tables[u] * (weights[u] / whole) for u in tables]).sum(0)
        return uploads, weights

    def score(self, user: int) -> Tensor:
        """All items' scores on this device."""
        device = self.devices[user]
        return self._personal_items(device) @ device.p

    def _personal_items(self, device: Device) -> Tensor:
        if self.variant == "pfedclr-low-rank":
            return device.Q + device.A @ device.B
        return device.Q + device.A

    def _step_1(self, device: Device, data: Data, cohort: Cohort) -> None:
        rate = self.config.learning_rate
        Q = device.Q.clone().requires_grad_()
        if self.variant.startswith("pfedclr"):
            p = device.p.clone()
            trained = [(Q, rate)]
        else:
            p = device.p.clone().requires_grad_()
            trained = [(p, rate), (Q, rate)]
        self._train(
            device,
            "step 1",
            trained,
            lambda items: Q[items] @ p,
            data,
            cohort,
            rng.Purpose.SHUFFLE_LOCAL,
        )
        device.p, device.Q = p.detach(), Q.detach()

    def _step_2(self, device: Device, data: Data, cohort: Cohort) -> None:
        c = self.config
        if self.variant == "fedmf":
            return
        Q, purpose = device.Q, rng.Purpose.SHUFFLE_PERSONAL
        if self.variant == "fedmf-af":
            # p frozen; W from zero every round.
            W, p = torch.zeros_like(Q).requires_grad_(), device.p

            def with_tuning(items: Tensor) -> Tensor:
                return (Q + W)[items] @ p

            trained = [(W, c.buffer_rate)]
            self._train(device, "step 2", trained, with_tuning, data, cohort, purpose)
            device.A = W.detach()
            return
        p, A = device.p.clone().requires_grad_(), device.A.clone().requires_grad_()
        B = device.B.clone().requires_grad_()
        trained = [(p, c.learning_rate), (A, c.buffer_rate), (B, c.buffer_rate)]

        def with_buffer(items: Tensor) -> Tensor:
            buffer = A @ B if self.variant == "pfedclr-low-rank" else A
            return (Q + buffer)[items] @ p

        self._train(device, "step 2", trained, with_buffer, data, cohort, purpose)
        device.p, device.A, device.B = p.detach(), A.detach(), B.detach()

    def _train(
        self,
        device: Device,
        step: str,
        trained: list[tuple[Tensor, float]],
        logits: Callable[[Tensor], Tensor],
        data: Data,
        cohort: Cohort,
        purpose: rng.Purpose,
    ) -> None:
        """Minimise the mean binary cross-entropy, batch by batch, with an Adam made for the round.

        Stops once the mean loss over all samples so far differs from what it was an epoch ago by
        less than the tolerance, relative to that.
        """
        c = self.config
        optimiser = torch.optim.Adam([{"params": [x], "lr": rate} for x, rate in trained])
        orders = EpochOrders(len(data.items), cohort, int(cohort.users[0]), purpose)
        losses: list[float] = []
        previous = None
        epochs = 0
        for _ in range(c.local_epochs):
            epochs += 1
            for batch in torch.split(orders.next(), c.batch):
                optimiser.zero_grad()
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    logits(data.items[batch]), data.labels[batch]
                )
                torch.autograd.backward(loss)
                optimiser.step()
                losses += [loss.item()] * len(batch)
            mean = sum(losses) / len(losses)
            if previous is not None and abs(mean - previous) / previous < c.tolerance:
                break
            previous = mean
        device.epochs.setdefault(step, []).append(epochs)

    def _cohort_of_one(self, user: int, round: int) -> Cohort:
        def only(lists: Any) -> Any:
            mine = lists.of(user)
            return type(lists)(np.array([0, len(mine)], np.int64), mine)

        train, excluded = only(self.split.train), only(self.split.excluded)
        users = np.array([user], np.int64)
        return Cohort(users, train, excluded, self.split.n_items, self.seed, round)

    def _samples(self, cohort: Cohort) -> Data:
        samples = draw_samples(cohort, self.config.negatives)
        items = samples.touched.items[samples.row]
        return Data(
            torch.tensor(items, dtype=torch.long), torch.tensor(samples.label, dtype=self.dtype)
        )
