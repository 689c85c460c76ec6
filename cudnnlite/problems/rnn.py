"""The forward pass of a recurrent network as data, so far as it goes.

Its specs are options and its operands are none: what a call reads and writes depends on the cell,
the lengths and the direction of the pass, which `plan.RNNPlan` does by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import MathType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import Operation
from cudnnlite.problems.problem import Problem
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.rnn_weights import weight_parts


def _complete(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    spec, data = options["spec"], options["data"]
    if (data.vector_size, data.dtype) != (spec.input_size, spec.dtype):
        raise ArgumentError(f"data={data} is not an input of {spec}")
    return options


def _flops(problem: Any) -> int:
    """Return the multiplications and additions of the matrix products, over all steps of all sequences."""
    values = sum(prod(part.shape) for part in weight_parts(problem.spec) if not part.bias)
    return 2 * values * sum(problem.data.lengths)  # type: ignore[no-any-return]


def _words(problem: Any) -> str:
    spec, data = problem.spec, problem.data
    cell = f"{'bidirectional ' if spec.bidirectional else ''}{spec.cell.name}"
    sizes = f"{spec.input_size} to {spec.hidden_size}" + (
        f" x {spec.num_layers}" if spec.num_layers > 1 else ""
    )
    steps = f"T={data.max_length} N={data.batch}" + (
        "" if data.is_full else f", {sum(data.lengths)} steps in all"
    )
    math = "" if spec.math_type == MathType.DEFAULT else f", math_type={spec.math_type.name!r}"
    return f"{cell} {sizes}, {steps}, {dtype_name(spec.dtype)}{', training' if problem.training else ''}{math}"


def _title(problem: Any) -> str:
    training = " in training" if problem.training else ""
    return f"RNN forward of {problem.data} through {problem.spec}{training}"


def _infer(**_: Any) -> TensorSpec:
    raise NotImplementedError("what a recurrent network writes is the plan's affair")


FORWARD = Operation(
    "rnn_forward",
    "cudnnRNNForward",
    (),
    (),
    _infer,
    {"spec": RNNSpec, "data": RNNDataSpec, "training": bool},
    complete=_complete,
    flops=_flops,
    math_type=lambda problem: problem.spec.math_type,
    words=_words,
    title=_title,
)


def forward_problem(spec: RNNSpec, data: RNNDataSpec, training: bool = False) -> Problem:
    """Return the problem of a forward pass: a network, its sequences, and whether backward passes follow."""
    return Problem(FORWARD, spec=spec, data=data, training=training)
