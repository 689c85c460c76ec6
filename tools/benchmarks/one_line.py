"""Measure the host time of one-line calls, beside PyTorch's calls that do the same.

    python -m tools.benchmarks.one_line [--markdown] [--calls CALLS]

The first table has fourteen operations, most of them on 1x16x14x14, each with a new result.  Each
is called with our own arrays, with PyTorch's tensors, and as PyTorch's function.  Two more columns
have the costs that no package can avoid if it calls cuDNN by ctypes: the C function alone, with
prepared arguments, and new memory for the results.  The column "floor" is their sum, divided by
PyTorch's time.

The second table has plans with operands of PyTorch, CuPy and JAX, and new arrays.  The third has
the cost of one operand of each library beyond ours, and beyond the library's fastest protocol.
Beside JAX's operands the output is PyTorch's; its cost is subtracted.

All calls run in one process, in rounds of shuffled order; a figure is the median of the rounds.
With ``--calls`` this many calls take new tensors of 100 shapes; the growth of memory is printed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

import cudnnlite as dnn
from cudnnlite._raw.functions import FUNCTIONS

CALLS, ROUNDS = 200, 21
SHAPE, FILTER = (1, 16, 14, 14), (16, 16, 3, 3)
# The shape of a layer normalisation's input: 64 rows of 256 values.
ROWS = (64, 256, 1, 1)
Call = Callable[[], object]


def operations(
    handle: dnn.Handle, stack: ExitStack
) -> dict[str, tuple[Callable[..., Any], list[torch.Tensor], Call]]:
    """Return our function of arrays, PyTorch's tensors for them, and PyTorch's call, by name."""
    functional, aten = torch.nn.functional, torch.ops.aten
    x, dy, w = (torch.randn(shape, device="cuda") for shape in (SHAPE, SHAPE, FILTER))
    channels = (1, SHAPE[1], 1, 1)
    scale, bias, mean = (torch.randn(channels, device="cuda") for _ in range(3))
    variance = torch.rand(channels, device="cuda") + 1
    rows, drows = (torch.randn(ROWS, device="cuda", dtype=torch.float16) for _ in range(2))
    row_scale, row_bias = (torch.randn((1, *ROWS[1:]), device="cuda") for _ in range(2))
    half_scale, half_bias = row_scale[0].half(), row_bias[0].half()
    row_mean, row_inverse = (torch.randn((ROWS[0], 1, 1, 1), device="cuda") for _ in range(2))
    steps = torch.randn((1, 8, 64), device="cuda")
    conv, relu = dnn.ConvolutionSpec(padding=1), dnn.ActivationSpec("relu")
    pooling = dnn.PoolingSpec(2)
    total = dnn.specs.ReduceTensorSpec("add")
    lstm = dnn.RNNSpec("lstm", 64, 128)
    torch_lstm = torch.nn.LSTM(64, 128).cuda().eval()
    weights = dnn.RNNWeights.from_torch(handle, lstm, torch_lstm.state_dict())
    states = dnn.DropoutState(handle, seed=0)
    stack.callback(states.close)
    pads = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def convolution_gradients(mask: list[bool]) -> object:
        return aten.convolution_backward(dy, x, w, None, *pads, mask)

    flat_mean, flat_variance, flat_scale, flat_bias = (
        tensor.view(-1) for tensor in (mean, variance, scale, bias)
    )

    return {
        "convolution": (
            lambda x, w: dnn.convolution_forward(handle, x, w, conv),
            [x, w],
            lambda: functional.conv2d(x, w, padding=1),
        ),
        "gradient of data": (
            lambda w, dy: dnn.convolution_backward_data(handle, w, dy, conv),
            [w, dy],
            lambda: convolution_gradients([True, False, False]),
        ),
        "gradient of filter": (
            lambda x, dy: dnn.convolution_backward_filter(handle, x, dy, conv),
            [x, dy],
            lambda: convolution_gradients([False, True, False]),
        ),
        "activation": (
            lambda x: dnn.activation_forward(handle, x, relu),
            [x],
            lambda: torch.relu(x),
        ),
        "pooling": (
            lambda x: dnn.pooling_forward(handle, x, pooling),
            [x],
            lambda: functional.max_pool2d(x, 2),
        ),
        "softmax": (
            lambda x: dnn.softmax_forward(handle, x),
            [x],
            lambda: torch.softmax(x, 1),
        ),
        "addition": (
            lambda x, dy: dnn.op_tensor(handle, x, dy, "add"),
            [x, dy],
            lambda: x + dy,
        ),
        "reduction": (
            lambda x: dnn.reduce_tensor(handle, x, total, axes=(2, 3)),
            [x],
            lambda: x.sum((2, 3), keepdim=True),
        ),
        "batch normalisation": (
            lambda x, scale, bias, mean, variance: dnn.batch_normalization_inference(
                handle, x, scale, bias, mean, variance
            ),
            [x, scale, bias, mean, variance],
            lambda: functional.batch_norm(
                x, flat_mean, flat_variance, flat_scale, flat_bias, False
            ),
        ),
        "its gradients": (
            lambda x, dy, scale, mean, inverse: dnn.batch_normalization_backward(
                handle, x, dy, scale, mean, inverse
            ),
            [x, dy, scale, mean, variance],
            lambda: aten.native_batch_norm_backward(
                dy, x, flat_scale, None, None, flat_mean, flat_variance, True, 1e-5, [True] * 3
            ),
        ),
        "layer normalisation": (
            lambda x, scale, bias: dnn.layer_normalization_forward(handle, x, scale, bias),
            [rows, row_scale, row_bias],
            lambda: functional.layer_norm(rows, ROWS[1:], half_scale, half_bias),
        ),
        "gradients of it": (
            lambda dy, x, scale, mean, inverse: dnn.layer_normalization_backward(
                handle, dy, x, scale, mean, inverse
            ),
            [drows, rows, row_scale, row_mean, row_inverse],
            lambda: aten.native_layer_norm_backward(
                drows,
                rows,
                ROWS[1:],
                row_mean,
                row_inverse,
                half_scale,
                half_bias,
                [True] * 3,
            ),
        ),
        "dropout": (
            lambda x: dnn.dropout_forward(handle, x, 0.5, dropout_state=states),
            [x],
            lambda: functional.dropout(x, 0.5),
        ),
        "LSTM of one step": (
            lambda x: dnn.rnn_forward(handle, lstm, weights, x),
            [steps],
            lambda: torch_lstm(steps),
        ),
    }


class BareCall:
    """The C function that a one-line call ends with, by ctypes alone, and memory for its results.

    Attributes
    ----------
    enqueue : callable
        The C function with prepared arguments.  It has none of our checks.
    allocate : callable
        Makes new arrays of the specs of the results.
    """

    def __init__(self, handle: dnn.Handle, one_line: Call) -> None:
        with dnn.trace() as trace:
            results = one_line()
        # C has the addresses of both.
        self._operands = one_line
        self._results = results if isinstance(results, tuple) else (results,)
        traced = trace.calls[-1]
        kinds = FUNCTIONS[traced.function].argtypes
        arguments = [
            argument_of_c(kind, value)
            for kind, value in zip(kinds, traced.arguments.values(), strict=True)
        ]
        function = getattr(ctypes.CDLL(handle.api.library.path), traced.function)
        self.enqueue = partial(function, *arguments)
        status = self.enqueue()
        if status:
            raise RuntimeError(f"{traced} returned {status} when it was called by ctypes")
        self._handle = handle
        self._specs = [result.spec for result in self._results]

    def allocate(self) -> list[dnn.DeviceArray]:
        """Return new arrays like the results."""
        return [self._handle.empty(spec) for spec in self._specs]


def argument_of_c(kind: Any, value: Any) -> Any:
    """Return an argument as an object of ctypes, which calls need not convert."""
    if issubclass(kind, ctypes._SimpleCData):
        return kind(value)
    return ctypes.c_void_p(value)  # the address of a structure or an array


def bare_calls(stack: ExitStack) -> dict[str, BareCall]:
    """Return the bare call of each operation, by its name.

    They have a handle of their own: other calls of the handle's plans would write other addresses
    into the variant packs.
    """
    handle = stack.enter_context(dnn.Handle("cuda", stream=torch.cuda.current_stream()))
    one_lines = {}
    for name, (function, tensors, _) in operations(handle, stack).items():
        one_lines[name] = partial(function, *map(handle.array, tensors))
    for one_line in one_lines.values():
        one_line()  # The workspace grows to its final size, and is not moved afterwards.
    return {name: BareCall(handle, one_line) for name, one_line in one_lines.items()}


def medians(calls: dict[Any, Call]) -> dict[Any, float]:
    """Return the host time of each call in microseconds, on an idle GPU."""
    samples: dict[Any, list[float]] = {name: [] for name in calls}
    order = list(calls)
    shuffle = random.Random(0).shuffle
    for call in calls.values():
        for _ in range(10):
            call()
    for _ in range(ROUNDS):
        shuffle(order)
        for name in order:
            torch.cuda.synchronize()
            call = calls[name]
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            samples[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: statistics.median(values) for name, values in samples.items()}


def print_row(name: str, *figures: object, markdown: bool) -> None:
    """Print one line of a table."""
    cells = [f"{name:34}"]
    for figure in figures:
        cells.append(f"{figure:8.2f}" if isinstance(figure, float) else f"{figure:>8}")
    print(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells))


def print_operations(handle: dnn.Handle, *, markdown: bool) -> None:
    """Measure the one-line calls, and print them with the ratios to PyTorch."""
    with ExitStack() as stack, torch.no_grad():
        calls: dict[tuple[str, str], Call] = {}
        table = operations(handle, stack)
        for name, (function, tensors, torch_call) in table.items():
            arrays = [handle.array(tensor) for tensor in tensors]
            calls[name, "ours"] = lambda function=function, arrays=arrays: function(*arrays)
            calls[name, "tensors"] = lambda function=function, tensors=tensors: function(*tensors)
            calls[name, "torch"] = torch_call
        for name, bare in bare_calls(stack).items():
            calls[name, "C alone"] = bare.enqueue
            calls[name, "results"] = bare.allocate
        times = medians(calls)
    for name in table:
        times[name, "floor"] = times[name, "C alone"] + times[name, "results"]
    columns = ("ours", "of tensors", "C alone", "results", "PyTorch")
    ratio_columns = ("ratio", "of tensors", "floor")
    print_row("one line, us", *columns, *ratio_columns, markdown=markdown)
    ratios: dict[str, list[float]] = {"ours": [], "tensors": [], "floor": []}
    for name in table:
        torch_us = times[name, "torch"]
        for kind, values in ratios.items():
            values.append(times[name, kind] / torch_us)
        figures = [times[name, kind] for kind in ("ours", "tensors", "C alone", "results", "torch")]
        row_ratios = [values[-1] for values in ratios.values()]
        print_row(name, *figures, *row_ratios, markdown=markdown)
    means = [statistics.geometric_mean(values) for values in ratios.values()]
    worst = [max(values) for values in ratios.values()]
    no_figures = [""] * len(columns)
    print_row("geometric mean", *no_figures, *means, markdown=markdown)
    print_row("worst", *no_figures, *worst, markdown=markdown)


def print_arrays(handle: dnn.Handle, *, markdown: bool) -> None:
    """Measure plans of PyTorch's tensors, and new arrays."""
    x, w = torch.randn(SHAPE, device="cuda"), torch.randn(FILTER, device="cuda")
    y = torch.empty_like(x)
    arrays = [handle.array(tensor) for tensor in (x, w, y)]
    own_x, own_w, own_y = arrays
    conv = dnn.ConvolutionSpec(padding=1)
    plan = dnn.convolution_forward.plan(handle, own_x, own_w, conv)
    calls: dict[str, Call] = {
        "plan of ours": lambda: plan(own_x, own_w, out=own_y),
        "plan of PyTorch's arrays": lambda: plan(x, w, out=y),
        "PyTorch's conv2d": lambda: torch.nn.functional.conv2d(x, w, padding=1),
        "empty, a spec": lambda: handle.empty(own_x.spec),
        "empty, a shape": lambda: handle.empty(SHAPE),
        "PyTorch's empty": lambda: torch.empty(SHAPE, device="cuda"),
        "zeros": lambda: handle.zeros(SHAPE),
        "PyTorch's zeros": lambda: torch.zeros(SHAPE, device="cuda"),
        "full": lambda: handle.full(SHAPE, 2.0),
        "PyTorch's full": lambda: torch.full(SHAPE, 2.0, device="cuda"),
        "fill": lambda: own_x.fill(2.0),
        "PyTorch's fill_": lambda: x.fill_(2.0),
        "a slice": lambda: own_x[:, 2:8],
        "PyTorch's slice": lambda: x[:, 2:8],
    }
    calls |= calls_of_other_libraries(plan, (x, w, y))
    with plan, torch.no_grad():
        times = medians(calls)
    for name, value in times.items():
        print_row(name, value, markdown=markdown)
    print_operands(times, markdown=markdown)


