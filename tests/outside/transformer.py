"""PyTorch's Transformers by our operations: products, attention, layer normalisation, activations.

Each operation is a `torch.autograd.Function` over tensors of the host, so PyTorch multiplies the
derivatives along the chain, and adds, joins and reshapes.  Attention computes in float16, the rest
in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import cudnnlite as dnn

MASKED = -1e4  # what is added to a score that is masked; float16 ends at 65504
_LEAST_HEAD = 8  # a head has a multiple of 8 elements: zeros behind it change no product


def _put(handle: dnn.Handle, tensor: Tensor, shape: Any, dtype: str = "float32") -> dnn.DeviceArray:
    host = tensor.detach().reshape(shape).contiguous().numpy()
    return handle.array(host.astype(np.float32), dtype=dtype)


def _host(array: dnn.DeviceArray, like: Tensor) -> Tensor:
    return torch.from_numpy(array.numpy().astype(np.float32)).reshape(like.shape)


class _Product(torch.autograd.Function):
    """``x @ w.T`` of rows."""

    @staticmethod
    def forward(ctx: Any, handle: dnn.Handle, x: Tensor, w: Tensor) -> Tensor:
        """Return the product."""
        ctx.a = _put(handle, x, (1, -1, x.shape[-1]))
        ctx.b = _put(handle, w.T, (1, *w.T.shape))
        ctx.handle, ctx.x, ctx.w = handle, x, w
        y = dnn.matmul(handle, ctx.a, ctx.b)
        return torch.from_numpy(y.numpy()).reshape(*x.shape[:-1], w.shape[0])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor, Tensor]:
        """Return the gradients of x and w."""
        on_device = _put(ctx.handle, dy, (1, -1, dy.shape[-1]))
        da = dnn.matmul_backward_a(ctx.handle, on_device, ctx.b)
        db = dnn.matmul_backward_b(ctx.handle, on_device, ctx.a)
        return None, _host(da, ctx.x), _host(db, ctx.w.T).T


class _Attention(torch.autograd.Function):
    """Attention of heads, with a bias."""

    @staticmethod
    def forward(
        ctx: Any, handle: dnn.Handle, q: Tensor, k: Tensor, v: Tensor, bias: Tensor
    ) -> Tensor:
        """Return the result; all operands have the axes batch, heads, steps and size."""
        size = q.shape[-1]
        more = -size % _LEAST_HEAD
        wider = [torch.nn.functional.pad(operand.detach(), (0, more)) for operand in (q, k, v)]
        arrays = [_put(handle, operand, operand.shape, "float16") for operand in wider]
        options = {"bias": _put(handle, bias, bias.shape, "float16"), "scale": size**-0.5}
        o, stats = dnn.scaled_dot_product_attention_forward(
            handle, *arrays, return_stats=True, **options
        )
        ctx.rest = handle, arrays, o, stats, options, more
        return torch.from_numpy(o.numpy().astype(np.float32))[..., :size]

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v."""
        handle, arrays, o, stats, options, more = ctx.rest
        wider = torch.nn.functional.pad(do, (0, more))
        gradients = dnn.scaled_dot_product_attention_backward(
            handle, *arrays, o, _put(handle, wider, wider.shape, "float16"), stats, **options
        )
        size = do.shape[-1]
        found = (torch.from_numpy(g.numpy().astype(np.float32))[..., :size] for g in gradients)
        return (None, *found, None)


