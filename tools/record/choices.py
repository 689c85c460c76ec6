"""Record which algorithm or engine a plan chooses, why it passed others over, and what is refused.

    python -m tools.record.choices [--device cuda] [FOLDER]

It writes ``<device>-<version of cuDNN>.json`` into the folder, `tests/device/data/choices` if none
is named.  Nothing is computed, but for the listings of the tuner: those of the emulated device, as
on a GPU it follows from the times which candidates are tried.  `tests/device/test_choices.py`
compares the file of its device and version with what plans choose now.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cudnnlite as dnn
from cudnnlite.devices.arrays import part_of
from cudnnlite.dtypes import itemsize
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy
from tools.record.support import LAST

FOLDER = Path(__file__).parents[2] / "tests" / "device" / "data" / "choices"
QUICK = TimingPolicy(rounds=2, further_rounds=0, sample_ms=0.0, most_calls=1)
FLOATS = ("float32", "float16", "bfloat16", "float64")
DETAILS = ("{", "Warning: ", "Error: ", "Please refer", " at: ")  # lines of the library's log
MATH_TYPES = ("default", "fma", "tensor_op", "tensor_op_allow_conversion")
# By name: the shapes of x and w, and the options of the convolution.
GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 16, 12, 14), (24, 16, 3, 3), {"padding": 1}),
    "strided": ((2, 16, 12, 14), (24, 16, 3, 3), {"padding": 1, "stride": 2}),
    "dilated": ((2, 16, 12, 14), (24, 16, 3, 3), {"padding": 2, "dilation": 2}),
    "groups": ((2, 16, 12, 14), (24, 8, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((2, 16, 12, 14), (16, 1, 3, 3), {"padding": 1, "groups": 16}),
    "odd channels": ((2, 3, 12, 14), (5, 3, 3, 3), {"padding": 1}),
    "rotated": ((2, 16, 12, 14), (24, 16, 3, 3), {"padding": 1, "mode": "convolution"}),
    "one-sided": ((2, 16, 12, 14), (24, 16, 3, 3), {"padding": ((1, 0), (0, 1))}),
    "1-D": ((2, 16, 33), (24, 16, 3), {"padding": 1}),
    "3-D": ((2, 16, 6, 7, 8), (24, 16, 3, 3, 3), {"padding": 1}),
    "empty batch": ((0, 16, 12, 14), (24, 16, 3, 3), {"padding": 1}),
}
TURNED = {"deterministic": {"deterministic": True}, "true float32": {"math_type": "fma"}}


class Case(NamedTuple):
    """A plan that is asked for.

    Attributes
    ----------
    function : str
        The public operation; "graph" for a graph that is an operand.
    operands : mapping
        Specs by name, or values.
    options : mapping
        All other arguments.
    offset : str
        The operand that begins one element behind an aligned address; empty for none.
    handle_limit : int or None
        The workspace limit of the handle.
    """

    function: str
    operands: Mapping[str, Any]
    options: Mapping[str, Any]
    offset: str = ""
    handle_limit: int | None = None

    def plan(self, handle: dnn.Handle) -> Any:
        """Return the plan."""
        operands = dict(self.operands)
        if self.function == "graph":
            return operands["graph"]().plan(handle, **self.options)
        if self.offset:
            for name, spec in operands.items():
                if isinstance(spec, dnn.TensorSpec):
                    operands[name] = _array(handle, spec, shifted=name == self.offset)
        return getattr(dnn, self.function).plan(handle, **operands, **self.options)


def _array(handle: dnn.Handle, spec: dnn.TensorSpec, *, shifted: bool) -> dnn.DeviceArray:
    """Return an array at an aligned address, or one element behind it."""
    shift = itemsize(spec.dtype) if shifted else 0
    return part_of(handle.empty((spec.nbytes + shift,), "uint8"), spec, shift)


def spec_of(shape: tuple[int, ...], dtype: str, layout: str = "first") -> dnn.TensorSpec:
    """Return a spec with channels first or last, or with a gap behind each row."""
    if layout == "gaps":
        strides = [*dnn.TensorSpec(shape).strides]
        return dnn.TensorSpec(shape, dtype, strides=tuple(2 * stride for stride in strides))
    return dnn.TensorSpec(shape, dtype, LAST.get(len(shape)) if layout == "last" else None)


def cases() -> Iterator[tuple[str, Case]]:
    """Yield all cases by name."""
    for family in (convolutions, fused, graphs_of_operations, written_graphs, others):
        yield from family()


# ---------------------------------------------------------------- convolutions


def _convolution(
    direction: str, geometry: str, dtype: str, layout: str, math_type: str = "default"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the operands and the options of a convolution in one of three directions."""
    x_shape, w_shape, steps = GEOMETRIES[geometry]
    conv = dnn.ConvolutionSpec(**steps, math_type=math_type)
    x = spec_of(x_shape, dtype, layout)
    w = spec_of(w_shape, dtype, "first" if layout == "gaps" else layout)
    dy = spec_of(conv.output_shape(x_shape, w_shape), dtype, layout)
    if direction == "convolution_forward":
        return {"x": x, "w": w}, {"conv": conv}
    if direction == "convolution_backward_data":
        return {"w": w, "dy": dy}, {"conv": conv, "x": x}
    return {"x": x, "dy": dy}, {"conv": conv, "w": w}


