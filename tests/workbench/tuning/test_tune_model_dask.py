"""`tune_model` on a real Dask cluster of two worker processes on this machine."""

from __future__ import annotations

import os
import warnings

import pytest
from helpers.pretend import Pretence, problem, rows_of

from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.model import tune_model

# Dask's sockets and loops are closed by its threads, and some later than it says
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(distributed|dask|tornado)"),
]


KS = range(4, 12)


def interrupt(count, total, tuned):
    raise KeyboardInterrupt


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


def test_each_worker_has_a_gpu_and_all_fill_one_cache(client, pretend, tmp_path):
    problems, path = [problem(k) for k in KS], tmp_path / "cache"
    pretend.ask("fail-7", text="DeviceMemoryError full")
    with pretend.held(4, 5):
        tuning = tune_model(problems, cache=path, executor=client)
    assert {worker.uuid for worker in tuning.workers} == {"GPU-0", "GPU-1"}
    assert {worker.process for worker in tuning.workers} == set(client.run(os.getpid).values())
    assert [tuned.why_none for tuned in tuning.failed] == ["full"]
    pretend.stop("fail-7")
    again = tune_model(problems, cache=path, executor=client)
    assert (again.remembered, again.measured, again.failed) == (7, 1, ())
    assert {pretend.searched[k] for k in KS} == {1}
    # nothing that Dask itself remembers answers for the cache
    fresh = tune_model(problems, cache=":memory:", executor=client)
    assert (fresh.remembered, fresh.measured) == (0, 8)
    assert {pretend.searched[k] for k in KS} == {2}
    assert [tuple(tuned.table) for tuned in fresh.tunings] == [rows_of(k) for k in KS]
    with TuningCache(path) as cache:
        assert len(cache) == 8
    with TuningCache(":memory:") as cache:
        with pytest.raises(KeyboardInterrupt):
            tune_model(problems, cache=cache, executor=client, progress=interrupt)
        assert len(cache) > 0
    once_more = tune_model(problems, cache=":memory:", executor=client.get_executor())
    assert (once_more.measured, once_more.failed) == (8, ())
