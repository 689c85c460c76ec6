"""The conditions of the table of faults: what they leave alone, and graphs of any form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from device.fault_examples import EXAMPLES
from helpers.faults import why_wrong

import cudnnlite as dnn
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.faults import FAULTS
from cudnnlite.graph.flops import flops_of

PACKED = (1, 1, 1, 1)


def gradients(
    of_q: tuple[int, ...], keys: int, out: Any = None, **strides: tuple[int, ...]
) -> dnn.Graph:
    """Return gradients of attention, of which some operands have strides."""
    batch, heads, queries, size = of_q
    shapes = {
        **dict.fromkeys(("q", "o", "do"), of_q),
        **dict.fromkeys("kv", (batch, heads, keys, size)),
        "stats": (batch, heads, queries, 1),
    }
    names = ("q", "k", "v", "o", "do", "stats")
    specs = {
        name: dnn.TensorSpec(
            shapes[name], "float32" if name == "stats" else "float16", strides=strides.get(name)
        )
        for name in names
    }
    lengths = {
        name: dnn.TensorSpec((batch, 1, 1, 1), "int32", strides=strides[name])
        for name in ("q_lengths", "kv_lengths")
        if name in strides
    }
    return dnn.scaled_dot_product_attention_backward.graph(*specs.values(), out=out, **lengths)


@pytest.mark.parametrize(
    ("q", "keys", "strides", "reason"),
    [
        ((1, 2, 1, 16), 8, {"stats": (2, 1, 9, 7)}, ""),
        ((1, 2, 1, 16), 8, {"stats": (6, 3, 3, 3)}, "heads of stats"),
        ((1, 2, 1, 16), 8, {"q": (48, 24, 24, 1)}, "heads of q"),
        ((1, 2, 1, 16), 8, {"do": (96, 48, 24, 1)}, "heads of do"),
        ((1, 2, 1, 16), 8, {"k": (512, 256, 16, 1)}, ""),
        ((1, 1, 1, 16), 8, {"stats": (6, 3, 3, 3)}, ""),
        ((2, 2, 1, 16), 8, {"stats": (6, 3, 3, 3)}, ""),
        ((1, 2, 2, 16), 8, {"stats": (8, 4, 2, 2)}, ""),
        ((1, 2, 9, 16), 1, {"v": (64, 32, 32, 1)}, ""),
        ((2, 2, 9, 16), 8, {"q_lengths": PACKED, "kv_lengths": PACKED}, ""),
        ((2, 2, 9, 16), 8, {"q_lengths": (1, 7, 5, 3), "kv_lengths": PACKED}, ""),
        ((2, 2, 9, 16), 8, {"q_lengths": (2, 1, 1, 1), "kv_lengths": PACKED}, "reads q_lengths"),
        ((2, 2, 9, 16), 8, {"q_lengths": PACKED, "kv_lengths": (2, 2, 2, 2)}, "reads kv_lengths"),
        ((1, 2, 9, 16), 8, {"q_lengths": (2, 2, 2, 2), "kv_lengths": PACKED}, ""),
    ],
)
def test_heads_of_one_query_and_lengths(
    q: tuple[int, ...], keys: int, strides: dict[str, tuple[int, ...]], reason: str
) -> None:
    said = why_wrong(gradients(q, keys, **strides))
    assert reason in said if said is not None and reason else said is None and not reason, said


STRIDES = [
    ((288, 144, 16, 1), False),
    ((432, 216, 24, 1), False),  # rows of 48 bytes
    ((306, 153, 17, 1), True),
    ((360, 180, 20, 1), True),  # rows of 40 bytes
    ((296, 148, 16, 1), True),  # heads of 296 bytes
    ((289, 144, 16, 1), True),
    ((360, 20, 40, 1), True),  # heads behind steps
]


def spec_of(name: str, strides: tuple[int, ...], other: str) -> dnn.TensorSpec:
    return dnn.TensorSpec((2, 2, 9, 16), "float16", strides=strides if name == other else None)


@pytest.mark.parametrize(("strides", "is_wrong"), STRIDES)
@pytest.mark.parametrize("name", ["q", "k", "v", "o"])
def test_strides_between_vectors(name: str, strides: tuple[int, ...], is_wrong: bool) -> None:
    q, k, v, o = (spec_of(name, strides, other) for other in "qkvo")
    graph = dnn.scaled_dot_product_attention_forward.graph(q, k, v, out=o)
    said = str(why_wrong(graph))
    assert said.startswith(f"{name} has the stride") == is_wrong, said
    assert (f"{name}.copy()" in said) == (is_wrong and name != "o")


@pytest.mark.parametrize(("strides", "is_wrong"), STRIDES)
@pytest.mark.parametrize("name", ["q", "k", "v", "o", "do", "dq", "dk", "dv"])
def test_strides_between_vectors_of_gradients(
    name: str, strides: tuple[int, ...], is_wrong: bool
) -> None:
    out = tuple(spec_of(name, strides, other) for other in ("dq", "dk", "dv"))
    given = {} if name in ("dq", "dk", "dv") else {name: strides}
    said = str(why_wrong(gradients((2, 2, 9, 16), 9, out=out, **given)))
    assert said.startswith(f"{name} has the stride") == is_wrong, said


@pytest.mark.parametrize("place", [1, 2])
def test_strides_between_vectors_of_shared_heads(place: int) -> None:
    """dk and dv are sums over the heads that share one of k."""
    q, k = dnn.TensorSpec((2, 2, 9, 16), "float16"), dnn.TensorSpec((2, 1, 8, 16), "float16")
    out = [q, k, k]
    out[place] = dnn.TensorSpec(k.shape, "float16", strides=(160, 160, 20, 1))
    stats = dnn.TensorSpec((2, 2, 9, 1))
    graph = dnn.scaled_dot_product_attention_backward.graph(q, k, k, q, q, stats, out=tuple(out))
    assert str(why_wrong(graph)).startswith(f"{('dq', 'dk', 'dv')[place]} has the stride 20")


@pytest.mark.parametrize("strides", [(1, 544, 34, 1), (544, 1, 34, 1), (1024, 512, 1, 1)])
def test_strides_of_1_besides_that_of_the_head(strides: tuple[int, ...]) -> None:
    q = dnn.TensorSpec((2, 2, 16, 32), "float16", strides=strides)
    k = dnn.TensorSpec((2, 2, 16, 32), "float16")
    said = str(why_wrong(dnn.scaled_dot_product_attention_forward.graph(q, k, k)))
    assert said.startswith("q has the stride")


@pytest.mark.parametrize(
    "q",
    [
        dnn.TensorSpec((1, 1, 9, 16), "float16", strides=(145, 147, 16, 1)),  # axes of one
        dnn.TensorSpec((2, 1, 9, 16), strides=(180, 180, 20, 1)),  # vectors of four values
        dnn.TensorSpec((2, 2, 9, 12), "float16"),  # such heads have no engine
        dnn.TensorSpec((0, 2, 9, 16), "float16"),
    ],
)
def test_strides_that_are_right(q: dnn.TensorSpec) -> None:
    graph = dnn.scaled_dot_product_attention_forward.graph(q, q, q, return_stats=True)
    assert why_wrong(graph) is None


def test_strides_of_what_no_product_reads_may_be_any() -> None:
    """Of a bias and its gradient, of statistics, and of a mask of probabilities."""
    strides = (306, 153, 17, 1)
    q, k = dnn.TensorSpec((2, 2, 9, 16), "float16"), dnn.TensorSpec((2, 2, 16, 16), "float16")
    bias = dnn.TensorSpec((2, 2, 9, 16), "float16", strides=strides)
    stats = dnn.TensorSpec((2, 2, 9, 1), strides=(54, 27, 3, 3))
    forward = dnn.scaled_dot_product_attention_forward.graph(
        q, k, k, bias=bias, return_stats=True, out=(q, stats)
    )
    backward = dnn.scaled_dot_product_attention_backward.graph(
        q, k, k, q, q, stats, bias=bias, return_dbias=True, out=(q, k, k, bias)
    )
    masked = dnn.Graph()
    a = masked.input("q", q.shape, "float16")
    b = masked.input("k", (2, 2, 16, 16), "float16", strides=(512, 256, 1, 16))
    probabilities, _ = masked.softmax_with_stats(masked.matmul(a, b), "float16")
    mask = masked.input("mask", bias.shape, "float16", strides=strides)
    values = masked.input("v", k.shape, "float16")
    masked.output("o", masked.matmul(probabilities * mask, values), "float16")
    assert [why_wrong(graph) for graph in (forward, backward, masked)] == [None] * 3


def test_a_gradient_with_gaps_of_one_query() -> None:
    out = [
        dnn.TensorSpec(shape, "float16") for shape in ((1, 2, 1, 16), (1, 2, 8, 16), (1, 2, 8, 16))
    ]
    assert why_wrong(gradients((1, 2, 1, 16), 8, out=out)) is None
    out[0] = dnn.TensorSpec((1, 2, 1, 16), "float16", strides=(48, 24, 24, 1))
    assert "heads of dq" in str(why_wrong(gradients((1, 2, 1, 16), 8, out=out)))


@pytest.mark.parametrize("name", ["q", "k", "v", "o", "do"])
def test_heads_with_a_step_are_refused_of_each_operand(name: str) -> None:
    """The operation refuses such operands itself; a graph of one's own may have them."""
    plain = gradients((2, 2, 9, 16), 8).to_plain()
    assert why_wrong(dnn.Graph.from_plain(plain)) is None
    for tensor in plain["tensors"]:
        if tensor.get("name") == name:
            tensor["strides"] = [2 * stride for stride in tensor["strides"]]
    assert why_wrong(dnn.Graph.from_plain(plain)) is not None


