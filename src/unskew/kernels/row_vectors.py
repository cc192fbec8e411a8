"""Vector code written out in LLVM (see ``vectors``) for loops over some rows of a table: scores of
samples, their weighted sum, and products with rows of another table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba.core.cgutils import alloca_once_value, for_range, for_range_slice, unpack_tuple
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from unskew.kernels.vectors import LANES, fused_vectors


class _RowWalk:
    """Vector code that visits some rows of a row-major table, given as packed samples."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any, n: int) -> None:
        self.builder = builder
        arrays = [make_array(signature.args[i])(context, builder, args[i]) for i in range(n)]
        self.data = [array.data for array in arrays]
        self.dims = unpack_tuple(builder, arrays[0].shape, 2)[1]
        self.index = self.dims.type
        self.vector = ir.VectorType(ir.FloatType(), LANES)

    def number(self, value: int) -> Any:
        return ir.Constant(self.index, value)

    def place(self, data: Any, offset: Any, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(data, [offset]), kind.as_pointer())

    def load(self, data: Any, offset: Any, kind: Any) -> Any:
        return self.builder.load(self.place(data, offset, kind), align=4)

    def start(self, packed: Any, j: Any, first: Any) -> Any:
        """Where the row of sample j begins: its number is the packed value without the label."""
        number = self.load(packed, j, ir.IntType(32))
        row = self.builder.lshr(number, ir.Constant(ir.IntType(32), 1))
        place = self.builder.add(first, self.builder.zext(row, self.index))
        return self.builder.mul(place, self.dims)

    def strips(self, visit: Callable[[Any, Any, int], None]) -> None:
        """Call ``visit`` with the place, kind and number of the parts of a row that are worked on
        together: two vectors while there are two, then one, then what is left entry by entry."""
        done = self.number(0)
        for kind, count in ((self.vector, 2), (self.vector, 1), (ir.FloatType(), 1)):
            size = self.number(count * (LANES if kind is self.vector else 1))
            times = self.builder.sdiv(self.builder.sub(self.dims, done), size)
            with for_range(self.builder, times) as loop:
                visit(self.builder.add(done, self.builder.mul(loop.index, size)), kind, count)
            done = self.builder.add(done, self.builder.mul(times, size))

    def parts(self, data: Any, offset: Any, kind: Any, count: int) -> list[Any]:
        offsets = [self.builder.add(offset, self.number(LANES * i)) for i in range(count)]
        return [self.load(data, at, kind) for at in offsets]

    def product_sum(self, a: Any, b: Any, c: Any) -> Any:
        if a.type == self.vector:
            return fused_vectors(self.builder, a, b, c)
        return self.builder.fadd(self.builder.fmul(a, b), c)

    def spread(self, scalar: Any, kind: Any) -> Any:
        if kind is not self.vector:
            return scalar
        nothing = ir.Constant(self.vector, ir.Undefined)
        one = self.builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(one, nothing, lanes)

    def folded(self, vector: Any) -> Any:
        """The sum of the lanes: halves onto each other, three times."""
        builder, width = self.builder, LANES
        if vector.type != self.vector:
            return vector
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
    """z_j += p . rows[first + row of sample j] for the first ``b`` packed samples."""
    del typing_context

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        walk = _RowWalk(context, builder, _without(signature, 1), _without_value(args, 1), 4)
        rows, packed, p, z = walk.data

        def visit(k: Any, kind: Any, count: int) -> None:
            against = walk.parts(p, k, kind, count)
            with for_range(builder, args[5]) as sample:
                start = builder.add(walk.start(packed, sample.index, args[1]), k)
                row = walk.parts(rows, start, kind, count)
                total = builder.fmul(row[0], against[0])
                for x, y in zip(row[1:], against[1:], strict=True):
                    total = walk.product_sum(x, y, total)
                where = builder.gep(z, [sample.index])
                builder.store(builder.fadd(builder.load(where), walk.folded(total)), where)

        walk.strips(visit)
        return context.get_dummy_value()

    return numba.void(rows, numba.int64, packed, p, z, numba.int64), codegen


