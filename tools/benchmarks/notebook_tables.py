"""The measured tables of the notebooks of examples/: times on a GPU, with their date.

    python tools/benchmarks/notebook_tables.py [--out FILE.json] [--tables choosing,lstm]
                                               [--device emulated --quick]

It writes examples/h200.json, and takes about a minute.  Only an H200 may write that file; another
device needs --out.  The file is written after each table.

Every time is the tuner's: the median of CUDA graphs that are replayed in shuffled rounds, with the
distance between the quartiles as the spread.  The spread is null if a candidate ran once or twice,
because it takes more than three times the best.  PyTorch's times are of graphs too.  If PyTorch or
a GPU is missing, its rows are left out, with a message.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import math
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import convolution
import numpy as np
import rnn

import cudnnlite as dnn
from cudnnlite.operations.rnn.choice import heuristic
from cudnnlite.workbench.tuning.convolution import operands_of

H200 = Path(__file__).parents[2] / "examples" / "h200.json"
# name, n, c, h, w, k, r, s, padding, stride
LAYERS = (
    ("7x7, stride 2", 32, 3, 224, 224, 64, 7, 7, (3, 3), (2, 2)),
    ("3x3", 32, 64, 56, 56, 64, 3, 3, (1, 1), (1, 1)),
    ("1x1", 32, 256, 56, 56, 64, 1, 1, (0, 0), (1, 1)),
)
CONFIGS = {"f32": "float32, NCHW, FMA", "f16-nhwc": "float16, NHWC, TENSOR_OP"}
TAPS = (1, 3, 5, 7, 9, 11, 15, 21, 31)
# dtype, math type, compute type
ARITHMETIC = (
    ("float64", "DEFAULT", None),
    ("float32", "FMA", None),
    ("float32", "DEFAULT", None),
    ("float32", "TENSOR_OP_ALLOW_CONVERSION", None),
    ("float16", "FMA", None),
    ("float16", "TENSOR_OP", None),
    ("float16", "TENSOR_OP", "float16"),
    ("bfloat16", "FMA", None),
    ("bfloat16", "TENSOR_OP", None),
)
CHANNELS = (60, 62, 63, 64, 65, 66, 68, 72, 126, 127, 128, 129, 130)
# name, T, N, I, H, layers, directions
LSTMS = (
    ("100 steps, batch 64, 2 x 256", 100, 64, 256, 256, 2, 1),
    ("50 steps, batch 4, 1 x 64", 50, 4, 64, 64, 1, 1),
    ("25 steps, batch 16, 1 x 1024", 25, 16, 1024, 1024, 1, 1),
)
ROUNDS = 9


class Bench:
    """A handle on a stream of its own, and PyTorch or None."""

    def __init__(self, handle, quick):
        self.handle, self.quick = handle, quick
        self.torch = None
        if handle.device.kind == "cuda":
            try:
                import torch
            except ImportError:
                print("PyTorch is not installed: its rows are left out", file=sys.stderr)
            else:
                self.torch = torch

    def tune(self, problem, **policy):
        """Return the tuner's table for a problem."""
        with dnn.Tuner(self.handle, ":memory:", dnn.TuningPolicy(**policy)) as tuner:
            return tuner.tune(problem)

    def shape(self, *sizes, most):
        """Return the sizes; in a quick run no size is larger than `most`."""
        if not self.quick:
            return sizes
        return tuple(min(size, most) for size in sizes)


def us(ms):
    """Return microseconds with four digits; None for None."""
    return None if ms is None else figures(ms * 1e3)


