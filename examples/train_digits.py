"""A convolutional network learns handwritten digits: cudnnlite's operations and NumPy, no autograd.

    python train_digits.py                      # true float32
    python train_digits.py --arithmetic mixed   # float16, with weights in float32
    python train_digits.py --pictures .         # curves, filters and feature maps as PNG files
    python train_digits.py --devices 0,1        # two GPUs, gradients summed by NCCL
    python train_digits.py --network classical  # of 28x28, three convolutions without pooling

The digits (1,797 images of 8x8) come with scikit-learn.  A fifth of them is held out.  The classical
network is one of textbooks for images of 28x28; it sees the same digits, enlarged.  The program runs
on a GPU, or more slowly without one.
"""

import argparse
import os
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np

import cudnnlite as dnn

# name: data type of the layers, math type of the products, factor of the loss. With the factor,
# small gradients in float16 do not become zero.
ARITHMETICS = {
    "float32": ("float32", dnn.TRUE_FLOAT32, 1.0),
    "tf32": ("float32", dnn.TF32, 1.0),
    "mixed": ("float16", dnn.MathType.DEFAULT, 1024.0),
    "float64": ("float64", dnn.MathType.DEFAULT, 1.0),
}
POOL = dnn.PoolingSpec(2)
CLASSES = 10


def enlarged(images, size):
    """Return images (N, 1, H, W) in another size; values between pixels lie on straight lines."""
    for axis in (2, 3):
        places = np.linspace(0, images.shape[axis] - 1, size)
        before = np.floor(places).astype(int)
        behind = np.minimum(before + 1, images.shape[axis] - 1)
        shape = [1, 1, 1, 1]
        shape[axis] = size
        part = (places - before).reshape(shape)
        images = (1 - part) * images.take(before, axis) + part * images.take(behind, axis)
    return images


