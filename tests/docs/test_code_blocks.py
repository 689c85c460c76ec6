"""Every Python block of README and docs runs on both devices.

The blocks of a page run in order and in one namespace.  A block that begins with `# needs: torch`
(or several, with commas) is skipped where that is not installed, and so are the blocks after it
that read what it would have bound.  `# needs: a GPU` is for blocks that the emulated device cannot
run.
"""

from __future__ import annotations

import dis
import gc
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest
from in_one import in_one_test
from markdown_pages import PAGES, Block, Page
from page_files import provide_files

from cudnnlite.devices.device_choice import visible_gpus

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings it there
    import tomli as tomllib

LANGUAGES = {"python", "console", "sh", "c", "text", "toml", "yaml", "json"}
# directives that show code, which nobody would run; of the others Sphinx says what is wrong
CODE_DIRECTIVES = {"{code}", "{code-block}", "{code-cell}", "{sourcecode}"}
A_GPU = "a GPU"
ONLY_ON_A_GPU = {"cupy", "numba.cuda"}
_NEEDS = re.compile(r"# needs: (.+)\n")


class Step(NamedTuple):
    """A block on a device, with what is to be done with it.

    Attributes
    ----------
    block : Block
        The block.
    code : CodeType or SyntaxError
        Compiled, with the line numbers of the page; or why it cannot be.
    absent : str
        The package for want of which it cannot run; empty if it can.
    why_not : str
        Why it cannot run; empty if it can.
    """

    block: Block
    code: CodeType | SyntaxError
    absent: str = ""
    why_not: str = ""


def needs_of(block: Block) -> list[str]:
    """Return what a block says that it needs."""
    match = _NEEDS.match(block.text)
    return [need.strip() for need in match[1].split(",")] if match else []


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package.partition(".")[0]) is not None


def compiled(page: Page, block: Block) -> CodeType | SyntaxError:
    try:
        # errors then name the line of the page
        return compile(
            "\n" * (block.line - 1) + block.text, str(page.path), "exec", dont_inherit=True
        )
    except SyntaxError as error:  # for the block's own test: here it would hide all pages
        return error


def names_of(code: CodeType | SyntaxError) -> tuple[set[str], set[str]]:
    """Return the names that a block reads before it has bound them, and those that it binds."""
    read: set[str] = set()
    bound: set[str] = set()
    if isinstance(code, SyntaxError):
        return read, bound
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("LOAD_NAME", "LOAD_GLOBAL") and name not in bound:
            read.add(name)
        elif instruction.opname in ("STORE_NAME", "STORE_GLOBAL"):
            bound.add(name)
        elif isinstance(
            name, CodeType
        ):  # a function or a comprehension: what it reads of the page's
            read |= names_of(name)[0] - bound
    return read, bound


def steps_of(page: Page, device: str) -> list[Step]:
    """Return the blocks that a page has for a device."""
    steps: list[Step] = []
    absences: dict[
        str, tuple[int, str]
    ] = {}  # name -> line of the block that would have bound it, and what that lacks
    for block in page.in_language("python"):
        code = compiled(page, block)
        read, bound = names_of(code)
        needs = needs_of(block)
        lacking = A_GPU if device != "cuda" and ({A_GPU, *ONLY_ON_A_GPU} & set(needs)) else ""
        lacking = lacking or next(
            (need for need in needs if need != A_GPU and not is_installed(need)), ""
        )
        why = f"{lacking} is not installed" if lacking else ""
        lost = sorted((absences[name][0], name) for name in read & absences.keys())
        if lost and not lacking:
            line, name = lost[0]
            lacking = absences[name][1]
            why = f"{name} is of the block on line {line}, which needs {lacking}"
        for name in bound:
            absences.pop(name, None)
            if lacking:
                absences[name] = block.line, lacking
        steps.append(Step(block, code, lacking, why))
    return [step for step in steps if step.absent != A_GPU]


