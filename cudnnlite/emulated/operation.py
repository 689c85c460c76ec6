"""The emulated half of 'an operation is data': a C call unmarshalled by the names of its header, and NumPy in, NumPy out."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from cudnnlite.descriptors import DESCRIPTORS
from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.precision import scale_add, wide_dtype
from cudnnlite.emulated.registry import (
    RefusalError,
    Work,
    bad,
    check_aligned,
    check_size,
    emulates,
    null,
    unsupported,
)
from cudnnlite.emulated.remembered import remembered
from cudnnlite.enums import DataType, Status
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.problems.operation import RESERVE_ALIGNMENT
from cudnnlite.problems.problem import SCALARS
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import same_strides

Array = np.ndarray[Any, Any]

DOCUMENTED = (
    DataType.FLOAT,
    DataType.DOUBLE,
    DataType.HALF,
)  # of bfloat16 only a GPU says where it is taken
ENTRIES: dict[str, dict[str, Callable[..., Any]]] = {}  # by C function and operation
COMPUTES: dict[str, Callable[..., Any]] = {}  # by operation: what `computes` registered


class Call:
    """A call of an operation's C function, or of one that asks about it; its descriptors are read back and checked.

    `specs` and `options` are those by name, `given` the C arguments by the header's names and by ours.  RefusalError or
    ArgumentError if the descriptors do not fit together.
    """

    def __init__(self, given: SimpleNamespace, operation: str) -> None:
        self.api: EmulatedApi = given.api
        self.operation = own = OPERATIONS[operation]
        self.given = dict(vars(given))
        self.given |= {
            here: self.given[there] for there, here in own.names.items() if there in self.given
        }
        kinds = {
            name: FilterSpec if name in own.filters else TensorSpec
            for name in (*own.reads, *own.writes)
        }
        self.specs: dict[str, Any] = {
            n: self._described(n, kind)
            for n, kind in kinds.items()
            if n not in own.without_descriptor
        }
        self.options = {name: self._option(name, kind) for name, kind in own.options.items()}
        found = self.specs | {
            n: needed(self.specs | self.options) for n, needed in own.without_descriptor.items()
        }
        self.specs = {name: found[name] for name in kinds}
        self.alignments = own.alignments(self.specs, self.options)
        expected = own.expected(self.specs | self.options)
        own.check(self.specs, SCALARS | self.options)
        for name, spec in expected.items():
            if spec.shape != (shape := self.specs[name].shape):
                raise bad(f"{name} has shape {shape}, the result has {spec.shape}")

    def _described(self, name: str, kind: type) -> Any:
        native = self.given[f"{self.operation.shared.get(name, name)}Desc"]
        descriptor = DESCRIPTORS[kind]
        return (
            remembered(self.api, native)
            if descriptor.by_handle
            else descriptor.read(self.api.real, native)
        )

    def _option(self, name: str, kind: Any) -> Any:
        if issubclass(kind, FrozenSpec):
            return self._described(name, kind)
        if kind is float and name not in self.given:  # what asks for a size is not told all of it
            return 0.0
        if kind is float:
            return self.number(name) if name in self.operation.by_address else self.given[name]
        value = kind(self.given[name])
        if value.name not in kind.__members__:
            raise bad(f"{name}={self.given[name]}; allowed: {', '.join(kind.__members__)}")
        return value

    @property
    def compute(self) -> np.dtype[Any]:
        """What is computed in: float64 beside float64, float32 otherwise."""
        return wide_dtype(next(iter(self.specs.values())).dtype)

    def number(self, name: str) -> float:
        """Return a host scalar, read in the type that cuDNN wants for it: float beside what is computed in integers too."""
        if not self.given[name]:
            raise null(name)
        kind = ctypes.c_double if self.compute == np.float64 else ctypes.c_float
        return kind.from_address(self.given[name]).value

    def scalars(self) -> tuple[float, float]:
        """Return alpha and beta, those that the operation has not as 1 and 0."""
        alpha, beta = (
            self.number(n) if n in self.operation.scalars else d for n, d in SCALARS.items()
        )
        return alpha, beta

    def view(self, name: str) -> Bytes:
        """Return the memory of an operand, which must lie inside one allocation and be aligned."""
        address, spec = self.given[name] or 0, self.specs[name]
        check_aligned(name, address, self.alignments.get(name, numpy_dtype(spec.dtype).itemsize))
        return self.api.memory.view(address, spec.nbytes)

    def check_workspace(self, needed: int) -> None:
        """Refuse a workspace that is too small, or lies outside live allocations."""
        # scratch memory without a size is as large as it has to be
        given = self.given.get("workSpaceSizeInBytes", needed)
        check_size("workspace", given, needed, Status.BAD_PARAM_SIZE_INSUFFICIENT)
        names = self.operation.header("workSpace")
        for name in names:
            self.api.memory.view(self.given[name] or 0, needed // len(names))

    def reserve(self, needed: int) -> Bytes:
        """Return the memory of the reserve space, which must be as large as it has to be."""
        given = self.given["reserveSpaceSizeInBytes"]
        check_aligned("reserve space", self.given["reserveSpace"] or 0, RESERVE_ALIGNMENT)
        check_size("reserve space", given, needed, Status.BAD_PARAM_SIZE_INSUFFICIENT)
        return self.api.memory.view(self.given["reserveSpace"] or 0, needed)

    def kept_bits(self, shape: tuple[int, ...]) -> Array:
        """Return what is noted in the reserve space, a bit for each value."""
        count = math.prod(shape)
        return np.unpackbits(self.reserve(bits_bytes(count)), count=count).reshape(shape)

    def _is_same(self, one: str, other: str) -> bool:
        """Whether two operands are the same memory, described in the same way."""
        return bool(self.given[one] == self.given[other] and self.specs[one] == self.specs[other])

    def views(self) -> dict[str, Bytes]:
        """Return the memory of all operands; that of what is written overlaps no other's, and its values not each other.

        What may be computed in place may be the first that is written.
        """
        found = {name: self.view(name) for name in self.specs}
        for number, written in enumerate(self.operation.writes):
            target = as_tensor(self.specs[written])
            is_in_place = any(self._is_same(name, written) for name in self.operation.in_place)
            for name in (*self.operation.reads, *self.operation.writes[:number]):
                allowed = is_in_place and self._is_same(name, written)
                if np.shares_memory(found[name], found[written]) and not allowed:
                    raise bad(f"{name} and {written} overlap in memory")
            if target.overlaps_itself:
                raise bad(
                    f"values of {written} overlap each other in memory: strides {target.strides}"
                )
        return found


def bits_bytes(count: int) -> int:
    """Return how many bytes so many bits take."""
    return -(-count // 8)


def enter(operation: str, function: str, entry: Callable[..., Any]) -> None:
    """Register the emulation of a C function for one of its operations, which differ in what is a null pointer."""
    entries = ENTRIES.setdefault(function, {})
    entries[operation] = entry

    def pick(given: SimpleNamespace) -> Any:
        nulls = {o: {n for n in OPERATIONS[o].nulls if hasattr(given, n)} for o in entries}
        missing = {name for names in nulls.values() for name in names if not getattr(given, name)}
        for name, own in nulls.items():
            if own == missing:
                return entries[name](given)
        raise RefusalError(
            Status.BAD_PARAM_NULL_POINTER, f"{', '.join(sorted(missing))}: null pointers"
        )

    emulates(function)(pick)


def in_one_layout(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return why an H200 may refuse: operands of one shape with other strides, or images in several layouts.

    What is refused where nothing is known of an operation.  A vector lies in every layout.
    """
    whole = [s for s in specs.values() if max(s.shape) < s.size]
    alike = all(
        same_strides(s.shape, s.strides, whole[-1].strides)
        for s in whole
        if s.shape == whole[-1].shape
    )
    layouts = {spec.layout for spec in whole}
    if alike and (
        not whole or any(all(s.layout == name or s.fits(name) for s in whole) for name in layouts)
    ):
        return ""
    return "operands in several layouts: " + ", ".join(
        f"{name} is {spec}" for name, spec in specs.items()
    )


