"""`AlignedCopies`: aligned copies of operands that cuDNN's kernels cannot load in place."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from cudnnlite._raw.calls import PreparedCall
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import AlignmentWarning, CaptureError
from cudnnlite.plans.conversion import conversion
from cudnnlite.plans.operands import wait_for_streams
from cudnnlite.specs import TensorSpec
from cudnnlite.warn import warn_user


class AlignedCopies:
    """Copies the operands of one plan to aligned memory, and results back, on the handle's stream.

    Parameters
    ----------
    handle : Handle
        Its stream orders the copies.
    function : str
        The C function, for messages.
    stack : ExitStack
        Owns the descriptors of the calls that copy results back to memory with gaps.
    """

    def __init__(self, handle: Handle, function: str, stack: ExitStack) -> None:
        self._handle = handle
        self._function = function
        self._stack = stack
        self._arguments_with_warning: set[str] = set()
        self._conversions: dict[TensorSpec, PreparedCall] = {}

    def copy(
        self, argument: str, array: DeviceArray, alignment: int, *, is_read: bool
    ) -> DeviceArray:
        """Return aligned memory of the array's spec; warn once for each argument.

        CaptureError while a graph is recorded: no memory can be allocated then.
        """
        stream = self._handle.stream
        misalignment = (
            f"{argument} begins at {array.ptr:#x}, which is not aligned to {alignment} bytes "
            f"as {self._function} needs it"
        )
        try:
            copy = arrays.empty(array.device, stream, array.spec)
        except CaptureError as error:
            raise CaptureError(
                f"{misalignment}; a graph is recorded, and cannot have a copy: pass aligned memory"
            ) from error
        if argument not in self._arguments_with_warning:
            self._arguments_with_warning.add(argument)
            warn_user(f"{misalignment}; each call copies it", AlignmentWarning)
        if is_read:
            arrays.move_values(copy, array, stream)
        return copy

    def bring_back(self, copy: DeviceArray, array: DeviceArray) -> None:
        """Write the values of a copy to its original, whose gaps keep their values."""
        stream = self._handle.stream
        if array.is_packed:
            arrays.move_values(array, copy, stream)
            return
        if array.spec not in self._conversions:
            self._conversions[array.spec] = conversion(
                self._handle, array.spec, array.spec, 0.0, self._stack
            )
        conversion_call = self._conversions[array.spec]
        conversion_call.replace(x=copy.ptr, y=array.ptr)
        other_streams = wait_for_streams(stream, array)
        try:
            conversion_call()
        finally:
            for other in other_streams:
                other.wait(stream)


def misaligned_operands(
    alignments: Mapping[str, int], operands: Mapping[str, DeviceArray]
) -> dict[str, int]:
    """Return the required alignments, in bytes, of the operands that do not have them."""
    return {
        name: alignment for name, alignment in alignments.items() if operands[name].ptr % alignment
    }
