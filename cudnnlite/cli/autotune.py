"""`cudnnlite autotune`: measure, save and show the fastest algorithm of each problem."""

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

from cudnnlite.cli import common, options, tunings
from cudnnlite.cli.common import (
    failure,
    is_terminal,
    misuse,
    report_errors,
    say,
    tell,
)
from cudnnlite.cli.problems import REPEATABLE, check_flags, lists_of
from cudnnlite.errors import CudnnliteError
from cudnnlite.files import write_named_file
from cudnnlite.texts import counted, printable
from cudnnlite.workbench.report import page
from cudnnlite.workbench.tuning import model
from cudnnlite.workbench.tuning.cache import (
    IN_MEMORY,
    TuningCache,
    check_place,
    is_rehearsal,
    parse_cache_path,
)
from cudnnlite.workbench.tuning.model_tuning import ModelTuning
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.problem_list import ProblemList, skipped_lines
from cudnnlite.workbench.tuning.progress import Report, reporting
from cudnnlite.workbench.tuning.tuned_problem import TunedProblem

EXIT_CODES = (
    "Ends with 0 if all was tuned, 3 if some problem has no algorithm within the limits, "
    "2 if the command line is wrong, 1 after another error, "
    "130 after Ctrl-C: what was tuned till then is saved, and the same command goes on from there."
)
# what --help shows together
_where = partial(typer.Option, rich_help_panel="Where")
_Write: TypeAlias = Callable[[ModelTuning, tunings.Parts, Path], None]
_Path: TypeAlias = Path | None


def autotune(
    input_: options.Input = None,
    filter_: options.Filter = None,
    padding: options.Padding = None,
    stride: options.Stride = None,
    dilation: options.Dilation = None,
    groups: options.Groups = None,
    operation: options.Operation = None,
    rnn: options.RNN = None,
    onnx: options.ONNX = None,
    batch: options.Batch = None,
    shape: options.Shape = None,
    problems: options.Problems = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    math_type: options.Math = None,
    objective: options.Objective = TuningPolicy.objective,
    workspace_limit: options.WorkspaceLimit = None,
    deterministic: options.Deterministic = False,
    max_error: options.MaxError = None,
    no_tf32: options.NoTF32 = False,
    also_layout: options.AlsoLayout = None,
    interface: options.Interface = None,
    exclude: options.Exclude = None,
    flush_l2: options.FlushL2 = False,
    engines: options.Engines = False,
    device: common.DeviceOption = None,
    workers: Annotated[
        int | None, _where(min=1, help="Processes that tune.", show_default="one for each GPU")
    ] = None,
    cache: common.CacheOption = None,
    no_cache: Annotated[bool, _where("--no-cache", help="Neither read nor write a cache.")] = False,
    read_only_cache: Annotated[
        bool, _where("--read-only-cache", help="Read the cache, but save nothing.")
    ] = False,
    rehearse: Annotated[
        bool,
        _where(
            "--rehearse",
            help="On the emulated device: keep the results in --cache, marked as a rehearsal.",
        ),
    ] = False,
    explain: Annotated[
        bool,
        options.output(
            "--explain", "-v", help="Every candidate of each problem, not only of a single one."
        ),
    ] = False,
    json_: common.JSONOption = False,
    csv: options.CSV = None,
    html: Annotated[
        _Path, options.output_file(metavar="FILE.html", help="Write a report: one page.")
    ] = None,
    save_problems: Annotated[
        _Path, options.output_file(metavar="FILE.json", help="Write the list of what is tuned.")
    ] = None,
) -> None:
    """Find the fastest algorithm for each problem within your limits, and remember it.

    Several problems may be given at once.  Problems in a cache of earlier tunings are not measured
    again.
    """
    flags = options.flags_of(locals(), REPEATABLE)
    check_flags(flags)
    _check_what_excludes_each_other(flags)
    policy = options.policy_of(flags)
    outputs = _outputs(flags)
    progress = _Progress()
    with progress.interruptible(), report_errors():
        lists = lists_of(flags)
        tuning, is_saved = _tune(flags, policy, tunings.join_lists(lists), progress)
    parts = tunings.parts_of(tuning, lists)
    models = [path.name for path in (*flags.onnx, *flags.problems)]
    facts: dict[str, Any] = {"model": models} if models else {}
    tuning = replace(tuning, facts={**facts, **tuning.facts, **tunings.totals_of(parts)})
    # files before stdout, which a pipe may close
    written = [_is_written(path, partial(write, tuning, parts)) for path, write in outputs]
    _print(flags, policy, tuning, parts, progress.folder)
    if not all(written) or not is_saved:
        raise typer.Exit(1)
    if tuning.failed:
        raise typer.Exit(common.SOME_FAILED)


def _check_what_excludes_each_other(flags: SimpleNamespace) -> None:
    if flags.no_cache and flags.cache:
        raise misuse("--no-cache and --cache exclude each other")
    if flags.no_cache and flags.read_only_cache:
        raise misuse("--no-cache and --read-only-cache exclude each other")
    has_writable_cache = flags.cache and not flags.no_cache and not flags.read_only_cache
    if flags.rehearse and not has_writable_cache:
        raise misuse("--rehearse needs a --cache to write, which is of its own")


def _outputs(flags: SimpleNamespace) -> list[tuple[Path, _Write]]:
    """Return the files to write with their writers; end the command if one cannot be written."""
    options.check_outputs(flags)
    common.check_output("--html", flags.html, (".html", ".htm"), "jinja2")
    common.check_output("--save-problems", flags.save_problems, (".json",))
    csv = None if flags.csv == options.STDOUT else flags.csv
    writers = ((flags.html, _write_html), (csv, _write_csv))
    return [(path, write) for path, write in writers if path is not None]


