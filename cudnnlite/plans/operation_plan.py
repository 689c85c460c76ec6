"""`OperationPlan`: a problem made once and called many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add, attrgetter, itemgetter, or_
from threading import get_ident
from typing import Any, Generic, TypeVar

from cudnnlite.cached_property import cached_property
from cudnnlite.devices.arrays import DeviceArray, empty
from cudnnlite.devices.exchange import as_device_array, foreign_traits
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.numbers import NumbersInMemory
from cudnnlite.graph.problem import EXECUTE, GraphProblem, with_seeds_of_zero
from cudnnlite.plans.aligned_copies import AlignedCopies, misaligned_operands
from cudnnlite.plans.empty_batch import SumOfNothing
from cudnnlite.plans.native_problem import add_context
from cudnnlite.plans.operands import (
    channel_shape,
    check_overlap,
    check_workspace,
    check_writable,
    on_device,
    wait_for_streams,
)
from cudnnlite.plans.plan import Plan
from cudnnlite.plans.planned_call import PlanCall, PlannedCall, descriptor_call
from cudnnlite.plans.ranges import in_range
from cudnnlite.plans.replay import Replay, ReplayedCall
from cudnnlite.problems import call_watch
from cudnnlite.problems.operation import RESERVE_ALIGNMENT, STRICTEST_ALIGNMENT, all_of
from cudnnlite.problems.problem import Problem, beta_of, check_shape, is_read
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.filter import as_tensor, matches_spec
from cudnnlite.warn import log

_traits = attrgetter("_traits")
_kind = itemgetter(1)  # of traits: all but the address
# The sets of addresses whose checks a plan remembers: allocators return the same ones again.
_MOST_CHECKED = 16

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class CheckedCall:
    """A call that passed all checks: the next one with the same arrays repeats it.

    Attributes
    ----------
    traits : list
        Those of all arrays: the addresses, and all else.
    kinds : tuple
        The traits without the addresses.
    sizes : list of int
        The bytes of each array.
    scratch : int
        The address of the workspace.
    stream : Stream
        The handle's.
    checked : dict
        The sets of addresses that passed the checks lately: those of the arrays, in their order,
        and of the workspace -> the same by the header's names.
    """

    traits: list[Any]
    kinds: tuple[Any, ...]
    sizes: list[int]
    scratch: int
    stream: Any
    checked: dict[tuple[int, ...], dict[str, int]] = field(default_factory=dict)


class OperationPlan(Plan, Generic[ResultT]):
    """A problem with its C call prepared, on one handle; ``plan(*operands, out=...)`` computes.

    The operands are those of the public function, in its order, or by name.

    Parameters
    ----------
    handle : Handle
        The plan belongs to it and is closed with it.
    problem : Problem
        What is computed.
    limit : int or None
        The most workspace in bytes.
    plan_call : callable
        (handle, problem, limit, stack) -> `PlannedCall`: it chooses and prepares the call.  It is
        not called for an empty batch.
    graph : GraphData, optional
        The graph that computes the problem, if it is no graph itself.
    operands : mapping of str to str, optional
        What the public function calls its operands, in its order, and their names in the problem;
        the problem's own names and order if not given.
    numbers : NumbersInMemory, optional
        The numbers that calls of a graph pass by value.
    is_complete : bool
        Whether the problem says all that the graph does.  If not, `record_problems` lists the
        graph.

    Attributes
    ----------
    problem : Problem
        The problem; its specs and options are attributes of the plan, too, if it is no graph.
    choice : AlgorithmResult or None
        The algorithm or engine of each call, with the candidates that were passed over; None where
        there is none to choose, and for an empty batch.
    workspace : int
        The bytes of workspace that each call needs, with the room for converted operands.
    reserve : int
        The bytes of reserve space that a forward call writes or a backward call reads; 0 for most
        operations.
    descriptors : dict
        The descriptors of operands and options, by name; empty if an engine runs, if operands are
        converted to another layout, and for an empty batch.
    graph : Graph or None
        The graph that is computed, which can no longer be changed; None if the problem is computed
        as it is.

    Notes
    -----
    An engine that the heuristic chose for a convolution needs aligned operands.  At the first call
    with operands that are not aligned, the plan makes a second plan, which uses the descriptor
    call, and logs it.  If a tuner's policy may exclude that, for descriptor calls, and for other
    graphs, the operands are copied instead, with an AlignmentWarning.  An engine that the caller
    named refuses them.

    C functions of a call: that of the operation, with the conversions of operands for it, or
    `cudnnBackendExecute`; with addresses that were not seen lately, those that describe a variant
    pack.
    """

    choice: AlgorithmResult | None = None

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        limit: int | None = None,
        plan_call: PlanCall = descriptor_call,
        *,
        graph: GraphData | None = None,
        operands: Mapping[str, str] | None = None,
        numbers: NumbersInMemory | None = None,
        is_complete: bool = True,
    ) -> None:
        self._is_graph = isinstance(problem, GraphProblem)
        if isinstance(problem, GraphProblem):
            graph = problem.graph
        self._is_shown_as_graph = self._is_graph or not is_complete
        super().__init__(
            handle, f"plan of {graph!r}" if self._is_shown_as_graph else f"plan of {problem}"
        )
        self.problem = problem
        self.graph: Any = graph
        self.workspace = 0
        self.reserve = 0
        self.descriptors: dict[str, Any] = {}
        if not self._is_graph:  # users name a graph's tensors, which must not hide attributes
            for name, value in problem.values.items():
                setattr(self, name, value)
        self._seen_specs: dict[str, TensorSpec] = {}  # specs that passed the check
        self._new_specs: dict[str, TensorSpec] = {}  # of results that a call may allocate
        # A call with the same arrays as the last one checks nothing again, which saves 4 of 5 us
        # (two cores, no GPU).  If arrays differ by their addresses alone, only those are checked:
        # 1.5 of 2.6 us less.
        self._last: CheckedCall | None = None
        self._planned: PlannedCall | None = None
        self._prepared: Any = None
        self._alignments: Mapping[str, int] = problem.operation.alignments(
            problem.specs, problem.values
        )
        self._copies: AlignedCopies | None = None
        self._unaligned_plan: OperationPlan[ResultT] | None = None
        self._limit = limit
        self._lease = handle.workspace.reserve
        self._numbers = numbers
        self._arrange_arrays(operands)
        self._prepare(plan_call)

    @cached_property
    def _listed(self) -> Problem:
        """The problem that `record_problems` lists: of a graph as `Tuner.choose` knows it."""
        if self._is_shown_as_graph:
            return GraphProblem(with_seeds_of_zero(self.graph))
        return self.problem

    def _arrange_arrays(self, operands: Mapping[str, str] | None) -> None:
        """Note which arrays a call has, in which order, which it writes and which it returns."""
        problem, operation = self.problem, self.problem.operation
        self._reads = len(operation.reads)
        self._writes_one = operation.writes_one
        self._names = (*operation.reads, *operation.writes)
        self._operand_names = (
            (*operands,) if operands else operation.call_operands or operation.reads
        )
        self._operand_order: list[int] = []
        if operands:
            self._operand_order = [*map([*operands.values()].index, operation.reads)]
        self._random_states: Any = None
        extra_names = []
        if operation.reserve:
            extra_names.append("reserve")
        if operation.state_option:
            self._random_states = problem.values[operation.state_option].state
            extra_names.append("dropout_state")
        # All arrays of a call: operands, outputs, reserve space and random states.
        self._array_names = (*self._names, *extra_names)
        # Whether a call has operands and one output, and no other arrays.
        self._is_plain = self._writes_one and not extra_names and not operation.call_operands
        self._written = range(self._reads, len(self._array_names))
        # All arrays -> what a call returns.
        self._results_of: Callable[[tuple[Any, ...]], Any] = itemgetter(*self._places_of_results())
        if self._is_graph:
            self._results_of = partial(_results_by_name, operation.writes, self._reads)
        # Whether a call without `out` and `reserve` writes only new memory, which overlaps nothing.
        self._may_write_new = not (
            operation.caller_provided or operation.needs_reserve or operation.state_option
        )
        # The pairs of arrays, by their places, that must not overlap.
        self._overlapping_pairs = [
            (written, other) for written in self._written for other in range(written)
        ]
        self._note_header_names()

    def _prepare(self, plan_call: PlanCall) -> None:
        """Choose an algorithm and prepare the C call; close the plan if that fails."""
        try:
            if self._sums_nothing():
                self._prepared = SumOfNothing(self._handle, self.problem, self._resources)
            elif not self._results_are_empty():
                planned = plan_call(self._handle, self.problem, self._limit, self._resources)
                self._take(planned)
                log.debug("%s%s", self._description, f": {self.choice}" if self.choice else "")
            else:
                self._alignments = {}
        except BaseException as error:
            if isinstance(error, CudnnError):
                add_context(error, self.problem)
            self.close()
            raise

    def _take(self, planned: PlannedCall) -> None:
        """Note the call, and what it needs."""
        self._planned, self._prepared = planned, planned.call
        self.choice = planned.choice
        self.workspace, self.reserve = planned.workspace, planned.reserve
        self.descriptors = dict(planned.descriptors)
        if planned.alignments is not None:
            self._alignments = planned.alignments

    @property
    def replay(self) -> Replay | None:
        """What a plan made with ``replay=True`` did so far; None for any other plan."""
        return self._prepared.state if isinstance(self._prepared, ReplayedCall) else None

    def _results_are_empty(self) -> bool:
        problem = self.problem
        return all(problem.values[name].size == 0 for name in problem.operation.writes)

    def _sums_nothing(self) -> bool:
        """Whether the results are sums over the images of an empty batch, and so zero.

        A result that has values although an operand has none is such a sum, unless the caller
        provides it: cuDNN refuses the reduction of nothing.
        """
        problem, operation = self.problem, self.problem.operation
        has_empty_batch = any(problem.values[name].size == 0 for name in operation.reads)
        if not has_empty_batch or self._results_are_empty():
            return False
        return not operation.caller_provided

    @in_range
    def __call__(
        self,
        *operands: object,
        out: object = None,
        workspace: object = None,
        reserve: object = None,
        **named_operands: object,
    ) -> ResultT:
        """Enqueue the operation on the handle's stream.

        Parameters
        ----------
        *operands, **named_operands : device arrays, or numbers
            Arrays of the plan's specs, in the order of the public function, or by name.  A number
            that a graph passes by value may be given by its name: it has this value for one call.
        out : device array, a tuple of them, or a mapping of names to them, optional
            The outputs, as in the public function: written in place, and read too if beta is not 0.
            A tuple if there are several; of a graph, a mapping, or the array alone if it has one.
            The output of a graph with one product may be an operand that is added behind it, of the
            same spec.  By default outputs are new arrays.
        workspace : device array, optional
            The caller's own scratch memory, instead of the handle's.
        reserve : device array, optional
            Memory of `reserve` bytes that a forward call writes for the backward call, if the
            operation has such.

        Returns
        -------
        DeviceArray, a tuple of them, or a dict
            The outputs: `out` itself if that is a DeviceArray.  All outputs of a graph, by name.

        Raises
        ------
        ArgumentError, ArrayTypeError, ClosedError, ThreadError
            Before anything is written.
        CudnnError
            The C function failed.
        """
        if named_operands or self._operand_order:
            if self._has_numbers(named_operands):
                return self._with_numbers(operands, named_operands, out, workspace)
            operands = self._in_order(operands, named_operands)
        if call_watch.active or self._closed or get_ident() != self._thread:
            self._use()
        is_plain = self._is_plain and reserve is None
        if is_plain and out is None:
            arrays = (*operands, self._new_array(self._names[-1]))
        elif is_plain and (not self._is_graph or type(out) is DeviceArray):
            arrays = (*operands, out)
        else:
            arrays = self._with_outputs(operands, out, reserve)
        traits = None
        if isinstance(arrays[0], DeviceArray):  # other libraries' arrays have no traits
            traits = [getattr(array, "_traits", None) for array in arrays]
        # The same as `_repeat` where nothing differs: its frames would take longer than its checks.
        last = self._last
        if (
            last is not None
            and traits == last.traits
            and self._handle._stream is last.stream
            and workspace is None
            and not call_watch.active
            and (
                not self.workspace
                or self._lease(self.workspace, last.stream, self._limit) == last.scratch
            )
        ):
            prepared = self._prepared
            try:
                if status := prepared.function(*prepared.arguments):
                    prepared.check(status)
            except CudnnError as error:
                add_context(error, self.problem)
                raise
        else:
            is_new = out is None and reserve is None and self._may_write_new
            arrays = self._enqueue(arrays, traits, workspace, is_new=is_new)
        result: ResultT = self._results_of(arrays)
        return result

    def _has_numbers(self, named_operands: Mapping[str, Any]) -> bool:
        """Whether numbers that the graph passes by value are among named operands."""
        return self._numbers is not None and not self._numbers.names.isdisjoint(named_operands)

    def _enqueue(
        self,
        arrays: tuple[Any, ...],
        traits: list[Any] | None,
        workspace: object,
        *,
        is_new: bool,
    ) -> tuple[Any, ...]:
        """Enqueue the call over all its arrays, and return these; outputs as DeviceArrays.

        Of arrays of other libraries `traits` has None, or is None.  `is_new` says whether all
        outputs are new memory.
        """
        if traits is None or None in traits:
            return self._enqueue_foreign(arrays, workspace, is_new=is_new)
        if self._repeat(traits, workspace, is_new=is_new):
            return arrays
        return self._run_checked(arrays, traits, workspace)

    def _enqueue_foreign(
        self, arrays: tuple[Any, ...], workspace: object, *, is_new: bool
    ) -> tuple[Any, ...]:
        """Enqueue a call some of whose arrays are another library's."""
        foreign = foreign_traits(self._device, self._handle._stream, arrays)
        if foreign is None:
            return self._run_checked(arrays, None, workspace)
        traits, owners = foreign
        reads = self._reads
        if self._repeat(traits, workspace, is_new=is_new):
            return (*arrays[:reads], *map(as_device_array, traits[reads:], owners[reads:]))
        views = tuple(map(as_device_array, traits, owners))
        return self._run_checked(views, traits, workspace)

    def _repeat(self, traits: list[Any], workspace: object, *, is_new: bool) -> bool:
        """Make the last call again, with these addresses.

        Return False, and do nothing, if arrays differ by more than that or need all checks.
        """
        last = self._last
        if last is None or workspace is not None or call_watch.active:
            return False
        stream = self._handle._stream
        if stream is not last.stream:
            return False
        prepared = self._prepared
        try:
            if traits != last.traits or (
                self.workspace and self._lease(self.workspace, stream, self._limit) != last.scratch
            ):
                addresses, kinds = zip(*traits)  # noqa: B905  (pairs)
                if kinds != last.kinds or not self._move(last, traits, addresses, is_new=is_new):
                    return False
            status = prepared.function(*prepared.arguments)
            if status:
                prepared.check(status)
        except CudnnError as error:
            add_context(error, self.problem)
            raise
        return True

    def _with_numbers(
        self,
        operands: tuple[Any, ...],
        named_operands: dict[str, Any],
        out: object,
        workspace: object,
    ) -> ResultT:
        """Make one call of a graph with other numbers than its own."""
        numbers = self._numbers
        assert numbers is not None
        given = {name: named_operands.pop(name) for name in numbers.names & named_operands.keys()}
        if isinstance(self._prepared, ReplayedCall):
            raise ArgumentError(
                f"{', '.join(sorted(given))}: the call of a plan with replay=True was recorded "
                "with the graph's own numbers"
            )
        self._use()
        with numbers.changed(given):
            return self(*operands, out=out, workspace=workspace, **named_operands)

    def _in_order(
        self, operands: tuple[Any, ...], named_operands: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Return all operands in the order of the problem; some may have been passed by name."""
        if named_operands:
            operands = self._with_named(operands, named_operands)
        if not self._operand_order:
            return operands
        if len(operands) != self._reads:
            raise self._wrong_count(len(operands))
        return tuple(operands[place] for place in self._operand_order)

    def _with_named(
        self, operands: tuple[Any, ...], named_operands: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Return all operands in the order of the public function."""
        names = self._operand_names
        by_name = dict(zip(names, operands))  # noqa: B905  (too many are refused later)
        for name, array in named_operands.items():
            if name not in names:
                raise TypeError(
                    f"a {self._description} got an unexpected keyword argument {name!r}"
                )
            if name in by_name:
                raise TypeError(f"a {self._description} got multiple values for argument {name!r}")
            by_name[name] = array
        reads = self.problem.operation.reads
        if not self._operand_order and by_name.keys() <= {*reads}:
            names = reads  # the others may come by keywords of their own
        missing = [name for name in names if name not in by_name]
        if missing:
            raise TypeError(f"a {self._description} is missing {', '.join(missing)}")
        return tuple(by_name[name] for name in names)

    def _move(
        self, last: CheckedCall, traits: list[Any], addresses: Sequence[int], *, is_new: bool
    ) -> bool:
        """Point the call to arrays that differ from the last ones by their addresses alone.

        Return False, and do nothing, if these overlap or are not aligned: all checks are needed
        then.
        """
        self._last = None  # after an interrupt below, the addresses are unknown
        scratch = 0
        if self.workspace:
            scratch = self._lease(self.workspace, last.stream, self._limit)
        key = (*addresses, scratch)
        by_name = last.checked.get(key)
        if by_name is None:
            if not is_new and self._overlaps(addresses, last.sizes):
                return False
            if reduce(or_, addresses) % STRICTEST_ALIGNMENT:
                return False
            by_name = self._addresses_by_name(addresses, scratch)
            if len(last.checked) == _MOST_CHECKED:
                last.checked.clear()
            last.checked[key] = by_name
        self._prepared.replace(**by_name)
        last.traits, last.scratch = traits, scratch
        self._last = last
        return True

    def _overlaps(self, addresses: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether a written array shares memory with another array."""
        ends = [*map(add, addresses, sizes)]
        for written, other in self._overlapping_pairs:
            if addresses[other] < ends[written] and addresses[written] < ends[other]:
                return True
        return False

    def _addresses_by_name(self, addresses: Sequence[int], scratch: int) -> dict[str, int]:
        """Return the addresses of all arrays and of the scratch memory by the header's names."""
        by_name = dict(zip(self._header_names, self._in_header_order(addresses)))  # noqa: B905
        if self.workspace:
            for name, offset in self._scratch_offsets:
                by_name[name] = scratch + offset
        return by_name

    def _run_checked(
        self, arrays: tuple[Any, ...], traits: list[Any] | None, workspace: object
    ) -> tuple[DeviceArray, ...]:
        """Check all arrays, point the call to them, make it, and return them.

        `traits` are those of the arrays: the next call with such arrays repeats this one.
        """
        self._last = None  # after an interrupt below, the addresses of the call are unknown
        arrays = self._checked(arrays)
        stream = self._handle._stream
        alignments = self._misaligned(arrays)
        if alignments:
            return self._run_misaligned(alignments, arrays, workspace)
        prepared = self._prepared
        if prepared is None:  # an empty batch: there is nothing to call
            return arrays
        other_streams: Sequence[Any] = ()
        try:
            if any(array.stream is not stream for array in arrays):
                other_streams = wait_for_streams(stream, *arrays)
            scratch = self._scratch_for(workspace, arrays, stream)
            addresses = [array.ptr for array in arrays]
            prepared.replace(**self._addresses_by_name(addresses, scratch))
            if traits is not None and not other_streams and workspace is None:
                kinds, sizes = tuple(map(_kind, traits)), [array.nbytes for array in arrays]
                self._last = CheckedCall(traits, kinds, sizes, scratch, stream)
            status = prepared.function(*prepared.arguments)
            if status:
                prepared.check(status)
        except CudnnError as error:
            add_context(error, self.problem)
            raise
        finally:
            for other_stream in other_streams:
                other_stream.wait(stream)
        if call_watch.active:
            if not isinstance(self._prepared, SumOfNothing):
                call_watch.record(self._listed)
            self._keep_for_graph((*arrays, workspace))
        return arrays

    def _with_outputs(
        self, operands: Sequence[Any], out: object, reserve: object
    ) -> tuple[Any, ...]:
        """Return operands, outputs, reserve space and random states; missing arrays are made."""
        operation = self.problem.operation
        if operation.call_operands and len(operands) == len(operation.call_operands) != self._reads:
            operands, out, reserve = self._split(operands, out, reserve)
        if len(operands) != self._reads:
            raise self._wrong_count(len(operands))
        if reserve is not None and not operation.reserve:
            raise TypeError(f"a {self._description} has no reserve space")
        outputs: list[Any]
        if out is None:
            outputs = [self._new_array(name) for name in operation.writes]
        else:
            outputs = [
                self._new_array(name) if array is None else array
                for name, array in zip(operation.writes, operation.all_written(out), strict=True)
            ]
        if operation.reserve:
            outputs.append(self._new_array("reserve") if reserve is None else reserve)
        if self._random_states is not None:
            outputs.append(self._random_states.array)
        return (*operands, *outputs)

    def _split(
        self, operands: Sequence[Any], out: object, reserve: object
    ) -> tuple[Sequence[Any], Any, Any]:
        """Return inputs, outputs and reserve space from the operands of a call."""
        operation = self.problem.operation
        by_name = dict(zip(operation.call_operands, operands, strict=True))
        if "reserve" in by_name:
            if reserve is not None:
                raise TypeError(f"a {self._description} got multiple values for argument 'reserve'")
            reserve = by_name["reserve"]
        if out is not None and not operation.outputs:
            raise TypeError(f"a {self._description} has no out: it updates {operation.writes[0]}")
        new_outputs = [out]
        if len(operation.outputs) != 1:
            new_outputs = [*all_of(out, operation.outputs)]
        by_name |= dict(zip(operation.outputs, new_outputs))  # noqa: B905  (there may be none)
        outputs = tuple(by_name[name] for name in operation.writes)
        inputs = [by_name[name] for name in operation.reads]
        return inputs, outputs[0] if self._writes_one else outputs, reserve

    def _wrong_count(self, count: int) -> TypeError:
        """Return the error of a call with too few operands or too many."""
        names = ", ".join(self._operand_names)
        return TypeError(f"a {self._description} takes {names}; {count} arrays were given")

    def _new_array(self, name: str) -> DeviceArray:
        """Return a new output, or a new reserve space."""
        spec = self._new_specs.get(name)
        if spec is None:
            spec = self._new_specs[name] = self._spec_of_new(name)
        return empty(self._device, self._handle._stream, spec)

    def _spec_of_new(self, name: str) -> TensorSpec:
        """Return the spec of a new output or reserve space; ArgumentError if it has to be given."""
        operation = self.problem.operation
        if name not in operation.writes:  # the reserve space
            if operation.needs_reserve:
                raise ArgumentError("reserve has to be given: what the forward call returned")
            return TensorSpec((self.reserve,), "uint8")
        if name in operation.caller_provided and not operation.shape_from_out:
            raise ArgumentError(f"{operation.argument(name)} has to be given")
        beta_name = beta_of(self.problem, name)
        if beta_name is not None:
            raise ArgumentError(
                f"{beta_name}={self.problem.values[beta_name]} needs {operation.argument(name)}, "
                "which it scales"
            )
        return as_tensor(self.problem.values[name])

    def _checked(self, arrays: tuple[Any, ...]) -> tuple[DeviceArray, ...]:
        """Check all arrays of a call, and return them as arrays on this device.

        ArgumentError or ArrayTypeError if one is not allowed.
        """
        operation = self.problem.operation
        if len(arrays) != len(self._array_names):
            raise self._wrong_count(len(arrays) - len(self._written))
        device, seen_specs = self._device, self._seen_specs
        for name, array in zip(self._names, arrays):  # noqa: B905  (extras have no specs)
            if type(array) is not DeviceArray or array.device is not device:
                return self._checked(self._viewed(arrays))
            if array.spec is not seen_specs.get(name):
                if array.ndim == 1 and self._takes_vector(name, array.size):
                    return self._checked(self._with_channel_axes(arrays))
                self._check_spec(name, array.spec)
        if operation.reserve:
            index = len(self._names)
            space = self._checked_reserve(arrays[index], arrays)
            arrays = (*arrays[:index], space, *arrays[index + 1 :])
        for index in range(self._reads, len(self._names)):
            self._check_output(index, arrays)
        return arrays

    def _viewed(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return operands and outputs as arrays on this device, or raise ArrayTypeError."""
        operation = self.problem.operation
        views = [
            on_device(self._handle, array, operation.argument(name))
            for name, array in zip(self._names, arrays)  # noqa: B905  (extras are ours)
        ]
        return (*views, *arrays[len(views) :])

    def _takes_vector(self, name: str, size: int) -> bool:
        """Whether an operand is one value for each channel, for which ``(C,)`` will do."""
        expected = self.problem.values[name]
        is_read = name in self.problem.operation.reads
        return bool(
            is_read and expected.rank > 1 and expected.shape == channel_shape(size, expected.rank)
        )

    def _with_channel_axes(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arrays, those of shape ``(C,)`` as the ``(1, C, 1, ...)`` of the problem."""
        shaped = list(arrays)
        for index, name in enumerate(self._names[: self._reads]):
            if arrays[index].ndim == 1 and self._takes_vector(name, arrays[index].size):
                shaped[index] = arrays[index].reshape(self.problem.values[name].shape)
        return tuple(shaped)

    def _check_spec(self, name: str, spec: TensorSpec) -> None:
        operation, expected = self.problem.operation, self.problem.values[name]
        if name in operation.writes:
            check_shape(operation.argument(name), spec, expected)
        if not matches_spec(spec, expected):
            raise ArgumentError(
                f"{operation.argument(name)} is {spec}; the plan was made for {expected}"
            )
        self._seen_specs[name] = spec

    def _check_output(self, index: int, operands: Sequence[DeviceArray]) -> None:
        """Check that an output may be written.

        It may overlap neither what is read, nor the outputs before it, nor the random states.
        """
        written = operands[index]
        start, end = written.ptr, written.ptr + written.nbytes
        others = operands[:index]
        if self._random_states is not None:
            others = (*others, operands[-1])
        needs_full_check = written.readonly
        for other in others:
            if other.ptr < end and start < other.ptr + other.nbytes:
                needs_full_check = True
        if not needs_full_check:  # the usual case; the full check takes ten times as long
            return
        operation = self.problem.operation
        is_first = index == self._reads
        names = (*self._names[:index], "dropout_state")
        others_by_name = dict(zip(names, others))  # noqa: B905  (there may be no states)
        argument = operation.argument(self._names[index])
        # A graph that takes the place of a C function is not computed in place.
        may_be_in_place = is_first and (self.graph is None or self._is_graph)
        in_place = operation.in_place if may_be_in_place else frozenset()
        check_writable(written, argument, in_place, **others_by_name)
        apart = {name: others_by_name[name] for name in operation.never_in_place}
        check_overlap(written, argument, frozenset(), **apart)

    def _checked_reserve(self, reserve: object, arrays: Sequence[DeviceArray]) -> DeviceArray:
        operation = self.problem.operation
        space = on_device(self._handle, reserve, "reserve")
        if space.nbytes != self.reserve or not space.spec.fits(space.spec.layout):
            raise ArgumentError(
                f"reserve is {space.spec}; needed: {self.reserve} bytes without gaps"
            )
        if space.ptr % RESERVE_ALIGNMENT:
            raise ArgumentError(
                f"reserve begins at {space.ptr:#x}; needed: an address that is aligned to "
                f"{RESERVE_ALIGNMENT} bytes"
            )
        by_name = dict(zip(self._array_names, arrays, strict=True))
        by_name.pop("reserve")
        if not operation.needs_reserve:
            check_writable(space, "reserve", frozenset(), **by_name)
            return space
        for name in operation.writes:
            check_overlap(by_name[name], operation.argument(name), frozenset(), reserve=space)
        return space

    def _misaligned(self, arrays: Sequence[DeviceArray]) -> dict[str, int]:
        """Return the alignments, in bytes, that operands need and do not have, by name.

        A kernel cannot load these operands in place.
        """
        if not self._alignments:
            return {}
        all_bits = 0
        for array in arrays:
            all_bits |= array.ptr
        if all_bits % STRICTEST_ALIGNMENT == 0:
            return {}
        return misaligned_operands(self._alignments, dict(zip(self._names, arrays)))  # noqa: B905

    def _scratch_for(self, workspace: object, arrays: Sequence[DeviceArray], stream: object) -> int:
        """Return the address of the workspace: the caller's own or the handle's, 0 for none."""
        if workspace is not None:
            return self._checked_workspace(workspace, arrays)
        if self.workspace:
            return self._lease(self.workspace, stream, self._limit)
        return 0

    def _checked_workspace(self, workspace: object, arrays: Sequence[DeviceArray]) -> int:
        aligned = check_workspace(self._handle, workspace, self.workspace)
        operation = self.problem.operation
        by_name = {
            operation.argument(name) if name in operation.writes else name: array
            for name, array in zip(self._array_names, arrays, strict=True)
        }
        check_overlap(aligned, "workspace", frozenset(), **by_name)
        return aligned.ptr

    def _note_header_names(self) -> None:
        """Note the header's names of the arrays, and how to put arrays in the order of these names.

        An array that C takes twice has two names.
        """
        operation = self.problem.operation
        names = [
            (header_name, index)
            for index, name in enumerate(self._names)
            for header_name in operation.header(name)
        ]
        if operation.reserve:
            names.append(("reserveSpace", len(self._names)))
        self._header_names = tuple(name for name, _ in names)
        indices: list[Any] = [index for _, index in names]
        if len(indices) == 1:  # an itemgetter of one index returns no tuple
            indices = [slice(indices[0], indices[0] + 1)]
        self._in_header_order = itemgetter(*indices)

    @cached_property
    def _scratch_offsets(self) -> list[tuple[str, int]]:
        """The header's names of scratch memory, with offsets in the workspace."""
        if self._planned is not None and self._planned.scratch_offsets is not None:
            return self._planned.scratch_offsets
        names = self.problem.operation.header("workSpace")
        if self.workspace and not names:
            names = ("workSpace",)  # of a `ConvertedCall` whose C function takes none
        return [(name, index * (self.workspace // len(names))) for index, name in enumerate(names)]

    def _places_of_results(self) -> list[int]:
        """Return the places of a call's results among its arrays.

        The results are the outputs, and the reserve space that a forward call writes.
        """
        operation = self.problem.operation
        places = [self._names.index(name) for name in operation.outputs or operation.writes]
        if operation.reserve and not operation.needs_reserve:
            places.append(len(self._names))
        return places

    def _run_misaligned(
        self, alignments: Mapping[str, int], arrays: tuple[DeviceArray, ...], workspace: object
    ) -> tuple[DeviceArray, ...]:
        """Make a call with operands that are not aligned: by another plan, or with copies."""
        planned = self._planned
        if planned is None or planned.make_unaligned_plan is None:
            return self._run_on_copies(alignments, arrays, workspace)
        if self._unaligned_plan is None:
            plan = self._unaligned_plan = planned.make_unaligned_plan()
            log.info("%s: operands that are not aligned run %s", self, plan.choice)
            self._resources.callback(plan.close)
        self._unaligned_plan(*arrays[: self._reads], out=arrays[-1], workspace=workspace)
        return arrays

    def _run_on_copies(
        self, alignments: Mapping[str, int], arrays: tuple[DeviceArray, ...], workspace: object
    ) -> tuple[DeviceArray, ...]:
        """Make the call with aligned copies of some operands, and copy its results back.

        Two operands in the same memory, as those of a call in place are, have the same copy.
        """
        operation = self.problem.operation
        if workspace is not None:
            self._checked_workspace(workspace, arrays)  # must not overlap what is copied
        if self._copies is None:
            runs_engine = isinstance(getattr(self.choice, "algorithm", None), Engine)
            function = EXECUTE if runs_engine else operation.function
            self._copies = AlignedCopies(self._handle, function, self._resources)
        copies: dict[tuple[int, TensorSpec], DeviceArray] = {}
        call_arrays = list(arrays)
        for name, alignment in alignments.items():
            index = self._names.index(name)
            array = arrays[index]
            place = (array.ptr, array.spec)
            if place not in copies:
                copies[place] = self._copies.copy(
                    operation.argument(name), array, alignment, is_read=is_read(self.problem, name)
                )
            call_arrays[index] = copies[place]
        self._enqueue(tuple(call_arrays), [*map(_traits, call_arrays)], workspace, is_new=False)
        for index in range(self._reads, len(self._names)):
            if call_arrays[index] is not arrays[index]:
                self._copies.bring_back(call_arrays[index], arrays[index])
        return arrays


def _results_by_name(
    names: Sequence[str], reads: int, arrays: tuple[Any, ...]
) -> dict[str, DeviceArray]:
    """Return the outputs of a graph by name, of all arrays of a call."""
    return dict(zip(names, arrays[reads:]))  # noqa: B905
