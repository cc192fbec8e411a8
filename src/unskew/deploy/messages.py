"""The arrays that nodes and server exchange, and the checks that the receiver makes.

A user's upload has item rows (one vector per item), a dense vector (all other parameters) and a
weight. For methods that need only a sum, a node sends the weighted sum of its users' uploads. For
other methods it sends each upload with its user's number. No other arrays leave a node. The server
(:func:`read_sum`, :func:`read_each`) and the node (:func:`read_download`) check received arrays
before use: names, types, shapes, finite values and, on the server, order, norms and weights.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.engine import concatenate_uploads
from unskew.evaluation import per_user
from unskew.files import checksum, named_tensors
from unskew.kernels import MAX_PRODUCT, ExactSum, add_weighted
from unskew.privacy import Shape
from unskew.ragged import owners, select
from unskew.types import (
    Cohort,
    Float32,
    Float64,
    Int32,
    Int64,
    Method,
    Ragged,
    Rows,
    UnskewError,
    Upload,
    Uploads,
    UploadSum,
)

if TYPE_CHECKING:
    from flwr.app import Message

Named = dict[str, NDArray[Any]]
MetricSums = dict[str, tuple[float, int]]
"""For each metric, its sum over a node's users and the number of users in the sum."""

METRICS = frozenset(
    f"{part}.{name}"
    for part in ("validation", "test")
    for name in per_user(np.zeros(0, np.int32), np.zeros(1, np.int64))
)
"""Names of the metrics that a node may report, such as ``validation.ndcg@10``."""

_UPLOADED = frozenset(["users", "indptr", "items", "values", "dense", "weight"])
"""Names of all arrays that an upload can have."""


class Rejected(Exception):
    """A reply that the server does not accept; the message says why."""


class NodeSum(NamedTuple):
    """Weighted sum of a node's uploads: item numbers, their rows, a dense vector, the weight."""

    items: Int32
    values: Float32
    dense: Float32
    weight: float


class About(NamedTuple):
    """Round of a reply, digest of the download it was trained on, and first and last number of the
    node's users, as the reply states them."""

    round: int
    digest: bytes
    first: int
    last: int


class Limits(NamedTuple):
    """Largest norm of an upload divided by its weight, largest weight of a node; 0: no limit."""

    norm: float = 0.0
    weight: float = 0.0


def read_download(method: Method, named: Mapping[str, Any], n_users: int, n_items: int) -> Any:
    """Check the arrays of a download from the server; returns the method's own download type."""
    individual = method.aggregation == "individual"  # their servers keep something per user
    server, _ = method.init(n_users if individual else 1, n_items, 0)
    example = method.download(server)
    if set(named) != set(example._fields):
        raise UnskewError(f"The download holds {sorted(named)}, not {sorted(example._fields)}.")
    lengths = set()
    for name, like in zip(example._fields, example, strict=True):
        array = named[name]
        # A method may send an empty array at first; the server's own array then has the full size.
        full = getattr(server, name, like)
        shapes = {like.shape, full.shape}
        # One row per user, none at first.
        if isinstance(array, np.ndarray) and not (len(like) or len(full)):
            lengths.add(len(array) if array.ndim else -1)
            shapes = {(n, *like.shape[1:]) for n in lengths if 0 <= n <= n_users}
        if not isinstance(array, np.ndarray) or array.dtype != like.dtype:
            raise UnskewError(f"{name} of the download is not an array of {like.dtype}.")
        if array.shape not in shapes or len(lengths) > 1:
            raise UnskewError(
                f"{name} of the download has shape {array.shape}, not {like.shape}; "
                "it is not of this federation."
            )
        if array.dtype.kind == "f" and not np.abs(array).max(initial=0.0) < MAX_PRODUCT:
            raise UnskewError(
                f"{name} of the download holds NaN, infinity or a value above {MAX_PRODUCT:.2g}."
            )
    download = type(example)(**{name: np.ascontiguousarray(array) for name, array in named.items()})
    reason = method.check_download(download)
    if reason is not None:
        raise UnskewError(f"{method.name} refuses the download: {reason.rstrip('.')}.")
    return download


def download_digest(download: Any) -> Int64:
    """SHA-256 of a download as four 64-bit integers, by which a node recognises a repeated one."""
    named = dict(zip(download._fields, download, strict=True))
    return np.frombuffer(bytes.fromhex(checksum(named_tensors(named))), np.int64)


def upload_shape(method: Method, download: Any, n_items: int, round: int) -> Shape:
    """Shape of a user's upload in this round."""
    return upload_bounds(method, download, n_items, round)[0]


