"""`reporting`: telling how far a tuning is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cudnnlite.arguments import shown
from cudnnlite.autotune.tuned_problem import TunedProblem
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.problem_list import summary

Report = Callable[[int, int, TunedProblem], object]  # done, of how many, the one that was done last


@contextmanager
def reporting(progress: bool | Report | None, total: int) -> Iterator[Report]:
    """Yield what is to be called for each of so many problems: True shows a bar on stderr, None and False nothing.

    ArgumentError if it is neither of these nor a callable.
    """
    if progress is None or progress is False:
        yield lambda done, of, tuned: None
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
def counting_seconds(progress: bool, total: float) -> Iterator[Callable[[float, int], bool]]:
    """Yield what is told the seconds since the beginning and how many settings ran, and answers whether the time is up."""
    if not progress:
        yield lambda seconds, ran: seconds >= total
        return
    from rich.console import Console
    from rich.progress import Progress

    # drawn at times between two trials, as below
    with Progress(console=Console(stderr=True), auto_refresh=False, redirect_stdout=False) as bar:
        task, drawn = bar.add_task("knobs", total=total), -1.0

        def count(seconds: float, ran: int) -> bool:
            nonlocal drawn
            if seconds - drawn > 0.1 or seconds >= total:
                drawn = seconds
                text = f"knobs: {ran} settings ran"
                bar.update(task, completed=min(seconds, total), description=text, refresh=True)
            return seconds >= total

        yield count
        bar.update(task, completed=total, refresh=True)


@contextmanager
def _bar(total: int) -> Iterator[Report]:
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

    name = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns: tuple[Any, ...] = (MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), name)
    # drawn when something is done, and not by a thread: that would take its time while calls are
    # timed
    with Progress(
        *columns, console=Console(stderr=True), auto_refresh=False, redirect_stdout=False
    ) as bar:
        task = bar.add_task("tuning", total=total)

        def report(done: int, of: int, tuned: TunedProblem) -> None:
            # what was remembered says nothing of how long the others take
            tell = bar.reset if tuned.from_cache else bar.update
            tell(task, completed=done, description=escape(summary(tuned.problem)))
            bar.refresh()

        bar.refresh()
        yield report
