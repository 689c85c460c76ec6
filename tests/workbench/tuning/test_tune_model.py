"""`tune_model` on pretended GPUs.

The tests say what is measured on which GPU, what is remembered, and what is left after a failure.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext

import pytest
from helpers import tunings
from helpers.pretend import Pretence, problem, rows_of

import cudnnlite as dnn
from cudnnlite._raw.library import LIBRARY_VARIABLE
from cudnnlite.errors import TuningWarning
from cudnnlite.problems.transform import TRANSFORM
from cudnnlite.types import Problem
from cudnnlite.workbench.report.page import to_plain
from cudnnlite.workbench.tuning import model, tuning_run
from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.model import ModelTuning, tune_model
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.problem_list import ListedProblem, ProblemList, SkippedNode
from cudnnlite.workbench.tuning.tuned_problem import TunedProblem, shared_workspace
from cudnnlite.workbench.tuning.tuning_run import tune_task

SPAWN = multiprocessing.get_context("spawn")
PROBLEMS = [problem(k) for k in (4, 5, 6, 7, 8)]
KS = [4, 5, 6, 7, 8]


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """Two GPUs that are alike."""
    return Pretence(monkeypatch, tmp_path, "AA")


@pytest.fixture
def one_gpu(tmp_path, monkeypatch):
    """One GPU."""
    return Pretence(monkeypatch, tmp_path, "A")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


class Queued(Executor):
    """An executor with futures of its own class, which runs them when a result is asked for."""

    class Future:
        def __init__(self, call):
            self.call, self.callbacks, self.state, self.outcome = call, [], "waits", None
            self.lock, self.ended = threading.Lock(), threading.Event()

        def add_done_callback(self, callback):
            with self.lock:
                if not self.done():
                    self.callbacks.append(callback)
                    return
            callback(self)

        def run(self):
            if self.goes_from("waits", "runs"):
                try:
                    outcome = self.call(), None
                except Exception as error:
                    outcome = None, error
                self.outcome = outcome
                self.goes_from("runs", "done")

        def goes_from(self, before, state):
            with self.lock:
                if self.state != before:
                    return False
                self.state = state
            if self.done():
                self.ended.set()
                for callback in self.callbacks:
                    callback(self)
            return True

        def cancel(self):
            return self.goes_from("waits", "cancelled") or self.cancelled()

        def cancelled(self):
            return self.state == "cancelled"

        def done(self):
            return self.state in ("done", "cancelled")

        def exception(self):
            return self.outcome[1]

        def result(self):
            self.run()  # who waits for it gets it
            self.ended.wait()
            if self.outcome[1] is not None:
                raise self.outcome[1]
            return self.outcome[0]

    def __init__(self):
        self.futures = []

    def submit(self, function, *arguments):
        # what really travels
        function, arguments = pickle.loads(pickle.dumps((function, arguments)))
        self.futures.append(self.Future(lambda: pickle.loads(pickle.dumps(function(*arguments)))))
        return self.futures[-1]


class Threaded(Queued):
    """The same, with a thread for each future."""

    def __init__(self):
        super().__init__()
        self.threads = []

    def submit(self, function, *arguments):
        future = super().submit(function, *arguments)
        self.threads.append(threading.Thread(target=future.run))
        self.threads[-1].start()
        return future


@contextmanager
def ways(name):
    """Yield the arguments of `tune_model` that let somebody work."""
    if name == "here":
        yield {"workers": 1}
    elif name == "pool":
        yield {"workers": 2}
    elif name == "threads":
        with ThreadPoolExecutor(2) as executor:
            yield {"executor": executor}
    elif name == "processes":
        with ProcessPoolExecutor(2, mp_context=SPAWN) as executor:
            yield {"executor": executor}
    else:
        executor = Threaded()
        try:
            yield {"executor": executor}
        finally:
            for thread in executor.threads:
                thread.join()


WAYS = ["here", "pool", "threads", "processes", "others"]


def chosen(tuning):
    return [
        (tuned.problem.w.shape[0], tuned.chosen and tuned.chosen.algorithm)
        for tuned in tuning.tunings
    ]


def entries(path):
    with TuningCache(path) as cache:
        return {entry.key.problem.w.shape[0]: entry for entry in cache.entries()}


# ---------------------------------------------------------------- what is tuned


@pytest.mark.parametrize("rehearsal", [False, True])
def test_what_workers_measure_on_the_emulated_device_is_kept_by_a_rehearsal_alone(path, rehearsal):
    """The workers do not reach the folder: their answers bring entries, which a GPU's cache refuses."""
    with TuningCache(path, rehearsal=rehearsal) as cache, ways("others") as options:
        tuning = tune_model(PROBLEMS[:2], device="emulated", cache=cache, **options)
        assert (tuning.measured, tuning.failed) == (2, ())
        kept = [entry.key.problem for entry in cache.entries()]
    assert sorted(kept, key=PROBLEMS.index) == (PROBLEMS[:2] if rehearsal else [])


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_everything_is_measured_once_and_then_remembered(two_gpus, path, way):
    """By workers that take a GPU each, unless all is measured here."""
    reports = []
    problems = [*PROBLEMS, problem(5), problem(4), problem(5)]
    with ways(way) as options:
        with nullcontext() if way == "here" else two_gpus.held(4, 5):
            tuning = tune_model(
                problems,
                cache=path,
                progress=lambda count, total, tuned: reports.append((count, total, tuned)),
                **options,
            )
        again = tune_model(problems, cache=path, **options)
    assert chosen(tuning) == [(k, dnn.enums.ConvolutionFwdAlgo.FFT) for k in KS]
    assert [tuned.count for tuned in tuning.tunings] == [2, 3, 1, 1, 1]
    assert [tuple(tuned.table) for tuned in tuning.tunings] == [rows_of(k) for k in KS]
    assert (tuning.measured, tuning.remembered, tuning.failed) == (5, 0, ())
    assert tuning.total_ms == 2 * 4 + 3 * 5 + 6 + 7 + 8
    assert two_gpus.searched == dict.fromkeys(KS, 1)
    assert entries(path).keys() == set(KS)
    assert sum(tuning.workers.values()) == 5
    processes = {process for _, process, _, _ in two_gpus.log}
    assert {worker.process for worker in tuning.workers} == processes
    assert len(processes) == (2 if way in ("pool", "processes") else 1)
    if way == "pool":
        assert not any(os.path.exists(f"/proc/{process}") for process in processes)
        assert two_gpus.left_over == []
    if way != "here":
        assert {worker.uuid for worker in tuning.workers} == {"GPU-0", "GPU-1"}
    assert [(count, total) for count, total, _ in reports] == [
        (number, 5) for number in range(1, 6)
    ]
    assert {tuned.problem for _, _, tuned in reports} == set(PROBLEMS)
    assert (again.measured, again.remembered) == (0, 5)
    assert again.workers == {}
    assert [tuple(tuned.table) for tuned in again.tunings] == [rows_of(k) for k in KS]
    assert again.total_ms == tuning.total_ms
    assert two_gpus.searched == dict.fromkeys(KS, 1)


