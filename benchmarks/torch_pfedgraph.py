"""pFedGraph's twin: FedMF's local training, and a server that is far from what theirs costs.

Every client is trained without the pull, and the server's quadratic programmes are replaced by one
plain mean: both in PyTorch's favour. Unskew's side does all of it.
"""

from __future__ import annotations

from benchmarks.timing import Row, Setting
from benchmarks.torch_fedmf import JOINT, build, state
from benchmarks.torch_loop import Twin
from benchmarks.torch_loop import measure as measure_twin

TWIN = Twin("pfedgraph", build, state, (JOINT,), bars={"ml-100k": 50, "ml-1m": 50})


def measure(setting: Setting) -> Row:
    return measure_twin(TWIN, setting)
