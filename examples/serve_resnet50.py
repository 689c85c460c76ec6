"""ResNet-50 served by cudnnlite: fused calls in one CUDA graph, with asynchronous copies.

    python serve_resnet50.py                 # float16, batches of 1 and of 32
    python serve_resnet50.py --arithmetic tf32 --batch 32 --layers
    python serve_resnet50.py --tune          # measure every engine for each fused convolution
    python serve_resnet50.py --peer          # PyTorch beside it: eager, as a CUDA graph, compiled
    python serve_resnet50.py --devices 0,1   # a thread for each GPU, beside the first one alone
    python serve_resnet50.py --batch 32 --minutes 10 --json figures.jsonl  # a line each minute

The network is an ONNX model with random weights, which this program makes.  Without a GPU a small
network is served.
"""

import argparse
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, nullcontext
from typing import NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx_network import Network

import cudnnlite as dnn

ARITHMETICS = {
    "float16": {"dtype": "float16", "layout": "NHWC", "channels": 4},
    "tf32": {"dtype": "float32", "layout": "NHWC", "channels": 4, "math_type": dnn.TF32},
    "float32": {"dtype": "float32", "layout": "NCHW", "math_type": dnn.TRUE_FLOAT32},
}
FASTEST = dnn.TuningPolicy(objective="device")  # The host does not slow down a CUDA graph.
EVERY = 60  # the seconds between two lines of a server's figures
# The maker's figures: TFLOP/s of float16, TF32 and float32 (without sparsity), TB/s of the memory.
PEAKS = {"H200": (989, 494, 67, 4.8), "H100": (989, 494, 67, 3.35), "A100": (312, 156, 19.5, 2.0)}


