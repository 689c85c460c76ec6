"""What tests cannot derive from the table of operations: one module a family, found in this folder.

Each module has `SAMPLES`: operation -> `Sample`.  From it come the tests of invalid input and the
property tests (tests/device/test_operations.py), what is recorded on a GPU
(tools/record/operations.py), and the comparison of the emulated device with that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from operator import itemgetter
from pkgutil import iter_modules
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.emulated.functions import EMULATED_OPERATIONS
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.problems.operation import Operation

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32")
FLOATS = DTYPES[:4]
IMAGES: Mapping[int, Shape] = {
    3: (2, 4, 17),
    4: (2, 4, 12, 9),
    5: (2, 4, 7, 6, 9),
}  # of what is recorded, by rank
LAYOUTS = ("first", "last", "strided")


class Sample(NamedTuple):
    """A call of an operation, as far as it cannot be derived.

    Attributes
    ----------
    options : mapping
        By name, as the Python function takes them.
    images : tuple of int
        A shape that fits the options.
    at : callable, optional
        (images, one of `sets`, or nothing) -> the shapes of operands, those that the caller gives
        as outputs too; what has the shape of the forward operation's result (y, dy) may be left
        out.  x alone if not given.
    reference : callable, optional
        (operands in float64, options by name) -> the result, or all of them: an oracle that is not
        ours.  The emulation itself if not given: then a test of the family's own compares it with
        one.
    positive : set of str
        Operands that may not be negative.
    wide : set of str
        Operands that are float32 where the others are float16 or bfloat16.
    packed : set of str
        Operands that have no gaps where the others have.
    derived : callable, optional
        (operands, options) -> operands that follow from these.
    blended : callable, optional
        (alpha, operands in float64, options by name) -> the result, where alpha does not scale all
        of it.
    forward : str
        The operation whose gradient it is, where that has another name than with "forward".
    bounds : mapping, optional
        By dtype, relative to the largest value; `tolerances.OPERATION_BOUNDS` if not given.
    drawn : callable, optional
        (hypothesis' draw, images) -> options, or (shapes, options).  Enums and numbers are drawn by
        themselves.
    subtracts : bool
        Whether beta may be negative.
    loose : bool
        Operands of other sizes fit each other too, so that only a plan refuses them.
    converts : bool
        So do operands of other data types.
    refused : str
        Part of the message where what was drawn is an argument that is refused, by us or as
        BAD_PARAM by cuDNN.
    sets : tuple of mappings
        Options, plain as JSON has them: what is recorded on a GPU.
    make : callable
        One of `sets` -> options by name.
    combinations : callable, optional
        operation -> keys of the rows that are recorded; `usual_combinations` if not given.
    """

    options: Mapping[str, Any]
    images: Shape = (2, 5, 4, 3)
    at: Callable[[Shape, Mapping[str, Any]], Mapping[str, Shape]] | None = None
    reference: Callable[..., Any] | None = None
    positive: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    packed: frozenset[str] = frozenset()
    derived: Callable[[Mapping[str, Array], Mapping[str, Any]], Mapping[str, Array]] | None = None
    blended: Callable[..., Array] | None = None
    forward: str = ""
    bounds: Mapping[str, float] | None = None
    drawn: Callable[[Any, Shape], Any] | None = None
    subtracts: bool = True
    loose: bool = False
    converts: bool = False
    refused: str = ""
    sets: tuple[Mapping[str, Any], ...] = ({},)
    make: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    combinations: Callable[[str], Iterator[Any]] | None = None


def steps(draw: Any, bounds: Any) -> tuple[int, ...]:
    """Draw an integer for each pair of bounds."""
    from hypothesis import strategies as st

    return tuple(draw(st.integers(low, high)) for low, high in bounds)


def usual_combinations(name: str, sets: tuple[Mapping[str, Any], ...]) -> Iterator[Any]:
    """Yield keys of rows.

    A key is: operation, options, rank, dtype, layouts of what is read and written, dtype written,
    beta.
    """
    for options, rank, dtype, layout in itertools.product(sets, IMAGES, FLOATS, LAYOUTS):
        yield name, options, rank, dtype, layout, layout, dtype, 0.0
    for options, dtype in itertools.product(sets, FLOATS):
        yield name, options, 4, dtype, "first", "first", dtype, 0.5
        if OPERATIONS[name].in_place:
            yield name, options, 4, dtype, "first", "in_place", dtype, 0.0
    for (one, other), dtype in itertools.product(itertools.permutations(LAYOUTS, 2), FLOATS):
        yield name, sets[0], 4, dtype, one, other, dtype, 0.0
    for dtype, other in itertools.permutations(FLOATS, 2):
        yield name, sets[0], 4, dtype, "first", "first", other, 0.0
    for dtype in DTYPES[4:]:
        yield name, sets[0], 4, dtype, "first", "first", dtype, 0.0


def combinations_between_layouts(
    name: str, sets: tuple[Mapping[str, Any], ...], ranks: tuple[int, ...] = (3, 5)
) -> Iterator[Any]:
    """Yield keys of rows, at ranks other than 4, whose output has another layout than the input."""
    for options, rank, dtype in itertools.product(sets, ranks, FLOATS):
        for one, other in itertools.permutations(LAYOUTS, 2):
            yield name, options, rank, dtype, one, other, dtype, 0.0


def usual_and_between_layouts(
    sets: tuple[Mapping[str, Any], ...],
) -> Callable[[str], Iterator[Any]]:
    """Return `Sample.combinations` of an operation that cuDNN computes between layouts."""

    def combinations(name: str) -> Iterator[Any]:
        yield from usual_combinations(name, sets)
        yield from combinations_between_layouts(name, sets[:1])

    return combinations


SAMPLES: dict[str, Sample] = {}
for _module in iter_modules(__path__):
    SAMPLES |= import_module(f"{__name__}.{_module.name}").SAMPLES


def forward_of(operation: Operation) -> Operation:
    """Return the operation whose gradient it is, or itself."""
    forward = SAMPLES[operation.name].forward or operation.name.replace("_backward", "_forward")
    return OPERATIONS.get(forward, operation)


def operands_of_one_layout(operation: Operation) -> frozenset[str]:
    """Return the operands whose layout cannot be chosen, because it follows from the options.

    An operand that has the descriptor of another one has its layout.
    """
    return frozenset(
        name
        for name, needed_spec in operation.without_descriptor.items()
        if not isinstance(needed_spec, itemgetter)
    )


def shapes_of(
    name: str, images: Shape, plain: Mapping[str, Any] | None = None
) -> Mapping[str, Shape]:
    """Return the shapes of operands for images of a shape."""
    at = SAMPLES[name].at
    return at(images, plain or {}) if at else {forward_of(OPERATIONS[name]).reads[0]: images}


def reference_of(name: str) -> Callable[..., tuple[Array, ...]]:
    """Return (operands in float64, options) -> all results.

    The function is an oracle, or the emulation where there is none.
    """
    function = SAMPLES[name].reference or EMULATED_OPERATIONS[OPERATIONS[name]]

    def every(*operands: Array, **options: Any) -> tuple[Array, ...]:
        results = function(*operands, **options)
        return results if isinstance(results, tuple) else (results,)

    return every


def hosts_of(
    name: str, shapes: Any, options: Any, make: Callable[[tuple[int, ...]], Array]
) -> dict[str, Array]:
    """Return the operands of a call, with `make`'s values and type; outputs come last.

    A backward call's y is what its forward call returns.
    """
    operation, positive = OPERATIONS[name], SAMPLES[name].positive
    hosts = {operand: make(shape) for operand, shape in shapes.items()}
    hosts |= {
        operand: abs(hosts[operand]) + hosts[operand].dtype.type(0.5)
        for operand in positive & hosts.keys()
    }
    forward = forward_of(operation)
    if "y" in operation.reads and forward is not operation and "y" not in hosts:
        wide = [hosts[operand].astype(np.float64) for operand in forward.reads]
        hosts["y"] = reference_of(forward.name)(*wide, **options)[0].astype(
            hosts[forward.reads[0]].dtype
        )
    if SAMPLES[name].derived:
        hosts |= SAMPLES[name].derived(hosts, options)
    for operand in operation.reads:
        if operand not in hosts:
            hosts[operand] = make(hosts["y" if "y" in hosts else "x"].shape)
    return {
        operand: hosts[operand]
        for operand in (*operation.reads, *operation.caller_provided)
        if operand in hosts
    }


def combinations() -> Iterator[Any]:
    """Yield the keys of all rows that are recorded."""
    for name, sample in SAMPLES.items():
        if sample.sets:
            yield from (
                sample.combinations(name)
                if sample.combinations
                else usual_combinations(name, sample.sets)
            )
