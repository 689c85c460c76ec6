"""The checks before a commit are those of the CI script, and tests patch nothing private."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"\.venv/bin/(?!pip\b)\S.*")


def tools(text: str) -> set[tuple[str, str]]:
    """Return (tool, first words) of each command.

    Such as ("ruff", "check") or ("python", "-m tools.raw.generate").
    """
    commands = set()
    for command in COMMAND.findall(text):
        tool, *words = command.removeprefix(".venv/bin/").split()
        first = {"python": words[:2], "ruff": words[:1]}.get(tool, [])
        commands.add((tool, " ".join(first)))
    return commands


def test_pre_commit_checks_what_ci_checks():
    readme, script = (ROOT / "README.md").read_text(), (ROOT / ".ci/run").read_text()
    hooks = "\n".join(re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text()))
    test = next(line for line in readme.splitlines() if line.endswith(".venv/bin/python -m pytest"))
    expected = tools(f"{script}\n{test.rpartition('&& ')[2]}")
    assert {"ruff", "mypy", "sphinx-build", "python"} == {tool for tool, _ in expected}
    assert tools(hooks) == expected


def test_the_issue_template_asks_for_the_doctor():
    assert "cudnnlite doctor" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()


def test_the_house_names_each_module_of_tracing():
    (row,) = re.findall(
        r"^\| `workbench/tracing/` .*", (ROOT / "CONTRIBUTING.md").read_text(), re.M
    )
    modules = {path.name for path in (ROOT / "cudnnlite/workbench/tracing").glob("[!_]*.py")}
    assert modules == set(re.findall(r"\w+\.py", row))


# ---------------------------------------------------------------- private names

REPLACING = {"setattr", "delattr", "setitem", "delitem", "set_attribute", "set_item"}


def is_private(name: str) -> bool:
    """Tell whether a name, or a part of a dotted one, begins with one underscore."""
    return any(re.match("_(?!_)", part) for part in name.split("."))


def private_patches(source: str) -> Iterator[str]:
    """Yield code that replaces a private name.

    It does so by `monkeypatch`, by an assignment, or in the code of another process.
    """
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.expr] = []
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in REPLACING
        ):
            targets = [*node.args[:2]]
        elif (
            isinstance(node, ast.Tuple)
            and len(node.elts) == 2
            and isinstance(node.elts[0], ast.Name)
        ):
            # (module, "name"), for one of these calls
            targets = [element for element in node.elts[1:] if isinstance(element, ast.Constant)]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            targets = [] if ast.unparse(node).startswith(("self.", "cls.")) else [node]
        for part in (part for target in targets for part in ast.walk(target)):
            name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "value", "")
            # of a name that is put together nobody can tell
            if isinstance(part, ast.JoinedStr) or (isinstance(name, str) and is_private(name)):
                yield ast.unparse(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            with suppress(SyntaxError, ValueError):  # it is no code
                yield from private_patches(textwrap.dedent(node.value))


def test_no_test_replaces_what_is_private() -> None:
    """What a test needs to be another way is passed in, or has a public name."""
    patches_by_file = {
        str(path.relative_to(ROOT)): patches
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__)
        and (patches := list(private_patches(path.read_text(encoding="utf-8"))))
    }
    assert patches_by_file == {}
