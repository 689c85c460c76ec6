"""The tuning cache between processes.

No entry is lost or half written, however the processes write, die or fork.
"""

import errno
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from helpers.tuning_entries import entry, finish_child, run_child, start_child
from helpers.tuning_files import DAMAGE, file_of, fill

from cudnnlite.devices.device import DeviceFacts
from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.gpu_locks import measuring_alone

pytestmark = pytest.mark.processes
DEATHS = int(os.environ.get("CUDNNLITE_TEST_DEATHS", "30"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuning"


@pytest.fixture
def start():
    """Start children; none of them outlives the test."""
    children = []

    def starting(code, path):
        children.append(start_child(code, path))
        return children[-1]

    yield starting
    for child in children:
        child.kill()
        child.communicate()


def numbers_in(path, count):
    """The numbers of the entries in a cache, each as it was put; nothing else may be there."""
    with TuningCache(path) as cache:
        numbers = [
            number for number in range(count) if cache.get(entry(number).key) == entry(number)
        ]
        assert len(cache) == len(cache.entries()) == len(numbers)
    assert sorted(os.listdir(path)) == sorted(file_of(path, number).name for number in numbers)
    return numbers


# ---------------------------------------------------------------- writing at once

WRITE = """
def writer(first):
    with TuningCache(path) as cache:
        for number in range(first, first + 40):
            cache.put(entry(number))
            assert TuningCache(path).get(entry(first).key) == entry(first)
        assert [number for number in range(first, first + 40) if cache.get(entry(number).key) != entry(number)] == []
print(json.dumps(forked(*[lambda first=first: writer(first) for first in range(0, 160, 20)])))
"""


def test_processes_write_at_once(commands, path):
    """Each 40 entries, of which half are another's too, into a folder that none finds there."""
    assert run_child(commands, WRITE, path) == [0] * 8
    assert numbers_in(path, 180) == list(range(180))


FIND_DAMAGE = """
def look():
    cache = TuningCache(path)
    for number in range(12):
        if cache.get(entry(number).key) is None:
            cache.put(entry(number))
print(json.dumps(forked(*[look] * 4)))
"""


def test_processes_that_find_damage_at_once(commands, path):
    """One of them sets each file aside, and none sets the new file of another aside."""
    fill(path, 12)
    for number in range(12):
        DAMAGE["half of it"](file_of(path, number))
    assert sum(run_child(commands, FIND_DAMAGE, path)) == 12
    aside = list(path.glob("*.damaged"))
    assert len(aside) == 12
    for file in aside:
        file.unlink()
    assert numbers_in(path, 12) == list(range(12))


# ---------------------------------------------------------------- dying

KILL = """
import random, signal, time
random = random.Random(4)
lost, signals, reports, drafts = [], [], 0, 0
for attempt in range(DEATHS):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            cache, number = TuningCache(path), 0
            while True:  # every second put replaces an entry that each of the others has put too
                made = entry(number // 2 + 1000 * attempt, time_ms=0.125) if number % 2 else entry(0, time_ms=1.0 + number)
                cache.put(made)
                os.write(writer, bytes([number % 250]))
                number += 1
        finally:
            os._exit(1)
    os.close(writer)
    acknowledged = b""
    if attempt % 10 >= 3:  # the others perhaps while they make the folder
        while len(acknowledged) < random.randrange(2, 10):
            acknowledged += os.read(reader, 1)
    time.sleep(random.uniform(0, 0.003))
    os.kill(child, signal.SIGKILL)
    signals.append(os.WTERMSIG(os.waitpid(child, 0)[1]))
    while more := os.read(reader, 2**16):
        acknowledged += more
    os.close(reader)
    reports += len(acknowledged)
    cache = TuningCache(path)
    for number in range(1, len(acknowledged), 2):
        if cache.get(entry(number // 2 + 1000 * attempt).key) != entry(number // 2 + 1000 * attempt, time_ms=0.125):
            lost.append([attempt, number])
    if reports and cache.get(entry(0).key) is None:
        lost.append([attempt, 0])
cache = TuningCache(path)
files = os.listdir(path)
entries = [name for name in files if name.endswith(".json")]
print(json.dumps([
    signals, reports, lost, told, len(cache.entries()) - len(entries),
    [name for name in files if not name.endswith((".json", ".tmp"))],
]))
"""


def test_deaths_in_the_middle_of_writing(commands, path):
    """What was reported as saved is there, and no file is half written."""
    signals, reported, lost, messages, unreadable, other_files = run_child(
        commands, KILL.replace("DEATHS", str(DEATHS)), path
    )
    assert signals == [signal.SIGKILL] * DEATHS
    assert (
        reported > 2 * DEATHS
    )  # what is waited for is 3 of each on average; the rest depends on the machine
    assert (lost, messages, unreadable, other_files) == ([], [], 0, [])


# ---------------------------------------------------------------- forking

FORK = """
import ctypes, threading
fork = FUNCTION
with TuningCache(path) as cache, TuningCache(":memory:") as memory:
    for each in (cache, memory):
        each.put(entry(0))
    done = threading.Event()
    def work(first):
        for number in range(first, first + 500):
            if not done.is_set():
                cache.put(entry(number))
                last[first] = number
    last = {}
    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in THREADS]
    for thread in threads:
        thread.start()
    codes = []
    for number in range(1, 21):
        child = fork()  # in the middle of whatever the threads do
        if child == 0:
            for each in (cache, memory):
                each.put(entry(number))
                assert each.get(entry(0).key) == entry(0)
                assert each.get(entry(number).key) == entry(number)
            os._exit(len(told))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    done.set()
    for thread in threads:
        thread.join()
    print(json.dumps([codes, last, len(memory), told]))
"""


@pytest.mark.parametrize(
    ("function", "threads"), [("os.fork", "(1, 2)"), ("ctypes.PyDLL(None).fork", "()")]
)
def test_a_forked_child_uses_the_cache_of_its_parent(commands, path, function, threads):
    """A child is forked while threads write.

    Without threads, it may also be forked without Python's knowledge.
    """
    codes, last, in_memory, messages = run_child(
        commands, FORK.replace("FUNCTION", function).replace("THREADS", threads), path
    )
    assert (codes, in_memory, messages) == ([0] * 20, 1, [])
    expected = [
        *range(21),
        *(number for first, end in last.items() for number in range(int(first), end + 1)),
    ]
    with TuningCache(path) as cache:
        assert [
            number for number in expected if cache.get(entry(number).key) != entry(number)
        ] == []
        assert len(cache) == len(expected)


# ---------------------------------------------------------------- one measures at a time

GPU = """
import tempfile, time
from types import SimpleNamespace
from cudnnlite.workbench.tuning.gpu_locks import measuring_alone
from cudnnlite.devices.device import DeviceFacts
gpu = SimpleNamespace(has_real_timing=True, facts=lambda: DeviceFacts("H", "9.0", "1", "GPU-1/x"))
"""
COUNT = """
counter, marker = folder + "/counter", folder + "/marker"
def count():
    if OWN_TEMPORARY: tempfile.tempdir = tempfile.mkdtemp(dir=folder)
    with TuningCache(path) as cache:
        for _ in range(60):
            with measuring_alone(gpu, cache if OWN_TEMPORARY else None), measuring_alone(gpu, cache):  # it may enter again
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails if somebody else is inside
                value = int(open(counter).read())
                time.sleep(0.0002)
                open(counter, "w").write(str(value + 1))
                os.unlink(marker)
print(json.dumps(forked(*[count] * 3)))
"""


@pytest.mark.parametrize(
    "own_folder", [False, True], ids=["one temporary folder", "one cache only"]
)
def test_one_process_at_a_time(commands, path, own_folder, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(path.parent))
    counter = path.with_name("counter")
    counter.write_text("0")
    code = GPU + COUNT.replace("OWN_TEMPORARY", str(own_folder))
    assert run_child(commands, code, path) == [0, 0, 0]
    assert counter.read_text() == "180"
    assert not list(path.parent.rglob("*.lock"))


HOLD = """
with TuningCache(path) as cache, measuring_alone(gpu, cache):
    child = FORK
    if child == 0: WHAT_THE_CHILD_DOES
    print(child, flush=True)
    input()
print("null")
"""


@pytest.mark.parametrize("end", ["release", "kill", "a child leaves", "a child stays"])
def test_a_lock_is_free_when_its_holder_is_gone(start, path, end, monkeypatch):
    """The lock is released then and no earlier.

    A forked child neither releases it by leaving the block nor keeps it by living on.
    """
    monkeypatch.setenv("TMPDIR", str(path.parent))
    monkeypatch.setattr("tempfile.tempdir", str(path.parent))
    does = {
        "a child leaves": "raise SystemExit",
        "a child stays": "time.sleep(1000); os._exit(0)",
    }.get(end)
    hold = HOLD.replace("FORK", "os.fork()" if does else "1").replace(
        "WHAT_THE_CHILD_DOES", does or "pass"
    )
    holder = start(GPU + hold, path)
    child = int(holder.stdout.readline())
    gpu = SimpleNamespace(
        has_real_timing=True, facts=lambda: DeviceFacts("H", "9.0", "1", "GPU-1/x")
    )

    def enter():
        with TuningCache(path) as cache, measuring_alone(gpu, cache):
            pass

    entering = threading.Thread(target=enter)
    entering.start()
    time.sleep(0.3)
    assert entering.is_alive()
    assert (
        len(list(path.parent.rglob("*.lock"))) == 2
    )  # it is held: who waits would have removed them by now
    if end == "release":
        finish_child(holder, "now\n")
    else:
        holder.kill()
    entering.join()
    if end == "a child stays":
        os.kill(child, signal.SIGKILL)


def test_a_file_system_without_locks_is_done_without(path, monkeypatch):
    """A mere file in place of the lock would hold up everybody once its process is killed."""

    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr("tempfile.tempdir", str(path.parent))
    gpu = SimpleNamespace(has_real_timing=True, facts=lambda: DeviceFacts("H", "9.0", "1", "GPU-1"))
    for number in range(2):
        with TuningCache(path) as cache, measuring_alone(gpu, cache):
            cache.put(entry(number))
    assert all(file.stat().st_size == 0 for file in path.parent.rglob("*.lock"))  # nobody's mark
