"""Samples that are traced and run again in C.

Each gets a handle, which is made inside the trace unless the sample's name says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

import cudnnlite as dnn

Sample = Callable[[dnn.Handle], object]


def upload(
    handle: dnn.Handle, shape: tuple[int, ...], dtype: str = "float32", layout: str | None = None
) -> Any:
    """Return random values on the device, of that shape the same ones."""
    return handle.array(
        np.random.default_rng(shape).standard_normal(shape), dtype=dtype, layout=layout
    )


def convolution_with_search(handle: dnn.Handle) -> None:
    """Search, and apply what was found; asymmetric on purpose."""
    x, w, conv = (
        upload(handle, (4, 8, 28, 26)),
        upload(handle, (16, 8, 3, 5)),
        dnn.ConvolutionSpec((1, 2), (1, 2), math_type="fma"),
    )
    table = dnn.convolution_forward.find(handle, x, w, conv, workspace_limit="64 MiB")
    dnn.convolution_forward(
        handle, x, w, conv, algorithm=table.best(workspace_limit="64 MiB", deterministic=True)
    ).numpy()


def execution_plan(handle: dnn.Handle) -> None:
    """An engine with bias and ReLU behind it, called many times."""
    x, w = (
        upload(handle, (4, 16, 14, 12), "float16", "NHWC"),
        upload(handle, (32, 16, 3, 3), "float16", "NHWC"),
    )
    bias, conv = upload(handle, (1, 32, 1, 1), "float16", "NHWC"), dnn.ConvolutionSpec(1)
    with dnn.convolution_bias_activation_forward.plan(
        handle, x, w, bias, conv, "relu", interface="graph"
    ) as plan:
        y = plan(x, w, bias)
        for _ in range(50):
            plan(x, w, bias, out=y)
        y.numpy()


def new_results(handle: dnn.Handle) -> None:
    """A plan's results in new memory, of which some was another result's."""
    x, w = upload(handle, (2, 4, 9, 8)), upload(handle, (4, 4, 3, 3))
    with dnn.convolution_forward.plan(
        handle, x, w, dnn.ConvolutionSpec(1, math_type="fma"), interface="graph"
    ) as plan:
        for _ in range(7):
            y = plan(x, w)
        dnn.activation_forward(handle, y, "tanh").numpy()


def lstm(handle: dnn.Handle) -> None:
    """Forward and backward, of sequences of several lengths."""
    spec = dnn.RNNSpec("lstm", 6, 8, 2, bidirectional=True, math_type="fma")
    weights = dnn.RNNWeights(handle, spec)
    rng = np.random.default_rng(0)
    weights.update(
        {name: rng.standard_normal(view.shape).astype(np.float32) for name, view in weights.items()}
    )
    out = dnn.rnn_forward(
        handle, spec, weights, upload(handle, (5, 3, 6)), lengths=[5, 3, 2], training=True
    )
    out.y.numpy()
    dnn.rnn_backward_data(handle, out.reserve, upload(handle, (5, 3, 16))).dx.numpy()
    dnn.rnn_backward_weights(handle, out.reserve)["layer0.forward.input.f"].numpy()


def pooling(handle: dnn.Handle) -> None:
    """A result that nobody reads: the end of the trace does."""
    live_values.append(
        dnn.pooling_forward(handle, upload(handle, (2, 3, 12, 10)), dnn.PoolingSpec((3, 2)))
    )


def softmax(handle: dnn.Handle) -> None:
    """In float64, where cuDNN's scalars are doubles."""
    dnn.softmax_forward(handle, upload(handle, (3, 10, 2, 1), "float64"), mode="channel").numpy()


def dropout(handle: dnn.Handle) -> None:
    """States that each call advances."""
    x, state = upload(handle, (2, 3, 20, 10)), dnn.DropoutState(handle, seed=7)
    for _ in range(4):
        y, reserve = dnn.dropout_forward(handle, x, 0.5, dropout_state=state)
        y.numpy()
    dnn.dropout_backward(handle, x, 0.5, reserve, dropout_state=state).numpy()


def captured(handle: dnn.Handle) -> None:
    """A CUDA graph that is recorded in the trace, and launched."""
    x, w = upload(handle, (2, 4, 9, 8)), upload(handle, (4, 4, 3, 3))
    plan = dnn.convolution_forward.plan(
        handle, x, w, dnn.ConvolutionSpec(1, math_type="fma"), interface="graph"
    )
    y = plan(x, w)
    with plan, dnn.capture(handle) as graph:
        plan(x, w, out=y)
        dnn.activation_forward(handle, y, "relu", out=y)
    with graph:
        for _ in range(5):
            graph.launch()
        y.numpy()


