"""`AttentionPlan`: multi-head attention over sequences of one kind.

It is no `OperationPlan`, because only cuDNN knows the layout of the weights, and because the passes
share a reserve space.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from cudnnlite.arguments import integer
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import Status
from cudnnlite.errors import (
    ArgumentError,
    BadParamError,
    CudnnError,
    NotSupportedError,
    WorkspaceLimitError,
)
from cudnnlite.graph.problem import EXECUTE
from cudnnlite.operations.attention.calls import (
    AttentionCall,
    AttentionGradients,
    AttentionInterface,
    AttentionReserve,
    AttentionTrainingOutput,
    ForwardOperands,
    Spaces,
)
from cudnnlite.operations.attention.descriptor_interface import DescriptorAttention
from cudnnlite.operations.attention.graph_interface import GraphAttention
from cudnnlite.operations.attention.graph_rules import why_no_graph
from cudnnlite.operations.attention.plan_key import AttentionPlanKey
from cudnnlite.operations.attention.weights import AttentionWeights
from cudnnlite.plans.aligned_copies import AlignedCopies
from cudnnlite.plans.stateful_plan import StatefulPlan, check_outputs
from cudnnlite.problems.results import AlgorithmResult

# DeviceArray, or AttentionTrainingOutput.
OutputT = TypeVar("OutputT")


class AttentionChoice(NamedTuple):
    """Which of cuDNN's interfaces computes an attention, and why.

    Attributes
    ----------
    interface : str
        "graph" or "descriptor".
    engines : dict of str to AlgorithmResult
        The engine of each graph, by the graph's results; empty for the descriptor call.
    remark : str
        Why no graphs are used; empty if they are, or if the caller named the interface.
    """

    interface: str
    engines: dict[str, AlgorithmResult]
    remark: str

    def __str__(self) -> str:
        parts = [self.interface]
        parts += [f"{label}: {row.algorithm}" for label, row in self.engines.items()]
        return "; ".join([*parts, self.remark] if self.remark else parts)


class AttentionPlan(StatefulPlan, Generic[OutputT]):
    """Attention over sequences of one kind, on one handle: `plan(weights, q, k, v)`.

    `multi_head_attention_forward.plan` makes it.

    Parameters
    ----------
    handle : Handle
        The plan belongs to it and is closed with it.
    key : AttentionPlanKey
        The spec of the attention and of its sequences.

    Attributes
    ----------
    spec : AttentionSpec
        The attention; its maxima are those of the sequences.
    choice : AttentionChoice
        The interface of cuDNN, with the engines, or the reason why there are none.
    workspace, reserve : int
        The bytes of scratch memory and of reserve space that a call needs.

    Notes
    -----
    C functions of a call: `cudnnBackendExecute`, five times forward; or
    `cudnnMultiHeadAttnForward`.  Graphs need operands that are aligned to 16 bytes; others are
    copied.
    """

    _weights_type, _reserve_type = AttentionWeights, AttentionReserve

    def __init__(self, handle: Handle, key: AttentionPlanKey) -> None:
        super().__init__(handle, f"AttentionPlan of {key.spec}")
        self.key = key
        self.spec = key.spec
        self._weights_kind = key.spec.weights_of()
        self._copies: AlignedCopies | None = None
        try:
            self.choice, self._interface = self._choose()
        except BaseException as error:
            if isinstance(error, CudnnError):
                self._explain(error)
            self.close()
            raise
        self.workspace = self._interface.workspace
        self.reserve = self._interface.reserve

    def _choose(self) -> tuple[AttentionChoice, AttentionInterface]:
        """Return which interface computes this, and its calls."""
        remark = ""
        if self.key.interface != "descriptor":
            try:
                graphs = self._plan_graphs()
                return AttentionChoice("graph", graphs.engines, ""), graphs
            # An older cuDNN returns BAD_PARAM for graphs that it does not know.
            except (NotSupportedError, BadParamError, WorkspaceLimitError) as error:
                if self.key.interface == "graph":
                    raise
                reason = error.detail if isinstance(error, CudnnError) else error
                remark = f"no graphs: {reason}"
        calls = DescriptorAttention(self._handle, self.key, self._resources)
        return AttentionChoice("descriptor", {}, remark), calls

    def _plan_graphs(self) -> GraphAttention:
        """Return the graphs.

        NotSupportedError, BadParamError or WorkspaceLimitError if there are none.
        """
        reason = why_no_graph(self.key)
        if reason is not None:
            raise NotSupportedError(EXECUTE, Status.NOT_SUPPORTED, reason)
        stack = self._resources.enter_context(ExitStack())
        try:
            return GraphAttention(self._handle, self.key, stack)
        except BaseException:
            stack.close()
            raise

    def __call__(
        self,
        weights: AttentionWeights,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray,
        *,
        residual: AnyArray | None = None,
        step: int | None = None,
        out: AnyArray | None = None,
        reserve: AttentionReserve | None = None,
    ) -> OutputT:
        """Enqueue the forward pass on the handle's stream.

        Parameters
        ----------
        weights, q, k, v, residual, step, out, reserve
            As in `multi_head_attention_forward`.

        Returns
        -------
        DeviceArray, or AttentionTrainingOutput in training

        Raises
        ------
        ArgumentError, ArrayTypeError, ClosedError, ThreadError
            Before anything is written.
        CudnnError
            The C function failed.
        """
        self.use()
        key = self.key
        if step is not None and self.choice.interface == "graph":
            return self._call_one_step(weights, q, k, v, residual, step, out, reserve)
        self._check_weights(weights)
        q_spec, k_spec, v_spec, y_spec = key.arrays
        q = self._operand(q, "q", q_spec)
        k = self._operand(k, "k", k_spec)
        v = self._operand(v, "v", v_spec)
        inputs = {"weights": weights.array, "q": q, "k": k, "v": v}
        if residual is not None:
            residual = inputs["residual"] = self._residual(residual)
        step_index = self._step_index(step)
        outputs = None if out is None else (out,)
        (y,) = self._outputs(outputs, ("out",), (y_spec,))
        space = self._reserve_space(reserve, self.reserve, training=key.training)
        reserve_array = None if space is None else space.array
        check_outputs(inputs, {"out": y, "reserve": reserve_array})
        if residual is not None:
            self._interface.plan_residual()
            self.workspace = self._interface.workspace
        if q.ptr == k.ptr == v.ptr:
            self._interface.plan_self_attention()
        operands = ForwardOperands(
            weights,
            self._aligned("q", q),
            self._aligned("k", k),
            self._aligned("v", v),
            self._aligned("out", y, is_read=False),
            None if residual is None else self._aligned("residual", residual),
            step_index,
        )
        if space is not None:
            space.begin()
        self._run(self._interface.forward, (operands,), [*inputs.values(), y], reserve_array)
        self._bring_back(operands.y, y)
        if space is None:
            return y  # type: ignore[return-value]
        call = AttentionCall(
            key, self.choice.interface, weights, operands.q, operands.k, operands.v
        )
        space.finish(call)
        return AttentionTrainingOutput(y, space)  # type: ignore[return-value]

    def _call_one_step(
        self,
        weights: AttentionWeights,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray,
        residual: AnyArray | None,
        step: int,
        out: AnyArray | None,
        reserve: AttentionReserve | None,
    ) -> OutputT:
        """Compute one step by the descriptor call: graphs compute all."""
        self._step_index(step)
        if self.key.interface == "graph":
            raise ArgumentError(
                f"step={step} is given with interface='graph', which computes all steps"
            )
        key = self.key._replace(interface="descriptor")
        plan: AttentionPlan[OutputT] = kept_plan(self._handle, key)
        return plan(weights, q, k, v, residual=residual, step=step, out=out, reserve=reserve)

    def _aligned(self, argument: str, array: DeviceArray, *, is_read: bool = True) -> DeviceArray:
        """Return an operand, or a copy of it where graphs could not load it."""
        alignment = self._interface.alignment
        if array.ptr % alignment == 0:
            return array
        if self._copies is None:
            self._copies = AlignedCopies(self._handle, EXECUTE, self._resources)
        return self._copies.copy(argument, array, alignment, is_read=is_read)

    def _bring_back(self, copy: DeviceArray, array: DeviceArray) -> None:
        """Write a result to the array that it stands for."""
        if copy is not array:
            assert self._copies is not None
            self._copies.bring_back(copy, array)

    def _residual(self, residual: AnyArray) -> DeviceArray:
        """Return the residual on the device; ArgumentError if it cannot be added to the output."""
        spec = self.spec
        array = self._operand(residual, "residual", self.key.arrays[3])
        if spec.output_size != spec.q_size:
            raise ArgumentError(
                f"residual with outputs of {spec.output_size}; "
                f"cuDNN adds one where they are as long as queries, {spec.q_size}"
            )
        return array

    def _step_index(self, step: int | None) -> int:
        """Return the index of the only step that is computed; -1 for all steps."""
        if step is None:
            return -1
        if self.key.training:
            raise ArgumentError("step is given with training=True, which computes all steps")
        index = integer(step, "step", 0)
        steps = self.key.q.shape[2]
        if index >= steps:
            raise ArgumentError(f"step={step}; allowed: below {steps}")
        return index

    def check_weights(self, weights: Any) -> None:
        """Raise ArgumentError unless the weights are for this attention."""
        self._check_weights(weights)

    def backward_data(
        self,
        reserve: AttentionReserve,
        dy: AnyArray,
        *,
        out: Sequence[AnyArray | None] | None = None,
    ) -> AttentionGradients:
        """Enqueue the backward pass over the data; see `multi_head_attention_backward_data`."""
        self.use()
        call = self._recall(reserve, has_gradients=False)
        spec = self.spec
        if spec.dropout or spec.post_dropout:
            raise ArgumentError(
                f"reserve is of {spec}: with dropout cuDNN 9.19 computes gradients "
                "that are not those of its output"
            )
        dy = self._operand(dy, "dy", self.key.arrays[3])
        inputs = _inputs(call, reserve, dy)
        specs = (call.q.spec, call.k.spec, call.v.spec)
        names = ("dq", "dk", "dv")
        gradients = AttentionGradients(*self._outputs(out, names, specs))
        check_outputs(inputs, gradients._asdict())
        dy = self._aligned("dy", dy)
        copies = AttentionGradients(
            *(
                self._aligned(name, array, is_read=False)
                for name, array in zip(names, gradients, strict=True)
            )
        )
        reserve.begin()
        self._run(
            self._interface.backward_data,
            (call, dy, copies),
            [*inputs.values(), *gradients],
            reserve.array,
            clear=self._interface.memory_to_clear(gradients.dq),
        )
        for copy, array in zip(copies, gradients, strict=True):
            self._bring_back(copy, array)
        reserve.finish(call._replace(dy=dy), has_gradients=True)
        return gradients

    def backward_weights(
        self,
        reserve: AttentionReserve,
        *,
        out: AttentionWeights | None = None,
        accumulate: bool = False,
    ) -> AttentionWeights:
        """Enqueue the backward pass over the weights.

        See `multi_head_attention_backward_weights`.
        """
        self.use()
        call = self._recall(reserve, has_gradients=True)
        dy = call.dy
        assert dy is not None
        inputs = _inputs(call, reserve, dy)
        out = self._gradients(call.weights, out, accumulate, inputs)
        self._run(
            partial(self._interface.backward_weights, accumulate=accumulate),
            (call, out),
            [*inputs.values(), out.array],
            reserve.array,
        )
        return out

    def _recall(self, reserve: Any, *, has_gradients: bool) -> AttentionCall:
        """Return the forward call of a reserve space; ArgumentError if another plan made it."""
        reserve = AttentionReserve.checked(self._handle, reserve)
        call: AttentionCall = reserve.recall(has_gradients=has_gradients)
        if call.key._replace(interface=None) != self.key._replace(interface=None):
            raise ArgumentError(f"reserve is of {call.key}; the plan is for {self.key}")
        if call.interface != self.choice.interface:
            raise ArgumentError(
                f"reserve is of interface={call.interface!r}; "
                f"the plan's is {self.choice.interface!r}"
            )
        return call

    def _run(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        operands: list[DeviceArray],
        reserve: DeviceArray | None,
        clear: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Make the calls of a pass, with workspace and reserve space."""
        random_states = self._random_states(self.key.dropout_state)
        all_operands = [*operands, *self._interface.constants, reserve, random_states]
        scratch = self._handle.workspace.reserve(self.workspace, self._handle.stream)
        reserve_address = 0 if reserve is None else reserve.ptr
        spaces = Spaces(scratch, reserve_address)
        self._call(function, (*arguments, spaces), all_operands, clear)

    def _explain(self, error: CudnnError) -> None:
        error.involving(spec=self.spec, q=self.key.q, k=self.key.k, v=self.key.v)


def _inputs(
    call: AttentionCall, reserve: AttentionReserve, dy: DeviceArray
) -> dict[str, DeviceArray]:
    """Return the operands that a backward pass reads, by name."""
    return {
        "dy": dy,
        "q": call.q,
        "k": call.k,
        "v": call.v,
        "weights": call.weights.array,
        "reserve": reserve.array,
    }


def kept_plan(handle: Handle, key: AttentionPlanKey) -> AttentionPlan[Any]:
    """Return the plan that the handle keeps for a key, and for the tuner that chooses now."""
    chooser = handle.chooser
    kind = key if chooser is None else (key, chooser, chooser.revision)
    plan: AttentionPlan[Any] = handle.plans.get(kind, AttentionPlan, handle, key)
    return plan
