"""What cuDNN computes wrongly is found in a graph, whatever tells the layout of its images."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.faults import why_engine_is_wrong, why_wrong

import cudnnlite as dnn
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.operations.layers.pooling_plan import pooling_graph

# x, window, padding: images of dy of one pixel, of two, and of many.
POOLINGS = {
    "one pixel": ((2, 8, 3, 2), (4, 4), ((0, 1), (1, 1))),
    "one column": ((2, 8, 6, 2), (4, 4), ((0, 1), (1, 1))),
    "one row of x": ((2, 8, 1, 6), (2, 3), ((0, 1), (0, 0))),
    "one column of x": ((2, 8, 6, 1), (2, 2), ((0, 1), (0, 1))),
    "many": ((2, 8, 6, 9), (3, 2), ((0, 1), (0, 0))),
}


def strides_of(shape: tuple[int, ...], layout: str, *, plain_ones: bool) -> tuple[int, ...]:
    """Return the strides of a layout; with `plain_ones` axes of size 1 have stride 1, as DLPack's."""
    strides = dnn.TensorSpec(shape, layout=layout).strides
    if not plain_ones:
        return strides
    return tuple(1 if size == 1 else step for size, step in zip(shape, strides, strict=True))


def gradient(
    mode: str,
    case: str,
    layout: str,
    *,
    dtype: str = "float16",
    reads_x: bool = True,
    plain_ones: bool = False,
) -> dnn.Graph:
    """Return the gradient of a pooling with more padding behind than before."""
    shape, window, padding = POOLINGS[case]
    is_largest = mode == "MAXPOOL"
    steps: dict[str, Any] = {
        "window": window,
        "stride": (2, 2),
        "padding": padding,
        "padding_mode": "NEG_INF" if is_largest else "ZERO",
    }
    probe = dnn.Graph()
    pooled = probe.resample_forward(mode, probe.input("x", shape, dtype), **steps).shape
    graph = dnn.Graph()
    tensors = {
        name: graph.input(name, sizes, dtype, strides_of(sizes, layout, plain_ones=plain_ones))
        for name, sizes in {"dy": pooled, "x": shape, "y": pooled}.items()
        if reads_x or name == "dy"
    }
    dx = graph.resample_backward(mode, tensors.pop("dy"), shape, **steps, **tensors)
    graph.output("dx", dx, dtype, strides_of(shape, layout, plain_ones=plain_ones))
    return graph


@pytest.mark.parametrize("plain_ones", [False, True], ids=["own strides", "strides of 1"])
@pytest.mark.parametrize("reads_x", [True, False], ids=["with x", "without x"])
@pytest.mark.parametrize("case", POOLINGS)
def test_the_images_tell_the_layout_of_an_average(
    case: str, reads_x: bool, plain_ones: bool
) -> None:
    """Those of dy may be one pixel each, in which both layouts are the same."""
    how = {"reads_x": reads_x, "plain_ones": plain_ones}
    first = why_wrong(gradient("AVGPOOL_INCLUDE_PADDING", case, "NCHW", **how))
    assert first is not None
    assert "averages over padding wrongly with channels first" in first
    assert why_wrong(gradient("AVGPOOL_INCLUDE_PADDING", case, "NHWC", **how)) is None
    assert why_wrong(gradient("AVGPOOL_EXCLUDE_PADDING", case, "NCHW", **how)) is None


@pytest.mark.parametrize("plain_ones", [False, True], ids=["own strides", "strides of 1"])
@pytest.mark.parametrize("case", POOLINGS)
def test_the_images_tell_the_layout_of_maxima(case: str, plain_ones: bool) -> None:
    assert why_wrong(gradient("MAXPOOL", case, "NCHW", plain_ones=plain_ones)) is None
    last = why_wrong(gradient("MAXPOOL", case, "NHWC", plain_ones=plain_ones))
    assert last is not None
    assert "ends the process" in last


@pytest.mark.parametrize("name", ["dy", "y"])
@pytest.mark.parametrize("case", POOLINGS)
def test_gradients_of_maxima_read_packed_images(case: str, name: str) -> None:
    """With gaps every gradient was wrong on an H200 (9.19), in all three data types."""
    plain = gradient("MAXPOOL", case, "NCHW").to_plain()
    for tensor in plain["tensors"]:
        if tensor["name"] == name:
            tensor["strides"] = [2 * tensor["strides"][0], *tensor["strides"][1:]]
    assert f"reads {name} as packed" in (why_wrong(dnn.Graph.from_plain(plain)) or "")


