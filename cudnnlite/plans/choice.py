"""The one way to choose: what the caller names, else the handle's tuner, else cuDNN's heuristic.

A request asks `tuned_choice` if its caller names nothing; None leaves the choice to the heuristic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudnnlite.devices.handle import Handle
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult


def tuned_choice(
    handle: Handle,
    problem: Problem,
    alignments: Mapping[str, int],
    limit: int | None,
    *,
    replay: bool,
) -> AlgorithmResult | None:
    """Return the choice of the handle's tuner for a call.

    Parameters
    ----------
    handle : Handle
        The handle of the call.
    problem : Problem
        What the call computes.
    alignments : mapping
        The alignment of each operand's address in bytes, by name.
    limit : int or None
        The most workspace in bytes.
    replay : bool
        Whether the plan's call is recorded as a CUDA graph.

    Returns
    -------
    AlgorithmResult or None
        None without a tuner, for an empty batch, and if the tuner has no choice now.
    """
    tuner = handle._chooser
    if tuner is None or not all(spec.size for spec in problem.specs.values()):
        return None
    choice: AlgorithmResult | None = tuner.choose(
        problem, alignments, limit, for_call=True, replay=replay
    )
    return choice


def set_chooser(handle: Handle, chooser: Any, plan_store: Any = None) -> None:
    """Let a tuner, or with None nobody, choose for a handle's operations.

    `plan_store` keeps the plans that cuDNN compiles for them.
    """
    handle._chooser, handle._plan_store = chooser, plan_store


def tuning_key(handle: Handle) -> tuple[object, ...]:
    """Return what the choices of a handle's tuner depend on, as a part of a plan's key."""
    tuner = handle._chooser
    return () if tuner is None else (tuner, tuner.revision)
