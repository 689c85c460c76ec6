"""Entries for tuning caches, and processes that write them.

The processes import this module too, so it is quick to import.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from cudnnlite import (
    AlgorithmResult,
    ConvolutionSpec,
    FilterSpec,
    Graph,
    RNNSpec,
    TensorSpec,
    convolution_forward,
    rnn_forward,
)
from cudnnlite.enums import ConvolutionFwdAlgo, MathType, RNNAlgo, Status
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.specs import RNNDataSpec
from cudnnlite.types import Engine
from cudnnlite.workbench.tuning.entries import DeviceIdentity, TuningEntry, make_key
from cudnnlite.workbench.tuning.policy import TuningPolicy

H200 = DeviceIdentity("NVIDIA H200", "9.0", "570.86.10", 92800)
H100 = replace(H200, gpu="NVIDIA H100 80GB HBM3")
ALIGNMENTS = {"x": 128, "w": 64, "y": 32}
EARLY, LATE = "2026-01-31T10:00:00+00:00", "2026-01-31T11:00:00+00:00"


def convolution(number=0):
    x, w = TensorSpec((1 + number, 8, 16, 16), "float16"), FilterSpec((16, 4, 3, 3), "float16")
    return convolution_forward.problem(x, w, ConvolutionSpec(padding=1, groups=2))


def rnn(number=0):
    return rnn_forward.problem(RNNSpec("lstm", 8, 16), None, RNNDataSpec((5, 2 + number, 8)))


def rows(problem, time_ms=0.5):
    algorithm = (
        ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM
        if problem.kind == "convolution_forward"
        else RNNAlgo.STANDARD
    )
    good = AlgorithmResult(
        algorithm, MathType.TENSOR_OP, time_ms=time_ms, workspace=4096, error=3e-4, spread_ms=0.01
    )
    slow = replace(good, math_type=MathType.FMA, time_ms=2 * time_ms, deterministic=None)
    return (
        good,
        slow,
        replace(good, status=Status.NOT_SUPPORTED, time_ms=None, workspace=0, why_not="too small"),
    )


def entry(number=0, *, problem=None, device=H200, tuned_at=EARLY, time_ms=0.5):
    problem = convolution(number) if problem is None else problem
    return TuningEntry(
        key=make_key(problem, ALIGNMENTS, TuningPolicy(layouts=()), device),
        title=str(problem),
        timing="device time, median of 9",
        rows=rows(problem, time_ms),
        chosen=0,
        tuned_at=tuned_at,
        seconds=0.25,
        cudnnlite="0.1.0",
    )


def entries_of_format_4():
    """Return what the files of tests/data/tuning_cache_of_format_4 hold, by the kind of problem."""
    engine = Engine(38, {"STAGES": 2, "TILE_SIZE": 5})
    measured = AlgorithmResult(
        ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM,
        MathType.TENSOR_OP,
        time_ms=0.125,
        spread_ms=0.0078125,
        call_us=130.5,
        host_us=6.25,
        call_spread_us=1.5,
        workspace=4096,
        error=3e-4,
        max_error=2e-3,
        layout="NHWC",
        remark="converts x, y",
        heuristic=3,
    )
    convolutions = (
        measured,
        replace(measured, algorithm=engine, layout="", compiled=True, within_noise=True),
        replace(measured, replay=True, host_us=None, heuristic=None),
        replace(measured, algorithm=Engine(0), deterministic=None, same_kernel="engine 38"),
        AlgorithmResult(
            ConvolutionFwdAlgo.FFT,
            MathType.FMA,
            status=Status.NOT_SUPPORTED,
            why_not="it needs more than the search's 0 B",
            transient=True,
        ),
    )
    networks = (
        AlgorithmResult(
            RNNAlgo.PERSIST_STATIC, MathType.DEFAULT, time_ms=0.25, reserve=128, deterministic=None
        ),
        AlgorithmResult(RNNAlgo.STANDARD, MathType.FMA, time_ms=0.5, error=float("nan")),
    )
    graph = Graph()
    a, b = (graph.input(name, (1, 64, 64), "float16") for name in "ab")
    graph.output("y", graph.gelu(graph.matmul(a, b)), "float16")
    engines = (AlgorithmResult(engine, MathType.TENSOR_OP, time_ms=0.5, call_us=12.0),)
    limited = TuningPolicy(workspace_limit=1 << 20, deterministic=True, max_error=0.25)
    keys = {
        "convolution": (make_key(convolution(), ALIGNMENTS, limited, H200), convolutions),
        "network": (make_key(rnn(), {}, TuningPolicy(objective="device"), H100), networks),
        "graph": (make_key(GraphProblem(graph), {}, TuningPolicy(), H200), engines),
    }
    return {
        kind: TuningEntry(
            key=key,
            title=kind,
            timing="time of calls, median of 9",
            rows=results,
            chosen=0,
            tuned_at=LATE,
            seconds=0.5,
            cudnnlite="0.1.0",
        )
        for kind, (key, results) in keys.items()
    }


# What the code of every child can use: the names above, `path` and `folder`, the warnings so far, a
# cache's refusals as text, and forks, which are cheaper than children because they import nothing.
_CHILD = """
import json, os, sys, traceback, warnings
sys.path.insert(0, sys.argv[1])
from helpers.tuning_entries import *
from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.errors import TuningCacheError, TuningCacheWarning
path, folder = sys.argv[2:4]
told = []
def tell(message, category, *_):
    if issubclass(category, TuningCacheWarning):
        told.append(f"{category.__name__}: {message}")
warnings.showwarning = tell
warnings.simplefilter("always")
def attempt(use):
    try:
        return use()
    except TuningCacheError as error:
        return f"TuningCacheError: {error}"
def forked(*works):
    "Let processes do these, all at once; return how many warnings each of them told."
    wait, go = os.pipe()
    children = []
    for work in works:
        children.append(os.fork())
        if children[-1] == 0:
            try:
                os.close(go)
                os.read(wait, 1)  # until the other end is closed
                work()
            except BaseException:
                traceback.print_exc()
                os._exit(99)
            os._exit(len(told))
    os.close(go)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
"""


def _places(path):
    """Return what a child is told: where the tests are, a path, and its folder."""
    return [str(place) for place in (Path(__file__).parents[1], path, path.parent)]


def start_child(code, path):
    """Start a process that runs code, and talks through pipes."""
    command = [sys.executable, "-c", _CHILD + code, *_places(path)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish_child(child, message=""):
    """Tell a child something, wait for it, and return the JSON in the last line that it printed."""
    out, errors = child.communicate(message)
    assert child.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def run_child(commands, code, path):
    """Run code in another process, and return the JSON that it prints."""
    process = commands.run_code(_CHILD + code, *_places(path))
    return json.loads(process.stdout.splitlines()[-1])
