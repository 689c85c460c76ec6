"""`Engine`: one of cuDNN's engines with its knobs, as a value.

The functions here list the engines that cuDNN's heuristics name for a graph, and the range of each
knob.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
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
from cudnnlite.arguments import instance_of, integer, shown
from cudnnlite.cached_property import cached_property
from cudnnlite.enums import MathType, members_by_c_name
from cudnnlite.errors import (
    AllocationError,
    ArgumentError,
    BadParamError,
    CudnnError,
    InternalError,
    NotSupportedError,
)
from cudnnlite.graph.backend_descriptor import BackendDescriptor, prepared_get
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.problems.results import AlgorithmResult

# The number of descriptors for the knobs of a configuration; more are made if it has more knobs.
FEW_KNOBS = 8
# A heuristic is asked for one configuration first, and each time for this many times more.
MORE_RESULTS = 8
_PRINTED = re.compile(r"engine ([0-9]{1,9})(?: \((\w+=-?[0-9]{1,18}(?:, \w+=-?[0-9]{1,18})*)\))?")
# Notes on engines that multiply float32 in fewer bits.
_NARROW = {BackendNumericalNote.TENSOR_CORE, BackendNumericalNote.DOWN_CONVERT_INPUTS}
HEURISTICS = (BackendHeurMode.A, BackendHeurMode.B, BackendHeurMode.FALLBACK)
# Errors by which cuDNN refuses a request.  A failed allocation is no refusal.
REFUSALS = (NotSupportedError, BadParamError, InternalError)


@dataclass(frozen=True, init=False)
class Engine:
    """An engine of cuDNN's backend with its knobs, as a value.

    It can be printed, compared, saved, and passed as an algorithm.  It is valid only for the
    problem and the version of cuDNN for which it was found.

    Parameters
    ----------
    index : int
        The engine's number.
    knobs : mapping of int or BackendKnobType to int
        The values of some knobs.  The engine chooses the values of the others.

    Examples
    --------
    >>> engine = dnn.types.Engine(38, {"STAGES": 2, 2: 5})
    >>> print(engine, engine.knobs, dnn.types.Engine.from_plain(engine.to_plain()) == engine)
    engine 38 (TILE_SIZE=5, STAGES=2) {'TILE_SIZE': 5, 'STAGES': 2} True
    >>> dnn.types.Engine.from_text(str(engine)) == engine
    True
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
        """Return the engine as a JSON value."""
        return {"engine": self.index, "knobs": {str(knob): value for knob, value in self.choices}}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Engine:
        """Return the engine of a value that `to_plain` returned."""
        try:
            return cls(
                plain["engine"], {int(knob): value for knob, value in plain["knobs"].items()}
            )
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ArgumentError(f"{shown(plain)} is no engine: {error}") from error

    @classmethod
    def from_text(cls, text: str) -> Engine | None:
        """Return the engine that is printed as a text, "engine 7"; None for another text."""
        found = _PRINTED.fullmatch(instance_of(text, str, "text"))
        if found is None:
            return None
        knobs = (choice.partition("=") for choice in (found[2] or "").split(", ") if choice)
        return cls(int(found[1]), {name: int(value) for name, _, value in knobs})

    def __str__(self) -> str:
        knobs = ", ".join(f"{name}={value}" for name, value in self.knobs.items())
        return f"engine {self.index} ({knobs})" if knobs else f"engine {self.index}"


def _number(value: Any, argument: str) -> int:
    return integer(value, argument, -(2**63), 2**63 - 1)


def _knob(knob: Any) -> BackendKnobType:
    try:
        if not isinstance(knob, str):
            return BackendKnobType(knob)
        members = {**BackendKnobType.__members__, **members_by_c_name(BackendKnobType)}
        return members[knob.upper()]
    except (KeyError, ValueError):
        raise ArgumentError(f"knobs has {shown(knob)}, which is no BackendKnobType") from None


