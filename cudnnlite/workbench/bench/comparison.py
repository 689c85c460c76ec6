"""Two runs of a benchmark compared: what became slower, wrong, chosen otherwise, or not served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isnan
from statistics import geometric_mean
from typing import Any

from cudnnlite.errors import ArgumentError
from cudnnlite.texts import counted
from cudnnlite.workbench.bench.rows import BenchRow, BenchRun

# The verdicts on a pair, the worst first.
NOT_SERVED, WRONG, SLOWER, LESS_EXACT = "no longer served", "wrong", "slower", "less exact"
STILL_WRONG, OTHERWISE = "wrong on both sides", "chosen otherwise"
MORE_WORKSPACE, LESS_WORKSPACE = "more workspace", "less workspace"
SERVED, RIGHT, FASTER = "served now", "right now", "faster"
ONLY_A, ONLY_B = "in A only", "in B only"
VERDICTS = (
    NOT_SERVED,
    WRONG,
    SLOWER,
    LESS_EXACT,
    STILL_WRONG,
    OTHERWISE,
    MORE_WORKSPACE,
    LESS_WORKSPACE,
    SERVED,
    RIGHT,
    FASTER,
    ONLY_A,
    ONLY_B,
)
FAILURES = (NOT_SERVED, WRONG, SLOWER, LESS_EXACT)
TIMES = ("device", "call")
_LEAST_ERROR = 1e-7  # below which a larger error is none that anybody would see


@dataclass(frozen=True)
class Thresholds:
    """From where on a difference counts.

    Attributes
    ----------
    slower : float
        A problem is slower, or faster, if its time differs by more than this share, and by more
        than the noise of the measurements.
    model_slower : float
        The model is slower if the sum of the times differs by more than this share.
    error_factor : float
        A result is less exact if its error is more than `error_factor` times the other error.
    """

    slower: float = 0.03
    model_slower: float = 0.03
    error_factor: float = 4.0


@dataclass(frozen=True)
class Pair:
    """The rows of one problem on both sides; None if a side does not have the problem."""

    a: BenchRow | None
    b: BenchRow | None
    ratio: float | None  # the time of B over that of A
    verdicts: tuple[str, ...]

    @property
    def either(self) -> BenchRow:
        """The row of A, or of B if A has none."""
        row = self.a or self.b
        assert row is not None
        return row

    @property
    def title(self) -> str:
        """The name of the layer, or the problem."""
        return self.either.name or self.either.problem

    @property
    def fails(self) -> bool:
        """Whether B is worse in something that counts."""
        return any(verdict in FAILURES for verdict in self.verdicts)


class RunComparison:
    """Two runs, problem by problem and for the model.

    Parameters
    ----------
    a, b : BenchRun
        The sides.
    thresholds : Thresholds
        The smallest differences that count.
    time : str
        "device" or "call": which times are compared.
    in_order : bool
        Whether the first problem of A is compared with the first of B, and so on: with two
        policies the problems themselves may differ, in their data types for instance.

    Attributes
    ----------
    pairs : tuple of Pair
        The pairs in the order of A, and then those that only B has.
    has_times : bool
        Whether both sides were timed on a GPU.

    Raises
    ------
    ArgumentError
        No problem is on both sides, or with `in_order` the sides have different numbers of them.
    """

    def __init__(
        self,
        a: BenchRun,
        b: BenchRun,
        thresholds: Thresholds | None = None,
        *,
        time: str = "device",
        in_order: bool = False,
    ) -> None:
        self.a, self.b = a, b
        self.thresholds = thresholds or Thresholds()
        self._time = time
        self.has_times = a.has_real_timing and b.has_real_timing
        if in_order:
            if len(a.chosen) != len(b.chosen):
                raise ArgumentError(
                    f"A has {len(a.chosen)} problems and B {len(b.chosen)}; "
                    "they cannot be compared in their order"
                )
            rows: list[tuple[BenchRow | None, BenchRow | None]] = [
                *zip(a.chosen, b.chosen, strict=True)
            ]
        else:
            rows = _matched(a.chosen, b.chosen)
        if not any(row_a and row_b for row_a, row_b in rows):
            raise ArgumentError("nothing was compared: no problem is on both sides")
        self.pairs = tuple(self._pair(row_a, row_b) for row_a, row_b in rows)

    def _pair(self, a: BenchRow | None, b: BenchRow | None) -> Pair:
        if a is None or b is None:
            return Pair(a, b, None, (ONLY_B if a is None else ONLY_A,))
        ratio = self._ratio(a, b)
        verdicts = [*_verdicts_on_service(a, b), *self._verdicts_on_results(a, b)]
        if ratio is not None and self._is_beyond_noise(a, b):
            if ratio > 1 + self.thresholds.slower:
                verdicts.append(SLOWER)
            elif ratio < 1 / (1 + self.thresholds.slower):
                verdicts.append(FASTER)
        if a.status == b.status == "ok":
            verdicts += _verdicts_on_choices(a, b)
        return Pair(a, b, ratio, tuple(sorted(verdicts, key=VERDICTS.index)))

    def us_of(self, row: BenchRow) -> float | None:
        """Return the microseconds of a row that are compared; None if it has none."""
        us = row.call_us if self._time == "call" else row.device_us
        if us is None or not 0 < us < inf:
            return None
        return us

    def _ratio(self, a: BenchRow, b: BenchRow) -> float | None:
        us_of_a, us_of_b = self.us_of(a), self.us_of(b)
        if not self.has_times or us_of_a is None or us_of_b is None:
            return None
        return us_of_b / us_of_a

    def _is_beyond_noise(self, a: BenchRow, b: BenchRow) -> bool:
        us_of_a, us_of_b = self.us_of(a), self.us_of(b)
        assert us_of_a is not None
        assert us_of_b is not None
        if self._time == "call":
            return True
        noise = max(a.device_spread_us or 0.0, b.device_spread_us or 0.0) / 2
        return abs(us_of_b - us_of_a) > noise

    def _verdicts_on_results(self, a: BenchRow, b: BenchRow) -> list[str]:
        if a.status != "ok" or b.status != "ok":
            return []
        faults_of_a, faults_of_b = _count_faults(a), _count_faults(b)
        if faults_of_b > faults_of_a:
            return [WRONG]
        if faults_of_b:
            return [STILL_WRONG]
        if faults_of_a:
            return [RIGHT]
        if a.error is None or b.error is None:
            return []
        least = max(a.error, _LEAST_ERROR)
        return [LESS_EXACT] if b.error > self.thresholds.error_factor * least else []

    @property
    def totals(self) -> tuple[float, float] | None:
        """The microseconds of the model on each side, of the problems timed on both; or None."""
        timed = [pair for pair in self.pairs if pair.ratio is not None]
        if not timed:
            return None
        us_of_a = us_of_b = 0.0
        for pair in timed:
            assert pair.a is not None
            assert pair.b is not None
            us_of_a += pair.a.count * (self.us_of(pair.a) or 0.0)
            us_of_b += pair.a.count * (self.us_of(pair.b) or 0.0)
        return us_of_a, us_of_b

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what the ratios and the sums leave out."""
        return (*self._notes_on_conditions(), *self._notes_on_sums())

    def _notes_on_conditions(self) -> Iterator[str]:
        if not self.has_times:
            return
        device_of_a, device_of_b = (run.facts.get("device") for run in (self.a, self.b))
        if device_of_a != device_of_b:
            yield f"A was timed on {device_of_a}, B on {device_of_b}"
        flushes_of_a, flushes_of_b = (_flushes_l2(run) for run in (self.a, self.b))
        if flushes_of_a != flushes_of_b:
            flushed, other = ("A", "B") if flushes_of_a else ("B", "A")
            yield f"{flushed} was timed with operands outside of the L2 cache, {other} was not"

    def _notes_on_sums(self) -> Iterator[str]:
        """Yield the times that the sums leave out, because the other side has none for them."""
        for letter, other in ("AB", "BA"):
            count, us = self._time_of_one_side(letter)
            if count:
                problems = counted(count, "problem")
                yield (
                    f"not in the sums: {problems} without a time in {other}, "
                    f"{us / 1e3:.4f} ms with {letter}"
                )

    def _time_of_one_side(self, letter: str) -> tuple[int, float]:
        """Return how many problems only this side has a time for, and their microseconds."""
        count, total_us = 0, 0.0
        for pair in self.pairs:
            row = pair.a if letter == "A" else pair.b
            if not self.has_times or pair.ratio is not None or row is None:
                continue
            us = self.us_of(row)
            if us is not None:
                count += 1
                total_us += row.count * us
        return count, total_us

    @property
    def mean(self) -> float | None:
        """The geometric mean of the ratios; None if nothing was timed."""
        ratios = [pair.ratio for pair in self.pairs if pair.ratio is not None]
        return geometric_mean(ratios) if ratios else None

    @property
    def model_is_slower(self) -> bool:
        """Whether the sum of B's times is longer than the threshold allows."""
        totals = self.totals
        return totals is not None and totals[1] > (1 + self.thresholds.model_slower) * totals[0]

    @property
    def fails(self) -> bool:
        """Whether B is worse in something that counts."""
        return self.model_is_slower or any(pair.fails for pair in self.pairs)

    def counts(self) -> dict[str, int]:
        """Return how many pairs each verdict has; those that none has are left out."""
        counts = {
            verdict: sum(verdict in pair.verdicts for pair in self.pairs) for verdict in VERDICTS
        }
        return {verdict: count for verdict, count in counts.items() if count}

    def to_plain(self, names: Sequence[str]) -> dict[str, Any]:
        """Return everything as JSON can hold it; `names` are those of the sides."""
        totals = self.totals
        return {
            "a": {"name": names[0], "facts": dict(self.a.facts)},
            "b": {"name": names[1], "facts": dict(self.b.facts)},
            "thresholds": asdict(self.thresholds),
            "counts": self.counts(),
            "fails": self.fails,
            "notes": list(self.notes),
            "geometric_mean": self.mean,
            "total_us": None if totals is None else list(totals),
            "problems": [
                {
                    "problem": pair.either.problem,
                    "name": pair.either.name,
                    "verdicts": list(pair.verdicts),
                    "ratio": pair.ratio,
                    "a": None if pair.a is None else pair.a.to_plain(),
                    "b": None if pair.b is None else pair.b.to_plain(),
                }
                for pair in self.pairs
            ],
        }


