"""Random calls of recurrent networks, multi-head attention and CTC losses, with PyTorch's numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from rnn_oracles import BIASES, GATES, onnx_rnn, random_weights, torch_rnn_gradients
from tolerances import ATTENTION_BOUNDS, CTC_BOUND, assert_near, rnn_bound

import cudnnlite as dnn
from fuzz.random_comparison import WrongError
from fuzz.random_draw import Array, Draw, dtype_of

LAYOUTS = ("seq_major_unpacked", "seq_major_packed", "batch_major_unpacked")


@cache
def has_torch() -> bool:
    """Whether PyTorch is installed; it computes on one core."""
    try:
        import torch
    except ImportError:
        return False
    torch.set_num_threads(1)
    return True


# What a value may be off by, relatively; float32 is TF32 by default.
ROUNDINGS = {"float64": 2.0**-40, "float32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def need_torch() -> None:
    """Refuse a call whose oracle is PyTorch where that is not installed."""
    if not has_torch():
        raise dnn.errors.MissingPackageError("PyTorch is the oracle of this call")


class _Sequence:
    """A call with a state: several functions one after the other."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.verb = draw.pick(("call", "call", "plan"))
        self.texts: list[str] = []
        self.also: list[str] = []


def _near(name: str, result: Any, expected: Array, bound: float, least: float) -> None:
    """Compare by the largest error, relative to the largest value."""
    got = result.numpy() if hasattr(result, "numpy") else result
    size = max(np.abs(expected).max(initial=0.0), least)
    if got.shape != expected.shape:
        raise WrongError(f"{name}: shape {got.shape} instead of {expected.shape}")
    error = np.abs(got.astype(np.float64) - expected).max(initial=0.0) / size
    if not error <= bound:
        raise WrongError(f"{name}: off by {error:.2g} of the largest value, allowed {bound:.1g}")


def is_at_a_kink(
    cell: str, weights: dict[str, Array], x: Array, dy: Array, hx: Array | None, lengths: Any
) -> bool:
    """Whether a cell of a second layer computes ReLU of exactly 0.

    Its slope is 0 for PyTorch, and 1 for cuDNN 9.19 on an H200.  Without a bias it is computed
    where the layer below writes zeros alone.
    """
    below = {name: values for name, values in weights.items() if name.startswith("layer0.")}
    if cell != "relu" or len(below) == len(weights) or any(".bias" in name for name in weights):
        return False
    directions = len({name.split(".")[1] for name in below})
    states = None if hx is None else hx[:directions]
    forward, _ = torch_rnn_gradients(cell, below, x, dy, None, None, states, None, lengths)
    is_zero = (forward.y == 0).all(-1)
    within = np.arange(len(x))[:, None] < np.array(lengths or [len(x)] * x.shape[1])
    return bool((is_zero & within).any())


def jumps(gradients: dict[str, Array], near: dict[str, Array]) -> bool:
    """Whether gradients of nearly the same weights differ by more than a tenth."""
    return any(
        np.abs(near[name] - gradient).max(initial=0) > 0.1 * np.abs(gradient).max(initial=0)
        for name, gradient in gradients.items()
    )


