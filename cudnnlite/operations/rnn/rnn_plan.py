"""`RNNPlan`: a recurrent network made once and called many times, forward and backward.

It is no `OperationPlan`, because the sizes of operands and workspace depend on the lengths of the
sequences of each call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import get_ident
from typing import Any, Generic, TypeVar

from cudnnlite._raw.calls import PreparedCall
from cudnnlite._raw.enums import WgradMode
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import RNNMode
from cudnnlite.errors import (
    ArgumentError,
    ArrayTypeError,
    BadParamError,
    CudnnError,
    NotSupportedError,
)
from cudnnlite.operations.rnn.native_rnn import (
    NativeRNN,
    RNNPlanKey,
    cell_spec,
    explain,
    hidden_spec,
)
from cudnnlite.operations.rnn.outputs import (
    ForwardCall,
    RNNGradients,
    RNNOutput,
    RNNReserve,
    RNNTrainingOutput,
    output_arrays,
)
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.operands import check_workspace, on_device, operand_spec
from cudnnlite.plans.ranges import in_range
from cudnnlite.plans.replay import Operand, Replay, ReplayedCall
from cudnnlite.plans.stateful_plan import StatefulPlan, check_outputs, check_spec
from cudnnlite.problems import call_watch
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.rnn import FORWARD
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.warn import log

# RNNOutput, or RNNTrainingOutput.
OutputT = TypeVar("OutputT")
# The number of kinds of sequences that CUDA graphs are kept for.
_MAX_REPLAYED = 4


class RNNPlan(StatefulPlan, Generic[OutputT]):
    """A recurrent network on one handle, for one batch size and layout: `plan(weights, x, hx, cx)`.

    The lengths of the sequences and the number of steps may change from call to call.  cuDNN is
    asked for the sizes of workspace and reserve space again only if they do.  `rnn_forward.plan`
    makes the plan.

    Attributes
    ----------
    spec : RNNSpec
        The network.
    choice : AlgorithmResult
        Algorithm and math type of each call, with the workspace that the last call needed.
    workspace, reserve : int
        Bytes of scratch memory and of reserve space that the last call needed.

    Notes
    -----
    C functions of a call: `cudnnRNNForward`; for sequences of other lengths than those of the call
    before, also `cudnnSetRNNDataDescriptor` and `cudnnGetRNNTempSpaceSizes`.
    """

    _weights_type, _reserve_type = RNNWeights, RNNReserve

    def __init__(self, handle: Handle, key: RNNPlanKey) -> None:
        super().__init__(
            handle, f"RNNPlan of {key.spec} by {key.choice.algorithm}, {key.choice.math_type}"
        )
        self.key = key
        self.spec: RNNSpec = key.spec
        self._weights_kind = key.spec.weights_of()
        self._forward: PreparedCall | ReplayedCall | None = None
        # The calls with CUDA graphs, by their sequences.
        self._replayed: dict[RNNDataSpec, ReplayedCall] = {}
        # The arguments of the last call: the same objects are not checked again.
        self._last_x_spec: TensorSpec | None = None
        self._last_lengths: Any = None
        # A weak reference: a plan keeps no weights alive.
        self._last_weights: Callable[[], RNNWeights | None] = _no_weights
        self._addresses: dict[str, int] = {}
        try:
            self._network = NativeRNN(handle, key, self._resources)
            log.debug("%s", self._description)
            self._resources.callback(_close_all, self._replayed)
        except BaseException as error:
            if isinstance(error, CudnnError):
                explain(error, key, None)
            self.close()
            raise

    @property
    def replay(self) -> Replay | None:
        """What a plan made with ``replay=True`` did so far; None for any other plan.

        It counts the calls with sequences of the last call's kind.
        """
        if isinstance(self._forward, ReplayedCall):
            return self._forward.state
        return None

    @property
    def choice(self) -> AlgorithmResult:
        """Algorithm and math type of each call, with the workspace that the last one needed."""
        return replace(self.key.choice, workspace=self.workspace, replay=self.key.replay)

    @property
    def workspace(self) -> int:
        """The bytes of scratch memory that the last call needed."""
        return self._network.workspace

    @property
    def exceeds_limit(self) -> bool:
        """Whether the last call needed more workspace than it may use."""
        return self._network.exceeds_limit

    @property
    def reserve(self) -> int:
        """The bytes of reserve space that the last call needed; 0 in inference."""
        return self._network.reserve

    @in_range
    def __call__(
        self,
        weights: RNNWeights,
        x: AnyArray,
        hx: AnyArray | None = None,
        cx: AnyArray | None = None,
        *,
        lengths: Iterable[int] | None = None,
        out: Sequence[Any] | None = None,
        reserve: RNNReserve | None = None,
        workspace: Any = None,
    ) -> OutputT:
        """Enqueue the forward pass on the handle's stream.

        Parameters
        ----------
        weights, x, hx, cx, lengths, out, reserve, workspace
            As in `rnn_forward`.

        Returns
        -------
        RNNOutput or RNNTrainingOutput

        Raises
        ------
        ArgumentError, ArrayTypeError, ClosedError, ThreadError
            Before anything is written.
        CudnnError
            The C function failed.
        """
        if self._closed or get_ident() != self._thread or call_watch.active:
            self._use()
        network = self._network
        x = on_device(self._handle, x, "x")
        if weights is None or weights is not self._last_weights():
            self._check_weights(weights)
        if not self._describes(x.spec, lengths):
            self.describe(x.spec, lengths)
        hx, cx = self._states(hx, cx, "hx", "cx")
        y, hy, cy = self._results(out, ("y", "hy", "cy"), network.y)
        space = self._reserve_space(reserve, network.reserve, training=self.key.training)
        scratch = None
        if workspace is not None:
            scratch = check_workspace(self._handle, workspace, network.workspace)
        random_states = self._random_states(self.key.dropout_state)
        inputs = {
            "x": x,
            "weights": weights.array,
            "hx": hx,
            "cx": cx,
            "dropout_state": random_states,
        }
        if space is not None:
            inputs["reserve"] = space.array
        outputs = {"y": y, "hy": hy, "cy": cy, "workspace": scratch}
        scratch_address = self._scratch() if scratch is None else scratch.ptr
        reserve_address = 0 if space is None else space.array.ptr
        addresses = {
            "x": x.ptr,
            "y": y.ptr,
            "hx": _address(hx),
            "hy": hy.ptr,
            "cx": _address(cx),
            "cy": _address(cy),
            "weightSpace": weights.array.ptr,
            "workSpace": scratch_address,
            "reserveSpace": reserve_address,
        }
        forward = self._forward
        assert forward is not None
        is_readonly = y.readonly or hy.readonly
        if cy is not None:
            is_readonly = is_readonly or cy.readonly
        if addresses != self._addresses or is_readonly:
            check_outputs(inputs, outputs)
            # After an interrupt in `replace`, the addresses of the call are unknown.
            self._addresses = {}
            forward.replace(**addresses)
            self._addresses = addresses
        if space is not None:
            space.begin()
        self._call(forward, (), [*inputs.values(), *outputs.values()])
        data = network.data
        assert data is not None
        if call_watch.active:
            recorded_data = data.replace(padding_fill=float(self.key.padding_fill))
            problem = Problem(
                FORWARD, spec=self.spec, data=recorded_data, training=self.key.training
            )
            call_watch.record(problem)
        if space is None:
            return RNNOutput(y, hy, cy)  # type: ignore[return-value]
        space.finish(ForwardCall(self.key, data, weights, x, hx, cx, y))
        return RNNTrainingOutput(y, hy, cy, space)  # type: ignore[return-value]

    @in_range
    def backward_data(
        self,
        reserve: RNNReserve,
        dy: AnyArray | None = None,
        dhy: AnyArray | None = None,
        dcy: AnyArray | None = None,
        *,
        out: Sequence[AnyArray | None] | None = None,
    ) -> RNNGradients:
        """Enqueue the backward pass over the data; see `rnn_backward_data`."""
        self._use()
        call = self._recall(reserve, has_gradients=False)
        network = self._network
        if dy is None and dhy is None and dcy is None:
            raise ArgumentError(
                "none of dy, dhy and dcy is given: there is no gradient to go back from"
            )
        if dy is None:
            # cuDNN reads dy even if its pointer is null.
            dy = arrays.empty(self._device, self._handle.stream, network.y)
            dy.fill(0)
        dy = self._operand(dy, "dy", network.y)
        dhy, dcy = self._states(dhy, dcy, "dhy", "dcy")
        dx, dhx, dcx = self._results(out, ("dx", "dhx", "dcx"), call.data.tensor())
        inputs = {
            "x": call.x,
            "y": call.y,
            "dy": dy,
            "weights": call.weights.array,
            "hx": call.hx,
            "cx": call.cx,
            "dhy": dhy,
            "dcy": dcy,
            "dropout_state": self._random_states(self.key.dropout_state),
            "reserve": reserve.array,
        }
        outputs = {"dx": dx, "dhx": dhx, "dcx": dcx}
        check_outputs(inputs, outputs)
        arguments = (
            self._handle.ptr,
            network.rnn.ptr,
            None,
            network.y_desc.ptr,
            call.y.ptr,
            dy.ptr,
            network.x_desc.ptr,
            dx.ptr,
            network.h_desc,
            _address(call.hx),
            _address(dhy),
            dhx.ptr,
            network.c_desc,
            _address(call.cx),
            _address(dcy),
            _address(dcx),
            network.weight_bytes,
            call.weights.array.ptr,
            network.workspace,
            self._scratch(),
            network.reserve,
            reserve.array.ptr,
        )
        function = self._handle.api.cudnnRNNBackwardData_v8
        reserve.begin()
        try:
            self._call(function, arguments, [*inputs.values(), *outputs.values()])
        except (NotSupportedError, BadParamError):
            # cuDNN refused the call and wrote nothing, so that the reserve space is as before.
            reserve.finish(call)
            raise
        reserve.finish(call, has_gradients=True)
        return RNNGradients(dx, dhx, dcx)

    @in_range
    def backward_weights(
        self, reserve: RNNReserve, *, out: RNNWeights | None = None, accumulate: bool = False
    ) -> RNNWeights:
        """Enqueue the backward pass over the weights; see `rnn_backward_weights`."""
        self._use()
        call = self._recall(reserve, has_gradients=True)
        network = self._network
        inputs = {
            "x": call.x,
            "y": call.y,
            "weights": call.weights.array,
            "hx": call.hx,
            "reserve": reserve.array,
        }
        is_replaced = out is not None and not accumulate
        out = self._gradients(call.weights, out, accumulate, inputs)
        self._random_states(self.key.dropout_state)
        arguments = (
            self._handle.ptr,
            network.rnn.ptr,
            WgradMode.ADD,
            None,
            network.x_desc.ptr,
            call.x.ptr,
            network.h_desc,
            _address(call.hx),
            network.y_desc.ptr,
            call.y.ptr,
            network.weight_bytes,
            out.array.ptr,
            network.workspace,
            self._scratch(),
            network.reserve,
            reserve.array.ptr,
        )
        function = self._handle.api.cudnnRNNBackwardWeights_v8
        operands = [call.x, call.hx, call.y, out.array, reserve.array]
        clear = []
        if is_replaced:
            # cuDNN can only add gradients: WgradMode.SET is NOT_SUPPORTED.
            clear.append((out.array.ptr, out.array.nbytes))
        self._call(function, arguments, operands, clear)
        return out

    def _explain(self, error: CudnnError) -> None:
        explain(error, self.key, self._network.data)

    def _describes(self, x: TensorSpec, lengths: Any) -> bool:
        """Whether the descriptors describe these sequences already."""
        if lengths is not self._last_lengths:
            return False
        return x is self._last_x_spec or x == self._last_x_spec

    def describe(self, x: TensorSpec, lengths: Iterable[int] | None = None) -> None:
        """Describe sequences to cuDNN, as a call does, and set `workspace` and `reserve`."""
        data = self._network.check_data(x, lengths)
        if data != self._network.data:
            self._describe_data(data)
        is_immutable = lengths is None or isinstance(lengths, tuple)
        if is_immutable:
            self._last_x_spec, self._last_lengths = x, lengths
        else:
            # A list may be changed before the next call.
            self._last_x_spec = self._last_lengths = None

    def check_operands(
        self, weights: RNNWeights, x: DeviceArray, hx: Any, cx: Any, lengths: Iterable[int] | None
    ) -> tuple[DeviceArray | None, DeviceArray | None]:
        """Check the arguments of a call without making it; return hx and cx as device arrays."""
        self._check_weights(weights)
        self._network.check_data(x.spec, lengths)
        return self._states(hx, cx, "hx", "cx")

    def check_descriptions(self, weights: Any, hx: Any, cx: Any) -> None:
        """Check the weights and states of `rnn_forward.plan`: specs may stand for arrays."""
        if weights is not None:
            self._check_weights(weights)
        check_state_specs(self.spec, self.key.batch, self._handle, hx, cx)

    def new_outputs(self) -> tuple[DeviceArray, DeviceArray, DeviceArray | None]:
        """Allocate arrays for the `out` of a call; after `describe`."""
        return self._results(None, ("y", "hy", "cy"), self._network.y)

    def new_reserve(self) -> RNNReserve | None:
        """Allocate a reserve space for the `reserve` of a call; after `describe`.

        None in inference.
        """
        nbytes = self._network.reserve
        space: RNNReserve | None = self._reserve_space(None, nbytes, training=self.key.training)
        return space

    def _describe_data(self, data: RNNDataSpec) -> None:
        network = self._network
        # From here on the descriptors no longer describe the last call's sequences.
        self._last_x_spec = self._last_lengths = None
        try:
            network.describe_data(data)
            self._addresses = {}
            if data in self._replayed:
                self._forward = self._replayed[data]
                return
            forward = self._prepare_forward()
            self._forward = self._replaying(forward, data) if self.key.replay else forward
        except BaseException as error:
            # After an error or an interrupt, the next call describes its sequences again.
            network.data = None
            if isinstance(error, CudnnError):
                explain(error, self.key, data)
            raise

    def _prepare_forward(self) -> PreparedCall:
        """Marshal the forward call, without the addresses of its operands."""
        network = self._network
        return self._handle.api.prepare(
            "cudnnRNNForward",
            self._handle.ptr,
            network.rnn.ptr,
            network.mode,
            None,
            network.x_desc.ptr,
            0,
            network.y_desc.ptr,
            0,
            network.h_desc,
            0,
            0,
            network.c_desc,
            0,
            0,
            network.weight_bytes,
            0,
            network.workspace,
            0,
            network.reserve,
            0,
        )

    def _replaying(self, forward: PreparedCall, data: RNNDataSpec) -> ReplayedCall:
        """Return the forward call as one that is launched as a graph, kept for these sequences."""
        if len(self._replayed) >= _MAX_REPLAYED:
            oldest = next(iter(self._replayed))
            self._replayed.pop(oldest).close()
        # If each call has new lengths, a recording is not worthwhile: only the first kind of
        # sequences is recorded at its first call.
        waits = bool(self._replayed)
        replayed = ReplayedCall(self._handle, forward, self._staged_operands(data), waits=waits)
        self._replayed[data] = replayed
        return replayed

    def _staged_operands(self, data: RNNDataSpec) -> dict[str, Operand]:
        """Return the operands that a graph may have copies of.

        There are none in training, because a reserve space is too large to be copied.
        """
        if self.key.training:
            return {}
        network = self._network
        inputs = {"x": data.tensor(), "hx": network.hidden}
        outputs = {"y": network.y, "hy": network.hidden}
        if network.lstm:
            inputs["cx"] = network.cell
            outputs["cy"] = network.cell
        operands = {}
        for name, spec in inputs.items():
            operands[name] = Operand(spec.nbytes, read=True, written=False)
        for name, spec in outputs.items():
            operands[name] = Operand(spec.nbytes, read=False, written=True)
        return operands

    def _recall(self, reserve: Any, *, has_gradients: bool) -> ForwardCall:
        """Return the forward call of a reserve space, and describe its sequences to cuDNN again."""
        call = RNNReserve.checked(self._handle, reserve).recall(has_gradients=has_gradients)
        if not self.key.computes_as(call.key):
            raise ArgumentError(f"reserve is of {call.key}; the plan is for {self.key}")
        if call.data != self._network.data:
            self._describe_data(call.data)
        return call

    def _scratch(self) -> int:
        """Return the address of the handle's workspace."""
        return self._handle.workspace.reserve(
            self._network.workspace, self._handle.stream, self.key.workspace_limit
        )

    def _check_weights(self, weights: Any, argument: str = "weights") -> None:
        super()._check_weights(weights, argument)
        if weights.nbytes != self._network.weight_bytes:
            raise ArgumentError(
                f"{argument} have {weights.nbytes} bytes; "
                f"{self.choice.algorithm} wants {self._network.weight_bytes}"
            )
        if argument == "weights":
            self._last_weights = weakref.ref(weights)

    def _states(
        self, h: Any, c: Any, h_name: str, c_name: str
    ) -> tuple[DeviceArray | None, DeviceArray | None]:
        """Return states or their gradients on the device; None for one that is not given."""
        network = self._network
        _check_states(self.spec, h, c, h_name, c_name)
        hidden = None if h is None else self._operand(h, h_name, network.hidden)
        cell = None if c is None else self._operand(c, c_name, network.cell)
        return hidden, cell

    def _results(
        self, out: Any, names: tuple[str, str, str], sequences: TensorSpec
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray | None]:
        """Return the arrays to write, the sequences and the states: the caller's, or new ones.

        The third one is None unless the network is an LSTM.
        """
        network = self._network
        if network.lstm:
            specs = (sequences, network.hidden, network.cell)
            y, h, c = self._outputs(output_arrays(out, 3), names, specs, "out['{}']")
            return y, h, c
        y, h = self._outputs(
            output_arrays(out, 2), names[:2], (sequences, network.hidden), "out['{}']"
        )
        return y, h, None


def check_state_specs(spec: RNNSpec, batch: int, handle: Handle | None, hx: Any, cx: Any) -> None:
    """Check the first states, or the specs that stand for them."""
    _check_states(spec, hx, cx, "hx", "cx")
    if hx is not None:
        check_spec(operand_spec(handle, hx, "hx"), "hx", hidden_spec(spec, batch))
    if cx is not None:
        check_spec(operand_spec(handle, cx, "cx"), "cx", cell_spec(spec, batch))


def _check_states(spec: RNNSpec, h: Any, c: Any, h_name: str, c_name: str) -> None:
    if c is not None and spec.cell != RNNMode.LSTM:
        raise ArgumentError(
            f"{c_name} is given to a {spec.cell.name}; only an LSTM has a cell state"
        )
    if isinstance(h, tuple):
        raise ArrayTypeError(f"{h_name} is a tuple; pass {h_name} and {c_name} separately")


def _no_weights() -> None:
    return None


def _address(array: DeviceArray | None) -> int:
    return 0 if array is None else array.ptr


def _close_all(replayed: dict[RNNDataSpec, ReplayedCall]) -> None:
    for call in replayed.values():
        call.close()
