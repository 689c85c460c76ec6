"""What PyTorch, CuPy, NumPy and Keras call something, and what it is here, for error messages."""

from __future__ import annotations

import re
from collections.abc import Mapping

_RESHAPE = "x.reshape(...) is a view"
_CONVERT = "dnn.transform_tensor(handle, x, dtype=...) converts on the device"
_NO_GRADIENTS = (
    "there is no autograd: gradients are operations, such as dnn.convolution_backward_data"
)
_TO_HOST = "x.numpy() copies to the host"


def _reduction(operator: str) -> str:
    return f"dnn.reduce_tensor(handle, x, {operator!r}, axes=...) computes it"


# Attributes of arrays elsewhere -> what does the same for a DeviceArray `x`.
ARRAY: Mapping[str, str] = {
    **dict.fromkeys(("get", "cpu", "tolist", "item", "to_numpy", "asnumpy", "get_async"), _TO_HOST),
    "to": f"{_TO_HOST}, handle.array(values) to the device, and {_CONVERT}",
    **dict.fromkeys(
        ("astype", "half", "float", "double", "bfloat16", "type", "cast"),
        f"{_CONVERT}, and handle.array(values, dtype=...) on the way to it",
    ),
    "cuda": "x is on its device: handle.array(values) copied it there",
    **dict.fromkeys(
        ("view", "flatten", "ravel", "squeeze", "unsqueeze", "expand_dims", "unflatten"), _RESHAPE
    ),
    "T": "x.transpose() is a view with reversed axes",
    **dict.fromkeys(
        ("swapaxes", "movedim", "moveaxis", "t", "mT"), "x.permute(...) is a view of other axes"
    ),
    "contiguous": (
        "x.copy() has no gaps, and dnn.transform_tensor(handle, x, layout='NCHW') another order"
    ),
    "clone": "x.copy() copies",
    "copy_": "x.copy_from(values) writes in place",
    "set": "x.copy_from(values) writes in place",
    "fill_": "x.fill(value) writes in place",
    "zero_": "x.fill(0) writes in place",
    "dim": "x.ndim is the number of axes",
    "numel": "x.size is the number of values",
    "stride": "x.strides are in elements",
    "data_ptr": "x.ptr is the address",
    "data": "x.ptr is the address",
    "is_contiguous": "x.is_packed says whether there are gaps, x.layout the order in memory",
    "element_size": "x.dtype.itemsize has the bytes",
    "itemsize": "x.dtype.itemsize has the bytes",
    **dict.fromkeys(("detach", "requires_grad", "grad", "backward", "grad_fn"), _NO_GRADIENTS),
    "sum": _reduction("add"),
    "mean": _reduction("avg"),
    "max": _reduction("max"),
    "min": _reduction("min"),
    "prod": _reduction("mul"),
    "norm": _reduction("norm2"),
    **dict.fromkeys(
        ("add", "add_", "mul", "mul_", "sqrt"),
        "dnn.op_tensor(handle, a, b, 'add') computes such a thing",
    ),
    "relu": "dnn.activation_forward(handle, x, 'relu') computes it",
    "matmul": "dnn.matmul(handle, a, b) computes it",
    "softmax": "dnn.softmax_forward(handle, x) computes it",
}

# Operators of arrays elsewhere -> what computes the same for DeviceArrays.
_COMPARE = "x.numpy() copies to the host, where NumPy compares"
OPERATORS: Mapping[str, str] = {
    "+": "dnn.op_tensor(handle, a, b, 'add') adds arrays, and x.numpy() + 1 adds on the host",
    "-": "dnn.op_tensor(handle, a, b, 'add', alpha2=-1) subtracts",
    "-x": "dnn.scale_tensor(handle, x, -1) negates in place",
    "*": (
        "dnn.op_tensor(handle, a, b, 'mul') multiplies arrays, and dnn.scale_tensor(handle, x, 2) "
        "by a number, in place"
    ),
    "/": "dnn.scale_tensor(handle, x, 1 / 2) divides by a number, in place",
    "@": "dnn.matmul(handle, a, b) computes the product",
    "**": "dnn.op_tensor(handle, x, x, 'mul') squares, and 'sqrt' takes the root",
    **dict.fromkeys(("<", "<=", ">", ">="), _COMPARE),
}

