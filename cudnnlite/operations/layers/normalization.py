"""Layer, RMS and instance normalisation, as graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cudnnlite.arguments import one_of, real_number
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.devices.indexing import memory_axes_order
from cudnnlite.errors import ArgumentError, CaptureError
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.graph.function import GraphRequest, graph_operation
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.operations.layers.normalization_types import (
    normalization_operation,
    rms_normalization_operation,
)
from cudnnlite.operations.layers.transform import transform_tensor
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import span


def _without_gaps(handle: Handle, array: DeviceArray, argument: str) -> DeviceArray:
    """Return an array, or a copy without gaps whose axes have the same order in memory.

    cuDNN 9.19 refuses gaps in layer and RMS normalisation (H200), so no plan has them.
    """
    if array.is_packed:
        return array
    try:
        copy = arrays.empty(handle.device, handle.stream, _packed(array.spec))
    except CaptureError as error:
        raise CaptureError(
            f"{argument} has gaps, and is copied at each call; a graph is recorded, and cannot have "
            f"a copy: pass {argument}.copy()"
        ) from error
    return transform_tensor(handle, array, out=copy)


def _packed(spec: TensorSpec) -> TensorSpec:
    """Return the spec without gaps whose axes have the same order in memory."""
    strides = [0] * spec.rank
    step = 1
    for axis in reversed(memory_axes_order(spec)):
        strides[axis] = step
        step *= spec.shape[axis]
    return TensorSpec(spec.shape, spec.dtype, strides=strides)


@normalization_operation
def layer_normalization_forward(
    handle: Handle,
    x: Operand,
    scale: Operand,
    bias: Operand,
    *,
    epsilon: float = 1e-5,
    training: bool = False,
    out: AnyArray | Sequence[AnyArray | None] | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[DeviceArray | tuple[DeviceArray, DeviceArray, DeviceArray]]:
    """Compute y = scale * (x - mean) / deviation + bias along the axes of `scale`, asynchronously.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call; it keeps the plan for the next call of the same kind.
    x : device array
        ``(N, C)``, or any shape of rank 3 to 5; float16, bfloat16 or float32.  cuDNN takes no
        operands with gaps: each call copies them, and a plan refuses them.
    scale, bias : device array
        ``(C,)`` beside ``(N, C)``; otherwise of the rank of `x`, with its size along the axes that
        are normalised, and 1 along the others, which include the first.  float32, or of the data
        type of `x`; in the order in which `x` lies in memory.
    epsilon : float
        Added to the variance.
    training : bool
        Whether mean and inverse deviation are returned too, which the backward pass reads.
    out : device array, or a tuple of them, optional
        Written in place: y, or y, mean and inverse deviation; new arrays if not given.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.

    Returns
    -------
    DeviceArray, or a tuple of three
        y, with the shape and layout of `x`; with `training` also mean and inverse deviation,
        float32, of size 1 along the axes that are normalised.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument.
    NotSupportedError
        cuDNN has no engine for these sizes on this device.

    Notes
    -----
    C functions: `cudnnBackendExecute`; for the first call of a kind, also those of
    `BackendDescriptor`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(8).reshape(2, 4, 1, 1), dtype="float32")
    ...     scale, bias = (handle.array(np.full((1, 4, 1, 1), v, np.float32)) for v in (1, 0))
    ...     y = dnn.layer_normalization_forward(handle, x, scale, bias)
    ...     print(y.numpy().ravel()[:4].round(3))
    [-1.342 -0.447  0.447  1.342]
    """
    return _forward(handle, "LAYER", x, scale, bias, epsilon, training, out, workspace_limit)


@rms_normalization_operation
def rms_normalization_forward(
    handle: Handle,
    x: Operand,
    scale: Operand,
    *,
    bias: Operand | None = None,
    epsilon: float = 1e-5,
    training: bool = False,
    out: AnyArray | Sequence[AnyArray | None] | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[DeviceArray | tuple[DeviceArray, DeviceArray]]:
    """Divide by the root of the mean square along the axes that `scale` has, asynchronously.

    Parameters
    ----------
    handle, x, scale, epsilon, out, workspace_limit
        As in `layer_normalization_forward`.
    bias : device array, optional
        Added, shaped as `scale`.
    training : bool
        Whether the inverse root is returned too, which the backward pass reads.

    Returns
    -------
    DeviceArray, or a tuple of two
        y, shaped and laid out as `x`; with `training` the inverse root too, float32.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError, NotSupportedError
        As in `layer_normalization_forward`.

    Notes
    -----
    C functions: `cudnnBackendExecute`, as in `layer_normalization_forward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.full((2, 4, 1, 1), 3, np.float32))
    ...     scale = handle.array(np.full((1, 4, 1, 1), 2, np.float32))
    ...     print(dnn.rms_normalization_forward(handle, x, scale).numpy().ravel()[:2].round(3))
    [2. 2.]
    """
    return _forward(handle, "RMS", x, scale, bias, epsilon, training, out, workspace_limit)


@normalization_operation
def instance_normalization_forward(
    handle: Handle,
    x: Operand,
    scale: Operand,
    bias: Operand,
    *,
    epsilon: float = 1e-5,
    training: bool = False,
    out: AnyArray | Sequence[AnyArray | None] | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[DeviceArray | tuple[DeviceArray, DeviceArray, DeviceArray]]:
    """Normalise each channel of each image, asynchronously.

    Parameters
    ----------
    handle, x, epsilon, training, out, workspace_limit
        As in `layer_normalization_forward`; `x` is ``(N, C, *spatial)``.
    scale, bias : device array
        ``(1, C, 1, ...)``, float32, or of the data type of `x`.

    Returns
    -------
    DeviceArray, or a tuple of three
        y, shaped and laid out as `x`; with `training` mean and inverse deviation too, float32,
        ``(N, C, 1, ...)``.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError, NotSupportedError
        As in `layer_normalization_forward`.

    Notes
    -----
    C functions: `cudnnBackendExecute`, as in `layer_normalization_forward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(4).reshape(1, 1, 2, 2), dtype="float32")
    ...     scale, bias = (handle.array(np.full((1, 1, 1, 1), v, np.float32)) for v in (1, 0))
    ...     y = dnn.instance_normalization_forward(handle, x, scale, bias)
    ...     print(y.numpy().ravel().round(3))
    [-1.342 -0.447  0.447  1.342]
    """
    return _forward(handle, "INSTANCE", x, scale, bias, epsilon, training, out, workspace_limit)


@graph_operation
def layer_normalization_backward(
    handle: Handle,
    dy: Operand,
    x: Operand,
    scale: Operand,
    mean: Operand,
    inv_variance: Operand,
    *,
    out: Sequence[AnyArray | None] | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[tuple[DeviceArray, DeviceArray, DeviceArray]]:
    """Compute the gradients of layer normalisation, asynchronously.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call; it keeps the plan for the next call of the same kind.
    dy : device array
        The gradient of y, of the shape and data type of `x`.
    x, scale : device array
        As in `layer_normalization_forward`.
    mean, inv_variance : device array
        What that returned, with ``training=True``.
    out : tuple of three device arrays, optional
        dx, dscale and dbias, written in place; new arrays if not given.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.

    Returns
    -------
    tuple of three DeviceArray
        dx, shaped as `x`; dscale and dbias, shaped and typed as `scale`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError, NotSupportedError
        As in `layer_normalization_forward`.

    Notes
    -----
    C functions: `cudnnBackendExecute`, as in `layer_normalization_forward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(8).reshape(2, 4, 1, 1), dtype="float32")
    ...     scale, bias = (handle.array(np.full((1, 4, 1, 1), v, np.float32)) for v in (1, 0))
    ...     y, mean, inv = dnn.layer_normalization_forward(handle, x, scale, bias, training=True)
    ...     dx, dscale, dbias = dnn.layer_normalization_backward(handle, x, x, scale, mean, inv)
    ...     print(dbias.numpy().ravel())
    [ 4.  6.  8. 10.]
    """
    return _backward(handle, "LAYER", dy, x, scale, mean, inv_variance, out, workspace_limit)


@graph_operation
def rms_normalization_backward(
    handle: Handle,
    dy: Operand,
    x: Operand,
    scale: Operand,
    inv_variance: Operand,
    *,
    out: Sequence[AnyArray | None] | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[tuple[DeviceArray, DeviceArray]]:
    """Compute the gradients of RMS normalisation without bias, asynchronously.

    Parameters
    ----------
    handle, dy, x, scale, workspace_limit
        As in `layer_normalization_backward`.
    inv_variance : device array
        What `rms_normalization_forward` returned, with ``training=True``.
    out : tuple of two device arrays, optional
        dx and dscale, written in place; new arrays if not given.

    Returns
    -------
    tuple of two DeviceArray
        dx, shaped as `x`; dscale, shaped and typed as `scale`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError, NotSupportedError
        As in `layer_normalization_forward`.

    Notes
    -----
    C functions: `cudnnBackendExecute`, as in `layer_normalization_forward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.full((2, 4, 1, 1), 3, np.float32))
    ...     scale = handle.array(np.full((1, 4, 1, 1), 2, np.float32))
    ...     y, inv = dnn.rms_normalization_forward(handle, x, scale, training=True)
    ...     dx, dscale = dnn.rms_normalization_backward(handle, x, x, scale, inv)
    ...     print(dscale.numpy().ravel().round(3))
    [6. 6. 6. 6.]
    """
    return _backward(handle, "RMS", dy, x, scale, None, inv_variance, out, workspace_limit)


@graph_operation
def instance_normalization_backward(
    handle: Handle,
    dy: Operand,
    x: Operand,
    scale: Operand,
    mean: Operand,
    inv_variance: Operand,
    *,
    out: Sequence[AnyArray | None] | None = None,
    workspace_limit: int | str | None = None,
) -> GraphRequest[tuple[DeviceArray, DeviceArray, DeviceArray]]:
    """Compute the gradients of instance normalisation, asynchronously.

    Parameters
    ----------
    handle, dy, x, scale, out, workspace_limit
        As in `layer_normalization_backward`; `scale` as in `instance_normalization_forward`.
    mean, inv_variance : device array
        What that returned, with ``training=True``.

    Returns
    -------
    tuple of three DeviceArray
        dx, shaped as `x`; dscale and dbias, shaped and typed as `scale`.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError, NotSupportedError
        As in `layer_normalization_forward`.

    Notes
    -----
    C functions: `cudnnBackendExecute`, as in `layer_normalization_forward`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.arange(8).reshape(2, 1, 2, 2), dtype="float32")
    ...     scale, bias = (handle.array(np.full((1, 1, 1, 1), v, np.float32)) for v in (1, 0))
    ...     y, mean, inv = dnn.instance_normalization_forward(handle, x, scale, bias, training=True)
    ...     dx, dscale, dbias = dnn.instance_normalization_backward(handle, x, x, scale, mean, inv)
    ...     print(dbias.numpy().ravel())
    [28.]
    """
    return _backward(handle, "INSTANCE", dy, x, scale, mean, inv_variance, out, workspace_limit)


def _forward(
    handle: Handle,
    mode: str,
    x: Operand,
    scale: Operand,
    bias: Operand | None,
    epsilon: float,
    training: bool,
    out: object,
    workspace_limit: int | str | None,
) -> GraphRequest[Any]:
    one_of(training, "training", True, False)
    statistics = ("inv_variance",) if mode == "RMS" else ("mean", "inv_variance")
    return GraphRequest(
        handle,
        f"{mode.lower()}_normalization_forward",
        forward_graph,
        {"x": x, "scale": scale, "bias": bias},
        {"mode": mode, "epsilon": real_number(epsilon, "epsilon"), "training": training},
        ("y", *statistics) if training else ("y",),
        out,
        workspace_limit,
        optional=frozenset({"bias"}) if mode == "RMS" else frozenset(),
        without_gaps=_without_gaps,
    )


def _backward(
    handle: Handle,
    mode: str,
    dy: Operand,
    x: Operand,
    scale: Operand,
    mean: Operand | None,
    inv_variance: Operand,
    out: object,
    workspace_limit: int | str | None,
) -> GraphRequest[Any]:
    operands = {"dy": dy, "x": x, "scale": scale, "mean": mean, "inv_variance": inv_variance}
    if mode == "RMS":
        del operands["mean"]
    return GraphRequest(
        handle,
        f"{mode.lower()}_normalization_backward",
        backward_graph,
        operands,
        {"mode": mode},
        ("dx", "dscale") if mode == "RMS" else ("dx", "dscale", "dbias"),
        out,
        workspace_limit,
        without_gaps=_without_gaps,
    )


def forward_graph(
    specs: Mapping[str, TensorSpec], mode: str, epsilon: float, training: bool
) -> Graph:
    """Return a normalisation as a graph."""
    graph = Graph()
    tensors = _inputs(graph, specs, mode)
    x = tensors["x"]
    result = graph.normalization_forward(
        mode, x, tensors["scale"], tensors.get("bias"), epsilon=epsilon, training=training
    )
    graph.output("y", result.y, x.dtype, specs["x"].strides, specs["x"].shape)
    for name, statistic in (("mean", result.mean), ("inv_variance", result.inv_variance)):
        if statistic is not None:
            graph.output(name, statistic, shape=statistic.shape[: specs["x"].rank])
    return graph


def backward_graph(specs: Mapping[str, TensorSpec], mode: str) -> Graph:
    """Return the gradients of a normalisation as a graph."""
    graph = Graph()
    tensors = _inputs(graph, specs, mode)
    x, scale = tensors["x"], tensors["scale"]
    result = graph.normalization_backward(
        mode,
        tensors["dy"],
        x,
        scale,
        tensors.get("mean"),
        tensors["inv_variance"],
        has_bias=mode != "RMS",
    )
    graph.output("dx", result.dx, x.dtype, specs["x"].strides, specs["x"].shape)
    parameter = specs["scale"]
    graph.output("dscale", result.dscale, scale.dtype, parameter.strides, parameter.shape)
    if result.dbias is not None:
        graph.output("dbias", result.dbias, scale.dtype, parameter.strides, parameter.shape)
    return graph


def _as_images(specs: Mapping[str, TensorSpec], mode: str) -> Mapping[str, TensorSpec]:
    """Return the specs of rows (N, C) and their parameters as those of images of one pixel."""
    x = specs["x"]
    if x.rank != 2 or mode == "INSTANCE":
        return specs
    rows, columns = x.shape
    parameters = ((columns,), (1, columns))
    statistics = ((rows, 1),)
    needed_shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "x": (x.shape,),
        "dy": (x.shape,),
        "scale": parameters,
        "bias": parameters,
        "mean": statistics,
        "inv_variance": statistics,
    }
    for name, spec in specs.items():
        if spec.shape not in needed_shapes[name]:
            raise ArgumentError(
                f"{name} has shape {spec.shape}; needed beside x {x.shape}: "
                f"{' or '.join(map(str, needed_shapes[name]))}"
            )
    if "bias" in specs and specs["bias"].rank != specs["scale"].rank:
        raise ArgumentError(
            f"bias has shape {specs['bias'].shape}; needed: {specs['scale'].shape}, as scale has it"
        )
    return {name: _as_image(spec) for name, spec in specs.items()}


def _as_image(spec: TensorSpec) -> TensorSpec:
    """Return (N, C) as (N, C, 1, 1), and (C,) as (1, C, 1, 1)."""
    shape, strides = spec.shape, spec.strides
    if spec.rank == 1:
        shape, strides = (1, *shape), (shape[0], *strides)
    return TensorSpec((*shape, 1, 1), spec.dtype, strides=(*strides, 1, 1))


def _reshaping(x: TensorSpec, scale: TensorSpec) -> str:
    """Return a hint at the view of a vector that fits one axis of the input; empty if none does."""
    axes = [axis for axis in range(1, x.rank) if scale.shape == (x.shape[axis],)]
    if len(axes) != 1:
        return ""
    shape = tuple(size if axis in axes else 1 for axis, size in enumerate(x.shape))
    return f"; scale.reshape{shape} is such a view"


def _inputs(graph: Graph, specs: Mapping[str, TensorSpec], mode: str) -> dict[str, GraphTensor]:
    """Check the operands, add them to a graph, and return them as images."""
    _check_gaps(specs)
    images = _as_images(specs, mode)
    _check_parameters(images, mode)
    tensors = {}
    for name, spec in specs.items():
        tensor = graph.input(name, spec.shape, spec.dtype, spec.strides)
        image = images[name]
        if image is not spec:
            tensor = graph.view(tensor, image.shape, image.strides)
        tensors[name] = tensor
    return tensors


def _check_gaps(specs: Mapping[str, TensorSpec]) -> None:
    """Raise ArgumentError for operands with gaps."""
    for name, spec in specs.items():
        if span(spec.shape, spec.strides) != spec.size:
            raise ArgumentError(
                f"{name} is {spec}; needed in a plan and a graph: no gaps (a call copies operands "
                f"with gaps, {name}.copy() has none)"
            )


def _check_parameters(specs: Mapping[str, TensorSpec], mode: str) -> None:
    """Raise ArgumentError if parameters or statistics do not fit the input."""
    x, scale = specs["x"], specs["scale"]
    is_instance = mode == "INSTANCE"
    if not 3 <= x.rank <= 5:
        smallest = 3 if is_instance else 2
        raise ArgumentError(f"x has shape {x.shape}; needed: rank {smallest} to 5")
    channels = (1, x.shape[1], *(1,) * (x.rank - 2))
    fits = scale.rank == x.rank and all(
        size in (1, whole) for size, whole in zip(scale.shape, x.shape, strict=True)
    )
    if is_instance:
        is_valid = scale.shape == channels
    else:
        is_valid = fits and scale.shape[0] == 1
    if not is_valid:
        requirement = (
            channels if is_instance else "1 first, then 1 or the size of x along each axis"
        )
        raise ArgumentError(
            f"scale has shape {scale.shape}; needed beside x {x.shape}: {requirement}"
            f"{_reshaping(x, scale)}"
        )
    statistics = tuple(
        1 if parameter == size else size
        for size, parameter in zip(x.shape, scale.shape, strict=True)
    )
    if is_instance:
        statistics = (*x.shape[:2], *(1,) * (x.rank - 2))
    needed_shapes = {
        "dy": x.shape,
        "bias": scale.shape,
        "mean": statistics,
        "inv_variance": statistics,
    }
    for name, shape in needed_shapes.items():
        if name in specs and specs[name].shape != shape:
            raise ArgumentError(f"{name} has shape {specs[name].shape}; needed: {shape}")
