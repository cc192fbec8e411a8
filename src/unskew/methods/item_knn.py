"""item-knn: item-based collaborative filtering with the cosine similarity of items' users.

Sarwar, Karypis, Konstan & Riedl, "Item-based Collaborative Filtering Recommendation Algorithms",
WWW 2001, on binary data with shrunk cosine similarity:

    s_ij = n_ij / (sqrt(n_i n_j) + shrinkage),   score_uj = sum of s_ij over u's items i in N_k(j),

with n_i the number of users of item i, n_ij of both items, N_k(j) the k items most similar to j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unskew.kernels.item_models import nearest_items, neighbour_scores
from unskew.methods._central import LinearConfig, LinearMethod, OwnItems
from unskew.methods.newcomers import NO_FADING, Neighbours
from unskew.settings import setting
from unskew.types import Float32, Int32, Ragged


class Server(NamedTuple):
    """Each item's most similar items, best first, and their similarities, padded with 0."""

    neighbours: Int32
    similarity: Float32


@dataclass(frozen=True)
class Config(LinearConfig):
    neighbours: int = setting(50, above=0)
    """Number of neighbours per item (k)."""
    shrinkage: float = 10.0
    """Added to the denominator, so that similarity seen in few users counts less."""


class ItemKNN(LinearMethod):
    config = Config()
    name = "item-knn"
    summary = "cosine item neighbours of all interactions in one place"
    citation = "Sarwar et al., WWW 2001"

    def empty(self, n_items: int) -> Server:
        shape = (n_items, min(self.config.neighbours, n_items))
        return Server(np.zeros(shape, np.int32), np.zeros(shape, np.float32))

    def fit(self, seen: Ragged, n_items: int) -> tuple[Server, float]:
        k = min(self.config.neighbours, n_items)
        return Server(*nearest_items(seen, n_items, k, self.config.shrinkage)), 0.0

    def score(self, download: Server, private: OwnItems) -> Float32:
        return neighbour_scores(private.X, *download)

    def export(self, download: Server) -> Neighbours:
        return Neighbours(*download, NO_FADING)
