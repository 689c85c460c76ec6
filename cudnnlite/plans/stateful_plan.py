"""`StatefulPlan`: what plans of recurrent networks, attention and CTC losses have in common.

They are no `OperationPlan`: only cuDNN knows the layout of weights, a reserve space goes from one
pass to the next, or labels are on the host.  `TrainingReserve` is that reserve space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.arguments import one_of, shown
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.devices.storage import bytes_spec
from cudnnlite.errors import ArgumentError, ClosedError, CudnnError
from cudnnlite.plans.named_weights import NamedWeights
from cudnnlite.plans.operands import check_writable, on_device, wait_for_streams
from cudnnlite.plans.plan import Plan
from cudnnlite.problems import call_watch
from cudnnlite.problems.operation import all_of
from cudnnlite.sizes import format_size
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import same_strides
from cudnnlite.specs.tensor import called

CallT = TypeVar("CallT")
ReserveT = TypeVar("ReserveT", bound="TrainingReserve[Any]")


class StatefulPlan(Plan):
    """Checks operands and weights, and makes the C calls.

    A subclass with weights sets `spec`, what they are for, and the class attributes.
    """

    _weights_type: ClassVar[type[NamedWeights]]
    _reserve_type: ClassVar[type[TrainingReserve[Any]]]
    spec: Any
    _weights_kind: Any

    def _explain(self, error: CudnnError) -> None:
        """Add to an error's message what the call was for."""
        raise NotImplementedError

    def _call(
        self,
        function: Callable[..., None],
        arguments: Any,
        operands: Sequence[Any],
        clear: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Make the C call on the handle's stream, ordered with the streams of the operands.

        Operands may be None.  `clear` is memory that is set to zero before: addresses and bytes.
        """
        stream = self._handle.stream
        operands = [array for array in operands if array is not None]
        other_streams: Sequence[Any] = ()
        if any(array.stream is not stream for array in operands):
            other_streams = wait_for_streams(stream, *operands)
        try:
            for address, nbytes in clear:
                self._device.fill(address, nbytes, 0, stream)
            function(*arguments)
            if call_watch.active:
                self._keep_for_graph(operands)
        except CudnnError as error:
            self._explain(error)
            raise
        finally:
            for other in other_streams:
                other.wait(stream)

    def _check_weights(self, weights: Any, argument: str = "weights") -> None:
        name = self._weights_type.__name__
        if not isinstance(weights, self._weights_type):
            raise ArgumentError(
                f"{argument} of type {type(weights).__name__} is no {name}; see {name}.from_torch"
            )
        if weights.kind != self._weights_kind:
            raise ArgumentError(f"{argument} are for {weights.spec}; the plan is for {self.spec}")
        on_device(self._handle, weights.array, argument)

    def _reserve_space(self, reserve: Any, nbytes: int, *, training: bool) -> Any:
        """Return the reserve space that a forward call fills: the caller's, or a new one.

        There is none in inference.
        """
        if not training:
            if reserve is not None:
                raise ArgumentError(
                    "reserve is given without training=True, which alone writes to it"
                )
            return None
        if reserve is None:
            memory = arrays.empty(self._device, self._handle.stream, bytes_spec(nbytes))
            return self._reserve_type(memory)
        reserve = self._reserve_type.checked(self._handle, reserve)
        if reserve.nbytes < nbytes:
            raise ArgumentError(
                f"reserve has {format_size(reserve.nbytes)}; this call needs {format_size(nbytes)}"
            )
        return reserve

    def _gradients(self, weights: Any, out: Any, accumulate: Any, inputs: dict[str, Any]) -> Any:
        """Return the weights that gradients are written to: the caller's, or new ones.

        The caller's may not be in the memory of `inputs`.
        """
        one_of(accumulate, "accumulate", True, False)
        if out is None:
            if accumulate:
                raise ArgumentError("accumulate=True needs out, which it adds to")
            return self._weights_type.zeros_like(self._handle, weights)
        self._check_weights(out, "out")
        check_outputs(inputs, {"out": out.array})
        return out

    def _random_states(self, dropout_state: Any) -> DeviceArray | None:
        """Return the random states that cuDNN has the address of.

        ClosedError if they were closed.
        """
        if dropout_state is None:
            return None
        _ = dropout_state.array.ptr
        return dropout_state.array  # type: ignore[no-any-return]

    def _operand(self, array: Any, argument: str, expected: TensorSpec) -> DeviceArray:
        """Return an array on the device, which must be as expected."""
        operand = on_device(self._handle, array, argument)
        check_spec(operand.spec, argument, expected)
        return operand

    def _outputs(
        self, out: Any, names: Sequence[str], specs: Sequence[TensorSpec], label: str = "{}"
    ) -> list[DeviceArray]:
        """Return the arrays to write: the caller's, or new ones."""
        if out is None:
            return [arrays.empty(self._device, self._handle.stream, spec) for spec in specs]
        return [
            self._operand(array, label.format(name), spec)
            for array, name, spec in zip(all_of(out, names), names, specs, strict=True)
        ]


class TrainingReserve(NonCopyable, Generic[CallT]):
    """A reserve space, the forward call that filled it, and how far the backward passes got."""

    _instead_of_copy = "another forward call with training=True returns another"
    # The functions: forward, over the data, over the weights.
    _passes: ClassVar[tuple[str, str, str]]

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self._call: CallT | None = None
        self._has_gradients = False

    @classmethod
    def checked(cls: type[ReserveT], handle: Handle, reserve: Any) -> ReserveT:
        """Return a reserve space; an error unless it is one of this kind on the handle's device.

        Raises
        ------
        ArgumentError, ArrayTypeError
            Another object, or on another device.
        """
        if not isinstance(reserve, cls):
            requirement = f"the one among what {cls._passes[0]}(..., training=True) returns"
            raise ArgumentError(
                f"reserve={shown(reserve)} is no {cls.__name__}; needed: {requirement}"
            )
        on_device(handle, reserve.array, "reserve")
        return reserve

    @property
    def nbytes(self) -> int:
        """The size of the reserve space in bytes."""
        return self.array.nbytes

    @property
    def call(self) -> CallT:
        """The forward call that filled it."""
        if self._call is None:
            name = type(self).__name__
            raise ClosedError(
                f"this {name} holds no forward call: that failed, or the reserve was closed"
            )
        return self._call

    def begin(self) -> None:
        """Note that a call is about to write here: one that fails leaves nothing to go on from."""
        self._call = None

    def finish(self, call: CallT, *, has_gradients: bool = False) -> None:
        """Note the forward call that this is of.

        `has_gradients`: whether the backward pass over the data was here since.
        """
        self._call = call
        self._has_gradients = has_gradients

    def recall(self, *, has_gradients: bool) -> CallT:
        """Return the forward call, for one backward pass or the other.

        ArgumentError if it is not that one's turn.
        """
        call = self.call
        if self._has_gradients and not has_gradients:
            raise ArgumentError(
                "reserve was overwritten by a backward pass over the data; "
                "run the forward pass again"
            )
        if has_gradients and not self._has_gradients:
            _, backward_data, backward_weights = self._passes
            raise ArgumentError(
                f"reserve has no gradients yet: {backward_data} comes before {backward_weights}"
            )
        return call

    def close(self) -> None:
        """Give up the memory and the operands; harmless when called again."""
        self._call = None
        self.array.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {format_size(self.nbytes)}>"


def check_spec(spec: TensorSpec, argument: str, expected: TensorSpec) -> None:
    """Raise ArgumentError unless an operand has the shape, the dtype and the strides expected."""
    if spec is expected or spec == expected:
        return
    is_alike = spec.shape == expected.shape and spec.dtype == expected.dtype
    if not is_alike or not same_strides(spec.shape, spec.strides, expected.strides):
        raise ArgumentError(f"{argument} is {called(spec, expected.layout)}; needed: {expected}")


def check_outputs(inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    """Check that outputs may be written, and overlap neither an input nor each other.

    Inputs and outputs may be None.
    """
    others = {name: array for name, array in inputs.items() if array is not None}
    for name, array in outputs.items():
        if array is not None:
            check_writable(array, name, **others)
            others[name] = array
