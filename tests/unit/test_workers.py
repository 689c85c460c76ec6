"""Workers: which GPU each takes, what it is asked and returns, and processes that end when they should."""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import cudnnlite as dnn
from cudnnlite.autotune import claims, workers
from cudnnlite.autotune.cache import TuningCache
from cudnnlite.autotune.claims import claimed_device, measuring_alone
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.remembered import Remembered, identity_of
from cudnnlite.autotune.worker_pool import WorkerDiedError, WorkerPool
from cudnnlite.autotune.workers import CachePlace, Task, identify, tune_task
from cudnnlite.devices import choice
from cudnnlite.devices.choice import get_device, visible_gpus
from cudnnlite.devices.device import DeviceFacts

from . import tunings
from .harness import pretend_file, run_python
from .pretend import Pretence, problem, rows_of

TWO, ALIKE, MIXED = "AA", "AAA", "ABA"


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """A maker of GPUs."""
    return lambda gpus: Pretence(monkeypatch, tmp_path, gpus)


def gpus():
    return list(enumerate(visible_gpus()))


# ---------------------------------------------------------------- which GPU


def test_each_claim_takes_the_gpu_that_has_the_fewest(pretend):
    there = pretend(ALIKE)
    held = [Claim(gpus()) for _ in range(7)]
    assert [claim.index for claim in held] == [0, 1, 2, 0, 1, 2, 0]
    assert [claim.gpu.uuid for claim in held[:3]] == ["GPU-0", "GPU-1", "GPU-2"]
    held[1].close()
    held[1].close()
    assert Claim(gpus()[::-1]).index == 1  # the one that is free, wherever it stands
    gc.collect()
    held[1] = Claim(gpus())
    assert held[1].index == 1
    assert len(there.left_over) == 7
    held.clear()
    gc.collect()
    assert there.left_over == []


