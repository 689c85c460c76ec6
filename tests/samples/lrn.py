"""Local response normalisation."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import correlate1d

import cudnnlite as dnn
import samples as s


def _reference(x, norm):
    sums = correlate1d(x * x, np.ones(norm.n), axis=1, mode="constant", origin=-((norm.n + 1) % 2))
    return x / (norm.k + norm.alpha / norm.n * sums) ** norm.beta


def _drawn(draw, images):
    from hypothesis import strategies as st

    n = draw(st.integers(1, 16))
    return {
        "norm": dnn.LRNSpec(
            n, draw(st.sampled_from((0.01, 1.0))), draw(st.sampled_from((0.5, 1.0))), 1.5
        )
    }


_SETS = (
    {},
    {"n": 1, "alpha": 1.0},
    {"n": 4, "alpha": 1.0, "k": 1.0},
    {"n": 16, "alpha": 0.5, "beta": 0.5},
)
_FORWARD = s.Sample(
    {"norm": dnn.LRNSpec(4, 1.5, 0.75, 1.0)},
    reference=_reference,
    drawn=_drawn,
    sets=_SETS,
    refused="isTensorNCHW_HWpacked",
    make=lambda plain: {"norm": dnn.LRNSpec(**plain)},
)
_LRN = _FORWARD._replace(combinations=s.usual_and_between_layouts(_SETS))
SAMPLES = {"lrn_forward": _LRN, "lrn_backward": _LRN._replace(reference=None)}


def _windows(x, n):
    """Yield the position of each value, and the slices of the window around it."""
    before = (n - 1) // 2
    for place in np.ndindex(*x.shape[2:]):
        yield place, tuple(slice(max(0, at - before), at - before + n) for at in place)


def _divisive(x, norm, means=None):
    means, y = np.zeros_like(x) if means is None else means, np.empty_like(x)
    all_images = (slice(None), slice(None))
    for place, window in _windows(x, norm.n):
        middle = means[(*all_images, *place)]
        spread = np.square(
            x[(*all_images, *window)] - middle.reshape(*middle.shape, *[1] * len(place))
        )
        sums = spread.reshape(*middle.shape, -1).sum(-1)
        y[(*all_images, *place)] = (
            x[(*all_images, *place)]
            / (norm.k + norm.alpha / norm.n ** max(2, len(place)) * sums) ** norm.beta
        )
    return y


def _drawn_odd(draw, images):
    from hypothesis import strategies as st

    n = draw(st.sampled_from((1, 3, 5)))
    return {
        "norm": dnn.LRNSpec(
            n, draw(st.sampled_from((0.01, 1.0))), draw(st.sampled_from((0.5, 1.0))), 1.5
        )
    }


_DIVISIVE = _FORWARD._replace(
    options={"norm": dnn.LRNSpec(3, 1.5, 0.75, 1.0)},
    reference=_divisive,
    drawn=_drawn_odd,
    refused="",
    sets=(
        {},
        {"n": 1, "alpha": 1.0},
        {"n": 3, "alpha": 1.0, "k": 1.0},
        {"n": 7, "alpha": 0.5, "beta": 0.5},
    ),
)
SAMPLES |= {
    "divisive_normalization_forward": _DIVISIVE._replace(
        sets=(*_DIVISIVE.sets, {"n": 4, "alpha": 1.0}), drawn=_drawn, subtracts=False
    ),
    "divisive_normalization_backward": _DIVISIVE._replace(
        at=lambda images, plain: {"x": images, "dy": images}, reference=None
    ),
}
