"""The published benchmark runs say how they were measured, and the benchmark page shows them all."""

from __future__ import annotations

import datetime
import json
import re
import shlex
from pathlib import Path

import pytest
from helpers.extensions import load
from markdown_pages import ROOT, Page

tables = load("run_tables")
PAGE = Page(ROOT / "docs" / "benchmarks.md")
TEXT = PAGE.path.read_text(encoding="utf-8")
NAMES = sorted(path.stem for path in tables.RUNS.glob("*.json"))
MOST_WORDS = 2500
A_RUN = {
    "title": "Products",
    "command": "python tools/benchmarks/products.py --all",
    "device": "a GPU",
    "versions": {"cuDNN": "9.2.1", "PyTorch": "2.0.0"},
    "date": "2026-01-31",
    "unit": "us",
    "columns": ["size", "ours", "PyTorch", "ratio"],
    "rows": [["2 x 2", 1.0, 2.00, [0.50, 0.70]], ["4 x 4", 8, 4, None], ["8 x 8", 3, None, None]],
    "summary": [["ours", "PyTorch"]],
    "remarks": ["Not tuned."],
}


def program_of(command: str) -> tuple[Path, list[str]]:
    """Return the file that a command line runs, and the arguments."""
    python, *words = shlex.split(command)
    assert python == "python", command
    if words[0] == "-m":
        return ROOT / f"{words[1].replace('.', '/')}.py", words[2:]
    return ROOT / words[0], words[1:]


def shown_names(text: str) -> list[str]:
    """Return the runs that a part of the page shows, in order."""
    return re.findall(r"^```\{run\} (\w+)$", text, re.MULTILINE)


def printed(name: str) -> str:
    """Return what the page prints of a run, in Markdown."""
    run = tables.read_run(name)
    parts = [run.title, run.table(), run.source()]
    if run.summary:
        parts.insert(0, run.summary_table())
    return "\n".join(parts)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_says_where_when_and_how(name):
    run = tables.read_run(name)
    assert re.fullmatch(r"NVIDIA \w+", run.device)
    assert "cuDNN" in run.versions
    assert all(re.fullmatch(r"\d+(\.\d+)+", version) for version in run.versions.values())
    assert datetime.date.fromisoformat(run.date) > datetime.date(2026, 1, 1)
    program, arguments = program_of(run.command)
    assert program.is_file()
    source = program.read_text(encoding="utf-8")
    for argument in arguments:
        if argument.startswith("--"):
            assert f'"{argument}"' in source, argument


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_ratios_fit_the_columns(name):
    run = tables.read_run(name)
    assert len(run.rows) > 1
    assert {len(row) for row in run.rows} == {len(run.columns)}
    assert len({*run.columns}) == len(run.columns)
    labels = run.column(run.columns[0])
    assert len({*labels}) == len(labels)
    for ratio in run.ratios():
        assert 0 < float(ratio.mean) <= float(ratio.worst) + 0.005


def test_the_page_shows_every_run_once():
    assert sorted(shown_names(TEXT)) == NAMES


def test_the_figures_of_a_section_are_those_of_its_runs():
    """A sentence of the page is stale if a newer run has other figures."""
    sections = re.split(r"^#+ ", TEXT, flags=re.MULTILINE)
    checked = 0
    for section in sections:
        runs = "\n".join(printed(name) for name in shown_names(section) or NAMES)
        known = set(re.findall(r"\d+\.\d+", runs))
        figures = re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", section)
        assert [figure for figure in figures if figure not in known] == [], section
        checked += len(figures)
    assert checked > 10


def test_the_page_is_short():
    text = "\n".join([PAGE.prose, *(printed(name) for name in NAMES)])
    words = [word for word in text.split() if re.search(r"\w", word)]
    assert len(words) <= MOST_WORDS


def test_a_run_is_printed_with_the_digits_of_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RUNS", tmp_path)
    text = json.dumps(A_RUN).replace("2.0, [0.5, 0.7]", "2.00, [0.50, 0.70]")
    (tmp_path / "products.json").write_text(text, encoding="utf-8")
    assert printed("products").splitlines() == [
        "| ratio | geometric mean | worst |",
        "| --- | ---: | ---: |",
        "| ours / PyTorch | 1.000 | 2.00 |",
        "Products",
        "| size | ours | PyTorch | ratio |",
        "| --- | ---: | ---: | ---: |",
        "| 2 x 2 | 1.0 | 2.00 | 0.50 (0.70) |",
        "| 4 x 4 | 8 | 4 |  |",
        "| 8 x 8 | 3 |  |  |",
        f"us. a GPU, cuDNN 9.2.1, PyTorch 2.0.0, 2026-01-31, `{A_RUN['command']}`. Not tuned.",
    ]
