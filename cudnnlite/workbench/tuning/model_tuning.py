"""`ModelTuning`: the result of tuning a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cudnnlite import AlgorithmResult
from cudnnlite.errors import NoAlgorithmError
from cudnnlite.problems.frames import data_frame
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted
from cudnnlite.workbench.tuning.problem_list import SkippedNode, skipped_lines, summary
from cudnnlite.workbench.tuning.tuned_problem import (
    Policy,
    TunedProblem,
    cost,
    shared_workspace,
    time_unit,
)
from cudnnlite.workbench.tuning.tuning_run import Worker


@dataclass(frozen=True)
class ModelTuning:
    """The result of `tune_model`.  Prints as a table.

    Attributes
    ----------
    tunings : tuple of TunedProblem
        Every distinct problem, in the order of the argument.
    facts : mapping
        Versions, device, time, and the policy, for a report.
    skipped : tuple of SkippedNode
        Nodes of the model that make no problem, with the reasons.
    notes : tuple of str
        Assumptions about facts that the model does not contain.
    workers : mapping of Worker to int
        The workers, and how many problems each measured.
    """

    tunings: tuple[TunedProblem, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[SkippedNode, ...] = ()
    notes: tuple[str, ...] = ()
    workers: Mapping[Worker, int] = field(default_factory=dict)

    @property
    def policy(self) -> Policy:
        """The policy, as `TuningPolicy.to_plain` returns it."""
        policy: Policy = self.facts.get("policy", {})
        return policy

    @property
    def total_ms(self) -> float | None:
        """The time of all problems that have a choice, by the policy's objective.

        None if no problem has one.
        """
        totals = [tuned.total_ms(self.policy) for tuned in self.tunings]
        totals_ms = [total for total in totals if total is not None]
        return sum(totals_ms) if totals_ms else None

    @property
    def measured(self) -> int:
        """How many problems were measured now."""
        return sum(bool(tuned.table) and not tuned.from_cache for tuned in self.tunings)

    @property
    def remembered(self) -> int:
        """How many problems were in the cache."""
        return sum(tuned.from_cache for tuned in self.tunings)

    @property
    def failed(self) -> tuple[TunedProblem, ...]:
        """The problems without a choice; the `why_none` of each says why."""
        return tuple(tuned for tuned in self.tunings if tuned.chosen is None)

    def assign(
        self, workspace_limit: int | str | None = None
    ) -> tuple[AlgorithmResult | None, ...]:
        """Return the choices if all problems use one workspace in turn.

        The choice for a problem is its fastest candidate that fits.  If candidates differ only by
        noise, `AlgorithmTable.best` decides.

        Parameters
        ----------
        workspace_limit : int or str, optional
            The size of the workspace: bytes, "64 MiB", or "10%" of the device's memory.

        Returns
        -------
        tuple of AlgorithmResult or None
            The choices in the order of `tunings`; None for a problem without candidates.

        Raises
        ------
        NoAlgorithmError
            Problems need more workspace; the message names them, and the least workspace that is
            enough.
        ArgumentError
            The limit is not a size.
        """
        choices: list[AlgorithmResult | None] = []
        lacking: list[str] = []
        for tuned in self.tunings:
            choice = None
            is_timed = any(row.ok and cost(row, self.policy) is not None for row in tuned.table)
            if is_timed:
                with suppress(NoAlgorithmError):
                    choice = tuned.table.best(workspace_limit)
                # If the choice was not timed, no row that was timed fits: those come first.
                if choice is None or cost(choice, self.policy) is None:
                    lacking.append(tuned.title)
            choices.append(choice)
        if lacking:
            least, _ = self.pareto()[0]
            raise NoAlgorithmError(
                f"workspace_limit={workspace_limit!r} is too little for {', '.join(lacking)}; "
                f"the model needs at least {format_size(least)}"
            )
        return tuple(choices)

    def pareto(self) -> tuple[tuple[int, float], ...]:
        """Return the model's time by the size of one workspace.

        The points are (bytes, milliseconds in all), the fewest bytes first.
        """
        return tuple(shared_workspace(self.tunings, self.policy))

    def rows(self) -> list[dict[str, Any]]:
        """Return every candidate of every problem, by column; `chosen` marks the choices."""
        return [row for tuned in self.tunings for row in _rows(tuned)]

    def to_pandas(self) -> Any:
        """Return `rows` as a `pandas.DataFrame`; MissingPackageError without pandas."""
        return data_frame(self.rows())

    def __str__(self) -> str:
        unit = time_unit(self.policy)
        times = (unit, f"{unit} in all")
        heading = (
            "count",
            "problem",
            "where",
            "algorithm",
            "math",
            *times,
            "workspace",
            "from",
        )
        rows = [heading, *(self._cells(tuned) for tuned in self.tunings)]
        lines = [self._summary()]
        if self.tunings:
            lines += aligned(rows, ("count", *times, "workspace"), empty=("",))
        lines += [f"failed: {tuned.title}: {tuned.why_none}" for tuned in self.failed]
        lines += skipped_lines(self.skipped)
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ModelTuning: {self._summary()}>"

    def _summary(self) -> str:
        calls = sum(tuned.count for tuned in self.tunings)
        text = f"{counted(len(self.tunings), 'problem')}, {calls} in all: {self.measured} measured"
        text += f", {self.remembered} remembered"
        if self.failed:
            text += f", {len(self.failed)} failed"
        total_ms = self.total_ms
        if total_ms is not None:
            text += f"; {total_ms:.4g} {time_unit(self.policy)} in all"
        return text

    def _cells(self, tuned: TunedProblem) -> tuple[str, ...]:
        head = (str(tuned.count), summary(tuned.problem), tuned.title if tuned.names else "")
        choice = tuned.chosen
        if choice is None:
            return (*head, "none", *[""] * 5)
        algorithm = str(choice.algorithm)
        if choice.layout:
            algorithm += f" in {choice.layout}"
        return (
            *head,
            algorithm,
            str(choice.math_type),
            _format_ms(cost(choice, self.policy)),
            _format_ms(tuned.total_ms(self.policy)),
            format_size(choice.workspace),
            "cache" if tuned.from_cache else "measured",
        )


def _rows(tuned: TunedProblem) -> list[dict[str, Any]]:
    """Return the candidates of a problem, by column."""
    problem = {
        "problem": summary(tuned.problem),
        "names": "; ".join(tuned.names),
        "count": tuned.count,
    }
    columns = tuned.table.to_dict()
    return [
        {**problem, "chosen": index == tuned.place, **dict(zip(columns, values, strict=True))}
        for index, values in enumerate(zip(*columns.values(), strict=True))
    ]


def _format_ms(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.4f}"