class Configuration(NamedTuple):
    """An engine that cuDNN has for a graph, and cuDNN's notes on it.

    Attributes
    ----------
    engine : Engine
        The engine's number and knobs.
    descriptor : BackendDescriptor
        The final descriptor of the engine's configuration.
    version : int
        The version of cuDNN that has the engine: 92800 is 9.28.0.
    numerical, behavior : frozenset
        cuDNN's notes on the engine.
    """

    engine: Engine
    descriptor: BackendDescriptor
    version: int
    numerical: frozenset[BackendNumericalNote]
    behavior: frozenset[BackendBehaviorNote]

    @property
    def deterministic(self) -> bool:
        """Whether two runs give the same bits."""
        return BackendNumericalNote.NONDETERMINISTIC not in self.numerical

    @property
    def capturable(self) -> bool:
        """Whether a call can be recorded into a CUDA graph.

        An engine that uses textures makes them when it runs, which a capture refuses.
        """
        return dict(self.engine.choices).get(BackendKnobType.USE_TEX) != 1

    @property
    def compiled(self) -> bool:
        """Whether cuDNN compiles it at run time, which takes up to a second."""
        return BackendBehaviorNote.RUNTIME_COMPILATION in self.behavior

    def math_type(self, requested: MathType) -> MathType:
        """Return the math type of the engine's multiplications.

        It is FMA if the engine does not multiply in fewer bits, otherwise the requested one.
        """
        is_narrow = bool(self.numerical & _NARROW)
        if not is_narrow:
            return MathType.FMA
        return MathType.DEFAULT if requested == MathType.FMA else requested

    def candidate(self, math_type: MathType) -> AlgorithmResult:
        """Return the engine as a candidate of a search, with a math type."""
        return AlgorithmResult(
            self.engine, math_type, deterministic=self.deterministic, compiled=self.compiled
        )


def named_by(
    graph: OperationGraph, mode: BackendHeurMode, stack: ExitStack
) -> Iterator[Configuration]:
    """Yield the configurations that a heuristic names, the preferred one first."""
    reader = _ConfigurationReader(graph, stack)
    for descriptor in _results(graph, mode, stack):
        yield reader.read(descriptor)


def _results(
    graph: OperationGraph, mode: BackendHeurMode, stack: ExitStack
) -> Iterator[BackendDescriptor]:
    """Yield the descriptors of the configurations that a heuristic names.

    cuDNN takes 50 to 100 us for each descriptor, and returns the first ones again if it is asked
    for more (9.28, two cores, for an H100 that is absent).  Most callers need the first one alone.
    """
    num_read, num_requested = 0, 1
    try:
        heuristic = stack.enter_context(
            BackendDescriptor(
                graph.handle,
                "ENGINEHEUR",
                operation_graph=graph.descriptor,
                mode=mode,
                **graph.device,
            )
        )
        with graph.asking_heuristics():
            heuristic.finalize()
            descriptors = heuristic.get_descriptors("results", stack, num_requested)
    except REFUSALS:  # this heuristic has no answer for this graph
        return
    while True:
        yield from descriptors[num_read:]
        if len(descriptors) < num_requested:
            return
        num_read = num_requested
        num_requested *= MORE_RESULTS
        with graph.asking_heuristics():
            descriptors = heuristic.get_descriptors("results", stack, num_requested)


class _ConfigurationReader:
    """Reads the engines and knobs of many configurations with the same descriptors.

    cuDNN does not say in advance how many knobs a configuration has.  If there are too few
    descriptors, it writes only the first knobs (9.14, 9.19, 9.28).  There are 46 kinds of knobs;
    configurations of a matrix product and of attention for an H200 had at most five.
    """

    def __init__(self, graph: OperationGraph, stack: ExitStack) -> None:
        self._graph = graph
        self._stack = stack
        self._engine = stack.enter_context(BackendDescriptor(graph.handle, "ENGINE"))
        self._knob_choices: list[_KnobChoice] = []

    def read(self, descriptor: BackendDescriptor) -> Configuration:
        """Return a configuration from its descriptor."""
        descriptor.fill("engine", [self._engine])
        engine = Engine(self._engine.get("global_index"), self._knobs_of(descriptor))
        return _with_notes(self._graph, engine, descriptor, self._engine)

    def _knobs_of(self, configuration: BackendDescriptor) -> dict[int, int]:
        """Return the values of the knobs of a configuration."""
        count = self._fill(configuration, FEW_KNOBS)
        if count == len(self._knob_choices):  # There may be more.
            count = self._fill(configuration, BackendKnobType.COUNT)
        return dict(choice.read() for choice in self._knob_choices[:count])

    def _fill(self, configuration: BackendDescriptor, least: int) -> int:
        """Let cuDNN write knobs into `least` descriptors or more; return how many it wrote."""
        while len(self._knob_choices) < least:
            self._knob_choices.append(_KnobChoice(self._graph, self._stack))
        descriptors = [choice.descriptor for choice in self._knob_choices]
        return len(configuration.fill("knob_choices", descriptors))


