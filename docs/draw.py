"""Draw the charts and diagrams of README and docs into docs/images: `python docs/draw.py [NAME ...]`.

The charts are of the runs in docs/runs, and the rooflines of those in tools/benchmarks/data;
`tests/docs/test_pictures.py` holds them against these.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from _ext.run_tables import Cell, read_run, text_of
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.ticker import LogFormatter

from cudnnlite.workbench.bench.rows import BenchRow, load_run

HERE = Path(__file__).resolve().parent
IMAGES = HERE / "images"
RUNS = HERE.parent / "tools" / "benchmarks" / "data"  # as tools/benchmarks/keep_run.py writes them
OURS, OTHERS = "#1f6fb2", ("#c9682b", "#8a8f98", "#c9ccd1", "#e3c04b")
plt.rcParams |= {
    "svg.fonttype": "none",
    "svg.hashsalt": "cudnnlite",
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}


def mean_of(cell: Cell) -> str:
    """Return the figure of a cell without the worst row."""
    return text_of(cell).partition(" ")[0]


def grouped(
    axis: Any, groups: list[str], series: dict[str, list[Cell]], *, worst: bool = False
) -> None:
    """Draw bars side by side, each with its mean, and with its worst row on request."""
    width = 0.84 / len(series)
    for place, (label, cells) in enumerate(series.items()):
        color = OURS if place == 0 else OTHERS[(place - 1) % len(OTHERS)]
        at = [group + (place - (len(series) - 1) / 2) * width for group in range(len(groups))]
        means = [float(mean_of(cell)) for cell in cells]
        axis.bar(at, means, width * 0.94, color=color, label=label)
        for x, mean, cell in zip(at, means, cells, strict=True):
            text = text_of(cell).replace(" ", "\n") if worst else mean_of(cell)
            axis.text(x, mean, text, ha="center", va="bottom", fontsize=7.5)
    axis.set_xticks(range(len(groups)), groups)
    axis.legend(frameon=False, fontsize=9, ncols=len(series), loc="upper left", borderaxespad=0)


def choices() -> None:
    """What the tuner chose beside cudnnFind, the heuristic and PyTorch."""
    run = read_run("choices")
    figure, axis = plt.subplots(figsize=(9, 3.6))
    series = {
        "cudnnlite": run.column("tuner"),
        "cudnnFind": run.column("cudnnFind"),
        "cuDNN's heuristic": run.column("heuristic"),
        "PyTorch, benchmark = True": run.column("PyTorch"),
    }
    grouped(axis, run.column(run.columns[0]), series, worst=True)
    axis.set(ylim=(0, 2.9), ylabel="time over the best candidate's")
    axis.set_title("117 convolutions on an H200: geometric mean (worst)", fontsize=10, loc="left")
    save(figure, "choices")


def eager() -> None:
    """Eager calls beside PyTorch's."""
    run = read_run("convolutions_eager")
    arithmetics, *columns = (run.column(name) for name in run.columns)
    names = ("training, tuned", "training, untuned", "networks, tuned", "networks, untuned")
    figure, axis = plt.subplots(figsize=(9, 3.4))
    grouped(axis, arithmetics, dict(zip(names, columns, strict=True)))
    axis.axhline(1, color="#444", linewidth=0.8)
    axis.set(ylim=(0, 1.3), ylabel="time over PyTorch's")
    axis.set_title(
        "eager calls of convolutions on an H200, geometric mean; PyTorch is 1",
        fontsize=10,
        loc="left",
    )
    save(figure, "eager")


def bars_of(run_name: str, column: str) -> list[tuple[str, str]]:
    """Return a label and a figure for each row of a run."""
    run = read_run(run_name)
    figures = [mean_of(cell) for cell in run.column(column)]
    return list(zip(run.column(run.columns[0]), figures, strict=True))


