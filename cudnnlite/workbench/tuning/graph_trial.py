"""`GraphTrial`: a graph of operations on operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np

from cudnnlite import AlgorithmResult, DeviceArray, Handle, OperationPlan, TensorSpec
from cudnnlite.cached_property import cached_property
from cudnnlite.devices import arrays
from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.plans.graph_call import WayThroughGraph
from cudnnlite.plans.graph_plan import NamedResults, graph_plan
from cudnnlite.types import Engine
from cudnnlite.workbench.tuning import graph_reference
from cudnnlite.workbench.tuning.accuracy import relative_errors, why_wrong
from cudnnlite.workbench.tuning.contest import join_remarks
from cudnnlite.workbench.tuning.convolution_reference import copy_part
from cudnnlite.workbench.tuning.policy import TuningPolicy, limit_of, requirements_of
from cudnnlite.workbench.tuning.trial import Array, Pairs, Trial, TrialMemory

# Values of an output that are compared with those of another engine, and of the largest tensor of
# an image that a search computes in float64 although its policy has no bound.
_MOST_COMPARED = 1 << 22
_LARGEST_FLOATS = {
    DataType.HALF: 65504.0,
    DataType.BFLOAT16: 3.38e38,
    DataType.FLOAT: 3.40e38,
    DataType.DOUBLE: 1.79e308,
}


class GraphTrial(Trial):
    """The engines for a graph on inputs.

    Attributes
    ----------
    native : OperationGraph
        The graph's descriptors, which all engines share.
    """

    def __init__(
        self,
        handle: Handle,
        problem: GraphProblem,
        policy: TuningPolicy,
        operands: Mapping[str, DeviceArray],
        stack: ExitStack,
        memory: TrialMemory,
    ) -> None:
        super().__init__(handle, stack, memory, limit_of(policy), policy.max_error)
        self.must_repeat = policy.deterministic
        self._graph = problem.graph
        self._requirements = requirements_of(policy)
        self._inputs = {
            name: memory.place(name, array, is_read_only=True) for name, array in operands.items()
        }
        self._outputs = {
            name: memory.empty(name, record.spec) for name, record in self._graph.outputs.items()
        }
        self.dtype = next(iter(self._outputs.values())).spec.dtype
        self.native = lower(self._graph, handle, stack)
        self._images = graph_reference.computed_images(self._graph)
        self._first_results: list[Array] | None = None

    @property
    def may_be_replayed(self) -> bool:
        """Whether a recorded call does what a call does: the numbers of dropout change."""
        return all(node.kind != "RNG" for node in self._graph.nodes)

    def plan(self, row: AlgorithmResult, *, replay: bool = False) -> OperationPlan[NamedResults]:
        """Return a plan of a candidate."""
        engine = row.algorithm
        assert isinstance(engine, Engine)
        way = WayThroughGraph(engine, self._requirements, replay, native=self.native)
        return graph_plan(self._handle, self._graph, way)

    def outputs(self) -> Sequence[DeviceArray]:
        """Return every output of the graph."""
        return [*self._outputs.values()]

    def call_of(
        self, plan: OperationPlan[NamedResults], *, has_new_outputs: bool = False
    ) -> Callable[[], object]:
        """Return a function that makes a plan's call once."""
        out = None if has_new_outputs else self._outputs
        workspace = self.memory.workspace(plan.workspace)
        return partial(plan, *self._inputs.values(), out=out, workspace=workspace)

    def why_no_reference(self) -> str:
        """Return which operation has no reference, or that the graph is too large for one."""
        return graph_reference.why_no_reference(self._graph)

    def results_and_reference(self, plan: OperationPlan[NamedResults]) -> Pairs:
        """Return the outputs for the first and the last image, and the same in float64."""
        results = [self._image_of(name, image) for image in self._images for name in self._outputs]
        return results, self._expected

    @cached_property
    def _expected(self) -> list[Array]:
        """The outputs for the compared images in float64."""
        inputs = {name: array.numpy() for name, array in self._inputs.items()}
        expected = []
        for image in self._images:
            values = graph_reference.reference(self._graph, inputs, image)
            expected += [values[name] for name in self._outputs]
        return expected

    def _image_of(self, name: str, image: int) -> Array:
        """Return an output for one image, in the shape of its record."""
        array, shape = self._outputs[name], self._graph.outputs[name].shape
        if array.spec.shape == shape and shape[0] > 1:
            return copy_part(array, image)[None]
        # Operations see an output in the shape of its record; its array may have other axes.
        return graph_reference.image_of(array.numpy().reshape(shape), image)

    @cached_property
    def has_reference(self) -> bool:
        """Whether a search compares results with float64.

        NumPy takes longer for a large reference than a search, so it is computed only if the policy
        has a bound.  Values that an output's type cannot hold show nothing, and neither do
        integers, whose rounding is no error.
        """
        dtypes = [array.spec.dtype for array in self._outputs.values()]
        if self.why_no_reference() or not all(dtype in _LARGEST_FLOATS for dtype in dtypes):
            return False
        is_large = graph_reference.values_of_largest(self._graph) > _MOST_COMPARED
        if is_large and self._max_error is None:
            return False
        largest_floats = [_LARGEST_FLOATS[dtype] for dtype in dtypes] * len(self._images)
        return all(
            bool(np.all(np.abs(values) <= largest))
            for values, largest in zip(self._expected, largest_floats, strict=True)
        )

    def judge_without_reference(
        self, call: Callable[[], object], row: AlgorithmResult
    ) -> AlgorithmResult:
        """Run an engine over poisoned outputs, and compare its results with the first engine's.

        The first engine is the one that the heuristics prefer.
        """
        self.run_over_poison(call)
        results = [_values_of(self._outputs[name]) for name in self._compared_names()]
        if self._first_results is None:
            self._first_results = results
            return row
        expected = self._first_results
        if not all(np.isfinite(values.astype(np.float64)).all() for values in expected):
            remark = "not compared: the results of made-up operands are not finite"
            return replace(row, remark=join_remarks(row.remark, remark))
        error = relative_errors(results, expected).l2
        reason = why_wrong(error, self.dtype, row.math_type)
        if reason:
            reason += " beside the engine that the heuristics prefer"
        return replace(row, why_not=reason)

    def _compared_names(self) -> list[str]:
        """Return the outputs that no operation reads again: others are memory between kernels."""
        read_again = {
            self._graph.tensors[number].name
            for node in self._graph.nodes
            for number in node.read_numbers
        }
        names = [name for name in self._outputs if name not in read_again]
        return names or [*self._outputs]


def _values_of(array: DeviceArray) -> Array:
    """Return the values of an output, or the first of many."""
    spec = array.spec
    if spec.size > _MOST_COMPARED and spec.size * itemsize(spec.dtype) == array.nbytes:
        array = arrays.part_of(array, TensorSpec((_MOST_COMPARED,), spec.dtype), 0)
    return array.numpy()
