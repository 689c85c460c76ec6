"""Emulated engines: those that can compute a graph, and those that each heuristic proposes."""

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
from cudnnlite.emulated.graph_engines import GraphFormula, why_no_graph_engine
from cudnnlite.emulated.kernels import KERNELS, KERNELS_WITHOUT_SCRATCH, Kernel
from cudnnlite.emulated.operation_graph import GraphConvolution
from cudnnlite.emulated.registry import RefusalError, bad_parameter, unsupported
from cudnnlite.emulated.support import tf32_is_forbidden, why_no_engine, why_no_forward_engine
from cudnnlite.enums import DataType, TensorFormat
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST

# The only engine of a graph that is a `GraphFormula`.  Not 0, which cuDNN 9.19 computes some products
# wrongly with.
FORMULA_ENGINE = 4
_MAX_TILE_SIZE = 3  # Every engine has the knob TILE_SIZE, which has no effect on this device.


class EngineProperties(NamedTuple):
    """The properties of one emulated engine for convolutions.

    Attributes
    ----------
    needs_workspace : bool
        Whether its kernel works in a workspace.
    uses_tensor_cores : bool
        Whether it rounds as tensor cores do: float32 is multiplied in TF32.
    notes : tuple of BackendNumericalNote
        Its numerical notes.
    has_texture_knob : bool
        Whether it has the knob USE_TEX, which the heuristics set to 1.  A GPU's engine then creates
        a texture when it runs, which a CUDA graph cannot capture.
    is_compiled : bool
        Whether cuDNN compiles such an engine at run time on a GPU.
    """

    needs_workspace: bool = True
    uses_tensor_cores: bool = False
    notes: tuple[BackendNumericalNote, ...] = ()
    has_texture_knob: bool = False
    is_compiled: bool = False


# The engines for convolutions; an engine's number (its global index) is its place here.
ENGINES = (
    EngineProperties(needs_workspace=False, notes=(BackendNumericalNote.STRICT_NAN_PROP,)),
    EngineProperties(),
    EngineProperties(uses_tensor_cores=True, notes=(BackendNumericalNote.TENSOR_CORE,)),
    EngineProperties(notes=(BackendNumericalNote.WINOGRAD,)),
    EngineProperties(has_texture_knob=True),
    # No heuristic proposes the last two.
    EngineProperties(notes=(BackendNumericalNote.FFT,)),
    EngineProperties(is_compiled=True),
)
# The numbers of the engines that a heuristic proposes, the preferred one first.
_PROPOSALS_BY_MODE = {
    BackendHeurMode.A: (4, 2, 1, 0),
    BackendHeurMode.INSTANT: (4, 2, 1, 0),
    BackendHeurMode.B: (3, 1),
    BackendHeurMode.FALLBACK: (1, 0),
}


def kernel_of(problem: GraphConvolution, properties: EngineProperties) -> Kernel:
    """Return the NumPy kernel that stands in for an engine."""
    kernels = KERNELS if properties.needs_workspace else KERNELS_WITHOUT_SCRATCH
    return kernels[problem.output_name]


def _why_unsupported(problem: GraphConvolution, index: int) -> str | None:
    """Return why an engine does not compute a convolution and its epilogue, or None if it does."""
    reason = _why_no_engine_at_all(problem)
    if reason is not None:
        return reason
    if index not in range(len(ENGINES)):
        return f"there is no engine {index}"
    properties = ENGINES[index]
    if properties.uses_tensor_cores and not _may_use_tensor_cores(problem.x.dtype):
        return f"engine {index} needs tensor cores"
    return _why_epilogue_unsupported(problem, index) or _why_no_winograd(problem, properties)


