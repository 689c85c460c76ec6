"""The commands of a page, and the table of those that README and docs may use.

The table has a check of each command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import Any, NamedTuple

from markdown_pages import ROOT, Block

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings it there
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_DISTRIBUTIONS = {
    _NAME.match(requirement)[0].lower()  # type: ignore[index]
    for requirements in (PROJECT["dependencies"], *EXTRAS.values())
    for requirement in requirements
} | {
    "pip",
    "build",
    "twine",
    "pre-commit",
    "torch",
    "jax",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "numba-cuda",
    "keras",
    "mpi4py",
}
OURS = ("cudnnlite/", "docs/", "examples/", "tests/", ".ci/")
_VARIABLES = set(
    re.findall(
        r'"([A-Z][A-Z0-9_]{5,})"',
        "".join(
            path.read_text()
            for room in ("cudnnlite", "tests")
            for path in (ROOT / room).rglob("*.py")
        ),
    )
) | {"CUDNNLITE_REQUIRE_GPU"}  # of tests/conftest.py
_OPERATORS = "();<>|&"


class Command(NamedTuple):
    """One command.

    Attributes
    ----------
    line : int
        Its line on the page.
    variables : dict
        The environment variables that are set for it, or exported by it.
    words : list of str
        Name and arguments; empty where it only exports variables.
    """

    line: int
    variables: dict[str, str]
    words: list[str]

    @property
    def program(self) -> str:
        """The command's name without its folder; '' where there is none."""
        return self.words[0].rpartition("/")[2] if self.words else ""

    def __str__(self) -> str:
        return shlex.join(self.words) or " ".join(self.variables)


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a console or sh block, or of the `run:` steps of a YAML workflow."""
    if block.language == "yaml":
        import yaml

        return [
            command
            for script in _scripts(yaml.safe_load(block.text))
            for command in _commands(script, block.line)
        ]
    text = block.text
    if block.language == "console":
        text = "\n".join(_without_prompts(block))
    return list(_commands(text, block.line))


def _scripts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in value.items():
            if name == "run" and isinstance(part, str):
                yield part
            else:
                yield from _scripts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _scripts(part)


def _without_prompts(block: Block) -> Iterator[str]:
    goes_on = False
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        assert goes_on or line.startswith("$ ") or not line, (
            f"line {number}: {line!r} is no command after '$ '; what a command prints belongs "
            "in a text block"
        )
        yield line if goes_on else line[2:]
        goes_on = line.endswith("\\")


def _commands(text: str, first: int) -> Iterator[Command]:
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        start, line = number, lines[number]
        while line.endswith("\\") and number + 1 < len(lines):
            number += 1
            line = line[:-1] + lines[number]
        number += 1
        lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
        lexer.whitespace_split = True
        for is_operator, words in groupby(lexer, lambda word: set(word) <= set(_OPERATORS)):
            tokens = list(words)
            if is_operator:
                assert set(tokens) <= {"&&", "||", "|", ";"}, (
                    f"line {first + start}: {tokens}: not looked into"
                )
                continue
            yield _command(tokens, first + start)


def _command(words: list[str], line: int) -> Command:
    words = words[1:] if words[0] in ("sudo", "export") else words
    variables = {}
    while words and re.match(r"[A-Z_][A-Z0-9_]*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return Command(line, variables, words)


def check(command: Command) -> None:
    """Raise AssertionError if a command names something that does not exist.

    That may be a variable, a package, an extra, a module or a file.
    """
    for name in command.variables:
        assert name in _VARIABLES, f"{name}: nothing reads this variable"
    words = command.words[1:]
    if command.program.startswith("python") and words[:1] == ["-m"]:
        assert words[1] != "pip" or _pip(words[2:])
        assert not words[1].startswith("cudnnlite.") or find_spec(words[1]), (
            f"there is no module {words[1]}"
        )
    assert command.program != "pip" or _pip(words)
    for word in command.words:
        if word.startswith(OURS) and "_build" not in word:  # which is made by the command
            assert (ROOT / word.partition("::")[0]).exists(), f"there is no {word}"


def _pip(arguments: Sequence[str]) -> bool:
    verb, *rest = arguments
    for requirement in (
        [word for word in rest if not word.startswith("-")] if verb == "install" else ()
    ):
        match = re.fullmatch(
            (
                r"(\.|[A-Za-z0-9._-]+|.*dist/\*\.whl\)?)(?:\[([\w,-]+)\])?"
                r"((?:[=<>!~]=?|===)[\w.*,<>=!~]+)?"
            ),
            requirement,
        )
        assert match, f"{requirement}: not understood"
        name, extras, _ = match.groups()
        if name in (".", PROJECT["name"]) or "dist/" in name:
            unknown = {*(extras or "").split(",")} - {*EXTRAS, ""}
            assert not unknown, f"{requirement}: no such extra: {unknown}"
        else:
            assert name.lower() in _DISTRIBUTIONS, (
                f"{requirement}: not among {sorted(_DISTRIBUTIONS)}"
            )
    return True
