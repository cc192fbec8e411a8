"""Run the federated methods on real devices, with Flower carrying the messages.

``client`` and ``server`` hold Flower's two apps, ``exchange`` the server's messages, ``secure`` its
secure aggregation (SecAgg+), and ``guard`` what a device demands of that. What a device or a server
does between two messages, without Flower, is in ``device``, ``node_data``, ``account``,
``messages``, ``owners``, ``robust`` and ``task``. The set-up is in ``keys``, ``signing`` (nodes run
signed apps only), ``gate`` (the one address that others reach), ``doctor`` (checks) and
``loopback`` (all of it on one machine).
"""