# Attributes of tensors elsewhere -> what does the same for a GraphTensor `tensor`.
GRAPH_TENSOR: Mapping[str, str] = {
    "size": "tensor.shape has the size of each axis",
    **dict.fromkeys(("ndim", "dim"), "tensor.rank is the number of axes"),
    "stride": "tensor.strides are in elements",
    **dict.fromkeys(("reshape", "view"), "graph.reshape(tensor, ...) and graph.view(tensor, ...)"),
}
# Attributes of graphs elsewhere -> what does the same for a Graph `graph`.
GRAPH: Mapping[str, str] = {
    **dict.fromkeys(("save", "dump", "serialize"), "graph.to_json() is its text"),
    **dict.fromkeys(("load", "deserialize"), "dnn.Graph.from_json(text) makes a graph of a text"),
    **dict.fromkeys(
        ("build", "execute", "run"), "graph.plan(handle) makes a plan, which is called with arrays"
    ),
}
# Attributes of plans elsewhere -> what does the same for a `plan`.
PLAN: Mapping[str, str] = {
    "execute": "a plan is called with arrays: plan(x)",
}

# Attributes of modules and devices elsewhere -> what does the same with a Handle `handle`.
HANDLE: Mapping[str, str] = {
    **dict.fromkeys(
        ("tensor", "asarray", "from_numpy", "to_device", "to", "as_tensor", "from_host"),
        "handle.array(values) copies to the device",
    ),
    "from_dlpack": "handle.view(array) views the array of another library, without a copy",
    "ones": "handle.full(shape, 1) fills",
    "empty_like": "handle.empty(x.shape, x.spec.dtype, x.layout) allocates",
    "zeros_like": "handle.zeros(x.shape, x.spec.dtype, x.layout) allocates",
    **dict.fromkeys(
        ("rand", "randn", "random", "normal", "uniform"),
        "handle.array(rng.standard_normal(shape, dtype='float32')) copies NumPy's random numbers",
    ),
    "sync": "handle.synchronize() waits",
    "destroy": "handle.close() destroys it",
}

_NORMALIZATION = "it is dnn.batch_normalization_training, or ..._inference"
_ARRAY_IN = "arrays are made by a handle: handle.array(values), handle.zeros(shape)"
_RECURRENT = "it is dnn.RNNSpec({cell!r}, ...), with dnn.rnn_forward"

