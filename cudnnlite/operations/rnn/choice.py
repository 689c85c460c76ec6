"""The choice of an RNN's algorithm and math type: by the user, or by a rule."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cudnnlite.enums import DataType, MathType, RNNAlgo, RNNMode, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.results import HEURISTIC, AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.math_types import allowed_math_types
from cudnnlite.specs.rnn_rules import why_not

# PERSIST_DYNAMIC is the last, because it is compiled for each plan: a search that has timed the
# others knows whether compiling it is worthwhile.
ALGORITHMS = (
    RNNAlgo.STANDARD,
    RNNAlgo.PERSIST_STATIC,
    RNNAlgo.PERSIST_STATIC_SMALL_H,
    RNNAlgo.PERSIST_DYNAMIC,
)
HALVES = (DataType.HALF, DataType.BFLOAT16)


@lru_cache(maxsize=64)
def heuristic(spec: RNNSpec, data: RNNDataSpec, *, full: bool | None = None) -> AlgorithmResult:
    """Choose without measuring; `rnn_forward` documents the rule, which was measured on an H200.

    `full` says whether all sequences will have the full length.  If not given, `data` says it.
    """
    if full is None:
        full = data.is_full
    algorithm = RNNAlgo.STANDARD
    if full:
        uses_tensor_cores = spec.dtype in HALVES and spec.math_type != MathType.FMA
        algorithm = _fastest(spec, data, uses_tensor_cores=uses_tensor_cores)
    math_type = _math_type(spec, algorithm, data.batch)
    return AlgorithmResult(algorithm, math_type, deterministic=None, source=HEURISTIC)


def _math_type(spec: RNNSpec, algorithm: RNNAlgo, batch: int) -> MathType:
    """Return the spec's math type, or TENSOR_OP where that is DEFAULT in half precision.

    Small problems under PERSIST_STATIC_SMALL_H are no faster with tensor cores.
    """
    if spec.math_type != MathType.DEFAULT or spec.dtype not in HALVES:
        return spec.math_type
    is_small = spec.hidden_size < 128 and batch < 256
    if algorithm == RNNAlgo.PERSIST_STATIC_SMALL_H and is_small:
        return spec.math_type
    return MathType.TENSOR_OP


def _fastest(spec: RNNSpec, data: RNNDataSpec, *, uses_tensor_cores: bool) -> RNNAlgo:
    """Return the algorithm for sequences of full length."""
    is_gated = spec.cell in (RNNMode.LSTM, RNNMode.GRU)
    batch, hidden = data.batch, spec.hidden_size
    if data.max_length == 1:
        return RNNAlgo.STANDARD
    hidden_above = 64 if is_gated else 128
    static_is_possible = _is_possible(spec, RNNAlgo.PERSIST_STATIC)
    if batch == 1 and hidden_above < hidden <= 512 and static_is_possible:
        return RNNAlgo.PERSIST_STATIC
    is_batch_for_small_h = uses_tensor_cores or batch <= 256
    if is_batch_for_small_h and _is_possible(spec, RNNAlgo.PERSIST_STATIC_SMALL_H):
        return RNNAlgo.PERSIST_STATIC_SMALL_H
    if uses_tensor_cores and static_is_possible and batch <= _max_static_batch(spec):
        return RNNAlgo.PERSIST_STATIC
    return RNNAlgo.STANDARD


def _is_possible(spec: RNNSpec, algorithm: RNNAlgo) -> bool:
    """Whether an algorithm does the passes of training: inference has the same choice."""
    return not why_not(spec, algorithm, backward=True)


def _max_static_batch(spec: RNNSpec) -> int:
    """Return the largest batch for which PERSIST_STATIC is the fastest.

    Its time grows with the batch.
    """
    if spec.cell == RNNMode.LSTM:
        return 64
    if spec.cell == RNNMode.GRU:
        return 32 if spec.hidden_size <= 1024 else 0
    return 64 if spec.hidden_size <= 2048 else 32


def parse_algorithm(algorithm: Any, spec: RNNSpec, batch: int) -> AlgorithmResult | None:
    """Return the argument as an algorithm and math type; None if it is not given.

    ArgumentError if it cannot be used.
    """
    if algorithm is None:
        return None
    if isinstance(algorithm, AlgorithmTable):
        raise ArgumentError(
            "algorithm is a whole table; pass one of its rows, such as found.best()"
        )
    if not isinstance(algorithm, AlgorithmResult):
        kind = parse_enum(RNNAlgo, algorithm, "algorithm")
        return AlgorithmResult(kind, _math_type(spec, kind, batch), deterministic=None)
    if not isinstance(algorithm.algorithm, RNNAlgo):
        raise ArgumentError(
            f"algorithm={algorithm.algorithm} is not one of an RNN; "
            f"allowed: {', '.join(RNNAlgo.__members__)}"
        )
    parse_enum(RNNAlgo, algorithm.algorithm, "algorithm")  # refuses members that are no choice
    if not algorithm.ok:
        raise ArgumentError(
            f"algorithm={algorithm} cannot be used: {algorithm.why_not or algorithm.status}"
        )
    if algorithm.math_type not in (*allowed_math_types(spec.math_type, spec.dtype), spec.math_type):
        raise ArgumentError(
            f"algorithm was found with math type {algorithm.math_type}, "
            f"which would undo the spec's {spec.math_type}"
        )
    return algorithm
