"""The commands in README and docs.

Those of cudnnlite are run; of the others, what can be checked is checked.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from markdown_pages import PAGES, ROOT
from page_files import A_FOLDER, provide_cudnn, provide_files, write_cache
from shell_commands import check, commands_of

OURS = "cudnnlite"
SHELL = ("console", "sh", "yaml")
RECORDING = ["cache", "record"]  # refuses the emulated device, whose times mean nothing


def pages_with_ours() -> list[Any]:
    params = []
    for device in ("emulated", "cuda"):
        for page in PAGES:
            if any(f"{OURS} " in block.text for block in page.in_language("console", "sh")):
                marks = [pytest.mark.gpu] if device == "cuda" else []
                params.append(pytest.param(page, device, marks=marks, id=f"{page}-{device}"))
    return params


def key_of(command: Any) -> str:
    """Return what two commands share that do the same, wherever their program lies."""
    return str((command.program, command.words[1:], command.variables))


def first_pages() -> dict[str, Any]:
    """Return where each command stands first: there it is run, and not again on the other pages."""
    pages: dict[str, Any] = {}
    for page in PAGES:
        for block in page.in_language("console", "sh"):
            for command in commands_of(block):
                pages.setdefault(key_of(command), page)
    return pages


@pytest.mark.processes
@pytest.mark.parametrize(("page", "device"), pages_with_ours())
@pytest.mark.exhaustive
def test_our_commands_succeed(page, device, commands, tmp_path, monkeypatch):
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
                if first[key_of(command)] is not page:
                    continue
                words, variables = command.words[1:], exported | command.variables
                if device == "emulated" and words[:2] == RECORDING:
                    continue
                if (
                    device == "emulated" and "--input" in words
                ):  # NumPy takes half a minute for a batch of 32
                    shape = words.index("--input") + 1
                    words[shape] = re.sub(r"^\d+", "1", words[shape])
                if device == "emulated" and "--libcudnn" in words and "--list" in words:
                    # Both libraries would compile the kernels of a whole network.
                    start = words.index("--list")
                    words[start : start + 2] = ["--matmul", "m=128,n=64,k=32"]
                if device == "emulated" and "," in (gpus := words[-1]) and "--gpu" in words:
                    words[-1] = gpus.partition(",")[0]  # each of them takes a process
                if any(A_FOLDER in word for word in (*words, *variables.values())):
                    folder = provide_cudnn(tmp_path / f"cudnn{number}")
                    words = [word.replace(A_FOLDER, str(folder)) for word in words]
                    variables = {
                        name: value.replace(A_FOLDER, str(folder))
                        for name, value in variables.items()
                    }
                with monkeypatch.context() as environment:
                    for name, value in {"CUDNNLITE_DEVICE": device, **variables}.items():
                        environment.setenv(name, value)
                    process = commands.run(*words, folder=tmp_path)
                assert process.returncode == 0, (
                    f"{page}:{command.line}: {command}\n{process.stdout}{process.stderr}"
                )
    assert number


def other_commands() -> list[Any]:
    params = []
    for page in PAGES:
        for block in page.in_language(*SHELL):
            try:
                commands = commands_of(block)
            except Exception as error:  # for a test of its own: here it would hide all pages
                params.append(pytest.param(error, id=f"{page}:{block.line}"))
                continue
            params += [
                pytest.param(command, id=f"{page}:{command.line}-{command.program}")
                for command in commands
                if command.program != OURS or command.variables
            ]
    return params


@pytest.mark.parametrize("command", other_commands())
def test_other_commands_are_known_and_name_what_exists(command):
    if isinstance(command, Exception):
        raise command
    existing = command._replace(words=[]) if command.program == OURS else command
    check(existing)


def test_the_readmes_commands_are_run_by_the_check():
    """`.ci/run` runs the marked blocks of the README; every block has to be marked."""
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
