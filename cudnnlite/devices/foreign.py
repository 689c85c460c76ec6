"""`ForeignArray`: an array in device memory, whichever library made it.

Also the errors for what cannot be viewed as one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from cudnnlite.arguments import integer, integers, one_of, shown, with_article
from cudnnlite.dtypes import PLAIN_NAMES, numpy_dtype
from cudnnlite.errors import ArgumentError, ArrayTypeError
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.layout import span


class ForeignArray(NamedTuple):
    """Address, shape, strides and dtype of an array, as DLPack and array interfaces have them."""

    ptr: int  # the address of the first value
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: np.dtype[Any]  # of one value
    readonly: bool  # whether the owner forbids writing
    owner: object  # keeps the memory alive

    @property
    def nbytes(self) -> int:
        """The bytes from the first value to the last, gaps included."""
        return span(self.shape, self.strides) * self.dtype.itemsize

    def cuda_array_interface(self, stream: int) -> dict[str, Any]:
        """Return version 3 of the CUDA array interface.

        AttributeError for a dtype that the interface has no name for.
        """
        if self.dtype.kind == "V":
            raise AttributeError(
                f"the CUDA array interface has no name for {self.dtype}; use DLPack"
            )
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.ptr, self.readonly),
            "strides": tuple(stride * self.dtype.itemsize for stride in self.strides),
            "stream": stream,
            "version": 3,
        }


class SupportsDLPack(Protocol):
    """An array that DLPack exchanges: a DeviceArray, PyTorch's, CuPy's, JAX's."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """An array with the CUDA array interface: Numba's, CuPy's."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


# An array on a device, whichever library made it.
AnyArray: TypeAlias = SupportsDLPack | SupportsCudaArrayInterface
# An operand of a plan: an array, or only its spec.
Operand: TypeAlias = AnyArray | TensorSpec | FilterSpec
# An argument that determines the shape of a result.
Like: TypeAlias = Operand | Iterable[int] | None

_LAST_ADDRESS = 2**64 - 1
HOST_TYPES = (np.ndarray, np.generic, list, tuple, int, float)


def is_readable(array: object) -> bool:
    """Tell whether an object has one of the two protocols that give an array's address."""
    return hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")


def is_of_jax(kind: type) -> bool:
    """Tell whether a type of arrays is JAX's, which never change.

    Neither protocol can say so.
    """
    return kind.__module__.partition(".")[0] in ("jax", "jaxlib")


def float8_of_torch(array: object, argument: str) -> np.dtype[Any] | None:
    """Return the dtype of a PyTorch tensor of float8; None for any other array.

    ArgumentError for a float8 that cuDNN has no type for.
    """
    package, _, name = str(getattr(array, "dtype", "")).partition(".")
    if package != "torch" or not name.startswith("float8_"):
        return None
    if name not in PLAIN_NAMES:
        raise ArgumentError(
            f"{argument} is {name}; allowed: float8_e4m3fn, float8_e5m2; "
            f"{argument}.view(torch.uint8) is its bytes"
        )
    return numpy_dtype(PLAIN_NAMES[name])


def bytes_of_torch(tensor: Any) -> Any:
    """Return a PyTorch tensor of float8 as one of uint8: a view.

    Older releases of PyTorch do not export float8, and cuda.core does not read it.
    """
    return tensor.view(sys.modules["torch"].uint8)


def parse_dlpack_options(
    stream: object, max_version: object, dl_device: object, copy: object
) -> dict[str, Any]:
    """Return the options of `__dlpack__` that a consumer gave, without the stream.

    ArgumentError for a value that DLPack does not define.
    """
    one_of(copy, "copy", None, True, False)
    if stream is not None:
        integer(stream, "stream", -1, _LAST_ADDRESS)
    options: dict[str, Any] = {}
    for name, pair in (("max_version", max_version), ("dl_device", dl_device)):
        if pair is None:
            continue
        numbers = integers(pair, name, 2)
        if len(numbers) != 2:
            raise ArgumentError(f"{name}={shown(pair)}; needed: two integers")
        options[name] = numbers
    if copy is not None:
        options["copy"] = copy
    return options


def check_viewable(
    array: object,
    argument: str,
    spec_kinds: tuple[type, ...] = (),
) -> None:
    """Raise ArrayTypeError for an object that cannot be viewed as an array on a device.

    Such objects are host arrays, tensors that require gradients, and everything that is no array.
    `spec_kinds` are the classes of specs that the argument may be too; the messages name them.
    """
    if isinstance(array, HOST_TYPES):
        raise host_array_error(array, argument, spec_kinds)
    if not is_readable(array):
        specs = "".join(f"{with_article(kind)}, " for kind in spec_kinds)
        raise ArrayTypeError(
            f"{argument} of type {type(array).__name__} is no array; allowed: {specs}"
            "a DeviceArray, or an object with __dlpack__ or __cuda_array_interface__"
        )
    if getattr(array, "requires_grad", False) is True:
        raise ArrayTypeError(
            f"{argument} requires grad, and cudnnlite has no gradients to give; "
            f"pass {argument}.detach()"
        )


def spec_of(array: ForeignArray, argument: str) -> TensorSpec:
    """Return the spec of an array; ArgumentError if cuDNN has no descriptor for it."""
    if any(stride < 0 for stride in array.strides):
        raise ArgumentError(
            f"{argument} has negative strides {array.strides}; "
            "cuDNN would read in front of the buffer"
        )
    try:
        spec = _spec(array.shape, array.dtype, array.strides)
    except ArgumentError as error:
        raise ArgumentError(f"{argument} cannot be described to cuDNN: {error}") from error
    if array.ptr % array.dtype.itemsize:
        raise ArgumentError(
            f"{argument} begins at {array.ptr:#x}, which is not aligned to its {array.dtype}"
        )
    return spec


@lru_cache(maxsize=256)  # Each call with another library's arrays needs it.
def _spec(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(shape, dtype, strides=strides)


def host_array_error(
    array: object,
    argument: str,
    spec_kinds: tuple[type, ...] = (),
) -> ArrayTypeError:
    """Return the error for host memory where device memory is needed; see `check_viewable`."""
    is_output = argument.startswith("out")
    hint = "handle.empty(shape, dtype)" if is_output else f"handle.array({argument})"
    alternatives = "".join(f" or {with_article(kind)}" for kind in spec_kinds)
    return ArrayTypeError(
        f"{argument} is a host array ({type(array).__name__}); "
        f"a device array{alternatives} is needed: {hint}"
    )
