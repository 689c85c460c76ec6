"""Checks of the tuning cache, which is only read."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from cudnnlite._raw.library import format_version
from cudnnlite.errors import ArgumentError, TuningCacheError, TuningCacheWarning
from cudnnlite.texts import counted
from cudnnlite.workbench.doctor.finding import BROKEN, NOTE, OK, WARNING, Finding
from cudnnlite.workbench.doctor.probe import Probe
from cudnnlite.workbench.tuning.cache import (
    CACHE_VARIABLE,
    TuningCache,
    check_place,
    entry_files,
    is_rehearsal,
    parse_cache_path,
)
from cudnnlite.workbench.tuning.entries import TuningEntry

_NOT_SAVED = "what is tuned is lost when the process ends"
_OTHER_FOLDER = f"set {CACHE_VARIABLE} to another folder"


def judge_cache(probe: Probe) -> Iterator[Finding]:
    """Report whether the cache can be read and written, and whether its entries are used here."""
    try:
        path = parse_cache_path(None)
        if not isinstance(path, Path):
            yield Finding("cache.file", NOTE, f"{CACHE_VARIABLE}={path}: {_NOT_SAVED}")
            return
        entries = _read_entries(path)
    except ArgumentError as error:
        yield Finding("cache.file", BROKEN, str(error), f"unset {CACHE_VARIABLE}, or name a folder")
        return
    except TuningCacheError as error:  # Another program's file.
        fix = f"make it readable, or rename it, or {_OTHER_FOLDER}"
        yield Finding("cache.file", WARNING, f"{error}; {_NOT_SAVED}", fix)
        return
    damaged_files = _damaged_files(path, entries)
    yield _judge_content(path, entries, damaged_files)
    if not _is_writable(path):
        text = f"{path} cannot be written: {_NOT_SAVED}"
        yield Finding("cache.writable", WARNING, text, f"make it writable, or {_OTHER_FOLDER}")
    if damaged_files:
        yield _judge_damage(path, damaged_files)
    if is_rehearsal(path):
        yield _judge_rehearsal(path, probe)
    else:
        yield from _judge_origins(entries, probe)


def _read_entries(path: Path) -> Sequence[TuningEntry]:
    check_place(path)
    with warnings.catch_warnings():
        # Files that cannot be read have a finding of their own.
        warnings.simplefilter("ignore", TuningCacheWarning)
        return TuningCache(path, read_only=True).entries()


def _damaged_files(path: Path, entries: Sequence[TuningEntry]) -> list[str]:
    """Return the names of the files without a readable entry."""
    digests = {entry.key.digest for entry in entries}
    files = (*entry_files(path), *sorted(path.glob("*.damaged")))
    return [file.name for file in files if file.stem not in digests]


def _is_writable(path: Path) -> bool:
    """Return whether a folder, or the nearest one above it that exists, can be written."""
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    return os.access(nearest, os.W_OK | os.X_OK)


def _judge_content(
    path: Path, entries: Sequence[TuningEntry], damaged_files: Sequence[str]
) -> Finding:
    num_entries = len(entries)
    text = "nothing was tuned yet"
    if num_entries or damaged_files:
        text = counted(num_entries, "entry", "entries")
    facts = {"path": str(path), "entries": num_entries}
    return Finding("cache.file", OK, f"{text}: {path}", facts=facts)


def _judge_rehearsal(path: Path, probe: Probe) -> Finding:
    """Report a rehearsal, which a tuner on a GPU refuses."""
    text = f"{path} is a rehearsal on the emulated device"
    if probe.step("cuda").get("devices"):
        return Finding(
            "cache.rehearsal", BROKEN, f"{text}: a GPU's tuner refuses it", _OTHER_FOLDER
        )
    return Finding("cache.rehearsal", NOTE, text)


def _judge_damage(path: Path, damaged_files: Sequence[str]) -> Finding:
    text = f"{len(damaged_files)} of the files in {path} cannot be read: {damaged_files[0]}"
    if len(damaged_files) > 1:
        text += ", ..."
    fix = (
        "update cudnnlite if a newer one wrote them; "
        "else remove them, and tune again: cudnnlite autotune"
    )
    return Finding("cache.entries", WARNING, text, fix)


def _judge_origins(entries: Sequence[TuningEntry], probe: Probe) -> Iterator[Finding]:
    """Report a cache whose entries are all of other GPUs, drivers or versions of cuDNN."""
    cudnn_version = probe.step("library").get("number", 0)
    if not entries or not cudnn_version:  # Without libcudnn nothing can be compared.
        return
    gpus = {(name, driver) for name, _, driver, _ in probe.step("cuda").get("devices", ())}
    origins = list(dict.fromkeys(entry.key.device for entry in entries))
    for origin in origins:
        # Without a GPU in this process, only the version of cuDNN counts.
        is_same_gpu = not gpus or (origin.gpu, origin.driver) in gpus
        if origin.cudnn == cudnn_version and is_same_gpu:
            return
    descriptions = [
        f"{origin.gpu} with driver {origin.driver}, cuDNN {format_version(origin.cudnn)}"
        for origin in origins
    ]
    text = (
        f"no entry is used here, where cuDNN is {format_version(cudnn_version)}: "
        f"they are of {', '.join(descriptions)}"
    )
    yield Finding("cache.use", WARNING, text, "tune again: cudnnlite autotune")
