"""A convolutional network learns to read handwritten digits: cudnnlite's operations and NumPy, no autograd.

    python train_digits.py                          # true float32
    python train_digits.py --arithmetic mixed       # float16, with weights in float32
    python train_digits.py --pictures .             # curves, filters, feature maps as PNG files
    python train_digits.py --devices 0,1            # half of each batch on each of two GPUs, gradients summed by NCCL

The digits (1,797 images of 8x8) come with scikit-learn; a fifth of them is held out.  Runs on a GPU, or without one slower.
"""

import argparse
import os
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np

import cudnnlite as dnn

# name: data type of what flows, math type of the products, what the loss is multiplied by
ARITHMETICS = {
    "float32": ("float32", dnn.TRUE_FLOAT32, 1.0),
    "tf32": ("float32", dnn.TF32, 1.0),
    "mixed": ("float16", dnn.MathType.DEFAULT, 1024.0),  # so that small gradients do not become zero
    "float64": ("float64", dnn.MathType.DEFAULT, 1.0),
}
POOL = dnn.PoolingSpec(2)
CLASSES = 10


def load_digits(seed=0):
    """Return training images and labels, and those held out: (N, 1, 8, 8) from 0 to 1, and (N,)."""
    from sklearn import datasets

    digits = datasets.load_digits()
    images, labels = (digits.images[:, None] / 16).astype(np.float32), digits.target
    order = np.random.default_rng(seed).permutation(len(labels))
    train, held_out = order[len(order) // 5 :], order[: len(order) // 5]
    return images[train], labels[train], images[held_out], labels[held_out]


def one_hot(labels):
    """Return (N, 10, 1, 1): what the network should answer."""
    return np.eye(CLASSES, dtype=np.float32)[labels][:, :, None, None]


class Network:
    """Two convolutions with pooling, two fully connected layers, softmax; and its gradients.  One of `copies` on other GPUs.

    x (N, 1, 8, 8) -> h1 -> pooled p1 (4x4) -> h2 -> pooled p2 (2x2) -> h3 (N, hidden, 1, 1) -> z (N, 10, 1, 1) -> softmax

    Weights, their gradients and their momenta are in float32 (float64 where everything is), in `weights`, `gradients` and
    `momenta` by name: w1, b1 to w4, b4.
    """

    def __init__(self, handle, arithmetic="float32", widths=(16, 32, 64), seed=0, copies=1):
        self.handle, self.copies, self.kept = handle, copies, {}
        self.dtype, math_type, self.loss_scale = ARITHMETICS[arithmetic]
        self.master = "float64" if self.dtype == "float64" else "float32"
        self.conv = dnn.ConvolutionSpec(padding=1, math_type=math_type)  # 3x3: as large behind as before
        self.full = dnn.ConvolutionSpec(math_type=math_type)  # a filter as large as the image: a matrix product
        a, b, c = widths
        shapes = {"w1": (a, 1, 3, 3), "w2": (b, a, 3, 3), "w3": (c, b, 2, 2), "w4": (CLASSES, c, 1, 1)}
        rng, values = np.random.default_rng(seed), {}
        for name, shape in shapes.items():  # as large as keeps the variance behind a relu (He et al., 2015)
            values[name] = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
            values[name.replace("w", "b")] = np.zeros((1, shape[0], 1, 1))
        self.weights = {name: self.master_array(array) for name, array in values.items()}
        self.gradients = {name: self.master_array(np.zeros_like(array)) for name, array in values.items()}
        self.momenta = {name: self.master_array(np.zeros_like(array)) for name, array in values.items()}
        self.loss_sum = self.master_array(np.zeros((1, 1, 1, 1)))

    def master_array(self, values):
        return self.handle.array(values, dtype=self.master)

    def into(self, name, function, *arguments, **options):
        """Call an operation; its result is kept under a name, and overwritten by the next call of that name."""
        self.kept[name] = function(self.handle, *arguments, out=self.kept.get(name), **options)
        return self.kept[name]

    def converted(self, name, array, dtype):
        """Return an array in another data type; itself if it has that."""
        if array.dtype == dtype:
            return array
        if name not in self.kept:
            self.kept[name] = self.handle.empty(array.shape, dtype)
        return dnn.transform_tensor(self.handle, array, out=self.kept[name])

    def forward(self, x):
        """Return all layers' results for images on the device."""
        n = x.shape[0]  # each size of a batch has arrays of its own
        w = SimpleNamespace(**{name: self.converted(f"{name} low", a, self.dtype) for name, a in self.weights.items()})
        layer, pool = dnn.convolution_bias_activation_forward, dnn.pooling_forward
        s = SimpleNamespace(x=x, n=n, w=w)
        s.h1 = self.into(f"h1 {n}", layer, x, w.w1, w.b1, self.conv, "relu")  # h1 = relu(w1 * x + b1)
        s.p1 = self.into(f"p1 {n}", pool, s.h1, POOL)  # p1 = max over 2x2 of h1
        s.h2 = self.into(f"h2 {n}", layer, s.p1, w.w2, w.b2, self.conv, "relu")  # h2 = relu(w2 * p1 + b2)
        s.p2 = self.into(f"p2 {n}", pool, s.h2, POOL)
        s.h3 = self.into(f"h3 {n}", layer, s.p2, w.w3, w.b3, self.full, "relu")  # h3 = relu(W3 p2 + b3)
        z = self.into(f"z {n}", dnn.convolution_forward, s.h3, w.w4, self.full, bias=w.b4)  # z = W4 h3 + b4
        s.z = self.converted(f"z high {n}", z, self.master)  # what follows is computed in float32 in any case
        s.softmax = self.into(f"softmax {n}", dnn.softmax_forward, s.z)  # p = exp(z) / sum of exp(z)
        return s

    def add_loss(self, s, target):
        """Add the loss of a batch, L = -1/N * sum of t * log p, to `loss_sum`, on the device; N is of all copies together."""
        log = self.into(f"log {s.n}", dnn.softmax_forward, s.z, algorithm="log")
        product = self.into(f"product {s.n}", dnn.op_tensor, log, target, "mul")
        dnn.reduce_tensor(self.handle, product, "add", alpha=-1 / (s.n * self.copies), beta=1.0, out=self.loss_sum)

    def backward(self, s, target):
        """Compute the gradients of the loss, times `loss_scale`.  From behind: d stands for dL/d."""
        n, w = s.n, s.w
        data, weights, bias = (
            dnn.convolution_backward_data,
            dnn.convolution_backward_filter,
            dnn.convolution_backward_bias,
        )
        relu, pool = dnn.activation_backward, dnn.pooling_backward
        scale = self.loss_scale / (n * self.copies)
        # L = -1/N sum t log softmax(z)   =>   dz = (softmax(z) - t) / N
        dz = self.into(f"dz {n}", dnn.op_tensor, s.softmax, target, "add", alpha1=scale, alpha2=-scale)
        dz = self.converted(f"dz low {n}", dz, self.dtype)
        # z = W4 h3 + b4   =>   dW4 = dz h3^T, db4 = sum of dz, dh3 = W4^T dz
        dw4, db4 = self.into("dw4", weights, s.h3, dz, self.full, w=w.w4), self.into("db4", bias, dz)
        dh3 = self.into(f"dh3 {n}", data, w.w4, dz, self.full, x=s.h3)
        # h3 = relu(a3)   =>   da3 = dh3 where h3 > 0, else 0
        da3 = self.into(f"da3 {n}", relu, s.h3, dh3, s.h3, "relu")
        # a3 = W3 p2 + b3
        dw3, db3 = self.into("dw3", weights, s.p2, da3, self.full, w=w.w3), self.into("db3", bias, da3)
        dp2 = self.into(f"dp2 {n}", data, w.w3, da3, self.full, x=s.p2)
        # p2 = max over 2x2 of h2   =>   dh2 = dp2 where the maximum was, else 0
        dh2 = self.into(f"dh2 {n}", pool, s.p2, dp2, s.h2, POOL)
        da2 = self.into(f"da2 {n}", relu, s.h2, dh2, s.h2, "relu")
        # a2 = w2 * p1 + b2   =>   dw2 = p1 * da2 (a convolution of the images with their gradients), dp1 = da2 * w2 rotated
        dw2, db2 = self.into("dw2", weights, s.p1, da2, self.conv, w=w.w2), self.into("db2", bias, da2)
        dp1 = self.into(f"dp1 {n}", data, w.w2, da2, self.conv, x=s.p1)
        dh1 = self.into(f"dh1 {n}", pool, s.p1, dp1, s.h1, POOL)
        da1 = self.into(f"da1 {n}", relu, s.h1, dh1, s.h1, "relu")
        # a1 = w1 * x + b1; nobody asks for dx
        dw1, db1 = self.into("dw1", weights, s.x, da1, self.conv, w=w.w1), self.into("db1", bias, da1)
        found = {"w1": dw1, "b1": db1, "w2": dw2, "b2": db2, "w3": dw3, "b3": db3, "w4": dw4, "b4": db4}
        self.gradients = {name: self.converted(f"d{name} high", array, self.master) for name, array in found.items()}

    def update(self, rate, momentum):
        """Stochastic gradient descent: v = momentum * v + dw / loss_scale, w = w - rate * v."""
        for name, gradient in self.gradients.items():
            dnn.add_tensor(self.handle, gradient, self.momenta[name], alpha=1 / self.loss_scale, beta=momentum)
            dnn.add_tensor(self.handle, self.momenta[name], self.weights[name], alpha=-rate)

    def images(self, values):
        return self.handle.array(values, dtype=self.dtype)


def accuracy(network, images, labels):
    """Return how many of the images are read rightly, from 0 to 1."""
    answers = network.forward(network.images(images)).z.numpy()
    return float((answers.reshape(len(labels), CLASSES).argmax(1) == labels).mean())


@contextmanager
def adder(handles):
    """Give a function that replaces arrays, as many on each handle's GPU, by their sums, in stream order.

    NCCL does it, through CuPy; on the emulated device, and where handles share a GPU, which NCCL refuses, NumPy.
    """
    devices = [handle.device.index for handle in handles]
    if handles[0].device.kind == "emulated" or len({*devices}) < len(devices):
        yield partial(add_on_the_host, handles)
        return
    from cupy.cuda import nccl

    ranks = nccl.NcclCommunicator.initAll(devices)
    types = {"float32": nccl.NCCL_FLOAT32, "float64": nccl.NCCL_FLOAT64}

    def add(*lists):
        nccl.groupStart()  # what one thread asks of several GPUs is sent as one
        for rank, handle, arrays in zip(ranks, handles, lists, strict=True):
            for array in arrays:
                count, stream = int(np.prod(array.shape)), int(handle.stream.handle)
                rank.allReduce(array.ptr, array.ptr, count, types[array.dtype.name], nccl.NCCL_SUM, stream)
        nccl.groupEnd()

    try:
        yield add
    finally:
        for rank in ranks:
            rank.destroy()


def add_on_the_host(handles, *lists):
    """Replace arrays, as many of each handle, by their sums, by way of the host."""
    for arrays in zip(*lists, strict=True):
        total = sum(array.numpy() for array in arrays)
        for handle, array in zip(handles, arrays, strict=True):
            handle.device.copy_in(array.ptr, total, handle.stream)


def train(networks, data, *, epochs=20, batch=64, rate=0.05, momentum=0.9, seed=0, graph=True, add=None, report=None):  # noqa: C901  (two inner functions share its state)
    """Train a network, given in a list; return loss and both accuracies after each epoch, and the seconds of all.

    Copies of one on several GPUs take equal parts of each batch; `add` sums their gradients, so that all make the same step.
    A step (forward, backward, update) is run once, captured into a CUDA graph and launched from then on, a graph before the
    sum and one behind it; for the last quarter of the epochs the rate is a tenth, and the step captured again.
    """
    images, labels, held_images, held_labels = data
    rng, several, part = np.random.default_rng(seed), len(networks) > 1, batch // len(networks)
    operands = [(one.images(images[:part]), one.master_array(one_hot(labels[:part]))) for one in networks]
    history, captured = {"loss": [], "train": [], "held_out": []}, {}

    def step(network, x, target, rate, momentum):
        s = network.forward(x)
        network.add_loss(s, target)
        network.backward(s, target)
        if not several:
            network.update(rate, momentum)

    def run(call, network, *arguments):
        network.handle.use()  # its GPU is the current one
        key = call, network, arguments[-2]  # the rate
        if key in captured:
            captured[key].launch()
            return
        call(network, *arguments)
        if graph:  # all arrays and plans are there now
            with dnn.capture(network.handle) as captured[key]:
                call(network, *arguments)

    begin, steps = time.perf_counter(), len(labels) // batch
    for epoch in range(epochs):
        now = rate if epoch < epochs * 3 // 4 else rate / 10
        order = rng.permutation(len(labels))
        for network in networks:
            dnn.set_tensor(network.handle, network.loss_sum, 0.0)
        for index in range(steps):
            chosen = order[index * batch : (index + 1) * batch].reshape(len(networks), part)
            for network, arrays, which in zip(networks, operands, chosen, strict=True):
                for array, values in zip(arrays, (images[which], one_hot(labels[which])), strict=True):
                    host = np.ascontiguousarray(values.astype(array.dtype))
                    network.handle.device.copy_in(array.ptr, host, network.handle.stream)
                run(step, network, *arrays, now, momentum)
            if several:
                add(*([*network.gradients.values()] for network in networks))
                for network in networks:
                    run(Network.update, network, now, momentum)
        history["loss"].append(sum(float(network.loss_sum.numpy().item()) for network in networks) / steps)
        history["train"].append(accuracy(networks[0], images[: len(held_labels)], labels[: len(held_labels)]))
        history["held_out"].append(accuracy(networks[0], held_images, held_labels))
        if report is not None:
            report(epoch, history)
    for one in captured.values():
        one.close()
    return {**history, "seconds": time.perf_counter() - begin}


def show_curves(plt, histories):
    """Draw loss and accuracy by epoch; one line for each arithmetic."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for name, history in histories.items():
        epochs = range(1, len(history["loss"]) + 1)
        left.semilogy(epochs, history["loss"], label=name)
        right.plot(epochs, [100 * value for value in history["held_out"]], label=name)
    left.set(xlabel="epoch", ylabel="loss", title="training")
    right.set(xlabel="epoch", ylabel="read rightly, %", title="held out", ylim=(85, 100))
    right.legend()
    return figure


def show_filters(plt, network, image):
    """Draw the first layer's filters, and what each makes of an image."""
    filters = network.weights["w1"].numpy()[:, 0]
    maps = network.forward(network.images(image[None])).h1.numpy()[0].astype(np.float32)
    columns = min(8, len(filters))
    figure, axes = plt.subplots(2, columns, figsize=(columns, 2.4), layout="constrained")
    for index in range(columns):
        axes[0, index].imshow(filters[index], cmap="RdBu", vmin=-abs(filters).max(), vmax=abs(filters).max())
        axes[1, index].imshow(maps[index], cmap="gray")
    for axis in axes.flat:
        axis.set_axis_off()
    figure.suptitle("filters of the first layer, and their feature maps", fontsize=10)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arithmetic", choices=(*ARITHMETICS, "all"), default="float32")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--devices", default="0", help="numbers of GPUs, as 0,1; each takes its part of every batch")
    parser.add_argument(
        "--no-graph", action="store_true", help="call each operation, instead of launching a CUDA graph"
    )
    parser.add_argument("--pictures", metavar="FOLDER", help="write curves.png and filters.png there")
    given = parser.parse_args()
    numbers = given.devices.split(",")
    if given.batch % len(numbers):
        parser.error(f"a batch of {given.batch} has no equal parts for {len(numbers)} devices")
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    os.environ.setdefault("CUDNNLITE_DEVICE", "auto")
    data, histories = load_digits(), {}
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[found]}")
    with ExitStack() as stack, Progress(*columns) as progress:
        kind = stack.enter_context(dnn.Handle()).device.kind
        handles = [stack.enter_context(dnn.Handle(f"{kind}:{number}")) for number in numbers]
        for handle in handles:
            # CUDA does not capture its default stream for others: a stream of our own
            handle.stream = handle.device.create_stream()
            progress.console.print(f"device: {handle.device} {handle.device.name}")
        options = {"epochs": given.epochs, "batch": given.batch, "graph": not given.no_graph}
        add = stack.enter_context(adder(handles)) if len(handles) > 1 else None
        for name in ("float32", "tf32", "mixed") if given.arithmetic == "all" else (given.arithmetic,):
            task = progress.add_task(name, total=given.epochs, found="")
            networks = [Network(handle, name, copies=len(handles)) for handle in handles]

            def report(epoch, history, task=task):
                found = f"loss {history['loss'][-1]:.4f}, held out {history['held_out'][-1]:.2%}"
                progress.update(task, completed=epoch + 1, found=found)

            history = histories[name] = train(networks, data, **options, add=add, report=report)
            best = f"{history['held_out'][-1]:.2%} of the held-out digits read rightly"
            progress.console.print(f"{name}: {best}, loss {history['loss'][-1]:.4f}, {history['seconds']:.2f} s")
        if given.pictures:
            import matplotlib

            matplotlib.use("Agg")
            from matplotlib import pyplot as plt

            show_curves(plt, histories).savefig(os.path.join(given.pictures, "curves.png"), dpi=120)
            show_filters(plt, networks[0], data[2][0]).savefig(os.path.join(given.pictures, "filters.png"), dpi=120)


if __name__ == "__main__":
    main()