def bars_of_ratios(run_name: str, labels: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return a label and a figure for each ratio of a run."""
    figures = [ratio.mean for ratio in read_run(run_name).ratios()]
    return list(zip(labels, figures, strict=True))


def beside_pytorch() -> None:
    """Draw the figures that the front pages show: what stands beside PyTorch, one bar each."""
    attention = (
        "forward, on the device",
        "backward, on the device",
        "a plan, called eagerly",
        "one line, called eagerly",
    )
    groups = {
        "30 layers of networks, tuned, called eagerly": bars_of(
            "convolutions_eager", "30 problems of networks, tuned"
        ),
        "ResNet-50 served in a CUDA graph, over torch.compile": bars_of(
            "resnet50", "graph over compiled"
        ),
        "attention, 22 shapes": bars_of_ratios("attention", attention),
        "one line of 14 small operations, host time": bars_of_ratios(
            "one_line", ("our arrays", "PyTorch's tensors")
        ),
    }
    figure, axis = plt.subplots(figsize=(8.2, 5.6))
    labels: list[str] = []
    places: list[float] = []
    place = 0.0
    for title, bars in groups.items():
        heading = axis.text(0.01, place, title, fontsize=9.5, fontweight="bold", va="center")
        heading.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
        for label, figure_text in bars:
            place += 1
            value = float(figure_text)
            color = OURS if value <= 1 else OTHERS[0]
            axis.barh(place, value, 0.74, color=color)
            axis.text(value + 0.015, place, figure_text, va="center", fontsize=9)
            labels.append(label)
            places.append(place)
        place += 1.4
    axis.axvline(1, color="#444", linewidth=0.8)
    axis.set_yticks(places, labels, fontsize=9)
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    axis.set(xlabel="time over PyTorch's, geometric mean; PyTorch is 1, shorter is faster")
    axis.set_xlim(0, 2.3)
    save(figure, "beside_pytorch")


def interfaces() -> None:
    """Draw the two ways that one call takes to cuDNN."""
    figure, axis = plt.subplots(figsize=(8.2, 3.1))
    axis.set(xlim=(0, 16.4), ylim=(0, 6.2))
    axis.set_axis_off()

    def box(x: float, y: float, width: float, color: str, *lines: str) -> None:
        axis.add_patch(Rectangle((x, y), width, 1.5, facecolor=color, edgecolor="#444"))
        first_line = y + 0.75 + 0.28 * (len(lines) - 1)
        for index, text in enumerate(lines):
            weight = "bold" if index == 0 else "normal"
            height = first_line - 0.56 * index
            axis.text(x + width / 2, height, text, ha="center", va="center", weight=weight)

    def arrow(start: tuple[float, float], end: tuple[float, float]) -> None:
        axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12))

    box(0.1, 2.35, 4.6, "#cfe3f5", "one call", "dnn.convolution_forward")
    box(6.4, 4.2, 5.4, "#e8f1e4", "graph interface", "cudnnBackend..., engines")
    box(6.4, 0.5, 5.4, "#fdeedd", "descriptor interface", "cudnnConvolutionForward")
    box(13.3, 2.35, 3.0, "#eee", "device", "GPU, or NumPy")
    arrow((4.7, 3.3), (6.4, 4.8))
    arrow((4.7, 2.9), (6.4, 1.4))
    arrow((11.8, 4.8), (13.3, 3.3))
    arrow((11.8, 1.4), (13.3, 2.9))
    axis.text(3.4, 4.75, "by default", color=OURS)
    axis.text(0.1, 1.5, 'algorithm="GEMM", or\ninterface="descriptor"', color=OURS, va="top")
    save(figure, "interfaces")


def im2col() -> None:
    """A convolution as a matrix product."""
    figure, axis = plt.subplots(figsize=(9, 3.1))
    axis.set(xlim=(0, 18), ylim=(-0.9, 5.6), aspect="equal")
    axis.set_axis_off()
    colors = ("#9ecae9", "#f7c59f", "#b7dfb1", "#d6c1e6")

    def cell(x: float, y: float, text: str, color: str = "white") -> None:
        axis.add_patch(Rectangle((x, y), 1, 1, facecolor=color, edgecolor="#444", linewidth=0.8))
        axis.text(x + 0.5, y + 0.5, text, ha="center", va="center")

    for row in range(3):
        for column in range(3):
            cell(column, 3 - row, str(3 * row + column + 1))
    axis.add_patch(Rectangle((0.06, 2.06), 1.88, 1.88, fill=False, edgecolor=OURS, linewidth=2.5))
    axis.text(1.5, 4.4, "image x, 3 x 3", ha="center")
    axis.text(
        1.5,
        0.45,
        "a window of 2 x 2 taps,\nin four places",
        ha="center",
        va="center",
        fontsize=9,
        color=OURS,
    )
    for index, tap in enumerate("abcd"):
        cell(4.6 + index, 2, tap)
    axis.text(6.6, 4.4, "filter w, a row for each filter", ha="center")
    axis.text(9.1, 2.5, "·", ha="center", va="center", fontsize=18)
    windows = ((1, 2, 4, 5), (2, 3, 5, 6), (4, 5, 7, 8), (5, 6, 8, 9))
    for column, (window, color) in enumerate(zip(windows, colors, strict=True)):
        for row, value in enumerate(window):
            cell(9.6 + column, 3 - row, str(value), color)
    axis.add_patch(Rectangle((9.66, 0.06), 0.88, 3.88, fill=False, edgecolor=OURS, linewidth=2.5))
    axis.text(11.6, 4.4, "columns: a window in each (im2col)", ha="center")
    axis.text(14.0, 2.5, "=", ha="center", va="center", fontsize=14)
    for column, color in enumerate(colors):
        cell(14.4 + column * 0.88, 2, f"y{'₁₂₃₄'[column]}", color)
    axis.text(16.2, 4.4, "output y", ha="center")
    axis.text(
        9,
        -0.6,
        "GEMM writes the columns out; IMPLICIT_GEMM reads the image in their order, and writes none.",
        ha="center",
        fontsize=9,
    )
    save(figure, "im2col")


def layouts() -> None:
    """One image of two channels in memory, channels first and channels last."""
    figure, axis = plt.subplots(figsize=(9, 3.0))
    axis.set(xlim=(0, 17.4), ylim=(0.2, 6.6), aspect="equal")
    axis.set_axis_off()
    colors = ("#9ecae9", "#f7c59f")
    height, width = 2, 3
    cells = np.arange(2 * height * width).reshape(2, height, width)

    def cell(x: float, y: float, channel: int, number: int) -> None:
        square = Rectangle((x, y), 1, 1, facecolor=colors[channel], edgecolor="#444", linewidth=0.8)
        axis.add_patch(square)
        axis.text(x + 0.5, y + 0.5, str(number), ha="center", va="center")

    for channel in range(2):
        bottom = 3.4 * (1 - channel) + 0.6
        for row in range(height):
            for column in range(width):
                cell(0.2 + column, bottom + 1 - row, channel, cells[channel, row, column])
        axis.text(1.7, bottom + 2.2, f"channel {channel}", ha="center", fontsize=9)
    strips = {
        "NCHW: strides (12, 6, 3, 1)": (cells, "one channel after the other"),
        "NHWC: strides (12, 1, 6, 2)": (
            np.moveaxis(cells, 0, -1),
            "all channels of a pixel together",
        ),
    }
    for index, (title, (order, meaning)) in enumerate(strips.items()):
        bottom = 3.4 * (1 - index) + 1.1
        for place, number in enumerate(order.ravel()):
            cell(5.2 + place, bottom, int(number) // (height * width), int(number))
        axis.text(5.2, bottom + 1.25, title, fontsize=9)
        axis.text(17.2, bottom + 1.25, meaning, ha="right", fontsize=9, color=OURS)
        axis.text(5.2, bottom - 0.6, "address 0", fontsize=8, color="#626b76")
    save(figure, "layouts")


def lstm_cell() -> None:
    """The gates of an LSTM."""
    figure, axis = plt.subplots(figsize=(9, 4.2))
    axis.set(xlim=(0, 18), ylim=(0, 8.2), aspect="equal")
    axis.set_axis_off()
    axis.add_patch(
        FancyBboxPatch(
            (2.2, 1.3), 13.2, 6.0, boxstyle="round,pad=0.2", facecolor="#eef3f8", edgecolor="#99a"
        )
    )

    def arrow(start: tuple[float, float], end: tuple[float, float]) -> None:
        axis.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=11, color="#333", shrinkA=0, shrinkB=0
            )
        )

    def line(*points: tuple[float, float]) -> None:
        axis.plot(*zip(*points, strict=True), color="#333", linewidth=1)

    def node(x: float, y: float, text: str) -> None:
        axis.add_patch(Circle((x, y), 0.38, facecolor="#fff3d6", edgecolor="#333", zorder=3))
        axis.text(x, y, text, ha="center", va="center", zorder=4)

    gates = {
        "f": (4.2, "σ", "keep"),
        "i": (6.9, "σ", "let in"),
        "g": (9.3, "tanh", "new memory"),
        "o": (12.2, "σ", "show"),
    }
    line((0.6, 1.75), (12.2, 1.75))
    for name, (x, function, meaning) in gates.items():
        axis.add_patch(
            Rectangle((x - 0.75, 2.5), 1.5, 0.95, facecolor="#cfe3f5", edgecolor="#333", zorder=3)
        )
        axis.text(x, 2.97, function, ha="center", va="center", zorder=4)
        arrow((x, 1.75), (x, 2.5))
        axis.text(x + 0.16, 3.72, f"{name}: {meaning}", fontsize=9, color=OURS)
    arrow((0.6, 6.6), (3.82, 6.6))  # the memory, from left to right
    node(4.2, 6.6, "×")
    arrow((4.58, 6.6), (7.72, 6.6))
    node(8.1, 6.6, "+")
    arrow((8.48, 6.6), (17.4, 6.6))
    arrow((4.2, 3.45), (4.2, 6.22))
    node(8.1, 4.9, "×")
    line((6.9, 3.45), (6.9, 4.9))
    arrow((6.9, 4.9), (7.72, 4.9))
    line((9.3, 3.45), (9.3, 4.9))
    arrow((9.3, 4.9), (8.48, 4.9))
    arrow((8.1, 5.28), (8.1, 6.22))
    line((14.3, 6.6), (14.3, 5.95))  # what is shown of it
    axis.add_patch(
        Rectangle((13.55, 5.0), 1.5, 0.95, facecolor="#cfe3f5", edgecolor="#333", zorder=3)
    )
    axis.text(14.3, 5.47, "tanh", ha="center", va="center", zorder=4)
    arrow((14.3, 5.0), (14.3, 3.98))
    node(14.3, 3.6, "×")
    line((12.2, 3.45), (12.2, 3.6))
    arrow((12.2, 3.6), (13.92, 3.6))
    line((14.3, 3.22), (14.3, 1.75))
    arrow((14.3, 1.75), (17.4, 1.75))
    words = {
        "c(t-1)": (0.5, 6.95),
        "c(t): memory": (16.2, 6.95),
        "x(t), h(t-1)": (0.3, 2.05),
        "h(t): output": (16.2, 2.05),
    }
    for text, place in words.items():
        axis.text(*place, text)
    told = "Each box: its rows of W and U times x(t) and h(t-1), plus its bias, and the function that is written in it."
    axis.text(8.8, 0.5, told, ha="center", fontsize=9)
    save(figure, "lstm_cell")


def rooflines() -> None:
    """Draw the rows of each run that is kept under the roofline of its GPU."""
    for path in sorted(RUNS.glob("bench_*.json")):
        run = load_run(path)
        figure, axis = plt.subplots(figsize=(5.2, 4.6))
        rows = [row for row in run.rows if row.tflops]
        draw_roofline(axis, rows, run.facts["roofs"])
        facts = run.facts
        title = f"{facts['device']}, cuDNN {facts['cuDNN']}, {facts['time'][:10]}"
        axis.set_title(title, fontsize=8.5, loc="left")
        save(figure, f"roofline_{path.stem.removeprefix('bench_')}")


def draw_roofline(axis: Any, rows: list[BenchRow], roofs: dict[str, Any]) -> None:
    """Draw a point for each row, and the roof of each unit that multiplies for one of them."""
    intensities = [row.flops / row.nbytes for row in rows]
    rates = [row.tflops for row in rows]
    axis.set(xscale="log", yscale="log", xlabel="FLOP a byte of operands", ylabel="TFLOP/s")
    for scale in (axis.xaxis, axis.yaxis):  # 1000, not a power of ten
        scale.set_major_formatter(LogFormatter())
        scale.set_minor_formatter(LogFormatter())
    axis.plot(intensities, rates, "o", color=OURS, zorder=3)
    shared = set.intersection(*(set(row.name.split()) for row in rows))
    for row, *place in zip(rows, intensities, rates, strict=True):
        label = " ".join(word for word in row.name.split() if word not in shared)
        axis.annotate(
            label, place, xytext=(3, 3), textcoords="offset points", fontsize=6.5, color="#444"
        )
    bandwidth = roofs["bandwidth"] / 1e12
    for unit in sorted({row.unit for row in rows}):
        peak = roofs["flops"][unit] / 1e12
        ridge = peak / bandwidth
        left, right = min(*intensities, ridge) / 2, max(*intensities, ridge) * 2
        axis.plot(
            (left, ridge, right), (left * bandwidth, peak, peak), color=OTHERS[0], linewidth=1
        )
        axis.text(right, peak, unit, ha="right", va="bottom", color="#626b76", fontsize=8)


def save(figure: Any, name: str) -> None:
    """Write a picture on white, so that it can be read on a dark page too."""
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(
        IMAGES / f"{name}.svg", facecolor="white", metadata={"Date": None, "Creator": None}
    )
    plt.close(figure)


PICTURES = (
    choices,
    eager,
    beside_pytorch,
    interfaces,
    im2col,
    layouts,
    lstm_cell,
    rooflines,
)

if __name__ == "__main__":
    for draw in PICTURES:
        if not sys.argv[1:] or draw.__name__ in sys.argv[1:]:
            draw()
