"""`OperationPlan`: a problem made once and called many times."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import itemsize
from cudnnlite.errors import ArgumentError, CudnnError, WorkspaceLimitError
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.operation_graph import ALIGNMENT, Graph
from cudnnlite.operations.convolution.algorithms import UNALIGNED, check_asked, choose, prepare
from cudnnlite.operations.convolution.layout_conversion import (
    ConvertedConvolution,
    conversion_layout,
)
from cudnnlite.plans.aligned_copies import AlignedCopies, misaligned
from cudnnlite.plans.empty_batch import SumOfNothing
from cudnnlite.plans.native_problem import Described, involve
from cudnnlite.plans.operands import check_overlap, check_workspace, check_writable, on_device
from cudnnlite.plans.plan import Plan
from cudnnlite.plans.replay import Operand, Replay, ReplayedCall, parse_replay
from cudnnlite.plans.unrolled import unrolled
from cudnnlite.problems.operation import RESERVE_ALIGNMENT, Operation
from cudnnlite.problems.problem import Problem, check_shape
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.sizes import format_size
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.filter import as_tensor, is_as
from cudnnlite.warn import log

# of the docstring of a class that makes a choice
_ATTRIBUTES = """

    Attributes
    ----------
    {specs} : specs
        What it was made for.
    choice : AlgorithmResult or None
        Algorithm, math type and layout that each call uses, with what was passed over; None for an empty batch.
    workspace : int
        Bytes that each call needs; converted operands are among them.

    Notes
    -----
    C functions of a call: `cudnnBackendExecute`, or `{function}` and what converts operands for it.
    """
_plans: dict[Operation, type[OperationPlan]] = {}


class Prepared(Protocol):
    """What a plan runs, as ``prepared.function(*prepared.arguments)``: one C call, or several as one."""

    @property
    def function(self) -> Callable[..., int | None]:
        """What is called; it returns a status, 0 or None for success."""

    @property
    def check(self) -> Callable[[int], None] | None:
        """What raises the error of a status; None where `function` itself does."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What it is called with."""

    def replace(self, **addresses: int) -> None:
        """Change addresses: the operands', and ``workSpace``."""


