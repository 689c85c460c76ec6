"""`GraphAttention`: multi-head attention as matrix products and scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.cached_property import cached_property
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType, Status
from cudnnlite.errors import NoAlgorithmError, NotSupportedError, WorkspaceLimitError
from cudnnlite.graph.known_faults import why_wrong
from cudnnlite.graph.operation_graph import ALIGNMENT
from cudnnlite.operations.attention.calls import (
    AttentionCall,
    AttentionGradients,
    ForwardOperands,
    Spaces,
)
from cudnnlite.operations.attention.graph_rules import has_lengths, mask_of
from cudnnlite.operations.attention.plan_key import AttentionPlanKey
from cudnnlite.operations.attention.projections import (
    WeightMatrix,
    bias_gradient_graph,
    input_gradient_graph,
    joint_projection_graph,
    projection_graph,
    weight_gradient_graph,
    weight_matrix,
)
from cudnnlite.operations.attention.scaled_dot_product import (
    scaled_dot_product_attention_backward,
    scaled_dot_product_attention_forward,
)
from cudnnlite.operations.attention.weights import AttentionWeights, weight_places
from cudnnlite.operations.graph.graph import Graph, set_output_strides, tuned_choice
from cudnnlite.plans.graph_plan import GraphPlan, Requirements, enqueue
from cudnnlite.plans.native_problem import NativeProblem
from cudnnlite.problems.pointwise import ADD
from cudnnlite.problems.problem import Problem
from cudnnlite.sizes import aligned_size, over_limit
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.attention import SeqDataSpec

_PROJECTIONS = 3  # of queries, keys and values, the first steps of a forward pass


class _Step(NamedTuple):
    """A graph's call, and the names of the memory that its operands are in."""

    label: str
    plan: GraphPlan
    operands: Mapping[str, str]


class _Layout(NamedTuple):
    """The offsets of buffers in one space, by name, and the bytes of all."""

    offsets: dict[str, int]
    nbytes: int

    def addresses(self, base: int) -> dict[str, int]:
        """Return the address of each buffer."""
        return {name: base + offset for name, offset in self.offsets.items()}