@pytest.mark.parametrize("case", POOLINGS)
def test_bfloat16_with_channels_last(case: str) -> None:
    mode = "AVGPOOL_EXCLUDE_PADDING"
    assert why_wrong(gradient(mode, case, "NCHW", dtype="bfloat16")) is None
    assert why_wrong(gradient(mode, case, "NHWC", dtype="bfloat16")) is None


def test_images_of_one_pixel_on_both_sides() -> None:
    """Then only the strides of their axes can tell the layout."""
    spec = dnn.TensorSpec((2, 8, 1, 1))
    for layout, is_right in (("NCHW", False), ("NHWC", True)):
        graph = dnn.Graph()
        x = graph.input(
            "x", spec.shape, "float16", strides_of(spec.shape, layout, plain_ones=False)
        )
        y = graph.resample_forward(
            "AVGPOOL_INCLUDE_PADDING",
            x,
            (2, 2),
            stride=(1, 1),
            padding=((0, 1), (0, 1)),
            padding_mode="ZERO",
        )
        graph.output("y", y, "float16")
        assert (why_wrong(graph) is None) is is_right


MAXIMA = dnn.PoolingSpec(2, padding=((0, 1), (0, 1)), stride=2)
AVERAGES = MAXIMA.replace(mode="average_count_include_padding")
# Strides of images of one channel, (2, 1, 9, 7), with the layout that cuDNN takes them for: it
# names engine 1 for channels first and engines 3 and 2 for channels last.
ONE_CHANNEL = {(63, 63, 7, 1): "first", (63, 7, 7, 1): "first", (63, 1, 7, 1): "last"}


def pooling_of_one_channel(
    strides: tuple[int, ...], dtype: str, pooling: dnn.PoolingSpec
) -> dnn.Graph:
    """Return a pooling of images as a graph in which they have these strides."""
    is_largest = pooling is MAXIMA
    graph = dnn.Graph()
    y = graph.resample_forward(
        "MAXPOOL" if is_largest else "AVGPOOL_INCLUDE_PADDING",
        graph.input("x", (2, 1, 9, 7), dtype, strides),
        (2, 2),
        stride=(2, 2),
        padding=((0, 1), (0, 1)),
        padding_mode="NEG_INF" if is_largest else "ZERO",
    )
    graph.output("y", y, dtype)
    return graph


