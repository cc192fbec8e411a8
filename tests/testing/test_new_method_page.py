"""The methods shown in docs/new_method.md run as they stand there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from unskew.engine import Federation
from unskew.testing import check_method
from unskew.types import Split

PAGE = Path(__file__).parents[2] / "docs" / "new_method.md"
QUICK: dict[str, Any] = {"rounds": 2, "dim": 4, "local_epochs": 2}


@pytest.fixture(scope="module")
def shown() -> Any:
    """The page's blocks of Python as one module; the block that shows a test is left out."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    module = ModuleType("shop_mf")
    sys.modules["shop_mf"] = module
    for block in blocks:
        if "check_method" not in block:
            exec(compile(block, str(PAGE), "exec"), vars(module))
    yield module
    del sys.modules["shop_mf"]


@pytest.mark.parametrize("name", ["ShopMF", "AdaptiveShopMF"])
def test_the_method_keeps_the_contract(name: str, shown: Any, tiny_split: Split) -> None:
    kind = getattr(shown, name)
    check_method(kind(kind.Config(**QUICK)), tiny_split)


def test_the_method_learns(shown: Any, tiny_split: Split) -> None:
    method = shown.ShopMF(shown.Config(rounds=8, dim=8, participation=1.0))
    rows = Federation(method, tiny_split, 0).run(8).rows
    assert rows[-1]["loss"] < 0.9 * rows[0]["loss"]
    assert rows[-1]["validation"]["ndcg@10"] > rows[0]["validation"]["ndcg@10"]