def load_digits(seed=0, size=8):
    """Return images and labels for training, and held-out ones.

    Images are (N, 1, size, size) from 0 to 1, labels (N,).
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    images = enlarged(digits.images[:, None] / 16, size).astype(np.float32)
    labels = digits.target
    order = np.random.default_rng(seed).permutation(len(labels))
    train, held_out = order[len(order) // 5 :], order[: len(order) // 5]
    return images[train], labels[train], images[held_out], labels[held_out]


def one_hot(labels):
    """Return the right answers of the network: (N, 10, 1, 1)."""
    return np.eye(CLASSES, dtype=np.float32)[labels][:, :, None, None]


class Network:
    """Two convolutions with pooling, two fully connected layers, softmax, and the gradients.

    x (N, 1, 8, 8) -> h1 -> pooled p1 (4x4) -> h2 -> pooled p2 (2x2) -> h3 (N, hidden, 1, 1)
    -> z (N, 10, 1, 1) -> softmax

    `weights`, `gradients` and `momenta` have arrays by name: w1, b1 to w4, b4.  They are in
    float32, or in float64 if the layers are.  `copies` is the number of copies of the network on
    all GPUs.
    """

    image_size = 8
    widths = (16, 32, 64)

    def __init__(self, handle, arithmetic="float32", widths=None, seed=0, copies=1):
        self.handle = handle
        self.copies = copies
        self.dtype, math_type, self.loss_scale = ARITHMETICS[arithmetic]
        self.master = "float64" if self.dtype == "float64" else "float32"
        # With this padding, a filter of 3x3 does not change the size of an image.
        self.conv = dnn.ConvolutionSpec(padding=1, math_type=math_type)
        # A filter as large as the image makes a matrix product.
        self.full = dnn.ConvolutionSpec(math_type=math_type)
        # The same for filters of 6x6, which halve an image.
        self.halving = dnn.ConvolutionSpec(padding=2, stride=2, math_type=math_type)
        values = {}
        rng = np.random.default_rng(seed)
        for name, shape in self.filter_shapes(*(widths or self.widths)).items():
            # This scale keeps the variance after a relu (He et al., 2015).
            scale = np.sqrt(2 / np.prod(shape[1:]))
            values[name] = scale * rng.standard_normal(shape)
            values[name.replace("w", "b")] = np.zeros((1, shape[0], 1, 1))
        zeros = {name: np.zeros_like(array) for name, array in values.items()}
        self.weights = {name: self.master_array(array) for name, array in values.items()}
        self.gradients = {name: self.master_array(array) for name, array in zeros.items()}
        self.momenta = {name: self.master_array(array) for name, array in zeros.items()}
        self.loss_sum = self.master_array(np.zeros((1, 1, 1, 1)))
        self._results = {}  # by the name of the result

    @staticmethod
    def filter_shapes(a, b, c):
        """Return the shapes of the filters by name, for these numbers of channels."""
        return {
            "w1": (a, 1, 3, 3),
            "w2": (b, a, 3, 3),
            "w3": (c, b, 2, 2),
            "w4": (CLASSES, c, 1, 1),
        }

    def master_array(self, values):
        return self.handle.array(values, dtype=self.master)

    def into(self, name, function, *arguments, **options):
        """Call an operation, and store its result under a name.

        The next call with that name overwrites the result.
        """
        out = self._results.get(name)
        self._results[name] = function(self.handle, *arguments, out=out, **options)
        return self._results[name]

    def converted(self, name, array, dtype):
        """Return an array in another data type, or the array if it has that type."""
        if array.dtype == dtype:
            return array
        if name not in self._results:
            self._results[name] = self.handle.empty(array.shape, dtype)
        return dnn.transform_tensor(self.handle, array, out=self._results[name])

    def forward(self, x):
        """Return the results of all layers for images on the device."""
        n = x.shape[0]  # Each batch size has its own arrays.
        w = self.layer_weights()
        layer, pool = dnn.convolution_bias_activation_forward, dnn.pooling_forward
        s = SimpleNamespace(x=x, n=n, w=w)
        # h1 = relu(w1 * x + b1), p1 = max over 2x2 of h1
        s.h1 = self.into(f"h1 {n}", layer, x, w.w1, w.b1, self.conv, "relu")
        s.p1 = self.into(f"p1 {n}", pool, s.h1, POOL)
        # h2 = relu(w2 * p1 + b2), p2 = max over 2x2 of h2
        s.h2 = self.into(f"h2 {n}", layer, s.p1, w.w2, w.b2, self.conv, "relu")
        s.p2 = self.into(f"p2 {n}", pool, s.h2, POOL)
        # h3 = relu(W3 p2 + b3)
        s.h3 = self.into(f"h3 {n}", layer, s.p2, w.w3, w.b3, self.full, "relu")
        # z = W4 h3 + b4
        z = self.into(f"z {n}", dnn.convolution_forward, s.h3, w.w4, self.full, bias=w.b4)
        return self.with_softmax(s, z)

    def layer_weights(self):
        """Return the weights in the data type of the layers."""
        w = SimpleNamespace()
        for name, array in self.weights.items():
            setattr(w, name, self.converted(f"{name} low", array, self.dtype))
        return w

    def with_softmax(self, s, z):
        """Add z and the softmax to the results.

        The loss is computed in float32, or in float64 if the layers are.
        """
        s.z = self.converted(f"z high {s.n}", z, self.master)
        # p = exp(z) / sum of exp(z)
        s.softmax = self.into(f"softmax {s.n}", dnn.softmax_forward, s.z)
        return s

    def gradient_of_z(self, s, target):
        """Return the gradient of the loss, times `loss_scale`, at the input of the softmax."""
        scale = self.loss_scale / (s.n * self.copies)
        # L = -1/N sum t log softmax(z)   =>   dz = (softmax(z) - t) / N
        dz = self.into(
            f"dz {s.n}", dnn.op_tensor, s.softmax, target, "add", alpha1=scale, alpha2=-scale
        )
        return self.converted(f"dz low {s.n}", dz, self.dtype)

    def add_gradients(self, gradients, number, x, dy, conv, filters):
        """Add the gradients of a layer's weights and bias: dW = dy x^T, db = sum of dy."""
        w_name, b_name = f"w{number}", f"b{number}"
        gradients[w_name] = self.into(
            f"d{w_name}", dnn.convolution_backward_filter, x, dy, conv, w=filters
        )
        gradients[b_name] = self.into(f"d{b_name}", dnn.convolution_backward_bias, dy)

    def store(self, gradients):
        """Store the gradients in the data type of the weights."""
        for name, gradient in gradients.items():
            self.gradients[name] = self.converted(f"d{name} high", gradient, self.master)

    def add_loss(self, s, target):
        """Add the loss of a batch to `loss_sum`, on the device.

        The loss is L = -1/N * sum of t * log p, where N counts the images of all copies.
        """
        log = self.into(f"log {s.n}", dnn.softmax_forward, s.z, algorithm="log")
        product = self.into(f"product {s.n}", dnn.op_tensor, log, target, "mul")
        alpha = -1 / (s.n * self.copies)
        dnn.reduce_tensor(self.handle, product, "add", alpha=alpha, beta=1.0, out=self.loss_sum)

    def backward(self, s, target):
        """Compute the gradients of the loss, times `loss_scale`, from the last layer to the first.

        A name with d is a gradient: dz is dL/dz.
        """
        n, w = s.n, s.w
        data, relu, pool = (
            dnn.convolution_backward_data,
            dnn.activation_backward,
            dnn.pooling_backward,
        )
        gradients = {}
        add_weights = partial(self.add_gradients, gradients)
        dz = self.gradient_of_z(s, target)
        # z = W4 h3 + b4   =>   dW4 = dz h3^T, db4 = sum of dz, dh3 = W4^T dz
        add_weights(4, s.h3, dz, self.full, w.w4)
        dh3 = self.into(f"dh3 {n}", data, w.w4, dz, self.full, x=s.h3)
        # h3 = relu(a3)   =>   da3 = dh3 where h3 > 0, else 0
        da3 = self.into(f"da3 {n}", relu, s.h3, dh3, s.h3, "relu")
        # a3 = W3 p2 + b3
        add_weights(3, s.p2, da3, self.full, w.w3)
        dp2 = self.into(f"dp2 {n}", data, w.w3, da3, self.full, x=s.p2)
        # p2 = max over 2x2 of h2   =>   dh2 = dp2 where the maximum was, else 0
        dh2 = self.into(f"dh2 {n}", pool, s.p2, dp2, s.h2, POOL)
        da2 = self.into(f"da2 {n}", relu, s.h2, dh2, s.h2, "relu")
        # a2 = w2 * p1 + b2   =>   dw2 = p1 * da2, a convolution of the images with their gradients,
        # and dp1 = da2 * w2 rotated
        add_weights(2, s.p1, da2, self.conv, w.w2)
        dp1 = self.into(f"dp1 {n}", data, w.w2, da2, self.conv, x=s.p1)
        dh1 = self.into(f"dh1 {n}", pool, s.p1, dp1, s.h1, POOL)
        da1 = self.into(f"da1 {n}", relu, s.h1, dh1, s.h1, "relu")
        # a1 = w1 * x + b1. The gradient of x is not needed.
        add_weights(1, s.x, da1, self.conv, w.w1)
        self.store(gradients)

    def update(self, rate, momentum):
        """Stochastic gradient descent: v = momentum * v + dw / loss_scale, w = w - rate * v."""
        scale = 1 / self.loss_scale
        for name, gradient in self.gradients.items():
            velocity = self.momenta[name]
            dnn.add_tensor(self.handle, gradient, velocity, alpha=scale, beta=momentum)
            dnn.add_tensor(self.handle, velocity, self.weights[name], alpha=-rate)

    def images(self, values):
        return self.handle.array(values, dtype=self.dtype)


