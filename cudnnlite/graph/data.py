"""`GraphData`: an operation graph as data, without a handle and without a C call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cudnnlite.arguments import (
    cut,
    instance_of,
    integer,
    integers,
    one_of,
    real_number,
    sequence,
    shown,
)
from cudnnlite.dtypes import AnyDtype, parse_dtype
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.node_attributes import (
    attribute_value,
    attributes_of,
    parse_any_dtype,
    parse_number,
    takes_tensors,
)
from cudnnlite.graph.plain import graph_from_plain, graph_to_plain
from cudnnlite.graph.records import Node, Shape, TensorRecord, packed_strides
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.other_libraries import GRAPH
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import MAX_RANK, parse_shape, span
from cudnnlite.texts import aligned, counted
from cudnnlite.unknown import methods_of, refuse_attribute

_MOST_TENSORS = 64  # of one attribute
# Calls and plans have arguments of these names.
_RESERVED_NAMES = ("operation", "out", "reserve", "self", "workSpace", "workspace")
_HEADING = ("result", "operation", "operands", "attributes")


@methods_of("Graph")
class GraphData:
    """Tensors, and operations in the order in which they were added.

    Formulas are functions that add operations.  `Graph` has them as methods, and plans.

    Parameters
    ----------
    compute_type : dtype
        The default data type of computations, and of the tensors between operations.
    dynamic_shapes : bool
        Whether cuDNN compiles kernels that graphs with other sizes use, too.

    Attributes
    ----------
    compute_type, dynamic_shapes
        The arguments.
    tensors : list of TensorRecord
        All tensors.
    nodes : list of Node
        All operations.
    """

    def __init__(self, compute_type: AnyDtype = "float32", *, dynamic_shapes: bool = False) -> None:
        self.compute_type = parse_dtype(compute_type, "compute_type")
        self.dynamic_shapes: bool = one_of(dynamic_shapes, "dynamic_shapes", True, False)
        self.tensors: list[TensorRecord] = []
        self.nodes: list[Node] = []
        self._is_frozen = False
        # What was counted of `tensors` and `nodes`, which only grow, so that it takes linear time.
        self._names: dict[str, int] = {}
        self._named = 0
        self._written: set[int] = set()
        self._executed = 0
        self._first_free_number = 0  # of names of numbers

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError, with a hint."""
            return refuse_attribute(self, name, GRAPH)

    # ------------------------------------------------------------------ tensors

    def input(
        self,
        name: str,
        shape: Iterable[int],
        dtype: AnyDtype = "float32",
        strides: Iterable[int] | None = None,
        layout: str | None = None,
    ) -> GraphTensor:
        """Return a tensor that each call is given.

        Parameters
        ----------
        name : str
            The name of the tensor in calls: an identifier that no other tensor has.
        shape : iterable of int
            The size of each axis.  Axis 0 may have size 0: a plan of an empty batch makes no call,
            and sums over it are zeros.
        dtype : dtype
            The data type of the values.
        strides : iterable of int, optional
            The strides in elements; C order without gaps if not given.
        layout : str, optional
            "NCHW", "NHWC", ..., as that of arrays, instead of strides.

        Raises
        ------
        ArgumentError
            The message names the argument.
        """
        self._check_name(name)
        sizes = parse_shape(shape)
        data_type = parse_dtype(dtype)
        steps = parse_strides(strides, sizes, layout)
        return self._add(TensorRecord(sizes, data_type, steps, name))

    def scalar(self, name: str, value: float, dtype: AnyDtype = "float32") -> GraphTensor:
        """Return a number that is passed by value with each call.

        Its rank is that of the tensors in its operation.
        """
        self._check_name(name)
        data_type = parse_dtype(dtype)
        return self._add(
            TensorRecord((), data_type, (), name, parse_number(value, data_type, "value"))
        )

    def output(
        self,
        name: str,
        tensor: GraphTensor,
        dtype: AnyDtype | None = None,
        strides: Iterable[int] | None = None,
        shape: Iterable[int] | None = None,
        layout: str | None = None,
    ) -> GraphTensor:
        """Let a tensor be written to memory, and return it.

        Parameters
        ----------
        name : str
            The name of the output in calls.
        tensor : GraphTensor
            The result of an operation of this graph.
        dtype : dtype, optional
            The data type in memory; the tensor's own if not given.
        strides : iterable of int, optional
            The strides of the array, in elements; C order without gaps if not given.
        shape : iterable of int, optional
            The shape of the array, with the same values in the same order: for instance a matrix,
            if the product is a batch of one.  The tensor's own shape if not given.
        layout : str, optional
            "NCHW", "NHWC", ..., of the array, instead of strides.

        Raises
        ------
        ArgumentError
            The message names the argument.
        """
        self._check_name(name)
        record = check_tensor(self, tensor, "tensor").record
        if record.name:
            raise ArgumentError(f"tensor is {record}, which is in memory already")
        if tensor.number not in self._written_numbers():
            raise ArgumentError(f"tensor is {record}, which no operation computes")
        self._check_open()
        sizes = record.shape if shape is None else parse_shape(shape)
        data_type = parse_dtype(record.dtype if dtype is None else dtype)
        named = replace(record, name=name, dtype=data_type)
        self.tensors[tensor.number] = named.with_array(sizes, parse_strides(strides, sizes, layout))
        self._names[name] = tensor.number
        return tensor

    def virtual(
        self,
        shape: Iterable[int],
        dtype: AnyDtype | str | None = None,
        strides: Iterable[int] | None = None,
    ) -> GraphTensor:
        """Return a tensor that is computed and never in memory, unless `output` says so."""
        data_type = self.compute_type if dtype is None else parse_any_dtype(dtype)
        sizes = parse_shape(shape, all_may_be_empty=True)
        steps = packed_strides(sizes)
        if strides is not None:
            # They may be larger than those of arrays: nothing of this lies in memory.
            steps = integers(strides, "strides", MAX_RANK)
        if len(steps) != len(sizes) or min(steps, default=0) < 0:
            raise ArgumentError(
                f"strides={shown(steps)}; needed: one from 0 on for each of {sizes}"
            )
        return self._add(TensorRecord(sizes, data_type, steps))

    def view(
        self, tensor: GraphTensor, shape: Iterable[int], strides: Iterable[int]
    ) -> GraphTensor:
        """Return another view of a tensor in memory: the same name, other sizes and strides."""
        record = check_tensor(self, tensor, "tensor").record
        if not record.name or record.value is not None:
            raise ArgumentError(f"tensor is {record}, which is not in memory")
        sizes = parse_shape(shape, all_may_be_empty=True)
        steps = parse_strides(strides, sizes)
        elements = span(record.shape, record.strides)
        if span(sizes, steps) > elements:
            raise ArgumentError(
                f"shape={sizes} with strides={steps} reaches behind the {elements} elements of "
                f"{record}"
            )
        base = tensor.number if record.view_of is None else record.view_of
        return self._add(replace(record, shape=sizes, strides=steps, view_of=base))

    def tensor(self, name: str | int) -> GraphTensor:
        """Return a tensor by its name or its number."""
        if not isinstance(name, str) and self.tensors:
            return GraphTensor(self, integer(name, "name", 0, len(self.tensors) - 1))
        numbers = self._numbers_by_name()
        if isinstance(name, str) and name in numbers:
            return GraphTensor(self, numbers[name])
        names = cut(", ".join(numbers))
        raise ArgumentError(f"name={shown(name)}; allowed: {names or 'none'}")

    def as_tensor(self, value: object, dtype: AnyDtype = "float32") -> GraphTensor:
        """Return a tensor of this graph as it is, or a number as a scalar of a data type."""
        if isinstance(value, GraphTensor):
            return check_tensor(self, value, "tensor")
        number = real_number(value, "value")
        names = self._numbers_by_name()
        while (name := f"number_{self._first_free_number}") in names:
            self._first_free_number += 1
        return self.scalar(name, number, dtype)

    def _add(self, record: TensorRecord) -> GraphTensor:
        self._check_open()
        self.tensors.append(record)
        return GraphTensor(self, len(self.tensors) - 1)

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED_NAMES:
            raise ArgumentError(
                f"name={shown(name)}; needed: an identifier, none of {', '.join(_RESERVED_NAMES)}"
            )
        if name in self._numbers_by_name():
            raise ArgumentError(f"name={shown(name)} is the name of another tensor of this graph")

    def _check_open(self) -> None:
        if self._is_frozen:
            raise ArgumentError(
                "the graph was hashed or planned, so it can no longer be changed; "
                "change a copy: copy.copy(graph)"
            )

    # --------------------------------------------------------------- operations

    def node(
        self,
        kind: str,
        attributes: Mapping[str, Any] | None = None,
        *,
        reads: Mapping[str, GraphTensor | Sequence[GraphTensor]],
        writes: Mapping[str, GraphTensor],
    ) -> GraphTensor | tuple[GraphTensor, ...]:
        """Add any operation that cuDNN has, and return its results.

        Parameters
        ----------
        kind : str
            cuDNN's name without ``CUDNN_BACKEND_OPERATION_`` and ``_DESCRIPTOR``: "MATMUL".
        attributes : mapping, optional
            Numbers, names and data types by cuDNN's names in lower case, those of the descriptor
            that configures the operation among them.
        reads : mapping
            A tensor for each attribute that takes one, or several of them where it takes several.
        writes : mapping
            The tensors that it computes, as `virtual` makes them.

        Raises
        ------
        ArgumentError
            No such kind or attribute; the message names what there is.

        Examples
        --------
        >>> graph = dnn.Graph()
        >>> x = graph.input("x", (1, 8, 8), "float16")
        >>> flat = graph.virtual((1, 64, 1), "float16")
        >>> y = graph.node("RESHAPE", reads={"xdesc": x}, writes={"ydesc": flat})
        >>> y.shape
        (1, 64, 1)
        """
        attributes_of(kind)
        values = _mapping({} if attributes is None else attributes, "attributes")
        operands = self._numbers_by_attribute(reads, "reads")
        results = self._numbers_by_attribute(writes, "writes")
        if not results:
            raise ArgumentError(f"writes={shown(writes)}; needed: what {kind} computes")
        for numbers in results.values():
            for number in numbers:
                if self.tensors[number].name:
                    raise ArgumentError(
                        f"writes has {self.tensors[number]}, which is in memory already"
                    )
        self._add_node(kind, values, operands, results)
        tensors = tuple(GraphTensor(self, numbers[0]) for numbers in results.values())
        return tensors[0] if len(tensors) == 1 else tensors

    def _add_node(
        self,
        kind: str,
        attributes: Mapping[str, Any],
        reads: Mapping[str, tuple[int, ...]],
        writes: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Add an operation over tensors by their numbers; ArgumentError if they do not fit."""
        self._check_open()
        allowed = attributes_of(kind)
        for name in (*attributes, *reads, *writes):
            if name not in allowed:
                raise ArgumentError(
                    f"{kind} has no attribute {shown(name)}; allowed: {', '.join(allowed)}"
                )
        for name, numbers in (*reads.items(), *writes.items()):
            _, type_of_value, takes_several = allowed[name]
            is_tensor = takes_tensors(kind, name)
            has_valid_count = takes_several or len(numbers) == 1
            if not is_tensor or not has_valid_count:
                requirement = "one tensor" if is_tensor else type_of_value
                raise ArgumentError(
                    f"{kind}.{name} takes {requirement}; {len(numbers)} tensors given"
                )
        if overlap := reads.keys() & writes.keys():
            raise ArgumentError(f"{kind} reads and writes {', '.join(sorted(overlap))}")
        # In cuDNN's order, so that graphs are equal in whichever order attributes were given.
        node = Node(
            kind,
            tuple(
                (name, attribute_value(kind, name, attributes[name]))
                for name in allowed
                if name in attributes
            ),
            tuple((name, reads[name]) for name in allowed if name in reads),
            tuple((name, writes[name]) for name in allowed if name in writes),
        )
        if overlap := attributes.keys() & reads.keys():
            raise ArgumentError(f"{kind} has {', '.join(sorted(overlap))} twice")
        self._check_order(node)
        self._give_ranks(node)
        self.nodes.append(node)

    def _numbers_by_attribute(self, tensors: object, argument: str) -> dict[str, tuple[int, ...]]:
        """Return the numbers of tensors by attributes; ArgumentError for those of other graphs."""
        numbers = {}
        for name, group in _mapping(tensors, argument).items():
            several = (group,)
            if not isinstance(group, GraphTensor):
                several = sequence(group, f"{argument}[{shown(name)}]", "a tensor", _MOST_TENSORS)
            numbers[name] = tuple(check_tensor(self, tensor, argument).number for tensor in several)
        return numbers

    def _check_order(self, node: Node) -> None:
        """Refuse an operation that reads a tensor not computed yet, or computes one again."""
        computed = self._written_numbers()
        for number in node.read_numbers:
            record = self.tensors[number]
            if not record.name and number not in computed:
                raise ArgumentError(f"{node.kind} reads {record}, which no operation computes")
        for number in node.written_numbers:
            record = self.tensors[number]
            is_fixed = record.value is not None or record.view_of is not None
            if is_fixed or number in computed or number in node.read_numbers:
                raise ArgumentError(f"{node.kind} writes {record}, which has its values already")

    def _give_ranks(self, node: Node) -> None:
        """Give scalars the rank of the tensors beside them."""
        numbers = (*node.read_numbers, *node.written_numbers)
        records = {number: self.tensors[number] for number in numbers}
        scalars = {number: record for number, record in records.items() if record.value is not None}
        ranks = [len(record.shape) for record in records.values() if record.value is None]
        rank = max(ranks, default=1)
        for record in scalars.values():
            if record.shape and len(record.shape) != rank:
                raise ArgumentError(
                    f"{record} meets tensors of rank {len(record.shape)} and {rank}; "
                    "make one for each"
                )
        for number, record in scalars.items():
            ones = (1,) * rank
            self.tensors[number] = replace(record, shape=ones, strides=ones)

    def _numbers_by_name(self) -> dict[str, int]:
        """Return the numbers of the tensors in memory by name; of views, that of the tensor."""
        for number in range(self._named, len(self.tensors)):
            name = self.tensors[number].name
            if name:
                self._names.setdefault(name, number)
        self._named = len(self.tensors)
        return self._names

    def _written_numbers(self) -> set[int]:
        """Return the numbers of the tensors that operations compute."""
        for node in self.nodes[self._executed :]:
            self._written.update(node.written_numbers)
        self._executed = len(self.nodes)
        return self._written

    # ------------------------------------------------------------ the parts of the graph

    @property
    def inputs(self) -> dict[str, TensorRecord]:
        """The tensors that each call is given, by name."""
        written_numbers = self._written_numbers()
        return {
            record.name: record
            for number, record in enumerate(self.tensors)
            if record.name
            and number not in written_numbers
            and record.value is None
            and record.view_of is None
        }

    @property
    def outputs(self) -> dict[str, TensorRecord]:
        """The tensors that each call writes, by name."""
        written_numbers = self._written_numbers()
        return {
            record.name: record
            for number, record in enumerate(self.tensors)
            if record.name and number in written_numbers
        }

    @property
    def scalars(self) -> dict[str, TensorRecord]:
        """The numbers that are passed by value, by name."""
        return {record.name: record for record in self.tensors if record.value is not None}

    # ------------------------------------------------------------------- values

    def to_plain(self) -> dict[str, Any]:
        """Return the graph as a JSON value."""
        return graph_to_plain(self)

    def to_json(self) -> str:
        """Return the graph as text; equal graphs have equal texts."""
        return json.dumps(self.to_plain(), sort_keys=True)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Any:
        """Return the graph that `to_plain` was called on; ArgumentError if it is none."""
        return graph_from_plain(cls, plain)

    @classmethod
    def from_json(cls, text: str) -> Any:
        """Return the graph that `to_json` was called on; ArgumentError if it is none."""
        try:
            plain = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"text={shown(text)} is no JSON: {error}") from error
        return cls.from_plain(plain)

    def freeze(self) -> None:
        """Forbid further changes of this graph."""
        self._is_frozen = True

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_plain, (self.to_plain(),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GraphData):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        self.freeze()
        return hash(self.to_json())

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the results of each operation, its kind, its operands and its attributes."""
        for node in self.nodes:
            kind, attributes = node.kind, dict(node.attributes)
            if kind == "POINTWISE" and "mode" in attributes:
                kind = attributes.pop("mode")
            results = ", ".join(map(self._label, node.written_numbers))
            operands = ", ".join(map(self._label, node.read_numbers))
            details = ", ".join(f"{name}={value}" for name, value in attributes.items())
            yield results, kind, operands, details

    def _label(self, number: int) -> str:
        """Return the name of a tensor in a table; a view has another name than its tensor."""
        record = self.tensors[number]
        if not record.name:
            return f"t{number}"
        if record.view_of is None:
            return record.name
        base = self.tensors[record.view_of]
        if len(base.shape) > 1 and record.shape == (*base.shape[:-2], *base.shape[:-3:-1]):
            return f"{record.name}ᵀ"
        return f"{record.name} as {'x'.join(map(str, record.shape))}"

    def __str__(self) -> str:
        memory = [*self.inputs.values(), *self.outputs.values(), *self.scalars.values()]
        lines = aligned([_HEADING, *self.rows()])
        return "\n".join([*lines, "", *(f"  {record}" for record in memory)])

    def __repr__(self) -> str:
        reads, writes = cut(", ".join(self.inputs)), cut(", ".join(self.outputs))
        operations = counted(len(self.nodes), "operation")
        return f"<{type(self).__name__} of {operations}: {reads} -> {writes}>"


def check_tensor(graph: GraphData, tensor: GraphTensor, argument: str) -> GraphTensor:
    """Return a tensor of a graph; ArgumentError for any other value."""
    instance_of(tensor, GraphTensor, argument)
    if tensor.graph is not graph:
        raise ArgumentError(f"{argument} is {tensor.record}, a tensor of another graph")
    return tensor


def parse_strides(strides: Iterable[int] | None, shape: Shape, layout: str | None = None) -> Shape:
    """Return strides in elements: those given, those of a layout, or those of C order."""
    if strides is None and layout is None:
        return packed_strides(shape)
    # An axis without values may have any stride, as one of size 1.
    sizes = [max(size, 1) for size in shape]
    # The spec refuses what no tensor has.
    return TensorSpec(sizes, layout=layout, strides=strides).strides


def _mapping(value: object, argument: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{argument}={shown(value)} is not a mapping")
    return value
