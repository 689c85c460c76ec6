"""`RNNPlan`: a recurrent network made once and called many times, forward and backward.

By hand, and not an operation as data, because sizes depend on each call's lengths besides: a description that could say all
that would be longer than this code.
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
from cudnnlite.errors import (
    ArgumentError,
    ArrayTypeError,
    BadParamError,
    CudnnError,
    NotSupportedError,
)
from cudnnlite.operations.rnn.outputs import (
    ForwardCall,
    RNNGradients,
    RNNOutput,
    RNNReserve,
    RNNTrainingOutput,
    written_of,
)
from cudnnlite.operations.rnn.problem import RNNProblem, RNNRequest, explain
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.operands import check_workspace, on_device
from cudnnlite.plans.replay import Operand, Replay, ReplayedCall, parse_replay
from cudnnlite.plans.stateful_plan import PlanByHand, check_outputs
from cudnnlite.problems import call_watch, recording
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.rnn import forward_problem
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.warn import log

OutputT = TypeVar("OutputT")  # RNNOutput, or RNNTrainingOutput
_MOST_REPLAYED = 4  # kinds of sequences that graphs are kept for


class RNNPlan(PlanByHand, Generic[OutputT]):
    """A recurrent network on one handle, for one batch size and layout: `plan(weights, x, hx, cx)`.  See `rnn_forward.plan`.

    The sequences' lengths, and how many steps there is room for, may change from call to call; what depends on them is
    asked again only where they do.

    Attributes
    ----------
    spec : RNNSpec
        What it was made for.
    choice : AlgorithmResult
        Algorithm and math type that each call uses, with the workspace that the last one needed.
    workspace, reserve : int
        Bytes that the last call needed, of scratch memory and of reserve space.

    Notes
    -----
    C functions of a call: `cudnnRNNForward`; where sequences have other lengths than before, `cudnnSetRNNDataDescriptor` and
    `cudnnGetRNNTempSpaceSizes`.
    """

    _weights_type, _reserve_type = RNNWeights, RNNReserve

    def __init__(self, handle: Handle, request: RNNRequest, *, replay: bool = False) -> None:
        self._replays = parse_replay(replay) or request.choice.replay
        super().__init__(
            handle,
            f"RNNPlan of {request.spec} by {request.choice.algorithm}, {request.choice.math_type}",
        )
        self.spec: RNNSpec = request.spec
        self._request = request
        self._weights_kind = request.spec.weights_of()
        self._forward: PreparedCall | ReplayedCall | None = None
        self._replayed: dict[RNNDataSpec, ReplayedCall] = {}  # by the sequences that each is for
        # what the last call was given: the same objects need not be looked at again
        self._x_seen: TensorSpec | None = None
        self._lengths_seen: Any = None
        self._weights_seen: Callable[[], RNNWeights | None] = lambda: (
            None
        )  # weakly: a plan keeps no weights alive
        self._pointers: dict[str, int] = {}
        try:
            self._problem = RNNProblem(handle, request, self._resources)
            log.debug("%s", self._description)
            self._resources.callback(_close_all, self._replayed)
        except BaseException as error:
            if isinstance(error, CudnnError):
                explain(error, request, None)
            self.close()
            raise

    @property
    def replay(self) -> Replay | None:
        """What a plan made with ``replay=True`` did so far with sequences such as the last call's; None for any other."""
        return self._forward.state if isinstance(self._forward, ReplayedCall) else None

    @property
    def choice(self) -> AlgorithmResult:
        """Algorithm and math type that each call uses, with the workspace that the last one needed."""
        return replace(self._request.choice, workspace=self.workspace)

    @property
    def workspace(self) -> int:
        """The bytes of scratch memory that the last call needed."""
        return self._problem.workspace

    @property
    def reserve(self) -> int:
        """The bytes of reserve space that the last call needed; 0 in inference."""
        return self._problem.reserve

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
            self.use()
        problem = self._problem
        x = on_device(self._handle, x, "x")
        if weights is None or weights is not self._weights_seen():
            self._check_weights(weights)
        if lengths is not self._lengths_seen or (
            x.spec is not self._x_seen and x.spec != self._x_seen
        ):
            self.describe(x.spec, lengths)
        hx, cx = self._hidden(hx, cx, "hx", "cx")
        y, hy, cy = self._results(out, ("y", "hy", "cy"), problem.y)
        space = self._reserve_space(reserve, problem.reserve, training=self._request.training)
        own = (
            None
            if workspace is None
            else check_workspace(self._handle, workspace, problem.workspace)
        )
        states = self._states(self._request.dropout_state)
        inputs = {"x": x, "weights": weights.array, "hx": hx, "cx": cx, "dropout_state": states}
        if space is not None:
            inputs["reserve"] = space.array
        outputs = {"y": y, "hy": hy, "cy": cy, "workspace": own}
        pointers = {
            "x": x.ptr,
            "y": y.ptr,
            "hx": _address(hx),
            "hy": hy.ptr,
            "cx": _address(cx),
            "cy": _address(cy),
            "weightSpace": weights.array.ptr,
            "workSpace": self._scratch() if own is None else own.ptr,
            "reserveSpace": 0 if space is None else space.array.ptr,
        }
        assert self._forward is not None
        if (
            pointers != self._pointers
            or y.readonly
            or hy.readonly
            or (cy is not None and cy.readonly)
        ):
            check_outputs(inputs, outputs)
            self._pointers = {}  # an interrupt in the next line must not leave addresses that nobody knows of
            self._forward.replace(**pointers)
            self._pointers = pointers
        if space is not None:
            space.begin()
        self._call(self._forward, (), [*inputs.values(), *outputs.values()])
        assert problem.data is not None
        if call_watch.active:
            recording.record(forward_problem(self.spec, problem.data, self._request.training))
        if space is None:
            return RNNOutput(y, hy, cy)  # type: ignore[return-value]
        space.finish(ForwardCall(self._request, problem.data, weights, x, hx, cx, y))
        return RNNTrainingOutput(y, hy, cy, space)  # type: ignore[return-value]

    def backward_data(
        self,
        reserve: RNNReserve,
        dy: AnyArray | None = None,
        dhy: AnyArray | None = None,
        dcy: AnyArray | None = None,
        *,
        out: Sequence[AnyArray | None] | None = None,
    ) -> RNNGradients:
        """Enqueue the backward pass over the data (`cudnnRNNBackwardData_v8`); see `rnn_backward_data`."""
        self.use()
        call, problem = self._recall(reserve, has_gradients=False), self._problem
        if dy is None:  # cuDNN follows that pointer
            if dhy is None and dcy is None:
                raise ArgumentError(
                    "none of dy, dhy and dcy is given: there is no gradient to go back from"
                )
            dy = arrays.empty(self._device, self._handle.stream, problem.y)
            dy.fill(0)
        dy = self._operand(dy, "dy", problem.y)
        dhy, dcy = self._hidden(dhy, dcy, "dhy", "dcy")
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
            "dropout_state": self._states(self._request.dropout_state),
            "reserve": reserve.array,
        }
        outputs = {"dx": dx, "dhx": dhx, "dcx": dcx}
        check_outputs(inputs, outputs)
        arguments = (
            self._handle.ptr,
            problem.rnn.ptr,
            None,
            problem.y_desc.ptr,
            call.y.ptr,
            dy.ptr,
            problem.x_desc.ptr,
            dx.ptr,
            problem.h_desc,
            _address(call.hx),
            _address(dhy),
            dhx.ptr,
            problem.c_desc,
            _address(call.cx),
            _address(dcy),
            _address(dcx),
            problem.weight_bytes,
            call.weights.array.ptr,
            problem.workspace,
            self._scratch(),
            problem.reserve,
            reserve.array.ptr,
        )
        function = self._handle.api.cudnnRNNBackwardData_v8
        reserve.begin()
        try:
            self._call(function, arguments, [*inputs.values(), *outputs.values()])
        except (NotSupportedError, BadParamError):  # refused: nothing was written
            reserve.finish(call)
            raise
        reserve.finish(call, has_gradients=True)
        return RNNGradients(dx, dhx, dcx)

    def backward_weights(
        self, reserve: RNNReserve, *, out: RNNWeights | None = None, accumulate: bool = False
    ) -> RNNWeights:
        """Enqueue the backward pass over the weights (`cudnnRNNBackwardWeights_v8`); see `rnn_backward_weights`."""
        self.use()
        call, problem = self._recall(reserve, has_gradients=True), self._problem
        inputs = {
            "x": call.x,
            "y": call.y,
            "weights": call.weights.array,
            "hx": call.hx,
            "reserve": reserve.array,
        }
        replaced = out is not None and not accumulate
        out = self._gradients(call.weights, out, accumulate, inputs)
        self._states(self._request.dropout_state)
        arguments = (
            self._handle.ptr,
            problem.rnn.ptr,
            WgradMode.ADD,
            None,
            problem.x_desc.ptr,
            call.x.ptr,
            problem.h_desc,
            _address(call.hx),
            problem.y_desc.ptr,
            call.y.ptr,
            problem.weight_bytes,
            out.array.ptr,
            problem.workspace,
            self._scratch(),
            problem.reserve,
            reserve.array.ptr,
        )
        function = self._handle.api.cudnnRNNBackwardWeights_v8
        # cuDNN can only add (WgradMode.SET is NOT_SUPPORTED), so what should be replaced is cleared first
        operands = [call.x, call.hx, call.y, out.array, reserve.array]
        self._call(
            function,
            arguments,
            operands,
            clear=[(out.array.ptr, out.array.nbytes)] if replaced else (),
        )
        return out

    def _explain(self, error: CudnnError) -> None:
        explain(error, self._request, self._problem.data)

    def describe(self, x: TensorSpec, lengths: Iterable[int] | None = None) -> None:
        """Describe sequences to cuDNN, as a call does, so that `workspace` and `reserve` are theirs."""
        data = self._problem.check_data(x, lengths)
        if data != self._problem.data:
            self._tell_data(data)
        unchanging = lengths is None or isinstance(
            lengths, tuple
        )  # a list may be changed before the next call
        self._x_seen, self._lengths_seen = (x, lengths) if unchanging else (None, None)

    def check_operands(
        self, weights: RNNWeights, x: DeviceArray, hx: Any, cx: Any, lengths: Iterable[int] | None
    ) -> tuple[DeviceArray | None, DeviceArray | None]:
        """Check what a call would be given, without a call; return hx and cx as device arrays."""
        self._check_weights(weights)
        self._problem.check_data(x.spec, lengths)
        return self._hidden(hx, cx, "hx", "cx")

    def new_outputs(self) -> tuple[DeviceArray, DeviceArray, DeviceArray | None]:
        """Allocate what a call writes, for its `out`; after `describe`."""
        return self._results(None, ("y", "hy", "cy"), self._problem.y)

    def new_reserve(self) -> RNNReserve | None:
        """Allocate a call's reserve space, for its `reserve`; None in inference; after `describe`."""
        return self._reserve_space(None, self._problem.reserve, training=self._request.training)  # type: ignore[no-any-return]

    def _tell_data(self, data: Any) -> None:
        problem = self._problem
        self._x_seen = self._lengths_seen = (
            None  # whatever was seen before is not what cuDNN is told of now
        )
        try:
            problem.tell_data(data)
            self._pointers = {}
            if data in self._replayed:
                self._forward = self._replayed[data]
                return
            forward = self._handle.api.prepare(
                "cudnnRNNForward",
                self._handle.ptr,
                problem.rnn.ptr,
                problem.mode,
                None,
                problem.x_desc.ptr,
                0,
                problem.y_desc.ptr,
                0,
                problem.h_desc,
                0,
                0,
                problem.c_desc,
                0,
                0,
                problem.weight_bytes,
                0,
                problem.workspace,
                0,
                problem.reserve,
                0,
            )
            self._forward = self._replaying(forward, data) if self._replays else forward
        except BaseException as error:  # an interrupt, too
            problem.data = None  # cuDNN is told again by the next call
            if isinstance(error, CudnnError):
                explain(error, self._request, data)
            raise

    def _replaying(self, forward: PreparedCall, data: RNNDataSpec) -> ReplayedCall:
        """Return a call that is launched as a graph; kept for these sequences."""
        staged = {}
        if not self._request.training:  # a reserve space is too large to be copied
            problem = self._problem
            specs = {"x": data.tensor(), "hx": problem.hidden, "y": problem.y, "hy": problem.hidden}
            specs |= {"cx": problem.cell, "cy": problem.cell} if problem.lstm else {}
            staged = {
                name: Operand(spec.nbytes, name[-1] == "x", name[-1] == "y")
                for name, spec in specs.items()
            }
        if len(self._replayed) >= _MOST_REPLAYED:
            self._replayed.pop(next(iter(self._replayed))).close()
        # lengths that are new at each call are not worth a recording
        made = self._replayed[data] = ReplayedCall(
            self._handle, forward, staged, waits=bool(self._replayed)
        )
        return made

    def _recall(self, reserve: Any, *, has_gradients: bool) -> ForwardCall:
        """Return the forward call of a reserve space, with its sequences described to cuDNN again."""
        call = RNNReserve.checked(self._handle, reserve).recall(has_gradients=has_gradients)
        if call.plan != self._request:
            raise ArgumentError(f"reserve is of {call.plan}; the plan is for {self._request}")
        if call.data != self._problem.data:
            self._tell_data(call.data)
        return call

    def _scratch(self) -> int:
        """Return the address of the handle's workspace."""
        limit = self._request.workspace_limit
        return self._handle.workspace.reserve(
            self._problem.workspace, self._handle.stream, limit=limit
        )

    def _check_weights(self, weights: Any, argument: str = "weights") -> None:
        super()._check_weights(weights, argument)
        if weights.nbytes != self._problem.weight_bytes:
            raise ArgumentError(
                f"{argument} have {weights.nbytes} bytes; {self.choice.algorithm} wants {self._problem.weight_bytes}"
            )
        if argument == "weights":
            self._weights_seen = weakref.ref(weights)

    def _hidden(
        self, h: Any, c: Any, h_name: str, c_name: str
    ) -> tuple[DeviceArray | None, DeviceArray | None]:
        problem = self._problem
        if c is not None and not problem.lstm:
            raise ArgumentError(
                f"{c_name} is given to a {self.spec.cell.name}; only an LSTM has a cell state"
            )
        if isinstance(h, tuple):
            raise ArrayTypeError(f"{h_name} is a tuple; pass {h_name} and {c_name} separately")
        hidden = None if h is None else self._operand(h, h_name, problem.hidden)
        return hidden, None if c is None else self._operand(c, c_name, problem.cell)

    def _results(
        self, out: Any, names: tuple[str, str, str], first: TensorSpec
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray | None]:
        """Return the arrays to write, sequences and states: the caller's, or new ones; the third is None but for an LSTM."""
        count = 3 if self._problem.lstm else 2
        specs = (first, self._problem.hidden, self._problem.cell)[:count]
        y, h, *c = self._outputs(written_of(out, count), names[:count], specs, "out['{}']")
        return y, h, c[0] if c else None


def _address(array: DeviceArray | None) -> int:
    return 0 if array is None else array.ptr


def _close_all(replayed: dict[RNNDataSpec, ReplayedCall]) -> None:
    for call in replayed.values():
        call.close()
