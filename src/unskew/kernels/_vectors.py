"""Vector code written as such, for the four loops that decide the speed of local training.

A compiler must fear that arrays overlap, may not re-order sums, and so leaves these loops scalar.
Here the order of every sum is fixed by us, in lanes of eight: the same on every machine, and as
fast as an order the compiler would have been free to choose. Each is the body of a numba intrinsic
that emits LLVM's own vector types; ``tests/kernels`` compares them with plain NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba.core.cgutils import alloca_once_value, for_range, unpack_tuple
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from unskew.types import Float32

_LANES, _CHAINS = 8, 4
PADDING = _LANES
"""Columns that :func:`move_rows` works on together."""


@intrinsic
def _inner(typing_context: object, x: Any, y: Any, n: Any) -> object:
    """The inner product of the first ``n`` entries of two contiguous float32 arrays.

    Four chains of eight lanes: an order of summation fixed by us, not by the compiler, the same on
    every machine, and as fast as one it would have been free to choose.
    """
    del typing_context

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x_data, y_data = (
            make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 1)
        )
        vector = ir.VectorType(ir.FloatType(), _LANES)
        zero = ir.Constant(vector, [0.0] * _LANES)
        chains = [alloca_once_value(builder, zero) for _ in range(_CHAINS)]
        tail = alloca_once_value(builder, ir.Constant(ir.FloatType(), 0.0))
        index = args[2].type
        lanes, stride = ir.Constant(index, _LANES), ir.Constant(index, _LANES * _CHAINS)

        def add_product(offset: Any, total: Any, kind: Any) -> None:
            a, b = (
                builder.load(
                    builder.bitcast(builder.gep(data, [offset]), kind.as_pointer()), align=4
                )
                for data in (x_data, y_data)
            )
            builder.store(builder.fadd(builder.load(total), builder.fmul(a, b)), total)

        strides = builder.sdiv(args[2], stride)
        with for_range(builder, strides) as loop:
            for chain in range(_CHAINS):
                offset = builder.mul(loop.index, stride)
                offset = builder.add(offset, ir.Constant(index, chain * _LANES))
                add_product(offset, chains[chain], vector)
        done = builder.mul(strides, stride)
        vectors = builder.sdiv(builder.sub(args[2], done), lanes)
        with for_range(builder, vectors) as loop:
            offset = builder.add(done, builder.mul(loop.index, lanes))
            add_product(offset, chains[0], vector)
        done = builder.add(done, builder.mul(vectors, lanes))
        with for_range(builder, builder.sub(args[2], done)) as loop:
            add_product(builder.add(done, loop.index), tail, ir.FloatType())

        first, second, third, fourth = (builder.load(chain) for chain in chains)
        lanes_sum = builder.fadd(builder.fadd(first, second), builder.fadd(third, fourth))
        total = builder.load(tail)
        for lane in range(_LANES):
            value = builder.extract_element(lanes_sum, ir.Constant(ir.IntType(32), lane))
            total = builder.fadd(total, value)
        return total

    return numba.float32(x, y, numba.int64), codegen


inner: Callable[[Float32, Float32, int], float] = cast(Any, _inner)


@intrinsic
def _move_rows(
    typing_context: object,
    Q: Any,
    z: Any,
    pull: Any,
    root: Any,
    size: Any,
    floor: Any,
    first: Any,
    n: Any,
) -> object:
    """For all k and ``n`` columns i from ``first``, eight at a time (arrays are padded to that):

        move = pull_i / (root_i + floor_k);  Q_ki -= move;  z_i -= size_k move

    Written as vector code because a compiler must fear that Q, z and the rest overlap. Divisions
    are what this step is made of, so two share one: 1/a = b / (ab) and 1/b = a / (ab).
    """
    del typing_context

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), _LANES)
        arrays = [make_array(signature.args[i])(context, builder, args[i]) for i in range(6)]
        Q, z, pull, root, size, floor = (array.data for array in arrays)
        dims, columns = unpack_tuple(builder, arrays[0].shape, 2)
        first, n, index = args[6], args[7], args[7].type
        ones = ir.Constant(vector, [1.0] * _LANES)

        def constant(value: int) -> Any:
            return ir.Constant(index, value)

        def place(data: Any, offset: Any) -> Any:
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        def at(data: Any, offset: Any) -> Any:
            return builder.load(place(data, offset), align=4)

        def everywhere(data: Any, k: Any) -> Any:
            nothing = ir.Constant(vector, ir.Undefined)
            first = ir.Constant(ir.IntType(32), 0)
            one = builder.insert_element(nothing, builder.load(builder.gep(data, [k])), first)
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
            return builder.shuffle_vector(one, nothing, lanes)

        def move(ks: list[Any]) -> None:
            sizes, floors = ([everywhere(data, k) for k in ks] for data in (size, floor))
            starts = [builder.mul(k, columns) for k in ks]
            blocks = builder.sdiv(builder.add(n, constant(_LANES - 1)), constant(_LANES))
            with for_range(builder, blocks) as block:
                i = builder.add(first, builder.mul(block.index, constant(_LANES)))
                below = [builder.fadd(at(root, i), floor_k) for floor_k in floors]
                product = below[0] if len(ks) == 1 else builder.fmul(*below)
                share = builder.fmul(at(pull, i), builder.fdiv(ones, product))
                moves = [share] if len(ks) == 1 else [builder.fmul(share, x) for x in below[::-1]]
                change = None
                for start, size_k, step in zip(starts, sizes, moves, strict=True):
                    where = place(Q, builder.add(start, i))
                    builder.store(builder.fsub(builder.load(where, align=4), step), where, align=4)
                    part = builder.fmul(size_k, step)
                    change = part if change is None else builder.fadd(change, part)
                builder.store(builder.fsub(at(z, i), change), place(z, i), align=4)

        pairs = builder.sdiv(dims, constant(2))
        with for_range(builder, pairs) as pair:
            k = builder.mul(pair.index, constant(2))
            move([k, builder.add(k, constant(1))])
        done = builder.mul(pairs, constant(2))
        with for_range(builder, builder.sub(dims, done)) as rest:
            move([builder.add(done, rest.index)])
        return context.get_dummy_value()

    return numba.void(Q, z, pull, root, size, floor, numba.int64, numba.int64), codegen


move_rows: Callable[..., None] = cast(Any, _move_rows)


class _RowWalk:
    """Vector code that visits some rows of a row-major table, given as packed samples."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any, n: int) -> None:
        self.builder = builder
        arrays = [make_array(signature.args[i])(context, builder, args[i]) for i in range(n)]
        self.data = [array.data for array in arrays]
        self.dims = unpack_tuple(builder, arrays[0].shape, 2)[1]
        self.index = self.dims.type
        self.vector = ir.VectorType(ir.FloatType(), _LANES)

    def number(self, value: int) -> Any:
        return ir.Constant(self.index, value)

    def load(self, data: Any, offset: Any, kind: Any = None) -> Any:
        where = self.builder.gep(data, [offset])
        if kind is None:
            return self.builder.load(where)
        return self.builder.load(self.builder.bitcast(where, kind.as_pointer()), align=4)

    def start(self, packed: Any, j: Any, first: Any) -> Any:
        """Where the row of sample j begins: its number is the packed value without the label."""
        row = self.builder.ashr(self.load(packed, j), ir.Constant(ir.IntType(32), 1))
        place = self.builder.add(first, self.builder.sext(row, self.index))
        return self.builder.mul(place, self.dims)

    def spread(self, scalar: Any) -> Any:
        nothing = ir.Constant(self.vector, ir.Undefined)
        one = self.builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
        return self.builder.shuffle_vector(one, nothing, lanes)

    def folded(self, vector: Any) -> Any:
        """The sum of the lanes: halves onto each other, three times."""
        builder, width = self.builder, _LANES
        while width > 1:
            half = width // 2
            numbers = ir.VectorType(ir.IntType(32), half)
            low = builder.shuffle_vector(vector, vector, ir.Constant(numbers, list(range(half))))
            high = builder.shuffle_vector(
                vector, vector, ir.Constant(numbers, list(range(half, width)))
            )
            vector, width = builder.fadd(low, high), half
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


