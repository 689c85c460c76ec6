"""`examine`: gather the facts, judge them, and let no failure of one check keep the others from being told."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cudnnlite.devices.choice import DEVICE_VARIABLE
from cudnnlite.devices.cuda import CudaState
from cudnnlite.devices.device import DeviceFacts
from cudnnlite.doctor.environment import VARIABLES, installed_version, python_text
from cudnnlite.doctor.finding import Finding, Verdict, worst
from cudnnlite.version import __version__

if TYPE_CHECKING:
    from cudnnlite.doctor.copies import CudnnCopy
    from cudnnlite.doctor.places import Place

SCHEMA = 1  # of the JSON: another number where a name in it goes away or gets another meaning

T = TypeVar("T")


@dataclass(frozen=True)
class Examination:
    """Everything that was looked at.

    Attributes
    ----------
    findings : tuple of Finding
        In the order in which they are best read.
    cudnnlite, python : str
        Versions.
    """

    findings: tuple[Finding, ...]
    cudnnlite: str
    python: str

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings."""
        return worst(self.findings)

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        counts = Counter(finding.verdict for finding in self.findings)
        return {
            "schema": SCHEMA,
            "cudnnlite": self.cudnnlite,
            "python": self.python,
            "status": self.verdict.word,
            "counts": {verdict.word: counts[verdict] for verdict in Verdict},
            "findings": [finding.to_plain() for finding in self.findings],
        }


def examine(packages: Iterable[str] = ()) -> Examination:
    """Look at this environment; nothing is loaded into this process, and nothing is changed.

    Parameters
    ----------
    packages : iterable of str
        What to import before libcudnn is loaded, as a program does that uses 'torch' first.
    """
    return _Doctor(dict(os.environ), tuple(packages)).examine()