def figures(value, digits=4):
    """Round to a number of digits.

    None if the value is None or not finite, as the error of a wrong result may be: JSON has no such
    number.
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits - 1}e}")


def name(row):
    """Return the algorithm and the math type of a candidate."""
    return str(row.algorithm), str(row.math_type)


def times(row):
    """Return the median and the distance between the quartiles of a candidate, in microseconds."""
    return us(row.time_ms), us(row.spread_ms)


def why_not(row):
    """Return why a candidate cannot be used; empty if it can."""
    status = "" if row.status == dnn.enums.Status.SUCCESS else str(row.status)
    return ": ".join(part for part in (status, row.why_not) if part)


def timed(row):
    """Return whether a candidate can be used, and was timed."""
    return row.ok and row.time_ms is not None


def choosing(bench):
    """Every candidate of three layers, and the choices of heuristic, cudnnFind and tuner."""
    columns = (
        "layer arithmetic algorithm math_type time_us spread_us call_us find_us "
        "workspace_bytes error chosen_by why_not"
    )
    rows, handle = [], bench.handle
    for layer, problem, arithmetic in layer_problems(bench):
        table, operands = bench.tune(problem), operands_of(handle, problem)
        x, w, y = (operands[name] for name in ("x", "w", "out"))
        ranking = dnn.convolution_forward.heuristic(handle, x, w, problem.conv, out=y)
        find_table = dnn.convolution_forward.find(handle, x, w, problem.conv, out=y)
        choices = {
            "heuristic": ranking.best(),
            "cudnnFind": find_table.best(),
            "tuner": table.best(),
        }
        for row in table:
            choosers = [chooser for chooser, choice in choices.items() if rnn.same(row, choice)]
            rows.append(
                (
                    layer,
                    arithmetic,
                    *name(row),
                    *times(row),
                    figures(row.call_us),
                    us(row.find_ms),
                    row.workspace,
                    figures(row.error),
                    ", ".join(choosers),
                    why_not(row),
                )
            )
    return "Every algorithm for three layers of ResNet-50 at batch 32", columns, rows


def layer_problems(bench):
    """Yield (layer, problem, arithmetic)."""
    for config, arithmetic in CONFIGS.items():
        for layer, *sizes, r, s, padding, stride in LAYERS:
            n, c, h, w, k = bench.shape(*sizes, most=14)
            shape = convolution.Shape(layer, (n, c, h, w), (k, c, r, s), padding, stride)
            yield layer, convolution.problem_of(shape, config), arithmetic


def torch_benchmark(bench):
    """The effect of `torch.backends.cudnn.benchmark` on the first call and on later ones."""
    title = "torch.nn.functional.conv2d, with torch.backends.cudnn.benchmark"
    columns = (
        "layer arithmetic benchmark first_call_ms time_us spread_us workspace_bytes "
        "first_call_bytes kernel"
    )
    rows = []
    if bench.torch is None:
        return title, columns, rows
    for layer, problem, arithmetic in layer_problems(bench):
        operands = operands_of(bench.handle, problem)
        for mode in ("False", "True", "True after the first call"):
            # PyTorch has its choices in each thread, and does not choose again when the flag
            # changes. So each mode has a new thread.
            with ThreadPoolExecutor(1) as executor:
                cells = executor.submit(torch_calls, bench, problem, operands, mode).result()
            rows.append((layer, arithmetic, mode, *cells))
    return title, columns, rows


def torch_calls(bench, problem, operands, mode):
    """Return the columns of `torch_benchmark` from the first call on."""
    torch = bench.torch
    peer = convolution.Peer(problem, operands, bench.handle.stream)
    torch.backends.cudnn.benchmark = mode == "True"
    with torch.no_grad():
        ones = torch.ones(1, 8, 8, 8, device="cuda")
        torch.nn.functional.conv2d(ones, ones)  # creates this thread's cuDNN handle
        if mode.endswith("first call"):
            peer.call()
            torch.backends.cudnn.benchmark = True
        first_ms, first_bytes = watched(torch, peer.call)
        _, nbytes = watched(torch, peer.call)
    repeats = 8
    time_us, spread_us = replayed(bench.handle, peer.graph(repeats), repeats)
    kernels = peer.kernels()
    longest = kernels[0].rsplit(" ", 1)[0] if kernels else ""
    return figures(first_ms), time_us, spread_us, nbytes, first_bytes, longest


def watched(torch, call):
    """Return the wall time of a call in milliseconds, and the bytes that it allocates.

    The bytes of the output itself do not count.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, start = torch.cuda.memory_allocated(), time.perf_counter()
    y = call()
    torch.cuda.synchronize()
    ms = (time.perf_counter() - start) * 1e3
    output_bytes = (
        -(-y.numel() * y.element_size() // 512) * 512
    )  # PyTorch allocates multiples of 512.
    return ms, max(0, torch.cuda.max_memory_allocated() - before - output_bytes)


def replayed(handle, replay, repeats):
    """Return the median and the distance between the quartiles of a call, in microseconds.

    The graph contains the call `repeats` times.
    """
    replay()  # The first launch uploads the graph.
    times_ms = [handle.device.elapsed_ms(replay, handle.stream) / repeats for _ in range(ROUNDS)]
    low, median, high = statistics.quantiles(times_ms, n=4)
    return us(median), us(high - low)


def filter_sizes(bench):
    """GEMM, Winograd and FFT against the size of the filter."""
    columns = "taps algorithm math_type time_us spread_us workspace_bytes error"
    n, c, h = bench.shape(16, 32, 64, most=12)
    rows = []
    for taps in TAPS[:3] if bench.quick else TAPS:
        conv = dnn.ConvolutionSpec(padding=taps // 2, math_type=dnn.TRUE_FLOAT32)
        problem = dnn.convolution_forward.problem(
            dnn.TensorSpec((n, c, h, h)), dnn.FilterSpec((c, c, taps, taps)), conv
        )
        rows += [
            (taps, *name(row), *times(row), row.workspace, figures(row.error))
            for row in bench.tune(problem)
            if timed(row)
        ]
    return f"True float32, NCHW: {n}x{c}x{h}x{h} by {c} filters of taps x taps", columns, rows


def precision(bench):
    """Time and error of every data type, math type and algorithm.

    The error includes the rounding of the operands to the data type.
    """
    columns = (
        "dtype compute_type layout algorithm math_type time_us spread_us "
        "error error_low error_high tuner_error chosen"
    )
    rng, handle, rows = np.random.default_rng(0), bench.handle, []
    n, c, h = bench.shape(32, 64, 28, most=8)
    images = rng.standard_normal((n, c, h, h))
    kernel = rng.standard_normal((c, c, 3, 3)) / math.sqrt(9 * c)
    exact = dnn.convolution_forward(
        handle,
        handle.array(images),
        handle.array(kernel),
        dnn.ConvolutionSpec(1),
        algorithm="IMPLICIT_PRECOMP_GEMM",
    ).numpy()
    for dtype, math_type, compute_type in ARITHMETIC:
        for layout in ("NCHW", "NHWC"):
            x, w = (handle.array(values, dtype=dtype, layout=layout) for values in (images, kernel))
            conv = dnn.ConvolutionSpec(1, math_type=math_type, compute_type=compute_type)
            problem = dnn.convolution_forward.problem(
                x.spec, dnn.FilterSpec.from_tensor(w.spec), conv
            )
            timed_rows = [row for row in bench.tune(problem, math_type=math_type) if timed(row)]
            default_type = "float64" if dtype == "float64" else "float32"
            for row in timed_rows:
                out = dnn.convolution_forward(handle, x, w, conv, algorithm=row)
                errors = image_errors(out.numpy().astype(np.float64), exact)
                spread = [figures(float(of(errors))) for of in (np.median, np.min, np.max)]
                rows.append(
                    (
                        dtype,
                        compute_type or default_type,
                        layout,
                        *name(row),
                        *times(row),
                        *spread,
                        figures(row.error),
                        row is timed_rows[0],
                    )
                )
    title = (
        f"{n}x{c}x{h}x{h} by {c}x3x3: errors against float64, "
        "the median, least and largest over the images"
    )
    return title, columns, rows


def image_errors(y, exact):
    """Return, for each image, the norm of the difference over that of the exact result."""
    return np.sqrt(((y - exact) ** 2).sum((1, 2, 3)) / (exact**2).sum((1, 2, 3)))


def layouts(bench):
    """Channels first and last, around multiples of eight."""
    columns = "dtype layout channels algorithm math_type time_us spread_us tflops"
    rows = []
    n, h = bench.shape(32, 28, most=6)
    for dtype, math_type in (
        ("float32", "DEFAULT"),
        ("float16", "TENSOR_OP"),
        ("bfloat16", "TENSOR_OP"),
    ):
        for layout in ("NCHW", "NHWC"):
            for c in (7, 8, 9) if bench.quick else CHANNELS:
                problem = dnn.convolution_forward.problem(
                    dnn.TensorSpec((n, c, h, h), dtype, layout),
                    dnn.FilterSpec((c, c, 3, 3), dtype, layout),
                    dnn.ConvolutionSpec(1, math_type=math_type),
                )
                row = bench.tune(problem)[0]
                tflops = figures(problem.flops / row.time_ms / 1e9) if timed(row) else None
                rows.append((dtype, layout, c, *name(row), *times(row), tflops))
    return f"The tuner's choice for {n} x channels x {h} x {h} by channels x 3x3", columns, rows


def views(bench):
    """Operands with gaps, used as they are, and packed first by cudnnTransformTensor."""
    columns = (
        "operand dtype strides algorithms algorithm math_type time_us spread_us "
        "copy_us copy_spread_us"
    )
    n, c, h = bench.shape(32, 64, 56, most=8)
    wide, rows = h + 8, []
    cases = {
        "packed, NCHW": (c * h * h, h * h, h, 1),
        "middle of larger images, NCHW": (c * wide * wide, wide * wide, wide, 1),
        "half of the channels, NCHW": (2 * c * h * h, h * h, h, 1),
        "packed, NHWC": (c * h * h, 1, h * c, c),
        "middle of larger images, NHWC": (c * wide * wide, 1, wide * c, c),
        "half of the channels, NHWC": (2 * c * h * h, 1, 2 * h * c, 2 * c),
    }
    for dtype, math_type in (("float32", "DEFAULT"), ("float16", "TENSOR_OP")):
        for operand, strides in cases.items():
            layout = operand[-4:]
            x = dnn.TensorSpec((n, c, h, h), dtype, strides=strides)
            packed = dnn.TensorSpec((n, c, h, h), dtype, layout)
            # A filter in NHWC needs an input that is packed in NHWC.
            w = dnn.FilterSpec((c, c, 3, 3), dtype, layout if x == packed else "NCHW")
            conv = dnn.ConvolutionSpec(1, math_type=math_type)
            table = bench.tune(dnn.convolution_forward.problem(x, w, conv, out=packed))
            timed_rows = [row for row in table if timed(row)]
            algorithms = sorted({str(row.algorithm) for row in timed_rows})
            best = ("", "", None, None)
            if timed_rows:
                best = (*name(timed_rows[0]), *times(timed_rows[0]))
            copy_times = (None, None)
            if x != packed:
                copy_times = copy_us(bench.handle, x, packed)
            rows.append((operand, dtype, list(strides), algorithms, *best, *copy_times))
    title = (
        f"{n}x{c}x{h}x{h} by {c}x3x3, the input with gaps between its values; "
        "copy: cudnnTransformTensor"
    )
    return title, columns, rows


def copy_us(handle, source, target):
    """Return the microseconds of packing, and their spread."""
    x, y = handle.empty(source), handle.empty(target)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    repeats = 8
    with dnn.TensorDescriptor(source) as x_desc, dnn.TensorDescriptor(target) as y_desc:

        def copies():
            for _ in range(repeats):
                handle.api.cudnnTransformTensor(
                    handle.ptr,
                    ctypes.addressof(one),
                    x_desc.ptr,
                    x.ptr,
                    ctypes.addressof(zero),
                    y_desc.ptr,
                    y.ptr,
                )

        copies()
        return replayed(handle, handle.device.capture(copies, handle.stream) or copies, repeats)


def lstm(bench):
    """Every algorithm and math type of three LSTMs, and the choices of heuristic and tuner."""
    columns = (
        "network dtype algorithm math_type time_us spread_us call_us error workspace_bytes "
        "chosen_by why_not"
    )
    rows = []
    for dtype in ("float32", "float16"):
        for network, *sizes, layers, directions in LSTMS:
            steps, batch, inputs, hidden = bench.shape(*sizes, most=8)
            spec = dnn.RNNSpec("lstm", inputs, hidden, layers, directions == 2, dtype=dtype)
            data = dnn.specs.RNNDataSpec((steps, batch, inputs), dtype=dtype)
            table = bench.tune(dnn.rnn_forward.problem(spec, None, data))
            choices = {"heuristic": heuristic(spec, data), "tuner": table.best()}
            for row in table:
                choosers = [chooser for chooser, choice in choices.items() if rnn.same(row, choice)]
                rows.append(
                    (
                        network,
                        dtype,
                        *name(row),
                        *times(row),
                        figures(row.call_us),
                        figures(row.error),
                        row.workspace,
                        ", ".join(choosers),
                        why_not(row),
                    )
                )
            if bench.torch is not None:
                problem = ("lstm", steps, batch, inputs, hidden, layers, directions)
                torch_times = torch_lstm(bench, problem, dtype)
                rows.append((network, dtype, "PyTorch", "", *torch_times, None, None, "", ""))
    return "Every algorithm and math type for three LSTMs (forward)", columns, rows


def torch_lstm(bench, problem, dtype):
    """Return PyTorch's time, spread, and time of an eager call, in microseconds."""
    peer = rnn.Peer(problem, dtype, bench.handle.stream)
    peer()
    repeats = 4
    time_us, spread_us = replayed(bench.handle, peer.graph(repeats), repeats)
    calls, eager_us = 10, []
    for _ in range(ROUNDS):
        bench.handle.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            peer()
        bench.handle.synchronize()
        eager_us.append((time.perf_counter() - start) / calls * 1e6)
    return time_us, spread_us, figures(statistics.median(eager_us))


FUNCTIONS = (choosing, torch_benchmark, filter_sizes, precision, layouts, views, lstm)
TABLES = {function.__name__: function for function in FUNCTIONS}


def as_text(result):
    """Return the JSON, a line for each row."""
    lines = [
        f" {json.dumps(fact)}: {json.dumps(value)},"
        for fact, value in result.items()
        if fact != "tables"
    ]
    tables = []
    for title, table in result["tables"].items():
        rows = ",\n".join(f"   {json.dumps(row, allow_nan=False)}" for row in table["rows"])
        head = (
            f'"title": {json.dumps(table["title"])},\n   "columns": {json.dumps(table["columns"])}'
        )
        tables.append(f'  {json.dumps(title)}: {{\n   {head},\n   "rows": [\n{rows}\n   ]}}')
    return "\n".join(["{", *lines, ' "tables": {', ",\n".join(tables), " }", "}"]) + "\n"


def main():
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the file; the default is examples/h200.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument(
        "--tables", default=",".join(TABLES), help="only these; the file keeps the others"
    )
    options = parser.parse_args()
    selection = options.tables.split(",")
    if not set(selection) <= TABLES.keys():
        parser.error(f"--tables: {', '.join(TABLES)}")
    device = dnn.devices.device_choice.get_device(options.device)
    if options.out is None and ("H200" not in device.name or options.quick):
        run = f"{device.name} --quick" if options.quick else device.name
        parser.error(f"{H200.name} has the times of an H200; give --out for {run}")
    out = options.out or H200
    with dnn.Handle(device, stream=device.create_stream()) as handle:
        bench = Bench(handle, options.quick)
        result = {
            "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
            "device": device.name,
            "cudnn": handle.api.library.version_text,
            "python": sys.version.split()[0],
            "torch": bench.torch.__version__ if bench.torch else None,
            "tables": json.loads(out.read_text())["tables"] if out.exists() else {},
        }
        begin = time.perf_counter()
        for table_name in selection:
            start = time.perf_counter()
            title, columns, rows = TABLES[table_name](bench)
            table = {"title": title, "columns": columns.split(), "rows": rows}
            result["tables"][table_name] = table
            seconds = time.perf_counter() - start
            print(f"{table_name}: {len(rows)} rows in {seconds:.1f} s", file=sys.stderr)
            handle.workspace.release()
            ordered = {
                table: result["tables"][table] for table in TABLES if table in result["tables"]
            }
            out.write_text(as_text(result | {"tables": ordered}))
        seconds = time.perf_counter() - begin
    print(f"{out}: {result['device']}, {result['date']}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