DIRECTIONS = (
    "convolution_forward",
    "convolution_backward_data",
    "convolution_backward_filter",
)


def convolutions() -> Iterator[tuple[str, Case]]:
    """Yield convolutions in three directions."""
    for direction in DIRECTIONS:

        def case(
            name: str,
            geometry: str = "plain",
            dtype: str = "float32",
            layout: str = "first",
            math_type: str = "default",
            offset: str = "",
            handle_limit: int | None = None,
            direction: str = direction,
            **further: Any,
        ) -> tuple[str, Case]:
            operands, options = _convolution(direction, geometry, dtype, layout, math_type)
            made = Case(direction, operands, {**options, **further}, offset, handle_limit)
            return f"{direction}, {name}", made

        is_forward = direction == DIRECTIONS[0]
        for dtype, layout in itertools.product(FLOATS, ("first", "last")):
            yield case(f"{dtype} {layout}", dtype=dtype, layout=layout)
        for math_type in MATH_TYPES[1:]:
            for dtype in ("float32", "float16") if is_forward else ("float32",):
                yield case(f"{dtype} {math_type}", dtype=dtype, math_type=math_type)
        for geometry in GEOMETRIES if is_forward else ("groups", "one-sided", "empty batch"):
            if geometry != "plain":
                yield case(geometry, geometry)
        for interface in ("graph", "descriptor"):
            for dtype in ("float32", "float16"):
                yield case(f"{dtype} {interface}", dtype=dtype, interface=interface)
        for limit in (0, 4096):
            yield case(f"limit {limit}", workspace_limit=limit, math_type="fma")
            yield case(
                f"limit {limit}, graph", workspace_limit=limit, math_type="fma", interface="graph"
            )
        yield case("limit of the handle", handle_limit=0)
        yield case("beta", beta=0.5)
        yield case("gaps", layout="gaps")
        yield case("replay", replay=True)
        yield case("int8", dtype="int8")
        for interface in (None, "graph"):
            offset = "x" if direction != "convolution_backward_data" else "w"
            yield case(f"not aligned, {interface}", offset=offset, interface=interface)
        yield case("no such engine", algorithm=dnn.types.Engine(999))
        yield case("an engine for true float32", math_type="fma", algorithm=dnn.types.Engine(2))
        yield case("an engine", algorithm=dnn.types.Engine(0))
        named = "IMPLICIT_PRECOMP_GEMM" if is_forward else "ALGO_1"
        yield case("an algorithm", algorithm=named)