def print_operands(times: dict[str, float], *, markdown: bool) -> None:
    """Print the cost of an operand of each library beyond that of our own."""
    print_row("an operand, us", "more", "protocol", "beyond", markdown=markdown)
    extra_us = {}
    for name in ("PyTorch", "CuPy", "JAX"):
        if f"plan of {name}'s arrays" not in times:
            continue
        all_operands_us = times[f"plan of {name}'s arrays"] - times["plan of ours"]
        if name == "JAX":
            extra_us[name] = (all_operands_us - extra_us["PyTorch"]) / 2
        else:
            extra_us[name] = all_operands_us / 3
        protocol_us = min(
            value for row, value in times.items() if row.startswith(f"{name}'s protocol")
        )
        print_row(
            name, extra_us[name], protocol_us, extra_us[name] - protocol_us, markdown=markdown
        )


def calls_of_other_libraries(plan: Any, tensors: tuple[torch.Tensor, ...]) -> dict[str, Call]:
    """Return calls of a plan with CuPy's and JAX's arrays, and of each library's protocols."""
    address = torch.cuda.current_stream().cuda_stream or 1  # DLPack's number of the default stream
    tensor = tensors[0]
    calls: dict[str, Call] = {
        "PyTorch's protocol, a capsule": lambda: tensor.__dlpack__(stream=address),
        "PyTorch's protocol, its attributes": lambda: (
            tensor.data_ptr(),
            tensor.get_device(),
            tensor.dtype,
            tensor.stride(),
            tensor.shape,
        ),
    }
    try:
        import cupy
    except ImportError:
        print("CuPy is not installed; its rows are missing")
    else:
        x, w, y = map(cupy.from_dlpack, tensors)
        calls["plan of CuPy's arrays"] = lambda: plan(x, w, out=y)
        calls["CuPy's protocol, an interface"] = lambda: x.__cuda_array_interface__
        calls["CuPy's protocol, a capsule"] = lambda: x.__dlpack__(stream=address)
    try:
        from jax import dlpack
    except ImportError:
        print("JAX is not installed; its rows are missing")
    else:
        jax_x, jax_w, _ = map(dlpack.from_dlpack, tensors)
        out = tensors[2]
        calls["plan of JAX's arrays"] = lambda: plan(jax_x, jax_w, out=out)
        calls["JAX's protocol, an interface"] = lambda: jax_x.__cuda_array_interface__
        calls["JAX's protocol, a capsule"] = lambda: jax_x.__dlpack__(stream=address)
        calls["JAX's capsule without a stream"] = jax_x.__dlpack__
    return calls