def test_by_default_each_gpu_that_is_like_the_first_has_a_worker(tmp_path, monkeypatch, path):
    two_gpus = Pretence(monkeypatch, tmp_path, "ABA")
    monkeypatch.setattr(model, "WorkerPool", ThreadPoolExecutor)
    with two_gpus.held(4, 5):
        tuning = tune_model(PROBLEMS, cache=path)
    assert {worker.uuid for worker in tuning.workers} == {"GPU-0", "GPU-2"}
    assert len(tuning.facts["workers"]) == 2
    assert two_gpus.left_over == []


@pytest.mark.parametrize(
    ("device", "gpus"),
    [("cuda:1", {1}), (1, {1}), ("CUDA:0", {0}), ("handle", {1}), ("object", {1})],
)
def test_a_device_that_is_named_works_alone_and_here(two_gpus, path, device, gpus):
    with dnn.Handle("cuda:1") as handle:
        device_argument = {"handle": handle, "object": handle.device}.get(device, device)
        tuning = tune_model(PROBLEMS, cache=path, device=device_argument)
        assert not handle.closed
    assert {(process, gpu) for _, process, gpu, _ in two_gpus.log} == {
        (os.getpid(), gpu) for gpu in gpus
    }
    assert tuning.measured == 5


@pytest.mark.processes
@pytest.mark.parametrize(("way", "cache"), [("pool", "file"), ("others", "memory")])
def test_on_one_gpu_one_measures_at_a_time(one_gpu, path, way, cache):
    one_gpu.ask("slow")
    with ways(way) as options:
        tune_model(
            [problem(k) for k in range(4, 16)],
            cache=path if cache == "file" else ":memory:",
            **options,
        )
    steps = [event for _, _, _, event in one_gpu.log]
    assert steps == ["begins", "ends"] * 12
    if way == "pool":
        assert len({process for _, process, _, _ in one_gpu.log}) > 1


def test_what_is_remembered_needs_no_handle(two_gpus, path, monkeypatch):
    tune_model(PROBLEMS[:3], cache=path, workers=1)

    def refuse(*_, **__):
        raise AssertionError("made without need")

    monkeypatch.setattr(dnn.Handle, "__init__", refuse)
    monkeypatch.setattr(tuning_run, "Tuner", refuse)
    monkeypatch.setattr(model, "WorkerPool", refuse)
    for options in ({}, {"workers": 2}, {"executor": ThreadPoolExecutor(1)}):
        assert tune_model(PROBLEMS[:3], cache=path, **options).remembered == 3
    with pytest.raises(AssertionError, match="made without need"):
        tune_model(PROBLEMS, cache=path)


