"""`cudnnlite plan`: which engines cuDNN has for problems on GPUs that are absent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer

from cudnnlite import Graph
from cudnnlite.arguments import refused_as
from cudnnlite.cli import common, options
from cudnnlite.cli.bench_problems import problems_of_name
from cudnnlite.cli.common import failure, misuse, report_errors, report_misuse, say, tell
from cudnnlite.cli.problems import REPEATABLE, SOURCES, check_flags, lists_of
from cudnnlite.cli.tunings import join_lists
from cudnnlite.errors import ArgumentError
from cudnnlite.files import read_named_file
from cudnnlite.graph.device_properties import parse_properties
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, printable
from cudnnlite.types import DeviceProperties
from cudnnlite.workbench.absent.asking import subject_of, why_not_asked
from cudnnlite.workbench.absent.candidates import Candidates, Subject, ask_planner
from cudnnlite.workbench.absent.planner import Planner
from cudnnlite.workbench.bench.lists import LISTS
from cudnnlite.workbench.tuning.problem_list import skipped_lines, summary

EXIT_CODES = (
    "Ends with 0 if cuDNN serves all, 1 if it does not serve something or after another error, "
    "2 if the command line is wrong, 130 after Ctrl-C."
)
_LIMITS = "cuDNN knows the architecture, not the card: nothing was run or timed"
_NEEDED = "nothing to plan: give --input and --filter, --onnx, --problems, --list or --graph"
_SOURCES = (*(name for name in SOURCES if name != "rnn"), "list", "graph")
_HEADING = ("problem", "served", "engine", "compiled", "workspace", "finalised", "why not")
_Paths: TypeAlias = list[Path] | None


class _Item(NamedTuple):
    """A problem or graph that cuDNN is asked about, with its title in the table."""

    title: str
    subject: Subject


def plan(
    gpu: Annotated[
        list[str],
        typer.Option(
            "--gpu",
            metavar="NAME|FILE[,...]",
            help=f"The GPUs: {', '.join(DeviceProperties.known_names)}, or files that "
            "DeviceProperties.save wrote.  Repeatable.",
            show_default=False,
        ),
    ],
    input_: options.Input = None,
    filter_: options.Filter = None,
    padding: options.Padding = None,
    stride: options.Stride = None,
    dilation: options.Dilation = None,
    groups: options.Groups = None,
    operation: options.Operation = None,
    onnx: options.ONNX = None,
    batch: options.Batch = None,
    shape: options.Shape = None,
    problems: options.Problems = None,
    list_: Annotated[
        list[str] | None,
        options.model("--list", metavar="|".join(LISTS), help="A built-in list of problems."),
    ] = None,
    graph: Annotated[
        _Paths,
        options.model(
            parser=common.path, metavar="FILE.json", help="What Graph.to_json wrote.  Repeatable."
        ),
    ] = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    math_type: options.Math = None,
    cudnn: Annotated[
        _Paths,
        typer.Option(
            parser=common.path,
            metavar="FOLDER",
            help="Another libcudnn: its file or folder.  Repeatable.",
            show_default="the one that is found",
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--every",
            help="Finalise the plans of all engines, and list them.  Takes seconds a problem.",
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(min=0.001, metavar="SECONDS", help="The limit for one problem on one GPU."),
    ] = 120.0,
    json_: common.JSONOption = False,
) -> None:
    """Ask cuDNN which engines it has for problems on GPUs that are not here.

    No GPU and no driver are needed.  The first use needs a C compiler.  cuDNN knows the
    architecture, not the card: it says what is served, not how fast.
    """
    # `list_` and `input_` become `flags.list` and `flags.input`.
    values = {name.rstrip("_"): value for name, value in locals().items()}
    for name in (*REPEATABLE, "list", "graph", "cudnn"):
        values[name] = values.get(name) or []
    flags = SimpleNamespace(**values)
    check_flags(flags, _SOURCES, _NEEDED)
    with report_errors():
        devices = _devices(flags.gpu)
        items = _items(flags)
        if not items:
            raise failure("there is nothing to plan")
        start = perf_counter()
        answers = [
            (item, answer)
            for library in flags.cudnn or [None]
            for item, answer in _ask(items, devices, library, flags)
        ]
        seconds = perf_counter() - start
    if flags.json:
        say(json.dumps([_plain(item, answer) for item, answer in answers], indent=2))
    else:
        say("\n\n".join(_tables(answers, every=flags.every)))
    failed = [answer for _, answer in answers if not answer.served]
    tell(
        f"{len(answers) - len(failed)} of {len(answers)} are served, asked in {seconds:.1f} s; "
        f"{_LIMITS}"
    )
    if failed:
        raise typer.Exit(1)


def _devices(texts: list[str]) -> list[DeviceProperties]:
    """Return the GPUs that --gpu names; ends the command for a name that is not known."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    names = [part for part in parts if part]
    if not names:
        raise misuse("--gpu names no GPU")
    return [gpu_of(name) for name in names]