def _why_no_engine_at_all(problem: GraphConvolution) -> str | None:
    """Return why an H200 has no engine for a convolution, whatever its pointwise operations are."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.conv
    if numpy_dtype(x.dtype).kind in "iu":
        return "integers"
    if problem.output_name != "y":
        return why_no_engine(x, w, conv, y) or _why_uneven_gradient_unsupported(problem)
    if problem.pointwise:
        # The convolution's result stays virtual, so its layout does not matter: any will do here.
        return why_no_forward_engine(x, w, conv, x.packed(y.shape, x.dtype), is_fused=True)
    return why_no_forward_engine(x, w, conv, y, is_fused=False)


def _why_uneven_gradient_unsupported(problem: GraphConvolution) -> str | None:
    """Return why an H200 refuses a gradient with different padding at the two ends of an axis.

    Return None if it is supported, or if the padding is even.  Uneven padding was recorded on an
    H100 for operands that share one layout, in all types but float64, for which the planner of
    cuDNN 9.28 has engine 0; the rest is refused.
    """
    x, w, y = problem.x, problem.w, problem.y
    if problem.conv.is_symmetric:
        return None
    layouts = CHANNELS_LAST if w.format == TensorFormat.NHWC else CHANNELS_FIRST
    if not (x.fits(layouts[x.rank]) and y.fits(layouts[y.rank])):
        return "gradients with uneven padding of operands in several layouts"
    return None


def _may_use_tensor_cores(dtype: DataType) -> bool:
    if dtype == DataType.FLOAT:
        return not tf32_is_forbidden()
    return dtype != DataType.DOUBLE


def _why_epilogue_unsupported(problem: GraphConvolution, index: int) -> str | None:
    """Return why an engine does not take the pointwise operations behind a convolution."""
    if not problem.pointwise:
        return None
    fused = FusedConvolution(
        problem.x, problem.w, problem.conv, problem.alpha, problem.beta, problem.pointwise
    )
    return why_no_fused_engine(
        fused, uses_tensor_cores=ENGINES[index].uses_tensor_cores, is_first=index == 0
    )


def _why_no_winograd(problem: GraphConvolution, properties: EngineProperties) -> str | None:
    """Return why an engine with Winograd's algorithm does not compute a convolution."""
    if BackendNumericalNote.WINOGRAD not in properties.notes:
        return None
    _, stride, dilation = problem.conv.steps(problem.x.rank - 2)
    has_unit_steps = all(step == 1 for step in (*stride, *dilation))
    if problem.w.shape[2:] == (3, 3) and problem.conv.groups == 1 and has_unit_steps:
        return None
    return "Winograd's algorithm needs 3 x 3 filters in one group, stride and dilation 1"


def _engine(graph: BackendObject, index: int) -> BackendObject:
    """Return a final "ENGINE" of a graph; RefusalError if the engine does not compute the graph."""
    if isinstance(graph.content, GraphFormula):
        return _formula_engine(graph, index)
    problem: GraphConvolution = graph.content
    reason = _why_unsupported(problem, index)
    if reason is not None:
        raise unsupported(reason)
    properties = ENGINES[index]
    knobs = [_knob_info(BackendKnobType.TILE_SIZE, _MAX_TILE_SIZE)]
    if properties.has_texture_knob:
        knobs.append(_knob_info(BackendKnobType.USE_TEX, 1))
    behavior_notes = [int(BackendBehaviorNote.SUPPORTS_CUDA_GRAPH_NATIVE_API)]
    if properties.is_compiled:
        behavior_notes.append(int(BackendBehaviorNote.RUNTIME_COMPILATION))
    return BackendObject("ENGINE").finalize_with(
        operation_graph=[graph],
        global_index=[index],
        knob_info=knobs,
        numerical_note=[int(note) for note in properties.notes],
        behavior_note=behavior_notes,
    )


def _formula_engine(graph: BackendObject, index: int) -> BackendObject:
    """Return the only engine of a graph that is a formula; RefusalError if it has none."""
    if index != FORMULA_ENGINE:
        raise unsupported(f"there is no engine {index}")
    reason = why_no_graph_engine(graph.content)
    if reason is not None:
        raise unsupported(reason)
    numerical_notes = []
    if _multiplies_on_tensor_cores(graph.content):
        numerical_notes.append(int(BackendNumericalNote.TENSOR_CORE))
    return BackendObject("ENGINE").finalize_with(
        operation_graph=[graph],
        global_index=[index],
        knob_info=[_knob_info(BackendKnobType.TILE_SIZE, _MAX_TILE_SIZE)],
        numerical_note=numerical_notes,
        behavior_note=[int(BackendBehaviorNote.RUNTIME_COMPILATION)],
    )


