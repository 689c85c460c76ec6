"""The parameter grids of NNabla's tests of functions, as samples of PyTorch's operations.

Sizes and parameters are those of `python/test/function` (NNabla, 2026); the judge is PyTorch in
float64, not their references.  NNabla's axes in front of an image, more than one, are one batch
here; a border that is not ignored is `ceil_mode`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

BOTH = (False, True)
Shape = tuple[int, ...]


class Case(NamedTuple):
    """A call of an operation.

    Attributes
    ----------
    name : str
        The operation, as `opinfo.ADAPTERS` has it.
    op : callable
        The same of PyTorch.
    sample : SimpleNamespace
        Its operands and options, as a `SampleInput` of PyTorch has them.
    is_last : bool
        Whether ours has images and filters with channels last.
    """

    name: str
    op: Callable[..., Any]
    sample: Any
    is_last: bool = False


def case(op: Callable[..., Any], *operands: Any, is_last: bool = False, **options: Any) -> Case:
    """Return a call."""
    name = op.__name__
    return Case(
        name if name == "softmax" else f"nn.functional.{name}",
        op,
        SimpleNamespace(input=operands[0], args=operands[1:], kwargs=options),
        is_last,
    )


def drawn(*shape: int) -> Any:
    """Return random values."""
    return torch.randn(shape)


def _rows_of_images(shape: Shape, axes: int) -> Shape:
    """Return a shape with the axes in front of an image as one batch."""
    batch = torch.Size(shape[: -axes - 1]).numel()
    return (batch, *shape[-axes - 1 :])


def convolutions() -> Iterator[Case]:
    """Yield convolutions, depthwise ones, and transposed ones."""
    two = torch.nn.functional.conv2d
    for (padding, stride, dilation), groups, has_bias in itertools.product(
        (((3, 0), (1, 2), (2, 1)), ((0, 0), (1, 1), (1, 1))), (1, 2), BOTH
    ):
        bias = drawn(4) if has_bias else None
        x, w = drawn(2, 2, 10, 10), drawn(4, 2 // groups, 3, 2)
        yield case(two, x, w, bias, stride, padding, dilation, groups)
    for (channels, taps, padding, stride, dilation), has_bias in itertools.product(
        (
            (2, (3, 2), (3, 0), (1, 2), (2, 1)),
            (4, (3, 2), (0, 0), (1, 1), (1, 1)),
            (2, (3, 3), (3, 0), (1, 2), (2, 1)),
            (2, (3,), (3,), (1,), (2,)),
            (4, (3,), (0,), (2,), (1,)),
            (2, (4,), (3,), (1,), (2,)),
        ),
        BOTH,
    ):
        op = two if len(taps) == 2 else torch.nn.functional.conv1d
        x, w = drawn(2, channels, *(10,) * len(taps)), drawn(channels, 1, *taps)
        bias = drawn(channels) if has_bias else None
        yield case(op, x, w, bias, stride, padding, dilation, channels)
    yield from transposed_convolutions()


def transposed_convolutions() -> Iterator[Case]:
    """Yield transposed convolutions, with channels first and last."""
    for shape, filters, steps, dilation, groups, has_bias, is_last in itertools.product(
        ((2, 2, 4, 5), (2, 1, 4, 5, 4)),
        (((3, 3), 2, (0, 1)), ((1, 3), 4, (1, 2))),
        (((1, 1), (0, 0)), ((2, 2), (0, 0)), ((2, 2), (1, 1))),
        ((1, 1), (2, 2)),
        (1, 2),
        BOTH,
        BOTH,
    ):
        taps, outputs, padding = filters
        stride, more = steps
        images = _rows_of_images(shape, 2)
        if images[1] % groups:
            continue
        bias = drawn(outputs) if has_bias else None
        w = drawn(images[1], outputs // groups, *taps)
        op = torch.nn.functional.conv_transpose2d
        rest = (stride, padding, more, groups, dilation)
        yield case(op, drawn(*images), w, bias, *rest, is_last=is_last)


def poolings() -> Iterator[Case]:
    """Yield maxima and averages."""
    functional = torch.nn.functional
    windows: tuple[tuple[Shape, Shape, Shape, Shape], ...] = (
        ((2, 2, 4, 6), (2, 2), (2, 1), (1, 0)),
        ((2, 2, 2, 4, 6), (2, 2), (1, 2), (0, 1)),
        ((2, 3, 4, 6), (2, 2, 2), (1, 1, 2), (0, 1, 0)),
        ((2, 2, 3, 4, 6), (2, 2, 2), (2, 1, 1), (1, 0, 1)),
        ((2, 2, 2, 3, 4, 6), (2, 2, 2), (1, 1, 2), (0, 1, 0)),
    )
    for (shape, window, stride, padding), ceil_mode, is_last in itertools.product(
        windows, BOTH, BOTH
    ):
        images = _rows_of_images(shape, len(window))
        options = {"stride": stride, "padding": padding, "ceil_mode": ceil_mode}
        maxima = functional.max_pool2d if len(window) == 2 else functional.max_pool3d
        averages = functional.avg_pool2d if len(window) == 2 else functional.avg_pool3d
        yield case(maxima, drawn(*images), kernel_size=window, is_last=is_last, **options)._replace(
            name=f"nn.functional.max_pool{len(window)}d"
        )
        for counts in BOTH:
            yield case(
                averages,
                drawn(*images),
                kernel_size=window,
                count_include_pad=counts,
                is_last=is_last,
                **options,
            )


def normalizations() -> Iterator[Case]:
    """Yield layer, group and instance normalisation."""
    functional = torch.nn.functional
    shapes = ((4, 3, 8, 8), (4, 16, 16, 8), (16, 1), (3, 32, 4), (2, 3, 4, 4), (2, 4, 3))
    for shape, has_scale, has_bias in itertools.product(shapes, BOTH, BOTH):
        inner = shape[1:]
        yield case(
            functional.layer_norm,
            drawn(*shape),
            inner,
            drawn(*inner) if has_scale else None,
            drawn(*inner) if has_bias else None,
            1e-5,
        )
    for shape, groups in itertools.product(
        ((4, 32, 8, 8), (4, 8, 16, 16), (16, 4), (40, 16)), (2, 4)
    ):
        scale, bias = drawn(shape[1]), drawn(shape[1])
        x = drawn(*shape)
        yield case(functional.group_norm, x, groups, weight=scale, bias=bias, eps=1e-5)
    for shape in ((4, 32, 8, 8), (4, 8, 16, 16)):
        scale, bias = drawn(shape[1]), drawn(shape[1])
        yield case(functional.instance_norm, drawn(*shape), weight=scale, bias=bias, eps=1e-5)


def products() -> Iterator[Case]:
    """Yield products with a vector, and softmax along each axis."""
    linear = torch.nn.functional.linear
    for has_bias in BOTH:
        yield case(linear, drawn(2, 12), drawn(6, 12), drawn(6) if has_bias else None)
        yield case(linear, drawn(2, 3, 4), drawn(4, 4), drawn(4) if has_bias else None)
    for axis in range(3):
        yield case(torch.softmax, drawn(2, 3, 4), dim=axis)
