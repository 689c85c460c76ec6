"""All declarations by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cudnnlite.problems import (
    activation,
    batch_normalization,
    convolution,
    convolution_backward,
    convolution_bias,
    dropout,
    fused_convolution,
    im2col,
    lrn,
    pointwise,
    pooling,
    rnn,
    softmax,
    spatial_transformer,
    transform,
)
from cudnnlite.problems.operation import Operation

_DECLARATIONS = (
    activation.FORWARD,
    activation.BACKWARD,
    batch_normalization.INFERENCE,
    batch_normalization.TRAINING,
    batch_normalization.TRAINING_RELU,
    batch_normalization.TRAINING_ADD_RELU,
    batch_normalization.TRAINING_OF_BATCH,
    batch_normalization.TRAINING_OF_BATCH_RELU,
    batch_normalization.TRAINING_OF_BATCH_ADD_RELU,
    batch_normalization.BACKWARD,
    batch_normalization.BACKWARD_RELU,
    batch_normalization.BACKWARD_ADD_RELU,
    convolution.FORWARD,
    convolution_backward.DATA,
    convolution_backward.FILTER,
    convolution_bias.BACKWARD,
    dropout.FORWARD,
    dropout.BACKWARD,
    fused_convolution.FUSED,
    fused_convolution.BIAS,
    fused_convolution.FUSED_WITH_Z,
    im2col.IM2COL,
    lrn.FORWARD,
    lrn.BACKWARD,
    lrn.DIVISIVE,
    lrn.DIVISIVE_AROUND,
    lrn.DIVISIVE_BACKWARD,
    lrn.DIVISIVE_AROUND_BACKWARD,
    pointwise.ADD,
    pointwise.SCALE,
    pointwise.SET,
    pointwise.OP,
    pointwise.REDUCE,
    pointwise.REDUCE_WITH_INDICES,
    pooling.FORWARD,
    pooling.BACKWARD,
    rnn.FORWARD,
    softmax.FORWARD,
    softmax.BACKWARD,
    spatial_transformer.GRID,
    spatial_transformer.GRID_BACKWARD,
    spatial_transformer.SAMPLE,
    spatial_transformer.SAMPLE_BACKWARD,
    transform.TRANSFORM,
    transform.EXTENDED,
    transform.FILTER,
)
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {declaration.name: declaration for declaration in _DECLARATIONS}
)

# The names of the operations that a tuner can search for.
TUNABLE = tuple(
    name
    for name, declaration in OPERATIONS.items()
    if declaration.algorithms is not None or declaration is rnn.FORWARD
)
