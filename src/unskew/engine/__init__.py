"""The simulator: rounds, chunks, devices, checkpoints. It never knows which method it runs."""

from unskew.engine._memory import return_freed
from unskew.engine.checkpoints import Checkpoints, model_checksum, server_tensors
from unskew.engine.devices import Devices
from unskew.engine.executor import (
    ChunkResult,
    Executor,
    ThreadExecutor,
    Transform,
    train_chunk,
    train_upload,
)
from unskew.engine.federation import CHUNK, Federation, State, draw_cohort
from unskew.engine.scoreboard import TOP_K, Scoreboard

__all__ = [
    "CHUNK",
    "TOP_K",
    "Checkpoints",
    "ChunkResult",
    "Devices",
    "Executor",
    "Federation",
    "Scoreboard",
    "State",
    "ThreadExecutor",
    "Transform",
    "draw_cohort",
    "model_checksum",
    "return_freed",
    "server_tensors",
    "train_chunk",
    "train_upload",
]
