"""Call every operation with one operand at a misaligned address, in processes that may die.

    PYTHONPATH=tests python tests/device/alignment_sweep.py OUT.json [--processes 12]

More options: `--part 1/2`, `--seconds 500`, `--device emulated`, `--only` the trials whose name
begins so, `--raw`.

A kernel that loads several values at once wants more than the alignment of one value, and the CUDA
context of the whole process is gone where it does not get it.  Each call runs first with aligned
operands, then with each operand one, two, four and eight elements behind an aligned address.
Outputs are poisoned.  A process that dies is replaced by a new one, so that each death is that of
one call.

`--raw` leaves out what the package does about alignment, and shows what cuDNN alone does.  The
summary counts outcomes:

- right: the numbers of the aligned call;
- copied: right, with a warning that an operand was copied;
- refused: an error of ours, or cuDNN's, and the process goes on;
- wrong, died: what must not be.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import Empty, Queue
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from samples import DTYPES, FLOATS, SAMPLES, hosts_of, reference_of, shapes_of

import cudnnlite as dnn
from cudnnlite.devices.arrays import part_of
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.plans import operands, operation_plan
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.problems.operation import natural_alignments
from device.operation_samples import request, spec_of
from device.problems import random_values, steps_of
from device.processes import Process

Array = np.ndarray[Any, Any]
OFFSETS = (1, 2, 4, 8)  # in elements
ROOM = 256  # bytes that an operand may be moved by, and more
TOLERANCE = {
    "float64": 1e-10,
    "float32": 2e-3,
    "float16": 2e-2,
    "bfloat16": 1e-1,
}  # other kernels sum in another order
TIMEOUT = 120  # seconds for one call


class Placer:
    """Puts the operands of a call into device memory, one of them at a misaligned address.

    Attributes
    ----------
    operand : str
        The name of the operand that is moved; empty for none.
    offset : int
        By so many elements.
    names : list of str
        The operands that were placed.
    """

    def __init__(self, handle: dnn.Handle, operand: str = "", offset: int = 0) -> None:
        self.handle = handle
        self.operand = operand
        self.offset = offset
        self.names: list[str] = []

    def _memory(self, name: str, spec: dnn.TensorSpec) -> dnn.DeviceArray:
        self.names.append(name)
        buffer = self.handle.empty((spec.nbytes + ROOM,), "uint8")
        elements = self.offset if name == self.operand else 0
        return part_of(buffer, spec, elements * numpy_dtype(spec.dtype).itemsize)

    def put(self, name: str, values: Array, layout: str = "first") -> dnn.DeviceArray:
        """Return an operand that holds these values."""
        spec = spec_of(values.shape, values.dtype, layout)
        array = self._memory(name, spec)
        memory = np.zeros(spec.nbytes, np.uint8)
        np.lib.stride_tricks.as_strided(memory.view(values.dtype), spec.shape, steps_of(spec))[
            ...
        ] = values
        self.handle.device.copy_in(array.ptr, memory, self.handle.stream)
        return array

    def poisoned(
        self, name: str, shape: tuple[int, ...], dtype: Any, layout: str = "first"
    ) -> dnn.DeviceArray:
        """Return an operand whose bytes are all 0xFF: NaN, or -1."""
        array = self._memory(name, spec_of(shape, dtype, layout))
        memory = np.full(array.nbytes, 0xFF, np.uint8)
        self.handle.device.copy_in(array.ptr, memory, self.handle.stream)
        return array


class Trial(NamedTuple):
    """A call that can be made with operands wherever they lie.

    Attributes
    ----------
    name : str
        What is called, how, and on what.
    dtype : str
    run : callable
        (placer) -> what was written, by name.
    """

    name: str
    dtype: str
    run: Callable[[Placer], Mapping[str, dnn.DeviceArray]]


IMAGES = {"odd": (2, 5, 4, 3), "even": (4, 16, 8, 16)}
IMAGE_RANK = 4


def _sample_trial(
    name: str, plain: Any, dtype: str, layout: str, images: tuple[int, ...]
) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    """Return the call of an operation that has a sample."""
    operation, sample = OPERATIONS[name], SAMPLES[name]
    options = dict(sample.options if plain is None else sample.make(plain))
    if "transformer" in options:
        options["transformer"] = dnn.SpatialTransformerSpec((*images[:2], 4, 6))
    if name == "im2col":
        options["w"] = dnn.FilterSpec((6, images[1], 3, 2))
    shapes = dict(shapes_of(name, images, plain))
    if name.startswith("spatial"):
        points = (4, 6)
        transformer_shapes = {
            "theta": (images[0], 2, 3),
            "grid": (images[0], *points, 2),
            "dgrid": (images[0], *points, 2),
        }
        transformer_shapes |= {"dy": (*images[:2], *points), "x": images}
        shapes = {operand: transformer_shapes[operand] for operand in shapes}
    rng = np.random.default_rng(0)
    hosts = hosts_of(name, shapes, options, lambda shape: random_values(rng, shape, dtype))
    wide = [host.astype(np.float64) for host in hosts.values()]
    results = dict(zip(operation.writes, reference_of(name)(*wide, **options), strict=True))

    def stored(operand: str) -> Any:
        is_wide = operand in sample.wide and dtype in FLOATS[2:]
        return numpy_dtype(dnn.dtypes.parse_dtype("float32" if is_wide else dtype))

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        operands = [place.put(n, hosts[n].astype(stored(n)), layout) for n in operation.reads]
        outs = {}
        for written in operation.writes:
            if written in operation.caller_provided:
                outs[written] = place.put(written, hosts[written].astype(stored(written)), layout)
            else:
                outs[written] = place.poisoned(
                    written, results[written].shape, stored(written), layout
                )
        out = tuple(outs.values()) if len(outs) > 1 else next(iter(outs.values()))
        scalars = {"alpha": 1.0, "beta": 1.0 if name == "add_tensor" else 0.0}
        scalars = {
            scalar: value for scalar, value in scalars.items() if scalar in operation.scalars
        }
        ordered = [options[option] for option in operation.options]
        request(place.handle, operation, operands, ordered, **scalars, out=out).run()
        return outs

    return run


def _option_sets(name: str) -> list[Any]:
    """Return the sets of options that are recorded for an operation; None means its sample's."""
    sample = SAMPLES[name]
    if not sample.sets:
        return [None]
    if sample.combinations is None:
        return list(sample.sets)
    plains = {
        json.dumps(key[1]): key[1] for key in sample.combinations(name) if key[2] == IMAGE_RANK
    }
    return list(plains.values())