def test_a_shared_bias_and_a_projection_are_no_gradient() -> None:
    graph = dnn.Graph()
    q, v = (graph.input(name, (1, 2, 16, 32), "float16") for name in "qv")
    k = graph.input("k", (1, 2, 32, 16), "float16", (1024, 512, 1, 32))
    w, bias = graph.input("w", (1, 2, 32, 32), "float16"), graph.input("bias", (1, 1, 1, 16))
    p, _ = graph.softmax_with_stats(graph.matmul(q, k) + bias, "float16")
    o = graph.identity(graph.matmul(p, v), "float16")
    graph.output("y", graph.matmul(o, w), "float16")
    assert "gradients" not in str(why_wrong(graph))


def test_two_projections_behind_attention_are_no_gradient() -> None:
    graph = dnn.Graph()
    q, v = (graph.input(name, (1, 2, 16, 32), "float16") for name in "qv")
    k = graph.input("k", (1, 2, 32, 16), "float16", (1024, 512, 1, 32))
    weights = [graph.input(name, (1, 2, 32, 32), "float16") for name in ("w1", "w2")]
    p, _ = graph.softmax_with_stats(graph.matmul(q, k), "float16")
    y = graph.matmul(p, v)
    for w in weights:
        y = graph.matmul(graph.identity(y, "float16"), w)
    graph.output("y", y, "float16")
    assert why_wrong(graph) is None


