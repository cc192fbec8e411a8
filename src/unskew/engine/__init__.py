"""The simulator: rounds, cohorts, chunks, checkpoints. It never knows which method it runs."""

from unskew.engine._checkpoint import Checkpoints, model_checksum, server_tensors
from unskew.engine._devices import Devices, select
from unskew.engine._federation import CHUNK, Federation, State, Transform
from unskew.engine._files import read_json, write_atomically, write_json
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
    "model_checksum",
    "read_json",
    "select",
    "server_tensors",
    "write_atomically",
    "write_json",
]
