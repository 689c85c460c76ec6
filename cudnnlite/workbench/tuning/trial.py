"""`Trial`: runs a candidate over poisoned memory, judges its results, and enters it for timing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from cudnnlite import AlgorithmResult, DeviceArray, Handle, TensorSpec
from cudnnlite.devices.storage import bytes_spec
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError, CudnnError, DeviceMemoryError, SymbolNotFoundError
from cudnnlite.sizes import over_limit
from cudnnlite.workbench.tuning.accuracy import relative_errors, remark_on, why_inexact, why_wrong
from cudnnlite.workbench.tuning.contest import Contest, failed, join_remarks

Array = np.ndarray[Any, Any]
Pairs = tuple[Sequence[Array], Sequence[Array]]  # the results, and the expected results

_POISON = 0xFF  # NaN in every floating-point format
_REPEATS = 5  # runs that must give the same bits, of what is to be deterministic


class TrialMemory:
    """Where the operands of a trial lie: the arrays as they are, and the handle's workspace.

    A benchmark has operands with guard zones instead.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._reserve: DeviceArray | None = None

    def place(self, name: str, array: DeviceArray, *, is_read_only: bool = False) -> DeviceArray:
        """Return the operand that calls get: the array itself."""
        return array

    def empty(self, name: str, spec: TensorSpec) -> DeviceArray:
        """Return a new operand; its contents are undefined."""
        return self._handle.empty(spec)

    def workspace(self, nbytes: int) -> DeviceArray | None:
        """Return scratch memory for a call; None for the handle's."""
        return None

    def reserve(self, nbytes: int) -> DeviceArray:
        """Return a reserve space of `nbytes` or more, which all candidates share."""
        if self._reserve is None or self._reserve.nbytes < nbytes:
            self._reserve = self.empty("the reserve space", bytes_spec(nbytes))
        return self._reserve


