"""Messages of a deployment: what a node sends to the server, and what the server sends to a node.

What is accepted is used: the server aggregates it, a node trains with it, and the numbers that come
out are finite.
"""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.fuzz.cases import Failure, Kind, attempt
from unskew.deploy.messages import (
    Limits,
    Rejected,
    add_node,
    each_message,
    merge_uploads,
    read_arrays,
    read_download,
    read_each,
    read_metric_sums,
    read_sum,
    sum_message,
    upload_shape,
)
from unskew.deploy.robust import mean_metrics, robust_sum
from unskew.kernels import empty_sum
from unskew.methods import METHODS, create
from unskew.types import Cohort, Ragged, Rows, Upload, UploadSum

N_USERS, N_ITEMS = 7, 12
SETTINGS: dict[str, Any] = {"dim": 8, "rounds": 20}
NUMBERS = (
    *(0, 1, -1, 2, N_ITEMS - 1, N_ITEMS, 10**9, -(2**31), 2**31 - 1, 2**63 - 1, -(2**63)),
    *(0.5, -0.0, 1e-320, 1e-30, 1e30, 3e38, 1e308, float("nan"), float("inf"), -float("inf")),
)
DTYPES = ("int8", "uint8", "int32", "int64", "uint64", "float16", "float32", ">f4", "float64")
DTYPES_OF_NO_USE = ("complex64", "bool", "U3", "S2", "M8[s]", "O", "V4", "f4,i4")
FEDERATED = [name for name, kind in METHODS.items() if kind.aggregation != "central"]


