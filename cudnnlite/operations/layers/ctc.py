"""Connectionist temporal classification: `ctc_loss`.

It is no `Operation`, because it has two C functions: one takes labels and lengths on the host, the
other takes them on the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from cudnnlite.arguments import instance_of, one_of, refused_as
from cudnnlite.descriptors.layers import CTCLossDescriptor
from cudnnlite.descriptors.native import c_ints, device_ints
from cudnnlite.descriptors.rnn import RNNStateDescriptor
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.device import refuse_in_capture
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import CTCGradMode, CTCLossAlgo, DataType, parse_enum
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError
from cudnnlite.plans.function import BoundCall, Method
from cudnnlite.plans.operands import on_device, operand_spec, use
from cudnnlite.plans.ranges import in_range
from cudnnlite.plans.stateful_function import (
    StatefulFunction,
    refuse_arguments_of_calls,
    refuse_problem,
    stateful_operation,
)
from cudnnlite.plans.stateful_plan import StatefulPlan, check_outputs
from cudnnlite.problems.operation import all_of
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import CTCLossSpec

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

# The labels, the lengths of the labels, and the lengths of the inputs.
Integers = tuple[Any, Any, Any]

_NAMES = ("labels", "label_lengths", "input_lengths")
_DEFAULT_CTC = CTCLossSpec()
_MOST_LABELS = 255  # of a sequence, by the deterministic algorithm
_PLAN_DOC = """\
Make the descriptors of `{name}` once, for many calls with logits of one shape.

Parameters
----------
handle : Handle
    The plan belongs to it and is closed with it.
x : TensorSpec or device array
    As in `{name}`.
labels, label_lengths, input_lengths
    Arguments of each call of the plan; they may be None here.  Checked if all three are given.
ctc, algorithm, gradients
    As in `{name}`.
out
    Refused here: it is an argument of each call of the plan.

Returns
-------
CTCLossPlan
    To be called as `plan(x, labels, label_lengths, input_lengths, out=...)`.

Raises
------
ArgumentError, NotSupportedError, BadParamError
    As in `{name}`.

