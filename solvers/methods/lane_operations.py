"""The operations of `lanes` in numba, which is heavy: imported when a kernel that uses them is compiled."""

import operator
from collections.abc import Callable, Sequence
from typing import ClassVar

from llvmlite import ir
from numba import types
from numba.core.base import BaseContext
from numba.core.datamodel.manager import DataModelManager
from numba.core.typing.context import Context
from numba.core.typing.templates import ConcreteTemplate, Signature, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

from factorize.solvers.methods.compiled import WIDTH

_DOUBLE = ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, WIDTH)
_INDEX = ir.IntType(32)


class Lanes(types.Type):
    """The compiler's type of a vector."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = Lanes()
Values = Sequence[ir.Value]
Operation = tuple[Signature, Callable[[BaseContext, ir.IRBuilder, Signature, Values], ir.Value]]
"""Its types, and what writes its instructions."""


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: DataModelManager, of: types.Type) -> None:
        super().__init__(manager, of, _VECTOR)  # type: ignore[no-untyped-call]  # numba gives it no types


def _address(
    context: BaseContext, builder: ir.IRBuilder, array_type: types.Type, array: ir.Value, *indices: ir.Value
) -> ir.Value:
    """Point to a vector of a flat array or of a matrix's row.

    Fields are read from the array's value: a proxy would write all of them to the stack for each vector.
    """
    model = context.data_model_manager[array_type]
    data = builder.extract_value(array, model.get_field_position("data"))
    start = builder.mul(indices[-1], indices[-1].type(WIDTH))
    if len(indices) > 1:
        width = builder.extract_value(array, [model.get_field_position("shape"), 1])
        start = builder.add(builder.mul(indices[0], width), start)
    return builder.bitcast(builder.gep(data, [start]), _VECTOR.as_pointer())


@intrinsic
def load(typing: Context, array: types.Type, entry: types.Type) -> Operation:
    """The vector at an entry of a flat array."""

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return builder.load(_address(context, builder, signature.args[0], *arguments), align=8)

    return lanes(array, types.intp), generate


@intrinsic
def store(typing: Context, array: types.Type, entry: types.Type, value: types.Type) -> Operation:
    """Write a vector to an entry of a flat array."""

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        array, entry, value = arguments
        builder.store(value, _address(context, builder, signature.args[0], array, entry), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@intrinsic
def load_at(typing: Context, matrix: types.Type, row: types.Type, entry: types.Type) -> Operation:
    """The vector at an entry of a matrix's row."""

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return builder.load(_address(context, builder, signature.args[0], *arguments), align=8)

    return lanes(matrix, types.intp, types.intp), generate


@intrinsic
def store_at(typing: Context, matrix: types.Type, row: types.Type, entry: types.Type, value: types.Type) -> Operation:
    """Write a vector to an entry of a matrix's row."""

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        *place, value = arguments
        builder.store(value, _address(context, builder, signature.args[0], *place), align=8)
        return context.get_dummy_value()

    return types.void(matrix, types.intp, types.intp, lanes), generate


@intrinsic
def spread(typing: Context, value: types.Type) -> Operation:
    """The vector with one number in all lanes."""

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return _spread(builder, arguments[0])

    return lanes(types.float64), generate


def _spread(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, _INDEX(0))
    return builder.shuffle_vector(
        single, ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.VectorType(_INDEX, WIDTH), None)
    )


@intrinsic
def total(typing: Context, value: types.Type) -> Operation:
    """The sum over the lanes."""

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        parts = [builder.extract_element(arguments[0], _INDEX(i)) for i in range(WIDTH)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [builder.fadd(a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]

    return types.float64(lanes), generate


@intrinsic
def reciprocal(typing: Context, value: types.Type) -> Operation:
    """One over every lane."""

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        return builder.fdiv(_spread(builder, _DOUBLE(1.0)), arguments[0])

    return lanes(lanes), generate


def _operation(symbol: Callable[[float, float], float], name: str) -> None:
    """Add an operator of two vectors, one instruction: a function would have to be compiled and linked."""

    class _Operator(ConcreteTemplate):
        key = symbol
        cases: ClassVar = [lanes(lanes, lanes), lanes(types.float64, lanes)]

    def generate(context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Values) -> ir.Value:
        first, second = arguments
        if signature.args[0] != lanes:
            first = _spread(builder, first)
        return getattr(builder, name)(first, second, flags=("contract",))

    infer_global(symbol)(_Operator)
    lower_builtin(symbol, lanes, lanes)(generate)
    lower_builtin(symbol, types.float64, lanes)(generate)


_operation(operator.add, "fadd")
_operation(operator.sub, "fsub")
_operation(operator.mul, "fmul")
