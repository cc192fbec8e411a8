"""Local differential privacy as a transform of uploads: clip, then add noise to all that is sent.

    Q_u' = Q_u + Laplace(0, lambda)            (the PFedCLR paper, section "Privacy analysis")

Q_u is client u's item table. An upload is its difference from a table the server knows
(``Method.upload_base``), so noise on the difference is noise on Q_u. Every row gets noise, because
rows without it would show which items a client has not trained; so does the dense part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from unskew.kernels.noise import (
    CLIP_L1,
    CLIP_L2,
    CLIP_ROWS,
    GAUSSIAN,
    LAPLACE,
    NO_CLIP,
    Noise,
    send_privately,
    upload_norms,
)
from unskew.ragged import filter_entries
from unskew.settings import Settings, setting
from unskew.types import Bool, Cohort, Float64, Int64, UnskewError, Upload

Kind = Literal["laplace", "gaussian"]
Norm = Literal["l1", "l2", "row"]
_KINDS = {"laplace": LAPLACE, "gaussian": GAUSSIAN}
"""Number in ``kernels.noise`` of each kind of noise."""
_CLIPS = {"l1": CLIP_L1, "l2": CLIP_L2, "row": CLIP_ROWS}
"""Number in ``kernels.noise`` of each norm that can be clipped."""


class Shape(NamedTuple):
    """Shape of one client's upload: an item table of ``n_items`` x ``width``, and a dense part."""

    n_items: int
    width: int
    dense: int

    @property
    def entries(self) -> int:
        """Number of values in an upload."""
        return self.n_items * self.width + self.dense


@dataclass(frozen=True)
class Mechanism:
    """How a device changes its upload before sending it: clipping, then noise."""

    noise: float
    """Laplace's scale lambda, or the Gaussian's standard deviation; 0: none."""
    kind: Kind = "laplace"
    clip: float | None = None
    """Bound on the upload's norm; None: not clipped."""
    norm: Norm = "l1"
    """The clipped norm: of the whole upload (l1, l2), or the L2 norm of each row (row)."""


@dataclass(frozen=True)
class LocalPrivacy(Settings):
    """Privacy settings of a run: the noise strength, or an epsilon from which it is computed."""

    noise: float | None = None
    """The paper's lambda (for Gaussian noise its standard deviation)."""
    epsilon: float | None = setting(None, above=0)
    """Budget of the worst client over the whole run, in place of ``noise``."""
    delta: float = setting(1e-5, above=0)
    """The delta that goes with epsilon, below 1."""
    clip: float | None = setting(None, above=0)
    """Bound on the norm of an upload. Without it noise guarantees nothing."""
    norm: Norm = "l1"
    """The norm that ``clip`` bounds: l1 or l2 of the whole upload, or the L2 norm of each row."""
    kind: Kind | None = None
    """laplace or gaussian; default: gaussian for clip with norm l2, otherwise laplace."""
    least_users: int | None = setting(None, at_least=1)
    """Rows of items with fewer users than this are not sent, because in a sum they would reveal
    those few. The number of users of an item is itself a sum, taken before the first round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.noise is None) == (self.epsilon is None):
            raise UnskewError("Local privacy needs either a noise strength or an epsilon.")
        if self.delta >= 1:
            raise UnskewError(f"delta = {self.delta} of local privacy must be below 1.")
        if self.epsilon is not None and self.clip is None:
            raise UnskewError("A budget epsilon needs a clip: without a bound no noise suffices.")
        with_budget = (("laplace", "l1"), ("gaussian", "l1"), ("gaussian", "l2"))
        if self.epsilon is not None and (self.noise_kind, self.norm) not in with_budget:
            raise UnskewError(
                "A budget epsilon needs Laplace noise with norm l1, or Gaussian with l1 or l2."
            )

    @property
    def noise_kind(self) -> Kind:
        """``kind`` if it is set; otherwise gaussian with an L2 clip, laplace in all other cases."""
        if self.kind is not None:
            return self.kind
        return "gaussian" if self.clip is not None and self.norm == "l2" else "laplace"

    def with_noise(self, noise: float) -> Mechanism:
        """The mechanism with these settings and the given noise strength."""
        return Mechanism(noise, self.noise_kind, self.clip, self.norm)


class PrivateUploads:
    """Clips uploads and adds noise before devices send them; records data for the privacy report.

    With a clip all clients get equal weight: otherwise the weight, the number of samples, would
    reveal how many items a client has. ``key`` replaces the run's seed in the random streams of the
    noise: anyone who knows the seed can repeat a simulation, but nobody may repeat a device's
    noise, so a deployed device draws a secret key. Rows of ``withheld`` items are not sent.
    """

    def __init__(
        self, mechanism: Mechanism, key: int | None = None, withheld: Bool | None = None
    ) -> None:
        self.mechanism, self._key, self._withheld = mechanism, key, withheld
        self.shape: Shape | None = None
        self._sent: list[tuple[Int64, Float64, Float64, Float64]] = []
        """Users, weights, L1 and L2 norms of the round's uploads, chunk by chunk."""

    def __call__(self, upload: Upload, cohort: Cohort) -> Upload:
        m = self.mechanism
        if self._withheld is not None:
            rows = filter_entries(upload.rows, ~self._withheld[upload.rows.items])
            upload = upload._replace(rows=rows)
        l1, l2 = upload_norms(upload)
        if m.clip is not None:
            upload = upload._replace(weight=np.sign(upload.weight))
        self._sent.append((cohort.users, upload.weight, l1, l2))
        self.shape = Shape(cohort.n_items, upload.rows.values.shape[1], upload.dense.shape[1])
        seed = cohort.seed if self._key is None else self._key
        clip, bound = (NO_CLIP, 0.0) if m.clip is None else (_CLIPS[m.norm], float(m.clip))
        noise = Noise(seed, cohort.round, _KINDS[m.kind], float(m.noise), clip, bound)
        norms = l1 if m.norm == "l1" else l2
        return send_privately(upload, cohort.users, cohort.n_items, noise, norms)

    def take_records(self) -> list[Any]:
        """Return and clear the records of the round's uploads, for `add_records`."""
        records = [(self.shape, *record) for record in self._sent]
        self._sent.clear()
        return records

    def add_records(self, records: list[Any]) -> None:
        """Add what another process has recorded of the round's uploads. The order counts."""
        for shape, *record in records:
            self.shape = shape
            self._sent.append(tuple(record))

    def round_figures(self) -> dict[str, Any]:
        """Return and clear the round's upload count, norms and weights, for the privacy report."""
        users, weights, l1, l2 = map(np.concatenate, zip(*self._sent, strict=True))
        self._sent.clear()
        sent = weights > 0
        shares = weights[sent] / weights.sum() if sent.any() else np.zeros(1)
        figures: dict[str, Any] = {
            "sent": int(sent.sum()),
            "largest_l1": float(l1.max(initial=0)),
            "largest_l2": float(l2.max(initial=0)),
            "largest_share": float(shares.max()),
            "median_share": float(np.median(shares)),
            "shape": list(self.shape or (0, 0, 0)),
        }
        if 0 < sent.sum() < len(sent):
            figures["senders"] = users[sent].tolist()
        return figures