class GraphAttention:
    """Multi-head attention as graphs: projections, attention, output projection.

    The passes share intermediate results: projected queries, keys and values, the heads' results
    and the statistics of the softmax.  They are in the workspace in inference, and in the reserve
    space in training.

    Parameters
    ----------
    handle : Handle
        The handle of the calls.
    key : AttentionPlanKey
        The spec of the attention and of its sequences; `why_no_graph` has nothing against it.
    stack : ExitStack
        Owns the plans of the graphs.

    Raises
    ------
    NotSupportedError
        cuDNN has no engine for one of the graphs, or the weights are in an order that matrix
        products cannot read.
    WorkspaceLimitError
        The intermediate results need more workspace than the handle allows.
    """

    def __init__(self, handle: Handle, key: AttentionPlanKey, stack: ExitStack) -> None:
        spec = key.spec
        self._handle = handle
        self._key = key
        self._spec = spec
        self._stack = stack
        self._places = weight_places(handle, spec)
        self._matrices = self._merge_heads()
        self.alignment = ALIGNMENT
        self._plans: dict[Graph, GraphPlan] = {}
        self.engines: dict[str, Any] = {}
        self._lengths: dict[str, DeviceArray] = {}
        if has_lengths(key):
            for name in ("q_lengths", "kv_lengths"):
                self._lengths[name] = self._on_device(getattr(key, name), DataType.INT32)
        self._constants = dict(self._lengths)
        if key.training:
            # First the gradients: in float32 cuDNN has none, and the other plans are in vain.
            self._backward_data_steps = self._plan_backward_data()
            self._backward_weights_steps = self._plan_backward_weights()
        self._forward_steps = self._plan_forward()
        self._steps_with_residual: list[_Step] = []
        self._joint_projection: _Step | None = None
        self._is_joint_projection_planned = False
        self._place_buffers()
        limit = handle.workspace.limit
        if limit is not None and self.workspace > limit:
            raise WorkspaceLimitError(over_limit(self.workspace, limit))

    def _merge_heads(self) -> dict[str, WeightMatrix]:
        """Return the weights of each projection, "q", "k", "v" and "o", as one matrix."""
        matrices = {}
        for name, (offset, part) in self._places.items():
            if offset % ALIGNMENT:
                raise _refusal(
                    f"{name} begins at byte {offset} of the weights, no multiple of {ALIGNMENT}"
                )
            if name.startswith("b"):
                continue
            matrix = weight_matrix(name, part)
            if matrix is None:
                raise _refusal(f"{name} is {part}, whose heads are not side by side in memory")
            matrices[name[1]] = matrix
        return matrices

    # ------------------------------------------------------------------------------------ plans

    def _plan_forward(self) -> list[_Step]:
        steps = [self._plan_projection(name) for name in "qkv"]
        steps.append(self._plan_attention())
        if "o" in self._matrices:
            steps.append(self._plan_projection("o"))
        return steps

    def _plan_projection(self, name: str, *, residual: bool = False) -> _Step:
        bias = f"b{name}" in self._places
        graph = projection_graph(
            self._matrices[name],
            self._rows(name),
            self._spec.dtype,
            bias=bias,
            residual=residual,
        )
        source, target = (name, f"{name}_heads") if name != "o" else ("o_heads", "y")
        operands = {"x": source, "w": f"w{name}", "bias": f"b{name}", "y": target}
        label = f"projection of {name}"
        if residual:
            label += " with residual"
        return self._step(label, graph, operands | {"residual": "residual"})

    def _plan_attention(self) -> _Step:
        q, k, v = (self._heads_spec(name) for name in "qkv")
        graph = scaled_dot_product_attention_forward.graph(
            q,
            k,
            v,
            **self._attention_options(),
            return_stats=self._key.training,
        )
        set_output_strides(graph, "o", self._heads_spec("o").strides)
        operands = {name: f"{name}_heads" for name in "qkvo"}
        operands |= {name: name for name in self._lengths}
        return self._step("attention", graph, operands | {"stats": "stats"})

    def _attention_options(self) -> dict[str, Any]:
        """Return the options of scaled dot-product attention, the specs of lengths included."""
        mask = mask_of(self._key)
        assert mask is not None
        options: dict[str, Any] = {"scale": self._spec.scale, **mask._asdict()}
        for name, array in self._lengths.items():
            options[name] = array.spec
        return options

    def _plan_backward_data(self) -> list[_Step]:
        steps = []
        do = "dy"
        if "o" in self._matrices:
            do = "do_heads"
            steps.append(self._plan_input_gradient("o", dy="dy", dx=do))
        specs = {name: self._heads_spec(name) for name in "qkvo"}
        specs["do"] = specs["o"]
        specs["stats"] = TensorSpec((*specs["q"].shape[:3], 1), DataType.FLOAT)
        graph = scaled_dot_product_attention_backward.graph(
            *(specs[name] for name in ("q", "k", "v", "o", "do", "stats")),
            **self._attention_options(),
        )
        operands = {name: f"{name}_heads" for name in "qkvo"} | {"do": do, "stats": "stats"}
        operands |= {name: name for name in self._lengths}
        for name in "qkv":
            set_output_strides(graph, f"d{name}", specs[name].strides)
            operands[f"d{name}"] = f"d{name}_heads"
        steps.append(self._step("gradients of attention", graph, operands))
        for name in "qkv":
            steps.append(self._plan_input_gradient(name, dy=f"d{name}_heads", dx=f"d{name}"))
        return steps

    def _plan_input_gradient(self, name: str, *, dy: str, dx: str) -> _Step:
        graph = input_gradient_graph(self._matrices[name], self._rows(name), self._spec.dtype)
        return self._step(f"gradient of {name}", graph, {"dy": dy, "w": f"w{name}", "dx": dx})

    def _plan_backward_weights(self) -> list[_Step]:
        steps = []
        for name, matrix in self._matrices.items():
            rows = self._rows(name)
            x, dy = (name, f"d{name}_heads") if name != "o" else ("o_heads", "dy")
            graph = weight_gradient_graph(matrix, rows, self._spec.dtype)
            operands = {"x": x, "dy": dy, "dw": f"w{name}"}
            steps.append(self._step(f"gradient of w{name}", graph, operands))
            if f"b{name}" in self._places:
                graph = bias_gradient_graph(matrix.out_size, rows, self._spec.dtype)
                operands = {"ones": "ones", "dy": dy, "db": f"b{name}"}
                steps.append(self._step(f"gradient of b{name}", graph, operands))
        if self._spec.bias:
            rows = max(self._rows("q"), self._rows("k"))
            self._constants["ones"] = self._on_device((1,) * rows, self._spec.dtype)
        return steps

    def _on_device(self, values: tuple[int, ...], dtype: DataType) -> DeviceArray:
        """Return numbers on the device, (count, 1, 1, 1)."""
        handle = self._handle
        host = np.array(values, np.float32).reshape(-1, 1, 1, 1)
        return arrays.from_host(handle.device, handle.stream, host, dtype=dtype, casting="unsafe")

    @property
    def constants(self) -> tuple[DeviceArray, ...]:
        """The plan's own memory on the device: lengths of sequences, and ones."""
        return tuple(self._constants.values())

    def _step(
        self,
        label: str,
        graph: Graph,
        operands: Mapping[str, str],
        limit: int | None = None,
    ) -> _Step:
        """Return the call of a graph; equal graphs share one plan.

        It has the handle's limit of workspace, unless another one is given.
        """
        if graph not in self._plans:
            if limit is None:
                limit = self._handle.workspace.limit
            scratch = [name for name in graph.outputs if name not in operands]
            self._plans[graph] = self._planned(label, graph, scratch, limit)
        plan = self._plans[graph]
        self.engines[label] = plan.choice
        names = (*plan.problem.operation.reads, *plan.problem.operation.writes)
        return _Step(label, plan, {name: operands[name] for name in names})

    def _planned(
        self, label: str, graph: Graph, scratch: Sequence[str], limit: int | None
    ) -> GraphPlan:
        reason = why_wrong(graph)
        if reason is not None:
            raise _refusal(f"{label}: {reason}")
        handle = self._handle
        requirements = Requirements(self._spec.math_type)
        try:
            # A row of the database may be one that cuDNN makes no plan of.
            choice = tuned_choice(
                handle, graph, requirements, limit, scratch=scratch, use_database=False
            )
        except NoAlgorithmError as error:
            raise _refusal(f"{label}: {error}") from error
        engine = None if choice is None else choice.algorithm
        # Otherwise the descriptor call computes what no graph does, and nobody needs the hints.
        hints = self._key.interface == "graph"
        plan = GraphPlan(handle, graph, engine, limit, requirements, scratch=scratch, hints=hints)
        # A CUDA graph that has recorded a call of this attention may outlive the handle.
        plan.hold()
        self._stack.callback(plan.release)
        self._stack.callback(plan.close)
        try:
            return plan.prepare()
        except NotSupportedError as error:
            raise _refusal(f"{label}: {error.detail}") from error

    def _rows(self, name: str) -> int:
        """Return how many vectors there are of queries or output, or of keys or values."""
        data = self._key.k if name in "kv" else self._key.q
        return prod(data.shape[:3])

    def _heads_spec(self, name: str) -> TensorSpec:
        """Return projected vectors, or results of heads, as (batch, heads, steps, size).

        The vectors of a step are side by side, and steps and batch in the order of the operands.
        """
        data = self._key.k if name in "kv" else self._key.q
        batch, _, steps, _ = data.shape
        spec = self._spec
        size = spec.v_proj_size if name in "vo" else spec.q_proj_size
        width = spec.heads * size
        rows = SeqDataSpec((batch, 1, steps, width), None, spec.dtype, data.axes).tensor()
        batch_stride, _, step_stride, _ = rows.strides
        return TensorSpec(
            (batch, spec.heads, steps, size),
            spec.dtype,
            strides=(batch_stride, size, step_stride, 1),
        )

    # ---------------------------------------------------------------------------------- buffers

    def _place_buffers(self) -> None:
        """Set the offsets of all intermediate results, and the sizes of both spaces."""
        heads = {f"{name}_heads": self._heads_spec(name).nbytes for name in "qkvo"}
        gradients = {f"d{name}": nbytes for name, nbytes in heads.items()}
        scratch = max(plan.workspace for plan in self._plans.values())
        if not self._key.training:
            if "o" not in self._matrices:
                del heads["o_heads"]
            self._reserve_layout = _layout({})
            self._workspace_layout = _layout(heads | {"scratch": scratch})
        else:
            statistics = prod(self._heads_spec("q").shape[:3]) * itemsize(DataType.FLOAT)
            reserve_parts = heads | {"stats": statistics}
            reserve_parts |= {
                name: gradients[name] for name in ("dq_heads", "dk_heads", "dv_heads")
            }
            between = {"do_heads": gradients["do_heads"], "scratch": scratch}
            self._reserve_layout = _layout(reserve_parts)
            self._workspace_layout = _layout(between)
            self._accumulation_layout = _layout(
                {name: part.nbytes for name, (_, part) in self._places.items()}
                | {"scratch": scratch}
            )
        self.reserve = self._reserve_layout.nbytes
        self.workspace = self._workspace_layout.nbytes
        if self._key.training:
            self.workspace = max(self.workspace, self._accumulation_layout.nbytes)

    def _weight_addresses(self, weights: AttentionWeights) -> dict[str, int]:
        base = weights.array.ptr
        return {name: base + offset for name, (offset, _) in self._places.items()}

    def _addresses(self, weights: AttentionWeights, spaces: Spaces) -> dict[str, int]:
        """Return the addresses of the weights and of all buffers, by name."""
        addresses = self._weight_addresses(weights)
        addresses |= self._workspace_layout.addresses(spaces.workspace)
        addresses |= self._reserve_layout.addresses(spaces.reserve)
        addresses |= {name: array.ptr for name, array in self._constants.items()}
        return addresses

    # ------------------------------------------------------------------------------------ calls

    def forward(self, operands: ForwardOperands, spaces: Spaces) -> None:
        """Enqueue the forward pass."""
        addresses = self._addresses(operands.weights, spaces)
        for name in "qkvy":
            addresses[name] = getattr(operands, name).ptr
        projects = "o" in self._matrices
        if not projects and not self._key.training:
            addresses["o_heads"] = addresses["y"]
        steps = self._forward_steps
        residual = operands.residual
        if residual is not None:
            addresses["residual"] = residual.ptr
            if projects:
                steps = self._steps_with_residual or steps
        is_self_attention = operands.q.ptr == operands.k.ptr == operands.v.ptr
        if self._joint_projection is not None and is_self_attention:
            steps = [self._joint_projection, *steps[_PROJECTIONS:]]
        _run(steps, addresses)
        y = operands.y
        if not projects and self._key.training:
            device, stream = self._handle.device, self._handle.stream
            device.copy_within(y.ptr, addresses["o_heads"], y.nbytes, stream)
        if residual is not None and not projects:
            self._addition(y.spec.size)(A=residual.ptr, C=y.ptr)

    def plan_residual(self) -> None:
        """Plan the forward pass whose output projection adds a residual; most calls have none."""
        if "o" in self._matrices and not self._steps_with_residual:
            step = self._plan_projection("o", residual=True)
            self._place_buffers()
            self._steps_with_residual = [*self._forward_steps[:-1], step]

    def plan_self_attention(self) -> None:
        """Plan the projections of queries, keys and values as one product, if they are one array.

        It has no more scratch memory than the other steps, so that buffers stay where they are.
        """
        if self._is_joint_projection_planned:
            return
        self._is_joint_projection_planned = True
        graph = self._joint_projection_graph()
        if graph is None:
            return
        operands = {"x": "q", "w": "wq", "bias": "bq", "y": "q_heads"}
        scratch = max(plan.workspace for plan in self._plans.values())
        try:
            self._joint_projection = self._step("projection of q, k, v", graph, operands, scratch)
        except (NotSupportedError, WorkspaceLimitError):
            self._joint_projection = None

    def _joint_projection_graph(self) -> Graph | None:
        """Return the three projections as one product; None if their memory does not allow it.

        cuDNN 9 has the matrices of queries, keys and values one behind the other, and so the
        biases: three matrices of a batch.
        """
        key, matrices = self._key, self._matrices
        if key.training or not key.q == key.k == key.v:
            return None
        if not matrices["q"] == matrices["k"] == matrices["v"]:
            return None
        places = {
            "w": [self._places[f"w{name}"][0] for name in "qkv"],
            "y": [self._workspace_layout.offsets[f"{name}_heads"] for name in "qkv"],
        }
        if self._spec.bias:
            places["bias"] = [self._places[f"b{name}"][0] for name in "qkv"]
        strides = {}
        for name, offsets in places.items():
            distance = self._distance(offsets)
            if distance is None:
                return None
            strides[name] = distance
        return joint_projection_graph(
            matrices["q"], self._rows("q"), self._spec.dtype, _PROJECTIONS, strides
        )

    def _distance(self, offsets: Sequence[int]) -> int | None:
        """Return the distance between offsets, in elements; None if the distances differ."""
        distances = {behind - before for before, behind in pairwise(offsets)}
        if len(distances) > 1:
            return None
        (nbytes,) = distances
        elements, rest = divmod(nbytes, itemsize(self._spec.dtype))
        return elements if elements > 0 and rest == 0 else None

    def backward_data(
        self, call: AttentionCall, dy: DeviceArray, gradients: AttentionGradients, spaces: Spaces
    ) -> None:
        """Enqueue the backward pass over the data."""
        addresses = self._addresses(call.weights, spaces)
        addresses["dy"] = dy.ptr
        for name in ("dq", "dk", "dv"):
            addresses[name] = getattr(gradients, name).ptr
        _run(self._backward_data_steps, addresses)

    def backward_weights(
        self, call: AttentionCall, out: AttentionWeights, spaces: Spaces, *, accumulate: bool
    ) -> None:
        """Enqueue the backward pass over the weights."""
        assert call.dy is not None
        addresses = self._reserve_layout.addresses(spaces.reserve)
        addresses |= {"q": call.q.ptr, "k": call.k.ptr, "v": call.v.ptr, "dy": call.dy.ptr}
        addresses |= {name: array.ptr for name, array in self._constants.items()}
        targets = self._weight_addresses(out)
        addresses |= self._accumulation_layout.addresses(spaces.workspace)
        if not accumulate:
            addresses |= targets
        _run(self._backward_weights_steps, addresses)
        if accumulate:
            for name, (_, part) in self._places.items():
                self._addition(part.size)(A=addresses[name], C=targets[name])

    @cached_property
    def _additions(self) -> dict[int, Any]:
        return {}

    def _addition(self, count: int) -> Any:
        """Return a call that adds so many values, A, to others, C."""
        if count not in self._additions:
            spec = TensorSpec((1, 1, 1, count), self._spec.dtype)
            problem = Problem(ADD, a=spec, c=spec, alpha=1.0, beta=1.0)
            call = NativeProblem(self._handle, problem, self._stack).prepare()
            self._additions[count] = partial(_call_with, call)
        return self._additions[count]

    def memory_to_clear(self, dq: DeviceArray) -> list[tuple[int, int]]:
        """Return nothing: graphs write all gradients."""
        return []


def _run(steps: Iterable[_Step], addresses: Mapping[str, int]) -> None:
    """Enqueue graphs one after the other."""
    for _, plan, operands in steps:
        places = {name: addresses[source] for name, source in operands.items()}
        enqueue(plan, addresses["scratch"], places)


def _call_with(call: Any, **addresses: int) -> None:
    call.replace(**addresses)
    call()


def _layout(sizes: Mapping[str, int]) -> _Layout:
    """Return buffers of these sizes in bytes, one behind the other, each aligned."""
    offsets = {}
    offset = 0
    for name, nbytes in sizes.items():
        offsets[name] = offset
        offset += aligned_size(nbytes)
    return _Layout(offsets, offset)


def _refusal(reason: str) -> NotSupportedError:
    return NotSupportedError("cudnnBackendFinalize", Status.NOT_SUPPORTED, reason)
