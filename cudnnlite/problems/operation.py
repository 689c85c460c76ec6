"""`Operation`: a C function as data.

From it a plan marshals the arguments of a call, and the emulated device unmarshals them.

cuDNN's headers name their arguments regularly: an operand ``x`` comes with its ``xDesc``, scalars
are ``alpha`` and ``beta``, a workspace is ``workSpace`` and ``workSpaceSizeInBytes``.  So the names
of operands and options are enough; the generated table knows the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass, field
from typing import Any

from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.record import Function
from cudnnlite.arguments import shown
from cudnnlite.cached_property import cached_property
from cudnnlite.dtypes import dtype_name, float64_hint
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import DropoutSpec
from cudnnlite.specs.layout import same_strides

FLOATS = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)
LAYER_DTYPES = (*FLOATS, DataType.INT8)  # the data types that any layer takes on an H200
STRICTEST_ALIGNMENT = 16  # bytes: no operand of an operation needs more
RESERVE_ALIGNMENT = 16  # bytes; an H200's dropout kernels end the CUDA context below 4
SCALARS_OF_FIRST = ("alpha", "beta")
Alignments = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, int]]


def natural_alignments(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, int]:
    """Return no alignments: every operand may begin at any multiple of its data type's size."""
    return {}


@dataclass(frozen=True)
class Algorithms:
    """The choice of algorithms that cuDNN has, with the C functions that list and measure them.

    An operation with a choice has an option "conv", whose descriptor has the math type.
    """

    # The enum of the algorithms.
    kind: Any
    # The C structure that a search fills.
    result: Any
    # The C function that returns how many results there may be.
    count: str
    # The C function that ranks them without a run.
    heuristic: str
    # The C function that runs and times them; empty if cuDNN has none.
    find: str
    # The C function that returns the size of the workspace.
    workspace: str
    # The kind of operation in cuDNN's graph API; its attributes have the operands' names.
    graph: str
    # The operands that are filters.
    filters: frozenset[str]
    # (problem, algorithm) -> why the C function has no such call, or None if it has one.
    why_unsupported: Callable[[Any, Any], str | None] = lambda problem, algorithm: None
    # (problem) -> why no engine computes it or a part of it, or None if one may.
    why_no_graph: Callable[[Any], str | None] = lambda problem: None


@dataclass(frozen=True)
class Description:
    """What is said of a problem, in figures and in words; no call needs it."""

    # (problem) -> multiplications and additions of the direct method.
    flops: Callable[[Any], int] = lambda problem: 0
    # (problem) -> a known reason for a refusal, for its message; empty if there is none.
    hint: Callable[[Any], str] = lambda problem: ""
    # (problem) -> a few words, for tables.
    words: Callable[[Any], str] = str
    # (problem) -> a sentence, for titles and messages.
    title: Callable[[Any], str] = lambda problem: (
        f"{problem.kind.replace('_', ' ')} of {problem.terms}"
    )


