"""`examples/train_transformer.py`: its loss and gradients beside NumPy's in float64, and beside PyTorch's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from helpers.examples import EXAMPLES, example_module

import cudnnlite as dnn

from .libraries import library

ARITHMETICS = ("float16", "float32")
SAMPLE = "the quick brown fox jumps over the lazy dog; the dog does not mind. " * 12
Array = np.ndarray[Any, Any]

each_arithmetic = pytest.mark.parametrize("arithmetic", ARITHMETICS)


@pytest.fixture(scope="module")
def program() -> Iterator[Any]:
    with example_module("train_transformer") as module:
        yield module


@pytest.fixture
def handle(handle: dnn.Handle) -> dnn.Handle:
    handle.stream = handle.device.create_stream()
    return handle


def small(program: Any, text: Any, **sizes: int) -> Any:
    few = {"blocks": 2, "heads": 3, "head": 8, "context": 16, "batch": 2}
    return program.Sizes(text.scores, **(few | sizes))


# --------------------------------------------------------------------- the same model in NumPy


def normalized(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return scale * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) + bias


def attended(qkv: Array, heads: int) -> Array:
    """One query after the other, one head after the other."""
    q, k, v = np.split(qkv, 3, axis=-1)
    result = np.zeros_like(q)
    size = q.shape[-1] // heads
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for step in range(q.shape[1]):
            keys, values = k[:, : step + 1, part], v[:, : step + 1, part]
            scores = np.einsum("bd,bjd->bj", q[:, step, part], keys) / np.sqrt(size)
            powers = np.exp(scores)
            weights = powers / powers.sum(-1, keepdims=True)
            result[:, step, part] = np.einsum("bj,bjd->bd", weights, values)
    return result


def loss_of(p: Mapping[str, Array], sizes: Any, text: Array, following: Array) -> float:
    special = pytest.importorskip("scipy.special")
    x = p["embedding"][text] + p["positions"]
    for block in range(sizes.blocks):

        def linear(name: str, x: Array, block: int = block) -> Array:
            return x @ p[f"{block}.{name}.w"].T + p[f"{block}.{name}.b"]

        def norm(name: str, x: Array, block: int = block) -> Array:
            return normalized(x, p[f"{block}.{name}.scale"], p[f"{block}.{name}.bias"])

        x = x + linear("out", attended(linear("qkv", norm("norm1", x)), sizes.heads))
        a = linear("up", norm("norm2", x))
        x = x + linear("down", a * special.ndtr(a))
    z = normalized(x, p["norm.scale"], p["norm.bias"]) @ p["scores.w"].T + p["scores.b"]
    log = special.log_softmax(z, axis=-1)
    return float(-np.take_along_axis(log, following[..., None], -1).mean())


@each_arithmetic
def test_loss_and_gradients_are_those_of_the_formulas(
    arithmetic: str, handle: dnn.Handle, program: Any
) -> None:
    """Along a random direction for each parameter, the slope of the loss of NumPy in float64."""
    text, rng = program.Text(SAMPLE), np.random.default_rng(5)
    sizes = small(program, text)
    batch = text.batch(rng, sizes)
    with program.Network(handle, sizes, arithmetic, seed=1) as network:
        for values in network.parameters.values.values():
            values += 0.1 * rng.standard_normal(values.shape)  # no bias is 0, no scale 1
        loss = program.Trainer(network, uses_graph=False, rate=0.0).step(*batch)
    exact = {name: values.astype(np.float64) for name, values in network.parameters.values.items()}
    expected = loss_of(exact, sizes, *batch)
    bound = {"float16": 2e-2, "float32": 2e-4}[arithmetic]
    assert abs(loss - expected) < bound * expected
    for name, gradient in network.parameters.gradients.items():
        direction = np.sign(gradient) + 0.3 * rng.standard_normal(gradient.shape)
        losses = [
            loss_of(exact | {name: exact[name] + step * direction}, sizes, *batch)
            for step in (1e-5, -1e-5)
        ]
        slope = (losses[0] - losses[1]) / 2e-5
        assert abs(slope) > 1e-3, name  # there is something to compare
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=bound, err_msg=name)


@pytest.mark.exhaustive
@each_arithmetic
def test_it_learns_and_writes(arithmetic: str, handle: dnn.Handle, program: Any) -> None:
    text = program.Text(SAMPLE)
    with program.Network(handle, small(program, text, blocks=1, batch=8), arithmetic) as network:
        losses = program.train(network, text, steps=60, rate=1e-2)
        written = program.write(network, text, text.numbers[:4], 20)
        x = handle.array(network.embed(text.numbers[None, :16]), dtype=network.dtype)
        scores = [network.forward(x, training=training).z.numpy() for training in (True, False)]
    assert losses[0] > 3.2
    assert np.mean(losses[-5:]) < 1.6
    np.testing.assert_allclose(*scores, atol=2e-2)  # with and without what the gradients read
    assert len(written) == 20
    assert set(written) <= set(SAMPLE)


def test_a_captured_step_trains_as_the_calls_do(handle: dnn.Handle, program: Any) -> None:
    text = program.Text(SAMPLE)
    losses = []
    for uses_graph in (True, False):
        with program.Network(handle, small(program, text, blocks=1)) as network:
            losses.append(program.train(network, text, steps=5, uses_graph=uses_graph))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
    assert len({*losses[0]}) == 5


def test_adam_is_the_rule_of_its_paper(program: Any) -> None:
    rng, rate = np.random.default_rng(2), 0.1
    gradients = rng.standard_normal((4, 5)).astype(np.float32)
    vector, adam = np.ones(5, np.float32), program.Adam(5, beta1=0.8, beta2=0.9)
    expected = np.ones(5)
    for step in range(1, 5):
        adam.step(vector, gradients[step - 1], rate)
        before = gradients[:step].astype(np.float64)
        ages = np.arange(step)[::-1, None]
        mean = (0.2 * 0.8**ages * before).sum(0) / (1 - 0.8**step)
        square = (0.1 * 0.9**ages * before**2).sum(0) / (1 - 0.9**step)
        expected -= rate * mean / (np.sqrt(square) + 1e-8)
    np.testing.assert_allclose(vector, expected, rtol=1e-5)


# ----------------------------------------------------------------------------- beside PyTorch


def torch_losses(
    torch: Any, start: Mapping[str, Array], network: Any, batches: Any, rate: float, device: str
) -> list[float]:
    """Return the losses of the same model, with PyTorch's layers, autograd and Adam."""
    functional, sizes = torch.nn.functional, network.sizes
    dtype = getattr(torch, network.dtype)
    p = {name: torch.tensor(values, device=device) for name, values in start.items()}
    for tensor in p.values():
        tensor.requires_grad_()
    adam = torch.optim.Adam(p.values(), lr=rate, betas=(0.9, 0.99), eps=1e-8)
    width = (sizes.width,)

    def loss_of_batch(text: Any, following: Any) -> Any:
        w = {name: tensor.to(dtype) for name, tensor in p.items()}
        x = (p["embedding"][text] + p["positions"]).to(dtype)
        for block in range(sizes.blocks):

            def linear(name: str, x: Any, block: int = block) -> Any:
                return functional.linear(x, w[f"{block}.{name}.w"], w[f"{block}.{name}.b"])

            def norm(name: str, x: Any, block: int = block) -> Any:
                scale, bias = w[f"{block}.{name}.scale"], w[f"{block}.{name}.bias"]
                return functional.layer_norm(x, width, scale, bias)

            qkv = linear("qkv", norm("norm1", x))
            parts = qkv.view(*text.shape, 3, sizes.heads, sizes.head).permute(2, 0, 3, 1, 4)
            o = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + linear("out", o.transpose(1, 2).reshape(x.shape))
            x = x + linear("down", functional.gelu(linear("up", norm("norm2", x))))
        y = functional.layer_norm(x, width, w["norm.scale"], w["norm.bias"])
        z = functional.linear(y, w["scores.w"], w["scores.b"]).float()
        return functional.cross_entropy(z.flatten(0, 1), following.flatten())

    losses = []
    for batch in batches:
        loss = loss_of_batch(*(torch.tensor(part, device=device) for part in batch))
        losses.append(float(loss.detach()))
        adam.zero_grad()
        (loss * network.loss_scale).backward()
        for tensor in p.values():
            tensor.grad /= network.loss_scale
        adam.step()
    return losses


