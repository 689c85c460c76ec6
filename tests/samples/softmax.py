"""Softmax."""

from __future__ import annotations

import itertools

import cudnnlite as dnn
import samples as s


def _combinations(kind):
    for algorithm, mode, rank, dtype in itertools.product(
        ("FAST", "ACCURATE", "LOG"), ("CHANNEL", "INSTANCE"), (2, 3, 4, 5), s.FLOATS
    ):
        for layout in s.LAYOUTS if rank > 2 else ("first", "strided"):
            yield (
                kind,
                {"algorithm": algorithm, "mode": mode},
                rank,
                dtype,
                layout,
                layout,
                dtype,
                0.0,
            )
        yield (
            kind,
            {"algorithm": algorithm, "mode": mode},
            rank,
            dtype,
            "first",
            "first",
            dtype,
            0.5,
        )
    for (one, other), dtype, mode in itertools.product(
        itertools.permutations(s.LAYOUTS, 2), s.FLOATS, ("CHANNEL", "INSTANCE")
    ):
        yield kind, {"algorithm": "ACCURATE", "mode": mode}, 4, dtype, one, other, dtype, 0.0
    sets = tuple(
        {"algorithm": a, "mode": m} for a in ("ACCURATE", "LOG") for m in ("CHANNEL", "INSTANCE")
    )
    yield from s.combinations_between_layouts(kind, sets)
    accurate = {"algorithm": "ACCURATE", "mode": "CHANNEL"}
    for dtype, other in itertools.permutations(s.FLOATS, 2):
        yield kind, accurate, 4, dtype, "first", "first", other, 0.0
    for dtype in s.DTYPES[4:]:
        yield kind, accurate, 4, dtype, "first", "first", dtype, 0.0


def _make(plain):
    return {
        "algorithm": dnn.enums.SoftmaxAlgorithm[plain["algorithm"]],
        "mode": dnn.enums.SoftmaxMode[plain["mode"]],
    }


_OPTIONS = _make({"algorithm": "ACCURATE", "mode": "CHANNEL"})
_SAMPLE = s.Sample(_OPTIONS, make=_make, combinations=_combinations)
SAMPLES = {"softmax_forward": _SAMPLE, "softmax_backward": _SAMPLE}