def test_a_cache_that_is_given_stays_open_and_gets_everything(two_gpus):
    with TuningCache(":memory:") as cache, ways("threads") as options:
        tuning = tune_model(PROBLEMS, cache=cache, **options)
        assert tuning.measured == 5
        assert len(cache) == 5
        assert tune_model(PROBLEMS, cache=cache, **options).remembered == 5


@pytest.mark.processes
def test_a_read_only_cache_is_not_written(two_gpus, path):
    tune_model(PROBLEMS[:2], cache=path, workers=1)
    with TuningCache(path, read_only=True) as cache:
        tuning = tune_model(PROBLEMS, cache=cache, workers=2)
        assert (tuning.measured, tuning.remembered) == (3, 2)
        assert tune_model(PROBLEMS, cache=cache).remembered == 5
    assert entries(path).keys() == {4, 5}


def test_the_policy_and_the_handles_limit_hold_for_every_worker(two_gpus, path):
    policy = TuningPolicy(workspace_limit="50%", objective="latency")
    with dnn.Handle("cuda", workspace_limit="1 MiB") as handle, ThreadPoolExecutor(2) as executor:
        for options in ({}, {"workers": 2}, {"executor": executor}):
            tuning = tune_model(PROBLEMS, device=handle, policy=policy, cache=path, **options)
            assert tuning.facts["policy"] == {**policy.to_plain(), "workspace_limit": 1 << 20}
            assert two_gpus.searched == dict.fromkeys(KS, 1)  # the key has the limit
    tuning = tune_model(PROBLEMS, policy=policy, cache=path, workers=1)
    assert tuning.facts["policy"]["workspace_limit"] == 32 << 20
    assert two_gpus.searched == dict.fromkeys(KS, 2)
    with dnn.Handle("cuda", workspace_limit="1 MiB") as handle:
        tuner = dnn.Tuner(handle, path, policy)
        assert all(tuner.is_remembered(convolution) for convolution in PROBLEMS)
        tuner.cache.close()


# ---------------------------------------------------------------- what can be given


def test_lists_keep_counts_names_and_what_was_skipped(one_gpu, path):
    problems = ProblemList()
    problems.add(problem(4), "a")
    problems.add(problem(5), "b", count=3)
    problems.add(problem(4), "c")
    problems.skipped.append(SkippedNode("up", "ConvTranspose", "for a reason"))
    problems.notes.append("a note")
    tuning = tune_model(problems, cache=path)
    assert [(tuned.count, tuned.names) for tuned in tuning.tunings] == [
        (2, ("a", "c")),
        (3, ("b",)),
    ]
    assert (tuning.skipped, tuning.notes) == (tuple(problems.skipped), ("a note",))
    part = tune_model(
        iter([problems[1], problems[0], problem(5), ListedProblem(problem(4), 2, ("c", "d"))]),
        cache=path,
    )
    assert [(tuned.count, tuned.names) for tuned in part.tunings] == [
        (4, ("b",)),
        (4, ("a", "c", "d")),
    ]
    assert part.remembered == 2
    with pytest.warns(dnn.errors.TuningWarning, match="there is no problem to tune$"):
        nothing = tune_model([], cache=path)
    assert nothing.tunings == ()
    assert str(nothing) == "0 problems, 0 in all: 0 measured, 0 remembered"
    problems = ProblemList()
    problems.skipped += [
        SkippedNode("up", "ConvTranspose", "no such problem"),
        SkippedNode("a", "Conv", "odd"),
    ]
    with pytest.warns(
        dnn.errors.TuningWarning,
        match=r"skipped: up \(ConvTranspose\): no such problem and 1 more$",
    ):
        assert tune_model(problems, cache=path).skipped == tuple(problems.skipped)
    problems.skipped[0] = SkippedNode(
        "c", "Conv", "its input has an axis without a size", ("batch",)
    )
    with pytest.warns(
        dnn.errors.TuningWarning,
        match=r"and 1 more; give the sizes: batch= for an open batch, or problems_from_onnx\(\.\.\., "
        r"shapes=\)$",
    ):
        tune_model(problems, cache=path)
    saved = ProblemList([problem(4)])
    saved.save(path.with_name("saved.json"))
    again = tune_model(path.with_name("saved.json"), cache=path)
    assert (again.remembered, again.facts["model"]) == (1, "saved.json")
    assert "model" not in tune_model(saved, cache=path).facts


