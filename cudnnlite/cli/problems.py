"""What the flags of `cudnnlite autotune` ask to tune, as a list of problems."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cudnnlite.autotune.onnx.model import problems_from_onnx
from cudnnlite.cli.common import misuse
from cudnnlite.dtypes import parse_dtype
from cudnnlite.enums import MathType, parse_math_type
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.convolution_backward_problem import (
    ConvolutionBackwardDataProblem,
    ConvolutionBackwardFilterProblem,
)
from cudnnlite.operations.convolution_problem import ConvolutionForwardProblem
from cudnnlite.operations.problem import Problem
from cudnnlite.operations.problem_list import ProblemList
from cudnnlite.operations.rnn.forward_problem import RNNForwardProblem
from cudnnlite.specs import ConvolutionSpec, FilterSpec, RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST

CONVOLUTIONS = ("forward", "backward_data", "backward_filter")
# What may follow the cell in --rnn.  In words: L is the number of layers to some, and a sequence's length to others.
_NEEDED = ("steps", "batch", "input", "hidden")
RNN_WORDS = {
    **dict.fromkeys((*_NEEDED, "layers", "projection"), int),
    "bias": str,
    "dropout": float,
    **dict.fromkeys(("bidirectional", "training", "batch_major"), bool),
}
_RNN_FORM = (
    "CELL:steps=T,batch=N,input=I,hidden=H with, if wanted, layers=, projection=, bias=, dropout=, bidirectional, training, "
    "batch_major"
)


@dataclass(frozen=True)
class Wanted:
    """The flags that say what to tune, as they were given; each is named as its flag."""

    input: list[str]
    filter: list[str]
    padding: str | None
    stride: str | None
    dilation: str | None
    groups: int | None
    operation: str | None
    rnn: list[str]
    onnx: list[Path]
    batch: int | None
    shape: list[str]
    problems: list[Path]
    dtype: str | None
    layout: str | None
    math_type: str | None

    def check(self) -> Wanted:
        """Return it; end the command if flags are missing or go with nothing."""
        for name in ("input", "filter"):
            if len(getattr(self, name)) > 1:
                raise misuse(f"--{name} is given twice; several convolutions are a list, see --problems")
        if bool(self.input) != bool(self.filter):
            raise misuse("--input and --filter are needed together")
        if not (self.input or self.rnn or self.onnx or self.problems):
            raise misuse("nothing to tune: give --input and --filter, --rnn, --onnx or --problems")
        anything = bool(self.input or self.rnn or self.onnx)
        goes_with = {
            **dict.fromkeys(("padding", "stride", "dilation", "groups", "operation"), (bool(self.input), "--input")),
            **dict.fromkeys(("batch", "shape"), (bool(self.onnx), "--onnx")),
            **dict.fromkeys(("dtype", "math_type"), (anything, "--input, --rnn or --onnx")),
            "layout": (bool(self.input or self.onnx), "--input or --onnx"),
        }
        for name, (there, others) in goes_with.items():
            if getattr(self, name) not in (None, []) and not there:
                raise misuse(f"--{name.replace('_', '-')} goes with {others}")
        if self.operation not in (None, *CONVOLUTIONS):
            raise misuse(f"--operation {self.operation}; allowed: {', '.join(CONVOLUTIONS)}")
        with _misuse_told():
            if self.dtype is not None:
                parse_dtype(self.dtype, "--dtype")
            if self.math_type is not None:
                parse_math_type(self.math_type, "--math-type")
        return self

    def find(self) -> ProblemList:
        """Return what is to be tuned; end the command if a flag's value is not allowed.

        Raises
        ------
        CudnnliteError
            A file cannot be read, or is not what it should be.
        """
        found = ProblemList([self._convolution()] if self.input else [])
        for text in self.rnn:
            found.add(parse_rnn(text, self.dtype, self.math_type))
        for path in self.onnx:
            found.extend(self._model(path))
        for path in self.problems:
            found.extend(ProblemList.load(path))
        return found

    def _convolution(self) -> Problem:
        (x_text,), (w_text,) = self.input, self.filter
        x_shape, w_shape = _sizes("--input", x_text), _sizes("--filter", w_text)
        given: dict[str, Any] = {
            **{name: _steps(f"--{name}", getattr(self, name)) for name in ("padding", "stride", "dilation")},
            "groups": self.groups,
            "math_type": self.math_type,
        }
        with _misuse_told(f"--input {x_text} --filter {w_text}: "):
            dtype = self.dtype or "float32"
            x = TensorSpec(x_shape, dtype, _of_rank(self.layout, len(x_shape)))
            w = FilterSpec(w_shape, dtype, _of_rank(self.layout, len(w_shape)))
            conv = ConvolutionSpec(**{name: value for name, value in given.items() if value is not None})
            forward = ConvolutionForwardProblem(x, w, conv)
            if self.operation == "backward_data":
                return ConvolutionBackwardDataProblem(w, forward.y, conv, x)
            return (
                ConvolutionBackwardFilterProblem(x, forward.y, conv, w)
                if self.operation == "backward_filter"
                else forward
            )

    def _model(self, path: Path) -> ProblemList:
        shapes = dict(_named_shape(text) for text in self.shape)
        if len(shapes) < len(self.shape):
            raise misuse("--shape names an input twice")
        found = problems_from_onnx(path, batch=self.batch, shapes=shapes, dtype=self.dtype, layout=self.layout)
        if self.math_type is None:
            return found
        math_type, changed = parse_math_type(self.math_type), ProblemList()
        changed.extend(replace(listed, problem=_with_math_type(listed.problem, math_type)) for listed in found)
        changed.skipped, changed.notes = found.skipped, found.notes
        return changed


def parse_rnn(text: str, dtype: str | None = None, math_type: str | None = None) -> RNNForwardProblem:
    """Read the value of --rnn, "lstm:steps=100,batch=64,input=256,hidden=256"; end the command if it is none."""
    cell, _, rest = text.partition(":")
    values: dict[str, Any] = {}
    for part in rest.split(",") if rest else []:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        kind = RNN_WORDS.get(name)
        if name in values:
            raise misuse(f"--rnn {text}: {name} is given twice")
        if kind is bool and not equals:
            values[name] = True
        elif kind in (int, float) and equals:
            values[name] = _number(kind, value, f"--rnn {text}: {name}")
        elif kind is str and value:
            values[name] = value
        else:
            raise misuse(f"--rnn {text}: {part!r} is not understood; the form is {_RNN_FORM}")
    missing = [name for name in _NEEDED if name not in values]
    if missing:
        raise misuse(f"--rnn {text}: {', '.join(missing)} missing; the form is {_RNN_FORM}")
    steps, batch, size = values.pop("steps"), values.pop("batch"), values.pop("input")
    training, batch_major = values.pop("training", False), values.pop("batch_major", False)
    names = {"hidden": "hidden_size", "layers": "num_layers", "projection": "projection_size"}
    with _misuse_told(f"--rnn {text}: "):
        options = {names.get(name, name): value for name, value in values.items()}
        options |= {} if math_type is None else {"math_type": math_type}
        spec = RNNSpec(cell, size, **options, dtype=dtype or "float32")
        shape = (batch, steps, size) if batch_major else (steps, batch, size)
        data = RNNDataSpec(shape, dtype=spec.dtype, layout="batch_major" if batch_major else "sequence_major")
        return RNNForwardProblem(spec, data, training)


@contextmanager
def _misuse_told(where: str = "") -> Iterator[None]:
    try:
        yield
    except ArgumentError as error:
        raise misuse(f"{where}{error}") from error


def _sizes(option: str, text: str) -> tuple[int, ...]:
    """Read sizes such as 32x64x56x56."""
    return tuple(_number(int, part, f"{option} {text}") for part in text.lower().split("x"))


def _steps(option: str, text: str | None) -> int | tuple[int, ...] | None:
    """Read a number for every axis, or one for each, as in 1x2."""
    if text is None:
        return None
    sizes = _sizes(option, text)
    return sizes[0] if len(sizes) == 1 else sizes


def _number(kind: type[int] | type[float], text: str, where: str) -> Any:
    try:
        # int() reads 1_000 and other alphabets' digits too
        if text.isascii() and "_" not in text:
            return kind(text)
    except ValueError:
        pass
    raise misuse(f"{where}: {text!r} is not {'an integer' if kind is int else 'a number'}")


def _named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read the value of --shape: an input's name, which may contain anything, and its sizes."""
    name, equals, sizes = text.rpartition("=")
    if not equals or not name:
        raise misuse(f"--shape {text}: the form is NAME=1x3x224x224")
    return name, _sizes("--shape", sizes)


def _of_rank(layout: str | None, rank: int) -> str | None:
    """Return what NCHW or NHWC is called at a rank."""
    name = None if layout is None else layout.upper()
    return {"NCHW": CHANNELS_FIRST, "NHWC": CHANNELS_LAST}.get(name or "", {}).get(rank, name)


def _with_math_type(problem: Problem, math_type: MathType) -> Problem:
    specs = {
        name: spec.replace(math_type=math_type)
        for name, spec in problem.values.items()
        if isinstance(spec, (ConvolutionSpec, RNNSpec))
    }
    return problem.replace(**specs)  # type: ignore[no-any-return]
