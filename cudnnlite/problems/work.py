"""The least work of a problem: operations of the direct method, and bytes of its operands."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from cudnnlite.dtypes import itemsize
from cudnnlite.enums import DataType, RNNMode
from cudnnlite.problems import rnn
from cudnnlite.problems.problem import Problem
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.rnn_weights import weight_parts


class Work(NamedTuple):
    """The least work of a problem.

    Attributes
    ----------
    flops : int
        Multiplications and additions of the direct method, those of the padding included.  Scores
        that a causal mask hides do not count.
    nbytes : int
        Bytes of all operands: each input read once, each output written once.
    dtype : DataType
        The type of the first operand, which decides about the peak.
    """

    flops: int
    nbytes: int
    dtype: DataType


def work_of(problem: Problem) -> Work:
    """Return the least work of a problem."""
    if problem.operation is rnn.FORWARD:
        return Work(problem.flops, _bytes_of_network(problem), problem.spec.dtype)
    first = problem.values[problem.operation.reads[0]]
    return Work(problem.flops, _bytes_of_operands(problem), first.dtype)


def _bytes_of_operands(problem: Problem) -> int:
    """Return the bytes of all operands; an output that is blended is read, too."""
    nbytes = sum(as_tensor(spec).nbytes for spec in problem.specs.values())
    if problem.values.get("beta"):
        nbytes += sum(as_tensor(problem.values[name]).nbytes for name in problem.operation.writes)
    return int(nbytes)


def _bytes_of_network(problem: Problem) -> int:
    """Return the bytes of a recurrent network's weights, input, output and last states."""
    spec, data = problem.spec, problem.data
    values = sum(prod(part.shape) for part in weight_parts(spec))
    values += sum(data.lengths) * (spec.input_size + spec.output_size)
    state = spec.num_layers * spec.directions * data.batch
    values += state * spec.state_size
    if spec.cell == RNNMode.LSTM:
        values += state * spec.hidden_size
    return int(values * itemsize(spec.dtype))
