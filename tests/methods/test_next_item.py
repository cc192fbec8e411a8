"""SASRec and GRU4Rec: what a position may depend on, the loss, resuming, and learning an order."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from conformance import leaves
from unskew.engine import Federation
from unskew.methods import METHODS, create
from unskew.types import Cohort, Ragged, Split, UnskewError

NAMES = ["sasrec", "gru4rec"]
SMALL: dict[str, Any] = {"dim": 16, "window": 8, "warm_up": 1}


def test_without_torch_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "unskew.torch.next_item", raising=False)
    monkeypatch.delitem(sys.modules, "unskew.torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    for name in NAMES:
        with pytest.raises(UnskewError) as caught:
            create(name).init(2, 3, 0)
        assert str(caught.value) == (
            f"{name} needs PyTorch; install it with: pip install 'unskew[torch]'."
        )


def test_heads_must_divide_the_embedding_size() -> None:
    with pytest.raises(UnskewError, match="heads = 3 must divide dim = 16"):
        create("sasrec", dim=16, heads=3)


torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from unskew.torch.next_item import NETWORKS, next_item_loss  # noqa: E402


def histories(*lists: list[int]) -> Ragged:
    counts = [len(one) for one in lists]
    items = np.array([item for one in lists for item in one], np.int32)
    return Ragged(np.concatenate(([0], np.cumsum(counts))).astype(np.int64), items)


def cycles(n_users: int, n_items: int, length: int) -> Ragged:
    """Histories in which the next item is always the item's number plus one."""
    return histories(*([(u + t) % n_items for t in range(length)] for u in range(n_users)))


def cohort(positives: Ragged, n_items: int, round: int) -> Cohort:
    users = np.arange(len(positives.counts()))
    return Cohort(users, positives, positives, n_items, 0, round)


@pytest.mark.parametrize("name", NAMES)
def test_a_position_depends_on_no_later_item(name: str) -> None:
    network = NETWORKS[name](20, create(name, **SMALL).config).eval()
    items = torch.arange(6)[None]
    lengths = torch.tensor([6])
    changed = items.clone()
    changed[0, 4:] = 15
    with torch.inference_mode():
        ours, theirs = network(items, lengths), network(changed, lengths)
    torch.testing.assert_close(ours[:, :4], theirs[:, :4])
    assert not torch.allclose(ours[:, 4:], theirs[:, 4:])


@pytest.mark.parametrize("name", NAMES)
def test_a_user_s_vector_needs_its_last_items_alone(name: str) -> None:
    """Neither padding, nor other users, nor items before the window change it."""
    method = create(name, **SMALL)
    server, private = method.init(4, 20, 1)
    recent = [3, 1, 4, 1, 5, 9, 2, 6]
    lists = [[], [7], recent, [11, 12, *recent]]
    h = method.refresh(method.download(server), private, histories(*lists)).h
    np.testing.assert_allclose(h[2], h[3], atol=1e-5)
    assert not h[0].any()
    for user, one in enumerate(lists):
        alone = method.refresh(method.download(server), private, histories(one)).h
        np.testing.assert_allclose(alone[0], h[user], atol=1e-5)
    swapped = method.refresh(method.download(server), private, histories(recent[::-1])).h
    assert not np.allclose(swapped[0], h[2], atol=1e-3), "the order matters"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("negatives", [0, 6])
def test_it_learns_the_order_of_a_cycle(name: str, negatives: int) -> None:
    n_items, rounds = 24, 30
    method = create(
        name,
        **SMALL,
        rounds=rounds,
        negatives=negatives,
        batch=128,
        learning_rate=0.01,
        dropout=0.1,
    )
    history = cycles(48, n_items, 12)
    server, private = method.init(48, n_items, 0)
    losses = []
    for round in range(1, rounds + 1):
        server, private, loss = method.epoch(server, private, cohort(history, n_items, round))
        losses.append(loss)
    assert losses[-1] < 0.5 * losses[0]
    best = method.score(method.download(server), private).argmax(1)
    assert np.mean(best == (np.arange(48) + 12) % n_items) > 0.95
    unseen = histories([5, 6, 7], [20, 21])
    h = method.refresh(method.download(server), private, unseen)
    assert method.score(method.download(server), h).argmax(1).tolist() == [8, 22]


@pytest.mark.parametrize("name", NAMES)
def test_small_data_gets_smaller_batches_rather_than_few_steps(name: str) -> None:
    steps = {}
    for least in (1, 12):
        method: Any = create(name, **SMALL, batch=10**6, least_steps=least)
        server, private = method.init(48, 24, 0)
        server, _, _ = method.epoch(server, private, cohort(cycles(48, 24, 12), 24, 1))
        steps[least] = int(server.steps[0])
    assert steps[1] == 1
    assert steps[12] >= 12


def test_the_loss_is_the_cross_entropy_if_the_negatives_are_all_items() -> None:
    vectors, items = torch.randn(30, 8), torch.randn(12, 8)
    targets = torch.randint(12, (30,))
    full = next_item_loss(vectors, items, targets, None)
    torch.testing.assert_close(next_item_loss(vectors, items, targets, torch.randperm(12)), full)
    expected = -torch.log_softmax(vectors @ items.T, 1)[torch.arange(30), targets].mean()
    torch.testing.assert_close(full, expected)


def test_sampled_negatives_stand_for_all_items_on_average() -> None:
    """The sum over the drawn negatives, weighted, has the sum over all other items as its mean."""
    vectors, items = torch.randn(1, 4).double(), torch.randn(6, 4).double()
    target = torch.tensor([2])
    logits = (vectors @ items.T)[0]
    sums = []
    for a in range(6):
        for b in range(a + 1, 6):
            loss = next_item_loss(vectors, items, target, torch.tensor([a, b]))
            sums.append((loss.exp() - 1) * logits[2].exp())
    others = logits.exp().sum() - logits[2].exp()
    torch.testing.assert_close(torch.stack(sums).mean(), others)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_continues_as_if_it_had_not_stopped(name: str, tiny_split: Split) -> None:
    method = create(name, **SMALL, rounds=3)
    whole = Federation(method, tiny_split, 0).run(3)
    half = Federation(method, tiny_split, 0).run(2)
    server = type(half.server)(*(array.copy() for array in half.server))
    everyone = Federation(method, tiny_split, 0).cohort(np.arange(tiny_split.n_users), 3)
    torch.manual_seed(99)  # what else uses PyTorch's generator does not matter
    before = torch.get_rng_state()
    server, _, loss = create(name, **SMALL, rounds=3).epoch(server, None, everyone)
    assert torch.equal(torch.get_rng_state(), before)
    assert loss == pytest.approx(whole.rows[-1]["loss"], rel=1e-4)
    for ours, theirs in zip(leaves(server).values(), leaves(whole.server).values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_users_without_a_next_item_do_no_harm(name: str) -> None:
    method = create(name, **SMALL)
    server, private = method.init(3, 20, 0)
    after, private, loss = method.epoch(server, private, cohort(histories([], [4], []), 20, 1))
    assert loss == 0
    np.testing.assert_array_equal(after.Q, server.Q)
    assert np.isfinite(private.h).all()
    assert METHODS[name].stateless
