"""Invalid arguments of graphs, and of the operations that are graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from device.test_graph_plans import epilogue_graph

import cudnnlite as dnn

from . import case
from .case import Case

FORWARD = dnn.scaled_dot_product_attention_forward
BACKWARD = dnn.scaled_dot_product_attention_backward
MATMUL = dnn.matmul.graph
BACKWARD_A, BACKWARD_B = dnn.matmul_backward_a.graph, dnn.matmul_backward_b.graph


def spec(*shape: int, dtype: str = "float16") -> dnn.TensorSpec:
    return dnn.TensorSpec(shape, dtype)


QUERIES = spec(2, 4, 64, 32)
HALVES = spec(2, 4, 64, 32, dtype="bfloat16")
STATS = spec(2, 4, 64, 1, dtype="float32")


class Bench(case.Bench):
    """The operands of a product with a bias, and a patterned output."""

    def __init__(self, handle: dnn.Handle) -> None:
        super().__init__(handle)
        shapes = {"a": (2, 24, 40), "b": (2, 40, 56), "bias": (1, 1, 56)}
        self.arrays = {
            name: handle.array(np.ones(shape), dtype="float16") for name, shape in shapes.items()
        }
        self.out = handle.full((2, 24, 56), 7.0, "float16")
        self.watch(**self.arrays, out=self.out)

    def call(self, **changes: Any) -> Any:
        """Call a plan with some arguments replaced."""
        with epilogue_graph().plan(self.handle) as plan:
            return plan(**self.arrays | {"out": {"y": self.out}} | changes)

    def attend(self, **changes: Any) -> Any:
        """Make a plan of attention with some operands replaced."""
        operands = {"q": QUERIES, "k": QUERIES, "v": QUERIES} | changes
        return FORWARD.plan(self.handle, **operands)

    def back(self, **changes: Any) -> Any:
        """Make a plan of attention's gradients."""
        operands = dict.fromkeys(("q", "k", "v", "o", "do"), QUERIES)
        return BACKWARD.plan(self.handle, **operands | {"stats": STATS} | changes)

    def pool(self) -> Any:
        """Make a plan of a pooling of bfloat16 with channels last."""
        graph = dnn.Graph()
        strides = dnn.TensorSpec((2, 8, 6, 6), layout="NHWC").strides
        x = graph.input("x", (2, 8, 6, 6), "bfloat16", strides)
        pads = ((0, 0), (0, 0))
        y = graph.resample_forward("MAXPOOL", x, (2, 2), stride=(2, 2), padding=pads)
        graph.output("y", y)
        return graph.plan(self.handle)

    def closed_plan(self) -> Any:
        """Return a plan that was closed."""
        plan = epilogue_graph().plan(self.handle)
        plan.close()
        return plan

    def assert_works(self) -> None:
        self.call(out=None)


