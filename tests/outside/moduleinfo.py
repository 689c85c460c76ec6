"""PyTorch's samples of its modules (ModuleInfo), and recurrent networks by ours and by PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

import cudnnlite as dnn

# Of the largest value.  PERSIST_STATIC_SMALL_H has a fast tanh, and where a cell is saturated, as
# operands of up to 9 do, a slope is what it leaves of 1: 2.2e-4 was seen (H200, cuDNN 9.19).
BOUND, GRADIENT_BOUND = 1e-4, 1e-3


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
    has_slopes = not is_at_a_kink(module, *operands)
    for name, expected in by_pytorch(module, operands, dy).items():
        is_result = name in ("y", "hy")
        if not (is_result or has_slopes):
            continue
        wanted = expected.numpy()
        # What cancels has errors of values near 1.
        size = max(float(np.abs(wanted).max(initial=0)), 1e-2)
        bound = BOUND if is_result else GRADIENT_BOUND
        np.testing.assert_allclose(
            results[name], wanted, atol=bound * size, err_msg=f"{name} of {module}"
        )


def is_at_a_kink(module: Any, x: Any, *states: Any) -> bool:
    """Whether a second layer computes ReLU of exactly 0, as that below writes zeros alone.

    The slope there is 0 for PyTorch, and 1 for cuDNN 9.19 on an H200.
    """
    import torch

    is_relu = getattr(module, "nonlinearity", "") == "relu"
    if not is_relu or module.bias or module.num_layers == 1:
        return False
    sizes = {"input_size": module.input_size, "hidden_size": module.hidden_size}
    below = torch.nn.RNN(
        **sizes, nonlinearity="relu", bias=False, bidirectional=module.bidirectional
    )
    weights = module.state_dict()
    below.load_state_dict({name: weights[name] for name in below.state_dict()})
    rows = 2 if module.bidirectional else 1
    y, _ = below(x, *(state[:rows] for state in states))
    return bool((y == 0).all(-1).any())
