"""`RNNSpec`: which recurrent network, in which arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from cudnnlite.arguments import integer, one_of, real_number, shown
from cudnnlite.dtypes import AnyDtype, compute_type_for, dtype_name, parse_dtype
from cudnnlite.enums import (
    DataType,
    MathType,
    RNNBiasMode,
    RNNInputMode,
    RNNMode,
    parse_enum,
    parse_math_type,
)
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec, display_value
from cudnnlite.specs.layers import parse_probability
from cudnnlite.specs.names import CellName, InputModeName, MathTypeName
from cudnnlite.warn import warn_user

# The gates in cuDNN's order, which is the order of its linear layer numbers.
GATES = {
    RNNMode.RELU: ("h",),
    RNNMode.TANH: ("h",),
    RNNMode.LSTM: ("i", "f", "g", "o"),
    RNNMode.GRU: ("r", "z", "n"),
}
_BIAS_NAMES: dict[Any, RNNBiasMode] = {
    "none": RNNBiasMode.NO,
    "single_input": RNNBiasMode.SINGLE_INP,
    "single_recurrent": RNNBiasMode.SINGLE_REC,
    "double": RNNBiasMode.DOUBLE,
}
_BIAS_TEXTS = {mode: name for name, mode in _BIAS_NAMES.items()}
_FLOATS = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class RNNSpec(FrozenSpec):
    """A recurrent network: a frozen value, compared and hashed by its fields.

    Parameters
    ----------
    cell : RNNMode or str
        "lstm", "gru", "relu" or "tanh".
    input_size, hidden_size : int
        The length of an input vector, and of a hidden state.
    num_layers : int
        The number of layers; each reads the output of the layer below.
    bidirectional : bool
        Whether a second network reads each sequence from its end; the two outputs are concatenated.
    projection_size : int, optional
        LSTM only: the length, at most `hidden_size`, to which a matrix projects the hidden state
        before it becomes output and recurrent input.
    bias : RNNBiasMode, str or bool
        "double" (one for the input's product and one for the recurrent product, as in PyTorch; the
        default), "single_input", "single_recurrent", or "none" (`RNNBiasMode.NO`,
        CUDNN_RNN_NO_BIAS).  True and False mean "double" and "none".
    input_mode : RNNInputMode or str
        "linear", or "skip": the first layer's input is not multiplied, so `input_size` must be
        `hidden_size`.
    dropout : float
        The probability, from 0 to 1, with which training sets an output of a layer to zero, except
        in the last layer.
    clip : tuple of (float, float), optional
        LSTM only: the limits to which cell states, including cx, are clipped when they are read;
        infinities are allowed.  cy itself is not clipped.  An H200 keeps the limits in single
        precision, also for float64.
    dtype : DataType or str
        The type of data and weights: "float32", "float64", "float16" or "bfloat16" (refused by
        cuDNN 9.0 and 9.10, but not by 9.19).
    compute_type : DataType or str, optional
        The type of cuDNN's computation.  If not given: float64 for float64, float32 for the others.
    math_type : MathType or str
        `MathType.DEFAULT` ("tf32"): float32 data is multiplied in TF32 on Ampere and later GPUs.
        `MathType.FMA` ("true_float32"): never in TF32.  TENSOR_OP_ALLOW_CONVERSION: float32 may
        also be rounded to float16 on the way.

    Notes
    -----
    C functions: `cudnnSetRNNDescriptor_v8`, `cudnnRNNSetClip_v9` (`cudnnRNNSetClip_v8` where the
    library is older).

    A GRU applies the reset gate after the recurrent product, as in PyTorch: n = tanh(W x + b + r *
    (R h + b')).

    Examples
    --------
    >>> lstm = dnn.RNNSpec("lstm", input_size=64, hidden_size=128, num_layers=2, bidirectional=True)
    >>> lstm.output_size, lstm.hidden_shape(batch=3), lstm.gates
    (256, (4, 3, 128), ('i', 'f', 'g', 'o'))
    >>> lstm == lstm.replace(dropout=0.0)
    True
    """

    cell: RNNMode
    input_size: int
    hidden_size: int
    num_layers: int
    bidirectional: bool
    projection_size: int | None
    bias: RNNBiasMode
    input_mode: RNNInputMode
    dropout: float
    clip: tuple[float, float] | None
    dtype: DataType
    compute_type: DataType
    math_type: MathType

    def __init__(
        self,
        cell: RNNMode | CellName,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
        *,
        projection_size: int | None = None,
        bias: RNNBiasMode | str | bool = RNNBiasMode.DOUBLE,
        input_mode: RNNInputMode | InputModeName = RNNInputMode.LINEAR,
        dropout: float = 0.0,
        clip: Iterable[float] | None = None,
        dtype: AnyDtype = "float32",
        compute_type: AnyDtype | None = None,
        math_type: MathType | MathTypeName = MathType.DEFAULT,
    ) -> None:
        kind = parse_dtype(dtype)
        if kind not in _FLOATS:
            raise ArgumentError(
                f"dtype={dtype_name(kind)!r}; allowed: {', '.join(map(dtype_name, _FLOATS))}"
            )
        self._freeze(
            cell=_parse_cell(cell),
            input_size=integer(input_size, "input_size"),
            hidden_size=integer(hidden_size, "hidden_size"),
            num_layers=integer(num_layers, "num_layers"),
            bidirectional=one_of(bidirectional, "bidirectional", True, False),
            projection_size=_parse_projection(projection_size, hidden_size),
            bias=_parse_bias(bias),
            input_mode=parse_enum(RNNInputMode, input_mode, "input_mode"),
            dropout=parse_probability(dropout),
            clip=_parse_clip(clip),
            dtype=kind,
            compute_type=compute_type_for(kind)
            if compute_type is None
            else parse_dtype(compute_type, "compute_type"),
            math_type=parse_math_type(math_type),
        )
        self._check_combination()

    @classmethod
    def from_torch(cls, module: Any, **options: Any) -> RNNSpec:
        """Return the spec of a `torch.nn.LSTM`, `GRU` or `RNN`.

        Its ``batch_first`` is no part of a network here, and a warning says so: a call has
        ``layout="batch_major"`` for it.

        Parameters
        ----------
        module : torch.nn.RNNBase
            The module; its weights go by `RNNWeights.from_torch`.
        options : object
            Fields that PyTorch's modules do not have (``math_type``, ``compute_type``, ``clip``),
            or other values than the module's.

        Raises
        ------
        ArgumentError
            No such module, or a value that is not allowed.
        """
        try:
            fields = {
                "cell": module.mode.removeprefix("RNN_"),
                "input_size": module.input_size,
                "hidden_size": module.hidden_size,
                "num_layers": module.num_layers,
                "bidirectional": module.bidirectional,
                "bias": module.bias,
                "projection_size": module.proj_size or None,
                "dropout": module.dropout,
                "dtype": str(module.weight_ih_l0.dtype).removeprefix("torch."),
            }
        except AttributeError as error:
            raise ArgumentError(
                f"module of type {type(module).__name__} is no torch.nn.LSTM, GRU or RNN: {error}"
            ) from None
        try:
            spec = cls(**fields | options)
        except TypeError as error:
            raise ArgumentError(f"options={shown(options)}: {error}") from None
        if getattr(module, "batch_first", False):
            warn_user(
                "the module has batch_first=True, which no RNNSpec holds: give layout='batch_major' "
                "to each call, as in dnn.rnn_forward(handle, spec, weights, x, "
                "layout='batch_major')",
                UserWarning,
            )
        return spec

    def _check_combination(self) -> None:
        if self.projection_size is not None:
            if self.cell != RNNMode.LSTM:
                raise ArgumentError(
                    f"projection_size={self.projection_size} with cell={self.cell.name}; allowed: "
                    "LSTM"
                )
            if self.projection_size > self.hidden_size:
                raise ArgumentError(
                    f"projection_size={self.projection_size}; allowed: "
                    f"1 to hidden_size={self.hidden_size}"
                )
        if self.clip is not None and self.cell != RNNMode.LSTM:
            raise ArgumentError(
                f"clip={self.clip} with cell={self.cell.name}; allowed: "
                "LSTM, whose cell state it clips"
            )
        if self.input_mode == RNNInputMode.SKIP and self.input_size != self.hidden_size:
            raise ArgumentError(
                f"input_size={self.input_size} with input_mode='skip'; allowed: "
                f"hidden_size={self.hidden_size}"
            )

    def __repr__(self) -> str:
        parts = [
            repr(self.cell.name.lower()),
            f"input_size={self.input_size}",
            f"hidden_size={self.hidden_size}",
        ]
        plain = type(self)(self.cell, self.input_size, self.hidden_size, dtype=self.dtype)
        for name, value in self.values().items():
            if name == "dtype" and value != DataType.FLOAT:
                parts.append(f"dtype={dtype_name(value)!r}")
            elif value != getattr(plain, name):
                text = display_value(value)
                if name == "bias":
                    text = _BIAS_TEXTS.get(value, text)
                parts.append(f"{name}={text!r}")
        return f"RNNSpec({', '.join(parts)})"

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates' names in cuDNN's order.

        They are i, f, g, o of an LSTM, r, z, n of a GRU, and h of a plain network.
        """
        return GATES[self.cell]

    @property
    def directions(self) -> int:
        """1, or 2 if bidirectional."""
        return 2 if self.bidirectional else 1

    @property
    def state_size(self) -> int:
        """The length of the hidden state: `projection_size`, or else `hidden_size`."""
        return self.hidden_size if self.projection_size is None else self.projection_size

    @property
    def output_size(self) -> int:
        """The length of an output vector: `state_size`, twice that if bidirectional."""
        return self.directions * self.state_size

    @property
    def projects(self) -> bool:
        """Whether cuDNN multiplies by a projection matrix, which it does not at `hidden_size`."""
        return self.state_size != self.hidden_size

    def layer_input_size(self, layer: int) -> int:
        """Return the length of the vectors that a layer is fed with."""
        number = integer(layer, "layer", 0, self.num_layers - 1)
        return self.input_size if number == 0 else self.output_size

    def hidden_shape(self, batch: int) -> tuple[int, int, int]:
        """Return the shape of hx and hy: (num_layers * directions, batch, state_size)."""
        return self.num_layers * self.directions, integer(batch, "batch"), self.state_size

    def cell_shape(self, batch: int) -> tuple[int, int, int]:
        """Return the shape of cx and cy: (num_layers * directions, batch, hidden_size)."""
        return self.num_layers * self.directions, integer(batch, "batch"), self.hidden_size

    @property
    def clip_in_effect(self) -> tuple[float, float] | None:
        """`clip` in single precision, in which cuDNN keeps it."""
        if self.clip is None:
            return None
        return float(np.float32(self.clip[0])), float(np.float32(self.clip[1]))

    def weights_of(self) -> RNNSpec:
        """Return the spec without the fields that do not affect weights.

        These are math type, compute type, clipping and dropout.
        """
        return self.replace(math_type=MathType.DEFAULT, compute_type=None, clip=None, dropout=0.0)


def _parse_cell(value: Any) -> RNNMode:
    cell = parse_enum(RNNMode, value, "cell")
    if cell not in GATES:
        raise ArgumentError(
            f"cell={shown(value)} is not known; allowed: {', '.join(mode.name for mode in GATES)}"
        )
    return cell


def _parse_projection(value: Any, hidden_size: int) -> int | None:
    """Return the size; None also for `hidden_size`, which means no projection to cuDNN."""
    size = None if value is None else integer(value, "projection_size")
    return None if size == hidden_size else size


def _parse_bias(value: Any) -> RNNBiasMode:
    if isinstance(value, bool):
        return RNNBiasMode.DOUBLE if value else RNNBiasMode.NO
    return parse_enum(RNNBiasMode, value, "bias", _BIAS_NAMES)


def _parse_clip(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    try:
        low, high = (real_number(end, "clip") for end in islice(value, 3))
    except (TypeError, ValueError):
        raise ArgumentError(f"clip={shown(value)} is not a pair of numbers") from None
    if math.isnan(low) or math.isnan(high) or low > high:
        raise ArgumentError(f"clip={shown(value)}; allowed: the smaller number first, and no NaN")
    return low, high
