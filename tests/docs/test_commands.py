"""The commands in README and docs: those of cudnnlite run; of the others what can be checked is checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
from markdown_pages import PAGES, ROOT, Block
from page_files import A_FOLDER, provide_cudnn, provide_files, write_cache
from shell_commands import Command, check, commands_of

OURS = "cudnnlite"
SHELL = ("console", "sh", "yaml")


def pages_with_ours() -> list[Any]:
    found = []
    for device in ("emulated", "cuda"):
        for page in PAGES:
            if any(f"{OURS} " in block.text for block in page.in_language("console", "sh")):
                marks = [pytest.mark.gpu] if device == "cuda" else []
                found.append(pytest.param(page, device, marks=marks, id=f"{page}-{device}"))
    return found


def first_pages() -> dict[str, Any]:
    """Return where each command stands first: there it is run, and not again on the other pages."""
    found: dict[str, Any] = {}
    for page in PAGES:
        for block in page.in_language("console", "sh"):
            for command in commands_of(block):
                found.setdefault(str(command._replace(line=0)), page)
    return found


@pytest.mark.processes
@pytest.mark.parametrize(("page", "device"), pages_with_ours())
def test_our_commands_succeed(page, device, tmp_path, monkeypatch):
    provide_files(tmp_path, page)
    monkeypatch.setenv("CUDNNLITE_TUNING_CACHE", str(tmp_path / "cache"))
    write_cache(tmp_path / "cache")
    number, first = 0, first_pages()
    for block in page.in_language("console", "sh"):
        exported: dict[str, str] = {}
        for command in commands_of(block):
            if not command.words:
                exported |= command.variables
            elif command.program == OURS:
                number += 1
                if first[str(command._replace(line=0))] is not page:
                    continue
                words, variables = command.words[1:], exported | command.variables
                if any(A_FOLDER in word for word in (*words, *variables.values())):
                    folder = provide_cudnn(tmp_path / f"cudnn{number}")
                    words = [word.replace(A_FOLDER, str(folder)) for word in words]
                    variables = {name: value.replace(A_FOLDER, str(folder)) for name, value in variables.items()}
                done = subprocess.run(
                    [sys.executable, "-m", OURS, *words], cwd=tmp_path, capture_output=True, text=True, check=False,
                    env=os.environ | {"CUDNNLITE_DEVICE": device} | variables, stdin=subprocess.DEVNULL,
                )  # fmt: skip
                assert done.returncode == 0, f"{page}:{command.line}: {command}\n{done.stdout}{done.stderr}"
    assert number


def other_commands() -> list[Any]:
    found = []
    for page in PAGES:
        for block in page.in_language(*SHELL):
            try:
                commands = commands_of(block)
            except Exception as error:  # for a test of its own: here it would hide all pages
                found.append(pytest.param(error, id=f"{page}:{block.line}"))
                continue
            found += [
                pytest.param(command, id=f"{page}:{command.line}-{command.program}")
                for command in commands
                if command.program != OURS or command.variables
            ]
    return found


@pytest.mark.parametrize("command", other_commands())
def test_other_commands_are_known_and_name_what_exists(command):
    if isinstance(command, Exception):
        raise command
    known = command._replace(words=[]) if command.program == OURS else command
    check(known)


def test_the_readmes_commands_are_run_by_the_check():
    """`.ci/run` takes the marked blocks out of the README and runs them; none may be without a mark."""
    page = next(page for page in PAGES if page.name == "README.md")
    blocks = page.in_language("sh")
    marks = [block.mark for block in blocks]
    assert {"demo", "test"} <= set(marks)
    for block in blocks:
        assert block.mark, f"README.md:{block.line}: a block that .ci/run does not run"
    script = (ROOT / ".ci" / "run").read_text()
    run = re.findall(r"^(\w+)=\$\(readme_command (\w+)\)$", script, re.MULTILINE)
    assert sorted(marks) == sorted(mark for _, mark in run)
    for variable, _ in run:
        assert f'\neval "${variable}"\n' in script


def parsed(text, language="sh"):
    return commands_of(Block(language, text, 10))


def test_commands_are_taken_apart():
    assert parsed("A_B=1 pip install \\\n  '.[x]' && cd y  # why\n\nexport C=2\n") == [
        Command(10, {"A_B": "1"}, ["pip", "install", ".[x]"]), Command(10, {}, ["cd", "y"]), Command(13, {"C": "2"}, []),
    ]  # fmt: skip
    assert parsed("$ a b | c\n", "console") == [Command(10, {}, ["a", "b"]), Command(10, {}, ["c"])]
    workflow = "jobs:\n  x:\n    steps:\n      - run: |\n          a\n          b c\n      - uses: d\n"
    assert [command.words for command in parsed(workflow, "yaml")] == [["a"], ["b", "c"]]
    with pytest.raises(AssertionError, match="line 11: 'printed' is no command"):
        parsed("$ a\nprinted\n", "console")


@pytest.mark.parametrize(
    "line",
    [
        "pip install '.[nonesuch]'", "pip install 'cudnnlite[nonesuch]'", "pip install nonesuch", "python nonesuch.py",
        "python -m cudnnlite.nonesuch", "python -m nonesuch", "python -m pytest tests/nonesuch", "nonesuch",
        ".venv/bin/ruff check nonesuch/x", "sphinx-build nonesuch out", "conda install nonesuch", "gcc nonesuch.c",
        "NONESUCH_VARIABLE=1 pip list", "export NONESUCH_VARIABLE=1", "sudo apt-get install nonesuch",
        "diff tests/nonesuch new.py", "pip install 'dist/*.whl[nonesuch]'",
    ],
)  # fmt: skip
def test_what_does_not_exist_is_found(line):
    (command,) = parsed(line)
    with pytest.raises(AssertionError):
        check(command)


@pytest.mark.parametrize(
    "line",
    [
        "pip install -e '.[cu12,test]'",
        "pip install 'nvidia-cudnn-cu12==9.10.*'",
        'x/bin/pip install "$(ls dist/*.whl)[cu12]"',
        "python tests/benchmarks/rnn.py --quick",
        "python -m cudnnlite._raw.generate --check",
        "CUDNNLITE_DEVICE=emulated python -m pytest tests/docs -q",
        "conda create -n x -c conda-forge python=3.12 'cuda-version=12'",
        ".venv/bin/sphinx-build -W -b html docs docs/_build/html",
        "diff tests/conftest.py new.py",
    ],
)
def test_what_exists_is_accepted(line):
    (command,) = parsed(line)
    check(command)
