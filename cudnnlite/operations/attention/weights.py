"""`AttentionWeights`: the projections of multi-head attention, reachable by name."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from cudnnlite._raw.enums import MultiHeadAttnWeightKind
from cudnnlite.arguments import instance_of
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.descriptors.attention import AttentionDescriptor
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import itemsize
from cudnnlite.errors import ArgumentError, LibraryError
from cudnnlite.plans.host_arrays import (
    HasStateDict,
    check_names,
    host_array_of_shape,
    state_dict_of,
)
from cudnnlite.plans.named_weights import EmptyTensorDescriptor, NamedWeights
from cudnnlite.plans.operands import use
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.attention import MAXIMA, AttentionSpec

Array = np.ndarray[Any, Any]
# The names in the order of MultiHeadAttnWeightKind.
_KINDS = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")


class AttentionWeights(NamedWeights):
    """The weights of multi-head attention: one buffer, zero at first, with views by name.

    The matrices ``wq``, ``wk``, ``wv`` and ``wo`` have the shape (heads, projected size, size).
    The biases, if the spec has them, are ``bq``, ``bk`` and ``bv``, (heads, projected size), and
    ``bo``, (o_proj_size,).  A projection that the spec does not have has no names.
    ``weights[name] = values`` writes a view; ``weights[name]`` returns a DeviceArray that shares
    the memory.

    Parameters
    ----------
    handle : Handle
        The weights are in the memory of its device.
    spec : AttentionSpec
        The attention; the weights have its dtype.

    Attributes
    ----------
    spec : AttentionSpec
        The attention.
    kind : AttentionSpec
        The fields of the spec on which weights depend; all others are unset.
    array : DeviceArray
        The whole buffer, in a layout of cuDNN's own.

    Raises
    ------
    ArgumentError, NotSupportedError
        cuDNN does not support the attention.
    DeviceMemoryError
        There is not enough device memory.

    Notes
    -----
    C functions: `cudnnGetMultiHeadAttnBuffers`, and `cudnnGetMultiHeadAttnWeights`, which returns
    the address of each matrix; deprecated since cuDNN 9.0.0.

    Examples
    --------
    >>> spec = dnn.AttentionSpec(2, 6, q_proj_size=3, o_proj_size=6, bias=True)
    >>> with dnn.Handle() as handle:
    ...     weights = dnn.AttentionWeights(handle, spec)
    ...     weights["bo"] = np.ones(6)
    ...     again = dnn.AttentionWeights.from_torch(handle, spec, weights.to_torch())
    ...     print(list(again), again["bo"].numpy().sum(), again["wq"].shape)
    ['wq', 'wk', 'wv', 'wo', 'bq', 'bk', 'bv', 'bo'] 6.0 (2, 3, 6)
    """

    def __init__(self, handle: Handle, spec: AttentionSpec) -> None:
        use(handle)
        instance_of(spec, AttentionSpec, "spec")
        # A descriptor needs maxima of 1 at least.
        maxima = {name: getattr(spec, name) or 1 for name in MAXIMA}
        with AttentionDescriptor(spec.replace(**maxima), api=handle.api) as descriptor:
            nbytes, workspace = ctypes.c_size_t(), ctypes.c_size_t()
            handle.api.cudnnGetMultiHeadAttnBuffers(
                handle.ptr, descriptor.ptr, nbytes, workspace, None
            )
            super().__init__(handle, spec, spec.weights_of(), nbytes.value)
            self._places = _read_layout(handle, descriptor, spec, self.array.ptr, nbytes.value)

    @classmethod
    def from_torch(
        cls,
        handle: Handle,
        spec: AttentionSpec,
        state_dict: Mapping[str, Any] | HasStateDict,
        *,
        prefix: str = "",
    ) -> AttentionWeights:
        """Make weights from the `state_dict()` of a `torch.nn.MultiheadAttention`.

        Parameters
        ----------
        handle, spec
            As in `AttentionWeights`.  The spec must have all four projections, as PyTorch has.
        state_dict : mapping of str to tensor, or module
            PyTorch tensors, on any device, or NumPy arrays; or the module that has them.
        prefix : str
            The prefix of the names in a larger model, for instance "encoder.attention.".  Names
            without the prefix are ignored.

        Raises
        ------
        ArgumentError
            A tensor is missing, unknown to cuDNN (as `bias_k` is), or has the wrong shape; or the
            spec lacks a projection.
        """
        shapes = _torch_shapes(spec)
        state_dict = state_dict_of(state_dict)
        instance_of(prefix, str, "prefix")
        values_by_name = {
            name.removeprefix(prefix): value
            for name, value in state_dict.items()
            if name.startswith(prefix)
        }
        check_names("state_dict", values_by_name, shapes)
        tensors = {
            name: host_array_of_shape(f"state_dict[{prefix + name!r}]", values_by_name[name], shape)
            for name, shape in shapes.items()
        }
        if "in_proj_weight" in tensors:
            # PyTorch has one tensor for the three projections if their inputs have one size.
            matrices = np.split(tensors["in_proj_weight"], 3)
            for x, matrix in zip("qkv", matrices, strict=True):
                tensors[f"{x}_proj_weight"] = matrix
        own_shapes = spec.weight_shapes()
        values = {f"w{x}": tensors[f"{x}_proj_weight"].reshape(own_shapes[f"w{x}"]) for x in "qkv"}
        out = tensors["out_proj.weight"].reshape(spec.o_proj_size, spec.heads, spec.v_proj_size)
        values["wo"] = out.transpose(1, 0, 2)
        if spec.bias:
            biases = np.split(tensors["in_proj_bias"], 3)
            for x, bias in zip("qkv", biases, strict=True):
                values[f"b{x}"] = bias.reshape(own_shapes[f"b{x}"])
            values["bo"] = tensors["out_proj.bias"]
        return cls.from_arrays(handle, spec, values)

    def to_torch(self) -> dict[str, Array]:
        """Return a state_dict for a `torch.nn.MultiheadAttention`, as NumPy arrays.

        The call waits for the copy from the device.
        """
        shapes, values = _torch_shapes(self.spec), self.numpy()
        matrices = [values[f"w{x}"].reshape(-1, values[f"w{x}"].shape[2]) for x in "qkv"]
        tensors = {f"{x}_proj_weight": matrix for x, matrix in zip("qkv", matrices, strict=True)}
        if "in_proj_weight" in shapes:
            tensors["in_proj_weight"] = np.concatenate(matrices)
        tensors["out_proj.weight"] = (
            values["wo"].transpose(1, 0, 2).reshape(self.spec.o_proj_size, -1)
        )
        if self.spec.bias:
            tensors["in_proj_bias"] = np.concatenate([values[f"b{x}"].reshape(-1) for x in "qkv"])
            tensors["out_proj.bias"] = values["bo"]
        return {name: tensors[name] for name in shapes}


def _torch_shapes(spec: AttentionSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in PyTorch's state_dict.

    ArgumentError if PyTorch has no such attention.
    """
    instance_of(spec, AttentionSpec, "spec")
    sizes = (spec.q_size, spec.k_size, spec.v_size)
    projected_sizes = {spec.q_proj_size, spec.k_proj_size, spec.v_proj_size}
    if len(projected_sizes) > 1 or not spec.o_proj_size or not spec.q_proj_size:
        raise ArgumentError(
            f"{spec} is not one that PyTorch has: PyTorch's has four projections, "
            "and projects queries, keys and values to one size"
        )
    rows = spec.heads * spec.q_proj_size
    if len(set(sizes)) == 1:
        shapes: dict[str, tuple[int, ...]] = {"in_proj_weight": (3 * rows, spec.q_size)}
    else:
        shapes = {f"{x}_proj_weight": (rows, size) for x, size in zip("qkv", sizes, strict=True)}
    if spec.bias:
        shapes["in_proj_bias"] = (3 * rows,)
    shapes["out_proj.weight"] = (spec.o_proj_size, rows)
    if spec.bias:
        shapes["out_proj.bias"] = (spec.o_proj_size,)
    return shapes


