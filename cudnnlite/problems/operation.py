"""`Operation`: a C function as data, from which one plan marshals it and the emulated device unmarshals it.

cuDNN's headers name their arguments regularly: an operand ``x`` comes with its ``xDesc``, scalars
are ``alpha`` and ``beta``, a workspace is ``workSpace`` and ``workSpaceSizeInBytes``.  So the names
of operands and options are enough; the generated table knows the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.record import Function
from cudnnlite.arguments import shown
from cudnnlite.cached_property import cached_property
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType, MathType
from cudnnlite.errors import ArgumentError
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import same_strides

FLOATS = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)
LAYER_DTYPES = (*FLOATS, DataType.INT8)  # what any of them was seen to take on an H200
STRICTEST_ALIGNMENT = 16  # bytes: no operand of an operation needs more
RESERVE_ALIGNMENT = 16  # bytes; an H200's dropout kernels end the CUDA context below 4
Alignments = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, int]]


def natural_alignments(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, int]:
    """Return no alignments: every operand may begin at any multiple of its data type's size."""
    return {}


@dataclass(frozen=True)
class Algorithms:
    """Where cuDNN has a choice of algorithms: which, and the C functions that tell of them.

    Such an operation has an option "conv", whose descriptor has the math type.
    """

    kind: Any  # their enum
    result: Any  # the C structure that a search fills
    # C functions: how many results there may be, the ranking without a run, the search (empty:
    # cuDNN has none), the size of the workspace
    count: str
    heuristic: str
    find: str
    workspace: str
    graph: (
        str  # the kind of operation in cuDNN's graph API; its attributes have the operands' names
    )
    # (problem, algorithm) -> why the C function has no such call, or None if it has one
    why_unsupported: Callable[[Any, Any], str | None] = lambda problem, algorithm: None
    # (problem) -> why no engine computes it, nor a part of it, or None if one may
    why_no_graph: Callable[[Any], str | None] = lambda problem: None


