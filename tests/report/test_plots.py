"""The charts draw what was measured, read from matplotlib's objects and not from pixels."""

import itertools
import math
import random
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from helpers.tunings import (
    CLOSE,
    DYNAMIC,
    FFT,
    GEMM,
    IMPLICIT,
    KIB,
    MIB,
    NOTHING,
    PRECOMP,
    STANDARD,
    STATIC,
    WINOGRAD,
    WRONG,
    A,
    M,
    Row,
    failed,
    lstm,
    model,
    table,
    tuned,
)
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import cudnnlite as dnn
from cudnnlite.autotune.tuned_problem import place_of, shared_workspace
from cudnnlite.errors import MissingPackageError
from cudnnlite.problems.problem_list import summary
from cudnnlite.problems.results import named, within_noise
from cudnnlite.report.axes import COLORS, chart_style
from cudnnlite.report.page import inline_svg
from cudnnlite.report.plots import (
    front_of,
    plot_model,
    plot_pareto,
    plot_times,
    plot_workspace,
    save_chart,
    shorten,
)

TIMED = (PRECOMP, CLOSE, WINOGRAD, IMPLICIT, GEMM)


def bars(ax):
    """(length, colour) of each bar, from the top."""
    patches = sorted(
        (patch.get_y(), patch.get_width(), to_hex(patch.get_facecolor())) for patch in ax.patches
    )
    ylim = ax.get_ylim()
    assert (
        ylim[0] > patches[-1][0] >= patches[0][0] > ylim[1]
    )  # all inside, and the first is the uppermost
    return [(width, color) for _, width, color in patches]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def points(ax, color, marker):
    """What is marked in a colour."""
    return [
        (float(x), float(y))
        for line in ax.lines
        if to_hex(line.get_color()) == COLORS[color] and line.get_marker() == marker
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


# ---------------------------------------------------------------- times


def test_bars_are_as_long_as_the_times():
    ax = plot_times(table(), chosen=PRECOMP)
    assert bars(ax) == [
        (row.time_ms, COLORS["chosen" if row is PRECOMP else "bar"]) for row in TIMED
    ]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        row.algorithm.name for row in TIMED
    ]
    assert list(ax.get_yticks()) == [0, 1, 2, 3, 4]
    assert [label.get_text() for label in ax.get_yticklabels(minor=True)] == [
        "TENSOR_OP, 0.0333 ms",
        "DEFAULT, 0.0339 ms",
        "DEFAULT, NCHW, 0.0607 ms",
        "FMA, 0.1518 ms",
        "FMA, 0.9123 ms ▸",
    ]
    assert ax.get_xlabel() == "device time (ms)"
    assert legend(ax) == ["cudnnFind's figure", "chosen", "candidate"]


def test_the_spread_is_drawn_around_the_ends():
    ax = plot_times(table())
    (lines,) = ax.containers[1].lines[2]
    halves = [(row.spread_ms or 0) / 2 for row in TIMED]
    assert [segment.tolist() for segment in lines.get_segments()] == [
        [[pytest.approx(row.time_ms - half), place], [pytest.approx(row.time_ms + half), place]]
        for place, (row, half) in enumerate(zip(TIMED, halves, strict=True))
    ]


def test_no_spread_no_bars_of_error():
    ax = plot_times(table((STATIC, STANDARD)))
    assert len(ax.containers) == 1
    assert legend(ax) == ["candidate"]


def test_what_cudnnfind_said_is_marked_in_its_row():
    ax = plot_times(table(), chosen=PRECOMP)
    assert points(ax, "find", "D") == [(0.1848, 0), (0.0345, 1), (0.9876, 4)]


def test_long_bars_are_cut_off_so_that_the_short_ones_can_be_compared():
    assert plot_times(table()).get_xlim() == (0, pytest.approx(1.1 * 12 * 0.0333))
    # but never the chosen one
    assert plot_times(table(), chosen=GEMM).get_xlim() == (0, pytest.approx(1.1 * 0.9876))
    assert plot_times(table((STATIC, STANDARD))).get_xlim() == (0, pytest.approx(1.1 * 6.1))


def test_the_chosen_row_is_found_again_without_what_was_passed_over():
    full_table = table()
    choice = full_table.best(workspace_limit=KIB)
    assert choice.passed_over
    assert [color for _, color in bars(plot_times(full_table, chosen=choice))].index(
        COLORS["chosen"]
    ) == 2