def _matched(
    rows_of_a: Sequence[BenchRow], rows_of_b: Sequence[BenchRow]
) -> list[tuple[BenchRow | None, BenchRow | None]]:
    """Return the rows of equal problems together, in the order of A; then what only B has."""
    by_key: Mapping[str, BenchRow] = {_key(row): row for row in rows_of_b}
    keys_of_a = {_key(row) for row in rows_of_a}
    pairs: list[tuple[BenchRow | None, BenchRow | None]] = [
        (row, by_key.get(_key(row))) for row in rows_of_a
    ]
    pairs += [(None, row) for row in rows_of_b if _key(row) not in keys_of_a]
    return pairs


def _key(row: BenchRow) -> str:
    return row.key or row.problem


def _verdicts_on_service(a: BenchRow, b: BenchRow) -> list[str]:
    if a.status == "ok" and b.status != "ok":
        return [NOT_SERVED]
    if a.status != "ok" and b.status == "ok":
        return [SERVED]
    return []


def _count_faults(row: BenchRow) -> int:
    """Return how many things are wrong with a row; an error that is NaN is one of them."""
    has_no_error = row.error is not None and isnan(row.error)
    return len(row.findings) + has_no_error


def _flushes_l2(run: BenchRun) -> bool:
    policy = run.facts.get("policy")
    return isinstance(policy, Mapping) and bool(policy.get("flush_l2"))


def _verdicts_on_choices(a: BenchRow, b: BenchRow) -> list[str]:
    if _is_chosen_otherwise(a, b):
        return [OTHERWISE]
    if a.workspace is None or b.workspace is None or a.workspace == b.workspace:
        return []
    return [MORE_WORKSPACE if b.workspace > a.workspace else LESS_WORKSPACE]


def _is_chosen_otherwise(a: BenchRow, b: BenchRow) -> bool:
    """Whether another candidate is chosen; two names of equal kernels are one candidate."""
    if a.kernels and b.kernels:
        return a.kernels != b.kernels
    return a.candidate != b.candidate
