"""`cudnnlite cache`: what was tuned and is remembered: show it, compare it, ship it, take over another's, forget it."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from cudnnlite._raw import library
from cudnnlite._raw.library import format_version
from cudnnlite.autotune.cache import (
    CACHE_VARIABLE,
    TuningCache,
    check_place,
    entry_files,
    parse_cache_path,
)
from cudnnlite.autotune.entries import TuningEntry, row_to_plain
from cudnnlite.cli.common import (
    CACHE_DEFAULT,
    CacheOption,
    JSONOption,
    failure,
    is_terminal,
    misuse,
    path,
    report_errors,
    say,
    tell,
)
from cudnnlite.cli.comparison import Comparison, wanted, what
from cudnnlite.errors import CudnnliteError
from cudnnlite.problems.catalogue import TUNABLE
from cudnnlite.problems.results import named
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted, printable

cache_app = typer.Typer(
    help="Show, compare, ship, merge and clear what `cudnnlite autotune` remembers.",
    no_args_is_help=True,
)

GPUOption = Annotated[
    str | None, typer.Option("--gpu", help="Only the entries of a GPU: 'NVIDIA H200'.")
]
CudnnOption = Annotated[
    str | None, typer.Option("--cudnn", help="Only those of a version of cuDNN: 9.28.0.")
]
KindOption = Annotated[
    str | None,
    typer.Option("--kind", help=f"Only those of a kind of problem: {', '.join(TUNABLE)}."),
]


@cache_app.command()
def show(
    gpu: GPUOption = None,
    cudnn: CudnnOption = None,
    kind: KindOption = None,
    cache: CacheOption = None,
    as_json: JSONOption = False,
) -> None:
    """List the entries: what was tuned, for which GPU and cuDNN, what was chosen."""
    filters = _filters(gpu, cudnn, kind)
    with report_errors():
        with _opened(cache, there=cache is not None) as opened:
            path, entries = Path(opened.path), _selected(opened, filters)
        here = None
        with suppress(CudnnliteError):  # it cannot be loaded
            here = library.load_library().version if entries else None
        size = sum(file.stat().st_size for file in entry_files(path))
        if as_json:
            plain = [_plain(entry, here) for entry in entries]
            say(
                json.dumps(
                    {"path": str(path), "bytes": size, "cudnn_here": here, "entries": plain},
                    indent=2,
                )
            )
            return
        say(
            f"{path}: {format_size(size) if path.exists() else 'does not exist yet'}, {_entries(len(entries))}"
        )
        if entries:
            say("\n".join(_table(entries, here)))
        if here is not None and any(entry.key.device.cudnn != here for entry in entries):
            tell(f"* not used here, where cuDNN is {format_version(here)}")


@cache_app.command()
def compare(
    a: Annotated[
        Path | None,
        typer.Argument(metavar="A", parser=path, help="A cache.", show_default=CACHE_DEFAULT),
    ] = None,
    b: Annotated[
        Path | None,
        typer.Argument(metavar="B", parser=path, help="Another; the same, if not given."),
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="Only the entries of a GPU; twice: of A, of B.")
    ] = None,
    cudnn: Annotated[
        list[str] | None, typer.Option(help="Only those of a cuDNN; twice: of A, of B.")
    ] = None,
    kind: KindOption = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")] = False,
    as_json: JSONOption = False,
) -> None:
    """Compare the times and choices of two caches, GPUs or versions of cuDNN, for the problems that both have."""
    if max(len(gpu or ()), len(cudnn or ())) > 2 or (as_csv and as_json):
        raise misuse("allowed: --gpu and --cudnn twice at most, --csv or --json")
    a_only, b_only = (
        _filters(gpu[n] if gpu else None, cudnn[n] if cudnn else None, kind) for n in (0, -1)
    )
    if b in (None, a) and a_only == b_only:
        raise misuse("compare needs two folders, or --gpu or --cudnn twice")
    with report_errors():
        names, sides = [], []
        for folder, filters in ((a, a_only), (b or a, b_only)):
            with _opened(folder, there=True) as opened:
                sides.append(_selected(opened, filters))
                names.append(str(opened.path))
        compared = Comparison(*sides)
        if as_json:
            say(json.dumps(compared.plain(names), indent=2))
        else:
            say(compared.csv() if as_csv else "\n".join(compared.lines(names)))
        if not compared.pairs:
            raise failure("nothing was compared: no problem is on both sides")


@cache_app.command()
def export(
    folder: Annotated[
        Path,
        typer.Argument(parser=path, help="The folder to write; a cache that is there is replaced."),
    ],
    gpu: GPUOption = None,
    cudnn: CudnnOption = None,
    kind: KindOption = None,
    cache: CacheOption = None,
) -> None:
    """Write the entries to another folder that can be shipped: to be merged, or used with --read-only-cache."""
    filters = _filters(gpu, cudnn, kind)
    with report_errors():
        with _opened(cache, there=True) as opened:
            if not _selected(opened, filters):
                raise failure(f"{opened.path} has nothing to export; {folder} is not written")
            number = opened.export(folder, **filters)
        say(f"{_entries(number)} of {opened.path} written to {folder}")


@cache_app.command()
def merge(
    folder: Annotated[
        Path, typer.Argument(parser=path, help="The cache to take over; it is only read.")
    ],
    cache: CacheOption = None,
) -> None:
    """Take over the entries of another cache; where both have one, the newer."""
    with report_errors(), _opened(cache, to_write=True) as opened:
        number = opened.merge(folder)
        say(f"{_entries(number)} of {folder} merged into {opened.path}, which has {len(opened)}")


@cache_app.command()
def clear(
    gpu: GPUOption = None,
    cudnn: CudnnOption = None,
    kind: KindOption = None,
    cache: CacheOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove the entries, or some of them."""
    filters = _filters(gpu, cudnn, kind)
    if not (yes or is_terminal(sys.stdin)):
        raise misuse("clear needs --yes where nobody can be asked")
    with report_errors():
        with _opened(cache, there=True, to_write=True) as opened:
            number = len(_selected(opened, filters))
            if number and not yes and not _agreed(f"Remove {_entries(number)} from {opened.path}?"):
                raise failure("nothing is removed")
            removed = opened.clear(**filters) if number else 0
        say(f"{_entries(removed)} removed from {opened.path}")