def test_rows_without_times_have_no_bar():
    untimed = Row(A.GEMM, M.DEFAULT)
    assert len(bars(plot_times(table((PRECOMP, untimed, CLOSE))))) == 2


@pytest.mark.parametrize("rows", [(), (NOTHING,), (FFT, WRONG), (Row(A.GEMM, M.DEFAULT),)], ids=len)
@pytest.mark.parametrize("plot", [plot_times, plot_pareto])
def test_nothing_to_draw_is_said(plot, rows):
    ax = plot(table(rows))
    assert texts(ax) == ["no candidate was timed"]
    assert not ax.patches
    assert not ax.lines


def test_a_time_of_nought_is_no_accident():
    rows = (Row(A.GEMM, M.DEFAULT, time_ms=0.0), Row(A.FFT, M.DEFAULT, time_ms=0.0))
    assert [width for width, _ in bars(plot_times(table(rows)))] == [0, 0]
    assert plot_pareto(table(rows)).get_yscale() == "linear"


@pytest.mark.parametrize("plot", [plot_times, plot_pareto])
def test_a_chosen_row_of_another_table_is_refused(plot):
    with pytest.raises(
        dnn.ArgumentError,
        match=r"chosen=PERSIST_STATIC \(TENSOR_OP\) is no row of <AlgorithmTable of 8",
    ):
        plot(table(), chosen=STATIC)


@pytest.mark.parametrize("plot", [plot_times, plot_pareto])
def test_axes_that_are_given_are_drawn_on(plot):
    ax = Figure().add_subplot()
    before = ax.get_position().bounds
    assert plot(table(), ax) is ax
    assert ax.get_position().bounds == before
    ax = Figure().add_subplot()
    assert plot_model(model(2), ax) is ax
    ax = Figure().add_subplot()
    assert plot_workspace(model(2), ax) is ax


# ---------------------------------------------------------------- the front


def test_the_front():
    ax = plot_pareto(table(), chosen=CLOSE)
    front = [(0, 0.1518), (8, 0.0607), (96 * KIB, 0.0333)]
    assert points(ax, "front", "o") == front
    # IMPLICIT, WINOGRAD and PRECOMP bound what is possible: a step at each, and on to the edge
    assert points(ax, "front", "None") == [*front, (ax.get_xlim()[1], 0.0333)]
    assert {line.get_drawstyle() for line in ax.lines if line.get_linestyle() == "-"} == {
        "steps-post"
    }
    assert points(ax, "faint", "o") == [(172 * KIB, 0.0339), (81 * MIB, 0.9123)]
    assert points(ax, "chosen", "o") == [(172 * KIB, 0.0339)]
    assert legend(ax) == ["front", "chosen", "other candidate"]
    assert set(texts(ax)) <= {
        "IMPLICIT_GEMM, FMA",
        "WINOGRAD, DEFAULT, NCHW",
        "IMPLICIT_PRECOMP_GEMM, TENSOR_OP",
    }
    assert "IMPLICIT_PRECOMP_GEMM, TENSOR_OP" in texts(ax)
    assert [ax.xaxis.get_major_formatter()(tick, 0) for tick in ax.get_xticks()] == [
        "0 B",
        "64 KiB",
        "1 MiB",
        "16 MiB",
    ]
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylabel()) == (
        "symlog",
        "log",
        "device time (ms)",
    )
    ticks = [tick for tick in ax.get_yticks() if ax.get_ylim()[0] <= tick <= ax.get_ylim()[1]]
    assert [ax.yaxis.get_major_formatter()(tick, 0) for tick in ticks] == [
        "0.05",
        "0.1",
        "0.2",
        "0.5",
        "1",
    ]


def test_every_point_is_inside():
    for rows in ((PRECOMP,), TIMED, (STATIC, STANDARD), (PRECOMP, CLOSE)):
        ax = plot_pareto(table(rows), chosen=rows[0])
        for (x, y), color in itertools.product(
            [(row.workspace, row.time_ms) for row in rows], ["front"]
        ):
            assert ax.get_xlim()[0] < x < ax.get_xlim()[1], color
            assert ax.get_ylim()[0] < y < ax.get_ylim()[1]
        assert len(ax.get_yticks()) > 1


