"""The same methods on real devices, with Flower carrying the messages.

``client`` and ``server`` hold Flower's two apps and are the only doors to ``flwr``; everything a
device or a server does between two messages is in plain modules that work without it. Nothing here
is imported unless asked for.
"""
