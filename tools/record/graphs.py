"""Record, on a GPU, what cuDNN does of graphs with a forward convolution, and of its fused call.

    python -m tools.record.graphs OUT.json [PART PARTS]

For each combination below: of a graph, in true float32 and without that promise, the first engine
that the heuristics A and FALLBACK name, that keeps the promise, and that becomes a plan; of the
call `cudnnConvolutionBiasActivationForward` each algorithm.  With it the status, and the largest
error relative to the largest value, against ONNX in float64.  One part of several is recorded where
that is asked; the rows of all of them are put together by `merge`.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tools.record.support import spec_of, upload, write

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from oracles import onnx_convolution

import cudnnlite as dnn
from cudnnlite._raw.enums import BackendHeurMode, PointwiseMode
from cudnnlite.dtypes import numpy_dtype, parse_dtype
from cudnnlite.errors import CudnnError
from cudnnlite.graph.engines import named_by
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.operation_graph import Graph

# name: (x shape, w shape, ConvolutionSpec options)
CASES = {
    "3x3": ((2, 16, 12, 14), (24, 16, 3, 3), {"padding": 1}),
    "3x3_odd_channels": ((2, 3, 12, 14), (5, 3, 3, 3), {"padding": 1}),
    "3x3_three_channels": ((2, 3, 12, 14), (8, 3, 3, 3), {"padding": 1}),
    "1x1": ((2, 16, 12, 14), (24, 16, 1, 1), {}),
    "3x3_stride2": ((2, 16, 12, 14), (24, 16, 3, 3), {"padding": 1, "stride": 2}),
    "3x3_dilation2": ((2, 16, 12, 14), (24, 16, 3, 3), {"padding": 2, "dilation": 2}),
    "3x3_groups2": ((2, 16, 12, 14), (24, 8, 3, 3), {"padding": 1, "groups": 2}),
    "3x3_depthwise": ((2, 16, 12, 14), (16, 1, 3, 3), {"padding": 1, "groups": 16}),
    "3x3_convolution": ((2, 16, 12, 14), (24, 16, 3, 3), {"padding": 1, "mode": "convolution"}),
    "2x3_asymmetric": ((2, 16, 12, 14), (24, 16, 2, 3), {"padding": ((0, 1), (2, 1))}),
    "3x3_stride2_asymmetric": (
        (2, 16, 12, 14),
        (24, 16, 3, 3),
        {"padding": ((0, 1), (0, 1)), "stride": 2},
    ),
    "3x3_odd_asymmetric": ((2, 3, 12, 14), (5, 3, 3, 3), {"padding": ((2, 0), 1)}),
    "3x3_groups2_asymmetric": (
        (2, 16, 12, 14),
        (24, 8, 3, 3),
        {"padding": (1, (0, 2)), "groups": 2},
    ),
    "3x3_depthwise_asymmetric": (
        (2, 16, 12, 14),
        (16, 1, 3, 3),
        {"padding": ((0, 1), (0, 1)), "groups": 16},
    ),
    "3x3_dilation2_asymmetric": (
        (2, 16, 12, 14),
        (24, 16, 3, 3),
        {"padding": ((1, 3), 2), "dilation": 2},
    ),
    "1d": ((2, 16, 33), (24, 16, 3), {"padding": 1}),
    "1d_asymmetric": ((2, 16, 33), (24, 16, 4), {"padding": ((1, 2),)}),
    "3d": ((2, 16, 6, 7, 9), (24, 16, 3, 3, 3), {"padding": 1}),
    "3d_asymmetric": ((2, 16, 6, 7, 9), (24, 16, 3, 2, 3), {"padding": (1, (0, 1), (2, 1))}),
}
FLOATS = ("float32", "float64", "float16", "bfloat16")
LAYOUTS = {3: ("NCW", "NWC"), 4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}
# behind the convolution: what is added or multiplied, of which shape, with which scalars
OPERANDS = {
    "bias": (PointwiseMode.ADD, "bias", (1.0, 1.0)),
    "scale": (PointwiseMode.MUL, "bias", (1.0, 1.0)),
    "z": (PointwiseMode.ADD, "image", (1.0, 1.0)),
    "scaled_z": (PointwiseMode.ADD, "image", (1.0, -0.5)),
    "scaled": (PointwiseMode.ADD, "image", (1.25, -0.5)),
    "scaled_bias": (PointwiseMode.ADD, "bias", (1.25, 1.0)),
    "number": (PointwiseMode.ADD, "number", (1.0, 1.0)),
    "row": (PointwiseMode.ADD, "row", (1.0, 1.0)),
}
MODES = {
    "relu": (PointwiseMode.RELU_FWD, {}, lambda v: np.maximum(v, 0)),
    "clipped_relu": (
        PointwiseMode.RELU_FWD,
        {"relu_upper_clip": 0.75},
        lambda v: np.clip(v, 0, 0.75),
    ),
    "sigmoid": (PointwiseMode.SIGMOID_FWD, {}, lambda v: 1 / (1 + np.exp(-v))),
    "tanh": (PointwiseMode.TANH_FWD, {}, np.tanh),
    "elu": (
        PointwiseMode.ELU_FWD,
        {"elu_alpha": 0.75},
        lambda v: np.where(v > 0, v, 0.75 * np.expm1(v)),
    ),
    "swish": (PointwiseMode.SWISH_FWD, {"swish_beta": 1.5}, lambda v: v / (1 + np.exp(-1.5 * v))),
    "identity": (PointwiseMode.IDENTITY, {}, lambda v: v),
}
ACTIVATIONS = {
    "identity": 0,
    "relu": 1,
    "sigmoid": 2,
    "tanh": 3,
    "clipped_relu": 4,
    "elu": 5,
    "swish": 6,
}
ALL = ("bias", "relu"), ("z", "bias", "relu")
_SUMS = {}


def graphs():
    """Yield ("graph", case, dtype, layout, layout of bias and z, chain, compute, dtype between, alpha of the convolution)."""
    for case, dtype in itertools.product(CASES, FLOATS):
        rank = len(CASES[case][0])
        wide = "float64" if dtype == "float64" else "float32"
        for layout, chain in itertools.product(LAYOUTS[rank], ((), *ALL)):
            yield "graph", case, dtype, layout, layout, chain, wide, wide, 1.0
    for dtype, layout in itertools.product(FLOATS, LAYOUTS[4]):
        wide = "float64" if dtype == "float64" else "float32"
        usual = ("graph", "3x3", dtype, layout, layout)
        for mode in MODES:
            for front in ((), ("bias",), ("z", "bias")):
                yield *usual, (*front, mode), wide, wide, 1.0
        for operand in OPERANDS:
            yield *usual, (operand,), wide, wide, 1.0
        for chain in (
            ("scaled_z", "bias", "relu"),
            ("scaled", "bias", "relu"),
            ("scaled_bias", "relu"),
            ("scale", "bias"),
            ("bias", "z", "relu"),
            ("relu", "bias"),
            ("scaled", "bias", "identity"),
            ("scaled", "bias", "sigmoid"),
            ("bias", "relu", "scale"),
            ("scaled_z", "bias"),
            ("scaled", "bias"),
        ):
            yield *usual, chain, wide, wide, 1.0
        for chain in (
            ("bias",),
            ("bias", "relu"),
            ("z", "bias", "relu"),
            ("scaled_z", "bias", "sigmoid"),
            ("scaled_z", "bias", "relu"),
        ):
            yield *usual, chain, wide, wide, 1.25
        for between in ("float32", "float64", "float16", "bfloat16"):
            if between != wide:
                yield *usual, ("bias", "relu"), wide, between, 1.0
        for compute in ("float16", "float32", "float64", "bfloat16"):
            if compute != wide:
                for chain in ((), ("bias", "relu")):
                    yield *usual, chain, compute, wide, 1.0
        other = LAYOUTS[4][layout == "NCHW"]
        yield "graph", "3x3", dtype, layout, other, ("z", "bias", "relu"), wide, wide, 1.0
        yield "graph", "3x3", dtype, layout, "strided", ("z", "bias", "relu"), wide, wide, 1.0
        yield "graph", "3x3", dtype, "strided", "NCHW", ("bias", "relu"), wide, wide, 1.0
        for others, chain in itertools.product(("y strided", "y other", "w other"), ((), *ALL)):
            yield "graph", "3x3", dtype, layout, others, chain, wide, wide, 1.0
    for case, dtype in itertools.product(CASES, ("float32", "float16", "bfloat16")):
        layout = LAYOUTS[len(CASES[case][0])][1]
        yield "graph", case, dtype, layout, layout, ("bias", "swish"), "float32", "float32", 1.0
        yield (
            "graph",
            case,
            dtype,
            layout,
            layout,
            ("z", "bias", "swish"),
            "float32",
            "float32",
            1.0,
        )


def calls():
    """Yield ("call", case, dtype, layouts of x, w, y, activation, propagate, z, alpha, alpha2, dtypes of y and bias, math)."""

    def of(
        case,
        dtype,
        layouts,
        activation,
        z=("none", 1.0, 0.0),
        *,
        nan=False,
        y=None,
        bias=None,
        math="DEFAULT",
    ):
        return "call", case, dtype, *layouts, activation, nan, *z, y or dtype, bias or dtype, math

    symmetric = [case for case in CASES if "asymmetric" not in case]
    for case, dtype in itertools.product(symmetric, FLOATS):
        for layout, activation in itertools.product(
            LAYOUTS[len(CASES[case][0])], ("relu", "identity")
        ):
            for math in ("DEFAULT", "FMA") if dtype == "float32" else ("DEFAULT",):
                yield of(case, dtype, [layout] * 3, activation, math=math)
    for dtype, layout in itertools.product(FLOATS, LAYOUTS[4]):
        for activation, nan in itertools.product(ACTIVATIONS, (False, True)):
            for z in (("none", 1.0, 0.0), ("own", 1.25, -0.5)):
                yield of("3x3", dtype, [layout] * 3, activation, z, nan=nan)
        for activation in ("relu", "identity"):
            for z in (("in_place", 1.25, -0.5), ("null", 1.0, 0.0)):
                yield of("3x3", dtype, [layout] * 3, activation, z)
        for other in FLOATS:
            if other != dtype:
                yield of("3x3", dtype, [layout] * 3, "relu", bias=other)
                yield of("3x3", dtype, [layout] * 3, "relu", y=other)
        last = LAYOUTS[4][layout == "NCHW"]
        for layouts in (
            (layout, layout, last),
            (layout, last, layout),
            (layout, last, last),
            (layout, layout, "strided"),
            ("strided", layout, layout),
        ):
            yield of("3x3", dtype, layouts, "relu", ("own", 1.0, 1.0))
    for case, activation in itertools.product(
        ("3x3", "1x1", "3x3_stride2", "3x3_groups2", "3x3_dilation2", "3d"), ("relu", "identity")
    ):
        layout = LAYOUTS[len(CASES[case][0])][1]
        for y, bias in (
            ("int8", "float32"),
            ("float32", "float32"),
            ("int8", "int8"),
            ("int8", "int32"),
        ):
            for z in (("none", 0.75, 0.0), ("own", 0.75, 0.5)):
                yield of(case, "int8", [layout] * 3, activation, z, y=y, bias=bias)


def nans():
    """Yield ("nan", what runs, activation, whether a NaN is to be propagated: None where that is not said, dtype)."""
    for dtype, activation in itertools.product(
        FLOATS, ("relu", "clipped_relu", "tanh", "identity")
    ):
        for nan in (None, False, True):
            if activation != "identity":
                yield "nan", "graph", activation, nan, dtype
            if activation in ("relu", "identity") and nan is not None:
                yield "nan", "call", activation, nan, dtype


def combinations():
    """Yield the keys of all rows, each once."""
    yield from dict.fromkeys(itertools.chain(graphs(), calls(), nans()))


def values_of(rng, shape, dtype):
    """Return values in a host type: integers for integers."""
    kind = numpy_dtype(parse_dtype(dtype))
    return (rng.integers(-3, 4, shape) if kind.kind == "i" else rng.standard_normal(shape)).astype(
        kind
    )


def convolved(x, w, options):
    """Return the convolution in float64, by ONNX; computed once for the same operands."""
    key = (x.tobytes(), w.tobytes(), str(options))
    if key not in _SUMS:
        conv = dnn.ConvolutionSpec(**options)
        steps = (conv.pads(x.ndim - 2), *conv.steps(x.ndim - 2)[1:])
        _SUMS[key] = onnx_convolution(
            x, w, *steps, conv.groups, conv.mode == dnn.ConvolutionMode.CONVOLUTION
        )
    return _SUMS[key]


def poisoned(handle, spec):
    """Return an array of NaN, or of ones where it holds integers."""
    array = handle.empty(spec)
    handle.device.fill(array.ptr, array.nbytes, 0xFF, handle.stream)
    return array


def error_of(y, expected):
    """Return the largest error relative to the largest value."""
    error = np.abs(y.numpy().astype(np.float64) - expected).max() / np.abs(expected).max()
    return float(f"{error:.1e}") if np.isfinite(error) else "inf"


def record_graph(handle, key):
    """Return, in true float32 and without that promise, [status, engine, error]."""
    _, case, dtype, layout, other, chain, compute, _, alpha = key
    x_shape, w_shape, options = CASES[case]
    conv, rng = dnn.ConvolutionSpec(**options, compute_type=compute), np.random.default_rng(0)
    y_shape, rank = conv.output_shape(x_shape, w_shape), len(x_shape)
    plain = LAYOUTS[rank][0] if layout == "strided" else layout
    swapped = LAYOUTS[rank][plain == LAYOUTS[rank][0]]
    y_layout = {"y strided": "strided", "y other": swapped}.get(other, plain)
    w_layout = swapped if other == "w other" else plain
    other = y_layout if other[:2] in ("y ", "w ") else other
    hosts = {
        "x": values_of(rng, x_shape, dtype),
        "w": values_of(rng, w_shape, dtype) / numpy_dtype(parse_dtype(dtype)).type(8),
    }
    x = upload(handle, spec_of(x_shape, dtype, layout), hosts["x"])
    arrays = {"x": x, "w": handle.array(hosts["w"], dtype=dtype, layout=w_layout)}
    wanted = alpha * convolved(hosts["x"], hosts["w"], options)
    shapes = {
        "bias": (1, y_shape[1], *[1] * (rank - 2)),
        "image": y_shape,
        "number": (1,) * rank,
        "row": (*[1] * (rank - 1), y_shape[-1]),
    }
    for number, name in enumerate(chain):
        if name in OPERANDS:
            _, kind, (own, its) = OPERANDS[name]
            host = values_of(rng, shapes[kind], dtype)
            spec = spec_of(
                shapes[kind], dtype, other if kind == "image" or other != "strided" else plain
            )
            arrays[f"{number}"] = upload(handle, spec, host)
            wanted = (
                own * wanted * its * host.astype(np.float64)
                if name == "scale"
                else own * wanted + its * host.astype(np.float64)
            )
        else:
            wanted = MODES[name][2](wanted)
    y_spec = spec_of(y_shape, dtype, y_layout)
    found = []
    with ExitStack() as stack:
        try:
            graph = graph_of(
                handle, stack, key, {n: a.spec for n, a in arrays.items()}, y_spec, conv
            )
        except CudnnError as error:
            return [[error.status.name, "graph", None]] * 2
        named = [
            c
            for mode in (BackendHeurMode.A, BackendHeurMode.FALLBACK)
            for c in named_by(graph, mode, stack)
        ]
        for asked in (dnn.MathType.FMA, dnn.MathType.DEFAULT):
            status = ("NONE_NAMED" if not named else "NONE_KEEPS", "", None)
            tried = set()
            for configuration in named:
                narrow = asked == dnn.MathType.FMA != configuration.math_type(asked)
                if configuration.engine in tried or narrow or not configuration.capturable:
                    continue
                tried.add(configuration.engine)
                try:
                    with ExitStack() as own:
                        plan = ExecutionPlan(graph, configuration, own)
                        y = poisoned(handle, y_spec)
                        scratch = (
                            handle.workspace.reserve(plan.workspace, handle.stream)
                            if plan.workspace
                            else 0
                        )
                        plan.replace(
                            workSpace=scratch, **{n: a.ptr for n, a in (arrays | {"y": y}).items()}
                        )
                        plan()
                        got = error_of(y, wanted)
                    notes = "+".join(sorted(note.name for note in configuration.numerical))
                    status = ("SUCCESS", f"{configuration.engine}: {notes}", got)
                    break
                except CudnnError as refused:
                    status = (refused.status.name, f"{configuration.engine}", None)
            found.append(list(status))
    return found


def graph_of(handle, stack, key, specs, y_spec, conv):
    """Return the graph of a key."""
    _, case, _, _, _, chain, compute, between, alpha = key
    kind, graph, rank = parse_dtype(compute), Graph(handle, stack), len(CASES[case][0])
    tensors = {name: graph.tensor(name, spec) for name, spec in specs.items()}
    virtual = y_spec.packed(y_spec.shape, between)
    made = [graph.tensor(f"between {n}", virtual, virtual=True) for n in range(len(chain))]
    made.append(graph.tensor("y", y_spec))
    graph.convolution(
        "OPERATION_CONVOLUTION_FORWARD",
        {"x": tensors["x"], "w": tensors["w"], "y": made[0]},
        conv,
        rank - 2,
        kind,
        alpha,
    )
    wide = dnn.DataType.DOUBLE if kind == dnn.DataType.DOUBLE else dnn.DataType.FLOAT
    for number, name in enumerate(chain):
        ends = {"xdesc": made[number], "ydesc": made[number + 1]}
        if name in OPERANDS:
            mode, _, alphas = OPERANDS[name]
            graph.pointwise(mode, compute=wide, alphas=alphas, bdesc=tensors[f"{number}"], **ends)
        else:
            mode, coefficients, _ = MODES[name]
            graph.pointwise(mode, compute=wide, coefficients=coefficients, **ends)
    return graph.finish()


def record_call(handle, key):
    """Return [status, workspace, error] of each algorithm of the fused call."""
    (
        _,
        case,
        dtype,
        layout,
        w_layout,
        y_layout,
        activation,
        nan,
        z,
        alpha,
        alpha2,
        y_dtype,
        b_dtype,
        math,
    ) = key
    x_shape, w_shape, options = CASES[case]
    integer = dtype == "int8"
    conv = dnn.ConvolutionSpec(
        **options,
        compute_type="int32" if integer else "float64" if dtype == "float64" else None,
        math_type=math,
    )
    rng, y_shape, rank = np.random.default_rng(0), conv.output_shape(x_shape, w_shape), len(x_shape)
    xv, wv = values_of(rng, x_shape, dtype), values_of(rng, w_shape, dtype)
    bv, zv = (
        values_of(rng, (1, y_shape[1], *[1] * (rank - 2)), b_dtype),
        values_of(rng, y_shape, y_dtype),
    )
    if not integer:
        wv = wv / wv.dtype.type(8)
    x, w = (
        upload(handle, spec_of(x_shape, dtype, layout), xv),
        handle.array(wv, dtype=dtype, layout=w_layout),
    )
    y_spec = spec_of(y_shape, y_dtype, y_layout)
    bias = handle.array(bv, dtype=b_dtype)
    wanted = (
        alpha * convolved(xv, wv, options) + alpha2 * zv.astype(np.float64) + bv.astype(np.float64)
    )
    wanted = np.maximum(wanted, 0) if activation == "relu" else MODES[activation][2](wanted)
    if y_dtype == "int8":
        wanted = np.clip(np.rint(wanted), -128, 127)
    coef = {"clipped_relu": 0.75, "elu": 0.75, "swish": 1.5}.get(activation)
    act = dnn.ActivationSpec(activation, coef, nan="propagate" if nan else "not_propagate")
    kind = np.float64 if dtype == "float64" else np.float32
    one, two = np.array(alpha, kind), np.array(alpha2, kind)
    found = []
    with ExitStack() as stack:
        make = stack.enter_context
        w_spec = dnn.FilterSpec(w_shape, dtype, w_layout)
        descs = {
            "x": make(dnn.TensorDescriptor(x.spec)),
            "w": make(dnn.FilterDescriptor(w_spec)),
            "y": make(dnn.TensorDescriptor(y_spec)),
            "bias": make(dnn.TensorDescriptor(bias.spec)),
            "conv": make(dnn.ConvolutionDescriptor(conv, spatial_rank=rank - 2)),
            "act": make(dnn.ActivationDescriptor(act)),
        }
        for algorithm in list(dnn.ConvolutionFwdAlgo)[:8]:
            y = upload(handle, y_spec, zv) if z == "in_place" else poisoned(handle, y_spec)
            other = upload(handle, y_spec, zv) if z == "own" else y
            size = ctypes.c_size_t()
            try:
                handle.api.cudnnGetConvolutionForwardWorkspaceSize(
                    handle.ptr,
                    descs["x"].ptr,
                    descs["w"].ptr,
                    descs["conv"].ptr,
                    descs["y"].ptr,
                    algorithm,
                    size,
                )
                sized = size.value
            except CudnnError:
                sized, size.value = None, 1 << 24
            scratch = handle.workspace.reserve(size.value, handle.stream) if size.value else 0
            try:
                handle.api.cudnnConvolutionBiasActivationForward(
                    handle.ptr,
                    one.ctypes.data,
                    descs["x"].ptr,
                    x.ptr,
                    descs["w"].ptr,
                    w.ptr,
                    descs["conv"].ptr,
                    algorithm,
                    scratch,
                    size.value,
                    two.ctypes.data,
                    descs["y"].ptr,
                    0 if z == "null" else other.ptr,
                    descs["bias"].ptr,
                    bias.ptr,
                    descs["act"].ptr,
                    descs["y"].ptr,
                    y.ptr,
                )
                found.append(["SUCCESS", sized, error_of(y, wanted)])
            except CudnnError as error:
                found.append([error.status.name, sized, None])
    return found


def record_nan(handle, key):
    """Return what an activation makes of a NaN: "nan", or the number."""
    _, what, activation, nan, dtype = key
    shape, conv = (
        (1, 8, 2, 2),
        dnn.ConvolutionSpec(
            compute_type="float64" if dtype == "float64" else None, math_type="fma"
        ),
    )
    host = np.ones(shape)
    host[0, 0, 0, 0] = np.nan
    hosts = {"x": host, "w": np.eye(8)[:, :, None, None], "bias": np.zeros((1, 8, 1, 1)), "y": host}
    arrays = {
        name: upload(
            handle, spec_of(h.shape, dtype, "NCHW"), h.astype(numpy_dtype(parse_dtype(dtype)))
        )
        for name, h in hosts.items()
    }
    x, w, bias, y = arrays.values()
    with ExitStack() as stack:
        if what == "call":
            act = dnn.ActivationSpec(activation, nan="propagate" if nan else "not_propagate")
            options = {"algorithm": "IMPLICIT_PRECOMP_GEMM", "out": y}
            dnn.convolution_bias_activation_forward(handle, x, w, bias, conv, act, **options)
        else:
            graph, kind = Graph(handle, stack), conv.compute_type_for(x.spec)
            tensors = {name: graph.tensor(name, array.spec) for name, array in arrays.items()}
            wide = dnn.TensorSpec(shape, kind)
            first, second = (graph.tensor(f"between {n}", wide, virtual=True) for n in range(2))
            operands = {"x": tensors["x"], "w": tensors["w"], "y": first}
            graph.convolution("OPERATION_CONVOLUTION_FORWARD", operands, conv, 2, kind)
            graph.pointwise(
                PointwiseMode.ADD, compute=kind, xdesc=first, bdesc=tensors["bias"], ydesc=second
            )
            mode, coefficients, _ = MODES[activation]
            said = (
                {} if nan is None else {"nan_propagation": "propagate" if nan else "not_propagate"}
            )
            graph.pointwise(
                mode,
                compute=kind,
                coefficients={**coefficients, **said},
                xdesc=second,
                ydesc=tensors["y"],
            )
            graph.finish()
            named = (
                c
                for mode in (BackendHeurMode.A, BackendHeurMode.FALLBACK)
                for c in named_by(graph, mode, stack)
            )
            plan = ExecutionPlan(graph, next(c for c in named if c.capturable), stack)
            scratch = (
                handle.workspace.reserve(plan.workspace, handle.stream) if plan.workspace else 0
            )
            plan.replace(workSpace=scratch, **{name: array.ptr for name, array in arrays.items()})
            plan()
        return [["SUCCESS", "", str(float(y.numpy()[0, 0, 0, 0]))]]


def record(handle, key):
    """Return what became of one combination."""
    try:
        return {"graph": record_graph, "call": record_call, "nan": record_nan}[key[0]](handle, key)
    except CudnnError as error:  # of a descriptor, or while the results were fetched
        return [[error.status.name, error.function, None]]
    except StopIteration:
        return [["NONE_NAMED", "", None]]
    except dnn.ArgumentError as error:
        return [["REFUSED_BY_US", str(error)[:80], None]]


def merge(path, *parts) -> None:
    """Put the rows of all parts together, in the order of the combinations."""
    tables = [json.loads(Path(part).read_text()) for part in parts]
    known = {json.dumps(key): found for table in tables for key, found in table["rows"]}
    rows = [[key, known[text]] for key in combinations() if (text := json.dumps(key)) in known]
    write(path, rows, about=tables[0]["about"])


def main(path, part="0", parts="1", device="cuda") -> None:
    """Record every combination of one part."""
    keys, rows = list(combinations())[int(part) :: int(parts)], []
    with dnn.Handle(device) as handle:
        about = {"device": handle.device.name, "cudnn": handle.version}
        for key in keys:
            rows.append([key, record(handle, key)])
            if len(rows) % 25 == 0:
                write(path, rows, about=about)
    write(path, rows, about=about)


if __name__ == "__main__":
    (merge if sys.argv[1] == "merge" else main)(*sys.argv[1 + (sys.argv[1] == "merge") :])
