"""`OperationPlan`: a problem made once and called many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add, attrgetter, itemgetter, or_
from threading import get_ident
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from cudnnlite.cached_property import cached_property
from cudnnlite.devices.arrays import DeviceArray, empty
from cudnnlite.devices.exchange import as_device_array, foreign_traits
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.plans.aligned_copies import AlignedCopies, misaligned_operands
from cudnnlite.plans.conversion import ConvertedCall
from cudnnlite.plans.empty_batch import SumOfNothing
from cudnnlite.plans.native_problem import NativeProblem, add_context
from cudnnlite.plans.operands import (
    channel_shape,
    check_overlap,
    check_workspace,
    check_writable,
    on_device,
    wait_for_streams,
)
from cudnnlite.plans.plan import Plan
from cudnnlite.problems import call_watch
from cudnnlite.problems.operation import RESERVE_ALIGNMENT, STRICTEST_ALIGNMENT, all_of
from cudnnlite.problems.problem import Problem, check_shape
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.filter import as_tensor, matches_spec
from cudnnlite.warn import log

_traits = attrgetter("traits")
_kind = itemgetter(1)  # of traits: all but the address


PlanT = TypeVar("PlanT", bound="OperationPlan[Any]")
ResultT = TypeVar("ResultT")


class Prepared(Protocol):
    """One or several C calls, which a plan makes by ``prepared.function(*prepared.arguments)``."""

    @property
    def function(self) -> Callable[..., int | None]:
        """The function to call.  It returns a status: 0 or None for success."""

    @property
    def check(self) -> Callable[[int], None] | None:
        """The function that raises the error of a status; None if `function` itself raises it."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of `function`."""

    def replace(self, **addresses: int) -> None:
        """Change the addresses of operands and of ``workSpace``."""


