"""PyTorch's own samples of operations (OpInfo), made by ours, as a user would write them.

    PYTHONPATH=tests python -m outside.opinfo DEVICE

prints the table: of each operation how many samples are right, refused by cuDNN, refused by us,
cannot be expressed, or are wrong.  The judge is PyTorch in float64.

An adapter takes a `Sample` and returns the result, and the gradients of what PyTorch
differentiates, by the place of the tensor in the call: "input", "args[0]", "kwargs[weight]".
`InexpressibleError` says what has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.specs.layout import CHANNELS_LAST

Array = np.ndarray[Any, Any]
Results = dict[str, Any]


class InexpressibleError(Exception):
    """A sample asks for what neither cuDNN nor a composition of its operations has."""


class Sample:
    """One call of an operation, as PyTorch's tests make it.

    Parameters
    ----------
    handle : Handle
    sample : SampleInput
    dtype : str
        The data type in which ours computes.
    is_last : bool
        Whether images and filters have channels last.
    """

    def __init__(
        self, handle: dnn.Handle, sample: Any, dtype: str = "float32", *, is_last: bool = False
    ) -> None:
        self.handle, self.dtype, self.is_last = handle, dtype, is_last
        self.tensors = {
            name: self._round(value) for name, value in tensors_of(sample) if value is not None
        }
        self.input, self.args, self.kwargs = sample.input, sample.args, dict(sample.kwargs)
        self.dy: Array | None = None

    def _round(self, tensor: Any) -> Array:
        host = tensor.detach().cpu().numpy()
        if host.dtype.kind != "f":
            return host
        plain = numpy_dtype(dnn.TensorSpec((1,), self.dtype).dtype)
        return host.astype(plain).astype(np.float64)

    def host(self, name: str = "input") -> Array:
        """Return an operand's values."""
        return self.tensors[name]

    def put(self, host: Array) -> dnn.DeviceArray:
        """Return an array of the sample's data type."""
        layout = CHANNELS_LAST.get(host.ndim) if self.is_last else None
        return self.handle.array(
            np.ascontiguousarray(host, np.float32), dtype=self.dtype, layout=layout
        )

    def gradient_of_result(self, shape: tuple[int, ...]) -> Array:
        """Draw dy."""
        plain = numpy_dtype(dnn.TensorSpec((1,), self.dtype).dtype)
        drawn = np.random.default_rng(len(shape)).standard_normal(shape)
        self.dy = drawn.astype(plain).astype(np.float64)
        return self.dy

    def option(self, name: str, place: int, default: Any = None) -> Any:
        """Return an option by its name or its place among the arguments."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[place] if len(self.args) > place else default


def tensors_of(sample: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a sample by their places; None for an option that is none."""
    places = [("input", sample.input)]
    places += [(f"args[{n}]", value) for n, value in enumerate(sample.args)]
    places += [(f"kwargs[{name}]", value) for name, value in sample.kwargs.items()]
    for name, value in places:
        if hasattr(value, "detach"):
            yield name, value


