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
    return {"norm": dnn.LRNSpec(n, draw(st.sampled_from((0.01, 1.0))), draw(st.sampled_from((0.5, 1.0))), 1.5)}


_SETS = ({}, {"n": 1, "alpha": 1.0}, {"n": 4, "alpha": 1.0, "k": 1.0}, {"n": 16, "alpha": 0.5, "beta": 0.5})
_FORWARD = s.Sample(
    {"norm": dnn.LRNSpec(4, 1.5, 0.75, 1.0)}, reference=_reference, drawn=_drawn, sets=_SETS, refused="isTensorNCHW_HWpacked",
    make=lambda plain: {"norm": dnn.LRNSpec(**plain)},
)  # fmt: skip
SAMPLES = {"lrn_forward": _FORWARD, "lrn_backward": _FORWARD._replace(reference=None)}
