"""Emulated engines: operation graphs with a convolution, what the heuristics name for them, and their execution in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from cudnnlite._raw.enums import (
    BackendBehaviorNote,
    BackendHeurMode,
    BackendKnobType,
    BackendNumericalNote,
)
from cudnnlite.devices.storage import read_values, write_values
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated import fusion
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.emulated.backend import Native, finalizes, native
from cudnnlite.emulated.convolution import compute_dtype, convolved
from cudnnlite.emulated.fusion import spec_of
from cudnnlite.emulated.kernels import KERNELS, WITHOUT_SCRATCH, Algorithm
from cudnnlite.emulated.memory import Bytes
from cudnnlite.emulated.precision import scale_add, to_output
from cudnnlite.emulated.registry import (
    RefusalError,
    Work,
    bad,
    check_aligned,
    emulates,
    unsupported,
)
from cudnnlite.emulated.support import tf32_is_forbidden, why_no_engine, why_no_forward_engine
from cudnnlite.enums import ConvolutionMode, DataType, Status
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec

Array = np.ndarray[Any, Any]
_ALIGNMENT = 16  # of every address in a variant pack
_TILES = 3  # the largest value of the one knob that every engine has; it changes nothing


class EngineFacts(NamedTuple):
    """An emulated engine."""

    narrow: bool = (
        False  # whether it multiplies float32 in TF32, and otherwise on what would be tensor cores
    )
    notes: tuple[BackendNumericalNote, ...] = ()  # its further numerical notes
    textures: bool = False  # whether it has a knob for textures, which the heuristics set: a capture would refuse it
    compiled: bool = False  # whether a GPU would have to compile it first


ENGINES = (
    EngineFacts(notes=(BackendNumericalNote.STRICT_NAN_PROP,)),  # needs no workspace
    EngineFacts(),
    EngineFacts(narrow=True, notes=(BackendNumericalNote.TENSOR_CORE,)),
    EngineFacts(notes=(BackendNumericalNote.WINOGRAD,)),
    EngineFacts(textures=True),
    EngineFacts(notes=(BackendNumericalNote.FFT,)),  # no heuristic names it, nor the next
    EngineFacts(compiled=True),
)
_NAMED = {
    BackendHeurMode.A: (4, 2, 1, 0),
    BackendHeurMode.B: (3, 1),
    BackendHeurMode.FALLBACK: (1, 0),
}
_NAMED[BackendHeurMode.INSTANT] = _NAMED[BackendHeurMode.A]


class Convolution(NamedTuple):
    """The convolution in a graph, or a gradient of it, by the specs of x, w and y, or of what stands for them."""

    x: TensorSpec
    w: FilterSpec
    y: TensorSpec
    conv: ConvolutionSpec
    alpha: float
    beta: float
    uids: Mapping[str, int]
    written: str
    pointwise: tuple[Native, ...]

    @property
    def compute(self) -> np.dtype[Any]:
        """The type that is accumulated in."""
        return compute_dtype(self.x, self.conv)

    def kernel(self, facts: EngineFacts) -> Algorithm:
        """Return the NumPy kernel behind an engine; RefusalError where it cannot do this."""
        _, stride, dilation = self.conv.steps(self.x.rank - 2)
        if BackendNumericalNote.WINOGRAD in facts.notes and (
            self.w.shape[2:] != (3, 3) or self.conv.groups > 1 or {*stride, *dilation} != {1}
        ):
            raise unsupported("Winograd's has 3 x 3 filters in one group, stride and dilation 1")
        kernels = WITHOUT_SCRATCH if facts is ENGINES[0] else KERNELS
        return kernels[self.written]


@finalizes("TENSOR")
def _tensor(tensor: Native) -> None:
    spec_of(tensor)
    alignment = tensor.one("byte_alignment")
    if alignment < 1 or alignment & (alignment - 1):
        raise bad(f"byte_alignment={alignment} is no power of two")


@finalizes("CONVOLUTION")
def _convolution(steps: Native) -> None:
    names = ("dilations", "filter_strides", "pre_paddings", "post_paddings")
    if {len(steps.values[name]) for name in names} != {steps.one("spatial_dims")}:
        raise bad(f"spatial_dims={steps.one('spatial_dims')} and steps of other lengths")


def _convolve(names: tuple[str, ...], operation: Native) -> None:
    """Work out the convolution whose operands have these names, in the order of x, w and y."""
    x, w, y = (operation.one(name) for name in names)
    steps = operation.one("conv_desc")
    if names[2] != "y" and steps.values["pre_paddings"] != steps.values["post_paddings"]:
        raise unsupported("the emulated device pads both sides of a gradient alike")
    x_spec, y_spec = spec_of(x), spec_of(y)
    w_spec = FilterSpec.from_tensor(spec_of(w), channels_last=x_spec.is_channels_last)
    conv = ConvolutionSpec(
        padding=tuple(
            zip(steps.values["pre_paddings"], steps.values["post_paddings"], strict=True)
        ),
        stride=steps.values["filter_strides"],
        dilation=steps.values["dilations"],
        groups=x_spec.shape[1] // w_spec.shape[1],
        mode=ConvolutionMode(steps.one("conv_mode")),
        compute_type=DataType(steps.one("comp_type")),
    )
    expected = conv.output_shape(x_spec.shape, w_spec.shape)
    if expected != y_spec.shape:
        raise RefusalError(
            Status.BAD_PARAM_SHAPE_MISMATCH,
            f"y has shape {y_spec.shape}, the result has {expected}",
        )
    uids = {name: operation.one(name).one("unique_id") for name in names}
    written = (
        names[2] if names[2] == "y" else next(name for name in names[:2] if name.startswith("d"))
    )
    alpha, beta = operation.one("alpha", 1.0), operation.one("beta", 0.0)
    operation.made = Convolution(x_spec, w_spec, y_spec, conv, alpha, beta, uids, written, ())


for _kind, _names in {
    "FORWARD": ("x", "w", "y"),
    "BACKWARD_DATA": ("dx", "w", "dy"),
    "BACKWARD_FILTER": ("x", "dw", "dy"),
}.items():
    finalizes(f"OPERATION_CONVOLUTION_{_kind}")(partial(_convolve, _names))


@finalizes("OPERATIONGRAPH")
def _graph(graph: Native) -> None:
    first, *others = graph.values["ops"]
    alone = isinstance(first.made, Convolution) and first.made.written != "y" and others
    if (
        not isinstance(first.made, Convolution)
        or alone
        or any(o.kind != "OPERATION_POINTWISE" for o in others)
    ):
        raise unsupported(
            "the emulated device has graphs of one convolution and pointwise operations"
        )
    tensors = [
        operation.one(name)
        for operation in graph.values["ops"]
        for name in ("x", "w", "y", "dx", "dw", "dy", "xdesc", "bdesc", "ydesc")
    ]
    known: dict[int, Native] = {}
    for tensor in filter(None, tensors):
        if known.setdefault(tensor.one("unique_id"), tensor) is not tensor:
            raise RefusalError(
                Status.BAD_PARAM_DUPLICATED_ENTRIES,
                f"two tensors with unique_id={tensor.one('unique_id')}",
            )
    written = [first.one(first.made.written), *(other.one("ydesc") for other in others)]
    if [tensor.one("is_virtual", False) for tensor in written] != [True] * len(others) + [False]:
        raise unsupported(
            "of what a graph writes the last tensor alone is in memory, the others virtual"
        )
    if [other.one("xdesc") for other in others] != written[:-1]:
        raise unsupported("each pointwise operation reads what the one before it writes")
    graph.made = first.made._replace(pointwise=tuple(others))
    graph.fill(engine_global_count=[len(ENGINES)])


def _supported(problem: Convolution) -> None:
    """Refuse a convolution for which an H200 has no engine."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.conv
    if numpy_dtype(x.dtype).kind in "iu":
        raise unsupported("integers")
    if problem.written != "y":
        why = why_no_engine(x, w, conv, y)
    elif (
        problem.pointwise
    ):  # then the convolution's result is not written to memory, and its layout does not count
        why = why_no_forward_engine(x, w, conv, x.packed(y.shape, x.dtype), is_fused=True)
    else:
        why = why_no_forward_engine(x, w, conv, y, is_fused=False)
    if why:
        raise unsupported(why)