def _sampled() -> Iterator[Trial]:
    for name in SAMPLES:
        if OPERATIONS[name].algorithms is not None:
            continue
        for plain in _option_sets(name):
            for dtype in DTYPES:
                for layout in ("first", "last"):
                    for images, shape in IMAGES.items():
                        title = f"{name} {plain or ''} {layout} {images}"
                        yield Trial(
                            title, dtype, _lazy(_sample_trial, name, plain, dtype, layout, shape)
                        )


def _lazy(
    make: Callable[..., Any], *arguments: Any
) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    """Put off what a trial needs on the host until it runs."""
    trial_runs: list[Any] = []

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        if not trial_runs:
            trial_runs.append(make(*arguments))
        return trial_runs[0](place)  # type: ignore[no-any-return]

    return run


SHAPES = {  # of a convolution: x, w, options
    "odd": ((2, 3, 9, 7), (5, 3, 3, 3), {"padding": 1}),
    "even": ((4, 16, 8, 16), (32, 16, 3, 3), {"padding": 1}),
    "1x1": ((4, 16, 8, 16), (32, 16, 1, 1), {}),
    "stride2": ((4, 16, 8, 16), (32, 16, 3, 3), {"padding": 1, "stride": 2}),
    "depthwise": ((4, 16, 8, 16), (16, 1, 3, 3), {"padding": 1, "groups": 16}),
}
CONVOLUTIONS = {
    "convolution_forward": (("x", "w"), "y"),
    "convolution_backward_data": (("w", "dy"), "dx"),
    "convolution_backward_filter": (("x", "dy"), "dw"),
    "convolution_bias_forward": (("x", "w", "bias"), "y"),
    "convolution_bias_activation_forward": (("x", "w", "bias"), "y"),
    "convolution_bias_addition_activation_forward": (("x", "w", "bias", "z"), "y"),
}


