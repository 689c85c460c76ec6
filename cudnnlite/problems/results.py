"""The candidates of a search: what all have, what some kinds add, and how two are compared."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cudnnlite.arguments import real_number, shown
from cudnnlite.enums import MathType, Status
from cudnnlite.errors import ArgumentError
from cudnnlite.sizes import format_size, over_limit

WITHIN_NOISE = "within the noise of the first"


@dataclass(frozen=True)
class AlgorithmResult:
    """One candidate of a search: algorithm, math type and workspace, applied as one.

    What only one kind of candidate has, its class adds: `ConvolutionResult`, `RNNResult`.  It can
    be read of the others too: there it is empty.

    Attributes
    ----------
    algorithm : enum or Engine
        The algorithm of the descriptor call, or an engine of cuDNN's backend.
    math_type : MathType
        The math type that it was tried with.
    status : Status
        SUCCESS, or why it cannot be used.
    time_ms : float or None
        Milliseconds on the device; None where it was not run.
    spread_ms : float or None
        The distance between the quartiles of the samples that `time_ms` is the median of.
    call_us : float or None
        Microseconds of wall time that a call takes among many, made one after the other: the
        device's time or the host's, whichever is longer; None where they were not timed, and
        `time_ms` decides.
    host_us : float or None
        Microseconds until such a call returns; None with `replay`.
    call_spread_us : float or None
        The distance between the quartiles of the samples that `call_us` is the median of.
    workspace : int
        Bytes.
    deterministic : bool or None
        Whether two runs give the same bits; None where cuDNN does not say.
    error : float or None
        The relative L2 error against float64 sums; None where it was not measured.
    max_error : float or None
        The largest error of a value, relative to the largest value.
    why_not : str
        Why it cannot be used, where the status does not say it.
    remark : str
        What else is to be known of the row: for people, nothing looks anything up in it.
    within_noise : bool
        Whether the noise of the measurement hides how it compares with the first row of its search.
    replay : bool
        Whether calls are launched as a CUDA graph: `call_us` is that of a call with addresses that
        are new, copies and all.
    transient : bool
        Whether the reason why it cannot be used may be gone another time: memory that others held.
    heuristic : int or None
        Its place in the ranking by which cuDNN's heuristic chooses where nothing was tuned, the
        first is 0; None outside of it.
    passed_over : tuple of (AlgorithmResult, str)
        On what `AlgorithmTable.best` returns: the candidates before this one, each with the reason
        why it was not taken.
    """

    algorithm: Any
    math_type: MathType
    status: Status = Status.SUCCESS
    time_ms: float | None = None
    workspace: int = 0
    deterministic: bool | None = True
    error: float | None = None
    why_not: str = ""
    remark: str = ""
    spread_ms: float | None = None
    call_us: float | None = None
    host_us: float | None = None
    max_error: float | None = None
    call_spread_us: float | None = None
    transient: bool = False
    replay: bool = False
    heuristic: int | None = None
    within_noise: bool = False
    passed_over: tuple[tuple[AlgorithmResult, str], ...] = field(
        default=(), compare=False, repr=False
    )

    @property
    def ok(self) -> bool:
        """Whether it can be used."""
        return self.status == Status.SUCCESS and not self.why_not

    @property
    def comment(self) -> str:
        """The remark, and what `within_noise` says, as one text."""
        noise = WITHIN_NOISE if self.within_noise else ""
        return "; ".join(filter(None, (self.remark, noise)))

    @property
    def layout(self) -> str:
        """See `ConvolutionResult`."""
        return ""

    @property
    def find_ms(self) -> float | None:
        """See `ConvolutionResult`."""
        return None

    @property
    def reserve(self) -> int | None:
        """See `RNNResult`."""
        return None

    def __str__(self) -> str:
        time = "" if self.time_ms is None else f", {self.time_ms:.4g} ms"
        how = f"{self.math_type}{_manner(self)}"
        lines = [f"{self.algorithm} ({how}{time}, workspace {format_size(self.workspace)})"]
        if self.comment:
            lines.append(f"  {self.comment}")
        lines += [f"  not {named(other)}: {why}" for other, why in self.passed_over]
        return "\n".join(lines)


@dataclass(frozen=True)
class ConvolutionResult(AlgorithmResult):
    """A convolution's descriptor call, or that of a gradient of one, as a candidate.

    Attributes
    ----------
    layout : str
        The layout that the operands are converted to, and the result from, which `time_ms` and
        `workspace` contain; empty: they stay as they lie.
    find_ms : float or None
        The time that cudnnFind reported.
    """

    layout: str = ""
    find_ms: float | None = None


@dataclass(frozen=True)
class RNNResult(AlgorithmResult):
    """An algorithm of a recurrent network as a candidate.

    Attributes
    ----------
    reserve : int or None
        Bytes of reserve space; None for what has none.
    """

    reserve: int | None = None


def parse_max_error(value: Any, argument: str = "max_error") -> float | None:
    """Check a bound on the relative error; ArgumentError if it is none."""
    if value is None:
        return None
    with suppress(ArgumentError):
        if not isinstance(value, bool) and (number := real_number(value, argument)) >= 0:
            return number
    raise ArgumentError(f"{argument}={shown(value)}; allowed: a number, 0 or more")


def named(row: AlgorithmResult) -> str:
    """Return algorithm, math type, layout, and whether it is replayed."""
    return f"{row.algorithm} ({row.math_type}{_manner(row)})"


def _manner(row: AlgorithmResult) -> str:
    layout = f", in {row.layout}" if row.layout else ""
    replayed = ", replayed" if row.replay else ""
    return f"{layout}{replayed}"


def why_not(
    row: AlgorithmResult,
    limit: int | None,
    deterministic: bool | None,
    math_type: Any,
    max_error: float | None,
) -> str:
    """Return what excludes a candidate; empty if nothing does."""
    reasons = []
    if limit is not None and row.workspace > limit:
        reasons.append(over_limit(row.workspace, limit))
    if deterministic and not row.deterministic:
        reasons.append(
            "not deterministic"
            if row.deterministic is False
            else "cuDNN does not say if it is deterministic"
        )
    if math_type is not None and row.math_type != math_type:
        reasons.append(f"math type {row.math_type}, wanted {math_type}")
    if max_error is not None and (row.error is None or row.error > max_error):
        error = "was not measured" if row.error is None else f"is {row.error:.1e}"
        reasons.append(f"its error {error}, the bound is {max_error:.1e}")
    return "; ".join(reasons)


def ranking_ms(row: AlgorithmResult, *, latency: bool = False) -> float | None:
    """Return the milliseconds that rank rows; None if they were not measured.

    They are those of the device, or of a call with `latency`.  If the call was not timed, the
    device's time is used, which is a lower bound.
    """
    if latency and row.call_us is not None:
        return row.call_us / 1000
    return row.time_ms


def within_noise(row: AlgorithmResult, other: AlgorithmResult, *, latency: bool = False) -> bool:
    """Return whether two medians differ by at most half the quartile distance of either.

    They are those of the device's time, or of a call's with `latency`; what was not measured, or
    cannot be used, is no match.
    """
    if not (row.ok and other.ok):
        return False
    times = [each.call_us if latency else each.time_ms for each in (row, other)]
    spreads = [each.call_spread_us if latency else each.spread_ms for each in (row, other)]
    known = [value for value in (*times, *spreads) if value is not None]
    return (
        len(known) == len(times) + len(spreads) and abs(known[1] - known[0]) <= max(known[2:]) / 2
    )
