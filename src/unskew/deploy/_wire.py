"""What a node's reply holds, by name, and what the server makes of it; what a download must be.

For the methods that need only a sum, a node adds up its users' uploads itself and sends the rows
that are not zero, the dense part and the weight; for the others it sends each upload with its
user's number. These names are everything that may leave a node. The server trusts none of it:
:func:`read_sum` and :func:`read_each` check names, types, shapes, order, finiteness and length
before a number is used. Nor does a node trust the server: see :func:`read_download`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.files import checksum, named_tensors
from unskew.kernels import empty_sum
from unskew.ragged import concatenate, select
from unskew.types import (
    Bool,
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

Named = dict[str, NDArray[Any]]

_SUM = {"items": np.int32, "values": np.float32, "dense": np.float32, "weight": np.float64}
_EACH = {"users": np.int64, "indptr": np.int64, **_SUM}


class Rejected(Exception):
    """An upload the server does not take in, and why."""


class Shape(NamedTuple):
    """What the method itself uploads: columns of an item's row, and entries of the dense part."""

    n_items: int
    width: int
    dense: int


class NodeSum(NamedTuple):
    """A node's weighted sum: some item rows, the dense part, the weight."""

    items: Int32
    values: Float32
    dense: Float32
    weight: float


class Limits(NamedTuple):
    """The longest update per unit of weight, and the largest weight of a node; 0: any."""

    norm: float = 0.0
    weight: float = 0.0


