"""Which multi-head attention graphs compute, and its window as they take it."""

from __future__ import annotations

from typing import NamedTuple

from cudnnlite.enums import DataType
from cudnnlite.operations.attention.plan_key import AttentionPlanKey

_DTYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)


def why_no_graph(key: AttentionPlanKey) -> str | None:
    """Return why graphs do not compute such an attention, or None if they may.

    Whether cuDNN has engines for the sizes is known when they are planned.
    """
    spec = key.spec
    missing = [name for name in "qkv" if not getattr(spec, f"{name}_proj_size")]
    beam = key.q.shape[1]
    if spec.dtype not in _DTYPES:
        return f"dtype is {spec.dtype.name}; graphs compute HALF, BFLOAT16 and FLOAT"
    if spec.compute_type != DataType.FLOAT:
        return f"compute_type is {spec.compute_type.name}; graphs compute in FLOAT"
    if missing:
        return f"there is no projection of {', '.join(missing)}"
    if beam > 1:
        return f"there are {beam} beams; graphs have one"
    has_dropout = spec.dropout or spec.post_dropout
    if key.training and has_dropout:
        return "dropout in training"
    if 0 in key.q_lengths or 0 in key.kv_lengths:
        return "a sequence has no steps"
    if has_lengths(key) and spec.dtype == DataType.FLOAT:
        return "the sequences differ in length, in FLOAT"
    mask = mask_of(key)
    if mask is None:
        return "the window is neither whole nor causal, nor of so many steps before each query"
    if max(key.window[0]) >= min(key.kv_lengths):
        return "a query attends to no key"
    return None


class Mask(NamedTuple):
    """Which keys a query attends to: `window` steps up to its own, none behind if `causal`."""

    causal: bool
    window: int | None


def mask_of(key: AttentionPlanKey) -> Mask | None:
    """Return the window of a call as scaled dot-product attention takes it; None for any other."""
    low, high = key.window
    steps = range(len(low))
    kv_steps = key.k.shape[2]
    ends = [min(end, kv_steps) for end in high]
    is_whole = all(end == kv_steps for end in ends)
    if not is_whole and ends != [min(step + 1, kv_steps) for step in steps]:
        return None
    window = None
    if any(low):
        window = len(low) - low[-1]
        if list(low) != [max(0, step + 1 - window) for step in steps]:
            return None
    return Mask(not is_whole, window)


def has_lengths(key: AttentionPlanKey) -> bool:
    """Whether a sequence has fewer steps than its array."""
    steps, kv_steps = key.q.shape[2], key.k.shape[2]
    return min(key.q_lengths) < steps or min(key.kv_lengths) < kv_steps
