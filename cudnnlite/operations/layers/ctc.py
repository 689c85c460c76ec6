"""Connectionist temporal classification: `ctc_loss`.

By hand, and not an operation as data: of its two C functions one wants labels and lengths on the
host, the other on the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cudnnlite.arguments import instance_of, one_of, refused_as
from cudnnlite.descriptors.layers import CTCLossDescriptor
from cudnnlite.descriptors.native import c_ints, device_ints
from cudnnlite.descriptors.rnn import RNNStateDescriptor
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.device import refuse_in_capture
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import CTCGradMode, CTCLossAlgo, DataType, parse_enum
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.plans.operands import on_device, use
from cudnnlite.plans.stateful_plan import PlanByHand, check_outputs
from cudnnlite.problems.operation import all_of
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import CTCLossSpec

_NAMES = ("labels", "label_lengths", "input_lengths")
_WHOLE = CTCLossSpec()


def ctc_loss(
    handle: Handle,
    x: AnyArray,
    labels: ArrayLike | AnyArray,
    label_lengths: ArrayLike | AnyArray,
    input_lengths: ArrayLike | AnyArray,
    ctc: CTCLossSpec = _WHOLE,
    *,
    algorithm: CTCLossAlgo | str = CTCLossAlgo.DETERMINISTIC,
    gradients: bool = True,
    out: Sequence[AnyArray | None] | None = None,
) -> tuple[DeviceArray, DeviceArray | None]:
    """Compute the CTC loss of each sequence of a batch, and its gradient; label 0 is the blank.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, which is asynchronous; it keeps the plan for the next call of
        the same kind.
    x : device array
        ``(T, N, A)``, float32 or float64: for each step of each sequence the logits of A labels, or
        their probabilities with ``CTCLossSpec("none")``.  Packed as ``(T, N, A)`` or, seen through
        a transposed view, as ``(N, T, A)``.
    labels : array_like or device array of int32
        ``(sum of label_lengths,)``, the sequences' labels one after the other, 1 to A - 1.
    label_lengths, input_lengths : array_like or device array of int32
        ``(N,)``: of each label, from 1 on; of each input, 1 to T.  The three are all on the host,
        where they are checked before the call, or all on the device, where cuDNN
        (`cudnnCTCLoss_v8`) takes them as they are: then `ctc` has to say `max_label_length`, and a
        longer label ends in an illegal memory access.
    ctc : CTCLossSpec
        Normalisation, gradients beyond the end, the longest label.
    algorithm : CTCLossAlgo or str
        "deterministic", for labels of up to 255; or "non_deterministic".
    gradients : bool
        Whether they are wanted; False computes the costs alone.
    out : tuple of device arrays, optional
        The costs and the gradients, written in place; new arrays if not given, or where one is
        None.

    Returns
    -------
    costs : DeviceArray
        ``(N,)``: minus the logarithm of the label's probability.  0, as the gradients are, where
        the input is too short for its label (it needs a step for each label, and one for each pair
        of equal ones).
    gradients : DeviceArray or None
        Laid out as `x`: the slopes of the costs by the logits.  By probabilities that are given
        (``CTCLossSpec("none")``) they are the slopes where a path of the label passes; where none
        does, and the slope is 0, cuDNN 9.19 leaves `x`.

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
    ...     costs, gradients = dnn.ctc_loss(handle, x, [2], [1], [2])  # three of the nine paths: -2, 2-, 22
    ...     print(np.exp(costs.numpy()).round(3), gradients.numpy()[0].round(3))
    ...     lengths = [handle.array(np.array(n, np.int32)) for n in ([2], [1], [2])]
    ...     costs, _ = dnn.ctc_loss(handle, x, *lengths, dnn.CTCLossSpec(max_label_length=1), gradients=False)
    [3.] [[ 0.     0.333 -0.333]]
    """
    use(handle)
    x = on_device(handle, x, "x")
    kind = parse_enum(CTCLossAlgo, algorithm, "algorithm")
    instance_of(ctc, CTCLossSpec, "ctc")
    one_of(gradients, "gradients", True, False)
    plan = handle.plans.get(("ctc_loss", x.spec, ctc, kind), CTCLossPlan, handle, x.spec, ctc, kind)
    return plan(x, labels, label_lengths, input_lengths, gradients=gradients, out=out)  # type: ignore[no-any-return]


class CTCLossPlan(PlanByHand):
    """The descriptors of `ctc_loss` for logits of one shape."""

    def __init__(
        self, handle: Handle, x: TensorSpec, ctc: CTCLossSpec, algorithm: CTCLossAlgo
    ) -> None:
        _check_x(x)
        super().__init__(handle, f"CTCLossPlan of {x}, {ctc}")
        kind = x.dtype if ctc.compute_type is None else ctc.compute_type
        ctc, self.costs = ctc.replace(compute_type=kind), TensorSpec((x.shape[1],), kind)
        self.x, self.ctc, self.algorithm = x, ctc, algorithm
        try:
            self._x_desc = self._resources.enter_context(RNNStateDescriptor(x)).ptr  # of rank 3
            self._ctc_desc = self._resources.enter_context(
                CTCLossDescriptor(ctc, api=handle.api)
            ).ptr
        except BaseException as error:
            if isinstance(error, CudnnError):
                error.involving(x=x, ctc=ctc)
            self.close()
            raise

    def __call__(
        self,
        x: DeviceArray,
        labels: Any,
        label_lengths: Any,
        input_lengths: Any,
        *,
        gradients: bool = True,
        out: Any = None,
    ) -> tuple[DeviceArray, DeviceArray | None]:
        """Enqueue the call on the handle's stream; see `ctc_loss`."""
        self.use()
        handle, stream = self._handle, self._handle.stream
        x = self._operand(x, "x", self.x)
        integers = self._integers((labels, label_lengths, input_lengths))
        there = [array for array in integers if isinstance(array, DeviceArray)]
        costs, dx = self._results(out, gradients=gradients)
        inputs = {"x": x, **dict(zip(_NAMES, there, strict=False))}
        check_outputs(inputs, {"out[0]": costs, "out[1]": dx})
        address, dx_desc = (0, None) if dx is None else (dx.ptr, self._x_desc)
        size = ctypes.c_size_t()
        api, ctc, kind, x_desc = handle.api, self._ctc_desc, self.algorithm, self._x_desc
        flat, lengths, steps = (device_ints(a.ptr) if there else c_ints(a) for a in integers)
        if not there:  # from where a graph would copy them again, when they are gone
            instead = "have labels and lengths on the device"
            refuse_in_capture(
                self._device, stream, "labels cannot be copied from the host", instead
            )

        def run() -> None:
            if there:
                api.cudnnGetCTCLossWorkspaceSize_v8(handle.ptr, kind, ctc, x_desc, dx_desc, size)
            else:
                api.cudnnGetCTCLossWorkspaceSize(
                    handle.ptr, x_desc, dx_desc, flat, lengths, steps, kind, ctc, size
                )
            scratch = handle.workspace.reserve(size.value, stream)
            if dx is not None and self.ctc.grad_mode == CTCGradMode.ZERO_OOB:
                # cuDNN 9.19 leaves most of them as they are all the same
                self._device.fill(dx.ptr, dx.nbytes, 0, stream)
            if there:
                api.cudnnCTCLoss_v8(
                    handle.ptr,
                    kind,
                    ctc,
                    x_desc,
                    x.ptr,
                    flat,
                    lengths,
                    steps,
                    costs.ptr,
                    dx_desc,
                    address,
                    size.value,
                    scratch,
                )
            else:
                api.cudnnCTCLoss(
                    handle.ptr,
                    x_desc,
                    x.ptr,
                    flat,
                    lengths,
                    steps,
                    costs.ptr,
                    dx_desc,
                    address,
                    kind,
                    ctc,
                    scratch,
                    size.value,
                )

        self._call(run, (), [x, costs, dx, *there])
        return costs, dx

    def _explain(self, error: CudnnError) -> None:
        error.involving(x=self.x, ctc=self.ctc)

    def _integers(self, given: tuple[Any, Any, Any]) -> list[Any]:
        """Return labels, their lengths and those of the inputs: device arrays, or lists that were checked."""
        stream, n = self._handle.stream, self.x.shape[1]
        found = [arrays.find_on_device(self._device, stream, value) for value in given]
        if all(array is None for array in found):
            return self._checked(*map(_on_host, given, _NAMES))
        for name, value, array in zip(_NAMES, given, found, strict=True):
            if array is None:
                where = " and ".join(
                    other for other, a in zip(_NAMES, found, strict=True) if a is not None
                )
                raise ArgumentError(
                    f"{name} of type {type(value).__name__} is on the host, {where} on the device"
                )
            if (
                array.spec.dtype != DataType.INT32
                or len(array.shape) != 1
                or not array.spec.fits("packed")
            ):
                raise ArgumentError(
                    f"{name} is {array.spec}; needed: int32 in one dimension, without gaps"
                )
            if name != "labels" and array.shape != (n,):
                raise ArgumentError(f"{name} has shape {array.shape}; needed: {(n,)}")
        if not self.ctc.max_label_length:
            raise ArgumentError(
                "ctc.max_label_length=0 with labels on the device, where their lengths are not looked at"
            )
        return found

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

    def _results(self, out: Any, *, gradients: bool) -> tuple[DeviceArray, DeviceArray | None]:
        """Return the arrays to write: the caller's, or new ones."""
        given = all_of(out, ("costs", "gradients"), "costs and gradients")
        if not gradients and given[1] is not None:
            raise ArgumentError("out[1] is given with gradients=False, which writes none")
        wanted = zip(given, (self.costs, self.x)[: 1 + gradients], strict=False)
        each = [
            self._outputs(None if a is None else (a,), (f"out[{i}]",), (spec,))[0]
            for i, (a, spec) in enumerate(wanted)
        ]
        return each[0], each[1] if gradients else None


def _check_x(x: TensorSpec) -> None:
    """Refuse what cuDNN 9.19 reads wrongly on an H200, and calls a success: a last axis with gaps, or other ones."""
    if x.rank != 3 or not x.size:
        raise ArgumentError(f"x={x}; needed: (T, N, A), none of them 0")
    steps, n, alphabet = x.shape
    by_step = TensorSpec(x.shape, x.dtype, strides=(n * alphabet, alphabet, 1))
    by_sequence = TensorSpec(x.shape, x.dtype, strides=(alphabet, steps * alphabet, 1))
    if x.strides not in (by_step.strides, by_sequence.strides):
        raise ArgumentError(f"x={x}; needed: packed as (T, N, A) or (N, T, A)")


def _on_host(values: Any, argument: str) -> list[int]:
    """Return integers in one dimension as a list."""
    what = f"{argument} of type {type(values).__name__} is no array of integers"
    with refused_as(ArgumentError, what, TypeError, ValueError, MemoryError, OverflowError):
        numbers = np.asarray(values)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise ArgumentError(
            f"{argument} is {numbers.dtype} of shape {numbers.shape}; needed: integers in one dimension"
        )
    return [int(number) for number in numbers]