Examples
--------
>>> with dnn.Handle() as handle:
...     x = handle.array(np.zeros((2, 1, 3), np.float32))
...     with dnn.ctc_loss.plan(handle, x, None, None, None, gradients=False) as plan:
...         for label in (1, 2):
...             costs, _ = plan(x, [label], [1], [2])
...     print(np.exp(costs.numpy()).round(3))
[3.]
"""


def _ctc_operation(
    bind: Callable[Concatenate[Handle, P], BoundCall[ResultT]],
) -> StatefulFunction[P, ResultT, CTCLossPlan]:
    """Make the public operation `ctc_loss` of the function that binds its arguments."""
    return stateful_operation(bind, Method(_PLAN_DOC, "CTCLossPlan"))


@_ctc_operation
def ctc_loss(
    handle: Handle,
    x: Operand,
    labels: ArrayLike | AnyArray | None,
    label_lengths: ArrayLike | AnyArray | None,
    input_lengths: ArrayLike | AnyArray | None,
    ctc: CTCLossSpec = _DEFAULT_CTC,
    *,
    algorithm: CTCLossAlgo | str = CTCLossAlgo.DETERMINISTIC,
    gradients: bool = True,
    out: Sequence[AnyArray | None] | None = None,
) -> BoundCall[tuple[DeviceArray, DeviceArray | None]]:
    """Compute the CTC loss of each sequence of a batch, and its gradient.

    Label 0 is the blank.

    Parameters
    ----------
    handle : Handle
        The call is enqueued on its stream and is asynchronous.  The handle keeps the plan for the
        next call of the same kind.
    x : device array
        ``(T, N, A)``, float32 or float64.  For each step of each sequence it has the logits of A
        labels, or, with ``CTCLossSpec("none")``, their probabilities.  It is packed as ``(T, N,
        A)``, or is a transposed view of an array packed as ``(N, T, A)``.
    labels : array_like or device array of int32
        ``(sum of label_lengths,)``: the label numbers of all sequences, one sequence after the
        other, from 1 to A - 1.
    label_lengths, input_lengths : array_like or device array of int32
        ``(N,)``: how many labels each sequence has, from 1 on, and how many steps, 1 to T.  These
        two and `labels` are all on the host or all on the device.  On the host they are checked
        before the call.  On the device they are not: `ctc` has to have a `max_label_length`, and a
        longer sequence of labels ends in an illegal memory access (in `cudnnCTCLoss_v8`).
    ctc : CTCLossSpec
        Normalisation, gradients beyond a sequence's end, the greatest length of the labels.
    algorithm : CTCLossAlgo or str
        "deterministic", for up to 255 labels a sequence; or "non_deterministic".
    gradients : bool
        Whether the gradients are computed.  With False only the costs are.
    out : tuple of device arrays, optional
        The costs and the gradients, written in place.  New arrays are made if it is not given, and
        for an entry that is None.

    Returns
    -------
    costs : DeviceArray
        ``(N,)``: minus the logarithm of the probability of the sequence's labels.  If an input is
        too short for its labels, its cost and gradients are 0.  It needs one step for each label,
        and one more between two equal labels.
    gradients : DeviceArray or None
        The derivatives of the costs by the logits, laid out as `x`.  With ``CTCLossSpec("none")``
        they are the derivatives by the probabilities, but only of those that lie on a path of the
        labels.  Elsewhere the derivative is 0, but cuDNN 9.19 writes the value of `x`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError, BadParamError
        cuDNN does not support the combination.

    Notes
    -----
    C functions: `cudnnCTCLoss`, `cudnnGetCTCLossWorkspaceSize`, `cudnnCTCLoss_v8`,
    `cudnnGetCTCLossWorkspaceSize_v8`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.zeros((2, 1, 3), np.float32))  # each label has the probability 1/3
    ...     # Three of the nine paths: -2, 2-, 22.
    ...     costs, gradients = dnn.ctc_loss(handle, x, [2], [1], [2])
    ...     print(np.exp(costs.numpy()).round(3), gradients.numpy()[0].round(3))
    ...     lengths = [handle.array(np.array(n, np.int32)) for n in ([2], [1], [2])]
    ...     ctc = dnn.CTCLossSpec(max_label_length=1)
    ...     costs, _ = dnn.ctc_loss(handle, x, *lengths, ctc, gradients=False)
    [3.] [[ 0.     0.333 -0.333]]
    """
    return CTCLossRequest(
        handle,
        x,
        labels,
        label_lengths,
        input_lengths,
        ctc,
        algorithm=algorithm,
        gradients=gradients,
        out=out,
    )


@dataclass(eq=False, slots=True)
class CTCLossRequest:
    """The arguments of one call of `ctc_loss`, or of its plan."""

    handle: Any
    x: Any
    labels: Any
    label_lengths: Any
    input_lengths: Any
    ctc: Any
    algorithm: Any
    gradients: Any
    out: Any

    def run(self) -> tuple[DeviceArray, DeviceArray | None]:
        """Compute, by the plan that the handle keeps for calls of this kind."""
        use(self.handle)
        self.x = on_device(self.handle, self.x, "x")
        self._parse_options()
        key = ("ctc_loss", self.x.spec, self.ctc, self.algorithm, self.gradients)
        plan: CTCLossPlan | None = self.handle.plans.find(key)
        if plan is None:
            plan = self._new_plan(self.x.spec)
            self.handle.plans.keep(key, plan)
        return plan(self.x, self.labels, self.label_lengths, self.input_lengths, out=self.out)

    def plan(self) -> CTCLossPlan:
        """Make the descriptors once, for many calls of this kind."""
        use(self.handle)
        refuse_arguments_of_calls("ctc_loss", out=self.out)
        x = operand_spec(self.handle, self.x, "x")
        self._parse_options()
        plan = self._new_plan(x)
        integers = (self.labels, self.label_lengths, self.input_lengths)
        try:
            if all(values is not None for values in integers):
                plan._check_integers(integers)
        except BaseException:
            plan.close()
            raise
        return plan

    def problem(self) -> NoReturn:
        """Raise ArgumentError: there is no declaration."""
        refuse_problem("ctc_loss")

    def _parse_options(self) -> None:
        self.algorithm = parse_enum(CTCLossAlgo, self.algorithm, "algorithm")
        instance_of(self.ctc, CTCLossSpec, "ctc")
        one_of(self.gradients, "gradients", True, False)

    def _new_plan(self, x: TensorSpec) -> CTCLossPlan:
        return CTCLossPlan(self.handle, x, self.ctc, self.algorithm, gradients=self.gradients)


class CTCLossPlan(StatefulPlan):
    """The descriptors of `ctc_loss` for logits of one shape; `ctc_loss.plan` makes it.

    Parameters
    ----------
    handle : Handle
        The handle that makes the calls.
    x : TensorSpec
        The logits, of shape (steps, batch, labels).
    ctc : CTCLossSpec
        The loss.
    algorithm : CTCLossAlgo
        Deterministic or not.
    gradients : bool
        Whether each call computes the gradients of the logits.

    Attributes
    ----------
    x : TensorSpec
        The logits.
    costs : TensorSpec
        The costs.
    ctc : CTCLossSpec
        The loss, with the compute type filled in.
    algorithm : CTCLossAlgo
        The algorithm of each call.
    gradients : bool
        Whether each call computes the gradients of the logits.
    """

    def __init__(
        self,
        handle: Handle,
        x: TensorSpec,
        ctc: CTCLossSpec,
        algorithm: CTCLossAlgo,
        *,
        gradients: bool,
    ) -> None:
        _check_x(x)
        super().__init__(handle, f"CTCLossPlan of {x}, {ctc}")
        compute_type = x.dtype if ctc.compute_type is None else ctc.compute_type
        self.x = x
        self.ctc = ctc.replace(compute_type=compute_type)
        self.costs = TensorSpec((x.shape[1],), compute_type)
        self.algorithm = algorithm
        self.gradients = gradients
        try:
            # It keeps rank 3, where a TensorDescriptor would have rank 4.
            x_desc = RNNStateDescriptor(x)
            self._x_desc = self._resources.enter_context(x_desc).ptr
            ctc_desc = CTCLossDescriptor(self.ctc, api=handle.api)
            self._ctc_desc = self._resources.enter_context(ctc_desc).ptr
        except BaseException as error:
            if isinstance(error, CudnnError):
                error.involving(x=x, ctc=self.ctc)
            self.close()
            raise
        self._dx_desc = self._x_desc if gradients else None

    @in_range
    def __call__(
        self,
        x: AnyArray,
        labels: ArrayLike | AnyArray,
        label_lengths: ArrayLike | AnyArray,
        input_lengths: ArrayLike | AnyArray,
        *,
        out: Sequence[AnyArray | None] | None = None,
    ) -> tuple[DeviceArray, DeviceArray | None]:
        """Enqueue the call on the handle's stream.

        Parameters
        ----------
        x, labels, label_lengths, input_lengths, out
            As in `ctc_loss`.

        Returns
        -------
        costs, gradients
            As in `ctc_loss`.

        Raises
        ------
        ArgumentError, ArrayTypeError, ClosedError, ThreadError
            Before anything is written.
        CudnnError
            The C function failed.
        """
        self._use()
        x = self._operand(x, "x", self.x)
        integers = self._check_integers((labels, label_lengths, input_lengths))
        on_device_integers = [array for array in integers if isinstance(array, DeviceArray)]
        costs, dx = self._results(out)
        inputs = {"x": x, **dict(zip(_NAMES, on_device_integers, strict=False))}
        check_outputs(inputs, {"out[0]": costs, "out[1]": dx})
        try:
            self._run(x, integers, costs, dx)
        except NotSupportedError as error:
            longest = self.ctc.max_label_length
            if not on_device_integers:
                longest = max(longest, *integers[1])
            if self.algorithm == CTCLossAlgo.DETERMINISTIC and longest > _MOST_LABELS:
                hint = f'for {longest} labels a sequence: algorithm="non_deterministic"'
                error.notes += (hint,)
            raise
        return costs, dx

    def _run(
        self, x: DeviceArray, integers: list[Any], costs: DeviceArray, dx: DeviceArray | None
    ) -> None:
        """Make the call for labels and lengths on the device, or on the host."""
        if isinstance(integers[0], DeviceArray):
            addresses = [device_ints(array.ptr) for array in integers]
            self._call(self._run_on_device, (x, addresses, costs, dx), [x, *integers, costs, dx])
            return
        # A CUDA graph would copy the integers from host memory that is freed after this call.
        refuse_in_capture(
            self._device,
            self._handle.stream,
            "labels cannot be copied from the host",
            "have labels and lengths on the device",
        )
        host_integers = [c_ints(numbers) for numbers in integers]
        self._call(self._run_on_host, (x, host_integers, costs, dx), [x, costs, dx])

    def _run_on_device(
        self, x: DeviceArray, integers: Integers, costs: DeviceArray, dx: DeviceArray | None
    ) -> None:
        """Make the call that has labels and lengths on the device."""
        handle, size = self._handle, ctypes.c_size_t()
        handle.api.cudnnGetCTCLossWorkspaceSize_v8(
            handle.ptr, self.algorithm, self._ctc_desc, self._x_desc, self._dx_desc, size
        )
        scratch = handle.workspace.reserve(size.value, handle.stream)
        self._clear(dx)
        dx_address = 0 if dx is None else dx.ptr
        handle.api.cudnnCTCLoss_v8(
            handle.ptr,
            self.algorithm,
            self._ctc_desc,
            self._x_desc,
            x.ptr,
            *integers,
            costs.ptr,
            self._dx_desc,
            dx_address,
            size.value,
            scratch,
        )

    def _run_on_host(
        self, x: DeviceArray, integers: Integers, costs: DeviceArray, dx: DeviceArray | None
    ) -> None:
        """Make the call that has labels and lengths on the host."""
        handle, size = self._handle, ctypes.c_size_t()
        handle.api.cudnnGetCTCLossWorkspaceSize(
            handle.ptr,
            self._x_desc,
            self._dx_desc,
            *integers,
            self.algorithm,
            self._ctc_desc,
            size,
        )
        scratch = handle.workspace.reserve(size.value, handle.stream)
        self._clear(dx)
        dx_address = 0 if dx is None else dx.ptr
        handle.api.cudnnCTCLoss(
            handle.ptr,
            self._x_desc,
            x.ptr,
            *integers,
            costs.ptr,
            self._dx_desc,
            dx_address,
            self.algorithm,
            self._ctc_desc,
            scratch,
            size.value,
        )

    def _clear(self, dx: DeviceArray | None) -> None:
        """Set all gradients to zero if those beyond a sequence's end should be zero.

        cuDNN 9.19 does not write most of those.
        """
        if dx is not None and self.ctc.grad_mode == CTCGradMode.ZERO_OOB:
            self._device.fill(dx.ptr, dx.nbytes, 0, self._handle.stream)

    def _explain(self, error: CudnnError) -> None:
        error.involving(x=self.x, ctc=self.ctc)

    def _check_integers(self, integers: tuple[Any, Any, Any]) -> list[Any]:
        """Return labels, label lengths and input lengths, checked: device arrays or lists."""
        stream = self._handle.stream
        device_arrays = [arrays.find_on_device(self._device, stream, values) for values in integers]
        if all(array is None for array in device_arrays):
            labels, label_lengths, input_lengths = map(_on_host, integers, _NAMES)
            return self._checked(labels, label_lengths, input_lengths)
        for name, values, array in zip(_NAMES, integers, device_arrays, strict=True):
            if array is None:
                on_device_names = [
                    device_name
                    for device_name, device_array in zip(_NAMES, device_arrays, strict=True)
                    if device_array is not None
                ]
                raise ArgumentError(
                    f"{name} of type {type(values).__name__} is on the host, "
                    f"{' and '.join(on_device_names)} on the device"
                )
            self._check_device_integers(name, array)
        if not self.ctc.max_label_length:
            raise ArgumentError(
                "ctc.max_label_length=0 with labels on the device, "
                "where their lengths are not checked"
            )
        return device_arrays

    def _check_device_integers(self, name: str, array: DeviceArray) -> None:
        is_packed = len(array.shape) == 1 and array.spec.fits("packed")
        if array.spec.dtype != DataType.INT32 or not is_packed:
            raise ArgumentError(
                f"{name} is {array.spec}; needed: int32 in one dimension, without gaps"
            )
        batch = self.x.shape[1]
        if name != "labels" and array.shape != (batch,):
            raise ArgumentError(f"{name} has shape {array.shape}; needed: {(batch,)}")

    def _checked(self, labels: Any, label_lengths: Any, input_lengths: Any) -> list[list[int]]:
        steps, n, alphabet = self.x.shape
        for name, numbers, smallest, largest in (
            ("labels", labels, 1, alphabet - 1),
            ("label_lengths", label_lengths, 1, self.ctc.max_label_length or max(len(labels), 1)),
            ("input_lengths", input_lengths, 1, steps),
        ):
            if name != "labels" and len(numbers) != n:
                raise ArgumentError(f"{name} has {len(numbers)} entries for a batch of {n}")
            for number in numbers:
                if not smallest <= number <= largest:
                    raise ArgumentError(f"{name} has a {number}; allowed: {smallest} to {largest}")
        if sum(label_lengths) != len(labels):
            raise ArgumentError(
                f"label_lengths add up to {sum(label_lengths)}; labels has {len(labels)} entries"
            )
        return [labels, label_lengths, input_lengths]

    def _results(self, out: Any) -> tuple[DeviceArray, DeviceArray | None]:
        """Return the arrays to write: the caller's, or new ones."""
        costs, dx = all_of(out, ("costs", "gradients"), "costs and gradients")
        if not self.gradients and dx is not None:
            raise ArgumentError("out[1] is given with gradients=False, which writes none")
        costs = self._result(costs, "out[0]", self.costs)
        if not self.gradients:
            return costs, None
        return costs, self._result(dx, "out[1]", self.x)

    def _result(self, array: Any, argument: str, spec: TensorSpec) -> DeviceArray:
        if array is None:
            return arrays.empty(self._device, self._handle.stream, spec)
        return self._operand(array, argument, spec)