def test_the_gradient_of_q_alone_is_one() -> None:
    graph = dnn.Graph()
    q, do = (graph.input(name, (2, 2, 9, 16), "float16") for name in ("q", "do"))
    k, v = (graph.input(name, (2, 2, 8, 16), "float16") for name in "kv")
    stats, sums = (graph.input(name, (2, 2, 9, 1)) for name in ("stats", "sums"))
    bias = graph.input("bias", (2, 2, 1, 8))
    probabilities = graph.exp(graph.matmul(q, k.transposed()) + bias - stats)
    ds = (graph.matmul(do, v.transposed()) - sums) * probabilities
    graph.output("dq", graph.matmul(graph.identity(ds, "float16"), k), "float16")
    assert "gradients of attention wrongly beside a bias" in str(why_wrong(graph))


def random_graph(rng: np.random.Generator) -> GraphData:
    """Return a graph of random operations over random tensors, most of which mean nothing."""
    graph = dnn.Graph()
    shapes = [tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 6))) for _ in range(4)]
    dtypes = ("float32", "float16", "bfloat16", "float64", "int32")
    tensors: list[Any] = [
        graph.input(f"x{n}", shape, rng.choice(dtypes)) for n, shape in enumerate(shapes)
    ]
    modes = {
        "POINTWISE": (
            "ADD",
            "SUB",
            "RELU_FWD",
            "TANH_FWD",
            "GELU_BWD",
            "EXP",
            "CMP_GE",
            "GEN_INDEX",
        ),
        "RESAMPLE_FWD": ("MAXPOOL", "AVGPOOL_INCLUDE_PADDING"),
        "RESAMPLE_BWD": ("MAXPOOL", "AVGPOOL_INCLUDE_PADDING"),
        "NORM_FORWARD": ("LAYER", "RMS", "INSTANCE"),
        "NORM_BACKWARD": ("LAYER", "RMS", "INSTANCE"),
    }
    for step in range(int(rng.integers(1, 4))):
        kind = str(rng.choice([*modes, "MATMUL", "REDUCTION", *_CONVOLUTIONS]))
        names = _NAMES[kind]
        attributes = {"mode": str(rng.choice(modes[kind]))} if kind in modes else {}
        reads = {
            name: tensors[rng.integers(len(tensors))] for name in names[0] if rng.random() < 0.8
        }
        shape = shapes[rng.integers(len(shapes))]
        writes = {}
        for name in names[1]:
            if name == names[1][0] or rng.random() < 0.7:
                writes[name] = graph.virtual(shape)
        graph.node(kind, attributes, reads=reads, writes=writes)
        for n, tensor in enumerate(writes.values()):
            tensors.append(tensor)
            if rng.random() < 0.5:
                graph.output(f"y{step}_{n}", tensor, rng.choice(dtypes))
    return graph