class PageRun:
    """A page on a device: its namespace, its folder, and how far it got."""

    def __init__(self, page: Page, device: str, folder: Path) -> None:
        self.key = page, device
        self.folder = folder
        self._names: dict[str, Any] = {"__name__": "page"}
        self._left = [step for step in steps_of(page, device) if not step.absent]
        self._failed = 0
        provide_files(folder, page)

    def run(self, line: int) -> None:
        """Run the blocks before a line that did not run yet, and then the one that begins there."""
        while self._left and self._left[0].block.line <= line:
            if self._failed:
                pytest.fail(f"the block on line {self._failed} failed", pytrace=False)
            step = self._left.pop(0)
            self._failed = step.block.line
            if isinstance(step.code, SyntaxError):
                raise step.code
            exec(step.code, self._names)
            self._failed = 0

    def close(self) -> None:
        self._names.clear()
        gc.collect()


class Runs:
    """The page that is being run.

    There is one at a time, so that what a page leaves behind does not stay.
    """

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._run: PageRun | None = None

    def of(self, page: Page, device: str) -> PageRun:
        if self._run is None or self._run.key != (page, device):
            self.close()
            self._run = PageRun(page, device, self._factory.mktemp("page"))
        return self._run

    def close(self) -> None:
        if self._run is not None:
            self._run.close()
        self._run = None


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    all_runs = Runs(tmp_path_factory)
    yield all_runs
    all_runs.close()


def cases() -> list[Any]:
    params = []
    for device in ("emulated", "cuda"):
        for page in PAGES:
            for step in steps_of(page, device):
                marks = [pytest.mark.gpu] if device == "cuda" else []
                if step.why_not:
                    marks.append(pytest.mark.skip(reason=step.why_not))
                name = f"{page}:{step.block.line}-{device}"
                params.append(pytest.param(page, step.block.line, device, marks=marks, id=name))
    return params


@pytest.mark.parametrize(("page", "line", "device"), cases())
def test_python_block_runs(page, line, device, runs, monkeypatch):
    run = runs.of(page, device)
    monkeypatch.setenv("CUDNNLITE_DEVICE", device)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(run.folder)
    run.run(line)


@in_one_test(PAGES)
def test_every_block_has_a_language_and_is_well_formed(page):
    assert not page.unclosed, f"{page}:{page.unclosed}: the fence is never closed"
    for block in page.blocks:
        where = f"{page}:{block.line}"
        if block.language.startswith("{"):
            assert block.language not in CODE_DIRECTIVES, (
                f"{where}: a fence with a language is tested, this is not"
            )
            continue
        assert block.language in LANGUAGES, (
            f"{where}: {block.language!r}; known: {sorted(LANGUAGES)}"
        )
        assert block.text.strip(), f"{where}: empty"
        assert (block.language == "python") or not needs_of(block), (
            f"{where}: only Python blocks can need something"
        )
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "yaml":
            import yaml

            assert yaml.safe_load(block.text) is not None, where
        elif block.language == "json":
            json.loads(block.text)


@pytest.mark.processes
def test_the_tests_that_a_page_proposes_do_what_it_says(tmp_path):
    """The Python of 'Test without a GPU' works as a file of tests.

    Each test runs on both devices, or is skipped with the reason.
    """
    page = next(page for page in PAGES if page.name == "docs/howto/test_without_a_gpu.md")
    text = "\n".join(block.text for block in page.in_language("python"))
    (tmp_path / "test_edges.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        "test_edges.py",
    ]
    for required in ("0", "1"):
        environment = os.environ | {"CUDNNLITE_DEVICE": "emulated", "REQUIRE_GPU": required}
        process = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        if not visible_gpus() and required == "1":
            assert "2 passed, 1 error" in process.stdout
            assert process.returncode == 1
        else:
            assert ("3 passed" if visible_gpus() else "2 passed, 1 skipped") in process.stdout
            assert process.returncode == 0


def test_the_pages_are_found():
    with_python = {page.name for page in PAGES if page.in_language("python")}
    assert {"README.md", "docs/index.md", "docs/guide/index.md", "docs/guide/rnn.md"} <= with_python