def in_any_layout(specs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Refuse nothing: an H200 takes these operands in any layouts and strides."""
    return ""


def computes(
    operation: str,
    *,
    dtypes: tuple[DataType, ...] = DOCUMENTED,
    ranks: tuple[int, ...] = (4, 5),
    alike: tuple[str, ...] | None = None,
    refuse: Callable[[Mapping[str, Any], Mapping[str, Any]], str] = in_one_layout,
    refused: Status = Status.BAD_PARAM,
    workspace: Callable[[Mapping[str, Any]], int] = lambda specs: 0,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function, NumPy in, NumPy out, as what an operation computes.

    It receives the operands in the order of `Operation.reads`, then those of `Operation.caller_provided`, float32 or float64, and the
    options by name; where there is a reserve space, `call` besides.  It returns the result before alpha, beta and rounding,
    or what has its shape by broadcasting; a tuple where more than one operand is written.  Descriptors, addresses, alignment
    and what is refused are seen to here.

    Without more than its name an operation takes what cuDNN documents: float32, float64, float16, rank 4 or 5, in one layout.
    Rows that were recorded on a GPU say what is to be added, or taken away.

    Parameters
    ----------
    operation : str
        Its name.
    dtypes, ranks : tuple
        What an H200 takes: of all operands alike.  (1-D images are told to cuDNN at rank 4.)
    alike : tuple of str, optional
        The operands that must have one data type; all if not given.
    refuse : callable, optional
        (all specs, options) -> why an H200 refuses them; empty if it does not.  `in_one_layout` if not given.
    refused : Status
        What it calls that.
    workspace : callable
        (all specs) -> bytes, which the operation's C function for that tells, where it has one.
    """

    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        def entry(given: SimpleNamespace) -> Work:
            call = Call(given, operation)
            own, specs = call.operation, call.specs
            target = specs[own.writes[0]]
            kinds = {specs[name].dtype for name in alike or specs}
            if len(kinds) > 1 or target.dtype not in dtypes:
                told = ", ".join(f"{name} is {spec.dtype.name}" for name, spec in specs.items())
                raise bad(told) if len(kinds) > 1 else unsupported(told)
            if target.rank not in ranks:
                raise unsupported(f"tensors of rank {target.rank}")
            if why := refuse(specs, call.options):
                raise RefusalError(refused, why)
            call.check_workspace(workspace(specs))
            alpha, beta = call.scalars()
            call.views()  # what must not be is refused now, and again at each launch
            return partial(work, call, alpha, beta)

        def work(call: Call, alpha: float, beta: float) -> None:
            own, specs, views = call.operation, call.specs, call.views()
            call.api.ran.add(own.function)
            values = [
                read_values(views[n], specs[n]).astype(call.compute)
                for n in (*own.reads, *own.caller_provided)
            ]
            given = {**call.options, "call": call} if own.reserve else call.options
            with np.errstate(all="ignore"):
                results: Any = compute(*values, **given)
            for name, result in zip(
                own.writes, results if isinstance(results, tuple) else (results,), strict=True
            ):
                how = (alpha, beta) if name in own.writes[: own.blended_outputs] else (1.0, 0.0)
                spec, old = specs[name], read_values(views[name], specs[name]) if how[1] else None
                whole = np.broadcast_to(result, spec.shape)
                write_values(
                    views[name],
                    spec,
                    slice(None),
                    scale_add(whole, *how, old, numpy_dtype(spec.dtype)),
                )

        def size(given: SimpleNamespace) -> None:
            given.sizeInBytes[0] = workspace(Call(given, operation).specs)

        enter(operation, OPERATIONS[operation].function, entry)
        if OPERATIONS[operation].workspace:
            enter(operation, OPERATIONS[operation].workspace, size)
        COMPUTES[operation] = compute
        return compute

    return register
