"""Emulated engines: which there are for a graph, and which of them the heuristics name."""

from __future__ import annotations

from typing import NamedTuple

from cudnnlite._raw.enums import (
    BackendBehaviorNote,
    BackendHeurMode,
    BackendKnobType,
    BackendNumericalNote,
)
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.backend import BackendObject
from cudnnlite.emulated.convolution_call import accumulator_dtype
from cudnnlite.emulated.fusion import FusedConvolution, why_no_fused_engine
from cudnnlite.emulated.graph_formula import GraphFormula, why_no_graph_engine
from cudnnlite.emulated.kernels import KERNELS, WITHOUT_SCRATCH, Algorithm
from cudnnlite.emulated.operation_graph import GraphConvolution
from cudnnlite.emulated.registry import RefusalError, bad, unsupported
from cudnnlite.emulated.support import tf32_is_forbidden, why_no_engine, why_no_forward_engine
from cudnnlite.enums import DataType, TensorFormat
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST

FORMULA_ENGINE = 0  # the number of the one that computes graphs without convolutions
_TILES = 3  # the largest value of the one knob that every engine has; it changes nothing


class EngineFacts(NamedTuple):
    """An emulated engine.

    Attributes
    ----------
    uses_tensor_cores : bool
        Whether it multiplies on what would be tensor cores, float32 in TF32.
    notes : tuple
        Its further numerical notes.
    has_texture_knob : bool
        Whether it has a knob for textures, which the heuristics set; a capture would refuse it.
    is_compiled : bool
        Whether a GPU would have to compile it first.
    """

    uses_tensor_cores: bool = False
    notes: tuple[BackendNumericalNote, ...] = ()
    has_texture_knob: bool = False
    is_compiled: bool = False


ENGINES = (
    EngineFacts(notes=(BackendNumericalNote.STRICT_NAN_PROP,)),  # needs no workspace
    EngineFacts(),
    EngineFacts(uses_tensor_cores=True, notes=(BackendNumericalNote.TENSOR_CORE,)),
    EngineFacts(notes=(BackendNumericalNote.WINOGRAD,)),
    EngineFacts(has_texture_knob=True),
    # No heuristic names these two.
    EngineFacts(notes=(BackendNumericalNote.FFT,)),
    EngineFacts(is_compiled=True),
)
_ENGINES_BY_MODE = {
    BackendHeurMode.A: (4, 2, 1, 0),
    BackendHeurMode.INSTANT: (4, 2, 1, 0),
    BackendHeurMode.B: (3, 1),
    BackendHeurMode.FALLBACK: (1, 0),
}


def kernel_of(problem: GraphConvolution, facts: EngineFacts) -> Algorithm:
    """Return the NumPy kernel behind an engine; RefusalError where it cannot do this."""
    _, stride, dilation = problem.conv.steps(problem.x.rank - 2)
    is_simple = problem.conv.groups == 1 and {*stride, *dilation} == {1}
    is_winograd = BackendNumericalNote.WINOGRAD in facts.notes
    if is_winograd and (problem.w.shape[2:] != (3, 3) or not is_simple):
        raise unsupported("Winograd's has 3 x 3 filters in one group, stride and dilation 1")
    kernels = WITHOUT_SCRATCH if facts is ENGINES[0] else KERNELS
    return kernels[problem.written]