def _convolution(
    name: str, shapes: str, dtype: str, layout: str, math_type: str, algorithm: Any
) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    x_shape, w_shape, steps = SHAPES[shapes]
    conv = dnn.ConvolutionSpec(**steps, math_type=math_type)
    y_shape = conv.output_shape(x_shape, w_shape)
    of = {
        "x": x_shape,
        "w": w_shape,
        "y": y_shape,
        "dx": x_shape,
        "dw": w_shape,
        "dy": y_shape,
        "z": y_shape,
    }
    of["bias"] = (1, w_shape[0], 1, 1)
    reads, written = CONVOLUTIONS[name]
    rng = np.random.default_rng(0)
    hosts = {operand: random_values(rng, of[operand], dtype) for operand in reads}
    options: list[Any] = [conv]
    if "bias" in reads:
        options.append(
            dnn.ActivationSpec("identity" if name == "convolution_bias_forward" else "relu")
        )
    if "z" in reads:
        options.append(1.0)

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        operands = [place.put(operand, host, layout) for operand, host in hosts.items()]
        out = place.poisoned(written, of[written], dtype, layout)
        operation = OPERATIONS[name]
        request(place.handle, operation, operands, options, out=out, algorithm=algorithm).run()
        return {written: out}

    return run


def _convolved() -> Iterator[Trial]:
    for name in CONVOLUTIONS:
        algorithms = OPERATIONS[name].algorithms
        assert algorithms is not None
        fused = "bias" in name
        for shapes in SHAPES:
            for dtype in FLOATS:
                for layout in ("first", "last"):
                    for math_type in ("default", "fma") if dtype == "float32" else ("default",):
                        choices = [
                            None,
                            *(
                                algorithm
                                for algorithm in algorithms.kind
                                if algorithm.name != "COUNT"
                            ),
                        ]
                        for algorithm in [None, choices[1], choices[2]] if fused else choices:
                            title = (
                                f"{name} {shapes} {layout} {math_type} "
                                f"{algorithm.name if algorithm else ''}"
                            )
                            run = _lazy(
                                _convolution, name, shapes, dtype, layout, math_type, algorithm
                            )
                            yield Trial(title, dtype, run)