def fused() -> Iterator[tuple[str, Case]]:
    """Yield convolutions with something behind them, and those with a layout of their own."""
    bias = {dtype: dnn.TensorSpec((1, 24, 1, 1), dtype) for dtype in FLOATS}
    z = spec_of((2, 24, 12, 14), "float32")
    name = "convolution_bias_activation_forward"
    for activation, dtype, layout in (
        ("relu", "float32", "first"),
        ("identity", "float32", "first"),
        ("relu", "float16", "last"),
        ("tanh", "float32", "first"),
        ("elu", "float16", "first"),
        ("relu", "float64", "first"),
        ("relu", "bfloat16", "last"),
    ):
        operands, options = _convolution(DIRECTIONS[0], "plain", dtype, layout)
        operands["bias"] = bias[dtype]
        coefficient = 0.5 if activation == "elu" else 0.0
        options["activation"] = dnn.ActivationSpec(activation, coefficient)
        yield f"{name}, {activation} {dtype} {layout}", Case(name, operands, options)
        if activation == "relu" and dtype == "float32":
            added = {**operands, "z": z}
            yield f"{name}, addend", Case(name, added, options)
            yield f"{name}, scaled addend", Case(name, added, {**options, "alpha2": 0.5})
            for further in ({"interface": "graph"}, {"interface": "descriptor"}):
                yield (
                    f"{name}, {further['interface']}",
                    Case(name, operands, {**options, **further}),
                )
            for limit in (0, 4096):
                limited = {**options, "workspace_limit": limit}
                yield f"{name}, limit {limit}", Case(name, operands, limited)
            yield f"{name}, bias not aligned", Case(name, operands, options, "bias")
    for dtype, layout in itertools.product(FLOATS, ("first", "last")):
        operands, options = _convolution(DIRECTIONS[0], "plain", dtype, layout)
        operands["bias"] = bias[dtype]
        yield f"bias behind, {dtype} {layout}", Case(DIRECTIONS[0], operands, options)
    for epilogue, layout in itertools.product(("relu", "gelu", "leaky_relu"), ("first", "last")):
        operands, options = _convolution(DIRECTIONS[0], "plain", "float16", layout)
        options["activation"] = epilogue
        yield f"epilogue {epilogue} {layout}", Case(DIRECTIONS[0], operands, options)
    for dtype, filters in itertools.product(("float16", "float32"), ("first", "last")):
        operands, options = _convolution(DIRECTIONS[0], "plain", dtype, "last")
        operands["w"] = spec_of(operands["w"].shape, dtype, filters)
        yield f"filter {filters}, images last, {dtype}", Case(DIRECTIONS[0], operands, options)
        operands, options = _convolution(DIRECTIONS[0], "plain", dtype, "first")
        operands["w"] = spec_of(operands["w"].shape, dtype, filters)
        yield f"filter {filters}, images first, {dtype}", Case(DIRECTIONS[0], operands, options)
    for dtype in FLOATS:
        operands = {"x": spec_of((2, 16, 6, 7), dtype), "w": spec_of((16, 8, 3, 3), dtype)}
        yield f"transposed, {dtype}", Case("convolution_transpose", operands, {})
        yield (
            f"gradient of a bias, {dtype}",
            Case("convolution_backward_bias", {"dy": spec_of((2, 16, 6, 7), dtype)}, {}),
        )


# ---------------------------------------------------------------- graphs


def graphs_of_operations() -> Iterator[tuple[str, Case]]:
    """Yield operations that are graphs."""
    yield from _products()
    yield from _normalizations()
    yield from _attention()
    for activation, dtype in itertools.product(("gelu", "softplus"), FLOATS):
        x = spec_of((2, 16, 6, 7), dtype)
        options = {"activation": activation}
        yield f"{activation}, {dtype}", Case("activation_forward", {"x": x}, options)
    for dtype, layout in itertools.product(FLOATS, ("first", "last")):
        x = spec_of((2, 16, 6, 8), dtype, layout)
        options = {"pooling": dnn.PoolingSpec(2, padding=((1, 0), (0, 1)))}
        yield f"one-sided pooling, {dtype} {layout}", Case("pooling_forward", {"x": x}, options)
        options = {"pooling": dnn.PoolingSpec(2)}
        name = "pooling_with_indices_forward"
        yield f"{name}, {dtype} {layout}", Case(name, {"x": x}, options)


