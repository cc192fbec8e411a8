"""Vector code written as such (see ``_vectors``): sums that are kept in registers, of lines of a
table, and of products of one row with many that lie side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba.core.cgutils import alloca_once, for_range, for_range_slice, unpack_tuple
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from unskew.kernels.vectors import LANES, fused_vectors

_VECTORS = 8
WIDTH = LANES * _VECTORS
"""Columns of the tables whose lines are added up."""


@intrinsic
def _sum_lines(
    typing_context: object, table: Any, places: Any, first: Any, end: Any, out: Any
) -> object:
    """out = the sum of table[places[j]] for j from ``first`` to ``end``, one after another."""
    del typing_context

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = (make_array(signature.args[i])(context, builder, args[i]) for i in (0, 1, 4))
        lines, numbers, target = (array.data for array in arrays)
        vector, index = ir.VectorType(ir.FloatType(), LANES), args[2].type
        totals = [alloca_once(builder, vector) for _ in range(_VECTORS)]

        def place(data: Any, offset: Any, i: int) -> Any:
            offset = builder.add(offset, ir.Constant(index, LANES * i))
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        for total in totals:
            builder.store(ir.Constant(vector, [0.0] * LANES), total)
        with for_range_slice(builder, args[2], args[3], ir.Constant(index, 1)) as (j, _):
            number = builder.zext(builder.load(builder.gep(numbers, [j])), index)
            start = builder.mul(number, ir.Constant(index, WIDTH))
            for i, total in enumerate(totals):
                line = builder.load(place(lines, start, i), align=4)
                builder.store(builder.fadd(builder.load(total), line), total)
        for i, total in enumerate(totals):
            where = place(target, ir.Constant(index, 0), i)
            builder.store(builder.load(total), where, align=4)
        return context.get_dummy_value()

    return numba.void(table, places, numba.int64, numba.int64, out), codegen


BLOCK = 2 * LANES
"""Rows that lie side by side: entry k of all of them, then entry k + 1, and so on."""


@intrinsic
def _multiply_blocks(
    typing_context: object, blocks: Any, first: Any, end: Any, row: Any, out: Any
) -> object:
    """The products of ``row`` with those of blocks ``first`` to ``end``, into ``out``."""
    del typing_context

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = [make_array(signature.args[i])(context, builder, args[i]) for i in (0, 3, 4)]
        source, row, target = (array.data for array in arrays)
        width = unpack_tuple(builder, arrays[1].shape, 1)[0]
        vector, index = ir.VectorType(ir.FloatType(), LANES), args[1].type
        zero, one = ir.Constant(vector, [0.0] * LANES), ir.Constant(index, 1)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        totals = [alloca_once(builder, vector) for _ in range(BLOCK // LANES)]

        def places(data: Any, line: Any) -> list[Any]:
            first = builder.mul(line, ir.Constant(index, BLOCK))
            starts = (builder.add(first, ir.Constant(index, LANES * i)) for i in range(len(totals)))
            return [builder.bitcast(builder.gep(data, [at]), vector.as_pointer()) for at in starts]

        with for_range_slice(builder, args[1], args[2], one) as (block, _):
            for total in totals:
                builder.store(zero, total)
            with for_range(builder, width) as entry:
                scalar = builder.load(builder.gep(row, [entry.index]))
                lane = builder.insert_element(zero, scalar, ir.Constant(ir.IntType(32), 0))
                factor = builder.shuffle_vector(lane, zero, lanes)
                line = builder.add(builder.mul(block, width), entry.index)
                for place, total in zip(places(source, line), totals, strict=True):
                    entries, so_far = builder.load(place, align=4), builder.load(total)
                    builder.store(fused_vectors(builder, factor, entries, so_far), total)
            line = builder.sub(block, args[1])
            for place, total in zip(places(target, line), totals, strict=True):
                builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    return numba.void(blocks, numba.int64, numba.int64, row, out), codegen


sum_lines: Callable[..., None] = cast(Any, _sum_lines)
multiply_blocks: Callable[..., None] = cast(Any, _multiply_blocks)