def _steps(value: Any, axes: int) -> tuple[int, ...]:
    """Return a value for each axis."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * axes if len(values) == 1 else values


# -------------------------------------------------------------------------- convolutions


def convolution(axes: int) -> Callable[[Sample], Results]:
    """Return the adapter of `conv1d` to `conv3d`."""

    def adapt(s: Sample) -> Results:
        x, w = s.host(), s.host("args[0]")
        bias = s.tensors.get("args[1]", s.tensors.get("kwargs[bias]"))
        lead = x.ndim == axes + 1  # without a batch
        x = x[None] if lead else x
        conv = _conv(s, w.shape[2:], first=2)
        on_device = [s.put(x), s.put(w)]
        b = None if bias is None else s.put(bias.reshape(1, -1, *(1,) * axes))
        y = dnn.convolution_forward(s.handle, *on_device, conv, bias=b).numpy()
        dy = s.put(s.gradient_of_result(y.shape))
        of_w = dnn.FilterSpec(w.shape, s.dtype, on_device[1].layout or "NCHW")
        dx = dnn.convolution_backward_data(
            s.handle, on_device[1], dy, conv, x=on_device[0].spec
        ).numpy()
        results: Results = {
            "y": y[0] if lead else y,
            "input": dx[0] if lead else dx,
            "args[0]": dnn.convolution_backward_filter(
                s.handle, on_device[0], dy, conv, w=of_w.shape
            ).numpy(),
        }
        if bias is not None:
            name = "args[1]" if "args[1]" in s.tensors else "kwargs[bias]"
            results[name] = dnn.convolution_backward_bias(s.handle, dy).numpy().reshape(-1)
        return results

    return adapt


def _conv(s: Sample, taps: tuple[int, ...], first: int) -> dnn.ConvolutionSpec:
    """Return the spec of a sample whose options begin at a place of the arguments."""
    axes = len(taps)
    stride = _steps(s.option("stride", first, 1), axes)
    padding: Any = s.option("padding", first + 1, 0)
    dilation = _steps(s.option("dilation", first + 2, 1), axes)
    if padding == "valid":
        padding = 0
    elif padding == "same":  # one more behind, where the sum is odd
        totals = [d * (k - 1) for d, k in zip(dilation, taps, strict=True)]
        padding = tuple((total // 2, total - total // 2) for total in totals)
    else:
        padding = _steps(padding, axes)
    return dnn.ConvolutionSpec(padding, stride, dilation, s.option("groups", first + 3, 1))


def convolution_transpose(axes: int) -> Callable[[Sample], Results]:
    """Return the adapter of `conv_transpose1d` to `conv_transpose3d`."""

    def adapt(s: Sample) -> Results:
        x, w = s.host(), s.host("args[0]")
        bias = s.tensors.get("args[1]", s.tensors.get("kwargs[bias]"))
        lead = x.ndim == axes + 1
        x = x[None] if lead else x
        conv = dnn.ConvolutionSpec(
            _steps(s.option("padding", 3, 0), axes),
            _steps(s.option("stride", 2, 1), axes),
            _steps(s.option("dilation", 6, 1), axes),
            s.option("groups", 5, 1),
        )
        more = _steps(s.option("output_padding", 4, 0), axes)
        on_device = [s.put(x), s.put(w)]
        y = dnn.convolution_transpose(s.handle, *on_device, conv, output_padding=more)
        if bias is not None:
            dnn.add_tensor(s.handle, s.put(bias.reshape(1, -1, *(1,) * axes)), y)
        host = y.numpy()
        dy = s.put(s.gradient_of_result(host.shape))
        # The gradient of a transposed convolution is a convolution, and that of its filters swaps
        # the images.  With more output padding than a stride the convolution has more results.
        inside = tuple(map(slice, x.shape))
        dx = dnn.convolution_forward(s.handle, dy, on_device[1], conv)
        wider = np.zeros(dx.shape)
        wider[inside] = x
        dx = dx.numpy()[inside]
        dw = dnn.convolution_backward_filter(s.handle, dy, s.put(wider), conv, w=w.shape).numpy()
        results: Results = {
            "y": host[0] if lead else host,
            "input": dx[0] if lead else dx,
            "args[0]": dw,
        }
        if bias is not None:
            name = "args[1]" if "args[1]" in s.tensors else "kwargs[bias]"
            results[name] = dnn.convolution_backward_bias(s.handle, dy).numpy().reshape(-1)
        return results

    return adapt


# -------------------------------------------------------------------------- pooling


def _pooled(s: Sample, axes: int, pooling: dnn.PoolingSpec) -> Results:
    x = s.host()
    lead = x.ndim == axes + 1
    x = s.put(x[None] if lead else x)
    y = dnn.pooling_forward(s.handle, x, pooling)
    dy = s.put(s.gradient_of_result(y.shape))
    dx = dnn.pooling_backward(s.handle, y, dy, x, pooling).numpy()
    host = y.numpy()
    return {"y": host[0] if lead else host, "input": dx[0] if lead else dx}


def average_pooling(axes: int) -> Callable[[Sample], Results]:
    """Return the adapter of `avg_pool1d` to `avg_pool3d`."""

    def adapt(s: Sample) -> Results:
        window = _steps(s.option("kernel_size", 0), axes)
        stride = s.option("stride", 1, None)
        counts = s.option("count_include_pad", 4, True)
        if s.option("divisor_override", 5, None) is not None:
            raise InexpressibleError("another divisor")
        mode = "average_count_include_padding" if counts else "average_count_exclude_padding"
        pooling = dnn.PoolingSpec(
            window,
            padding=_steps(s.option("padding", 2, 0), axes),
            stride=window if stride in (None, ()) else _steps(stride, axes),
            mode=mode,
            ceil_mode=s.option("ceil_mode", 3, False),
        )
        return _pooled(s, axes, pooling)

    return adapt


def max_pooling(axes: int) -> Callable[[Sample], Results]:
    """Return the adapter of `max_pool1d` to `max_pool3d`."""

    def adapt(s: Sample) -> Results:
        if _steps(s.option("dilation", 3, 1), axes) != (1,) * axes:
            raise InexpressibleError("a window with gaps")
        window = _steps(s.option("kernel_size", 0), axes)
        stride = s.option("stride", 1, None)
        pooling = dnn.PoolingSpec(
            window,
            padding=_steps(s.option("padding", 2, 0), axes),
            stride=window if stride in (None, ()) else _steps(stride, axes),
            ceil_mode=s.option("ceil_mode", 4, False),
        )
        return _pooled(s, axes, pooling)

    return adapt


# -------------------------------------------------------------------------- normalisations


def _as_images(x: Array, rank: int = 4) -> Array:
    """Return an array with axes of size 1 behind, up to a rank."""
    return x.reshape(*x.shape, *(1,) * max(rank - x.ndim, 0))


def layer_norm(s: Sample) -> Results:
    """Return layer normalisation over the last axes."""
    x, shape = s.host(), tuple(s.args[0])
    rows = x.shape[: x.ndim - len(shape)]
    width = int(np.prod(shape))
    flat = s.put(x.reshape(-1, width, 1, 1))
    weight, bias = s.tensors.get("args[1]"), s.tensors.get("args[2]")
    scale = s.put(np.ones((1, width, 1, 1)) if weight is None else weight.reshape(1, -1, 1, 1))
    shift = s.put(np.zeros((1, width, 1, 1)) if bias is None else bias.reshape(1, -1, 1, 1))
    epsilon = s.option("eps", 3, 1e-5)
    y, mean, inverse = dnn.layer_normalization_forward(
        s.handle, flat, scale, shift, epsilon=epsilon, training=True
    )
    dy = s.gradient_of_result((*rows, *shape))
    dx, dscale, dbias = dnn.layer_normalization_backward(
        s.handle, s.put(dy.reshape(-1, width, 1, 1)), flat, scale, mean, inverse
    )
    results: Results = {"y": y.numpy().reshape(x.shape), "input": dx.numpy().reshape(x.shape)}
    if weight is not None:
        results["args[1]"] = dscale.numpy().reshape(shape)
    if bias is not None:
        results["args[2]"] = dbias.numpy().reshape(shape)
    return results


def rms_norm(s: Sample) -> Results:
    """Return RMS normalisation over the last axes."""
    x, shape = s.host(), tuple(s.args[0])
    width = int(np.prod(shape))
    flat = s.put(x.reshape(-1, width, 1, 1))
    weight = s.tensors.get("args[1]")
    scale = s.put(np.ones((1, width, 1, 1)) if weight is None else weight.reshape(1, -1, 1, 1))
    epsilon = s.option("eps", 2, None)
    epsilon = float(np.finfo(np.float32).eps) if epsilon is None else epsilon
    y, inverse = dnn.rms_normalization_forward(
        s.handle, flat, scale, epsilon=epsilon, training=True
    )
    dy = s.gradient_of_result(x.shape)
    dx, dscale = dnn.rms_normalization_backward(
        s.handle, s.put(dy.reshape(-1, width, 1, 1)), flat, scale, inverse
    )
    results: Results = {"y": y.numpy().reshape(x.shape), "input": dx.numpy().reshape(x.shape)}
    if weight is not None:
        results["args[1]"] = dscale.numpy().reshape(shape)
    return results


def group_norm(s: Sample) -> Results:
    """Return group normalisation: rows of layer normalisation, then a scale and a bias."""
    x, groups = s.host(), s.args[0]
    batch, channels = x.shape[:2]
    width = channels // groups * int(np.prod(x.shape[2:]))
    rows = s.put(x.reshape(batch * groups, width, 1, 1))
    ones, zeros = (s.put(f((1, width, 1, 1))) for f in (np.ones, np.zeros))
    epsilon = s.option("eps", 3, 1e-5)
    y, _, _ = dnn.layer_normalization_forward(
        s.handle, rows, ones, zeros, epsilon=epsilon, training=True
    )
    per_channel = (1, channels, *(1,) * (x.ndim - 2))
    result = y.numpy().astype(np.float64).reshape(x.shape)
    for name, place, operate in (("weight", 1, np.multiply), ("bias", 2, np.add)):
        values = s.tensors.get(f"kwargs[{name}]", s.tensors.get(f"args[{place}]"))
        if values is not None:
            result = operate(result, values.reshape(per_channel))
    return {"y": result}


def instance_norm(s: Sample) -> Results:
    """Return instance normalisation by the statistics of each image."""
    if not s.kwargs.get("use_input_stats", True):
        raise InexpressibleError("statistics of before")
    x = s.host()
    channels = x.shape[1]
    weight, bias = s.tensors.get("kwargs[weight]"), s.tensors.get("kwargs[bias]")
    scale = s.put(np.ones((1, channels, 1, 1)) if weight is None else weight.reshape(1, -1, 1, 1))
    shift = s.put(np.zeros((1, channels, 1, 1)) if bias is None else bias.reshape(1, -1, 1, 1))
    images = s.put(x.reshape(*x.shape[:2], -1, 1))
    epsilon = s.option("eps", 6, 1e-5)
    y, mean, inverse = dnn.instance_normalization_forward(
        s.handle, images, scale, shift, epsilon=epsilon, training=True
    )
    dy = s.gradient_of_result(x.shape)
    dx, dscale, dbias = dnn.instance_normalization_backward(
        s.handle, s.put(dy.reshape(*x.shape[:2], -1, 1)), images, scale, mean, inverse
    )
    results: Results = {"y": y.numpy().reshape(x.shape), "input": dx.numpy().reshape(x.shape)}
    if weight is not None:
        results["kwargs[weight]"] = dscale.numpy().reshape(-1)
    if bias is not None:
        results["kwargs[bias]"] = dbias.numpy().reshape(-1)
    return results


def batch_norm(s: Sample) -> Results:
    """Return batch normalisation, by the statistics of the batch or those given."""
    x = s.host()
    if x.ndim < 2:
        raise InexpressibleError("values without channels")
    channels = x.shape[1]
    vector = (1, channels, *(1,) * max(x.ndim - 2, 2))
    images = s.put(_as_images(x))
    weight, bias = (
        s.tensors.get(f"args[{place}]", s.tensors.get(f"kwargs[{name}]"))
        for name, place in (("weight", 2), ("bias", 3))
    )
    scale = s.put(np.ones(vector) if weight is None else weight.reshape(vector))
    shift = s.put(np.zeros(vector) if bias is None else bias.reshape(vector))
    epsilon = s.option("eps", 6, 1e-5)
    if not s.option("training", 4, False):
        mean, variance = (s.put(s.host(f"args[{n}]").reshape(vector)) for n in (0, 1))
        y = dnn.batch_normalization_inference(
            s.handle, images, scale, shift, mean, variance, epsilon=epsilon
        )
        return {"y": y.numpy().reshape(x.shape)}
    y, mean, inverse, *_ = dnn.batch_normalization_training(
        s.handle, images, scale, shift, epsilon=epsilon, mode="spatial"
    )
    dy = s.gradient_of_result(x.shape)
    dx, *_ = dnn.batch_normalization_backward(
        s.handle, images, s.put(_as_images(dy)), scale, mean, inverse, mode="spatial"
    )
    return {"y": y.numpy().reshape(x.shape), "input": dx.numpy().reshape(x.shape)}


# -------------------------------------------------------------------------- others


def softmax(s: Sample) -> Results:
    """Return a softmax along one axis."""
    x = s.host()
    if not x.ndim:
        return {"y": np.ones(())}
    axis = s.option("dim", 0) % x.ndim
    before, behind = int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis + 1 :]))
    images = s.put(x.reshape(before, x.shape[axis], behind, 1))
    y = dnn.softmax_forward(s.handle, images)
    dy = s.gradient_of_result(x.shape)
    dx = dnn.softmax_backward(s.handle, y, s.put(dy.reshape(images.shape)))
    return {"y": y.numpy().reshape(x.shape), "input": dx.numpy().reshape(x.shape)}


def local_response_norm(s: Sample) -> Results:
    """Return LRN; cuDNN's window of an even size is one channel off."""
    x, size = s.host(), s.option("size", 0)
    if size % 2 == 0:
        raise InexpressibleError("a window of even size")
    norm = dnn.LRNSpec(
        size, s.option("alpha", 1, 1e-4), s.option("beta", 2, 0.75), s.option("k", 3, 1.0)
    )
    images = s.put(_as_images(x))
    y = dnn.lrn_forward(s.handle, images, norm)
    dy = s.gradient_of_result(x.shape)
    dx = dnn.lrn_backward(s.handle, y, s.put(_as_images(dy)), images, norm)
    return {"y": y.numpy().reshape(x.shape), "input": dx.numpy().reshape(x.shape)}