# Functions and classes elsewhere -> what computes the same here.
MODULE: Mapping[str, str] = {
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "Conv1d", "Conv2d", "Conv3d", "conv", "convolution"),
        "it is dnn.convolution_forward(handle, x, w, dnn.ConvolutionSpec(padding, stride))",
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "ConvTranspose2d"),
        "it is dnn.convolution_transpose(handle, x, w, dnn.ConvolutionSpec(padding, stride))",
    ),
    **dict.fromkeys(
        ("linear", "Linear", "dense", "Dense", "mm", "bmm", "gemm"),
        "it is dnn.matmul(handle, a, b, bias=...)",
    ),
    **{
        name: f"it is dnn.activation_forward(handle, x, {mode!r})"
        for name, mode in {
            "relu": "relu",
            "ReLU": "relu",
            "sigmoid": "sigmoid",
            "tanh": "tanh",
            "elu": "elu",
            "silu": "swish",
            "gelu": "gelu",
            "leaky_relu": "leaky_relu",
            "softplus": "softplus",
            "relu6": "clipped_relu",
        }.items()
    },
    "mish": "it is dnn.matmul(..., activation='mish') or dnn.convolution_forward",
    "softmax": "it is dnn.softmax_forward(handle, x)",
    "log_softmax": "it is dnn.softmax_forward(handle, x, algorithm='log')",
    **dict.fromkeys(
        ("max_pool", "max_pool1d", "max_pool2d", "max_pool3d", "MaxPool2d"),
        "it is dnn.pooling_forward(handle, x, dnn.PoolingSpec(window, padding, stride))",
    ),
    **dict.fromkeys(
        ("avg_pool", "avg_pool1d", "avg_pool2d", "avg_pool3d", "AvgPool2d"),
        "it is dnn.pooling_forward(handle, x, dnn.PoolingSpec(window, mode="
        "'average_count_include_padding'))",
    ),
    **dict.fromkeys(
        ("adaptive_avg_pool2d", "adaptive_max_pool2d"),
        "of a whole image it is dnn.pooling_forward(handle, x, dnn.PoolingSpec.whole(x))",
    ),
    **dict.fromkeys(("batch_norm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), _NORMALIZATION),
    **dict.fromkeys(("layer_norm", "LayerNorm"), "it is dnn.layer_normalization_forward"),
    **dict.fromkeys(("rms_norm", "RMSNorm"), "it is dnn.rms_normalization_forward"),
    **dict.fromkeys(
        ("instance_norm", "InstanceNorm2d"), "it is dnn.instance_normalization_forward"
    ),
    **dict.fromkeys(
        ("local_response_norm", "LocalResponseNorm"),
        "it is dnn.lrn_forward(handle, x, dnn.LRNSpec(n))",
    ),
    **dict.fromkeys(
        ("dropout", "Dropout"),
        "it is dnn.dropout_forward(handle, x, probability, dropout_state=dnn.DropoutState(handle))",
    ),
    "manual_seed": "random states are objects: dnn.DropoutState(handle, seed)",
    **dict.fromkeys(
        ("scaled_dot_product_attention", "sdpa", "flash_attention", "flash_attn", "attention"),
        "it is dnn.scaled_dot_product_attention_forward",
    ),
    "MultiheadAttention": (
        "it is dnn.AttentionSpec, dnn.AttentionWeights and dnn.multi_head_attention_forward"
    ),
    **dict.fromkeys(("LSTM", "lstm"), _RECURRENT.format(cell="lstm")),
    **dict.fromkeys(("GRU", "gru"), _RECURRENT.format(cell="gru")),
    **dict.fromkeys(("RNN", "rnn"), _RECURRENT.format(cell="tanh")),
    "grid_sample": "it is dnn.spatial_transformer_sample",
    "affine_grid": "it is dnn.spatial_transformer_grid",
    "unfold": "it is dnn.im2col",
    "add": "it is dnn.op_tensor(handle, a, b, 'add')",
    "pygraph": "it is dnn.Graph()",
    **dict.fromkeys(
        ("tensor", "array", "asarray", "zeros", "ones", "empty", "from_numpy", "from_dlpack"),
        _ARRAY_IN,
    ),
    **dict.fromkeys(
        ("nn", "functional", "F", "Tensor", "Module"),
        "the page 'From PyTorch' lists each function's name here",
    ),
    "no_grad": _NO_GRADIENTS,
    "autotune": "it is dnn.autotuned(handle), a context; dnn.tune(handle, operation, ...) is a table",
    "find": "convolutions have it: dnn.convolution_forward.find; dnn.tune measures graphs, too",
    **dict.fromkeys(
        ("float16", "half", "bfloat16", "float32", "float", "float64", "double", "int8", "int32"),
        "data types are texts: handle.zeros(shape, 'float32')",
    ),
    **dict.fromkeys(
        ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"),
        "cuDNN has no such loss: dnn.softmax_forward(handle, x, algorithm='log') computes the "
        "logarithms of probabilities, and NumPy their mean; dnn.ctc_loss is another loss",
    ),
}

# What other libraries call members of the enums, and is taken, by the enum -> ours.
SYNONYMS: Mapping[str, Mapping[str, str]] = {"ActivationMode": {"silu": "swish"}}

_SUBTRACTION = "'add' with alpha2=-1"
_OF_GRAPHS = "an activation of graphs: activation={0!r} of dnn.matmul and dnn.convolution_forward"
# What other libraries call members of the enums, by the enum -> what to write.
CHOICES: Mapping[str, Mapping[str, str]] = {
    "OpTensorOp": {
        **dict.fromkeys(("+", "plus", "sum"), "'add'"),
        **dict.fromkeys(("-", "sub", "subtract", "minus"), _SUBTRACTION),
        **dict.fromkeys(("*", "multiply", "times", "prod"), "'mul'"),
        "minimum": "'min'",
        "maximum": "'max'",
    },
    "ReduceTensorOp": {
        **dict.fromkeys(("sum", "+"), "'add'"),
        **dict.fromkeys(("mean", "average"), "'avg'"),
        **dict.fromkeys(("prod", "product"), "'mul'"),
        **dict.fromkeys(("amin", "minimum"), "'min'"),
        **dict.fromkeys(("maximum", "argmax"), "'max', with indices=True for the positions"),
        "argmin": "'min' with indices=True",
        "norm": "'norm2'",
    },
    "RNNMode": {"rnn": "'tanh', as PyTorch's RNN by default, or 'relu'"},
    "ActivationMode": {
        "relu6": "dnn.ActivationSpec('clipped_relu', 6.0)",
        "mish": _OF_GRAPHS.format("mish"),
        **{
            name: f"{_OF_GRAPHS.format(name)}, dnn.activation_forward(..., {name!r})"
            for name in ("gelu", "gelu_tanh", "softplus", "leaky_relu")
        },
    },
}

_TF32 = "it is math_type='tf32', the default, or 'true_float32'"
# Keyword arguments elsewhere -> what to write, by the beginning of the function's name, and for
# every other function.
KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "softmax_": dict.fromkeys(
        ("axis", "dim"),
        "mode='channel' is over axis 1, the default, and mode='instance' over all axes but the "
        "first",
    ),
    "reduce_tensor": dict.fromkeys(("axis", "dim"), "it is axes="),
    "RNNSpec": {
        "batch_first": "layout='batch_major' of a call says that, dnn.rnn_forward for instance",
        "nonlinearity": "it is the cell: dnn.RNNSpec('relu', ...)",
        "proj_size": "it is projection_size=",
    },
    "ConvolutionSpec": {
        **dict.fromkeys(
            ("kernel_size", "in_channels", "out_channels"), "the shape of the filter says it"
        ),
        "bias": "it is an argument of the call: dnn.convolution_forward(..., bias=bias)",
        "allow_tf32": _TF32,
        "padding_mode": "cuDNN pads with zeros",
    },
    "PoolingSpec": {
        "kernel_size": "it is window=",
        "count_include_pad": "it is mode='average_count_include_padding', or ..._exclude_padding",
    },
    "convolution_forward": {"epilogue": "it is activation="},
    "convolution_": {
        "allow_tf32": "it is dnn.ConvolutionSpec(math_type='tf32'), the default, or 'true_float32'",
    },
    "matmul": {
        "epilogue": "it is activation=",
        "allow_tf32": _TF32,
    },
    "batch_normalization_": {
        "eps": "it is epsilon=",
        "training": "batch_normalization_training and ..._inference are two functions",
        "running_variance": "it is running_var=",
    },
    "scaled_dot_product_attention_": {
        "is_causal": "it is causal=",
        **dict.fromkeys(
            ("attn_mask", "mask"), "a mask that is added is bias=; padding is kv_lengths="
        ),
        "dropout_p": "it is dropout=",
        "enable_gqa": "heads are shared where k and v have fewer",
        **dict.fromkeys(
            ("lengths", "seq_lens", "seqlens", "actual_seq_lens"),
            "kv_lengths= has the lengths of the keys, q_lengths= those of the queries",
        ),
        **dict.fromkeys(("lengths_k", "seq_len_kv", "seqlens_k"), "it is kv_lengths="),
        **dict.fromkeys(("lengths_q", "seq_len_q", "seqlens_q"), "it is q_lengths="),
        **dict.fromkeys(
            ("key_padding_mask", "attention_mask"),
            "it is q_lengths= and kv_lengths=; or bias=, 0 to keep a key and a large negative "
            "number to mask it, of shape (batch, 1, 1, steps of k), for gradients (batch, 1, steps of q, "
            "steps of k)",
        ),
    },
    "": {
        "input": "the images are x",
        "weight": "the filter is w",
        "eps": "it is epsilon=",
        "dim": "axes are numbered from 0, in (N, C, *spatial)",
        "inplace": "out= takes the array to write, which may be the input where the page says so",
        "output_size": "a new result has the size that the arguments say; out= takes an array",
    },
}