def read_download(method: Method, named: Mapping[str, Any], n_users: int, n_items: int) -> Any:
    """A download in the method's own type, leaf by leaf as the method itself would make it."""
    individual = method.aggregation == "individual"  # their servers keep something per user
    server, _ = method.init(n_users if individual else 1, n_items, 0)
    example = method.download(server)
    if set(named) != set(example._fields):
        raise UnskewError(f"The download holds {sorted(named)}, not {sorted(example._fields)}.")
    lengths = set()
    for name, like in zip(example._fields, example, strict=True):
        array = named[name]
        # A method may hold back what it does not have yet; then the server's own leaf has its size.
        shapes = {like.shape, getattr(server, name, like).shape}
        if isinstance(array, np.ndarray) and not len(like):  # a list of users, empty at first
            lengths.add(len(array) if array.ndim else -1)
            shapes = {(n, *like.shape[1:]) for n in lengths if 0 <= n <= n_users}
        if not isinstance(array, np.ndarray) or array.dtype != like.dtype:
            raise UnskewError(f"{name} of the download is not an array of {like.dtype}.")
        if array.shape not in shapes or len(lengths) > 1:
            raise UnskewError(
                f"{name} of the download has shape {array.shape}, not {like.shape}; "
                "it is not of this federation."
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UnskewError(f"{name} of the download holds NaN or infinity.")
    return type(example)(**{name: np.ascontiguousarray(array) for name, array in named.items()})


def digest_of(download: Any) -> Int64:
    """By which a node knows a download again: SHA-256 as four numbers."""
    named = dict(zip(download._fields, download, strict=True))
    return np.frombuffer(bytes.fromhex(checksum(named_tensors(named))), np.int64)


def shape_of(method: Method, download: Any, n_items: int, round: int) -> Shape:
    """The shape of an upload in this round, found by asking the method for one: that of a user who
    does not exist and has had the first item."""
    _, private = method.init(1, n_items, 0)
    one = Ragged(np.array([0, 1]), np.zeros(1, np.int32))
    cohort = Cohort(np.zeros(1, np.int64), one, one, n_items, 0, round)
    _, upload, _ = method.local(download, private, cohort)
    return Shape(n_items, upload.rows.values.shape[1], upload.dense.shape[1])


def no_sum(shape: Shape) -> UploadSum:
    return empty_sum(shape.n_items, no_uploads(shape))


def no_uploads(shape: Shape) -> Upload:
    nothing = np.zeros((0, shape.dense), np.float32)
    return Upload(Rows.empty(0, shape.width), nothing, np.zeros(0))


def sum_message(total: UploadSum) -> Named:
    """A node's sum as it leaves: the rows that are not zero, in single precision."""
    items = np.flatnonzero(total.rows.any(axis=1)).astype(np.int32)
    return {
        "items": items,
        "values": total.rows[items].astype(np.float32),
        "dense": total.dense.astype(np.float32),
        "weight": np.array([total.weight]),
    }


def each_message(users: Int64, upload: Upload) -> Named:
    """Every user's upload as it leaves."""
    indptr, items, values = upload.rows
    return {
        "users": users.astype(np.int64),
        "indptr": indptr.astype(np.int64),
        "items": items,
        "values": values,
        "dense": upload.dense,
        "weight": upload.weight,
    }


def read_sum(named: Mapping[str, NDArray[Any]], shape: Shape, limits: Limits) -> NodeSum:
    """A node's sum, or :class:`Rejected`."""
    _check_types(named, _SUM)
    items, values, dense = named["items"], named["values"], named["dense"]
    _check_shape("weight", named["weight"], (1,))
    _check_shape("items", items, (items.size,))
    _check_shape("values", values, (len(items), shape.width))
    _check_shape("dense", dense, (shape.dense,))
    _check_items(items, shape.n_items)
    if np.any(np.diff(items) <= 0):
        raise Rejected("items are not in ascending order")
    _check_finite(named)
    weight = float(named["weight"][0])
    _check_weight(np.array([weight]), limits)
    length = float(np.sqrt(_squares(values).sum() + _squares(dense).sum()))
    if weight == 0 and length > 0:
        raise Rejected("it has values but no weight")
    _check_norm(np.array([length / (weight or 1.0)]), limits)
    return NodeSum(items, values, dense, weight)


def read_each(named: Mapping[str, NDArray[Any]], shape: Shape, limits: Limits) -> Uploads:
    """A node's uploads one by one, or :class:`Rejected`. The norm here is each user's own."""
    _check_types(named, _EACH)
    users, indptr, items = named["users"], named["indptr"], named["items"]
    n = users.size
    _check_shape("users", users, (n,))
    _check_shape("indptr", indptr, (n + 1,))
    _check_shape("items", items, (items.size,))
    _check_shape("values", named["values"], (len(items), shape.width))
    _check_shape("dense", named["dense"], (n, shape.dense))
    _check_shape("weight", named["weight"], (n,))
    if indptr[0] != 0 or indptr[-1] != len(items) or np.any(np.diff(indptr) < 0):
        raise Rejected("indptr does not cut the items into one run per user")
    _check_items(items, shape.n_items)
    first = np.zeros(len(items) + 1, bool)
    first[indptr[:-1]] = True
    if np.any((np.diff(items, prepend=-1) <= 0) & ~first[:-1]):
        raise Rejected("items are not in ascending order within a user")
    if len(np.unique(users)) != n or np.any(users < 0):
        raise Rejected("users are not distinct numbers")
    _check_finite(named)
    _check_weight(named["weight"], limits)
    squares = np.concatenate(([0.0], np.cumsum(_squares(named["values"]).sum(axis=1))))
    lengths = squares[indptr[1:]] - squares[indptr[:-1]] + _squares(named["dense"]).sum(axis=1)
    _check_norm(np.sqrt(np.maximum(lengths, 0.0)), limits)
    rows = Rows(indptr, items, named["values"])
    return Uploads(users, Upload(rows, named["dense"], named["weight"]))


def add(total: UploadSum, part: NodeSum) -> UploadSum:
    """Take a node's sum in; ``total``'s arrays are changed in place."""
    total.rows[part.items] += part.values
    total.dense[:] += part.dense
    return UploadSum(total.rows, total.dense, total.weight + part.weight, total.clients + 1)


def all_of(parts: list[Uploads], shape: Shape) -> Uploads:
    """The uploads of all nodes in the order of their users, as the simulator has them."""
    parts = [part for part in parts if len(part.users)]
    if not parts:
        return Uploads(np.zeros(0, np.int64), no_uploads(shape))
    users = np.concatenate([part.users for part in parts])
    order = np.argsort(users, kind="stable")
    rows = select(concatenate([part.upload.rows for part in parts]), order)
    dense = np.concatenate([part.upload.dense for part in parts])[order]
    weight = np.concatenate([part.upload.weight for part in parts])[order]
    return Uploads(users[order], Upload(rows, dense, weight))


def only(part: Uploads, kept: Bool) -> Uploads:
    """The uploads of some of a node's users."""
    rows, dense, weight = part.upload
    rows = select(rows, np.flatnonzero(kept))
    return Uploads(part.users[kept], Upload(rows, dense[kept], weight[kept]))


def _check_types(named: Mapping[str, NDArray[Any]], expected: Mapping[str, Any]) -> None:
    if set(named) != set(expected):
        wanted, got = ", ".join(sorted(expected)), ", ".join(sorted(named)) or "nothing"
        raise Rejected(f"it holds {got} instead of {wanted}")
    for name, dtype in expected.items():
        if named[name].dtype != dtype:
            raise Rejected(f"{name} is {named[name].dtype} instead of {np.dtype(dtype)}")


def _check_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise Rejected(f"{name} has shape {array.shape} instead of {shape}")


def _check_items(items: Int32, n_items: int) -> None:
    if len(items) and (items.min() < 0 or items.max() >= n_items):
        raise Rejected(f"an item is outside 0 to {n_items - 1}")


def _check_finite(named: Mapping[str, NDArray[Any]]) -> None:
    for name in ("values", "dense", "weight"):
        if not np.isfinite(named[name]).all():
            raise Rejected(f"{name} holds NaN or infinity")


def _check_weight(weight: Float64, limits: Limits) -> None:
    if np.any(weight < 0):
        raise Rejected("a weight is negative")
    if limits.weight and weight.sum() > limits.weight:
        raise Rejected(f"its weight {weight.sum():.6g} is above {limits.weight:.6g}")


def _check_norm(norms: Float64, limits: Limits) -> None:
    if limits.norm and len(norms) and norms.max() > limits.norm:
        raise Rejected(f"its norm {norms.max():.6g} is above {limits.norm:.6g}")


def _squares(array: Float32) -> Float64:
    return np.square(array, dtype=np.float64)
