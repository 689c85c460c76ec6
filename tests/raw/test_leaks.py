"""Owners that go without `close()`: what they own is given back, and no error gets lost."""

import gc
import sys
import threading
import weakref

import pytest
from helpers.harness import drop, run_python

from cudnnlite._raw.calls import Alive
from cudnnlite._raw.leaks import Leak, release_leaks
from cudnnlite.errors import ClosedError


class Owner:
    pass


def make_leak(release, complaint="never closed"):
    owner = Owner()
    return owner, Leak(owner, release, complaint)


def test_many_owners_in_one_collection_are_all_released():
    """CPython keeps 32 pending calls; one is enough."""
    released = []
    owners = [make_leak(lambda number=number: released.append(number))[0] for number in range(200)]
    owners.append(owners)  # a cycle
    holder = [owners]
    del owners
    with pytest.warns(ResourceWarning, match="never closed"):
        drop(holder)
    assert sorted(released) == list(range(200))


def test_the_warning_names_where_the_owner_went():
    holder = [make_leak(list)[0]]
    with pytest.warns(ResourceWarning, match="never closed") as caught:
        holder.clear()
    assert [warning.filename for warning in caught] == [__file__]


def test_what_was_detached_is_not_released():
    released = []
    owner, leak = make_leak(lambda: released.append(1))
    leak.detach()
    leak.detach()
    del owner
    assert released == []


@pytest.mark.filterwarnings("ignore:never closed:ResourceWarning")
def test_what_a_handler_raises_comes_out_and_the_others_are_released_later():
    released = []

    def interrupted():
        raise TimeoutError("late")

    first, _ = make_leak(interrupted)
    second, _ = make_leak(lambda: released.append(2))
    pair = [first, second]
    del first, second
    with pytest.raises(TimeoutError, match="late"):
        drop(pair)
    gc.collect()
    assert released == [2]


@pytest.mark.filterwarnings("ignore:never closed:ResourceWarning")
def test_a_refusal_is_shown_and_does_not_come_out(monkeypatch):
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: errors.append(args.exc_value))

    def refused():
        raise ClosedError("the handle was closed")

    owner, _ = make_leak(refused)
    del owner
    gc.collect()
    assert [str(error) for error in errors] == ["the handle was closed"]


@pytest.mark.filterwarnings("ignore:never closed:ResourceWarning")
def test_another_thread_releases_what_it_dropped_while_the_main_thread_waits():
    released = []

    def work():
        owner, _ = make_leak(lambda: released.append(threading.get_ident()))
        reference = weakref.ref(owner)
        del owner
        assert reference() is None
        release_leaks()  # as whoever makes a native object does
        released.append("end")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(released) == 2


@pytest.mark.processes
def test_the_end_of_the_interpreter_releases_nothing():
    process = run_python(
        """
        from cudnnlite._raw.leaks import Leak

        class Owner:
            pass

        class Last:
            def __del__(self):  # the module's names are gone one after the other
                owner = Owner()
                leak = Leak(owner, lambda: print("released"), "never closed")
                del owner
                sum(range(3))

        last = Last()
        last.itself = last
        print("end")
        """
    )
    assert process.stdout == "end\n"
    assert process.stderr == ""


def test_what_is_alive_is_listed_while_a_collection_runs():
    alive, threshold = Alive(), gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(3000):
            owner = Owner()
            owner.itself = owner
            alive.add(owner)
            assert owner in list(alive)
    finally:
        gc.set_threshold(*threshold)
