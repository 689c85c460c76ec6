"""Emulated CTC loss.

Stricter than hardware, which reads outside of its arrays or computes something else instead: labels
and lengths are checked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.descriptors.layers import CTCLossDescriptor
from cudnnlite.devices.storage import memory_view
from cudnnlite.emulated.memory import POISON_FREED
from cudnnlite.emulated.registry import (
    RefusalError,
    Work,
    bad_parameter,
    check_size,
    emulates,
    unsupported,
)
from cudnnlite.enums import CTCLossAlgo, DataType, LossNormalizationMode, Status
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import CTCLossSpec

Array = np.ndarray[Any, Any]
# The largest sizes that were recorded on an H200.
_MAX_LABEL_LENGTH = 255  # of the deterministic algorithm
_MAX_ALPHABET = {DataType.FLOAT: 10000, DataType.DOUBLE: 5000}  # of the other one
_MAX_SEQUENCES = 65535


class _Labels(NamedTuple):
    """The labels and the lengths of the sequences."""

    labels: Sequence[int]  # of all sequences
    label_lengths: Sequence[int]
    input_lengths: Sequence[int]


def _read_descriptors(c_call: SimpleNamespace) -> tuple[TensorSpec, CTCLossSpec]:
    """Return the specs of the probabilities and of the loss; RefusalError if an H200 refuses."""
    real = c_call.api.real
    x = TensorDescriptor.read(real, c_call.probsDesc)
    loss = CTCLossDescriptor.read(real, c_call.ctcLossDesc)
    if c_call.gradientsDesc and TensorDescriptor.read(real, c_call.gradientsDesc) != x:
        raise bad_parameter(
            "gradientsDesc is another than probsDesc, whose strides cuDNN uses for both"
        )
    if x.rank != 3 or x.strides[2] != 1:
        raise bad_parameter(f"probsDesc is {x}; needed: (T, N, A), the last axis without gaps")
    if c_call.algo not in list(CTCLossAlgo):
        raise bad_parameter(f"algo={c_call.algo}; allowed: {', '.join(CTCLossAlgo.__members__)}")
    if x.dtype not in (DataType.FLOAT, DataType.DOUBLE) or loss.compute_type != x.dtype:
        raise unsupported(f"probs of {x.dtype.name}, computed in {loss.compute_type.name}")
    return x, loss


def _workspace_bytes(x: TensorSpec, max_label_length: int, algorithm: int) -> int:
    """Return a size that is never 0 and differs between problems.

    NumPy needs no workspace, but callers must provide it.
    """
    steps, sequences, alphabet = x.shape
    if algorithm == CTCLossAlgo.DETERMINISTIC and max_label_length > _MAX_LABEL_LENGTH:
        raise unsupported(
            f"DETERMINISTIC with a label of {max_label_length}; allowed: up to {_MAX_LABEL_LENGTH}"
        )
    max_alphabet = _MAX_ALPHABET[x.dtype]
    if algorithm == CTCLossAlgo.NON_DETERMINISTIC and alphabet > max_alphabet:
        raise unsupported(
            f"NON_DETERMINISTIC with {alphabet} labels; allowed: up to {max_alphabet}"
        )
    if alphabet < 2 or sequences > _MAX_SEQUENCES:
        raise bad_parameter(
            f"probsDesc is {x}; needed: 2 labels, and at most {_MAX_SEQUENCES} sequences"
        )
    return 512 + 8 * sequences * (steps + 2 * max_label_length + 1)


@emulates("cudnnGetCTCLossWorkspaceSize")
def workspace_size(c_call: SimpleNamespace) -> None:
    """`cudnnGetCTCLossWorkspaceSize`: write the workspace for labels on the host."""
    x, _ = _read_descriptors(c_call)
    max_label_length = max(c_call.labelLengths[: x.shape[1]])
    c_call.sizeInBytes[0] = _workspace_bytes(x, max_label_length, c_call.algo)


@emulates("cudnnGetCTCLossWorkspaceSize_v8")
def workspace_size_v8(c_call: SimpleNamespace) -> None:
    """`cudnnGetCTCLossWorkspaceSize_v8`: write the workspace for labels on the device."""
    x, loss = _read_descriptors(c_call)
    c_call.sizeInBytes[0] = _workspace_bytes(x, loss.max_label_length, c_call.algo)


@emulates("cudnnCTCLoss")
def loss(c_call: SimpleNamespace) -> Work:
    """`cudnnCTCLoss`: compute costs and gradients of labels on the host, which are copied now."""
    x, spec = _read_descriptors(c_call)
    sequences = x.shape[1]
    label_lengths = c_call.hostLabelLengths[:sequences]
    workspace = _workspace_bytes(x, max(label_lengths), c_call.algo)
    labels = _Labels(
        c_call.hostLabels[: sum(label_lengths)],
        label_lengths,
        c_call.hostInputLengths[:sequences],
    )
    return partial(_compute, c_call, x, spec, labels, workspace)


@emulates("cudnnCTCLoss_v8")
def loss_v8(c_call: SimpleNamespace) -> Work:
    """`cudnnCTCLoss_v8`: compute costs and gradients of labels on the device."""
    x, spec = _read_descriptors(c_call)
    workspace = _workspace_bytes(x, spec.max_label_length, c_call.algo)

    def work() -> None:
        _compute(c_call, x, spec, _labels_on_device(c_call, x.shape[1], spec), workspace)

    return work


def _labels_on_device(c_call: SimpleNamespace, sequences: int, spec: CTCLossSpec) -> _Labels:
    read_ints = c_call.api.memory.ints
    label_lengths = read_ints(c_call.labelLengths, sequences).tolist()
    max_label_length = max(label_lengths)
    if max_label_length > spec.max_label_length:
        raise RefusalError(
            Status.EXECUTION_FAILED,
            f"a label of {max_label_length}, maxLabelLength is {spec.max_label_length}: "
            "a GPU ends in an illegal memory access",
        )
    labels = read_ints(c_call.labels, sum(label_lengths))
    input_lengths = read_ints(c_call.inputLengths, sequences)
    return _Labels(labels.tolist(), label_lengths, input_lengths.tolist())


def _compute(
    c_call: SimpleNamespace, x: TensorSpec, spec: CTCLossSpec, labels: _Labels, workspace: int
) -> None:
    steps, sequences, alphabet = x.shape
    _check_labels(labels, steps, alphabet)
    check_size("workspace", c_call.workSpaceSizeInBytes, workspace)
    view = c_call.api.memory.view
    scratch = view(c_call.workspace or 0, workspace)
    probs = memory_view(view(c_call.probs or 0, x.nbytes), x).copy()
    costs = view(c_call.costs or 0, sequences * probs.itemsize).view(probs.dtype)
    gradients = None
    if c_call.gradients:
        gradients = memory_view(view(c_call.gradients, x.nbytes), x)
    scratch[:] = POISON_FREED
    start = 0
    for sequence, (label_length, input_length) in enumerate(
        zip(labels.label_lengths, labels.input_lengths, strict=True)
    ):
        label = np.asarray(labels.labels[start : start + label_length])
        start += label_length
        with np.errstate(all="ignore"):
            cost, slopes = _loss_of_sequence(
                probs[:input_length, sequence], label, spec.normalization
            )
        costs[sequence] = cost
        if gradients is not None:
            gradients[:input_length, sequence] = slopes


def _check_labels(labels: _Labels, steps: int, alphabet: int) -> None:
    if min(labels.label_lengths) < 1 or min(labels.labels) < 1 or max(labels.labels) >= alphabet:
        raise bad_parameter(
            "a label that is empty, blank or beyond the alphabet: a GPU computes something else"
        )
    if min(labels.input_lengths) < 0 or max(labels.input_lengths) > steps:
        raise bad_parameter(f"input lengths {list(labels.input_lengths)}; there are {steps} steps")


def _loss_of_sequence(
    x: Array, label: Array, normalization: LossNormalizationMode
) -> tuple[float, Array]:
    """Return cost and gradients of one sequence: 0 where it is too short for its label."""
    has_softmax = normalization == LossNormalizationMode.SOFTMAX
    repetitions = np.count_nonzero(label[1:] == label[:-1])
    if len(x) < len(label) + repetitions:
        return 0.0, np.zeros(x.shape)
    probs = x
    if has_softmax:
        # In float32, a probability below its range is 0, and makes a label with no other path
        # impossible.
        probs = np.exp(x - x.max(1, keepdims=True))
        probs = probs / probs.sum(1, keepdims=True)
    # The path has blanks between the labels and around them.
    path = np.zeros(2 * len(label) + 1, int)
    path[1::2] = label
    can_skip = np.array(
        [
            position > 1 and path[position] not in (0, path[position - 2])
            for position in range(len(path))
        ]
    )
    emissions = np.log(probs.astype(np.float64))[:, path]
    forward = _forward_variables(emissions, can_skip)
    can_skip_back = np.concatenate(([False, False], can_skip[2:][::-1]))
    backward = _forward_variables(emissions[::-1, ::-1], can_skip_back)[::-1, ::-1]
    total = reduce(np.logaddexp, forward[-1, -2:])
    occupancy = np.zeros(x.shape)
    if math.isnan(total) or total > -math.inf:
        powers = np.exp(forward + backward - emissions - total)
        np.add.at(occupancy.T, path, np.where(emissions > -np.inf, powers, 0).T)
    if has_softmax:
        return -total, probs - occupancy
    # An H200 leaves the probability itself where no path of the label passes.
    return -total, np.where(occupancy > 0, -occupancy / probs, probs)


def _forward_variables(emissions: Array, can_skip: Array) -> Array:
    """Return, for each step and position of the path, the log probability of all ways to it."""
    variables = np.full(emissions.shape, -np.inf)
    variables[0, :2] = emissions[0, :2]
    for step in range(1, len(emissions)):
        before = variables[step - 1]
        stay_or_move = np.logaddexp(before, np.concatenate(([-np.inf], before[:-1])))
        skip = np.where(can_skip, np.concatenate(([-np.inf, -np.inf], before[:-2])), -np.inf)
        variables[step] = np.logaddexp(stay_or_move, skip) + emissions[step]
    return variables