def _read_layout(
    handle: Handle, attention: AttentionDescriptor, spec: AttentionSpec, base: int, nbytes: int
) -> dict[str, tuple[int, TensorSpec]]:
    """Return the offset and spec of each matrix and bias, as cuDNN has them."""
    places = {}
    with EmptyTensorDescriptor() as descriptor:
        for name, shape in spec.weight_shapes().items():
            address, kind = ctypes.c_void_p(), MultiHeadAttnWeightKind(_KINDS.index(name))
            handle.api.cudnnGetMultiHeadAttnWeights(
                handle.ptr,
                attention.ptr,
                kind,
                nbytes,
                base,
                descriptor.ptr,
                ctypes.byref(address),
            )
            # cuDNN describes all weights with rank 3.  The shape of a bias ends in 1, and that of
            # `bo` begins with 1, too.
            description = TensorDescriptor.read(handle.api, descriptor.ptr)
            axes = slice(1, 2) if name == "bo" else slice(len(shape))
            part = TensorSpec(
                description.shape[axes], spec.dtype, strides=description.strides[axes]
            )
            is_whole = part.shape == shape and description.size == part.size
            is_packed = part.nbytes == part.size * itemsize(spec.dtype)
            if address.value is None or not is_whole or not is_packed:
                raise LibraryError(
                    f"cuDNN gives {name} as {description}, expected: {shape} without gaps"
                )
            places[name] = address.value - base, part
    return places
