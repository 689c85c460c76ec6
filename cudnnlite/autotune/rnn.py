"""The search for recurrent networks: the search of `rnn_forward.find`, within a policy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from cudnnlite.autotune.policy import TuningPolicy, limit_of
from cudnnlite.autotune.synthetic_operands import fill_random, random_array
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.rnn.search import (
    all_candidates,
    compiled_if_small,
    search_rnn_forward,
)
from cudnnlite.operations.rnn.trial import RNNTrial
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.plans.operands import on_device
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.search.trial import TrialMemory
from cudnnlite.sizes import ALLOCATION_ALIGNMENT


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
        list_candidates(handle, problem, policy),
        limit_of(policy),
        max_error=policy.max_error,
        objective=policy.objective,
        flush_l2=policy.flush_l2,
        replay=policy.objective == "latency" and not problem.training,
    )


def list_candidates(
    handle: Handle, problem: Problem, policy: TuningPolicy, trial: RNNTrial | None = None
) -> list[AlgorithmResult]:
    """Return every algorithm with every math type; nothing is run."""
    rows = [
        replace(row, why_not=policy.why_not(row, problem.spec.dtype))
        for row in all_candidates(problem)
    ]
    return [compiled_if_small(handle, problem, row) for row in rows]


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
