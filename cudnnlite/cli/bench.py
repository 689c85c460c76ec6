"""`cudnnlite bench`: times problems, beside the device's peaks, and checks their results."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias

import typer

from cudnnlite import Handle
from cudnnlite.cli import bench_lines, common, options
from cudnnlite.cli.bench_problems import (
    ATTENTION_FORM,
    MATMUL_FORM,
    PROBLEM_OPTIONS,
    REPEATABLE,
    BenchItem,
    UsageError,
    items_of,
    line_of,
    title_of,
)
from cudnnlite.cli.common import (
    failure,
    is_terminal,
    misuse,
    report_errors,
    report_misuse,
    say,
    tell,
)
from cudnnlite.devices.device import Device
from cudnnlite.devices.peaks import CARDS, parse_card, peaks_of
from cudnnlite.errors import CudnnliteError
from cudnnlite.files import write_named_file
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.problems.roofline import Peaks
from cudnnlite.texts import counted
from cudnnlite.types import Problem
from cudnnlite.version import __version__
from cudnnlite.workbench.bench.lists import LISTS
from cudnnlite.workbench.bench.measuring import MODES, RUNS, BenchOptions, bench_problem
from cudnnlite.workbench.bench.rows import BenchRow, BenchRun
from cudnnlite.workbench.bench.to_c import write_program
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.problem_list import ListedProblem

EXIT_CODES = (
    "Ends with 0 if all is right, 3 if something is wrong with a result or a problem is not served, "
    "2 if the command line is wrong, 1 after another error, 130 after Ctrl-C."
)
_products = partial(typer.Option, rich_help_panel="Products and attention")
_bench = partial(typer.Option, rich_help_panel="What is measured")
_COMMAND = "cudnnlite bench"
_Texts: TypeAlias = list[str] | None
_Path: TypeAlias = Path | None
_MODE_HELP = (
    "list: what each problem has to do; plan: make plans; run: run each once; check: compare with "
    "float64, compare runs, and look for writes outside of the operands; time: all of that, and "
    "the times."
)


def bench(
    input_: options.Input = None,
    filter_: options.Filter = None,
    padding: options.Padding = None,
    stride: options.Stride = None,
    dilation: options.Dilation = None,
    groups: options.Groups = None,
    operation: options.Operation = None,
    rnn: options.RNN = None,
    matmul: Annotated[_Texts, _products(metavar="m=M,...", help=f"{MATMUL_FORM}.")] = None,
    attention: Annotated[
        _Texts, _products(metavar="batch=N,...", help=f"{ATTENTION_FORM}.")
    ] = None,
    list_: Annotated[
        _Texts,
        options.model(
            "--list", metavar="NAME", help=f"A list that comes along: {', '.join(LISTS)}."
        ),
    ] = None,
    onnx: options.ONNX = None,
    batch: options.Batch = None,
    shape: options.Shape = None,
    problems: options.Problems = None,
    lines: Annotated[
        list[Path] | None,
        options.model(
            parser=common.path, metavar="FILE", help="A file with the options of a problem a line."
        ),
    ] = None,
    problem: Annotated[
        _Texts, options.model(metavar="JSON", help="A problem as files of problems have it.")
    ] = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    math_type: options.Math = None,
    mode: Annotated[str, _bench("--mode", metavar="|".join(MODES), help=_MODE_HELP)] = "time",
    every: Annotated[
        bool, _bench("--every", help="Every candidate, not only the one that is chosen.")
    ] = False,
    choice: Annotated[
        str, _bench(metavar="NAME", help="One candidate, by the name that a row has.")
    ] = "",
    runs: Annotated[int, _bench(min=1, help="How many runs are compared bit by bit.")] = RUNS,
    card: Annotated[
        str | None,
        _bench(
            metavar="NAME",
            help=f"The roofline of another GPU: {', '.join(CARDS)}.",
            show_default="the device's own",
        ),
    ] = None,
    objective: options.Objective = TuningPolicy.objective,
    workspace_limit: options.WorkspaceLimit = None,
    deterministic: options.Deterministic = False,
    max_error: options.MaxError = None,
    no_tf32: options.NoTF32 = False,
    also_layout: options.AlsoLayout = None,
    interface: options.Interface = None,
    flush_l2: options.FlushL2 = False,
    engines: options.Engines = False,
    device: common.DeviceOption = None,
    json_: common.JSONOption = False,
    csv: options.CSV = None,
    save: Annotated[
        _Path,
        options.output_file(
            metavar="FILE.json", help="Write the run, for `cudnnlite compare`. A link is replaced."
        ),
    ] = None,
    c: Annotated[
        _Path,
        options.output_file(
            "--c", metavar="FOLDER", help="Write each row's program in C, in a folder of its own."
        ),
    ] = None,
) -> None:
    """Measure what problems cost beside what the device could do, and check the results.

    The rows of the chosen candidates, or of every one: times, TFLOP/s, GB/s, the share of the
    roofline and which side binds it, errors beside float64, whether runs have equal bits, writes
    outside of the operands, workspace, and the names of kernels.
    """
    flags = options.flags_of(locals(), REPEATABLE)
    bench_options = _options(flags)
    _check_outputs(flags)
    with report_errors():
        items = items_of(flags, _parse_line)
        peaks = None
        if card is not None:
            with report_misuse():
                peaks = parse_card(card, "--card")
        try:
            run = _run(flags, items, bench_options, peaks)
        except KeyboardInterrupt:
            typer.echo(err=True)  # after the terminal's ^C
            tell("interrupted")
            raise typer.Exit(common.INTERRUPTED) from None
        _write_files(flags, run)
    _print(flags, run)
    if run.faulty or (bench_options.does("plan") and run.unserved):
        raise typer.Exit(common.SOME_FAILED)


def _options(flags: SimpleNamespace) -> BenchOptions:
    if flags.mode not in MODES:
        raise misuse(f"--mode {flags.mode}; allowed: {', '.join(MODES)}")
    if flags.choice and flags.every:
        raise misuse("--choice and --every exclude each other")
    return BenchOptions(flags.mode, flags.every, flags.choice, flags.runs, options.policy_of(flags))


def _check_outputs(flags: SimpleNamespace) -> None:
    options.check_outputs(flags)
    common.check_output("--save", flags.save, (".json",))
    if flags.c is not None and flags.c.exists() and not flags.c.is_dir():
        raise misuse(f"--c {flags.c}: is not a folder")
    if flags.c is not None and flags.mode == "list":
        raise misuse("--c goes with another --mode than list")


@cache
def _parser() -> Any:
    """Return the parser of the command's options."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(bench)
    return typer.main.get_command(app)


