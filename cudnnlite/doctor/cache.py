"""The tuning cache: whether it can be read and written, and whether its entries are of use here."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cudnnlite._raw.library import format_version
from cudnnlite.autotune.cache_path import CACHE_VARIABLE, IN_MEMORY, default_path, parse_cache_path
from cudnnlite.autotune.keys import DeviceIdentity
from cudnnlite.autotune.store import EntryFolder, why_unfit
from cudnnlite.doctor.finding import Finding, Verdict
from cudnnlite.errors import ArgumentError, TuningCacheError, TuningCacheWarning

_ELSEWHERE = f"set {CACHE_VARIABLE} to a folder that can be"


@dataclass(frozen=True)
class CacheFacts:
    """What was gathered.

    Attributes
    ----------
    path : str
        The folder, or ':memory:'.
    mistake : str
        Why that is no path of a folder; empty if it is one.
    exists : bool
        Whether it is there.
    error, kind : str
        Why it cannot be read, and what it is: 'foreign', of an older version too, or '' where it could be a cache.
    writable : bool
        Whether it, or the nearest folder above that is there, can be written.
    entries : dict
        The device of entries -> how many.
    unreadable : int
        How many entries cannot be read.
    here : tuple of DeviceIdentity
        What entries are of use to this process.
    cudnn : int
        The version of libcudnn here; 0 if none is in use.
    """

    path: str
    mistake: str = ""
    exists: bool = False
    error: str = ""
    kind: str = ""
    writable: bool = True
    entries: tuple[tuple[DeviceIdentity, int], ...] = ()
    unreadable: int = 0
    here: tuple[DeviceIdentity, ...] = ()
    cudnn: int = 0


def gather_cache(here: tuple[DeviceIdentity, ...] = (), cudnn: int = 0) -> CacheFacts:
    """Look at the cache that this environment uses; it is only read."""
    try:
        path = parse_cache_path(None)
    except ArgumentError as error:
        return CacheFacts(os.environ.get(CACHE_VARIABLE) or str(default_path()), str(error))
    if not isinstance(path, Path):
        return CacheFacts(IN_MEMORY)
    exists = os.path.exists(path)
    facts = CacheFacts(str(path), exists=exists, writable=_writable(path), here=here, cudnn=cudnn)
    if why := why_unfit(path):
        return replace(facts, error=f"{path} {why}", kind="foreign")
    folder = EntryFolder(path, read_only=True)
    try:
        files = folder.files()
    except TuningCacheError as error:
        return replace(facts, error=str(error))
    with warnings.catch_warnings():  # what cannot be read is told below
        warnings.simplefilter("ignore", TuningCacheWarning)
        entries = folder.entries()
    counts = tuple(Counter(entry.key.device for entry in entries).items())
    return replace(facts, entries=counts, unreadable=len(files) - len(entries))


def judge_cache(facts: CacheFacts) -> Iterator[Finding]:
    """Tell what is to be said of the cache."""
    number = sum(count for _, count in facts.entries)
    plain = {"path": facts.path, "entries": number, "unreadable": facts.unreadable, "writable": facts.writable}
    if facts.mistake:
        yield Finding(
            "cache.file", Verdict.BROKEN, facts.mistake, f"unset {CACHE_VARIABLE}, or name a folder", facts=plain
        )
        return
    if facts.path == IN_MEMORY:
        text = f"{CACHE_VARIABLE}={IN_MEMORY}: what is tuned is forgotten when the process ends"
        yield Finding("cache.file", Verdict.NOTE, text, facts=plain)
        return
    if facts.error:
        yield _unfit(facts, plain)
        return
    if not facts.exists:
        yield Finding("cache.file", Verdict.OK, f"nothing was tuned yet: {facts.path}", facts=plain)
    else:
        noun = "entry" if number == 1 else "entries"
        yield Finding("cache.file", Verdict.OK, f"{number} {noun}: {facts.path}", facts=plain)
    if not facts.writable:
        text = f"{facts.path} cannot be written: what is tuned is forgotten when the process ends"
        yield Finding("cache.writable", Verdict.WARNING, text, f"make it writable, or {_ELSEWHERE}", facts=plain)
    if facts.unreadable:
        noun = "entry" if facts.unreadable == 1 else "entries"
        text = f"{facts.unreadable} {noun} of {facts.path} cannot be read"
        yield Finding(
            "cache.entries", Verdict.WARNING, text, "tune those problems again: cudnnlite autotune", facts=plain
        )
    yield from _use(facts, number)


def _unfit(facts: CacheFacts, plain: dict[str, object]) -> Finding:
    plain = {**plain, "kind": facts.kind}
    if facts.kind == "newer":
        fix = f"update cudnnlite, or set {CACHE_VARIABLE} to a folder"
    elif facts.kind:
        fix = f"rename or remove it and tune again, or set {CACHE_VARIABLE} to a folder"
    else:
        fix = f"make it readable, or {_ELSEWHERE}"
    return Finding("cache.file", Verdict.WARNING, facts.error, fix, facts=plain)


def _use(facts: CacheFacts, number: int) -> Iterator[Finding]:
    """Tell whether the entries are found here, where that can be known."""
    if not (number and facts.cudnn):
        return
    versions: Counter[int] = Counter()
    for device, count in facts.entries:
        versions[device.cudnn] += count
    counts = ", ".join(f"{count} of {format_version(version)}" for version, count in sorted(versions.items()))
    plain = {"of_version": {format_version(version): count for version, count in sorted(versions.items())}}
    again = "tune again: cudnnlite autotune"
    if facts.cudnn not in versions:
        text = f"no entry is used here, where cuDNN is {format_version(facts.cudnn)}: {counts}"
        yield Finding("cache.use", Verdict.WARNING, text, again, facts=plain)
    elif facts.here and not any(device in facts.here for device, _ in facts.entries):
        known = sorted({f"{d.gpu} with driver {d.driver}" for d, _ in facts.entries if d.cudnn == facts.cudnn})
        text = f"no entry is used here: those of cuDNN {format_version(facts.cudnn)} are of {', '.join(known)}"
        yield Finding("cache.use", Verdict.WARNING, text, again, facts=plain)
    elif len(versions) > 1:
        text = f"entries of other versions of cuDNN than {format_version(facts.cudnn)} are not used here: {counts}"
        yield Finding("cache.use", Verdict.NOTE, text, facts=plain)


def _writable(path: Path) -> bool:
    """Tell whether the folder, or the nearest one above it that exists, can be written."""
    folder = next(parent for parent in (path, *path.parents) if os.path.exists(parent))
    return os.access(folder, os.W_OK | os.X_OK)
