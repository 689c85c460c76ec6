"""The type of `scaled_dot_product_attention_forward`, whose result depends on an option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, overload

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.graph.function import GraphFunction

P = ParamSpec("P")
WithStats: TypeAlias = tuple[DeviceArray, DeviceArray]


class ScaledDotProductAttentionFunction(GraphFunction[P, DeviceArray | WithStats]):
    """The public operation `scaled_dot_product_attention_forward`."""

    if TYPE_CHECKING:  # At run time the inherited call is as good, and takes less time.

        @overload  # type: ignore[override]
        def __call__(
            self,
            handle: Handle,
            q: Operand,
            k: Operand,
            v: Operand,
            *,
            scale: float | None = ...,
            causal: bool = ...,
            bias: Operand | None = ...,
            q_lengths: Operand | None = ...,
            kv_lengths: Operand | None = ...,
            window: int | None = ...,
            dropout: float = ...,
            seed: int = ...,
            offset: int = ...,
            return_stats: Literal[False] = ...,
            out: AnyArray | None = ...,
            workspace_limit: int | str | None = ...,
        ) -> DeviceArray: ...
        @overload
        def __call__(
            self,
            handle: Handle,
            q: Operand,
            k: Operand,
            v: Operand,
            *,
            scale: float | None = ...,
            causal: bool = ...,
            bias: Operand | None = ...,
            q_lengths: Operand | None = ...,
            kv_lengths: Operand | None = ...,
            window: int | None = ...,
            dropout: float = ...,
            seed: int = ...,
            offset: int = ...,
            return_stats: Literal[True],
            out: Sequence[AnyArray | None] | None = ...,
            workspace_limit: int | str | None = ...,
        ) -> WithStats: ...
        @overload
        def __call__(
            self,
            handle: Handle,
            q: Operand,
            k: Operand,
            v: Operand,
            *,
            scale: float | None = ...,
            causal: bool = ...,
            bias: Operand | None = ...,
            q_lengths: Operand | None = ...,
            kv_lengths: Operand | None = ...,
            window: int | None = ...,
            dropout: float = ...,
            seed: int = ...,
            offset: int = ...,
            return_stats: bool,
            out: AnyArray | Sequence[AnyArray | None] | None = ...,
            workspace_limit: int | str | None = ...,
        ) -> DeviceArray | WithStats: ...
        def __call__(self, handle: Handle, *args: Any, **kwargs: Any) -> Any:
            """Check the arguments and compute."""
