"""Spatial transformers as declarations: grids, sampling, and the gradients of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import FLOATS, Operation
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import SpatialTransformerSpec


def _theta(transformer: SpatialTransformerSpec, dtype: DataType) -> TensorSpec:
    return TensorSpec((transformer.shape[0], 2, 3), dtype)


def _grid(transformer: SpatialTransformerSpec, dtype: DataType) -> TensorSpec:
    n, _, *points = transformer.shape
    return TensorSpec((n, *points, 2), dtype)


def _bare(needed: Callable[..., TensorSpec]) -> Callable[[Mapping[str, Any]], TensorSpec]:
    return lambda values: needed(values["transformer"], values["transformer"].dtype)


def _sampled(x: TensorSpec, grid: TensorSpec, transformer: SpatialTransformerSpec) -> TensorSpec:
    if x.rank != 4 or x.shape[:2] != transformer.shape[:2]:
        raise ArgumentError(
            f"x has shape {x.shape}; needed: {transformer.shape[:2]} and two axes, "
            f"as {transformer} says"
        )
    return x.packed(transformer.shape)


def _gradients(
    x: TensorSpec, grid: TensorSpec, dy: TensorSpec, transformer: SpatialTransformerSpec
) -> Any:
    if dy.shape != _sampled(x, grid, transformer).shape:
        raise ArgumentError(f"dy has shape {dy.shape}; needed: {transformer.shape}")
    return x, grid


def _in_its_type(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"transformer": options["transformer"].replace(dtype=next(iter(specs.values())).dtype)}


def _operation(
    name: str,
    function: str,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    infer: Any,
    **fields: Any,
) -> Operation:
    kinds = {
        "theta": _bare(_theta),
        "dtheta": _bare(_theta),
        "grid": _bare(_grid),
        "dgrid": _bare(_grid),
    }
    return Operation(
        name,
        function,
        reads,
        writes,
        infer,
        {"transformer": SpatialTransformerSpec},
        {"stDesc": "transformerDesc", "alphaDgrid": "alpha", "betaDgrid": "beta"},
        without_descriptor={
            operand: kinds[operand] for operand in (*reads, *writes) if operand in kinds
        },
        dtypes=FLOATS[:3],
        complete=_in_its_type,
        **fields,
    )


GRID = _operation(
    "spatial_transformer_grid",
    "cudnnSpatialTfGridGeneratorForward",
    ("theta",),
    ("grid",),
    lambda theta, transformer: _grid(transformer, theta.dtype),
)


GRID_BACKWARD = _operation(
    "spatial_transformer_grid_backward",
    "cudnnSpatialTfGridGeneratorBackward",
    ("dgrid",),
    ("dtheta",),
    lambda dgrid, transformer: _theta(transformer, dgrid.dtype),
)


SAMPLE = _operation(
    "spatial_transformer_sample", "cudnnSpatialTfSamplerForward", ("x", "grid"), ("y",), _sampled
)


SAMPLE_BACKWARD = _operation(
    "spatial_transformer_sample_backward",
    "cudnnSpatialTfSamplerBackward",
    ("x", "grid", "dy"),
    ("dx", "dgrid"),
    _gradients,
    blended_outputs=2,
)
