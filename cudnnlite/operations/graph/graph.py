"""`Graph`: an operation graph as data, and its plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from cudnnlite.arguments import instance_of, one_of
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import MathType, parse_math_type
from cudnnlite.graph import attention_formulas, convolution_formulas, formulas, layer_formulas
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.problem import KIND, GraphProblem
from cudnnlite.graph.selection import Requirements
from cudnnlite.plans.choice import tuned_choice
from cudnnlite.plans.graph_call import WayThroughGraph, scratch_bytes
from cudnnlite.plans.graph_plan import NamedResults, graph_plan
from cudnnlite.plans.operands import use
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.replay import parse_replay
from cudnnlite.problems.problem import Problem, problem_from_plain
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.specs.names import MathTypeName
from cudnnlite.unknown import methods_of

PlanT = TypeVar("PlanT", bound=OperationPlan[Any])


@methods_of("Graph")
class Graph(GraphData):
    """Operations of cuDNN's graph API as data, without a handle or C call until `plan`.

    `input` makes a tensor, methods and operators compute further tensors, and `output` marks a
    tensor that is written to memory.  The other tensors stay in registers, if cuDNN has an engine
    for the whole graph.  Graphs are equal if their tensors and operations are; they can be saved,
    and print as a table.

    Parameters
    ----------
    compute_type : dtype
        The default data type of computations, and of the tensors between operations.
    dynamic_shapes : bool
        Whether cuDNN compiles kernels that also serve other sizes: a chain of operations is
        compiled once for a handle, and plans for further sizes take a tenth of a millisecond.  If
        possible they use the engine of the handle's first such plan, which may not be the best for
        their sizes.  Fewer engines support this.

    Attributes
    ----------
    inputs, outputs, scalars : dict
        The tensors in memory, and the numbers that are passed by value, by name.

    Examples
    --------
    >>> graph = dnn.Graph()
    >>> a = graph.input("a", (1, 128, 256), "float16")
    >>> b = graph.input("b", (1, 256, 512), "float16")
    >>> bias = graph.input("bias", (1, 1, 512), "float16")
    >>> _ = graph.output("y", graph.gelu(graph.matmul(a, b) + bias), "float16")
    >>> with dnn.Handle() as handle, graph.plan(handle) as plan:
    ...     arrays = {t.name: handle.array(np.ones(t.shape, np.float16)) for t in (a, b, bias)}
    ...     print(plan(**arrays)["y"].numpy()[0, 0, :2])
    [257. 257.]
    """

    # Formulas, whose first parameter is the graph, as methods.

    pointwise = formulas.pointwise
    exp = formulas.exp
    log = formulas.log
    sqrt = formulas.sqrt
    rsqrt = formulas.rsqrt
    reciprocal = formulas.reciprocal
    abs = formulas.abs
    erf = formulas.erf
    identity = formulas.identity
    div = formulas.div
    relu = formulas.relu
    gelu = formulas.gelu
    tanh = formulas.tanh
    sigmoid = formulas.sigmoid
    elu = formulas.elu
    swish = formulas.swish
    softplus = formulas.softplus
    where = formulas.where
    index = formulas.index
    matmul = formulas.matmul
    reduce = formulas.reduce
    softmax = formulas.softmax
    softmax_with_stats = formulas.softmax_with_stats
    transposed = formulas.transposed
    reshape = formulas.reshape

    causal = attention_formulas.causal
    window = attention_formulas.window
    within_lengths = attention_formulas.within_lengths
    bernoulli = attention_formulas.bernoulli

    convolution_forward = convolution_formulas.convolution_forward
    convolution_backward_data = convolution_formulas.convolution_backward_data
    convolution_backward_filter = convolution_formulas.convolution_backward_filter

    normalization_forward = layer_formulas.normalization_forward
    normalization_backward = layer_formulas.normalization_backward
    gen_stats = layer_formulas.gen_stats
    resample_forward = layer_formulas.resample_forward
    resample_forward_with_indices = layer_formulas.resample_forward_with_indices
    resample_backward = layer_formulas.resample_backward

    def plan(
        self,
        handle: Handle,
        *,
        engine: Engine | AlgorithmResult | str | None = None,
        math_type: MathType | MathTypeName = MathType.DEFAULT,
        deterministic: bool = False,
        workspace_limit: int | str | None = None,
        replay: bool = False,
    ) -> OperationPlan[NamedResults]:
        """Choose an engine and prepare the C call once, for many calls; nothing is computed.

        Parameters
        ----------
        handle : Handle
            The plan belongs to it and is closed with it.
        engine : Engine, AlgorithmResult or str, optional
            One of cuDNN's engines with its knobs, or what `Tuner.choose` returned.  If not given,
            the tuner's choice inside `autotuned`, if the other arguments require nothing; otherwise
            the first engine that the heuristics name and that meets the requirements.  With
            dynamic shapes, the engines of the handle's earlier plans come before those.
        math_type : MathType or str
            "fma" or "true_float32": only engines that do not use tensor cores.  cuDNN 9.19 has some
            for convolutions and for graphs without products; it has none where there is a "MATMUL",
            as in attention, and the graph is refused.
        deterministic : bool
            Only engines that give the same bits each time.
        workspace_limit : int or str, optional
            Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.
        replay : bool
            Record the call as a CUDA graph, and launch that from then on.

        Returns
        -------
        OperationPlan
            To be called with the graph's inputs by name.

        Raises
        ------
        ArgumentError
            The message names the argument.
        NotSupportedError
            cuDNN has no engine for this graph on this device.
        WorkspaceLimitError
            All of its engines need more workspace than is allowed.

        Notes
        -----
        C functions: those of a `BackendDescriptor`.  The graph can no longer be changed.
        """
        use(handle)
        requirements = Requirements(
            parse_math_type(math_type), one_of(deterministic, "deterministic", True, False)
        )
        limit = handle.workspace.limit_for(workspace_limit)
        way = find_way(handle, self, engine, requirements, limit, replay=parse_replay(replay))
        return graph_plan(handle, self, way, limit)


def any_problem_from_plain(plain: Any) -> Problem:
    """Return the problem that `to_plain` wrote, a graph's too; ArgumentError if it is none."""
    if isinstance(plain, Mapping) and plain.get("kind") == KIND:
        return GraphProblem(Graph.from_plain(plain.get("graph", {})))
    return problem_from_plain(plain)