def test_a_model_file_is_read(one_gpu, path, tmp_path):
    onnx_models = pytest.importorskip("onnx_models", reason="onnx is not installed")
    import onnx

    file = tmp_path / "model.onnx"
    onnx_model = onnx_models.model(
        [onnx_models.conv()],
        {"x": onnx_models.IMAGE},
        [onnx_models.absent("w", onnx_models.FILTER)],
    )
    onnx.save(onnx_model, file)
    for source in (file, str(file)):
        (tuned,) = tune_model(source, cache=path).tunings
        assert (tuned.problem.x.shape, tuned.names, tuned.count) == (
            onnx_models.IMAGE,
            ("conv",),
            1,
        )
    with pytest.raises(dnn.ArgumentError, match=r"absent\.onnx"):
        tune_model(tmp_path / "absent.onnx", cache=path)


def test_an_open_batch_is_an_argument(one_gpu, path, tmp_path):
    onnx_models = pytest.importorskip("onnx_models", reason="onnx is not installed")
    import onnx

    file = tmp_path / "model.onnx"
    image = ("N", *onnx_models.IMAGE[1:])
    onnx_model = onnx_models.model(
        [onnx_models.conv()], {"x": image}, [onnx_models.absent("w", onnx_models.FILTER)]
    )
    onnx.save(onnx_model, file)
    with pytest.warns(dnn.errors.TuningWarning, match="batch= for an open batch"):
        assert tune_model(file, cache=path).tunings == ()
    (tuned,) = tune_model(file, batch=3, cache=path).tunings
    assert tuned.problem.x.shape == (3, *onnx_models.IMAGE[1:])
    with pytest.raises(dnn.ArgumentError, match="batch=0"):
        tune_model(file, batch=0, cache=path)


@pytest.mark.parametrize("option", ["workspace_limit", "deterministic"])
def test_an_option_of_the_policy_is_told_where_it_belongs(option):
    hint = rf"field of policy: policy=dnn\.TuningPolicy\({option}=True\)"
    with pytest.raises(TypeError, match=rf"^tune_model\(\) got .*'{option}'; it is a {hint}"):
        tune_model([], **{option: True})
    with (
        dnn.Handle(device="emulated") as handle,
        pytest.raises(TypeError, match=rf"^autotuned\(\) got .*'{option}'; it is a {hint}"),
    ):
        dnn.autotuned(handle, **{option: True})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"problems": problem()}, "problems="),
        ({"problems": None}, "problems=None"),
        ({"problems": [problem(), 7]}, "problem=7"),
        (
            {"problems": [Problem(TRANSFORM, x=dnn.TensorSpec((1, 2, 3, 4)))]},
            "cannot be tuned; allowed: convolution_forward, ",
        ),
        ({"policy": "latency"}, "policy='latency'"),
        ({"executor": 7}, "executor=7"),
        ({"workers": 0}, "workers=0"),
        ({"workers": True}, "workers=True"),
        ({"workers": 1.5}, "workers=1.5"),
        ({"workers": 2, "executor": Queued()}, "workers=2"),
        ({"batch": 4}, "batch=4 with problems that have their sizes"),
        ({"batch": 4, "problems": "saved.json"}, "batch=4 with problems that have their sizes"),
        ({"progress": 7}, "progress=7"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"device": True}, "device=True"),
        ({"device": object()}, "device="),
        ({"cache": 7}, "path=7"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_refused_is_named_before_anything_is_done(one_gpu, path, arguments, message):
    with pytest.raises(dnn.ArgumentError) as caught:
        tune_model(**{"problems": PROBLEMS, "cache": path, **arguments})
    assert message in str(caught.value)
    assert one_gpu.log == []
    assert not path.exists()


def test_a_handle_must_be_usable(one_gpu, path):
    with dnn.Handle("cuda") as handle:
        pass
    with pytest.raises(dnn.errors.ClosedError):
        tune_model(PROBLEMS, device=handle, cache=path)


@pytest.mark.parametrize(
    "executor", [ThreadPoolExecutor, lambda: ProcessPoolExecutor(mp_context=SPAWN)]
)
def test_an_executor_that_was_shut_down_is_refused(one_gpu, path, executor):
    with executor() as ended:
        pass
    with pytest.raises(
        dnn.ArgumentError, match="takes no work: cannot schedule new futures after shutdown"
    ):
        tune_model(PROBLEMS, executor=ended, cache=path)


def test_without_a_device_it_says_so(monkeypatch, tmp_path, path):
    Pretence(monkeypatch, tmp_path, "")
    for options in ({}, {"executor": ThreadPoolExecutor(1)}, {"executor": Threaded()}):
        with pytest.raises(dnn.NoDeviceError, match="no CUDA device 0"):
            tune_model(PROBLEMS, cache=path, **options)


# ---------------------------------------------------------------- other hosts


def test_a_host_without_a_gpu_asks_a_worker_what_it_has(tmp_path, monkeypatch, path):
    two_gpus = Pretence(monkeypatch, tmp_path, "A")

    class Far(Queued):
        def submit(self, function, *arguments):
            future = Future()
            self.futures.append(function.__name__)
            with monkeypatch.context() as patch:
                patch.setenv("PRETEND_GPUS", "A")
                future.set_result(function(*arguments))
            return future

    monkeypatch.setenv("PRETEND_GPUS", "")
    far = Far()
    tuning = tune_model(PROBLEMS, executor=far, cache=path)
    assert far.futures == ["identify", *["tune_task"] * 5]
    assert (tuning.measured, tuning.facts["device"]) == (5, "Pretend A")
    assert entries(path).keys() == set(KS)  # put here
    again = tune_model(PROBLEMS, executor=far, cache=path)
    assert (again.measured, again.remembered, far.futures[6:]) == (0, 5, ["identify"])
    assert two_gpus.searched == dict.fromkeys(KS, 1)


def test_a_worker_with_another_gpu_is_told(tmp_path, monkeypatch, path):
    two_gpus = Pretence(monkeypatch, tmp_path, "AB")

    def confused(problem, policy, *_):
        return tune_task(problem, policy, "cuda:1")

    monkeypatch.setattr(tuning_run, "tune_task", confused)
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.warns(
            TuningWarning, match="Pretend B.*not of the requested kind.*Pretend A"
        ) as records,
    ):
        tuning = tune_model(PROBLEMS, executor=executor, cache=path)
    assert len(records) == 1
    assert tuning.measured == 5
    assert {entry.key.device.gpu for entry in entries(path).values()} == {"Pretend B"}
    assert {gpu for _, _, gpu, _ in two_gpus.log} == {1}


