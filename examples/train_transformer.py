"""A small Transformer learns a text, character by character: cudnnlite and NumPy, no autograd.

    python train_transformer.py                       # the text of LICENSE, in float16
    python train_transformer.py --arithmetic float32  # true float32
    python train_transformer.py --device emulated     # without a GPU, and smaller

It is a decoder: embedding, blocks of causal attention and a perceptron, both behind a layer
normalisation, and a matrix product to the scores of the next character.  It prints the loss while
it learns, and then writes some text.

In float16 the products and the attention are graphs of cuDNN, which sum in float32.  Graphs
multiply float32 in TF32, and have no gradients of attention in float32.  So in true float32 each
product is a 1x1 convolution, and attention is made of those and a softmax.
"""

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import cudnnlite as dnn

LICENSE = Path(__file__).parents[1] / "LICENSE"
MASKED = -1e9  # the score of a key that is not attended to, where there is no other mask


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder, and of a batch of texts.

    `characters` is the number of scores: that of different characters, and a few that never occur.
    """

    characters: int
    blocks: int = 2
    heads: int = 4
    head: int = 32
    context: int = 128
    batch: int = 16

    @property
    def width(self):
        return self.heads * self.head


class Text:
    """A text as numbers, one for each different character."""

    def __init__(self, text):
        self.alphabet = sorted(set(text))
        numbers = {character: number for number, character in enumerate(self.alphabet)}
        self.numbers = np.array([numbers[character] for character in text])

    @property
    def scores(self):
        """The number of characters, rounded up: multiples of eight are faster in float16."""
        return -(-len(self.alphabet) // 8) * 8

    def batch(self, rng, sizes):
        """Return pieces of the text, and the character that follows each: (batch, context)."""
        last = len(self.numbers) - sizes.context
        starts = rng.integers(0, last, sizes.batch)
        places = starts[:, None] + np.arange(sizes.context)
        return self.numbers[places], self.numbers[places + 1]

    def characters(self, numbers):
        return "".join(self.alphabet[number] for number in numbers)


# ------------------------------------------------------------------------------- parameters


def parameter_shapes(sizes):
    """Return the shape of each parameter by name; a matrix is (results, operands)."""
    width = sizes.width
    shapes = {"embedding": (sizes.characters, width), "positions": (sizes.context, width)}
    for block in range(sizes.blocks):
        shapes |= {
            f"{block}.norm1.scale": (width,),
            f"{block}.norm1.bias": (width,),
            f"{block}.qkv.w": (3 * width, width),
            f"{block}.qkv.b": (3 * width,),
            f"{block}.out.w": (width, width),
            f"{block}.out.b": (width,),
            f"{block}.norm2.scale": (width,),
            f"{block}.norm2.bias": (width,),
            f"{block}.up.w": (4 * width, width),
            f"{block}.up.b": (4 * width,),
            f"{block}.down.w": (width, 4 * width),
            f"{block}.down.b": (width,),
        }
    shapes |= {"norm.scale": (width,), "norm.bias": (width,)}
    shapes |= {"scores.w": (sizes.characters, width), "scores.b": (sizes.characters,)}
    return shapes


class Parameters:
    """All parameters in one vector: on the host in float32, on the device in the layers' type.

    `values` and `gradients` are the parts on the host by name, `device` and `device_gradients`
    those on the device.  Each part begins at a multiple of 128 values.
    """

    def __init__(self, handle, sizes, dtype, seed):
        self.shapes = parameter_shapes(sizes)
        starts, size = {}, 0
        for name, shape in self.shapes.items():
            starts[name] = size
            size += -(-int(np.prod(shape)) // 128) * 128
        self.vector = np.zeros(size, np.float32)
        self.gradient = np.zeros(size, np.float32)
        self._copy = handle.zeros(size, dtype)
        self._gradient_copy = handle.zeros(size, dtype)
        vectors = (self.vector, self.gradient, self._copy, self._gradient_copy)
        parts = [{}, {}, {}, {}]
        for name, shape in self.shapes.items():
            begin, end = starts[name], starts[name] + int(np.prod(shape))
            for vector, by_name in zip(vectors, parts, strict=True):
                by_name[name] = vector[begin:end].reshape(shape)
        self.values, self.gradients, self.device, self.device_gradients = parts
        self._initialize(np.random.default_rng(seed), sizes)

    def _initialize(self, rng, sizes):
        for name, values in self.values.items():
            if name.endswith("scale"):
                values[...] = 1
            elif values.ndim == 2:
                scale = 0.02 if name in ("embedding", "positions") else values.shape[1] ** -0.5
                if name.endswith(("out.w", "down.w")):
                    # Each block adds twice to its input, whose variance should not grow.
                    scale /= np.sqrt(2 * sizes.blocks)
                values[...] = scale * rng.standard_normal(values.shape)

    def to_device(self):
        self._copy.copy_from(self.vector)

    def gradients_to_host(self, loss_scale):
        """Overwrite the gradients on the host by those of the loss itself."""
        np.divide(self._gradient_copy.numpy(), loss_scale, out=self.gradient, dtype=np.float32)


class Adam:
    """Adam in NumPy (Kingma and Ba, 2015)."""

    def __init__(self, size, beta1=0.9, beta2=0.99, epsilon=1e-8):
        self.mean = np.zeros(size, np.float32)
        self.square = np.zeros(size, np.float32)
        self._betas, self._epsilon = (beta1, beta2), epsilon
        self._steps = 0

    def step(self, vector, gradient, rate):
        """Change the parameters in a vector by their gradients."""
        beta1, beta2 = self._betas
        self._steps += 1
        self.mean += (1 - beta1) * (gradient - self.mean)
        self.square += (1 - beta2) * (gradient**2 - self.square)
        mean = self.mean / (1 - beta1**self._steps)
        deviation = np.sqrt(self.square / (1 - beta2**self._steps))
        vector -= rate * mean / (deviation + self._epsilon)


# -------------------------------------------------------------------------------- arithmetics


class Calls:
    """Calls of operations whose results keep their memory, so that they can be captured."""

    def __init__(self, handle):
        self.handle = handle
        self._results = {}
        self._plans = {}

    def close(self):
        for plan in self._plans.values():
            plan.close()

    def into(self, name, function, *arguments, **options):
        """Call an operation, and store its result under a name, where the next call overwrites it."""
        out = self._results.get(name)
        self._results[name] = function(self.handle, *arguments, out=out, **options)
        return self._results[name]

    def memory(self, name, shape, dtype):
        """Return memory that has a name."""
        if name not in self._results:
            self._results[name] = self.handle.empty(shape, dtype)
        return self._results[name]

    def copied(self, name, view, dtype=None):
        """Return the values of a view in memory of their own, without gaps."""
        packed = self.memory(name, view.shape, view.dtype if dtype is None else dtype)
        return dnn.transform_tensor(self.handle, view, out=packed)

    def pointwise(self, name, mode, x, *operands):
        """Compute one pointwise operation, as a graph."""
        shape = (1, x.shape[0], x.shape[1])
        arrays = {f"x{number}": array.reshape(shape) for number, array in enumerate((x, *operands))}
        if name not in self._plans:
            graph = dnn.Graph()
            tensors = [graph.input(name, shape, x.dtype) for name in arrays]
            graph.output("y", graph.pointwise(mode, *tensors), x.dtype)
            self._plans[name] = graph.plan(self.handle)
        y = self.memory(name, x.shape, x.dtype)
        self._plans[name](**arrays, out={"y": y.reshape(shape)})
        return y


def heads_of(qkv, sizes):
    """View queries, keys and values: (batch * context, 3 * width, 1, 1) as (batch, context, heads, head)."""
    parts = qkv.reshape(-1, sizes.context, 3, sizes.heads, sizes.head)
    return [parts[:, :, part] for part in range(3)]


class Graphs(Calls):
    """float16: products and attention as graphs, which sum in float32."""

    dtype, loss_scale = "float16", 1024.0

    def linear(self, name, x, w, b, *, dtype=None, activation=None):
        """Return y = activation(x w^T + b), (N, results, 1, 1), for x (N, operands, 1, 1)."""
        rows, columns = x.shape[0], w.shape[0]
        y = self.memory(name, (rows, columns, 1, 1), dtype or x.dtype)
        dnn.matmul(
            self.handle,
            x.reshape(rows, -1),
            w.reshape(columns, -1).transpose(1, 0),
            bias=b.reshape(-1),
            activation=activation,
            dtype=dtype,
            out=y.reshape(rows, columns),
        )
        return y

    def linear_backward(self, name, x, w, dy, dw, db):
        """Return dx = dy w; write dw = dy^T x and db, the sum of dy over the rows."""
        rows, columns = dy.shape[:2]
        dx = self.memory(name, x.shape, x.dtype)
        dy_rows = dy.reshape(rows, columns)
        dnn.matmul(self.handle, dy_rows, w.reshape(columns, -1), out=dx.reshape(rows, -1))
        dnn.matmul(
            self.handle,
            dy_rows.transpose(1, 0),
            x.reshape(rows, -1),
            out=dw.reshape(columns, -1),
        )
        dnn.convolution_backward_bias(self.handle, dy, out=db.reshape(1, columns, 1, 1))
        return dx

    def attention(self, name, qkv, sizes):
        """Return the attention's result, shaped as x, and what its gradients read."""
        q, k, v = (part.transpose(0, 2, 1, 3) for part in heads_of(qkv, sizes))
        o, stats = self.into(
            f"{name} result",
            dnn.scaled_dot_product_attention_forward,
            q,
            k,
            v,
            causal=True,
            return_stats=True,
        )
        steps_first = self.copied(name, o.transpose(0, 2, 1, 3))
        y = steps_first.reshape(-1, sizes.width, 1, 1)
        return y, SimpleNamespace(q=q, k=k, v=v, o=o, stats=stats)

    def attention_backward(self, name, saved, do, sizes):
        """Return the gradient of qkv."""
        function = dnn.scaled_dot_product_attention_backward
        do_heads = do.reshape(-1, sizes.context, sizes.heads, sizes.head).transpose(0, 2, 1, 3)
        operands = (saved.q, saved.k, saved.v, saved.o, do_heads, saved.stats)
        gradients = self.into(f"{name} parts", function, *operands, causal=True)
        dqkv = self.memory(name, (do.shape[0], 3 * sizes.width, 1, 1), self.dtype)
        for gradient, part in zip(gradients, heads_of(dqkv, sizes), strict=True):
            dnn.transform_tensor(self.handle, gradient.transpose(0, 2, 1, 3), out=part)
        return dqkv


