"""`TimingPolicy`: how thoroughly candidates are timed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cudnnlite.arguments import instance_of, integer, real_number
from cudnnlite.errors import ArgumentError

_MOST = 1 << 62
_LONGEST = 1e9
# The counts without which there is no sample.
_AT_LEAST_ONE = ("rounds", "least_rounds", "most_repeats", "most_calls", "random_values")
# Limits that are never reached if they are infinite; others are divided or rounded.
_MAY_BE_INFINITE = ("give_up", "close", "may_win", "most_seconds")
# The least number of calls in which a new candidate is tried where none may repeat its candidate,
# as those of recurrent networks: the first call runs the first candidate and may load kernels, the
# second is kept free for a time of it without loading, and the third runs a new candidate.  Where
# calls may repeat their candidate, two are enough.
_CALLS_UNTIL_A_NEW_CANDIDATE = 3


class TimingPolicy(NamedTuple):
    """How thoroughly a search measures; a handle's searches use `Handle.timing`.

    Fewer rounds make a search quicker and its times less precise: ``handle.timing =
    handle.timing._replace(rounds=1)``.
    """

    # Work is not run again if its first run takes more than this multiple of the best time.
    give_up: float = 3.0
    # The most that a first run may spend on the host and on loading kernels; 12 ms were measured.
    loading_ms: float = 50.0
    # A launch of a graph may take this time, so that work below it is never given up.
    always_ms: float = 0.03
    # Each round takes a sample of every piece of work.
    rounds: int = 9
    # Work gets further rounds if its time is within this multiple of the best, or within its noise.
    close: float = 1.05
    further_rounds: int = 18
    # How often further rounds are added, as long as the best one's quartiles are further apart than
    # `close` allows.
    most_further: int = 4
    # A sample repeats short work for about this many ms: events tick in half microseconds.
    sample_ms: float = 0.5
    most_repeats: int = 64
    # The first rounds, which are always taken.
    least_rounds: int = 3
    # Work gets no other rounds if all of the first ones take more than this multiple of the best.
    may_win: float = 1.25
    # No round begins after this time, except the first ones.
    most_seconds: float = 5.0
    # A series of calls takes about this time.
    calls_ms: float = 4.0
    # The limit is far below the launch queue: if that is full, a call waits for the device.
    most_calls: int = 20
    # More than the second-level cache of any GPU.
    l2_bytes: int = 256 << 20
    # Registers and shared memory of an H200: 132 multiprocessors with 256 and 228 KiB.
    on_chip: int = 64 << 20
    # Synthetic operands repeat a block of this many random values.  The number is odd, so that no
    # axis of a tensor has the period of the block.  The time on a GPU depends a little on how many
    # bits change, but not on a repetition after a million values.
    random_values: int = (1 << 20) + 7
    # In tuning by real calls, `real_calls` calls of a problem try candidates.  The last of them,
    # `confirming_calls`, try no new candidates, but compare those that are close.  `real_calls` is
    # at least `confirming_calls + 3`.  These fields and the next four are read when the trials of a
    # problem begin.
    real_calls: int = 12
    confirming_calls: int = 4
    # If `real_losers` candidates in a row took more than `may_win` times the best, calls try no new
    # ones.  With 0 there is no such limit.  Of 3186 convolutions and gradients on an H100, the choice
    # took 1.050 times as long as the best candidate with three losers, and 1.046 with five, whose
    # trials took the device 1.9 times as long (tools/benchmarks/candidate_order.py).
    real_losers: int = 3
    # Calls try no candidate as long as trials took more than this share of the time since the tuner
    # was made.  It is above 0; with 1 there is no such limit.  With 1/3 a program takes at most 1.5
    # times as long, but for the last trial and the waiting calls' own cost.  Many calls may pass
    # before a choice is known.
    real_share: float = 1.0
    # Calls that take the device less than this try no engine that cuDNN compiles, unless the first
    # candidate is compiled, too: compiling takes as long as 10,000 such calls.
    real_compile_ms: float = 0.05
    # A call that tries a candidate repeats short work for about this many ms.  Calls of recurrent
    # networks, and those that read their own result, are never repeated.
    real_sample_ms: float = 0.1
    # A sample of the energy repeats calls for so long: NVML's counter moves every 20 to 100 ms.
    energy_seconds: float = 1.0


DEFAULT_TIMING = TimingPolicy()
# One sample of each: for a device whose times say nothing about a GPU.
ONE_LOOK = TimingPolicy(
    rounds=1,
    least_rounds=1,
    further_rounds=0,
    sample_ms=0.0,
    most_calls=1,
    real_compile_ms=0.0,
    real_sample_ms=0.0,
)


def parse_timing(value: Any) -> TimingPolicy:
    """Return a `TimingPolicy`; ArgumentError for anything else, and for fields out of range."""
    hint = "; handle.timing._replace(rounds=1) is one"
    timing = instance_of(value, TimingPolicy, "timing", hint)
    for name, default in DEFAULT_TIMING._asdict().items():
        field, argument = getattr(timing, name), f"timing.{name}"
        if isinstance(default, int):
            integer(field, argument, int(name in _AT_LEAST_ONE), _MOST)
            continue
        _check_number(field, name, argument)
    _refuse_too_few_real_calls(timing)
    return timing


def _check_number(field: Any, name: str, argument: str) -> None:
    """Raise ArgumentError unless a field is a real number in its range."""
    if isinstance(field, (bool, np.bool_)):
        raise ArgumentError(f"{argument}={field} is not a number")
    number = real_number(field, argument)
    if name == "real_share":
        is_allowed, allowed = 0 < number <= 1, "numbers above 0, up to 1"
    elif name in _MAY_BE_INFINITE:
        is_allowed, allowed = number >= 0, "numbers from 0"
    else:
        is_allowed, allowed = 0 <= number <= _LONGEST, f"numbers from 0 to {_LONGEST:g}"
    if not is_allowed:
        raise ArgumentError(f"{argument}={number:g}; allowed: {allowed}")


def _refuse_too_few_real_calls(timing: TimingPolicy) -> None:
    """Raise ArgumentError if the calls are too few for a new candidate, so that none is tried."""
    least = timing.confirming_calls + _CALLS_UNTIL_A_NEW_CANDIDATE
    if timing.real_calls < least:
        raise ArgumentError(
            f"timing.real_calls={timing.real_calls} with timing.confirming_calls="
            f"{timing.confirming_calls}: no call would try a new candidate; allowed: real_calls "
            f"from confirming_calls + {_CALLS_UNTIL_A_NEW_CANDIDATE}, here {least}"
        )