class RecurrentNetwork(_Sequence):
    """A forward call, and the two backward calls of what it left."""

    def run(self) -> None:
        """Make the calls."""
        d, rng = self.draw, self.draw.rng
        cell, dtype = (
            d.pick(list(GATES)),
            d.pick(("float32", "float32", "float16", "float64", "bfloat16")),
        )
        hidden = d.pick((1, 2, 3, 4, 8))
        steps, batch = d.size(4), d.size(3)
        shape = {
            "input_size": d.size(4),
            "hidden_size": hidden,
            "num_layers": d.pick((1, 1, 2)),
            "bidirectional": d.chance(0.3),
            "projection_size": None,
            "bias": d.pick(list(BIASES)),
        }
        if cell == "lstm" and hidden > 1 and dtype != "float64" and d.chance(0.2):
            shape["projection_size"] = d.integer(1, hidden - 1)
        math = d.pick(("fma", "default"))
        lengths, layout = None, d.pick(LAYOUTS)
        if d.chance(0.4) or layout == "seq_major_packed":
            lengths = sorted((d.integer(1, steps) for _ in range(batch)), reverse=True)
            lengths[0] = steps
        training = d.chance(0.6) and has_torch()
        plain = dtype_of(dtype)

        def rounded(values: Array) -> Array:
            return values.astype(plain).astype(np.float64)

        weights = {n: rounded(w) for n, w in random_weights(rng, cell, **shape).items()}
        rows = shape["num_layers"] * (1 + shape["bidirectional"])
        out_size = shape["projection_size"] or hidden
        directions = 1 + shape["bidirectional"]
        x = rounded(rng.standard_normal((steps, batch, shape["input_size"])))
        hx = rounded(rng.standard_normal((rows, batch, out_size))) if d.chance(0.5) else None
        cx = None
        if cell == "lstm" and d.chance(0.5):
            cx = rounded(rng.standard_normal((rows, batch, hidden)))
        within = np.arange(steps)[:, None] < np.array(lengths or [steps] * batch)
        dy = rounded(rng.standard_normal((steps, batch, out_size * directions)))
        dy = dy * within[..., None]
        self.texts = [f"{cell} {dtype} {math} {layout} {shape} T={steps} N={batch} {lengths}"]
        self.texts.append(f"hx {hx is not None}, cx {cx is not None}, {training=} {self.verb}")
        d.tell(self.texts)
        gradients: Any = None
        if training:
            expected, gradients = torch_rnn_gradients(
                cell, weights, x, dy, None, None, hx, cx, lengths
            )
        else:
            expected = onnx_rnn(cell, weights, x, hx, cx, lengths)
        spec = dnn.RNNSpec(cell, dtype=dtype, math_type=math, **shape)
        ours = dnn.RNNWeights.from_arrays(d.handle, spec, weights)
        # What lies behind the end of a sequence is not read.
        padded = np.where(within[..., None], x, 1e4)
        operands = [
            None if a is None else d.handle.array(a, dtype=d.mistaken(name, dtype))
            for name, a in (("x", _laid_out(padded, layout, lengths)), ("hx", hx), ("cx", cx))
        ]
        options = {"lengths": lengths, "layout": layout, "training": training}
        if self.verb == "plan":
            with dnn.rnn_forward.plan(d.handle, spec, ours, *operands, **options) as plan:
                result = plan(ours, *operands, lengths=lengths)
        else:
            result = dnn.rnn_forward(d.handle, spec, ours, *operands, **options)
        chain = steps * shape["num_layers"]
        # PERSIST_STATIC_SMALL_H, which is chosen for most, has a fast tanh: off by up to 9.6e-6 in
        # float32 (H200, cuDNN 9.19, 2026-11-29).
        (row,) = dnn.rnn_forward.heuristic(d.handle, spec, ours, *operands, **options)
        algorithm = row.algorithm.name
        bound = 3 * rnn_bound(dtype, spec.math_type, algorithm, cell, chain)
        least = 1.0 if dtype in ("float16", "bfloat16") else 0.5
        _near("y", result.y, _laid_out(expected.y, layout, lengths), bound, least)
        _near("hy", result.hy, expected.hy, bound, least)
        if cell == "lstm":
            _near("cy", result.cy, expected.cy, bound, least)
        if not training or is_at_a_kink(cell, weights, x, dy, hx, lengths):
            return
        # A rounding error of a state may lead to the other side of a kink.
        for _ in range(8 if cell == "relu" else 0):
            signs = {n: rng.choice((-1, 1), w.shape) for n, w in weights.items()}
            near = {n: w * (1 + 2 * signs[n] * ROUNDINGS[dtype]) for n, w in weights.items()}
            _, near_gradients = torch_rnn_gradients(cell, near, x, dy, None, None, hx, cx, lengths)
            if jumps(gradients.weights, near_gradients.weights):
                return
        of_states = dnn.rnn_backward_data(
            d.handle, result.reserve, d.handle.array(_laid_out(dy, layout, lengths), dtype=dtype)
        )
        bound = rnn_bound(dtype, spec.math_type, algorithm, cell, chain, gradient=True)
        least = 0.5
        _near("dx", of_states.dx, _laid_out(gradients.dx, layout, lengths), 3 * bound, least)
        _near("dhx", of_states.dhx, gradients.dhx, 3 * bound, least)
        self.also.append("rnn_backward_data")
        dw = dnn.rnn_backward_weights(d.handle, result.reserve)
        for name, gradient in gradients.weights.items():
            _near(f"d {name}", dw[name].numpy().reshape(gradient.shape), gradient, 3 * bound, 1.0)
        self.also.append("rnn_backward_weights")


