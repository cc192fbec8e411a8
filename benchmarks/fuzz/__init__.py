"""Fuzzing: seeded cases of wrong settings, data files, run folders, device folders and messages.

    python -m benchmarks.fuzz --cases 20000 --seed 0

A case is accepted or refused with one sentence; anything else is a failure: a traceback, a refusal
without an exit code, or a result that differs from that without the damage. There is a module per
kind of input, and `cases` has what they share. See docs/fuzzing.md.
"""
