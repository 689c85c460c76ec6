"""The commands of a page, and the table of those that README and docs may use, with what can be checked of each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
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
    "pip", "build", "twine", "pre-commit", "torch", "jax", "cupy-cuda12x", "cupy-cuda13x", "numba-cuda", "keras", "mpi4py",
}  # fmt: skip
# looked up in conda-forge
_CONDA_PACKAGES = {"python", "pip", "cudnn", "libcudnn", "cuda-version", "cuda-bindings", "cuda-pathfinder"}
# NVIDIA's repository for apt
_APT_PACKAGES = {"cudnn9-cuda-12", "cudnn9-cuda-13"}
_VARIABLES = set(
    re.findall(
        r'"([A-Z][A-Z0-9_]{5,})"',
        "".join(path.read_text() for room in ("cudnnlite", "tests/unit") for path in (ROOT / room).rglob("*.py")),
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
    """Return the commands of a console or sh block, or of the `run:` steps of a workflow in YAML."""
    if block.language == "yaml":
        import yaml

        return [command for script in _scripts(yaml.safe_load(block.text)) for command in _commands(script, block.line)]
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
            f"line {number}: {line!r} is no command after '$ '; what a command prints belongs in a text block"
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
            found = list(words)
            if is_operator:
                assert set(found) <= {"&&", "||", "|", ";"}, f"line {first + start}: {found}: not looked into"
                continue
            yield _command(found, first + start)


def _command(words: list[str], line: int) -> Command:
    words = words[1:] if words[0] in ("sudo", "export") else words
    variables = {}
    while words and re.match(r"[A-Z_][A-Z0-9_]*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return Command(line, variables, words)


def check(command: Command) -> None:
    """Raise AssertionError where a command is not in the table, or names what does not exist."""
    for name in command.variables:
        assert name in _VARIABLES, f"{name}: nothing reads this variable"
    if not command.words:
        return
    program, arguments = command.program, command.words[1:]
    assert program in _KNOWN, f"{command}: {program!r} is not among the known commands: {sorted(_KNOWN)}"
    _KNOWN[program](arguments)


def _exists(path: str) -> None:
    name = path.partition("::")[0]
    assert (ROOT / name).exists(), f"there is no {name}"


def _paths(arguments: Sequence[str]) -> None:
    """Check whatever looks like a path of the repository."""
    for argument in arguments:
        if not argument.startswith(("-", "http", ".venv", "/")) and ("/" in argument or argument == "."):
            _exists(argument)


def _tool(arguments: Sequence[str]) -> None:
    """Check only paths that begin with a folder of the repository: the others are made on the way."""
    _paths([word for word in arguments if word.startswith(("cudnnlite/", "docs/", "examples/", "tests/"))])


def _anything(arguments: Sequence[str]) -> None:
    """Accept: nothing of it is ours."""


def _pip(arguments: Sequence[str]) -> None:
    verb, *rest = arguments
    assert verb in ("install", "uninstall", "list", "show", "cache"), f"pip {verb}"
    requirements = [word for word in rest if not word.startswith("-")]
    assert requirements or verb in ("list", "cache"), "pip install of nothing"
    for requirement in requirements if verb == "install" else ():
        found = re.fullmatch(
            r"(\.|[A-Za-z0-9._-]+|.*dist/\*\.whl\)?)(?:\[([\w,-]+)\])?((?:[=<>!~]=?|===)[\w.*,<>=!~]+)?", requirement
        )
        assert found, f"{requirement}: not understood"
        name, extras, _ = found.groups()
        if name in (".", PROJECT["name"]) or "dist/" in name:
            unknown = {*(extras or "").split(",")} - {*EXTRAS, ""}
            assert not unknown, f"{requirement}: no such extra: {unknown}"
        else:
            assert name.lower() in _DISTRIBUTIONS, f"{requirement}: not among {sorted(_DISTRIBUTIONS)}"


def _python(arguments: Sequence[str]) -> None:
    if arguments[0] == "-m":
        _module(arguments[1], arguments[2:])
    elif arguments[0] != "-c":
        _exists(arguments[0])


def _module(name: str, arguments: Sequence[str]) -> None:
    if name.startswith("cudnnlite."):
        assert find_spec(name), f"there is no module {name}"
        return
    known = {
        "venv": _anything,
        "pip": _pip,
        "pytest": _paths,
        "build": _paths,
        "twine": _anything,
        "pre_commit": _anything,
    }
    assert name in known, f"python -m {name}: not among {sorted(known)}"
    known[name](arguments)


def _sphinx_build(arguments: Sequence[str]) -> None:
    words = [word for word in arguments if not word.startswith("-")]
    sources = [word for word in words if (ROOT / word / "conf.py").exists()]
    assert sources, f"no folder with a conf.py among {words}"


def _conda(arguments: Sequence[str]) -> None:
    verb, *rest = arguments
    assert verb in ("create", "install", "activate"), f"conda {verb}"
    names = iter(rest if verb != "activate" else ())
    for word in names:
        if word in ("-c", "-n", "--channel", "--name"):
            next(names)
        elif not word.startswith("-"):
            name = _NAME.match(word)
            assert name, f"{word}: not understood"
            assert name[0] in _CONDA_PACKAGES, f"{word}: not among {sorted(_CONDA_PACKAGES)}"


def _apt(arguments: Sequence[str]) -> None:
    verb, *packages = [word for word in arguments if not word.startswith("-")]
    assert verb == "install"
    assert set(packages) <= _APT_PACKAGES, f"{packages}: not among {sorted(_APT_PACKAGES)}"


def _compiler(arguments: Sequence[str]) -> None:
    sources = [word for word in arguments if word.endswith((".c", ".cu"))]
    assert sources, "nothing to compile"
    for source in sources:
        _exists(source)


def _own_script(path: str) -> Callable[[Sequence[str]], None]:
    def check_it(arguments: Sequence[str]) -> None:
        _exists(path)

    return check_it


_KNOWN: dict[str, Callable[[Sequence[str]], None]] = {
    "apt-get": _apt,
    "cd": _anything,
    "conda": _conda,
    "gcc": _compiler,
    "git": _anything,
    "jupyter": _paths,
    "mypy": _paths,
    "nvcc": _compiler,
    "nvidia-smi": _anything,
    "pip": _pip,
    "pre-commit": _anything,
    "pytest": _paths,
    "python": _python,
    "python3": _python,
    "ruff": _paths,
    "run": _own_script(".ci/run"),
    "sphinx-build": _sphinx_build,
    **dict.fromkeys(("diff", "head", "ls", "mkdir", "rm", "sort", "tar", "unzip"), _tool),
}