def _fused_normalization(
    dtype: str, added: bool, backward: bool
) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    shape, channel_shape = (4, 16, 8, 8), (1, 16, 1, 1)
    rng = np.random.default_rng(0)
    hosts = {name: random_values(rng, shape, dtype) for name in ("x", "z", "dy")}
    hosts |= {name: random_values(rng, channel_shape, "float32") for name in ("scale", "bias")}

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        handle = place.handle
        x, scale, bias = (place.put(name, hosts[name], "last") for name in ("x", "scale", "bias"))
        z = place.put("z", hosts["z"], "last") if added else None
        y = place.poisoned("y", shape, dtype, "last")
        mean, var = (
            place.poisoned(name, channel_shape, "float32", "last")
            for name in ("saved_mean", "saved_var")
        )
        running_mean = place.put("running_mean", np.zeros(channel_shape, np.float32), "last")
        running_var = place.put("running_var", np.ones(channel_shape, np.float32), "last")
        operands = [x, scale, bias] if z is None else [x, scale, bias, z]
        operation = OPERATIONS[
            "batch_normalization_training_add_relu"
            if added
            else "batch_normalization_training_relu"
        ]
        options = [
            dnn.enums.BatchNormMode.SPATIAL_PERSISTENT,
            1.0,
            1e-5,
            dnn.ActivationSpec("relu"),
        ]
        out = (y, mean, var, running_mean, running_var)
        with request(handle, operation, operands, options, out=out).plan() as plan:
            reserve = place.poisoned("reserve", (plan.reserve,), "uint8")
            plan(*operands, out=out, reserve=reserve)
        if not backward:
            return {
                "y": y,
                "mean": mean,
                "var": var,
                "running_mean": running_mean,
                "running_var": running_var,
            }
        dy = place.put("dy", hosts["dy"], "last")
        names = ("dx", "dscale", "dbias", "dz")[: 3 + added]
        outs = [
            place.poisoned(
                name,
                channel_shape if name[1:] in ("scale", "bias") else shape,
                "float32" if name[1:] in ("scale", "bias") else dtype,
                "last",
            )
            for name in names
        ]
        dnn.batch_normalization_backward(
            handle,
            x,
            dy,
            scale,
            mean,
            var,
            activation="relu",
            y=y,
            bias=bias,
            reserve=reserve,
            added=added,
            out=tuple(outs),
        )
        return dict(zip(names, outs, strict=True))

    return run


SCRATCH = 8 << 20  # bytes of workspace, enough for every trial


def _convolution_workspace(
    dtype: str, algorithm: Any
) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    x_shape, w_shape, steps = SHAPES["even"]
    conv = dnn.ConvolutionSpec(**steps, math_type="fma" if dtype == "float32" else "default")
    rng = np.random.default_rng(0)
    x_host, w_host = random_values(rng, x_shape, dtype), random_values(rng, w_shape, dtype)

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        x, w = place.put("x", x_host), place.put("w", w_host)
        y = place.poisoned("y", conv.output_shape(x_shape, w_shape), dtype)
        workspace = place.poisoned("workspace", (SCRATCH,), "uint8")
        dnn.convolution_forward(
            place.handle, x, w, conv, algorithm=algorithm, out=y, workspace=workspace
        )
        return {"y": y}

    return run


def _layer_workspace(name: str, dtype: str) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    sampled = _sample_trial(name, None, dtype, "first", IMAGES["even"])
    operation = OPERATIONS[name]

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        workspace = place.poisoned("workspace", (SCRATCH,), "uint8")
        placed: dict[str, dnn.DeviceArray] = {}
        put, poisoned = place.put, place.poisoned
        place.put = lambda n, *a: placed.setdefault(n, put(n, *a))  # type: ignore[method-assign]
        place.poisoned = (  # type: ignore[method-assign]
            lambda n, *a: placed.setdefault(n, poisoned(n, *a))
        )
        sampled(place)
        operands = [placed[n] for n in operation.reads]
        outs = [placed[n] for n in operation.writes]
        out = tuple(outs) if len(outs) > 1 else outs[0]
        options = [SAMPLES[name].options[o] for o in operation.options]
        with request(place.handle, operation, operands, options, out=out).plan() as plan:
            plan(*operands, out=out, workspace=workspace)
        return dict(zip(operation.writes, outs, strict=True))

    return run


def _recurrent_workspace(
    dtype: str, algorithm: str
) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    spec = dnn.RNNSpec("lstm", 24, 32, num_layers=2, dtype=dtype)
    host = random_values(np.random.default_rng(0), (5, 4, 24), dtype)

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        weights = dnn.RNNWeights(place.handle, spec)
        weights.array.copy_from(np.random.default_rng(1).standard_normal(weights.array.shape) / 4)
        workspace = place.poisoned("workspace", (SCRATCH,), "uint8")
        x = place.put("x", host)
        y, *_ = dnn.rnn_forward(
            place.handle, spec, weights, x, algorithm=algorithm, workspace=workspace
        )
        return {"y": y}

    return run


