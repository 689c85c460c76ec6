"""The checks before a commit are those of the CI script."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"\.venv/bin/(?!pip\b)\S.*")


def tools(text: str) -> set[tuple[str, str]]:
    """Return (tool, what it is asked first) of each command: ("ruff", "check"), ("python", "-m cudnnlite._raw.generate")."""
    found = set()
    for command in COMMAND.findall(text):
        tool, *words = command.removeprefix(".venv/bin/").split()
        first = {"python": words[:2], "ruff": words[:1]}.get(tool, [])
        found.add((tool, " ".join(first)))
    return found


def test_pre_commit_checks_what_ci_checks():
    readme, script = (ROOT / "README.md").read_text(), (ROOT / ".ci/run").read_text()
    hooks = "\n".join(re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text()))
    test = next(line for line in readme.splitlines() if line.endswith(".venv/bin/python -m pytest"))
    wanted = tools(f"{script}\n{test.rpartition('&& ')[2]}")
    assert {"ruff", "mypy", "sphinx-build", "python"} == {tool for tool, _ in wanted}
    assert tools(hooks) == wanted


def test_the_issue_template_asks_for_the_doctor():
    assert "cudnnlite doctor" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()
