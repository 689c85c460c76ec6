"""`TunedProblem`: one problem with its table and the choice, as `tune_model` returns it and the report shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cudnnlite.errors import ArgumentError
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.problem_list import summary
from cudnnlite.problems.results import AlgorithmResult, named, ranking_ms
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.texts import printable

# What `TuningPolicy.to_plain` returns; without an objective it is the device's time.
Policy = Mapping[str, Any]


class TunedProblem(NamedTuple):
    """A problem, every candidate for it, and the one that was chosen.

    Attributes
    ----------
    problem : Problem
        What was tuned.
    table : AlgorithmTable
        Every candidate, best first.
    chosen : AlgorithmResult or None
        The row that was taken; None where no row satisfies the limits.
    why_none : str
        Why none was taken; empty if one was.
    count : int
        How often the model has the problem.
    names : tuple of str
        What the model calls the layers that have it.
    from_cache : bool
        Whether the table was remembered, and not measured now.
    """

    problem: Problem
    table: AlgorithmTable
    chosen: AlgorithmResult | None
    why_none: str = ""
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which nobody asks a record for
    names: tuple[str, ...] = ()
    from_cache: bool = False

    @property
    def title(self) -> str:
        """The first name, as it can be shown, with the number of the others; without a name the problem in short."""
        if not self.names:
            return summary(self.problem)
        name, others = printable(self.names[0]), len(self.names) - 1
        return f"{name} and {others} more" if others else name

    @property
    def place(self) -> int | None:
        """The index of the chosen row in the table, or None; ArgumentError if the table does not contain it."""
        return None if self.chosen is None else place_of(self.table, self.chosen)

    def total_ms(self, policy: Policy | None = None) -> float | None:
        """Return what the model spends on the problem: count times `cost`; None where nothing was chosen or timed."""
        each = None if self.chosen is None else cost(self.chosen, policy)
        return None if each is None else self.count * each

    def runner_up(self, policy: Policy | None = None) -> int | None:
        """Return the index of the cheapest row that might have been taken instead; None where there is none."""
        place = self.place
        if place is None:
            return None
        # a row before the chosen one was passed over for a reason
        others = [
            (each, index)
            for index, row in enumerate(self.table)
            if index > place and row.ok and (each := cost(row, policy)) is not None
        ]
        return min(others)[1] if others else None

    def reasons(self, policy: Policy | None = None) -> tuple[str, ...]:
        """Return for each row why it was not chosen, and what else is known of it; of the chosen one only the latter."""
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
                why = excluded.get(_identity(row)) or _slower(row, self.chosen, policy)
            reasons.append("; ".join(filter(None, (why, row.comment))))
        return tuple(reasons)


def place_of(table: AlgorithmTable, chosen: AlgorithmResult) -> int:
    """Return the index of a row in its table; ArgumentError if the table does not contain it."""
    # not by equality: an error that is NaN equals nothing once it came from another process
    wanted = _identity(chosen)
    for index, row in enumerate(table):
        if _identity(row) == wanted:
            return index
    raise ArgumentError(f"chosen={named(chosen)} is no row of {table!r}")


def cost(row: AlgorithmResult, policy: Policy | None = None) -> float | None:
    """Return the milliseconds that a policy's objective looks at: `ranking_ms`, of a call under "latency"."""
    return ranking_ms(row, latency=(policy or {}).get("objective") == "latency")


def shared_workspace(
    tunings: Sequence[TunedProblem], policy: Policy | None = None
) -> list[tuple[int, float]]:
    """Return what a model costs under one workspace that its problems use in turn: (bytes, milliseconds from there on).

    The bytes grow and the total falls: each problem by its cheapest row that fits, by the time that
    the policy's objective looks at.  The first bytes are the least that every problem can run in;
    those of which no row can be used, or none was timed, are left out.
    """
    # (bytes, problem, the milliseconds that it costs from there on)
    steps: list[tuple[int, int, float]] = []
    for number, tuned in enumerate(tunings):
        best = float("inf")
        rows = [
            (row.workspace, each)
            for row in tuned.table
            if row.ok and (each := cost(row, policy)) is not None
        ]
        for size, each in sorted(rows):
            if each < best:
                best = each
                steps.append((size, number, tuned.count * each))
    wanted = {number for _, number, _ in steps}
    costs: dict[int, float] = {}
    curve: list[tuple[int, float]] = []
    for size, number, each in sorted(steps):
        costs[number] = each
        if len(costs) == len(wanted):
            if curve and curve[-1][0] == size:
                curve.pop()
            # summed in the problems' order, so that the last total is exactly that of the cheapest
            # rows
            curve.append((size, sum(costs[index] for index in sorted(costs))))
    return curve


def _identity(row: AlgorithmResult) -> tuple[object, ...]:
    return row.algorithm, row.math_type, row.layout, row.replay, row.workspace, row.time_ms


def _slower(row: AlgorithmResult, chosen: AlgorithmResult | None, policy: Policy | None) -> str:
    """Return by how much a row that works costs more than the chosen one."""
    each, least = cost(row, policy), None if chosen is None else cost(chosen, policy)
    if row.time_ms is None:
        return "not timed"
    if each is None or not least:
        return ""
    ratio = each / least
    if ratio >= 2:
        return f"{ratio:.3g} times the time"
    return f"{abs(ratio - 1) * 100:.1f} % {'slower' if ratio >= 1 else 'faster'}"
