"""Emulated CTC loss.

Stricter than hardware, which reads outside of its arrays or computes something else instead: labels and lengths are checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.descriptors.layers import CTCLossDescriptor
from cudnnlite.devices.storage import memory_view
from cudnnlite.emulated.memory import POISON_FREED
from cudnnlite.emulated.registry import RefusalError, bad, check_size, emulates, unsupported
from cudnnlite.enums import CTCLossAlgo, DataType, LossNormalizationMode, Status
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import CTCLossSpec

Array = np.ndarray[Any, Any]
_LONGEST, _LARGEST, _MOST = (
    255,
    {DataType.FLOAT: 10000, DataType.DOUBLE: 5000},
    65535,
)  # as far as an H200 was asked


def _described(given: SimpleNamespace) -> tuple[TensorSpec, CTCLossSpec]:
    """Return what the descriptors hold, as far as an H200 takes it."""
    real, algorithm = given.api.real, given.algo
    x, spec = (
        TensorDescriptor.read(real, given.probsDesc),
        CTCLossDescriptor.read(real, given.ctcLossDesc),
    )
    if given.gradientsDesc and TensorDescriptor.read(real, given.gradientsDesc) != x:
        raise bad("gradientsDesc is another than probsDesc, whose strides cuDNN uses for both")
    if x.rank != 3 or x.strides[2] != 1:
        raise bad(f"probsDesc is {x}; needed: (T, N, A), the last axis without gaps")
    if algorithm not in list(CTCLossAlgo):
        raise bad(f"algo={algorithm}; allowed: {', '.join(CTCLossAlgo.__members__)}")
    if x.dtype not in (DataType.FLOAT, DataType.DOUBLE) or spec.compute_type != x.dtype:
        raise unsupported(f"probs of {x.dtype.name}, computed in {spec.compute_type.name}")
    return x, spec


def _workspace_bytes(x: TensorSpec, longest: int, algorithm: int) -> int:
    """Return a size that is never 0 and differs between problems: NumPy needs no workspace, but callers must give it."""
    if algorithm == CTCLossAlgo.DETERMINISTIC and longest > _LONGEST:
        raise unsupported(f"DETERMINISTIC with a label of {longest}; allowed: up to {_LONGEST}")
    if algorithm == CTCLossAlgo.NON_DETERMINISTIC and x.shape[2] > _LARGEST[x.dtype]:
        raise unsupported(
            f"NON_DETERMINISTIC with {x.shape[2]} labels; allowed: up to {_LARGEST[x.dtype]}"
        )
    if x.shape[2] < 2 or x.shape[1] > _MOST:
        raise bad(f"probsDesc is {x}; needed: 2 labels, and at most {_MOST} sequences")
    return 512 + 8 * x.shape[1] * (x.shape[0] + 2 * longest + 1)


@emulates("cudnnGetCTCLossWorkspaceSize")
def workspace_size(given: SimpleNamespace) -> None:
    """Tell how much workspace is wanted for labels on the host."""
    x, _ = _described(given)
    given.sizeInBytes[0] = _workspace_bytes(x, max(given.labelLengths[: x.shape[1]]), given.algo)


@emulates("cudnnGetCTCLossWorkspaceSize_v8")
def workspace_size_v8(given: SimpleNamespace) -> None:
    """Tell how much workspace is wanted for labels on the device."""
    x, spec = _described(given)
    given.sizeInBytes[0] = _workspace_bytes(x, spec.max_label_length, given.algo)


@emulates("cudnnCTCLoss")
def loss(given: SimpleNamespace) -> Any:
    """Compute costs and gradients of labels on the host, which are copied now."""
    x, spec = _described(given)
    lengths = given.hostLabelLengths[: x.shape[1]]
    needed = _workspace_bytes(x, max(lengths), given.algo)
    numbers = given.hostLabels[: sum(lengths)], lengths, given.hostInputLengths[: x.shape[1]]
    return partial(_run, given, x, spec, numbers, needed)


@emulates("cudnnCTCLoss_v8")
def loss_v8(given: SimpleNamespace) -> Any:
    """Compute costs and gradients of labels on the device."""
    x, spec = _described(given)
    needed = _workspace_bytes(x, spec.max_label_length, given.algo)

    read = given.api.memory.ints

    def work() -> None:
        lengths = read(given.labelLengths, x.shape[1]).tolist()
        if max(lengths) > spec.max_label_length:
            told = f"a label of {max(lengths)}, maxLabelLength is {spec.max_label_length}"
            raise RefusalError(
                Status.EXECUTION_FAILED, f"{told}: a GPU ends in an illegal memory access"
            )
        labels, inputs = read(given.labels, sum(lengths)), read(given.inputLengths, x.shape[1])
        numbers = labels.tolist(), lengths, inputs.tolist()
        _run(given, x, spec, numbers, needed)

    return work


def _run(
    given: SimpleNamespace,
    x: TensorSpec,
    spec: CTCLossSpec,
    numbers: tuple[Sequence[int], ...],
    needed: int,
) -> None:
    labels, label_lengths, input_lengths = numbers
    steps, n, alphabet = x.shape
    if min(label_lengths) < 1 or min(labels) < 1 or max(labels) >= alphabet:
        raise bad(
            "a label that is empty, blank or beyond the alphabet: a GPU computes something else"
        )
    if min(input_lengths) < 0 or max(input_lengths) > steps:
        raise bad(f"input lengths {list(input_lengths)}; there are {steps} steps")
    check_size("workspace", given.workSpaceSizeInBytes, needed)
    view = given.api.memory.view
    scratch = view(given.workspace or 0, needed)
    values = memory_view(view(given.probs or 0, x.nbytes), x).copy()
    cost = view(given.costs or 0, n * values.itemsize).view(values.dtype)
    target = memory_view(view(given.gradients, x.nbytes), x) if given.gradients else None
    scratch[:] = POISON_FREED
    start = 0
    for i, (length, inputs) in enumerate(zip(label_lengths, input_lengths, strict=True)):
        label = np.asarray(labels[start : start + length])
        start += length
        with np.errstate(all="ignore"):
            cost[i], slopes = _of_one(values[:inputs, i], label, spec.normalization)
        if target is not None:
            target[:inputs, i] = slopes


def _of_one(x: Array, label: Array, normalization: LossNormalizationMode) -> tuple[float, Array]:
    """Return cost and gradients of one sequence: 0 where it is too short for its label."""
    softmax = normalization == LossNormalizationMode.SOFTMAX
    if len(x) < len(label) + np.count_nonzero(label[1:] == label[:-1]):
        return 0.0, np.zeros(x.shape)
    probs = x
    if softmax:  # in float32, where what is below its range is 0, and a label that has no other path impossible
        probs = np.exp(x - x.max(1, keepdims=True))
        probs = probs / probs.sum(1, keepdims=True)
    path = np.zeros(2 * len(label) + 1, int)  # with blanks between the labels, and around them
    path[1::2] = label
    skips = np.array(
        [
            position > 1 and path[position] not in (0, path[position - 2])
            for position in range(len(path))
        ]
    )
    emitted = np.log(probs.astype(np.float64))[:, path]
    ahead = _forward(emitted, skips)
    back = _forward(emitted[::-1, ::-1], np.concatenate(([False, False], skips[2:][::-1])))[
        ::-1, ::-1
    ]
    total = np.logaddexp.reduce(ahead[-1, -2:])
    passing = np.zeros(x.shape)
    if math.isnan(total) or total > -math.inf:
        np.add.at(
            passing.T,
            path,
            np.where(emitted > -np.inf, np.exp(ahead + back - emitted - total), 0).T,
        )
    # an H200 leaves the probability itself where no path of the label passes
    return -total, probs - passing if softmax else np.where(passing > 0, -passing / probs, probs)


def _forward(emitted: Array, skips: Array) -> Array:
    """Return, for each step and position of the path, the logarithm of the probability of all ways to it."""
    ways = np.full(emitted.shape, -np.inf)
    ways[0, :2] = emitted[0, :2]
    for step in range(1, len(emitted)):
        before = ways[step - 1]
        stay = np.logaddexp(before, np.concatenate(([-np.inf], before[:-1])))
        jump = np.where(skips, np.concatenate(([-np.inf, -np.inf], before[:-2])), -np.inf)
        ways[step] = np.logaddexp(stay, jump) + emitted[step]
    return ways