def upload_bounds(method: Method, download: Any, n_items: int, round: int) -> tuple[Shape, float]:
    """Shape of a user's upload in this round, and the largest weight it can have (0: unknown).

    Found by training two dummy users, with one item and with two. Weights are constant or grow with
    the number of items, so a user with all items has the largest."""
    _, private = method.init(2, n_items, 0)
    counts = np.array([1, min(2, n_items - 1)])
    items = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    own = Ragged(np.append(0, counts.cumsum()), items)
    cohort = Cohort(np.zeros(2, np.int64), own, own, n_items, 0, round)
    _, upload, _ = method.local(download, private, cohort)
    one, two = upload.weight.tolist()
    largest = one + (n_items - 1) * max(two - one, 0.0)
    return Shape(n_items, upload.rows.values.shape[1], upload.dense.shape[1]), largest


def max_upload_bytes(shape: Shape, n_users: int) -> int:
    """Bytes of the largest valid upload of so many users, with its arrays' headers."""
    per_user = shape.n_items * (4 + 4 * shape.width) + 4 * shape.dense + 24
    return n_users * per_user + 4096


def zero_uploads(shape: Shape) -> Upload:
    nothing = np.zeros((0, shape.dense), np.float32)
    return Upload(Rows.empty(0, shape.width), nothing, np.zeros(0))


def sum_message(total: UploadSum) -> Named:
    """The arrays to send for a node's sum: item rows without zero rows, dense vector, weight."""
    items = np.flatnonzero(total.rows.any(axis=1)).astype(np.int32)
    return {
        "items": items,
        "values": total.rows[items].astype(np.float32),
        "dense": total.dense.astype(np.float32),
        "weight": np.array([total.weight]),
    }


def each_message(users: Int64, upload: Upload) -> Named:
    """The arrays to send when the server needs each user's upload: all uploads, one by one."""
    indptr, items, values = upload.rows
    return {
        "users": users.astype(np.int64),
        "indptr": indptr.astype(np.int64),
        "items": items,
        "values": values,
        "dense": upload.dense,
        "weight": upload.weight,
    }


def read_about(reply: Message, round: int, digest: Int64) -> About:
    """Check and return what a reply says about itself; raises :class:`Rejected` unless it answers
    this round and the download with this digest."""
    given = dict(reply.content.config_records.get("about", {}))
    if set(given) != set(About._fields):
        raise Rejected("it does not say which round it answers")
    about = About(**given)
    numbers = about.round, about.first, about.last
    if not all(type(number) is int for number in numbers) or type(about.digest) is not bytes:
        raise Rejected("it does not say which round it answers")
    if about.round != round:
        raise Rejected(f"it answers round {about.round}")
    if about.digest != digest.tobytes():
        raise Rejected("it answers another download")
    return about


def read_arrays(reply: Message) -> dict[str, Any]:
    """The arrays of a Flower reply, by name; raises :class:`Rejected` if they cannot be read."""
    if set(reply.content) != {"upload", "about"} or "upload" not in reply.content.array_records:
        raise Rejected(f"the reply holds {', '.join(sorted(reply.content)) or 'nothing'}")
    record = reply.content.array_records["upload"]
    if not set(record) <= _UPLOADED:  # before memory is taken for each
        raise Rejected(f"it holds {', '.join(sorted(record))}")
    try:
        return {name: decode_array(array.data) for name, array in record.items()}
    except Exception as error:  # a hostile node can make reading fail in any way
        raise Rejected(f"an array cannot be read ({type(error).__name__})") from None


def decode_array(data: bytes) -> NDArray[Any]:
    """Read an array in NumPy's format, as Flower sends it. NumPy's own function takes the memory
    that the header asks for before it looks for the data; this one compares sizes first."""
    file = BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an unknown version of the format")
    shape, by_column, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "iuf" or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError("the data do not fit the header")
    flat = np.frombuffer(data, dtype, offset=file.tell()).copy()
    return flat.reshape(shape, order="F" if by_column else "C")


def read_metric_sums(reply: Message, n_users: int) -> MetricSums:
    """Check and return the metric sums in a Flower reply; raises :class:`Rejected`."""
    if set(reply.content) != {"sums"} or "sums" not in reply.content.metric_records:
        raise Rejected(f"the reply holds {', '.join(sorted(reply.content)) or 'nothing'}")
    found: MetricSums = {}
    for name, pair in reply.content.metric_records["sums"].items():
        if name not in METRICS:
            raise Rejected("it reports something that is no metric")
        if not isinstance(pair, list) or len(pair) != 2 or not np.isfinite(pair).all():
            raise Rejected(f"{name} is not a sum and a count")
        total, count = float(pair[0]), float(pair[1])
        if not (0 <= count <= n_users and count == int(count)):
            raise Rejected(f"{name} is of {count:g} users; it has at most {n_users}")
        if not 0 <= total <= count * (1 + 1e-9):
            raise Rejected(f"{name} is outside what {count:g} users can have")
        found[name] = (total, int(count))
    return found


