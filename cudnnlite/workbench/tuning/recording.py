"""`record_problems`: a list of the problems that a program runs.

A plan records its problem only while somebody watches (see `call_watch`).  Otherwise a call costs
nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cudnnlite.problems import call_watch
from cudnnlite.workbench.tuning.problem_list import ProblemList


@contextmanager
def record_problems() -> Iterator[ProblemList]:
    """Record the problem of every operation that runs, on any thread, until the block ends.

    A call of a function or of a plan counts when it has returned without an error.  The calls of
    searches do not count, nor does a call with an empty batch.  A call that is captured into a CUDA
    graph counts once, however often the graph is replayed.

    Yields
    ------
    ProblemList
        It grows while the block runs, and may be read at any time.  Blocks may be nested: each has
        its own list, and all of them record.

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
    problems = ProblemList()
    with call_watch.watching(problems.add):
        yield problems