@dataclass(frozen=True, eq=False)
class Operation:
    """A C function as data."""

    # The name in Python and in files: "pooling_backward".
    name: str
    # The C function; the order of its arguments is the generated table's.
    function: str
    # The operands that are read, by their names in the header, in the order of the Python function.
    reads: tuple[str, ...]
    # The operands that are written, by their names in the header.
    writes: tuple[str, ...]
    # (specs of `reads` and `caller_provided`, options, by name) -> the spec of the output, or a
    # tuple of specs.  ArgumentError if they do not fit together.
    infer: Callable[..., Any]
    # Option -> type.  A spec becomes a descriptor, ``<name>Desc`` in the header.  Enums and numbers
    # are passed as they are, or by address if the header has a pointer.
    options: Mapping[str, Any] = field(default_factory=dict)
    # For irregular headers: the header's argument -> the name here.
    names: Mapping[str, str] = field(default_factory=dict)
    # Outputs that the caller must pass, because they are updated or determine the shape -> the
    # argument of the Python function.
    caller_provided: Mapping[str, str] = field(default_factory=dict)
    # The operands of a plan's call, if it takes more than `reads`: outputs that it updates, or the
    # reserve space.
    call_operands: tuple[str, ...] = ()
    # Operands of which cuDNN receives only the address -> (specs and options, by name) -> the spec
    # that they need.  Where C has one descriptor for several operands, it is the spec of the first.
    without_descriptor: Mapping[str, Callable[[Mapping[str, Any]], TensorSpec]] = field(
        default_factory=dict
    )
    # The operands whose memory the first output may have, with the same layout.
    in_place: frozenset[str] = frozenset()
    # (specs, options and scalars) -> bytes that the addresses of operands have to be multiples of.
    # Operands that are not listed need the size of their data type.  A kernel that loads several
    # values at once ends the CUDA context of the process if its operand has less;
    # tests/device/alignment_sweep.py shows which ones do on a GPU.
    alignments: Alignments = natural_alignments
    # Outputs that are blended with their old values as the first one is -> the names that stand for
    # `alpha` and `beta`, which may be scalars of their own.
    also_blended: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    # The data types that operands may have; empty if `infer` checks them.
    dtypes: tuple[DataType, ...] = LAYER_DTYPES
    # Whether operands may differ in their data types; `check` says how.
    mixed: bool = False
    # C arguments that are always the same.
    constants: Mapping[str, Any] = field(default_factory=dict)
    # Whether `infer` receives the outputs' specs, too, because the inputs alone may not determine
    # the shape.  A spec that the caller did not pass is None.
    shape_from_out: bool = False
    # The C function that returns the size of the workspace, unless there are algorithms.  If cuDNN
    # has no such function, each argument that is named workSpace here is as large as the first
    # operand.
    workspace: str = ""
    # The C function that returns the size of the reserve space, which a forward call writes for a
    # backward call.
    reserve: str = ""
    # The choice of algorithms, if there is one.
    algorithms: Algorithms | None = None
    # (all specs, options and scalars) -> nothing.  ArgumentError for what cuDNN computes wrongly,
    # with SUCCESS.
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], None] = lambda specs, options: None
    # (specs, options) -> complete options in one form, so that equal problems compare equal.
    complete: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = (
        lambda specs, options: options
    )
    # (problem) -> the same problem of packed operands, if cuDNN computes wrongly in the strides of
    # these; a call then works on packed copies.  None if it does not.
    packed: Callable[[Any], Any] = lambda problem: None
    # What is said of a problem, in figures and in words.
    description: Description = Description()

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"

    @property
    def record(self) -> Function:
        """The C function in the generated table."""
        return FUNCTIONS[self.function]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of a problem."""
        return (*self.reads, *self.options, *self.writes, *self.scalars)

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """The scalars that the C function takes: `alpha`, `beta`, and the outputs' own."""
        names = ("alpha", "beta", *self.shared_scalars)
        return tuple(name for name in names if self.writes and self.header(name))

    @cached_property
    def shared_scalars(self) -> Mapping[str, str]:
        """The outputs' own scalars -> the scalar whose value each has if it is not given."""
        return {
            own_name: shared_name
            for pair in self.also_blended.values()
            for own_name, shared_name in zip(pair, SCALARS_OF_FIRST, strict=True)
            if own_name != shared_name
        }

    def scalars_of(self, output: str) -> tuple[str, str] | None:
        """Return the names of the scalars that an output is blended with, None if with none."""
        if output in self.writes[:1]:
            return SCALARS_OF_FIRST
        return self.also_blended.get(output)

    @cached_property
    def filters(self) -> frozenset[str]:
        """The operands that are filters."""
        return self.algorithms.filters if self.algorithms else frozenset()

    @property
    def never_in_place(self) -> frozenset[str]:
        """The operands whose memory no output has, not even one in place of another operand."""
        return frozenset()

    @cached_property
    def needs_reserve(self) -> bool:
        """Whether a call reads the reserve space that a forward call wrote: a gradient does."""
        return bool(self.reserve) and "dy" in self.reads

    @cached_property
    def state_option(self) -> str:
        """The option whose spec holds random states, which a call advances; empty if none does."""
        return next((name for name, kind in self.options.items() if kind is DropoutSpec), "")

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that `out` stands for; the others are arguments of their own."""
        return tuple(name for name in self.writes if name not in self.caller_provided)

    @cached_property
    def writes_one(self) -> bool:
        """Whether exactly one operand is written."""
        return len(self.writes) == 1

    @cached_property
    def option_types(self) -> tuple[type, ...]:
        """The types of the options, in their order."""
        return tuple(self.options.values())

    @cached_property
    def nulls(self) -> frozenset[str]:
        """The C arguments that are always null pointers.

        They distinguish the operations of one C function.
        """
        names = [name for name, value in self.constants.items() if value is None]
        return frozenset(header_name for name in names for header_name in self.header(name))

    @cached_property
    def by_address(self) -> tuple[str, ...]:
        """The numbers among the options that C receives by address."""
        numbers = [name for name, kind in self.options.items() if kind is float]
        types = dict(zip(self.record.argnames, self.record.argtypes, strict=True))
        return tuple(
            name
            for name in numbers
            if all(issubclass(types[header_name], c_void_p) for header_name in self.header(name))
        )

    def header(self, name: str) -> tuple[str, ...]:
        """Return the header's names of an argument: several if C takes the same value twice."""
        return tuple(
            header_name
            for header_name in self.record.argnames
            if self.names.get(header_name, header_name) == name
        )

    def argument(self, name: str) -> str:
        """Return the Python function's name of an operand."""
        if name not in self.outputs:
            return self.caller_provided.get(name, name)
        return "out" if len(self.outputs) == 1 else f"out[{self.outputs.index(name)}]"

    def all_written(self, out: Any) -> Sequence[Any]:
        """Return the array for each output, None for a new one."""
        return (out,) if self.writes_one else all_of(out, self.writes)

    def gathered(self, out: Any, *updated: Any) -> tuple[Any, ...] | None:
        """Return the arrays for all outputs: those of `out`, then those that are updated.

        None if all of them are new.
        """
        if out is None and not updated:
            return None
        return (*all_of(out, self.outputs), *updated)

    def expected(self, values: Mapping[str, Any]) -> dict[str, TensorSpec]:
        """Return the specs of the outputs by name, from the other specs and the options.

        ArgumentError if they do not fit together, or a required output is missing.
        """
        missing = [
            argument for name, argument in self.caller_provided.items() if values.get(name) is None
        ]
        if missing:
            raise ArgumentError(
                f"{missing[0]} has to be given: {self.function} updates it, "
                "or takes its shape from it"
            )
        names = (*self.reads, *self.caller_provided, *self.options)
        arguments = {name: values[name] for name in names}
        if self.shape_from_out:
            arguments |= {name: values.get(name) for name in self.writes}
        specs = self.infer(**arguments)
        if not isinstance(specs, tuple):
            specs = (specs,)
        return dict(zip(self.writes, specs, strict=True))

    def check_without_descriptor(self, values: Mapping[str, Any]) -> None:
        """Raise ArgumentError if an operand without a descriptor has not the spec it needs."""
        for name, needed_spec in self.without_descriptor.items():
            spec = values[name]
            required_spec = needed_spec(values)
            is_alike = (spec.shape, spec.dtype) == (required_spec.shape, required_spec.dtype)
            if not is_alike or not same_strides(spec.shape, spec.strides, required_spec.strides):
                raise ArgumentError(f"{self.argument(name)} is {spec}; needed: {required_spec}")

    def check_dtypes(self, specs: Mapping[str, Any]) -> None:
        """Raise ArgumentError if an operand has a data type that the operation does not take.

        All operands must have one data type, unless data types may be mixed.
        """
        common = common_dtype(specs)
        for name, spec in specs.items():
            allowed: tuple[DataType, ...] = (common,)
            if self.mixed or spec.dtype not in self.dtypes:
                allowed = self.dtypes
            if allowed and spec.dtype not in allowed:
                names = ", ".join(map(dtype_name, allowed))
                verb = "needed" if len(allowed) == 1 else "allowed"
                raise ArgumentError(
                    f"{self.argument(name)} is {dtype_name(spec.dtype)}; {verb}: {names}"
                    f"{float64_hint(spec.dtype, allowed[0])}"
                )


