"""`reporting`: the progress of a tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cudnnlite.arguments import shown
from cudnnlite.errors import ArgumentError, MissingPackageError
from cudnnlite.workbench.tuning.problem_list import summary
from cudnnlite.workbench.tuning.tuned_problem import TunedProblem

# The number of tuned problems, the number of all, and the problem that was tuned last.
Report = Callable[[int, int, TunedProblem], object]


@contextmanager
def reporting(progress: bool | Report | None, total: int) -> Iterator[Report]:
    """Yield a function to call after each of `total` problems.

    True shows a bar on stderr; None and False show nothing; a callable is yielded as it is.
    ArgumentError for anything else.
    """
    if progress is None or progress is False:
        yield lambda count, total, tuned: None
    elif progress is True:
        with _bar(total) as report:
            yield report
    elif callable(progress):
        yield progress
    else:
        raise ArgumentError(
            f"progress={shown(progress)}; allowed: True, None, a callable of (done, total, tuned)"
        )


@contextmanager
def _bar(total: int) -> Iterator[Report]:
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column
    except ImportError as error:
        raise MissingPackageError(
            "progress=True needs rich: pip install 'cudnnlite[cli]', or pass a callable"
        ) from error

    name = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns: tuple[Any, ...] = (MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), name)
    # The bar is drawn after each problem, and not by a thread: a thread would take time from the
    # calls that are timed.
    with Progress(
        *columns, console=Console(stderr=True), auto_refresh=False, redirect_stdout=False
    ) as bar:
        task = bar.add_task("tuning", total=total)

        def report(count: int, total: int, tuned: TunedProblem) -> None:
            description = escape(summary(tuned.problem))
            if tuned.from_cache:
                # A result from the cache does not show how long the other problems take.
                bar.reset(task, completed=count, description=description)
            else:
                bar.update(task, completed=count, description=description)
            bar.refresh()

        bar.refresh()
        yield report
