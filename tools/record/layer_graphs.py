"""Ask a GPU what it does of layers that are graphs: convolutions, poolings, activations, attention.

    python -m tools.record.layer_graphs [FAMILY ...]

The families are the functions that yield cases: gradients, epilogues, poolings, indices,
pooling_gradients, bias_gradients, activations and products; all of them, if none is named.  One line for each
case: what became of it, its engine, and the largest error relative to the largest value, against
NumPy or ONNX in float64.  It is followed by what the emulated device does, where that differs:
there its rules are laxer, or stricter, than the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from graph_oracles import ACTIVATIONS, attention_bias_gradient, causal_mask, window_mask
from oracles import onnx_convolution, onnx_gradient_of_w, onnx_gradient_of_x

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype, parse_dtype

Array = np.ndarray[Any, Any]
Steps = dict[str, Any]
LAYOUTS = {"first": {}, "last": {3: "NWC", 4: "NHWC", 5: "NDHWC"}}
GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Steps]] = {
    "plain": ((2, 16, 8, 9), (24, 16, 3, 3), {"padding": ((1, 0), (0, 1))}),
    "strided": ((2, 8, 11, 9), (8, 8, 3, 2), {"padding": ((0, 1), (2, 0)), "stride": (2, 3)}),
    "dilated": ((2, 8, 9, 8), (8, 8, 3, 2), {"padding": ((2, 1), (0, 3)), "dilation": (2, 3)}),
    "groups": ((2, 16, 9, 8), (16, 8, 3, 2), {"padding": ((0, 1), 0), "groups": 2}),
    "depthwise": ((2, 8, 9, 8), (8, 1, 3, 3), {"padding": ((0, 1), 1), "groups": 8}),
    "rotated": ((1, 8, 7, 6), (8, 8, 3, 2), {"padding": ((0, 2), 1), "mode": "convolution"}),
    "odd channels": ((2, 3, 9, 7), (5, 3, 3, 2), {"padding": ((0, 1), 1)}),
    "1-D": ((2, 8, 17), (8, 8, 4), {"padding": ((1, 2),), "stride": 2}),
    "3-D": ((2, 8, 5, 7, 6), (8, 8, 3, 2, 2), {"padding": ((0, 1), 1, (1, 0))}),
}
EPILOGUES: dict[str, tuple[Any, Callable[[Array], Array]]] = {
    **{name: (name, function) for name, function in ACTIVATIONS.items()},
    "leaky_relu": ("leaky_relu", lambda y: np.where(y > 0, y, 0.01 * y)),
    "a number": (lambda graph, y: y * 2.0 + 0.5, lambda y: 2 * y + 0.5),
    "a gate": (lambda graph, y: y * graph.sigmoid(y), lambda y: y / (1 + np.exp(-y))),
    "a difference": (lambda graph, y: y - 1.5, lambda y: y - 1.5),
    "abs": (lambda graph, y: graph.abs(y), np.abs),
    "exp": (lambda graph, y: graph.exp(y * 0.1), lambda y: np.exp(0.1 * y)),
    "mish": (
        lambda graph, y: y * graph.tanh(graph.softplus(y)),
        lambda y: y * np.tanh(np.logaddexp(0, y)),
    ),
    "clamp": (
        lambda graph, y: graph.pointwise("MIN", graph.pointwise("MAX", y, -1.0), 1.0),
        lambda y: np.clip(y, -1, 1),
    ),
}


class Case(NamedTuple):
    """What is asked: a plan and its operands of a handle, and what has to come out."""

    name: str
    make: Callable[[dnn.Handle], tuple[Any, list[Any]]]
    expected: Array | None


def values(shape: tuple[int, ...], seed: int, dtype: str) -> Array:
    """Return random values as a data type has them, in float64."""
    kind = numpy_dtype(parse_dtype(dtype))
    return np.random.default_rng(seed).standard_normal(shape).astype(kind).astype(np.float64)


def uploaded(handle: dnn.Handle, host: Array, dtype: str, layout: str) -> dnn.DeviceArray:
    return handle.array(host, dtype=dtype, layout=LAYOUTS[layout].get(host.ndim))


def gradients() -> Iterator[Case]:
    """Yield gradients of convolutions."""
    dtypes = ("float16", "bfloat16", "float32", "float64")
    for geometry, dtype, layout, math in product(GEOMETRIES, dtypes, LAYOUTS, ("default", "fma")):
        if math == "fma" and dtype != "float32":
            continue
        x_shape, w_shape, options = GEOMETRIES[geometry]
        conv = dnn.ConvolutionSpec(**options, math_type=math)
        spatial = len(x_shape) - 2
        steps = (*conv.steps(spatial)[1:], conv.groups, "mode" in options)
        x, w = values(x_shape, 0, dtype), values(w_shape, 1, dtype)
        dy = values(conv.output_shape(x_shape, w_shape), 2, dtype)

        def of_x(handle: Any, w=w, dy=dy, conv=conv, dtype=dtype, layout=layout, shape=x_shape):
            operands = [uploaded(handle, host, dtype, layout) for host in (w, dy)]
            return dnn.convolution_backward_data.plan(handle, *operands, conv, x=shape), operands

        def of_w(handle: Any, x=x, dy=dy, conv=conv, dtype=dtype, layout=layout, shape=w_shape):
            operands = [uploaded(handle, host, dtype, layout) for host in (x, dy)]
            return dnn.convolution_backward_filter.plan(handle, *operands, conv, w=shape), operands

        name = f"{geometry} {dtype} {layout} {math}"
        pads = conv.pads(spatial)
        yield Case(f"gradient of x, {name}", of_x, onnx_gradient_of_x(x_shape, w, dy, pads, *steps))
        yield Case(f"gradient of w, {name}", of_w, onnx_gradient_of_w(x, w_shape, dy, pads, *steps))


def epilogues() -> Iterator[Case]:
    """Yield convolutions with epilogues."""
    geometries = ("plain", "depthwise", "rotated", "odd channels", "1-D", "3-D")
    dtypes = ("float16", "bfloat16", "float32")
    for geometry, dtype, layout in product(geometries, dtypes, LAYOUTS):
        x_shape, w_shape, options = GEOMETRIES[geometry]
        conv = dnn.ConvolutionSpec(**options)
        spatial = len(x_shape) - 2
        hosts = [values(x_shape, 0, dtype), values(w_shape, 1, dtype)]
        hosts.append(values((1, w_shape[0], *(1,) * spatial), 2, dtype))
        y = onnx_convolution(
            *hosts[:2], conv.pads(spatial), *conv.steps(spatial)[1:], conv.groups, "mode" in options
        )
        names = EPILOGUES if geometry == "plain" else ("gelu", "a number")
        for name, has_bias in product(names, (True, False)):
            epilogue, formula = EPILOGUES[name]

            def plan(
                handle: Any,
                hosts=hosts,
                conv=conv,
                dtype=dtype,
                layout=layout,
                has_bias=has_bias,
                epilogue=epilogue,
            ):
                operands = [uploaded(handle, host, dtype, layout) for host in hosts]
                bias = operands[2] if has_bias else None
                made = dnn.convolution_forward.plan(
                    handle, *operands[:2], conv, bias=bias, activation=epilogue
                )
                return made, operands if has_bias else operands[:2]

            yield Case(
                f"epilogue {name}, {'bias' if has_bias else 'bare'}, {geometry} {dtype} {layout}",
                plan,
                formula(y + hosts[2] if has_bias else y),
            )


def poolings() -> Iterator[Case]:
    """Yield poolings, by the graph as cuDNN has it; only whether there is an engine is asked."""
    shapes = {4: (2, 8, 7, 9), 5: (2, 8, 5, 7, 6)}
    modes = ("MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING")
    dtypes = ("float16", "bfloat16", "float32", "float64")
    for rank, mode, dtype, layout, nan in product(
        shapes, modes, dtypes, LAYOUTS, ("PROPAGATE", "NOT_PROPAGATE")
    ):
        shape = shapes[rank]

        def plan(handle: Any, shape=shape, mode=mode, dtype=dtype, layout=layout, nan=nan):
            spec = dnn.TensorSpec(shape, dtype, LAYOUTS[layout].get(len(shape)))
            graph, spatial = dnn.Graph(), len(shape) - 2
            x = graph.input("x", shape, dtype, spec.strides)
            y = graph.resample_forward(
                mode,
                x,
                (3, 2, 2)[:spatial],
                stride=(2, 1, 2)[:spatial],
                padding=((1, 0), (1, 1), (1, 0))[:spatial],
                padding_mode="NEG_INF" if mode == "MAXPOOL" else "ZERO",
                nan_propagation=nan,
            )
            graph.output("y", y, strides=spec.packed(y.shape).strides)
            return graph.plan(handle), [uploaded(handle, values(shape, 0, dtype), dtype, layout)]

        yield Case(f"pooling {mode} rank {rank} {dtype} {layout} {nan}", plan, None)


def indices() -> Iterator[Case]:
    """Yield maxima with their places, in several types and layouts."""
    for dtype, layout, index_dtype in product(
        ("float16", "float32"), LAYOUTS, ("int8", "int32", "int64")
    ):

        def plan(handle: Any, dtype=dtype, layout=layout, index_dtype=index_dtype):
            shape, graph = (2, 8, 8, 10), dnn.Graph()
            spec = dnn.TensorSpec(shape, dtype, LAYOUTS[layout].get(4))
            strides = spec.packed((2, 8, 4, 5)).strides
            x = graph.input("x", shape, dtype, spec.strides)
            attributes: dict[str, Any] = {
                "mode": "MAXPOOL",
                "comp_type": "float32",
                "spatial_dims": 2,
                "window_dims": (2, 2),
                "strides": (2, 2),
                "pre_paddings": (0, 0),
                "post_paddings": (0, 0),
                "padding_mode": "NEG_INF",
                "nan_propagation": "PROPAGATE",
            }
            y = graph.virtual((2, 8, 4, 5), dtype, strides)
            places = graph.virtual((2, 8, 4, 5), index_dtype, strides)
            graph.node(
                "RESAMPLE_FWD",
                attributes,
                reads={"xdesc": x},
                writes={"ydesc": y, "idxdesc": places},
            )
            graph.output("places", places, index_dtype, strides)
            graph.output("y", y, dtype, strides)
            return graph.plan(handle), [uploaded(handle, values(shape, 0, dtype), dtype, layout)]

        yield Case(f"maxima with places {dtype} {layout} {index_dtype}", plan, None)


def pooling_gradients() -> Iterator[Case]:
    """Yield gradients of poolings, of each set of operands that cuDNN has attributes for."""
    shape = (2, 8, 7, 9)
    paddings = {"even": ((1, 1), (1, 1)), "before": ((1, 0), (1, 0)), "behind": ((0, 1), (0, 1))}
    modes = ("MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING")
    dtypes = ("float16", "bfloat16", "float32", "float64")
    operands = ("dy", "dy x y", "dy indices", "dy x y indices")
    for mode, padding, dtype, layout, names, index_dtype in product(
        modes, paddings, dtypes, LAYOUTS, operands, ("int8", "int32")
    ):
        has_indices = "indices" in names
        if (has_indices and mode != "MAXPOOL") or (index_dtype == "int32" and not has_indices):
            continue
        pads = paddings[padding]
        x, windows = values(shape, 0, dtype), (3, 2)
        places, taps = _places(x, windows, (2, 1), pads, mode)
        dy = values(places.shape, 1, dtype)
        expected = _spread(dy, places, taps, shape, windows, (2, 1), pads, mode)
        hosts = {"dy": dy, "x": x, "y": taps, "indices": places}

        def plan(
            handle: Any,
            mode=mode,
            pads=pads,
            dtype=dtype,
            layout=layout,
            names=names,
            index_dtype=index_dtype,
            hosts=hosts,
        ):
            graph, tensors, arrays = dnn.Graph(), {}, []
            for name in names.split():
                array = uploaded(
                    handle, hosts[name], index_dtype if name == "indices" else dtype, layout
                )
                spec = array.spec
                tensors[name] = graph.input(name, spec.shape, spec.dtype, spec.strides)
                arrays.append(array)
            dx = graph.resample_backward(
                mode,
                tensors.pop("dy"),
                shape,
                (3, 2),
                stride=(2, 1),
                padding=pads,
                padding_mode="NEG_INF" if mode == "MAXPOOL" else "ZERO",
                **tensors,
            )
            spec = dnn.TensorSpec(shape, dtype, LAYOUTS[layout].get(4))
            graph.output("dx", dx, dtype, spec.strides)
            return graph.plan(handle), arrays

        indexed = f" {index_dtype}" if has_indices else ""
        yield Case(
            f"gradient of {mode} {padding} {dtype} {layout} of {names}{indexed}", plan, expected
        )


def _windows(
    x: Array, window: tuple[int, ...], stride: tuple[int, ...], pads: Any, fill: float
) -> Array:
    """Return the windows of images, one for each value of the result, as rows of values."""
    padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=fill)
    every = np.lib.stride_tricks.sliding_window_view(padded, window, (2, 3))
    windows = every[:, :, :: stride[0], :: stride[1]]
    return windows.reshape(*windows.shape[:4], -1)


def _places(
    x: Array, window: tuple[int, ...], stride: tuple[int, ...], pads: Any, mode: str
) -> tuple[Array, Array]:
    """Return the place of each maximum in its window, and the result of the pooling."""
    if mode == "MAXPOOL":
        windows = _windows(x, window, stride, pads, -np.inf)
        return windows.argmax(-1), windows.max(-1)
    windows = _windows(x, window, stride, pads, 0.0)
    counts = _windows(np.ones_like(x), window, stride, pads, float("INCLUDE" in mode)).sum(-1)
    return windows.argmax(-1), windows.sum(-1) / counts


def _spread(
    dy: Array,
    places: Array,
    y: Array,
    shape: tuple[int, ...],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    pads: Any,
    mode: str,
) -> Array:
    """Return the gradient of images: of each window to its maximum, or to all its values."""
    counts = _windows(np.ones(shape), window, stride, pads, float("INCLUDE" in mode)).sum(-1)
    padded = np.pad(np.zeros(shape), [(0, 0), (0, 0), *pads])
    for place, (row, column) in enumerate(np.ndindex(*window)):
        share = np.where(places == place, dy, 0) if mode == "MAXPOOL" else dy / counts
        rows = slice(row, row + stride[0] * (y.shape[2] - 1) + 1, stride[0])
        columns = slice(column, column + stride[1] * (y.shape[3] - 1) + 1, stride[1])
        padded[:, :, rows, columns] += share
    (top, _), (left, _) = pads
    return padded[:, :, top : top + shape[2], left : left + shape[3]]


def bias_gradients() -> Iterator[Case]:
    """Yield the gradients of attention's bias, within lengths too."""
    sizes = {"usual": (64, 128, 64), "odd steps": (40, 72, 64), "size 32": (64, 64, 32)}
    masks: dict[str, dict[str, Any]] = {
        "whole": {},
        "causal": {"causal": True},
        "window": {"causal": True, "window": 48},
        "dropout": {"dropout": 0.25},
        "lengths": {},
    }
    shared = {"nothing": (2, 4), "batch": (1, 4), "heads": (2, 1), "both": (1, 1)}
    dtypes = ("float16", "bfloat16")
    for size, mask, owners, heads, dtype in product(sizes, masks, shared, (4, 2), dtypes):
        rows, columns, head = sizes[size]
        shapes = {
            "q": (2, 4, rows, head),
            "k": (2, heads, columns, head),
            "v": (2, heads, columns, head),
            "bias": (*shared[owners], rows, columns),
            "do": (2, 4, rows, head),
        }
        host = {
            name: values(shape, seed, dtype) for seed, (name, shape) in enumerate(shapes.items())
        }
        lengths = np.array([[rows, rows // 2], [columns // 2, columns]]).reshape(2, 2, 1, 1, 1)
        attends, inside = None, np.ones((2, 1, rows, 1), bool)
        if "causal" in masks[mask]:
            attends = causal_mask(rows, columns)
        if "window" in masks[mask]:
            attends = attends & window_mask(rows, columns, 48)
        if mask == "lengths":
            inside = np.arange(rows)[:, None] < lengths[0]
            attends = np.arange(columns) < lengths[1]
        scale = head**-0.5
        slopes = np.where(inside, host["do"], 0)
        expected = None
        if mask != "dropout":  # what is dropped, the GPU alone knows
            expected = attention_bias_gradient(
                *(host[name] for name in "qkv"), slopes, scale, attends, host["bias"]
            )

        def plan(handle: Any, host=host, dtype=dtype, mask=mask, lengths=lengths):
            arrays = {name: handle.array(array, dtype=dtype) for name, array in host.items()}
            do = arrays.pop("do")
            if mask == "lengths":
                arrays["q_lengths"] = handle.array(lengths[0], dtype="int32")
                arrays["kv_lengths"] = handle.array(lengths[1], dtype="int32")
            options = masks[mask]
            o, stats = dnn.scaled_dot_product_attention_forward(
                handle, **arrays, **options, return_stats=True
            )
            arrays |= {"o": o, "do": do, "stats": stats}
            function = dnn.scaled_dot_product_attention_backward
            made = function.plan(handle, **arrays, **options, return_dbias=True)
            return made, [arrays[name] for name in made.graph.inputs]

        yield Case(f"gradient of bias {size} {mask} {owners} {heads} {dtype}", plan, expected)


def activations() -> Iterator[Case]:
    """Yield activations that are graphs."""
    shapes = ((48,), (7,), (6, 33), (2, 8, 5, 7), (2, 3, 5, 7), (1, 1, 1, 1), (4, 4096))
    for name, shape, dtype, layout in product(
        ("leaky_relu", "gelu", "gelu_tanh", "softplus"),
        shapes,
        ("float16", "bfloat16", "float32"),
        LAYOUTS,
    ):
        if layout == "last" and len(shape) != 4:
            continue
        x = values(shape, 0, dtype)

        def plan(handle: Any, x=x, name=name, dtype=dtype, layout=layout):
            operands = [uploaded(handle, x, dtype, layout)]
            return dnn.activation_forward.plan(handle, *operands, name), operands

        def back(handle: Any, x=x, name=name, dtype=dtype, layout=layout):
            operands = [uploaded(handle, x, dtype, layout)] * 3
            return dnn.activation_backward.plan(handle, *operands, name), operands

        yield Case(f"{name} {shape} {dtype} {layout}", plan, EPILOGUES[name][1](x))
        yield Case(f"gradient of {name} {shape} {dtype} {layout}", back, None)


PRODUCT_TYPES = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
# Strides of a, (M, K), and of b, (K, N): NVIDIA's sample of float8 has K packed in both.
PRODUCT_LAYOUTS = {"K packed": "nt", "rows": "nn", "columns": "tt", "K apart": "tn"}


def products() -> Iterator[Case]:
    """Yield products of every two types, and what `matmul` puts behind them."""
    rows, inner, columns = 64, 128, 48
    for a_type, b_type in product(PRODUCT_TYPES, repeat=2):
        if a_type == b_type:
            types = [(a_type, a_type, result) for result in PRODUCT_TYPES]
        else:
            types = [(a_type, b_type, "float32"), (a_type, b_type, "bfloat16")]
        for one in types:
            yield product_case((2,), (2,), (rows, inner, columns), one, "K packed")
        layouts = [*PRODUCT_LAYOUTS][1:] if "float8" in a_type else ["rows"]
        for layout in layouts:
            yield product_case((2,), (2,), (rows, inner, columns), types[0], layout)
    for dtype, sizes in product(
        ("float8_e4m3fn", "float8_e5m2"),
        ((1, 128, 48), (64, 128, 1), (33, 17, 19), (34, 18, 22), (40, 24, 56), (64, 16, 64)),
    ):
        yield product_case((1,), (1,), sizes, (dtype, dtype, "float32"), "K packed")
    for dtype, behind in product(
        ("float16", "float32", "float8_e4m3fn"), ("alpha", "descale", "bias float32", "bias", "all")
    ):
        types = (dtype, dtype, "float32" if "8" in dtype else dtype)
        yield product_case((2,), (2,), (rows, inner, columns), types, "K packed", behind)
    for dtype, batches in product(("float16", "float8_e4m3fn"), (((3,), (1,)), ((1,), (3,)))):
        types = (dtype, dtype, "float32")
        yield product_case(*batches, (rows, inner, columns), types, "K packed")


def product_case(
    a_batch: tuple[int, ...],
    b_batch: tuple[int, ...],
    sizes: tuple[int, int, int],
    types: tuple[str, str, str],
    layout: str,
    behind: str = "",
) -> Case:
    """Return a product, written as `matmul` writes it, of whatever types."""
    rows, inner, columns = sizes
    a_type, b_type, result = types
    hosts = {"a": values((*a_batch, rows, inner), 0, a_type)}
    hosts["b"] = values((*b_batch, inner, columns), 1, b_type)
    dtypes = {"a": a_type, "b": b_type}
    expected = hosts["a"] @ hosts["b"]
    graph = dnn.Graph()
    specs = {
        name: matrix_spec(hosts[name].shape, dtypes[name], transposed)
        for name, transposed in zip("ab", PRODUCT_LAYOUTS[layout], strict=True)
    }

    def operand(name: str, shape: tuple[int, ...], dtype: str, host: Array) -> Any:
        hosts[name], specs[name] = host, dnn.TensorSpec(shape, dtype)
        return graph.input(name, shape, dtype)

    a, b = (graph.input(n, s.shape, s.dtype, s.strides) for n, s in specs.copy().items())
    y = a @ b
    if behind in ("descale", "all"):
        for name, factor in (("a_descale", 0.25), ("b_descale", 0.5)):
            y = y * operand(name, (1, 1, 1), "float32", np.full((1, 1, 1), factor))
            expected = expected * factor
    if behind in ("alpha", "all"):
        y, expected = y * graph.scalar("alpha", 0.75), expected * 0.75
    if behind.startswith("bias") or behind == "all":
        bias_type = "float32" if behind != "bias" else a_type
        bias = values((1, 1, columns), 2, bias_type)
        y, expected = y + operand("bias", bias.shape, bias_type, bias), expected + bias
    if behind == "all":
        y, expected = graph.gelu(y), ACTIVATIONS["gelu"](expected)
    graph.output("y", y, result)

    def plan(handle: Any) -> tuple[Any, list[Any]]:
        arrays = []
        for name, spec in specs.items():
            arrays.append(handle.empty(spec))
            arrays[-1].copy_from(hosts[name].astype(numpy_dtype(spec.dtype)))
        return graph.plan(handle), arrays

    text = f"{a_batch}{b_batch} {sizes} {a_type} {b_type} {result} {layout} {behind}"
    largest = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}.get(result, np.inf)
    return Case(f"product {text}", plan, np.clip(expected, -largest, largest))


def matrix_spec(shape: tuple[int, ...], dtype: str, transposed: str) -> dnn.TensorSpec:
    """Return matrices whose rows, "n", or columns, "t", are packed."""
    if transposed == "n":
        return dnn.TensorSpec(shape, dtype)
    rows, columns = shape[-2:]
    return dnn.TensorSpec(shape, dtype, strides=(rows * columns, 1, rows))


def outcome(handle: dnn.Handle, case: Case) -> tuple[bool, str]:
    """Return whether a case is served, and what became of it."""
    try:
        plan, operands = case.make(handle)
    except dnn.CudnnliteError as error:
        return False, f"{type(error).__name__}: {str(error)[:100]}"
    with plan:
        result = plan(*operands)
        engine = str(plan.choice.algorithm)
    if isinstance(result, dict):
        places = result.get("places")
        shown = "" if places is None else f"; places {places.numpy()[0, 0].ravel()[:8].tolist()}"
        if case.expected is None or places is not None:
            return True, f"{engine}{shown}"
        result = next(result[name] for name in ("dbias", "dx", "y") if name in result)
    if case.expected is None:
        return True, engine
    error = np.abs(result.numpy().astype(np.float64) - case.expected).max()
    return True, f"{engine}; error {error / np.abs(case.expected).max():.2g}"


def main() -> None:
    """Print what the GPU does of each case of the families that are named, or of all."""
    families = [
        family
        for family in (
            gradients,
            epilogues,
            poolings,
            indices,
            pooling_gradients,
            bias_gradients,
            activations,
            products,
        )
        if family.__name__ in sys.argv[1:] or not sys.argv[1:]
    ]
    with dnn.Handle() as handle, dnn.Handle("emulated") as emulated:
        for case in (case for family in families for case in family()):
            is_served, text = outcome(handle, case)
            print(f"{case.name}: {text}")
            emulated_is_served, emulated_text = outcome(emulated, case)
            if emulated_is_served != is_served:
                kind = "LAXER" if emulated_is_served else "stricter"
                print(f"  the emulated device is {kind}: {emulated_text}")


if __name__ == "__main__":
    main()