PRODUCT_CASES: dict[str, Case] = {
    "vector": Case(lambda _: MATMUL(spec(8), spec(8, 8)), r"a has shape \(8,\)"),
    "inner": Case(lambda _: MATMUL(spec(4, 8), spec(6, 8)), "b has shape .* 8 rows"),
    "batches": Case(lambda _: MATMUL(spec(2, 4, 8), spec(4, 8, 8)), "equal, or 1"),
    "groups": Case(
        lambda _: MATMUL(spec(2, 3, 4, 8), spec(2, 1, 8, 8)), "b is .* lie in memory as one"
    ),
    "bias": Case(lambda _: MATMUL(spec(4, 8), spec(8, 8), bias=spec(7)), "bias has shape"),
    "float64 as bias": Case(
        lambda _: MATMUL(spec(4, 8), spec(8, 8), bias=spec(8, dtype="float64")),
        "^bias is float64; allowed: float16, bfloat16, float32; handle.array",
    ),
    "bias beside float8": Case(
        lambda _: MATMUL(
            spec(4, 16, dtype="float8_e4m3fn"),
            spec(16, 8, dtype="float8_e4m3fn"),
            bias=spec(8, dtype="float8_e5m2"),
        ),
        "^bias is float8_e5m2; allowed: float16, bfloat16, float32, float8_e4m3fn$",
    ),
    "bias along one of two batch axes": Case(
        lambda _: MATMUL(spec(2, 3, 4, 8), spec(8, 8), bias=spec(2, 1, 4, 8)),
        "bias is .* one for each of the batch",
    ),
    "two factors": Case(
        lambda _: MATMUL(spec(4, 8), spec(8, 8), a_descale=spec(2, dtype="float32")),
        "a_descale is .* one value of float32",
    ),
    "alpha": Case(lambda _: MATMUL(spec(4, 8), spec(8, 8), alpha="1"), "alpha="),
    "math type": Case(
        lambda _: MATMUL(spec(4, 8), spec(8, 8), math_type="fma"), "math_type is given to graph"
    ),
    "rows of dy": Case(lambda _: BACKWARD_B(spec(4, 8), spec(6, 8)), "a has shape .* 4 rows"),
    "columns of dy": Case(lambda _: BACKWARD_A(spec(4, 8), spec(6, 7)), "b has shape .* 8 columns"),
    "batch of dy": Case(
        lambda _: BACKWARD_A(spec(4, 8), spec(3, 6, 8)), "b has shape .* the batch of dy"
    ),
    "shape of a": Case(
        lambda _: BACKWARD_A(spec(4, 8), spec(6, 8), a=(4, 7)), r"a=\(4, 7\); needed"
    ),
    "swapped, by the shape of b": Case(
        lambda _: BACKWARD_B(spec(6, 4, 8), spec(6, 4, 5), b=(8, 5)),
        r"b=\(8, 5\); needed .* dy and a are probably swapped: dy comes first",
    ),
    "swapped, by the shape of a": Case(
        lambda _: BACKWARD_A(spec(3, 8), spec(5, 8), a=(5, 3)),
        r"a=\(5, 3\); needed .* dy and b are probably swapped: dy comes first",
    ),
    "swapped, by the batch": Case(
        lambda _: BACKWARD_B(spec(4, 8), spec(6, 4, 5)),
        r"a has shape .* dy and a are probably swapped: dy comes first",
    ),
    "batch of b": Case(
        lambda _: BACKWARD_B(spec(6, 4, 8), spec(6, 4, 5), b=(2, 5, 8)), r"b=\(2, 5, 8\); needed"
    ),
}

MIXED_CASES: dict[str, Case] = {
    "keys": Case(
        lambda _: FORWARD.graph(QUERIES, HALVES, QUERIES),
        "k is bfloat16, q is float16; .*converts to float32, and from that",
    ),
    "values": Case(
        lambda _: FORWARD.graph(HALVES, HALVES, spec(2, 4, 64, 32, dtype="float32")),
        r"v is float32, q is bfloat16; .*transform_tensor\(handle, v, dtype='bfloat16'\) converts",
    ),
    "gradient": Case(
        lambda _: BACKWARD.graph(
            QUERIES, QUERIES, QUERIES, QUERIES, HALVES, spec(2, 4, 64, 1, dtype="float32")
        ),
        "do is bfloat16, q is float16; needed: the data type of q",
    ),
    "product": Case(
        lambda _: MATMUL(spec(4, 8), spec(8, 8, dtype="bfloat16")),
        "b is bfloat16, a is float16; needed: the data type of a",
    ),
    "float8": Case(
        lambda _: MATMUL(spec(4, 8, dtype="float8_e5m2"), spec(8, 8)),
        "b is float16, a is float8_e5m2; needed: the data type of a$",
    ),
}

