"""Spatial transformers against PyTorch's affine_grid and grid_sample in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.refusals import ARGUMENT, refuses
from tolerances import OPERATION_BOUNDS, assert_near

import cudnnlite as dnn

from .operation_samples import LAYOUTS, spec_of
from .problems import poisoned, random_values, upload

DTYPES = ("float32", "float64", "float16")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_directions_are_what_pytorch_says(handle: dnn.Handle, dtype: str, layout: str) -> None:
    torch: Any = pytest.importorskip("torch")
    rng, shape, points = np.random.default_rng(0), (2, 3, 5, 7), (2, 3, 4, 6)
    theta, x, dy = (random_values(rng, s, dtype) for s in ((2, 2, 3), shape, points))
    theta = (theta * theta.dtype.type(0.7)).astype(theta.dtype)
    leaves = [torch.tensor(host.astype(np.float64), requires_grad=True) for host in (theta, x)]
    functions = torch.nn.functional
    torch_grid = functions.affine_grid(leaves[0], list(points), align_corners=True)
    grid = dnn.spatial_transformer_grid(handle, handle.array(theta), points)
    assert_near(grid.numpy(), torch_grid.detach().numpy(), OPERATION_BOUNDS[dtype])
    places = torch.tensor(grid.numpy().astype(np.float64), requires_grad=True)
    expected = functions.grid_sample(leaves[1], places, align_corners=True)
    expected.backward(torch.tensor(dy.astype(np.float64)))
    images = upload(handle, spec_of(shape, dtype, layout), x)
    y = dnn.spatial_transformer_sample(handle, images, grid)
    # a point moves by half a rounding of its place, times a slope of some units
    assert_near(y.numpy(), expected.detach().numpy(), 4 * OPERATION_BOUNDS[dtype])
    gradient = upload(handle, spec_of(points, dtype, layout), dy)
    dx, dgrid = dnn.spatial_transformer_sample_backward(handle, images, grid, gradient)
    assert_near(dx.numpy(), leaves[1].grad.numpy(), 4 * OPERATION_BOUNDS[dtype])
    assert_near(dgrid.numpy(), places.grad.numpy(), 4 * OPERATION_BOUNDS[dtype])
    torch_grid.backward(torch.tensor(dgrid.numpy().astype(np.float64)))
    dtheta = dnn.spatial_transformer_grid_backward(handle, dgrid, points)
    assert_near(dtheta.numpy(), leaves[0].grad.numpy(), 4 * OPERATION_BOUNDS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_images_and_points_have_scalars_of_their_own(
    handle: dnn.Handle, dtype: str
) -> None:
    """By one line and by a plan, over what the outputs held; against sums in float64."""
    rng, shape, points = np.random.default_rng(1), (2, 3, 5, 7), (2, 3, 4, 6)
    x, old_dx = (random_values(rng, shape, dtype) for _ in range(2))
    dy = random_values(rng, points, dtype)
    grid = (rng.uniform(-0.9, 0.9, (2, 4, 6, 2))).astype(dtype)
    old_dgrid = random_values(rng, grid.shape, dtype)
    dx, dgrid = gradients(*(values.astype(np.float64) for values in (x, grid, dy)))
    operands = [handle.array(values) for values in (x, grid, dy)]
    backward = dnn.spatial_transformer_sample_backward
    for alpha, beta, alpha_dgrid, beta_dgrid in ((0.5, -2.0, 3.0, 0.25), (0.5, 1.0, 3.0, 0.0)):
        how = {
            "alpha": alpha,
            "beta": beta,
            "alpha_dgrid": alpha_dgrid,
            "beta_dgrid": beta_dgrid,
        }
        expected = (
            alpha * dx + beta * old_dx.astype(np.float64),
            alpha_dgrid * dgrid + beta_dgrid * old_dgrid.astype(np.float64),
        )
        with backward.plan(handle, *operands, **how) as plan:
            for call in (partial(backward, handle, **how), plan):
                out = [handle.array(old_dx), handle.array(old_dgrid)]
                if not beta_dgrid:
                    out[1] = poisoned(handle, operands[1].spec)
                results = call(*operands, out=out)
                for result, values in zip(results, expected, strict=True):
                    assert_near(result.numpy(), values, 8 * OPERATION_BOUNDS[dtype])
    refuses(
        ARGUMENT,
        r"beta_dgrid=1\.0 needs out\[1\], which it scales",
        lambda: backward(handle, *operands, beta_dgrid=1.0),
    )


def gradients(x: Any, grid: Any, dy: Any) -> tuple[Any, Any]:
    """Return the gradients of bilinear samples by hats around the pixels, and their slopes."""
    sizes = {0: x.shape[3], 1: x.shape[2]}
    distances = {
        axis: (grid[..., axis, None] + 1) / 2 * (size - 1) - np.arange(size)
        for axis, size in sizes.items()
    }
    hats = {axis: np.maximum(0, 1 - abs(distance)) for axis, distance in distances.items()}
    slopes = {
        axis: -np.sign(distance) * (abs(distance) < 1) * (sizes[axis] - 1) / 2
        for axis, distance in distances.items()
    }
    dx = np.einsum("ncij,nijw,nijh->nchw", dy, hats[0], hats[1])
    dgrid = [
        np.einsum("ncij,nchw,nijw,nijh->nij", dy, x, along, across)
        for along, across in ((slopes[0], hats[1]), (hats[0], slopes[1]))
    ]
    return dx, np.stack(dgrid, axis=-1)
