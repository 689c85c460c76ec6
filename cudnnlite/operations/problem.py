"""Problems: what an operation is asked to do, as values that can be listed, saved, sent and looked up.

A problem holds specs and no arrays.  It is what a search is for and what a cache remembers a choice for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any, ClassVar

from cudnnlite.enums import MathType, RNNInputMode, RNNMode
from cudnnlite.errors import ArgumentError
from cudnnlite.specs import ConvolutionSpec, FilterSpec, RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.plain import from_plain, to_plain


@dataclass(frozen=True)
class Problem:
    """What the kinds of problem share."""

    kind: ClassVar[str]

    def to_plain(self) -> dict[str, Any]:
        """Return every field as JSON can hold it, under 'kind' the kind of problem."""
        return {"kind": self.kind, **{item.name: to_plain(getattr(self, item.name)) for item in fields(self)}}

    @property
    def flops(self) -> int:
        """The multiplications and additions of the usual algorithm, padding counted."""
        raise NotImplementedError

    @property
    def math_type(self) -> MathType:
        """The math type that the user asked for: what bounds the choice."""
        raise NotImplementedError


_PLAIN = ConvolutionSpec()


@dataclass(frozen=True)
class ConvolutionForwardProblem(Problem):
    """A forward convolution: y = alpha * conv(x, w) + beta * y.

    Parameters
    ----------
    x : TensorSpec
        The images.
    w : FilterSpec
        The filter.
    conv : ConvolutionSpec
        Padding, stride, dilation, groups, mode, compute type, math type.
    y : TensorSpec, optional
        The output; packed, in the dtype and layout of `x`, if not given.
    alpha, beta : float
        The scalars.

    Raises
    ------
    ArgumentError
        Specs that do not fit together; the message names the argument.

    Examples
    --------
    >>> x, w = dnn.TensorSpec((32, 64, 56, 56), "float16", "NHWC"), dnn.FilterSpec((64, 64, 3, 3), "float16", "NHWC")
    >>> problem = dnn.ConvolutionForwardProblem(x, w, dnn.ConvolutionSpec(padding=1))
    >>> problem.y.shape, problem.flops
    ((32, 64, 56, 56), 7398752256)
    """

    kind: ClassVar[str] = "convolution_forward"

    x: TensorSpec
    w: FilterSpec
    conv: ConvolutionSpec = _PLAIN
    y: TensorSpec = None  # type: ignore[assignment]  # never None once it is made
    alpha: float = 1.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        for name, wanted in (("x", TensorSpec), ("w", FilterSpec), ("conv", ConvolutionSpec), ("y", TensorSpec)):
            value = getattr(self, name)
            if not isinstance(value, wanted) and not (name == "y" and value is None):
                raise ArgumentError(f"{name}={value!r} is not a {wanted.__name__}")
        for name in ("alpha", "beta"):
            object.__setattr__(self, name, real_number(getattr(self, name), name))
        expected = self.conv.output_spec(self.x, self.w)
        # what is left open, and what can be written in two ways, is written in one: equal problems are equal
        steps = {name: _one_number(getattr(self.conv, name)) for name in ("padding", "stride", "dilation")}
        conv = self.conv.replace(compute_type=self.conv.compute_type_for(self.x), **steps)
        object.__setattr__(self, "conv", conv)
        if vars(self)["y"] is None:
            object.__setattr__(self, "y", expected)
        if self.y.shape != expected.shape:
            raise ArgumentError(f"out has shape {self.y.shape}; the result has {expected.shape}")
        if self.y.overlaps_itself:
            raise ArgumentError(f"out={self.y}: its values overlap each other in memory")

    @property
    def flops(self) -> int:
        """The multiplications and additions of the direct sum: 2 N K P Q C/groups R S."""
        return 2 * self.y.size * prod(self.w.shape[1:])

    @property
    def math_type(self) -> MathType:
        """The math type of `conv`."""
        return self.conv.math_type

    def __str__(self) -> str:
        return f"convolution forward of {self.x} by {self.w} to {self.y}, {self.conv}"


@dataclass(frozen=True)
class RNNForwardProblem(Problem):
    """A forward pass of a recurrent network.

    Parameters
    ----------
    spec : RNNSpec
        The network.
    data : RNNDataSpec
        The sequences: shape, lengths, layout.
    training : bool
        Whether the backward passes will follow.

    Raises
    ------
    ArgumentError
        The data is not an input of that network.

    Examples
    --------
    >>> lstm = dnn.RNNSpec("lstm", input_size=256, hidden_size=256, num_layers=2)
    >>> problem = dnn.RNNForwardProblem(lstm, dnn.RNNDataSpec((100, 64, 256)), training=True)
    >>> problem.flops
    13421772800
    """

    kind: ClassVar[str] = "rnn_forward"

    spec: RNNSpec
    data: RNNDataSpec
    training: bool = False

    def __post_init__(self) -> None:
        for name, wanted in (("spec", RNNSpec), ("data", RNNDataSpec), ("training", bool)):
            if not isinstance(getattr(self, name), wanted):
                raise ArgumentError(f"{name}={getattr(self, name)!r} is not a {wanted.__name__}")
        if (self.data.vector_size, self.data.dtype) != (self.spec.input_size, self.spec.dtype):
            raise ArgumentError(f"data={self.data} is not an input of {self.spec}")

    @property
    def flops(self) -> int:
        """The multiplications and additions of the matrix products, over all steps of all sequences."""
        spec = self.spec
        gates = {RNNMode.LSTM: 4, RNNMode.GRU: 3}.get(spec.cell, 1)
        state, values = spec.state_size, 0
        for layer in range(spec.num_layers):
            skipped = layer == 0 and spec.input_mode == RNNInputMode.SKIP
            inputs = 0 if skipped else spec.layer_input_size(layer)
            values += spec.directions * gates * spec.hidden_size * (inputs + state)
            values += spec.directions * spec.hidden_size * state if spec.projects else 0
        return 2 * values * sum(self.data.lengths)

    @property
    def math_type(self) -> MathType:
        """The math type of `spec`."""
        return self.spec.math_type

    def __str__(self) -> str:
        return f"RNN forward of {self.data} through {self.spec}{' in training' if self.training else ''}"


def real_number(value: Any, argument: str) -> float:
    """Return a host scalar as a float; ArgumentError if it is none."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ArgumentError(f"{argument}={value!r} must be a real number")


def _one_number(steps: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """Return the number that stands for every axis, where it does."""
    return steps[0] if isinstance(steps, tuple) and len(set(steps)) == 1 else steps


KINDS: dict[str, type[Problem]] = {kind.kind: kind for kind in (ConvolutionForwardProblem, RNNForwardProblem)}


def problem_from_plain(plain: Any) -> Problem:
    """Return the problem that `Problem.to_plain` was called on.

    Raises
    ------
    ArgumentError
        It is no problem, lacks a field, or has one that is not allowed.
    """
    name = plain.get("kind") if isinstance(plain, Mapping) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ArgumentError(f"{plain!r} is not a problem; allowed: an object with 'kind', one of {[*KINDS]}")
    values = {
        name: from_plain(value, name) if isinstance(value, Mapping) else value
        for name, value in plain.items()
        if name != "kind"
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise ArgumentError(f"{plain!r} is not a {kind.kind} problem: {error}") from error


def spec_fields(problem: Problem) -> dict[str, FrozenSpec]:
    """Return the specs of a problem by the name of the field."""
    found = {item.name: getattr(problem, item.name) for item in fields(problem)}
    return {name: value for name, value in found.items() if isinstance(value, FrozenSpec)}