def test_names_do_not_lie_on_each_other():
    rows = [
        Row(A.GEMM, M.FMA, time_ms=1 + 0.001 * index, workspace=1000 - index) for index in range(50)
    ]
    ax = plot_pareto(table(rows))
    assert len(points(ax, "front", "o")) == 50
    boxes = [text.get_window_extent() for text in ax.texts]
    assert 1 <= len(boxes) < 10
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize("seed", range(20))
def test_the_front_by_its_definition(seed):
    numbers = random.Random(seed)
    rows = [
        Row(
            A.GEMM,
            M.FMA,
            time_ms=numbers.choice((None, 0.1, 0.2, 0.3, 0.4)),
            workspace=numbers.randrange(5),
            why_not="no" * (numbers.random() < 0.2),
        )
        for _ in range(12)
    ]
    points_of_rows = {
        (row.workspace, row.time_ms) for row in rows if row.ok and row.time_ms is not None
    }
    expected_front = {
        (size, ms)
        for size, ms in points_of_rows
        if not any(s <= size and t <= ms and (s, t) != (size, ms) for s, t in points_of_rows)
    }
    front = front_of(table(rows))
    assert [(rows[index].workspace, rows[index].time_ms) for index in front] == sorted(
        expected_front
    )
    assert all(rows[index].ok for index in front)


# ---------------------------------------------------------------- models


def test_totals_of_a_model_the_largest_on_top():
    problems = [
        tuned((CLOSE, GEMM), count=3, names=("b", "c")),
        failed(names=("d",)),
        tuned((GEMM,), count=2, names=("a $x$ <b>",)),
        tuned((STATIC,), lstm()),
    ]
    ax = plot_model(problems)
    assert [width for width, _ in bars(ax)] == [2 * 0.9123, 1.067, 3 * 0.0339]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["a $x$ <b> × 2", shorten(summary(lstm())), "b × 3"]
    assert not any(label.get_parse_math() for label in ax.get_yticklabels())  # a name is no formula
    assert texts(ax) == ["1.825 (61.0 %)", "1.067 (35.6 %)", "0.1017 (3.4 %)"]
    assert ax.get_xlabel() == "total (device ms)"


def test_the_smallest_of_many_share_a_bar():
    problems = model(60)
    ax = plot_model(problems)
    totals = sorted((problem.total_ms() for problem in problems), reverse=True)
    assert [width for width, _ in bars(ax)] == [*totals[:40], pytest.approx(sum(totals[40:]))]
    assert ax.get_yticklabels()[40].get_text() == "20 others"
    assert texts(ax)[40].endswith(f" ({100 * sum(totals[40:]) / sum(totals):.1f} %)")


@pytest.mark.parametrize("problems", [[], [failed()]], ids=["none", "failed"])
@pytest.mark.parametrize("plot", [plot_model, plot_workspace])
def test_a_model_without_times(plot, problems):
    assert texts(plot(problems)) == ["no problem was timed"]


def total_within(problems, size, of):
    """Return the least total under a shared workspace, by its definition.

    It is None if a problem does not fit.
    """
    total = 0.0
    for problem in problems:
        fits = [
            of(row)
            for row in problem.table
            if row.ok and of(row) is not None and row.workspace <= size
        ]
        if not fits:
            return None
        total += problem.count * min(fits)
    return total


@pytest.mark.parametrize("seed", range(5))
def test_the_workspace_that_all_share(seed):
    problems = model(9, seed)
    curve = shared_workspace(problems)
    sizes, totals = [size for size, _ in curve], [total for _, total in curve]
    assert sizes == sorted(set(sizes))
    assert totals == sorted(set(totals), reverse=True)
    for size in sorted({row.workspace for problem in problems for row in problem.table}):
        least_total = total_within(problems, size, lambda row: row.time_ms)
        totals_within = [total for least, total in curve if least <= size]
        assert (totals_within[-1] if totals_within else None) == pytest.approx(least_total)
    assert totals[-1] == pytest.approx(sum(problem.total_ms() for problem in problems))


