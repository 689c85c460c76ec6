"""ResNet-50 served by cudnnlite: folded, fused, one CUDA graph for a batch, copies that do not wait.

    python serve_resnet50.py                                  # float16, batches of 1 and of 32
    python serve_resnet50.py --arithmetic tf32 --batch 32 --layers
    python serve_resnet50.py --tune                           # every engine measured for each fused convolution
    python serve_resnet50.py --peer                           # PyTorch beside it: eager, as a CUDA graph, compiled
    python serve_resnet50.py --devices 0,1                    # a thread for each GPU, beside the first one alone
    python serve_resnet50.py --batch 32 --minutes 10 --json figures.jsonl  # a line every minute: times and memory

The network is an ONNX model with random weights, made here.  Without a GPU a small one is served.
"""

import argparse
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, nullcontext

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx_network import Network

import cudnnlite as dnn

ARITHMETICS = {
    "float16": {"dtype": "float16", "layout": "NHWC", "channels": 4},
    "tf32": {"dtype": "float32", "layout": "NHWC", "channels": 4, "math_type": dnn.TF32},
    "float32": {"dtype": "float32", "layout": "NCHW", "math_type": dnn.TRUE_FLOAT32},
}
FASTEST = dnn.TuningPolicy(objective="device")  # what is captured is not slowed down by the host
EVERY = 60  # seconds, after which a server tells how it does
# What the makers promise: TFLOP/s of float16, TF32 and float32 (without sparsity), and TB/s of the memory.
PEAKS = {"H200": (989, 494, 67, 4.8), "H100": (989, 494, 67, 3.35), "A100": (312, 156, 19.5, 2.0)}