def _with_workspace() -> Iterator[Trial]:
    for dtype in FLOATS:
        for algorithm in (
            None,
            "implicit_gemm",
            "implicit_precomp_gemm",
            "gemm",
            "fft_tiling",
            "winograd_nonfused",
        ):
            title = f"workspace convolution_forward {algorithm}"
            yield Trial(title, dtype, _lazy(_convolution_workspace, dtype, algorithm))
        for name in (
            "reduce_tensor",
            "batch_normalization_training",
            "batch_normalization_backward",
        ):
            yield Trial(f"workspace {name}", dtype, _lazy(_layer_workspace, name, dtype))
        for algorithm in ("standard", "persist_static", "persist_static_small_h"):
            yield Trial(
                f"workspace rnn_forward {algorithm}",
                dtype,
                _lazy(_recurrent_workspace, dtype, algorithm),
            )


def _dropout(dtype: str, backward: bool) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    host = random_values(np.random.default_rng(0), (4, 16, 8, 8), dtype)

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        state = dnn.DropoutState(place.handle, 7)
        x, y = place.put("x", host), place.poisoned("y", host.shape, dtype)
        _, probe = dnn.dropout_forward(
            place.handle, x[:1], 0.5, dropout_state=dnn.DropoutState(place.handle, 7)
        )
        reserve = place.poisoned("reserve", (probe.nbytes * len(host),), "uint8")
        dnn.dropout_forward(place.handle, x, 0.5, dropout_state=state, out=y, reserve=reserve)
        if not backward:
            return {"y": y}
        dy, dx = place.put("dy", host), place.poisoned("dx", host.shape, dtype)
        dnn.dropout_backward(place.handle, dy, 0.5, reserve, dropout_state=state, out=dx)
        return {"dx": dx}

    return run


def _recurrent(
    dtype: str, cell: str, algorithm: str, lengths: Any, layout: str
) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    rng = np.random.default_rng(0)
    spec = dnn.RNNSpec(cell, 24, 32, num_layers=2, bidirectional=True, dtype=dtype)
    steps, batch, hidden = 5, 4, 4
    shape = (batch, steps, 24) if layout == "batch_major_unpacked" else (steps, batch, 24)
    if layout == "seq_major_packed":
        shape = (sum(lengths), 24)
    hosts = {
        "x": random_values(rng, shape, dtype),
        "dy": random_values(rng, (*shape[:-1], 64), dtype),
    }
    states = ("hx", "cx", "dhy", "dcy") if cell == "lstm" else ("hx", "dhy")
    hosts |= {name: random_values(rng, (hidden, batch, 32), dtype) for name in states}

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        handle = place.handle
        weights = dnn.RNNWeights(handle, spec)
        weights.array.copy_from(np.random.default_rng(1).standard_normal(weights.array.shape) / 4)
        x, hx = place.put("x", hosts["x"]), place.put("hx", hosts["hx"])
        cx = place.put("cx", hosts["cx"]) if cell == "lstm" else None
        y = place.poisoned("y", (*shape[:-1], 64), dtype)
        hy = place.poisoned("hy", (hidden, batch, 32), dtype)
        cy = place.poisoned("cy", (hidden, batch, 32), dtype) if cell == "lstm" else None
        out = dnn.rnn_forward(
            handle,
            spec,
            weights,
            x,
            hx,
            cx,
            lengths=lengths,
            training=True,
            algorithm=algorithm,
            layout=layout,
            out=(y, hy, cy) if cell == "lstm" else (y, hy),
        )
        dy, dhy = place.put("dy", hosts["dy"]), place.put("dhy", hosts["dhy"])
        dcy = place.put("dcy", hosts["dcy"]) if cell == "lstm" else None
        dx = place.poisoned("dx", shape, dtype)
        dhx = place.poisoned("dhx", (hidden, batch, 32), dtype)
        dcx = place.poisoned("dcx", (hidden, batch, 32), dtype) if cell == "lstm" else None
        dnn.rnn_backward_data(
            handle, out.reserve, dy, dhy, dcy, out=(dx, dhx, dcx) if cell == "lstm" else (dx, dhx)
        )
        dw = dnn.rnn_backward_weights(handle, out.reserve)
        outs = {"y": y, "hy": hy, "dx": dx, "dhx": dhx, "dw": dw.array}
        return outs | ({"cy": cy, "dcx": dcx} if cell == "lstm" else {})  # type: ignore[dict-item]

    return run


