"""`Operation`: a C function as data, from which one plan marshals it and the emulated device unmarshals it.

cuDNN's headers name their arguments regularly: an operand ``x`` comes with its ``xDesc``, scalars are ``alpha`` and ``beta``, a
workspace is ``workSpace`` and ``workSpaceSizeInBytes``.  So the names of operands and options are enough; the generated table
knows the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.record import Function
from cudnnlite.enums import MathType
from cudnnlite.errors import ArgumentError
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import same_strides


@dataclass(frozen=True)
class Algorithms:
    """Where cuDNN has a choice of algorithms: which, and the C functions that tell of them.

    Attributes
    ----------
    kind : type
        Their enum.
    result : type
        The C structure that a search fills.
    count, heuristic, find, workspace : str
        C functions: how many results there may be, the ranking without a run, the search, the size of the workspace.
    option : str
        The option whose descriptor has the math type.
    graph : str
        The kind of operation in cuDNN's graph API; its attributes have the operands' names.  Empty: it has none.
    """

    kind: Any
    result: Any
    count: str
    heuristic: str
    find: str
    workspace: str
    option: str = "conv"
    graph: str = ""


@dataclass(frozen=True, eq=False)
class Operation:
    """A C function as data.

    Attributes
    ----------
    name : str
        What it is called in Python and in files: "pooling_backward".
    function : str
        The C function; the order of its arguments is the generated table's.
    reads, writes : tuple of str
        The operands, by their names in the header, and in the order of the Python function.
    infer : callable
        (specs read, options, by name) -> the spec of what is written.  ArgumentError where they do not fit together.
    options : mapping
        Name -> type.  A spec becomes a descriptor, ``<name>Desc`` in the header; enums and numbers go as they are.
    names : mapping
        Where a header is irregular: its argument -> the name here.
    filters : frozenset of str
        Which operands are filters.
    algorithms : Algorithms, optional
        Where there is a choice.
    check : callable, optional
        (all specs, options) -> nothing; ArgumentError where cuDNN would answer SUCCESS and compute something else.
    complete : callable, optional
        (specs, options) -> options with what was left open filled in, and written in one way, so that equal problems are equal.
    flops : callable, optional
        (problem) -> multiplications and additions of the usual way.
    math_type : callable, optional
        (problem) -> the math type that the user asked for.
    hint : callable, optional
        (problem) -> what is known of a refusal, for its message.
    words : callable, optional
        (problem) -> it in a few words, for tables.
    internal : bool
        Part of other operations only: no problem that users pose, or files hold.
    """

    name: str
    function: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    infer: Callable[..., TensorSpec]
    options: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    filters: frozenset[str] = frozenset()
    algorithms: Algorithms | None = None
    check: Callable[[Mapping[str, Any], Mapping[str, Any]], None] = lambda specs, options: None
    complete: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = lambda specs, options: options
    flops: Callable[[Any], int] = lambda problem: 0
    math_type: Callable[[Any], MathType] = lambda problem: MathType.DEFAULT
    hint: Callable[[Any], str] = lambda problem: ""
    words: Callable[[Any], str] = str
    internal: bool = False

    def __post_init__(self) -> None:
        if self.name in OPERATIONS:
            raise ValueError(f"there is an operation {self.name} already")
        OPERATIONS[self.name] = self

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"

    def __reduce__(self) -> Any:
        return find_operation, (self.name,)

    @property
    def record(self) -> Function:
        """What the generated table knows of the C function."""
        return FUNCTIONS[self.function]

    @property
    def fields(self) -> tuple[str, ...]:
        """What a problem of this operation consists of."""
        return (*self.reads, *self.options, *self.writes, *(("alpha", "beta") if self.writes else ()))


OPERATIONS: dict[str, Operation] = {}  # by name; each enters itself


def check_alike(specs: Mapping[str, TensorSpec]) -> None:
    """Raise ArgumentError unless all operands, the last of which is written, have the same strides."""
    (first_name, first), *others = specs.items()
    for number, (name, spec) in enumerate(others, start=2):
        if not same_strides(first.shape, first.strides, spec.strides):
            name = "out" if number == len(specs) else name  # noqa: PLW2901
            raise ArgumentError(f"{name} is {spec}; it must lie in memory as {first_name} does, {first}")


def gradient_of(forward: Operation, function: str, reads: tuple[str, ...]) -> Operation:
    """Return the operation that computes dx from dy and whatever else its C function reads of y and x."""

    def infer(**given: Any) -> TensorSpec:
        specs = {name: given.pop(name) for name in reads}
        y = forward.infer(specs["x"], **given) if "x" in specs else specs["y"]
        for name in {"y", "dy"} & specs.keys():
            if specs[name].shape != y.shape:
                raise ArgumentError(f"{name} has shape {specs[name].shape}; needed: {y.shape}")
        return specs.get("x", y)  # type: ignore[no-any-return]

    name = forward.name.replace("_forward", "_backward")
    return Operation(name, function, reads, ("dx",), infer, forward.options, forward.names, check=forward.check)


def find_operation(name: str) -> Operation:
    """Return the operation of that name; KeyError if there is none."""
    return OPERATIONS[name]
