"""`cudnnlite cache`: show, compare, export, merge and clear the results of tunings."""

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
from cudnnlite.cli.comparison import (
    Comparison,
    policy_text,
    problem_text,
    refuse_rehearsal_beside_gpu,
)
from cudnnlite.errors import CudnnliteError
from cudnnlite.problems.results import named
from cudnnlite.sizes import format_size
from cudnnlite.texts import aligned, counted, printable
from cudnnlite.workbench.tuning.cache import (
    CACHE_VARIABLE,
    KINDS,
    TuningCache,
    check_place,
    entry_files,
    is_rehearsal,
    parse_cache_path,
)
from cudnnlite.workbench.tuning.entries import TuningEntry, row_to_plain

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
    typer.Option("--kind", help=f"Only those of a kind of problem: {', '.join(KINDS)}."),
]


@cache_app.command()
def show(
    gpu: GPUOption = None,
    cudnn: CudnnOption = None,
    kind: KindOption = None,
    cache: CacheOption = None,
    as_json: JSONOption = False,
) -> None:
    """List the entries: problem, GPU, version of cuDNN, choice."""
    filters = _filters(gpu, cudnn, kind)
    with report_errors():
        with _opened(cache, must_exist=cache is not None) as tuning_cache:
            path = Path(tuning_cache.path)
            rehearsal = tuning_cache.rehearsal
            entries = _selected(tuning_cache, filters)
        loaded_version = _loaded_version() if entries else None
        nbytes = sum(file.stat().st_size for file in entry_files(path))
        if as_json:
            plain = {
                "path": str(path),
                "bytes": nbytes,
                "rehearsal": rehearsal,
                "cudnn_here": loaded_version,
                "entries": [_plain(entry, loaded_version) for entry in entries],
            }
            say(json.dumps(plain, indent=2))
            return
        size = format_size(nbytes) if path.exists() else "does not exist yet"
        kind = ", a rehearsal on the emulated device" if rehearsal else ""
        say(f"{path}: {size}, {_entries(len(entries))}{kind}")
        if entries:
            say("\n".join(_table(entries, loaded_version)))
        if any(not _is_used(entry, loaded_version) for entry in entries):
            assert loaded_version is not None
            tell(f"* not used here, where cuDNN is {format_version(loaded_version)}")


def _loaded_version() -> int | None:
    """Return the version of the libcudnn that this process loads; None if it cannot be loaded."""
    with suppress(CudnnliteError):
        return library.load_library().version
    return None


def _is_used(entry: TuningEntry, loaded_version: int | None) -> bool:
    """Whether an entry is of this version of cuDNN, as far as that is known."""
    return loaded_version in (None, entry.key.device.cudnn)


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
    """Compare times and choices of two caches, GPUs or versions of cuDNN."""
    num_values = max(len(gpu or ()), len(cudnn or ()))
    has_two_formats = as_csv and as_json
    if num_values > 2 or has_two_formats:
        raise misuse("allowed: --gpu and --cudnn twice at most, --csv or --json")
    filters_of_a, filters_of_b = (
        _filters(gpu[place] if gpu else None, cudnn[place] if cudnn else None, kind)
        for place in (0, -1)
    )
    if b in (None, a) and filters_of_a == filters_of_b:
        raise misuse("compare needs two folders, or --gpu or --cudnn twice")
    with report_errors():
        names, sides, rehearsals = [], [], []
        for folder, filters in ((a, filters_of_a), (b or a, filters_of_b)):
            with _opened(folder, must_exist=True) as tuning_cache:
                sides.append(_selected(tuning_cache, filters))
                names.append(str(tuning_cache.path))
                rehearsals.append(tuning_cache.rehearsal)
        if any(rehearsals):
            _tell_rehearsal(names, rehearsals)
        comparison = Comparison(*sides)
        if as_json:
            say(json.dumps(comparison.plain(names), indent=2))
        elif as_csv:
            say(comparison.csv())
        else:
            say("\n".join(comparison.lines(names)))
        if not comparison.pairs:
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
    """Write the entries to a folder that can be shipped, for merge or --read-only-cache."""
    filters = _filters(gpu, cudnn, kind)
    with report_errors():
        with _opened(cache, must_exist=True) as tuning_cache:
            if not _selected(tuning_cache, filters):
                raise failure(f"{tuning_cache.path} has nothing to export; {folder} is not written")
            count = tuning_cache.export(folder, **filters)
        say(f"{_entries(count)} of {tuning_cache.path} written to {folder}")


@cache_app.command()
def merge(
    folder: Annotated[
        Path, typer.Argument(parser=path, help="The cache to take over; it is only read.")
    ],
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code",
            help="Take over compiled plans, too: native code, which will run with your rights.",
        ),
    ] = False,
    cache: CacheOption = None,
) -> None:
    """Take over the entries of another cache; where both have one, the newer."""
    source_is_rehearsal = is_rehearsal(folder)
    if source_is_rehearsal and cache is None:
        raise misuse(f"{folder} is a rehearsal on the emulated device, which needs a --cache")
    with (
        report_errors(),
        _opened(cache, to_write=True, rehearsal=source_is_rehearsal) as tuning_cache,
    ):
        count = tuning_cache.merge(folder, trust_code=trust_code)
        say(
            f"{_entries(count)} of {folder} merged into {tuning_cache.path}, "
            f"which has {len(tuning_cache)}"
        )


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
        with _opened(cache, must_exist=True, to_write=True) as tuning_cache:
            count = len(_selected(tuning_cache, filters))
            question = f"Remove {_entries(count)} from {tuning_cache.path}?"
            if count and not yes and not _agreed(question):
                raise failure("nothing is removed")
            removed_count = tuning_cache.clear(**filters) if count else 0
        say(f"{_entries(removed_count)} removed from {tuning_cache.path}")


