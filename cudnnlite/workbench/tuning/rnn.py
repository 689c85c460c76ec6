"""The search for recurrent networks, within a policy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from cudnnlite import AlgorithmResult, AlgorithmTable, Handle, RNNWeights
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.operands import on_device
from cudnnlite.sizes import ALLOCATION_ALIGNMENT
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.policy import TuningPolicy, limit_of
from cudnnlite.workbench.tuning.rnn_search import (
    all_candidates,
    compiled_if_small,
    search_rnn_forward,
)
from cudnnlite.workbench.tuning.rnn_trial import RNNTrial
from cudnnlite.workbench.tuning.synthetic_operands import fill_random, random_array
from cudnnlite.workbench.tuning.timing_policy import DEFAULT_TIMING, TimingPolicy
from cudnnlite.workbench.tuning.trial import TrialMemory


def operands_of(
    handle: Handle, problem: Problem, alignments: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return a synthetic input, and weights whose products with it are about 1."""
    spec = problem.spec
    weights = RNNWeights(handle, spec)
    fill_random(weights.array, 2, scale=(spec.input_size + spec.state_size) ** -0.5)
    alignment = (alignments or {}).get("x", ALLOCATION_ALIGNMENT)
    x = random_array(handle, problem.data.tensor(), 1, alignment=alignment)
    return {"weights": weights, "x": x}


def check_operands(handle: Handle, problem: Problem, operands: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's operands; ArgumentError if they do not fit the problem.

    The search checks the other arrays than "x".
    """
    if not {"x", "weights"} <= set(operands) <= {"x", "weights", "hx", "cx"}:
        raise ArgumentError(
            f"operands={sorted(map(str, operands))}; needed: ['weights', 'x'], "
            "allowed too: ['cx', 'hx']"
        )
    x = on_device(handle, operands["x"], "x")
    if x.spec != problem.data.tensor():
        raise ArgumentError(f"x is {x.spec}; the problem has {problem.data.tensor()}")
    return {**operands, "x": x}


def search_rnn(
    handle: Handle,
    problem: Problem,
    policy: TuningPolicy,
    operands: Mapping[str, Any],
    timing: TimingPolicy,
) -> AlgorithmTable:
    """Time and check every candidate on operands; waits for the handle.

    The operands are "weights" and "x", and optionally "hx" and "cx".  The rows are in the order of
    the policy's objective, the best first.  Candidates that cannot be used, or are excluded and did
    not run, come last, with the reason.  Dropout is left out.
    """
    return search_rnn_forward(
        handle,
        problem,
        operands,
        list_candidates(handle, problem, policy, on_chip=timing.on_chip),
        limit_of(policy),
        timing,
        max_error=policy.max_error,
        objective=policy.objective,
        flush_l2=policy.flush_l2,
        replay=policy.objective == "latency" and not problem.training,
    )


def list_candidates(
    handle: Handle,
    problem: Problem,
    policy: TuningPolicy,
    trial: RNNTrial | None = None,
    *,
    on_chip: int = DEFAULT_TIMING.on_chip,
) -> list[AlgorithmResult]:
    """Return every algorithm with every math type; nothing is run."""
    rows = [
        replace(row, why_not=policy.why_not(row, problem.spec.dtype))
        for row in all_candidates(problem)
    ]
    return [compiled_if_small(problem, row, on_chip) for row in rows]


def make_trial(
    handle: Handle,
    problem: Problem,
    policy: TuningPolicy,
    operands: Mapping[str, Any],
    stack: ExitStack,
    memory: TrialMemory,
) -> RNNTrial:
    """Return the trial of a network without initial states."""
    return RNNTrial(
        handle,
        problem,
        (operands["weights"], operands["x"], None, None),
        stack,
        memory,
        workspace_limit=limit_of(policy),
        max_error=policy.max_error,
    )
