"""`record_problems`: which problems a program poses while it runs.

A plan tests `active` and records its problem only where that is true, so that nothing is paid while
nobody records:

    if recording.active:
        recording.record(self.problem)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from cudnnlite.problems.problem import Problem
from cudnnlite.problems.problem_list import ProblemList

active = False  # whether anyone records: read as `recording.active`, because a name that is imported would not change

_lists: tuple[ProblemList, ...] = ()
_lock = Lock()
_paused = ContextVar("cudnnlite.problems.recording.paused", default=False)


@contextmanager
def record_problems() -> Iterator[ProblemList]:
    """Record the problem of every operation that runs, in whichever thread, until the block ends.

    A call counts once it was made without an error, whether through the one-line function or
    through a plan; the searches' own calls do not count, nor does a call with an empty batch.  A
    call that is captured into a CUDA graph counts once, however often the graph is replayed.

    Yields
    ------
    ProblemList
        It grows while the block runs, and may be read then too.  Blocks may be nested: each has a
        list of its own, and all of them record.

    Examples
    --------
    >>> with dnn.Handle() as handle, dnn.record_problems() as problems:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     for _ in range(2):  # your program
    ...         y = dnn.convolution_forward(handle, x, w)
    >>> print(problems[0].count, problems[0].problem.y.shape)
    2 (1, 4, 6, 6)
    """
    found = ProblemList()
    try:
        _begin(found)
        yield found
    finally:
        try:
            _end(found)
        except BaseException:  # a signal handler's, in the midst of it
            _end(found)
            raise


def _begin(found: ProblemList) -> None:
    global active, _lists
    with _lock:
        _lists, active = (*_lists, found), True


def _end(found: ProblemList) -> None:
    global active, _lists  # noqa: PLW0603
    with _lock:
        _lists = tuple(other for other in _lists if other is not found)
        active = bool(_lists)


def _renew() -> None:
    global _lock  # noqa: PLW0603
    _lock = Lock()  # a thread that held it is not in a forked process


os.register_at_fork(after_in_child=_renew)


def record(problem: Problem) -> None:
    """Count a problem in every list that records, unless this thread has paused."""
    if not _paused.get():
        with _lock:
            for found in _lists:
                found.add(problem)


@contextmanager
def paused() -> Iterator[None]:
    """Let the calls of this thread go unrecorded, those of a search for instance: nobody asked for them."""
    before = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(before)
