"""Every Python block of README and docs runs, in order, on the emulated device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_python_blocks_run(page, monkeypatch, capsys):
    monkeypatch.setenv("CUDNNLITE_DEVICE", "emulated")
    text = page.read_text()
    names: dict[str, object] = {}
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 1
        code = compile("\n" * line + block[1], str(page), "exec")  # errors then name the line of the page
        exec(code, names)


def test_there_are_pages_with_code():
    assert {"README.md", "index.md", "guide.md"} <= {page.name for page in WITH_CODE}


def test_the_package_docstring_runs():
    import doctest

    import cudnnlite

    results = doctest.testmod(cudnnlite)
    assert results.attempted >= 2
    assert results.failed == 0