@pytest.mark.processes
def test_claims_hold_among_processes_and_end_with_them(pretend):
    there = pretend(TWO)
    code = """
        import sys
        from cudnnlite.autotune.claims import pinned_device
        print(pinned_device("cuda").index, flush=True)
        sys.stdin.read()
    """
    start = [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())]
    others = [subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        assert sorted(int(other.stdout.readline()) for other in others) == [0, 1]
        assert Claim(gpus()).index == 0  # shared: it goes at once
        gc.collect()
        others[0].kill()
        others[0].wait()
        others[1].communicate()
        assert [Claim(gpus()).index for _ in range(2)] == [0, 0]
        # the one that was killed has left its file, locked by nobody; all others have tidied up
        gc.collect()
        assert len(there.left_over) <= 1
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_threads_claim_apart_and_let_go_when_they_end(pretend):
    there = pretend(TWO)
    both = threading.Barrier(2)

    def work():
        both.wait()
        found = pinned_device("cuda")
        both.wait()
        return found, pinned_device("cuda")

    with ThreadPoolExecutor(2) as executor:
        (one, again), (other, _) = [future.result() for future in [executor.submit(work) for _ in range(2)]]
    assert {one.index, other.index} == {0, 1}
    assert again is one
    gc.collect()
    assert there.left_over == []


@pytest.mark.processes
def test_a_forked_process_leaves_its_parents_claim(pretend):
    there = pretend("A")
    code = """
        import os, sys
        from cudnnlite.autotune.claims import Claim
        from cudnnlite.devices.choice import visible_gpus
        claim = Claim(list(enumerate(visible_gpus())))
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            print([name for name in os.listdir(sys.argv[1]) if name.endswith(".claim")])
    """
    assert run_python(code, there.folder).stdout == f"['cudnnlite-{os.getuid()}-GPU-0.0.claim']\n"
    assert there.left_over == []


def test_a_claim_where_no_file_can_be_made(pretend, monkeypatch):
    pretend(TWO)
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    assert Claim(gpus()).index == os.getpid() % 2
    Claim(gpus()).close()


def test_a_claim_does_not_follow_links_of_others(pretend):
    there = pretend(TWO)
    victim = there.folder / "victim"
    victim.write_text("precious")
    Claim(gpus()).close()
    with_name = [path for path in there.folder.iterdir() if "claim" in path.name]
    assert with_name == []
    held = Claim(gpus())
    (path,) = (path for path in there.folder.iterdir() if path.suffix == ".claim")
    held.close()
    path.symlink_to(victim)
    assert Claim(gpus()).index == 1
    assert victim.read_text() == "precious"


def in_new_thread(function):
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def test_only_cuda_leaves_open_which_gpu(pretend):
    there = pretend(TWO)
    assert in_new_thread(lambda: pinned_device("cuda:1")) is get_device("cuda:1")
    assert in_new_thread(lambda: pinned_device("emulated:3")) is get_device("emulated:3")
    assert there.left_over == []
    assert in_new_thread(lambda: pinned_device("auto")) is get_device("cuda:0")


def test_auto_without_a_gpu_falls_back(monkeypatch):
    monkeypatch.setattr("cudnnlite.devices.cuda.all_facts", lambda: ())

    def refuse(kind, index):
        if kind == "cuda":
            raise dnn.NoDeviceError("there is none")
        return "the emulated one"

    monkeypatch.setattr(choice, "devices", choice.Devices(refuse))
    with pytest.warns(RuntimeWarning, match="there is none"):
        assert in_new_thread(lambda: pinned_device("auto")) == "the emulated one"
    with pytest.raises(dnn.NoDeviceError):
        in_new_thread(lambda: pinned_device("cuda"))


def test_a_gpu_like_the_one_that_is_wanted_is_taken_if_there_is_one(pretend):
    pretend(MIXED)
    like = ("Pretend B", "9.0")

    def several():
        wanted = (("Pretend A", "9.0"), like, None, ("Pretend A", "9.0"), ("Pretend C", "9.0"))
        return [pinned_device("cuda", each).index for each in wanted]

    # the third asks for nothing and keeps what it has; there is no C, so the last one is content with what it has
    first, second, third, fourth, fifth = in_new_thread(several)
    assert (first, second, third) == (0, 1, 1)
    assert fourth in (0, 2)
    assert fifth == fourth


def test_the_devices_that_are_visible_are_told_without_using_one(monkeypatch):
    pretend_file(monkeypatch, "/sys/module/nvidia/version", "580.1\n")

    class Device:
        compute_capability, name, uuid = (9, 0), "H", "GPU-1"

        @staticmethod
        def get_all_devices():
            return (Device(), Device())

    monkeypatch.setattr("cuda.core.Device", Device)
    assert visible_gpus() == (DeviceFacts("H", "9.0", "580.1", "GPU-1"),) * 2
    monkeypatch.setattr(Device, "get_all_devices", lambda: 1 / 0)
    assert visible_gpus() == ()


# ---------------------------------------------------------------- one at a time


@pytest.mark.processes
def test_one_measures_at_a_time_on_a_gpu(pretend):
    pretend(TWO)
    inside, entered, leave = [], threading.Event(), threading.Event()

    def hold():
        with measuring_alone(get_device("cuda:0")):
            entered.set()
            leave.wait()
            inside.append("first")

    def follow():
        with measuring_alone(get_device("cuda:0")):
            inside.append("second")

    threads = [threading.Thread(target=hold), threading.Thread(target=follow)]
    threads[0].start()
    entered.wait()
    threads[1].start()
    with measuring_alone(get_device("cuda:1")), measuring_alone(get_device("emulated")):
        inside.append("elsewhere")
    code = """
        import fcntl, sys
        file = open(sys.argv[1])
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("held")
    """
    path = claims._path("GPU-0", "lock")
    assert run_python(code, path, PYTHONPATH=None).stdout == "held\n"
    leave.set()
    for thread in threads:
        thread.join()
    assert inside == ["elsewhere", "first", "second"]
    assert not path.exists()


# ---------------------------------------------------------------- the cache's place


def test_a_cache_is_found_again_on_the_same_machine_only(tmp_path, monkeypatch):
    with TuningCache(tmp_path / "new" / "folder" / "cache.sqlite") as cache:
        place = CachePlace.of(cache)
    assert place.path == str(tmp_path / "new" / "folder" / "cache.sqlite")
    assert pickle.loads(pickle.dumps(place)).is_here
    assert not place._replace(folder=(place.folder[0], place.folder[1] + 1)).is_here
    assert not place._replace(path=str(tmp_path / "cache.sqlite")).is_here
    assert not place._replace(path="/nonexistent/cache.sqlite").is_here
    for other in (("other", place.machine[1]), (place.machine[0], "another start")):
        assert not place._replace(machine=other).is_here
    monkeypatch.setattr(workers, "this_machine", lambda: ("host", ""))
    with TuningCache(tmp_path / "cache.sqlite") as cache:
        assert CachePlace.of(cache) is None  # nothing tells this machine from another of its name


def test_a_cache_that_others_cannot_write_has_no_place(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with TuningCache(":memory:") as memory, TuningCache(file / "cache.sqlite") as impossible:
        assert CachePlace.of(memory) is CachePlace.of(impossible) is None
    with TuningCache(tmp_path / "cache.sqlite") as cache:
        assert CachePlace.of(cache).is_here
        (tmp_path / "cache.sqlite").touch()
    with TuningCache(tmp_path / "cache.sqlite", read_only=True) as cache:
        assert CachePlace.of(cache) is None


def test_a_machine_without_a_boot_number_is_like_no_other(tmp_path):
    assert workers.this_machine(tmp_path / "absent")[1] == ""
    assert len(workers.this_machine()[1]) == 36


# ---------------------------------------------------------------- what travels


def test_what_travels_is_what_arrives(pretend, tmp_path):
    pretend(TWO)
    policy = TuningPolicy("latency", "10%", True, 1e-3, "FMA", False, ["NHWC"], True)
    with TuningCache(tmp_path / "cache.sqlite") as cache:
        task = Task(problem(4, padding=1), policy, "cuda", ("a", "9.0"), CachePlace.of(cache), "token")
    for value in (task, replace(task, problem=tunings.lstm()), tunings.convolution(), policy):
        again = pickle.loads(pickle.dumps(value))
        assert again == value
        assert repr(again) == repr(value)
    answer = tune_task(replace(task, policy=TuningPolicy()))
    again = pickle.loads(pickle.dumps(answer))
    assert (again.worker, again.entry, tuple(again.table)) == (answer.worker, answer.entry, tuple(answer.table))
    assert str(again.table) == str(answer.table)
    assert again.table.best("50%").passed_over == answer.table.best("50%").passed_over
    failed = tunings.failed()
    assert repr(pickle.loads(pickle.dumps(failed))).split("table")[0] == repr(failed).split("table")[0]
    for row in tunings.ROWS:
        assert repr(pickle.loads(pickle.dumps(row))) == repr(row)


# ---------------------------------------------------------------- a task


def test_a_task_on_the_emulated_device_leaves_nothing_to_remember(tmp_path, world, monkeypatch):
    monkeypatch.setattr(choice, "devices", choice.Devices(lambda *_: world.device))
    path = tmp_path / "cache.sqlite"
    with TuningCache(path) as cache:
        place = CachePlace.of(cache)
    answer = tune_task(Task(problem(), TuningPolicy(), "emulated:7", None, place))
    assert answer.table.best().time_ms > 0
    assert (answer.entry, answer.from_cache, answer.why_none) == (None, False, "")
    assert (answer.worker.process, answer.worker.device.kind) == (os.getpid(), "emulated")
    assert answer.worker.uuid == "emulated:7"
    assert str(os.getpid()) in str(answer.worker)
    assert not path.exists()
    assert world.ledger.leaked() == {}
    assert world.memory_used == 0


def test_a_task_writes_into_the_cache_that_it_reaches(pretend, tmp_path):
    there = pretend("A")
    path = tmp_path / "cache.sqlite"
    with TuningCache(path) as cache:
        place = CachePlace.of(cache)
    task = Task(problem(5), TuningPolicy(workspace_limit="50%"), "cuda", None, place)
    elsewhere = tune_task(replace(task, place=place._replace(machine=("other", "boot"))))
    assert not path.exists()
    assert tuple(elsewhere.table) == rows_of(5)
    answer = tune_task(task)
    with TuningCache(path) as cache:
        assert cache.entries() == [answer.entry]
        known = Remembered(cache, task.policy.within(None, 64 << 20), identity_of(get_device("cuda")), 64 << 20)
        assert known.entry(task.problem) == answer.entry
        assert known.entry(problem(6)) is None
    assert answer.entry.key == elsewhere.entry.key
    assert there.searched == {5: 2}
    later = tune_task(task)
    assert (later.from_cache, later.entry) == (True, answer.entry)
    assert not answer.from_cache
    assert there.searched == {5: 2}


def test_no_handle_is_made_while_another_measures(pretend, monkeypatch):
    pretend("A")

    def handle(device):
        with open(claims._path("GPU-0", "lock"), "rb") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return dnn.Handle(device)

    monkeypatch.setattr(workers, "Handle", handle)
    assert tune_task(Task(problem(4), TuningPolicy(), "cuda")).table is not None


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("NotSupportedError cudnnFoo 3000", "cudnnFoo returned 3000"),
        ("DeviceMemoryError too-large", "too-large"),
        ("NoAlgorithmError none-at-all", "none-at-all"),
        ("ArgumentError not-finite", "not-finite"),
    ],
)
def test_a_search_that_fails_is_an_answer(pretend, failure, message):
    pretend("A").ask("fail-4", text=failure)
    answer = tune_task(Task(problem(4), TuningPolicy(), "cuda"))
    assert answer.table is None
    assert message in answer.why_none
    assert answer.worker.process == os.getpid()


