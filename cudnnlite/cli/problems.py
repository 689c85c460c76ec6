"""The problems that the flags of `autotune` and `bench` name, as a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cudnnlite import (
    ConvolutionSpec,
    FilterSpec,
    RNNSpec,
    TensorSpec,
    convolution_backward_data,
    convolution_backward_filter,
    convolution_forward,
)
from cudnnlite.arguments import refused_as
from cudnnlite.cli.common import misuse, report_misuse
from cudnnlite.dtypes import parse_dtype
from cudnnlite.enums import parse_math_type
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.rnn import FORWARD as RNN_FORWARD
from cudnnlite.specs import RNNDataSpec
from cudnnlite.specs.steps import NAMED_PADDING, SAME
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.onnx.model_problems import OnnxOptionError, problems_from_onnx
from cudnnlite.workbench.tuning.problem_list import ProblemList

REPEATABLE = (
    "input",
    "filter",
    "rnn",
    "onnx",
    "shape",
    "problems",
)  # of which one is a list, empty if not given
# The flags that name problems; `bench` has more of them.
SOURCES = ("input", "rnn", "onnx", "problems")
CONVOLUTIONS = ("forward", "backward_data", "backward_filter")
# The words that may follow the cell in --rnn.  They are no letters: some read L as the number of
# layers, others as the length of a sequence.
_NEEDED = ("steps", "batch", "input", "hidden")
RNN_WORDS = {
    **dict.fromkeys((*_NEEDED, "layers", "projection"), int),
    "bias": str,
    "dropout": float,
    **dict.fromkeys(("bidirectional", "training", "batch_major"), bool),
}
_RNN_FORM = (
    "CELL:steps=T,batch=N,input=I,hidden=H with, if wanted, layers=, projection=, bias=, "
    "dropout=, bidirectional, training, "
    "batch_major"
)
_FORMS = {"--input": "NxCxHxW", "--filter": "KxCxRxS", "--shape": "NAME=1x3x224x224"}
# With which of the others a flag goes, of those that a command has.
GOES_WITH = {
    **dict.fromkeys(("padding", "stride", "dilation", "groups", "operation"), ("input",)),
    "shape": ("onnx",),
    "batch": ("onnx", "list"),
    "math_type": ("input", "rnn", "onnx"),
    "dtype": ("input", "rnn", "onnx", "matmul", "attention", "list"),
    "layout": ("input", "onnx", "list"),
}

_NOTHING_TO_TUNE = "nothing to tune: give --input and --filter, --rnn, --onnx or --problems"


def check_flags(
    flags: SimpleNamespace,
    sources: Sequence[str] = SOURCES,
    missing_message: str = _NOTHING_TO_TUNE,
) -> None:
    """End the command if flags that say what to tune are missing, or go with nothing.

    `sources` are the flags that name problems; `missing_message` is the message if none is given.
    """
    for name in ("input", "filter"):
        if len(getattr(flags, name)) > 1:
            raise misuse(
                f"--{name} is given twice; several convolutions are a list, see --problems"
            )
    if bool(flags.input) != bool(flags.filter):
        raise misuse("--input and --filter are needed together")
    if not any(getattr(flags, source) for source in sources):
        raise misuse(missing_message)
    for name, all_partners in GOES_WITH.items():
        partners = [partner for partner in all_partners if partner in sources]
        is_set = getattr(flags, name) not in (None, [])
        has_partner = any(getattr(flags, partner) for partner in partners)
        if is_set and not has_partner:
            flag = f"--{name.replace('_', '-')}"
            partner_flags = " or ".join(f"--{partner}" for partner in partners)
            raise misuse(f"{flag} goes with {partner_flags}")
    if flags.operation not in (None, *CONVOLUTIONS):
        raise misuse(f"--operation {flags.operation}; allowed: {', '.join(CONVOLUTIONS)}")
    with report_misuse():
        if flags.dtype is not None:
            parse_dtype(flags.dtype, "--dtype")
        if flags.math_type is not None:
            parse_math_type(flags.math_type, "--math-type")


def lists_of(flags: SimpleNamespace) -> dict[int | None, ProblemList]:
    """Return the problems to tune by batch size, or under None if no batch size is given.

    Ends the command if a flag's value is not allowed, CudnnliteError if a file is no good.
    """
    if flags.batch is None:
        return {None: _listed(flags, None)}
    sizes = [number(int, part.strip(), f"--batch {flags.batch}") for part in flags.batch.split(",")]
    if min(sizes) < 1:
        raise misuse(f"--batch {flags.batch}: 1 is the least")
    return {size: _listed(flags, size) for size in sizes}


def _listed(flags: SimpleNamespace, batch: int | None) -> ProblemList:
    problems = ProblemList([_convolution(flags)] if flags.input else [])
    for text in flags.rnn:
        problems.add(_rnn(text, flags.dtype, flags.math_type))
    for path in flags.onnx:
        with refused_as(ArgumentError, f"--onnx {path}", ArgumentError):
            problems.extend(_model(path, flags, batch))
    for path in flags.problems:
        with refused_as(ArgumentError, f"--problems {path}", ArgumentError):
            problems.extend(ProblemList.load(path))
    return problems


def _convolution(flags: SimpleNamespace) -> Problem:
    (x_text,), (w_text,) = flags.input, flags.filter
    x_shape, w_shape = _sizes("--input", x_text), _sizes("--filter", w_text)
    dtype: Any = flags.dtype or "float32"  # what is none is refused by its text
    options: dict[str, Any] = {"groups": flags.groups, "math_type": flags.math_type}
    for name in ("padding", "stride", "dilation"):
        text = getattr(flags, name)
        is_same = name == "padding" and text is not None and text.lower() == SAME
        options[name] = SAME if is_same else _steps(f"--{name}", text)
    options = {name: value for name, value in options.items() if value is not None}
    with report_misuse(f"--input {x_text} --filter {w_text}: "):
        x = TensorSpec(x_shape, dtype, flags.layout)
        w = FilterSpec(w_shape, dtype, flags.layout)
        conv = ConvolutionSpec(**options)
        forward = convolution_forward.problem(x, w, conv)
        if flags.operation == "backward_data":
            return convolution_backward_data.problem(w, forward.y, conv, x=x)
        if flags.operation == "backward_filter":
            return convolution_backward_filter.problem(x, forward.y, conv, w=w)
        return forward


def _model(path: Path, flags: SimpleNamespace, batch: int | None) -> ProblemList:
    """Return the problems of an ONNX model."""
    try:
        problems = problems_from_onnx(
            path,
            batch=batch,
            shapes=_shapes_by_name(flags.shape),
            dtype=flags.dtype,
            layout=flags.layout,
        )
    except OnnxOptionError as error:
        raise misuse(f"--onnx {path}: {error}") from error
    open_axes = [node.open_axes for node in problems.skipped if node.open_axes]
    if open_axes and not problems:
        # Axes without a name are "?", each another size. Those behind the first node may follow
        # from the first one's.
        first, *others = open_axes
        names = {axis for axes in others for axis in axes} - {"?", *first}
        axes = ", ".join(sorted([*first, *names]))
        raise misuse(
            f"--onnx {path}: the size of {axes} is open; --batch tells the batch, --shape an input"
        )
    if flags.math_type is None:
        return problems
    return _with_math_type(problems, flags.math_type)


def _shapes_by_name(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read the values of --shape, "input=1x3x224x224"."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")  # a name may contain anything
        if not name:
            raise misuse(f"--shape {text}: the form is NAME=1x3x224x224")
        if name in shapes:
            raise misuse("--shape names an input twice")
        shapes[name] = _sizes("--shape", sizes)
    return shapes


def _with_math_type(problems: ProblemList, math_type: str) -> ProblemList:
    """Return the same problems with another math type."""
    result = ProblemList()
    result.skipped, result.notes = problems.skipped, problems.notes
    for entry in problems:
        specs = {
            name: spec.replace(math_type=math_type)
            for name, spec in entry.problem.values.items()
            if isinstance(spec, (ConvolutionSpec, RNNSpec))
        }
        result.extend([replace(entry, problem=entry.problem.replace(**specs))])
    return result


def _rnn(text: str, dtype: Any, math_type: str | None) -> Problem:
    """Read the value of --rnn, "lstm:steps=100,batch=64,input=256,hidden=256"."""
    cell: Any  # what is none, and no data type, is refused by its text
    cell, _, rest = text.partition(":")
    parts = rest.split(",") if rest else []
    values = words_of("--rnn", text, parts, RNN_WORDS, _RNN_FORM)
    if math_type is not None:
        values["math_type"] = math_type
    missing = [name for name in _NEEDED if name not in values]
    if missing:
        raise misuse(f"--rnn {text}: {', '.join(missing)} missing; the form is {_RNN_FORM}")
    steps, batch, size = values.pop("steps"), values.pop("batch"), values.pop("input")
    training = values.pop("training", False)
    shape, layout = (steps, batch, size), "sequence_major"
    if values.pop("batch_major", False):
        shape, layout = (batch, steps, size), "batch_major"
    fields = {"hidden": "hidden_size", "layers": "num_layers", "projection": "projection_size"}
    options = {fields.get(name, name): value for name, value in values.items()}
    with report_misuse(f"--rnn {text}: "):
        spec = RNNSpec(cell, size, **options, dtype=dtype or "float32")
        data = RNNDataSpec(shape, dtype=spec.dtype, layout=layout)
        return Problem(RNN_FORWARD, spec=spec, data=data, training=training)


def words_of(
    option: str, text: str, parts: Sequence[str], kinds: Mapping[str, Any], form: str
) -> dict[str, Any]:
    """Read the parts of an option's value, "steps=100" or "training" alone, by their names.

    `kinds` has the types of the values; bool stands for a word alone.  Ends the command for
    anything else, and for a name that is given twice.
    """
    values: dict[str, Any] = {}
    for part in parts:
        name, value = _word(option, text, part, kinds, form)
        if name in values:
            raise misuse(f"{option} {text}: {name} is given twice")
        values[name] = value
    return values


def _word(
    option: str, text: str, part: str, kinds: Mapping[str, Any], form: str
) -> tuple[str, Any]:
    name, equals, value = (piece.strip() for piece in part.partition("="))
    kind = kinds.get(name)
    is_flag = kind is bool
    has_value = bool(equals)
    is_empty_text = kind is str and not value
    if kind is None or is_flag == has_value or is_empty_text:
        raise misuse(f"{option} {text}: {part!r} is not understood; the form is {form}")
    if is_flag:
        return name, True
    if kind is str:
        return name, value
    return name, number(kind, value, f"{option} {text}: {name}")


def _sizes(option: str, text: str) -> tuple[int, ...]:
    """Read sizes such as 32x64x56x56."""
    hint = NAMED_PADDING.get(text.lower(), "") if option == "--padding" else ""
    form = f"; the form is {_FORMS.get(option, 'one number, or one for each axis as in 1x2')}{hint}"
    return tuple(number(int, part, f"{option} {text}", form) for part in text.lower().split("x"))


def _steps(option: str, text: str | None) -> int | tuple[int, ...] | None:
    """Read a number for every axis, or one for each, as in 1x2."""
    if text is None:
        return None
    sizes = _sizes(option, text)
    return sizes[0] if len(sizes) == 1 else sizes


def number(kind: Any, text: str, where: str, form: str = "") -> Any:
    """Read a number; end the command if it is none."""
    with suppress(ValueError):
        if text.isascii() and "_" not in text:  # int() reads 1_000 and other alphabets' digits too
            return kind(text)
    description = "an integer" if kind is int else "a number"
    raise misuse(f"{where}: {text!r} is not {description}{form}")