def _attention(
    dtype: str, q_lengths: Any, size: int
) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    rng = np.random.default_rng(0)
    spec = dnn.AttentionSpec(
        4,
        size,
        q_proj_size=size // 4,
        k_proj_size=size // 4,
        v_proj_size=size // 4,
        o_proj_size=size,
        dtype=dtype,
    )
    hosts = {
        name: random_values(rng, (2, 6, size), dtype) for name in ("q", "k", "v", "dy", "residual")
    }
    if q_lengths:
        for batch, length in enumerate(q_lengths):
            hosts["dy"][batch, length:] = 0

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        handle = place.handle
        weights = dnn.AttentionWeights(handle, spec)
        weights.array.copy_from(np.random.default_rng(1).standard_normal(weights.array.shape) / 4)
        q, k, v = (place.put(name, hosts[name]) for name in "qkv")
        residual, out = (
            place.put("residual", hosts["residual"]),
            place.poisoned("out", (2, 6, size), dtype),
        )
        result = dnn.multi_head_attention_forward(
            handle,
            spec,
            weights,
            q,
            k,
            v,
            residual=residual,
            out=out,
            training=True,
            q_lengths=q_lengths,
        )
        dy = place.put("dy", hosts["dy"])
        gradients = tuple(place.poisoned(name, (2, 6, size), dtype) for name in ("dq", "dk", "dv"))
        dnn.multi_head_attention_backward_data(handle, result.reserve, dy, out=gradients)
        dw = dnn.multi_head_attention_backward_weights(handle, result.reserve)
        return {"out": out, "dw": dw.array, **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}

    return run


def _ctc(
    dtype: str, algorithm: str, where: str
) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    x_host = random_values(np.random.default_rng(0), (8, 4, 6), dtype)
    integers = {
        "labels": [1, 2, 3, 1, 2, 5],
        "label_lengths": [2, 1, 2, 1],
        "input_lengths": [8, 7, 8, 3],
    }

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        x, costs = place.put("x", x_host), place.poisoned("costs", (4,), dtype)
        gradients = place.poisoned("gradients", x_host.shape, dtype)
        label_operands: list[Any] = list(integers.values())
        spec = dnn.CTCLossSpec()
        if where == "device":
            label_operands = [
                place.put(name, np.array(values, np.int32)) for name, values in integers.items()
            ]
            spec = dnn.CTCLossSpec(max_label_length=2)
        dnn.ctc_loss(
            place.handle, x, *label_operands, spec, algorithm=algorithm, out=(costs, gradients)
        )
        return {"costs": costs, "gradients": gradients}

    return run


def _filter(dtype: str) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    host = random_values(np.random.default_rng(0), (8, 16, 3, 3), dtype)

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        out = place.poisoned("out", host.shape, dtype, "last")
        dnn.transform_filter(place.handle, place.put("w", host), out=out)
        return {"out": out}

    return run


def _padded(dtype: str) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    host = random_values(np.random.default_rng(0), (2, 8, 6, 8), dtype)

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        out = place.poisoned("out", (2, 8, 6, 16), dtype)
        dnn.transform_tensor(place.handle, place.put("x", host), padding=(0, 0, 0, (4, 4)), out=out)
        return {"out": out}

    return run


