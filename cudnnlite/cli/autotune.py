"""`cudnnlite autotune`: the fastest algorithm for each problem, measured, remembered, and shown with the reasons."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypeAlias

import typer

from cudnnlite import report
from cudnnlite.autotune import model
from cudnnlite.autotune.cache import TuningCache, check_place
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.progress import Report, reporting
from cudnnlite.autotune.tuned_problem import TunedProblem
from cudnnlite.cli import common
from cudnnlite.cli import tunings as told
from cudnnlite.cli.common import errors_told, failure, is_terminal, misuse, say, tell
from cudnnlite.cli.problems import CONVOLUTIONS, REPEATABLE, check_flags, lists_of
from cudnnlite.devices.choice import visible_gpus
from cudnnlite.errors import ArgumentError, CudnnliteError
from cudnnlite.report.plots import FORMATS
from cudnnlite.texts import counted, printable

EXIT_CODES = (
    "Ends with 0 if all was tuned, 3 if some problem has no algorithm within the limits, 2 if the command line is wrong, 1 "
    "after another error, 130 after Ctrl-C: what was tuned till then is saved, and the same command goes on from there."
)
# what --help shows together
_conv = partial(typer.Option, rich_help_panel="One convolution")
_rnn = partial(typer.Option, rich_help_panel="Recurrent networks")
_model = partial(typer.Option, rich_help_panel="Models and lists")
_data = partial(typer.Option, rich_help_panel="Data and arithmetic")
_want = partial(typer.Option, rich_help_panel="What is wanted")
_where = partial(typer.Option, rich_help_panel="Where")
_out = partial(typer.Option, rich_help_panel="Output")
_file = partial(_out, parser=common.path)
_RNN_HELP = (
    "lstm:steps=100,batch=64,input=256,hidden=256 (or gru, tanh, relu), and, if wanted, layers=2, projection=128, "
    "bias=double|single_input|single_recurrent|none, dropout=0.1, bidirectional, training, batch_major.  Repeatable."
)
_MATH_HELP = (
    "default (on float32 data TF32), fma (true float32), tensor_op or tensor_op_allow_conversion; what --input, --rnn and "
    "--onnx ask for."
)
_Text: TypeAlias = str | None
_Texts: TypeAlias = list[str] | None
_Path: TypeAlias = Path | None
_Paths: TypeAlias = list[Path] | None
_Float: TypeAlias = float | None


def autotune(
    input_: Annotated[
        _Texts, _conv("--input", metavar="NxCxHxW", help="The images' shape: 1 to 3 spatial axes.")
    ] = None,
    filter_: Annotated[
        _Texts, _conv("--filter", metavar="KxCxRxS", help="The filter's.  C is that of a group.")
    ] = None,
    padding: Annotated[
        _Text, _conv(metavar="P|PxP", help="Zeros on both sides: for every axis, or for each.")
    ] = None,
    stride: Annotated[_Text, _conv(metavar="S|SxS")] = None,
    dilation: Annotated[_Text, _conv(metavar="D|DxD")] = None,
    groups: Annotated[int | None, _conv()] = None,
    operation: Annotated[
        _Text,
        _conv(metavar="|".join(CONVOLUTIONS), help="It, or a gradient.", show_default="forward"),
    ] = None,
    rnn: Annotated[_Texts, _rnn(metavar="CELL:...", help=_RNN_HELP)] = None,
    onnx: Annotated[
        _Paths, _model(parser=common.path, metavar="FILE", help="An ONNX model.  Repeatable.")
    ] = None,
    batch: Annotated[
        _Text,
        _model(
            metavar="N[,N...]",
            help="The size of the model's batch axis, where that is open; several are compared.",
        ),
    ] = None,
    shape: Annotated[
        _Texts,
        _model(
            metavar="NAME=1x3x224x224", help="The shape of one of the model's inputs.  Repeatable."
        ),
    ] = None,
    problems: Annotated[
        _Paths,
        _model(
            parser=common.path,
            metavar="FILE.json",
            help="A list that was recorded or saved: ProblemList.save.  Repeatable.",
        ),
    ] = None,
    dtype: Annotated[
        _Text,
        _data(
            help="float16, bfloat16, float32, float64, ...; of --input, --rnn and --onnx.",
            show_default="float32, or the model's",
        ),
    ] = None,
    layout: Annotated[
        _Text,
        _data(
            help="NCHW or NHWC (for every rank): how the data of --input and --onnx lies.",
            show_default="NCHW",
        ),
    ] = None,
    math_type: Annotated[_Text, _data(help=_MATH_HELP)] = None,
    objective: Annotated[
        str,
        _want(
            metavar="latency|device",
            help="The least wall time of calls, or the least time on the device.",
        ),
    ] = "latency",
    workspace_limit: Annotated[
        _Text, _want(metavar="SIZE", help="The most workspace: '64 MiB', 10%, bytes.")
    ] = None,
    deterministic: Annotated[
        bool, _want("--deterministic", help="Only what gives the same bits each time.")
    ] = False,
    max_error: Annotated[
        _Float, _want(help="The largest relative L2 error against float64 sums, such as 1e-3.")
    ] = None,
    no_tf32: Annotated[
        bool, _want("--no-tf32", help="Multiply float32 data in true float32 only.")
    ] = False,
    also_layout: Annotated[
        _Texts,
        _want(
            metavar="NHWC|NCHW",
            help="Try this layout too, the conversion there and back counted.  Repeatable.",
        ),
    ] = None,
    interface: Annotated[
        _Text,
        _want("--interface", help="Only 'descriptor' calls, or only engines of the 'graph' API."),
    ] = None,
    flush_l2: Annotated[
        bool, _want("--flush-l2", help="Time with operands that are not in the L2 cache.")
    ] = False,
    engines: Annotated[
        bool, _want("--engines", help="Try engines that cuDNN compiles first, too.")
    ] = False,
    knobs: Annotated[
        _Float,
        _want(
            metavar="SECONDS", help="For so long a problem, search settings of engines' knobs too."
        ),
    ] = None,
    device: common.DeviceOption = None,
    workers: Annotated[
        int | None, _where(min=1, help="Processes that tune.", show_default="one for each GPU")
    ] = None,
    cache: common.CacheOption = None,
    no_cache: Annotated[bool, _where("--no-cache", help="Neither read nor write a cache.")] = False,
    read_only_cache: Annotated[
        bool, _where("--read-only-cache", help="Read the cache, but save nothing.")
    ] = False,
    explain: Annotated[
        bool,
        _out("--explain", "-v", help="Every candidate of each problem, not only of a single one."),
    ] = False,
    as_json: common.JSONOption = False,
    csv: Annotated[
        _Path,
        _file(metavar="FILE.csv|-", help="Write the candidates, a line each; - to stdout alone."),
    ] = None,
    html: Annotated[_Path, _file(metavar="FILE.html", help="Write a report: one page.")] = None,
    plot: Annotated[_Path, _file(metavar="FILE", help="Write a chart: .png, .svg or .pdf.")] = None,
    save_problems: Annotated[
        _Path, _file(metavar="FILE.json", help="Write the list of what is tuned.")
    ] = None,
) -> None:
    """Find the fastest algorithm for each problem within your limits, and remember it.

    Several may be given at once.  What a cache of earlier tunings knows is not measured again.
    """
    given = {name.rstrip("_"): value for name, value in locals().items()}
    flags = SimpleNamespace(**given | {name: given[name] or [] for name in REPEATABLE})
    check_flags(flags)
    if no_cache and (cache or read_only_cache):
        raise misuse(
            f"--no-cache and {'--cache' if cache else '--read-only-cache'} exclude each other"
        )
    csv_alone = csv == Path("-")
    if csv_alone and as_json:
        raise misuse("--csv - and --json exclude each other")
    policy = _policy(
        objective=objective,
        workspace_limit=workspace_limit,
        deterministic=deterministic,
        max_error=max_error,
        allow_tf32=not no_tf32,
        layouts=tuple(also_layout or ()),
        interface=interface,
        flush_l2=flush_l2,
        search="knobs" if knobs is not None else "engines" if engines else "heuristics",
        **({} if knobs is None else {"search_seconds": knobs}),
    )
    common.check_output("--html", html, (".html", ".htm"), "jinja2", "matplotlib")
    common.check_output("--plot", plot, FORMATS, "matplotlib")
    common.check_output("--csv", None if csv_alone else csv, (".csv",))
    common.check_output("--save-problems", save_problems, (".json",))
    progress = _Progress()
    with progress.interruptible(), errors_told():
        lists = lists_of(flags)
        listed = told.joined(lists)
        for line in (
            *(f"note: {note}" for note in listed.notes),
            *(f"skipped: {node}" for node in listed.skipped),
        ):
            tell(printable(line))
        if not listed:
            raise failure(
                "there is nothing to tune: no convolution and no recurrent layer was found"
            )
        if save_problems is not None:
            listed.save(save_problems)
        where = common.chosen_device(device)
        emulated = where.lower().startswith("emulated") or (
            where.lower() == "auto" and not visible_gpus()
        )
        if emulated:
            tell("the emulated device: the times are NumPy's, not a GPU's, and nothing is saved")
        saving = not (emulated or no_cache or read_only_cache)
        with (
            _cache(cache, none=no_cache, read_only=read_only_cache, saving=saving) as opened,
            reporting(len(listed) > 1 and is_terminal(sys.stderr), len(listed)) as progress.bar,
        ):
            progress.total, progress.saved = len(listed), Path(opened.path) if saving else None
            tuning = model.tune_model(
                listed,
                device=where,
                cache=opened,
                policy=policy,
                workers=workers,
                progress=progress,
            )
            if opened.unsaved:
                tell(f"{counted(opened.unsaved, 'problem')} could not be saved in {opened.path}")
                progress.saved = None
    parts = told.parts_of(tuning, lists)
    named = (
        {"model": [path.name for path in (*flags.onnx, *flags.problems)]}
        if onnx or problems
        else {}
    )
    tuning = replace(tuning, facts={**named, **tuning.facts, **told.totals_of(parts)})
    # files before stdout, which a pipe may close
    outputs: tuple[tuple[Path | None, Callable[[Path], object]], ...] = (
        (html, lambda path: report.write_html(path, tuning.tunings, tuning.facts, tuning.skipped)),
        (plot, lambda path: report.save_chart(path, tuning.tunings, policy=tuning.policy)),
        (
            None if csv_alone else csv,
            lambda path: path.write_text(told.csv_of(parts), encoding="utf-8", newline=""),
        ),
    )
    written = [_is_written(path, write) for path, write in outputs if path is not None]
    if as_json:
        say(json.dumps(told.to_plain(tuning), indent=2))
    elif csv_alone:
        say(told.csv_of(parts).rstrip("\n"))
    else:
        lines = told.lines_of(
            tuning, policy, progress.saved, explain=explain, tables=told.sweep_lines(parts)
        )
        say("\n".join(lines))
    says_why = not (as_json or csv_alone) and (explain or len(tuning.tunings) == 1)  # stdout does
    for tuned in tuning.failed:
        tell(
            f"no algorithm for {told.title_of(tuned)}"
            + ("" if says_why else f": {told.why_none(tuned)}")
        )
    if not all(written) or (saving and progress.saved is None):
        raise typer.Exit(1)
    if tuning.failed:
        raise typer.Exit(common.SOME_FAILED)


class _Progress:
    """What is told while problems are tuned, and how many of them are safe, and where; nowhere if `saved` is None."""

    done = total = 0
    saved: Path | None = None
    bar: Report | None = None

    def __call__(self, done: int, total: int, tuned: TunedProblem) -> None:
        """Tell that a problem is done: by the bar, or where nobody looks at one by a line."""
        self.done = done
        if self.bar is not None:
            self.bar(done, total, tuned)
        if total > 1 and not is_terminal(sys.stderr):
            tell(f"{done} of {total}: {told.title_of(tuned)}: {told.outcome(tuned)}")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """End the command after Ctrl-C, and tell what is saved."""
        try:
            yield
        except KeyboardInterrupt:
            typer.echo(err=True)  # after the terminal's ^C
            text = "nothing is saved" if self.done else "nothing was tuned"
            if self.saved is not None and self.done:
                where = f"{self.done} of {counted(self.total, 'problem')} are saved in {self.saved}"
                text = f"{where}; the same command goes on there"
            tell(f"interrupted: {text}")
            raise typer.Exit(common.INTERRUPTED) from None


def _policy(**options: Any) -> TuningPolicy:
    try:
        return TuningPolicy(**options)
    except ArgumentError as error:
        name, _, rest = str(error).partition("=")
        option = {"layouts": "also-layout", "search_seconds": "knobs"}.get(
            name, name.replace("_", "-")
        )
        raise misuse(f"--{option}={rest}") from error


def _cache(path: Path | None, *, none: bool, read_only: bool, saving: bool) -> TuningCache:
    """Open the cache; end the command if what is tuned could not be saved in it, or if it is something else."""
    if path is not None:
        check_place(path, "--cache")  # what is not in a cache is not wanted
        if read_only and not path.exists():
            raise failure(f"--cache {path} does not exist")
    cache = TuningCache(":memory:" if none else path, read_only=read_only)
    if saving and isinstance(cache.path, Path):
        there = next(parent for parent in (cache.path, *cache.path.parents) if parent.exists())
        if not (there.is_dir() and os.access(there, os.W_OK)):
            raise failure(
                f"{cache.path} cannot be written: give another --cache, --read-only-cache or --no-cache"
            )
    return cache


def _is_written(path: Path, write: Callable[[Path], object]) -> bool:
    """Write a report, a chart or a table; tell whether that worked."""
    try:
        write(path)
    except (CudnnliteError, OSError) as error:
        tell(f"{path}: {error}")
        return False
    tell(f"{path} is written")
    return True