def _check_x(x: TensorSpec) -> None:
    """Raise ArgumentError unless logits are packed.

    On an H200 cuDNN 9.19 reads logits with gaps wrongly, and returns SUCCESS.
    """
    if x.rank != 3 or not x.size:
        raise ArgumentError(f"x={x}; needed: (T, N, A), none of them 0")
    steps, n, alphabet = x.shape
    by_step = TensorSpec(x.shape, x.dtype, strides=(n * alphabet, alphabet, 1))
    by_sequence = TensorSpec(x.shape, x.dtype, strides=(alphabet, steps * alphabet, 1))
    if x.strides not in (by_step.strides, by_sequence.strides):
        raise ArgumentError(f"x={x}; needed: packed as (T, N, A) or (N, T, A)")


def _on_host(values: Any, argument: str) -> list[int]:
    """Return integers in one dimension as a list."""
    problem = f"{argument} of type {type(values).__name__} is no array of integers"
    with refused_as(ArgumentError, problem, TypeError, ValueError, MemoryError, OverflowError):
        numbers = np.asarray(values)
    # NumPy makes an empty list an array of float64.
    has_integers = not numbers.size or numbers.dtype.kind in "iu"
    if numbers.ndim != 1 or not has_integers:
        raise ArgumentError(
            f"{argument} is {numbers.dtype} of shape {numbers.shape}; "
            "needed: integers in one dimension"
        )
    return [int(number) for number in numbers]