@dataclass(frozen=True, eq=False)
class Operation:
    """A C function as data."""

    name: str  # what it is called in Python and in files: "pooling_backward"
    function: str  # the C function; the order of its arguments is the generated table's
    reads: tuple[
        str, ...
    ]  # the operands, by their names in the header, and in the order of the Python function
    writes: tuple[str, ...]
    # (specs read and given, options, by name) -> the spec of what is written, or of all that is, as
    # a tuple.  ArgumentError where they do not fit together
    infer: Callable[..., Any]
    # name -> type.  A spec becomes a descriptor, ``<name>Desc`` in the header; enums and numbers go
    # as they are, or by address where the header wants a pointer
    options: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(
        default_factory=dict
    )  # where a header is irregular: its argument -> the name here
    # what of `writes` the caller has to give, because it is updated or says the shape -> its name
    # as a Python argument
    caller_provided: Mapping[str, str] = field(default_factory=dict)
    # operands without a descriptor of their own -> the one whose descriptor is theirs too
    shared: Mapping[str, str] = field(default_factory=dict)
    # operands of which cuDNN is told the address alone -> (specs and options, by name) -> what they
    # have to be
    without_descriptor: Mapping[str, Callable[[Mapping[str, Any]], TensorSpec]] = field(
        default_factory=dict
    )
    # which operands may be what is written first: the same memory, described in the same way
    in_place: frozenset[str] = frozenset()
    # (specs, options and scalars) -> bytes that the addresses of operands have to be multiples of.
    # Operands that are not listed need the size of their data type.  A kernel that loads several
    # values at once ends the CUDA context of the process where its operand has less;
    # tests/device/alignment_sweep.py shows which ones do on a GPU.
    alignments: Alignments = natural_alignments
    # whether what is written is a sum over the images of what is read, and so zero where there are
    # none
    sums_images: bool = False
    blended_outputs: int = (
        1  # how many of what is written, from the first, `alpha` and `beta` apply to
    )
    # what operands may be, as far as that can be said beforehand; empty where `infer` sees to it
    dtypes: tuple[DataType, ...] = LAYER_DTYPES
    mixed: bool = False  # whether operands may differ in their data types; `check` says how
    constants: Mapping[str, Any] = field(
        default_factory=dict
    )  # C arguments that are always the same
    filters: frozenset[str] = frozenset()  # which operands are filters
    # whether `infer` is told too what is written, None where nobody said: what is read may not tell
    # its shape
    shape_from_out: bool = False
    workspace: str = (
        ""  # the C function that tells how much workspace is needed, but where there are algorithms
    )
    # (specs) -> bytes of workspace where no C function tells; several arguments that are named
    # workSpace here get equal parts
    scratch: Callable[[Mapping[str, Any]], int] = lambda specs: 0
    reserve: str = ""  # the C function that tells how large the reserve space between a forward and a backward call is
    algorithms: Algorithms | None = None  # where there is a choice
    # (all specs, options and scalars) -> nothing; ArgumentError where cuDNN answers SUCCESS and
    # computes another thing
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], None] = lambda specs, options: None
    # (specs, options) -> options with what was left open filled in, and written in one way: equal
    # problems are equal
    complete: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = (
        lambda specs, options: options
    )
    flops: Callable[[Any], int] = lambda problem: (
        0
    )  # (problem) -> multiplications and additions of the usual way
    # (problem) -> the math type that the user asked for
    math_type: Callable[[Any], MathType] = lambda problem: MathType.DEFAULT
    hint: Callable[[Any], str] = lambda problem: (
        ""
    )  # (problem) -> what is known of a refusal, for its message
    words: Callable[[Any], str] = str  # (problem) -> it in a few words, for tables
    # (problem) -> it in a sentence, for titles and messages
    title: Callable[[Any], str] = lambda problem: (
        f"{problem.kind.replace('_', ' ')} of {problem.terms}"
    )

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"

    def __reduce__(self) -> Any:
        return find_operation, (self.name,)

    @property
    def record(self) -> Function:
        """What the generated table knows of the C function."""
        return FUNCTIONS[self.function]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """What a problem of this operation consists of."""
        return (*self.reads, *self.options, *self.writes, *self.scalars)

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """Which of `alpha` and `beta` it has."""
        return tuple(name for name in ("alpha", "beta") if self.writes and self.header(name))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """What `out` is of what is written, or a tuple of; the rest has arguments of its own."""
        return tuple(name for name in self.writes if name not in self.caller_provided)

    @cached_property
    def writes_one(self) -> bool:
        """Whether exactly one operand is written."""
        return len(self.writes) == 1

    @property
    def needs_reserve(self) -> bool:
        """Whether it needs the reserve space that another operation wrote."""
        return bool(self.reserve) and "dy" in self.reads

    @cached_property
    def option_types(self) -> tuple[type, ...]:
        """The types of the options, in their order."""
        return tuple(self.options.values())

    @cached_property
    def nulls(self) -> frozenset[str]:
        """Which C arguments are always null pointers: what tells the operations of one C function apart."""
        nulls = [name for name, value in self.constants.items() if value is None]
        return frozenset(there for name in nulls for there in self.header(name))

    @cached_property
    def by_address(self) -> tuple[str, ...]:
        """The numbers among the options to which the header wants pointers."""
        numbers = [name for name, kind in self.options.items() if kind is float]
        kinds = dict(zip(self.record.argnames, self.record.argtypes, strict=True))
        return tuple(
            name
            for name in numbers
            if all(issubclass(kinds[n], c_void_p) for n in self.header(name))
        )

    def header(self, name: str) -> tuple[str, ...]:
        """Return how the header calls an argument; more than once where several are given the same."""
        return tuple(
            there for there in self.record.argnames if self.names.get(there, there) == name
        )

    def argument(self, name: str) -> str:
        """Return how the Python function calls an operand."""
        if name not in self.outputs:
            return self.caller_provided.get(name, name)
        return "out" if len(self.outputs) == 1 else f"out[{self.outputs.index(name)}]"

    def all_written(self, out: Any) -> Sequence[Any]:
        """Return what was given for each operand that is written, None where nothing was."""
        return (out,) if len(self.writes) == 1 else all_of(out, self.writes)

    def gathered(self, out: Any, *given: Any) -> tuple[Any, ...]:
        """Return everything that is written, as `call` takes it: `out`, a tuple or None, and what has to be given."""
        return (*all_of(out, self.outputs), *given)

    def expected(self, values: Mapping[str, Any]) -> dict[str, TensorSpec]:
        """Return the specs of what is written, by name, from those of what is read or given, and the options.

        ArgumentError where they do not fit together, or something that has to be given is not.
        """
        missing = [
            argument for name, argument in self.caller_provided.items() if values.get(name) is None
        ]
        if missing:
            raise ArgumentError(
                f"{missing[0]} has to be given: {self.function} updates it, or takes its shape from it"
            )
        told = {name: values[name] for name in (*self.reads, *self.caller_provided, *self.options)}
        told |= {name: values.get(name) for name in self.writes if self.shape_from_out}
        found = self.infer(**told)
        return dict(zip(self.writes, found if isinstance(found, tuple) else (found,), strict=True))

    def check_without_descriptor(self, values: Mapping[str, Any]) -> None:
        """Raise ArgumentError where an operand without a descriptor is not what it has to be."""
        for name, needed in self.without_descriptor.items():
            spec, wanted = values[name], needed(values)
            alike = (spec.shape, spec.dtype) == (wanted.shape, wanted.dtype)
            if not alike or not same_strides(spec.shape, spec.strides, wanted.strides):
                raise ArgumentError(f"{self.argument(name)} is {spec}; needed: {wanted}")

    def check_dtypes(self, specs: Mapping[str, Any]) -> None:
        """Raise ArgumentError where an operand's data type is none that the operation takes, or not the first one's."""
        first = next(iter(specs.values())).dtype
        for name, spec in specs.items():
            allowed = self.dtypes if self.mixed or spec.dtype not in self.dtypes else (first,)
            if allowed and spec.dtype not in allowed:
                listed = ", ".join(map(dtype_name, allowed))
                verb = "needed" if len(allowed) == 1 else "allowed"
                raise ArgumentError(
                    f"{self.argument(name)} is {dtype_name(spec.dtype)}; {verb}: {listed}"
                )


