"""ResNet-50 served by cudnnlite: folded, fused, one CUDA graph for a batch, copies that do not wait.

    python serve_resnet50.py                                  # float16, batches of 1 and of 32
    python serve_resnet50.py --arithmetic tf32 --batch 32 --layers
    python serve_resnet50.py --search 1                       # other engines measured, a second for a convolution
    python serve_resnet50.py --peer                           # PyTorch beside it: eager, as a CUDA graph, compiled
    python serve_resnet50.py --devices 0,1                    # a thread for each GPU, beside the first one alone
    python serve_resnet50.py --batch 32 --minutes 10          # a line every minute: times and memory

The network is an ONNX model with random weights, made here.  Without a GPU a small one is served.
"""

import argparse
import ctypes
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx_network import Network

import cudnnlite as dnn

ARITHMETICS = {
    "float16": {"dtype": "float16", "layout": "NHWC", "channels": 4},
    "tf32": {"dtype": "float32", "layout": "NHWC", "channels": 4, "math_type": dnn.TF32},
    "float32": {"dtype": "float32", "layout": "NCHW", "math_type": dnn.TRUE_FLOAT32},
}
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


class EngineSearch:
    """Chooses the engine of each fused convolution by measurement, on the device; see `Network`.

    cuDNN's heuristic names one for the fused graph.  The others that are tried are those that the tuner found for the
    convolution alone, the fastest first, as long as `seconds` of a convolution last; what cuDNN refuses for the fused graph is
    passed over.  `found` keeps what was measured, for servers on GPUs of the same kind.
    """

    def __init__(self, handle, found, seconds=1.0):
        self.handle, self.found, self.seconds = handle, found, seconds

    def __call__(self, make, arrays, out):
        first = make()
        key = str(first)
        if key not in self.found:
            self.found[key] = self.search(first, make, arrays, out)
        if self.found[key] is None:
            return first
        first.close()
        return make(algorithm=self.found[key])

    def search(self, first, make, arrays, out):
        best, shortest = None, self.measure(first, arrays, out)
        with dnn.Tuner(self.handle, policy=dnn.TuningPolicy(objective="device")) as tuner:
            table = tuner.tune(dnn.ConvolutionForwardProblem(first.x, first.w, first.conv))
        end = time.perf_counter() + self.seconds
        for engine in [row.algorithm for row in table if row.ok and isinstance(row.algorithm, dnn.Engine)]:
            if time.perf_counter() > end:
                break
            try:
                with make(algorithm=engine) as plan:
                    taken = self.measure(plan, arrays, out)
            except (dnn.CudnnError, dnn.ArgumentError):  # of the graph, or of its capture
                continue
            if taken < 0.98 * shortest:
                best, shortest = engine, taken
        return best

    def measure(self, plan, arrays, out):
        """Return the milliseconds of a call on the device: the least of five times ten calls in a CUDA graph."""
        plan(*arrays, out=out)
        with dnn.capture(self.handle) as graph:
            for _ in range(10):
                plan(*arrays, out=out)
        times = [self.handle.device.elapsed_ms(graph.launch, self.handle.stream) / 10 for _ in range(6)]
        graph.close()
        return min(times[1:])


class HostCopy:
    """Host memory beside a device array: pinned where there is a GPU, so that copies do not wait."""

    def __init__(self, handle, array):
        self.device, self.array, self.stream = handle.device, array, handle.stream
        self.pinned = self.remote = None
        if self.device.kind == "cuda":
            from cuda import core

            self.pinned = core.LegacyPinnedMemoryResource().allocate(array.nbytes)
            self.remote = core.Buffer.from_handle(array.ptr, array.nbytes, owner=array)
            memory = (ctypes.c_uint8 * array.nbytes).from_address(int(self.pinned.handle))
            self.bytes = np.frombuffer(memory, np.uint8)
        else:
            self.bytes = np.empty(array.nbytes, np.uint8)

    def upload(self):
        if self.pinned is None:
            self.device.copy_in(self.array.ptr, self.bytes, self.stream)
        else:
            self.pinned.copy_to(self.remote, stream=self.stream)

    def download(self):
        if self.pinned is None:
            self.device.copy_out(self.bytes, self.array.ptr, self.stream)
        else:
            self.remote.copy_to(self.pinned, stream=self.stream)


