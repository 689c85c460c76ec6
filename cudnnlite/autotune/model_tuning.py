"""`ModelTuning`: what tuning a whole model found."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cudnnlite.autotune.tuned_problem import Policy, TunedProblem, cost, shared_workspace
from cudnnlite.autotune.tuning_run import Worker
from cudnnlite.errors import NoAlgorithmError
from cudnnlite.problems.problem_list import SkippedNode, summary
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted

_HEADING = (
    "count",
    "problem",
    "where",
    "algorithm",
    "math",
    "ms",
    "ms in all",
    "workspace",
    "from",
)
_NUMBERS = ("count", "ms", "ms in all", "workspace")


@dataclass(frozen=True)
class ModelTuning:
    """What `tune_model` found.  Prints as a table.

    Attributes
    ----------
    tunings : tuple of TunedProblem
        Every distinct problem, in the order in which they were given.
    facts : mapping
        Versions, device, time, and the policy: what a report says of it.
    skipped : tuple of SkippedNode
        What the model asks for, but is no problem that cudnnlite knows.
    notes : tuple of str
        What was assumed where the model does not say it.
    workers : mapping of Worker to int
        Who measured, and how many problems.
    """

    tunings: tuple[TunedProblem, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[SkippedNode, ...] = ()
    notes: tuple[str, ...] = ()
    workers: Mapping[Worker, int] = field(default_factory=dict)

    @property
    def policy(self) -> Policy:
        """What was wanted, as `TuningPolicy.to_plain` returns it."""
        policy: Policy = self.facts.get("policy", {})
        return policy

    @property
    def total_ms(self) -> float | None:
        """What the model spends on all problems that have a choice: by the policy's objective; None if none has one."""
        totals = [
            total for tuned in self.tunings if (total := tuned.total_ms(self.policy)) is not None
        ]
        return sum(totals) if totals else None

    @property
    def measured(self) -> int:
        """How many problems were measured now."""
        return sum(bool(tuned.table) and not tuned.from_cache for tuned in self.tunings)

    @property
    def remembered(self) -> int:
        """How many problems were answered from the cache."""
        return sum(tuned.from_cache for tuned in self.tunings)

    @property
    def failed(self) -> tuple[TunedProblem, ...]:
        """The problems without a choice; the `why_none` of each says why."""
        return tuple(tuned for tuned in self.tunings if tuned.chosen is None)

    def assign(
        self, workspace_limit: int | str | None = None
    ) -> tuple[AlgorithmResult | None, ...]:
        """Return the choices under one workspace, which the problems use in turn: of each the least time that fits.

        Of what the noise makes equal it is what `AlgorithmTable.best` chooses.

        Parameters
        ----------
        workspace_limit : int or str, optional
            How large that workspace may be: bytes, "64 MiB", or "10%" of the device's memory.

        Returns
        -------
        tuple of AlgorithmResult or None
            In the order of `tunings`; None for a problem that has no candidate at all.

        Raises
        ------
        NoAlgorithmError
            Problems need more; the message names them, and the least workspace that does.
        ArgumentError
            The limit is no size.
        """
        choices: list[AlgorithmResult | None] = []
        lacking: list[str] = []
        for tuned in self.tunings:
            choice = None
            if any(row.ok and cost(row, self.policy) is not None for row in tuned.table):
                with suppress(NoAlgorithmError):
                    choice = tuned.table.best(workspace_limit)
                if (
                    choice is None or cost(choice, self.policy) is None
                ):  # those that were timed come first
                    lacking.append(tuned.title)
            choices.append(choice)
        if lacking:
            least, _ = self.pareto()[0]
            raise NoAlgorithmError(
                f"workspace_limit={workspace_limit!r} is too little for {', '.join(lacking)}; the model needs at least "
                f"{format_size(least)}"
            )
        return tuple(choices)

    def pareto(self) -> tuple[tuple[int, float], ...]:
        """Return what the model costs under one workspace: (bytes, milliseconds in all from there on), the least first."""
        return tuple(shared_workspace(self.tunings, self.policy))

    def __str__(self) -> str:
        rows = [_HEADING, *(self._cells(tuned) for tuned in self.tunings)]
        lines = [self._summary()]
        lines += aligned(rows, _NUMBERS, empty=("",)) if self.tunings else []
        lines += [f"failed: {tuned.title}: {tuned.why_none}" for tuned in self.failed]
        lines += [f"skipped: {node}" for node in self.skipped]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ModelTuning: {self._summary()}>"

    def _summary(self) -> str:
        total, calls = self.total_ms, sum(tuned.count for tuned in self.tunings)
        text = f"{counted(len(self.tunings), 'problem')}, {calls} in all: {self.measured} measured"
        text += f", {self.remembered} remembered" + (
            f", {len(self.failed)} failed" if self.failed else ""
        )
        return text if total is None else f"{text}; {total:.4g} ms in all"

    def _cells(self, tuned: TunedProblem) -> tuple[str, ...]:
        head = (str(tuned.count), summary(tuned.problem), tuned.title if tuned.names else "")
        chosen = tuned.chosen
        if chosen is None:
            return (*head, "none", "", "", "", "", "")
        each, total = cost(chosen, self.policy), tuned.total_ms(self.policy)
        return (
            *head,
            f"{chosen.algorithm} in {chosen.layout}" if chosen.layout else str(chosen.algorithm),
            str(chosen.math_type),
            "" if each is None else f"{each:.4f}",
            "" if total is None else f"{total:.4f}",
            format_size(chosen.workspace),
            "cache" if tuned.from_cache else "measured",
        )