@intrinsic
def _score_samples(
    typing_context: object, rows: Any, first: Any, packed: Any, p: Any, z: Any, b: Any
) -> object:
    """z_j = p . rows[first + row of sample j] for the first ``b`` packed samples."""
    del typing_context

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        walk = _RowWalk(context, builder, _without(signature, 1), _without_value(args, 1), 4)
        rows, packed, p, z = walk.data
        vectors = builder.sdiv(walk.dims, walk.number(_LANES))
        done = builder.mul(vectors, walk.number(_LANES))
        lanes = alloca_once_value(builder, ir.Constant(walk.vector, [0.0] * _LANES))
        tail = alloca_once_value(builder, ir.Constant(ir.FloatType(), 0.0))
        with for_range(builder, args[5]) as sample:
            start = walk.start(packed, sample.index, args[1])
            builder.store(ir.Constant(walk.vector, [0.0] * _LANES), lanes)
            builder.store(ir.Constant(ir.FloatType(), 0.0), tail)
            with for_range(builder, vectors) as loop:
                k = builder.mul(loop.index, walk.number(_LANES))
                product = builder.fmul(
                    walk.load(rows, builder.add(start, k), walk.vector),
                    walk.load(p, k, walk.vector),
                )
                builder.store(builder.fadd(builder.load(lanes), product), lanes)
            with for_range(builder, builder.sub(walk.dims, done)) as loop:
                k = builder.add(done, loop.index)
                product = builder.fmul(walk.load(rows, builder.add(start, k)), walk.load(p, k))
                builder.store(builder.fadd(builder.load(tail), product), tail)
            score = builder.fadd(walk.folded(builder.load(lanes)), builder.load(tail))
            builder.store(score, builder.gep(z, [sample.index]))
        return context.get_dummy_value()

    return numba.void(rows, numba.int64, packed, p, z, numba.int64), codegen