class Server:
    """A network for one size of its batch, captured: `start` enqueues a batch, `finish` waits for its logits."""

    def __init__(self, handle, model, batch, arithmetic="float16", search=None):
        self.handle = handle
        self.network = Network(handle, model, batch=batch, choose=search, **ARITHMETICS[arithmetic])
        self.network.run()  # now all plans and the workspace are there
        with dnn.capture(handle) as self.graph:
            self.network.run()
        self.input = HostCopy(handle, self.network.inputs["image"])
        self.output = HostCopy(handle, self.network.outputs["logits"])
        self.shape = self.network.outputs["logits"].shape

    def fill(self, images):
        """Bring images, float32 (N, 3, H, W), into the input's data type and layout, in pinned memory."""
        self.input.bytes[:] = self.network.packed("image", images).reshape(-1).view(np.uint8)

    def start(self):
        """Enqueue copy, network, copy; returns at once."""
        self.input.upload()
        self.graph.launch()
        self.output.download()

    def finish(self):
        """Wait for the logits; they are overwritten by the next batch."""
        self.handle.synchronize()
        return self.output.bytes.view(self.network.dtype).reshape(self.shape)

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


def show_layers(rows):
    """Print what each layer takes, beside the least that its products and its memory need."""
    print(f"{'layer':24}{'kind':20}{'us':>8}{'products':>10}{'memory':>8}{'of roof':>9}")
    for name, kind, taken, products, memory in rows:
        print(f"{name:24}{kind:20}{taken:8.1f}{products:10.1f}{memory:8.1f}{max(products, memory) / taken:9.0%}")
    taken, roof = sum(row[2] for row in rows), sum(max(row[3:]) for row in rows)
    print(
        f"{'all':44}{taken:8.1f}{sum(row[3] for row in rows):10.1f}{sum(row[4] for row in rows):8.1f}{roof / taken:9.0%}"
    )


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


def show_peer(model, images, logits, arithmetic, ours, repeats):
    """Print PyTorch's times for the same batch: channels last, cuDNN's benchmark."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = arithmetic != "float32"
    dtype = torch.float16 if arithmetic == "float16" else torch.float32
    network = torch_model(model).cuda().to(dtype).to(memory_format=torch.channels_last)
    x = torch.from_numpy(images).cuda().to(dtype).to(memory_format=torch.channels_last)
    wait = torch.cuda.synchronize
    with torch.inference_mode():
        for _ in range(3):
            theirs = network(x)
        error = np.abs(theirs.float().cpu().numpy() - logits).max() / np.abs(logits).max()
        print(f"    PyTorch {torch.__version__}: logits differ by {error:.1e} of the largest")
        found = {"eager": back_to_back(lambda: network(x), wait, repeats)}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            network(x)
        found["CUDA graph"] = back_to_back(graph.replay, wait, repeats)
        compiled = torch.compile(network, mode="reduce-overhead")
        for _ in range(4):
            compiled(x)
        wait()
        found["compiled"] = back_to_back(lambda: compiled(x), wait, repeats)
    for name, taken in found.items():
        print(f"    PyTorch {name:12} {taken:8.3f} ms; ours takes {ours[name == 'eager'] / taken:.3f} of that")


class Latencies:
    """Counts of times by the microsecond, up to 0.2 s: those of ten minutes take no more memory than those of one."""

    def __init__(self):
        self.counts = np.full(200_000, 0)

    def add(self, seconds):
        self.counts[min(int(seconds * 1e6), len(self.counts) - 1)] += 1

    def __str__(self):
        total = np.cumsum(self.counts)
        low, high = (np.searchsorted(total, part * total[-1]) / 1e3 for part in (0.5, 0.99))
        return f"p50 {low:.3f} ms, p99 {high:.3f} ms ({high / max(low, 1e-3):.2f} of it)"


def memory(handle):
    """Return the bytes that this process has in the host's memory, and that are taken of the device's."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    free, total = handle.device.memory_info()
    return np.array([resident, total - free])


def serve(device, model, images, given, found, start):
    """Serve on one GPU from `start` on: two batches in flight, so that copies and network run at the same time."""
    batch = len(images)
    with dnn.Handle(device) as first, dnn.Handle(device) as second:
        servers = []
        for handle in (first, second):
            handle.stream = handle.device.create_stream()
            search = EngineSearch(handle, found, given.search) if given.search else None
            servers.append(Server(handle, model, batch, given.arithmetic, search))
            servers[-1].fill(images)
            servers[-1].start()
        logits = servers[0].finish().astype(np.float64).reshape(batch, -1)
        servers[1].finish()
        minute, all_of_it, count, minutes = Latencies(), Latencies(), 0, 0
        start.wait()
        began = now = mark = time.perf_counter()
        before, started = memory(first), [now, now]
        servers[0].start()
        while now < began + given.seconds or count < 4:
            started[1] = time.perf_counter()
            servers[1].start()
            servers[0].finish()
            now = time.perf_counter()
            minute.add(now - started[0])
            all_of_it.add(now - started[0])
            count += 1
            servers.reverse()
            started.reverse()
            if now > mark + EVERY:
                mark, minutes = now, minutes + 1
                resident, taken = memory(first) / 2**20
                print(
                    f"    {device}, minute {minutes}: {minute}; resident {resident:.1f} MiB, device {taken:.1f} MiB",
                    flush=True,
                )
                minute = Latencies()
        servers[0].finish()
        rate = count * batch / (now - began)
        after = memory(first)
        for server in servers:
            server.close()
    return device, rate, all_of_it, before, after, logits


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


