"""The type of `multi_head_attention_forward`, with its overloads, and its method `plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, Protocol, cast, overload

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.attention.attention_plan import AttentionPlan
from cudnnlite.operations.attention.pass_operands import AttentionReserve, AttentionTrainingOutput
from cudnnlite.operations.attention.weights import AttentionWeights
from cudnnlite.operations.layers.dropout import DropoutState
from cudnnlite.plans.function import BoundCall, Method, PublicFunction
from cudnnlite.plans.stateful_function import stateful_operation
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.attention import AttentionSpec

_PLAN_DOC = """\
Make the descriptors of `{name}` once, for many calls with the same sizes, lengths and window.

Parameters
----------
handle : Handle
    The plan belongs to it and is closed with it.
spec, q_lengths, kv_lengths, window, training, dropout_state
    As in `{name}`.
weights : AttentionWeights or None
    Checked if they are given, and not kept: each call of the plan takes weights.
q, k, v : TensorSpec or device array
    As in `{name}`.
residual, step, out, reserve
    Refused here: they are arguments of each call of the plan.

Returns
-------
AttentionPlan
    To be called as `plan(weights, q, k, v, residual=..., step=..., out=..., reserve=...)`; in
    training it has `backward_data` and `backward_weights`.

Raises
------
ArgumentError, NotSupportedError, BadParamError
    As in `{name}`.

Examples
--------
>>> spec = dnn.AttentionSpec(1, 2, scale=1.0)
>>> with dnn.Handle() as handle:
...     weights = dnn.AttentionWeights(handle, spec)
...     q = handle.array(np.zeros((1, 2, 2), np.float32))
...     with dnn.multi_head_attention_forward.plan(handle, spec, None, q, q, q) as plan:
...         print(plan(weights, q, q, q).shape)
(1, 2, 2)
"""


class AttentionPlanMethod(Protocol):
    """The type of `multi_head_attention_forward.plan`.

    `residual`, `step`, `out` and `reserve` are in its signature, so that the ArgumentError at run
    time can say where they belong: to the calls of the plan.
    """

    @overload
    def __call__(
        self,
        handle: Handle,
        spec: AttentionSpec,
        weights: AttentionWeights | None,
        q: AnyArray | TensorSpec,
        k: AnyArray | TensorSpec,
        v: AnyArray | TensorSpec,
        *,
        training: Literal[False] = ...,
        q_lengths: Sequence[int] | None = ...,
        kv_lengths: Sequence[int] | None = ...,
        window: tuple[Sequence[int], Sequence[int]] | None = ...,
        residual: AnyArray | None = ...,
        step: int | None = ...,
        dropout_state: DropoutState | None = ...,
        out: AnyArray | None = ...,
        reserve: AttentionReserve | None = ...,
    ) -> AttentionPlan[DeviceArray]: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        spec: AttentionSpec,
        weights: AttentionWeights | None,
        q: AnyArray | TensorSpec,
        k: AnyArray | TensorSpec,
        v: AnyArray | TensorSpec,
        *,
        training: Literal[True],
        q_lengths: Sequence[int] | None = ...,
        kv_lengths: Sequence[int] | None = ...,
        window: tuple[Sequence[int], Sequence[int]] | None = ...,
        residual: AnyArray | None = ...,
        step: int | None = ...,
        dropout_state: DropoutState | None = ...,
        out: AnyArray | None = ...,
        reserve: AttentionReserve | None = ...,
    ) -> AttentionPlan[AttentionTrainingOutput]: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        spec: AttentionSpec,
        weights: AttentionWeights | None,
        q: AnyArray | TensorSpec,
        k: AnyArray | TensorSpec,
        v: AnyArray | TensorSpec,
        *,
        training: bool,
        q_lengths: Sequence[int] | None = ...,
        kv_lengths: Sequence[int] | None = ...,
        window: tuple[Sequence[int], Sequence[int]] | None = ...,
        residual: AnyArray | None = ...,
        step: int | None = ...,
        dropout_state: DropoutState | None = ...,
        out: AnyArray | None = ...,
        reserve: AttentionReserve | None = ...,
    ) -> AttentionPlan[Any]: ...


class AttentionForwardFunction(PublicFunction, Protocol):
    """The type of `multi_head_attention_forward`."""

    plan: AttentionPlanMethod
    problem: Callable[..., NoReturn]

    @overload
    def __call__(
        self,
        handle: Handle,
        spec: AttentionSpec,
        weights: AttentionWeights,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray,
        *,
        training: Literal[False] = ...,
        q_lengths: Sequence[int] | None = ...,
        kv_lengths: Sequence[int] | None = ...,
        window: tuple[Sequence[int], Sequence[int]] | None = ...,
        residual: AnyArray | None = ...,
        step: int | None = ...,
        dropout_state: DropoutState | None = ...,
        out: AnyArray | None = ...,
        reserve: AttentionReserve | None = ...,
    ) -> DeviceArray: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        spec: AttentionSpec,
        weights: AttentionWeights,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray,
        *,
        training: Literal[True],
        q_lengths: Sequence[int] | None = ...,
        kv_lengths: Sequence[int] | None = ...,
        window: tuple[Sequence[int], Sequence[int]] | None = ...,
        residual: AnyArray | None = ...,
        step: int | None = ...,
        dropout_state: DropoutState | None = ...,
        out: AnyArray | None = ...,
        reserve: AttentionReserve | None = ...,
    ) -> AttentionTrainingOutput: ...
    @overload
    def __call__(
        self,
        handle: Handle,
        spec: AttentionSpec,
        weights: AttentionWeights,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray,
        *,
        training: bool,
        q_lengths: Sequence[int] | None = ...,
        kv_lengths: Sequence[int] | None = ...,
        window: tuple[Sequence[int], Sequence[int]] | None = ...,
        residual: AnyArray | None = ...,
        step: int | None = ...,
        dropout_state: DropoutState | None = ...,
        out: AnyArray | None = ...,
        reserve: AttentionReserve | None = ...,
    ) -> Any: ...


def attention_operation(bind: Callable[..., BoundCall[Any]]) -> AttentionForwardFunction:
    """Make the public operation of the function that binds its arguments."""
    return cast(
        "AttentionForwardFunction", stateful_operation(bind, Method(_PLAN_DOC, "AttentionPlan"))
    )
