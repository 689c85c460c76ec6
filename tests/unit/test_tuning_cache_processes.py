"""The tuning cache between processes: nothing is lost and nothing is there twice, however they write, die or fork."""

import os
import signal
import sqlite3
import threading
from contextlib import closing

import pytest

from cudnnlite.autotune.cache import TuningCache

from .tuning_entries import entry, finish_child, run_child, start_child

pytestmark = pytest.mark.processes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuning.sqlite"


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
        found = [number for number in range(count) if cache.get(entry(number).key) == entry(number)]
        assert len(cache) == len(cache.entries()) == len(found)
    return found


def start_together(start, path, *codes):
    """Start children that first wait for each other; return what each prints in the end."""
    children = [start('print("ready", flush=True); input()\n' + code, path) for code in codes]
    for child in children:
        assert child.stdout.readline() == "ready\n", child.communicate()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    return [finish_child(child) for child in children]


# ---------------------------------------------------------------- writing at once

WRITE = """
with TuningCache(path) as cache:
    for number in range(FIRST, FIRST + 200):
        cache.put(entry(number))
    found = [number for number in range(FIRST, FIRST + 200) if cache.get(entry(number).key) == entry(number)]
print(json.dumps([len(found), told]))
"""


def test_two_processes_write_at_once(start, path):
    """Each 200 entries, of which 100 are the other's too, into a file that neither finds there."""
    reports = start_together(start, path, *(WRITE.replace("FIRST", str(first)) for first in (0, 100)))
    assert reports == [[200, []], [200, []]]
    assert numbers_in(path, 300) == list(range(300))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(
            "SELECT count(*), count(DISTINCT digest), count(DISTINCT key) FROM entries"
        ).fetchall() == [(300, 300, 300)]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert os.listdir(path.parent) == ["tuning.sqlite"]


WRITE_AND_READ = """
with TuningCache(path) as cache:
    for number in range(FIRST, FIRST + 20):
        cache.put(entry(number))
        mine = [cache.get(entry(n).key) == entry(n) for n in range(FIRST, number + 1)]
        assert all(mine)
print(json.dumps(told))
"""


def test_processes_that_find_a_damaged_file_at_once(start, path):
    """One of them sets it aside, and none sets the new file of another aside."""
    path.write_text("shopping list\n" * 1000)
    reports = start_together(start, path, *(WRITE_AND_READ.replace("FIRST", str(20 * child)) for child in range(4)))
    assert sum(map(len, reports)) == 1
    assert numbers_in(path, 80) == list(range(80))
    assert sorted(os.listdir(path.parent)) == ["tuning.sqlite", "tuning.sqlite.damaged-1"]


def test_a_process_that_has_a_file_open_which_another_sets_aside(start, path):
    """What it writes afterwards goes into the new file."""
    with TuningCache(path) as cache:
        for number in range(10):
            cache.put(entry(number))
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 0")  # now it is damaged, and open here
        (told,) = run_child(WRITE_AND_READ.replace("FIRST", "10"), path)
        assert "damaged-1" in told
        cache.put(entry(30))
        assert cache.get(entry(15).key) == entry(15)
        assert cache.get(entry(5).key) == entry(5)  # from memory
    assert numbers_in(path, 40) == list(range(10, 31))


# ---------------------------------------------------------------- dying

