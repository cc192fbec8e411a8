"""EASE: a linear item-item model with a closed form; a strong baseline that needs little tuning.

Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019. With X the binary user-item
matrix and lambda the ridge penalty, the item-item weights B are

    min over B of |X - X B|^2 + lambda |B|^2  with diag(B) = 0,
    P = (X^T X + lambda I)^-1,   B_ij = -P_ij / P_jj,   B_jj = 0,

and a user's scores are its row of X times B. X^T X + lambda I is positive definite and is inverted
by Cholesky in place, in float32, so a catalogue of n items needs 4 n^2 bytes. The last bits of the
result depend on the installed LAPACK library and its number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from unskew.kernels.item_models import gram, weights_of_inverse
from unskew.kernels.tables import binary_matrix
from unskew.methods._central import LinearConfig, LinearMethod, OwnItems
from unskew.methods.newcomers import NO_FADING, ItemWeights
from unskew.settings import setting
from unskew.types import Float32, Ragged, UnskewError


class Server(NamedTuple):
    """The item-item weight matrix."""

    B: Float32


@dataclass(frozen=True)
class Config(LinearConfig):
    ridge: float = setting(300.0, above=0)
    """Weight lambda of the L2 penalty."""


class EASE(LinearMethod):
    config = Config()
    name = "ease"
    summary = "linear item-item model in closed form, in one place"
    citation = "Steck, WWW 2019"

    def empty(self, n_items: int) -> Server:
        return Server(np.zeros((n_items, n_items), np.float32))

    def fit(self, seen: Ragged, n_items: int) -> tuple[Server, float]:
        B = gram(seen, n_items)
        B[np.diag_indices(len(B))] += np.float32(self.config.ridge)
        _invert_in_place(B)
        # At the minimum |X - X B|^2 + lambda |B|^2 = sum_j (1 / P_jj - lambda); per user.
        excess = 1 / np.diag(B).astype(np.float64) - self.config.ridge
        loss = float(excess.sum()) / len(seen.counts())
        weights_of_inverse(B)
        return Server(B), loss

    def score(self, download: Server, private: OwnItems) -> Float32:
        scores: Float32 = binary_matrix(private.X, len(download.B)) @ download.B
        return scores

    def export(self, download: Server) -> ItemWeights:
        return ItemWeights(download.B, NO_FADING)


def _invert_in_place(G: Float32) -> None:
    """Invert a positive definite matrix in place; only the upper triangle of the result is valid.
    (LAPACK stores columns first, so its lower triangle is the upper one in NumPy.)"""
    _, failed = lapack.spotrf(G.T, lower=1, clean=0, overwrite_a=1)
    if not failed:
        _, failed = lapack.spotri(G.T, lower=1, overwrite_c=1)
    if failed:
        raise UnskewError("X^T X + ridge I is singular to float32: give ease a larger ridge.")
