"""Run the federated methods on real devices, with Flower carrying the messages.

``client`` and ``server`` hold Flower's two apps and ``secure`` its secure aggregation (SecAgg+);
only these import ``flwr``. The other modules do what a device or a server does between two
messages: ``device``, ``node_data``, ``account``, ``messages``, ``robust``, ``task``, ``keys`` and
``loopback``.
"""
