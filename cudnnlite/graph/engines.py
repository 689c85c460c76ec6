"""`Engine`: one of cuDNN's kernels for a graph with its knobs, as a value."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from cudnnlite._raw.enums import (
    BackendBehaviorNote,
    BackendHeurMode,
    BackendKnobType,
    BackendNumericalNote,
)
from cudnnlite.arguments import integer, shown
from cudnnlite.enums import MathType
from cudnnlite.errors import (
    AllocationError,
    ArgumentError,
    BadParamError,
    CudnnError,
    InternalError,
    NotSupportedError,
)
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.operation_graph import Graph

_FEW = 16  # so many values of a knob are all tried; of more, those nearby
# multiplications of float32 in fewer bits
_NARROW = {BackendNumericalNote.TENSOR_CORE, BackendNumericalNote.DOWN_CONVERT_INPUTS}
HEURISTICS = (BackendHeurMode.A, BackendHeurMode.B, BackendHeurMode.FALLBACK)
# "not this way"; memory that is not there is another error
REFUSALS = (NotSupportedError, BadParamError, InternalError)


@dataclass(frozen=True, init=False)
class Engine:
    """An engine of cuDNN's backend with its knobs: a value that is printed, compared and saved.

    It means something for the problem and the version of cuDNN that it was found with.

    Parameters
    ----------
    index : int
        The engine's number.
    knobs : mapping of int or BackendKnobType to int
        What is not the engine's own choice.

    Examples
    --------
    >>> engine = dnn.Engine(38, {"STAGES": 2, 2: 5})
    >>> print(engine, engine.knobs, dnn.Engine.from_plain(engine.to_plain()) == engine)
    engine 38 (TILE_SIZE=5, STAGES=2) {'TILE_SIZE': 5, 'STAGES': 2} True
    """

    index: int
    choices: tuple[tuple[int, int], ...]

    def __init__(self, index: int, knobs: Mapping[Any, int] | None = None) -> None:
        if not isinstance(knobs, (Mapping, type(None))):
            raise ArgumentError(f"knobs={shown(knobs)} is not a mapping")
        numbers = {_knob(knob): _number(value, str(knob)) for knob, value in (knobs or {}).items()}
        object.__setattr__(self, "index", _number(index, "index"))
        object.__setattr__(
            self, "choices", tuple(sorted((int(knob), value) for knob, value in numbers.items()))
        )

    @property
    def knobs(self) -> Mapping[str, int]:
        """The knobs by name."""
        return MappingProxyType({str(BackendKnobType(knob)): value for knob, value in self.choices})

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"engine": self.index, "knobs": {str(knob): value for knob, value in self.choices}}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Engine:
        """Return the engine that `to_plain` was called on."""
        try:
            return cls(
                plain["engine"], {int(knob): value for knob, value in plain["knobs"].items()}
            )
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ArgumentError(f"{shown(plain)} is no engine: {error}") from error

    def __str__(self) -> str:
        knobs = ", ".join(f"{name}={value}" for name, value in self.knobs.items())
        return f"engine {self.index}" + (f" ({knobs})" if knobs else "")


def _number(value: Any, argument: str) -> int:
    return integer(value, argument, -(2**63), 2**63 - 1)


def _knob(knob: Any) -> BackendKnobType:
    try:
        return BackendKnobType[knob.upper()] if isinstance(knob, str) else BackendKnobType(knob)
    except (KeyError, ValueError):
        raise ArgumentError(f"knobs has {shown(knob)}, which is no BackendKnobType") from None


class Configuration(NamedTuple):
    """An engine that cuDNN named for a graph, and what it says of it.

    Attributes
    ----------
    engine : Engine
        Number and knobs.
    descriptor : BackendDescriptor
        The engine's configuration, final.
    numerical, behavior : frozenset
        cuDNN's notes.
    """

    engine: Engine
    descriptor: BackendDescriptor
    numerical: frozenset[BackendNumericalNote]
    behavior: frozenset[BackendBehaviorNote]

    @property
    def deterministic(self) -> bool:
        """Whether two runs give the same bits."""
        return BackendNumericalNote.NONDETERMINISTIC not in self.numerical

    @property
    def capturable(self) -> bool:
        """Whether it can be recorded into a CUDA graph: a capture refuses to make textures."""
        return dict(self.engine.choices).get(BackendKnobType.USE_TEX) != 1

    @property
    def compiled(self) -> bool:
        """Whether cuDNN compiles it at run time, which takes up to a second."""
        return BackendBehaviorNote.RUNTIME_COMPILATION in self.behavior

    def math_type(self, asked: MathType) -> MathType:
        """Return FMA where nothing is multiplied in fewer bits, else the math type asked for."""
        narrow = self.numerical & _NARROW
        return MathType.FMA if not narrow else asked if asked != MathType.FMA else MathType.DEFAULT


def named_by(graph: Graph, mode: BackendHeurMode, stack: ExitStack) -> Iterator[Configuration]:
    """Yield the configurations that a heuristic names, the preferred first."""
    try:
        heuristic = stack.enter_context(
            BackendDescriptor(
                graph.handle, "ENGINEHEUR", operation_graph=graph.descriptor, mode=mode
            )
        ).finalize()
        found = heuristic.get_descriptors("results", stack)
    except REFUSALS:  # this mode has no answer for this graph
        return
    # how many there are cuDNN does not say before; they are used again for each configuration
    room = [
        stack.enter_context(BackendDescriptor(graph.handle, "KNOB_CHOICE"))
        for _ in range(BackendKnobType.COUNT)
    ]
    for descriptor in found:
        yield _read(descriptor, room, stack)


def unnamed(graph: Graph, named: Container[int], stack: ExitStack) -> Iterator[Configuration]:
    """Yield a graph's engines but those with these numbers, with the knobs that they choose."""
    assert graph.descriptor is not None
    for index in range(graph.descriptor.get("engine_global_count")):
        if index not in named:
            try:
                yield configure(graph, Engine(index), stack)
            except AllocationError:
                raise
            except CudnnError:  # most numbers are those of engines for other graphs
                continue


