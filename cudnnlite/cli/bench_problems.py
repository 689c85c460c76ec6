"""The problems that the flags of `cudnnlite bench` name, and the flags that name a problem."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer

from cudnnlite import RNNSpec
from cudnnlite.arguments import refused_as
from cudnnlite.cli import problems as cli_problems
from cudnnlite.cli.common import misuse, report_misuse
from cudnnlite.cli.problems import GOES_WITH, SOURCES, check_flags, words_of
from cudnnlite.cli.tunings import join_lists
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import MathType, RNNDataLayout
from cudnnlite.errors import ArgumentError, CudnnliteError
from cudnnlite.files import read_named_file
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.operations.graph.graph import any_problem_from_plain
from cudnnlite.problems import convolution, convolution_backward, rnn
from cudnnlite.specs.layout import CHANNELS_LAST
from cudnnlite.types import Problem
from cudnnlite.workbench.bench.lists import (
    LISTS,
    WITH_A_BATCH,
    attention_problem,
    matmul_problem,
    problems_of_list,
)
from cudnnlite.workbench.tuning.problem_list import ListedProblem, ProblemList

UsageError: Any = typer.BadParameter.__base__
BENCH_SOURCES = (*SOURCES, "matmul", "attention", "list", "problem", "lines")
REPEATABLE = (*cli_problems.REPEATABLE, "matmul", "attention", "list", "problem", "lines")
# The options that say which problems, and nothing else.
PROBLEM_OPTIONS = (*REPEATABLE, *GOES_WITH)
NEEDED = (
    "nothing to bench: give --input and --filter, --rnn, --matmul, --attention, --onnx, "
    "--problems, --list, --lines or --problem"
)
_MATMUL_WORDS = {
    **dict.fromkeys(("m", "n", "k", "batch"), int),
    "activation": str,
    "bias": bool,
}
MATMUL_FORM = "m=M,n=N,k=K with, if wanted, batch=, activation=, bias"
_ATTENTION_WORDS = {
    **dict.fromkeys(("batch", "heads", "steps", "size", "kv_heads", "kv_steps"), int),
    "causal": bool,
}
ATTENTION_FORM = "batch=N,heads=H,steps=T,size=D with, if wanted, kv_heads=, kv_steps=, causal"


@dataclass(frozen=True)
class BenchItem:
    """A problem that is benched; `choice` names the one candidate, and is empty for no limit."""

    listed: ListedProblem
    choice: str = ""


def items_of(
    flags: SimpleNamespace, parse_line: Callable[[list[str]], SimpleNamespace]
) -> list[BenchItem]:
    """Return the problems that flags request.

    `parse_line` reads the words of a line of a file as flags.  Ends the command if a flag's value
    is not allowed, CudnnliteError if a file is no good.
    """
    check_flags(flags, BENCH_SOURCES, NEEDED)
    lists = cli_problems.lists_of(flags)
    for batch, problems in lists.items():
        problems.extend(_more_problems(flags, batch))
    items = [BenchItem(listed, flags.choice) for listed in join_lists(lists)]
    for path in flags.lines:
        items += _items_of_file(path, parse_line)
    return items


def _more_problems(flags: SimpleNamespace, batch: int | None) -> ProblemList:
    """Return the problems that `autotune` has no flags for."""
    dtype = flags.dtype or "float32"
    problems = ProblemList()
    for text in flags.matmul:
        problems.add(_matmul(text, dtype))
    for text in flags.attention:
        problems.add(_attention(text, dtype))
    for name in flags.list:
        problems.extend(problems_of_name(name, batch, dtype, flags.layout))
    for text in flags.problem:
        with report_misuse("--problem: "):
            problems.add(_problem_of_json(text))
    return problems


def problems_of_name(name: str, batch: int | None, dtype: Any, layout: str | None) -> ProblemList:
    """Return the problems of a list that comes along, by the name that --list has.

    Ends the command if there is none of that name, or if --batch is for rows that have their own.
    """
    if name not in LISTS:
        raise misuse(f"--list {name}; allowed: {', '.join(LISTS)}")
    if batch is not None and name not in WITH_A_BATCH:
        raise misuse(f"--batch: the rows of --list {name} have batches of their own")
    with report_misuse(f"--list {name}: "):
        return problems_of_list(name, batch, dtype, layout and layout.upper())


def _problem_of_json(text: str) -> Problem:
    with refused_as(ArgumentError, "it is not JSON", ValueError, RecursionError):
        plain = json.loads(text)
    return any_problem_from_plain(plain)


def _matmul(text: str, dtype: Any) -> Problem:
    values = words_of("--matmul", text, text.split(","), _MATMUL_WORDS, MATMUL_FORM)
    _need(values, ("m", "n", "k"), f"--matmul {text}", MATMUL_FORM)
    values.setdefault("batch", 1)
    with report_misuse(f"--matmul {text}: "):
        return matmul_problem(**values, dtype=dtype)


def _attention(text: str, dtype: Any) -> Problem:
    values = words_of("--attention", text, text.split(","), _ATTENTION_WORDS, ATTENTION_FORM)
    _need(values, ("batch", "heads", "steps", "size"), f"--attention {text}", ATTENTION_FORM)
    with report_misuse(f"--attention {text}: "):
        return attention_problem(**values, dtype=dtype)


def _need(values: dict[str, Any], names: Sequence[str], where: str, form: str) -> None:
    missing = [name for name in names if name not in values]
    if missing:
        raise misuse(f"{where}: {', '.join(missing)} missing; the form is {form}")


def _items_of_file(
    path: Path, parse_line: Callable[[list[str]], SimpleNamespace]
) -> list[BenchItem]:
    """Return the problems of a file whose lines have the options of a command line."""
    with refused_as(ArgumentError, f"--lines {path} cannot be read", UnicodeError, OSError):
        text = read_named_file(path).decode()
    items: list[BenchItem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        with refused_as(ArgumentError, f"--lines {path}, line {number}", ValueError):
            words = shlex.split(line, comments=True)
        if words[:2] == ["cudnnlite", "bench"]:  # as the rows print it
            words = words[2:]
        if not words:
            continue
        try:
            flags = parse_line(words)
        except UsageError as error:
            raise misuse(f"--lines {path}, line {number}: {error.format_message()}") from error
        if flags.lines:
            raise misuse(f"--lines {path}, line {number}: a file of lines names no other")
        items += items_of(flags, parse_line)
    return items


def line_of(problem: Problem, parse: Callable[[list[str]], list[BenchItem]]) -> str:
    """Return the options of `cudnnlite bench` that ask for a problem.

    What options cannot express is the problem's JSON behind --problem.  `parse` reads words: what
    is returned was parsed, and is the problem.
    """
    words = _words_of(problem)
    if words and _asks_for(words, problem, parse):
        return shlex.join(words)
    return shlex.join(["--problem", json.dumps(problem.to_plain(), separators=(",", ":"))])


def title_of(line: str) -> str:
    """Return the options of a line as a title; empty for those of a problem's JSON."""
    words = shlex.split(line)
    if "--problem" in words:
        return ""
    return " ".join(word.removeprefix("--") for word in words if word != "--dtype")