@intrinsic
def _sum_samples(
    typing_context: object, rows: Any, first: Any, packed: Any, s: Any, out: Any, b: Any
) -> object:
    """out = sum_j s_j rows[first + row of sample j] over the first ``b`` packed samples, the even
    and the odd ones in chains of their own."""
    del typing_context

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        walk = _RowWalk(context, builder, _without(signature, 1), _without_value(args, 1), 4)
        rows, packed, s, out = walk.data
        b, two = args[5], walk.number(2)

        def visit(k: Any, kind: Any, count: int) -> None:
            zero = ir.Constant(kind, [0.0] * LANES if kind is walk.vector else 0.0)
            chains = [[alloca_once_value(builder, zero) for _ in range(count)] for _ in range(2)]
            for total in chains[0] + chains[1]:
                builder.store(zero, total)

            def add(j: Any, chain: list[Any]) -> None:
                start = builder.add(walk.start(packed, j, args[1]), k)
                share = walk.spread(walk.load(s, j, ir.FloatType()), kind)
                for part, total in zip(walk.parts(rows, start, kind, count), chain, strict=True):
                    builder.store(walk.product_sum(share, part, builder.load(total)), total)

            with for_range(builder, builder.sdiv(b, two)) as pair:
                j = builder.mul(pair.index, two)
                add(j, chains[0])
                add(builder.add(j, walk.number(1)), chains[1])
            with for_range(builder, builder.srem(b, two)):
                add(builder.sub(b, walk.number(1)), chains[0])
            for i, (even, odd) in enumerate(zip(*chains, strict=True)):
                where = walk.place(out, builder.add(k, walk.number(LANES * i)), kind)
                total = builder.fadd(builder.load(even), builder.load(odd))
                builder.store(total, where, align=4)

        walk.strips(visit)
        return context.get_dummy_value()

    return numba.void(rows, numba.int64, packed, s, out, numba.int64), codegen


@intrinsic
def _inner_rows(
    typing_context: object, rows: Any, items: Any, table: Any, first: Any, end: Any
) -> object:
    """The sum of rows[j] . (row ``items[j]`` of the flat ``table``) for j from ``first`` on."""
    del typing_context

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        walk = _RowWalk(context, builder, signature, args, 3)
        rows, items, table = walk.data
        result = alloca_once_value(builder, ir.Constant(ir.FloatType(), 0.0))

        def visit(k: Any, kind: Any, count: int) -> None:
            zero = ir.Constant(kind, [0.0] * LANES if kind is walk.vector else 0.0)
            chains = [alloca_once_value(builder, zero) for _ in range(count)]
            for chain in chains:
                builder.store(zero, chain)
            with for_range_slice(builder, args[3], args[4], walk.number(1)) as (j, _):
                item = builder.zext(builder.load(builder.gep(items, [j])), walk.index)
                here, there = (
                    walk.parts(data, builder.add(builder.mul(n, walk.dims), k), kind, count)
                    for data, n in ((rows, j), (table, item))
                )
                for a, b, chain in zip(here, there, chains, strict=True):
                    builder.store(walk.product_sum(a, b, builder.load(chain)), chain)
            for chain in chains:
                total = builder.fadd(builder.load(result), walk.folded(builder.load(chain)))
                builder.store(total, result)

        builder.store(ir.Constant(ir.FloatType(), 0.0), result)
        walk.strips(visit)
        return builder.load(result)

    return numba.float32(rows, items, table, numba.int64, numba.int64), codegen


def _without(signature: Any, position: int) -> Any:
    kept = [kind for i, kind in enumerate(signature.args) if i != position]
    return signature.replace(args=tuple(kept))


def _without_value(args: Any, position: int) -> list[Any]:
    return [value for i, value in enumerate(args) if i != position]


score_samples: Callable[..., None] = cast(Any, _score_samples)
sum_samples: Callable[..., None] = cast(Any, _sum_samples)
inner_rows: Callable[..., float] = cast(Any, _inner_rows)