def test_the_time_of_a_call_counts_under_latency():
    problems, latency = [tuned((PRECOMP, CLOSE, WINOGRAD, GEMM), count=2)], {"objective": "latency"}
    assert shared_workspace(problems, latency) == [
        (8, 2 * 0.0608),
        (96 * KIB, 2 * 0.0355),
        (172 * KIB, 2 * 0.0347),
    ]
    assert shared_workspace(problems) == [(8, 2 * 0.0607), (96 * KIB, 2 * 0.0333)]
    assert [width for width, _ in bars(plot_model(problems, policy=latency))] == [2 * 0.0355]


def test_more_workspace_that_gains_nothing_is_no_step():
    rows = [Row(A.GEMM, M.FMA, time_ms=0.5, workspace=size) for size in (MIB, KIB, 2 * KIB)]
    assert shared_workspace([tuned(rows)]) == [(KIB, 0.5)]


def test_the_curve_begins_where_every_problem_can_run():
    problems = [tuned((PRECOMP, WINOGRAD)), tuned((GEMM,), count=2), failed()]
    least = 0.0333 + 2 * 0.9123
    assert shared_workspace(problems) == [(81 * MIB, least)]
    ax = plot_workspace(problems, policy={"workspace_limit": 1 << 30})
    assert points(ax, "front", "o") == [(81 * MIB, least)]
    assert points(ax, "front", "None") == [(81 * MIB, least), (ax.get_xlim()[1], least)]
    assert ax.lines[0].get_drawstyle() == "steps-post"
    assert points(ax, "chosen", "o") == [(81 * MIB, least)]
    assert {x for x, _ in points(ax, "faint", "None")} == {1 << 30}
    assert legend(ax) == ["the fastest that fits", "chosen", "limit 1 GiB"]
    assert ax.get_xlim()[1] > 1 << 30


@pytest.mark.parametrize(("limit", "line"), [(None, None), ("10%", None), (MIB, "limit 1 MiB")])
def test_the_limit_is_drawn(limit, line):
    labels = legend(plot_workspace(model(3), policy={"workspace_limit": limit}))
    assert labels == ["the fastest that fits", "chosen", *([line] if line else [])]


# ---------------------------------------------------------------- files


KINDS = {
    "one": [tuned()],
    "rnn": [tuned((STATIC, DYNAMIC), lstm())],
    "failed": [failed()],
    "model": model(3),
}


@pytest.mark.parametrize(
    ("suffix", "magic", "kind"),
    [
        *((".png", b"\x89PNG", kind) for kind in KINDS),
        (".svg", b"<?xml", "one"),
        (".PDF", b"%PDF", "model"),
    ],
)
def test_pictures(tmp_path, suffix, magic, kind):
    path = tmp_path / f"chart{suffix}"
    save_chart(path, KINDS[kind])
    first = path.read_bytes()
    assert first.startswith(magic)
    save_chart(str(path), KINDS[kind])
    assert path.read_bytes() == first


def test_a_picture_says_what_and_where(tmp_path):
    for problems, title in ([tuned(names=("a < b",))], "a < b"), (model(3), "3 problems"):
        save_chart(tmp_path / "chart.svg", problems)
        chart_texts = [
            element.text
            for element in ElementTree.parse(tmp_path / "chart.svg").iter()
            if element.tag.endswith("}text")
        ]
        assert title in chart_texts
        assert f"times: {problems[0].table.timing}" in chart_texts


@pytest.mark.parametrize("name", ["chart.jpg", "chart", ".png", "chart.png.txt"])
def test_other_formats_are_refused(tmp_path, name):
    with pytest.raises(
        dnn.ArgumentError, match=r"path='.*' ends in '.*'; allowed: \.png, \.svg, \.pdf"
    ):
        save_chart(tmp_path / name, [tuned()])
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments_of_save_chart(tmp_path):
    with pytest.raises(dnn.ArgumentError, match="allowed: a file in a folder that exists"):
        save_chart(tmp_path / "no" / "chart.png", [tuned()])
    with pytest.raises(dnn.ArgumentError, match="tunings is empty"):
        save_chart(tmp_path / "chart.png", [])
    assert list(tmp_path.iterdir()) == []