def _asks_for(
    words: list[str], problem: Problem, parse: Callable[[list[str]], list[BenchItem]]
) -> bool:
    try:
        with redirect_stderr(io.StringIO()):  # nobody needs to know which words were refused
            items = parse(words)
    except (CudnnliteError, typer.Exit, UsageError):
        return False
    return [item.listed.problem for item in items] == [problem]


def _words_of(problem: Problem) -> list[str]:
    """Return options that ask for a problem like it; empty if there are none."""
    if isinstance(problem, GraphProblem):
        return _graph_words(problem)
    if problem.operation is rnn.FORWARD:
        return _rnn_words(problem)
    kinds = {
        convolution.FORWARD: "forward",
        convolution_backward.DATA: "backward_data",
        convolution_backward.FILTER: "backward_filter",
    }
    if problem.operation in kinds:
        return _convolution_words(problem, kinds[problem.operation])
    return []


def _convolution_words(problem: Problem, kind: str) -> list[str]:
    conv, specs = problem.conv, problem.specs
    images = specs["x" if "x" in specs else "dx"]
    filters = specs["w" if "w" in specs else "dw"]
    words = ["--input", _sizes(images.shape), "--filter", _sizes(filters.shape)]
    for name, usual in (("padding", 0), ("stride", 1), ("dilation", 1)):
        steps = getattr(conv, name)
        if steps != usual:
            text = str(steps) if isinstance(steps, int) else _sizes(steps)
            words += [f"--{name}", text]
    if conv.groups != 1:
        words += ["--groups", str(conv.groups)]
    if kind != "forward":
        words += ["--operation", kind]
    words += ["--dtype", dtype_name(images.dtype)]
    if images.layout in CHANNELS_LAST.values():
        words += ["--layout", "NHWC"]
    return words + _math_words(conv.math_type)


