"""The conditions of the table of faults: what they leave alone, and graphs of any form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.faults import why_wrong

import cudnnlite as dnn
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.faults import FAULTS

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
        ((1, 2, 1, 16), 8, {"do": (102, 51, 17, 1)}, "heads of do"),
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
        names = _NAMES.get(kind, _NAMES["POINTWISE"])
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


def test_no_rule_takes_the_form_of_a_graph_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that differ, operands that lack, operations in any order: a reason or none."""
    rng = np.random.default_rng(8)
    graphs = [random_graph(rng) for _ in range(4000)]
    seen = 0
    for fault in FAULTS:
        in_all = fault._replace(engines=None, seen={"9.19.0": "wrong"})
        monkeypatch.setattr("cudnnlite.graph.faults.FAULTS", (in_all,))
        seen += sum(why_wrong(graph) is not None for graph in graphs)
    assert seen > len(graphs)
