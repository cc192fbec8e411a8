"""Value types shared by all parts of the package, and the interface that a method implements.

Arrays have the user as their first axis. Data whose length differs per user is *ragged*: the users'
lists follow each other in a flat array, and ``indptr`` says where each begins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Int8 = NDArray[np.int8]
Bool = NDArray[np.bool_]


class UnskewError(Exception):
    """An error that the user can fix: a sentence says what is wrong, where, and how to fix it.

    The command prints it without a traceback and exits with a non-zero code.
    """


class Ragged(NamedTuple):
    """One list of item numbers per user: user ``u`` has ``items[indptr[u]:indptr[u + 1]]``."""

    indptr: Int64
    items: Int32

    def of(self, user: int) -> Int32:
        return self.items[self.indptr[user] : self.indptr[user + 1]]

    def counts(self) -> Int64:
        return np.diff(self.indptr)


class Rows(NamedTuple):
    """Some rows of an item table for each user, laid out like ``Ragged``: ``values[n]`` is the row
    of item ``items[n]``. Item numbers ascend within a user."""

    indptr: Int64
    items: Int32
    values: Float32

    @staticmethod
    def empty(n_users: int, width: int) -> Rows:
        return Rows(
            np.zeros(n_users + 1, np.int64),
            np.zeros(0, np.int32),
            np.zeros((0, width), np.float32),
        )


@dataclass(frozen=True)
class Interactions:
    """All interactions of a dataset, in the file's order. Users and items are numbered by first
    appearance; ``user_ids[n]`` and ``item_ids[n]`` are their labels in the file."""

    name: str
    users: Int32
    items: Int32
    user_ids: Sequence[str]
    item_ids: Sequence[str]
    ratings: Float32 | None = None
    timestamps: Int64 | None = None
    """Time of each row, in any unit; ``None`` if the source has no order in time."""
    clock: Literal["time", "order", "none"] = "none"
    """Whether ``timestamps`` are real times, only an order (FilmTrust), or absent."""
    titles: Sequence[str] | None = None
    """A title per item, aligned with ``item_ids``."""
    min_user_rows: int = 1
    """Users with fewer rows are left out of the federation (the source's published rule)."""
    parts: Int8 | None = None
    """For data that comes already split: 0, 1 or 2 for each row of training, validation, test."""
    item_features: Float32 | None = None
    """A row of features per item, aligned with ``item_ids``."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about rows that reading dropped or changed."""


@dataclass(frozen=True)
class Split:
    """A dataset ready for training: the training items and the held-out items of each user.

    ``train`` has every training interaction (a user-item pair may repeat under the ``paper``
    protocol); ``seen`` has each user's distinct training items, ascending. ``excluded`` are the
    items that are never drawn as negatives: ``seen`` and, under ``paper`` only, the held-out items.
    ``sampled`` has each user's fixed candidates for the sampled metrics, padded with -1.
    """

    data: str
    protocol: str
    user_ids: Sequence[str]
    item_ids: Sequence[str]
    titles: Sequence[str] | None
    train: Ragged
    seen: Ragged
    excluded: Ragged
    validation: Ragged
    test: Ragged
    sampled: Int32
    rank_all: bool
    """Whether the headline metrics rank all unseen items or only the sampled candidates."""
    notes: tuple[str, ...] = ()
    train_ratings: Float32 | None = None
    """Rating of each entry of ``train``; None if the source has no ratings."""
    train_timestamps: Int64 | None = None
    """Time of each entry of ``train``; None if the source has no times."""
    period: tuple[int, int] | None = None
    """Oldest and newest time of all users' training items, two public numbers; None without times,
    or if all are equal."""
    item_features: Float32 | None = None
    """A row of features per item; None if the source has none."""
    validation_in_history: bool = False
    """Whether a user's history includes the validation items when the test items are predicted."""

    @staticmethod
    def from_frames(train: Any, validation: Any = None, test: Any = None, **options: Any) -> Split:
        """A split of your own, from three tables; see `unskew.split_from_frames`."""
        made: Split = import_module("unskew").split_from_frames(train, validation, test, **options)
        return made

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def train_ages(self) -> Float64 | None:
        """Age of each entry of ``train``, from 0 (newest in ``period``) to 1 (oldest)."""
        if self.train_timestamps is None or self.period is None:
            return None
        oldest, newest = self.period
        ages: Float64 = ((newest - self.train_timestamps) / (newest - oldest)).clip(0, 1)
        return ages


class Samples(NamedTuple):
    """Labelled training samples per client. ``row`` is the index of a sample's item among the
    client's *touched* items: the distinct items of its samples, ascending."""

    indptr: Int64
    row: Int32
    label: Float32
    touched: Ragged

    def counts(self) -> Int64:
        return np.diff(self.indptr)


class Cohort(NamedTuple):
    """Clients that train together: a chunk of a round in the simulator, the users of one node in a
    deployment. ``users`` are their numbers in the federation; they select random streams."""

    users: Int64
    positives: Ragged
    excluded: Ragged
    n_items: int
    seed: int
    round: int
    samples: Samples | None = None
    """The round's samples, if Steps 1 and 2 share them; None: each step draws the same ones."""
    ratings: Float32 | None = None
    """Rating of each entry of ``positives``, if the method's ``needs`` ask for it."""
    timestamps: Int64 | None = None
    """Time of each entry of ``positives``, if the method's ``needs`` ask for it."""
    ages: Float64 | None = None
    """Age of each entry of ``positives``, if the method ``uses_ages`` and the data has times: 0 for
    the newest interaction of all clients, 1 for the oldest."""

    def at_round(self, round: int) -> Cohort:
        """The same clients in another round, without samples."""
        return self._replace(round=round, samples=None)


class Upload(NamedTuple):
    """Everything that users send for training: item rows as differences from ``Method.upload_base``
    (by default the download), an optional dense part such as network weights, and the aggregation
    weight. A node also sends sums of its users' metrics (``deploy.device.Device.metric_sums``)."""

    rows: Rows
    dense: Float32
    weight: Float64

    @property
    def nbytes(self) -> int:
        parts = (self.rows.items, self.rows.values, self.dense, self.weight)
        return sum(part.nbytes for part in parts)


class UploadSum(NamedTuple):
    """The weighted sum of uploads: under secure aggregation the server sees it and no upload."""

    rows: Float64
    dense: Float64
    weight: float
    clients: int


class Uploads(NamedTuple):
    """The individual uploads of a cohort, for methods whose server needs each upload."""

    users: Int64
    upload: Upload


CONTRACT_VERSION = 1
"""Version of the interface between methods and the package. It grows when a member that a method
has to provide is added, removed or given another meaning; new optional hooks do not change it."""
Aggregation = Literal["sum", "individual", "central"]
"""Input that the server needs: the sum of the uploads (so that secure aggregation works), each
upload, or, for baselines that are not federated, all interactions."""


Need = Literal["ratings", "timestamps", "item_features"]
"""Data that a method gets only if it asks for them."""


class Model(Protocol):
    """Interface shared by federated and central methods. States are NamedTuples of arrays. The
    private state (data that stays on devices) has the user axis first, or is ragged (``Rows``).

    A method inherits defaults of the optional hooks from ``Method`` or ``CentralMethod``.
    """

    name: ClassVar[str]
    aggregation: ClassVar[Aggregation]
    config: Any
    """Settings: the defaults on the class, an object's own on the object."""
    Config: ClassVar[Any]
    """Type of the settings; if not declared, that of the class's ``config``."""
    exact: ClassVar[bool] = True
    """Whether results are the same to the bit for any number of threads and any chunk size. A
    method that cannot promise that is compared with tolerances."""
    stateless: ClassVar[bool] = False
    """Whether devices hold no parameters of their own. At every evaluation all users, not only
    those of the round, then get the newest download, and ``refresh`` computes their states."""
    uses_ages: ClassVar[bool] = False
    """Whether clients get the ages of their items (``Cohort.ages``) where the data has times."""
    large_chunks: ClassVar[bool] = False
    """Whether clients train faster in few large chunks than in many small ones, because a step of
    many clients costs little more than a step of one."""
    needs: ClassVar[Collection[Need]] = ()
    """Data beyond the items themselves that the method uses. Ratings and timestamps then stand in
    every ``Cohort``, item features come once, through ``set_item_features``."""
    item_features: Float32 | None = None
    """A row of features per item, if ``needs`` ask for it."""

    def __init__(self, config: Any = None) -> None:
        if config is not None:
            self.config = config

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "config" in vars(cls) and "Config" not in vars(cls):
            cls.Config = type(cls.config)

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Any, Any]:
        """Initial states: the server's, and the private one of ``n_users`` new devices."""

    def score(self, download: Any, private: Any) -> Float32:
        """Scores of all items, one row per user, from a download and the users' private states."""

    def fold_in(self, download: Any, private: Any, cohort: Cohort) -> Any:
        """Private states of new users, computed from their items without a training round. Default:
        ``refresh`` computes them; a method without that hook needs its own."""
        return self.refresh(download, private, cohort.positives)

    # Optional hooks, with their defaults.

    def set_item_features(self, features: Float32) -> None:
        """Called once, before ``init``, with a row of features per item, if ``needs`` ask for it.
        Default: keep them as the attribute ``item_features``."""
        self.item_features = features

    def download(self, server: Any) -> Any:
        """The data that the server sends to every client of a round. Default: its whole state."""
        return server

    def download_bytes(self, download: Any) -> int:
        """Number of bytes that one client receives. Default: the size of the whole download."""
        return sum(array.nbytes for array in download)

    def retained_download(self, download: Any) -> Any:
        """The part of a download that a device needs after the round. Default: all of it."""
        return download

    def unread_fields(self, round: int) -> Collection[str]:
        """Names of private fields that this round overwrites without reading. Default: none."""
        return ()

    def draw(self, cohort: Cohort) -> Cohort:
        """Return the cohort with its samples, for methods whose Steps 1 and 2 train on the same
        ones. Default: the cohort unchanged."""
        return cohort

    def refresh(self, download: Any, private: Any, history: Ragged) -> Any:
        """Bring users' private states up to date with their items so far, in order of time, by
        arithmetic alone. A ``stateless`` method ignores the states it gets. Default: the states
        stay as they were trained."""
        return private

    def evaluated(self, round: int) -> bool:
        """Whether the model is evaluated after this round. Default: after every round."""
        return True

    def export(self, download: Any) -> Any:
        """The arithmetic that gives a newcomer's scores from a download, for devices without
        Python, as a value of ``methods.newcomers``. Default: None, newcomers must be trained."""
        return None