def call_often(handle: dnn.Handle, count: int) -> None:
    """Call with new tensors of 100 shapes, and print the growth of memory."""
    shapes = [(1, 2, 3 + number % 10, 4 + number // 10) for number in range(100)]

    def call_rounds(rounds: int) -> None:
        for _ in range(rounds):
            for shape in shapes:
                dnn.activation_forward(handle, torch.empty(shape, device="cuda"), "relu")
        torch.cuda.synchronize()
        gc.collect()

    def memory() -> tuple[int, int, int, int]:
        free, total = torch.cuda.mem_get_info()
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return len(gc.get_objects()), torch.cuda.memory_allocated(), total - free, resident

    call_rounds(20)
    before = memory()
    start = time.perf_counter()
    call_rounds(count // len(shapes))
    seconds = time.perf_counter() - start
    names = ("Python objects", "bytes of PyTorch", "bytes of the device", "KiB resident at most")
    grown = [
        f"{after - start:+d} {name}"
        for name, start, after in zip(names, before, memory(), strict=True)
    ]
    print(f"{count} calls in {seconds:.0f} s: {', '.join(grown)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true", help="print tables for the docs")
    parser.add_argument("--calls", type=int, default=0, help="how many calls of new tensors")
    options = parser.parse_args()
    with dnn.Handle("cuda", stream=torch.cuda.current_stream()) as handle:
        version = handle.api.library.version_text
        print(f"{handle.device.name}, cuDNN {version}, PyTorch {torch.__version__}")
        print_operations(handle, markdown=options.markdown)
        print_arrays(handle, markdown=options.markdown)
        if options.calls:
            call_often(handle, options.calls)


if __name__ == "__main__":
    main()