def _opened(cache: Path | None, *, there: bool = False, to_write: bool = False) -> TuningCache:
    """Open the cache; end the command if it is nowhere, or if it has to be there and is not."""
    path = parse_cache_path(cache)
    if not isinstance(path, Path):
        raise failure(
            f"{CACHE_VARIABLE if cache is None else '--cache'}={path}: there is no folder"
        )
    if there and not path.exists():
        raise failure(f"{path} does not exist")
    check_place(path)
    return TuningCache(
        path, read_only=path.exists() and not to_write
    )  # one that is not there says what is beside it


def _entries(number: int) -> str:
    return counted(number, "entry", "entries")


def _agreed(question: str) -> bool:
    """Ask on stderr; what is not a yes is a no."""
    typer.echo(
        f"{question} [y/N] ", err=True, nl=False
    )  # typer's own prompt prints a space to stdout
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _filters(gpu: str | None, cudnn: str | None, kind: str | None) -> dict[str, Any]:
    if kind is not None and kind not in TUNABLE:
        raise misuse(f"--kind {kind}: allowed: {', '.join(TUNABLE)}")
    return {"gpu": gpu, "cudnn": None if cudnn is None else _parse_version(cudnn), "kind": kind}


def _parse_version(text: str) -> int:
    """Return the number that `cudnnGetVersion` has for 9.28.0, or that number itself."""
    if re.fullmatch(r"[0-9]{4,6}", text):
        return int(text)
    if parts := re.fullmatch(r"9\.([0-9]{1,2})\.([0-9]{1,2})", text):
        return 90000 + 100 * int(parts[1]) + int(parts[2])
    raise misuse(f"--cudnn {text}: allowed: a version such as 9.28.0, or its number, 92800")


def _selected(cache: TuningCache, filters: dict[str, Any]) -> list[TuningEntry]:
    """Return the entries that are meant; where there are none, say what there is."""
    found = cache.entries(**filters)
    if not found and any(value is not None for value in filters.values()):
        there = cache.entries()
        gpus = ", ".join(sorted({repr(entry.key.device.gpu) for entry in there}))
        versions = ", ".join(
            format_version(number) for number in sorted({entry.key.device.cudnn for entry in there})
        )
        tell(
            "no such entry"
            + (f"; there are those of {gpus} with cuDNN {versions}" if there else "")
        )
    return found


def _table(entries: list[TuningEntry], here: int | None) -> list[str]:
    rows = [("tuned at (UTC)", "GPU", "cuDNN", "ms", "choice", "problem", "wanted")]
    for entry in entries:
        device, chosen = entry.key.device, entry.rows[entry.chosen]
        when = entry.tuned_at[:16].replace("T", " ")
        version = format_version(device.cudnn) + ("" if here in (None, device.cudnn) else "*")
        time = "-" if chosen.time_ms is None else f"{chosen.time_ms:.4f}"
        rows.append(
            (when, printable(device.gpu), version, time, named(chosen), what(entry), wanted(entry))
        )
    return aligned(rows, ("ms",))


def _plain(entry: TuningEntry, here: int | None) -> dict[str, Any]:
    """Return what `show` shows of an entry, as JSON can hold it."""
    return {
        "what": what(entry),
        "problem": entry.key.plain["problem"],
        "policy": entry.key.policy,
        "alignments": entry.key.plain["alignments"],
        "device": entry.key.plain["device"],
        "used_here": None if here is None else entry.key.device.cudnn == here,
        "chosen": row_to_plain(entry.rows[entry.chosen]),
        "candidates": len(entry.rows),
        "timing": entry.timing,
        "tuned_at": entry.tuned_at,
        "seconds": entry.seconds,
        "cudnnlite": entry.cudnnlite,
        "digest": entry.key.digest,
    }
