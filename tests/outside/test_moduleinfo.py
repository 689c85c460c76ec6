"""PyTorch judges our recurrent networks by its own samples of its modules (ModuleInfo)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn

from .moduleinfo import assert_same, samples_of, with_batch

torch: Any = pytest.importorskip("torch", reason="PyTorch judges; it is not installed")
pytest.importorskip("expecttest", reason="PyTorch's samples need expecttest")
MODULES = {"RNN": 32, "GRU": 16, "LSTM": 32}  # how many samples each has at least


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore:.*batch_first")  # PyTorch's own, of sequences without a batch
def test_samples_of_modules(handle: dnn.Handle, name: str) -> None:
    torch.manual_seed(3)
    samples = samples_of(name)
    assert len(samples) >= MODULES[name]
    for sample in samples:
        made, given = sample.constructor_input, sample.forward_input.args
        module = getattr(torch.nn, name)(*made.args, **made.kwargs)
        x, *states = given
        states = [*states[0]] if states and isinstance(states[0], tuple) else list(states)
        if module.batch_first and x.ndim == 3:
            x = x.transpose(0, 1)
        operands = [with_batch(operand.detach()) for operand in (x, *states)]
        steps, batch, _ = operands[0].shape
        size = getattr(module, "proj_size", 0) or module.hidden_size
        width = size * (2 if module.bidirectional else 1)
        dy = torch.from_numpy(np.random.default_rng(3).standard_normal((steps, batch, width)))
        dy = dy.float()
        assert_same(handle, module, operands, dy)
