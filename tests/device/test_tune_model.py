"""`tune_model` with real searches.

Its choices are right, whoever measures, and remembered problems are only read.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.harness import run_python

import cudnnlite as dnn
from cudnnlite import convolution_forward, rnn_forward
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.gpu_locks import locked_device
from cudnnlite.workbench.tuning.model import ModelTuning, tune_model
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.tuner import Tuner

from .problems import Problem as Case
from .test_plan import count_calls
from .test_tuner import hurry

FMA = dnn.ConvolutionSpec(1, math_type="fma")
W = {channels: (channels, 4, 3, 3) for channels in (2, 3, 5, 6)}
X = (2, 4, 9, 8)
CONVOLUTIONS = [
    convolution_forward.problem(dnn.TensorSpec(X), dnn.FilterSpec(w), FMA) for w in W.values()
]
LSTM = rnn_forward.problem(
    dnn.RNNSpec("lstm", 6, 8, math_type="fma"), None, dnn.specs.RNNDataSpec((5, 4, 6))
)
PROBLEMS = [*CONVOLUTIONS, LSTM, CONVOLUTIONS[0]]
WAYS = ("here", "pool", "threads", "processes")


@contextmanager
def working(way: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments that let one or two work."""
    if way == "threads":
        with ThreadPoolExecutor(2) as executor:
            yield {"executor": executor}
    elif way == "processes":
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
            yield {"executor": executor}
    else:
        yield {"workers": 1 if way == "here" else 2}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few samples do, in this process: how well times are taken is tested elsewhere."""
    hurry(monkeypatch)


def check(tuning: ModelTuning, device: Any) -> None:
    """Check that it has everything, and that its choices compute what they should."""
    assert tuning.failed == ()
    assert [tuned.problem for tuned in tuning.tunings] == [*CONVOLUTIONS, LSTM]
    assert [tuned.count for tuned in tuning.tunings] == [2, 1, 1, 1, 1]
    assert tuning.total_ms == pytest.approx(
        sum(t.count * t.chosen.call_us / 1000 for t in tuning.tunings)
    )
    assert tuning.facts["device"] == device.facts().name
    with dnn.Handle(device) as handle:
        for tuned, w in zip(tuning.tunings, W.values(), strict=False):
            case = Case(handle, X, w, padding=1, math_type="fma")
            case.assert_right(case.run(algorithm=tuned.chosen), tuned.chosen.algorithm)


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_the_choices_are_right_whoever_measures(device: Any, path: Path, way: str) -> None:
    with working(way) as options:
        tuning = tune_model(PROBLEMS, device=device, cache=path, **options)
        check(tuning, device)
        assert (tuning.measured, tuning.remembered) == (5, 0)
        assert {worker.uuid for worker in tuning.workers} == {device.facts().uuid}
        in_this_process = {worker.process == os.getpid() for worker in tuning.workers}
        assert in_this_process == {way in ("here", "threads")}
        if device.kind == "emulated":
            again = tune_model(CONVOLUTIONS[:1], device=device, cache=path, **options)
            assert again.remembered == 0
            assert not path.exists()
            return
        again = tune_model(PROBLEMS, device=device, cache=path, **options)
    check(again, device)
    assert (again.measured, again.remembered) == (0, 5)
    assert [tuple(tuned.table) for tuned in again.tunings] == [
        tuple(tuned.table) for tuned in tuning.tunings
    ]
    with dnn.Handle(device) as handle, TuningCache(path) as cache:
        tuner = Tuner(handle, cache)
        assert [tuner.choose(tuned.problem) for tuned in tuning.tunings] == [
            tuned.chosen for tuned in tuning.tunings
        ]
        assert tuner.measured == 0


@pytest.mark.gpu
def test_what_is_remembered_reaches_no_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = dnn.devices.device_choice.get_device("cuda")
    tune_model(PROBLEMS, device=device, cache=path)
    running = [
        name
        for name, function in FUNCTIONS.items()
        if function.needs_device and hasattr(device.api, name)
    ]
    assert {"cudnnConvolutionForward", "cudnnCreate", "cudnnRNNForward"} <= set(running)
    calls = count_calls(monkeypatch, device.api, *running)
    for name in ("allocate", "create_stream", "elapsed_ms", "capture", "copy_in"):
        monkeypatch.setattr(device, name, None)
    tuning = tune_model(PROBLEMS, device=device, cache=path)
    assert (tuning.remembered, calls) == (5, [])


@pytest.mark.gpu
@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_without_a_number_any_gpu_will_do(path: Path, way: str) -> None:
    gpus = dnn.devices.device_choice.visible_gpus()
    with working(way) as options:
        tuning = tune_model(PROBLEMS, device="cuda", cache=path, **options)
    assert tuning.measured == 5
    assert {worker.uuid for worker in tuning.workers} <= {gpu.uuid for gpu in gpus}
    assert len({worker.uuid for worker in tuning.workers}) <= len(gpus)
    assert dnn.devices.device_choice.get_device("cuda").facts() == gpus[0]
    with locked_device("cuda") as device:
        assert device.facts() == gpus[device.index]


@pytest.mark.gpu
@pytest.mark.processes
def test_a_forked_process_says_what_is_wrong(path: Path) -> None:
    code = """
        import multiprocessing, sys
        from concurrent.futures import ProcessPoolExecutor
        import cudnnlite as dnn
        from cudnnlite.workbench.tuning.model import tune_model
        dnn.Handle("cuda").close()  # a forked process may use CUDA only if its parent did not
        problem = dnn.convolution_forward.problem(
            dnn.TensorSpec((2, 4, 9, 8)), dnn.FilterSpec((2, 4, 3, 3))
        )
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
            try:
                tune_model([problem], executor=executor, cache=sys.argv[1])
            except dnn.NoDeviceError as error:
                print(error)
    """
    assert 'get_context("spawn")' in run_python(code, path).stdout


def test_constraints_that_nothing_satisfies_say_so(handle: dnn.Handle) -> None:
    tuning = tune_model(
        PROBLEMS, device=handle, cache=":memory:", policy=TuningPolicy(max_error=1e-30)
    )
    assert len(tuning.failed) == 5
    assert tuning.total_ms is None
    for tuned in tuning.tunings:
        assert "the bound is 1.0e-30" in tuned.why_none
        assert tuned.why_none in str(tuning)


def test_tunings_and_lists_are_tables_of_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = dnn.convolution_forward.problem(
        dnn.TensorSpec((1, 2, 4, 4)), dnn.FilterSpec((2, 2, 1, 1))
    )
    problems = dnn.ProblemList([problem])
    problems.add(problem, name="layer")
    tuning = dnn.tune_model(problems, cache=":memory:", device="emulated")
    pandas = SimpleNamespace(DataFrame=lambda data: ("frame", data))
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    (tuned,) = tuning.tunings
    kind, rows = tuning.to_pandas()
    assert kind == "frame"
    assert [row["algorithm"] for row in rows] == [str(row.algorithm) for row in tuned.table]
    assert [row["chosen"] for row in rows].index(True) == tuned.place
    assert {(row["count"], row["names"]) for row in rows} == {(2, "layer")}
    flops = 2 * 2 * 2 * 4 * 4
    assert problems.to_pandas() == (
        "frame",
        [{"count": 2, "flops": flops, "problem": rows[0]["problem"], "names": "layer"}],
    )


def test_the_graphs_of_a_recorded_program_are_tuned(path: Path) -> None:
    """Afterwards the same program measures nothing."""
    cache = dnn.TuningCache(path, rehearsal=True)
    seeds = itertools.count(1)

    def program(handle: dnn.Handle) -> None:
        a = handle.array(np.ones((16, 8)), dtype="float16")
        x, w = (
            handle.array(np.ones(shape), dtype="float16", layout="NHWC")
            for shape in ((2, 8, 6, 6), (8, 8, 3, 3))
        )
        dnn.matmul(handle, a, a.transpose(), activation="relu")
        dnn.convolution_forward(handle, x, w, activation="gelu")

        q = handle.array(np.ones((1, 2, 8, 16)), dtype="float16")
        attention = dnn.scaled_dot_product_attention_forward(
            handle, q, q, q, dropout=0.5, seed=next(seeds), return_stats=True
        )
        # Its sums of rows are an output in the workspace.
        dnn.scaled_dot_product_attention_backward(handle, q, q, q, q, q, attention[1])

    with dnn.Handle(device="emulated") as handle:
        with dnn.record_problems() as problems:
            program(handle)
        problems.save(path / "program.json")
        assert [*dnn.ProblemList.load(path / "program.json")] == [*problems]
        tuning = dnn.tune_model(problems, cache=cache, device=handle)
        assert [tuned.problem.kind for tuned in tuning.tunings] == ["graph"] * 4
        assert tuning.measured == 4
        assert not tuning.failed
        with dnn.autotuned(handle, cache=cache) as tuner:
            program(handle)
        assert tuner.measured == 0


def test_a_recorded_program_poses_other_problems_too(path: Path) -> None:
    """They are named as skipped; whoever asks for one of them by itself is told."""
    with dnn.Handle(device="emulated") as handle, dnn.record_problems() as problems:
        x, w = (
            handle.array(np.ones((1, 2, 4, 4), np.float32)),
            handle.array(np.ones((2, 2, 1, 1), np.float32)),
        )
        dnn.softmax_forward(handle, dnn.convolution_forward(handle, x, w))
        tuning = dnn.tune_model(problems, cache=path, device=handle)
    assert [tuned.problem.kind for tuned in tuning.tunings] == ["convolution_forward"]
    assert [(node.what, node.why) for node in tuning.skipped] == [
        ("softmax_forward", "cuDNN has no choice of algorithms for it")
    ]
    with pytest.raises(dnn.ArgumentError, match="cannot be tuned"):
        dnn.tune_model([problems[1].problem], cache=path, device="emulated")
