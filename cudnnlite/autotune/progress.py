"""`reporting`: telling how far a tuning is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cudnnlite.autotune.tuned import TunedProblem, describe
from cudnnlite.errors import ArgumentError

Report = Callable[[int, int, TunedProblem], object]  # done, of how many, the one that was done last


@contextmanager
def reporting(progress: bool | Report | None, total: int) -> Iterator[Report]:
    """Yield what is to be called for each problem that is done.

    Parameters
    ----------
    progress : bool or callable, optional
        True: a bar on stderr.  A callable: that one.  None or False: nothing is told.
    total : int
        How many problems there are.

    Raises
    ------
    ArgumentError
        It is something else.
    """
    if progress is None or progress is False:
        yield lambda done, of, tuned: None
    elif progress is True:
        with _bar(total) as report:
            yield report
    elif callable(progress):
        yield progress
    else:
        raise ArgumentError(f"progress={progress!r}; allowed: True, None, a callable of (done, total, tuned)")


@contextmanager
def _bar(total: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    name = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns: tuple[Any, ...] = (MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), name)
    console = Console(stderr=True)
    # drawn when something is done, and not by a thread: that would take its time while calls are timed
    with Progress(*columns, console=console, auto_refresh=False, redirect_stdout=False) as bar:
        task = bar.add_task("tuning", total=total)

        def report(done: int, of: int, tuned: TunedProblem) -> None:
            text = escape(describe(tuned.problem))
            if tuned.from_cache:  # it says nothing of how long the others take
                bar.reset(task, completed=done, description=text)
            else:
                bar.update(task, completed=done, description=text)
            bar.refresh()

        bar.refresh()
        yield report