class _KnobChoice:
    """A descriptor that cuDNN writes one knob into, for each configuration again."""

    def __init__(self, graph: OperationGraph, stack: ExitStack) -> None:
        self.descriptor = stack.enter_context(BackendDescriptor(graph.handle, "KNOB_CHOICE"))
        self._was_read = False

    @cached_property
    def _prepared_reads(self) -> tuple[Callable[[], int], Callable[[], int]]:
        return (
            prepared_get(self.descriptor, "knob_type"),
            prepared_get(self.descriptor, "knob_value"),
        )

    def read(self) -> tuple[int, int]:
        """Return the kind and the value of the knob."""
        # Most callers read one configuration, for which preparing the calls takes longer.
        if not self._was_read:
            self._was_read = True
            return self.descriptor.get("knob_type"), self.descriptor.get("knob_value")
        read_type, read_value = self._prepared_reads
        return read_type(), read_value()


def configurations(
    graph: OperationGraph, modes: Iterable[BackendHeurMode], stack: ExitStack
) -> Iterator[Configuration]:
    """Yield the configurations that several heuristics name, each engine with its knobs once."""
    engines: set[Engine] = set()
    for mode in modes:
        for configuration in named_by(graph, mode, stack):
            if configuration.engine not in engines:
                engines.add(configuration.engine)
                yield configuration


def unnamed(
    graph: OperationGraph, excluded: Container[int], stack: ExitStack
) -> Iterator[Configuration]:
    """Yield the engines of a graph with their own knobs, without the excluded numbers."""
    assert graph.descriptor is not None
    for index in range(graph.descriptor.get("engine_global_count")):
        if index in excluded:
            continue
        configuration = _configure_if_possible(graph, Engine(index), stack)
        if configuration is not None:
            yield configuration


def _with_notes(
    graph: OperationGraph, engine: Engine, descriptor: BackendDescriptor, native: BackendDescriptor
) -> Configuration:
    """Return a configuration with cuDNN's notes on its engine, which are the same for all knobs."""
    notes = graph.engine_notes.get(engine.index)
    if notes is None:
        notes = frozenset(native.get("numerical_note")), frozenset(native.get("behavior_note"))
        graph.engine_notes[engine.index] = notes
    return Configuration(engine, descriptor, descriptor.api.engine_version, *notes)


def configure(graph: OperationGraph, engine: Engine, stack: ExitStack) -> Configuration:
    """Return the configuration of an engine for a graph.

    Raises
    ------
    CudnnError
        The graph has no such engine, or the engine has no such knobs.
    """
    native = graph.shared(
        "ENGINE", operation_graph=graph.descriptor, global_index=engine.index, **graph.device
    )
    choices = [
        graph.shared("KNOB_CHOICE", knob_type=knob, knob_value=value)
        for knob, value in engine.choices
    ]
    descriptor = stack.enter_context(BackendDescriptor(graph.handle, "ENGINECFG", engine=native))
    if choices:
        descriptor.set("knob_choices", choices)
    descriptor.finalize()
    return _with_notes(graph, engine, descriptor, native)


def _configure_if_possible(
    graph: OperationGraph, engine: Engine, stack: ExitStack
) -> Configuration | None:
    """Return the configuration of an engine for a graph; None if cuDNN has none.

    Most engines are for other graphs.  AllocationError if there is no memory.
    """
    try:
        return configure(graph, engine, stack)
    except AllocationError:
        raise
    except CudnnError:
        return None