class ClassicalNetwork(Network):
    """Three convolutions, two fully connected layers, softmax, and the gradients.

    A network of textbooks for digits of 28x28: filters of 3x3, then of 6x6 with a stride of 2, twice,
    which take the place of pooling.

    x (N, 1, 28, 28) -> h1 (28x28) -> h2 (14x14) -> h3 (7x7) -> h4 (N, hidden, 1, 1)
    -> z (N, 10, 1, 1) -> softmax
    """

    image_size = 28
    widths = (12, 24, 32, 200)

    @staticmethod
    def filter_shapes(a, b, c, d):
        """Return the shapes of the filters by name, for these numbers of channels."""
        return {
            "w1": (a, 1, 3, 3),
            "w2": (b, a, 6, 6),
            "w3": (c, b, 6, 6),
            "w4": (d, c, 7, 7),
            "w5": (CLASSES, d, 1, 1),
        }

    def convolutions(self):
        """Return the convolutions of the layers with a relu, the first one first."""
        return self.conv, self.halving, self.halving, self.full

    def forward(self, x):
        """Return the results of all layers for images on the device."""
        n = x.shape[0]
        w = self.layer_weights()
        s = SimpleNamespace(x=x, n=n, w=w, h=[x])
        # h[i] = relu(w[i] * h[i - 1] + b[i])
        for number, conv in enumerate(self.convolutions(), start=1):
            filters, bias = getattr(w, f"w{number}"), getattr(w, f"b{number}")
            function = dnn.convolution_bias_activation_forward
            s.h.append(self.into(f"h{number} {n}", function, s.h[-1], filters, bias, conv, "relu"))
        z = self.into(f"z {n}", dnn.convolution_forward, s.h[-1], w.w5, self.full, bias=w.b5)
        return self.with_softmax(s, z)

    def backward(self, s, target):
        """Compute the gradients of the loss, times `loss_scale`, from the last layer to the first."""
        n, w, gradients = s.n, s.w, {}
        data = dnn.convolution_backward_data
        # z = W5 h4 + b5
        dz = self.gradient_of_z(s, target)
        self.add_gradients(gradients, 5, s.h[4], dz, self.full, w.w5)
        dh = self.into(f"dh4 {n}", data, w.w5, dz, self.full, x=s.h[4])
        for number, conv in reversed([*enumerate(self.convolutions(), start=1)]):
            # h = relu(a)   =>   da = dh where h > 0, else 0
            y, filters = s.h[number], getattr(w, f"w{number}")
            da = self.into(f"da{number} {n}", dnn.activation_backward, y, dh, y, "relu")
            # a = w * x + b
            x = s.h[number - 1]
            self.add_gradients(gradients, number, x, da, conv, filters)
            if number > 1:  # The gradient of the images is not needed.
                dh = self.into(f"dh{number - 1} {n}", data, filters, da, conv, x=x)
        self.store(gradients)


