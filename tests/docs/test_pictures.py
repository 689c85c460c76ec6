"""The charts show the figures of the runs, and code in the text links to the reference."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace

import pytest
from helpers.extensions import load
from markdown_pages import ROOT
from matplotlib.figure import Figure

from cudnnlite.workbench.bench.rows import BenchRow, BenchRun, load_run
from tools.benchmarks.keep_run import kept

IMAGES = ROOT / "docs" / "images"


def words(path):
    texts = re.findall(r">([^<>]+)</", path.read_text(encoding="utf-8"))
    return [word.strip() for word in texts if word.strip()]


CHARTS = {
    "choices": ["choices"],
    "eager": ["convolutions_eager"],
    "beside_pytorch": ["convolutions_eager", "resnet50", "attention", "one_line"],
}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_shows_the_runs_as_they_are_now(name, tmp_path, monkeypatch):
    """Or `python docs/draw.py` has to be run."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    draw = importlib.import_module("draw")
    monkeypatch.setattr(draw, "IMAGES", tmp_path)
    getattr(draw, name)()
    chart_words = words(IMAGES / f"{name}.svg")
    assert chart_words == words(tmp_path / f"{name}.svg")
    figures = [word for word in chart_words if re.fullmatch(r"\d+\.\d{2,3}", word)]
    assert len(figures) >= 14
    runs = [load("run_tables").read_run(run) for run in CHARTS[name]]
    tables = "\n".join(run.table() + run.summary_table() for run in runs)
    assert [figure for figure in figures if figure not in tables] == []
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert f"images/{name}.svg" in page


def test_every_picture_is_shown_on_a_page():
    sources = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").glob("*.ipynb"),
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    pictures = [path.name for path in IMAGES.iterdir()]
    assert [name for name in pictures if f"images/{name}" not in text] == []


RUNS = ROOT / "tools" / "benchmarks" / "data"


def test_the_rooflines_are_those_of_the_runs_that_are_kept(tmp_path, monkeypatch):
    """Or `python docs/draw.py rooflines` has to be run."""
    draw_rooflines(monkeypatch, RUNS, tmp_path)
    names = {path.name for path in IMAGES.glob("roofline_*.svg")}
    assert names == {path.name for path in tmp_path.iterdir()}
    page = (ROOT / "docs" / "howto" / "bench.md").read_text(encoding="utf-8")
    for name in names:
        assert words(IMAGES / name) == words(tmp_path / name)
        assert f"images/{name}" in page
    assert all(load_run(path).has_real_timing for path in RUNS.glob("bench_*.json"))


def draw_rooflines(monkeypatch, runs, images):
    monkeypatch.syspath_prepend(ROOT / "docs")
    draw = importlib.import_module("draw")
    monkeypatch.setattr(draw, "RUNS", runs)
    monkeypatch.setattr(draw, "IMAGES", images)
    draw.rooflines()


def test_what_is_kept_of_a_run_draws_its_roofline(tmp_path, monkeypatch):
    facts = {
        "device": "a GPU",
        "cuDNN": "9.2.1",
        "time": "2026-01-31T10:00:00+00:00",
        "libcudnn": "/home/someone/libcudnn.so.9",
        "has real timing": True,
        "roofs": {"flops": {"TF32": 4e14}, "bandwidth": 2e12},
    }
    point = {"flops": 4_000_000, "nbytes": 40_000, "unit": "TF32", "error": float("nan")}
    rows = (
        BenchRow("p", "net 3", tflops=2.0, gbps=20.0, line="cudnnlite bench --c /x", **point),
        BenchRow("p", "net 17", tflops=0.5, kernels=("a_kernel",), device_us=8.0, **point),
        BenchRow("p", "net 20", status="not served: no", flops=1, nbytes=1),
    )
    path = tmp_path / "bench_net.json"
    saved = BenchRun(rows, facts)
    path.write_text(kept(saved), encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    assert not re.search("someone|/x|a_kernel", text)
    again = load_run(path)
    assert again.facts == {name: facts[name] for name in facts if name != "libcudnn"}
    expected = [replace(row, line="", kernels=()) for row in rows]
    assert [str(row) for row in again.rows] == [str(row) for row in expected]  # nan is not nan
    draw_rooflines(monkeypatch, tmp_path, tmp_path)
    chart_words = words(tmp_path / "roofline_net.svg")
    assert "a GPU, cuDNN 9.2.1, 2026-01-31" in chart_words
    assert {"TF32", "3", "17"} <= {*chart_words}
    assert not {"20", "net"} & {*chart_words}


def test_rows_lie_under_the_roofs_of_their_units(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    draw = importlib.import_module("draw")
    row = BenchRow("p", flops=4_000_000, nbytes=40_000, tflops=2.0, unit="half")
    other = replace(row, flops=80_000, tflops=0.5, unit="TF32")
    axis = Figure().add_subplot()
    peaks = {"half": 990e12, "TF32": 495e12, "float64": 67e12}
    draw.draw_roofline(axis, [row, other], {"flops": peaks, "bandwidth": 4.8e12})
    points, *roofs = axis.lines
    assert points.get_xydata().tolist() == [[100, 2], [2, 0.5]]
    assert {roof.get_ydata()[-1] for roof in roofs} == {990, 495}
    for roof in roofs:
        (left, low), (ridge, peak), (_, end) = roof.get_xydata().tolist()
        assert peak == end
        assert low / left == pytest.approx(peak / ridge) == pytest.approx(4.8)


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