def test_names_in_letters_that_the_font_lacks_do_not_warn(tmp_path):
    odd = "卷积 \ud800\x00"
    save_chart(tmp_path / "chart.png", [tuned(names=(odd,)), tuned(names=(odd,))])
    save_chart(tmp_path / "chart.pdf", [tuned(names=(odd,))])


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for call in (
        lambda: plot_times(table()),
        lambda: plot_workspace(model(2)),
        lambda: save_chart(tmp_path / "chart.png", [tuned()]),
    ):
        with pytest.raises(
            MissingPackageError,
            match=r"charts need matplotlib .*: pip install 'cudnnlite\[report\]'",
        ):
            call()


@pytest.mark.processes
def test_pyplot_is_left_alone():
    """And importing the charts imports no matplotlib at all."""
    program = """
import sys
from cudnnlite import report
from cudnnlite.report import plots
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.enums import ConvolutionFwdAlgo, MathType
assert "matplotlib" not in sys.modules and "jinja2" not in sys.modules
row = AlgorithmResult(ConvolutionFwdAlgo.GEMM, MathType.FMA, time_ms=1.0)
plots.plot_times(AlgorithmTable([row], title="t", timing="t"))
assert "matplotlib.figure" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# ---------------------------------------------------------------- SVG inside a page


def drawn(ax, name="a", label="l"):
    with chart_style():
        return inline_svg(ax.figure, name, label)


@pytest.mark.parametrize("plot", [plot_times, plot_pareto])
def test_svg_is_whole_and_keeps_to_itself(plot):
    with chart_style():
        ax = plot(table(), chosen=PRECOMP)
    label = 'a "b" <c> & d'
    root = ElementTree.fromstring(drawn(ax, "x7", label))
    assert root.tag == "svg"
    assert root.attrib.keys() == {"viewBox", "role", "aria-label"}
    assert root.attrib["aria-label"] == label
    assert float(root.attrib["viewBox"].split()[2]) == pytest.approx(5.2 * 72)
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)) > 0
    other = ElementTree.fromstring(drawn(ax, "x8", label))
    assert not {element.attrib["id"] for element in other.iter() if "id" in element.attrib} & set(
        ids
    )
    links = {
        text[1:] for element in root.iter() for key, text in element.attrib.items() if key == "href"
    }
    clips = {
        element.attrib["clip-path"] for element in root.iter() if "clip-path" in element.attrib
    }
    assert links | {clip[len("url(#") : -1] for clip in clips} == set(ids)
    assert not [
        element.tag
        for element in root.iter()
        if element.tag in ("metadata", "style", "image", "script")
    ]
    written = [element.text for element in root.iter("text")]
    assert {text for text in texts(ax) if text} <= set(written)
    ticks = [tick for tick in ax.get_xticks() if tick <= ax.get_xlim()[1]]
    assert {ax.xaxis.get_major_formatter()(tick, 0) for tick in ticks} <= set(written)


def test_svg_has_the_pages_colours():
    with chart_style():
        svg = drawn(plot_times(table(), chosen=PRECOMP))
    root = ElementTree.fromstring(svg)
    used = " ".join(element.attrib.get("style", "") for element in root.iter())
    for name in ("ink", "faint", "grid", "bar", "chosen", "find"):
        assert f"var(--{name},{COLORS[name]})" in used
        used = used.replace(f"var(--{name},{COLORS[name]})", "")
    assert "#" not in used
    assert "font-family" not in used


def test_svg_shows_the_bars():
    """The widths of the bars in the SVG have the ratios of the times."""
    with chart_style():
        ax = plot_times(table((PRECOMP, WINOGRAD, IMPLICIT)))
    root = ElementTree.fromstring(drawn(ax))
    widths = []
    for path in root.iter("path"):
        if path.attrib["style"].startswith("fill: var(--bar") and "clip-path" in path.attrib:
            numbers = [float(word) for word in path.attrib["d"].split() if word not in "MLz"]
            widths.append(max(numbers[::2]) - min(numbers[::2]))
    assert [width / widths[0] for width in widths] == pytest.approx(
        [1, 0.0607 / 0.0333, 0.1518 / 0.0333], rel=2e-3
    )


def test_names_in_svg_are_escaped_text():
    name = '</svg>&"<script>'
    with chart_style():
        svg = drawn(plot_model([tuned(names=(name,)), tuned()]))
    assert "<script" not in svg
    assert name in [element.text for element in ElementTree.fromstring(svg).iter("text")]


# ---------------------------------------------------------------- names


def test_names_are_shortened_in_the_middle():
    assert shorten("a" * 25) == "a" * 25
    name = "/layer1/layer1.0/conv1/Conv"
    assert shorten(name) == "/layer1/laye…0/conv1/Conv"
    assert {len(shorten(name)), len(shorten(name, 12))} == {25}
    assert shorten(name, 12).endswith("Conv × 12")


# ---------------------------------------------------------------- tuned problems


def test_titles():
    assert tuned().title == "32x64x56x56 by 64x64x3x3 to 32x64x56x56, float16 NHWC, padding=1"
    assert tuned(names=("a",)).title == "a"
    assert tuned(names=("a", "b", "c")).title == "a and 2 more"
    assert tuned(names=("a\nb",)).title == "a�b"
    assert (
        summary(lstm())
        == "bidirectional LSTM 256 to 128 x 2, T=100 N=64, float32, training, math_type='FMA'"
    )


def test_reasons():
    full_table = table()
    assert tuned().reasons() == (
        "",
        "1.8 % slower",
        "82.3 % slower",
        "4.56 times the time",
        "27.4 times the time; not repeated: more than 3 times the best",
        "needs 300 MiB, the limit is 64 MiB",
        "wrong: relative error inf",
        "NOT_SUPPORTED",
    )
    choice = full_table.best(workspace_limit=KIB)
    other = tuned()._replace(chosen=choice)
    assert other.reasons()[:4] == (
        "needs 96 KiB, the limit is 1 KiB (0.0274 ms faster)",
        "needs 172 KiB, the limit is 1 KiB (0.0268 ms faster)",
        "",
        "2.5 times the time",
    )
    assert tuned((PRECOMP, Row(A.GEMM, M.FMA))).reasons() == ("", "not timed")
    assert tuned((PRECOMP, CLOSE)).reasons({"objective": "latency"}) == ("", "2.3 % faster")
    assert failed().reasons() == ("NOT_SUPPORTED", "wrong: relative error inf")
    assert tuned()._replace(chosen=None).reasons()[:2] == ("", "")


def test_the_runner_up():
    assert tuned().runner_up() == 1
    assert tuned()._replace(chosen=WINOGRAD).runner_up() == 3  # the two before it were passed over
    assert tuned((PRECOMP,)).runner_up() is None
    assert tuned((PRECOMP, NOTHING, Row(A.GEMM, M.FMA))).runner_up() is None
    assert failed().runner_up() is None
    assert tuned((PRECOMP, WINOGRAD, CLOSE)).runner_up() == 2
    assert tuned((WINOGRAD, CLOSE, PRECOMP)).runner_up() == 2
    assert tuned((WINOGRAD, CLOSE, PRECOMP)).runner_up({"objective": "latency"}) == 1


def test_the_runner_up_runs_another_kernel():
    same = replace(PRECOMP, math_type=M.DEFAULT, same_kernel=named(PRECOMP))
    assert tuned((PRECOMP, same, WINOGRAD)).runner_up() == 2


def test_noise():
    assert within_noise(PRECOMP, CLOSE)
    assert within_noise(CLOSE, PRECOMP)
    assert not within_noise(PRECOMP, WINOGRAD)
    assert not within_noise(PRECOMP, PRECOMP.__class__(A.GEMM, M.FMA, time_ms=PRECOMP.time_ms))


def test_a_row_is_found_though_its_error_is_not_a_number():
    """A NaN that was in another process equals nothing, not even itself."""
    row, same_row = (
        Row(A.GEMM, M.FMA, time_ms=1.0, max_error=float(text)) for text in ("nan", "NaN")
    )
    assert row != same_row
    assert place_of(table((PRECOMP, row)), same_row) == 1


def test_totals():
    assert tuned(count=3).total_ms() == 3 * 0.0333
    assert tuned(count=3).total_ms({"objective": "latency"}) == pytest.approx(3 * 0.0355)
    assert failed().total_ms() is None
    assert (
        tuned((STATIC,), lstm()).total_ms({"objective": "latency"}) == 1.067
    )  # on the device: no call was timed
    assert math.isclose(
        sum(problem.total_ms() for problem in model(3)),
        sum(width for width, _ in bars(plot_model(model(3)))),
    )
