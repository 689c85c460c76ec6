"""The tuning cache: whether it can be read and written, and whether its entries are of use here."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cudnnlite._raw.library import format_version
from cudnnlite.autotune.cache_file import read_cache
from cudnnlite.autotune.cache_path import CACHE_VARIABLE, IN_MEMORY, default_path, parse_cache_path
from cudnnlite.autotune.keys import DeviceIdentity
from cudnnlite.autotune.sqlite_files import Unfit
from cudnnlite.doctor.finding import Finding, Verdict
from cudnnlite.errors import ArgumentError, TuningCacheError

_ELSEWHERE = f"set {CACHE_VARIABLE} to a file that can be"


@dataclass(frozen=True)
class CacheFacts:
    """What was gathered.

    Attributes
    ----------
    path : str
        The file, or ':memory:'.
    mistake : str
        Why that is no path of a file; empty if it is one.
    exists : bool
        Whether it is there, with something in it.
    error, kind : str
        Why it cannot be read, and what it is: 'damaged', 'foreign', 'newer', or '' where it could be a cache.
    writable : bool
        Whether it, and its folder, can be written.
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
    try:
        exists = path.stat().st_size > 0
    except OSError:
        exists = False
    facts = CacheFacts(str(path), exists=exists, writable=_writable(path), here=here, cudnn=cudnn)
    if not exists:
        return facts
    try:
        entries, unreadable = read_cache(path)
    except TuningCacheError as error:
        kind = error.__cause__.what if isinstance(error.__cause__, Unfit) else ""
        return CacheFacts(str(path), exists=True, error=str(error), kind=kind, writable=facts.writable)
    counts = tuple(Counter(entry.key.device for entry in entries).items())
    return CacheFacts(
        str(path), exists=True, writable=facts.writable, entries=counts, unreadable=unreadable, here=here, cudnn=cudnn
    )


def judge_cache(facts: CacheFacts) -> Iterator[Finding]:
    """Tell what is to be said of the cache."""
    number = sum(count for _, count in facts.entries)
    plain = {"path": facts.path, "entries": number, "unreadable": facts.unreadable, "writable": facts.writable}
    if facts.mistake:
        yield Finding(
            "cache.file", Verdict.BROKEN, facts.mistake, f"unset {CACHE_VARIABLE}, or name a file", facts=plain
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
        fix = f"update cudnnlite, or set {CACHE_VARIABLE} to another file"
    elif facts.kind:
        fix = f"rename or remove it (the next tuning sets it aside), or set {CACHE_VARIABLE} to another file"
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
    """Tell whether the file, or the nearest folder that exists, can be written."""
    if os.path.exists(path) and not os.access(path, os.W_OK):
        return False
    folder = next(parent for parent in path.parents if os.path.exists(parent))
    return os.access(folder, os.W_OK | os.X_OK)
