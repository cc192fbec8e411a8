from __future__ import annotations

import numpy as np
import pytest

from unskew.numbering import Numbering, number_by_appearance


def plain(keys: list[int]) -> tuple[list[int], list[int]]:
    known = list(dict.fromkeys(keys))
    number = {key: n for n, key in enumerate(known)}
    return [number[key] for key in keys], known


@pytest.mark.parametrize("spread", [3, 1_000, 2**62])
def test_numbers_follow_first_appearance(spread: int) -> None:
    keys = np.random.default_rng(0).integers(-spread, spread, 20_000)
    numbers, known = number_by_appearance(keys)
    assert (numbers.tolist(), known.tolist()) == plain(keys.tolist())


def test_keys_that_arrive_in_parts() -> None:
    keys = np.random.default_rng(1).integers(0, 5_000, 12_000)
    numbering, numbers = Numbering(), np.empty(len(keys), np.int32)
    for part in np.array_split(np.arange(len(keys)), 7):
        numbering.add(keys[part], numbers[part[0] : part[-1] + 1])
    assert (numbers.tolist(), numbering.keys.tolist()) == plain(keys.tolist())


@pytest.mark.parametrize("keys", [[0, 1, 0, 2, 1], [0, 2, 1], [1, 0], [0, -1], [5], []])
def test_numbers_that_may_already_be_in_order(keys: list[int]) -> None:
    given = np.array(keys, np.int32)
    numbers, known = number_by_appearance(given)
    assert (numbers.tolist(), known.tolist()) == plain(keys)
    assert (numbers is given) == (plain(keys)[0] == keys)
