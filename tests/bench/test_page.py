"""The roofline's picture and the page."""

from dataclasses import replace

import pytest

from cudnnlite.bench.page import plot_roofline, write_html
from cudnnlite.bench.rows import BenchRow, BenchRun
from cudnnlite.devices.peaks import CARDS
from cudnnlite.problems.roofline import HALF, TF32

PEAKS = CARDS["H200"]
ROW = BenchRow(
    "a <problem>",
    candidate="FFT (FMA)",
    line="cudnnlite bench --input 1",
    flops=4_000_000,
    nbytes=40_000,
    device_us=2.0,
    tflops=2.0,
    gbps=20.0,
    unit=HALF,
    kernels=("a_kernel<1>", "another"),
    findings=("writes behind y",),
)
FACTS = {
    "device": "NVIDIA H200",
    "roofs": {"flops": dict(PEAKS.flops), "bandwidth": PEAKS.bandwidth},
}


def test_rows_lie_under_the_roofs_of_their_units():
    other = replace(ROW, flops=80_000, tflops=0.5, unit=TF32)
    ax = plot_roofline(BenchRun((ROW, other), FACTS))
    points, *roofs = ax.lines
    assert points.get_xydata().tolist() == [[100, 2], [2, 0.5]]
    assert sorted(text.get_text() for text in ax.texts) == sorted([HALF, TF32])
    for roof in roofs:
        (left, low), (ridge, peak), (_, end) = roof.get_xydata().tolist()
        assert peak == end
        assert low / left == pytest.approx(peak / ridge) == pytest.approx(4.8)
    assert {roof.get_ydata()[-1] for roof in roofs} == {989.5, 494.5}


def test_the_numbers_of_the_axes_fit_into_the_margin():
    rows = [replace(ROW, tflops=rate, flops=flops) for rate, flops in ((210, 10**6), (790, 10**8))]
    ax = plot_roofline(BenchRun(tuple(rows), FACTS))
    ax.figure.draw_without_rendering()
    for axis in (ax.xaxis, ax.yaxis):
        texts = [label.get_text() for label in axis.get_ticklabels(which="both")]
        assert any(texts)
        assert max(map(len, texts)) < 6
        assert not [text for text in texts if "$" in text]


def test_without_rates_the_picture_says_so():
    ax = plot_roofline(BenchRun((replace(ROW, tflops=None),), FACTS))
    assert ax.texts[0].get_text() == "no rates: nothing was timed on a GPU"
    assert not ax.lines


def test_the_page_has_every_kernel_and_finding(tmp_path):
    write_html(tmp_path / "page.html", BenchRun((ROW,), FACTS))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for text in ("a &lt;problem&gt;", "a_kernel&lt;1&gt;", "another", "writes behind y", "<svg"):
        assert text in page
    assert "NumPy" not in page
    emulated = BenchRun((ROW,), {"device": "emulated (NumPy)"})
    write_html(tmp_path / "page.html", emulated)
    assert "NumPy's, not a GPU's" in (tmp_path / "page.html").read_text(encoding="utf-8")