class Method(Model, Protocol):
    """A federated method, as used by the simulator, the Flower client and the audits."""

    aggregation: ClassVar[Aggregation] = "sum"

    def local(self, download: Any, private: Any, cohort: Cohort) -> tuple[Any, Upload, Float64]:
        """Step 1: train on the device before the upload. Returns the new private state, the upload,
        and each user's mean loss, which stays on the device."""

    def personalize(self, download: Any, private: Any, cohort: Cohort) -> Any:
        """Step 2: train the private state after the upload. Default: there is no Step 2."""
        return private

    def aggregate(self, server: Any, total: Any) -> Any:
        """Step 3: compute the server's next state from an ``UploadSum`` (for aggregation "sum") or
        from ``Uploads`` (for "individual")."""

    # Optional hooks, with their defaults.

    def participation(self, round: int) -> float:
        """Share of the clients that take part in a round. Default: the settings' constant."""
        share: float = self.config.participation
        return share

    def cohort_size(self, round: int, n_users: int) -> int:
        """Number of clients that take part in a round. Default: the share ``participation``."""
        return max(1, int(n_users * self.participation(round) + 1e-9))

    def check_download(self, download: Any) -> str | None:
        """A device's own bounds on a download: the reason to refuse it, or None. Default: none."""
        return None

    # Optional hooks of the audits, with their defaults.

    def item_table(self, download: Any) -> Float32:
        """The item embeddings in a download, one row per item. Default: its first field."""
        table: Float32 = download[0]
        return table

    def item_buffer(self, private: Any, touched: Ragged) -> Float64 | None:
        """Vectors that devices add to the embeddings of their touched items while they train their
        user vectors, one row per entry of ``touched``. Default: None, nothing is added."""
        return None

    def score_dense(self, download: Any, private: Any, dense: Float32) -> Float32 | None:
        """Scores of all items, one row per user, after adding ``dense`` (the dense part of an
        upload) to the shared network's weights. Default: None, there is no shared network."""
        return None

    def upload_base(self, download: Any, user: int, dense: Float32) -> Float32:
        """Item table to which a user's uploaded rows are differences; ``dense`` is the dense part
        of the upload. Default: the item table of the download."""
        return self.item_table(download)


class CentralMethod(Model, Protocol):
    """A baseline that trains on all users' interactions in one place. A round is an epoch; the
    private state is the per-user part of its model."""

    aggregation: ClassVar[Aggregation] = "central"

    def epoch(self, server: Any, private: Any, everyone: Cohort) -> tuple[Any, Any, float]:
        """Train once on all interactions. Returns server state, private state and mean loss."""