def _reduced_with_indices(dtype: str) -> Callable[[Placer], Mapping[str, dnn.DeviceArray]]:
    host = random_values(np.random.default_rng(0), (4, 16, 8, 8), dtype)

    def run(place: Placer) -> Mapping[str, dnn.DeviceArray]:
        out, indices = (
            place.poisoned("out", (4, 16, 1, 1), dtype),
            place.poisoned("indices", (4, 16, 1, 1), "int32"),
        )
        dnn.reduce_tensor(place.handle, place.put("a", host), "max", out=out, indices=indices)
        return {"out": out, "indices": indices}

    return run


def _by_hand() -> Iterator[Trial]:
    for dtype in FLOATS:
        for added in (False, True):
            for backward in (False, True):
                title = f"batch_normalization relu added={added} backward={backward}"
                yield Trial(title, dtype, _lazy(_fused_normalization, dtype, added, backward))
        for backward in (False, True):
            yield Trial(f"dropout backward={backward}", dtype, _lazy(_dropout, dtype, backward))
        yield Trial("transform_filter", dtype, _lazy(_filter, dtype))
        yield Trial("transform_tensor padding", dtype, _lazy(_padded, dtype))
        yield Trial("reduce_tensor indices", dtype, _lazy(_reduced_with_indices, dtype))
        for lengths in (None, (6, 3)):
            for size in (8, 64):
                title = f"multi_head_attention q_lengths={lengths} size={size}"
                yield Trial(title, dtype, _lazy(_attention, dtype, lengths, size))
        for cell in ("lstm", "gru", "tanh"):
            for algorithm in (
                "standard",
                "persist_static",
                "persist_dynamic",
                "persist_static_small_h",
            ):
                for lengths, layout in (
                    (None, "seq_major_unpacked"),
                    ((5, 4, 2, 1), "seq_major_unpacked"),
                    ((5, 4, 2, 1), "seq_major_packed"),
                    ((5, 4, 2, 1), "batch_major_unpacked"),
                ):
                    title = f"rnn {cell} {algorithm} {layout} lengths={lengths}"
                    yield Trial(
                        title, dtype, _lazy(_recurrent, dtype, cell, algorithm, lengths, layout)
                    )
    for dtype in ("float32", "float64"):
        for algorithm in ("deterministic", "non_deterministic"):
            for where in ("host", "device"):
                yield Trial(
                    f"ctc_loss {algorithm} {where}", dtype, _lazy(_ctc, dtype, algorithm, where)
                )


def trials(only: str = "") -> list[Trial]:
    """Return every trial whose name begins so."""
    all_trials = (*_sampled(), *_convolved(), *_by_hand(), *_with_workspace())
    return [trial for trial in all_trials if trial.name.startswith(only)]


def worker(device: str, only: str, raw: bool) -> None:
    """Answer requests from stdin: [trial, operand, offset] on each line.

    An empty operand asks for the names of the operands.
    """
    if raw:
        operation_plan.RESERVE_ALIGNMENT = 1
        operands.WORKSPACE_ALIGNMENT = 1
        for operation in OPERATIONS.values():
            object.__setattr__(operation, "alignments", natural_alignments)
    all_trials = trials(only)
    latest, expected = -1, {}
    with dnn.Handle(device) as handle:
        for line in sys.stdin:
            number, operand, offset = json.loads(line)
            trial = all_trials[number]
            if operand and latest != number:
                latest, expected = number, results_of(trial, Placer(handle))[0]
            answer: Any
            try:
                place = Placer(handle, operand, offset)
                results, copied = results_of(trial, place)
                if not operand:
                    latest, expected, answer = number, results, ["names", place.names]
                else:
                    answer = verdict(trial, expected, results, copied)
            except (dnn.CudnnError, dnn.ArgumentError) as error:
                if "ILLEGAL" in str(error) or "MISALIGNED" in str(error).upper().replace(
                    "BAD_PARAM_MISALIGNED", ""
                ):
                    raise
                handle.synchronize()
                answer = ["refused", f"{type(error).__name__}: {error}"[:200]]
            print(json.dumps(answer), flush=True)