def read_sum(named: Mapping[str, NDArray[Any]], shape: Shape, limits: Limits) -> NodeSum:
    """Check and return the weighted sum that a node has sent; raises :class:`Rejected`."""
    _check_names(named, ("items", "values", "dense", "weight"))
    user = {"users": np.zeros(1, np.int64), "indptr": np.array([0, named["items"].size])}
    single = {**named, **user, "dense": named["dense"][None]}
    rows, dense, weights = read_each(single, shape, limits._replace(norm=0.0)).upload
    weight, length = float(weights[0]), float(_lengths(rows, dense)[0])
    if weight == 0 and length > 0:
        raise Rejected("it has values but no weight")
    _check_norm(length / (weight or 1.0), limits)
    if length >= MAX_PRODUCT:
        raise Rejected(f"it holds values of {MAX_PRODUCT:.3g} or more")
    return NodeSum(rows.items, rows.values, dense[0], weight)


def read_each(named: Mapping[str, NDArray[Any]], shape: Shape, limits: Limits) -> Uploads:
    """Check and return the users' uploads that a node has sent; raises :class:`Rejected`."""
    _check_names(named, ("users", "indptr", "items", "values", "dense", "weight"))
    n_users, n_rows = named["users"].size, named["items"].size
    for name, dtype, wanted in (
        ("users", np.int64, (n_users,)),
        ("indptr", np.int64, (n_users + 1,)),
        ("items", np.int32, (n_rows,)),
        ("values", np.float32, (n_rows, shape.width)),
        ("dense", np.float32, (n_users, shape.dense)),
        ("weight", np.float64, (n_users,)),
    ):
        array = named[name]
        if array.dtype != dtype:
            raise Rejected(f"{name} is {array.dtype} instead of {np.dtype(dtype)}")
        if array.shape != wanted:
            raise Rejected(f"{name} has shape {array.shape} instead of {wanted}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Rejected(f"{name} holds NaN or infinity")
    users, indptr, weight = named["users"], named["indptr"], named["weight"]
    rows = Rows(indptr, named["items"], named["values"])
    if indptr[0] != 0 or indptr[-1] != n_rows or np.any(np.diff(indptr) < 0):
        raise Rejected("indptr does not cut the items into one run per user")
    if n_rows and (rows.items.min() < 0 or rows.items.max() >= shape.n_items):
        raise Rejected(f"an item is outside 0 to {shape.n_items - 1}")
    owner = owners(indptr)
    if np.any((np.diff(rows.items) <= 0) & (np.diff(owner) == 0)):
        raise Rejected("items are not in ascending order within a user")
    if len(np.unique(users)) != n_users or np.any(users < 0):
        raise Rejected("users are not distinct numbers")
    if np.any(weight < 0):
        raise Rejected("a weight is negative")
    most = min(limits.weight or MAX_PRODUCT, MAX_PRODUCT)
    if weight.sum() > most:
        raise Rejected(f"its weight {weight.sum():.6g} is above {most:.6g}")
    _check_norm(_lengths(rows, named["dense"]).max(initial=0.0), limits)
    return Uploads(users, Upload(rows, named["dense"], weight))


def add_node(total: ExactSum, part: NodeSum) -> ExactSum:
    """Add a node's sum to ``total``, whose arrays are changed in place; returns the new total."""
    rows = Rows(np.array([0, len(part.items)]), part.items, part.values)
    weight = np.array([part.weight])
    return add_weighted(total, rows, part.dense[None], np.ones(1), weight)


def merge_uploads(parts: list[Uploads], shape: Shape) -> Uploads:
    """Join the uploads of all nodes, in order of user number as in the simulator."""
    parts = [part for part in parts if len(part.users)]
    if not parts:
        return Uploads(np.zeros(0, np.int64), zero_uploads(shape))
    merged = concatenate_uploads([(part.users, part.upload) for part in parts])
    return select_uploads(merged, np.argsort(merged.users, kind="stable"))


def select_uploads(part: Uploads, chosen: Int64) -> Uploads:
    """The uploads at the positions ``chosen``, in that order."""
    rows, dense, weight = part.upload
    upload = Upload(select(rows, chosen), dense[chosen], weight[chosen])
    return Uploads(part.users[chosen], upload)


def _check_names(named: Mapping[str, NDArray[Any]], expected: Collection[str]) -> None:
    if set(named) != set(expected):
        wanted, got = ", ".join(sorted(expected)), ", ".join(sorted(named)) or "nothing"
        raise Rejected(f"it holds {got} instead of {wanted}")


def _check_norm(norm: float, limits: Limits) -> None:
    """A norm is bounded without a limit, too: larger ones cannot be added exactly."""
    most = min(limits.norm or MAX_PRODUCT, MAX_PRODUCT)
    if norm > most:
        raise Rejected(f"its norm {norm:.6g} is above {most:.6g}")


def _lengths(rows: Rows, dense: Float32) -> Float64:
    """Euclidean norm of each user's upload, over item rows and dense vector together."""
    squares = np.square(dense, dtype=np.float64).sum(axis=1)
    of_rows = np.square(rows.values, dtype=np.float64).sum(axis=1)
    squares += np.bincount(owners(rows.indptr), of_rows, len(squares))
    lengths: Float64 = np.sqrt(squares)
    return lengths
