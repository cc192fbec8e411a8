"""The arithmetic every local trainer shares, in loops LLVM turns into full vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core.cgutils import alloca_once_value, for_range, unpack_tuple
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from unskew.types import Float32, Int32

jit = numba.njit(nogil=True, cache=True, error_model="numpy")
"""How every kernel is compiled. No fast-math: each operation is IEEE and in the order written, so a
kernel gives the same bits freshly compiled, loaded from the cache, inlined or not. NumPy's error
model, because a test for division by zero would keep loops from becoming vectors."""


@intrinsic
def _sqrt32(typing_context: object, x: object) -> object:
    """LLVM's own float32 square root. The libm call behind np.sqrt may set errno, which keeps LLVM
    from vectorising every loop it stands in."""
    del typing_context, x

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [args[0].type]), args)

    return numba.float32(numba.float32), codegen


_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_LARGEST = np.float32(87.0)


sqrt32: Callable[[float], float] = cast(Any, _sqrt32)

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


@jit
def total(x: Float32, n: int) -> float:
    """The sum of the first ``n`` entries in float64, in four chains so that none waits long."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = n - n % 4
    for i in range(0, whole, 4):
        a += x[i]
        b += x[i + 1]
        c += x[i + 2]
        d += x[i + 3]
    for i in range(whole, n):
        a += x[i]
    return (a + b) + (c + d)


@jit
def logistic_batch(z: Float32, y: Float32, s: Float32, bits: Int32, n: int) -> float:
    """For logits ``z`` and labels ``y``: (sigmoid(z) - y) / n into ``s``; returns the summed loss.

    ``z`` is left holding the losses; ``bits`` is scratch. exp(-|z|) is 2**-k exp(-r) with
    |r| <= ln(2) / 2 and a polynomial of degree 6, log(1 + e) is 2 artanh(e / (2 + e)) by its series
    (argument at most 1/3): both exact to float32 rounding, without a call that would break the
    vector loop.
    """
    one = np.float32(1.0)
    half = np.float32(0.5)
    for j in range(n):
        a = min(abs(z[j]), _LARGEST)
        k = np.int32(a * _LOG2E + half)
        kf = np.float32(k)
        r = (kf * _LN2_HIGH - a) + kf * _LN2_LOW
        e = np.float32(1.0 / 720.0)
        e = e * r + np.float32(1.0 / 120.0)
        e = e * r + np.float32(1.0 / 24.0)
        e = e * r + np.float32(1.0 / 6.0)
        e = e * r + half
        e = e * r + one
        e = e * r + one
        s[j] = e
        bits[j] = (np.int32(127) - k) << np.int32(23)
    power = bits.view(np.float32)
    scale = one / np.float32(n)
    for j in range(n):
        e = s[j] * power[j]
        above = one / (one + e)
        sigmoid = above if z[j] >= 0 else e * above
        t = e / (np.float32(2.0) + e)
        t2 = t * t
        log1p = np.float32(1.0 / 13.0)
        log1p = log1p * t2 + np.float32(1.0 / 11.0)
        log1p = log1p * t2 + np.float32(1.0 / 9.0)
        log1p = log1p * t2 + np.float32(1.0 / 7.0)
        log1p = log1p * t2 + np.float32(1.0 / 5.0)
        log1p = log1p * t2 + np.float32(1.0 / 3.0)
        log1p = log1p * t2 + one
        log1p = log1p * t * np.float32(2.0)
        s[j] = (sigmoid - y[j]) * scale
        z[j] = max(z[j], np.float32(0.0)) - z[j] * y[j] + log1p
    return total(z, n)