def test_equal_tasks_are_asked_anew(one_gpu, path):
    executor = Threaded()
    tokens = []

    def note(function, *arguments):
        tokens.append(arguments[-1])
        return Threaded.submit(executor, function, *arguments)

    executor.submit = note
    for _ in range(2):
        tune_model(PROBLEMS[:2], executor=executor, cache=":memory:")
    assert len(set(tokens)) == len(tokens) == 6
    assert "" not in tokens


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("way", ["here", "others"])
def test_what_fails_stops_no_other(two_gpus, path, way):
    two_gpus.ask("fail-5", text="DeviceMemoryError full")
    two_gpus.ask("fail-6", text="NotSupportedError cudnnFoo 3000")
    two_gpus.ask("none-7")
    with ways(way) as options:
        tuning = tune_model([problem(4), *PROBLEMS], cache=path, **options)
    assert [k for k, algorithm in chosen(tuning) if algorithm is None] == [5, 6, 7]
    full, refused, none = tuning.failed
    assert full.why_none == "full"
    assert refused.why_none == "cudnnFoo returned 3000 (3000)"
    assert "IMPLICIT_GEMM (FMA): it does not work" in none.why_none
    assert [len(tuned.table) for tuned in tuning.failed] == [0, 0, 3]
    assert (tuning.measured, tuning.remembered) == (3, 0)
    assert tuning.total_ms == 2 * 4 + 8
    assert entries(path).keys() == {4, 8}
    assert "failed: 2x3x8x9 by 5x3x3x3 to 2x5x6x7, float32 NCHW: full" in str(tuning)
    two_gpus.stop("fail-5", "fail-6", "none-7")
    again = tune_model(PROBLEMS, cache=path, workers=1)
    assert (again.measured, again.remembered, again.failed) == (3, 2, ())


def test_what_a_worker_did_not_foresee_is_reported(two_gpus, path):
    two_gpus.ask("fail-5", text="ZeroDivisionError unforeseen")
    with ways("threads") as options:
        tuning = tune_model(PROBLEMS, cache=path, **options)
    (tuned,) = tuning.failed
    assert tuned.why_none == "not tuned: ZeroDivisionError: unforeseen"
    assert entries(path).keys() == {4, 6, 7, 8}


def test_what_is_not_foreseen_here_is_raised_and_nothing_is_lost(two_gpus, path):
    two_gpus.ask("fail-6", text="ZeroDivisionError unforeseen")
    with pytest.raises(ZeroDivisionError, match="unforeseen"):
        tune_model(PROBLEMS, cache=path, workers=1)
    assert entries(path).keys() == {4, 5}


@pytest.mark.parametrize("way", ["here", "others"])
def test_a_worker_that_cannot_work_ends_the_run(two_gpus, path, way):
    two_gpus.ask(*(f"fail-{k}" for k in KS), text="LibraryError broken")
    with ways(way) as options, pytest.raises(dnn.errors.LibraryError, match="broken"):
        tune_model(PROBLEMS, cache=path, **options)