def gpu_of(name: str) -> DeviceProperties:
    """Return a GPU that is absent, by its name or file; ends the command if it is not known."""
    properties = Path(name) if os.path.isfile(name) else name
    with report_misuse():
        return parse_properties(properties, f"--gpu {name}")


def _items(flags: SimpleNamespace) -> list[_Item]:
    """Return the problems that the flags name.

    Problems that need a GPU are left out; a message on stderr names each of them.
    """
    lists = lists_of(flags)
    for batch, problems in lists.items():
        for name in flags.list:
            problems.extend(problems_of_name(name, batch, flags.dtype or "float32", flags.layout))
    union = join_lists(lists)
    for note in union.notes:
        tell(printable(f"note: {note}"))
    for line in skipped_lines(union.skipped):
        tell(printable(line))
    items = []
    for entry in union:
        title = summary(entry.problem)
        if entry.names:
            title = f"{entry.names[0]}: {title}"
        if reason := why_not_asked(entry.problem):
            tell(printable(f"skipped: {title}: only a GPU can be asked about it ({reason})"))
            continue
        items.append(_Item(printable(title), subject_of(entry.problem)))
    for path in flags.graph:
        with refused_as(ArgumentError, f"--graph {path}", OSError, UnicodeError, ArgumentError):
            graph = Graph.from_json(read_named_file(path).decode())
            items.append(_Item(printable(path.stem), subject_of(graph)))
    return items


def _ask(
    items: list[_Item],
    devices: list[DeviceProperties],
    library: Path | None,
    flags: SimpleNamespace,
) -> Iterator[tuple[_Item, Candidates]]:
    """Yield the answers of one cuDNN, GPU by GPU."""
    with Planner(library, flags.timeout) as planner:
        for device in devices:
            for item in items:
                yield item, ask_planner(planner, item.subject, device, every=flags.every)


def _tables(answers: list[tuple[_Item, Candidates]], *, every: bool) -> Iterator[str]:
    """Yield a table for each GPU and cuDNN, or for each problem on them with `every`."""
    if every:
        for item, answer in answers:
            yield f"{item.title}\n{printable_lines(str(answer))}"
        return
    rows_by_title: dict[str, list[tuple[str, ...]]] = {}
    for item, answer in answers:
        title = f"{answer.properties}, cuDNN {answer.cudnn}"
        rows_by_title.setdefault(title, [_HEADING]).append(_cells(item, answer))
    for title, rows in rows_by_title.items():
        lines = aligned(rows, numeric={"workspace", "finalised"}, empty={""})
        yield "\n".join([title, *lines])


def printable_lines(text: str) -> str:
    """Return a text of several lines with a mark for each character that cannot be printed."""
    return "\n".join(map(printable, text.splitlines()))


def _cells(item: _Item, answer: Candidates) -> tuple[str, ...]:
    """Return an answer as a row of the table of a GPU."""
    choice = answer.choice
    if choice is None:
        return (item.title, "no", "", "", "", "", printable(answer.why_not))
    compiled = "compiled" if choice.compiled else ""
    return (
        item.title,
        "yes",
        str(choice.engine),
        compiled,
        format_size(choice.workspace or 0),
        f"{(choice.seconds or 0) * 1e3:.1f} ms",
        "",
    )


def _plain(item: _Item, answer: Candidates) -> dict[str, Any]:
    """Return an answer as JSON can hold it."""
    return {
        "gpu": answer.properties.name,
        "compute_capability": answer.properties.compute_capability,
        "cudnn": answer.cudnn,
        "problem": item.title,
        "served": answer.served,
        "why_not": answer.why_not,
        "candidates": [
            {**row._asdict(), "engine": row.engine.to_plain(), "served": row.served}
            for row in answer
        ],
    }
