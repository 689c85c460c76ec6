"""`BackendDescriptor`: a native object of cuDNN's graph API, with attributes as Python values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.attributes import KINDS_SINCE
from cudnnlite._raw.enums import BackendAttributeType, BackendDescriptorType
from cudnnlite._raw.library import format_version
from cudnnlite._raw.types import cudnnBackendDescriptor_t
from cudnnlite.arguments import instance_of, integer
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.enums import parse_enum
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError
from cudnnlite.graph.attributes import (
    C_TYPES,
    KINDS_READ,
    attribute,
    decode,
    encode,
    missing_attributes,
)


class BackendDescriptor(NativeObject[cudnnBackendDescriptor_t]):
    """A `cudnnBackendDescriptor_t` of any kind: set attributes, `finalize()`, get attributes.

    It can express everything that cuDNN's graph API has.  An attribute's name is cuDNN's without
    that of the kind, in lower case: ``CUDNN_ATTR_TENSOR_UNIQUE_ID`` is `unique_id` of a "TENSOR".

    Parameters
    ----------
    handle : Handle or CudnnApi
        The owner of the function table that is called.  The descriptor does not keep it alive.
    kind : BackendDescriptorType or str
        "TENSOR", "CONVOLUTION", "OPERATION_CONVOLUTION_FORWARD", "OPERATIONGRAPH", "ENGINEHEUR",
        ...
    **attributes
        The attributes to set at once; see `set`.

    Attributes
    ----------
    kind : BackendDescriptorType
        The kind.
    values : dict
        The attributes that were set, by name.  It keeps descriptors alive.
    finalized : bool
        Whether `finalize` was called.

    Raises
    ------
    ArgumentError
        An unknown kind or attribute, or a value of a wrong type; the message names it.
    NotSupportedError
        The kind is newer than the loaded libcudnn; the message says which version added it.
    CudnnError
        cuDNN refused the kind or an attribute.

    Notes
    -----
    C functions: `cudnnBackendCreateDescriptor`, `cudnnBackendSetAttribute`, `cudnnBackendFinalize`,
    `cudnnBackendGetAttribute`, `cudnnBackendDestroyDescriptor`.

    Examples
    --------
    >>> from cudnnlite.graph.backend_descriptor import BackendDescriptor
    >>> with dnn.Handle() as handle, BackendDescriptor(
    ...     handle,
    ...     "TENSOR",
    ...     data_type="float32",
    ...     dimensions=(1, 3, 8, 8),
    ...     strides=(192, 64, 8, 1),
    ...     unique_id=1,
    ...     byte_alignment=16,
    ... ) as x:
    ...     print(x.finalize().get("dimensions"))
    (1, 3, 8, 8)
    """

    _create = "cudnnBackendCreateDescriptor"
    _destroy = "cudnnBackendDestroyDescriptor"
    _instead_of_copy = "make another of its kind and set its values"

    def __init__(
        self, handle: Any, kind: BackendDescriptorType | str, /, **attributes: Any
    ) -> None:
        self.kind = parse_enum(BackendDescriptorType, kind, "kind")
        self.values: dict[str, Any] = {}
        self.finalized = False
        if isinstance(handle, CudnnApi):
            api = handle
        else:
            api = instance_of(handle, NativeObject, "handle").api
        super().__init__(self.kind.name, api=api)
        try:
            for name, value in attributes.items():
                self.set(name, value)
        except BaseException:
            self.close()
            raise

    def _make(self, native: ctypes.c_void_p) -> None:
        try:
            self.api.cudnnBackendCreateDescriptor(self.kind, ctypes.byref(native))
        except CudnnError as error:
            since, library = KINDS_SINCE.get(self.kind.name, 0), self.api.library
            if library.version >= since:
                raise
            # For a kind that it does not know, cuDNN reports that it has no memory.
            detail = (
                f"kind={self.kind.name} was added in cuDNN {format_version(since)}; the loaded "
                f"libcudnn is {library.version_text}: {library.path}"
            )
            raise NotSupportedError(error.function, error.status, detail) from error

    def set(self, name: str, value: Any, type_name: str | None = None) -> None:
        """Set an attribute.

        Parameters
        ----------
        name : str
            The name of the attribute without the kind, in lower case.
        value : object
            A number, a bool, an enum's member or its name, a dtype, a text, a handle, or another
            descriptor; a sequence of them if cuDNN takes several.
        type_name : str, optional
            "DOUBLE" if the value is to be passed as that instead of as "FLOAT".

        Raises
        ------
        ArgumentError, CudnnError
            As in the constructor.
        """
        number, kind, elements = encode(self.kind.name, name, value, type_name)
        self.api.cudnnBackendSetAttribute(self.ptr, number, kind, len(elements), elements)
        if kind == BackendAttributeType.HANDLE and hasattr(value, "ptr"):
            value = value.ptr
        self.values[name] = value

    def finalize(self) -> BackendDescriptor:
        """Let cuDNN check the descriptor and make it usable, and return it.

        Raises
        ------
        ArgumentError
            An attribute is missing without which cuDNN does not finalise this kind.
        NotSupportedError
            cuDNN has nothing that computes this.
        CudnnError
            The attributes do not fit together.
        """
        missing = missing_attributes(self.kind.name, self.values)
        if missing:
            raise ArgumentError(
                f"{self.kind.name} cannot be finalised without {', '.join(missing)}"
            )
        self.api.cudnnBackendFinalize(self.ptr)
        self.finalized = True
        return self

    def get(self, name: str) -> Any:
        """Return an attribute as a Python value; None if it is not set.

        The value is a tuple if the attribute may have several.  `get_descriptors` returns
        descriptors.

        Raises
        ------
        ArgumentError
            There is no such attribute.
        CudnnError
            cuDNN does not return it, for instance because the descriptor is not final.
        """
        number, type_name, has_several = attribute(self.kind.name, name)
        count = ctypes.c_int64()
        kind, c_type = BackendAttributeType[type_name], C_TYPES.get(type_name, ctypes.c_int)
        capacity = 1
        if has_several:
            self.api.cudnnBackendGetAttribute(self.ptr, number, kind, 0, count, None)
            capacity = count.value
        elements = (c_type * capacity)()
        self.api.cudnnBackendGetAttribute(self.ptr, number, kind, capacity, count, elements)
        if type_name == "CHAR":
            return elements.value.decode()
        values = tuple(decode(type_name, value) for value in elements[: count.value])
        if has_several:
            return values
        return values[0] if values else None

    def get_descriptors(
        self, name: str, stack: ExitStack, most: int | None = None
    ) -> list[BackendDescriptor]:
        """Return the descriptors that an attribute holds; `stack` owns them.

        If `most` is given, these are the first ones, at most that many.  ArgumentError if it is no
        positive integer.
        """
        if most is not None:
            most = integer(most, "most")
        number, type_name, has_several = attribute(self.kind.name, name)
        if name.upper() not in KINDS_READ:
            raise ArgumentError(
                f"{self.kind.name}.{name} cannot be read as descriptors; "
                f"allowed: {', '.join(KINDS_READ).lower()}"
            )
        count = ctypes.c_int64(1)
        if has_several:
            self.api.cudnnBackendGetAttribute(
                self.ptr, number, BackendAttributeType[type_name], 0, count, None
            )
        number_read = count.value if most is None else min(count.value, most)
        kind = KINDS_READ[name.upper()]
        descriptors = [
            stack.enter_context(BackendDescriptor(self.api, kind)) for _ in range(number_read)
        ]
        return self.fill(name, descriptors)

    def fill(self, name: str, descriptors: list[BackendDescriptor]) -> list[BackendDescriptor]:
        """Let cuDNN write an attribute into new descriptors, and return those that it used."""
        number, type_name, _ = attribute(self.kind.name, name)
        count = ctypes.c_int64()
        addresses = [descriptor.ptr.value for descriptor in descriptors]
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        self.api.cudnnBackendGetAttribute(
            self.ptr, number, BackendAttributeType[type_name], len(addresses), count, pointers
        )
        used = descriptors[: count.value]
        for descriptor in used:
            descriptor.finalized = True
        return used

    def __repr__(self) -> str:
        values = []
        for name, value in self.values.items():
            short_value = value.kind.name if isinstance(value, BackendDescriptor) else value
            values.append(f"{name}={short_value!r}")
        state = "final" if self.finalized else "not final"
        if self.closed:
            state = "closed"
        return f"<BackendDescriptor {self.kind.name}({', '.join(values)}), {state}>"


def prepared_get(descriptor: BackendDescriptor, name: str) -> Callable[[], Any]:
    """Return a function that reads an attribute with one value as `get` does, but prepared once.

    It is for a descriptor that cuDNN fills again and again.
    """
    number, type_name, _ = attribute(descriptor.kind.name, name)
    kind, c_type = BackendAttributeType[type_name], C_TYPES.get(type_name, ctypes.c_int)
    count, elements = ctypes.c_int64(), (c_type * 1)()
    call = descriptor.api.prepare(
        "cudnnBackendGetAttribute", descriptor.ptr, number, kind, 1, count, elements
    )

    def read() -> Any:
        call()
        return decode(type_name, elements[0]) if count.value else None

    return read