ATTENTION: dict[str, tuple[dict[str, Any], str]] = {
    "q's rank": ({"q": spec(4, 64, 32)}, "q has shape .*needed: .batch, heads"),
    "q's type": ({"q": spec(2, 4, 64, 32, dtype="float64")}, "q is .*allowed: float16"),
    "k's type": ({"k": spec(2, 4, 64, 32, dtype="bfloat16")}, "k is .*data type of q"),
    "k's heads": ({"k": spec(2, 3, 64, 32)}, "k has shape .*heads that divide 4"),
    "k's size": ({"k": spec(2, 4, 64, 16)}, "k has shape .*the size 32"),
    "v's steps": ({"v": spec(2, 4, 32, 32)}, "v has shape .*steps of k"),
    "bias": ({"bias": spec(2, 4, 64, 1)}, "bias has .*1 or 2, 1 or 4, 1 or 64, 64"),
    "k's batch": ({"q": spec(0, 4, 64, 32)}, "k has shape .*needed .*the batch 0"),
    "scale": ({"scale": "1"}, "scale='1' must be a real number"),
    "causal": ({"causal": 1}, "causal=1; allowed: True, False, 'bottom_right'"),
    "a diagonal beyond the keys": (
        {"causal": "bottom_right", "q": spec(2, 4, 65, 32)},
        "q has 65 steps, k 64; needed with causal='bottom_right': no fewer",
    ),
    "a window at another diagonal": (
        {"causal": "bottom_right", "window": 4},
        "window=4 beside causal='bottom_right'; needed: neither, but the whole mask as a bias",
    ),
    "lengths at another diagonal": (
        {
            "causal": "bottom_right",
            **dict.fromkeys(("q_lengths", "kv_lengths"), spec(2, 1, 1, 1, dtype="int32")),
        },
        "lengths beside causal='bottom_right'; needed: neither, but the whole mask as a bias",
    ),
    "window": ({"window": 0}, "window=0; allowed: 1 to"),
    "dropout": ({"dropout": 1.0}, "dropout=1.0; needed: from 0 on, below 1"),
    "seed": ({"dropout": 0.5, "seed": -1}, "seed=-1; allowed: 0 to"),
    "rank of lengths": (
        {"q_lengths": spec(2, 1, dtype="int32")},
        r"q_lengths has shape \(2, 1\); needed: \(batch, 1, 1, 1\)",
    ),
    "type of lengths of keys": (
        {"kv_lengths": spec(2, 1, 1, 1, dtype="int64")},
        r"kv_lengths is .*int64.*needed: int32, of shape \(2, 1, 1, 1\), or a list of integers",
    ),
    "count of lengths": (
        dict.fromkeys(("q_lengths", "kv_lengths"), (3, 4, 5)),
        r"q_lengths has 3 lengths; needed: 2, one for each sequence of \(2, ",
    ),
    "a length of zero": (
        dict.fromkeys(("q_lengths", "kv_lengths"), (3, 0)),
        r"q_lengths\[1\]=0; allowed: 1 to 64",
    ),
}

PLAN_CASES: dict[str, Case] = {
    "another shape": Case(lambda b: b.call(a=b.empty(2, 24, 41, dtype="float16")), "a is"),
    "shape of out": Case(
        lambda b: b.call(out={"y": b.empty(2, 24, 41, dtype="float16")}), "out has shape"
    ),
    "type of out": Case(lambda b: b.call(out={"y": b.empty(2, 24, 56)}), "out is .*made for"),
    "name of out": Case(lambda b: b.call(out={"z": b.out}), "out has 'z'; allowed: y"),
    "closed": Case(lambda b: b.closed_plan()(**b.arrays), "closed", dnn.errors.ClosedError),
    "nothing": Case(lambda b: dnn.Graph().plan(b.handle), "operations and 0 outputs"),
    "handle": Case(lambda _: epilogue_graph().plan(None), "handle="),
    "engine": Case(
        lambda b: epilogue_graph().plan(b.handle, engine=3), "engine=3 is not an Engine"
    ),
    "deterministic": Case(
        lambda b: epilogue_graph().plan(b.handle, deterministic=1), "deterministic="
    ),
}
ATTENTION_CASES: dict[str, Case] = {
    **{
        name: Case(lambda b, changes=changes: b.attend(**changes), message)
        for name, (changes, message) in ATTENTION.items()
    },
    "k's size, of a graph": Case(
        lambda _: FORWARD.graph(QUERIES, spec(2, 4, 64, 16), QUERIES), "k has shape .*the size 32"
    ),
    "no bias": Case(lambda b: b.back(return_dbias=True), "return_dbias=True needs a bias"),
    "return_dbias": Case(lambda b: b.back(return_dbias=1), "return_dbias=1"),
    "a bias for all queries": Case(
        lambda b: b.back(bias=spec(2, 1, 1, 64), return_dbias=True),
        r"bias has shape \(2, 1, 1, 64\); needed: 64 on axis -2",
    ),
    "float32 with large heads": Case(
        lambda b: b.attend(**dict.fromkeys("qkv", spec(1, 2, 64, 160, dtype="float32"))),
        "float32 wrongly where a head is larger than 128",
    ),
    "float32 with large values": Case(
        lambda b: b.attend(
            **dict.fromkeys("qk", spec(1, 2, 64, 64, dtype="float32")),
            v=spec(1, 2, 64, 160, dtype="float32"),
        ),
        "float32 wrongly where a head is larger than 128",
    ),
    "float32 with one query of groups": Case(
        lambda b: b.attend(
            q=spec(1, 4, 1, 64, dtype="float32"),
            **dict.fromkeys("kv", spec(1, 2, 64, 64, dtype="float32")),
        ),
        "in float32 wrongly",
    ),
    "bfloat16 that is pooled": Case(lambda b: b.pool(), "bfloat16 with channels last wrongly"),
}
CASES = case.grouped(
    product=PRODUCT_CASES, mixed=MIXED_CASES, attention=ATTENTION_CASES, plan=PLAN_CASES
)