def attention(s: Sample) -> Results:
    """Return scaled dot-product attention, and its gradients."""
    if s.kwargs.get("dropout_p", 0.0):
        raise InexpressibleError("PyTorch's random numbers")
    hosts = [s.host(), s.host("args[0]"), s.host("args[1]")]
    rank = max(host.ndim for host in hosts)
    if rank == 3:
        hosts = [host[:, None] for host in hosts]
    heads = hosts[0].shape[:2]
    if any(host.ndim != 4 or host.shape[0] != heads[0] for host in hosts):
        raise InexpressibleError("operands of different ranks")
    q, k, v = (s.put(host) for host in hosts)
    options: dict[str, Any] = {"causal": bool(s.kwargs.get("is_causal", False))}
    if s.kwargs.get("scale") is not None:
        options["scale"] = s.kwargs["scale"]
    mask = s.tensors.get("kwargs[attn_mask]")
    if mask is not None:
        values = np.where(mask, 0.0, -1e4) if mask.dtype == bool else mask
        full = np.broadcast_to(values, (*values.shape[:-2], hosts[0].shape[2], hosts[1].shape[2]))
        options["bias"] = s.put(full.reshape((1,) * (4 - full.ndim) + full.shape))
    o, stats = dnn.scaled_dot_product_attention_forward(
        s.handle, q, k, v, return_stats=True, **options
    )
    shape = s.tensors["input"].shape[:-1] + s.tensors["args[1]"].shape[-1:]
    dy = s.put(s.gradient_of_result(shape).reshape(o.shape))
    gradients = dnn.scaled_dot_product_attention_backward(
        s.handle, q, k, v, o, dy, stats, **options
    )
    names = ("input", "args[0]", "args[1]")
    results: Results = {"y": o.numpy().reshape(shape)}
    for name, gradient in zip(names, gradients, strict=False):
        results[name] = gradient.numpy().reshape(s.tensors[name].shape)
    return results