def check_alike(specs: Mapping[str, TensorSpec], options: Mapping[str, Any] | None = None) -> None:
    """Raise ArgumentError unless all operands, the last of which is written, have the same strides."""
    (first_name, first), *others = specs.items()
    for number, (name, spec) in enumerate(others, start=2):
        if not same_strides(first.shape, first.strides, spec.strides):
            name = "out" if number == len(specs) else name  # noqa: PLW2901
            raise ArgumentError(
                f"{name} is {spec}; it must lie in memory as {first_name} does, {first}"
            )


def check_same_shape(
    specs: Mapping[str, TensorSpec], options: Mapping[str, Any] | None = None
) -> None:
    """Raise ArgumentError unless all operands, the last of which is written, have the same shape; their strides may differ."""
    (first_name, first), *others = specs.items()
    for name, spec in others:
        if spec.shape != first.shape:
            raise ArgumentError(
                f"{name} has shape {spec.shape}; needed: {first.shape}, the shape of {first_name}"
            )


def gradient_of(
    forward: Operation, function: str, reads: tuple[str, ...], **fields: Any
) -> Operation:
    """Return the operation that computes dx from dy and whatever else its C function reads of y and x."""

    def infer(**given: Any) -> TensorSpec:
        specs = {name: given.pop(name) for name in reads}
        y = forward.infer(specs["x"], **given) if "x" in specs else specs["y"]
        for name in {"y", "dy"} & specs.keys():
            if specs[name].shape != y.shape:
                raise ArgumentError(f"{name} has shape {specs[name].shape}; needed: {y.shape}")
        return specs.get("x", y)  # type: ignore[no-any-return]

    name = forward.name.replace("_forward", "_backward")
    fields = {"check": forward.check} | fields
    return Operation(
        name, function, reads, ("dx",), infer, forward.options, forward.names, **fields
    )


def all_of(out: Any, names: Sequence[str], listed: str = "") -> Sequence[Any]:
    """Return what was given for each of several operands that are written, None where nothing was."""
    if out is None:
        return (None,) * len(names)
    if not isinstance(out, (tuple, list)) or len(out) != len(names):
        raise ArgumentError(f"out={shown(out)}; needed: a tuple of {listed or ', '.join(names)}")
    return out


def find_operation(name: str) -> Operation:
    """Return the declaration of that name; KeyError if there is none.

    Unpickling calls this.  As pickle itself does it imports the module by name: the catalogue,
    which imports every declaration.
    """
    catalogue = import_module("cudnnlite.problems.catalogue")
    declaration: Operation = catalogue.OPERATIONS[name]
    return declaration
