"""Registry of the methods. Each method is one file; docs/new_method.md says how to add one."""

from __future__ import annotations

from typing import Any

from unskew.methods.ease import EASE
from unskew.methods.fedmf import FedMF
from unskew.methods.fedmf_af import FedMFAF
from unskew.methods.fedncf import FedNCF
from unskew.methods.fednext import FedNext
from unskew.methods.fedrap import FedRAP
from unskew.methods.fedrefit import FedRefit
from unskew.methods.gpfedrec import GPFedRec
from unskew.methods.gru4rec import GRU4Rec
from unskew.methods.item_knn import ItemKNN
from unskew.methods.lightgcn import LightGCN
from unskew.methods.local import Local
from unskew.methods.markov import Markov
from unskew.methods.mf import MF
from unskew.methods.ncf import NCF
from unskew.methods.pfedclr import PFedCLR
from unskew.methods.pfedgraph import PFedGraph
from unskew.methods.pfedrec import PFedRec
from unskew.methods.popularity import Popularity
from unskew.methods.registry import (
    admit_method,
    create,
    describe_methods,
    find_method,
    parse_settings,
    preset,
    register,
    short_name,
)
from unskew.methods.sasrec import SASRec
from unskew.methods.server_optimizers import (
    Moments,
    ServerSettings,
    apply_change,
    initial_moments,
)
from unskew.methods.slist import SLIST
from unskew.methods.training import (
    AveragedItems,
    ItemTraining,
    TrainingConfig,
    VectorMethod,
)

METHODS: dict[str, Any] = register(
    FedNext,
    FedRefit,
    PFedCLR,
    FedMF,
    FedMFAF,
    FedRAP,
    GPFedRec,
    PFedGraph,
    FedNCF,
    PFedRec,
    Local,
    MF,
    NCF,
    LightGCN,
    Popularity,
    ItemKNN,
    EASE,
    Markov,
    SLIST,
    SASRec,
    GRU4Rec,
)
"""Classes of this package's methods by name. Each has ``Config``, ``aggregation``, ``summary`` and
``citation``."""

__all__ = [
    "METHODS",
    "AveragedItems",
    "ItemTraining",
    "Moments",
    "ServerSettings",
    "TrainingConfig",
    "VectorMethod",
    "admit_method",
    "apply_change",
    "create",
    "describe_methods",
    "find_method",
    "initial_moments",
    "parse_settings",
    "preset",
    "short_name",
]
