"""The charts show the figures of benchmarks.md, and code in the text links to the reference."""

from __future__ import annotations

import importlib
import re

import pytest
from extensions import load
from markdown_pages import ROOT

IMAGES = ROOT / "docs" / "images"


def words(path):
    texts = re.findall(r">([^<>]+)</", path.read_text(encoding="utf-8"))
    return [word.strip() for word in texts if word.strip()]


@pytest.mark.parametrize("name", ["choices", "eager", "beside_pytorch", "resnet50", "networks"])
def test_a_chart_shows_the_table_as_it_is_now(name, tmp_path, monkeypatch):
    """Or `python docs/draw.py` has to be run."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    draw = importlib.import_module("draw")
    monkeypatch.setattr(draw, "IMAGES", tmp_path)
    getattr(draw, name)()
    chart_words = words(IMAGES / f"{name}.svg")
    assert chart_words == words(tmp_path / f"{name}.svg")
    figures = [word for word in chart_words if re.fullmatch(r"\d+\.\d{2,3}", word)]
    assert len(figures) >= 14
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert [figure for figure in figures if figure not in page] == []
    assert f"images/{name}.svg" in page


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/benchmarks.md"])
def test_a_front_page_shows_what_stands_now(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "images/beside_pytorch.svg" in text


def test_pictures_are_small_and_the_front_page_short():
    assert {
        path.name: path.stat().st_size for path in IMAGES.iterdir() if path.stat().st_size > 130_000
    } == {}
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("dnn.Tuner", "Tuner"),
        ("handle.array(x, layout='NHWC')", "Handle.array"),
        ("dnn.capture(handle)", "capture"),
        ("handle.api.cudnnIm2Col", "Handle.api.cudnnIm2Col"),
        ("cudnnRNNForward", "cudnnRNNForward"),
        ("y = a + b", ""),
        ("pip install", ""),
        ("--html", ""),
    ],
)
def test_the_name_that_code_is_about(code, name):
    assert load("code_links").name_of(code) == name