def show_throughput(devices, model, images, given, found):
    """Print images per second: of the first GPU alone, and of all together."""
    alone = served(devices[:1], model, images, given, found) if len(devices) > 1 else []
    results = served(devices, model, images, given, found)
    for device, rate, times, before, after, logits in alone + results:
        same = np.abs(logits - results[0][-1]).max() / np.abs(logits).max()
        (resident, taken), grown = before / 2**20, (after - before) / 2**20
        print(
            f"    {device}: {rate:,.0f} images/s, two batches in flight: {times}; resident {resident:.1f} MiB, grew by "
            f"{grown[0]:.1f}; device {taken:.1f} MiB, grew by {grown[1]:.1f}; logits as on the others to {same:.0e}"
        )
    if alone:
        together = sum(one[1] for one in results)
        print(f"    {len(devices)} GPUs: {together:,.0f} images/s, {together / alone[0][1]:.3f} of one")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--arithmetic", choices=ARITHMETICS, default="float16")
    parser.add_argument("--search", type=float, metavar="SECONDS", help="measure other engines for each convolution")
    parser.add_argument("--layers", action="store_true", help="a table of layers against the device's roofline")
    parser.add_argument("--peer", action="store_true", help="PyTorch beside")
    parser.add_argument("--devices", default="0", help="numbers of GPUs, as 0,1")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long throughput is measured")
    parser.add_argument("--minutes", type=float, help="the same in minutes")
    parser.add_argument("--small", action="store_true", help="a small network; so it is without a GPU in any case")
    given = parser.parse_args()
    os.environ.setdefault("CUDNNLITE_DEVICE", "auto")
    given.seconds = 60 * given.minutes if given.minutes else given.seconds
    with dnn.Handle() as handle:
        devices = [f"{handle.device.kind}:{number}" for number in given.devices.split(",")]
    for batch in given.batch:
        with dnn.Handle(devices[0]) as handle:
            handle.stream = handle.device.create_stream()  # not CUDA's default stream, which waits for all others
            small = given.small or handle.device.kind == "emulated"
            model = resnet((1, 1, 1, 1), 8, 32, 10) if small else resnet()
            begin, found = time.perf_counter(), {}
            search = EngineSearch(handle, found, given.search) if given.search else None
            server = Server(handle, model, batch, given.arithmetic, search)
            print(f"ResNet-50, {given.arithmetic}, batch {batch}, {handle.device.name}{', small' if small else ''}: "
                  f"made in {time.perf_counter() - begin:.1f} s, {len(server.network.steps)} calls, "
                  f"results in {server.network.share:.0%} of the memory that they would take apart")  # fmt: skip
            size = 32 if small else 224
            images = np.random.default_rng(1).standard_normal((batch, 3, size, size), np.float32)
            server.fill(images)
            server.start()
            logits = server.finish().astype(np.float64).reshape(batch, -1)
            repeats, wait = (2 if small else 50), handle.synchronize
            times = timed(server.start, server.finish, min(given.seconds, 1.0))
            low, high = np.percentile(times, (50, 99))
            ours = back_to_back(server.graph.launch, wait, repeats), back_to_back(server.network.run, wait, repeats)
            print(f"    latency with both copies: p50 {low:.3f} ms, p99 {high:.3f} ms")
            print(f"    a batch on the device: {ours[0]:.3f} ms as a graph, {ours[1]:.3f} ms call by call")
            if given.layers:
                name = next((name for name in PEAKS if name in handle.device.name), "H200")
                print(f"    least times by the promised speeds of {name}")
                show_layers(layer_table(server, PEAKS[name], given.arithmetic))
            if given.peer:
                show_peer(model, images, logits, given.arithmetic, ours, repeats)
            server.close()
        show_throughput(devices, model, images, given, found)


if __name__ == "__main__":
    main()