class _Doctor:
    """The facts, each gathered when it is first asked for."""

    def __init__(self, environment: Mapping[str, str], packages: tuple[str, ...]) -> None:
        self._environment = environment
        self._packages = packages
        self._findings: list[Finding] = []

    def examine(self) -> Examination:
        # imported here, inside the guard: one that cannot be imported (sqlite3 is left out of some Pythons) is a finding too
        checks = (self._libraries, self._needs, self._cuda, self._settings, self._cache)
        self._guarded("gathering", self._gather, None)
        for check in checks:
            self._guarded(check.__name__.strip("_"), partial(self._look, check), None)
        return Examination(tuple(self._findings), __version__, python_text())

    def _look(self, check: Callable[[], Iterable[Finding]]) -> None:
        for finding in check():  # one by one: those before a failure stay
            self._findings.append(finding)

    def _guarded(self, name: str, work: Callable[[], T], otherwise: T) -> T:
        """Do what may fail; if it does, that is a finding."""
        try:
            return work()
        except Exception as error:
            text = f"'{name}' could not be looked at: {type(error).__name__}: {error}"
            fix = "report this output: it is a mistake of the doctor"
            self._findings.append(Finding("doctor.check", Verdict.WARNING, text, fix, facts={"name": name}))
            return otherwise

    def _gather(self) -> None:
        from cudnnlite.doctor.child import Probe, run_probe
        from cudnnlite.doctor.copies import find_copies
        from cudnnlite.doctor.places import all_places, loader_cache

        guarded, environment = self._guarded, self._environment
        wanted = environment.get(DEVICE_VARIABLE, "")
        self._probe = guarded(
            "probe", lambda: run_probe(wanted or "auto", self._packages), Probe({}, "was not started")
        )
        self._loaded, self._unasked = self._probe.step("library"), self._probe.step("cuda").get("message", "")
        self._state = CudaState("")
        if not self._unasked:
            self._state = guarded("CUDA", lambda: state_of(self._probe.step("cuda")), self._state)
        known: dict[str, tuple[str, ...]] = {}
        places: list[Place] = []
        copies: list[CudnnCopy] = []
        self._cache_of_loader = guarded("loader's cache", loader_cache, known)
        self._places = guarded("places", lambda: all_places(environment, self._cache_of_loader), places)
        self._copies = guarded("copies", lambda: find_copies(self._places), copies)

    @property
    def _mapped(self) -> tuple[str, ...]:
        """What the probe's process had loaded, as late as that is known."""
        steps = [self._probe.step(name) for name in ("trial", "cuda", "library")]
        return tuple(next((step["mapped"] for step in steps if step["mapped"]), ()))

    def _libraries(self) -> Iterable[Finding]:
        from cudnnlite.doctor.copies import look_at_copy
        from cudnnlite.doctor.libraries import LibraryFacts, judge_libraries

        in_use = None
        if "path" in self._loaded:
            path = os.path.realpath(self._loaded["path"])
            in_use = next((copy for copy in self._copies if copy.path == path), None) or look_at_copy(path)
        folders = dict.fromkeys(os.path.dirname(path) for path in self._mapped if "libcudnn" in os.path.basename(path))
        versions = {folder: look_at_copy(os.path.join(folder, "libcudnn.so.9")).told for folder in folders}
        imports = {package: self._probe.step(f"import {package}") for package in self._packages}
        wheels = tuple(
            f"{name} {version}"
            for name in ("nvidia-cudnn-cu11", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
            if (version := installed_version(name))
        )
        return judge_libraries(
            LibraryFacts(
                self._loaded, self._mapped, imports, in_use, tuple(self._copies), wheels, self._environment, versions
            )
        )

    def _needs(self) -> Iterable[Finding]:
        from cudnnlite.doctor.needs import gather_needs, judge_needs

        kind = self._environment.get(DEVICE_VARIABLE, "").lower().partition(":")[0]
        facts = gather_needs(
            self._loaded.get("cudart", 0) // 1000,
            bool(self._state.devices) and kind != "emulated",
            self._mapped,
            search_path(self._loaded.get("path", "")),
            self._environment,
            self._cache_of_loader,
            tuple(self._places),
        )
        return judge_needs(facts)

    def _cuda(self) -> Iterable[Finding]:
        from cudnnlite.doctor.cuda import CudaFacts, judge_cuda
        from cudnnlite.doctor.toolkits import find_toolkits

        mask = self._environment.get("CUDA_VISIBLE_DEVICES")
        tried = "trial" in self._probe.steps or self._probe.during == "trial"
        facts = CudaFacts(
            self._state,
            self._environment.get(DEVICE_VARIABLE, ""),
            None if mask is None else self._guarded("hidden GPUs", self._unmasked, None),
            mask,
            self._loaded.get("number", 0),
            self._loaded.get("cudart", 0),
            self._loaded.get("newest_gpu", 0),
            self._guarded("toolkits", lambda: find_toolkits(self._environment), {}),
            self._probe.step("trial") if tried else {},
            self._unasked,
            self._probe.step("cuda").get("crashed", False),
        )
        return judge_cuda(facts)

    def _unmasked(self) -> int | None:
        """Return how many GPUs a process sees without CUDA_VISIBLE_DEVICES; None where there is no driver to ask."""
        from cudnnlite.doctor.child import run_probe

        if not self._state.supports:
            return None
        environment = {name: value for name, value in self._environment.items() if name != "CUDA_VISIBLE_DEVICES"}
        return len(run_probe("none", environment=environment).step("cuda").get("devices", ()))

    def _settings(self) -> Iterable[Finding]:
        from cudnnlite.doctor.settings import gather_settings, judge_settings

        return judge_settings(gather_settings(self._environment, VARIABLES))

    def _cache(self) -> Iterable[Finding]:
        from cudnnlite.autotune.keys import DeviceIdentity
        from cudnnlite.doctor.cache import gather_cache, judge_cache

        number = self._loaded.get("number", 0)
        here = tuple(
            DeviceIdentity(device.name, device.compute_capability, device.driver, number)
            for device in self._state.devices
        )
        return judge_cache(gather_cache(here, number))


def state_of(step: Mapping[str, Any]) -> CudaState:
    """Return what the probe learnt of CUDA."""
    devices = tuple(DeviceFacts(*device) for device in step["devices"])
    return CudaState(**{name: step[name] for name in CudaState._fields if name != "devices"}, devices=devices)


def search_path(path: str) -> tuple[str, ...]:
    """Return where the loader looks for what the parts of a libcudnn open."""
    from cudnnlite.doctor.elf import NotElfError, read_shared_library

    for part in ("adv", "ops", "graph"):
        try:
            found = read_shared_library(Path(path).with_name(f"libcudnn_{part}.so.9")).search_path
        except (OSError, NotElfError, ValueError):
            continue
        if found:
            return found
    return ()