def _engine(graph: Native, index: int) -> Native:
    problem: Convolution = graph.made
    _supported(problem)
    if index not in range(len(ENGINES)):
        raise unsupported(f"there is no engine {index}")
    facts = ENGINES[index]
    if facts.narrow and (
        problem.x.dtype == DataType.DOUBLE
        or (problem.x.dtype == DataType.FLOAT and tf32_is_forbidden())
    ):
        raise unsupported(f"engine {index} needs tensor cores")
    if problem.pointwise:
        scalars = (problem.alpha, problem.beta)
        operations = problem.pointwise
        if why := fusion.refusal(
            problem.x, problem.w, problem.conv, scalars, operations, narrow=facts.narrow
        ):
            raise unsupported(why)
    problem.kernel(facts)
    knobs = [
        (BackendKnobType.TILE_SIZE, _TILES),
        *([(BackendKnobType.USE_TEX, 1)] if facts.textures else []),
    ]
    infos = [
        Native("KNOB_INFO").fill(
            type=[int(knob)], minimum_value=[0], maximum_value=[most], stride=[1]
        )
        for knob, most in knobs
    ]
    notes = [BackendBehaviorNote.SUPPORTS_CUDA_GRAPH_NATIVE_API]
    notes += [BackendBehaviorNote.RUNTIME_COMPILATION] * facts.compiled
    return Native("ENGINE").fill(
        operation_graph=[graph],
        global_index=[index],
        knob_info=infos,
        numerical_note=[*map(int, facts.notes)],
        behavior_note=[*map(int, notes)],
    )


