"""Additions, scalings, pointwise operations and reductions of tensors as declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType, ReduceTensorOp
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import FLOATS, Operation
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import OpTensorSpec, ReduceTensorSpec


def _spread(name: str, small: TensorSpec, over: str, large: TensorSpec) -> TensorSpec:
    """Return the larger spec; ArgumentError unless each size of the smaller is as there, or 1."""
    if small.rank != large.rank or any(
        s not in (1, size) for s, size in zip(small.shape, large.shape, strict=False)
    ):
        raise ArgumentError(
            f"{name} has shape {small.shape}; each size must be 1, or that of {over}, {large.shape}"
        )
    return large


def _onto(a: TensorSpec, c: TensorSpec) -> TensorSpec:
    """Return what a is reduced to; ArgumentError if it cannot be."""
    _spread("out", c, "a", a)
    if a.shape == c.shape:
        raise ArgumentError(
            f"out would have the shape of a, {a.shape}; "
            "cuDNN reduces along one of its axes at least"
        )
    return c


def _in_its_type(specs: Any, options: Any) -> Any:
    """Return the options with the type to compute in that cuDNN wants for the operands."""
    first = next(iter(specs.values()))
    compute_type = DataType.DOUBLE if first.dtype == DataType.DOUBLE else DataType.FLOAT
    return {**options, "op": options["op"].replace(compute_type=compute_type)}


def _check_types(specs: Mapping[str, TensorSpec], options: Mapping[str, Any]) -> None:
    """Raise ArgumentError unless all have one data type; int8 may have a float32 result."""
    dtype = specs["a"].dtype
    for name, spec in specs.items():
        widened = name == "c" and (dtype, spec.dtype) == (DataType.INT8, DataType.FLOAT)
        if spec.dtype != dtype and not widened:
            argument = "out" if name == "c" else name
            allowed = (
                "int8, float32" if name == "c" and dtype == DataType.INT8 else dtype_name(dtype)
            )
            raise ArgumentError(f"{argument} is {dtype_name(spec.dtype)}; needed: {allowed}")


ADD = Operation(
    "add_tensor",
    "cudnnAddTensor",
    ("a",),
    ("c",),
    lambda a, c: _spread("a", a, "c", c),
    names={"A": "a", "C": "c"},
    caller_provided={"c": "c"},
    call_operands=("a", "c"),
)


SCALE = Operation(
    "scale_tensor",
    "cudnnScaleTensor",
    (),
    ("y",),
    lambda y: y,
    caller_provided={"y": "y"},
    call_operands=("y",),
)


SET = Operation(
    "set_tensor",
    "cudnnSetTensor",
    (),
    ("y",),
    lambda y, value: y,
    {"value": float},
    {"valuePtr": "value"},
    caller_provided={"y": "y"},
    call_operands=("y",),
    dtypes=FLOATS,  # in which type cuDNN reads the value of integers is not known
)


OP = Operation(
    "op_tensor",
    "cudnnOpTensor",
    ("a", "b"),
    ("c",),
    lambda a, b, **_: _spread("b", b, "a", a),
    {"op": OpTensorSpec, "alpha1": float, "alpha2": float},
    {"opTensorDesc": "opDesc", "A": "a", "B": "b", "C": "c"},
    complete=_in_its_type,
    in_place=frozenset({"a"}),
    mixed=True,
    check=_check_types,
)


REDUCE = Operation(
    "reduce_tensor",
    "cudnnReduceTensor",
    ("a",),
    ("c",),
    lambda a, c, **_: _onto(a, c),
    {"op": ReduceTensorSpec},
    {
        "reduceTensorDesc": "opDesc",
        "A": "a",
        "C": "c",
        "workspace": "workSpace",
        "workspaceSizeInBytes": "workSpaceSizeInBytes",
    },
    caller_provided={"c": "out"},
    shape_from_out=True,
    constants={"indices": None, "indicesSizeInBytes": 0},
    complete=_in_its_type,
    mixed=True,
    check=_check_types,
    workspace="cudnnGetReductionWorkspaceSize",
)


def _has_places(specs: Any, options: Any) -> None:
    op = options["op"].op
    if op not in (
        ReduceTensorOp.MIN,
        ReduceTensorOp.MAX,
        ReduceTensorOp.AMAX,
    ):  # cuDNN says SUCCESS and writes none
        raise ArgumentError(f"indices with op={op.name}; allowed: of MIN, MAX and AMAX")


REDUCE_WITH_INDICES = replace(
    REDUCE,
    name="reduce_tensor_with_indices",
    writes=("c", "indices"),
    constants={},
    infer=lambda a, c, **_: (_onto(a, c), TensorSpec(c.shape, DataType.INT32)),
    caller_provided={"c": "out", "indices": "indices"},
    shape_from_out=True,
    without_descriptor={"indices": lambda values: TensorSpec(values["c"].shape, DataType.INT32)},
    mixed=True,
    dtypes=(*FLOATS, DataType.INT32),
    check=_has_places,
    complete=lambda specs, options: {
        "op": _in_its_type(specs, options)["op"].replace(indices="flattened")
    },
)