def _context_of(words: Sequence[str]) -> Any:
    """Return the context of typer for the words of a command line; its error for a mistake."""
    return _parser().make_context(_COMMAND, list(words), help_option_names=[])


def _parse_line(words: list[str]) -> SimpleNamespace:
    """Return the words of a line as flags."""
    return options.flags_of(_context_of(words).params, REPEATABLE)


def problems_of_words(words: Sequence[str]) -> list[ListedProblem]:
    """Return the problems that options name; ends the command if an option says something else."""
    try:
        context = _context_of(words)
    except UsageError as error:
        raise misuse(f"behind --: {error.format_message()}") from error
    for parameter in context.command.params:
        is_default = context.get_parameter_source(parameter.name).name == "DEFAULT"
        if not is_default and parameter.name.rstrip("_") not in PROBLEM_OPTIONS:
            raise misuse(f"behind --: {parameter.opts[0]} does not say which problems")
    return [
        item.listed for item in items_of(options.flags_of(context.params, REPEATABLE), _parse_line)
    ]


def _run(
    flags: SimpleNamespace, items: list[BenchItem], bench_options: BenchOptions, peaks: Peaks | None
) -> BenchRun:
    """Bench all problems; return the rows with the facts."""
    if not items:
        raise failure("there is nothing to bench")
    facts = {
        "mode": bench_options.mode,
        "cudnnlite": __version__,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "policy": bench_options.policy.to_plain(),
    }
    if not bench_options.does("plan"):
        facts |= _facts_of_peaks(peaks)
        words = _repeating_words(flags, bench_options, None)
        rows = _rows(None, items, bench_options, words, peaks)
        return BenchRun(tuple(rows), facts)
    device = common.chosen_device(flags.device)
    with Handle(device=device) as handle:
        if not handle.device.has_real_timing:
            tell("the emulated device: the times are NumPy's, not a GPU's")
        if peaks is None:
            peaks = peaks_of(handle.device)
        facts |= _device_facts(handle, peaks)
        words = _repeating_words(flags, bench_options, handle.device)
        rows = _rows(handle, items, bench_options, words, peaks)
        facts |= handle.device.clocks()  # an idle GPU would have shown lower clocks before
        if flags.c is not None:
            _write_programs(handle, items, rows, bench_options, flags.c)
    return BenchRun(tuple(rows), facts)


def _device_facts(handle: Handle, peaks: Peaks | None) -> dict[str, Any]:
    library = handle.api.library
    device_facts = handle.device.facts()
    facts: dict[str, Any] = {
        "device": device_facts.name,
        "cuDNN": library.version_text,
        "libcudnn": str(library.path),
        "has real timing": handle.device.has_real_timing,
    }
    if device_facts.driver:
        facts["driver"] = device_facts.driver
    return facts | _facts_of_peaks(peaks)