def _why_no_convolution_engine(problem: GraphConvolution) -> str | None:
    """Return why an H200 has no engine for a convolution, whatever is behind it."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.conv
    if numpy_dtype(x.dtype).kind in "iu":
        return "integers"
    if problem.written != "y":
        return why_no_engine(x, w, conv, y) or _why_no_uneven_gradient(problem)
    if problem.pointwise:
        # The convolution's result is not written to memory, and its layout does not matter.
        return why_no_forward_engine(x, w, conv, x.packed(y.shape, x.dtype), is_fused=True)
    return why_no_forward_engine(x, w, conv, y, is_fused=False)


def _why_no_uneven_gradient(problem: GraphConvolution) -> str | None:
    """Return why a gradient with padding that differs at two ends was not seen on a GPU, or None.

    An H100 was asked for operands of one layout, in all types but float64.
    """
    x, w, y = problem.x, problem.w, problem.y
    if problem.conv.is_symmetric:
        return None
    if x.dtype == DataType.DOUBLE:
        return "gradients of float64 with uneven padding"
    layouts = CHANNELS_LAST if w.format == TensorFormat.NHWC else CHANNELS_FIRST
    if not (x.fits(layouts[x.rank]) and y.fits(layouts[y.rank])):
        return "gradients with uneven padding of operands in several layouts"
    return None


def _why_no_such_engine(problem: GraphConvolution, index: int) -> str | None:
    """Return why an engine does not compute a graph, or None if it does."""
    reason = _why_no_convolution_engine(problem)
    if reason is not None:
        return reason
    if index not in range(len(ENGINES)):
        return f"there is no engine {index}"
    facts = ENGINES[index]
    dtype = problem.x.dtype
    has_no_tensor_cores = dtype == DataType.DOUBLE or (
        dtype == DataType.FLOAT and tf32_is_forbidden()
    )
    if facts.uses_tensor_cores and has_no_tensor_cores:
        return f"engine {index} needs tensor cores"
    if not problem.pointwise:
        return None
    fused = FusedConvolution(
        problem.x, problem.w, problem.conv, problem.alpha, problem.beta, problem.pointwise
    )
    return why_no_fused_engine(fused, uses_tensor_cores=facts.uses_tensor_cores)


def _engine(graph: BackendObject, index: int) -> BackendObject:
    """Return a final "ENGINE" of a graph; RefusalError where it does not compute that."""
    if isinstance(graph.content, GraphFormula):
        return _formula_engine(graph, index)
    problem: GraphConvolution = graph.content
    reason = _why_no_such_engine(problem, index)
    if reason is not None:
        raise unsupported(reason)
    facts = ENGINES[index]
    kernel_of(problem, facts)
    knobs = [_knob_info(BackendKnobType.TILE_SIZE, _TILES)]
    if facts.has_texture_knob:
        knobs.append(_knob_info(BackendKnobType.USE_TEX, 1))
    notes = [int(BackendBehaviorNote.SUPPORTS_CUDA_GRAPH_NATIVE_API)]
    if facts.is_compiled:
        notes.append(int(BackendBehaviorNote.RUNTIME_COMPILATION))
    return BackendObject("ENGINE").finalize_with(
        operation_graph=[graph],
        global_index=[index],
        knob_info=knobs,
        numerical_note=[int(note) for note in facts.notes],
        behavior_note=notes,
    )


def _formula_engine(graph: BackendObject, index: int) -> BackendObject:
    """Return the only engine of a graph without convolutions; RefusalError where there is none."""
    reason: str | None = f"there is no engine {index}"
    if index == FORMULA_ENGINE:
        reason = why_no_graph_engine(graph.content)
    if reason is not None:
        raise unsupported(reason)
    notes = []
    if _multiplies_on_tensor_cores(graph.content):
        notes.append(int(BackendNumericalNote.TENSOR_CORE))
    return BackendObject("ENGINE").finalize_with(
        operation_graph=[graph],
        global_index=[index],
        knob_info=[_knob_info(BackendKnobType.TILE_SIZE, _TILES)],
        numerical_note=notes,
        behavior_note=[int(BackendBehaviorNote.RUNTIME_COMPILATION)],
    )


def _multiplies_on_tensor_cores(graph: GraphFormula) -> bool:
    """Return whether all engines of an H100 for a graph without a chain use tensor cores."""
    first = graph.operations[0]
    if first.kind == "OPERATION_CONVOLUTION_FORWARD":
        return bool(first.content.x.dtype == DataType.BFLOAT16 or first.content.x.rank == 5)
    return "MATMUL" in graph.kinds


def _knob_info(knob: BackendKnobType, maximum: int) -> BackendObject:
    return BackendObject("KNOB_INFO").finalize_with(
        type=[int(knob)], minimum_value=[0], maximum_value=[maximum], stride=[1]
    )


def finalize_engine(engine: BackendObject) -> None:
    """Fill an "ENGINE" in."""
    engine.copy_from(_engine(engine.value("operation_graph"), engine.value("global_index")))


def check_knob_choice(choice: BackendObject) -> None:
    """Refuse a "KNOB_CHOICE" of a knob that does not exist."""
    knob_type = choice.value("knob_type")
    if BackendKnobType(knob_type).name not in BackendKnobType.__members__:
        raise bad(f"knob_type={knob_type}")


def finalize_configuration(configuration: BackendObject) -> None:
    """Refuse an "ENGINECFG" with choices that its engine does not have."""
    engine = configuration.value("engine")
    maxima = {
        info.value("type"): info.value("maximum_value") for info in engine.attributes["knob_info"]
    }
    for choice in configuration.attributes.setdefault("knob_choices", []):
        knob, value = choice.value("knob_type"), choice.value("knob_value")
        if not 0 <= value <= maxima.get(knob, -1):
            raise unsupported(f"engine {engine.value('global_index')} has no knob {knob}={value}")


def finalize_heuristic(heuristic: BackendObject) -> None:
    """Name the engines of an "ENGINEHEUR"'s graph."""
    graph = heuristic.value("operation_graph")
    mode = BackendHeurMode(heuristic.value("mode"))
    results = []
    for index in _ENGINES_BY_MODE.get(mode, ()):
        try:
            engine = _engine(graph, index)
        except RefusalError:
            continue
        results.append(_configuration(engine))
    if not results:
        raise unsupported("no engine supports this graph")
    heuristic.attributes["results"] = results


def _configuration(engine: BackendObject) -> BackendObject:
    """Return the "ENGINECFG" that a heuristic names, with a choice for each knob."""
    values = {
        BackendKnobType.TILE_SIZE: engine.value("global_index") % 2,
        BackendKnobType.USE_TEX: 1,
    }
    knobs = [info.value("type") for info in engine.attributes["knob_info"]]
    choices = [
        BackendObject("KNOB_CHOICE").finalize_with(knob_type=[knob], knob_value=[values[knob]])
        for knob in knobs
    ]
    return BackendObject("ENGINECFG").finalize_with(engine=[engine], knob_choices=choices)


def finalize_plan(plan: BackendObject) -> None:
    """Work out the workspace of an "EXECUTION_PLAN"."""
    engine = plan.value("engine_config").value("engine")
    plan.content = engine
    if isinstance(engine.value("operation_graph").content, GraphFormula):
        plan.attributes["workspace_size"] = [0]
        return
    problem: GraphConvolution = engine.value("operation_graph").content
    kernel = kernel_of(problem, ENGINES[engine.value("global_index")])
    accumulator = accumulator_dtype(problem.x, problem.conv)
    nbytes = kernel.size(problem.x.shape, problem.w.shape, problem.conv, accumulator)
    plan.attributes["workspace_size"] = [nbytes]
