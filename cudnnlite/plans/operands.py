"""What every operation does with its arguments: view foreign arrays, check outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cudnnlite.arguments import instance_of, with_article
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.device import check_recorded_together
from cudnnlite.devices.exchange import exchanged
from cudnnlite.devices.handle import Handle
from cudnnlite.devices.storage import share_values
from cudnnlite.dtypes import itemsize
from cudnnlite.errors import ArgumentError, ArrayTypeError
from cudnnlite.sizes import ALLOCATION_ALIGNMENT, format_size
from cudnnlite.specs import TensorSpec

WORKSPACE_ALIGNMENT = 16  # bytes


def check_handle(handle: object) -> Handle:
    """Return `handle`; ArgumentError if it is no Handle, for instance because it was forgotten."""
    return instance_of(handle, Handle, "handle", "; it comes first")


def use(handle: object) -> None:
    """Check that `handle` is a Handle that may be used here and now (see `Handle._use`)."""
    check_handle(handle)._use()


def on_device(
    handle: Handle,
    array: object,
    argument: str,
    spec_kinds: tuple[type, ...] = (),
) -> DeviceArray:
    """Return `array` as a DeviceArray without a copy; ArrayTypeError if it is on another device.

    `spec_kinds` are the classes of specs that the argument may be too; the message names them.
    """
    if type(array) is DeviceArray and array.device is handle.device:
        return array
    views = exchanged(handle.device, handle.stream, (array,))
    if views is not None:
        return views[0]
    return arrays.view(handle.device, handle.stream, array, argument, spec_kinds)


def all_on_device(
    handle: Handle, arrays: Sequence[Any], arguments: Iterable[str]
) -> list[DeviceArray]:
    """Return arrays as `on_device` does, all of them at once where no protocol is needed.

    `arguments` are their names, which are computed where they may be refused.
    """
    views = exchanged(handle.device, handle.stream, arrays)
    if views is not None:
        return views
    named = zip(arguments, arrays, strict=True)
    return [on_device(handle, array, argument) for argument, array in named]


def tensor_spec(
    operand: object,
    argument: str,
    spec_kinds: tuple[type, ...] = (TensorSpec,),
) -> TensorSpec:
    """Return the spec of an array, or the spec itself."""
    spec = getattr(operand, "spec", operand)
    if not isinstance(spec, TensorSpec):
        hint = f"handle.array({argument})"
        if argument.startswith("out"):
            hint = "handle.empty(shape, dtype)"
        kind = type(operand).__name__
        specs = " nor ".join(map(with_article, spec_kinds))
        raise ArgumentError(
            f"{argument} of type {kind} is neither {specs} nor a device array: {hint}"
        )
    return spec


def operand_spec(handle: Handle | None, operand: object, argument: str) -> TensorSpec:
    """Return the spec of an operand, which may be a spec itself.

    An array of another library is viewed on the handle's device; without a handle it is refused.
    """
    return tensor_spec(view_operand(handle, operand, argument), argument)


def view_operand(handle: Handle | None, operand: Any, argument: str) -> Any:
    """Return an operand: another library's array as a view, if there is a handle.

    A binder that needs the spec calls it once, and hands the view on.
    """
    if handle is None or type(operand) is DeviceArray:
        return operand
    if isinstance(operand, TensorSpec) or hasattr(operand, "spec"):
        return operand
    use(handle)
    return on_device(handle, operand, argument)


def with_channel_axis(handle: Handle | None, vector: Any, images: object, argument: str) -> Any:
    """Return a bias or the like of shape ``(C,)`` as ``(1, C, 1, ...)``, a view.

    Everything else, also where the rank of `images` is not known, is returned as it is.
    """
    if vector is None or _rank(vector) != 1:
        return vector
    rank = _rank(images)
    if rank is None or rank < 2:
        return vector
    if isinstance(vector, TensorSpec):
        return TensorSpec(channel_shape(vector.size, rank), vector.dtype)
    if not isinstance(vector, DeviceArray):
        if handle is None:
            return vector
        use(handle)
        vector = on_device(handle, vector, argument)
    return vector.reshape(channel_shape(vector.size, rank))


def channel_shape(channels: int, rank: int) -> tuple[int, ...]:
    """Return the shape of one value for each channel of images of a rank."""
    return (1, channels, *[1] * (rank - 2))


def _rank(operand: object) -> int | None:
    """Return the number of axes of an array of any library or of a spec; None if it has none."""
    if type(operand) is DeviceArray:
        return len(operand.spec.shape)
    rank = getattr(operand, "ndim", None)
    if rank is None:
        rank = getattr(getattr(operand, "spec", operand), "rank", None)
    return rank if isinstance(rank, int) else None


def check_writable(
    written: DeviceArray,
    argument: str,
    in_place: frozenset[str] = frozenset(),
    **others: DeviceArray,
) -> None:
    """Check that an output may be written, and that it overlaps no other operand.

    An operand in the same memory might be read after it was overwritten.  Those that are named in
    `in_place` may be the output itself.  ArrayTypeError if its owner forbids writing; or
    ArgumentError.
    """
    if written.readonly:
        raise ArrayTypeError(f"{argument} is read-only: its owner forbids writing to it")
    check_overlap(written, argument, in_place, **others)


def check_overlap(
    written: DeviceArray,
    argument: str,
    in_place: frozenset[str] = frozenset(),
    **others: DeviceArray,
) -> None:
    """Raise ArgumentError if a value that is written overlaps one of another operand in memory.

    Values of one may lie in gaps of the other, as those of two slices of a buffer do.  The memory
    that is written may be that of one of `in_place`, described in the same way, and then of every
    other operand that is the same array.
    """
    start, end = written.ptr, written.ptr + written.nbytes
    is_in_place = any(
        _is_same(written, array) for name, array in others.items() if name in in_place
    )
    for name, array in others.items():
        if array.ptr < end and start < array.ptr + array.nbytes:
            if is_in_place and _is_same(written, array):
                continue
            if not share_values(written.spec, written.ptr, array.spec, array.ptr):
                continue
            hint = f", or that of {name} with the same layout" if name in in_place else ""
            raise ArgumentError(
                f"{argument} overlaps {name} in memory; give it memory of its own{hint}"
            )


def _is_same(first: DeviceArray, other: DeviceArray) -> bool:
    return first.ptr == other.ptr and first.spec == other.spec


def wait_for_streams(stream: Any, *operands: DeviceArray) -> list[Any]:
    """Let `stream` wait for the other streams that operands belong to, and return those.

    After the call they must wait for it in turn: what they do next with an operand (copy, free,
    overwrite) comes after it.
    """
    mine = int(stream.handle)
    others = {
        handle: array.stream for array in operands if (handle := int(array.stream.handle)) != mine
    }
    for other in others.values():
        check_recorded_together(operands[0].device, stream, other)
    for other in others.values():
        stream.wait(other)
    return list(others.values())


def check_workspace(handle: Handle, workspace: object, needed: int) -> DeviceArray:
    """Return the aligned part of the caller's own workspace buffer.

    ArgumentError or ArrayTypeError if it is too small, or may not be written.
    """
    buffer = on_device(handle, workspace, "workspace")
    check_writable(buffer, "workspace")
    if buffer.spec.size * itemsize(buffer.spec.dtype) // buffer.spec.vector != buffer.nbytes:
        raise ArgumentError(
            f"workspace={buffer.spec} has gaps, which would be overwritten; bring a packed buffer"
        )
    skipped = _bytes_to_aligned(buffer)
    if buffer.nbytes - skipped < needed:
        behind = f", {skipped} of them before the first address that is aligned" if skipped else ""
        raise ArgumentError(
            f"workspace has {format_size(buffer.nbytes)} ({buffer.nbytes} bytes{behind}); "
            f"this call needs {needed} bytes"
        )
    if not skipped:
        return buffer
    return arrays.part_of(buffer, TensorSpec((buffer.nbytes - skipped,), "uint8"), skipped)


def alignment_of(array: DeviceArray) -> int:
    """Return the largest power of two that divides an array's address, 256 at most."""
    return min(array.ptr & -array.ptr, ALLOCATION_ALIGNMENT) or ALLOCATION_ALIGNMENT


def usable_workspace(workspace: DeviceArray) -> int:
    """Return the bytes of a workspace buffer from the first aligned address on."""
    return max(0, workspace.nbytes - _bytes_to_aligned(workspace))


def _bytes_to_aligned(buffer: DeviceArray) -> int:
    """Return the bytes from the beginning of a buffer to the first aligned address.

    On an H200 FFT kernels and reductions end the CUDA context where their workspace is not aligned
    to 8 bytes.
    """
    return -buffer.ptr % WORKSPACE_ALIGNMENT