def grid_sample(s: Sample) -> Results:
    """Return bilinear samples of images at points; beyond their edges are zeros."""
    for name, place, allowed in (
        ("mode", 1, "bilinear"),
        ("padding_mode", 2, "zeros"),
        ("align_corners", 3, True),
    ):
        value = s.option(name, place, {"align_corners": False}.get(name, allowed))
        if value != allowed:
            raise InexpressibleError(f"{name}={value}")
    x, grid = s.put(s.host()), s.put(s.host("args[0]"))
    if len(x.shape) != 4:
        raise InexpressibleError("volumes")
    y = dnn.spatial_transformer_sample(s.handle, x, grid)
    dy = s.put(s.gradient_of_result(y.shape))
    dx, dgrid = dnn.spatial_transformer_sample_backward(s.handle, x, grid, dy)
    return {"y": y.numpy(), "input": dx.numpy(), "args[0]": dgrid.numpy()}


def linear(s: Sample) -> Results:
    """Return the product with a transposed matrix, and a bias."""
    x, w = s.host(), s.host("args[0]")
    bias = s.tensors.get("args[1]", s.tensors.get("kwargs[bias]"))
    vector = w.ndim == 1
    w = w.reshape(-1, w.shape[-1])
    a, b = s.put(x.reshape(1, -1, x.shape[-1])), s.put(np.ascontiguousarray(w.T)[None])
    shift = None
    if bias is not None:
        shift = s.put(np.broadcast_to(bias.reshape(-1), (w.shape[0],)).reshape(1, 1, -1))
    y = dnn.matmul(s.handle, a, b, bias=shift)
    shape = x.shape[:-1] if vector else (*x.shape[:-1], w.shape[0])
    dy = s.put(s.gradient_of_result(shape).reshape(y.shape))
    da = dnn.matmul_backward_a(s.handle, dy, b).numpy()
    db = dnn.matmul_backward_b(s.handle, dy, a).numpy()
    return {
        "y": y.numpy().reshape(shape),
        "input": da.reshape(x.shape),
        "args[0]": db[0].T.reshape(s.host("args[0]").shape),
    }


