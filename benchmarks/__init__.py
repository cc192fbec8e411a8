"""Speed, as ratios measured in one run: ``python -m benchmarks`` (or ``make bench``).

Seconds depend on the machine and on what else it is doing, so both sides of a ratio are measured
here and now, in turns. Nothing in this folder is part of the tests. A new row is one small file
with a ``measure`` function, registered in ``registry.py``.
"""