def resnet(blocks=(3, 4, 6, 3), width=64, image=224, classes=1000, seed=0):
    """Return a ResNet of bottlenecks, v1.5, as an ONNX model; by default ResNet-50.  Its batch is symbolic."""
    rng, nodes, weights = np.random.default_rng(seed), [], []

    def constant(name, array):
        weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def add(kind, inputs, output, **attributes):
        nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def convolution(name, x, channels, filters, taps, stride=1, gain=1.0):
        values = rng.standard_normal((filters, channels, taps, taps)) * np.sqrt(2 / (channels * taps * taps))
        how = {"kernel_shape": [taps] * 2, "strides": [stride] * 2, "pads": [taps // 2] * 4}
        x = add("Conv", [x, constant(f"{name}.weight", values)], name, **how)
        moments = {
            "scale": gain * rng.uniform(0.8, 1.2, filters), "shift": 0.1 * rng.standard_normal(filters),
            "mean": 0.1 * rng.standard_normal(filters), "variance": rng.uniform(0.8, 1.2, filters),
        }  # fmt: skip
        return add("BatchNormalization", [x, *(constant(f"{name}.{n}", a) for n, a in moments.items())], f"{name}.norm")

    def relu(x):
        return add("Relu", [x], f"{x}.relu")

    x, channels = relu(convolution("conv1", "image", 3, width, 7, 2)), width
    x = add("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        for block in range(count):
            name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            y = relu(convolution(f"{name}.conv1", x, channels, inner, 1))
            y = relu(convolution(f"{name}.conv2", y, inner, inner, 3, stride))
            y = convolution(
                f"{name}.conv3", y, inner, 4 * inner, 1, gain=0.3
            )  # so that sums do not grow from block to block
            if not block:
                x, channels = convolution(f"{name}.downsample", x, channels, 4 * inner, 1, stride), 4 * inner
            x = relu(add("Add", [y, x], f"{name}.sum"))
    x = add("Flatten", [add("GlobalAveragePool", [x], "features")], "flat")
    last = constant("fc.weight", rng.standard_normal((classes, channels)) / np.sqrt(channels))
    add("Gemm", [x, last, constant("fc.bias", 0.1 * rng.standard_normal(classes))], "logits", transB=1)
    given = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, image, image])
    made = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])
    graph = helper.make_graph(nodes, "resnet", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def share(network):
    """Return the memory that a network's results take, of what a place of its own for each would."""
    memories = {place.memory.ptr: place.memory.size for place in network.places}
    return sum(memories.values()) / sum(place.size for place in network.places)


class Server:
    """A network for one size of its batch, captured: `start` enqueues a batch, `finish` waits for its logits."""

    def __init__(self, handle, model, batch, arithmetic="float16", tune=False):
        with dnn.autotuned(handle, policy=FASTEST) if tune else nullcontext():
            self.network = Network(handle, model, batch=batch, **ARITHMETICS[arithmetic])
        self.network.run()  # now all plans and the workspace are there
        with dnn.capture(handle) as self.graph:
            self.network.run()
        self.handle, self.input, self.output = handle, self.network.inputs["image"], self.network.outputs["logits"]
        self.images, self.logits = handle.pinned(self.input.spec), handle.pinned(self.output.spec)

    def fill(self, images):
        """Bring images, float32 (N, 3, H, W), into the input's data type and layout, in pinned memory."""
        if np.shape(images) != self.images.shape:  # NumPy would repeat one image for the whole batch
            needed = f"needed: {self.images.shape}; fill up a smaller batch, and split a larger one"
            raise ValueError(f"images have shape {np.shape(images)}; {needed}")
        self.images[...] = images

    def start(self):
        """Enqueue copy, network, copy; returns at once."""
        self.input.copy_from(self.images)
        self.graph.launch()
        self.output.copy_to(self.logits)

    def finish(self):
        """Wait for the logits; they are overwritten by the next batch."""
        self.handle.synchronize()
        return self.logits

    def close(self):
        self.graph.close()
        self.network.close()


def timed(call, wait, seconds=1.0, least=20):
    """Return the milliseconds of each of many calls that are waited for."""
    times, end = [], time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        wait()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def back_to_back(call, wait, repeats):
    """Return the milliseconds of one of many calls, of which the last is waited for; the median of five."""
    found = []
    for _ in range(5):
        found.append(timed(lambda: [call() for _ in range(repeats)], wait, 0, 1)[0] / repeats)
    return float(np.median(found))


def layer_table(server, peaks, arithmetic, repeats=20):
    """Return rows (name, kind, us, us of the products, us of the memory), timed one by one in CUDA graphs."""
    handle, rows = server.handle, []
    tflops, bandwidth = peaks[("float16", "tf32", "float32").index(arithmetic)], peaks[3]
    for step in server.network.steps:
        with dnn.capture(handle) as graph:
            for _ in range(repeats):
                step.run()
        taken = min(handle.device.elapsed_ms(graph.launch, handle.stream) for _ in range(4)) * 1e3 / repeats
        graph.close()
        moved = step.elements * server.network.dtype.itemsize
        rows.append((step.name, step.kind, taken, step.flops / tflops / 1e6, moved / bandwidth / 1e6))
    return rows


def show_layers(rows, tell):
    """Print what each layer takes, beside the least that its products and its memory need."""
    tell(f"{'layer':24}{'kind':20}{'us':>8}{'products':>10}{'memory':>8}{'of roof':>9}")
    columns = [[*column] for column in zip(*rows, strict=True)]
    total = [*map(sum, columns[2:]), sum(max(row[3:]) for row in rows)]
    for name, kind, taken, products, moved, roof in [*((*row, max(row[3:])) for row in rows), ("all", "", *total)]:
        figures = {"us": taken, "products_us": products, "memory_us": moved, "of_roof": roof / taken}
        line = f"{name:24}{kind:20}{taken:8.1f}{products:10.1f}{moved:8.1f}{roof / taken:9.0%}"
        tell(line, what="layer", name=name, kind=kind, **figures)


def torch_model(model):
    """Return the same network for PyTorch, with the same weights."""
    import torch
    from torch.nn import functional as f

    constants = {one.name: torch.from_numpy(numpy_helper.to_array(one).copy()) for one in model.graph.initializer}
    nodes = [(one.op_type, [*one.input], one.output[0], {a.name: helper.get_attribute_value(a) for a in one.attribute})
             for one in model.graph.node]  # fmt: skip

    class ResNet(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, array in constants.items():
                self.register_buffer(name.replace(".", "_"), array)

        def forward(self, image):
            v = {"image": image} | {name: getattr(self, name.replace(".", "_")) for name in constants}
            for kind, names, out, how in nodes:
                x, *others = (v[name] for name in names)
                if kind == "Conv":
                    v[out] = f.conv2d(x, *others, stride=how["strides"], padding=how["pads"][:2])
                elif kind == "BatchNormalization":
                    scale, shift, mean, variance = others
                    v[out] = f.batch_norm(x, mean, variance, scale, shift, eps=1e-5)
                elif kind == "MaxPool":
                    v[out] = f.max_pool2d(x, how["kernel_shape"], how["strides"], how["pads"][:2])
                else:
                    v[out] = {"Relu": f.relu, "Add": torch.add, "GlobalAveragePool": lambda x: f.adaptive_avg_pool2d(x, 1),
                              "Flatten": lambda x: x.flatten(1), "Gemm": f.linear}[kind](x, *others)  # fmt: skip
            return v["logits"]

    return ResNet().eval()


def show_peer(model, images, logits, arithmetic, ours, repeats, tell):
    """Print PyTorch's times for the same batch: channels last, cuDNN's benchmark."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = arithmetic != "float32"
    dtype = torch.float16 if arithmetic == "float16" else torch.float32
    network = torch_model(model).cuda().to(dtype).to(memory_format=torch.channels_last)
    x = torch.from_numpy(images).cuda().to(dtype).to(memory_format=torch.channels_last)
    wait = torch.cuda.synchronize

    def measure(name, call, ours):
        for _ in range(4):
            call(x)
        wait()
        taken = back_to_back(lambda: call(x), wait, repeats)
        line = f"    PyTorch {name:12} {taken:8.3f} ms; ours takes {ours / taken:.3f} of that"
        tell(line, what="PyTorch", how=name, ms=taken, ours_of_it=ours / taken)

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
    """Counts of times by the microsecond, up to 0.2 s: those of ten minutes take no more memory than those of one."""

    def __init__(self):
        self.counts = np.zeros(200_000, int)

    def add(self, seconds):
        self.counts[min(int(seconds * 1e6), len(self.counts) - 1)] += 1

    def figures(self):
        total = np.cumsum(self.counts)
        return {f"p{part}_ms": float(np.searchsorted(total, part / 100 * total[-1]) / 1e3) for part in (50, 99)}

    def __str__(self):
        low, high = self.figures().values()
        return f"p50 {low:.3f} ms, p99 {high:.3f} ms ({high / max(low, 1e-3):.2f} of it)"


def memory(handle):
    """Return the MiB that this process has in the host's memory, and that are taken of the device's."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    free, total = handle.device.memory_info()
    return np.array([resident, total - free]) / 2**20


def serve(device, model, images, given, tell, start):
    """Serve on one GPU from `start` on: two batches in flight, so that copies and network run at the same time."""
    with ExitStack() as stack:
        servers = []
        for handle in [stack.enter_context(dnn.Handle(device)) for _ in range(2)]:
            handle.stream = handle.device.create_stream()
            servers.append(Server(handle, model, len(images), given.arithmetic, given.tune))
            stack.callback(servers[-1].close)
            servers[-1].fill(images)
            servers[-1].start()
        logits, _ = (one.finish().astype(np.float64) for one in servers)
        idle, busy = servers
        minute, all_of_it, count, minutes = Latencies(), Latencies(), 0, 0
        start.wait()
        before = last = memory(handle)
        began = begun = now = mark = time.perf_counter()
        busy.start()
        while now < began + given.seconds or count < 4:
            next_begun = time.perf_counter()
            idle.start()
            busy.finish()
            now, count = time.perf_counter(), count + 1
            minute.add(now - begun)
            all_of_it.add(now - begun)
            idle, busy, begun = busy, idle, next_begun
            if now > mark + EVERY:
                after, minutes = memory(handle), minutes + 1
                (resident, taken), (resident_now, taken_now) = last, after
                tell(
                    f"    {device}, minute {minutes}: {minute}; resident {resident:.1f} to {resident_now:.1f} MiB, "
                    f"device {taken:.1f} to {taken_now:.1f} MiB", what="minute", device=device, minute=minutes,
                    **minute.figures(), resident_mib=[resident, resident_now], device_mib=[taken, taken_now],
                )  # fmt: skip
                minute, last, mark = Latencies(), after, now
        busy.finish()
        return device, count * len(images) / (now - began), all_of_it, before, memory(handle), logits


def served(devices, *arguments):
    """Serve with a thread for each GPU; return what each found."""
    start = threading.Barrier(len(devices))
    with ThreadPoolExecutor(len(devices)) as threads:
        results = [threads.submit(serve, one, *arguments, start) for one in devices]
        for one in results:  # if one fails, the others need not wait for it
            one.add_done_callback(lambda done: done.exception() and start.abort())
        for one in as_completed(results):
            one.result()
    return [one.result() for one in results]


def show_throughput(devices, model, images, given, tell):
    """Print images per second: of the first GPU alone, and of all together."""
    alone = served(devices[:1], model, images, given, tell) if len(devices) > 1 else []
    results = served(devices, model, images, given, tell)
    for device, rate, times, before, after, logits in alone + results:
        same = np.abs(logits - results[0][-1]).max() / np.abs(logits).max()
        (resident, taken), grown = before, after - before
        tell(
            f"    {device}: {rate:,.0f} images/s, two batches in flight: {times}; resident {resident:.1f} MiB, grew by "
            f"{grown[0]:.1f}; device {taken:.1f} MiB, grew by {grown[1]:.1f}; logits as on the others to {same:.0e}",
            what="throughput", device=device, images_per_second=rate, **times.figures(), resident_mib=[before[0], after[0]],
            device_mib=[before[1], after[1]], logits_differ=same,
        )  # fmt: skip
    if alone:
        together, one = sum(result[1] for result in results), alone[0][1]
        line = f"    {len(devices)} GPUs: {together:,.0f} images/s, {together / one:.3f} of one"
        tell(line, what="together", images_per_second=together, of_one=together / one)


def teller(path):
    """Return a function that prints a line and appends its figures to a file of JSON, at once: what ends early keeps them."""

    def tell(line, **figures):
        print(line, flush=True)
        if path and figures:
            with open(path, "a") as file:
                file.write(json.dumps(figures) + "\n")

    return tell


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--arithmetic", choices=ARITHMETICS, default="float16")
    parser.add_argument("--tune", action="store_true", help="measure the engines for each convolution; remembered")
    parser.add_argument("--layers", action="store_true", help="a table of layers against the device's roofline")
    parser.add_argument("--peer", action="store_true", help="PyTorch beside")
    parser.add_argument("--devices", default="0", help="numbers of GPUs, as 0,1")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long throughput is measured")
    parser.add_argument("--minutes", type=float, help="the same in minutes")
    parser.add_argument("--json", metavar="FILE", help="append the figures there, a line of JSON for each line printed")
    parser.add_argument("--small", action="store_true", help="a small network; so it is without a GPU in any case")
    given = parser.parse_args()
    os.environ.setdefault("CUDNNLITE_DEVICE", "auto")
    given.seconds = 60 * given.minutes if given.minutes else given.seconds
    with dnn.Handle() as handle:
        devices = [f"{handle.device.kind}:{number}" for number in given.devices.split(",")]
    for batch in given.batch:
        tell = teller(given.json)
        with dnn.Handle(devices[0]) as handle:
            handle.stream = handle.device.create_stream()  # not CUDA's default stream, which waits for all others
            small = given.small or handle.device.kind == "emulated"
            model = resnet((1, 1, 1, 1), 8, 32, 10) if small else resnet()
            begin = time.perf_counter()
            server = Server(handle, model, batch, given.arithmetic, given.tune)
            made, size = time.perf_counter() - begin, 32 if small else 224
            tell(f"ResNet-50, {given.arithmetic}, batch {batch}, {handle.device.name}{', small' if small else ''}: "
                 f"made in {made:.1f} s, {len(server.network.steps)} calls, "
                 f"results in {share(server.network):.0%} of the memory that they would take apart",
                 what="network", arithmetic=given.arithmetic, batch=batch, device=handle.device.name, small=small)  # fmt: skip
            images = np.random.default_rng(1).standard_normal((batch, 3, size, size), np.float32)
            server.fill(images)
            server.start()
            logits = server.finish().astype(np.float64)
            repeats, wait = (2 if small else 50), handle.synchronize
            low, high = np.percentile(timed(server.start, server.finish, min(given.seconds, 1.0)), (50, 99))
            calls = {"graph": server.graph.launch, "eager": server.network.run}
            ours = {name: back_to_back(call, wait, repeats) for name, call in calls.items()}
            line = f"    latency with both copies: p50 {low:.3f} ms, p99 {high:.3f} ms"
            tell(line, what="latency", p50_ms=low, p99_ms=high)
            line = f"    a batch on the device: {ours['graph']:.3f} ms as a graph, {ours['eager']:.3f} ms call by call"
            tell(line, what="batch", graph_ms=ours["graph"], eager_ms=ours["eager"])
            if given.layers:
                name = next((name for name in PEAKS if name in handle.device.name), "H200")
                tell(f"    least times by the promised speeds of {name}")
                show_layers(layer_table(server, PEAKS[name], given.arithmetic), tell)
            if given.peer:
                show_peer(model, images, logits, given.arithmetic, ours, repeats, tell)
            server.close()
        show_throughput(devices, model, images, given, tell)


if __name__ == "__main__":
    main()