class OperationPlan(Plan):
    """A problem on one handle, with everything decided and marshalled: ``plan(*operands, out=..., workspace=...)``.

    Attributes
    ----------
    problem : Problem
        What it was made for; its specs and options are attributes of the plan too.
    choice : AlgorithmResult or None
        Algorithm, math type and layout that each call uses, with what was passed over; None where there is no choice, or
        for an empty batch.
    workspace : int
        Bytes that each call needs; converted operands are among them.
    reserve : int
        Bytes of reserve space that a call keeps for the backward call, or needs of it; 0 for most operations.
    descriptors : dict
        Of operands and options, by name; empty where an engine runs, and for an empty batch.
    """

    _run: ClassVar[Callable[..., DeviceArray]]  # as `__call__`, with `out` by position

    def __init__(
        self,
        handle: Handle,
        problem: Problem,
        algorithm: Any = None,
        limit: int | None = None,
        interface: str | None = None,
        replay: bool = False,
        graph: Graph | None = None,
    ) -> None:
        super().__init__(handle, f"{type(self).__name__} of {problem.terms}")
        self.problem = problem
        operation = problem.operation
        # by setattr: a look at __dict__, or a __getattr__, would make the plan's attributes slower
        for name, value in problem.values.items():
            setattr(self, name, value)
        for (
            name,
            spec,
        ) in problem.specs.items():  # compared last: the same objects need not be compared again
            setattr(self, f"_seen_{name}", None if name in operation.filters else spec)
        self._new: dict[str, TensorSpec] = {}  # what may be new at each call
        # what the last call was given, all that was found to be in order, and the address of its workspace
        self._last: tuple[Any, ...] | None = None
        self._scratch = 0
        self._prepared: Prepared | None = None
        self._replayed: ReplayedCall | None = None
        self.choice: AlgorithmResult | None = None
        self.workspace = self.reserve = 0
        self.descriptors: dict[str, Any] = {}
        self._alignments: Mapping[str, int] = operation.alignments(problem.specs, problem.values)
        self._copies: AlignedCopies | None = None
        self._limit = limit
        self._lease = handle.workspace.reserve
        try:
            replays = parse_replay(replay)
            if operation.algorithms is not None:
                check_asked(problem, algorithm, interface)
            if all(
                problem.values[name].size == 0 for name in operation.writes
            ):  # an empty batch: nothing to call
                return
            if operation.sums_images and any(
                problem.values[name].size == 0 for name in operation.reads
            ):
                self._prepared = SumOfNothing(handle, problem, self._resources)
                return
            self._prepare(algorithm, limit, interface, graph)
            log.debug("%s%s", self._description, f": {self.choice}" if self.choice else "")
            if replays or getattr(self.choice, "replay", False):
                self._replayed = ReplayedCall(handle, self._prepared, self._staged_operands())
                self._prepared = self._replayed
                self._resources.callback(self._replayed.close)
        except BaseException as error:
            if isinstance(error, CudnnError):
                involve(error, problem)
            self.close()
            raise

    def _prepare(
        self, algorithm: Any, limit: int | None, interface: str | None, graph: Graph | None
    ) -> None:
        problem = self.problem
        described = Described(self._handle, problem, self._resources, partly=True, graph=graph)
        if problem.operation.algorithms is None:
            self.descriptors = described.descriptors
            self.workspace, self.reserve = described.workspace(), described.reserve()
            self._prepared = described.prepare(
                workSpaceSizeInBytes=self.workspace, reserveSpaceSizeInBytes=self.reserve
            )
            return
        choice = choose(described, algorithm, limit, interface)
        layout = conversion_layout(problem, choice.layout)
        if layout:
            self._prepared = converted = ConvertedConvolution(
                self._handle, problem, choice, layout, self._resources
            )
            self.workspace = converted.workspace
        else:
            choice, self._prepared, self.workspace = prepare(described, choice, self._resources)
            if isinstance(choice.algorithm, Engine):
                # an engine's plan refuses what is not aligned; nothing else serves what is known not to be
                copied = problem.specs if interface == UNALIGNED else ()
                self._alignments = dict.fromkeys(copied, ALIGNMENT)
            else:
                self.descriptors = described.descriptors
        if limit is not None and self.workspace > limit:
            inside = f" in {layout}, converted operands included," if layout else ""
            raise WorkspaceLimitError(
                f"{choice.algorithm}{inside} needs a workspace of {format_size(self.workspace)}; the limit is "
                f"{format_size(limit)}"
            )
        self.choice = replace(choice, workspace=self.workspace)

    def _misaligned(self, **operands: DeviceArray) -> dict[str, int]:
        """Return the operands that the kernels cannot load where they are, and the alignments that they need."""
        return misaligned(self._alignments, operands)

    def _call_on_copies(
        self, alignments: Mapping[str, int], operands: dict[str, DeviceArray], **others: Any
    ) -> Any:
        """Make the call with aligned copies of some operands, and bring back what it writes.

        Two operands in the same memory, as those of a call in place are, have the same copy.
        """
        operation = self.problem.operation
        function = operation.function if self.descriptors else "cudnnBackendExecute"
        if (workspace := others.get("workspace")) is not None:
            self._own_workspace(
                workspace, **operands
            )  # which must not overlap what the copies are of
        if self._copies is None:
            self._copies = AlignedCopies(self._handle, function, self._resources)
        copies: dict[tuple[int, TensorSpec], DeviceArray] = {}
        stand_ins = dict(operands)
        for name, alignment in alignments.items():
            array = operands[name]
            place = (array.ptr, array.spec)
            if place not in copies:
                argument, is_read = operation.argument(name), self._is_read(name)
                copies[place] = self._copies.copy(argument, array, alignment, is_read=is_read)
            stand_ins[name] = copies[place]
        reads = [stand_ins[name] for name in operation.reads]
        writes = tuple(stand_ins[name] for name in operation.writes)
        returned: Any = self(*reads, out=writes if len(writes) > 1 else writes[0], **others)
        originals = {}
        for name in operation.writes:
            if stand_ins[name] is not operands[name]:
                self._copies.bring_back(stand_ins[name], operands[name])
                originals[id(stand_ins[name])] = operands[name]
        if isinstance(returned, tuple):
            return tuple(originals.get(id(array), array) for array in returned)
        return originals.get(id(returned), returned)

    def _is_read(self, name: str) -> bool:
        """Whether a call reads what an operand holds."""
        operation = self.problem.operation
        scaled = operation.writes[: operation.scaled] if self.problem.values.get("beta") else ()
        return name not in operation.writes or name in scaled or name in operation.given

    def _staged_operands(self) -> dict[str, Operand]:
        """Return what can be copied to buffers and back, by the header's names.

        Nothing if a result has gaps, to be kept, or is two arguments, which one buffer would have to be.
        """
        problem, operation = self.problem, self.problem.operation
        staged: dict[str, Operand] = {}
        for name, spec in problem.specs.items():
            written = name in operation.writes
            packed = (
                name in operation.filters
                or spec.nbytes == spec.size * itemsize(spec.dtype) // spec.vector
            )
            if written and not packed:
                return {}
            if len(operation.header(name)) > 1:
                return {}
            if written or name not in operation.filters:  # weights seldom change
                read = self._is_read(name)
                staged |= {
                    there: Operand(spec.nbytes, read, written) for there in operation.header(name)
                }
        return staged

    @property
    def replay(self) -> Replay | None:
        """What a plan made with ``replay=True`` did so far; None for any other."""
        return None if self._replayed is None else self._replayed.state

    def __init_subclass__(cls, operation: Operation | None = None) -> None:
        if operation is None:
            return
        if operation.algorithms is not None:
            specs = ", ".join((*operation.reads, *operation.options, *operation.writes))
            cls.__doc__ = (cls.__doc__ or "").rstrip() + _ATTRIBUTES.format(
                specs=specs, function=operation.function
            )
        function, cls._run = unrolled(operation)
        function.__doc__ = OperationPlan.__call__.__doc__
        cls.__call__ = function  # type: ignore[method-assign]
        _plans[operation] = cls

    def __call__(self, *operands: Any, out: Any = None, workspace: Any = None) -> DeviceArray:
        """Enqueue the operation on the handle's stream.

        Parameters
        ----------
        *operands : device arrays
            Of the specs that the plan was made for.
        out : device array, or a tuple of them, optional
            Written in place; read too where beta is not 0.  A new one if not given.  A tuple where more than one operand is
            written; those of them that the operation updates must be given.
        workspace : device array, optional
            The caller's own scratch memory, instead of the handle's.
        reserve : device array
            Of an operation that has one alone: what a forward call keeps for the backward call, of `reserve` bytes.

        Returns
        -------
        DeviceArray, or a tuple of them
            What is written: `out` where that is a DeviceArray.

        Raises
        ------
        ArgumentError, ArrayTypeError, ClosedError, ThreadError
            Before anything is written.
        CudnnError
            The C function failed.
        """
        raise NotImplementedError  # of a plan for one operation it is unrolled

    def _check(self, name: str, array: DeviceArray) -> None:
        operation, wanted, spec = self.problem.operation, self.problem.values[name], array.spec
        if name in operation.writes:
            check_shape(operation.argument(name), spec, wanted)
        if not is_as(spec, wanted):
            raise ArgumentError(
                f"{operation.argument(name)} is {spec}; the plan was made for {wanted}"
            )
        setattr(self, f"_seen_{name}", spec)

    def _new_output(self, name: str) -> DeviceArray:
        spec = self._new.get(name)
        if spec is None:
            operation, beta = self.problem.operation, self.problem.values.get("beta")
            if name in operation.given:
                raise ArgumentError(f"{operation.argument(name)} has to be given")
            if beta and name in operation.writes[: operation.scaled]:
                raise ArgumentError(
                    f"beta={beta} needs {operation.argument(name)}, which it scales"
                )
            spec = self._new[name] = as_tensor(self.problem.values[name])
        return arrays.empty(self._device, self._handle._stream, spec)

    def _reserve_space(self, reserve: Any, *operands: DeviceArray) -> DeviceArray:
        operation = self.problem.operation
        if reserve is None and operation.by_reserve:
            raise ArgumentError("reserve has to be given: what the forward call returned")
        if reserve is None:
            return arrays.empty(
                self._device, self._handle.stream, TensorSpec((self.reserve,), "uint8")
            )
        reserve = on_device(self._handle, reserve, "reserve")
        if reserve.nbytes != self.reserve or not reserve.spec.fits(reserve.spec.layout):
            raise ArgumentError(
                f"reserve is {reserve.spec}; needed: {self.reserve} bytes without gaps"
            )
        if reserve.ptr % RESERVE_ALIGNMENT:
            needed = f"an address that is aligned to {RESERVE_ALIGNMENT} bytes"
            raise ArgumentError(f"reserve begins at {reserve.ptr:#x}; needed: {needed}")
        names = dict(zip((*operation.reads, *operation.writes), operands, strict=True))
        if operation.by_reserve:
            for name in operation.writes:
                check_overlap(names[name], operation.argument(name), frozenset(), reserve=reserve)
        else:
            check_writable(reserve, "reserve", frozenset(), **names)
        return reserve  # type: ignore[no-any-return]

    def _own_workspace(self, workspace: Any, **operands: DeviceArray) -> int:
        own = check_workspace(self._handle, workspace, self.workspace)
        check_overlap(own, "workspace", frozenset(), **operands)
        return own.ptr


def plan_class(operation: Operation) -> type[OperationPlan]:
    """Return the class of plans of an operation; made when it is first asked for, unless a family has one of its own."""
    if operation not in _plans:
        name = "".join(word.capitalize() for word in operation.name.split("_")) + "Plan"
        types.new_class(name, (OperationPlan,), {"operation": operation})  # enters itself
    return _plans[operation]