@pytest.mark.processes
def test_a_process_that_fails_or_dies_fails_its_problem_only(two_gpus, path):
    two_gpus.ask("die-4")
    two_gpus.ask("fail-5", text="ZeroDivisionError unforeseen")
    two_gpus.ask("fail-6", text="NotSupportedError cudnnFoo 3000")
    two_gpus.ask("none-7")
    tuning = tune_model(PROBLEMS, cache=path, workers=2)
    died, unforeseen, refused, none = tuning.failed
    assert [failed.problem for failed in tuning.failed] == PROBLEMS[:4]
    assert died.why_none.startswith("not tuned: ChildProcessError: worker process ")
    assert died.why_none.endswith("died: killed by SIGKILL")
    assert unforeseen.why_none == "not tuned: ZeroDivisionError: unforeseen"
    assert refused.why_none == "cudnnFoo returned 3000 (3000)"
    assert "IMPLICIT_GEMM (FMA): it does not work" in none.why_none
    assert [len(failed.table) for failed in tuning.failed] == [0, 0, 0, 3]
    assert entries(path).keys() == {8}
    two_gpus.stop("die-4", "fail-5", "fail-6", "none-7")
    again = tune_model(PROBLEMS, cache=path, workers=1)
    assert (again.remembered, again.measured, again.failed) == (1, 4, ())


@pytest.mark.processes
def test_a_pool_that_breaks_keeps_what_was_finished(one_gpu, path):
    one_gpu.ask("die-6")
    with ProcessPoolExecutor(1, mp_context=SPAWN) as executor:
        tuning = tune_model(PROBLEMS, cache=path, executor=executor)
        assert [tuned.problem.w.shape[0] for tuned in tuning.failed] == [6, 7, 8]
        assert all(
            tuned.why_none.startswith("not tuned: BrokenProcessPool: ") for tuned in tuning.failed
        )
        assert entries(path).keys() == {4, 5}
        with pytest.raises(BrokenProcessPool):  # it takes nothing any more
            tune_model(PROBLEMS, cache=path, executor=executor)
    one_gpu.stop("die-6")
    later = tune_model(PROBLEMS, cache=path)
    assert (later.remembered, later.measured, later.failed) == (2, 3, ())


def test_a_task_that_somebody_else_takes_back_is_reported(one_gpu, path):
    class Fickle(Queued):
        def submit(self, function, *arguments):
            future = super().submit(function, *arguments)
            if len(self.futures) == 2:
                future = Future()
                future.cancel()
            else:
                future.run()
            return future

    with dnn.Handle("cuda") as handle:
        tuning = tune_model(PROBLEMS, device=handle, cache=path, executor=Fickle())
    (tuned,) = tuning.failed
    assert (tuned.problem, tuned.why_none) == (problem(5), "not tuned: CancelledError")


# ---------------------------------------------------------------- interrupts


class Interrupter:
    """Raises KeyboardInterrupt when so many problems are done."""

    def __init__(self, after):
        self.after = after

    def __call__(self, count, total, tuned):
        if count == self.after:
            raise KeyboardInterrupt


@pytest.mark.processes
@pytest.mark.parametrize(
    ("way", "after"),
    [
        *itertools.product(("here", "threads"), (1, 3, 5)),
        *((way, 3) for way in ("pool", "others")),
    ],
)
def test_an_interrupted_run_is_resumed(two_gpus, path, way, after):
    with ways(way) as options, pytest.raises(KeyboardInterrupt):
        tune_model(PROBLEMS, cache=path, progress=Interrupter(after), **options)
    ks = set(two_gpus.searched)
    assert len(ks) >= after
    lost = ks - set(entries(path))
    # whatever was measured is there, but for what workers had not brought back yet
    assert lost == set() or (way != "here" and len(ks - lost) >= after)
    tuning = tune_model(PROBLEMS, cache=path, workers=1)
    assert tuning.remembered >= after
    assert tuning.failed == ()
    assert two_gpus.searched == dict.fromkeys(KS, 1) | dict.fromkeys(lost, 2)


@pytest.mark.processes
@pytest.mark.parametrize("way", ["here", "threads", "pool"])
def test_ctrl_c_is_heard_while_everybody_measures(two_gpus, path, way):
    two_gpus.ask(*(f"wait-{k}" for k in KS))
    num_workers = 1 if way == "here" else 2

    def interrupt():
        while len(two_gpus.log) < num_workers:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0, interrupt)
    with ways(way) as options:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            tune_model(PROBLEMS, cache=path, **options)
        timer.join()
        two_gpus.stop(*(f"wait-{k}" for k in KS))  # an executor that is given is not ended
    # Nothing ends the searches that an executor's workers had begun.
    assert len(two_gpus.searched) <= (2 if way == "threads" else 0)
    assert entries(path).keys() <= two_gpus.searched.keys()
    assert tune_model(PROBLEMS, cache=path, workers=1).failed == ()