def find_way(
    handle: Handle,
    graph: Graph,
    engine: Engine | AlgorithmResult | str | None,
    requirements: Requirements,
    limit: int | None,
    *,
    replay: bool = False,
    scratch: Collection[str] = (),
) -> WayThroughGraph:
    """Return how a graph is computed: by the engine that is given, the tuner's, or any that serves.

    `scratch` names the outputs that no call returns: they are in the workspace.
    """
    has_empty_batch = any(record.spec.size == 0 for record in graph.inputs.values())
    if engine is None and _tuner_knows(requirements) and not has_empty_batch:
        engine_limit = _engine_limit(graph, limit, scratch)
        engine = tuned_choice(handle, GraphProblem(graph), {}, engine_limit, replay=replay)
    source = ""
    if isinstance(engine, AlgorithmResult):
        replay = replay or engine.replay
        source = engine.source
        engine = instance_of(engine.algorithm, Engine, "engine.algorithm")
    elif engine is not None:
        named = Engine.from_text(engine) if isinstance(engine, str) else None
        hint = "; write 'engine 7', as it is printed, or dnn.types.Engine(7)"
        engine = named or instance_of(engine, Engine, "engine", hint)
    return WayThroughGraph(engine, requirements, replay, scratch, source=source)


def kept_plan(handle: Handle, key: tuple[Any, ...], make_plan: Callable[[], PlanT]) -> PlanT:
    """Return a new plan of a graph, which the handle keeps for calls of a kind.

    A tuner cannot measure while a CUDA graph is recorded, so what is made then is for other recorded
    calls alone.
    """
    if handle._chooser is not None and handle.device.is_capturing(handle.stream):
        key = (*key, "recorded")
        plan: PlanT | None = handle.plans.find(key)
        if plan is not None:
            return plan
    plan = make_plan()
    handle.plans.keep(key, plan)
    return plan


def _tuner_knows(requirements: Requirements) -> bool:
    """Return whether no more is required of an engine than a tuner's policy says."""
    return requirements.math_type != MathType.FMA and not requirements.is_deterministic


def _engine_limit(graph: Graph, limit: int | None, scratch: Collection[str]) -> int | None:
    """Return the bytes of a limit that outputs in scratch memory leave to an engine."""
    if limit is None:
        return None
    return max(limit - scratch_bytes(graph, scratch), 0)


def set_output_strides(graph: Graph, name: str, strides: tuple[int, ...]) -> None:
    """Let an output of a graph that is not planned yet lie in memory with other strides."""
    for number, record in enumerate(graph.tensors):
        if record.name == name:
            graph.tensors[number] = record.with_array(record.spec.shape, strides)