def _products() -> Iterator[tuple[str, Case]]:
    for dtype in (*FLOATS, "int8"):
        operands = {"a": spec_of((2, 32, 64), dtype), "b": spec_of((2, 64, 48), dtype)}
        yield f"matmul, {dtype}", Case("matmul", operands, {})
    for math_type, dtype in itertools.product(MATH_TYPES[1:], ("float32", "float16")):
        operands = {"a": spec_of((2, 32, 64), dtype), "b": spec_of((2, 64, 48), dtype)}
        name = f"matmul, {dtype} {math_type}"
        yield name, Case("matmul", operands, {"math_type": math_type})
    halves = {"a": spec_of((2, 32, 64), "float16"), "b": spec_of((2, 64, 48), "float16")}
    bias = spec_of((1, 1, 48), "float16")
    yield "matmul, bias", Case("matmul", {**halves, "bias": bias}, {})
    for activation in ("relu", "gelu"):
        options = {"activation": activation}
        yield f"matmul, {activation}", Case("matmul", {**halves, "bias": bias}, options)
    yield "matmul, no workspace", Case("matmul", halves, {"workspace_limit": 0})
    odd = {"a": spec_of((3, 5), "float16"), "b": spec_of((5, 7), "float16")}
    yield "matmul, odd", Case("matmul", odd, {})
    dy = spec_of((2, 32, 48), "float16")
    yield "matmul_backward_a", Case("matmul_backward_a", {"dy": dy, "b": halves["b"]}, {})
    yield "matmul_backward_b", Case("matmul_backward_b", {"dy": dy, "a": halves["a"]}, {})


def _normalizations() -> Iterator[tuple[str, Case]]:
    for dtype, training in itertools.product(FLOATS, (False, True)):
        x, scale = spec_of((8, 64, 1, 1), dtype), spec_of((1, 64, 1, 1), "float32")
        both = {"x": x, "scale": scale, "bias": scale}
        options = {"training": training}
        for name, operands in (
            ("layer_normalization_forward", both),
            ("rms_normalization_forward", {"x": x, "scale": scale}),
        ):
            yield f"{name}, {dtype} training={training}", Case(name, operands, options)
    for dtype in FLOATS:
        x, scale = spec_of((8, 64, 1, 1), dtype), spec_of((1, 64, 1, 1), "float32")
        saved = spec_of((8, 1, 1, 1), "float32")
        operands = {"dy": x, "x": x, "scale": scale, "mean": saved, "inv_variance": saved}
        name = "layer_normalization_backward"
        yield f"{name}, {dtype}", Case(name, operands, {})
        for layout in ("first", "last"):
            x, scale = spec_of((2, 16, 6, 8), dtype, layout), spec_of((1, 16, 1, 1), "float32")
            operands = {"x": x, "scale": scale, "bias": scale}
            name = "instance_normalization_forward"
            yield f"{name}, {dtype} {layout}", Case(name, operands, {})


def _attention() -> Iterator[tuple[str, Case]]:
    forward, backward = (f"scaled_dot_product_attention_{way}" for way in ("forward", "backward"))
    for dtype, size in (("float16", 64), ("bfloat16", 64), ("float32", 64), ("float16", 256)):
        heads = {name: spec_of((2, 4, 128, size), dtype) for name in "qkv"}
        yield f"{forward}, {dtype} {size}", Case(forward, heads, {})
        gradients = {**heads, "o": heads["q"], "do": heads["q"]}
        gradients["stats"] = spec_of((2, 4, 128, 1), "float32")
        yield f"{backward}, {dtype} {size}", Case(backward, gradients, {})
    heads = {name: spec_of((2, 4, 128, 64), "float16") for name in "qkv"}
    lengths = spec_of((2, 1, 1, 1), "int32")
    for name, operands, options in (
        ("causal", {}, {"causal": True}),
        ("stats", {}, {"return_stats": True}),
        ("dropout", {}, {"dropout": 0.5}),
        ("bias", {"bias": spec_of((1, 4, 128, 128), "float16")}, {}),
        ("float32 bias", {"bias": spec_of((1, 4, 128, 128), "float32")}, {}),
        ("lengths", {"q_lengths": lengths, "kv_lengths": lengths}, {}),
        ("window", {}, {"causal": True, "window": 16}),
    ):
        yield f"{forward}, {name}", Case(forward, {**heads, **operands}, options)


