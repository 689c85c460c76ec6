"""Convolutions in float64 by others: ONNX's reference implementation, SciPy and PyTorch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from scipy.signal import correlate

Array = np.ndarray[Any, Any]
Oracle = TypeVar("Oracle", bound=Callable[..., Array])
MOST_CACHED = 64  # results of each oracle
HAS_TORCH = importlib.util.find_spec("torch") is not None


def cached_oracle(oracle: Oracle) -> Oracle:
    """Return an oracle that computes once for equal arguments.

    Tests ask for the same values in several layouts, and by several calls.
    """
    results: dict[Any, Array] = {}

    @wraps(oracle)
    def cached(*arguments: Any) -> Array:
        key = tuple(
            (value.shape, value.dtype.str, value.tobytes())
            if isinstance(value, np.ndarray)
            else value
            for value in arguments
        )
        if key not in results:
            if len(results) == MOST_CACHED:
                del results[next(iter(results))]
            results[key] = oracle(*arguments)
            results[key].flags.writeable = False
        return results[key]

    return cached  # type: ignore[return-value]


def _wide(x: Array, w: Array, flip: bool) -> tuple[Array, Array]:
    x, w = np.asarray(x).astype(np.float64), np.asarray(w).astype(np.float64)
    return x, (np.flip(w, tuple(range(2, w.ndim))).copy() if flip else w)


def _onnx_convolution(
    x: Array,
    w: Array,
    padding: tuple[int | tuple[int, int], ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
    flip: bool = False,
) -> Array:
    """Run ONNX's Conv.

    Parameters
    ----------
    x, w : ndarray
        (N, C, *spatial) and (K, C / groups, *taps), any real dtype.
    padding, stride, dilation : tuple of int
        One for each spatial axis; of the padding also two, before and behind it.
    groups : int
    flip : bool
        Rotate the filter: a convolution in the mathematical sense; Conv itself cross-correlates.

    Returns
    -------
    ndarray of float64
    """
    pads = [(pad, pad) if isinstance(pad, int) else pad for pad in padding]
    x, w = _wide(x, w, flip)
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        pads=[*(before for before, _ in pads), *(behind for _, behind in pads)],
        strides=list(stride),
        dilations=list(dilation),
        group=groups,
    )
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, a.shape)
        for name, a in (("x", x), ("w", w))
    ]
    output = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    model = helper.make_model(helper.make_graph([node], "convolution", inputs, [output]))
    (result,) = ReferenceEvaluator(model).run(None, {"x": x, "w": w})
    assert result.dtype == np.float64
    return result


onnx_convolution = cached_oracle(_onnx_convolution)


def scipy_convolution(
    x: Array,
    w: Array,
    padding: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    flip: bool = False,
) -> Array:
    """Do the same without groups, by correlating all channels of an image with each filter."""
    x, w = _wide(x, w, flip)
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    dilated = np.zeros(
        (*w.shape[:2], *((t - 1) * d + 1 for t, d in zip(w.shape[2:], dilation, strict=True)))
    )
    dilated[(..., *(slice(None, None, d) for d in dilation))] = w
    steps = tuple(slice(None, None, s) for s in stride)
    return np.array(
        [
            [correlate(image, taps, mode="valid", method="direct")[0][steps] for taps in dilated]
            for image in padded
        ]
    )


@cached_oracle
def onnx_gradient_of_x(
    shape: tuple[int, ...],
    w: Array,
    dy: Array,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int = 1,
    flip: bool = False,
) -> Array:
    """Return the gradient of the sum of dy * Conv(x, w), by its definition.

    Conv is linear in x, so it is computed of each unit image.
    """
    size = int(np.prod(shape[1:]))
    units = _onnx_convolution(
        np.eye(size).reshape(size, *shape[1:]), w, padding, stride, dilation, groups, flip
    )
    return (dy.reshape(len(dy), -1).astype(np.float64) @ units.reshape(size, -1).T).reshape(
        len(dy), *shape[1:]
    )


@cached_oracle
def onnx_gradient_of_w(
    x: Array,
    shape: tuple[int, ...],
    dy: Array,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int = 1,
    flip: bool = False,
) -> Array:
    """Return the gradient of the sum of dy * Conv(x, w), by its definition.

    Conv is computed with each unit filter of a group.
    """
    size, gradients = int(np.prod(shape[1:])), []
    units = np.eye(size).reshape(size, *shape[1:])
    for images, outer in zip(
        np.split(x, groups, 1), np.split(dy.astype(np.float64), groups, 1), strict=True
    ):
        results = _onnx_convolution(images, units, padding, stride, dilation, 1, flip)
        axes = (0, *range(2, x.ndim))
        gradients.append(np.tensordot(outer, results, (axes, axes)))
    return np.concatenate(gradients).reshape(shape)


def torch_convolution(
    x: Array,
    w: Array,
    padding: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
    flip: bool = False,
) -> Array:
    """Do the same with PyTorch on the CPU, in float64."""
    import torch

    x, w = _wide(x, w, flip)
    function = getattr(torch.nn.functional, f"conv{x.ndim - 2}d")
    return function(
        torch.from_numpy(x), torch.from_numpy(w), None, stride, padding, dilation, groups
    ).numpy()
