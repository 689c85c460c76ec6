"""Spatial transformers as declarations: grids, sampling, and the gradients of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import FLOATS, Operation
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import SpatialTransformerSpec


def _theta_spec(transformer: SpatialTransformerSpec, dtype: DataType) -> TensorSpec:
    return TensorSpec((transformer.shape[0], 2, 3), dtype)


def _grid_spec(transformer: SpatialTransformerSpec, dtype: DataType) -> TensorSpec:
    n, _, *points = transformer.shape
    return TensorSpec((n, *points, 2), dtype)


def _needed_spec(needed: Callable[..., TensorSpec]) -> Callable[[Mapping[str, Any]], TensorSpec]:
    """Return a function of all specs and options from one of the transformer and its dtype."""
    return lambda values: needed(values["transformer"], values["transformer"].dtype)


def _sample_spec(
    x: TensorSpec, grid: TensorSpec, transformer: SpatialTransformerSpec
) -> TensorSpec:
    if x.rank != 4 or x.shape[:2] != transformer.shape[:2]:
        raise ArgumentError(
            f"x has shape {x.shape}; needed: {transformer.shape[:2]} and two axes, "
            f"as {transformer} says"
        )
    return x.packed(transformer.shape)


def _gradient_specs(
    x: TensorSpec, grid: TensorSpec, dy: TensorSpec, transformer: SpatialTransformerSpec
) -> Any:
    if dy.shape != _sample_spec(x, grid, transformer).shape:
        raise ArgumentError(f"dy has shape {dy.shape}; needed: {transformer.shape}")
    return x, grid


def _with_dtype(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with the transformer in the data type of the operands."""
    first = next(iter(specs.values()))
    return {"transformer": options["transformer"].replace(dtype=first.dtype)}


def _operation(
    name: str,
    function: str,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    infer: Any,
    **fields: Any,
) -> Operation:
    kinds = {
        "theta": _needed_spec(_theta_spec),
        "dtheta": _needed_spec(_theta_spec),
        "grid": _needed_spec(_grid_spec),
        "dgrid": _needed_spec(_grid_spec),
    }
    return Operation(
        name,
        function,
        reads=reads,
        writes=writes,
        infer=infer,
        options={"transformer": SpatialTransformerSpec},
        names={"stDesc": "transformerDesc", "alphaDgrid": "alpha_dgrid", "betaDgrid": "beta_dgrid"},
        without_descriptor={
            operand: kinds[operand] for operand in (*reads, *writes) if operand in kinds
        },
        dtypes=FLOATS[:3],
        complete=_with_dtype,
        **fields,
    )


GRID = _operation(
    "spatial_transformer_grid",
    "cudnnSpatialTfGridGeneratorForward",
    ("theta",),
    ("grid",),
    lambda theta, transformer: _grid_spec(transformer, theta.dtype),
)


GRID_BACKWARD = _operation(
    "spatial_transformer_grid_backward",
    "cudnnSpatialTfGridGeneratorBackward",
    ("dgrid",),
    ("dtheta",),
    lambda dgrid, transformer: _theta_spec(transformer, dgrid.dtype),
)


SAMPLE = _operation(
    "spatial_transformer_sample",
    "cudnnSpatialTfSamplerForward",
    ("x", "grid"),
    ("y",),
    _sample_spec,
)


SAMPLE_BACKWARD = _operation(
    "spatial_transformer_sample_backward",
    "cudnnSpatialTfSamplerBackward",
    ("x", "grid", "dy"),
    ("dx", "dgrid"),
    _gradient_specs,
    also_blended={"dgrid": ("alpha_dgrid", "beta_dgrid")},
)
