"""The types of normalisations: for type checkers, the results depend on the option `training`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, overload

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.graph.function import GraphFunction

P = ParamSpec("P")
# What training returns: y, the mean and the inverse standard deviation; without a mean for RMS.
WithMean: TypeAlias = tuple[DeviceArray, DeviceArray, DeviceArray]
WithInverse: TypeAlias = tuple[DeviceArray, DeviceArray]


class NormalizationFunction(GraphFunction[P, DeviceArray | WithMean]):
    """A public operation: `layer_normalization_forward` or `instance_normalization_forward`."""

    # The overloads are for type checkers only: at run time the inherited call takes less time.
    if TYPE_CHECKING:

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
        def __call__(self, handle: Handle, *args: Any, **kwargs: Any) -> Any:
            """Check the arguments and compute."""


class RMSNormalizationFunction(GraphFunction[P, DeviceArray | WithInverse]):
    """The public operation `rms_normalization_forward`."""

    # As in `NormalizationFunction`.
    if TYPE_CHECKING:

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
        def __call__(self, handle: Handle, *args: Any, **kwargs: Any) -> Any:
            """Check the arguments and compute."""