class Messages(Kind):
    name, share = "messages", 0.175

    def prepare(self) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self._methods = {name: _method(name) for name in FEDERATED}

    def play(self, rng: random.Random) -> str | None:
        kinds = (self._sum, self._sum, self._each, self._each, self._download, self._metrics)
        with np.errstate(all="ignore"):
            return rng.choice(kinds)(rng)

    def _sum(self, rng: random.Random) -> str | None:
        method = self._methods[rng.choice([n for n in FEDERATED if _sums(self._methods[n])])]
        server, shape = self._server(method)
        rows = np.zeros((N_ITEMS, shape.width))
        for item in rng.sample(range(N_ITEMS), rng.randrange(N_ITEMS)):
            rows[item] = rng.uniform(-2, 2)
        dense = np.full(shape.dense, rng.uniform(-1, 1))
        named = sum_message(UploadSum(rows, dense, float(rng.choice((1, 3, 40))), 3))
        limits = Limits(rng.choice((0.0, 1e4)), rng.choice((0.0, 100.0)))
        spoilt = self._spoil(named, rng)
        part, told = attempt(lambda: read_sum(self._received(spoilt, rng), shape, limits), Rejected)
        if part is not None:
            sums = [part] * rng.choice((1, 2, 5))
            total = empty_sum(*shape)
            for one in sums:
                total = add_node(total, one)
            results = [total.result()]
            how = rng.choice(("clip", "median", "trimmed"))
            results.append(robust_sum(sums, shape, how, 0.2, limits.weight))
            for result in results:
                _check_finite(method.aggregate(server, result), "the server's model")
        return told

    def _each(self, rng: random.Random) -> str | None:
        method = self._methods[rng.choice([n for n in FEDERATED if not _sums(self._methods[n])])]
        server, shape = self._server(method)
        users = np.array(sorted(rng.sample(range(N_USERS), rng.randrange(1, N_USERS))))
        runs = [sorted(rng.sample(range(N_ITEMS), rng.randrange(4))) for _ in users]
        items = np.array([item for run in runs for item in run], np.int32)
        indptr = np.cumsum([0, *map(len, runs)])
        values = np.full((len(items), shape.width), rng.uniform(-1, 1), np.float32)
        dense = np.full((len(users), shape.dense), rng.uniform(-1, 1), np.float32)
        weight = np.full(len(users), float(rng.choice((1, 4))))
        named = each_message(users, Upload(Rows(indptr, items, values), dense, weight))
        limits = Limits(rng.choice((0.0, 1e4)), rng.choice((0.0, 100.0)))
        spoilt = self._spoil(named, rng)
        part, told = attempt(
            lambda: read_each(self._received(spoilt, rng), shape, limits), Rejected
        )
        if part is not None and np.isin(part.users, np.arange(N_USERS)).all():  # as the server asks
            merged = merge_uploads([part], shape)
            _check_finite(method.aggregate(server, merged), "the server's model")
        return told

    def _download(self, rng: random.Random) -> str | None:
        name = rng.choice(FEDERATED)
        method = self._methods[name]
        server, _ = self._server(method)
        named = method.download(server)._asdict()
        for key in rng.sample(list(named), rng.choice((0, 1, 2)) % (len(named) + 1)):
            named[key] = _spoilt_array(named[key], rng)
        if rng.random() < 0.1:
            self._rename(named, rng)
        self._describe(f"download of {name}", named)
        refusals = (Rejected,)
        download, told = attempt(lambda: read_download(method, named, N_USERS, N_ITEMS), *refusals)
        if download is not None:
            _check_finite(download, "the download")
            told = attempt(lambda: _train(method, download, rng.choice((1, 2, 11))))[1]
        return told

    def _metrics(self, rng: random.Random) -> str | None:
        names = rng.choices(("test.ndcg@10", "validation.hr@10", "test.hr@9", "", "x.y"), k=2)
        sums: dict[str, Any] = {}
        for name in names:
            total, count = rng.choice((0.0, 1.0, 3.5, *NUMBERS)), rng.choice((7, 3, 0, *NUMBERS))
            pair = [float(total), float(count)] if rng.random() < 0.8 else [total, count]
            if not all(isinstance(one, type(pair[0])) for one in pair):
                pair = [float(one) for one in pair]
            sums[name] = rng.choice((pair, pair, pair, pair * 2, pair[:1], pair[0], []))
        content: dict[str, Any] = {"sums": MetricRecord(sums)}
        if rng.random() < 0.1:
            content = {rng.choice(("sums", "x")): ConfigRecord({"a": 1})}
        self.about = [f"metrics {content}"]
        found, told = attempt(lambda: read_metric_sums(_reply(content), N_USERS), Rejected)
        if found is not None:
            means, _ = mean_metrics({1: found, 2: found}, 2 * N_USERS)
            if not all(0 <= mean <= 1 + 1e-6 for mean in means.values()):
                raise Failure(f"metrics outside 0 to 1: {means}")
        return told

    def _spoil(self, named: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        """The arrays of a message, some of them changed, added, renamed or left out."""
        spoilt = dict(named)
        for name in rng.sample(list(spoilt), rng.choice((0, 1, 1, 1, 2))):
            spoilt[name] = _spoilt_array(spoilt[name], rng)
        if rng.random() < 0.1:
            self._rename(spoilt, rng)
        self._describe("reply", spoilt)
        return spoilt

    @staticmethod
    def _rename(named: dict[str, Any], rng: random.Random) -> None:
        name = rng.choice(list(named))
        array = named[name] if rng.random() < 0.3 else named.pop(name)
        if rng.random() < 0.7:
            named[rng.choice(("", "p", name + "x", "é", "a\nb", "\x1b[31m", "x" * 5000))] = array

    def _describe(self, what: str, named: Mapping[str, Any]) -> None:
        arrays = [f"{n[:20]!r}: {a.dtype} {a.shape} {a.ravel()[:6]!s}" for n, a in named.items()]
        self.about = [what, *arrays]

    def _received(self, named: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
        """The arrays as the server reads them from a reply, whose objects may be malformed."""
        arrays = {name: _flower_array(array) for name, array in named.items()}
        content: dict[str, Any] = {"upload": ArrayRecord(arrays)}
        if arrays and rng.random() < 0.1:
            name = rng.choice(list(arrays))
            arrays[name] = _malformed(named[name], rng)
            self.about.append(f"malformed {name}: {arrays[name]}"[:300])
            content = {"upload": ArrayRecord(arrays)}
        elif rng.random() < 0.03:
            extra = {
                rng.choice(("more", "\x1b[1m", "upload")): rng.choice(
                    (ConfigRecord(), ArrayRecord())
                )
            }
            content = extra if rng.random() < 0.5 else content | extra
            self.about.append(f"records {list(content)}")
        return read_arrays(_reply(content))

    @staticmethod
    def _server(method: Any) -> tuple[Any, Any]:
        """The server's first state, and the shape of an upload."""
        server, _ = method.init(N_USERS, N_ITEMS, 0)
        return server, upload_shape(method, method.download(server), N_ITEMS, 1)


def _method(name: str) -> Any:
    fields = METHODS[name].Config.__dataclass_fields__
    small = {"base_dim": 8, "window": 4, "negatives": 2, "local_epochs": 1, **SETTINGS}
    return create(name, **{key: value for key, value in small.items() if key in fields})


def _sums(method: Any) -> bool:
    return bool(method.aggregation == "sum")


def _reply(content: dict[str, Any]) -> Message:
    return Message(RecordDict(content), dst_node_id=1, message_type="train")


def _spoilt_array(array: Any, rng: random.Random) -> Any:
    """An array with other numbers, another type, shape, order or size."""
    array = np.array(array)
    what = rng.random()
    if what < 0.45 and array.size:
        for _ in range(rng.choice((1, 1, 3))):
            with np.errstate(all="ignore"):
                array.flat[rng.randrange(array.size)] = _as(rng.choice(NUMBERS), array.dtype)
    elif what < 0.5:
        array[...] = _as(rng.choice(NUMBERS), array.dtype)
    elif what < 0.65:
        array = array.astype(rng.choice(DTYPES))
    elif what < 0.68:
        kind = rng.choice(DTYPES_OF_NO_USE)
        array = (
            np.zeros(array.shape, kind) if kind in ("M8[s]", "V4", "f4,i4") else array.astype(kind)
        )
    elif what < 0.75:
        array = array[
            rng.choice(
                (
                    None,
                    slice(1),
                    slice(0, 0),
                    slice(None, None, -1),
                    0 if array.size and array.ndim else None,
                )
            )
        ]
    elif what < 0.85:
        array = array.reshape(-1) if rng.random() < 0.5 else np.squeeze(array)[..., None]
    elif what < 0.95:
        array = np.concatenate([array, array[: rng.choice((1, None))]]) if array.ndim else array
    else:
        array = np.zeros(rng.choice(((0,), (), (3, 0), (1,) * 20, (200_000,))), array.dtype)
    return array


def _as(number: float, dtype: np.dtype[Any]) -> Any:
    """A number as an array's type can hold it."""
    if dtype.kind not in "iu":
        return number if dtype.kind == "f" else 0
    limits = np.iinfo(dtype)
    return max(limits.min, min(int(number), limits.max)) if np.isfinite(number) else limits.min


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _flower_array(array: Any) -> Array:
    return Array(str(array.dtype), tuple(array.shape), "numpy.ndarray", _npy(array))


def _malformed(array: Any, rng: random.Random) -> Array:
    """An array object whose description does not fit its content, or whose content is damaged."""
    dtype, shape, kind, content = str(array.dtype), tuple(array.shape), "numpy.ndarray", _npy(array)
    what = rng.randrange(7)
    if what == 0:
        dtype = rng.choice((*DTYPES, "", "é"))
    elif what == 1:
        shape = rng.choice(((), (10**12,), (-1,), (2**63,)))
    elif what == 2:
        kind = rng.choice(("", "torch.Tensor", "pickle"))
    elif what == 3:
        content = content[: rng.randrange(len(content) + 1)]
    elif what == 4:
        at = rng.randrange(len(content))
        content = content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
    elif what == 5:
        content = content.replace(b"(", b"(99999999999, ", 1)
    else:
        content = rng.choice(
            (b"", b"\x80\x04N.", b"PK\x03\x04", b"\x93NUMPY", b"\x93NUMPY\x01\x00\xff\xff")
        )
    return Array(dtype, shape, kind, content)


def _train(method: Any, download: Any, round: int) -> None:
    """What a node does with a download: train two users, before and after the upload."""
    _, private = method.init(2, N_ITEMS, 0)
    items = Ragged(np.array([0, 2, 5]), np.array([0, 3, 1, 2, N_ITEMS - 1], np.int32))
    cohort = Cohort(np.array([1, 4]), items, items, N_ITEMS, 0, round)
    if method.uses_ages:
        cohort = cohort._replace(ages=np.linspace(0, 1, 5).astype(np.float32))
    if method.stateless:
        private = method.refresh(download, private, items)
    private, _, _ = method.local(download, private, cohort)
    if not method.stateless:
        private = method.personalize(download, private, cohort)
    method.score(download, private)


def _check_finite(arrays: Any, what: str) -> None:
    for name, array in zip(arrays._fields, arrays, strict=True):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Failure(f"{what} holds NaN or infinity in {name}")