def common_dtype(specs: Mapping[str, Any]) -> DataType:
    """Return the data type that all operands should have: that of the first without float64.

    float64 is NumPy's default, so that it is the stray one where data types differ.
    """
    dtypes: list[DataType] = [spec.dtype for spec in specs.values()]
    return next((dtype for dtype in dtypes if dtype != DataType.DOUBLE), dtypes[0])


def check_alike(specs: Mapping[str, TensorSpec], options: Mapping[str, Any] | None = None) -> None:
    """Raise ArgumentError unless all operands have the same strides; the last one is the output."""
    (first_name, first), *rest = specs.items()
    for number, (name, spec) in enumerate(rest, start=2):
        if not same_strides(first.shape, first.strides, spec.strides):
            argument = "out" if number == len(specs) else name
            raise ArgumentError(
                f"{argument} is {spec}; needed: the layout of {first_name}, which is {first}"
            )


def gradient_of(
    forward: Operation, function: str, reads: tuple[str, ...], **fields: Any
) -> Operation:
    """Return the operation that computes dx from dy.

    It reads y and x, too, if its C function does.
    """

    def infer(**arguments: Any) -> TensorSpec:
        specs = {name: arguments.pop(name) for name in reads}
        y = specs["y"] if "x" not in specs else forward.infer(specs["x"], **arguments)
        for name in {"y", "dy"} & specs.keys():
            if specs[name].shape != y.shape:
                raise ArgumentError(f"{name} has shape {specs[name].shape}; needed: {y.shape}")
        return specs.get("x", y)  # type: ignore[no-any-return]

    name = forward.name.replace("_forward", "_backward")
    fields = {"check": forward.check} | fields
    return Operation(
        name,
        function,
        reads=reads,
        writes=("dx",),
        infer=infer,
        options=forward.options,
        names=forward.names,
        **fields,
    )


def all_of(out: Any, names: Sequence[str], description: str = "") -> Sequence[Any]:
    """Return the array for each of several outputs, None for a new one.

    `description` replaces the names in the message.
    """
    if out is None:
        return (None,) * len(names)
    if not isinstance(out, (tuple, list)) or len(out) != len(names):
        raise ArgumentError(
            f"out={shown(out)}; needed: a tuple of {description or ', '.join(names)}"
        )
    return out
