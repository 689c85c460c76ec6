"""`cudnnlite compare`: two libraries, policies, saved runs or caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import split
from typing import Annotated, NamedTuple, TypeAlias

import typer

from cudnnlite._raw.library import LIBRARY_VARIABLE, format_version, front_of, why_no_front
from cudnnlite.cli import common
from cudnnlite.cli.absent_libraries import runs_of_libraries
from cudnnlite.cli.common import failure, misuse, report_errors, say, tell
from cudnnlite.cli.comparison import policy_text, problem_text, refuse_rehearsal_beside_gpu
from cudnnlite.devices.device_choice import DEVICE_VARIABLE
from cudnnlite.errors import ArgumentError
from cudnnlite.files import write_named_file
from cudnnlite.problems.results import named
from cudnnlite.types import DeviceProperties
from cudnnlite.version import __version__
from cudnnlite.workbench.bench.comparison import TIMES, RunComparison, Thresholds
from cudnnlite.workbench.bench.comparison_texts import lines_of, markdown_of
from cudnnlite.workbench.bench.rows import BenchRow, BenchRun, load_run, run_from_plain
from cudnnlite.workbench.tuning.cache import TuningCache, check_place, is_rehearsal
from cudnnlite.workbench.tuning.entries import TuningEntry

EXIT_CODES = (
    "Ends with 0 if B is nowhere worse, 3 if something became slower, wrong, less exact or is no "
    "longer served, 2 if the command line is wrong, 1 after another error, or if the two sides "
    "share no problem."
)
_STDOUT = Path("-")
_Path: TypeAlias = Path | None
_PERCENT = 100.0
_NO_DEVICE = (
    "no GPU: what is served and chosen is what was recorded on a GPU with one cuDNN; the libraries "
    "themselves were asked for descriptors and shapes alone.  --gpu NAME asks them for more"
)
_ABSENT_DEVICE = (
    "each cuDNN was asked which engine it serves first on that GPU, which is absent: nothing ran, "
    "and nothing is said of times"
)


class _Side(NamedTuple):
    name: str
    run: BenchRun


def compare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[A B | -- OPTIONS]",
            help="Two files of `bench --save`, or two caches; or, behind --, options of `bench`.",
            show_default=False,
        ),
    ] = None,
    libcudnn: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help=(
                "Twice: the libcudnn of A and of B: the file libcudnn.so.9, its folder, or the one "
                "above its lib; each has a process."
            ),
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help=(
                "With --libcudnn: ask both about a GPU that need not be there "
                f"({', '.join(DeviceProperties.known_names)}, or a file of DeviceProperties.save): "
                "what is served, and which engine comes first."
            ),
            show_default=False,
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="'OPTIONS'",
            help="Twice: further options of `bench` for A and for B, as '--dtype float16'.",
        ),
    ] = None,
    slower: Annotated[
        float,
        typer.Option(min=0, metavar="PERCENT", help="From where on a problem is slower."),
    ] = 3.0,
    model_slower: Annotated[
        float,
        typer.Option(min=0, metavar="PERCENT", help="From where on the sum of all is slower."),
    ] = 3.0,
    error_factor: Annotated[
        float, typer.Option(min=1, help="From where on a result is less exact.")
    ] = 4.0,
    time: Annotated[
        str, typer.Option(metavar="|".join(TIMES), help="The time that is compared.")
    ] = "device",
    every: Annotated[
        bool, typer.Option("--every", help="List the problems without a difference too.")
    ] = False,
    as_json: common.JSONOption = False,
    markdown: Annotated[
        _Path,
        typer.Option(parser=common.path, metavar="FILE.md|-", help="Write Markdown, for an issue."),
    ] = None,
) -> None:
    """Compare two libraries, two policies, two saved runs or two caches.

    What became slower, wrong or less exact, what is chosen otherwise, and what is no longer served.
    """
    words = arguments or []
    libraries, policies = libcudnn or [], with_ or []
    _check(words, libraries, policies, time)
    has_only_libraries = libraries and not policies
    if gpu is not None and not has_only_libraries:
        raise misuse("--gpu goes with --libcudnn, and without --with")
    if markdown == _STDOUT and as_json:
        raise misuse("--markdown - and --json exclude each other")
    common.check_output("--markdown", None if markdown == _STDOUT else markdown, (".md",))
    thresholds = Thresholds(slower / _PERCENT, model_slower / _PERCENT, error_factor)
    with report_errors():
        if gpu is not None:
            runs = runs_of_libraries(words, libraries, gpu)
            sides = [_Side(*side) for side in zip(libraries, runs, strict=True)]
        elif libraries or policies:
            sides = _measured_sides(words, libraries, policies)
        else:
            refuse_rehearsal_beside_gpu(words, [is_rehearsal(Path(word)) for word in words])
            sides = [_saved_side(Path(word)) for word in words]
        a, b = sides
        names = [a.name, b.name]
        comparison = RunComparison(a.run, b.run, thresholds, time=time, in_order=bool(policies))
        notes = []
        asked_libraries = libraries and "libcudnn" in a.run.facts  # --mode list loads none
        if asked_libraries and not comparison.has_times:
            notes = [_NO_DEVICE if gpu is None else _ABSENT_DEVICE]
        if markdown not in (None, _STDOUT):
            assert markdown is not None
            write_named_file(markdown, markdown_of(comparison, names, notes).encode())
            tell(f"{markdown} is written")
    if as_json:
        say(json.dumps(comparison.to_plain(names), indent=2))
    elif markdown == _STDOUT:
        say(markdown_of(comparison, names, notes).rstrip("\n"))
    else:
        say("\n".join(lines_of(comparison, names, every=every, notes=notes)))
    if comparison.fails:
        raise typer.Exit(common.SOME_FAILED)


def _check(
    words: Sequence[str], libraries: Sequence[str], policies: Sequence[str], time: str
) -> None:
    if time not in TIMES:
        raise misuse(f"--time {time}; allowed: {', '.join(TIMES)}")
    if len(libraries) not in (0, 2):
        raise misuse("--libcudnn is needed twice, for A and for B")
    if len(policies) not in (0, 2):
        raise misuse("--with is needed twice, for A and for B")
    needs_options = libraries or policies
    if not needs_options and len(words) != 2:
        raise misuse("compare needs two files or caches, or --libcudnn or --with twice")
    if needs_options and not words:
        raise misuse("behind -- the options of `cudnnlite bench` are needed: what is compared")
    for library in libraries:
        front = front_of(Path(library))
        if not os.path.isfile(front):
            raise misuse(f"--libcudnn {library}: {why_no_front(front)}")


def _measured_sides(
    words: Sequence[str], libraries: Sequence[str], policies: Sequence[str]
) -> list[_Side]:
    """Run `bench` for each side, one after the other, in a process each."""
    if libraries and _is_without_gpu(words) and not _has_option(words, "--mode"):
        # NumPy would compute for hours, and its times say nothing of a library.
        tell("no GPU: --mode plan, which makes plans and runs nothing")
        words = [*words, "--mode", "plan"]
    sides = []
    for place in range(2):
        library = libraries[place] if libraries else ""
        try:
            more = split(policies[place]) if policies else []
        except ValueError as error:
            raise misuse(f"--with {policies[place]}: {error}") from error
        name = " ".join(filter(None, (library, policies[place] if policies else "")))
        name = name or "without further options"
        tell(f"benching {name}")
        sides.append(_Side(name, bench_run([*words, *more], library, name)))
    return sides


def _is_without_gpu(words: Sequence[str]) -> bool:
    """Return whether the options of `bench` leave its choice of a device to the emulated one."""
    device = os.environ.get(DEVICE_VARIABLE) or "auto"
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--device":
            device = following
        elif word.startswith("--device="):
            device = word.partition("=")[2]
    return common.is_emulated(device)


def _has_option(words: Sequence[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in words)


def bench_run(words: Sequence[str], library: str, name: str) -> BenchRun:
    """Run `bench` in a process; its messages go to stderr."""
    environment = dict(os.environ)
    if library:
        environment[LIBRARY_VARIABLE] = library
    process = subprocess.run(
        [sys.executable, "-m", "cudnnlite", "bench", *words, "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if process.returncode not in (0, common.SOME_FAILED):
        raise failure(f"{name}: `cudnnlite bench` ended with {process.returncode}")
    try:
        plain = json.loads(process.stdout)
    except ValueError as error:
        raise failure(f"{name}: `cudnnlite bench` printed no JSON") from error
    return run_from_plain(plain, name)


def _saved_side(path: Path) -> _Side:
    """Return a run of a file, or a cache of a folder."""
    if not path.is_dir():
        return _Side(str(path), load_run(path))
    check_place(path, "compare")
    with TuningCache(path, read_only=True) as cache:
        entries = cache.entries()
    if not entries:
        raise ArgumentError(f"{path} has no entry of a tuning cache")
    return _Side(str(path), run_of_entries(entries))


def run_of_entries(entries: Sequence[TuningEntry]) -> BenchRun:
    """Return the entries of a cache as a run: of each problem and policy the newest entry."""
    newest: dict[str, BenchRow] = {}
    for entry in entries:
        key = json.dumps(entry.key.plain | {"device": None}, sort_keys=True)
        newest[key] = _row_of_entry(entry, key)
    devices = [entry.key.device for entry in entries]
    facts = {
        "device": ", ".join(sorted({device.gpu for device in devices})),
        "cuDNN": ", ".join(sorted({format_version(device.cudnn) for device in devices})),
        "cudnnlite": __version__,
        "has real timing": not any(device.is_emulated for device in devices),
    }
    return BenchRun(tuple(newest.values()), facts)


def _row_of_entry(entry: TuningEntry, key: str) -> BenchRow:
    row = entry.rows[entry.chosen]
    policy = policy_text(entry)
    return BenchRow(
        problem_text(entry) if policy == "-" else f"{problem_text(entry)} ({policy})",
        key=key,
        candidate=named(row),
        is_chosen=True,
        device_us=_us(row.time_ms),
        device_spread_us=_us(row.spread_ms),
        call_us=row.call_us,
        host_us=row.host_us,
        error=row.error,
        max_error=row.max_error,
        workspace=row.workspace,
        deterministic=row.deterministic,
    )


def _us(ms: float | None) -> float | None:
    return None if ms is None else 1e3 * ms