class _LayerNorm(torch.autograd.Function):
    """Layer normalisation of rows."""

    @staticmethod
    def forward(
        ctx: Any, handle: dnn.Handle, x: Tensor, scale: Tensor, bias: Tensor, epsilon: float
    ) -> Tensor:
        """Return the result."""
        rows = _put(handle, x, (-1, x.shape[-1], 1, 1))
        parameters = [_put(handle, value, (1, -1, 1, 1)) for value in (scale, bias)]
        y, *statistics = dnn.layer_normalization_forward(
            handle, rows, *parameters, epsilon=epsilon, training=True
        )
        ctx.rest = handle, rows, parameters[0], statistics, x, scale
        return _host(y, x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, the scale and the bias."""
        handle, rows, on_device, statistics, x, scale = ctx.rest
        of_rows = _put(handle, dy, rows.shape)
        dx, dscale, dbias = dnn.layer_normalization_backward(
            handle, of_rows, rows, on_device, *statistics
        )
        return None, _host(dx, x), _host(dscale, scale), _host(dbias, scale), None


class _Activation(torch.autograd.Function):
    """ReLU or GELU."""

    @staticmethod
    def forward(ctx: Any, handle: dnn.Handle, x: Tensor, mode: str) -> Tensor:
        """Return the result."""
        ctx.rest = handle, mode, x
        array = _put(handle, x, (1, -1, 1, x.shape[-1]))
        ctx.y = dnn.activation_forward(handle, array, mode)
        return _host(ctx.y, x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x."""
        handle, mode, x = ctx.rest
        array, of_y = (_put(handle, value, ctx.y.shape) for value in (x, dy))
        dx = dnn.activation_backward(handle, ctx.y, of_y, array, mode)
        return None, _host(dx, x), None


class Transformer:
    """Modules of PyTorch by ours; their parameters are read from the modules.

    Parameters
    ----------
    handle : Handle
    """

    def __init__(self, handle: dnn.Handle) -> None:
        self._handle = handle

    def __call__(self, module: Any, *operands: Tensor, **masks: Tensor | None) -> Tensor:
        """Return the result of a module, whose operands and masks may lack the batch."""
        steps_first = not _batch_first(module)
        lacks_batch = operands[0].ndim == 2
        if lacks_batch:
            operands = tuple(operand[None] for operand in operands)
            masks = {
                name: mask[None] if mask is not None and "padding" in name else mask
                for name, mask in masks.items()
            }
        elif steps_first:
            operands = tuple(operand.transpose(0, 1) for operand in operands)
        kind = type(module).__name__
        y: Tensor = {
            "MultiheadAttention": self.attend,
            "TransformerEncoderLayer": self._encode,
            "TransformerEncoder": self._encode_all,
            "TransformerDecoderLayer": self._decode,
            "Transformer": self._transform,
        }[kind](module, *operands, **masks)
        if lacks_batch:
            return y[0]
        return y.transpose(0, 1) if steps_first else y

    def attend(
        self,
        m: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return multi-head attention."""
        weights = m.in_proj_weight.chunk(3)
        biases = [None] * 3 if m.in_proj_bias is None else m.in_proj_bias.chunk(3)
        q, k, v = map(self._linear, (query, key, value), weights, biases)
        batch, steps = len(q), k.shape[1]
        if m.bias_k is not None:
            k = torch.cat([k, m.bias_k.expand(batch, -1, -1)], 1)
            v = torch.cat([v, m.bias_v.expand(batch, -1, -1)], 1)
        if m.add_zero_attn:
            k, v = (torch.cat([x, x.new_zeros(batch, 1, x.shape[-1])], 1) for x in (k, v))
        bias = torch.zeros(batch, m.num_heads, q.shape[1], k.shape[1])
        if attn_mask is not None:
            mask = attn_mask
            if mask.ndim == 3:
                mask = mask.reshape(batch, m.num_heads, *mask.shape[1:])
            bias[..., :steps] += torch.where(mask, MASKED, 0.0)
        if key_padding_mask is not None:
            bias[..., :steps] += torch.where(key_padding_mask[:, None, None], MASKED, 0.0)
        heads = [x.unflatten(-1, (m.num_heads, -1)).transpose(1, 2) for x in (q, k, v)]
        o = _Attention.apply(self._handle, *heads, bias)
        return self._linear(o.transpose(1, 2).flatten(2), m.out_proj.weight, m.out_proj.bias)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = _Product.apply(self._handle, x, weight)
        return y if bias is None else y + bias

    def _normalize(self, m: Any, x: Tensor) -> Tensor:
        bias = torch.zeros_like(m.weight) if m.bias is None else m.bias
        y: Tensor = _LayerNorm.apply(self._handle, x, m.weight, bias, m.eps)
        return y

    def _feed_forward(self, m: Any, x: Tensor) -> Tensor:
        inner = self._linear(x, m.linear1.weight, m.linear1.bias)
        inner = _Activation.apply(self._handle, inner, m.activation.__name__)
        return self._linear(inner, m.linear2.weight, m.linear2.bias)

    def _add(self, m: Any, norm: Any, x: Tensor, function: Any) -> Tensor:
        """Return x plus a function of it, which is normalised before or behind."""
        if m.norm_first:
            return x + function(self._normalize(norm, x))
        return self._normalize(norm, x + function(x))

    def _encode(
        self,
        m: Any,
        x: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        x = self._add(
            m,
            m.norm1,
            x,
            lambda y: self.attend(m.self_attn, y, y, y, src_mask, src_key_padding_mask),
        )
        return self._add(m, m.norm2, x, lambda y: self._feed_forward(m, y))

    def _encode_all(
        self,
        m: Any,
        x: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        for layer in m.layers:
            x = self._encode(layer, x, mask, src_key_padding_mask)
        return x if m.norm is None else self._normalize(m.norm, x)

    def _decode(
        self,
        m: Any,
        x: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        x = self._add(
            m,
            m.norm1,
            x,
            lambda y: self.attend(m.self_attn, y, y, y, tgt_mask, tgt_key_padding_mask),
        )
        x = self._add(
            m,
            m.norm2,
            x,
            lambda y: self.attend(
                m.multihead_attn, y, memory, memory, memory_mask, memory_key_padding_mask
            ),
        )
        return self._add(m, m.norm3, x, lambda y: self._feed_forward(m, y))

    def _transform(
        self,
        m: Any,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        memory = self._encode_all(m.encoder, src, src_mask, src_key_padding_mask)
        y = tgt
        for layer in m.decoder.layers:
            y = self._decode(layer, y, memory, tgt_mask, None, tgt_key_padding_mask)
        return self._normalize(m.decoder.norm, y)


def _batch_first(module: Any) -> bool:
    """Whether the batch of a module's operands is the first axis, and not the steps."""
    for inner in module.modules():
        if type(inner).__name__ == "MultiheadAttention":
            return bool(inner.batch_first)
    raise ValueError(f"{module} has no attention")
