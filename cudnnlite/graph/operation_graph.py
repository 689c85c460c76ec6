"""Operation graphs of convolutions, alone or with bias, addition and activation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from cudnnlite._raw.enums import PointwiseMode
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.enums import ActivationMode, DataType
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor
from cudnnlite.specs.layers import ActivationSpec

ALIGNMENT = 16  # bytes; what engines with vector loads want of every operand
# by mode: what it is to graphs, and by which attribute its coefficient goes
MODES = {
    ActivationMode.RELU: (PointwiseMode.RELU_FWD, ""),
    ActivationMode.CLIPPED_RELU: (PointwiseMode.RELU_FWD, "relu_upper_clip"),
    ActivationMode.SIGMOID: (PointwiseMode.SIGMOID_FWD, ""),
    ActivationMode.TANH: (PointwiseMode.TANH_FWD, ""),
    ActivationMode.ELU: (PointwiseMode.ELU_FWD, "elu_alpha"),
    ActivationMode.SWISH: (PointwiseMode.SWISH_FWD, "swish_beta"),
}


class Graph(NonCopyable):
    """An operation graph that was made and is final, with the numbers of its tensors.

    Parameters
    ----------
    handle : Handle
        The device that it is for.
    stack : ExitStack
        Owns the descriptors.
    """

    def __init__(self, handle: Any, stack: ExitStack) -> None:
        self.handle, self._stack = handle, stack
        self.uids: dict[str, int] = {}  # of what is in memory
        self.other_views: dict[str, str] = {}  # name of another view -> the tensor's name
        self._tensors = 0
        self._operations: list[BackendDescriptor] = []
        self._shared: dict[tuple[Any, ...], BackendDescriptor] = {}
        self.descriptor: BackendDescriptor | None = None

    def make(self, kind: str, /, **attributes: Any) -> BackendDescriptor:
        """Return a final descriptor, closed with the graph."""
        return self._stack.enter_context(
            BackendDescriptor(self.handle, kind, **attributes)
        ).finalize()

    def shared(self, kind: str, /, **attributes: Any) -> BackendDescriptor:
        """Return what `make` does, made once for the same attributes."""
        key = (kind, *attributes.items())
        if key not in self._shared:
            self._shared[key] = self.make(kind, **attributes)
        return self._shared[key]

    def tensor(
        self, name: str, spec: TensorSpec | FilterSpec, *, virtual: bool = False
    ) -> BackendDescriptor:
        """Return the descriptor of an operand; a virtual one is never in memory."""
        dims, strides = as_tensor(spec).native()
        self._tensors += 1
        if not virtual:
            self.uids[name] = self._tensors
        return self.make(
            "TENSOR",
            data_type=spec.dtype,
            dimensions=dims,
            strides=strides,
            unique_id=self._tensors,
            byte_alignment=ALIGNMENT,
            is_virtual=virtual,
        )

    def convolution(
        self,
        kind: str,
        operands: Mapping[str, BackendDescriptor],
        conv: ConvolutionSpec,
        spatial: int,
        compute: DataType,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """Add a convolution or a gradient of one; operands by the attributes' names."""
        (_, stride, dilation), pads = conv.steps(spatial), conv.pads(spatial)
        if spatial == 1:  # told to cuDNN as images that are one pixel high
            pads, stride, dilation = ((0, 0), *pads), (1, *stride), (1, *dilation)
        before, behind = zip(*pads, strict=True)
        steps = self.make(
            "CONVOLUTION",
            comp_type=compute,
            conv_mode=conv.mode,
            dilations=dilation,
            filter_strides=stride,
            pre_paddings=before,
            post_paddings=behind,
            spatial_dims=len(pads),
        )
        operation = self._stack.enter_context(
            BackendDescriptor(self.handle, kind, conv_desc=steps, **operands)
        )
        operation.set("alpha", alpha, _scalar(compute))
        operation.set("beta", beta, _scalar(compute))
        self._operations.append(operation.finalize())

    def pointwise(
        self,
        mode: PointwiseMode,
        *,
        compute: DataType = DataType.FLOAT,
        alphas: tuple[float, float] = (1.0, 1.0),
        coefficients: Mapping[str, Any] | None = None,
        **operands: BackendDescriptor,
    ) -> None:
        """Add a pointwise operation of alphas[0] * x and alphas[1] * b.

        `coefficients` are attributes of its "POINTWISE" descriptor.
        """
        steps = self.make("POINTWISE", mode=mode, math_prec=compute, **(coefficients or {}))
        operation = self._stack.enter_context(
            BackendDescriptor(self.handle, "OPERATION_POINTWISE", pw_descriptor=steps, **operands)
        )
        for name, alpha in zip(("alpha1", "alpha2"), alphas, strict=True):
            if alpha != 1:
                operation.set(name, alpha, _scalar(compute))
        self._operations.append(operation.finalize())

    def add(self, kind: str, attributes: Mapping[str, Any]) -> None:
        """Add an operation of any kind, with its attributes by cuDNN's names."""
        self._operations.append(self.make(kind, **attributes))

    def finish(self) -> Graph:
        """Let cuDNN check the whole; returns it.

        Raises
        ------
        NotSupportedError
            cuDNN has no engines for such graphs.
        """
        self.descriptor = self.make("OPERATIONGRAPH", handle=self.handle, ops=self._operations)
        return self


