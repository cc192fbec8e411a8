"""Number values by first appearance: 7, 3, 7, 9 become 0, 1, 0, 2.

User and item labels become numbers in this way. The values are whole numbers (*keys*); labels that
are text are converted to keys by whoever has them.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from unskew.jit import jit
from unskew.rng import mix
from unskew.types import Int32, Int64

PART_ROWS = 1 << 17
"""Rows numbered at a time, so that copies of them stay in the processor's cache."""
_MIN_SLOTS = 1 << 10
"""Slots of the hash table at the start, a power of two; at most half of them are used."""


class Numbering:
    """Numbers keys that arrive in parts. ``keys[n]`` is the key with the number ``n``."""

    def __init__(self) -> None:
        self._room: Int64 = np.empty(_MIN_SLOTS // 2, np.int64)
        self._slots: Int32 = np.full(_MIN_SLOTS, -1, np.int32)
        self._length = 0

    @property
    def keys(self) -> Int64:
        return self._room[: self._length]

    def add(self, keys: Int64, numbers: Int32) -> None:
        """Write the number of each key to ``numbers``. A new key gets the next number."""
        done = 0
        while done < len(keys):
            read, self._length = _number(
                keys[done:], numbers[done:], self._room, self._slots, self._length
            )
            done += read
            if done < len(keys):
                self._double_room()

    def _double_room(self) -> None:
        known = self.keys
        self._room = np.empty(2 * len(self._room), np.int64)
        self._slots = np.full(2 * len(self._slots), -1, np.int32)
        _number(known, np.empty(len(known), np.int32), self._room, self._slots, 0)


def number_by_appearance(keys: Int64 | Int32) -> tuple[Int32, Int64]:
    """Number keys by first appearance. Returns the number of each entry and the key of each
    number. 32-bit numbers that already are in this order are returned as they are, not copied."""
    if keys.dtype == np.int32:
        same = cast(Int32, keys)
        known = _count_numbered(same)
        if known >= 0:
            return same, np.arange(known, dtype=np.int64)
    numbering, numbers = Numbering(), np.empty(len(keys), np.int32)
    for start in range(0, len(keys), PART_ROWS):
        part = slice(start, start + PART_ROWS)
        numbering.add(keys[part].astype(np.int64), numbers[part])
    return numbers, numbering.keys


@jit
def _count_numbered(numbers: Int32) -> int:
    """Count different numbers if they are 0, 1, 2, ... by first appearance, otherwise -1."""
    known = 0
    for number in numbers:
        if number < 0 or number > known:
            return -1
        if number == known:
            known += 1
    return known


@jit
def _number(
    keys: Int64, numbers: Int32, known: Int64, slots: Int32, length: int
) -> tuple[int, int]:
    """Number keys until a new one finds ``known`` full. Returns how many keys were numbered and how
    many are known. ``slots`` is a hash table of numbers; ``length`` keys are known before."""
    mask = np.uint64(len(slots) - 1)
    for n in range(len(keys)):
        key = keys[n]
        if n > 0 and key == keys[n - 1]:
            numbers[n] = numbers[n - 1]
            continue
        slot = mix(np.uint64(key)) & mask
        while slots[slot] >= 0 and known[slots[slot]] != key:
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            if length == len(known):
                return n, length
            slots[slot] = length
            known[length] = key
            length += 1
        numbers[n] = slots[slot]
    return len(keys), length
