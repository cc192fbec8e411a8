"""Run the federated methods on real devices, with Flower carrying the messages.

``client`` and ``server`` hold Flower's two apps, ``exchange`` the server's messages, ``secure`` its
secure aggregation (SecAgg+), and ``guard`` what a device demands of that; only these import
``flwr``. The other modules do what a device or a server does between two messages: ``device``,
``node_data``, ``account``, ``messages``, ``owners``, ``robust``, ``task``, ``keys`` and
``loopback``.
"""
