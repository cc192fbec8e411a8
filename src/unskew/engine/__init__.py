"""The simulator: rounds, cohorts, chunks, checkpoints. It never knows which method it runs."""

from unskew.engine._checkpoint import Checkpoints, model_checksum, server_tensors
from unskew.engine._devices import Devices
from unskew.engine._federation import (
    CHUNK,
    Federation,
    State,
    Transform,
    draw_cohort,
    kept_download,
)
from unskew.engine._memory import return_freed
from unskew.engine._scoreboard import TOP_K, Scoreboard

__all__ = [
    "CHUNK",
    "TOP_K",
    "Checkpoints",
    "Devices",
    "Federation",
    "Scoreboard",
    "State",
    "Transform",
    "draw_cohort",
    "kept_download",
    "model_checksum",
    "return_freed",
    "server_tensors",
]