def ctc_loss(s: Sample) -> Results:
    """Return the CTC loss, each, their sum, or the mean of those by label."""
    if s.option("blank", 3, 0) != 0:
        raise InexpressibleError("another blank")
    x = s.host()
    steps, counts = (np.asarray(s.tensors.get(f"args[{n}]", s.args[n]), np.int32) for n in (1, 2))
    rows = s.host("args[0]")
    labels = np.concatenate([row[:count] for row, count in zip(rows, counts, strict=True)])
    costs, gradients = dnn.ctc_loss(s.handle, s.put(x), labels.astype(np.int32), counts, steps)
    y, of_x = costs.numpy().astype(np.float64), gradients.numpy().astype(np.float64)
    reduction = s.option("reduction", 4, "mean")
    if reduction == "none":
        return {"y": y, "input": of_x * s.gradient_of_result(y.shape)[:, None]}
    weights = 1 / (counts * len(y)) if reduction == "mean" else np.ones(len(y))
    dy = s.gradient_of_result(())
    return {"y": np.asarray((y * weights).sum()), "input": of_x * weights[:, None] * dy}


# By the name of the operation; those of attention and products compute in float16.
ADAPTERS: Mapping[str, Callable[[Sample], Results]] = {
    **{f"nn.functional.conv{n}d": convolution(n) for n in (1, 2, 3)},
    **{f"nn.functional.conv_transpose{n}d": convolution_transpose(n) for n in (1, 2, 3)},
    **{f"nn.functional.avg_pool{n}d": average_pooling(n) for n in (1, 2, 3)},
    **{f"nn.functional.max_pool{n}d": max_pooling(n) for n in (1, 2, 3)},
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.rms_norm": rms_norm,
    "nn.functional.group_norm": group_norm,
    "nn.functional.instance_norm": instance_norm,
    "nn.functional.batch_norm": batch_norm,
    "softmax": softmax,
    "nn.functional.local_response_norm": local_response_norm,
    "nn.functional.scaled_dot_product_attention": attention,
    "nn.functional.grid_sample": grid_sample,
    "nn.functional.linear": linear,
    "nn.functional.ctc_loss": ctc_loss,
}
DTYPES = {"nn.functional.scaled_dot_product_attention": "float16"}
TOLERANCES = {"float32": 3e-3, "float16": 3e-2}  # of the largest value, for TF32 and float16
OUTCOMES = ("right", "refused by cuDNN", "refused by us", "cannot be expressed", "wrong")


