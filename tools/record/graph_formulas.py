"""Record, on a GPU, which graphs cuDNN has engines for, and how far their numbers are from the emulated device's.

python -m tools.record.graph_formulas OUT.json
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import cudnnlite as dnn
from cudnnlite._raw.enums import PointwiseMode
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.errors import CudnnError
from cudnnlite.graph import faults
from cudnnlite.operations.attention.attention_graphs import backward_graph, forward_graph
from cudnnlite.operations.layers import normalization

HALVES = ("float16", "bfloat16")
FLOATS = ("float32", *HALVES)
COLUMNS = ["graph", "status", "difference"]
TABLE = Path(__file__).parents[2] / "tests/emulated/data/graph_formulas.json"
# Pointwise modes that need integers or booleans, or that cuDNN 9.28 has and 9.19 has not.
_OTHER_MODES = {"LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", "BINARY_SELECT"}


def specs_of(dtype, **shapes):
    """Return packed specs by name; a pair is a shape with a data type of its own."""
    return {
        name: dnn.TensorSpec(*shape)
        if isinstance(shape[0], tuple)
        else dnn.TensorSpec(shape, dtype)
        for name, shape in shapes.items()
    }


def products():
    """Yield (name, graph) of a product with what stands behind it."""
    behind = {
        "alone": lambda graph, y, bias: y,
        "bias": lambda graph, y, bias: y + bias,
        "scaled": lambda graph, y, bias: y * 0.5,
        "bias relu": lambda graph, y, bias: graph.relu(y + bias),
        "bias gelu": lambda graph, y, bias: graph.gelu(y + bias),
        "bias gelu_tanh": lambda graph, y, bias: graph.gelu(y + bias, approximate=True),
        "bias swish": lambda graph, y, bias: graph.swish(y + bias),
        "maximum": lambda graph, y, bias: graph.reduce("MAX", y),
        "sum of bias": lambda graph, y, bias: graph.reduce("ADD", y + bias),
        "square": lambda graph, y, bias: y * y,
        "softmax": lambda graph, y, bias: graph.softmax(y),
    }
    for (epilogue, build), dtype, rank in product(behind.items(), FLOATS, (3, 4)):
        graph = dnn.Graph()
        batch = (2,) if rank == 3 else (2, 1)
        a = graph.input("a", (*batch, 24, 40), dtype)
        b = graph.input("b", (*batch, 40, 56), dtype)
        bias = graph.input("bias", (*(1,) * (rank - 1), 56), dtype)
        result = build(graph, graph.matmul(a, b), bias)
        graph.output("y", result, dtype if epilogue not in ("maximum", "sum of bias") else None)
        yield f"product {epilogue} {dtype} rank {rank}", graph
    for transposed, dtype in product(("a", "b", "both"), FLOATS):
        graph = dnn.Graph()
        a_shape = (2, 40, 24) if transposed != "b" else (2, 24, 40)
        b_shape = (2, 56, 40) if transposed != "a" else (2, 40, 56)
        a, b = graph.input("a", a_shape, dtype), graph.input("b", b_shape, dtype)
        a = a.transposed() if transposed != "b" else a
        b = b.transposed() if transposed != "a" else b
        graph.output("y", graph.matmul(a, b), dtype)
        yield f"product transposed {transposed} {dtype}", graph


def pointwise():
    """Yield (name, graph) of one pointwise operation alone."""
    for mode, dtype in product(PointwiseMode, ("float32", "float16")):
        if mode.name in _OTHER_MODES or mode.name.startswith(("CMP_", "GEN_")):
            continue
        graph = dnn.Graph()
        operands = [graph.input(name, (4, 24, 40), dtype) for name in ("x", "b")]
        try:
            result = graph.pointwise(mode, *operands)
        except dnn.ArgumentError:
            graph = dnn.Graph()
            result = graph.pointwise(mode, graph.input("x", (4, 24, 40), dtype))
        graph.output("y", result, dtype)
        yield f"pointwise {mode.name} {dtype}", graph


def sums():
    """Yield (name, graph) of reductions, statistics and a softmax alone."""
    for operator in ("ADD", "MAX", "MIN", "AVG", "AMAX", "NORM2"):
        graph = dnn.Graph()
        x = graph.input("x", (4, 24, 40), "float16")
        graph.output("y", graph.reduce(operator, x))
        yield f"reduction {operator}", graph
    graph = dnn.Graph()
    graph.output("y", graph.softmax(graph.input("x", (2, 4, 16, 40), "float16")), "float16")
    yield "softmax alone", graph
    graph = dnn.Graph()
    total, squares = graph.gen_stats(graph.input("x", (4, 8, 6, 6), "float16", (288, 1, 48, 8)))
    graph.output("total", total)
    graph.output("squares", squares)
    yield "statistics alone", graph


def normalizations():
    """Yield (name, graph) of normalisations and their gradients."""
    shapes = {"rows": (24, 96, 1, 1), "images": (3, 8, 6, 4), "sequences": (3, 40, 64)}
    modes = ("LAYER", "RMS", "INSTANCE")
    for mode, dtype, shape, training in product(modes, FLOATS, shapes, (False, True)):
        x = shapes[shape]
        if mode == "INSTANCE":
            x = (24, 6, 16, 1) if shape == "rows" else x
            parameters = (1, x[1], *(1,) * (len(x) - 2))
        else:
            parameters = (1, *x[1:]) if shape != "sequences" else (1, 1, x[2])
        scale = (parameters, "float32")
        specs = specs_of(dtype, x=x, scale=scale, bias=scale)
        graph = normalization.forward_graph(specs, mode, 0.01, training)
        kind = "training" if training else "inference"
        yield f"{mode.lower()} normalisation {kind} {dtype} {shape}", graph
        if not training:
            continue
        statistics = (graph.outputs["inv_variance"].shape, "float32")
        means = {} if mode == "RMS" else {"mean": statistics}
        specs = specs_of(dtype, dy=x, x=x, scale=scale, **means, inv_variance=statistics)
        yield (
            f"{mode.lower()} normalisation gradients {dtype} {shape}",
            normalization.backward_graph(specs, mode),
        )


def poolings():
    """Yield (name, graph) of poolings."""
    modes = ("MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING")
    ends = {"even": ((1, 1), (1, 1)), "uneven": ((0, 1), (1, 0))}
    layouts = ("NCHW", "NHWC")
    for mode, dtype, layout, padding in product(modes, FLOATS, layouts, ends):
        spec = dnn.TensorSpec((2, 8, 7, 9), dtype, layout)
        graph = dnn.Graph()
        x = graph.input("x", spec.shape, dtype, spec.strides)
        fill = "NEG_INF" if mode == "MAXPOOL" else "ZERO"
        y = graph.resample_forward(
            mode, x, (3, 2), stride=(2, 2), padding=ends[padding], padding_mode=fill
        )
        graph.output("y", y, strides=dnn.TensorSpec(y.shape, dtype, layout).strides)
        yield f"pooling {mode} {dtype} {layout} {padding}", graph


def attentions():
    """Yield (name, graph) of attention and its gradients."""
    shapes = {  # batch, heads of q, heads of k and v, steps of q, steps of k, size, size of v
        "equal": (2, 3, 3, 64, 64, 64, 64),
        "groups": (2, 6, 2, 64, 128, 64, 64),
        "sizes apart": (1, 2, 2, 72, 136, 64, 32),
        "one query": (2, 4, 2, 1, 64, 64, 64),
        "size 128": (1, 2, 1, 192, 192, 128, 128),
        "size 160": (1, 2, 2, 64, 64, 160, 160),
    }
    for shape, dtype, causal in product(shapes, FLOATS, (False, True)):
        batch, heads, kv_heads, steps, kv_steps, size, v_size = shapes[shape]
        q, k = (batch, heads, steps, size), (batch, kv_heads, kv_steps, size)
        v, o = (batch, kv_heads, kv_steps, v_size), (batch, heads, steps, v_size)
        mask = "causal" if causal else "whole"
        specs = specs_of(dtype, q=q, k=k, v=v)
        for stats in (False, True):
            kind = "with stats" if stats else "alone"
            graph = forward_graph(specs, 0.3, causal, None, 0.0, stats)
            yield f"attention {shape} {dtype} {mask} {kind}", graph
        if not causal:
            biased = specs | specs_of(dtype, bias=(1, heads, steps, kv_steps))
            biased_graph = forward_graph(biased, 0.3, False, None, 0.0, False)
            yield f"attention {shape} {dtype} bias", biased_graph
        if heads == kv_heads:
            stats_spec = ((batch, heads, steps, 1), "float32")
            more = specs_of(dtype, o=o, do=o, stats=stats_spec)
            yield (
                f"attention gradients {shape} {dtype} {mask}",
                backward_graph(specs | more, 0.3, causal, None, 0.0),
            )


def cases():
    """Return all graphs by name."""
    kinds = (products, pointwise, sums, normalizations, poolings, attentions)
    return {name: graph for kind in kinds for name, graph in kind()}


def operands_of(graph):
    """Return host values for a graph's inputs, the same at each call."""
    rng = np.random.default_rng(0)
    values = {}
    for name, record in graph.inputs.items():
        drawn = rng.standard_normal(record.shape) / 2
        if name in ("inv_variance", "scale"):
            drawn = np.abs(drawn) + 0.5
        if name == "stats":
            drawn += 5
        values[name] = drawn.astype(dnn.dtypes.numpy_dtype(record.dtype))
    return values


