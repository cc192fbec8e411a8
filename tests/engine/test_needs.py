"""Ratings, timestamps and item features reach a method that asks for them, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest

import unskew
from conftest import cut_down
from unskew.deploy.task import Task
from unskew.methods import METHODS, admit_method
from unskew.types import Cohort, Interactions, UnskewError

FedMF: Any = METHODS["fedmf"]


class Curious(FedMF):  # type: ignore[misc]
    """FedMF that looks at everything and scores by a feature."""

    name = "curious"
    needs = ("ratings", "timestamps", "item_features")
    met: ClassVar[list[Cohort]] = []

    def local(self, download: Any, private: Any, cohort: Cohort) -> Any:
        self.met.append(cohort)
        return super().local(download, private, cohort)

    def fold_in(self, download: Any, private: Any, cohort: Cohort) -> Any:
        self.met.append(cohort)
        return super().fold_in(download, private, cohort)

    def score(self, download: Any, private: Any) -> Any:
        return np.tile(self.item_features[:, 0], (len(private[0]), 1))


@pytest.fixture(scope="module")
def rated(demo_data: Interactions) -> pl.DataFrame:
    small = cut_down(demo_data, 30, 40)
    return pl.DataFrame(
        {
            "user": [small.user_ids[user] for user in small.users],
            "item": [f"i{item}" for item in small.items],
            "rating": (1 + small.items % 5).astype(float),
            "timestamp": small.timestamps,
        }
    )


def features(data: pl.DataFrame) -> pl.DataFrame:
    items = data["item"].unique(maintain_order=True)
    return pl.DataFrame({"item": items, "a": np.arange(len(items)), "b": 0.5})


def test_all_of_it_arrives_aligned(tmp_path: Path, rated: pl.DataFrame) -> None:
    data = unskew.load(rated, item_features=features(rated))
    Curious.met.clear()
    result = unskew.fit(Curious, data, rounds=2, out=tmp_path / "run")
    split, truth = result.split, {row[:2]: row[2:] for row in rated.rows()}
    for cohort in Curious.met:
        assert cohort.ratings is not None
        assert cohort.timestamps is not None
        owner = np.repeat(cohort.users, cohort.positives.counts())
        for at, (user, item) in enumerate(zip(owner, cohort.positives.items, strict=True)):
            pair = split.user_ids[user], split.item_ids[item]
            assert truth[pair] == (cohort.ratings[at], cohort.timestamps[at])
    best = result.recommend(split.user_ids[0], k=5)
    again = unskew.open_run(tmp_path / "run", method=Curious).recommend(split.user_ids[0], k=5)
    assert best == again
    scores = [found["score"] for found in best]
    assert scores == sorted(scores, reverse=True)
    recommender = result.recommender()
    recommender.fold_in(["i2", "i4", "i2"], ratings=[5, 3, 1], timestamps=[1, 2, 3])
    assert Curious.met[-1].ratings.tolist() == [5, 3]  # type: ignore[union-attr]
    with pytest.raises(UnskewError, match="curious needs ratings; give one for each"):
        recommender.fold_in(["i2"])


def test_a_method_that_does_not_ask_gets_nothing(rated: pl.DataFrame) -> None:
    class Content(Curious):
        needs = ()

        def score(self, download: Any, private: Any) -> Any:
            return FedMF.score(self, download, private)

    Curious.met.clear()
    data = unskew.load(rated, item_features=features(rated))
    seen = unskew.fit(Content, data, rounds=2)
    assert {(one.ratings, one.timestamps) for one in Curious.met} == {(None, None)}
    plain = unskew.fit("fedmf", rated, rounds=2)
    assert seen.outcomes[0].model_sha256 == plain.outcomes[0].model_sha256


@pytest.mark.parametrize("without", ["rating", "timestamp", "features"])
def test_data_without_what_is_needed_gets_a_sentence(rated: pl.DataFrame, without: str) -> None:
    table = None if without == "features" else features(rated)
    data = unskew.load(rated.drop(without, strict=False), item_features=table)
    with pytest.raises(UnskewError, match=f"curious needs .*{without}s?.* has none"):
        unskew.fit(Curious, data, rounds=1)


def test_features_that_cannot_be_used_get_a_sentence(rated: pl.DataFrame, tmp_path: Path) -> None:
    table = features(rated)
    for wrong, said in (
        (table.drop("item"), "need a column item"),
        (table.with_columns(b=pl.lit("red")), "'b' of row 0 is 'red'"),
        (table.with_columns(b=pl.lit(1e39)), "'b' of row 0 is '1e\\+39'"),
        (table.with_columns(b=pl.lit("red", pl.Enum(["red"]))), "'b' of row 0 is 'red'"),
        (table.with_columns(b=pl.concat_list("item")), "'b' has the type List"),
        (table.with_columns(item=pl.lit("z")), "no item of data has features"),
    ):
        with pytest.raises(UnskewError, match=said):
            unskew.load(rated, item_features=wrong)
    for text, said in (("item,a\n", "no rows below it"), ("item,a\nx\n", "line 2: 1 fields")):
        (tmp_path / "features.csv").write_text(text)
        with pytest.raises(UnskewError, match=said):
            unskew.load(rated, item_features=tmp_path / "features.csv")
    some = unskew.load(rated, item_features=table[2:])
    assert any("2 items without features" in note for note in some.notes)


def test_a_deployment_refuses_such_a_method() -> None:
    name, _ = admit_method(Curious)
    with pytest.raises(UnskewError, match="which nodes do not have"):
        Task(name, "", 0, 5, 5).build()