def _multiplies_on_tensor_cores(graph: GraphFormula) -> bool:
    """Return whether every engine that an H100 has for a formula uses tensor cores."""
    first = graph.operations[0]
    if first.kind == "OPERATION_CONVOLUTION_FORWARD":
        x: TensorSpec = first.content.x
        return x.dtype == DataType.BFLOAT16 or x.rank == 5
    return "MATMUL" in graph.kinds


def _knob_info(knob: BackendKnobType, maximum: int) -> BackendObject:
    return BackendObject("KNOB_INFO").finalize_with(
        type=[int(knob)], minimum_value=[0], maximum_value=[maximum], stride=[1]
    )


def finalize_engine(engine: BackendObject) -> None:
    """Work out the knobs and notes of an "ENGINE" from its graph and its number."""
    engine.copy_from(_engine(engine.value("operation_graph"), engine.value("global_index")))


def check_knob_choice(choice: BackendObject) -> None:
    """Refuse a "KNOB_CHOICE" whose type of knob does not exist."""
    knob_type = choice.value("knob_type")
    # `BackendKnobType(99)` raises no error: it has the name UNKNOWN_99, but is no member.
    if BackendKnobType(knob_type).name not in BackendKnobType.__members__:
        raise bad_parameter(f"knob_type={knob_type}")


def finalize_configuration(configuration: BackendObject) -> None:
    """Refuse an "ENGINECFG" that sets a knob or a value which its engine lacks."""
    engine = configuration.value("engine")
    maxima = {
        info.value("type"): info.value("maximum_value") for info in engine.attributes["knob_info"]
    }
    for choice in configuration.attributes.setdefault("knob_choices", []):
        knob, value = choice.value("knob_type"), choice.value("knob_value")
        if knob not in maxima or not 0 <= value <= maxima[knob]:
            raise unsupported(f"engine {engine.value('global_index')} has no knob {knob}={value}")


def finalize_heuristic(heuristic: BackendObject) -> None:
    """Work out the results of an "ENGINEHEUR": the engines of its graph, the preferred first."""
    graph = heuristic.value("operation_graph")
    mode = BackendHeurMode(heuristic.value("mode"))
    results = []
    for index in _PROPOSALS_BY_MODE.get(mode, ()):
        try:
            engine = _engine(graph, index)
        except RefusalError:
            continue
        results.append(_configuration(engine))
    if not results:
        raise unsupported("no engine supports this graph")
    heuristic.attributes["results"] = results


def _configuration(engine: BackendObject) -> BackendObject:
    """Return the "ENGINECFG" that a heuristic proposes, with a choice for each knob."""
    # Neighbouring engines differ in their tile size, so that proposals have several values of it.
    knob_values = {
        BackendKnobType.TILE_SIZE: engine.value("global_index") % 2,
        BackendKnobType.USE_TEX: 1,
    }
    knobs = [info.value("type") for info in engine.attributes["knob_info"]]
    choices = [
        BackendObject("KNOB_CHOICE").finalize_with(knob_type=[knob], knob_value=[knob_values[knob]])
        for knob in knobs
    ]
    return BackendObject("ENGINECFG").finalize_with(engine=[engine], knob_choices=choices)


def finalize_plan(plan: BackendObject) -> None:
    """Work out the workspace of an "EXECUTION_PLAN"."""
    engine = plan.value("engine_config").value("engine")
    plan.content = engine
    plan.attributes["workspace_size"] = [workspace_bytes(engine)]


def workspace_bytes(engine: BackendObject) -> int:
    """Return the bytes of workspace that an engine needs."""
    problem = engine.value("operation_graph").content
    if isinstance(problem, GraphFormula):
        return 0
    kernel = kernel_of(problem, ENGINES[engine.value("global_index")])
    accumulator = accumulator_dtype(problem.x, problem.conv)
    return kernel.scratch_bytes(problem.x.shape, problem.w.shape, problem.conv, accumulator)
