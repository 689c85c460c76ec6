"""`TunedProblem`: a problem with its table and the choice, for `tune_model` and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cudnnlite import AlgorithmResult, AlgorithmTable
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.results import kernel_of, named, ranking_ms
from cudnnlite.texts import printable
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.problem_list import summary

# The result of `TuningPolicy.to_plain`. Without an objective, rows are ranked by device time.
Policy = Mapping[str, Any]


class TunedProblem(NamedTuple):
    """A problem, every candidate for it, and the one that was chosen.

    Attributes
    ----------
    problem : Problem
        The problem that was tuned.
    table : AlgorithmTable
        Every candidate, best first.
    chosen : AlgorithmResult or None
        The choice; None if no row satisfies the limits.
    why_none : str
        Why there is no choice; empty if there is one.
    count : int
        How often the model has the problem.
    names : tuple of str
        The model's names of the layers that have it.
    from_cache : bool
        Whether the table comes from the cache, and was not measured now.
    """

    problem: Problem
    table: AlgorithmTable
    chosen: AlgorithmResult | None
    why_none: str = ""
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which a record does not need
    names: tuple[str, ...] = ()
    from_cache: bool = False

    @property
    def title(self) -> str:
        """The first name and the number of further names, printable.

        If there is no name, it is a summary of the problem.
        """
        if not self.names:
            return summary(self.problem)
        name = printable(self.names[0])
        if len(self.names) == 1:
            return name
        return f"{name} and {len(self.names) - 1} more"

    @property
    def place(self) -> int | None:
        """The index of the chosen row in the table, or None if there is no choice.

        ArgumentError if the table does not contain the row.
        """
        if self.chosen is None:
            return None
        # Rows are not compared as a whole: a row from another process may have an error that is
        # NaN, which is not equal to itself.
        identity = _identity(self.chosen)
        for index, row in enumerate(self.table):
            if _identity(row) == identity:
                return index
        raise ArgumentError(f"chosen={named(self.chosen)} is no row of {self.table!r}")

    def total_ms(self, policy: Policy | None = None) -> float | None:
        """Return the model's time for the problem: `count` times `cost`.

        None if there is no choice, or if it was not timed.
        """
        if self.chosen is None:
            return None
        cost_ms = cost(self.chosen, policy)
        if cost_ms is None:
            return None
        return self.count * cost_ms

    def runner_up(self, policy: Policy | None = None) -> int | None:
        """Return the index of the cheapest row that could replace the choice, or None.

        It runs another kernel.
        """
        place = self.place
        if place is None:
            return None
        chosen_kernel = kernel_of(self.table[place])
        costs: list[tuple[float, int]] = []
        # The rows before the choice were passed over for a reason.
        for index, row in list(enumerate(self.table))[place + 1 :]:
            cost_ms = cost(row, policy)
            if row.ok and cost_ms is not None and kernel_of(row) != chosen_kernel:
                costs.append((cost_ms, index))
        if not costs:
            return None
        _, index = min(costs)
        return index

    def reasons(self, policy: Policy | None = None) -> tuple[str, ...]:
        """Return, for each row, why it is not the choice, and its remarks.

        The choice has only its remarks.
        """
        place = self.place
        passed_over = () if self.chosen is None else self.chosen.passed_over
        excluded = {_identity(row): why for row, why in passed_over}
        reasons = []
        for index, row in enumerate(self.table):
            if not row.ok:
                reasons.append(self.table.status_of(row))
                continue
            why = ""
            if index != place:
                why = excluded.get(_identity(row)) or _compared_cost(row, self.chosen, policy)
            reasons.append("; ".join(filter(None, (why, row.comment))))
        return tuple(reasons)


def cost(row: AlgorithmResult, policy: Policy | None = None) -> float | None:
    """Return the milliseconds that the policy ranks by: those of a call if it is for "latency"."""
    return ranking_ms(row, latency=(policy or {}).get("objective") == "latency")


def time_unit(policy: Policy | None = None) -> str:
    """Return the heading of the results of `cost`, with their unit."""
    is_latency = (policy or {}).get("objective") == "latency"
    return "call ms" if is_latency else "device ms"


def shared_workspace(
    tunings: Sequence[TunedProblem], policy: Policy | None = None
) -> list[tuple[int, float]]:
    """Return the time of a model by the size of the workspace that its problems use in turn.

    The points are (bytes, milliseconds).  From one point to the next the bytes grow and the
    milliseconds fall.  At each point every problem uses its cheapest row that fits, by the policy's
    objective.  The first point has the fewest bytes that are enough for every problem.  Problems
    without a usable row that was timed are left out.
    """
    # (bytes, index of the problem, milliseconds of its cheapest row that needs at most these bytes)
    steps: list[tuple[int, int, float]] = []
    for index, tuned in enumerate(tunings):
        for size, cost_ms in _cheapest_by_size(tuned, policy):
            steps.append((size, index, tuned.count * cost_ms))
    problems = {index for _, index, _ in steps}
    costs_ms: dict[int, float] = {}
    curve: list[tuple[int, float]] = []
    for size, index, cost_ms in sorted(steps):
        costs_ms[index] = cost_ms
        if len(costs_ms) < len(problems):
            continue
        if curve and curve[-1][0] == size:
            curve.pop()
        # The sum is in the order of the problems, so that the last total is exactly the sum of the
        # cheapest rows.
        curve.append((size, sum(costs_ms[index] for index in sorted(costs_ms))))
    return curve


def _cheapest_by_size(tuned: TunedProblem, policy: Policy | None) -> list[tuple[int, float]]:
    """Return (workspace, cost of one call) for each size that is cheaper than all smaller ones."""
    rows = [(row.workspace, cost(row, policy)) for row in tuned.table if row.ok]
    timed_rows = sorted((size, cost_ms) for size, cost_ms in rows if cost_ms is not None)
    best_ms = float("inf")
    steps: list[tuple[int, float]] = []
    for size, cost_ms in timed_rows:
        if cost_ms < best_ms:
            best_ms = cost_ms
            steps.append((size, cost_ms))
    return steps


def _identity(row: AlgorithmResult) -> tuple[object, ...]:
    return row.algorithm, row.math_type, row.layout, row.replay, row.workspace, row.time_ms


def _compared_cost(
    row: AlgorithmResult, choice: AlgorithmResult | None, policy: Policy | None
) -> str:
    """Return how the cost of a usable row compares with that of the choice, as a text."""
    if row.time_ms is None:
        return "not timed"
    cost_ms = cost(row, policy)
    choice_ms = None if choice is None else cost(choice, policy)
    if cost_ms is None or not choice_ms:
        return ""
    ratio = cost_ms / choice_ms
    if ratio >= 2:
        return f"{ratio:.3g} times the time"
    comparative = "slower" if ratio >= 1 else "faster"
    return f"{abs(ratio - 1) * 100:.1f} % {comparative}"