KILL = """
import random, signal, sqlite3, time
random = random.Random(4)
reports, lost, verdicts, signals = [], [], [], []
for attempt in range(100):
    path = f"{folder}/{attempt // 10}"  # ten files, so that some children die while they make one
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            cache, number = TuningCache(path), 1000 * attempt
            while True:
                made = entry(number)
                cache.put(made)
                os.write(writer, made.key.digest.encode())
                number += 1
        finally:
            os._exit(1)
    os.close(writer)
    digests = ""
    if attempt % 10 < 3:
        time.sleep(random.uniform(0, 0.03))
    else:  # when it is at work, however slow the machine
        for _ in range(random.randrange(1, 5)):
            digests += os.read(reader, 64).decode()
        time.sleep(random.uniform(0, 0.003))
    os.kill(child, signal.SIGKILL)
    signals.append(os.WTERMSIG(os.waitpid(child, 0)[1]))
    while text := os.read(reader, 2**16):
        digests += text.decode()
    os.close(reader)
    recent = [(1000 * attempt + n, digests[64 * n:64 * (n + 1)]) for n in range(len(digests) // 64)]
    reports += recent
    with TuningCache(path) as cache:
        for number, digest in recent:
            found = cache.get(entry(number).key)
            if found is None or found != entry(number) or found.key.digest != digest:
                lost.append(number)
        kept = {each.key.digest for each in cache.entries()}
        lost += [number for number, digest in reports if number // 10000 == attempt // 10 and digest not in kept]
    if os.path.exists(path):
        connection = sqlite3.connect(path)
        verdicts += connection.execute("PRAGMA integrity_check").fetchone()
        connection.close()
rounds = len({number // 1000 for number, _ in reports})
print(json.dumps([signals, len(reports), rounds, lost, sorted(set(verdicts)), told, sorted(os.listdir(folder))]))
"""


def test_a_hundred_deaths_in_the_middle_of_writing(path):
    """What was reported as saved is there, and the file opens, without a word."""
    signals, reported, rounds, lost, verdicts, told, left = run_child(KILL, path)
    assert signals == [signal.SIGKILL] * 100
    assert rounds >= 70
    assert reported > 100
    assert lost == []
    assert verdicts == ["ok"]
    assert told == []
    # who dies while it makes a file leaves its lock file, unlocked
    assert {name.removesuffix(".lock") for name in left} == set("0123456789")


# ---------------------------------------------------------------- one at a time

COUNT = """
import time
counter, marker = folder + "/counter", folder + "/marker"
with TuningCache(path) as cache:
    for _ in range(100):
        with cache.exclusive("GPU-1"):
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails if somebody else is inside
            value = int(open(counter).read())
            time.sleep(0.0002)
            open(counter, "w").write(str(value + 1))
            os.unlink(marker)
print(json.dumps(told))
"""


def test_one_process_at_a_time(start, path):
    counter = path.with_name("counter")
    counter.write_text("0")
    assert start_together(start, path, COUNT, COUNT, COUNT) == [[], [], []]
    assert counter.read_text() == "300"
    assert os.listdir(path.parent) == ["counter"]


HOLD = """
with TuningCache(path) as cache, cache.exclusive("GPU-1"):
    print("held", flush=True)
    input()
print("null")
"""


def entered(path, name="GPU-1"):
    """An event that is set when a thread of this process gets the lock."""
    event = threading.Event()

    def enter():
        with TuningCache(path) as cache, cache.exclusive(name):
            event.set()

    threading.Thread(target=enter, daemon=True).start()
    return event


@pytest.mark.parametrize("end", ["release", "kill"])
def test_a_lock_is_free_when_its_holder_is_gone(start, path, end):
    child = start(HOLD, path)
    assert child.stdout.readline() == "held\n"
    got = entered(path)
    assert entered(path, "GPU-2").wait(60)
    assert not got.wait(0.2)
    if end == "release":
        finish_child(child, "now\n")
    else:
        child.kill()
    assert got.wait(60)


FORK_HOLDER = """
import signal, time
with TuningCache(path) as cache:
    with cache.exclusive("GPU-1"):
        child = os.fork()
        if child == 0:
            WHAT_THE_CHILD_DOES
        print(child, flush=True)
        WHAT_THE_PARENT_DOES
os._exit(0)
"""


def test_a_forked_child_does_not_release_its_parents_lock(start, path):
    """Here the child leaves the block."""
    code = FORK_HOLDER.replace("WHAT_THE_CHILD_DOES", "pass").replace(
        "WHAT_THE_PARENT_DOES", "if child:\n            os.waitpid(child, 0); print('waited', flush=True); input()"
    )
    parent = start(code, path)
    while parent.stdout.readline() != "waited\n":
        assert parent.poll() is None, parent.communicate()
    got = entered(path)
    assert not got.wait(0.2)
    parent.stdin.write("now\n")
    parent.stdin.flush()
    assert got.wait(60)


