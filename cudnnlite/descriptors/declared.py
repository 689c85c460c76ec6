"""`DeclaredDescriptor`: a descriptor whose setter and getter have the same names of arguments.

Most of cuDNN's descriptors are such.
"""

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
    """A descriptor that is set and read by the names in the header.

    Subclasses say which field of the spec an argument is.  A dimension count is no field: it is the
    number of spatial axes.
    """

    # The header's names, with the spec's field if it has another name: "nanOpt:nan".
    _arguments: ClassVar[tuple[str, ...]] = ()
    # By the header's name, the spec's field.
    _fields: ClassVar[Mapping[str, str]]
    # C arguments that are no fields.
    _constants: Mapping[str, Any] = {}

    def __init__(self, spec: Any, *, api: CudnnApi | None = None) -> None:
        """Make the descriptor of a spec; of one that its mode determines, the mode will do."""
        named_by = getattr(self._spec_type, "named_by", None)
        if named_by is not None and isinstance(spec, (str, named_by)):
            spec = self._spec_type(spec)
        super().__init__(spec, api=api)

    def __init_subclass__(cls, describes: type[FrozenSpec] | None = None) -> None:
        super().__init_subclass__(describes)
        pairs = (argument.partition(":") for argument in cls._arguments)
        cls._fields = {name: field or name for name, _, field in pairs}

    def _value(self, field: str) -> Any:
        """Return the C argument for a field of the spec."""
        return getattr(self.spec, field)

    def _set(self, spec: Any) -> None:
        arguments: dict[str, Any] = {}
        rank = 0
        for name, field in self._fields.items():
            value = self._value(field)
            if isinstance(value, tuple):
                rank = max(rank, len(value))
                value = c_ints(value)
            arguments[name] = value
        arguments |= {**self._constants, "nbDims": rank, "arrayLength": rank}
        names = FUNCTIONS[self._setter].argnames[1:]
        getattr(self.api, self._setter)(self.ptr, *(arguments[name] for name in names))

    @classmethod
    def _read_arguments(cls, api: CudnnApi, native: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the getter's results as the spec's fields, and as arguments by their C names."""
        stepped = getattr(cls._spec_type, "_stepped", ())
        arguments = cls._room_for_arguments(stepped)
        c_arguments = (
            argument if isinstance(argument, (int, Array)) else byref(argument)
            for argument in arguments.values()
        )
        getattr(api, cls._getter)(native, *c_arguments)
        rank = 0
        if stepped:
            rank = (arguments.get("nbDims") or arguments["arrayLength"]).value
        fields: dict[str, Any] = {}
        for name, field in cls._fields.items():
            if name in arguments:
                is_stepped = field in stepped
                argument = arguments[name]
                fields[field] = tuple(argument[:rank]) if is_stepped else argument.value
        return fields, arguments

    @classmethod
    def _room_for_arguments(cls, stepped: tuple[str, ...]) -> dict[str, Any]:
        """Return memory for the getter's arguments, by the header's names and in its order."""
        record = FUNCTIONS[cls._getter]
        arguments: dict[str, Any] = {}
        for name, kind in zip(record.argnames[1:], record.argtypes[1:], strict=True):
            if name in ("nbDimsRequested", "arrayLengthRequested"):
                arguments[name] = MAX_SPATIAL_RANK
            elif cls._fields.get(name) in stepped:
                arguments[name] = (c_int * MAX_SPATIAL_RANK)()
            else:
                arguments[name] = kind._type_()
        return arguments

    @classmethod
    def read(cls, api: CudnnApi, native: Any) -> Any:
        """Read a native object back, by the getter."""
        fields, _ = cls._read_arguments(api, native)
        return cls._spec_type.from_values(fields)  # type: ignore[attr-defined]


class SpatialDescriptor(DeclaredDescriptor[NativeT]):
    """A descriptor of a `SpatialSpec`.

    cuDNN needs two spatial axes at least; it receives one axis as images one pixel high.
    """

    # For each of the spec's steps, its value along the axis of one pixel that a 1-D spec lacks.
    _one_pixel_steps: tuple[int, ...]
    _parameters = """\
spatial_rank : int, optional
    The number of spatial axes, where the spec has plain numbers; 2 if not given.
"""

    def __init__(self, spec: SpatialSpec, spatial_rank: int | None = None) -> None:
        instance_of(spec, self._spec_type, "spec")
        if spatial_rank is None:
            spatial_rank = spec.spatial_rank or 2
        self._steps = spec.steps(spatial_rank)
        if spatial_rank == 1:
            self._steps = tuple(
                (one_pixel_step, *steps)
                for one_pixel_step, steps in zip(self._one_pixel_steps, self._steps, strict=True)
            )
        super().__init__(spec)

    @classmethod
    def _describing(cls, spec: Any, spatial_rank: int, handle: Any) -> Any:
        """Return a descriptor of a spec, for images with `spatial_rank` axes."""
        return cls(spec, spatial_rank=spatial_rank)

    def _value(self, field: str) -> Any:
        stepped = self.spec._stepped
        if field in stepped:
            return self._steps[stepped.index(field)]
        return super()._value(field)