def written_graphs() -> Iterator[tuple[str, Case]]:
    """Yield graphs that a user writes."""
    for name, make in GRAPHS.items():
        yield f"graph, {name}", Case("graph", {"graph": make}, {})
        for requirement, options in TURNED.items():
            yield f"graph, {name}, {requirement}", Case("graph", {"graph": make}, options)
        limited = {"workspace_limit": 0}
        yield f"graph, {name}, no workspace", Case("graph", {"graph": make}, limited)
    operands = {"graph": GRAPHS["convolution"]}
    yield "graph, a named engine", Case("graph", operands, {"engine": dnn.types.Engine(0)})
    yield "graph, no such engine", Case("graph", operands, {"engine": dnn.types.Engine(999)})
    options = {"engine": dnn.types.Engine(2), "math_type": "fma"}
    yield "graph, an engine that may not be used", Case("graph", operands, options)


def _convolution_graph() -> dnn.Graph:
    graph = dnn.Graph()
    x = graph.input("x", (2, 16, 12, 14), "float32")
    w = graph.input("w", (24, 16, 3, 3), "float32")
    graph.output("y", graph.convolution_forward(x, w, dnn.ConvolutionSpec(1)), "float32")
    return graph


def _gradient_graph() -> dnn.Graph:
    graph = dnn.Graph()
    x = graph.input("x", (2, 16, 12, 14), "float16", layout="NHWC")
    dy = graph.input("dy", (2, 24, 12, 14), "float16", layout="NHWC")
    dw = graph.convolution_backward_filter(x, dy, (24, 16, 3, 3), dnn.ConvolutionSpec(1))
    graph.output("dw", dw, "float16", layout="NHWC")
    return graph


def _chain() -> dnn.Graph:
    graph = dnn.Graph()
    a, b = (graph.input(name, (1, 32, 64), "float32") for name in "ab")
    graph.output("y", graph.relu(a * b + a), "float32")
    return graph


def _softmax() -> dnn.Graph:
    graph = dnn.Graph()
    powers = graph.exp(graph.input("x", (4, 8, 1, 1), "float32"))
    graph.output("y", powers / graph.reduce("ADD", powers, (1, 2, 3)), "float32")
    return graph


def _product() -> dnn.Graph:
    graph = dnn.Graph()
    a, b = (graph.input(name, (1, 64, 64), "float32") for name in "ab")
    graph.output("y", graph.gelu(graph.matmul(a, b)), "float32")
    return graph


GRAPHS: dict[str, Callable[[], dnn.Graph]] = {
    "convolution": _convolution_graph,
    "gradient of a filter": _gradient_graph,
    "chain": _chain,
    "softmax": _softmax,
    "product": _product,
}


# ---------------------------------------------------------------- others


def others() -> Iterator[tuple[str, Case]]:
    """Yield recurrent networks, whose algorithm a rule chooses."""
    networks = itertools.product(("lstm", "relu"), (32, 512), ("float32", "float16"))
    for cell, hidden, dtype in networks:
        spec = dnn.RNNSpec(cell, 16, hidden, dtype=dtype)
        operands = {"weights": None, "x": spec_of((5, 4, 16), dtype)}
        for name, options in (("", {}), (", lengths", {"lengths": (5, 3, 2, 1)})):
            options = {"spec": spec, **options}
            yield f"{cell} {hidden} {dtype}{name}", Case("rnn_forward", operands, options)
    spec = dnn.RNNSpec("lstm", 16, 32)
    operands = {"weights": None, "x": spec_of((5, 4, 16), "float32")}
    options = {"spec": spec, "algorithm": "persist_static_small_h"}
    yield "lstm, an algorithm", Case("rnn_forward", operands, options)


# The problems whose candidates the tuner lists: it measures them, which takes a while.
LISTED = (
    "convolution_forward, float32 fma",
    "convolution_backward_filter, float16 last",
    "convolution_bias_activation_forward, relu float16 last",
    "graph, product",
    "graph, convolution",
)


