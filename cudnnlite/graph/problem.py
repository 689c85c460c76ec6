"""`GraphProblem`: a graph as a problem, which plans are made for and the tuner remembers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from cudnnlite.arguments import shown
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.flops import flops_of
from cudnnlite.graph.questions import behind_products
from cudnnlite.graph.records import TensorRecord
from cudnnlite.problems.operation import Description, Operation
from cudnnlite.problems.problem import Problem

KIND = "graph"
# The kinds of operations whose results are sums over their operands, if not all are as large.
_SUMS = ("MATMUL", "NORM_BACKWARD", "CONVOLUTION_BACKWARD_FILTER")
EXECUTE = "cudnnBackendExecute"


@dataclass(frozen=True, eq=False)
class OperationByGraph(Operation):
    """An operation that a graph computes: no C function takes its operands."""

    def header(self, name: str) -> tuple[str, ...]:
        """Return the name itself: operands of a graph have no arguments in a header."""
        is_operand = name in self.reads or name in self.writes
        return (name,) if is_operand or name == "workSpace" else ()


@dataclass(frozen=True, eq=False)
class GraphOperation(OperationByGraph):
    """A graph as an operation: its tensors in memory are the operands, by their names."""

    graph: GraphData = field(kw_only=True)
    # The outputs that are in scratch memory.
    scratch_outputs: frozenset[str] = field(default=frozenset(), kw_only=True)

    def argument(self, name: str) -> str:
        """Return how a message calls an operand: by its name, an output of several behind `out`."""
        if name not in self.writes:
            return name
        return "out" if len(self.writes) == 1 else f"out[{name!r}]"

    def all_written(self, out: Any) -> Sequence[Any]:
        """Return the array for each output, None for a new one.

        `out` is a mapping of names to arrays, or the array of the one output.
        """
        if not isinstance(out, Mapping):
            if self.writes_one:
                return (out,)
            raise ArgumentError(f"out={shown(out)}; needed: a mapping of {', '.join(self.writes)}")
        for name in out:
            if name not in self.writes:
                raise ArgumentError(f"out has {shown(name)}; allowed: {', '.join(self.writes)}")
        return [*map(out.get, self.writes)]

    @property
    def never_in_place(self) -> frozenset[str]:
        """The operands beside the one that an output may be in place of."""
        return frozenset(self.reads) - self.in_place if self.in_place else frozenset()

    @property
    def scalars(self) -> tuple[str, ...]:
        """No `alpha` and `beta`: a graph has numbers of its own."""
        return ()


class GraphProblem(Problem):
    """A graph as a problem, with the specs of its operands.

    Parameters
    ----------
    graph : GraphData
        The graph, which can no longer be changed.
    scratch : iterable of str
        Outputs that no caller reads: they are in scratch memory, and are not operands.

    Raises
    ------
    ArgumentError
        A graph without an operation, or without an output.

    Notes
    -----
    Two problems are equal if their graphs and their scratch outputs are equal.
    """

    operation: GraphOperation

    def __init__(self, graph: GraphData, scratch: Iterable[str] = ()) -> None:
        inputs, scratch_names = graph.inputs, frozenset(scratch)
        outputs = {
            name: record for name, record in graph.outputs.items() if name not in scratch_names
        }
        if not graph.nodes or not outputs:
            raise ArgumentError(
                f"the graph has {len(graph.nodes)} operations and {len(outputs)} outputs: "
                "graph.output(name, tensor) lets a tensor be written"
            )
        graph.freeze()
        _check_sums_of_nothing(graph, outputs)
        results = tuple(record.spec for record in outputs.values())
        operation = GraphOperation(
            KIND,
            EXECUTE,
            tuple(inputs),
            tuple(outputs),
            lambda **operands: results if len(results) > 1 else results[0],
            dtypes=(),
            mixed=True,
            description=Description(flops=lambda problem: flops_of(problem.graph)),
            in_place=_in_place(graph, outputs),
            graph=graph,
            scratch_outputs=scratch_names,
        )
        super().__init__(operation, **{name: record.spec for name, record in inputs.items()})

    @property
    def graph(self) -> GraphData:
        """The graph."""
        return self.operation.graph

    def to_plain(self) -> dict[str, Any]:
        """Return the graph as JSON can hold it."""
        return {"kind": KIND, "graph": self.graph.to_plain()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GraphProblem):
            return NotImplemented
        return (
            self.graph == other.graph
            and self.operation.scratch_outputs == other.operation.scratch_outputs
        )

    def __hash__(self) -> int:
        return super().__hash__()

    def __reduce__(self) -> Any:
        return GraphProblem, (self.graph, self.operation.scratch_outputs)

    def __str__(self) -> str:
        kinds = ", ".join(row[1] for row in self.graph.rows())
        inputs = ", ".join(map(str, self.graph.inputs.values()))
        outputs = ", ".join(map(str, self.graph.outputs.values()))
        return f"graph of {kinds}: {inputs} to {outputs}"


def with_seeds_of_zero(graph: GraphData) -> GraphData:
    """Return a graph that draws its random numbers with seed and offset 0.

    Calls pass both by value, and no choice depends on them.  A graph that has them already, or
    draws no numbers, is returned as it is.
    """
    seeds = [
        number
        for node in graph.nodes
        if node.kind == "RNG"
        for number in node.read_numbers
        if graph.tensors[number].value
    ]
    if not seeds:
        return graph
    result = copy(graph)
    for number in seeds:
        result.tensors[number] = replace(result.tensors[number], value=0.0)
    return result


def _in_place(graph: GraphData, outputs: Mapping[str, TensorRecord]) -> frozenset[str]:
    """Return the operands whose memory the output may have: those of a residual behind a product.

    An H200 with cuDNN 9.19 gave the same bits for relu(a @ b + z) at the address of z as elsewhere,
    with engines 4 and 7 (2026-11-29).  Other graphs were not asked about.
    """
    products = [node for node in graph.nodes if node.kind == "MATMUL"]
    others = [node for node in graph.nodes if node.kind != "MATMUL"]
    has_chain = len(products) == 1 and {node.kind for node in others} == {"POINTWISE"}
    if not has_chain or len(outputs) != 1 or len(graph.outputs) != 1:
        return frozenset()
    (output,) = outputs.values()
    behind = behind_products(graph)
    elsewhere = {
        graph.tensors[number].name
        for node in graph.nodes
        if node.kind == "MATMUL" or behind.isdisjoint(node.read_numbers)
        for number in node.read_numbers
    }
    elsewhere |= {record.name for record in graph.tensors if record.view_of is not None}
    as_output = {
        record.name
        for record in graph.inputs.values()
        if replace(record, name=output.name) == output
    }
    return frozenset(as_output - elsewhere)


def _check_sums_of_nothing(graph: GraphData, outputs: Mapping[str, TensorRecord]) -> None:
    """Raise ArgumentError for an output of an empty batch that has values, and is not a sum.

    A plan fills sums with zeros; cuDNN has no empty tensors.
    """
    if all(record.spec.size for record in graph.inputs.values()):
        return
    writers = {number: node for node in graph.nodes for number in node.written_numbers}
    for number, record in enumerate(graph.tensors):
        if record.name not in outputs or record.view_of is not None or record.spec.size == 0:
            continue
        node = writers[number]
        is_sum = node.kind in _SUMS or dict(node.attributes).get("operator") == "ADD"
        has_terms = all(prod(graph.tensors[read].shape) for read in node.read_numbers)
        if has_terms or not is_sum:
            raise ArgumentError(
                f"{record.name} has values, and the batch is empty: {record}; only a sum over the "
                "batch is computed then"
            )
