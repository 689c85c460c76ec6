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
    dnn.ConvolutionSpec(paddding=1)  # error: call-arg
    dnn.RNNSpec("lstm", 3, "4")  # error: arg-type
    dnn.Hanlde()  # error: attr-defined
    with dnn.TensorDescriptor((1, 2)) as x_desc:
        handle.api.cudnnDestroyFilterDescriptor(x_desc)  # error: arg-type
