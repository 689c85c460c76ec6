"""`cudnnlite doctor`: what is installed here, what is wrong with it, and what to do about it.

A process of its own (`probe`) does what may crash: load libcudnn, query CUDA, convolve.  The checks
then work on the facts alone.  A check that fails does not stop the others.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from cudnnlite._raw.dependencies import how_to_install, packages_behind
from cudnnlite.devices.device_choice import DEVICE_VARIABLE
from cudnnlite.version import __version__
from cudnnlite.workbench.doctor import (
    cuda,
    environment,
    libraries,
    library_checks,
    probe,
    tuning_cache,
)
from cudnnlite.workbench.doctor.finding import Finding, Verdict

__all__ = ["Examination", "Finding", "Verdict", "examine"]

PYTHON = f"{platform.python_version()} on {platform.platform()}"
_SCHEMA = 1  # of the JSON: increased when a name in it goes away or changes its meaning

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Examination:
    """The findings of all checks, in the order in which they are printed."""

    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the findings."""
        return max((finding.verdict for finding in self.findings), default=Verdict.OK)

    def to_plain(self) -> dict[str, Any]:
        """Return the examination as values that JSON can hold."""
        counts = Counter(finding.verdict for finding in self.findings)
        return {
            "schema": _SCHEMA,
            "cudnnlite": __version__,
            "python": PYTHON,
            "status": self.verdict.word,
            "counts": {verdict.word: counts[verdict] for verdict in Verdict},
            "findings": [finding.to_plain() for finding in self.findings],
        }


def examine(packages: Iterable[str] = ()) -> Examination:
    """Examine this environment; nothing is loaded into this process, and nothing is changed.

    The probe imports `packages` before it loads libcudnn, as a program does that imports torch
    first.
    """
    variables = dict(os.environ)
    packages = tuple(packages)
    findings: list[Finding] = []

    def attempt(name: str, work: Callable[[], ResultT]) -> ResultT | None:
        try:
            return work()
        except Exception as error:  # The findings of the other checks stay.
            findings.append(_failed_check(name, error))
            return None

    def add(name: str, check: Callable[[], Iterable[Finding]]) -> None:
        attempt(name, lambda: findings.extend(check()))

    def judge_libraries() -> Iterable[Finding]:
        return library_checks.judge(libraries.gather(variables, result, packages))

    add("packages", environment.judge_packages)
    device = variables.get(DEVICE_VARIABLE) or "auto"
    attempted = attempt("probe", lambda: probe.run_probe(device, packages))
    result = attempted or probe.Probe({}, "was not started")
    add("libraries", judge_libraries)
    add("cuda", lambda: cuda.judge_cuda(variables, result))
    add("settings", lambda: environment.judge_variables(variables))
    add("cache", lambda: tuning_cache.judge_cache(result))
    return Examination(tuple(findings))


def _failed_check(name: str, error: Exception) -> Finding:
    """Return the finding that a check itself failed."""
    fix = "report this output: it is a bug of the doctor"
    if isinstance(error, ImportError):
        packages = packages_behind(error)
        if packages:
            fix = how_to_install(packages)
    text = f"the check '{name}' failed: {type(error).__name__}: {error}"
    return Finding("doctor.check", Verdict.WARNING, text, fix, facts={"name": name})