@pytest.mark.parametrize("failure", ["NoDeviceError", "LibraryError", "ZeroDivisionError"])
def test_a_worker_that_cannot_work_says_so(pretend, failure):
    pretend("A").ask("fail-4", text=failure)
    kind = getattr(dnn, failure, ZeroDivisionError)
    with pytest.raises(kind):
        tune_task(Task(problem(4), TuningPolicy(), "cuda"))


def test_no_memory_for_a_handle_is_an_answer(world, monkeypatch):
    monkeypatch.setattr(choice, "devices", choice.Devices(lambda *_: world.device))
    world.ledger.fail_next("cudnnCreate", dnn.Status.NOT_INITIALIZED)
    answer = tune_task(Task(problem(4), TuningPolicy(), "emulated:7"))
    assert "cudnnCreate returned NOT_INITIALIZED" in answer.why_none


def test_a_worker_says_what_it_measures_on(pretend):
    pretend("A")
    identity, memory = identify("cuda", "")
    assert (identity.gpu, identity.kind, memory) == ("Pretend A", "cuda", 64 << 20)
    assert identity == identity_of(get_device("cuda"))
    with dnn.Handle("cuda") as handle:
        assert identity == dnn.autotune.tuner.Tuner(handle, ":memory:").device


# ---------------------------------------------------------------- the pool


