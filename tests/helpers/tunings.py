"""Tuned problems with made-up figures, for the tests of charts and reports."""

import random

import cudnnlite as dnn
from cudnnlite import convolution_forward, rnn_forward
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.tuned_problem import TunedProblem

A, R, M, S = dnn.enums.ConvolutionFwdAlgo, dnn.enums.RNNAlgo, dnn.MathType, dnn.enums.Status
KIB, MIB = 1 << 10, 1 << 20
Row = dnn.AlgorithmResult
TIMING = "median of CUDA graph replays on <cuda:0 NVIDIA H200>"

PRECOMP = Row(
    A.IMPLICIT_PRECOMP_GEMM,
    M.TENSOR_OP,
    status=S.SUCCESS,
    time_ms=0.0333,
    workspace=96 * KIB,
    deterministic=True,
    error=7.7e-4,
    max_error=3.3e-3,
    spread_ms=0.0016,
    call_us=35.5,
    host_us=24.4,
    find_ms=0.1848,
)
CLOSE = Row(
    A.IMPLICIT_PRECOMP_GEMM,
    M.DEFAULT,
    status=S.SUCCESS,
    time_ms=0.0339,
    workspace=172 * KIB,
    deterministic=True,
    error=1.1e-3,
    max_error=2.2e-3,
    spread_ms=0.0013,
    call_us=34.7,
    host_us=17.0,
    find_ms=0.0345,
)
WINOGRAD = Row(
    A.WINOGRAD,
    M.DEFAULT,
    status=S.SUCCESS,
    time_ms=0.0607,
    workspace=8,
    deterministic=True,
    error=9.8e-4,
    max_error=1.8e-3,
    spread_ms=0.0009,
    call_us=60.8,
    host_us=19.5,
    layout="NCHW",
)
GEMM = Row(
    A.GEMM,
    M.FMA,
    status=S.SUCCESS,
    time_ms=0.9123,
    workspace=81 * MIB,
    deterministic=False,
    error=1.1e-7,
    max_error=4.1e-7,
    find_ms=0.9876,
    remark="not repeated: more than 3 times the best",
)
IMPLICIT = Row(
    A.IMPLICIT_GEMM,
    M.FMA,
    status=S.SUCCESS,
    time_ms=0.1518,
    workspace=0,
    deterministic=True,
    error=1.4e-7,
    max_error=2.0e-7,
    spread_ms=0.0055,
)
FFT = Row(A.FFT, M.DEFAULT, workspace=300 * MIB, why_not="needs 300 MiB, the limit is 64 MiB")
WRONG = Row(
    A.FFT_TILING,
    M.TENSOR_OP,
    workspace=MIB,
    error=float("inf"),
    why_not="wrong: relative error inf",
)
NOTHING = Row(A.DIRECT, M.DEFAULT, status=S.NOT_SUPPORTED)
ROWS = (PRECOMP, CLOSE, WINOGRAD, IMPLICIT, GEMM, FFT, WRONG, NOTHING)

STATIC = Row(
    R.PERSIST_STATIC,
    M.TENSOR_OP,
    status=S.SUCCESS,
    time_ms=1.067,
    workspace=3 * MIB,
    deterministic=None,
    reserve=41 * MIB,
    error=2.3e-4,
)
STANDARD = Row(
    R.STANDARD,
    M.FMA,
    status=S.SUCCESS,
    time_ms=6.1,
    workspace=MIB,
    deterministic=None,
    reserve=40 * MIB,
    error=1e-7,
)
DYNAMIC = Row(
    R.PERSIST_DYNAMIC,
    M.DEFAULT,
    status=S.NOT_SUPPORTED,
    time_ms=None,
    workspace=0,
    deterministic=None,
    why_not="a < b & c",
)

FACTS = {
    "cudnnlite": "0.1.0",
    "cuDNN": "9.28.0",
    "device": "NVIDIA H200",
    "compute capability": "9.0",
    "driver": "570.86.15",
    "python": "3.11.7",
    "when": "2025-03-02T10:11:12+00:00",
    "policy": TuningPolicy("device", workspace_limit="64 MiB", layouts=["NCHW"]).to_plain(),
}


def convolution(channels=64, size=56, **conv):
    """A forward convolution, NHWC in float16."""
    x = dnn.TensorSpec((32, channels, size, size), "float16", "NHWC")
    w = dnn.FilterSpec((64, channels, 3, 3), "float16", "NHWC")
    return convolution_forward.problem(x, w, dnn.ConvolutionSpec(**{"padding": 1, **conv}))


def lstm():
    spec = dnn.RNNSpec(
        "lstm", input_size=256, hidden_size=128, num_layers=2, bidirectional=True, math_type="fma"
    )
    return rnn_forward.problem(spec, None, dnn.specs.RNNDataSpec((100, 64, 256)), training=True)


def table(rows=ROWS, problem=None, timing=TIMING):
    return dnn.AlgorithmTable(rows, title=str(problem or convolution()), timing=timing)


def tuned(rows=ROWS, problem=None, count=1, names=(), from_cache=False, timing=TIMING):
    """A problem with the first row that works as the choice, as the tuner makes it."""
    problem = problem or convolution()
    result = table(rows, problem, timing)
    try:
        return TunedProblem(problem, result, result.best(), "", count, names, from_cache)
    except dnn.NoAlgorithmError as error:
        return TunedProblem(problem, result, None, str(error), count, names, from_cache)


def failed(**options):
    return tuned((NOTHING, WRONG), **options)


def model(count=23, seed=0):
    """A model's problems: four to eight rows each, some without a time or without workspace."""
    numbers = random.Random(seed)
    problems = []
    for index in range(count):
        rows = []
        for algorithm in list(A)[: numbers.randint(4, 8)]:
            ms = None if numbers.random() < 0.1 else numbers.uniform(0.02, 3)
            size = numbers.choice((0, 0, 16, 64 * KIB, MIB, numbers.randrange(300 * MIB)))
            rows.append(
                Row(
                    algorithm,
                    numbers.choice((M.DEFAULT, M.FMA)),
                    status=S.SUCCESS,
                    time_ms=ms,
                    workspace=size,
                )
            )
        rows.sort(key=lambda row: (row.time_ms is None, row.time_ms))
        problem = convolution(size=7 + index)
        problems.append(
            tuned(
                [*rows, NOTHING],
                problem,
                numbers.randint(1, 5),
                (f"/layer{index}/conv/Conv",),
                index % 4 == 0,
            )
        )
    return problems


def specs_of(problem):
    """The specs of a problem by the name of the field, those of options too."""
    return {name: value for name, value in problem.values.items() if isinstance(value, FrozenSpec)}