def test_what_is_done_when_it_is_interrupted_is_not_lost(one_gpu, path):
    class Fast(Queued):
        """All are done before the first is looked at, and none of them reaches the cache."""

        def submit(self, function, *arguments):
            future = Future()
            future.set_result(function(*arguments))
            return future

    with dnn.Handle("cuda") as handle, TuningCache(":memory:") as cache:
        with pytest.raises(KeyboardInterrupt):
            tune_model(
                PROBLEMS, device=handle, cache=cache, executor=Fast(), progress=Interrupter(1)
            )
        assert len(cache) == 5


@pytest.mark.processes
def test_a_killed_program_loses_nothing_that_was_measured(two_gpus, path):
    from helpers.harness import run_python

    code = """
        import os, signal, sys
        from cudnnlite.workbench.tuning.model import tune_model
        from helpers.pretend import problem
        def kill(done, total, tuned):
            if done == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        tune_model([problem(k) for k in (4, 5, 6, 7, 8)], cache=sys.argv[1], progress=kill)
    """
    same = {LIBRARY_VARIABLE: os.environ.get(LIBRARY_VARIABLE)}  # its version is part of the keys
    process = run_python(code, path, check=False, **same)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert len(entries(path)) >= 3
    tuning = tune_model(PROBLEMS, cache=path, workers=1)
    assert tuning.remembered >= 3
    assert max(two_gpus.searched.values()) == 1


@pytest.mark.processes
def test_two_programs_at_once_measure_everything_once(two_gpus, path):
    from helpers.harness import run_python

    code = """
        import sys
        from cudnnlite.workbench.tuning.model import tune_model
        from helpers.pretend import problem
        tuning = tune_model([problem(k) for k in range(4, 24)], cache=sys.argv[1], workers=1)
        print(tuning.measured, tuning.remembered, len(tuning.failed))
    """
    with ThreadPoolExecutor(2) as executor:
        futures = [executor.submit(run_python, code, path) for _ in range(2)]
        counts = [[int(word) for word in future.result().stdout.split()] for future in futures]
    assert two_gpus.searched == dict.fromkeys(range(4, 24), 1)
    assert sum(measured for measured, _, _ in counts) == 20
    assert all(measured + remembered == 20 for measured, remembered, _ in counts)
    assert len(entries(path)) == 20


# ---------------------------------------------------------------- progress


def test_a_bar_is_drawn_on_stderr_only(one_gpu, path, capfd):
    tune_model(PROBLEMS[:2], cache=path, progress=True)
    tune_model(PROBLEMS, cache=path, progress=True)
    out, error = capfd.readouterr()
    assert out == ""
    assert "2/2" in error
    assert "5/5" in error
    assert "2x3x8x9 by 8x3x3x3" in error


