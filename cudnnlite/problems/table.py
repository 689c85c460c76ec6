"""`AlgorithmTable`: the candidates of a search, and the choice among them with reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, overload

from cudnnlite.arguments import instance_of, one_of
from cudnnlite.enums import MathType, Status, parse_math_type
from cudnnlite.errors import NoAlgorithmError
from cudnnlite.problems.frames import data_frame
from cudnnlite.problems.results import (
    AlgorithmResult,
    kernel_of,
    named,
    named_together,
    parse_max_error,
    ranking_ms,
    why_not,
)
from cudnnlite.problems.roofline import Peaks, Roofline, roofline
from cudnnlite.problems.work import Work
from cudnnlite.sizes import format_size, parse_size
from cudnnlite.texts import aligned, figure, yes_or_no

_PLAIN = (bool, int, float, str, type(None))
_MOST_NAMES = 6  # of candidates that a line of the printed table has


class AlgorithmTable(Sequence[AlgorithmResult]):
    """Every candidate of a search, the best first and the failed ones last.

    It prints as a table, also in a notebook.  Candidates that were timed as one kernel share a row.
    Candidates that cannot be used are listed below, in one line for each reason.

    Attributes
    ----------
    title : str
        The problem that was searched for.
    timing : str
        The source of the times, with the device.
    work : Work or None
        The least operations and bytes that the problem needs.
    peaks : Peaks or None
        The peak rates of the device; if they are known, the table shows rates, too.
    searched_with : int or None
        The workspace of the search in bytes; candidates that need more failed.

    Examples
    --------
    >>> algorithms, math_type = dnn.enums.ConvolutionFwdAlgo, dnn.MathType.FMA
    >>> fast = dnn.AlgorithmResult(algorithms.FFT, math_type, time_ms=0.1, workspace=9 << 20)
    >>> lean = dnn.AlgorithmResult(algorithms.GEMM, math_type, time_ms=0.2, workspace=1 << 20)
    >>> table = dnn.AlgorithmTable([fast, lean], title="an example", timing="made up")
    >>> print(table.best(workspace_limit="4 MiB"))
    GEMM (FMA, 0.2 ms, workspace 1 MiB)
      not FFT (FMA): needs 9 MiB, the limit is 4 MiB (0.1 ms faster)
    """

    def __init__(
        self,
        rows: Sequence[AlgorithmResult],
        *,
        title: str,
        timing: str,
        device_memory: int = 0,
        searched_with: int | None = None,
        work: Work | None = None,
        peaks: Peaks | None = None,
    ) -> None:
        self._rows = tuple(rows)
        self.searched_with = searched_with
        self.title = title
        self.timing = timing
        self.work, self.peaks = work, peaks
        self._device_memory = device_memory

    @overload
    def __getitem__(self, index: int) -> AlgorithmResult: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[AlgorithmResult, ...]: ...
    def __getitem__(self, index: int | slice) -> AlgorithmResult | tuple[AlgorithmResult, ...]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[AlgorithmResult]:
        return iter(self._rows)

    def best(
        self,
        workspace_limit: int | str | None = None,
        deterministic: bool | None = None,
        math_type: MathType | str | None = None,
        max_error: float | None = None,
    ) -> AlgorithmResult:
        """Return the first candidate that satisfies the limits.

        Its `passed_over` has the candidates before it, and the reasons why they were not chosen.

        Parameters
        ----------
        workspace_limit : int or str, optional
            Bytes, "64 MiB", or "10%" of the device's memory.
        deterministic : bool, optional
            If True, only candidates that give the same bits each time.
        math_type : MathType or str, optional
            Only candidates of that math type.
        max_error : float, optional
            The largest relative L2 error.  A candidate whose error was not measured does not
            satisfy it.

        Raises
        ------
        NoAlgorithmError
            No candidate does; the message says what excluded each.
        """
        reasons = self._reasons(workspace_limit, deterministic, math_type, max_error)
        choice = _first_usable(reasons)
        if choice is None:
            raise self._no_algorithm_error(reasons)
        position = self._rows.index(choice)
        passed_over = [(row, why + _lost(row, choice)) for row, why in reasons[:position]]
        # A candidate for which the search had too little workspace might have been faster.
        passed_over += [
            (row, why) for row, why in reasons[position + 1 :] if self._lacked_workspace(row)
        ]
        return replace(choice, passed_over=tuple(passed_over))

    def _no_algorithm_error(self, reasons: list[tuple[AlgorithmResult, str]]) -> NoAlgorithmError:
        """Return the error for a table in which no candidate satisfies the limits."""
        all_failed = all(row.status != Status.SUCCESS for row in self._rows)
        if all_failed and self.searched_with is None:
            return NoAlgorithmError(
                f"cuDNN has no algorithm for {self.title}: it refuses this combination"
            )
        lines = "".join(f"\n  {named(row)}: {why}" for row, why in reasons)
        return NoAlgorithmError(
            f"no algorithm for {self.title} satisfies the limits:{lines or ' cuDNN returned none'}"
        )

    def explain(
        self,
        workspace_limit: int | str | None = None,
        deterministic: bool | None = None,
        math_type: MathType | str | None = None,
        max_error: float | None = None,
    ) -> str:
        """Return for every candidate whether these limits choose it, and why.

        Parameters
        ----------
        workspace_limit, deterministic, math_type, max_error
            As in `best`.

        Returns
        -------
        str
            A line for each candidate.
        """
        reasons = self._reasons(workspace_limit, deterministic, math_type, max_error)
        choice = _first_usable(reasons)
        lines = [self.title]
        for row, why in reasons:
            comment = f" ({row.comment})" if row.comment else ""
            lines.append(f"  {named(row)}: {_outcome(row, why, choice)}{comment}")
        if choice is None:
            lines.append("  none can be chosen")
        return "\n".join(lines)

    def pareto(self, objective: str | None = None) -> tuple[AlgorithmResult, ...]:
        """Return the candidates that no other beats in both time and workspace, the fastest first.

        The choice under a workspace limit is the first of them that fits.

        Parameters
        ----------
        objective : str, optional
            The time: "device" (`time_ms`), or "latency" (`call_us`, or `time_ms` if calls were not
            timed).  If not given, it is the one by which the table is ordered.

        Raises
        ------
        ArgumentError
            No such objective.
        """
        one_of(objective, "objective", "device", "latency", None)
        times = [
            (ranking_ms(row, latency=objective == "latency"), row) for row in self._rows if row.ok
        ]
        timed = [(time, row) for time, row in times if time is not None]
        if objective is not None:
            timed.sort(key=lambda pair: (pair[0], pair[1].workspace))
        front: list[AlgorithmResult] = []
        for _, row in timed:
            if not front or row.workspace < front[-1].workspace:
                front.append(row)
        return tuple(front)

    def _reasons(
        self, workspace_limit: Any, deterministic: Any, math_type: Any, max_error: Any
    ) -> list[tuple[AlgorithmResult, str]]:
        """Return every row with the reasons that exclude it; empty if none does."""
        limit = None
        if workspace_limit is not None:
            limit = parse_size(
                workspace_limit, "workspace_limit", total=self._device_memory or None
            )
        if math_type is not None:
            math_type = parse_math_type(math_type)
        one_of(deterministic, "deterministic", True, False, None)
        max_error = parse_max_error(max_error)
        return [
            (row, self._failure(row) or why_not(row, limit, deterministic, math_type, max_error))
            for row in self._rows
        ]

    def _lacked_workspace(self, row: AlgorithmResult) -> bool:
        """Return whether a candidate failed because the search had less workspace than it needs."""
        return not row.ok and self.searched_with is not None and row.workspace > self.searched_with

    def _failure(self, row: AlgorithmResult) -> str:
        """Return why a candidate cannot be used at all; empty if it can."""
        if row.ok:
            return ""
        if self._lacked_workspace(row):
            assert self.searched_with is not None
            return f"{row.status}: needs more than the search's {format_size(self.searched_with)}"
        if row.status == Status.SUCCESS:
            return row.why_not
        return f"{row.status}: {row.why_not}" if row.why_not else str(row.status)

    def tflops_of(self, row: AlgorithmResult) -> float | None:
        """Return the TFLOP/s of a row on the device, by the operations of the direct method.

        None if it was not timed, or if the peaks of the device are not known.
        """
        if self.work is None or self.peaks is None or not row.time_ms:
            return None
        return self.work.flops / row.time_ms / 1e9

    def roofline_of(self, row: AlgorithmResult) -> Roofline | None:
        """Return the least time of a row by the peaks of the device; None if none is known."""
        if self.work is None or self.peaks is None or not row.time_ms:
            return None
        return roofline(self.peaks, self.work, row.math_type)

    def kernels(self) -> list[tuple[int, ...]]:
        """Return the indices of the rows, those together that were timed as one kernel.

        A row that cannot be used stands beside those alone that fail for the same reason.
        """
        indices: dict[tuple[str, bool, str], list[int]] = {}
        for index, row in enumerate(self._rows):
            group = (kernel_of(row), row.replay, self._failure(row))
            indices.setdefault(group, []).append(index)
        return [tuple(group) for group in indices.values()]

    def _usable_kernels(self) -> list[tuple[int, ...]]:
        """Return the `kernels` of rows that can be used."""
        return [group for group in self.kernels() if self._rows[group[0]].ok]

    def same_kernel_lines(self) -> list[str]:
        """Return a line for each kernel that several rows stand for, with the rows' names."""
        lines = []
        for first, *others in self._usable_kernels():
            if others:
                names = named_together(self._rows[index] for index in others)
                lines.append(f"here the same kernel as {named(self._rows[first])}: {names}")
        return lines

    def unusable_lines(self) -> list[str]:
        """Return a line for each reason why candidates cannot be used, with their names.

        More than a few names are their number: `explain` has a line for each candidate.
        """
        rows_by_reason: dict[str, list[AlgorithmResult]] = {}
        for row in self._rows:
            if not row.ok:
                reason = "; ".join(filter(None, (self._failure(row), row.remark)))
                rows_by_reason.setdefault(reason, []).append(row)
        lines = []
        for reason, rows in rows_by_reason.items():
            names = named_together(rows)
            if len(rows) > _MOST_NAMES:
                names = f"{len(rows)} candidates"
            lines.append(f"cannot be used: {names}: {reason}")
        return lines

    def cells(self) -> list[tuple[str, ...]]:
        """Return the table's cells as text, the heading first."""
        columns = [
            column
            for column in (*_TIME_COLUMNS, *_rate_columns(self), *_OTHER_COLUMNS)
            if not column.optional or any(column.cell(row) for row in self._rows)
        ]
        heading = (*(column.name for column in columns), "status")
        rows = [
            (*(column.cell(row) or "-" for column in columns), self.status_of(row))
            for row in self._rows
        ]
        return [heading, *rows]

    def status_of(self, row: AlgorithmResult) -> str:
        """Return the last column of a row: "ok" or why it cannot be used, and its comment."""
        instance_of(row, AlgorithmResult, "row")
        return "; ".join(filter(None, (self._failure(row) or "ok", row.comment)))

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns by name, with all attributes of the rows.

        Values are plain: statuses and algorithms stand by their names.
        """
        names = dict.fromkeys(attribute.name for row in self._rows for attribute in fields(row))
        for of_choices in ("passed_over", "source", "conversions"):
            names.pop(of_choices, None)
        columns = {name: [getattr(row, name, None) for row in self._rows] for name in names}
        return {
            name: [value if type(value) in _PLAIN else str(value) for value in values]
            for name, values in columns.items()
        }

    def to_pandas(self) -> Any:
        """Return the columns as a `pandas.DataFrame`; MissingPackageError without pandas."""
        return data_frame(self.to_dict())

    def __str__(self) -> str:
        heading, *rows = self.cells()
        shown_rows = [rows[first] for first, *_ in self._usable_kernels()]
        lines = aligned([heading, *shown_rows], NUMERIC) if shown_rows else []
        return "\n".join(
            [
                f"{self.title}; times: {self.timing}",
                *lines,
                *self.same_kernel_lines(),
                *self.unusable_lines(),
            ]
        )

    def __repr__(self) -> str:
        return f"<AlgorithmTable of {len(self)}: {self.title}>"

    def _repr_html_(self) -> str:
        from html import escape

        heading, *rows = self.cells()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
        body = ""
        for first, *others in self._usable_kernels():
            cells = [escape(cell) for cell in rows[first]]
            if others:
                names = named_together(self._rows[index] for index in others)
                cells[0] += f"<br><small>also {escape(names)}</small>"
            body += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        caption = f"<caption>{escape(self.title)}; times: {escape(self.timing)}</caption>"
        table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        notes = "".join(f"<br><small>{escape(line)}</small>" for line in self.unusable_lines())
        # The table may be wider than the column of a page.
        return f'<div style="overflow-x: auto">{table}{notes}</div>'


def _first_usable(reasons: list[tuple[AlgorithmResult, str]]) -> AlgorithmResult | None:
    """Return the first row that nothing excludes; None if there is none."""
    return next((row for row, why in reasons if not why), None)


def _outcome(row: AlgorithmResult, why: str, choice: AlgorithmResult | None) -> str:
    """Return in words whether a row is chosen.

    `why` has the reasons that exclude it, and is empty if none does.
    """
    if row is choice and row.time_ms is None:
        return "chosen: the first in the ranking"
    if row is choice:
        return f"chosen: {_ms(row)}"
    if why:
        lost = "" if choice is None else _lost(row, choice)
        return f"not chosen: {why}{lost}"
    if row.time_ms is None or choice is None or choice.time_ms is None:
        return "not chosen: ranked behind"
    ratio = row.time_ms / choice.time_ms
    outcome = f"not chosen: {_ms(row)}, {ratio:.2f} times the chosen"
    is_faster = row.time_ms < choice.time_ms
    if is_faster and row.call_us is not None and choice.call_us is not None:
        outcome += f", but {row.call_us:.1f} us a call, not {choice.call_us:.1f} us"
    return outcome


def _ms(row: AlgorithmResult) -> str:
    return f"{row.time_ms:.4g} ms"


def _lost(row: AlgorithmResult, choice: AlgorithmResult) -> str:
    """Return how much time the choice loses against a row that is excluded; empty if none."""
    if not row.ok or row.time_ms is None or choice.time_ms is None:
        return ""
    gain_ms = choice.time_ms - row.time_ms
    if gain_ms <= 0:
        return ""
    return f" ({gain_ms:.4g} ms faster)"


class _ResultColumn(NamedTuple):
    """A column of the table; an optional one is shown if some row has a value in it."""

    name: str
    optional: bool
    cell: Callable[[AlgorithmResult], str]


def _rate_columns(table: AlgorithmTable) -> tuple[_ResultColumn, ...]:
    """Return the columns that compare a table's times with the device's peaks."""

    def share(row: AlgorithmResult) -> str:
        least = table.roofline_of(row)
        if least is None or not row.time_ms:
            return ""
        return f"{least.share(row.time_ms / 1e3):.0%} ({least.bound})"

    return (
        _ResultColumn("TFLOP/s", True, lambda row: figure(table.tflops_of(row))),
        _ResultColumn("roofline", True, share),
    )


_TIME_COLUMNS = (
    _ResultColumn("algorithm", False, lambda row: str(row.algorithm)),
    _ResultColumn("math", False, lambda row: str(row.math_type)),
    _ResultColumn("in", True, lambda row: row.layout),
    _ResultColumn("replayed", True, lambda row: "yes" if row.replay else ""),
    _ResultColumn("device ms", False, lambda row: figure(row.time_ms, ".4f")),
    _ResultColumn("+-", True, lambda row: figure(row.spread_ms, ".4f")),
    _ResultColumn("us a call", True, lambda row: figure(row.call_us, ".1f")),
    _ResultColumn("host us", True, lambda row: figure(row.host_us, ".1f")),
    _ResultColumn("cudnnFind's ms", True, lambda row: figure(row.find_ms, ".4f")),
)
_OTHER_COLUMNS = (
    _ResultColumn(
        "workspace",
        False,
        lambda row: format_size(row.workspace) if row.ok or row.workspace else "",
    ),
    _ResultColumn(
        "reserve", True, lambda row: "" if row.reserve is None else format_size(row.reserve)
    ),
    _ResultColumn("error", True, lambda row: figure(row.error, ".1e")),
    _ResultColumn("max error", True, lambda row: figure(row.max_error, ".1e")),
    _ResultColumn("deterministic", True, lambda row: yes_or_no(row.deterministic)),
)
NUMERIC = (
    "device ms",
    "+-",
    "us a call",
    "host us",
    "cudnnFind's ms",
    "TFLOP/s",
    "roofline",
    "workspace",
    "reserve",
    "error",
    "max error",
)
