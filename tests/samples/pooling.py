"""Pooling."""

from __future__ import annotations

import itertools

import cudnnlite as dnn
import samples as s

WINDOWS = {  # window, padding, stride
    "2": (2, 0, None),
    "3": (3, 1, 2),
    "3_padded": (3, 2, 1),
    "5_overlapping": (5, 1, 1),
    "1": (1, 0, 2),
    "6": (6, 3, 3),
}
MODES = (
    "MAX",
    "MAX_DETERMINISTIC",
    "AVERAGE_COUNT_INCLUDE_PADDING",
    "AVERAGE_COUNT_EXCLUDE_PADDING",
)


def _combinations(kind):
    for window, mode, rank, dtype, layout in itertools.product(
        WINDOWS, MODES, s.IMAGES, s.FLOATS, s.LAYOUTS
    ):
        yield kind, {"window": window, "mode": mode}, rank, dtype, layout, layout, dtype, 0.0
    for dtype, mode, layout in itertools.product(s.DTYPES[4:], MODES, ("first", "last")):
        yield kind, {"window": "2", "mode": mode}, 4, dtype, layout, layout, dtype, 0.0
    for (one, other), dtype, mode in itertools.product(
        itertools.permutations(s.LAYOUTS, 2), s.FLOATS, MODES[1:3]
    ):
        yield kind, {"window": "3", "mode": mode}, 4, dtype, one, other, dtype, 0.0
    for dtype, mode, rank in itertools.product(s.FLOATS, MODES, (4, 5)):
        yield kind, {"window": "3", "mode": mode}, rank, dtype, "first", "first", dtype, 0.5
    for dtype, other in itertools.permutations(s.FLOATS, 2):
        yield kind, {"window": "3", "mode": "MAX"}, 4, dtype, "first", "first", other, 0.0
    nan = {"window": "3", "mode": "MAX", "nan": "NOT_PROPAGATE"}
    yield kind, nan, 4, "float32", "first", "first", "float32", 0.0


def _make(plain):
    window, padding, stride = WINDOWS[plain["window"]]
    nan = plain.get("nan", "propagate")
    return {
        "pooling": dnn.PoolingSpec(
            window, padding=padding, stride=stride, mode=plain["mode"], nan=nan
        )
    }


def _drawn(draw, images):
    from hypothesis import strategies as st

    window = s.steps(draw, ((1, min(4, size)) for size in images[2:]))
    padding, stride = (
        s.steps(draw, ((0, taps - 1) for taps in window)),
        s.steps(draw, ((1, 3) for _ in window)),
    )
    return {
        "pooling": dnn.PoolingSpec(
            window,
            padding=padding,
            stride=stride,
            mode=draw(st.sampled_from(list(dnn.enums.PoolingMode))),
        )
    }


_SAMPLE = s.Sample(
    {"pooling": dnn.PoolingSpec((3, 2), padding=1, stride=2)},
    (2, 3, 9, 7),
    drawn=_drawn,
    make=_make,
    combinations=_combinations,
)
SAMPLES = {"pooling_forward": _SAMPLE, "pooling_backward": _SAMPLE}
