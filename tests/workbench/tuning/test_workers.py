"""Workers: which GPU each takes, what it is asked, what it returns, and when its process ends."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import tunings
from helpers.harness import pretend_file, run_python
from helpers.pretend import Pretence, problem, rows_of

import cudnnlite as dnn
from cudnnlite.devices import device_choice as choice
from cudnnlite.devices.device import DeviceFacts
from cudnnlite.devices.device_choice import get_device, visible_gpus
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.workbench.tuning import tuning_run
from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.entries import DeviceIdentity, make_key
from cudnnlite.workbench.tuning.gpu_locks import locked_device, measuring_alone
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.tuning_run import identify, tune_task
from cudnnlite.workbench.tuning.worker_pool import WorkerPool

TWO, ALIKE, MIXED = "AA", "AAA", "ABA"


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """A maker of GPUs."""
    return lambda gpus: Pretence(monkeypatch, tmp_path, gpus)


@pytest.fixture
def worker():
    """A maker of threads, each of which does what it is given."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(ThreadPoolExecutor(1))


def claim(*arguments):
    """Return what is entered, and the number of the GPU that was free."""
    entered = locked_device(*arguments)
    return entered, entered.__enter__().index


def leave(entered):
    entered.__exit__(None, None, None)


# ---------------------------------------------------------------- which GPU


def test_each_worker_takes_a_gpu_that_nobody_has_and_then_its_own_again(pretend, worker):
    pretence = pretend(ALIKE)
    threads = [worker() for _ in range(4)]
    held = [thread.submit(claim, "cuda").result() for thread in threads[:3]]
    assert sorted(index for _, index in held) == [0, 1, 2]
    assert len(pretence.left_over) == 3
    last = threads[3].submit(claim, "cuda")
    time.sleep(0.05)
    assert not last.done()  # it waits until one is free
    threads[1].submit(leave, held[1][0]).result()
    held.append(last.result())
    assert held[3][1] == held[1][1]
    for place in (0, 2, 3):
        threads[place].submit(leave, held[place][0]).result()
    assert pretence.left_over == []
    for thread, (_, index) in zip(threads, held, strict=True):
        assert thread.submit(leave_at_once, "cuda").result() == index


def leave_at_once(*arguments):
    with locked_device(*arguments) as device:
        return device.index


