"""PyTorch's samples of its modules (ModuleInfo), and recurrent networks by ours and by PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

import cudnnlite as dnn


def samples_of(name: str) -> list[Any]:
    """Return the samples of a module."""
    import torch
    from torch.testing._internal.common_modules import module_db

    (info,) = (info for info in module_db if info.module_cls.__name__ == name)
    return list(
        info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=False
        )
    )


def with_batch(array: Any) -> Any:
    """Return a sequence, or states, of one sample as those of a batch: the axis is the second."""
    return array if array.ndim == 3 else array[:, None]


def by_ours(handle: dnn.Handle, module: Any, operands: list[Any], dy: Any) -> dict[str, Any]:
    """Return the results and gradients of a module by cudnnlite.

    `operands` and `dy` have the steps in front and a batch.
    """
    spec = dnn.RNNSpec.from_torch(module, math_type=dnn.TRUE_FLOAT32)
    weights = dnn.RNNWeights.from_torch(handle, spec, module.state_dict())
    x, *states = (handle.array(operand.numpy().astype(np.float32)) for operand in operands)
    forward = dnn.rnn_forward(handle, spec, weights, x, *states, training=True)
    gradients = dnn.rnn_backward_data(handle, forward.reserve, handle.array(dy.numpy()))
    results = {"y": forward.y, "hy": forward.hy, "dx": gradients.dx, "dhx": gradients.dhx}
    of_weights = dnn.rnn_backward_weights(handle, forward.reserve).to_torch()
    return {name: array.numpy() for name, array in results.items()} | of_weights


def by_pytorch(module: Any, operands: list[Any], dy: Any) -> Mapping[str, Any]:
    """Return the same by PyTorch in float64."""
    import torch

    wide = copy.deepcopy(module).double()
    wide.batch_first = False
    x, *states = (operand.double().requires_grad_() for operand in operands)
    states = states or [torch.zeros(*_shape_of_states(wide, x), dtype=torch.float64)]
    states[0].requires_grad_()
    if isinstance(wide, torch.nn.LSTM):
        if len(states) == 1:
            cells = (states[0].shape[0], states[0].shape[1], wide.hidden_size)
            states.append(torch.zeros(*cells, dtype=torch.float64))
        y, (hy, _) = wide(x, tuple(states))
    else:
        y, hy = wide(x, states[0])
    names = [name for name, _ in wide.named_parameters()]
    tensors = [x, states[0], *wide.parameters()]
    gradients = torch.autograd.grad(y, tensors, dy.double(), materialize_grads=True)
    named = dict(zip(("dx", "dhx", *names), gradients, strict=True))
    return {"y": y.detach(), "hy": hy.detach()} | named


def _shape_of_states(module: Any, x: Any) -> tuple[int, int, int]:
    directions = 2 if module.bidirectional else 1
    size = getattr(module, "proj_size", 0) or module.hidden_size
    return module.num_layers * directions, x.shape[1], size


def assert_same(handle: dnn.Handle, module: Any, operands: list[Any], dy: Any) -> None:
    """Compare the results and gradients of a recurrent network with PyTorch's."""
    results = by_ours(handle, module, operands, dy)
    for name, expected in by_pytorch(module, operands, dy).items():
        wanted = expected.numpy()
        # Of operands of about 1 in float32.
        size = max(float(np.abs(wanted).max(initial=0)), 1e-2)
        np.testing.assert_allclose(
            results[name], wanted, atol=1e-4 * size, err_msg=f"{name} of {module}"
        )
