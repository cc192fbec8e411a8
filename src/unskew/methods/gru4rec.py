"""GRU4Rec: a recurrent network over a user's items in order of time, trained in one place.

Hidasi, Karatzoglou, Baltrunas & Tikk, "Session-based Recommendations with Recurrent Neural
Networks", ICLR 2016. A gated recurrent unit reads the embeddings of the items; a linear map of its
state gives a vector h_t, which predicts the next item i with the score h_t.q_i, where q_i is i's
embedding as in the input. The loss is that of ``sasrec``: a softmax over the catalogue, in place of
the paper's pairwise losses.
"""

from __future__ import annotations

from dataclasses import dataclass

from unskew.methods._next_item import NextItemConfig, NextItemMethod
from unskew.settings import setting


@dataclass(frozen=True)
class Config(NextItemConfig):
    hidden: int = setting(128, above=0)
    """Size of the recurrent unit's state."""


class GRU4Rec(NextItemMethod):
    config = Config()
    name = "gru4rec"
    summary = "recurrent network over each user's history, in one place (needs PyTorch)"
    citation = "Hidasi et al., ICLR 2016"