def test_a_bar_without_rich_is_refused(one_gpu, path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(
        dnn.errors.MissingPackageError, match=r"needs rich: pip install 'cudnnlite\[cli\]'"
    ):
        tune_model(PROBLEMS[:2], cache=path, progress=True)


def test_on_a_terminal_the_bar_leaves_stdout_alone(one_gpu, path, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(
        "cudnnlite.workbench.tuning.progress.summary",
        lambda problem: print("the program's") or "short",
    )
    tune_model(PROBLEMS[:2], cache=path, progress=True)
    out, error = capfd.readouterr()
    assert out == "the program's\n" * 2
    assert "short" in error


# ---------------------------------------------------------------- what is returned


def model_tuning(count=4, seed=0, objective="device"):
    tuned_problems = tunings.model(count, seed)
    return ModelTuning(
        tuple(tuned_problems), {**tunings.FACTS, "policy": TuningPolicy(objective).to_plain()}
    )


def spent(tuning, choices):
    return sum(
        tuned.count * row.time_ms for tuned, row in zip(tuning.tunings, choices, strict=True)
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_assignment_is_the_best_of_all(seed):
    tuning = model_tuning(4, seed)
    usable = [
        [row for row in tuned.table if row.ok and row.time_ms is not None]
        for tuned in tuning.tunings
    ]
    # every way to choose, with the workspace that it needs and the time that it takes
    everything = [
        (max(row.workspace for row in choice), spent(tuning, choice))
        for choice in itertools.product(*usable)
    ]
    limits = sorted({row.workspace for rows in usable for row in rows})
    for limit in [*limits, *(size - 1 for size in limits if size)]:
        fitting = [total for size, total in everything if size <= limit]
        if fitting:
            choices = tuning.assign(limit)
            assert max(row.workspace for row in choices) <= limit
            assert spent(tuning, choices) == pytest.approx(min(fitting))
            assert all(row.ok for row in choices)
        else:
            with pytest.raises(dnn.NoAlgorithmError, match="the model needs at least"):
                tuning.assign(limit)
    assert spent(tuning, tuning.assign()) == pytest.approx(min(total for _, total in everything))
    assert tuning.assign() == tuning.assign("2 TiB")
    for size, total in tuning.pareto():
        assert total == pytest.approx(min(spent for need, spent in everything if need <= size))
    assert list(tuning.pareto()) == shared_workspace(tuning.tunings, tuning.policy)


def test_an_assignment_names_what_does_not_fit():
    big = tunings.tuned(tunings.ROWS[:1], names=("big",))
    small = tunings.tuned((tunings.IMPLICIT,), names=("small",))
    none = tunings.failed(names=("none",))
    tuning = ModelTuning((big, none, small), {"policy": TuningPolicy("device").to_plain()})
    with pytest.raises(
        dnn.NoAlgorithmError, match=r"workspace_limit='1 KiB' is too little for big; .* at least 96"
    ):
        tuning.assign("1 KiB")
    assert [row and row.algorithm for row in tuning.assign("96 KiB")] == [
        tunings.PRECOMP.algorithm,
        None,
        tunings.IMPLICIT.algorithm,
    ]
    with pytest.raises(dnn.ArgumentError, match="workspace_limit='much'"):
        tuning.assign("much")


def test_the_totals_follow_the_objective():
    calls = [tunings.tuned((tunings.PRECOMP,), count=2), tunings.tuned((tunings.CLOSE,), count=3)]
    device = ModelTuning(tuple(calls), {"policy": TuningPolicy("device").to_plain()})
    latency = ModelTuning(tuple(calls), {"policy": TuningPolicy("latency").to_plain()})
    assert device.total_ms == pytest.approx(2 * 0.0333 + 3 * 0.0339)
    assert latency.total_ms == pytest.approx(2 * 0.0355 + 3 * 0.0347)
    assert ModelTuning((tunings.failed(),)).total_ms is None
    assert ModelTuning(()).policy == {}


def test_it_prints_as_a_table(one_gpu, path):
    one_gpu.ask("none-6")
    problems = ProblemList(PROBLEMS[:2])
    problems.add(problem(4), "conv1")
    problems.add(problem(4), "conv2")
    problems.add(problem(6))
    problems.skipped.append(SkippedNode("up", "ConvTranspose", "for a reason"))
    problems.notes.append("a note")
    tune_model([problem(5)], cache=path)
    tuning = tune_model(problems, cache=path)
    lines = str(tuning).splitlines()
    assert lines[0] == "3 problems, 5 in all: 2 measured, 1 remembered, 1 failed; 17 call ms in all"
    assert lines[1].split() == [
        "count",
        "problem",
        "where",
        "algorithm",
        "math",
        "call",
        "ms",
        "call",
        "ms",
        "in",
        "all",
        "workspace",
        "from",
    ]
    assert lines[2].split("  ")[1:] != []
    for part in ("    3  ", "conv1 and 1 more", "FFT", "4.0000", "12.0000", "16 KiB", "measured"):
        assert part in lines[2]
    assert lines[3].endswith("cache")
    assert "none" in lines[4]
    assert lines[5].startswith(
        "failed: 2x3x8x9 by 6x3x3x3 to 2x6x6x7, float32 NCHW: no algorithm for "
    )
    assert lines[-2:] == ["skipped: up (ConvTranspose): for a reason", "note: a note"]
    assert repr(tuning) == f"<ModelTuning: {lines[0]}>"


def test_reports_take_it_as_it_is(two_gpus, path):
    two_gpus.ask("fail-5", text="DeviceMemoryError full")
    tuning = tune_model(PROBLEMS, cache=path, workers=1)
    plain = json.loads(json.dumps(to_plain(tuning), allow_nan=False))
    assert plain["model"]["total_ms"] == tuning.total_ms
    assert plain["model"]["chosen"] == 4
    assert plain["facts"]["cuDNN"].count(".") == 2
    assert plain["facts"]["driver"] == "580.1"
    again = pickle.loads(pickle.dumps(tuning))
    assert str(again) == str(tuning)
    assert again.workers == tuning.workers
    assert all(isinstance(tuned, TunedProblem) for tuned in again.tunings)


@pytest.mark.parametrize("way", ["here", "others"])
def test_what_the_progress_raises_is_raised(two_gpus, path, way):
    calls = []

    def refuse(count, total, tuned):
        calls.append(count)
        raise ValueError("the caller's")

    with ways(way) as options, pytest.raises(ValueError, match="the caller's"):
        tune_model(PROBLEMS, cache=path, progress=refuse, **options)
    assert calls == [1]
    assert entries(path)