def results_of(trial: Trial, place: Placer) -> tuple[dict[str, Array], bool]:
    """Return what a trial writes, and whether an operand was copied."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        arrays = trial.run(place)
        place.handle.synchronize()
    results = {name: array.numpy().astype(np.float64) for name, array in arrays.items()}
    return results, any("aligned" in str(record.message) for record in records)


def verdict(
    trial: Trial, expected: Mapping[str, Array], results: Mapping[str, Array], copied: bool
) -> Any:
    """Compare a call with the call on aligned operands; return the outcome and a remark."""
    for name, values in results.items():
        scale = np.nanmax(np.abs(expected[name]), initial=0) or 1
        nan = np.isnan(values) != np.isnan(expected[name])
        error = np.nanmax(np.abs(values - expected[name]), initial=0) / scale
        if nan.any() or error > TOLERANCE.get(trial.dtype, 0):
            return ["wrong", f"{name}: {int(nan.sum())} NaN, error {error:.2g}"]
    unwritten = {
        name: int(np.isnan(values).sum())
        for name, values in expected.items()
        if np.isnan(values).any()
    }
    return ["copied" if copied else "right", f"unwritten: {unwritten}" if unwritten else ""]


def sweep(
    path: str, device: str, processes: int, only: str, raw: bool, part: str, seconds: float
) -> int:
    """Ask for every trial, operand and offset; write the answers, and print a summary."""
    end = time.monotonic() + seconds
    index, parts = (int(number) for number in part.split("/"))
    command = [
        sys.executable,
        __file__,
        "--worker",
        "--device",
        device,
        "--only",
        only,
        *(["--raw"] if raw else []),
    ]
    all_trials = trials(only)
    waiting: Queue[int] = Queue()
    for number in range(index - 1, len(all_trials), parts):
        waiting.put(number)
    rows: list[Any] = []
    left: list[int] = []

    def serve() -> None:
        process = Process(command, TIMEOUT)
        while True:
            try:
                number = waiting.get_nowait()
            except Empty:
                break
            if time.monotonic() > end:
                left.append(number)
                continue
            trial = all_trials[number]
            kind, names = process.ask([number, "", 0])
            if kind != "names":
                rows.append([trial.name, trial.dtype, "", 0, kind, names])
                continue
            for operand in dict.fromkeys(names):
                for offset in OFFSETS:
                    rows.append(
                        [
                            trial.name,
                            trial.dtype,
                            operand,
                            offset,
                            *process.ask([number, operand, offset]),
                        ]
                    )
        process.close()

    threads = [threading.Thread(target=serve) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows.sort(key=lambda row: row[:4])
    Path(path).write_text("\n".join(json.dumps(row) for row in rows))
    print(Counter(row[4] for row in rows))
    if left:
        print(f"not reached within {seconds:.0f} seconds: {len(left)} of {len(all_trials)} trials")
    bad = [row for row in rows if row[4] in ("died", "wrong") or (row[4] == "refused" and row[2])]
    summary = Counter((row[0].split()[0], row[1], row[2], row[3], row[4]) for row in bad)
    for key, count in sorted(summary.items()):
        print(count, *key)
    return int(bool(left) or any(row[4] in ("died", "wrong") for row in rows))


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", default="alignment.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--only", default="")
    parser.add_argument("--part", default="1/1", help="of all trials, as in 2/3")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="after which no other trial begins"
    )
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        worker(options.device, options.only, options.raw)
        return 0
    return sweep(
        options.path,
        options.device,
        options.processes,
        options.only,
        options.raw,
        options.part,
        options.seconds,
    )


if __name__ == "__main__":
    raise SystemExit(main())
