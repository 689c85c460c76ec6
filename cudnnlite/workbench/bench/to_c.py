"""The program in C that makes one candidate's call, for reports of bugs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from cudnnlite import Handle
from cudnnlite.devices.device import Device
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.results import named
from cudnnlite.types import Problem
from cudnnlite.workbench.bench.guards import GuardedMemory, guarded_trial
from cudnnlite.workbench.tracing.trace import trace
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.tuner import search_of


def write_program(
    device: Device, problem: Problem, candidate: str, policy: TuningPolicy, folder: Path
) -> None:
    """Write ``program.c``, a ``Makefile`` and the inputs of one call of a candidate.

    Parameters
    ----------
    device : Device
        The device on which the call is traced.
    problem : Problem
        The problem.
    candidate : str
        The name of the candidate, as rows have it.
    policy : TuningPolicy
        With it the candidates are listed.
    folder : Path
        The folder to write to; files that an earlier trace wrote there are replaced.

    Raises
    ------
    ArgumentError
        There is no such candidate, or the folder cannot be written.
    """
    policy = policy.within(None, device.memory_info()[1])
    # The candidates are listed before the trace, whose program would list them too.
    with Handle(device) as handle, ExitStack() as stack:
        trial = guarded_trial(handle, problem, policy, stack, GuardedMemory(handle))
        rows = search_of(problem).list_candidates(handle, problem, policy, trial)
    # A replayed call is the same call, recorded as a CUDA graph.
    name = candidate.replace(", replayed", "")
    named_rows = [row for row in rows if named(row) == name]
    if not named_rows:
        raise ArgumentError(f"candidate={candidate!r} is none for {problem}")
    with trace() as calls, Handle(device) as handle, ExitStack() as stack:
        trial = guarded_trial(handle, problem, policy, stack, GuardedMemory(handle))
        with trial.plan(named_rows[0]) as plan:
            trial.call_of(plan)()
            # The program prints checksums of what the host reads.
            for array in trial.outputs():
                array.numpy()
    calls.save(folder)