# PyTorch's names of the weights of recurrent networks.
_TORCH_WEIGHT = re.compile(r"(weight|bias)_(ih|hh)_l(\d+)(_reverse)?")


def attribute_hint(names: Mapping[str, str], name: str) -> str:
    """Return a hint for an attribute's name in another library; empty if the name is unknown."""
    return f"; {names[name]}" if name in names else ""


def choice_hint(enum_name: str, choice: str) -> str:
    """Return a hint for an enum member's name in another library; empty if it is unknown."""
    choices = CHOICES.get(enum_name, {})
    return f"; it is {choices[choice]}" if choice in choices else ""


def keyword_hint(function: str, keyword: str) -> str:
    """Return a hint for a keyword that a function lacks and other libraries have; may be empty."""
    for beginning, keywords in KEYWORDS.items():
        if function.startswith(beginning) and keyword in keywords:
            return f"; {keywords[keyword]}"
    return ""


def torch_weight_hint(name: str, places: Mapping[str, object]) -> str:
    """Return which weights stand for one of PyTorch's names; empty if it is none of these."""
    match = _TORCH_WEIGHT.fullmatch(name)
    if match is None:
        return ""
    kind, operand, layer, is_reverse = match.groups()
    direction = "backward" if is_reverse else "forward"
    source = "input" if operand == "ih" else "recurrent"
    beginning = f"layer{layer}.{direction}.{source}."
    parts = [
        place
        for place in places
        if place.startswith(beginning) and place.endswith(".bias") == (kind == "bias")
    ]
    if not parts:
        return ""
    return f"; PyTorch's has the rows of {', '.join(parts)}; RNNWeights.from_torch takes them all"