def _facts_of_peaks(peaks: Peaks | None) -> dict[str, Any]:
    if peaks is None:
        return {}
    roofs = {"flops": dict(peaks.flops), "bandwidth": peaks.bandwidth}
    return {"peaks": str(peaks), "roofs": roofs}


def _rows(
    handle: Handle | None,
    items: list[BenchItem],
    bench_options: BenchOptions,
    words: Sequence[str],
    peaks: Peaks | None,
) -> list[BenchRow]:
    """Return the rows of all problems; `words` are those of the line that repeats each."""
    rows: list[BenchRow] = []
    for number, item in enumerate(items, start=1):
        if len(items) > 1 and handle is not None and not is_terminal(sys.stderr):
            tell(f"{number} of {len(items)}: {item.listed.problem}")
        line = words_for(item.listed.problem)
        item_options = replace(bench_options, choice=item.choice or bench_options.choice)
        try:
            new = bench_problem(handle, item.listed, item_options, peaks)
        except CudnnliteError as error:
            new = bench_problem(None, item.listed, replace(item_options, mode="list"), peaks)
            new = [replace(row, status=f"not benched: {error}") for row in new]
        rows += [_with_line(row, item, line, words) for row in new]
    return rows


def words_for(problem: Problem) -> str:
    """Return the options that ask for a problem."""
    return line_of(problem, _items_of_words)


def _items_of_words(words: list[str]) -> list[BenchItem]:
    return items_of(_parse_line(words), _parse_line)


def _repeating_words(
    flags: SimpleNamespace, bench_options: BenchOptions, device: Device | None
) -> list[str]:
    """Return the options that repeat a row, but those of its problem and its candidate."""
    words = []
    if bench_options.mode != BenchOptions().mode:
        words.append(f"--mode {bench_options.mode}")
    if bench_options.runs != RUNS:
        words.append(f"--runs {bench_options.runs}")
    if bench_options.does("plan"):
        words += options.words_of_policy(bench_options.policy)
    if flags.card is not None:
        words += ["--card", shlex.quote(flags.card)]
    if device is not None:
        words.append(f"--device {_name_of_device(device)}")
    return words


def _name_of_device(device: Device) -> str:
    """Return the name of a device as `--device` takes it."""
    return device.kind if device.index == 0 else f"{device.kind}:{device.index}"


def _with_line(row: BenchRow, item: BenchItem, line: str, words: Sequence[str]) -> BenchRow:
    """Return a row with the line that repeats it."""
    words = [_COMMAND, line, *words]
    if row.candidate:
        words += ["--choice", shlex.quote(row.candidate)]
    problem = name_of(item.listed.problem, line)
    return replace(row, problem=problem or row.problem, key=line, line=" ".join(words))


def name_of(problem: Problem, line: str) -> str:
    """Return the options of a graph as its name; empty for what has a shorter summary."""
    return title_of(line) if isinstance(problem, GraphProblem) else ""


def _write_programs(
    handle: Handle,
    items: list[BenchItem],
    rows: list[BenchRow],
    bench_options: BenchOptions,
    folder: Path,
) -> None:
    """Write a program in C for each row that can be used, in folders by their numbers."""
    by_key = {words_for(item.listed.problem): item for item in items}
    for number, row in enumerate(rows, start=1):
        if row.status != "ok" or not row.candidate:
            continue
        place = folder / str(number)
        os.makedirs(folder, exist_ok=True)
        write_program(
            handle.device,
            by_key[row.key].listed.problem,
            row.candidate,
            bench_options.policy,
            place,
        )
        tell(f"{place} is written")


def _write_files(flags: SimpleNamespace, run: BenchRun) -> None:
    writers: list[tuple[Path | None, Callable[[Path], object]]] = [
        (flags.save, lambda path: write_named_file(path, _json(run).encode())),
    ]
    if flags.csv != options.STDOUT:
        writers.append(
            (
                flags.csv,
                lambda path: write_named_file(path, bench_lines.csv_of(run).encode()),
            )
        )
    for path, write in writers:
        if path is not None:
            write(path)
            tell(f"{path} is written")


def _json(run: BenchRun) -> str:
    return json.dumps(run.to_plain(), indent=1) + "\n"


def _print(flags: SimpleNamespace, run: BenchRun) -> None:
    if flags.json:
        say(_json(run).rstrip("\n"))
    elif flags.csv == options.STDOUT:
        say(bench_lines.csv_of(run).rstrip("\n"))
    else:
        say("\n".join(bench_lines.lines_of(run)))
    for row in run.faulty:
        tell(f"wrong: {row.candidate} for {row.problem}: {'; '.join(row.findings)}")
    unserved = run.unserved
    if unserved:
        tell(f"not served: {counted(len(unserved), 'problem')}")
