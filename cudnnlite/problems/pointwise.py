"""Additions, scalings, pointwise operations and reductions of tensors as declarations."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from cudnnlite.dtypes import dtype_name, float64_hint
from cudnnlite.enums import DataType, ReduceTensorOp
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import FLOATS, Operation, common_dtype
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import OpTensorSpec, ReduceTensorSpec


def _check_broadcast(
    name: str, small: TensorSpec, large_name: str, large: TensorSpec
) -> TensorSpec:
    """Return the larger spec; ArgumentError unless the smaller can be broadcast to it."""
    sizes = zip(small.shape, large.shape, strict=False)
    is_broadcastable = all(small_size in (1, size) for small_size, size in sizes)
    if small.rank != large.rank or not is_broadcastable:
        hint = ""
        if small.rank == 1 and small.shape == large.shape[1:2]:
            axes = ", ".join(["1", "-1", *["1"] * (large.rank - 2)])
            hint = f"; {name}.reshape({axes}) has a value for each channel"
        raise ArgumentError(
            f"{name} has shape {small.shape}; each size must be 1, "
            f"or that of {large_name}, {large.shape}{hint}"
        )
    return large


def _check_reduced(a: TensorSpec, c: TensorSpec) -> TensorSpec:
    """Return the spec of the result; ArgumentError unless a can be reduced to it."""
    _check_broadcast("out", c, "a", a)
    if a.shape == c.shape:
        raise ArgumentError(
            f"out would have the shape of a, {a.shape}; "
            "cuDNN reduces along one of its axes at least"
        )
    return c


def _with_compute_type(specs: Any, options: Any) -> Any:
    """Return the options with the compute type that cuDNN needs for the operands."""
    first = next(iter(specs.values()))
    compute_type = DataType.DOUBLE if first.dtype == DataType.DOUBLE else DataType.FLOAT
    return {**options, "op": options["op"].replace(compute_type=compute_type)}


def _check_types(specs: Mapping[str, TensorSpec], options: Mapping[str, Any]) -> None:
    """Raise ArgumentError unless all operands have one data type.

    The result of int8 operands may be float32.
    """
    _check_one_type(specs, (DataType.INT8,))


def _check_reduced_types(specs: Mapping[str, TensorSpec], options: Mapping[str, Any]) -> None:
    """Raise ArgumentError unless both tensors have one data type.

    The result of int8 and float16 may be float32; cuDNN 9.19 refuses that of bfloat16.
    """
    _check_one_type(specs, (DataType.INT8, DataType.HALF))


def _check_one_type(specs: Mapping[str, TensorSpec], widened: Container[DataType]) -> None:
    """Raise ArgumentError unless all operands have one type; of some the result may be float32."""
    dtype = common_dtype(specs)
    for name, spec in specs.items():
        argument = "out" if name == "c" else name
        allowed = [dtype]
        if name == "c" and dtype in widened:
            allowed.append(DataType.FLOAT)
        if spec.dtype not in allowed:
            allowed_names = ", ".join(map(dtype_name, allowed))
            raise ArgumentError(
                f"{argument} is {dtype_name(spec.dtype)}; needed: {allowed_names}"
                f"{float64_hint(spec.dtype, dtype)}"
            )


ADD = Operation(
    "add_tensor",
    "cudnnAddTensor",
    reads=("a",),
    writes=("c",),
    infer=lambda a, c: _check_broadcast("a", a, "c", c),
    names={"A": "a", "C": "c"},
    caller_provided={"c": "c"},
    call_operands=("a", "c"),
)


SCALE = Operation(
    "scale_tensor",
    "cudnnScaleTensor",
    reads=(),
    writes=("y",),
    infer=lambda y: y,
    caller_provided={"y": "y"},
    call_operands=("y",),
)


SET = Operation(
    "set_tensor",
    "cudnnSetTensor",
    reads=(),
    writes=("y",),
    infer=lambda y, value: y,
    options={"value": float},
    names={"valuePtr": "value"},
    caller_provided={"y": "y"},
    call_operands=("y",),
    # Only floats: nobody knows the type in which cuDNN reads the value for integer tensors.
    dtypes=FLOATS,
)


OP = Operation(
    "op_tensor",
    "cudnnOpTensor",
    reads=("a", "b"),
    writes=("c",),
    infer=lambda a, b, **_: _check_broadcast("b", b, "a", a),
    options={"op": OpTensorSpec, "alpha1": float, "alpha2": float},
    names={"opTensorDesc": "opDesc", "A": "a", "B": "b", "C": "c"},
    complete=_with_compute_type,
    in_place=frozenset({"a"}),
    mixed=True,
    check=_check_types,
)


REDUCE = Operation(
    "reduce_tensor",
    "cudnnReduceTensor",
    reads=("a",),
    writes=("c",),
    infer=lambda a, c, **_: _check_reduced(a, c),
    options={"op": ReduceTensorSpec},
    names={
        "reduceTensorDesc": "opDesc",
        "A": "a",
        "C": "c",
        "workspace": "workSpace",
        "workspaceSizeInBytes": "workSpaceSizeInBytes",
    },
    caller_provided={"c": "out"},
    shape_from_out=True,
    constants={"indices": None, "indicesSizeInBytes": 0},
    complete=_with_compute_type,
    mixed=True,
    check=_check_reduced_types,
    workspace="cudnnGetReductionWorkspaceSize",
)


def _check_indices(specs: Any, options: Any) -> None:
    """Raise ArgumentError for an operation without indices: cuDNN returns SUCCESS without them."""
    op = options["op"].op
    if op not in (ReduceTensorOp.MIN, ReduceTensorOp.MAX, ReduceTensorOp.AMAX):
        raise ArgumentError(f"indices with op={op.name}; allowed: MIN, MAX, AMAX")


def _with_indices(specs: Any, options: Any) -> Any:
    """Return the options with the compute type, and with a spec that asks for indices."""
    op = _with_compute_type(specs, options)["op"]
    return {"op": op.replace(indices="flattened")}


REDUCE_WITH_INDICES = replace(
    REDUCE,
    name="reduce_tensor_with_indices",
    writes=("c", "indices"),
    constants={},
    infer=lambda a, c, **_: (_check_reduced(a, c), TensorSpec(c.shape, DataType.INT32)),
    caller_provided={"c": "out", "indices": "indices"},
    shape_from_out=True,
    without_descriptor={"indices": lambda values: TensorSpec(values["c"].shape, DataType.INT32)},
    mixed=True,
    dtypes=(*FLOATS, DataType.INT32),
    check=_check_indices,
    complete=_with_indices,
)
