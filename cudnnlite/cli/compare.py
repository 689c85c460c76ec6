"""`cudnnlite compare`: two libraries, policies, saved runs or caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import split
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer

from cudnnlite._raw.library import LIBRARY_VARIABLE, format_version
from cudnnlite.autotune.cache import TuningCache, check_place
from cudnnlite.autotune.entries import TuningEntry
from cudnnlite.bench import comparison_texts
from cudnnlite.bench.comparison import TIMES, RunComparison, Thresholds
from cudnnlite.bench.rows import BenchRow, BenchRun, load_run, run_from_plain
from cudnnlite.cli import common
from cudnnlite.cli.common import failure, misuse, report_errors, say, tell
from cudnnlite.cli.comparison import wanted, what
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.results import named
from cudnnlite.version import __version__

EXIT_CODES = (
    "Ends with 0 if B is nowhere worse, 3 if something became slower, wrong, less exact or is no "
    "longer served, 2 if the command line is wrong, 1 after another error, or if the two sides "
    "share no problem."
)
_STDOUT = Path("-")
_Path: TypeAlias = Path | None
_PERCENT = 100.0


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
            help="Twice: the libcudnn of A and of B, a file or a folder; each has a process.",
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
    html: Annotated[
        _Path, typer.Option(parser=common.path, metavar="FILE.html", help="Write a page.")
    ] = None,
) -> None:
    """Compare two libraries, two policies, two saved runs or two caches.

    What became slower, wrong or less exact, what is chosen otherwise, and what is no longer served.
    """
    words = arguments or []
    libraries, policies = libcudnn or [], with_ or []
    _check(words, libraries, policies, time)
    if markdown == _STDOUT and as_json:
        raise misuse("--markdown - and --json exclude each other")
    common.check_output("--markdown", None if markdown == _STDOUT else markdown, (".md",))
    common.check_output("--html", html, (".html", ".htm"), "jinja2")
    with report_errors():
        if libraries or policies:
            sides = _measured_sides(words, libraries, policies)
        else:
            sides = [_saved_side(Path(word)) for word in words]
        thresholds = Thresholds(slower / _PERCENT, model_slower / _PERCENT, error_factor)
        a, b = (side.run for side in sides)
        comparison = RunComparison(a, b, thresholds, time=time, in_order=bool(policies))
        names = [side.name for side in sides]
        _write_files(comparison, names, None if markdown == _STDOUT else markdown, html)
    if as_json:
        say(json.dumps(comparison.to_plain(names), indent=2))
    elif markdown == _STDOUT:
        say(comparison_texts.markdown_of(comparison, names).rstrip("\n"))
    else:
        say("\n".join(comparison_texts.lines_of(comparison, names, every=every)))
    if comparison.fails:
        raise typer.Exit(common.SOME_FAILED)


def _check(
    words: Sequence[str], libraries: Sequence[str], policies: Sequence[str], time: str
) -> None:
    if time not in TIMES:
        raise misuse(f"--time {time}; allowed: {', '.join(TIMES)}")
    for option, values in (("--libcudnn", libraries), ("--with", policies)):
        if len(values) not in (0, 2):
            raise misuse(f"{option} is needed twice, for A and for B")
    if not libraries and not policies and len(words) != 2:
        raise misuse("compare needs two files or caches, or --libcudnn or --with twice")
    if (libraries or policies) and not words:
        raise misuse("behind -- the options of `cudnnlite bench` are needed: what is compared")


def _measured_sides(
    words: Sequence[str], libraries: Sequence[str], policies: Sequence[str]
) -> list[_Side]:
    """Run `bench` for each side, one after the other, in a process each."""
    sides = []
    for place, letter in enumerate("AB"):
        library = libraries[place] if libraries else ""
        try:
            more = split(policies[place]) if policies else []
        except ValueError as error:
            raise misuse(f"--with {policies[place]}: {error}") from error
        name = " ".join(filter(None, (library, policies[place] if policies else "")))
        name = name or "without further options"
        tell(f"{letter}: {name}")
        sides.append(_Side(name, bench_run([*words, *more], library, name)))
    return sides


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
        "has real timing": True,  # a cache has no other times
    }
    return BenchRun(tuple(newest.values()), facts)


def _row_of_entry(entry: TuningEntry, key: str) -> BenchRow:
    row = entry.rows[entry.chosen]
    policy = wanted(entry)
    return BenchRow(
        what(entry) if policy == "-" else f"{what(entry)} ({policy})",
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


def _write_files(
    comparison: RunComparison, names: Sequence[str], markdown: Path | None, html: Path | None
) -> None:
    writers: list[tuple[Path | None, Callable[[Path], Any]]] = [
        (
            markdown,
            lambda path: path.write_text(
                comparison_texts.markdown_of(comparison, names), encoding="utf-8"
            ),
        ),
        (html, lambda path: comparison_texts.write_html(path, comparison, names)),
    ]
    for path, write in writers:
        if path is not None:
            write(path)
            tell(f"{path} is written")