def _math_words(math_type: MathType) -> list[str]:
    if math_type == MathType.DEFAULT:
        return []
    return ["--math-type", math_type.name.lower()]


def _rnn_words(problem: Problem) -> list[str]:
    spec: RNNSpec = problem.spec
    data = problem.data
    parts = [
        f"steps={data.max_length}",
        f"batch={data.batch}",
        f"input={spec.input_size}",
        f"hidden={spec.hidden_size}",
    ]
    if spec.num_layers != 1:
        parts.append(f"layers={spec.num_layers}")
    if spec.projection_size:
        parts.append(f"projection={spec.projection_size}")
    if spec.bias != RNNSpec(spec.cell, 1, 1).bias:
        parts.append(f"bias={spec.bias.name.lower()}")
    if spec.dropout:
        parts.append(f"dropout={spec.dropout!r}")
    if spec.bidirectional:
        parts.append("bidirectional")
    if problem.training:
        parts.append("training")
    if data.layout == RNNDataLayout.BATCH_MAJOR_UNPACKED:
        parts.append("batch_major")
    words = ["--rnn", f"{spec.cell.name.lower()}:{','.join(parts)}"]
    words += ["--dtype", dtype_name(spec.dtype)]
    return words + _math_words(spec.math_type)


def _graph_words(problem: GraphProblem) -> list[str]:
    """Return options of a product or of attention whose operands have the same sizes."""
    inputs = problem.graph.inputs
    dtype = ["--dtype", dtype_name(next(iter(inputs.values())).dtype)]
    if set(inputs) in ({"a", "b"}, {"a", "b", "bias"}) and inputs["a"].spec.rank == 3:
        batch, m, k = inputs["a"].shape
        parts = [f"m={m}", f"n={inputs['b'].shape[-1]}", f"k={k}"]
        if batch != 1:
            parts.append(f"batch={batch}")
        if "bias" in inputs:
            parts.append("bias")
        activation = _activation_of(problem)
        if activation:
            parts.append(f"activation={activation}")
        return ["--matmul", ",".join(parts), *dtype]
    if set(inputs) == {"q", "k", "v"}:
        batch, heads, steps, size = inputs["q"].shape
        _, kv_heads, kv_steps, _ = inputs["k"].shape
        parts = [f"batch={batch}", f"heads={heads}", f"steps={steps}", f"size={size}"]
        if kv_heads != heads:
            parts.append(f"kv_heads={kv_heads}")
        if kv_steps != steps:
            parts.append(f"kv_steps={kv_steps}")
        if any(dict(node.attributes).get("mode") == "GEN_INDEX" for node in problem.graph.nodes):
            parts.append("causal")
        return ["--attention", ",".join(parts), *dtype]
    return []


# By cuDNN's names of the modes: the names of `dnn.matmul`.
_ACTIVATIONS = {
    "GELU_FWD": "gelu",
    "GELU_APPROX_TANH_FWD": "gelu_tanh",
    "SWISH_FWD": "swish",
    "SOFTPLUS_FWD": "softplus",
    "SIGMOID_FWD": "sigmoid",
    "TANH_FWD": "tanh",
    "ELU_FWD": "elu",
}


def _activation_of(problem: GraphProblem) -> str:
    modes = {dict(node.attributes).get("mode") for node in problem.graph.nodes}
    if {"SOFTPLUS_FWD", "TANH_FWD"} <= modes:
        return "mish"
    for node in problem.graph.nodes:
        attributes = dict(node.attributes)
        mode = str(attributes.get("mode", ""))
        if mode == "RELU_FWD":
            return "leaky_relu" if "relu_lower_clip_slope" in attributes else "relu"
        if mode in _ACTIVATIONS:
            return _ACTIVATIONS[mode]
    return ""


def _sizes(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
