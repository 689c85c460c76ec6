"""Batch normalisation; its oracles are NumPy's mean and variance.

Its own tests compare it with PyTorch.
"""

from __future__ import annotations

import numpy as np

import cudnnlite as dnn
import samples as s

_STATISTICS = (
    "mean",
    "variance",
    "running_mean",
    "running_var",
    "saved_mean",
    "saved_inv_variance",
    "scale",
    "bias",
)


def _axes(x, mode):
    return 0 if mode.name == "PER_ACTIVATION" else (0, *range(2, x.ndim))


def _inference(x, scale, bias, mean, variance, mode, epsilon):
    return bias + scale * (x - mean) * np.power(variance + epsilon, -0.5)


def _training(x, scale, bias, running_mean, running_var, mode, epsilon, momentum=1.0):
    how = {"axis": _axes(x, mode), "keepdims": True}
    mean, variance, unbiased = np.average(x, **how), np.var(x, **how), np.var(x, ddof=1, **how)
    y = _inference(x, scale, bias, mean, variance, mode, epsilon)
    old = 1 - momentum
    return (
        y,
        mean,
        np.power(variance + epsilon, -0.5),
        old * running_mean + momentum * mean,
        old * running_var + momentum * unbiased,
    )


def _at(*operands):
    def at(images, plain):
        statistics_shape = (
            images[1:]
            if plain.get("mode") == "PER_ACTIVATION"
            else (images[1], *[1] * (len(images) - 2))
        )
        return {
            name: (1, *statistics_shape) if name in _STATISTICS else images for name in operands
        }

    return at


def _make(*scalars):
    more = {
        name: value for name, value in (("momentum", 0.25), ("epsilon", 1e-3)) if name in scalars
    }
    return lambda plain: {"mode": dnn.enums.BatchNormMode[plain.get("mode", "SPATIAL")], **more}


def _saved(hosts, options):
    """Return what the training call says of x."""
    x, how = (
        hosts["x"].astype(np.float64),
        {"axis": _axes(hosts["x"], options["mode"]), "keepdims": True},
    )
    inverse = np.power(np.var(x, **how) + options["epsilon"], -0.5)
    wide = np.float64 if hosts["x"].dtype == np.float64 else np.float32
    return {
        "saved_mean": np.average(x, **how).astype(wide),
        "saved_inv_variance": inverse.astype(wide),
    }


def _drawn(operands, make):
    def drawn(draw, images):
        from hypothesis import strategies as st

        mode = draw(st.sampled_from(("SPATIAL", "PER_ACTIVATION")))
        images = (images[0] + 2, *images[1:])  # of fewer there is no variance
        return _at(*operands)(images, {"mode": mode}), {**make({"mode": mode}), "epsilon": 0.5}

    return drawn


def _sample(operands, options, **fields):
    make = _make(*options)
    return s.Sample(
        make({}),
        at=_at(*operands),
        make=make,
        sets=({}, {"mode": "PER_ACTIVATION"}, {"mode": "SPATIAL_PERSISTENT"}),
        drawn=_drawn(operands, make),
        refused="the channels must come first",
        positive=frozenset({"variance", "running_var"}),
        wide=frozenset(_STATISTICS) | {"dscale", "dbias"},
        packed=frozenset(_STATISTICS) | {"dscale", "dbias"},
        **fields,
    )


SAMPLES = {
    "batch_normalization_inference": _sample(
        ("x", "scale", "bias", "mean", "variance"), ("epsilon",), reference=_inference
    ),
    "batch_normalization_training": _sample(
        ("x", "scale", "bias", "running_mean", "running_var"),
        ("momentum", "epsilon"),
        reference=_training,
    ),
    "batch_normalization_backward": _sample(
        ("x", "dy", "scale"), ("epsilon",), derived=_saved, forward="batch_normalization_training"
    ),
}
