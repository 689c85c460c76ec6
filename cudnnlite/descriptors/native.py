"""`NativeObject`: the owner of one object inside libcudnn."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from cudnnlite._raw.api import CudnnApi, library_api
from cudnnlite._raw.calls import Alive
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.leaks import Leak, release_leaks
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite._raw.opaque import NativeT
from cudnnlite.arguments import instance_of
from cudnnlite.errors import ClosedError

ClosableT = TypeVar("ClosableT", bound="Closable")

LIVE = Alive()
# The verbs in the names of the C functions.
_VERBS = {"_create": "Create", "_setter": "Set", "_getter": "Get", "_destroy": "Destroy"}
# By the class of a spec, the descriptor of it.
DESCRIPTORS: dict[type, type[NativeObject[Any]]] = {}
_PARAMETERS = """
Parameters
----------
spec : {spec}
    The spec that the descriptor describes.
{others}
"""
_AFTER = """
Raises
------
ArgumentError
    No `{spec}`, nor what one is made of; or none that a descriptor of cuDNN's can express.
CudnnError
    cuDNN refused the description.

Notes
-----
C functions: {functions}{deprecated}.

"""


def release(api: CudnnApi, destroy: str, native: ctypes.c_void_p) -> None:
    """Destroy a native object."""
    getattr(api, destroy)(native)


class Closable(NonCopyable):
    """An object that is closed by `with` or by `close()`.

    Some are also closed, with a `ResourceWarning`, when they are garbage collected.
    """

    _leak: Leak

    def _release_when_leaked(self, release: Callable[[], object], complaint: str) -> None:
        """Run `release` if this object is collected without `close()`, which detaches `_leak`.

        It does not run at interpreter exit: destroying native objects then can crash.
        """
        self._leak = Leak(self, release, complaint)

    def close(self) -> None:
        """Free what this object owns; harmless when called again."""
        raise NotImplementedError

    def __enter__(self: ClosableT) -> ClosableT:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _complete(cls: type[NativeObject[Any]], spec: str) -> None:
    """Complete a docstring with the sections that all descriptors have."""
    if cls.__doc__ is None:  # python -OO removes docstrings
        return
    text, heading, examples = inspect.cleandoc(cls.__doc__).partition("Examples\n--------\n")
    deprecation = FUNCTIONS[cls._setter].deprecation
    if deprecation:
        deprecation = f"; {deprecation}, still shipped and working"
    sections = _AFTER.format(
        spec=spec,
        functions=", ".join(f"`{name}`" for name in cls._functions()),
        deprecated=deprecation,
    )
    if "Raises\n---" in text:
        sections = "\nNotes" + sections.partition("Notes")[2]
    if "Parameters\n---" not in text:
        sections = _PARAMETERS.format(spec=spec, others=cls._parameters.rstrip()) + sections
    cls.__doc__ = text.rstrip() + "\n" + sections + heading + examples


class NativeObject(Closable, Generic[NativeT]):
    """A context-managed owner of one native object.

    `close()` may be called twice; after it every use raises `ClosedError`.  An object that is
    garbage collected without it is destroyed too, with a `ResourceWarning`.  An object that is
    alive when the interpreter ends is not destroyed, because destroying native objects then can
    crash.

    Subclasses describe the fresh object in `_set`, and read one back in `read`.  The names of the C
    functions follow from the type's; the docstring is completed.

    Parameters
    ----------
    describes : type, optional
        The spec class that the subclass describes, for operations that have such a spec.
    """

    _type: ClassVar[type[Any]]
    _create: ClassVar[str]
    _destroy: ClassVar[str]
    _setter: ClassVar[str]
    _getter: ClassVar[str]
    _other_functions: ClassVar[tuple[str, ...]] = ()  # other C functions that a subclass calls
    _spec_type: ClassVar[type] = object
    # The constructor's parameters after the spec, for the docstring.
    _parameters: ClassVar[str] = """\
