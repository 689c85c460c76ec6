"""PyTorch judges attention, products and layer normalisation by its samples of Transformers."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn

from .moduleinfo import samples_of

torch: Any = pytest.importorskip("torch", reason="PyTorch judges; it is not installed")
pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest")
# How many samples each has at least.
MODULES = {
    "MultiheadAttention": 64,
    "TransformerEncoderLayer": 35,
    "TransformerEncoder": 35,
    "TransformerDecoderLayer": 67,
    "Transformer": 64,
}
quiet = pytest.mark.filterwarnings(
    "ignore:.*nested.*:UserWarning"
)  # PyTorch's own, of its fast path
MOST = 16  # samples of a module; all in the exhaustive tests
# Of the norm of y, or of all gradients; and how many times what a change of all operands by
# ROUNDING changes.  Attention computes in float16, products in TF32, and the normalisation of four
# values may multiply what they are off by.
TOLERANCE, TIMES, ROUNDING = 2e-2, 8, 5e-4


def call(module: Any, run: Any, operands: Any, masks: Any, dy: Any) -> dict[str, Any]:
    """Return a module's result, and the gradients of its operands and parameters."""
    operands = [operand.detach().requires_grad_() for operand in operands]
    y = run(*operands, **masks)
    y = y[0] if isinstance(y, tuple) else y
    named = dict(module.named_parameters())
    gradients = torch.autograd.grad(
        y, [*operands, *named.values()], dy.to(y.dtype), materialize_grads=True
    )
    names = (*(f"operand {n}" for n in range(len(operands))), *named)
    results = {"y": y, **dict(zip(names, gradients, strict=True))}
    return {name: value.detach().numpy() for name, value in results.items()}


def shaken(values: Any) -> Any:
    """Return a tensor, or a module whose parameters are, off by about `ROUNDING`."""
    if isinstance(values, torch.nn.Module):
        other = copy.deepcopy(values)
        for parameter in other.parameters():
            parameter.data = shaken(parameter.data)
        return other
    return values * (1 + ROUNDING * torch.randn_like(values))


def norm(arrays: Iterable[Any]) -> float:
    """Return the L2 norm of all values."""
    return float(np.sqrt(sum(float((array**2).sum()) for array in arrays)))


def check(handle: dnn.Handle, name: str, most: int | None) -> None:
    """Compare results and gradients with PyTorch's in float64."""
    from .transformer import Transformer

    torch.manual_seed(7)
    samples = samples_of(name)
    assert len(samples) >= MODULES[name]
    ours = Transformer(handle)
    for sample in samples if most is None else samples[:: len(samples) // most]:
        made, given = sample.constructor_input, sample.forward_input
        module = getattr(torch.nn, name)(*made.args, **made.kwargs)
        wide = copy.deepcopy(module).double()
        dy = torch.from_numpy(np.random.default_rng(3).standard_normal(given.args[0].shape))
        masks = given.kwargs
        operands = [x.double() for x in given.args]
        expected = call(wide, wide, operands, masks, dy)
        other = shaken(wide)
        moved = call(other, other, map(shaken, operands), masks, dy)
        results = call(
            module, lambda *x, m=module, **k: ours(m, *x, **k), given.args, masks, dy.float()
        )
        of_gradients = norm(value for name, value in expected.items() if name != "y")
        for key, wanted in expected.items():
            allowed = TOLERANCE * (norm([wanted]) if key == "y" else of_gradients)
            allowed += TIMES * norm([moved[key] - wanted])
            assert norm([results[key] - wanted]) <= allowed, f"{key} of {made}"


@quiet
@pytest.mark.parametrize("name", MODULES)
def test_samples_of_transformers(handle: dnn.Handle, name: str) -> None:
    check(handle, name, MOST)


@pytest.mark.exhaustive
@quiet
@pytest.mark.parametrize("name", MODULES)
def test_all_samples_of_transformers(handle: dnn.Handle, name: str) -> None:
    check(handle, name, None)