_CONVOLUTIONS = ("CONVOLUTION_FORWARD", "CONVOLUTION_BACKWARD_DATA", "CONVOLUTION_BACKWARD_FILTER")
# By kind: what an operation reads and writes.
_NAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "POINTWISE": (("xdesc", "bdesc"), ("ydesc",)),
    "MATMUL": (("adesc", "bdesc", "gemm_m_override_desc", "gemm_k_override_desc"), ("cdesc",)),
    "REDUCTION": (("xdesc",), ("ydesc",)),
    "RESAMPLE_FWD": (("xdesc",), ("ydesc", "idxdesc")),
    "RESAMPLE_BWD": (("xdesc", "ydesc", "dydesc"), ("dxdesc",)),
    "NORM_FORWARD": (("xdesc", "scale_desc", "bias_desc"), ("ydesc", "mean_desc")),
    "NORM_BACKWARD": (
        ("xdesc", "dydesc", "scale_desc", "mean_desc", "inv_variance_desc"),
        ("dxdesc", "dscale_desc", "dbias_desc"),
    ),
    "CONVOLUTION_FORWARD": (("x", "w"), ("y",)),
    "CONVOLUTION_BACKWARD_DATA": (("w", "dy"), ("dx",)),
    "CONVOLUTION_BACKWARD_FILTER": (("x", "dy"), ("dw",)),
}


def check_each_row(monkeypatch: pytest.MonkeyPatch, graphs: list[GraphData]) -> int:
    """Ask each row about each graph, and return how many reasons there are."""
    seen = 0
    for fault in FAULTS:
        in_all = fault._replace(engines=None, seen={"9.19.0": "wrong"})
        monkeypatch.setattr("cudnnlite.graph.faults.FAULTS", (in_all,))
        seen += sum(why_wrong(graph) is not None for graph in graphs)
    return seen


def test_no_rule_takes_the_form_of_a_graph_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that differ, operands that lack, operations in any order: a reason or none."""
    rng = np.random.default_rng(8)
    graphs = [random_graph(rng) for _ in range(1500)]
    assert check_each_row(monkeypatch, graphs) > len(graphs)
    for graph in graphs:
        flops_of(graph)


def mutants(graph: dnn.Graph) -> Iterator[GraphData]:
    """Yield graphs that differ in the rank of a tensor, or lack an operand."""
    for number, record in enumerate(graph.tensors):
        for cut in (lambda sizes: sizes[-1:], lambda sizes: [1, *sizes]):
            if not record.name:
                continue
            plain = graph.to_plain()
            tensor = plain["tensors"][number]
            for field in ("shape", "strides"):
                tensor[field] = cut(tensor[field])
            yield from read(plain)
    for number, node in enumerate(graph.to_plain()["nodes"]):
        for name in node["reads"]:
            plain = graph.to_plain()
            del plain["nodes"][number]["reads"][name]
            yield from read(plain)


def read(plain: Any) -> Iterator[GraphData]:
    """Yield the graph of a plain form, unless it is none."""
    with suppress(dnn.ArgumentError):
        yield GraphData.from_plain(plain)


def test_no_rule_takes_the_form_of_its_examples_for_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """These are of all rows, and each row sees its own."""
    graphs = [
        mutant
        for examples in EXAMPLES.values()
        for make in examples[:1]
        for mutant in mutants(make().graph)
    ]
    assert len(graphs) > 500
    assert check_each_row(monkeypatch, graphs) > len(graphs)
    for graph in graphs:
        flops_of(graph)
