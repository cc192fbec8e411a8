"""local: no federation. Every client trains FedMF's model on its own items and sends nothing.

A baseline that shows the benefit of federation: FedMF (Chai et al. 2021; see fedmf.py) without a
server. Each client trains the items it samples; all other items keep their initial values.
"""

from __future__ import annotations

from dataclasses import dataclass

from unskew.methods.fedmf import FedMF
from unskew.methods.training import TrainingConfig
from unskew.types import UnskewError


@dataclass(frozen=True)
class Config(TrainingConfig):
    aggregate_from: int = 0
    """The round from which the server aggregates. 0: never, which is what local means."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregate_from != 0:
            raise UnskewError(
                f"aggregate_from = {self.aggregate_from} must be 0 for local: use fedmf instead."
            )


class Local(FedMF):
    config = Config()
    name = "local"
    summary = "every client alone: FedMF without a server"
    citation = "Chai et al., IEEE Intelligent Systems 2021, without aggregation"