@finalizes("ENGINE")
def _finalize_engine(engine: Native) -> None:
    engine.become(_engine(engine.one("operation_graph"), engine.one("global_index")))


@finalizes("KNOB_CHOICE")
def _knob_choice(choice: Native) -> None:
    if BackendKnobType(choice.one("knob_type")).name not in BackendKnobType.__members__:
        raise bad(f"knob_type={choice.one('knob_type')}")


@finalizes("ENGINECFG")
def _configuration(configuration: Native) -> None:
    engine = configuration.one("engine")
    ranges = {info.one("type"): info.one("maximum_value") for info in engine.values["knob_info"]}
    for choice in configuration.values.setdefault("knob_choices", []):
        knob, value = choice.one("knob_type"), choice.one("knob_value")
        if not 0 <= value <= ranges.get(knob, -1):
            raise unsupported(f"engine {engine.one('global_index')} has no knob {knob}={value}")


@finalizes("ENGINEHEUR")
def _heuristic(heuristic: Native) -> None:
    graph, results = heuristic.one("operation_graph"), []
    for index in _NAMED.get(BackendHeurMode(heuristic.one("mode")), ()):
        try:
            engine = _engine(graph, index)
        except RefusalError:
            continue
        knobs = [info.one("type") for info in engine.values["knob_info"]]
        values = {BackendKnobType.TILE_SIZE: index % 2, BackendKnobType.USE_TEX: 1}
        choices = [
            Native("KNOB_CHOICE").fill(knob_type=[knob], knob_value=[values[knob]])
            for knob in knobs
        ]
        results.append(Native("ENGINECFG").fill(engine=[engine], knob_choices=choices))
    if not results:
        raise unsupported("no engine supports this graph")
    heuristic.values["results"] = results


@finalizes("EXECUTION_PLAN")
def _plan(plan: Native) -> None:
    engine = plan.one("engine_config").one("engine")
    problem: Convolution = engine.one("operation_graph").made
    kernel, plan.made = problem.kernel(ENGINES[engine.one("global_index")]), engine
    plan.values["workspace_size"] = [
        kernel.size(problem.x.shape, problem.w.shape, problem.conv, problem.compute)
    ]


@finalizes("VARIANT_PACK")
def _pack(pack: Native) -> None:
    ids, pointers = pack.values["unique_ids"], pack.values["data_pointers"]
    if len(ids) != len(pointers) or len(set(ids)) != len(ids):
        raise bad(f"{len(ids)} unique_ids and {len(pointers)} data_pointers")