class Trial(ABC):
    """The candidates of one problem on operands that they share.

    Parameters
    ----------
    handle : Handle
        The handle, set to the stream of the search.
    stack : ExitStack
        The owner of the candidates' plans.
    memory : TrialMemory
        The place of the operands.
    workspace_limit : int or None
        In bytes; candidates that need more are not run.
    max_error : float or None
        The largest relative L2 error of a candidate that is timed.

    Attributes
    ----------
    memory : TrialMemory
        The argument.
    dtype : DataType
        The type of the outputs.
    basis : str
        What an error says something of, as the end of a sentence; empty for all of the outputs.
    must_repeat : bool
        Whether a candidate may be chosen only if several runs gave the same bits.
    """

    dtype: DataType
    basis = ""
    must_repeat = False

    def __init__(
        self,
        handle: Handle,
        stack: ExitStack,
        memory: TrialMemory,
        workspace_limit: int | None,
        max_error: float | None,
    ) -> None:
        self.memory = memory
        self._handle, self._stack = handle, stack
        self._limit, self._max_error = workspace_limit, max_error
        self._device_memory = handle.device.memory_info()[1]

    @abstractmethod
    def plan(self, row: AlgorithmResult, *, replay: bool = False) -> Any:
        """Return a plan of a candidate, prepared; the caller closes it."""

    @abstractmethod
    def outputs(self) -> Sequence[DeviceArray]:
        """Return what the calls of `call_of` write."""

    @abstractmethod
    def call_of(self, plan: Any, *, has_new_outputs: bool = False) -> Callable[[], object]:
        """Return a function that makes a plan's call once, without allocating memory.

        All candidates write to the same outputs, or, with `has_new_outputs`, to others.
        """

    @abstractmethod
    def why_no_reference(self) -> str:
        """Return why results are not compared with float64; empty if they are."""

    @abstractmethod
    def results_and_reference(self, plan: Any) -> Pairs:
        """Return results of the last call, or of another one, and what they are in float64.

        ArgumentError if the operands hold values that are not finite.
        """

    def restore_outputs(self) -> None:
        """Give the outputs the values that they have before a call: poison."""
        for array in self.outputs():
            self._handle.device.fill(array.ptr, array.nbytes, _POISON, self._handle.stream)

    def run_over_poison(self, call: Callable[[], object]) -> None:
        """Restore the outputs, and make a call."""
        self.restore_outputs()
        call()

    def run_with_reference(self, plan: Any, call: Callable[[], object]) -> Pairs:
        """Run a plan, whose call is given, and return `results_and_reference`."""
        self.run_over_poison(call)
        return self.results_and_reference(plan)

    def run(self, candidate: AlgorithmResult, contest: Contest | None) -> AlgorithmResult:
        """Return a candidate with its result; one that may be chosen enters the contest.

        Without a contest the candidate is planned, and does not run.
        """
        row = candidate
        if row.why_not:
            return row
        try:
            plan = self._stack.enter_context(self.plan(row))
            row = replace(row, workspace=plan.workspace)
            if self._limit is not None and plan.workspace > self._limit:
                return replace(row, why_not=over_limit(plan.workspace, self._limit))
            if contest is None:
                return row
            call = self.call_of(plan)
            judged_row = self.judge(plan, call, row)
            if judged_row.ok and self.must_repeat:
                judged_row = replace(judged_row, why_not=self._why_not_repeated(call))
            if judged_row.ok:
                contest.enter(candidate, call, self.fingerprint_of(judged_row))
        except (CudnnError, DeviceMemoryError) as error:
            return failed(row, error, self._device_memory)
        except SymbolNotFoundError as error:
            return replace(row, why_not=str(error))
        except ArgumentError as error:
            # Some operands cannot be converted to a layout: an integer output with beta.
            if not row.layout:
                raise
            return replace(row, why_not=str(error))
        return judged_row

    def judge(self, plan: Any, call: Callable[[], object], row: AlgorithmResult) -> AlgorithmResult:
        """Return a candidate's row with its errors, and why it cannot be used if they are large."""
        if not self.has_reference:
            if self._max_error is None:
                return self.judge_without_reference(call, row)
            return replace(row, why_not="its error was not measured")
        errors = relative_errors(*self.run_with_reference(plan, call))
        why_not = why_wrong(errors.l2, self.dtype, row.math_type)
        if why_not:
            why_not += self.basis
        return replace(
            row,
            error=errors.l2,
            max_error=errors.largest,
            why_not=why_not or why_inexact(errors.l2, self._max_error),
            remark=join_remarks(row.remark, remark_on(errors.l2, self.dtype, row.math_type)),
        )

    def _why_not_repeated(self, call: Callable[[], object]) -> str:
        """Return that runs gave different bits, whatever cuDNN notes; empty if they did not."""
        results = set()
        for _ in range(_REPEATS):
            self.run_over_poison(call)
            results.add(b"".join(array.numpy().tobytes() for array in self.outputs()))
        if len(results) == 1:
            return ""
        return (
            f"{_REPEATS} runs gave {len(results)} different results, though cuDNN says none would"
        )

    @property
    def has_reference(self) -> bool:
        """Whether `judge` compares results with float64."""
        return not self.why_no_reference()

    def judge_without_reference(
        self, call: Callable[[], object], row: AlgorithmResult
    ) -> AlgorithmResult:
        """Return the row of a candidate that is not compared with float64: as it is."""
        return row

    def fingerprint_of(self, row: AlgorithmResult) -> Hashable:
        """Return a value that is equal for candidates that run the same kernel; None if unknown."""
        return None

    def measure_replay(self, row: AlgorithmResult) -> Any:
        """Return the `replay` of a plan that launches CUDA graphs, which holds their costs.

        The plan is called twice: the first call is recorded, the second one has other outputs.
        """
        with self.plan(row, replay=True) as plan:
            self.call_of(plan)()
            self.call_of(plan, has_new_outputs=True)()
            return plan.replay