class Convolutions(Calls):
    """True float32: each product is a 1x1 convolution, those of many heads one with groups.

    With a group for each head of each text, ``filters x image`` is ``(rows, columns) x (columns,
    pixels)`` for each of them: filters lie as (groups * rows, columns, 1, 1), images as
    (1, groups * columns, pixels, 1).
    """

    dtype, loss_scale = "float32", 1.0
    _conv = dnn.ConvolutionSpec(math_type=dnn.TRUE_FLOAT32)

    def linear(self, name, x, w, b, *, dtype=None, activation=None):
        """Return y = activation(x w^T + b), (N, results, 1, 1), for x (N, operands, 1, 1)."""
        filters, bias = w.reshape(*w.shape, 1, 1), b.reshape(1, -1, 1, 1)
        if activation is None:
            return self.into(name, dnn.convolution_forward, x, filters, self._conv, bias=bias)
        y = self.into(f"{name} a", dnn.convolution_forward, x, filters, self._conv, bias=bias)
        return self.pointwise(name, f"{activation}_fwd", y)

    def linear_backward(self, name, x, w, dy, dw, db):
        """Return dx = dy w; write dw = dy^T x and db, the sum of dy over the rows."""
        filters = w.reshape(*w.shape, 1, 1)
        dw, db = dw.reshape(filters.shape), db.reshape(1, -1, 1, 1)
        dnn.convolution_backward_filter(self.handle, x, dy, self._conv, w=filters, out=dw)
        dnn.convolution_backward_bias(self.handle, dy, out=db)
        return self.into(name, dnn.convolution_backward_data, filters, dy, self._conv, x=x)

    def attention(self, name, qkv, sizes):
        """Return the attention's result, shaped as x, and what its gradients read.

        The scores are (groups, keys, queries, 1), and the softmax is that over the channels.
        """
        q, k, v = heads_of(qkv, sizes)
        groups, steps = q.shape[0] * sizes.heads, sizes.context
        conv = dnn.ConvolutionSpec(groups=groups, math_type=dnn.TRUE_FLOAT32)
        saved = SimpleNamespace(conv=conv, shape=(groups, steps, steps, 1))
        as_image, as_filter = (1, -1, steps, 1), (groups * steps, sizes.head, 1, 1)
        saved.q = self.copied(f"{name} q", q.transpose(0, 2, 3, 1)).reshape(as_image)
        saved.k = self.copied(f"{name} k", k.transpose(0, 2, 1, 3)).reshape(as_filter)
        v = self.copied(f"{name} v", v.transpose(0, 2, 3, 1))
        saved.v = v.reshape(groups * sizes.head, steps, 1, 1)
        products = self.into(f"{name} products", dnn.convolution_forward, saved.q, saved.k, conv)
        scores = self.into(
            f"{name} scores",
            dnn.op_tensor,
            products.reshape(saved.shape),
            self._mask(steps),
            "add",
            alpha1=sizes.head**-0.5,
        )
        weights = self.into(f"{name} weights", dnn.softmax_forward, scores)
        saved.weights = weights.reshape(as_image)
        o = self.into(f"{name} result", dnn.convolution_forward, saved.weights, saved.v, conv)
        heads_first = o.reshape(-1, sizes.heads, sizes.head, steps)
        steps_first = self.copied(name, heads_first.transpose(0, 3, 1, 2))
        return steps_first.reshape(-1, sizes.width, 1, 1), saved

    def attention_backward(self, name, saved, do, sizes):
        """Return the gradient of qkv."""
        conv, steps = saved.conv, sizes.context
        data, filters = dnn.convolution_backward_data, dnn.convolution_backward_filter
        do = do.reshape(-1, steps, sizes.heads, sizes.head)
        do = self.copied(f"{name} do", do.transpose(0, 2, 3, 1)).reshape(1, -1, steps, 1)
        dweights = self.into(f"{name} dw", data, saved.v, do, conv, x=saved.weights)
        dv = self.into(f"{name} dv", filters, saved.weights, do, conv, w=saved.v)
        dscores = self.into(
            f"{name} dscores",
            dnn.softmax_backward,
            saved.weights.reshape(saved.shape),
            dweights.reshape(saved.shape),
            alpha=sizes.head**-0.5,
        ).reshape(dweights.shape)
        dq = self.into(f"{name} dq", data, saved.k, dscores, conv, x=saved.q)
        dk = self.into(f"{name} dk", filters, saved.q, dscores, conv, w=saved.k)
        dqkv = self.memory(name, (do.size // sizes.width, 3 * sizes.width, 1, 1), self.dtype)
        steps_last = (-1, sizes.heads, sizes.head, steps)
        gradients = (
            dq.reshape(steps_last).transpose(0, 3, 1, 2),
            dk.reshape(-1, sizes.heads, steps, sizes.head).transpose(0, 2, 1, 3),
            dv.reshape(steps_last).transpose(0, 3, 1, 2),
        )
        for gradient, part in zip(gradients, heads_of(dqkv, sizes), strict=True):
            dnn.transform_tensor(self.handle, gradient, out=part)
        return dqkv

    def _mask(self, steps):
        """Return what is added to scores: (1, keys, queries, 1), negative for keys that come later."""
        name = f"mask {steps}"
        if name not in self._results:
            mask = np.tril(np.full((steps, steps), MASKED, np.float32), -1)
            self._results[name] = self.handle.array(mask[None, :, :, None])
        return self._results[name]


ARITHMETICS = {"float16": Graphs, "float32": Convolutions}


# ------------------------------------------------------------------------------- the network


class Network:
    """A decoder, and its gradients.

    x = embedding[text] + positions;  for each block  x = x + out(attention(qkv(norm1(x)))),
    x = x + down(gelu(up(norm2(x))));  z = scores(norm(x)).

    On the device texts are rows, (batch * context, width, 1, 1).
    """

    def __init__(self, handle, sizes, arithmetic="float16", seed=0):
        self.handle, self.sizes = handle, sizes
        self.calls = ARITHMETICS[arithmetic](handle)
        self.dtype, self.loss_scale = self.calls.dtype, self.calls.loss_scale
        self.parameters = Parameters(handle, sizes, self.dtype, seed)
        self.loss = handle.zeros((1, 1, 1, 1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.calls.close()

    def embed(self, text):
        """Return the first layer's input on the host: a gather."""
        values = self.parameters.values
        x = values["embedding"][text] + values["positions"][: text.shape[1]]
        return x.reshape(-1, self.sizes.width, 1, 1)

    def forward(self, x, *, training=True):
        """Return the results of all layers, on the device.

        With `training` the operands of the GELU are among them, which its gradient reads; without
        it product, bias and GELU are one call.
        """
        rows = x.shape[0]
        w, calls = self.parameters.device, self.calls
        state = SimpleNamespace(blocks=[], rows=rows)
        for block in range(self.sizes.blocks):
            s = SimpleNamespace()
            s.norm1 = self._normalize(f"{block}.norm1", x)
            s.qkv = self._linear(f"{block}.qkv", s.norm1.y)
            s.o, s.attention = calls.attention(f"{block}.attention {rows}", s.qkv, self.sizes)
            x = self._added(f"{block}.x1", x, self._linear(f"{block}.out", s.o))
            s.norm2 = self._normalize(f"{block}.norm2", x)
            if training:
                s.a = self._linear(f"{block}.up", s.norm2.y)
                s.h = calls.pointwise(f"{block}.h {rows}", "gelu_fwd", s.a)
            else:
                s.h = self._linear(f"{block}.up", s.norm2.y, activation="gelu")
            x = self._added(f"{block}.x2", x, self._linear(f"{block}.down", s.h))
            state.blocks.append(s)
        state.norm = self._normalize("norm", x)
        state.z = calls.linear(
            f"z {rows}", state.norm.y, w["scores.w"], w["scores.b"], dtype="float32"
        )
        return state

    def add_loss(self, state, target):
        """Compute the loss, the mean of -log softmax(z) of the characters that follow."""
        log = self.calls.into("log", dnn.softmax_forward, state.z, algorithm="log")
        product = self.calls.into("product", dnn.op_tensor, log, target, "mul")
        dnn.reduce_tensor(self.handle, product, "add", alpha=-1 / state.rows, out=self.loss)

    def backward(self, state, target):
        """Compute the gradients, times `loss_scale`; return that of x.

        A name with d is a gradient: dz is dL/dz.
        """
        calls, rows = self.calls, state.rows
        # L = -1/N sum t log softmax(z)   =>   dz = (softmax(z) - t) / N
        softmax = calls.into("softmax", dnn.softmax_forward, state.z)
        scale = self.loss_scale / rows
        dz = calls.into(
            "dz high", dnn.op_tensor, softmax, target, "add", alpha1=scale, alpha2=-scale
        )
        if self.dtype != "float32":
            dz = calls.copied("dz", dz, self.dtype)
        dx = self._normalize_backward("norm", state.norm, self._back("scores", state.norm.y, dz))
        for block in reversed(range(self.sizes.blocks)):
            s = state.blocks[block]
            # x2 = x1 + down(gelu(up(norm2(x1))))
            dh = self._back(f"{block}.down", s.h, dx)
            da = calls.pointwise(f"{block}.da", "gelu_bwd", s.a, dh)
            dy = self._back(f"{block}.up", s.norm2.y, da)
            branch = self._normalize_backward(f"{block}.norm2", s.norm2, dy)
            dx = self._added(f"{block}.dx1", dx, branch)
            # x1 = x + out(attention(qkv(norm1(x))))
            do = self._back(f"{block}.out", s.o, dx)
            dqkv = calls.attention_backward(f"{block}.dqkv", s.attention, do, self.sizes)
            dy = self._back(f"{block}.qkv", s.norm1.y, dqkv)
            branch = self._normalize_backward(f"{block}.norm1", s.norm1, dy)
            dx = self._added(f"{block}.dx", dx, branch)
        return dx

    def gradients_to_host(self, text, dx):
        """Copy the gradients to the host; those of the embedding are sums over its gather."""
        self.parameters.gradients_to_host(self.loss_scale)
        dx = dx.numpy().astype(np.float32).reshape(*text.shape, -1) / self.loss_scale
        gradients = self.parameters.gradients
        gradients["embedding"][...] = 0
        np.add.at(gradients["embedding"], text, dx)
        gradients["positions"][...] = dx.sum(axis=0)

    def _linear(self, name, x, activation=None):
        w = self.parameters.device
        return self.calls.linear(
            f"{name} {x.shape[0]}", x, w[f"{name}.w"], w[f"{name}.b"], activation=activation
        )

    def _back(self, name, x, dy):
        """Return the gradient of the operand of a linear layer; those of its parameters are written."""
        w, gradients = self.parameters.device, self.parameters.device_gradients
        return self.calls.linear_backward(
            f"d {name}", x, w[f"{name}.w"], dy, gradients[f"{name}.w"], gradients[f"{name}.b"]
        )

    def _normalize(self, name, x):
        rows, width = x.shape[:2]
        w = self.parameters.device
        scale, bias = (w[f"{name}.{part}"].reshape(1, width, 1, 1) for part in ("scale", "bias"))
        y, mean, inv = self.calls.into(
            f"{name} {rows}", dnn.layer_normalization_forward, x, scale, bias, training=True
        )
        return SimpleNamespace(x=x, scale=scale, y=y, mean=mean, inv=inv)

    def _normalize_backward(self, name, norm, dy):
        gradients = self.parameters.device_gradients
        dx = self.calls.memory(f"d {name}", norm.x.shape, self.dtype)
        parts = (gradients[f"{name}.{part}"] for part in ("scale", "bias"))
        dscale, dbias = (part.reshape(norm.scale.shape) for part in parts)
        dnn.layer_normalization_backward(
            self.handle, dy, norm.x, norm.scale, norm.mean, norm.inv, out=(dx, dscale, dbias)
        )
        return dx

    def _added(self, name, x, branch):
        return self.calls.into(f"{name} {x.shape[0]}", dnn.op_tensor, x, branch, "add")


class Trainer:
    """Makes the training steps of a network.

    The calls of a step are made once, captured into a CUDA graph, and launched from then on, unless
    `uses_graph` is False.  The embedding and Adam are NumPy's.
    """

    def __init__(self, network, *, rate=1e-3, uses_graph=True):
        self.network, self.rate = network, rate
        self._uses_graph, self._graph = uses_graph, None
        sizes, handle = network.sizes, network.handle
        rows = sizes.batch * sizes.context
        self._x = handle.empty((rows, sizes.width, 1, 1), network.dtype)
        self._target = handle.empty((rows, sizes.characters, 1, 1))
        self._dx = None
        self._one_hot = np.eye(sizes.characters, dtype=np.float32)
        self._adam = Adam(network.parameters.vector.size)

    def step(self, text, following):
        """Learn from a batch, and return its loss before the step."""
        network, parameters = self.network, self.network.parameters
        parameters.to_device()
        self._x.copy_from(network.embed(text))
        self._target.copy_from(self._one_hot[following.ravel()][:, :, None, None])
        if self._graph is not None:
            self._graph.launch()
        else:
            self._compute()
            if self._uses_graph:  # All arrays and plans exist after the first call.
                with dnn.capture(network.handle) as self._graph:
                    self._compute()
        network.gradients_to_host(text, self._dx)
        self._adam.step(parameters.vector, parameters.gradient, self.rate)
        return float(network.loss.numpy().item())

    def _compute(self):
        state = self.network.forward(self._x)
        self.network.add_loss(state, self._target)
        self._dx = self.network.backward(state, self._target)

    def close(self):
        if self._graph is not None:
            self._graph.close()


def train(network, text, *, steps, rate=1e-3, seed=0, uses_graph=True, report=None):
    """Train a network on a text; return the loss of each step.

    `report(step, loss)` is called after each step.
    """
    rng, losses = np.random.default_rng(seed), []
    trainer = Trainer(network, rate=rate, uses_graph=uses_graph)
    for step in range(steps):
        losses.append(trainer.step(*text.batch(rng, network.sizes)))
        if report is not None:
            report(step, losses[-1])
    trainer.close()
    return losses


def write(network, text, begin, count, *, temperature=0.7, seed=0):
    """Return text that continues the numbers in `begin`, character by character.

    The window is always `context` long.  What stands behind its last character does not matter,
    because attention is causal.
    """
    rng, context = np.random.default_rng(seed), network.sizes.context
    network.parameters.to_device()
    x = network.handle.empty((context, network.sizes.width, 1, 1), network.dtype)
    numbers = [*begin]
    for _ in range(count):
        window = numbers[-context:]
        padded = np.zeros((1, context), int)
        padded[0, : len(window)] = window
        x.copy_from(network.embed(padded))
        z = network.forward(x, training=False).z.numpy()[
            len(window) - 1, : len(text.alphabet), 0, 0
        ]
        weights = np.exp((z - z.max()) / temperature)
        numbers.append(int(rng.choice(len(weights), p=weights / weights.sum())))
    return text.characters(numbers[len(begin) :])


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arithmetic", choices=ARITHMETICS, default="float16")
    parser.add_argument("--device", help="auto, cuda, cuda:1, emulated; auto if not given")
    parser.add_argument("--text", type=Path, default=LICENSE, help="what is learnt; LICENSE")
    parser.add_argument("--steps", type=int, help="1000, or 200 on the emulated device")
    parser.add_argument("--rate", type=float, help="1e-3, or 5e-3 on the emulated device")
    parser.add_argument("--characters", type=int, default=400, help="how many are written")
    parser.add_argument(
        "--no-graph",
        action="store_true",
        help="call each operation, instead of launching a CUDA graph",
    )
    return parser.parse_args()


def main():
    options = parse_options()
    if options.device is None:
        os.environ.setdefault("CUDNNLITE_DEVICE", "auto")
    text = Text(options.text.read_text(encoding="utf-8"))
    with dnn.Handle(options.device) as handle:
        # CUDA cannot capture its default stream.
        handle.stream = handle.device.create_stream()
        sizes, steps, rate = Sizes(text.scores), 1000, 1e-3
        if handle.device.kind == "emulated":
            sizes = Sizes(text.scores, blocks=1, heads=2, head=16, context=32, batch=8)
            steps, rate = 200, 5e-3
        if options.steps is not None:
            steps = options.steps
        if options.rate is not None:
            rate = options.rate
        print(f"device: {handle.device} {handle.device.name}, {options.arithmetic}")

        def report(step, loss):
            if step % max(1, steps // 10) == 0 or step == steps - 1:
                print(f"step {step:5}  loss {loss:.4f}", flush=True)

        with Network(handle, sizes, options.arithmetic) as network:
            count = network.parameters.vector.size
            print(f"{len(text.numbers)} characters, {count} parameters")
            begin = time.perf_counter()
            uses_graph = not options.no_graph
            train(network, text, steps=steps, rate=rate, uses_graph=uses_graph, report=report)
            print(f"{time.perf_counter() - begin:.1f} s\n")
            print(write(network, text, text.numbers[:8], options.characters))


if __name__ == "__main__":
    main()
