"""`TimingPolicy`: how thoroughly candidates are timed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cudnnlite.arguments import instance_of, integer, real_number
from cudnnlite.errors import ArgumentError

_MOST = 1 << 62
_LONGEST = 1e9
# The counts without which there is no sample.
_AT_LEAST_ONE = ("rounds", "least_rounds", "most_repeats", "most_calls")
# Limits that are never reached if they are infinite; others are divided or rounded.
_MAY_BE_INFINITE = ("give_up", "close", "may_win", "most_seconds")


class TimingPolicy(NamedTuple):
    """How thoroughly a search measures; a tuner's searches use `Tuner.timing`.

    Fewer rounds make a search quicker and its times less precise: ``tuner.timing =
    tuner.timing._replace(rounds=1)``.
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


DEFAULT_TIMING = TimingPolicy()
# One sample of each: for a device whose times say nothing about a GPU.
ONE_LOOK = TimingPolicy(
    rounds=1,
    least_rounds=1,
    further_rounds=0,
    sample_ms=0.0,
    most_calls=1,
)


def parse_timing(value: Any) -> TimingPolicy:
    """Return a `TimingPolicy`; ArgumentError for anything else, and for fields out of range."""
    hint = "; tuner.timing._replace(rounds=1) is one"
    timing = instance_of(value, TimingPolicy, "timing", hint)
    for name, default in DEFAULT_TIMING._asdict().items():
        field, argument = getattr(timing, name), f"timing.{name}"
        if isinstance(default, int):
            integer(field, argument, int(name in _AT_LEAST_ONE), _MOST)
            continue
        _check_number(field, name, argument)
    return timing


def _check_number(field: Any, name: str, argument: str) -> None:
    """Raise ArgumentError unless a field is a real number in its range."""
    if isinstance(field, (bool, np.bool_)):
        raise ArgumentError(f"{argument}={field} is not a number")
    number = real_number(field, argument)
    if name in _MAY_BE_INFINITE:
        is_allowed, allowed = number >= 0, "numbers from 0"
    else:
        is_allowed, allowed = 0 <= number <= _LONGEST, f"numbers from 0 to {_LONGEST:g}"
    if not is_allowed:
        raise ArgumentError(f"{argument}={number:g}; allowed: {allowed}")
