"""Which algorithm and math type an RNN runs with: what the user may ask for, and what we choose if nothing is asked."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cudnnlite.enums import DataType, MathType, RNNAlgo, RNNMode, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.specs import RNNDataSpec, RNNSpec
from cudnnlite.specs.math_types import allowed_math_types
from cudnnlite.specs.rnn_rules import why_not

# PERSIST_DYNAMIC last: it is compiled for each plan, and by then it is known what it has to beat.
ALGORITHMS = (
    RNNAlgo.STANDARD,
    RNNAlgo.PERSIST_STATIC,
    RNNAlgo.PERSIST_STATIC_SMALL_H,
    RNNAlgo.PERSIST_DYNAMIC,
)


@lru_cache(maxsize=64)
def heuristic(spec: RNNSpec, data: RNNDataSpec, *, full: bool | None = None) -> AlgorithmResult:
    """Choose without measuring, by what was fastest on an H200; `rnn_forward` documents the rule.

    `full`: whether all sequences will have the full length; whether these have, if not given.
    """
    full = data.is_full if full is None else full
    narrow = spec.dtype in (DataType.HALF, DataType.BFLOAT16)
    algorithm = (
        _fastest(spec, data, narrow and spec.math_type != MathType.FMA)
        if full
        else RNNAlgo.STANDARD
    )
    return AlgorithmResult(algorithm, _math_type(spec, algorithm, data.batch), deterministic=None)


def _math_type(spec: RNNSpec, algorithm: RNNAlgo, batch: int) -> MathType:
    """Return the spec's math type; where that is DEFAULT, half precision gains by tensor cores, but for small problems."""
    tiny = algorithm == RNNAlgo.PERSIST_STATIC_SMALL_H and spec.hidden_size < 128 and batch < 256
    if (
        spec.dtype in (DataType.HALF, DataType.BFLOAT16)
        and spec.math_type == MathType.DEFAULT
        and not tiny
    ):
        return MathType.TENSOR_OP
    return spec.math_type


def _fastest(spec: RNNSpec, data: RNNDataSpec, tensor_cores: bool) -> RNNAlgo:
    """Return the algorithm for sequences of full length."""

    def does(algorithm: RNNAlgo) -> bool:
        return not why_not(spec, algorithm, backward=True)

    gated, batch, hidden = spec.cell in (RNNMode.LSTM, RNNMode.GRU), data.batch, spec.hidden_size
    small_h, static = RNNAlgo.PERSIST_STATIC_SMALL_H, RNNAlgo.PERSIST_STATIC
    if data.max_length == 1:
        return RNNAlgo.STANDARD
    if batch == 1 and (64 if gated else 128) < hidden <= 512 and does(static):
        return static
    if does(small_h) and (tensor_cores or batch <= 256):
        return small_h
    if not tensor_cores or not does(static):
        return RNNAlgo.STANDARD
    # its time grows with the batch
    if spec.cell == RNNMode.LSTM:
        keeps_up = batch <= 64
    elif spec.cell == RNNMode.GRU:
        keeps_up = batch <= 32 and hidden <= 1024
    else:
        keeps_up = batch <= 32 or (batch <= 64 and hidden <= 2048)
    return static if keeps_up else RNNAlgo.STANDARD


def parse_algorithm(algorithm: Any, spec: RNNSpec, batch: int) -> AlgorithmResult | None:
    """Return what the user asked for as algorithm and math type, None for nothing; ArgumentError if it cannot be had."""
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
            f"algorithm={algorithm.algorithm} is not one of an RNN; allowed: {', '.join(RNNAlgo.__members__)}"
        )
    parse_enum(RNNAlgo, algorithm.algorithm, "algorithm")
    if not algorithm.ok:
        raise ArgumentError(
            f"algorithm={algorithm} cannot be used: {algorithm.why_not or algorithm.status}"
        )
    if algorithm.math_type not in (*allowed_math_types(spec.math_type, spec.dtype), spec.math_type):
        raise ArgumentError(
            f"algorithm was found with math type {algorithm.math_type}, which would undo the spec's {spec.math_type}"
        )
    return algorithm