def _read(
    descriptor: BackendDescriptor, room: list[BackendDescriptor], stack: ExitStack
) -> Configuration:
    (engine,) = descriptor.get_descriptors("engine", stack)
    knobs = {
        choice.get("knob_type"): choice.get("knob_value")
        for choice in descriptor.fill("knob_choices", room)
    }
    return _noted(Engine(engine.get("global_index"), knobs), descriptor, engine)


def _noted(
    engine: Engine, descriptor: BackendDescriptor, native: BackendDescriptor
) -> Configuration:
    """Return a configuration with the notes that cuDNN has of its engine."""
    notes = (frozenset(native.get(name)) for name in ("numerical_note", "behavior_note"))
    return Configuration(engine, descriptor, *notes)


def engine_descriptor(graph: Graph, index: int) -> BackendDescriptor:
    """Return an engine of a graph by its number, which the graph keeps.

    CudnnError if it has none of that number.
    """
    return graph.shared("ENGINE", operation_graph=graph.descriptor, global_index=index)


def configure(graph: Graph, engine: Engine, stack: ExitStack) -> Configuration:
    """Return the configuration of an engine that somebody chose.

    Raises
    ------
    CudnnError
        There is no such engine for this graph, or it has not got these knobs.
    """
    made = engine_descriptor(graph, engine.index)
    choices = [
        graph.shared("KNOB_CHOICE", knob_type=knob, knob_value=value)
        for knob, value in engine.choices
    ]
    descriptor = stack.enter_context(BackendDescriptor(graph.handle, "ENGINECFG", engine=made))
    if choices:
        descriptor.set("knob_choices", choices)
    descriptor.finalize()
    return _noted(engine, descriptor, made)


class Knob(NamedTuple):
    """A knob of an engine: every `step` from `least` to `most`."""

    kind: BackendKnobType
    least: int
    most: int
    step: int

    def near(self, value: int | None) -> list[int]:
        """Return the other values to try from one; None where the engine chooses by itself."""
        every = range(self.least, self.most + 1, max(self.step, 1))
        if len(every) <= _FEW:
            return [other for other in every if other != value]
        here = self.least if value is None else value
        steps = (here - self.step, here + self.step, here // 2, here * 2, self.least, self.most)
        return [other for other in dict.fromkeys(steps) if other in every and other != value]


def knobs_of(graph: Graph, index: int) -> tuple[Knob, ...]:
    """Return the knobs that an engine has for a graph."""
    with ExitStack() as stack:
        told = engine_descriptor(graph, index).get_descriptors("knob_info", stack)
        names = ("type", "minimum_value", "maximum_value", "stride")
        return tuple(Knob(*(each.get(name) for name in names)) for each in told)


def neighbours(engine: Engine, knobs: tuple[Knob, ...]) -> Iterator[Engine]:
    """Yield the engines that differ in one knob."""
    chosen = dict(engine.choices)
    for knob in knobs:
        for value in knob.near(chosen.get(knob.kind)):
            yield Engine(engine.index, chosen | {knob.kind: value})
