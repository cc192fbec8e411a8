"""The simulator of federated training: rounds, devices, checkpoints. It runs any method."""

from unskew.engine.checkpoints import Checkpoints, model_checksum
from unskew.engine.devices import Devices
from unskew.engine.executor import (
    MAX_CHUNK_CLIENTS,
    Executor,
    ThreadExecutor,
    Transform,
    batches,
    train_chunk,
    train_upload,
)
from unskew.engine.federation import Federation, State, draw_cohort
from unskew.engine.group import concatenate_uploads, return_freed
from unskew.engine.memory import STATE_SHARE
from unskew.engine.ray import Cluster, RayFederation, check_method
from unskew.engine.recommender import RECOMMENDATIONS, Recommender, newcomer_scores
from unskew.engine.scoreboard import Scoreboard
from unskew.engine.shard import Loaded
from unskew.engine.worker import Worker

__all__ = [
    "MAX_CHUNK_CLIENTS",
    "RECOMMENDATIONS",
    "STATE_SHARE",
    "Checkpoints",
    "Cluster",
    "Devices",
    "Executor",
    "Federation",
    "Loaded",
    "RayFederation",
    "Recommender",
    "Scoreboard",
    "State",
    "ThreadExecutor",
    "Transform",
    "Worker",
    "batches",
    "check_method",
    "concatenate_uploads",
    "draw_cohort",
    "model_checksum",
    "newcomer_scores",
    "return_freed",
    "train_chunk",
    "train_upload",
]
