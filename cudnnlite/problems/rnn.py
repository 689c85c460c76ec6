"""The forward pass of a recurrent network as a declaration, for lists, searches and tuners.

It has options and no operands, because the operands of a call depend on the cell, the lengths and
the direction of the pass.  `RNNPlan` makes the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import MathType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import Description, Operation
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.rnn_weights import weight_parts


def _complete(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options; ArgumentError if the sequences are not an input of the network."""
    spec, data = options["spec"], options["data"]
    if (data.vector_size, data.dtype) != (spec.input_size, spec.dtype):
        raise ArgumentError(f"data={data} is not an input of {spec}")
    return options


def _flops(problem: Any) -> int:
    """Return the multiplications and additions of the matrix products of all steps."""
    values = sum(prod(part.shape) for part in weight_parts(problem.spec) if not part.bias)
    return 2 * values * sum(problem.data.lengths)  # type: ignore[no-any-return]


def _words(problem: Any) -> str:
    spec, data = problem.spec, problem.data
    cell = spec.cell.name
    if spec.bidirectional:
        cell = f"bidirectional {cell}"
    sizes = f"{spec.input_size} to {spec.hidden_size}"
    if spec.num_layers > 1:
        sizes += f" x {spec.num_layers}"
    words = [f"{cell} {sizes}", f"T={data.max_length} N={data.batch}"]
    if not data.is_full:
        words.append(f"{sum(data.lengths)} steps in all")
    words.append(dtype_name(spec.dtype))
    if problem.training:
        words.append("training")
    if spec.math_type != MathType.DEFAULT:
        words.append(f"math_type={spec.math_type.name!r}")
    return ", ".join(words)


def _title(problem: Any) -> str:
    training = " in training" if problem.training else ""
    return f"RNN forward of {problem.data} through {problem.spec}{training}"


def _infer(**_: Any) -> TensorSpec:
    raise NotImplementedError("a recurrent network's outputs are described by its plan")


FORWARD = Operation(
    "rnn_forward",
    "cudnnRNNForward",
    reads=(),
    writes=(),
    infer=_infer,
    options={"spec": RNNSpec, "data": RNNDataSpec, "training": bool},
    complete=_complete,
    description=Description(flops=_flops, words=_words, title=_title),
)