def attention(handle: dnn.Handle) -> None:
    """Weights whose places cuDNN tells, and lengths in the device's memory."""
    spec = dnn.AttentionSpec(2, 6, q_proj_size=3, k_proj_size=3, v_proj_size=3, o_proj_size=4)
    weights, rng = dnn.AttentionWeights(handle, spec), np.random.default_rng(1)
    weights.update(
        {name: rng.standard_normal(view.shape).astype(np.float32) for name, view in weights.items()}
    )
    sequences = [upload(handle, (2, steps, 6)) for steps in (4, 5)]
    queries, keys = sequences
    dnn.multi_head_attention_forward(handle, spec, weights, queries, keys, keys).numpy()


def numbers_by_value(handle: dnn.Handle) -> None:
    """Numbers that a graph reads on the host, one of which another call changes."""
    a, b = upload(handle, (2, 64, 32), "float16"), upload(handle, (2, 32, 48), "float16")
    y = handle.empty((2, 64, 48), "float16")
    for alpha in (0.5, -2.0, -2.0):
        dnn.matmul(handle, a, b, alpha=alpha, out=y)
        y.numpy()


def parts(handle: dnn.Handle) -> None:
    """Copies and fills of arrays that are there, and of parts of them."""
    x, y = upload(handle, (2, 4, 9, 8)), handle.empty((2, 4, 9, 8))
    y.fill(1.5)
    y[1].fill(0)
    y[:, 1, ::2].fill(0.25)
    y[:, 2:, :, 3:5].fill(0)
    dnn.add_tensor(handle, x, y)
    y[:, 1, 1::3].copy_from(np.arange(48).reshape(2, 3, 8))
    x.copy_from(np.arange(576).reshape(x.shape))
    dnn.add_tensor(handle, x, y)
    host = np.empty((2, 9, 2), np.float32)
    y[:, 3, :, 4:6].copy_to(host)
    dnn.activation_forward(handle, y, "tanh").numpy()


def uses_of_what_is_gone(program: str) -> list[str]:
    """Return statements of a program that use a variable before it is made or after its release.

    A call with an object that holds the variable uses it too: a variant pack, a graph.
    """
    body = re.sub(r"/\*.*?\*/", "", program.partition("int main(void)")[2], flags=re.DOTALL)
    declared = set(re.findall(r"\w+(?=[,;])", body.partition("{")[2].partition("\n\n")[0]))
    alive, holds, wrong, drawn = set[str](), dict[str, set[str]](), [], set[str]()
    for statement in re.split(r";\s", body):
        match = re.search(r"\b(cud(?:a|nn)[A-Z]\w+|load\w*|report\w*)\((\w*)[^;]*", statement)
        if match is None:
            continue
        (function, first), names = (
            match.groups(),
            set(re.findall(r"&?\b[a-z]\w*\b", match[0].partition('"inputs')[0])),
        )
        addresses = {name[1:] for name in names if name[0] == "&"} & declared
        used, held = names & declared, set().union(*(holds.get(name, ()) for name in names))
        drawn = set() if "BeginCapture" in function else drawn | used | held
        if used - alive or (re.search("Execute|Launch", function) and held - alive):
            wrong.append(match[0])
        if function == "cudnnBackendSetAttribute":
            holds[first] = holds.get(first, set()) | used | held
        elif function == "cudnnBackendInitialize":
            holds[first] = {first}
        holds |= dict.fromkeys(addresses, {*drawn} if function == "cudaGraphInstantiate" else set())
        alive = (alive | addresses) - (
            {first} if re.search("Destroy|cudaFree", function) else set()
        )
    return wrong


live_values: list[Any] = []  # alive at a trace's end
SAMPLES: tuple[Sample, ...] = (
    convolution_with_search,
    execution_plan,
    new_results,
    lstm,
    pooling,
    softmax,
    dropout,
    captured,
    attention,
    numbers_by_value,
    parts,
)
STEADY = (
    execution_plan,
    lstm,
    pooling,
    softmax,
    captured,
    attention,
    numbers_by_value,
)  # whose program does not depend on times, or on garbage