api : CudnnApi, optional
    The function table of the handle that uses the descriptor; the process-wide table if not given.
"""
    _instead_of_copy: ClassVar[str] = "pickle its spec and make another from it"
    # Whether it is made with a handle's function table: libcudnn alone cannot make it, or read it.
    _needs_handle: ClassVar[bool] = False

    def __init_subclass__(cls, describes: type | None = None) -> None:
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            (kind,) = base.__args__
            if isinstance(kind, type):
                cls._name_functions(kind)
        if describes is None:
            return
        cls._spec_type = vars(cls).get("_spec_type", describes)
        if "__orig_bases__" in vars(cls):
            DESCRIPTORS[describes] = cls
            _complete(cls, describes.__name__)

    @classmethod
    def _name_functions(cls, kind: type) -> None:
        """Set the type, and the names of the C functions that follow from it."""
        cls._type = kind
        name = kind.__name__.removeprefix("cudnn").removesuffix("_t")
        for field, verb in _VERBS.items():
            if field not in vars(cls):
                setattr(cls, field, f"cudnn{verb}{name}")

    @classmethod
    def _functions(cls) -> list[str]:
        """Return the C functions that it calls."""
        names = (cls._create, cls._setter, cls._getter, *cls._other_functions, cls._destroy)
        return [name for name in names if name in FUNCTIONS]

    @classmethod
    def _describing(cls, spec: Any, spatial_rank: int, handle: Any) -> Any:
        """Return a descriptor of a spec, for tensors with `spatial_rank` axes, on a handle."""
        return cls(spec, api=handle.api) if cls._needs_handle else cls(spec)

    @staticmethod
    def read(api: CudnnApi, native: Any) -> Any:
        """Return the spec of a native object, as cuDNN holds it."""
        raise NotImplementedError

    def read_back(self) -> Any:
        """Return the spec as cuDNN holds it, at the rank that was passed to cuDNN."""
        return self.read(self.api, self.ptr)

    def __init__(self, spec: Any, *, api: CudnnApi | None = None) -> None:
        instance_of(spec, self._spec_type, "spec")
        release_leaks()
        self.api = library_api() if api is None else instance_of(api, CudnnApi, "api")
        self._spec = spec
        native = self._type()
        self._make(native)
        self._native: NativeT | None = native
        LIVE.add(self)
        self._release_when_leaked(
            partial(release, self.api, self._destroy, native),
            f"{type(self).__name__} {spec} was never closed; use `with`, or call close()",
        )
        try:
            self._set(spec)
        except BaseException:
            self.close()
            raise

    def _make(self, native: ctypes.c_void_p) -> None:
        """Make the native object."""
        getattr(self.api, self._create)(ctypes.byref(native))

    def _set(self, spec: Any) -> None:
        """Describe the fresh native object."""

    @property
    def spec(self) -> Any:
        """The spec that this object describes."""
        return self._spec

    @property
    def ptr(self) -> NativeT:
        """The native object, as the C functions take it; ClosedError after `close()`."""
        if self._native is None:
            raise ClosedError(f"this {type(self).__name__} was closed")
        return self._native

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._native is None

    def close(self) -> None:
        """Destroy the native object; harmless when called again."""
        native, self._native = self._native, None
        if native is not None:
            self._leak.detach()
            release(self.api, self._destroy, native)

    def __repr__(self) -> str:
        if self._native is None:
            state = "closed"
        else:
            state = f"at {self._native.value or 0:#x}"
        return f"<{type(self).__name__} {self._spec}, {state}>"


def c_ints(values: Iterable[int]) -> Any:
    """Return a ctypes array that holds the values, as cuDNN takes shapes, strides and lengths."""
    numbers = tuple(values)
    return (ctypes.c_int * len(numbers))(*numbers)


def device_ints(address: int) -> Any:
    """Return a pointer to C ints in device memory, which is not read here."""
    return ctypes.pointer(ctypes.c_int.from_address(address))
