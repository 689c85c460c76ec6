"""`tune_model` on a real Dask cluster of two worker processes on this machine."""

from __future__ import annotations

import os
import warnings

import pytest
from helpers.pretend import Pretence, problem, rows_of

import cudnnlite as dnn
from cudnnlite import rnn_forward
from cudnnlite.autotune.cache import TuningCache
from cudnnlite.autotune.model import tune_model
from cudnnlite.problems.problem_list import ProblemList

# Dask's sockets and loops are closed by its threads, and some later than it says
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(distributed|dask|tornado)"),
]


KS = range(4, 12)


@pytest.fixture(scope="module")
def pretend(tmp_path_factory):
    """Two GPUs that are alike."""
    with pytest.MonkeyPatch.context() as patch:
        yield Pretence(patch, tmp_path_factory.mktemp("gpus"), "AA")


@pytest.fixture(scope="module")
def client(pretend):
    """A client of two workers with a thread each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of while it is imported is not ours
        distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    options = {
        "n_workers": 2,
        "processes": True,
        "threads_per_worker": 1,
        "dashboard_address": ":0",
    }
    with (
        distributed.LocalCluster(**options, silence_logs=False) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def processes(client):
    return set(client.run(os.getpid).values())


def test_two_workers_share_the_problems(client, pretend):
    lstm = rnn_forward.problem(
        dnn.RNNSpec("lstm", 6, 8, math_type="fma"), None, dnn.RNNDataSpec((5, 4, 6))
    )
    problems = ProblemList([problem(k) for k in range(12, 20)])
    problems.add(problem(13), "again", count=4)
    problems.add(lstm, "lstm")
    reports = []
    with TuningCache(":memory:") as cache, pretend.held(12, 13):
        tuning = tune_model(
            problems,
            device="emulated",
            cache=cache,
            executor=client.get_executor(),
            progress=lambda count, total, tuned: reports.append((count, total)),
        )
        assert len(cache) == 0  # times of the emulated device
    assert tuning.failed == ()
    assert [tuned.problem for tuned in tuning.tunings] == [entry.problem for entry in problems]
    assert [tuned.count for tuned in tuning.tunings] == [1, 5, 1, 1, 1, 1, 1, 1, 1]
    assert all(tuned.chosen.time_ms > 0 for tuned in tuning.tunings)
    assert reports == [(number, 9) for number in range(1, 10)]
    assert {worker.process for worker in tuning.workers} == processes(client)
    assert len(tuning.workers) == 2
    assert sum(tuning.workers.values()) == tuning.measured == 9
    assert {worker.device.kind for worker in tuning.workers} == {"emulated"}


def test_each_worker_has_a_gpu_and_all_fill_one_cache(client, pretend, tmp_path):
    problems, path = [problem(k) for k in KS], tmp_path / "cache"
    pretend.ask("fail-7", text="DeviceMemoryError full")
    executor = client.get_executor()
    with pretend.held(4, 5):
        tuning = tune_model(problems, cache=path, executor=executor)
    assert {worker.uuid for worker in tuning.workers} == {"GPU-0", "GPU-1"}
    assert {worker.process for worker in tuning.workers} == processes(client)
    assert [tuned.why_none for tuned in tuning.failed] == ["full"]
    pretend.stop("fail-7")
    again = tune_model(problems, cache=path, executor=executor)
    assert (again.remembered, again.measured, again.failed) == (7, 1, ())
    assert {pretend.searched[k] for k in KS} == {1}
    # nothing that Dask itself remembers answers for the cache
    fresh = tune_model(problems, cache=":memory:", executor=executor)
    assert (fresh.remembered, fresh.measured) == (0, 8)
    assert {pretend.searched[k] for k in KS} == {2}
    assert [tuple(tuned.table) for tuned in fresh.tunings] == [rows_of(k) for k in KS]
    with TuningCache(path) as cache:
        assert len(cache) == 8


@pytest.mark.exhaustive
def test_what_kills_a_worker_again_and_again_is_reported(client, pretend, tmp_path):
    pretend.ask("die-5")
    tuning = tune_model(
        [problem(k) for k in (4, 5, 6)], cache=tmp_path / "c", executor=client.get_executor()
    )
    # Dask suspects whatever a worker had that died
    failed = {tuned.problem: tuned.why_none for tuned in tuning.failed}
    assert problem(5) in failed
    assert all(why.startswith("not tuned: KilledWorker: ") for why in failed.values())
    assert len(failed) + tuning.measured + tuning.remembered == 3