def _scalar(compute: DataType) -> str:
    """Return the type in which cuDNN wants scalars."""
    return "DOUBLE" if compute == DataType.DOUBLE else "FLOAT"


def convolution_graph(
    handle: Any,
    stack: ExitStack,
    kind: str,
    specs: Mapping[str, Any],
    conv: ConvolutionSpec,
    alpha: float,
    beta: float,
) -> Graph:
    """Return the graph of one convolution; `handle` and `stack` as in `Graph`.

    `kind` is the backend operation, "OPERATION_CONVOLUTION_FORWARD"; `specs` are the operands', by
    the names that its attributes have too.
    """
    graph = Graph(handle, stack)
    operands = {name: graph.tensor(name, spec) for name, spec in specs.items()}
    first = next(iter(specs.values()))
    graph.convolution(
        kind, operands, conv, first.rank - 2, conv.compute_type_for(first), alpha, beta
    )
    return graph.finish()


def fused_graph(
    handle: Any,
    stack: ExitStack,
    specs: Mapping[str, Any],
    conv: ConvolutionSpec,
    activation: ActivationSpec,
    alpha: float = 1.0,
    alpha2: float = 0.0,
) -> Graph:
    """Return the graph of y = activation(alpha * conv(x, w) + alpha2 * z + bias).

    In this order, and with `alpha` as a scalar of the addition of z, an H200 has engines in every
    data type and layout; with the scalar at the convolution, or at the bias, it has none.

    `specs` are of "x", "w", "bias", "z" where that is added, "y"; `handle` and `stack` as in
    `Graph`.
    """
    graph = Graph(handle, stack)
    tensors = {name: graph.tensor(name, spec) for name, spec in specs.items()}
    spatial, compute = specs["x"].rank - 2, conv.compute_type_for(specs["x"])
    wide = DataType.DOUBLE if compute == DataType.DOUBLE else DataType.FLOAT
    between = specs["y"].packed(specs["y"].shape, wide)
    steps: list[tuple[PointwiseMode, dict[str, Any]]] = []
    if "z" in tensors:
        steps.append((PointwiseMode.ADD, {"bdesc": tensors["z"], "alphas": (alpha, alpha2)}))
        alpha = 1.0
    steps.append((PointwiseMode.ADD, {"bdesc": tensors["bias"]}))
    if activation.mode != ActivationMode.IDENTITY:
        mode, coefficient = MODES[activation.mode]
        coefficients: dict[str, Any] = {coefficient: activation.coef} if coefficient else {}
        if mode == PointwiseMode.RELU_FWD:
            coefficients["nan_propagation"] = activation.nan
        steps.append((mode, {"coefficients": coefficients}))
    ends = [
        graph.tensor(f"between {number}", between, virtual=True) for number in range(len(steps))
    ]
    operands = {"x": tensors["x"], "w": tensors["w"], "y": ends[0]}
    graph.convolution("OPERATION_CONVOLUTION_FORWARD", operands, conv, spatial, compute, alpha)
    for number, (mode, given) in enumerate(steps):
        following = tensors["y"] if number == len(steps) - 1 else ends[number + 1]
        graph.pointwise(mode, compute=wide, xdesc=ends[number], ydesc=following, **given)
    return graph.finish()