NETWORKS = {"small": Network, "classical": ClassicalNetwork}


def accuracy(network, images, labels):
    """Return the part of the images that are recognised, from 0 to 1."""
    answers = network.forward(network.images(images)).z.numpy()
    return float((answers.reshape(len(labels), CLASSES).argmax(1) == labels).mean())


@contextmanager
def adder(handles):
    """Yield a function that replaces arrays on several handles by their sums, in stream order.

    Its arguments are a list of arrays for each handle.  NCCL computes the sums, through CuPy.
    NumPy does so on the emulated device, and if handles share a GPU, which NCCL refuses.
    """
    devices = [handle.device.index for handle in handles]
    shares_gpu = len(set(devices)) < len(devices)
    if handles[0].device.kind == "emulated" or shares_gpu:
        yield partial(add_on_the_host, handles)
        return
    from cupy.cuda import nccl

    ranks = nccl.NcclCommunicator.initAll(devices)
    types = {"float32": nccl.NCCL_FLOAT32, "float64": nccl.NCCL_FLOAT64}

    def add(*lists):
        nccl.groupStart()  # The calls of one thread for several GPUs must be one group.
        for rank, handle, arrays in zip(ranks, handles, lists, strict=True):
            stream = int(handle.stream.handle)
            for array in arrays:
                address, count = array.ptr, int(np.prod(array.shape))
                kind = types[array.dtype.name]
                rank.allReduce(address, address, count, kind, nccl.NCCL_SUM, stream)
        nccl.groupEnd()

    try:
        yield add
    finally:
        for rank in ranks:
            rank.destroy()


