"""User code that `mypy --strict` passes; what is revealed stands beside it."""

from typing import Any

import numpy as np

import cudnnlite as dnn


class Foreign:
    """Another library's array."""

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None
    ) -> object:
        return object()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class Numba:
    """One with the other interface."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


def tuning(handle: dnn.Handle, x: dnn.DeviceArray) -> None:
    reveal_type(dnn.tune(handle, dnn.convolution_forward, x, x))  # AlgorithmTable
    dnn.tune(handle, dnn.matmul, x, x, activation="relu", policy=dnn.TuningPolicy("device"))
    dnn.tune(handle, dnn.rnn_forward, dnn.RNNSpec("lstm", 3, 4), None, x)
    dnn.tune(handle, dnn.scaled_dot_product_attention_forward, x, x, x, causal=True)


def arrays(handle: dnn.Handle) -> None:
    x = handle.array([[1.0]], dtype="float16", layout=None)
    reveal_type(x)  # DeviceArray
    reveal_type(x[0, ..., 1:3:2])  # DeviceArray
    reveal_type(x.reshape(-1).copy().ndim)  # int
    reveal_type(list(x))  # list[DeviceArray]
    reveal_type(handle.pinned((1, 2)))  # ndarray
    with handle.zeros((1, 2, 3, 4)) as zeros:
        zeros.copy_from(np.ones((1, 2, 3, 4)), stream=handle.stream)
        zeros.copy_to(handle.pinned(zeros.shape))
        zeros[:1].fill(2, casting="unsafe")


def convolution(handle: dnn.Handle, x: dnn.DeviceArray, w: Foreign) -> dnn.DeviceArray:
    table = dnn.convolution_forward.find(handle, x, w, dnn.ConvolutionSpec(padding=1))
    best = table.best(workspace_limit="64 MiB", deterministic=True)
    reveal_type(best)  # AlgorithmResult
    y = dnn.convolution_forward(handle, x, w, algorithm=best, bias=w)
    dnn.convolution_forward.plan(handle, y.spec, dnn.FilterSpec((4, 3, 1, 1)), out=y).close()
    dnn.batch_normalization_inference(handle, y, w, w, w, w, out=y)
    dropped = dnn.dropout_forward(handle, w, 0.5, dropout_state=dnn.DropoutState(handle))
    reveal_type(dropped[1])  # DeviceArray
    reveal_type(dnn.convolution_bias_activation_forward(handle, x, w, w, z=y))  # DeviceArray
    return dnn.softmax_forward(handle, dnn.activation_forward(handle, y, "relu", out=y))


def functions_of_operations(
    handle: dnn.Handle, x: dnn.DeviceArray, w: Foreign
) -> dnn.types.Problem:
    """Each has the signature of its function: `problem` without the handle."""
    pooling = dnn.PoolingSpec(2)
    reveal_type(dnn.pooling_forward(handle, x, pooling, out=x))  # DeviceArray
    with dnn.pooling_forward.plan(handle, x.spec, pooling, alpha=2.0) as plan:
        reveal_type(plan.problem)  # Problem
        reveal_type(plan(x))  # DeviceArray
    with dnn.convolution_forward.plan(handle, x, w, algorithm="GEMM") as choosing:
        reveal_type(choosing)  # OperationPlan[DeviceArray]
        reveal_type(choosing.choice)  # AlgorithmResult | None
        reveal_type(choosing(x, w, out=x))  # DeviceArray
    reveal_type(dnn.convolution_forward.find(handle, x, w, beta=1.0, out=x))  # AlgorithmTable
    ranked = dnn.convolution_forward.heuristic(handle, x.spec, dnn.FilterSpec((4, 3, 1, 1)))
    reveal_type(ranked[0])  # AlgorithmResult
    normalise = dnn.batch_normalization_training
    normalised = normalise(handle, x, w, w, running_mean=w, running_var=w)
    reveal_type(normalised)  # tuple[DeviceArray, ...]
    f = dnn.scale_tensor.problem
    reveal_type(f)  # def (y: SupportsDLPack | SupportsCudaArrayInterface, alpha: float) -> Problem
    problem = dnn.pooling_forward.problem(x.spec, pooling)
    reveal_type(problem.flops)  # int
    dnn.ProblemList([problem, dnn.convolution_forward.problem(x, x.spec, alpha=2.0)])
    return problem


def recurrent(handle: dnn.Handle, x: Foreign | Numba, training: bool) -> None:
    lstm = dnn.RNNSpec("lstm", 3, 4)
    weights = dnn.RNNWeights(handle, lstm)
    y, hy, cy = dnn.rnn_forward(handle, lstm, weights, x, lengths=[3, 1])
    reveal_type(cy)  # DeviceArray | Any
    out = dnn.rnn_forward(handle, lstm, weights, x, training=True)
    reveal_type(out.reserve)  # RNNReserve
    dx, dhx, dcx = dnn.rnn_backward_data(handle, out.reserve, dhy=hy)
    gradients = dnn.rnn_backward_weights(handle, out.reserve)
    reveal_type(gradients["layer0.forward.input.i"])  # DeviceArray
    either = dnn.rnn_forward(handle, lstm, weights, x, training=training)
    reveal_type(either)  # Any
    with dnn.rnn_forward.plan(
        handle, lstm, None, dnn.specs.RNNDataSpec((4, 2, 3)), training=True
    ) as plan:
        reveal_type(plan(weights, y).reserve)  # RNNReserve
    with dnn.rnn_forward.plan(handle, lstm, None, x) as plan_of_inference:
        reveal_type(plan_of_inference(weights, dx))  # RNNOutput


def plans_that_keep_state(
    handle: dnn.Handle, spec: dnn.AttentionSpec, weights: dnn.AttentionWeights, q: Foreign
) -> None:
    attention = dnn.multi_head_attention_forward
    reveal_type(attention(handle, spec, weights, q, q, q).shape)  # tuple[int, ...]
    y, reserve = attention(handle, spec, weights, q, q, q, training=True)
    gradients = dnn.multi_head_attention_backward_data(handle, reserve, y)
    reveal_type(gradients.dq)  # DeviceArray
    plan = attention.plan(handle, spec, None, q, q, q, training=True)
    reveal_type(plan)  # AttentionPlan[AttentionTrainingOutput]
    loss = dnn.ctc_loss
    reveal_type(loss(handle, q, [1], [1], [1]))  # tuple[DeviceArray, DeviceArray | None]
    reveal_type(loss.plan(handle, q, None, None, None))  # CTCLossPlan
    reveal_type(loss.__name__)  # str


def raw(handle: dnn.Handle) -> None:
    with (
        dnn.TensorDescriptor((1, 2, 3, 4)) as x_desc,
        dnn.descriptors.PoolingDescriptor(dnn.PoolingSpec(2)) as pooling,
    ):
        reveal_type(handle.ptr)  # cudnnHandle_t
        reveal_type(x_desc.ptr)  # cudnnTensorDescriptor_t
        reveal_type(pooling.ptr)  # cudnnPoolingDescriptor_t
        handle.api.cudnnSetStream(handle, None)
        handle.api.cudnnDestroyTensorDescriptor(x_desc.ptr)
        handle.api.cudnnDestroyPoolingDescriptor(pooling)
        reveal_type(handle.api.cudnnGetVersion())  # int


def results_that_an_option_decides(
    handle: dnn.Handle, q: dnn.DeviceArray, w: Foreign, flag: bool
) -> dnn.DeviceArray:
    attention = dnn.scaled_dot_product_attention_forward
    o = attention(handle, q, w, w, causal=True, out=w)
    reveal_type(o.shape)  # tuple[int, ...]
    o, stats = attention(handle, q, q, q, return_stats=True, out=(o, None))
    reveal_type(stats)  # DeviceArray
    either = attention(handle, q, q, q, return_stats=flag)
    reveal_type(either)  # DeviceArray | tuple[DeviceArray, DeviceArray]
    plan = attention.plan(handle, q.spec, q.spec, q.spec, causal=True)
    reveal_type(plan)  # OperationPlan[dict[str, DeviceArray]]
    reveal_type(attention.graph(q.spec, q, w))  # Graph
    layer, rms = dnn.layer_normalization_forward, dnn.rms_normalization_forward
    reveal_type(layer(handle, q, w, w).shape)  # tuple[int, ...]
    y, mean, inverse = layer(handle, q, w, w, training=True)
    instance = dnn.instance_normalization_forward(handle, q, w, w, training=True, out=None)
    reveal_type(instance)  # tuple[DeviceArray, DeviceArray, DeviceArray]
    y, inverse = rms(handle, q, w, bias=w, training=True)
    either = rms(handle, q, w, training=flag)
    reveal_type(either)  # DeviceArray | tuple[DeviceArray, DeviceArray]
    reveal_type(rms.plan(handle, q.spec, w))  # OperationPlan[dict[str, DeviceArray]]
    return rms(handle, y, inverse, out=mean)
