"""User code in which `mypy --strict` finds what is wrong: one error in each line that says so."""

import cudnnlite as dnn


def wrong(handle: dnn.Handle, x: dnn.DeviceArray) -> None:
    x.foo  # error: attr-defined
    x + x  # error: operator
    x["a"]  # error: index
    handle.api.cudnnConvolutionForwad(handle)  # error: attr-defined
    handle.api.cudnnSetStream(x, None)  # error: arg-type
    handle.ptr.spec  # error: attr-defined
    lstm = dnn.RNNSpec("lstm", 3, 4)
    weights = dnn.RNNWeights(handle, lstm)
    dnn.rnn_forward(handle, lstm, weights, x).reserve  # error: attr-defined
    dnn.rnn_forward(handle, lstm, weights, 3)  # error: call-overload
    y, hy, cy = dnn.rnn_forward(handle, lstm, weights, x, training=True)  # error: misc
    dnn.softmax_forward(handle, [1.0])  # error: arg-type
    dnn.convolution_forward(handle, [1.0], x)  # error: arg-type
    dnn.convolution_backward_filter(handle, x, "dy", w=(1, 1, 1, 1))  # error: arg-type
    dnn.convolution_bias_activation_forward(handle, x, x, 1.0)  # error: arg-type
    dnn.batch_normalization_inference(handle, x, x, x, x, None)  # error: arg-type
    dnn.ctc_loss(handle, [[1.0]], [1], [1], [1])  # error: arg-type
    attention, layer = dnn.scaled_dot_product_attention_forward, dnn.layer_normalization_forward
    attention(handle, x, x, x, return_stats=True).shape  # error: attr-defined
    attention(handle, x, x, x, out=(x, x))  # error: call-overload
    attention(handle, x, x, x, casual=True)  # error: call-overload
    attention.plan(handle, x, x, x, casual=True)  # error: call-arg
    attention.graph(handle, x, x, x)  # error: call-arg
    layer(handle, x, x)  # error: call-overload
    y, mean = layer(handle, x, x, x, training=True)  # error: misc
    dnn.rms_normalization_forward(handle, x, x, x)  # error: call-overload
    pooling = dnn.PoolingSpec(2)
    dnn.pooling_forward(handle, x, pooling, betta=1)  # error: call-arg
    dnn.pooling_forward.plan(handle, x, poling=pooling)  # error: call-arg
    dnn.pooling_forward.plan(handle, x, 2)  # error: arg-type
    dnn.pooling_forward.plan(x, pooling)  # error: call-arg
    dnn.pooling_forward.problem(x.spec, pooling, aplha=1)  # error: call-arg
    dnn.pooling_forward.problem(handle, x, pooling)  # error: call-arg
    dnn.pooling_forward.find(handle, x, pooling)  # error: attr-defined
    dnn.convolution_forward.find(handle, x, x, algoritm="GEMM")  # error: call-arg
    dnn.convolution_forward.heuristic(handle, x)  # error: call-arg
    dnn.convolution_forward.plan(handle, x, x).chioce  # error: attr-defined
    dnn.plan_operation(handle, dnn.pooling_forward, x, pooling)  # error: attr-defined
    dnn.ConvolutionSpec(paddding=1)  # error: call-arg
    dnn.RNNSpec("lstm", 3, "4")  # error: arg-type
    dnn.Hanlde()  # error: attr-defined
    handle.empty((2, 3), "flaot32")  # error: arg-type
    dnn.TensorSpec((1, 3, 8, 8), "half32")  # error: arg-type
    dnn.RNNSpec("ltsm", 3, 4)  # error: arg-type
    dnn.PoolingSpec(2, mode="maximum")  # error: arg-type
    dnn.ActivationSpec("rellu")  # error: arg-type
    dnn.ConvolutionSpec(math_type="tf_32")  # error: arg-type
    dnn.convolution_forward(handle, x, x, activation="rellu")  # error: arg-type
    dnn.activation_forward(handle, x, "rellu")  # error: arg-type
    dnn.matmul(handle, x, x, activation="gelo")  # error: arg-type
    dnn.softmax_forward(handle, x, mode="chanel")  # error: arg-type
    dnn.batch_normalization_inference(handle, x, x, x, x, x, mode="spatal")  # error: arg-type
    attention(handle, x, x, x, causal="bottom")  # error: call-overload
    dnn.tune(handle, "convolution", x)  # error: arg-type
    dnn.TuningPolicy(objective="speed")  # error: arg-type
    with dnn.TensorDescriptor((1, 2)) as x_desc:
        handle.api.cudnnDestroyFilterDescriptor(x_desc)  # error: arg-type
