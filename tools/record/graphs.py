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
from typing import NamedTuple

import numpy as np

from tools.record.support import spec_of, upload, write

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from oracles import onnx_convolution

import cudnnlite as dnn
from cudnnlite._raw.enums import BackendHeurMode, PointwiseMode
from cudnnlite.dtypes import numpy_dtype, parse_dtype
from cudnnlite.errors import CudnnError
from cudnnlite.graph.convolution_formulas import (
    add_convolution,
    add_input,
    add_output,
    add_pointwise,
)
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.engines import named_by
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.lowering import lower

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


def graphs():  # noqa: C901, PLR0912  (one table: a block of loops for each kind of graph)
    """Yield the keys of graphs.

    ("graph", case, dtype, layout, layout of bias and z, chain, compute, dtype between, alpha of the
    convolution)
    """
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


def calls():  # noqa: C901, PLR0912  (one table: a block of loops for each kind of call)
    """Yield the keys of the fused call; `FusedCall` names their parts."""

    def key_of(
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
                yield key_of(case, dtype, [layout] * 3, activation, math=math)
    for dtype, layout in itertools.product(FLOATS, LAYOUTS[4]):
        for activation, nan in itertools.product(ACTIVATIONS, (False, True)):
            for z in (("none", 1.0, 0.0), ("own", 1.25, -0.5)):
                yield key_of("3x3", dtype, [layout] * 3, activation, z, nan=nan)
        for activation in ("relu", "identity"):
            for z in (("in_place", 1.25, -0.5), ("null", 1.0, 0.0)):
                yield key_of("3x3", dtype, [layout] * 3, activation, z)
        for other in FLOATS:
            if other != dtype:
                yield key_of("3x3", dtype, [layout] * 3, "relu", bias=other)
                yield key_of("3x3", dtype, [layout] * 3, "relu", y=other)
        last = LAYOUTS[4][layout == "NCHW"]
        for layouts in (
            (layout, layout, last),
            (layout, last, layout),
            (layout, last, last),
            (layout, layout, "strided"),
            ("strided", layout, layout),
        ):
            yield key_of("3x3", dtype, layouts, "relu", ("own", 1.0, 1.0))
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
                yield key_of(case, "int8", [layout] * 3, activation, z, y=y, bias=bias)


def nans():
    """Yield ("nan", "graph" or "call", activation, whether NaNs are propagated or None, dtype)."""
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
    values = rng.integers(-3, 4, shape) if kind.kind == "i" else rng.standard_normal(shape)
    return values.astype(kind)


def convolved(x, w, options):
    """Return the convolution in float64, by ONNX; computed once for the same operands."""
    key = (x.tobytes(), w.tobytes(), str(options))
    if key not in _SUMS:
        conv = dnn.ConvolutionSpec(**options)
        steps = (conv.pads(x.ndim - 2), *conv.steps(x.ndim - 2)[1:])
        is_rotated = conv.mode == dnn.enums.ConvolutionMode.CONVOLUTION
        _SUMS[key] = onnx_convolution(x, w, *steps, conv.groups, is_rotated)
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


def reserve_workspace(handle, nbytes):
    """Return the address of scratch memory, 0 for none."""
    return handle.workspace.reserve(nbytes, handle.stream) if nbytes else 0


class GraphCase:
    """The operands of a graph, and its result.

    Attributes
    ----------
    arrays : dict
        The operands by name; those of the chain have its numbers.
    expected : array
        In float64.
    """

    def __init__(self, handle, key):
        _, case, self.dtype, layout, other, chain, compute, _, alpha = key
        x_shape, w_shape, options = CASES[case]
        self.rng = np.random.default_rng(0)
        self.conv = dnn.ConvolutionSpec(**options, compute_type=compute)
        y_shape = self.conv.output_shape(x_shape, w_shape)
        first, last = LAYOUTS[len(x_shape)]
        plain = first if layout == "strided" else layout
        swapped = last if plain == first else first
        y_layout = {"y strided": "strided", "y other": swapped}.get(other, plain)
        w_layout = swapped if other == "w other" else plain
        image_layout = y_layout if other.startswith(("y ", "w ")) else other
        small_layout = plain if image_layout == "strided" else image_layout
        x = values_of(self.rng, x_shape, self.dtype)
        w = values_of(self.rng, w_shape, self.dtype) / numpy_dtype(parse_dtype(self.dtype)).type(8)
        self.arrays = {
            "x": upload(handle, spec_of(x_shape, self.dtype, layout), x),
            "w": handle.array(w, dtype=self.dtype, layout=w_layout),
        }
        self.y_spec = spec_of(y_shape, self.dtype, y_layout)
        self.expected = alpha * convolved(x, w, options)
        ones = [1] * (len(x_shape) - 2)
        self.shapes = {
            "bias": (1, y_shape[1], *ones),
            "image": y_shape,
            "number": (1, 1, *ones),
            "row": (1, 1, *ones[:-1], y_shape[-1]),
        }
        for number, name in enumerate(chain):
            if name in MODES:
                self.expected = MODES[name][2](self.expected)
            else:
                is_image = OPERANDS[name][1] == "image"
                operand_layout = image_layout if is_image else small_layout
                self._add_operand(handle, operand_name(number), name, operand_layout)

    def _add_operand(self, handle, key, name, layout):
        """Add or multiply an operand of the chain."""
        _, kind, (alpha1, alpha2) = OPERANDS[name]
        shape = self.shapes[kind]
        values = values_of(self.rng, shape, self.dtype)
        self.arrays[key] = upload(handle, spec_of(shape, self.dtype, layout), values)
        second = alpha2 * values.astype(np.float64)
        if name == "scale":
            self.expected = alpha1 * self.expected * second
        else:
            self.expected = alpha1 * self.expected + second


def record_graph(handle, key):
    """Return, in true float32 and without that promise, [status, engine, error]."""
    case = GraphCase(handle, key)
    specs = {name: array.spec for name, array in case.arrays.items()}
    with ExitStack() as stack:
        try:
            graph = graph_of(handle, stack, key, specs, case.y_spec, case.conv)
        except CudnnError as error:
            return [[error.status.name, "graph", None]] * 2
        configurations = [
            configuration
            for mode in (BackendHeurMode.A, BackendHeurMode.FALLBACK)
            for configuration in named_by(graph, mode, stack)
        ]
        return [
            first_outcome(handle, graph, case, configurations, math_type)
            for math_type in (dnn.MathType.FMA, dnn.MathType.DEFAULT)
        ]


def first_outcome(handle, graph, case, configurations, math_type):
    """Return the outcome of the first engine that keeps the math type's promise and runs."""
    outcome = ["NONE_KEEPS" if configurations else "NONE_NAMED", "", None]
    tried = set()
    for configuration in configurations:
        is_true_float32 = configuration.math_type(math_type) == dnn.MathType.FMA
        if math_type == dnn.MathType.FMA and not is_true_float32:
            continue
        if configuration.engine in tried or not configuration.capturable:
            continue
        tried.add(configuration.engine)
        try:
            error = error_of_engine(handle, graph, case, configuration)
        except CudnnError as refusal:
            outcome = [refusal.status.name, f"{configuration.engine}", None]
            continue
        notes = "+".join(sorted(note.name for note in configuration.numerical))
        return ["SUCCESS", f"{configuration.engine}: {notes}", error]
    return outcome


def error_of_engine(handle, graph, case, configuration):
    """Run an engine, and return the error."""
    with ExitStack() as stack:
        plan = ExecutionPlan(graph, configuration, stack)
        y = poisoned(handle, case.y_spec)
        addresses = {name: array.ptr for name, array in case.arrays.items()}
        scratch = reserve_workspace(handle, plan.workspace)
        plan.replace(workSpace=scratch, y=y.ptr, **addresses)
        plan()
        return error_of(y, case.expected)


def graph_of(handle, stack, key, specs, y_spec, conv):
    """Return the graph of a key."""
    _, _, _, _, _, chain, compute, between, alpha = key
    kind = parse_dtype(compute)
    data = GraphData(kind)
    tensors = {name: add_input(data, name, spec) for name, spec in specs.items()}
    virtual = y_spec.packed(y_spec.shape, between)
    reads = {name: tensors[name] for name in ("x", "w")}
    y = add_convolution(data, "CONVOLUTION_FORWARD", reads, virtual, conv, kind, alpha)
    wide = dnn.DataType.DOUBLE if kind == dnn.DataType.DOUBLE else dnn.DataType.FLOAT
    for number, name in enumerate(chain):
        if name in OPERANDS:
            mode, _, alphas = OPERANDS[name]
            operand = tensors[operand_name(number)]
            y = add_pointwise(data, mode, virtual, y, operand, compute=wide, alphas=alphas)
        else:
            mode, coefficients, _ = MODES[name]
            y = add_pointwise(data, mode, virtual, y, compute=wide, coefficients=coefficients)
    add_output(data, "y", y, y_spec)
    return lower(data, handle, stack)


def operand_name(number):
    """Return the name of the operand of an operation in a chain."""
    return f"operand_{number}"


class FusedCall(NamedTuple):
    """The key of a row about the fused call."""

    kind: str
    case: str
    dtype: str
    x_layout: str
    w_layout: str
    y_layout: str
    activation: str
    propagates_nan: bool
    z: str
    alpha: float
    alpha2: float
    y_dtype: str
    bias_dtype: str
    math: str

    def conv(self):
        """Return the convolution's spec."""
        compute_type = {"int8": "int32", "float64": "float64"}.get(self.dtype)
        _, _, options = CASES[self.case]
        return dnn.ConvolutionSpec(**options, compute_type=compute_type, math_type=self.math)

    def activation_spec(self):
        """Return the activation's spec."""
        coef = {"clipped_relu": 0.75, "elu": 0.75, "swish": 1.5}.get(self.activation)
        nan = "propagate" if self.propagates_nan else "not_propagate"
        return dnn.ActivationSpec(self.activation, coef, nan=nan)

    def expected(self, hosts):
        """Return the result in float64."""
        _, _, options = CASES[self.case]
        sums = self.alpha * convolved(hosts["x"], hosts["w"], options)
        sums = sums + self.alpha2 * hosts["z"].astype(np.float64)
        sums = sums + hosts["bias"].astype(np.float64)
        if self.activation == "relu":
            values = np.maximum(sums, 0)
        else:
            values = MODES[self.activation][2](sums)
        if self.y_dtype == "int8":
            return np.clip(np.rint(values), -128, 127)
        return values


def hosts_of_call(call, y_shape):
    """Return the operands of the fused call, by name."""
    x_shape, w_shape, _ = CASES[call.case]
    rng = np.random.default_rng(0)
    hosts = {
        "x": values_of(rng, x_shape, call.dtype),
        "w": values_of(rng, w_shape, call.dtype),
        "bias": values_of(rng, (1, y_shape[1], *[1] * (len(y_shape) - 2)), call.bias_dtype),
        "z": values_of(rng, y_shape, call.y_dtype),
    }
    if call.dtype != "int8":
        hosts["w"] = hosts["w"] / hosts["w"].dtype.type(8)
    return hosts


def record_call(handle, key):
    """Return [status, workspace, error] of each algorithm of the fused call."""
    call = FusedCall(*key)
    x_shape, w_shape, _ = CASES[call.case]
    conv = call.conv()
    y_shape = conv.output_shape(x_shape, w_shape)
    y_spec = spec_of(y_shape, call.y_dtype, call.y_layout)
    hosts = hosts_of_call(call, y_shape)
    arrays = {
        "x": upload(handle, spec_of(x_shape, call.dtype, call.x_layout), hosts["x"]),
        "w": handle.array(hosts["w"], dtype=call.dtype, layout=call.w_layout),
        "bias": handle.array(hosts["bias"], dtype=call.bias_dtype),
    }
    expected = call.expected(hosts)
    results = []
    with ExitStack() as stack:
        w_spec = dnn.FilterSpec(w_shape, call.dtype, call.w_layout)
        spatial_rank = len(x_shape) - 2
        descriptors = {
            "x": dnn.TensorDescriptor(arrays["x"].spec),
            "w": dnn.FilterDescriptor(w_spec),
            "y": dnn.TensorDescriptor(y_spec),
            "bias": dnn.TensorDescriptor(arrays["bias"].spec),
            "conv": dnn.ConvolutionDescriptor(conv, spatial_rank=spatial_rank),
            "activation": dnn.descriptors.ActivationDescriptor(call.activation_spec()),
        }
        for descriptor in descriptors.values():
            stack.enter_context(descriptor)
        pointers = {name: descriptor.ptr for name, descriptor in descriptors.items()}
        for algorithm in list(dnn.enums.ConvolutionFwdAlgo)[:8]:
            in_place = upload(handle, y_spec, hosts["z"]) if call.z == "in_place" else None
            y = poisoned(handle, y_spec) if in_place is None else in_place
            z = upload(handle, y_spec, hosts["z"]) if call.z == "own" else y
            addresses = {name: array.ptr for name, array in arrays.items()}
            addresses |= {"y": y.ptr, "z": 0 if call.z == "null" else z.ptr}
            workspace = workspace_of(handle, pointers, algorithm)
            try:
                run_fused(handle, call, pointers, addresses, algorithm, workspace)
                results.append(["SUCCESS", workspace, error_of(y, expected)])
            except CudnnError as error:
                results.append([error.status.name, workspace, None])
    return results


def workspace_of(handle, pointers, algorithm):
    """Return the bytes of workspace of an algorithm; None where cuDNN refuses it."""
    size = ctypes.c_size_t()
    try:
        handle.api.cudnnGetConvolutionForwardWorkspaceSize(
            handle.ptr,
            pointers["x"],
            pointers["w"],
            pointers["conv"],
            pointers["y"],
            algorithm,
            size,
        )
    except CudnnError:
        return None
    return size.value


def run_fused(handle, call, pointers, addresses, algorithm, workspace):
    """Call the fused function, with 16 MiB where the size of the workspace is not known."""
    nbytes = 1 << 24 if workspace is None else workspace
    scalar_dtype = np.float64 if call.dtype == "float64" else np.float32
    alpha = np.array(call.alpha, scalar_dtype)
    alpha2 = np.array(call.alpha2, scalar_dtype)
    handle.api.cudnnConvolutionBiasActivationForward(
        handle.ptr,
        alpha.ctypes.data,
        pointers["x"],
        addresses["x"],
        pointers["w"],
        addresses["w"],
        pointers["conv"],
        algorithm,
        reserve_workspace(handle, nbytes),
        nbytes,
        alpha2.ctypes.data,
        pointers["y"],
        addresses["z"],
        pointers["bias"],
        addresses["bias"],
        pointers["activation"],
        pointers["y"],
        addresses["y"],
    )


def record_nan(handle, key):
    """Return what an activation makes of a NaN: "nan", or the number."""
    _, function, activation, propagates_nan, dtype = key
    shape = (1, 8, 2, 2)
    compute_type = "float64" if dtype == "float64" else None
    conv = dnn.ConvolutionSpec(compute_type=compute_type, math_type="fma")
    image = np.ones(shape)
    image[0, 0, 0, 0] = np.nan
    hosts = {
        "x": image,
        "w": np.eye(8)[:, :, None, None],
        "bias": np.zeros((1, 8, 1, 1)),
        "y": image,
    }
    stored = numpy_dtype(parse_dtype(dtype))
    arrays = {
        name: upload(handle, spec_of(host.shape, dtype, "NCHW"), host.astype(stored))
        for name, host in hosts.items()
    }
    nan = {None: None, True: "propagate", False: "not_propagate"}[propagates_nan]
    if function == "call":
        dnn.convolution_bias_activation_forward(
            handle,
            arrays["x"],
            arrays["w"],
            arrays["bias"],
            conv,
            dnn.ActivationSpec(activation, nan=nan),
            algorithm="IMPLICIT_PRECOMP_GEMM",
            out=arrays["y"],
        )
    else:
        run_nan_graph(handle, arrays, conv, activation, nan)
    value = float(arrays["y"].numpy()[0, 0, 0, 0])
    return [["SUCCESS", "", str(value)]]


def run_nan_graph(handle, arrays, conv, activation, nan):
    """Run a convolution with a bias and an activation by the first engine that is named."""
    with ExitStack() as stack:
        kind = conv.compute_type_for(arrays["x"].spec)
        data = GraphData(kind)
        tensors = {
            name: add_input(data, name, array.spec) for name, array in arrays.items() if name != "y"
        }
        wide = dnn.TensorSpec(arrays["y"].shape, kind)
        reads = {name: tensors[name] for name in ("x", "w")}
        y = add_convolution(data, "CONVOLUTION_FORWARD", reads, wide, conv, kind)
        y = add_pointwise(data, PointwiseMode.ADD, wide, y, tensors["bias"], compute=kind)
        mode, coefficients, _ = MODES[activation]
        if nan is not None:
            coefficients = {**coefficients, "nan_propagation": nan}
        y = add_pointwise(data, mode, wide, y, compute=kind, coefficients=coefficients)
        add_output(data, "y", y, arrays["y"].spec)
        graph = lower(data, handle, stack)
        configurations = (
            configuration
            for heuristic in (BackendHeurMode.A, BackendHeurMode.FALLBACK)
            for configuration in named_by(graph, heuristic, stack)
        )
        first_capturable = next(
            configuration for configuration in configurations if configuration.capturable
        )
        plan = ExecutionPlan(graph, first_capturable, stack)
        scratch = reserve_workspace(handle, plan.workspace)
        plan.replace(workSpace=scratch, **{name: array.ptr for name, array in arrays.items()})
        plan()
        handle.synchronize()


RECORDERS = {"graph": record_graph, "call": record_call, "nan": record_nan}


def record(handle, key):
    """Return the outcomes of one combination."""
    try:
        return RECORDERS[key[0]](handle, key)
    except CudnnError as error:
        # A descriptor was refused, or the results could not be read.
        return [[error.status.name, error.function, None]]
    except StopIteration:
        return [["NONE_NAMED", "", None]]
    except dnn.ArgumentError as error:
        return [["REFUSED_BY_US", str(error)[:80], None]]


def merge(path, *parts) -> None:
    """Put the rows of all parts together, in the order of the combinations."""
    tables = [json.loads(Path(part).read_text()) for part in parts]
    outcomes = {json.dumps(key): row for table in tables for key, row in table["rows"]}
    texts = {json.dumps(key): key for key in combinations()}
    rows = [[key, outcomes[text]] for text, key in texts.items() if text in outcomes]
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
    if sys.argv[1] == "merge":
        merge(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