@emulates("cudnnBackendExecute")
def execute(given: SimpleNamespace) -> Work:
    """Compute what a plan's graph says, over the addresses of a variant pack."""
    api: EmulatedApi = given.api
    found, pack = (
        native(api, given.executionPlan, "EXECUTION_PLAN"),
        native(api, given.variantPack, "VARIANT_PACK"),
    )
    if found.one("handle") != given.handle.value:
        raise bad("the plan was made for another handle")
    problem: Convolution = found.made.one("operation_graph").made
    facts = ENGINES[found.made.one("global_index")]
    needed = found.one("workspace_size")
    workspace = pack.one("workspace") or 0
    if needed:
        check_aligned("the workspace", workspace, _ALIGNMENT)
    addresses = dict(zip(pack.values["unique_ids"], pack.values["data_pointers"], strict=True))
    _Tensors(api, problem, addresses)  # what must not be is refused now, and again at each launch

    def work() -> None:
        scratch, tensors = api.memory.view(workspace, needed), _Tensors(api, problem, addresses)
        read = {
            name: tensors.read(uid) for name, uid in problem.uids.items() if name != problem.written
        }
        kernel, tf32 = problem.kernel(facts), facts.narrow and problem.x.dtype == DataType.FLOAT
        api.ran.add((kernel, tf32))
        shape = tensors.specs[problem.uids[problem.written]].shape
        for batch, result in convolved(
            kernel, problem.conv, read, shape, problem.compute, scratch, tf32
        ):
            tensors.finish(batch, result)

    return work


class _Tensors:
    """The tensors of a graph, by their numbers: those in memory, and what the pointwise operations make of a result."""

    def __init__(
        self, api: EmulatedApi, problem: Convolution, addresses: dict[int, int | None]
    ) -> None:
        self._problem = problem
        specs = dict(
            zip(problem.uids.values(), (problem.x, problem.w.tensor, problem.y), strict=True)
        )
        outputs = [problem.uids[problem.written]]
        added = {
            operation.one("bdesc").one("unique_id")
            for operation in problem.pointwise
            if operation.one("bdesc")
        }
        for operation in problem.pointwise:
            found = [operation.one(name) for name in ("xdesc", "bdesc", "ydesc")]
            specs |= {
                tensor.one("unique_id"): spec_of(tensor) for tensor in found if tensor is not None
            }
            outputs.append(operation.one("ydesc").one("unique_id"))
        self.specs, self._written = specs, outputs[-1]
        real = [uid for uid in specs if uid not in outputs[:-1]]
        self._views = {uid: self._view(api, uid, addresses) for uid in real}
        target = self._views[self._written]
        for uid in real:
            # every engine of an H200 reads an image that is added before it writes the result there
            same = addresses[uid] == addresses[self._written] and specs[uid] == specs[self._written]
            is_in_place = uid == self._written or (uid in added and same)
            if not is_in_place and np.shares_memory(self._views[uid], target):
                raise bad(f"operands {uid} and {self._written} overlap in memory")
        if specs[self._written].overlaps_itself:
            raise bad("values of the output overlap each other in memory")

    def _view(self, api: EmulatedApi, uid: int, addresses: dict[int, int | None]) -> Bytes:
        if uid not in addresses:
            raise bad(f"the variant pack has no tensor {uid}")
        address = addresses[uid] or 0
        check_aligned(f"tensor {uid}", address, _ALIGNMENT)
        return api.memory.view(address, self.specs[uid].nbytes)

    def read(self, uid: int) -> Array:
        """Return the values of a tensor in memory."""
        return read_values(self._views[uid], self.specs[uid])

    def finish(self, batch: slice, result: Array) -> None:
        """Scale a result, run the pointwise operations on it, and write what comes out."""
        problem, spec = self._problem, self.specs[self._written]
        first = problem.uids[problem.written]
        old = self.read(first)[batch] if problem.beta else None
        kind = numpy_dtype(spec.dtype) if not problem.pointwise else result.dtype
        values = {first: scale_add(result, problem.alpha, problem.beta, old, kind)}
        with np.errstate(all="ignore"):
            for operation in problem.pointwise:
                uids = [
                    operation.one(name).one("unique_id")
                    for name in ("xdesc", "bdesc")
                    if name in operation.values
                ]
                given = [
                    values[uid] if uid in values else self._part(uid, batch, result.dtype)
                    for uid in uids
                ]
                values[operation.one("ydesc").one("unique_id")] = fusion.computed(operation, *given)
        write_values(
            self._views[self._written],
            spec,
            batch,
            to_output(values[self._written], numpy_dtype(spec.dtype)),
        )

    def _part(self, uid: int, batch: slice, dtype: np.dtype[Any]) -> Array:
        whole = self.read(uid).astype(dtype)
        return whole[batch] if whole.shape[0] > 1 else whole
