"""Vector code written as such (see ``_vectors``): sums of lines of a table, kept in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba.core.cgutils import alloca_once, for_range_slice
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from unskew.kernels._vectors import LANES

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


sum_lines: Callable[..., None] = cast(Any, _sum_lines)