def _laid_out(x: Array, layout: str, lengths: Any) -> Array:
    """Return sequences of (T, N, ...) as a layout has them."""
    if layout == "batch_major_unpacked":
        return np.ascontiguousarray(x.swapaxes(0, 1))
    if layout == "seq_major_packed":
        within = np.arange(len(x))[:, None] < np.array(lengths)
        return x[within]
    return x


class MultiHeadAttention(_Sequence):
    """The calls of tests/device/test_attention.py, on a layer that was drawn."""

    verb = "call"

    def run(self) -> None:
        """Make the calls."""
        need_torch()
        from device.test_attention import BATCH, BEAM, PROJECTIONS, REACH, STEPS, Case, spec_of

        d = self.draw
        self.verb = "call"
        dtype, math = d.pick(("float32", "float16", "float64")), d.pick(("fma", "default"))
        projections = d.pick((*PROJECTIONS,))
        beam = d.pick((1, BEAM))
        spec = spec_of(projections, dtype, math, bias=d.chance(0.5))
        limits: dict[str, Any] = {}
        if d.chance(0.5):
            limits["q_lengths"] = [d.integer(0, STEPS) for _ in range(BATCH * beam)]
        if d.chance(0.5):
            limits["kv_lengths"] = [d.integer(0, REACH) for _ in range(BATCH)]
        if d.chance(0.4):
            low = sorted(d.integer(0, 2) for _ in range(STEPS))
            limits["window"] = (low, [d.integer(at, REACH) for at in low])
        self.texts = [f"{projections} {dtype} {math} {beam=} {limits}"]
        d.tell(self.texts)
        case = Case(d.handle, spec, beam, seed=d.integer(0, 99))
        case.operands = [
            d.handle.array(host, dtype=d.mistaken(name, dtype)) for name, host in case.hosts.items()
        ]
        bounds = ATTENTION_BOUNDS["tf32" if (dtype, math) == ("float32", "default") else dtype]
        try:
            case.check((2 * bounds[0], 2 * bounds[1]), **limits)
            self.also += [f"multi_head_attention_backward_{of}" for of in ("data", "weights")]
        except AssertionError as error:
            raise WrongError(str(error)) from error


class CTCLoss(_Sequence):
    """Losses of random labels, against PyTorch."""

    def run(self) -> None:
        """Make the call."""
        need_torch()
        from device.test_ctc import torch_loss

        d = self.draw
        self.verb = "call"
        steps, batch, alphabet = d.integer(1, 9), d.size(4), d.integer(2, 7)
        dtype = d.pick(("float32", "float32", "float64"))
        normalization = d.pick(("softmax", "softmax", "none"))
        inputs = [d.integer(1, steps) for _ in range(batch)]
        labels = []
        for length in inputs:
            label: list[int] = []
            for _ in range(d.integer(0, max(1, length // 2))):
                label.append(d.integer(1, alphabet - 1))
            while len(label) + sum(a == b for a, b in itertools.pairwise(label)) > length:
                label.pop()
            labels.append(label or [1])
        x = d.rng.standard_normal((steps, batch, alphabet)).astype(np.float32)
        if normalization == "none":
            x = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
        algorithm = d.pick(("deterministic", "non_deterministic"))
        self.texts = [f"{x.shape} {dtype} {normalization} {algorithm} {labels} {inputs}"]
        d.tell(self.texts)
        costs, gradients = torch_loss(x, labels, inputs, normalization)
        if normalization == "none":
            # PyTorch's are larger by 1.  Where no path passes, cuDNN leaves x.
            gradients = gradients - 1
            gradients = np.where(gradients < -1e-9, gradients, x)
            within = np.arange(steps)[:, None] < inputs
            gradients = np.where(within[..., None], gradients, 0)
        flat = [number for label in labels for number in label]
        options: dict[str, Any] = {
            "ctc": dnn.CTCLossSpec(normalization, max_label_length=steps), "algorithm": algorithm
        }  # fmt: skip
        got, dx = dnn.ctc_loss(
            d.handle,
            d.handle.array(x, dtype=d.mistaken("x", dtype)),
            flat,
            [len(label) for label in labels],
            inputs,
            **options,
        )
        try:
            assert_near(got.numpy(), costs, 10 * CTC_BOUND, 1.0)
            assert_near(dx.numpy(), gradients, 10 * CTC_BOUND, 1.0)
        except AssertionError as error:
            raise WrongError(str(error)) from error


SEQUENCES: dict[str, Callable[[Draw], Any]] = {
    "rnn_forward": RecurrentNetwork,
    "multi_head_attention_forward": MultiHeadAttention,
    "ctc_loss": CTCLoss,
}