def add_on_the_host(handles, *lists):
    """Replace arrays on several handles by their sums, which the host computes."""
    for arrays in zip(*lists, strict=True):
        total = sum(array.numpy() for array in arrays)
        for handle, array in zip(handles, arrays, strict=True):
            handle.device.copy_in(array.ptr, total, handle.stream)


class Trainer:
    """Makes the training steps of a network, or of its copies on several GPUs.

    Each copy takes an equal part of a batch.  `add` sums the gradients of the copies, so that all
    make the same step.  With `uses_graphs`, a call is made once, captured into a CUDA graph, and
    launched from then on.  There is one graph before the sum of the gradients, and one after it.
    """

    def __init__(self, networks, images, labels, *, batch, momentum, uses_graphs, add):
        self.networks, self.images, self.labels = networks, images, labels
        self.batch, self.momentum = batch, momentum
        self.part = batch // len(networks)
        self._uses_graphs, self._add = uses_graphs, add
        self._graphs = {}
        targets = one_hot(labels[: self.part])
        self._operands = [
            (network.images(images[: self.part]), network.master_array(targets))
            for network in networks
        ]

    def step(self, indices, rate):
        """Train with one batch, whose images have these indices."""
        parts = indices.reshape(len(self.networks), self.part)
        for network, operands, part in zip(self.networks, self._operands, parts, strict=True):
            values = (self.images[part], one_hot(self.labels[part]))
            for array, new_values in zip(operands, values, strict=True):
                host = np.ascontiguousarray(new_values.astype(array.dtype))
                network.handle.device.copy_in(array.ptr, host, network.handle.stream)
            self._run(self._compute, network, rate, *operands)
        if len(self.networks) > 1:
            self._add(*(list(network.gradients.values()) for network in self.networks))
            for network in self.networks:
                self._run(self._update, network, rate)

    def _compute(self, network, rate, x, target):
        """Compute the gradients of a batch; a network without copies is updated too."""
        state = network.forward(x)
        network.add_loss(state, target)
        network.backward(state, target)
        if len(self.networks) == 1:
            self._update(network, rate)

    def _update(self, network, rate):
        network.update(rate, self.momentum)

    def _run(self, call, network, rate, *operands):
        """Make a call, or launch its graph."""
        network.handle.device.activate()  # makes its GPU the current one
        key = call.__name__, network, rate
        if key in self._graphs:
            self._graphs[key].launch()
            return
        call(network, rate, *operands)
        if self._uses_graphs:  # All arrays and plans exist after the first call.
            with dnn.capture(network.handle) as self._graphs[key]:
                call(network, rate, *operands)

    def close(self):
        for graph in self._graphs.values():
            graph.close()


def train(
    networks,
    data,
    *,
    epochs=20,
    batch=64,
    rate=0.05,
    momentum=0.9,
    seed=0,
    graph=True,
    add=None,
    report=None,
):
    """Train the networks in a list: a single one, or copies of one on several GPUs.

    Returns the loss and both accuracies after each epoch, and the seconds of all epochs.  For the
    last quarter of the epochs the rate is a tenth, and the step is captured again.  `graph`, `add`:
    see `Trainer`.  `report(epoch, history)` is called after each epoch.
    """
    images, labels, held_images, held_labels = data
    sample = slice(len(held_labels))
    rng = np.random.default_rng(seed)
    trainer = Trainer(
        networks, images, labels, batch=batch, momentum=momentum, uses_graphs=graph, add=add
    )
    history = {"loss": [], "train": [], "held_out": []}
    begin = time.perf_counter()
    steps = len(labels) // batch
    for epoch in range(epochs):
        epoch_rate = rate if epoch < epochs * 3 // 4 else rate / 10
        order = rng.permutation(len(labels))
        for network in networks:
            dnn.set_tensor(network.handle, network.loss_sum, 0.0)
        for index in range(steps):
            trainer.step(order[index * batch : (index + 1) * batch], epoch_rate)
        loss_sums = [float(network.loss_sum.numpy().item()) for network in networks]
        history["loss"].append(sum(loss_sums) / steps)
        history["train"].append(accuracy(networks[0], images[sample], labels[sample]))
        history["held_out"].append(accuracy(networks[0], held_images, held_labels))
        if report is not None:
            report(epoch, history)
    trainer.close()
    return {**history, "seconds": time.perf_counter() - begin}


