"""SASRec: causal self-attention over a user's items in order of time, trained in one place.

Kang & McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018. The input of position t is
the embedding of item t plus the embedding of the position, counted from the end of the history.
Blocks of causal self-attention and a two-layer network give a vector h_t, which predicts the next
item i with the score h_t.q_i, where q_i is i's embedding as in the input.

The paper trains with one negative per position. We use the cross-entropy of a softmax over the
catalogue instead, as in Klenitskiy & Vasilev, "Turning Dross Into Gold Loss: is BERT4Rec really
better than SASRec?", RecSys 2023, which is far better. With N drawn negatives j per batch and n
items in the catalogue

    L = mean over positions of -log(e^(h.q_i) / (e^(h.q_i) + n / N sum over j of e^(h.q_j))).

Normalisation stands before each block's parts rather than after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from unskew.methods._next_item import NextItemConfig, NextItemMethod
from unskew.settings import setting
from unskew.types import UnskewError


@dataclass(frozen=True)
class Config(NextItemConfig):
    blocks: int = setting(2, above=0)
    """Blocks of self-attention."""
    heads: int = setting(2, above=0)
    """Attention heads per block; they divide ``dim``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % self.heads:
            raise UnskewError(f"heads = {self.heads} must divide dim = {self.dim}.")


class SASRec(NextItemMethod):
    config = Config()
    name = "sasrec"
    summary = "self-attention over each user's history, in one place (needs PyTorch)"
    citation = "Kang & McAuley, ICDM 2018"
