"""The same methods on real devices, with Flower carrying the messages.

``client`` and ``server`` hold Flower's two apps and ``secure`` its SecAgg+; only these import
``flwr``. The other modules hold everything a device or a server does between two messages, and
work without Flower: ``device``, ``node_data``, ``account``, ``messages``, ``robust``, ``task``,
``keys`` and ``loopback``.
"""
