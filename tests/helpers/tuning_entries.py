"""Entries for tuning caches, and processes that write them.

The processes import this module too, so it is quick to import.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from cudnnlite import (
    ConvolutionSpec,
    FilterSpec,
    RNNDataSpec,
    RNNSpec,
    TensorSpec,
    convolution_forward,
    rnn_forward,
)
from cudnnlite.autotune.entries import DeviceIdentity, TuningEntry, make_key
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.enums import ConvolutionFwdAlgo, MathType, RNNAlgo, Status
from cudnnlite.problems.results import ConvolutionResult, RNNResult

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
    result = ConvolutionResult if problem.kind == "convolution_forward" else RNNResult
    good = result(
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


# What the code of every child can use: the names above, `path` and `folder`, the warnings so far, a
# cache's refusals as text, and forks, which are cheaper than children because they import nothing.
_CHILD = """
import json, os, sys, traceback, warnings
sys.path.insert(0, sys.argv[1])
from helpers.tuning_entries import *
from cudnnlite.autotune.cache import TuningCache
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


def start_child(code, path):
    """Start a process that runs code, and talks through pipes."""
    command = [
        sys.executable,
        "-c",
        _CHILD + code,
        str(Path(__file__).parents[1]),
        str(path),
        str(path.parent),
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish_child(child, message=""):
    """Tell a child something, wait for it, and return the JSON in the last line that it printed."""
    out, errors = child.communicate(message)
    assert child.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def run_child(code, path):
    """Run code in another process, and return the JSON that it prints."""
    return finish_child(start_child(code, path))
