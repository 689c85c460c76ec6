"""`DeclaredDescriptor`: a descriptor whose setter and getter name their arguments alike, as most of cuDNN's do."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.opaque import NativeT
from cudnnlite.descriptors.native import DESCRIPTORS, NativeObject
from cudnnlite.descriptors.spatial import SpatialDescriptor
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import MAX_SPATIAL_RANK

_DOC = """
Parameters
----------
spec : {spec}
    What it describes.
{parameters}
Notes
-----
C functions: {functions}{deprecated}.

"""


class DeclaredDescriptor(NativeObject[NativeT]):
    """A descriptor that is set and read by the names in the header; subclasses say which field of the spec each is.

    A dimension count is no field: it is the number of spatial axes.
    """

    _setter: ClassVar[str]
    _getter: ClassVar[str]
    _arguments: ClassVar[
        tuple[str, ...]
    ]  # the header's names, each with the spec's field where that is another: "nanOpt:nan"
    _spec_type: ClassVar[type[FrozenSpec]]
    _fields: ClassVar[Mapping[str, str]]  # the header's name -> the spec's field
    _parameters: ClassVar[str] = """\
api : CudnnApi, optional
    The function table; the process's own if not given.
"""  # of the constructor, beside the spec, for the docstring
    _constants: ClassVar[tuple[tuple[str, int], ...]] = ()  # C arguments that are always the same
    _besides: ClassVar[tuple[str, ...]] = ()  # C functions that a subclass calls by itself

    def __init_subclass__(cls, describes: type[FrozenSpec] | None = None) -> None:
        if describes is None:
            return
        DESCRIPTORS[describes] = cls
        cls._spec_type = describes
        pairs = (argument.partition(":") for argument in cls._arguments)
        cls._fields = {name: field or name for name, _, field in pairs}
        since = FUNCTIONS[cls._setter].deprecated
        functions = (cls._create, cls._setter, cls._getter, *cls._besides, cls._destroy)
        notes = _DOC.format(
            functions=", ".join(f"`{name}`" for name in functions),
            spec=describes.__name__,
            parameters=cls._parameters,
            deprecated=f"; deprecated since cuDNN {since}" if since else "",
        )
        own, heading, examples = inspect.cleandoc(cls.__doc__ or "").partition("Examples\n--------\n")
        cls.__doc__ = own.rstrip() + "\n" + notes + heading + examples

    def _value(self, field: str) -> Any:
        return getattr(self.spec, field)

    def _set(self, spec: Any) -> None:
        values = [self._value(field) for field in self._fields.values()]
        given = {
            name: (ctypes.c_int * len(value))(*value) if isinstance(value, tuple) else value
            for name, value in zip(self._fields, values, strict=True)
        }
        given |= {
            **dict(self._constants),
            "nbDims": max((len(value) for value in values if isinstance(value, tuple)), default=0),
        }
        getattr(self.api, self._setter)(self.ptr, *(given[name] for name in FUNCTIONS[self._setter].argnames[1:]))

    @classmethod
    def read(cls, api: CudnnApi, native: Any) -> Any:
        """Read a native object back, by the getter."""
        record = FUNCTIONS[cls._getter]
        stepped = getattr(cls._spec_type, "_stepped", ())
        room: dict[str, Any] = {"nbDimsRequested": MAX_SPATIAL_RANK}
        for name, kind in zip(record.argnames[1:], record.argtypes[1:], strict=True):
            if name not in room:
                room[name] = (kind._type_ * MAX_SPATIAL_RANK)() if cls._fields.get(name) in stepped else kind._type_()
        getattr(api, cls._getter)(native, *(room[name] for name in record.argnames[1:]))
        rank = room["nbDims"].value if stepped else 0
        values = {
            field: tuple(room[name][:rank]) if field in stepped else room[name].value
            for name, field in cls._fields.items()
        }
        return cls._spec_type.from_values(values)


class SpatialDeclaredDescriptor(DeclaredDescriptor[NativeT], SpatialDescriptor[NativeT]):
    """A declared descriptor of a `SpatialSpec`."""

    _parameters = """\
spatial_rank : int, optional
    The number of spatial axes, where the spec has plain numbers; 2 if not given.
"""

    def _value(self, field: str) -> Any:
        stepped = self._spec_type._stepped  # type: ignore[attr-defined]
        return self._steps[stepped.index(field)] if field in stepped else super()._value(field)
