"""Federate a PyTorch model: ``pip install 'unskew[torch]'``.

A :class:`TorchMethod` names a module, the parameters that are shared, and what is trained before
and after the upload. It is a method like any other: it can be run, tuned, audited and deployed.
"""

from unskew.torch.losses import bce, bpr, softmax
from unskew.torch.method import TorchConfig, TorchMethod, federate
from unskew.torch.training import Phase

__all__ = ["Phase", "TorchConfig", "TorchMethod", "bce", "bpr", "federate", "softmax"]
