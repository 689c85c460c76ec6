"""`TimingPolicy`: how thoroughly candidates are timed."""

from __future__ import annotations

from typing import NamedTuple


class TimingPolicy(NamedTuple):
    """The numbers that a search measures by; those of `Handle.timing` count.

    Whoever wants quick searches, and no good times, asks for fewer: ``handle.timing =
    TimingPolicy(rounds=1)``.
    """

    give_up: float = 3.0  # work whose first run takes so many times the best one is not run again
    loading_ms: float = (
        50.0  # what a first run may spend on the host and on loading kernels (12 ms were seen)
    )
    always_ms: float = 0.03  # what launching a graph may take: less than this is never given up
    rounds: int = 9
    close: float = 1.05  # what lies within so many times the best, or within its own noise of it, is taken further
    further_rounds: int = 18
    most_further: int = (
        4  # times so many, as long as the best one's quartiles lie further apart than `close` says
    )
    sample_ms: float = 0.5  # a sample repeats short work until it lasts about so long: events tick in half microseconds
    most_repeats: int = 64
    least_rounds: int = 3
    may_win: float = (
        1.25  # what takes so many times the best in each of the least rounds is not taken further
    )
    most_seconds: float = 5.0  # after which no round begins, but for the least
    calls_ms: float = 4.0  # as many calls as take about so long are made one after the other
    most_calls: int = (
        20  # far fewer than fill the launch queue, where a call would wait for the device
    )
    l2_bytes: int = 256 << 20  # more than the second-level cache of any GPU
    on_chip: int = (
        64 << 20
    )  # registers and shared memory of an H200: 132 multiprocessors with 256 and 228 KiB
    # Made-up operands repeat so many random values.  An odd number, so that no axis of a tensor
    # repeats them; what a GPU takes depends a little on whether bits change, and not on whether
    # they come again after a million values.
    random_values: int = (1 << 20) + 7


DEFAULT_TIMING = TimingPolicy()
# One sample of each: of a device whose times say nothing of a GPU more of them would say no more.
ONE_LOOK = TimingPolicy(rounds=1, least_rounds=1, further_rounds=0, sample_ms=0.0, most_calls=1)