def test_a_forked_child_does_not_hold_its_parents_lock(start, path):
    """Here the parent is killed, and the child lives on."""
    code = FORK_HOLDER.replace("WHAT_THE_CHILD_DOES", "time.sleep(300); os._exit(0)").replace(
        "WHAT_THE_PARENT_DOES", "os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = start(code, path)
    child = int(parent.stdout.readline())
    try:
        assert entered(path).wait(60)
        os.kill(child, 0)  # it is there
    finally:
        os.kill(child, signal.SIGKILL)


# ---------------------------------------------------------------- forking

FORK = """
import ctypes
fork = FUNCTION
with TuningCache(path) as cache, TuningCache(":memory:") as memory:
    cache.put(entry(0))
    memory.put(entry(0))
    children = []
    for number in range(1, 6):
        child = fork()
        if child == 0:
            for each in (cache, memory):
                each.put(entry(number))
                assert each.get(entry(0).key) == each.get(entry(0).key) == entry(0)
                assert each.get(entry(number).key) == entry(number)
            cache._recent.clear()
            assert cache.get(entry(0).key) == entry(0)
            os._exit(len(told))
        children.append(child)
        cache.put(entry(10 + number))
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    seen = [number for number in range(20) if cache.get(entry(number).key) == entry(number)]
    print(json.dumps([codes, seen, len(memory), told]))
"""


@pytest.mark.parametrize("function", ["os.fork", "ctypes.PyDLL(None).fork"])
def test_a_forked_child_uses_the_cache_of_its_parent(path, function):
    """Also where it was forked without Python's knowledge."""
    codes, seen, in_memory, told = run_child(FORK.replace("FUNCTION", function), path)
    assert codes == [0] * 5
    assert told == []
    assert seen == [0, *range(1, 6), *range(11, 16)]
    assert in_memory == 1
    assert numbers_in(path, 20) == seen


FORK_AND_CLOSE = """
(there, tell), (here, answer) = os.pipe(), os.pipe()
cache = TuningCache(path)
cache.put(entry(0))
child = os.fork()
if child == 0:
    cache.put(entry(1))
    os.write(answer, b".")
    os.read(there, 1)
    cache.put(entry(2))
    os._exit(len(told))
os.read(here, 1)
cache.close()
os.write(tell, b".")
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told]))
"""


def test_a_parent_that_closes_its_file_takes_nothing_from_its_child(path):
    """Whoever closes a file as the last one tidies up beside it: that must not be a mistake."""
    assert run_child(FORK_AND_CLOSE, path) == [0, []]
    assert numbers_in(path, 3) == [0, 1, 2]


FORK_BESIDE_THREADS = """
import threading
with TuningCache(path) as cache:
    done = threading.Event()
    def work(first):
        number = first
        while not done.is_set() and number < first + 500:
            cache.put(entry(number))
            number += 1
        counts.append((first, number - first))
    counts = []
    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    codes = []
    for number in range(20):
        child = os.fork()  # in the middle of whatever the threads do
        if child == 0:
            cache.put(entry(number))
            with cache.exclusive("GPU-1"):
                os._exit(cache.get(entry(number).key) != entry(number))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    done.set()
    for thread in threads:
        thread.join()
    print(json.dumps([codes, counts, told]))
"""


def test_forks_while_threads_write(path):
    codes, counts, told = run_child(FORK_BESIDE_THREADS, path)
    assert codes == [0] * 20
    assert told == []
    expected = [*range(20), *(first + number for first, count in sorted(counts) for number in range(count))]
    assert all(count for _, count in counts)
    with TuningCache(path) as cache:
        assert [number for number in expected if cache.get(entry(number).key) != entry(number)] == []
        assert len(cache) == len(expected)
