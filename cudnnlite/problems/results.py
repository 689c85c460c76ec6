"""The candidates of a search, and how two of them are compared."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from cudnnlite.arguments import real_number, shown
from cudnnlite.enums import MathType, Status
from cudnnlite.errors import ArgumentError
from cudnnlite.sizes import format_size, over_limit

# Why an engine is passed over that a capture would refuse.  Most who print a choice have asked for
# no CUDA graph: the text of a choice counts these candidates, and `passed_over` has the reason.
MAKES_A_TEXTURE = "it makes a texture when it runs, which no CUDA graph can record"
WITHIN_NOISE = "within the noise of the first"
# The sources of a choice that the caller did not make: `AlgorithmResult.source`.
HEURISTIC = "cuDNN's heuristic"
CACHE = "the cache"
SEARCH = "a search"
# The most that noise accounts for, as a fraction of the smaller measurement.  A candidate that was
# measured wildly is not as fast as the best: one of 28 us was chosen so beside one of 7.
_MOST_NOISE = 0.05
_MOST_NOISE_OF_CALLS = 0.15  # of the wall time of calls


@dataclass(frozen=True)
class Choice:
    """What a call applies of a candidate, always together.

    Attributes
    ----------
    algorithm : enum or Engine
        The algorithm of the descriptor call, or an engine of cuDNN's backend.
    math_type : MathType
        The math type with which the candidate was tried.
    layout : str
        The layout to which each call of a convolution converts the operands that have another one,
        and from which it converts the result, by `cudnnTransformTensor`.  Empty if the algorithm or
        engine gets the operands as they are; an engine may convert them itself.  `time_ms` and
        `workspace` include the conversions.
    replay : bool
        Whether calls are launched as a CUDA graph.  Then `call_us` is the time of a call with new
        addresses, including the copies.
    workspace : int
        Bytes of workspace.
    """

    algorithm: Any
    math_type: MathType
    layout: str = ""
    replay: bool = False
    workspace: int = 0


@dataclass(frozen=True)
class Measurement:
    """What was measured of a candidate; None stands for what was not.

    Attributes
    ----------
    time_ms : float or None
        Milliseconds on the device.
    spread_ms : float or None
        The distance between the quartiles of the samples whose median is `time_ms`.
    call_us : float or None
        Microseconds of wall time for a call in a series of calls: the device's time or the host's,
        whichever is longer.  If calls were not timed, `time_ms` decides.
    host_us : float or None
        Microseconds until such a call returns; None with `replay`.
    call_spread_us : float or None
        The distance between the quartiles of the samples whose median is `call_us`.
    find_ms : float or None
        The time that cudnnFind reported.
    error : float or None
        The relative L2 error against float64 sums.
    max_error : float or None
        The largest error of a value, relative to the largest value.
    """

    time_ms: float | None = None
    spread_ms: float | None = None
    call_us: float | None = None
    host_us: float | None = None
    call_spread_us: float | None = None
    find_ms: float | None = None
    error: float | None = None
    max_error: float | None = None


@dataclass(frozen=True)
class AlgorithmResult(Measurement, Choice):
    """One candidate of a search: a `Choice`, its `Measurement`, and whether it can be used.

    Its `algorithm`, `math_type`, `layout`, `replay` and `workspace` are those of the choice.  The
    measurement has the times `time_ms`, `spread_ms`, `call_us`, `host_us`, `call_spread_us` and
    `find_ms`, and the errors `error` and `max_error`.

    Attributes
    ----------
    status : Status
        SUCCESS, or the reason why it cannot be used.
    deterministic : bool or None
        Whether two runs give the same bits; None if cuDNN does not say.
    reserve : int or None
        Bytes of reserve space of a recurrent network in training; None if there is none.
    why_not : str
        The reason why it cannot be used, if the status does not say it.
    transient : bool
        Whether the reason why it cannot be used may pass, such as memory that others held.
    remark : str
        Further facts for people; no code reads them.
    compiled : bool
        Whether it is an engine that cuDNN compiles at run time, which takes 0.2 to 1.1 s.  Known of
        the candidates of a search and of a plan's choice.
    heuristic : int or None
        Its place, from 0, in the ranking of cuDNN's heuristic, which chooses if nothing was tuned;
        None if it is not in the ranking.
    within_noise : bool
        Whether its time differs from that of the first row by less than the noise.
    same_kernel : str
        The name of the candidate that was timed instead of this one, because both run the same
        kernel; empty if it was timed itself.
    source : str
        Of a plan's choice, who made it: "cuDNN's heuristic", "the cache", or "a search", if a tuner
        has measured it just now.  Empty for a choice that the caller made, and for the rows of a
        table.
    conversions : tuple of str
        Of a plan's choice, the operands that each call converts, the result included: "x", "y".
    passed_over : tuple of (AlgorithmResult, str)
        Of a choice, made by `AlgorithmTable.best` or by cuDNN's heuristic for a plan: the
        candidates before this one, each with the reason why it was not chosen.
    """

    status: Status = Status.SUCCESS
    deterministic: bool | None = True
    reserve: int | None = None
    why_not: str = ""
    transient: bool = False
    remark: str = ""
    compiled: bool = False
    heuristic: int | None = None
    within_noise: bool = False
    same_kernel: str = ""
    source: str = field(default="", compare=False)
    conversions: tuple[str, ...] = field(default=(), compare=False, repr=False)
    passed_over: tuple[tuple[AlgorithmResult, str], ...] = field(
        default=(), compare=False, repr=False
    )

    @property
    def ok(self) -> bool:
        """Whether it can be used."""
        return self.status == Status.SUCCESS and not self.why_not

    @property
    def comment(self) -> str:
        """The remark, and notes on `same_kernel` and `within_noise`, as one text."""
        same = f"here the same kernel as {self.same_kernel}" if self.same_kernel else ""
        noise = WITHIN_NOISE if self.within_noise else ""
        return "; ".join(filter(None, (self.remark, same, noise)))

    def __repr__(self) -> str:
        """Return the arguments that make the result, without those that have their default."""
        arguments = [
            f"{attribute.name}={getattr(self, attribute.name)!r}"
            for attribute in fields(self)
            if attribute.repr and getattr(self, attribute.name) != attribute.default
        ]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def __str__(self) -> str:
        time = "" if self.time_ms is None else f", {self.time_ms:.4g} ms"
        # cuDNN's name for it does not say that float32 is not multiplied as such.
        math = "DEFAULT: TF32 for float32" if self.math_type == MathType.DEFAULT else self.math_type
        how = f"{math}{_manner(self)}"
        lines = [f"{self.algorithm} ({how}{time}, workspace {format_size(self.workspace)})"]
        if self.conversions:
            lines.append(f"  in {self.layout}: converts {', '.join(self.conversions)}")
        if self.source:
            lines.append(f"  chosen by {self.source}")
        if self.comment:
            lines.append(f"  {self.comment}")
        explained = [row for row in self.passed_over if row[1] != MAKES_A_TEXTURE]
        lines += [f"  not {named(other)}: {why}" for other, why in explained]
        count = len(self.passed_over) - len(explained)
        if count:
            was = "was" if count == 1 else "were"
            lines.append(f"  {count} more {was} passed over; the attribute passed_over says why")
        return "\n".join(lines)


def parse_max_error(value: Any, argument: str = "max_error") -> float | None:
    """Return a bound on the relative error; ArgumentError for anything else."""
    if value is None:
        return None
    with suppress(ArgumentError):
        if not isinstance(value, bool) and (number := real_number(value, argument)) >= 0:
            return number
    raise ArgumentError(f"{argument}={shown(value)}; allowed: a number, 0 or more")


def named(row: Choice) -> str:
    """Return a candidate as a text: algorithm, math type, layout, and whether it is replayed."""
    return f"{row.algorithm} ({row.math_type}{_manner(row)})"


def named_together(rows: Iterable[Choice]) -> str:
    """Return candidates as one text that groups math types, as "FFT (FMA, DEFAULT)"."""
    math_types: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        math_types.setdefault((str(row.algorithm), _manner(row)), []).append(str(row.math_type))
    return ", ".join(
        f"{algorithm} ({', '.join(names)}{manner})"
        for (algorithm, manner), names in math_types.items()
    )


def kernel_of(row: AlgorithmResult) -> str:
    """Return a name that candidates share if they run the same kernel, replayed or not."""
    return row.same_kernel or named(replace(row, replay=False))


def _manner(row: Choice) -> str:
    """Return the layout and whether the candidate is replayed, each after a comma."""
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
    """Return the limits that exclude a candidate; empty if none does."""
    reasons = []
    if limit is not None and row.workspace > limit:
        reasons.append(over_limit(row.workspace, limit))
    if deterministic and row.deterministic is None:
        reasons.append("cuDNN does not say if it is deterministic")
    elif deterministic and not row.deterministic:
        reasons.append("not deterministic")
    if math_type is not None and row.math_type != math_type:
        reasons.append(f"math type {row.math_type}, wanted {math_type}")
    if max_error is not None:
        if row.error is None:
            reasons.append(f"its error was not measured, the bound is {max_error:.1e}")
        elif row.error > max_error:
            reasons.append(f"its error is {row.error:.1e}, the bound is {max_error:.1e}")
    return "; ".join(reasons)


def ranking_ms(row: Measurement, *, latency: bool = False) -> float | None:
    """Return the milliseconds that rank rows; None if they were not measured.

    The result is the device's time, or the call's time with `latency`.  If the call was not timed,
    the device's time is used, which is a lower bound.
    """
    if latency and row.call_us is not None:
        return row.call_us / 1000
    return row.time_ms


def within_noise(row: AlgorithmResult, other: AlgorithmResult, *, latency: bool = False) -> bool:
    """Return whether two medians differ by less than the noise of their measurement.

    The medians are of the device's time, or of the call's time with `latency`.  The result is False
    if a row was not measured, or cannot be used.
    """
    if not (row.ok and other.ok):
        return False
    if latency:
        time, spread = row.call_us, row.call_spread_us
        other_time, other_spread = other.call_us, other.call_spread_us
    else:
        time, spread = row.time_ms, row.spread_ms
        other_time, other_spread = other.time_ms, other.spread_ms
    if time is None or spread is None or other_time is None or other_spread is None:
        return False
    most = _MOST_NOISE_OF_CALLS if latency else _MOST_NOISE
    return abs(other_time - time) <= _noise_of((time, spread), (other_time, other_spread), most)


def _noise_of(one: tuple[float, float], other: tuple[float, float], most: float) -> float:
    """Return the noise of two measurements, each of which is a median and a spread.

    The spread is the distance between the quartiles.  The noise is half the larger spread, but at
    most the fraction `most` of the smaller median.
    """
    (median, spread), (other_median, other_spread) = one, other
    return min(max(spread, other_spread) / 2, most * min(median, other_median))
