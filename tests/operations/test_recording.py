"""Recording: every open list gets every problem, from every thread.

Calls cost nothing more when no list is open.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

import pytest

import cudnnlite as dnn
from cudnnlite import convolution_forward
from cudnnlite.problems import call_watch
from cudnnlite.problems.call_watch import paused, record
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.recording import record_problems


def problem(channels: int = 1) -> Problem:
    return convolution_forward.problem(
        dnn.TensorSpec((1, channels, 5, 5)), dnn.FilterSpec((1, channels, 3, 3))
    )


def counts(problems):
    return {entry.problem: entry.count for entry in problems}


def test_a_list_fills_while_the_block_runs():
    assert not call_watch.active
    record(problem())  # nobody listens
    with record_problems() as problems:
        assert call_watch.active
        assert len(problems) == 0
        record(problem(1))
        assert counts(problems) == {problem(1): 1}
        record(problem(2))
        record(problem(1))
    record(problem(1))
    assert not call_watch.active
    assert counts(problems) == {problem(1): 2, problem(2): 1}


def test_blocks_nest_and_all_lists_record():
    with record_problems() as outer:
        record(problem(1))
        with record_problems() as inner:
            record(problem(2))
        assert call_watch.active
        record(problem(3))
        with record_problems() as later:
            record(problem(4))
    assert not call_watch.active
    assert counts(outer) == {problem(n): 1 for n in (1, 2, 3, 4)}
    assert counts(inner) == {problem(2): 1}
    assert counts(later) == {problem(4): 1}


def test_blocks_may_end_in_any_order():
    first, second = record_problems(), record_problems()
    one = first.__enter__()
    two = second.__enter__()
    first.__exit__(None, None, None)
    assert call_watch.active
    record(problem())
    second.__exit__(None, None, None)
    assert not call_watch.active
    assert (one.total, two.total) == (0, 1)


def test_a_block_that_fails_ends_its_recording():
    references = []
    with suppress(KeyError), record_problems() as problems:
        references.append(problems)
        record(problem())
        raise KeyError
    assert not call_watch.active
    assert references[0].total == 1


@pytest.fixture
def eager_threads():
    """Let Python change threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_all_threads_are_recorded_and_no_count_is_lost():
    calls, barrier = 1000, threading.Barrier(5)

    def work(number):
        barrier.wait()
        for call in range(calls):
            record(problem(1 + call % 2))
            if call % 100 == number:
                with record_problems() as inner_problems:
                    record(problem(3))
                assert inner_problems.total >= 1  # and what the others did meanwhile

    with record_problems() as problems:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        barrier.wait()
        while any(thread.is_alive() for thread in threads):
            assert sum(entry.count for entry in problems) <= 4 * (calls + 10)  # read while it grows
        for thread in threads:
            thread.join()
    assert counts(problems) == {
        problem(1): 4 * calls // 2,
        problem(2): 4 * calls // 2,
        problem(3): 4 * calls // 100,
    }
    assert not call_watch.active


def test_a_pause_is_for_one_thread_and_nests():
    with record_problems() as problems:
        with paused():
            record(problem(1))
            with paused():
                record(problem(1))
            record(problem(1))
            thread = threading.Thread(target=record, args=(problem(2),))
            thread.start()
            thread.join()
        record(problem(3))
        with suppress(KeyError), paused():
            raise KeyError
        record(problem(3))
    assert counts(problems) == {problem(2): 1, problem(3): 2}