class OperationPlan(Plan, Generic[ResultT]):
    """The prepared C call of a problem on one handle; ``plan(*operands, out=...)`` computes.

    The operands are those of the public function, in its order.

    Attributes
    ----------
    problem : Problem
        The problem of the plan; its specs and options are attributes of the plan too.
    workspace : int
        The bytes of workspace that each call needs.
    reserve : int
        The bytes of reserve space that a forward call writes or a backward call reads; 0 for most
        operations.
    descriptors : dict
        The descriptors of operands and options, by name; empty if an engine runs, and for an empty
        batch.
    """

    choice: Any = None
    _shows_values: ClassVar[bool] = True  # whether specs and options are attributes of the plan

    def __init__(self, handle: Handle, problem: Problem, limit: int | None = None) -> None:
        super().__init__(handle, f"plan of {problem}")
        self.problem = problem
        self.workspace = 0
        self.reserve = 0
        self.descriptors: dict[str, Any] = {}
        if self._shows_values:
            for name, value in problem.values.items():
                setattr(self, name, value)
        operation = problem.operation
        self._reads = len(operation.reads)
        self._writes_one = operation.writes_one
        self._names = (*operation.reads, *operation.writes)
        self._seen_specs: dict[str, TensorSpec] = {}  # specs that passed the check
        self._new_specs: dict[str, TensorSpec] = {}  # of results that a call may allocate
        # The arrays and the workspace of the last call, if all checks passed.  A call with the same
        # arrays checks nothing again, which saves 4 of 5 us (two cores, no GPU).  If arrays differ
        # by their addresses alone, only those are checked: 1.5 of 2.6 us less.
        self._last_traits: list[Any] | None = None
        self._last_kinds: tuple[Any, ...] | None = None
        self._last_sizes: list[int] = []
        self._last_scratch = 0
        self._last_stream: Any = None
        self._prepared: Prepared | None = None
        self._alignments: Mapping[str, int] = operation.alignments(problem.specs, problem.values)
        self._copies: AlignedCopies | None = None
        self._limit = limit
        self._lease = handle.workspace.reserve
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
        self._results_of = itemgetter(*self._places_of_results())
        # Whether a call without `out` and `reserve` writes only new memory, which overlaps nothing.
        self._may_write_new = not (
            operation.caller_provided or operation.needs_reserve or operation.state_option
        )
        # The pairs of arrays, by their places, that must not overlap.
        self._overlapping_pairs = [
            (written, other) for written in self._written for other in range(written)
        ]
        self._note_header_names()

    def prepare(self: PlanT) -> PlanT:
        """Choose an algorithm, prepare the C call, and return the plan; close it if that fails."""
        try:
            if self._sums_nothing():
                self._prepared = SumOfNothing(self._handle, self.problem, self._resources)
            elif not self._results_are_empty():
                self._prepared = self._prepare_call()
                log.debug("%s%s", self._description, f": {self.choice}" if self.choice else "")
        except BaseException as error:
            if isinstance(error, CudnnError):
                add_context(error, self.problem)
            self.close()
            raise
        return self

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

    def _prepare_call(self) -> Prepared:
        """Return the call, which has no addresses yet; note what memory it needs."""
        packed_problem = self.problem.operation.packed(self.problem)
        if packed_problem is not None:
            return self._prepare_on_copies(packed_problem)
        native = NativeProblem(self._handle, self.problem, self._resources)
        self.descriptors = native.descriptors
        self.workspace = native.workspace()
        self.reserve = native.reserve()
        return native.prepare(
            workSpaceSizeInBytes=self.workspace, reserveSpaceSizeInBytes=self.reserve
        )

    def _prepare_on_copies(self, packed_problem: Problem) -> Prepared:
        """Return the call for packed operands, with the copies to them and back around it."""
        stack = self._resources
        converted_call = ConvertedCall(self._handle, self.problem, packed_problem, stack)
        native = NativeProblem(self._handle, packed_problem, stack)
        self.descriptors = native.descriptors
        converted_call.call = native.prepare()
        self.workspace = converted_call.room
        return converted_call

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
        *operands, **named_operands : device arrays
            Arrays of the plan's specs, in the order of the public function, or by name.
        out : device array, or a tuple of them, optional
            The outputs, as in the public function: written in place, and read too if beta is not 0.
            A tuple if there are several.  By default they are new arrays.
        workspace : device array, optional
            The caller's own scratch memory, instead of the handle's.
        reserve : device array, optional
            Memory of `reserve` bytes that a forward call writes for the backward call, if the
            operation has such.

        Returns
        -------
        DeviceArray, or a tuple of them
            The outputs: `out` itself if that is a DeviceArray.

        Raises
        ------
        ArgumentError, ArrayTypeError, ClosedError, ThreadError
            Before anything is written.
        CudnnError
            The C function failed.
        """
        if named_operands:
            operands = self._in_order(operands, named_operands)
        if call_watch.active or self._closed or get_ident() != self._thread:
            self.use()
        if not self._is_plain or reserve is not None:
            arrays = self._with_outputs(operands, out, reserve)
        elif out is None:
            arrays = (*operands, self._new_array(self._names[-1]))
        else:
            arrays = (*operands, out)
        is_new = out is None and reserve is None and self._may_write_new
        arrays = self._enqueue(arrays, workspace, is_new=is_new)
        result: ResultT = self._results_of(arrays)
        return result

    def _enqueue(
        self, arrays: tuple[Any, ...], workspace: object, *, is_new: bool
    ) -> tuple[Any, ...]:
        """Enqueue the call over all its arrays, and return these; outputs as DeviceArrays.

        `is_new` says whether all outputs are new memory.
        """
        if not isinstance(arrays[0], DeviceArray):  # quicker than the exception below
            return self._enqueue_foreign(arrays, workspace, is_new=is_new)
        try:
            traits = [*map(_traits, arrays)]
        except AttributeError:  # an array of another library, or none at all
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
        stream = self._handle._stream
        if call_watch.active or workspace is not None or stream is not self._last_stream:
            return False
        prepared: Any = self._prepared
        try:
            if traits != self._last_traits or (
                self.workspace
                and self._lease(self.workspace, stream, self._limit) != self._last_scratch
            ):
                addresses, kinds = zip(*traits)  # noqa: B905  (pairs)
                if kinds != self._last_kinds or not self._move(traits, addresses, is_new=is_new):
                    return False
            status = prepared.function(*prepared.arguments)
            if status:
                prepared.check(status)
        except CudnnError as error:
            add_context(error, self.problem)
            raise
        return True

    def _in_order(
        self, operands: tuple[Any, ...], named_operands: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Return all operands in order, some of which were passed by name."""
        operation = self.problem.operation
        names = operation.call_operands or operation.reads
        by_name = dict(zip(names, operands))  # noqa: B905  (too many are refused later)
        for name, array in named_operands.items():
            if name not in names:
                raise TypeError(
                    f"a {self._description} got an unexpected keyword argument {name!r}"
                )
            if name in by_name:
                raise TypeError(f"a {self._description} got multiple values for argument {name!r}")
            by_name[name] = array
        if by_name.keys() <= {*operation.reads}:  # the others may come by keywords of their own
            names = operation.reads
        missing = [name for name in names if name not in by_name]
        if missing:
            raise TypeError(f"a {self._description} is missing {', '.join(missing)}")
        return tuple(by_name[name] for name in names)

    def run(
        self, operands: Sequence[Any], out: object, workspace: object = None, reserve: object = None
    ) -> ResultT:
        """Make a call with the operands as one sequence."""
        return OperationPlan.__call__(
            self, *operands, out=out, workspace=workspace, reserve=reserve
        )

    def _move(self, traits: list[Any], addresses: Sequence[int], *, is_new: bool) -> bool:
        """Point the call to arrays that differ from the last ones by their addresses alone.

        Return False, and do nothing, if these overlap or are not aligned: all checks are needed
        then.
        """
        self._last_traits = None  # after an interrupt below, the addresses are unknown
        if not is_new and self._overlaps(addresses):
            return False
        if reduce(or_, addresses) % STRICTEST_ALIGNMENT:
            return False
        scratch = 0
        if self.workspace:
            scratch = self._lease(self.workspace, self._last_stream, self._limit)
        prepared: Any = self._prepared
        prepared.replace(**self._addresses_by_name(addresses, scratch))
        self._last_scratch = scratch
        self._last_traits = traits
        return True

    def _overlaps(self, addresses: Sequence[int]) -> bool:
        """Whether a written array shares memory with another array."""
        ends = [*map(add, addresses, self._last_sizes)]
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
        # After an interrupt below, the addresses of the call are unknown.
        self._last_traits = None
        self._last_kinds = None
        arrays = self._checked(arrays)
        stream = self._handle._stream
        alignments = self._misaligned(arrays)
        if alignments:
            return self._run_misaligned(alignments, arrays, workspace)
        prepared: Any = self._prepared
        if prepared is None:  # an empty batch: there is nothing to call
            return arrays
        other_streams: Sequence[Any] = ()
        try:
            if any(array.stream is not stream for array in arrays):
                other_streams = wait_for_streams(stream, *arrays)
            scratch = self._scratch_for(workspace, arrays, stream)
            addresses = [array.ptr for array in arrays]
            prepared.replace(**self._addresses_by_name(addresses, scratch))
            if not other_streams and workspace is None:
                self._note_last(arrays, traits, scratch, stream)
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
            self._record()
            self.keep_for_graph((*arrays, workspace))
        return arrays

    def _record(self) -> None:
        """Count the problem in the lists that record."""
        call_watch.record(self.problem)

    def _note_last(
        self, arrays: Sequence[Any], traits: list[Any] | None, scratch: int, stream: object
    ) -> None:
        """Remember the arrays and the workspace of a call that passed all checks."""
        self._last_sizes = [array.nbytes for array in arrays]
        self._last_scratch = scratch
        self._last_stream = stream
        self._last_kinds = None if traits is None else tuple(map(_kind, traits))
        self._last_traits = traits

    def _with_outputs(
        self, operands: Sequence[Any], out: object, reserve: object
    ) -> tuple[Any, ...]:
        """Return operands, outputs, reserve space and random states; missing arrays are made."""
        operation = self.problem.operation
        if len(operands) == len(operation.call_operands) != self._reads:
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
        operation = self.problem.operation
        names = ", ".join(operation.call_operands or operation.reads)
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
        beta_name = self._beta_name(name)
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
        in_place = operation.in_place if is_first else frozenset()
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
        """The header's names of scratch memory, with offsets: equal parts of the workspace."""
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
        """Make the call with aligned copies of some operands, and copy its results back.

        Two operands in the same memory, as those of a call in place are, have the same copy.
        """
        operation = self.problem.operation
        if workspace is not None:
            self._checked_workspace(workspace, arrays)  # must not overlap what is copied
        if self._copies is None:
            self._copies = AlignedCopies(self._handle, self._function_name(), self._resources)
        copies: dict[tuple[int, TensorSpec], DeviceArray] = {}
        call_arrays = list(arrays)
        for name, alignment in alignments.items():
            index = self._names.index(name)
            array = arrays[index]
            place = (array.ptr, array.spec)
            if place not in copies:
                copies[place] = self._copies.copy(
                    operation.argument(name), array, alignment, is_read=self._is_read(name)
                )
            call_arrays[index] = copies[place]
        outputs = tuple(call_arrays[self._reads : len(self._names)])
        reserve = call_arrays[len(self._names)] if operation.reserve else None
        self.run(
            call_arrays[: self._reads],
            outputs[0] if self._writes_one else outputs,
            workspace,
            reserve,
        )
        for index in range(self._reads, len(self._names)):
            if call_arrays[index] is not arrays[index]:
                self._copies.bring_back(call_arrays[index], arrays[index])
        return arrays

    def _function_name(self) -> str:
        """Return the C function that a call runs."""
        return self.problem.operation.function

    def _is_read(self, name: str) -> bool:
        """Whether a call reads the values of an operand."""
        operation = self.problem.operation
        if name not in operation.writes or name in operation.caller_provided:
            return True
        return self._beta_name(name) is not None

    def _beta_name(self, output: str) -> str | None:
        """Return the name of the factor of an output's old values; None if they are not read."""
        scalars = self.problem.operation.scalars_of(output)
        if scalars is None or not self.problem.values.get(scalars[1]):
            return None
        return scalars[1]