def operations() -> Iterator[tuple[str, Any]]:
    """Yield PyTorch's operations that have an adapter, with their names."""
    from torch.testing._internal.common_methods_invocations import op_db

    for operation in op_db:
        if operation.name in ADAPTERS and not operation.variant_test_name:
            yield operation.name, operation


def samples_of(operation: Any, most: int | None = None) -> list[Any]:
    """Return an operation's samples, or about `most` of them."""
    import torch

    found = list(operation.sample_inputs("cpu", torch.float32, requires_grad=False))
    return found if most is None else found[:: max(len(found) // most, 1)]


def judge(
    handle: dnn.Handle, operation: Any, sample: Any, *, is_last: bool = False
) -> tuple[str, str]:
    """Return the outcome of a sample, of `OUTCOMES`, and what is to be said of it."""
    dtype = DTYPES.get(operation.name, "float32")
    s = Sample(handle, sample, dtype, is_last=is_last)
    try:
        results = ADAPTERS[operation.name](s)
    except InexpressibleError as error:
        return "cannot be expressed", str(error)
    except dnn.CudnnError as error:
        return "refused by cuDNN", str(error).splitlines()[0]
    except dnn.CudnnliteError as error:
        by = "cuDNN" if "cuDNN" in str(error) else "us"
        return f"refused by {by}", str(error).splitlines()[0]
    expected = _by_pytorch(operation, sample, s, results)
    largest = max(
        map(_size, (values for name, values in expected.items() if name != "y")), default=0
    )
    for name, values in expected.items():
        got = np.asarray(results[name], np.float64)
        # Gradients share their scale; what cancels in them has errors of values near 1.
        size = max(_size(values), 1e-3) if name == "y" else max(largest, 1e-2)
        if got.shape != values.shape or not _is_near(got, values, TOLERANCES[dtype] * size):
            return "wrong", f"{name} of {sample}"
    return "right", ""


def _size(values: Array) -> float:
    """Return the largest finite value."""
    return float(
        np.abs(values, where=np.isfinite(values), out=np.zeros(values.shape)).max(initial=0)
    )


def _is_near(got: Array, expected: Array, allowed: float) -> bool:
    with np.errstate(all="ignore"):
        same = (got == expected) | (np.abs(got - expected) <= allowed)
        return bool((same | (np.isnan(got) & np.isnan(expected))).all())


def _by_pytorch(operation: Any, sample: Any, s: Sample, results: Results) -> dict[str, Array]:
    """Return PyTorch's results in float64: y, and the gradients of what ours has one of."""
    import torch

    wide = {name: torch.tensor(s.tensors[name]) for name, _ in tensors_of(sample)}
    leaves = [
        name for name, tensor in wide.items() if name in results and tensor.is_floating_point()
    ]
    for name in leaves:
        wide[name].requires_grad_()
    y = operation.op(
        wide["input"],
        *(wide.get(f"args[{n}]", value) for n, value in enumerate(sample.args)),
        **{name: wide.get(f"kwargs[{name}]", value) for name, value in sample.kwargs.items()},
    )
    y = y[0] if isinstance(y, tuple) else y
    expected = {"y": y.detach().numpy()}
    if leaves:
        dy = torch.tensor(np.reshape(s.dy, tuple(y.shape)))
        tensors = [wide[name] for name in leaves]
        gradients = torch.autograd.grad(y, tensors, dy, materialize_grads=True)
        expected |= {
            name: gradient.numpy() for name, gradient in zip(leaves, gradients, strict=True)
        }
    return expected


def main(device: str) -> None:
    """Print the table."""
    from collections import Counter

    with dnn.Handle(device) as handle:
        print(f"{'operation':46}", *(f"{outcome:>20}" for outcome in OUTCOMES))
        total: Counter[str] = Counter()
        for name, operation in operations():
            outcomes = [judge(handle, operation, sample) for sample in samples_of(operation)]
            counts = Counter(outcome for outcome, _ in outcomes)
            total += counts
            print(f"{name:46}", *(f"{counts[outcome]:20}" for outcome in OUTCOMES), flush=True)
            for text, count in Counter(outcomes).most_common():
                if text[0] not in ("right", "cannot be expressed"):
                    print(f"    {count} {text[0]}: {text[1][:160]}")
        print(f"{'all':46}", *(f"{total[outcome]:20}" for outcome in OUTCOMES))


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
