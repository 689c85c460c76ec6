"""Which algorithm and math type an RNN runs with: what the user may ask for, and what we choose if nothing is asked."""

from __future__ import annotations

from typing import Any

from cudnnlite.enums import DataType, MathType, RNNAlgo, RNNMode, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.results import AlgorithmResult, AlgorithmTable
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.rnn_rules import why_not

ALGORITHMS = tuple(
    RNNAlgo[name] for name in ("STANDARD", "PERSIST_STATIC", "PERSIST_DYNAMIC", "PERSIST_STATIC_SMALL_H")
)


def allowed_math_types(spec: RNNSpec) -> tuple[MathType, ...]:
    """Return the math types that keep what the spec's own promises.

    FMA (true float32) allows itself alone.  Float32 data is rounded to float16 only where TENSOR_OP_ALLOW_CONVERSION was
    asked for; to float16 and bfloat16 data that one means the same as TENSOR_OP.
    """
    if spec.math_type == MathType.FMA:
        return (MathType.FMA,)
    if spec.math_type == MathType.TENSOR_OP_ALLOW_CONVERSION and spec.dtype == DataType.FLOAT:
        return (MathType.DEFAULT, MathType.FMA, MathType.TENSOR_OP, MathType.TENSOR_OP_ALLOW_CONVERSION)
    return (MathType.DEFAULT, MathType.FMA, MathType.TENSOR_OP)


def heuristic(spec: RNNSpec, data: RNNDataSpec) -> AlgorithmResult:
    """Choose without measuring, by what was fastest on an H200; `rnn_forward` documents the rule.

    Over DeepBench's RNN training set and five LSTMs (tests/benchmarks/rnn.py) it was within 1.1 times the best in 97% of 100
    rows, eagerly and in graphs.
    """
    narrow = spec.dtype in (DataType.HALF, DataType.BFLOAT16)
    algorithm, math_type = RNNAlgo.STANDARD, spec.math_type
    if data.max_length > 1 and not why_not(spec, RNNAlgo.PERSIST_STATIC_SMALL_H, full=data.is_full, backward=True):
        return AlgorithmResult(RNNAlgo.PERSIST_STATIC_SMALL_H, math_type, deterministic=None)
    if narrow and math_type == MathType.DEFAULT:
        math_type = MathType.TENSOR_OP
    if narrow and math_type != MathType.FMA and _keeps_up(spec, data):
        algorithm = RNNAlgo.PERSIST_STATIC
    return AlgorithmResult(algorithm, math_type, deterministic=None)


def _keeps_up(spec: RNNSpec, data: RNNDataSpec) -> bool:
    """Tell whether PERSIST_STATIC, whose time grows with the batch, is still the faster one in half precision."""
    if data.max_length == 1 or why_not(spec, RNNAlgo.PERSIST_STATIC, full=data.is_full):
        return False
    if spec.cell == RNNMode.LSTM:
        return data.batch <= 64
    if spec.cell == RNNMode.GRU:
        return data.batch <= 32 and spec.hidden_size <= 1024
    return data.batch <= 32 or (data.batch <= 64 and spec.hidden_size <= 2048)


def parse_algorithm(algorithm: Any, spec: RNNSpec) -> AlgorithmResult | None:
    """Return what the user asked for as algorithm and math type; None for nothing.

    Raises
    ------
    ArgumentError
        No such algorithm; or a result whose math type the spec does not allow.
    """
    if algorithm is None:
        return None
    if isinstance(algorithm, AlgorithmTable):
        raise ArgumentError("algorithm is a whole table; pass one of its rows, such as found.best()")
    if not isinstance(algorithm, AlgorithmResult):
        return AlgorithmResult(parse_enum(RNNAlgo, algorithm, "algorithm"), spec.math_type, deterministic=None)
    if not isinstance(algorithm.algorithm, RNNAlgo):
        raise ArgumentError(
            f"algorithm={algorithm.algorithm} is not one of an RNN; allowed: {', '.join(RNNAlgo.__members__)}"
        )
    if algorithm.math_type not in (*allowed_math_types(spec), spec.math_type):
        raise ArgumentError(
            f"algorithm was found with math type {algorithm.math_type}, which would undo the spec's {spec.math_type}"
        )
    return algorithm
