"""Federate a PyTorch model: ``pip install 'unskew[torch]'``.

A :class:`TorchMethod` names a module, the parameters that are shared, and those that are trained
before and after the upload. It can be run, tuned, audited and deployed like any other method.
"""

from unskew.torch.losses import bce, bpr, softmax
from unskew.torch.method import TorchConfig, TorchMethod, federate
from unskew.torch.training import Phase

__all__ = ["Phase", "TorchConfig", "TorchMethod", "bce", "bpr", "federate", "softmax"]