@pytest.mark.processes
def test_claims_hold_among_processes_and_end_with_them(pretend):
    pretence = pretend(TWO)
    code = """
        import sys
        from cudnnlite.workbench.tuning.gpu_locks import locked_device
        with locked_device("cuda") as device:
            print(device.index, flush=True)
            sys.stdin.read()
    """
    start = [sys.executable, "-c", textwrap.dedent(code)]
    processes = [
        subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        indices = [int(other.stdout.readline()) for other in processes]
        assert sorted(indices) == [0, 1]
        processes[0].kill()
        processes[0].wait()
        assert leave_at_once("cuda") == indices[0]
        processes[1].communicate()
        assert pretence.left_over == []
    finally:
        for other in processes:
            other.kill()
            other.communicate()


def test_a_gpu_where_no_file_can_be_locked(pretend, monkeypatch, worker):
    """Processes begin at different ones; a link of somebody else's is not followed."""
    pretence = pretend(TWO)
    with locked_device("cuda") as device:
        (path,) = (path for path in pretence.folder.iterdir() if path.suffix == ".lock")
    victim = pretence.folder / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    assert leave_at_once("cuda") == device.index
    assert victim.read_text() == "precious"
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    assert worker().submit(leave_at_once, "cuda").result() == os.getpid() % 2


def test_only_cuda_leaves_open_which_gpu(pretend, worker):
    pretend(TWO)
    with locked_device("cuda:1") as device, locked_device("emulated:3") as other:
        assert device is get_device("cuda:1")
        assert other is get_device("emulated:3")
        assert worker().submit(leave_at_once, "auto").result() == 0


def test_auto_without_a_gpu_falls_back(monkeypatch):
    monkeypatch.setattr("cudnnlite.devices.cuda_facts.all_facts", lambda: ())

    def refuse(kind, index):
        if kind == "cuda":
            raise dnn.NoDeviceError("there is none")
        return EmulatedDevice(index)

    monkeypatch.setattr(choice, "devices", choice.Devices(refuse))
    with pytest.warns(RuntimeWarning, match="there is none"), locked_device("auto") as device:
        assert device.kind == "emulated"
    with pytest.raises(dnn.NoDeviceError):
        leave_at_once("cuda")


def test_a_gpu_like_the_one_that_is_wanted_is_taken_if_there_is_one(pretend):
    pretend(MIXED)
    a, b, c = (DeviceIdentity(f"Pretend {kind}", "9.0", "another driver", 0) for kind in "ABC")
    first, second, third, fourth, fifth = (
        leave_at_once("cuda", identity) for identity in (a, b, None, a, c)
    )
    # The third asks for no GPU and keeps its own. There is no GPU of kind C, so the last one keeps
    # its own too.
    assert (second, third) == (1, 1)
    assert first in (0, 2)
    assert fourth == fifth in (0, 2)


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


def test_a_gpu_is_measured_on_without_a_lock_where_no_temporary_folder_can_be_written(monkeypatch):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    gpu = SimpleNamespace(has_real_timing=True, facts=lambda: DeviceFacts("H", "9.0", "1", "GPU-1"))
    with measuring_alone(gpu), measuring_alone(gpu):
        pass


@pytest.mark.processes
def test_one_measures_at_a_time_on_a_gpu(pretend):
    pretence = pretend(TWO)
    inside, entered, go_on = [], threading.Event(), threading.Event()

    def hold():
        with measuring_alone(get_device("cuda:0")):
            entered.set()
            go_on.wait()
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
    (path,) = (path for path in pretence.folder.iterdir() if path.suffix == ".lock")
    assert run_python(code, path, PYTHONPATH=None).stdout == "held\n"
    go_on.set()
    for thread in threads:
        thread.join()
    assert inside == ["elsewhere", "first", "second"]
    assert not path.exists()


# ---------------------------------------------------------------- what travels


def test_what_travels_is_what_arrives(pretend, tmp_path):
    pretend(TWO)
    policy = TuningPolicy("latency", "10%", True, 1e-3, "FMA", False, ["NHWC"], "graph", True)
    for value in (problem(4, padding=1), tunings.lstm(), tunings.convolution(), policy):
        again = pickle.loads(pickle.dumps(value))
        assert again == value
        assert repr(again) == repr(value)
    place = ("cuda", DeviceIdentity("a", "9.0", "580.1", 92800), str(tmp_path / "cache"))
    answer = tune_task(problem(4, padding=1), TuningPolicy(), *place)
    again = pickle.loads(pickle.dumps(answer))
    assert (again.worker, again.entry, tuple(again.table)) == (
        answer.worker,
        answer.entry,
        tuple(answer.table),
    )
    assert str(again.table) == str(answer.table)
    assert again.table.best("50%").passed_over == answer.table.best("50%").passed_over
    failed = tunings.failed()
    assert (
        repr(pickle.loads(pickle.dumps(failed))).split("table")[0] == repr(failed).split("table")[0]
    )
    for row in tunings.ROWS:
        assert repr(pickle.loads(pickle.dumps(row))) == repr(row)


# ---------------------------------------------------------------- a task


def test_a_task_on_the_emulated_device_leaves_nothing_to_remember(tmp_path, world, monkeypatch):
    monkeypatch.setattr(choice, "devices", choice.Devices(lambda *_: world.device))
    path = tmp_path / "cache"
    answer = tune_task(problem(), TuningPolicy(), "emulated:7", cache=str(path))
    assert answer.table.best().time_ms > 0
    assert (answer.entry, answer.from_cache, answer.why_none) == (None, False, "")
    assert (answer.worker.process, answer.worker.device.kind) == (os.getpid(), "emulated")
    assert answer.worker.uuid == "emulated:7"
    assert str(os.getpid()) in str(answer.worker)
    assert not path.exists()
    assert world.ledger.leaked() == {}
    assert world.memory_used == 0


def test_a_task_on_the_emulated_device_answers_with_an_entry_for_a_rehearsal(
    tmp_path, world, monkeypatch
):
    """In the rehearsal's folder, or by the answer of a worker that does not reach the folder."""
    monkeypatch.setattr(choice, "devices", choice.Devices(lambda *_: world.device))
    path = tmp_path / "cache"
    with TuningCache(path, rehearsal=True) as cache:
        answer = tune_task(problem(), TuningPolicy(), "emulated:7", cache=str(path))
        assert cache.entries() == [answer.entry]
    elsewhere = tune_task(problem(), TuningPolicy(), "emulated:7")
    assert elsewhere.entry.key == answer.entry.key
    assert elsewhere.entry.key.device.is_emulated


def test_a_task_writes_into_the_cache_that_it_is_given(pretend, tmp_path):
    pretence = pretend("A")
    path = tmp_path / "cache"
    policy = TuningPolicy(workspace_limit="50%").within(None, 64 << 20)
    elsewhere = tune_task(problem(5), policy, "cuda")
    assert not path.exists()
    assert tuple(elsewhere.table) == rows_of(5)
    answer = tune_task(problem(5), policy, "cuda", cache=str(path))
    with TuningCache(path) as cache:
        assert cache.entries() == [answer.entry]
        policy_and_device = policy, DeviceIdentity.of(get_device("cuda"))
        assert cache.get(make_key(problem(5), {}, *policy_and_device)) == answer.entry
        assert cache.get(make_key(problem(6), {}, *policy_and_device)) is None
    assert answer.entry.key == elsewhere.entry.key
    assert pretence.searched == {5: 2}
    later = tune_task(problem(5), policy, "cuda", cache=str(path))
    assert (later.from_cache, later.entry) == (True, answer.entry)
    assert not answer.from_cache
    assert pretence.searched == {5: 2}


def test_no_handle_is_made_while_another_measures(pretend, monkeypatch):
    pretence = pretend("A")

    class Watched(dnn.Handle):
        def __init__(self, device):
            assert len(pretence.left_over) == 1
            super().__init__(device)

    monkeypatch.setattr(tuning_run, "Handle", Watched)
    assert tune_task(problem(4), TuningPolicy(), "cuda").table is not None


def test_no_memory_for_a_handle_is_an_answer(world, monkeypatch):
    monkeypatch.setattr(choice, "devices", choice.Devices(lambda *_: world.device))
    world.ledger.fail_next("cudnnCreate", dnn.enums.Status.NOT_INITIALIZED)
    answer = tune_task(problem(4), TuningPolicy(), "emulated:7")
    assert "cudnnCreate returned NOT_INITIALIZED" in answer.why_none


def test_a_worker_says_what_it_measures_on(pretend):
    pretend("A")
    identity, memory, peaks = identify("cuda")
    assert peaks is None  # it is emulated
    assert (identity.gpu, identity.kind, memory) == ("Pretend A", "cuda", 64 << 20)
    assert identity == DeviceIdentity.of(get_device("cuda"))
    with dnn.Handle("cuda") as handle:
        assert identity == dnn.Tuner(handle, ":memory:").device


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
    with WorkerPool(1) as pool:
        first = pool.submit(os.getpid).result()
        assert pool.submit(int, "10", base=2).result() == 2
        assert pool.submit(os.getsid, 0).result() == first  # Ctrl-C on a terminal does not reach it
        assert pool.submit(os.getenv, "OPENBLAS_NUM_THREADS").result() == os.environ.get(
            "OPENBLAS_NUM_THREADS", "1"
        )
        with pytest.raises(ValueError, match="invalid literal"):
            pool.submit(int, "x").result()
        with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
            pool.submit(lambda: 1).result()
        with pytest.raises(RuntimeError, match="cannot be sent"):
            pool.submit(threading.Lock).result()
        died = pool.submit(os.kill, first, signal.SIGKILL)
        second = pool.submit(os.getpid)
        with pytest.raises(
            ChildProcessError, match=f"worker process {first} died: killed by SIGKILL"
        ):
            died.result()
        assert second.result() not in (first, os.getpid())
        with pytest.raises(ChildProcessError, match="exit status 3"):
            pool.submit(os._exit, 3).result()
        with pytest.raises(
            ChildProcessError, match=f"killed by signal {signal.SIGRTMIN + 1}"
        ):  # it has no name
            pool.submit(signal.raise_signal, signal.SIGRTMIN + 1).result()
        third = pool.submit(os.getpid).result()
    assert not any(map(is_alive, (first, second.result(), third)))
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(os.getpid)


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
    assert all(
        future.cancelled() or isinstance(future.exception(), ChildProcessError)
        for future in futures
    )
    assert not any(map(is_alive, processes))


@pytest.mark.processes
def test_a_program_needs_no_guard_its_output_is_its_own_and_its_processes_end_with_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import os, signal\n"
        "from cudnnlite.workbench.tuning.worker_pool import WorkerPool\n"
        "with WorkerPool(1) as pool:\n"
        "    pool.submit(print, 'from the worker').result()\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL
    assert process.stderr == "from the worker\n"
    wait_until_gone(int(process.stdout))


@pytest.mark.processes
def test_a_forked_process_may_use_cuda_only_if_its_parent_did_not(commands):
    code = """
        import os, sys, types
        from cudnnlite import errors
        from cudnnlite.devices import device_choice as device
        device.devices = device.Devices(lambda kind, index: types.SimpleNamespace(kind=kind))
        device.get_device("emulated")
        for used in ("emulated", "cuda"):
            device.get_device(used)
            child = os.fork()
            if child:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                continue
            try:
                print(device.get_device("cuda:1").kind, flush=True)
            except errors.NoDeviceError as error:
                print(error, flush=True)
            os._exit(0 if device.get_device("emulated").kind == "emulated" else 1)
    """
    before, after = commands.run_code(code).stdout.splitlines()
    assert before == "cuda"
    assert 'get_context("spawn")' in after