@intrinsic
def _sum_samples(
    typing_context: object, rows: Any, first: Any, packed: Any, s: Any, out: Any, b: Any
) -> object:
    """out = sum_j s_j rows[first + row of sample j] over the first ``b`` packed samples."""
    del typing_context

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        walk = _RowWalk(context, builder, _without(signature, 1), _without_value(args, 1), 4)
        rows, packed, s, out = walk.data
        vectors = builder.sdiv(walk.dims, walk.number(_LANES))
        done = builder.mul(vectors, walk.number(_LANES))

        def column(k: Any, kind: Any, zero: Any, spread: Any) -> None:
            total = alloca_once_value(builder, zero)
            builder.store(zero, total)
            with for_range(builder, args[5]) as sample:
                start = walk.start(packed, sample.index, args[1])
                row = walk.load(rows, builder.add(start, k), kind)
                part = builder.fmul(spread(walk.load(s, sample.index)), row)
                builder.store(builder.fadd(builder.load(total), part), total)
            where = builder.gep(out, [k])
            if kind is not None:
                where = builder.bitcast(where, kind.as_pointer())
            builder.store(builder.load(total), where, align=4)

        with for_range(builder, vectors) as loop:
            k = builder.mul(loop.index, walk.number(_LANES))
            column(k, walk.vector, ir.Constant(walk.vector, [0.0] * _LANES), walk.spread)
        with for_range(builder, builder.sub(walk.dims, done)) as loop:
            k = builder.add(done, loop.index)
            column(k, None, ir.Constant(ir.FloatType(), 0.0), lambda scalar: scalar)
        return context.get_dummy_value()

    return numba.void(rows, numba.int64, packed, s, out, numba.int64), codegen


def _without(signature: Any, position: int) -> Any:
    kept = [kind for i, kind in enumerate(signature.args) if i != position]
    return signature.replace(args=tuple(kept))


def _without_value(args: Any, position: int) -> list[Any]:
    return [value for i, value in enumerate(args) if i != position]


score_samples: Callable[..., None] = cast(Any, _score_samples)
sum_samples: Callable[..., None] = cast(Any, _sum_samples)