def outcome(handle, graph):
    """Return the status of planning and running a graph on a handle, and what it writes."""
    try:
        with graph.plan(handle) as plan:
            arrays = {}
            for name, values in operands_of(graph).items():
                record = graph.inputs[name]
                spec = record.spec
                arrays[name] = handle.empty(spec)
                arrays[name].copy_from(values)
            results = plan(**arrays)
            return "SUCCESS", {name: array.numpy() for name, array in results.items()}
    except CudnnError as error:
        return error.status.name, {}


def difference(results, others):
    """Return the largest difference of two results, relative to the largest value."""
    worst = 0.0
    for name, values in results.items():
        if name == "dq_sums":  # scratch, in an order of cuDNN's own
            continue
        one, other = values.astype(np.float64), others[name].astype(np.float64)
        if not (np.isfinite(one) == np.isfinite(other)).all():
            return float("inf")
        finite = np.isfinite(other)
        largest = np.abs(other[finite]).max(initial=1e-9)
        worst = max(worst, float(np.abs(one - other)[finite].max(initial=0.0) / largest))
    return worst


def record(names):
    """Return the rows of some graphs; what is computed wrongly is recorded, too."""
    faults.FAULTS = ()
    graphs = cases()
    rows = []
    with dnn.Handle() as handle, dnn.Handle(EmulatedDevice(0)) as emulated:
        for name in names:
            status, results = outcome(handle, graphs[name])
            other_status, others = outcome(emulated, graphs[name])
            far = None
            if status == other_status == "SUCCESS":
                far = float(f"{difference(results, others):.2g}")
            rows.append([name, status, far])
            if status != other_status:
                print(f"{name}: {status}, emulated {other_status}", flush=True)
    return rows


def main(path, workers):
    """Record all graphs, by several processes: cuDNN compiles most of them, a second each."""
    names = [*cases()]
    parts = [names[start::workers] for start in range(workers)]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        rows = {row[0]: row for part in pool.map(record, parts) for row in part}
    with dnn.Handle() as handle:
        about = {"device": handle.device.name, "cudnn": handle.version, "columns": COLUMNS}
    lines = ",\n".join(json.dumps(rows[name]) for name in names)
    text = f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n'
    Path(path).write_text(text, encoding="utf-8")
    print(Counter(status for _, status, _ in rows.values()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)
