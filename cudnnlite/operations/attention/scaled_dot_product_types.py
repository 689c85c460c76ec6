"""The type of `scaled_dot_product_attention_forward`, whose result depends on an option."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, Literal, ParamSpec, Protocol, TypeAlias, cast, overload

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.graph.function import GraphFunction, GraphRequest, graph_operation

P = ParamSpec("P")
WithStats: TypeAlias = tuple[DeviceArray, DeviceArray]


class ScaledDotProductAttentionFunction(GraphFunction[P, DeviceArray | WithStats], Protocol[P]):
    """The type of `scaled_dot_product_attention_forward`."""

    @overload  # type: ignore[override]
    def __call__(
        self,
        handle: Handle,
        q: Operand,
        k: Operand,
        v: Operand,
        *,
        scale: float | None = ...,
        causal: bool | Literal["bottom_right"] = ...,
        bias: Operand | None = ...,
        q_lengths: Operand | Sequence[int] | None = ...,
        kv_lengths: Operand | Sequence[int] | None = ...,
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
        causal: bool | Literal["bottom_right"] = ...,
        bias: Operand | None = ...,
        q_lengths: Operand | Sequence[int] | None = ...,
        kv_lengths: Operand | Sequence[int] | None = ...,
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
        causal: bool | Literal["bottom_right"] = ...,
        bias: Operand | None = ...,
        q_lengths: Operand | Sequence[int] | None = ...,
        kv_lengths: Operand | Sequence[int] | None = ...,
        window: int | None = ...,
        dropout: float = ...,
        seed: int = ...,
        offset: int = ...,
        return_stats: bool,
        out: AnyArray | Sequence[AnyArray | None] | None = ...,
        workspace_limit: int | str | None = ...,
    ) -> DeviceArray | WithStats: ...


def scaled_dot_product_attention_operation(
    bind: Callable[Concatenate[Handle, P], GraphRequest[DeviceArray | WithStats]],
) -> ScaledDotProductAttentionFunction[P]:
    """Make the public operation of the function that binds its arguments."""
    return cast("ScaledDotProductAttentionFunction[P]", graph_operation(bind))
