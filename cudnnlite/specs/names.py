"""The names that arguments take, as types: a type checker sees a typo, an editor completes them."""

from __future__ import annotations

from typing import Literal, TypeAlias

MathTypeName: TypeAlias = Literal[
    "default", "tensor_op", "tensor_op_allow_conversion", "fma", "tf32", "true_float32", "float32"
]
# Of the C function, and of those that are graphs.
ActivationModeName: TypeAlias = Literal[
    "sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity", "swish", "silu"
]
GraphActivationName: TypeAlias = Literal[
    "relu",
    "leaky_relu",
    "gelu",
    "gelu_tanh",
    "swish",
    "silu",
    "softplus",
    "sigmoid",
    "tanh",
    "elu",
    "mish",
]
CellName: TypeAlias = Literal["relu", "tanh", "lstm", "gru"]
InputModeName: TypeAlias = Literal["linear", "skip"]
PoolingModeName: TypeAlias = Literal[
    "max",
    "average_count_include_padding",
    "average_count_exclude_padding",
    "max_deterministic",
]
SoftmaxAlgorithmName: TypeAlias = Literal["fast", "accurate", "log"]
SoftmaxModeName: TypeAlias = Literal["instance", "channel"]
BatchNormModeName: TypeAlias = Literal["auto", "per_activation", "spatial", "spatial_persistent"]
ConvolutionModeName: TypeAlias = Literal["convolution", "cross_correlation"]
