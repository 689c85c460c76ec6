"""`cudnnlite doctor`: what is installed here, what is wrong with it, and what to do about it.

What has to be tried is tried in a process of its own (`probe`).  Then functions that look at
nothing but the facts say what is wrong; one that fails keeps none of the others from being told.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cudnnlite._raw.dependencies import how_to_install, packages_behind
from cudnnlite.devices.choice import DEVICE_VARIABLE
from cudnnlite.doctor import environment, libraries, probe
from cudnnlite.doctor.finding import Finding, Verdict
from cudnnlite.version import __version__

__all__ = ["Examination", "Finding", "Verdict", "examine"]

PYTHON = f"{platform.python_version()} on {platform.platform()}"
_SCHEMA = 1  # of the JSON: another number where a name in it goes away or gets another meaning


@dataclass(frozen=True)
class Examination:
    """Everything that was looked at: the findings, in the order in which they are best read."""

    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of the findings."""
        return max((finding.verdict for finding in self.findings), default=Verdict.OK)

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        counts = Counter(finding.verdict for finding in self.findings)
        about = {"schema": _SCHEMA, "cudnnlite": __version__, "python": PYTHON}
        numbers = {verdict.word: counts[verdict] for verdict in Verdict}
        findings = [finding.to_plain() for finding in self.findings]
        return {**about, "status": self.verdict.word, "counts": numbers, "findings": findings}


def examine(packages: Iterable[str] = ()) -> Examination:
    """Look at this environment; nothing is loaded into this process, and nothing is changed.

    `packages` are imported before libcudnn is loaded, as a program does that uses 'torch' first.
    """
    variables, packages, findings = dict(os.environ), tuple(packages), list[Finding]()

    def look(name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:  # what was found before stays
            text = f"'{name}' could not be looked at: {type(error).__name__}: {error}"
            fix = "report this output: it is a mistake of the doctor"
            if isinstance(error, ImportError) and (packages := packages_behind(error)):
                fix = how_to_install(packages)
            findings.append(
                Finding("doctor.check", Verdict.WARNING, text, fix, facts={"name": name})
            )
            return None

    look("packages", lambda: findings.extend(environment.judge_packages()))
    found = look(
        "probe", lambda: probe.run_probe(variables.get(DEVICE_VARIABLE) or "auto", packages)
    )
    found = found or probe.Probe({}, "was not started")
    look(
        "libraries",
        lambda: findings.extend(libraries.judge(libraries.gather(variables, found, packages))),
    )
    look("cuda", lambda: findings.extend(environment.judge_cuda(variables, found)))
    look("settings", lambda: findings.extend(environment.judge_variables(variables)))
    look("cache", lambda: findings.extend(environment.judge_cache(found)))
    return Examination(tuple(findings))
