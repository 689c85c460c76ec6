"""`DeclaredDescriptor`: a descriptor whose setter and getter name their arguments alike, as most of cuDNN's do."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Array, byref, c_int
from typing import Any, ClassVar

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.opaque import NativeT
from cudnnlite.arguments import instance_of
from cudnnlite.descriptors.native import NativeObject, c_ints
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import MAX_SPATIAL_RANK
from cudnnlite.specs.steps import SpatialSpec


class DeclaredDescriptor(NativeObject[NativeT]):
    """A descriptor that is set and read by the names in the header; subclasses say which field of the spec each is.

    A dimension count is no field: it is the number of spatial axes.
    """

    # the header's names, each with the spec's field where that is another: "nanOpt:nan"
    _arguments: ClassVar[tuple[str, ...]] = ()
    _fields: ClassVar[Mapping[str, str]]  # the header's name -> the spec's field
    _constants: Mapping[str, Any] = {}  # C arguments that are no fields

    def __init_subclass__(cls, describes: type[FrozenSpec] | None = None) -> None:
        super().__init_subclass__(describes)
        pairs = (argument.partition(":") for argument in cls._arguments)
        cls._fields = {name: field or name for name, _, field in pairs}

    def _value(self, field: str) -> Any:
        return getattr(self.spec, field)

    def _set(self, spec: Any) -> None:
        values = {name: self._value(field) for name, field in self._fields.items()}
        rank = max((len(value) for value in values.values() if isinstance(value, tuple)), default=0)
        given = {
            name: c_ints(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }
        given |= {**self._constants, "nbDims": rank, "arrayLength": rank}
        getattr(self.api, self._setter)(
            self.ptr, *(given[name] for name in FUNCTIONS[self._setter].argnames[1:])
        )

    @classmethod
    def _look(cls, api: CudnnApi, native: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the getter says: the spec's fields, and everything by the header's names."""
        record, stepped = FUNCTIONS[cls._getter], getattr(cls._spec_type, "_stepped", ())
        room: dict[str, Any] = dict.fromkeys(
            ("nbDimsRequested", "arrayLengthRequested"), MAX_SPATIAL_RANK
        )
        for name, kind in zip(record.argnames[1:], record.argtypes[1:], strict=True):
            if name not in room:
                room[name] = (
                    (c_int * MAX_SPATIAL_RANK)()
                    if cls._fields.get(name) in stepped
                    else kind._type_()
                )
        given = (room[name] for name in record.argnames[1:])
        getattr(api, cls._getter)(
            native, *(each if isinstance(each, (int, Array)) else byref(each) for each in given)
        )
        rank = (room.get("nbDims") or room["arrayLength"]).value if stepped else 0
        fields = {
            field: tuple(room[name][:rank]) if field in stepped else room[name].value
            for name, field in cls._fields.items()
            if name in room
        }
        return fields, room

    @classmethod
    def read(cls, api: CudnnApi, native: Any) -> Any:
        """Read a native object back, by the getter."""
        return cls._spec_type.from_values(cls._look(api, native)[0])  # type: ignore[attr-defined]


class SpatialDescriptor(DeclaredDescriptor[NativeT]):
    """A descriptor of a `SpatialSpec`; what has one spatial axis is told to cuDNN, which wants two, as one pixel high."""

    _missing: tuple[int, ...]  # what an axis of one pixel has, for each of the spec's steps
    _parameters = """\
spatial_rank : int, optional
    The number of spatial axes, where the spec has plain numbers; 2 if not given.
"""

    def __init__(self, spec: SpatialSpec, spatial_rank: int | None = None) -> None:
        instance_of(spec, self._spec_type, "spec")
        rank = spec.spatial_rank or 2 if spatial_rank is None else spatial_rank
        ones = ((one,) if rank == 1 else () for one in self._missing)
        self._steps = tuple((*one, *step) for one, step in zip(ones, spec.steps(rank), strict=True))
        super().__init__(spec)

    @classmethod
    def describing(cls, spec: Any, spatial_rank: int, handle: Any) -> Any:
        """Return a descriptor of a spec, for images with so many axes."""
        return cls(spec, spatial_rank=spatial_rank)

    def _value(self, field: str) -> Any:
        stepped = self.spec._stepped
        return self._steps[stepped.index(field)] if field in stepped else super()._value(field)