def is_alive(process):
    """Whether a process runs; one that nobody has asked for its end (a zombie) does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(*processes):
    while any(map(is_alive, processes)):
        time.sleep(0.01)


@pytest.mark.processes
def test_a_pool_calls_functions_in_processes_of_their_own():
    with WorkerPool(2) as pool:
        futures = [pool.submit(os.getpid) for _ in range(6)]
        processes = {future.result() for future in futures}
        assert pool.submit(int, "10", base=2).result() == 2
        assert pool.submit(os.getsid, 0).result() in processes  # Ctrl-C on a terminal does not reach it
        with pytest.raises(ValueError, match="invalid literal"):
            pool.submit(int, "x").result()
        with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
            pool.submit(lambda: 1).result()
        with pytest.raises(RuntimeError, match="cannot be sent"):
            pool.submit(threading.Lock).result()
        assert pool.submit(os.getpid).result() in processes or len(processes) == 1
    assert os.getpid() not in processes
    assert 1 <= len(processes) <= 2
    assert not any(map(is_alive, processes))


@pytest.mark.processes
def test_a_process_that_dies_fails_its_call_only():
    with WorkerPool(1) as pool:
        first = pool.submit(os.getpid).result()
        died = pool.submit(os.kill, first, signal.SIGKILL)
        after = pool.submit(os.getpid)
        with pytest.raises(WorkerDiedError, match=f"worker process {first} died: killed by SIGKILL"):
            died.result()
        assert after.result() != first
        with pytest.raises(WorkerDiedError, match="exit status 3"):
            pool.submit(os._exit, 3).result()


@pytest.mark.processes
def test_a_pool_that_is_left_by_an_exception_kills_what_runs():
    processes, futures = [], []

    def interrupted():
        with WorkerPool(2) as pool:
            processes.append(pool.submit(os.getpid).result())
            futures.extend(pool.submit(time.sleep, 1000) for _ in range(5))
            while not all(future.running() for future in futures[:2]):
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(future.done() for future in futures)
    assert all(future.cancelled() or isinstance(future.exception(), WorkerDiedError) for future in futures)
    assert not any(map(is_alive, processes))


@pytest.mark.processes
def test_the_processes_end_when_the_program_is_killed():
    code = """
        import os, signal
        from cudnnlite.autotune.worker_pool import WorkerPool
        with WorkerPool(1) as pool:
            print(pool.submit(os.getpid).result(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_python(code, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until_gone(int(done.stdout))


@pytest.mark.processes
def test_a_program_needs_no_guard_and_its_output_is_its_own(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "print('started')\n"
        "from cudnnlite.autotune.worker_pool import WorkerPool\n"
        "with WorkerPool(1) as pool:\n"
        "    pool.submit(print, 'from the worker').result()\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "started\n"
    assert done.stderr == "from the worker\n"


@pytest.mark.processes
def test_a_forked_process_is_told_that_cuda_did_not_survive():
    code = """
        import os, sys, types
        from cudnnlite import errors
        from cudnnlite.devices import choice as device
        device.devices = device.Devices(lambda kind, index: types.SimpleNamespace(kind=kind))
        device.get_device("cuda")
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        try:
            device.get_device("cuda:1")
        except errors.NoDeviceError as error:
            print(error, flush=True)
        os._exit(0 if device.get_device("emulated").kind == "emulated" else 1)
    """
    assert 'get_context("spawn")' in run_python(code).stdout


@pytest.mark.processes
def test_a_forked_process_may_use_cuda_if_its_parent_did_not():
    code = """
        import os, sys
        from cudnnlite.devices import choice as device
        device.devices = device.Devices(lambda kind, index: kind)
        device.get_device("emulated")
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0 if device.get_device("cuda") == "cuda" else 1)
    """
    run_python(code)