def show_curves(plt, histories):
    """Draw loss and accuracy by epoch, with a line for each arithmetic."""
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
    """Draw the first layer's filters, and their feature maps of an image."""
    filters = network.weights["w1"].numpy()[:, 0]
    maps = network.forward(network.images(image[None])).h1.numpy()[0].astype(np.float32)
    columns = min(8, len(filters))
    figure, axes = plt.subplots(2, columns, figsize=(columns, 2.4), layout="constrained")
    largest = abs(filters).max()
    for index in range(columns):
        axes[0, index].imshow(filters[index], cmap="RdBu", vmin=-largest, vmax=largest)
        axes[1, index].imshow(maps[index], cmap="gray")
    for axis in axes.flat:
        axis.set_axis_off()
    figure.suptitle("filters of the first layer, and their feature maps", fontsize=10)
    return figure


def parse_options():
    """Return the options of the command line, and the numbers of the devices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arithmetic", choices=(*ARITHMETICS, "all"), default="float32")
    parser.add_argument("--network", choices=NETWORKS, default="small")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--devices",
        default="0",
        help="numbers of GPUs, as 0,1; each takes an equal part of every batch",
    )
    parser.add_argument(
        "--no-graph",
        action="store_true",
        help="call each operation, instead of launching a CUDA graph",
    )
    parser.add_argument(
        "--pictures", metavar="FOLDER", help="write curves.png and filters.png there"
    )
    options = parser.parse_args()
    numbers = options.devices.split(",")
    if options.batch % len(numbers):
        parser.error(f"a batch of {options.batch} has no equal parts for {len(numbers)} devices")
    return options, numbers


def save_pictures(folder, histories, network, image):
    """Write curves.png and filters.png."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    show_curves(plt, histories).savefig(os.path.join(folder, "curves.png"), dpi=120)
    show_filters(plt, network, image).savefig(os.path.join(folder, "filters.png"), dpi=120)


def main():
    options, numbers = parse_options()
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    os.environ.setdefault("CUDNNLITE_DEVICE", "auto")
    kind_of_network = NETWORKS[options.network]
    data, histories = load_digits(size=kind_of_network.image_size), {}
    names = [options.arithmetic]
    if options.arithmetic == "all":
        names = ["float32", "tf32", "mixed"]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with ExitStack() as stack, Progress(*columns) as progress:
        kind = stack.enter_context(dnn.Handle()).device.kind
        handles = [stack.enter_context(dnn.Handle(f"{kind}:{number}")) for number in numbers]
        for handle in handles:
            # CUDA cannot capture its default stream.
            handle.stream = handle.device.create_stream()
            progress.console.print(f"device: {handle.device} {handle.device.name}")
        add = stack.enter_context(adder(handles)) if len(handles) > 1 else None
        for name in names:
            task = progress.add_task(name, total=options.epochs, figures="")
            networks = [kind_of_network(handle, name, copies=len(handles)) for handle in handles]

            def report(epoch, history, task=task):
                figures = f"loss {history['loss'][-1]:.4f}, held out {history['held_out'][-1]:.2%}"
                progress.update(task, completed=epoch + 1, figures=figures)

            history = histories[name] = train(
                networks,
                data,
                epochs=options.epochs,
                batch=options.batch,
                graph=not options.no_graph,
                add=add,
                report=report,
            )
            held_out = f"{history['held_out'][-1]:.2%} of the held-out digits read rightly"
            progress.console.print(
                f"{name}: {held_out}, loss {history['loss'][-1]:.4f}, {history['seconds']:.2f} s"
            )
        if options.pictures:
            save_pictures(options.pictures, histories, networks[0], data[2][0])


if __name__ == "__main__":
    main()