@pytest.mark.parametrize(("strides", "layout"), ONE_CHANNEL.items())
def test_one_channel_has_the_layout_of_its_strides(strides: tuple[int, ...], layout: str) -> None:
    def reason(dtype: str, pooling: dnn.PoolingSpec) -> str | None:
        return why_wrong(pooling_of_one_channel(strides, dtype, pooling))

    is_last = layout == "last"
    assert (reason("bfloat16", MAXIMA) is not None) == is_last
    assert reason("float32", MAXIMA) is None
    wrong = None if is_last else "give channels last"
    assert (reason("float32", AVERAGES) is None) == is_last
    assert wrong is None or str(reason("float32", AVERAGES)).endswith(wrong)
    # No layout is right, so that none is advised.
    for dtype in ("bfloat16", *(() if is_last else ("float64",))):
        assert "float32" in str(reason(dtype, AVERAGES))


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("given", ["first", "last"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_pooling_describes_one_channel_as_is_right(dtype: str, given: str, rank: int) -> None:
    """The memory of both layouts is the same, so that a call may take either."""
    layouts = {3: {"first": "NCW", "last": "NWC"}, 4: {"first": "NCHW", "last": "NHWC"}}
    x = dnn.TensorSpec((2, 1, 9, 7)[:rank], dtype, layouts[rank][given])
    for pooling in (MAXIMA, AVERAGES):
        padding = pooling.padding[: rank - 2]
        problem = dnn.pooling_forward.problem(x, pooling.replace(padding=padding))
        reason = why_wrong(pooling_graph(problem))
        if dtype == "bfloat16" and pooling is AVERAGES:
            assert reason is not None
        else:
            assert reason is None


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("given", ["NCHW", "NHWC"])
def test_images_of_one_pixel_are_described_in_the_layout_of_x(given: str, layout: str) -> None:
    """An H100 refuses gradients of x in NHWC by images of dy that are described in NCHW."""
    x, y = dnn.TensorSpec((2, 3, 12, 9), layout=layout), dnn.TensorSpec((2, 3, 1, 1), layout=given)
    mode = "average_count_exclude_padding"
    pooling = dnn.PoolingSpec((13, 11), padding=((1, 0), (2, 0)), stride=1, mode=mode)
    graph = pooling_graph(dnn.pooling_backward.problem(y, y, x, pooling))
    described = dnn.TensorSpec(y.shape, layout=layout).strides
    assert [tensor.strides for tensor in graph.tensors if tensor.shape == y.shape] == [
        described
    ] * 2


def normalization(mode: str, *, training: bool) -> dnn.Graph:
    graph = dnn.Graph()
    x = graph.input("x", (6, 64, 1, 1))
    scale, bias = (graph.input(name, (1, 64, 1, 1)) for name in ("scale", "bias"))
    reads_bias = bias if mode == "LAYER" else None
    result = graph.normalization_forward(mode, x, scale, reads_bias, training=training)
    graph.output("y", result.y)
    if training:
        graph.output("inv_variance", result.inv_variance)
    if result.mean is not None:
        graph.output("mean", result.mean)
    return graph


@pytest.mark.parametrize("training", [False, True])
def test_engines_of_layer_normalization(training: bool) -> None:
    """9.28 sums squares in one pass: NaN on an H200 for rows of 100 + 0.01 * noise."""
    graph = normalization("LAYER", training=training)
    for engine in (3, 4, 5, 6):
        assert why_engine_is_wrong(engine, graph, 91900) is None
        assert "variance" in (why_engine_is_wrong(engine, graph, 92800) or "")
        assert why_engine_is_wrong(engine, normalization("RMS", training=training), 92800) is None
    assert why_engine_is_wrong(1, graph, 92800) is None


def test_the_engine_of_instance_normalization_that_uses_the_default_stream() -> None:
    x, scale, statistics = (
        dnn.TensorSpec(shape) for shape in ((2, 8, 6, 5), (1, 8, 1, 1), (2, 8, 1, 1))
    )
    graph = dnn.instance_normalization_backward.graph(x, x, scale, statistics, statistics)
    assert "default stream" in (why_engine_is_wrong(0, graph, 91900) or "")
    assert why_engine_is_wrong(2, graph, 91900) is None
    forward = dnn.instance_normalization_forward.graph(x, scale, scale, training=True)
    assert why_engine_is_wrong(0, forward, 91900) is None


def test_a_plan_asks_for_the_version_of_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated device has the engines of 9.19, and only wrong ones if they were those of 9.28."""
    graph = normalization("LAYER", training=True)
    with dnn.Handle(device="emulated") as handle:
        with graph.plan(handle) as plan:
            assert plan.choice.algorithm.index in (3, 4, 5, 6)
        monkeypatch.setattr(EmulatedApi, "engine_version", 92800)
        with pytest.raises(dnn.NotSupportedError, match="wrong variance of rows"):
            normalization("LAYER", training=True).plan(handle)


@pytest.mark.parametrize("engine", [0, 7])
@pytest.mark.parametrize("layouts", ["FFL", "LFL", "LLF", "FFF", "LLL"])
@pytest.mark.parametrize("activation", ["gelu", "sigmoid", "relu"])
def test_layouts_behind_which_activations_are_wrong(
    activation: str, layouts: str, engine: int
) -> None:
    """x, w and y with channels first or last: engines that are compiled take all of them as last."""
    names = {"F": "NCHW", "L": "NHWC"}
    shapes = ((2, 3, 5, 6), (4, 3, 2, 2), (2, 4, 4, 5))
    x, w, y = (
        dnn.TensorSpec(shape, layout=names[letter])
        for shape, letter in zip(shapes, layouts, strict=True)
    )
    bias = dnn.TensorSpec((1, 4, 1, 1))
    problem = dnn.convolution_forward.problem(x, w, bias=bias, activation=activation, out=y)
    reason = why_engine_is_wrong(engine, problem.graph, 91900)
    if activation == "relu" or engine == 0 or layouts == "LLL":
        assert reason is None
    else:
        assert reason is not None
        assert "as packed with channels last" in reason


def test_images_of_one_channel_or_pixel_have_every_layout() -> None:
    x, w, y = dnn.TensorSpec((2, 1, 5, 6)), dnn.TensorSpec((4, 1, 2, 2)), (2, 4, 4, 5)
    out = dnn.TensorSpec(y, layout="NHWC")
    problem = dnn.convolution_forward.problem(x, w, activation="gelu", out=out)
    assert why_engine_is_wrong(7, problem.graph, 91900) is None