# ---------------------------------------------------------------- what is recorded


def row_of(candidate: Any) -> list[Any]:
    """Return what identifies a candidate."""
    algorithm = getattr(candidate.algorithm, "name", None) or str(candidate.algorithm)
    return [algorithm, candidate.math_type.name, candidate.layout]


def record(handle: dnn.Handle, case: Case) -> dict[str, Any]:
    """Return the choice of a plan, or its refusal, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle.workspace.limit = case.handle_limit
        try:
            outcome = _choice(handle, case)
        except dnn.CudnnliteError as error:
            text = without_details(without_addresses(str(error)))
            outcome = {"refused": type(error).__name__, "text": text}
        finally:
            handle.workspace.limit = None
    told = [without_addresses(str(one.message)) for one in caught]
    return {**outcome, "warnings": told} if told else outcome


def _choice(handle: dnn.Handle, case: Case) -> dict[str, Any]:
    with case.plan(handle) as plan:
        choice = plan.choice
        if choice is None:
            return {"choice": None, "workspace": plan.workspace}
        return {
            "choice": row_of(choice),
            "workspace": plan.workspace,
            "deterministic": choice.deterministic,
            "compiled": choice.compiled,
            "replay": choice.replay,
            "source": choice.source,
            "remark": choice.remark,
            "passed over": [[*row_of(row), reason] for row, reason in choice.passed_over],
        }


def listing(handle: dnn.Handle, case: Case) -> list[list[Any]]:
    """Return the tuner's candidates in the order of their names, each with why it is not used."""
    if case.function == "graph":
        problem = case.operands["graph"]()
    else:
        problem = getattr(dnn, case.function).problem(**case.operands, **case.options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuner = dnn.Tuner(handle, cache=":memory:")
        tuner.timing = QUICK
        table = tuner.tune(problem)
    rows = [
        [*row_of(row), row.workspace, row.heuristic, row.status.name, row.why_not] for row in table
    ]
    return sorted(rows, key=str)


def without_addresses(text: str) -> str:
    """Return a message without the addresses of arrays."""
    return re.sub(r"0x[0-9a-f]+", "0x...", text)


def without_details(text: str) -> str:
    """Return a refusal without what the library's log adds: it tells of earlier refusals, too.

    The log is cut where it is too long.
    """
    lines = re.sub(r": \{\"engineId.*", "", text).splitlines()
    kept = [line for line in lines if line and not line.startswith(DETAILS)]
    return "\n".join(line for line in kept if not any(d.startswith(line) for d in DETAILS))


def file_of(handle: dnn.Handle, folder: Path = FOLDER) -> Path:
    """Return the file of a device and a version."""
    name = re.sub(r"\W+", "_", handle.device.facts().name.lower()).strip("_")
    return folder / f"{name}-{handle.version}.json"


def recording(handle: dnn.Handle) -> dict[str, Any]:
    """Return the file of a device and a version; its rows and listings are by case."""
    by_name = dict(cases())
    listed = LISTED if handle.device.kind == "emulated" else ()
    return {
        "about": {"device": handle.device.facts().name, "cudnn": handle.version},
        "rows": {name: record(handle, case) for name, case in by_name.items()},
        "listings": {name: listing(handle, by_name[name]) for name in listed},
    }


def write(path: Path, recorded: dict[str, Any]) -> None:
    """Write a file with a line for each case."""
    parts = [f'"about": {json.dumps(recorded["about"])}']
    for part in ("rows", "listings"):
        lines = [f"{json.dumps(n)}: {json.dumps(row)}" for n, row in recorded[part].items()]
        parts.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{" + ",\n".join(parts) + "}\n")


def main() -> None:
    """Record all cases on a device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    with dnn.Handle(arguments.device) as handle:
        path, recorded = file_of(handle, arguments.folder), recording(handle)
    write(path, recorded)
    refused = sum("refused" in row for row in recorded["rows"].values())
    print(f"{path}: {len(recorded['rows'])} plans, {refused} of them refused")


if __name__ == "__main__":
    main()