def _tell_rehearsal(names: list[str], rehearsals: list[bool]) -> None:
    """Say that times are the emulated device's; end the command if one side has a GPU's."""
    refuse_rehearsal_beside_gpu(names, rehearsals)
    tell("rehearsals on the emulated device: the times are NumPy's, not a GPU's")


def _opened(
    cache: Path | None,
    *,
    must_exist: bool = False,
    to_write: bool = False,
    rehearsal: bool = False,
) -> TuningCache:
    """Open the cache; end the command if it has no folder, or if the folder has to exist.

    With `rehearsal`, a cache without entries becomes one.
    """
    path = parse_cache_path(cache)
    if not isinstance(path, Path):
        source = CACHE_VARIABLE if cache is None else "--cache"
        raise failure(f"{source}={path}: there is no folder")
    if must_exist and not path.exists():
        raise failure(f"{path} does not exist")
    check_place(path)
    # A cache that does not exist yet warns of an older file beside it; a read-only one does not.
    becomes_rehearsal = True if rehearsal and not entry_files(path) else None
    return TuningCache(path, read_only=path.exists() and not to_write, rehearsal=becomes_rehearsal)


def _entries(count: int) -> str:
    return counted(count, "entry", "entries")


def _agreed(question: str) -> bool:
    """Ask on stderr; anything but a yes is a no."""
    # Not by typer's own prompt, which prints a space to stdout.
    typer.echo(f"{question} [y/N] ", err=True, nl=False)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _filters(gpu: str | None, cudnn: str | None, kind: str | None) -> dict[str, Any]:
    if kind is not None and kind not in KINDS:
        raise misuse(f"--kind {kind}: allowed: {', '.join(KINDS)}")
    version = None if cudnn is None else _parse_version(cudnn)
    return {"gpu": gpu, "cudnn": version, "kind": kind}


def _parse_version(text: str) -> int:
    """Return the number that `cudnnGetVersion` has for 9.28.0, or that number itself."""
    if re.fullmatch(r"[0-9]{4,6}", text):
        return int(text)
    if parts := re.fullmatch(r"9\.([0-9]{1,2})\.([0-9]{1,2})", text):
        return 90000 + 100 * int(parts[1]) + int(parts[2])
    raise misuse(f"--cudnn {text}: allowed: a version such as 9.28.0, or its number, 92800")


def _selected(cache: TuningCache, filters: dict[str, Any]) -> list[TuningEntry]:
    """Return the entries that the filters let through; if there are none, say what there is."""
    entries = cache.entries(**filters)
    if not entries and any(value is not None for value in filters.values()):
        hint = ""
        devices = [entry.key.device for entry in cache.entries()]
        if devices:
            gpus = ", ".join(sorted({repr(device.gpu) for device in devices}))
            versions = ", ".join(map(format_version, sorted({device.cudnn for device in devices})))
            hint = f"; there are those of {gpus} with cuDNN {versions}"
        tell(f"no such entry{hint}")
    return entries


def _table(entries: list[TuningEntry], loaded_version: int | None) -> list[str]:
    rows = [
        (
            "tuned at (UTC)",
            "GPU",
            "cuDNN",
            "device ms",
            "choice",
            "problem",
            "wanted",
        )
    ]
    for entry in entries:
        row = entry.rows[entry.chosen]
        mark = "" if _is_used(entry, loaded_version) else "*"
        rows.append(
            (
                entry.tuned_at[:16].replace("T", " "),
                printable(entry.key.device.gpu),
                format_version(entry.key.device.cudnn) + mark,
                "-" if row.time_ms is None else f"{row.time_ms:.4f}",
                named(row),
                problem_text(entry),
                policy_text(entry),
            )
        )
    return aligned(rows, ("device ms",))


def _plain(entry: TuningEntry, loaded_version: int | None) -> dict[str, Any]:
    """Return the fields of an entry that `show` prints, as a JSON value."""
    return {
        "what": problem_text(entry),
        "problem": entry.key.plain["problem"],
        "policy": entry.key.policy,
        "alignments": entry.key.plain["alignments"],
        "device": entry.key.plain["device"],
        "used_here": None if loaded_version is None else _is_used(entry, loaded_version),
        "chosen": row_to_plain(entry.rows[entry.chosen]),
        "candidates": len(entry.rows),
        "timing": entry.timing,
        "tuned_at": entry.tuned_at,
        "seconds": entry.seconds,
        "cudnnlite": entry.cudnnlite,
        "digest": entry.key.digest,
    }
