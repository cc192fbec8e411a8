"""A PyTorch module as a federated method.

The module is the model of *one* device: it gets item numbers and returns their logits. Parameters
named in ``shared`` are averaged by the server; all others stay on the device. Of a
parameter with a row per item (an embedding), a client trains and uploads only the rows of the items
in its samples.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from unskew.kernels import draw_samples, overlay
from unskew.methods.server_optimizers import (
    Moments,
    ServerSettings,
    apply_change,
    initial_moments,
)
from unskew.methods.training import FOLD_IN_PASSES, TrainingConfig
from unskew.rng import Purpose, generator
from unskew.settings import setting
from unskew.torch.stacking import Parameter, score_all, train_clients
from unskew.torch.training import Phase
from unskew.types import (
    Cohort,
    Float32,
    Float64,
    Method,
    Ragged,
    Rows,
    UnskewError,
    Upload,
    UploadSum,
)


@dataclass(frozen=True)
class TorchConfig(ServerSettings, TrainingConfig):
    """Settings of every PyTorch method; a subclass can add more."""

    clients_at_once: int = setting(128, above=0)
    """Clients whose parameters are stacked and trained together. It bounds memory."""
    device: str = "cpu"
    """Where PyTorch computes: cpu, cuda, mps ..."""


@dataclass(frozen=True)
class TorchMethod(Method):
    """Base class of methods written in PyTorch. A subclass defines ``name``, ``shared`` (names of
    the parameters that the server averages), ``build`` (makes the module) and, unless all
    parameters are trained before the upload, ``phases``."""

    config: Any = None

    Config: ClassVar[Any] = TorchConfig
    name: ClassVar[str] = "torch"
    aggregation = "sum"
    exact: ClassVar[bool] = False
    large_chunks: ClassVar[bool] = True
    summary: ClassVar[str] = "a PyTorch module"
    citation: ClassVar[str] = ""
    shared: ClassVar[Sequence[str]] = ()
    weighting: ClassVar[Literal["samples", "equal"]] = "samples"
    """Weight of a client in the server's average: its number of samples, or 1."""

    def __post_init__(self) -> None:
        if self.config is None:
            object.__setattr__(self, "config", self.Config())

    def build(self, n_items: int) -> nn.Module:
        """Create the model of one device with newly initialised parameters."""
        raise NotImplementedError

    def phases(self, n_items: int) -> Sequence[Phase]:
        """The local training before the upload and, optionally, a second one after it. Default: all
        parameters are trained before the upload."""
        rate = self.config.learning_rate
        return (Phase({parameter.name: rate for parameter in self._parameters}),)

    @cached_property
    def _module(self) -> nn.Module:
        """The module, built for 2 items. Only its structure is used, not the parameters' values."""
        return self.build(2)

    @cached_property
    def _parameters(self) -> tuple[Parameter, ...]:
        """The module's parameters. Those whose first axis grows with the number of items have a row
        per item."""
        larger = {name: tuple(p.shape) for name, p in self.build(3).named_parameters()}
        found = []
        for name, value in self._module.named_parameters():
            per_item = tuple(value.shape) != larger[name]
            if per_item and (value.shape[0], larger[name][0]) != (2, 3):
                raise UnskewError(
                    f"{self.name}'s {name} has {len(value)} rows for 2 items: give it one row per "
                    "item; items are numbered from 0, without a row for padding."
                )
            shape = tuple(value.shape[1:] if per_item else value.shape)
            shared = name in self.shared
            found.append(Parameter(name, name.replace(".", "_"), shared, per_item, shape))
        self._check_module(found)
        return tuple(found)

    def _check_module(self, parameters: Sequence[Parameter]) -> None:
        names = [p.name for p in parameters]
        if not self.shared or set(self.shared) - set(names):
            raise UnskewError(
                f"{self.name} shares {', '.join(self.shared) or 'nothing'}, but its module has "
                f"the parameters {', '.join(names)}: name those to share in `shared`."
            )
        if not any(p.per_item for p in parameters):
            raise UnskewError(
                f"{self.name}'s module has no parameter with a row per item: give it an "
                "nn.Embedding of n_items rows."
            )
        if next(self._module.buffers(), None) is not None:
            raise UnskewError(
                f"{self.name}'s module has buffers (running statistics), which cannot be "
                "averaged: use LayerNorm in place of BatchNorm."
            )

        for part in self._module.modules():
            if isinstance(part, nn.Embedding) and (part.max_norm is not None or part.sparse):
                raise UnskewError(
                    f"{self.name}'s module has an embedding with max_norm or sparse=True, which "
                    "cannot be trained for many clients at once: leave the option out."
                )

    @cached_property
    def _device(self) -> str:
        """The PyTorch device in the settings; raises an UnskewError if it does not exist here."""
        try:
            torch.zeros(1, device=self.config.device).cpu()
        except (RuntimeError, AssertionError, NotImplementedError):
            raise UnskewError(
                f"device = {self.config.device}: PyTorch has no such device here; use cpu, or "
                "install a PyTorch that supports it."
            ) from None
        return str(self.config.device)

    @cached_property
    def _server_type(self) -> Any:
        """NamedTuple type of the server's state: the shared parameters with the moments of the
        server's optimiser, and the initial values of private parameters with a row per item."""
        fields = [p.field for p in self._parameters if p.shared or p.per_item]
        moments = [f"{p.field}_{m}" for p in self._shared for m in Moments._fields]
        return namedtuple("Server", [*fields, *moments])

    @cached_property
    def _download_type(self) -> Any:
        return namedtuple("Download", [p.field for p in self._parameters if p.shared or p.per_item])

    @cached_property
    def _private_type(self) -> Any:
        """NamedTuple type of a device's private state: all parameters; of those with a row per
        item, only the rows that the device has trained."""
        return namedtuple("Private", [p.field for p in self._parameters])

    @property
    def _shared(self) -> list[Parameter]:
        return [p for p in self._parameters if p.shared]

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Any, Any]:
        _ = self._device  # a missing device is reported before anything is trained
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator(seed, Purpose.INIT_DENSE).integers(2**31)))
            values = dict(self.build(n_items).named_parameters())
        server: dict[str, Float32] = {}
        private: dict[str, Any] = {}
        for p in self._parameters:
            array = values[p.name].detach().numpy().astype(np.float32)
            if p.per_item:
                array = array.reshape(n_items, p.size)
                private[p.field] = Rows.empty(n_users, p.size)
            else:
                private[p.field] = np.tile(array, (n_users,) + (1,) * array.ndim)
            if p.shared or p.per_item:
                server[p.field] = array
            if p.shared:
                for name, moment in initial_moments(self.config, array)._asdict().items():
                    server[f"{p.field}_{name}"] = moment
        return self._server_type(**server), self._private_type(**private)

    def download(self, server: Any) -> Any:
        return self._download_type(*(getattr(server, f) for f in self._download_type._fields))

    def download_bytes(self, download: Any) -> int:
        """Bytes of the shared parameters. Initial values of private parameters are not counted: a
        device computes them from the seed."""
        return sum(getattr(download, p.field).nbytes for p in self._shared)

    def draw(self, cohort: Cohort) -> Cohort:
        return cohort._replace(samples=draw_samples(cohort, self.config.negatives))

    def local(self, download: Any, private: Any, cohort: Cohort) -> tuple[Any, Upload, Float64]:
        alone = self.config.trains_alone(cohort.round)
        start = private if alone else self._replace_shared(download, private)
        phase = self.phases(cohort.n_items)[0]
        trained, losses = self._train(phase, download, start, cohort, Purpose.SHUFFLE_LOCAL)
        return trained, self._upload(download, trained, cohort), losses

    def personalize(self, download: Any, private: Any, cohort: Cohort) -> Any:
        phases = self.phases(cohort.n_items)
        if len(phases) < 2:
            return private
        return self._train(phases[1], download, private, cohort, Purpose.SHUFFLE_PERSONAL)[0]

    def fold_in(self, download: Any, private: Any, cohort: Cohort) -> Any:
        """Train the private parameters of users who join after training; shared ones are frozen."""
        private = self._replace_shared(download, private)
        own = {p.name for p in self._parameters if not p.shared}
        for number in range(1, FOLD_IN_PASSES + 1):
            alone = cohort.at_round(number)
            for phase in self.phases(cohort.n_items):
                groups = [{n: r for n, r in group.items() if n in own} for group in phase.groups]
                part = replace(phase, train=[group for group in groups if group])
                if part.names:
                    purpose = Purpose.SHUFFLE_PERSONAL
                    private, _ = self._train(part, download, private, alone, purpose)
        return private

    def aggregate(self, server: Any, total: UploadSum) -> Any:
        """Apply the clients' mean change to every shared parameter by the server's optimiser."""
        changed, column, place = {}, 0, 0
        for p in self._shared:
            if p.per_item:
                change = total.rows[:, column : column + p.size]
                column += p.size
            else:
                change = total.dense[place : place + p.size].reshape(p.shape)
                place += p.size
            moments = Moments(*(getattr(server, f"{p.field}_{m}") for m in Moments._fields))
            value = getattr(server, p.field)
            value, moments = apply_change(self.config, value, moments, change, total.weight)
            changed[p.field] = value
            changed |= {f"{p.field}_{name}": m for name, m in moments._asdict().items()}
        return server._replace(**changed)

    def score(self, download: Any, private: Any) -> Float32:
        """Logits of all items for each user, from the model on the user's device."""
        return score_all(self._module, self._parameters, download, private, self._device)

    def item_table(self, download: Any) -> Float32:
        """The shared parameters with a row per item, joined to one table as in an upload."""
        tables = [getattr(download, p.field) for p in self._shared if p.per_item]
        if not tables:
            raise UnskewError(
                f"{self.name} shares no parameter with a row per item, so there are no item rows "
                "to look at; this needs a shared embedding."
            )
        return np.concatenate(tables, 1)

    def score_dense(self, download: Any, private: Any, dense: Float32) -> Float32 | None:
        """Scores after adding uploaded changes to the shared parameters that do not have a row per
        item; None if there are no such parameters."""
        replaced, place = {}, 0
        for p in self._shared:
            if not p.per_item:
                change = dense[:, place : place + p.size].reshape(-1, *p.shape)
                replaced[p.field] = getattr(download, p.field) + change
                place += p.size
        return self.score(download, private._replace(**replaced)) if replaced else None

    def _train(
        self, phase: Phase, download: Any, private: Any, cohort: Cohort, purpose: Purpose
    ) -> tuple[Any, Float64]:
        c = self.config
        samples = draw_samples(cohort, c.negatives)
        trained, losses = train_clients(
            self._module,
            self._parameters,
            phase,
            download,
            private,
            cohort._replace(samples=samples),
            c.schedule,
            int(purpose),
            c.clients_at_once,
            self._device,
        )
        return private._replace(**trained), losses

    def _replace_shared(self, download: Any, private: Any) -> Any:
        """A copy of the private state in which the shared parameters are those of the server."""
        changed: dict[str, Any] = {}
        for p in self._shared:
            held = getattr(private, p.field)
            if p.per_item:
                changed[p.field] = Rows.empty(len(held.indptr) - 1, p.size)
            else:
                changed[p.field] = np.repeat(getattr(download, p.field)[None], len(held), 0)
        return private._replace(**changed)

    def _upload(self, download: Any, private: Any, cohort: Cohort) -> Upload:
        """The clients' changes of the shared parameters: those with a row per item joined to one
        table, all others to one vector."""
        n = len(cohort.users)
        tables = [(p, getattr(private, p.field)) for p in self._shared if p.per_item]
        sent = Rows.empty(n, 0)
        if tables and not self.config.sends_nothing(cohort.round):
            # A table that no phase trains has no rows on the device.
            sent = max((own for _, own in tables), key=lambda own: len(own.items))
        which = Ragged(sent.indptr, sent.items)
        changes = [np.zeros((len(which.items), 0), np.float32)]
        for p, own in tables:
            before = getattr(download, p.field)[which.items]
            changes.append(overlay(before.copy(), which, own) - before)
        dense = [np.zeros((n, 0), np.float32)]
        for p in self._shared:
            if not p.per_item:
                own = getattr(private, p.field) - getattr(download, p.field)
                dense.append(own.reshape(n, -1))
        weight = draw_samples(cohort, self.config.negatives).counts().astype(np.float64)
        if self.weighting == "equal":
            weight = np.sign(weight)
        upload = Upload(Rows(*which, np.concatenate(changes, 1)), np.concatenate(dense, 1), weight)
        if self.config.sends_nothing(cohort.round):
            upload = upload._replace(dense=0 * upload.dense, weight=0 * weight)
        return upload


def federate(
    build: Callable[[int], nn.Module],
    shared: Sequence[str],
    phases: Sequence[Phase] | None = None,
    *,
    name: str = "torch",
    **settings: Any,
) -> TorchMethod:
    """Make a method from ``build``, a function that returns a PyTorch module for a number of items.

    ``shared`` names the parameters that the server averages. ``phases`` are the local training
    before the upload and, optionally, after it; by default all parameters are trained before it.
    ``settings`` are those of :class:`TorchConfig`. Such a method exists only in this process; to
    save runs that others can open, write a subclass of :class:`TorchMethod` in a module.
    """
    if isinstance(build, nn.Module) or not callable(build):
        raise UnskewError(
            "federate takes a function that builds the module for a number of items: "
            "federate(lambda n_items: Net(n_items), ...) or federate(Net, ...)."
        )
    members: dict[str, Any] = {"name": name, "shared": tuple(shared)}
    members["build"] = lambda self, n_items: build(n_items)
    if phases is not None:
        members["phases"] = lambda self, n_items: tuple(phases)
    members["__qualname__"] = f"federate.<locals>.{name}"  # cannot be imported
    kind = type(name, (TorchMethod,), members)
    method: TorchMethod = kind(TorchConfig(**settings))
    return method