def _write_html(tuning: ModelTuning, parts: tunings.Parts, path: Path) -> None:
    page.write_html(path, tuning)


def _write_csv(tuning: ModelTuning, parts: tunings.Parts, path: Path) -> None:
    write_named_file(path, tunings.csv_of(parts).encode())


def _tune(
    flags: SimpleNamespace, policy: TuningPolicy, problems: ProblemList, progress: _Progress
) -> tuple[ModelTuning, bool]:
    """Tune problems; return the tuning, and whether all results that should be saved are."""
    for note in problems.notes:
        tell(printable(f"note: {note}"))
    for line in skipped_lines(problems.skipped):
        tell(printable(line))
    if not problems:
        raise failure("there is nothing to tune: no convolution and no recurrent layer was found")
    if flags.save_problems is not None:
        problems.save(flags.save_problems)
    device = common.chosen_device(flags.device)
    is_emulated = common.is_emulated(device)
    if flags.rehearse and not is_emulated:
        raise misuse("--rehearse is for the emulated device: --device emulated")
    saves = not (flags.no_cache or flags.read_only_cache)
    if is_emulated:
        saves = saves and (flags.rehearse or _is_rehearsal(flags.cache))
        fate = "kept as a rehearsal" if saves else "not saved; --rehearse saves them"
        tell(f"the emulated device: the times are NumPy's, not a GPU's, and {fate}")
    shows_bar = len(problems) > 1 and is_terminal(sys.stderr)
    with (
        _cache(flags, saves=saves) as cache,
        reporting(shows_bar, len(problems)) as progress.bar,
    ):
        progress.total = len(problems)
        progress.folder = Path(cache.path) if saves else None
        tuning = model.tune_model(
            problems,
            device=device,
            cache=cache,
            policy=policy,
            workers=flags.workers,
            progress=progress,
        )
        if cache.unsaved:
            tell(f"{counted(cache.unsaved, 'problem')} could not be saved in {cache.path}")
            progress.folder = None
    return tuning, not saves or progress.folder is not None


def _is_rehearsal(cache: Path | None) -> bool:
    """Return whether a cache, or for None the user's own, is marked as a rehearsal."""
    path = parse_cache_path(cache)
    return isinstance(path, Path) and is_rehearsal(path)


def _print(
    flags: SimpleNamespace,
    policy: TuningPolicy,
    tuning: ModelTuning,
    parts: tunings.Parts,
    folder: Path | None,
) -> None:
    """Print the results; problems without an algorithm go to stderr, with the reasons."""
    is_for_people = not flags.json and flags.csv != options.STDOUT
    if flags.json:
        say(json.dumps(page.to_plain(tuning), indent=2))
    elif is_for_people:
        tables = tunings.sweep_lines(parts)
        lines = tunings.lines_of(tuning, policy, folder, explain=flags.explain, tables=tables)
        say("\n".join(lines))
    else:
        say(tunings.csv_of(parts).rstrip("\n"))
    is_explained = flags.explain or len(tuning.tunings) == 1
    has_reasons = is_for_people and is_explained
    for tuned in tuning.failed:
        why = "" if has_reasons else f": {tunings.why_none(tuned)}"
        tell(f"no algorithm for {tunings.title_of(tuned)}{why}")


class _Progress:
    """Shows the progress of a tuning, and knows how many problems are saved.

    `folder` is the folder of the cache, or None if nothing is saved.
    """

    count = total = 0
    folder: Path | None = None
    bar: Report | None = None

    def __call__(self, count: int, total: int, tuned: TunedProblem) -> None:
        """Report a tuned problem: in the bar, or in a line if stderr is no terminal."""
        self.count = count
        if self.bar is not None:
            self.bar(count, total, tuned)
        if total > 1 and not is_terminal(sys.stderr):
            tell(f"{count} of {total}: {tunings.title_of(tuned)}: {tunings.outcome(tuned)}")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """End the command after Ctrl-C, and report the saved problems."""
        try:
            yield
        except KeyboardInterrupt:
            typer.echo(err=True)  # after the terminal's ^C
            text = "nothing is saved" if self.count else "nothing was tuned"
            if self.folder is not None and self.count:
                problems = counted(self.total, "problem")
                text = (
                    f"{self.count} of {problems} are saved in {self.folder}; "
                    "the same command goes on there"
                )
            tell(f"interrupted: {text}")
            raise typer.Exit(common.INTERRUPTED) from None


def _cache(flags: SimpleNamespace, *, saves: bool) -> TuningCache:
    """Open the cache; end the command if nothing could be saved in it, or if it is no cache."""
    if flags.cache is not None:
        check_place(flags.cache, "--cache")  # refuses a path that is not that of a cache
        if flags.read_only_cache and not flags.cache.exists():
            raise failure(f"--cache {flags.cache} does not exist")
    place = IN_MEMORY if flags.no_cache else flags.cache
    rehearsal = True if flags.rehearse else None
    cache = TuningCache(place, read_only=flags.read_only_cache, rehearsal=rehearsal)
    if saves and isinstance(cache.path, Path):
        nearest = next(folder for folder in (cache.path, *cache.path.parents) if folder.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
            raise failure(
                f"{cache.path} cannot be written: "
                "give another --cache, --read-only-cache or --no-cache"
            )
    return cache


def _is_written(path: Path, write: Callable[[Path], object]) -> bool:
    """Write a report or a table; return whether that worked."""
    try:
        write(path)
    except (CudnnliteError, OSError) as error:
        tell(f"{path}: {error}")
        return False
    tell(f"{path} is written")
    return True
