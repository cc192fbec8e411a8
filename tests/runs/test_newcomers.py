"""A newcomer with a member's history gets what the member gets, from the round validation chose."""

import pytest

import unskew
from unskew.data import load


@pytest.fixture(scope="module")
def finished():
    return unskew.fit("fedrefit", load("demo"))


def test_a_newcomer_gets_what_a_member_with_the_same_history_gets(finished):
    (outcome,) = finished.outcomes
    assert outcome.best_round < len(outcome.rows)  # the last fit is another one
    split, recommender = finished.split, finished.recommender()
    for user in (0, 7, 500):
        history = [split.item_ids[item] for item in split.train.of(user)]
        member = recommender.recommend(split.user_ids[user], 10)
        newcomer = recommender.fold_in(history, 10)
        assert [row["item"] for row in newcomer] == [row["item"] for row in member]
        assert [row["score"] for row in newcomer] == pytest.approx([r["score"] for r in member])


def test_the_order_of_a_newcomers_items_counts(finished):
    split, recommender = finished.split, finished.recommender()
    history = [split.item_ids[item] for item in split.train.of(7)]
    forward, backward = (recommender.fold_in(order, 20) for order in (history, history[::-1]))
    assert [row["item"] for row in forward] != [row["item"] for row in backward]


def test_everybodys_recommendations_are_each_users_own(finished):
    table = finished.recommender().recommend_all(3)
    assert table.height == 3 * finished.split.n_users
    for user in finished.split.user_ids[:5]:
        rows = table.filter(table["user"] == user).drop("user").to_dicts()
        assert rows == finished.recommend(user, 3)