class _ModelBuilder:
    """Collects the nodes and the random weights of an ONNX model."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.weights = [], []

    def constant(self, name, array):
        """Add a weight, and return its name."""
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def add(self, kind, inputs, output, **attributes):
        """Add a node, and return the name of its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def convolution(self, name, x, channels, filters, taps, stride=1, gain=1.0):
        """Add a convolution and its batch normalisation."""
        rng = self.rng
        scale = np.sqrt(2 / (channels * taps * taps))
        values = rng.standard_normal((filters, channels, taps, taps)) * scale
        weight = self.constant(f"{name}.weight", values)
        attributes = {
            "kernel_shape": [taps] * 2,
            "strides": [stride] * 2,
            "pads": [taps // 2] * 4,
        }
        x = self.add("Conv", [x, weight], name, **attributes)
        moments = {
            "scale": gain * rng.uniform(0.8, 1.2, filters),
            "shift": 0.1 * rng.standard_normal(filters),
            "mean": 0.1 * rng.standard_normal(filters),
            "variance": rng.uniform(0.8, 1.2, filters),
        }
        inputs = [x, *(self.constant(f"{name}.{part}", array) for part, array in moments.items())]
        return self.add("BatchNormalization", inputs, f"{name}.norm")

    def relu(self, x):
        return self.add("Relu", [x], f"{x}.relu")

    def bottleneck(self, name, x, channels, inner, stride, *, is_first):
        """Add a block of three convolutions beside its input."""
        y = self.relu(self.convolution(f"{name}.conv1", x, channels, inner, 1))
        y = self.relu(self.convolution(f"{name}.conv2", y, inner, inner, 3, stride))
        # With this gain the sums do not grow from block to block.
        y = self.convolution(f"{name}.conv3", y, inner, 4 * inner, 1, gain=0.3)
        if is_first:
            x = self.convolution(f"{name}.downsample", x, channels, 4 * inner, 1, stride)
        return self.relu(self.add("Add", [y, x], f"{name}.sum"))


def resnet(blocks=(3, 4, 6, 3), width=64, image=224, classes=1000, seed=0):
    """Return a ResNet of bottlenecks, v1.5, as an ONNX model with a symbolic batch.

    The default is ResNet-50.
    """
    builder = _ModelBuilder(seed)
    x = builder.relu(builder.convolution("conv1", "image", 3, width, 7, 2))
    x = builder.add("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = width
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        for block in range(count):
            is_first = block == 0
            stride = 2 if stage and is_first else 1
            name = f"layer{stage + 1}.{block}"
            x = builder.bottleneck(name, x, channels, inner, stride, is_first=is_first)
            channels = 4 * inner
    x = builder.add("GlobalAveragePool", [x], "features")
    x = builder.add("Flatten", [x], "flat")
    matrix = builder.rng.standard_normal((classes, channels)) / np.sqrt(channels)
    weight = builder.constant("fc.weight", matrix)
    bias = builder.constant("fc.bias", 0.1 * builder.rng.standard_normal(classes))
    builder.add("Gemm", [x, weight, bias], "logits", transB=1)
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, image, image])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])]
    graph = helper.make_graph(builder.nodes, "resnet", inputs, outputs, builder.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def share(network):
    """Return the memory of a network's results, as a part of what separate arrays would take."""
    memories = {place.memory.ptr: place.memory.size for place in network.places}
    return sum(memories.values()) / sum(place.size for place in network.places)


class Server:
    """A network for one batch size, captured into a CUDA graph.

    `start` enqueues a batch, and `finish` waits for its logits.
    """

    def __init__(self, handle, model, batch, arithmetic="float16", tune=False):
        with dnn.autotuned(handle, policy=FASTEST) if tune else nullcontext():
            self.network = Network(handle, model, batch=batch, **ARITHMETICS[arithmetic])
        self.network.run()  # creates all plans and the workspace
        with dnn.capture(handle) as self.graph:
            self.network.run()
        self.handle = handle
        self.input, self.output = self.network.inputs["image"], self.network.outputs["logits"]
        self.images, self.logits = handle.pinned(self.input.spec), handle.pinned(self.output.spec)

    def fill(self, images):
        """Copy float32 images (N, 3, H, W) to pinned memory, in the input's type and layout."""
        # NumPy would repeat a single image for the whole batch.
        if np.shape(images) != self.images.shape:
            needed = f"needed: {self.images.shape}; fill up a smaller batch, and split a larger one"
            raise ValueError(f"images have shape {np.shape(images)}; {needed}")
        self.images[...] = images

    def start(self):
        """Enqueue the copy of the images, the network, and the copy of the logits."""
        self.input.copy_from(self.images)
        self.graph.launch()
        self.output.copy_to(self.logits)

    def finish(self):
        """Wait for the logits, and return them.  The next batch overwrites them."""
        self.handle.synchronize()
        return self.logits

    def close(self):
        self.graph.close()
        self.network.close()


def timed(call, wait, seconds=1.0, least=20):
    """Return the milliseconds of many calls, each with a wait."""
    times, end = [], time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        wait()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def back_to_back(call, wait, repeats):
    """Return the milliseconds of a call among many with one wait: the median of five trials."""

    def all_calls():
        for _ in range(repeats):
            call()

    trials = [timed(all_calls, wait, 0, 1)[0] for _ in range(5)]
    return float(np.median(trials)) / repeats


def layer_table(server, peaks, arithmetic, repeats=20):
    """Return rows (name, kind, us, us of the products, us of the memory).

    Each layer is timed in a CUDA graph.
    """
    handle, rows = server.handle, []
    tflops = peaks[("float16", "tf32", "float32").index(arithmetic)]
    bandwidth = peaks[3]
    for step in server.network.steps:
        with dnn.capture(handle) as graph:
            for _ in range(repeats):
                step.run()
        launches_ms = [handle.device.elapsed_ms(graph.launch, handle.stream) for _ in range(4)]
        graph.close()
        us = min(launches_ms) * 1e3 / repeats
        nbytes = step.elements * server.network.dtype.itemsize
        rows.append((step.name, step.kind, us, step.flops / tflops / 1e6, nbytes / bandwidth / 1e6))
    return rows


def show_layers(rows, tell):
    """Print the time of each layer, beside the least that its products and its memory need."""
    tell(f"{'layer':24}{'kind':20}{'us':>8}{'products':>10}{'memory':>8}{'of roof':>9}")
    lines = [(*row, max(row[3:])) for row in rows]
    columns = list(zip(*lines, strict=True))
    lines.append(("all", "", *map(sum, columns[2:])))
    for name, kind, us, products_us, memory_us, roof_us in lines:
        of_roof = roof_us / us
        tell(
            f"{name:24}{kind:20}{us:8.1f}{products_us:10.1f}{memory_us:8.1f}{of_roof:9.0%}",
            what="layer",
            name=name,
            kind=kind,
            us=us,
            products_us=products_us,
            memory_us=memory_us,
            of_roof=of_roof,
        )


def torch_model(model):
    """Return the same network for PyTorch, with the same weights."""
    import torch
    from torch.nn import functional as f

    constants = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in model.graph.initializer
    }
    functions = {
        "Relu": f.relu,
        "Add": torch.add,
        "GlobalAveragePool": lambda x: f.adaptive_avg_pool2d(x, 1),
        "Flatten": lambda x: x.flatten(1),
        "Gemm": f.linear,
    }
    nodes = []
    for node in model.graph.node:
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        nodes.append((node.op_type, list(node.input), node.output[0], attributes))

    class ResNet(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, array in constants.items():
                self.register_buffer(name.replace(".", "_"), array)

        def forward(self, image):
            values = {"image": image}
            for name in constants:
                values[name] = getattr(self, name.replace(".", "_"))
            for kind, names, output, attributes in nodes:
                x, *weights = (values[name] for name in names)
                if kind == "Conv":
                    stride, padding = attributes["strides"], attributes["pads"][:2]
                    y = f.conv2d(x, *weights, stride=stride, padding=padding)
                elif kind == "BatchNormalization":
                    scale, shift, mean, variance = weights
                    y = f.batch_norm(x, mean, variance, scale, shift, eps=1e-5)
                elif kind == "MaxPool":
                    size, stride = attributes["kernel_shape"], attributes["strides"]
                    y = f.max_pool2d(x, size, stride, attributes["pads"][:2])
                else:
                    y = functions[kind](x, *weights)
                values[output] = y
            return values["logits"]

    return ResNet().eval()


def show_peer(model, images, logits, arithmetic, ours, repeats, tell):
    """Print PyTorch's times for the same batch: channels last, cuDNN's benchmark."""
    import torch

    torch.backends.cudnn.benchmark = True
    allows_tf32 = arithmetic != "float32"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allows_tf32
    dtype = torch.float16 if arithmetic == "float16" else torch.float32
    network = torch_model(model).cuda().to(dtype).to(memory_format=torch.channels_last)
    x = torch.from_numpy(images).cuda().to(dtype).to(memory_format=torch.channels_last)
    wait = torch.cuda.synchronize

    def measure(name, call, our_ms):
        for _ in range(4):
            call(x)
        wait()
        ms = back_to_back(lambda: call(x), wait, repeats)
        ratio = our_ms / ms
        line = f"    PyTorch {name:12} {ms:8.3f} ms; ours takes {ratio:.3f} of that"
        tell(line, what="PyTorch", how=name, ms=ms, ours_of_it=ratio)

    with torch.inference_mode():
        error = np.abs(network(x).float().cpu().numpy() - logits).max() / np.abs(logits).max()
        line = f"    PyTorch {torch.__version__}: logits differ by {error:.1e} of the largest"
        tell(line, what="logits", differ=error)
        measure("eager", network, ours["eager"])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            network(x)
        measure("CUDA graph", lambda _: graph.replay(), ours["graph"])
        measure("compiled", torch.compile(network, mode="reduce-overhead"), ours["graph"])


class Latencies:
    """Counts of times by the microsecond, up to 0.2 s.

    Their memory does not grow with the number of times.
    """

    def __init__(self):
        self.counts = np.zeros(200_000, int)

    def add(self, seconds):
        microseconds = min(int(seconds * 1e6), len(self.counts) - 1)
        self.counts[microseconds] += 1

    def figures(self):
        """Return the median and the 99th percentile in milliseconds."""
        totals = np.cumsum(self.counts)
        figures = {}
        for percent in (50, 99):
            microseconds = np.searchsorted(totals, percent / 100 * totals[-1])
            figures[f"p{percent}_ms"] = float(microseconds / 1e3)
        return figures

    def __str__(self):
        low, high = self.figures().values()
        return f"p50 {low:.3f} ms, p99 {high:.3f} ms ({high / max(low, 1e-3):.2f} of it)"


def memory(handle):
    """Return the MiB of this process in the host's memory, and the MiB in use on the device."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    free, total = handle.device.memory_info()
    return np.array([resident, total - free]) / 2**20


class Throughput(NamedTuple):
    """The result of serving on one GPU."""

    device: str
    images_per_second: float
    latencies: Latencies
    memory_before: np.ndarray
    memory_after: np.ndarray
    logits: np.ndarray


def serve(device, model, images, options, tell, start):
    """Serve on one GPU, beginning at the barrier `start`.

    Two batches are in flight, so that copies and network run at the same time.
    """
    with ExitStack() as stack:
        servers = []
        handles = [stack.enter_context(dnn.Handle(device)) for _ in range(2)]
        for handle in handles:
            handle.stream = handle.device.create_stream()
            server = Server(handle, model, len(images), options.arithmetic, options.tune)
            stack.callback(server.close)
            server.fill(images)
            server.start()
            servers.append(server)
        logits, _ = (server.finish().astype(np.float64) for server in servers)
        idle, busy = servers
        minute, latencies = Latencies(), Latencies()
        count = minutes = 0
        start.wait()
        memory_before = last_memory = memory(handle)
        first_begin = begin = now = last_line = time.perf_counter()
        busy.start()
        while now < first_begin + options.seconds or count < 4:
            next_begin = time.perf_counter()
            idle.start()
            busy.finish()
            now = time.perf_counter()
            count += 1
            minute.add(now - begin)
            latencies.add(now - begin)
            idle, busy, begin = busy, idle, next_begin
            if now > last_line + EVERY:
                minutes += 1
                new_memory = memory(handle)
                show_minute(device, minutes, minute, last_memory, new_memory, tell)
                minute, last_memory, last_line = Latencies(), new_memory, now
        busy.finish()
        images_per_second = count * len(images) / (now - first_begin)
        return Throughput(
            device, images_per_second, latencies, memory_before, memory(handle), logits
        )


def show_minute(device, number, latencies, memory_before, memory_after, tell):
    """Print the times of a minute, and how the memory changed."""
    resident, used = memory_before
    resident_after, used_after = memory_after
    tell(
        f"    {device}, minute {number}: {latencies}; "
        f"resident {resident:.1f} to {resident_after:.1f} MiB, "
        f"device {used:.1f} to {used_after:.1f} MiB",
        what="minute",
        device=device,
        minute=number,
        **latencies.figures(),
        resident_mib=[resident, resident_after],
        device_mib=[used, used_after],
    )


def served(devices, *arguments):
    """Serve with a thread for each GPU; return their results."""
    start = threading.Barrier(len(devices))

    def abort_if_failed(future):
        if future.exception():  # The other threads must not wait for this one.
            start.abort()

    with ThreadPoolExecutor(len(devices)) as threads:
        futures = [threads.submit(serve, device, *arguments, start) for device in devices]
        for future in futures:
            future.add_done_callback(abort_if_failed)
        for future in as_completed(futures):
            future.result()
    return [future.result() for future in futures]


def show_throughput(devices, model, images, options, tell):
    """Print images per second: of the first GPU alone, and of all together."""
    alone = []
    if len(devices) > 1:
        alone = served(devices[:1], model, images, options, tell)
    results = served(devices, model, images, options, tell)
    for result in alone + results:
        logits = result.logits
        difference = np.abs(logits - results[0].logits).max() / np.abs(logits).max()
        resident, used = result.memory_before
        resident_after, used_after = result.memory_after
        tell(
            f"    {result.device}: {result.images_per_second:,.0f} images/s, "
            f"two batches in flight: {result.latencies}; "
            f"resident {resident:.1f} MiB, grew by {resident_after - resident:.1f}; "
            f"device {used:.1f} MiB, grew by {used_after - used:.1f}; "
            f"logits as on the others to {difference:.0e}",
            what="throughput",
            device=result.device,
            images_per_second=result.images_per_second,
            **result.latencies.figures(),
            resident_mib=[resident, resident_after],
            device_mib=[used, used_after],
            logits_differ=difference,
        )
    if alone:
        total = sum(result.images_per_second for result in results)
        ratio = total / alone[0].images_per_second
        line = f"    {len(devices)} GPUs: {total:,.0f} images/s, {ratio:.3f} of one"
        tell(line, what="together", images_per_second=total, of_one=ratio)


def teller(path):
    """Return a function that prints a line, and appends its figures to a file of JSON.

    The file is written at once, so that a run that is stopped loses no figures.
    """

    def tell(line, **figures):
        print(line, flush=True)
        if path and figures:
            with open(path, "a") as file:
                file.write(json.dumps(figures) + "\n")

    return tell


def parse_options():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--arithmetic", choices=ARITHMETICS, default="float16")
    parser.add_argument(
        "--tune",
        action="store_true",
        help="measure the engines for each convolution, and save the choices",
    )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="a table of layers against the device's roofline",
    )
    parser.add_argument("--peer", action="store_true", help="PyTorch beside")
    parser.add_argument("--devices", default="0", help="numbers of GPUs, as 0,1")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="how long throughput is measured"
    )
    parser.add_argument("--minutes", type=float, help="the same in minutes")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="append the figures there, a line of JSON for each line printed",
    )
    parser.add_argument("--small", action="store_true", help="a small network, as without a GPU")
    options = parser.parse_args()
    if options.minutes:
        options.seconds = 60 * options.minutes
    return options


def show_latency(handle, model, batch, options, tell):
    """Serve one batch size on one GPU, and print its times; return the images."""
    is_small = options.small or handle.device.kind == "emulated"
    size = 32 if is_small else 224
    model_note = ", small" if is_small else ""
    begin = time.perf_counter()
    server = Server(handle, model, batch, options.arithmetic, options.tune)
    seconds = time.perf_counter() - begin
    tell(
        f"ResNet-50, {options.arithmetic}, batch {batch}, {handle.device.name}{model_note}: "
        f"made in {seconds:.1f} s, {len(server.network.steps)} calls, "
        f"results in {share(server.network):.0%} of the memory that they would take apart",
        what="network",
        arithmetic=options.arithmetic,
        batch=batch,
        device=handle.device.name,
        small=is_small,
    )
    images = np.random.default_rng(1).standard_normal((batch, 3, size, size), np.float32)
    server.fill(images)
    server.start()
    logits = server.finish().astype(np.float64)
    repeats = 2 if is_small else 50
    wait = handle.synchronize
    times = timed(server.start, server.finish, min(options.seconds, 1.0))
    low, high = np.percentile(times, (50, 99))
    graph_ms = back_to_back(server.graph.launch, wait, repeats)
    eager_ms = back_to_back(server.network.run, wait, repeats)
    line = f"    latency with both copies: p50 {low:.3f} ms, p99 {high:.3f} ms"
    tell(line, what="latency", p50_ms=low, p99_ms=high)
    line = (
        f"    a batch on the device: {graph_ms:.3f} ms as a graph, {eager_ms:.3f} ms call by call"
    )
    tell(line, what="batch", graph_ms=graph_ms, eager_ms=eager_ms)
    if options.layers:
        name = next((name for name in PEAKS if name in handle.device.name), "H200")
        tell(f"    least times by the promised speeds of {name}")
        show_layers(layer_table(server, PEAKS[name], options.arithmetic), tell)
    if options.peer:
        ours = {"graph": graph_ms, "eager": eager_ms}
        show_peer(model, images, logits, options.arithmetic, ours, repeats, tell)
    server.close()
    return images


def main():
    options = parse_options()
    os.environ.setdefault("CUDNNLITE_DEVICE", "auto")
    with dnn.Handle() as handle:
        kind = handle.device.kind
    devices = [f"{kind}:{number}" for number in options.devices.split(",")]
    if options.small or kind == "emulated":
        model = resnet((1, 1, 1, 1), 8, 32, 10)
    else:
        model = resnet()
    tell = teller(options.json)
    for batch in options.batch:
        with dnn.Handle(devices[0]) as handle:
            # CUDA's default stream would wait for all other streams.
            handle.stream = handle.device.create_stream()
            images = show_latency(handle, model, batch, options, tell)
        show_throughput(devices, model, images, options, tell)


if __name__ == "__main__":
    main()
