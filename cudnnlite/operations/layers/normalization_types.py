"""The types of normalisations: for type checkers, the results depend on the option `training`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeAlias, cast, overload

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.graph.function import GraphFunction, GraphRequest, graph_operation

P = ParamSpec("P")
# What training returns: y, the mean and the inverse standard deviation; without a mean for RMS.
WithMean: TypeAlias = tuple[DeviceArray, DeviceArray, DeviceArray]
WithInverse: TypeAlias = tuple[DeviceArray, DeviceArray]


class NormalizationFunction(GraphFunction[P, DeviceArray | WithMean], Protocol[P]):
    """The type of `layer_normalization_forward` and `instance_normalization_forward`."""

    @overload  # type: ignore[override]
    def __call__(
        self,
        handle: Handle,
        x: Operand,
        scale: Operand,
        bias: Operand,
        *,
        epsilon: float = ...,
        training: Literal[False] = ...,
        out: AnyArray | None = ...,
        workspace_limit: int | str | None = ...,
    ) -> DeviceArray: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        x: Operand,
        scale: Operand,
        bias: Operand,
        *,
        epsilon: float = ...,
        training: Literal[True],
        out: Sequence[AnyArray | None] | None = ...,
        workspace_limit: int | str | None = ...,
    ) -> WithMean: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        x: Operand,
        scale: Operand,
        bias: Operand,
        *,
        epsilon: float = ...,
        training: bool,
        out: AnyArray | Sequence[AnyArray | None] | None = ...,
        workspace_limit: int | str | None = ...,
    ) -> DeviceArray | WithMean: ...


class RMSNormalizationFunction(GraphFunction[P, DeviceArray | WithInverse], Protocol[P]):
    """The type of `rms_normalization_forward`."""

    @overload  # type: ignore[override]
    def __call__(
        self,
        handle: Handle,
        x: Operand,
        scale: Operand,
        *,
        bias: Operand | None = ...,
        epsilon: float = ...,
        training: Literal[False] = ...,
        out: AnyArray | None = ...,
        workspace_limit: int | str | None = ...,
    ) -> DeviceArray: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        x: Operand,
        scale: Operand,
        *,
        bias: Operand | None = ...,
        epsilon: float = ...,
        training: Literal[True],
        out: Sequence[AnyArray | None] | None = ...,
        workspace_limit: int | str | None = ...,
    ) -> WithInverse: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        x: Operand,
        scale: Operand,
        *,
        bias: Operand | None = ...,
        epsilon: float = ...,
        training: bool,
        out: AnyArray | Sequence[AnyArray | None] | None = ...,
        workspace_limit: int | str | None = ...,
    ) -> DeviceArray | WithInverse: ...


def normalization_operation(
    bind: Callable[Concatenate[Handle, P], GraphRequest[DeviceArray | WithMean]],
) -> NormalizationFunction[P]:
    """Make a public operation of the function that binds its arguments."""
    return cast("NormalizationFunction[P]", graph_operation(bind))


def rms_normalization_operation(
    bind: Callable[Concatenate[Handle, P], GraphRequest[DeviceArray | WithInverse]],
) -> RMSNormalizationFunction[P]:
    """Make the public operation of the function that binds its arguments."""
    return cast("RMSNormalizationFunction[P]", graph_operation(bind))