@each_arithmetic
def test_it_learns_as_the_same_model_in_pytorch_does(
    arithmetic: str, handle: dnn.Handle, program: Any
) -> None:
    """From the same parameters, on the same batches: the loss of each step to 2 %."""
    torch = library("torch")
    if arithmetic == "float32" and torch.cuda.is_available():
        assert not torch.backends.cuda.matmul.allow_tf32
    text, rng, rate = program.Text(SAMPLE), np.random.default_rng(8), 5e-3
    sizes = small(program, text, blocks=2, batch=8)
    batches = [text.batch(rng, sizes) for _ in range(40)]
    with program.Network(handle, sizes, arithmetic, seed=3) as network:
        start = {name: values.copy() for name, values in network.parameters.values.items()}
        trainer = program.Trainer(network, rate=rate)
        losses = [trainer.step(*batch) for batch in batches]
        trainer.close()
    is_gpu = handle.device.kind == "cuda"
    expected = torch_losses(torch, start, network, batches, rate, "cuda" if is_gpu else "cpu")
    assert expected[-1] < expected[0] / 1.5  # it learns
    np.testing.assert_allclose(losses, expected, rtol=0.02)


def test_notebook_13_stores_what_pytorch_prints() -> None:
    """By the program that stands in its text, over the numbers that it begins with."""
    library("torch")
    notebook = json.loads((EXAMPLES / "13_a_transformer_block.ipynb").read_text())
    sources = {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}
    program = re.search(r"```python\n(.*?)```", sources["torch-why"], re.DOTALL)
    assert program is not None
    names: dict[str, Any] = {"np": np}
    for source in (sources["numbers"], sources["torch"], program[1]):
        exec(source, names)
    assert names["norms"] == pytest.approx(names["torch_norms"], rel=1e-6)
