"""Invalid arguments of convolutions and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from device.problems import PATTERN, Problem, fill, with_gaps
from device.test_layout_conversion import result

import cudnnlite as dnn
from cudnnlite.devices.device_choice import get_device

from . import case
from .case import ARRAY, NOT_SUPPORTED, Case

X, W, Y = (2, 4, 9, 11), (6, 4, 3, 2), (2, 6, 9, 12)
STRIDED = dnn.ConvolutionSpec(padding=(2, 1), stride=(2, 3), math_type="fma")
TRANSPOSED = dnn.ConvolutionSpec(stride=2)
NO_IMAGES, FILTERS = dnn.TensorSpec((0, 3, 8, 8)), dnn.FilterSpec((4, 3, 3, 3))


class Bench(case.Bench):
    """A good call, and an output with a known pattern in it."""

    def __init__(self, handle: dnn.Handle) -> None:
        super().__init__(handle)
        self.problem = Problem(handle, X, W, padding=1, math_type="fma")
        self.x, self.w, self.conv = self.problem.x, self.problem.w, self.problem.conv
        self.out = handle.empty(Y)
        fill(self.out, PATTERN)
        self.dy = handle.array(np.ones((2, 6, 7, 4), np.float32))  # of the strided convolution
        self.ones = handle.array(np.ones((1, 4, 4, 4), np.float32))
        self.watch(x=self.x, w=self.w, out=self.out, dy=self.dy, ones=self.ones)

    def call(self, **changes: Any) -> Any:
        """Call `convolution_forward` with some arguments replaced."""
        arguments = {"x": self.x, "w": self.w, "conv": self.conv, "out": self.out}
        return dnn.convolution_forward(self.handle, **arguments | changes)

    def plan(self, **changes: Any) -> Any:
        """Make a plan with some arguments replaced."""
        arguments = {"x": self.x, "w": self.w, "conv": self.conv}
        return dnn.convolution_forward.plan(self.handle, **arguments | changes)

    def find(self, **changes: Any) -> Any:
        """Search with some arguments replaced."""
        arguments = {"x": self.x, "w": self.w, "conv": self.conv}
        return dnn.convolution_forward.find(self.handle, **arguments | changes)

    def back(self, **changes: Any) -> Any:
        """Call `convolution_backward_data` with some arguments replaced."""
        arguments = {"w": self.w, "dy": self.dy, "conv": STRIDED}
        return dnn.convolution_backward_data(self.handle, **arguments | changes)

    def weigh(self, **changes: Any) -> Any:
        """Call `convolution_backward_filter` with some arguments replaced."""
        arguments = {"x": self.x, "dy": self.dy, "conv": STRIDED}
        return dnn.convolution_backward_filter(self.handle, **arguments | changes)

    def transpose(self, **changes: Any) -> Any:
        """Call `convolution_transpose` with some arguments replaced."""
        arguments = {"x": self.ones, "w": self.empty(4, 3, 3, 3), "conv": TRANSPOSED}
        return dnn.convolution_transpose(self.handle, **arguments | changes)

    def fuse(self, epilogue: Any, **changes: Any) -> Any:
        """Make a plan of a convolution of float16 with an epilogue."""
        x, w = (dnn.TensorSpec((2, 16, 8, 8), "float16", "NHWC") for _ in range(2))
        w = dnn.FilterSpec((16, 16, 3, 3), "float16", "NHWC")
        options = {"activation": epilogue} | changes
        return dnn.convolution_forward.plan(self.handle, x, w, dnn.ConvolutionSpec(1), **options)

    def elsewhere(self) -> dnn.DeviceArray:
        """Return an array of another device, whose handle is closed."""
        kind = "emulated:1" if self.handle.device.kind == "emulated" else "emulated"
        with dnn.Handle(get_device(kind)) as other:
            return other.empty(X)

    def assert_works(self) -> None:
        out = self.call(out=None)
        self.problem.assert_right(out, self.problem.choice())


def make_plan(h: dnn.Handle, padding: Any = 1, **options: Any) -> Any:
    return dnn.convolution_forward.plan(
        h, NO_IMAGES, FILTERS, dnn.ConvolutionSpec(padding), **options
    )


def make_gradient(h: dnn.Handle, x: dnn.TensorSpec, out: tuple[str, ...]) -> Any:
    dy, w = h.empty((1, 4, 6, 6)), h.empty((4, 3, 3, 3))
    return dnn.convolution_backward_data(h, w, dy, x=x, out=h.empty((1, 3, 8, 8), *out))


SHAPES: dict[str, Case] = {
    "w_rank_2": Case(
        lambda b: b.call(w=b.handle.empty((6, 4))),
        r"^w has rank 2; needed: 3 to 5, \(K, C / groups, \*taps\)$",
    ),
    "w_rank_5": Case(lambda b: b.call(w=b.handle.empty((6, 4, 3, 2, 1))), r"\bw\b.*rank 5"),
    "w_with_gaps": Case(
        lambda b: b.call(w=b.handle.empty(with_gaps(W, "float32"))), r"\bw\b.*packed"
    ),
    "channels": Case(lambda b: b.call(w=b.handle.empty((6, 5, 3, 2))), r"\bw\b.*\bx\b"),
    "groups_do_not_divide": Case(
        lambda b: b.call(conv=dnn.ConvolutionSpec(1, groups=3)), r"groups=3"
    ),
    "filter_larger_than_image": Case(lambda b: b.call(w=b.handle.empty((6, 4, 12, 2))), r"filter"),
    "spec_of_3_axes": Case(
        lambda b: b.call(conv=dnn.ConvolutionSpec((1, 1, 1))), r"3 spatial axes"
    ),
    "find_out_shape": Case(
        lambda b: dnn.convolution_forward.find(
            b.handle, b.x, b.w, b.conv, out=b.handle.empty((2, 6, 9, 11))
        ),
        r"\bout\b",
    ),
    "too_many_elements_out": Case(
        lambda b: dnn.convolution_forward.plan(
            b.handle,
            dnn.TensorSpec((2, 1, 1 << 15, 1 << 10)),
            dnn.FilterSpec((64, 1, 1, 1)),
            interface="descriptor",
        ),
        r"^(y|out)=.*4,294,967,296 values.*end at 2,147,483,647; split the batch$",
    ),
}

TYPES: dict[str, Case] = {
    "dtypes_differ": Case(lambda b: b.call(w=b.handle.empty(W, "float16")), r"\bx\b.*\bw\b"),
    "algorithm_unknown": Case(lambda b: b.call(algorithm="NOPE"), r"algorithm.*IMPLICIT_GEMM"),
    "limit_text": Case(lambda b: b.call(workspace_limit="much"), r"workspace_limit"),
    "limit_negative": Case(lambda b: b.call(workspace_limit=-1), r"workspace_limit"),
}

PLACES: dict[str, Case] = {
    "find_x_numpy": Case(
        lambda b: dnn.convolution_forward.find(b.handle, b.problem.x_host, b.w), r"\bx\b", ARRAY
    ),
    "find_w_numpy": Case(
        lambda b: dnn.convolution_forward.find(b.handle, b.x, b.problem.w_host), r"\bw\b", ARRAY
    ),
    "plan_x_numpy": Case(
        lambda b: dnn.convolution_forward.plan(b.handle, b.problem.x_host, b.w), r"\bx\b", ARRAY
    ),
    "plan_x_none": Case(
        lambda b: dnn.convolution_forward.plan(b.handle, None, b.w), r"\bx\b", ARRAY
    ),
    "get_w_number": Case(
        lambda b: dnn.convolution_forward.heuristic(b.handle, b.x, 5), r"\bw\b", ARRAY
    ),
    "workspace_numpy": Case(
        lambda b: b.call(workspace=np.zeros(1 << 20, np.uint8)), r"workspace", ARRAY
    ),
    "read_only_out_of_find": Case(
        lambda b: dnn.convolution_forward.find(
            b.handle, b.x, b.w, b.conv, out=b.over(b.out, readonly=True)
        ),
        r"\bout\b.*read-only",
        ARRAY,
    ),
    "find_over_its_input": Case(
        lambda b: dnn.convolution_forward.find(
            b.handle, b.x, b.empty(4, 4, 3, 1), dnn.ConvolutionSpec((1, 0)), out=b.x
        ),
        r"\bout\b.*\bx\b",
    ),
    "workspace_read_only": Case(
        lambda b: b.call(workspace=b.over(b.empty(1 << 20, dtype="uint8"), readonly=True)),
        r"workspace.*read-only",
        ARRAY,
    ),
    "x_of_another_device": Case(lambda b: b.handle.array(b.elsewhere()), r"emulated", ARRAY),
    "x_viewed_from_another_device": Case(
        lambda b: b.handle.view(b.elsewhere()), r"emulated", ARRAY
    ),
    "stream_text": Case(lambda b: setattr(b.handle, "stream", "fast"), r"stream"),
    # A driver that searches for a little more than there is takes all memory for a moment, and
    # other tests then have none.
    "more_memory_than_there_is": Case(
        lambda b: b.handle.empty((1 << 16, (b.handle.device.memory_info()[1] >> 16) * 64), "int8"),
        r"free",
        dnn.DeviceMemoryError,
    ),
}

# With epilogues, with engines, and of what converts between layouts.
GRAPH_CASES: dict[str, Case] = {
    "alpha": Case(lambda b: b.fuse("relu", alpha=2), r"^alpha=2; allowed with an epilogue: 1\.0"),
    "beta": Case(lambda b: b.fuse("relu", beta=1), r"^beta=1; allowed with an epilogue: 0\.0"),
    "epilogue_of_a_descriptor": Case(
        lambda b: b.fuse("relu", interface="descriptor"),
        "^interface='descriptor'; allowed with an epilogue",
    ),
    "epilogue_of_an_algorithm": Case(
        lambda b: b.fuse("relu", algorithm="GEMM"), "^algorithm='GEMM'; allowed with an epilogue"
    ),
    "epilogue_misspelt": Case(
        lambda b: b.fuse("gleu"), "^activation='gleu'; allowed: .*; did you mean gelu"
    ),
    "epilogue_as_the_message_says": Case(
        lambda b: b.fuse("a function (graph, y) -> tensor"),
        r"^activation='a function \(graph, y\) -> tensor'; allowed",
    ),
    "epilogue_number": Case(lambda b: b.fuse(3), "^activation=3; allowed"),
    "epilogue_of_one": Case(
        lambda b: b.fuse(lambda y: y),
        r"^activation must take \(graph, y\): .* takes 1 positional",
    ),
    "epilogue_of_three": Case(
        lambda b: b.fuse(lambda graph, y, z: y), r"^activation must take \(graph, y\): .* missing"
    ),
    "epilogue_returns_a_number": Case(
        lambda b: b.fuse(lambda graph, y: 3), "^activation returns 3"
    ),
    "epilogue_makes_an_input": Case(
        lambda b: b.fuse(lambda graph, y: y + graph.input("q", (1, 16, 1, 1))),
        "^activation makes q",
    ),
    "epilogue_makes_an_output": Case(
        lambda b: b.fuse(lambda graph, y: graph.output("z", y)), "^activation makes z"
    ),
    "epilogue_of_another_shape": Case(
        lambda b: b.fuse(lambda graph, y: graph.reduce("ADD", y)),
        r"^activation returns a tensor of shape \(2, 16",
    ),
    "epilogue_of_another_graph": Case(
        lambda b: b.fuse(lambda graph, y: dnn.Graph().input("a", (1,))),
        "^activation returns .*tensor",
    ),
    "epilogue_of_a_search": Case(
        lambda b: b.find(activation="relu"), "activation is given to find"
    ),
    "interface_unknown": Case(
        lambda b: b.call(interface="engine"), r"interface=.*'descriptor', 'graph'"
    ),
    "interface_of_a_plan": Case(
        lambda b: b.plan(interface=("graph",)), r"interface=.*'descriptor', 'graph'"
    ),
    "graph_and_algorithm": Case(
        lambda b: b.call(interface="graph", algorithm="IMPLICIT_GEMM"),
        "interface='graph' and algorithm=",
    ),
    "descriptor_and_engine": Case(
        lambda b: b.plan(interface="descriptor", algorithm=dnn.types.Engine(1)),
        "interface='descriptor' and algorithm=",
    ),
    "uneven_padding_of_a_descriptor": Case(
        lambda b: b.call(conv=dnn.ConvolutionSpec(((0, 1), 1)), interface="descriptor", out=None),
        r"padding=\(\(0, 1\), 1\)",
    ),
    "uneven_padding_of_an_algorithm": Case(
        lambda b: b.plan(conv=dnn.ConvolutionSpec(((0, 1), 1)), algorithm="IMPLICIT_GEMM"),
        r"padding=\(\(0, 1\), 1\)",
    ),
    "uneven_padding_of_a_search": Case(
        lambda b: b.find(conv=dnn.ConvolutionSpec(((0, 1), 1))), r"padding=\(\(0, 1\), 1\)"
    ),
    "uneven_padding_of_integers": Case(
        lambda b: b.plan(
            x=dnn.TensorSpec((1, 8, 9, 8), "int8", "NHWC"),
            w=dnn.FilterSpec((8, 8, 3, 3), "int8", "NHWC"),
            conv=dnn.ConvolutionSpec(((0, 1), 1)),
        ),
        "integers stay",
        NOT_SUPPORTED,
    ),
    "replay_number": Case(lambda b: b.plan(replay=1), r"replay=.*; allowed: True, False"),
    "empty_batch_of_a_search": Case(lambda b: b.find(x=b.empty(0, *X[1:])), "empty batch"),
    "algorithm_of_a_filter": Case(
        lambda b: dnn.convolution_forward.convert_filter(b.handle, b.x, b.w, algorithm="GEMM"),
        "algorithm",
    ),
    "gradients_read_no_filter": Case(
        lambda b: dnn.convolution_backward_filter.convert_filter(b.handle, b.x, b.dy, STRIDED),
        "reads no filter",
    ),
    "filter_on_the_host": Case(
        lambda b: dnn.convolution_forward.convert_filter(b.handle, b.x, b.problem.w_host),
        "w",
        ARRAY,
    ),
    **{
        f"layout_{layout}_of_{dtype}_in_rank_{rank}": Case(
            lambda b, rank=rank, dtype=dtype, layout=layout: dnn.convolution_forward.plan(
                b.handle,
                dnn.TensorSpec((2, 64, 7, 9, 8)[:rank], dtype),
                dnn.FilterSpec((32, 64, 3, 3, 3)[:rank], dtype),
                algorithm=result(layout),
            ),
            r"algorithm\.layout=.*allowed: N",
        )
        for rank, dtype, layout in (
            (4, "float32", "NWC"),
            (4, "float32", "strided"),
            (5, "float16", "NCHW_VECT_C"),
            (4, "int8x32", "NHWC"),
        )
    },
}

SAME_CASES: dict[str, Case] = {
    "filters": Case(lambda b: b.weigh(conv=dnn.ConvolutionSpec("same")), "filters of all sizes"),
    "descriptor": Case(
        lambda _: dnn.ConvolutionDescriptor(dnn.ConvolutionSpec("same")), "a descriptor has numbers"
    ),
    "pads": Case(lambda _: dnn.ConvolutionSpec("same").pads(2), "for_shapes"),
    "output_padding": Case(
        lambda b: b.transpose(conv=dnn.ConvolutionSpec("same"), output_padding=1),
        "output_padding=1",
    ),
    "ranks": Case(
        lambda _: dnn.ConvolutionSpec("same").output_shape((1, 3, 8), (4, 3, 3, 3)), "same rank"
    ),
}

GRADIENT_CASES: dict[str, Case] = {
    "no_shape": Case(lambda b: b.back(), r"x=.*has to be given: with stride"),
    "no_shape_of_a_filter": Case(lambda b: b.weigh(), r"w=.*has to be given: with stride"),
    "shape_text": Case(lambda b: b.back(x="x"), r"\bx="),
    "shape_number": Case(lambda b: b.weigh(w=5), r"\bw="),
    "shape_fraction": Case(lambda b: b.back(x=(1.5, 2, 3, 4)), r"\bx="),
    "shape_negative": Case(lambda b: b.weigh(w=(0, -1, 2, 3)), r"\bw="),
    "shape_object": Case(lambda b: b.back(x=object()), r"\bx="),
    "rank": Case(lambda b: b.weigh(w=W[:3]), r"w=.*rank"),
    "another_shape": Case(lambda b: b.back(x=(2, 4, 9, 18)), r"\bout\b|dy has shape"),
    "another_shape_than_out": Case(
        lambda b: b.back(x=(2, 4, 9, 18), out=b.empty(2, 4, 11, 9)), "out is .* as x"
    ),
    "another_filter_than_out": Case(
        lambda b: b.weigh(w=(6, 4, 3, 9), out=b.empty(*W)), "out is .* as w"
    ),
    "beta": Case(lambda b: b.back(x=(2, 4, 11, 9), beta=1.0), "beta=1.0 needs out"),
    "dtype": Case(lambda b: b.back(x=dnn.TensorSpec((2, 4, 11, 9), "float16")), "float16"),
    "algorithm": Case(lambda b: b.back(x=(2, 4, 11, 9), algorithm="IMPLICIT_GEMM"), "algorithm="),
    "algorithm_of_the_other_interface": Case(
        lambda b: b.back(x=(2, 4, 11, 9), algorithm="ALGO_1", interface="graph"),
        "of 'descriptor'",
    ),
    "integers": Case(
        lambda b: b.back(
            w=b.empty(*W, dtype="int8"), dy=b.empty(2, 6, 7, 4, dtype="int8"), x=(2, 4, 11, 9)
        ),
        "is int8; allowed: float32",
    ),
    "spec_of_a_filter": Case(lambda b: b.back(x=dnn.FilterSpec((2, 4, 11, 9))), r"^x=FilterSpec"),
    "spec_of_a_filter_of_a_plan": Case(
        lambda b: dnn.convolution_backward_data.plan(
            b.handle, b.w, b.dy, STRIDED, x=dnn.FilterSpec((2, 4, 11, 9))
        ),
        r"^x=FilterSpec",
    ),
    "no_image": Case(lambda b: b.back(conv=dnn.ConvolutionSpec(padding=9)), "result of no image"),
    "no_filter": Case(lambda b: b.weigh(conv=dnn.ConvolutionSpec(dilation=97)), "no filter brings"),
    "transposed_output_padding": Case(lambda b: b.transpose(output_padding=2), "output_padding="),
    "transposed_output_padding_text": Case(
        lambda b: b.transpose(output_padding="x"), "output_padding="
    ),
    "transposed_channels": Case(lambda b: b.transpose(w=b.empty(5, 3, 3, 3)), "x=.*w="),
    "transposed_rank": Case(lambda b: b.transpose(w=b.empty(4, 3, 3)), "x=.*w="),
    "transposed_dtype": Case(
        lambda b: b.transpose(w=b.empty(4, 3, 3, 3, dtype="float16")), "x=.*w="
    ),
    "transposed_spec": Case(lambda b: b.transpose(conv=None), "conv="),
    "transposed_padding": Case(
        lambda b: b.transpose(conv=dnn.ConvolutionSpec(padding=9)), "padding="
    ),
    "transposed_beta": Case(lambda b: b.transpose(beta=1.0), "beta="),
    "transposed_out": Case(lambda b: b.transpose(out=b.empty(1, 3, 8, 8)), "out is .* as conv"),
    "transposed_x_numpy": Case(lambda b: b.transpose(x=b.ones.numpy()), r"\bx\b", ARRAY),
}

CASES = case.grouped(
    shapes=SHAPES,
    types=TYPES,
    places=PLACES,
    graph=GRAPH_CASES,
    same=SAME_CASES,
    gradients=GRADIENT_CASES,
)

EMULATED_CASES: dict[str, Case] = {
    "a number as a spec": Case(
        lambda b: dnn.convolution_forward(
            b.handle, b.handle.empty((1, 3, 8, 8)), b.handle.empty((4, 3, 3, 3)), 1
        ),
        r"conv=1 is not a ConvolutionSpec: dnn.ConvolutionSpec\(padding, stride, dilation, ...\)",
    ),
    "a window of images whose channels are last": Case(
        lambda b: dnn.convolution_forward(
            b.handle,
            b.handle.empty((1, 8, 9, 9), layout="NHWC")[:, :, 1:, 1:],
            b.handle.empty((4, 8, 3, 3), layout="NHWC"),
            algorithm="IMPLICIT_GEMM",
        ),
        r"(?m)^x: with gaps, or axes in an order of their own; .copy\(\) is without gaps$",
        NOT_SUPPORTED,
    ),
    "a result of another data type": Case(
        lambda b: dnn.convolution_forward(
            b.handle,
            b.handle.empty((1, 4, 9, 9)),
            b.handle.empty((4, 4, 3, 3)),
            interface="descriptor",
            out=b.handle.empty((1, 4, 7, 7), "float16"),
        ),
        r"^[^\n]*: out is float16, x is float32; give out the dtype of x\n  x = ",
        NOT_SUPPORTED,
    ),
    "integers with the channels first": Case(
        lambda b: dnn.convolution_forward(
            b.handle, b.handle.empty((1, 8, 9, 9), "int8"), b.handle.empty((4, 8, 3, 3), "int8")
        ),
        r"int8 runs with the channels last \(layout='NHWC'\) in x and w, and in multiples of four",
        NOT_SUPPORTED,
    ),
    "a bias of bfloat16": Case(
        lambda b: dnn.convolution_backward_bias(b.handle, b.handle.empty((1, 8, 9, 9), "bfloat16")),
        r"(?m)^bfloat16 is not summed: transform_tensor\(handle, dy, dtype='float32'\) "
        r"converts it if the channels",
        NOT_SUPPORTED,
    ),
    "a replay of no images": Case(lambda b: make_plan(b.handle, replay=3), "replay=3"),
    "both of no images": Case(
        lambda b: make_plan(b.handle, interface="descriptor", algorithm=dnn.types.Engine(0)),
        "interface='descriptor' and",
    ),
    "uneven no images": Case(
        lambda b: make_plan(b.handle, ((0, 1), 0), interface="descriptor"),
        "only graphs pad the two ends",
    ),
    "an output of another type": Case(
        lambda b: make_gradient(b.handle, dnn.TensorSpec((1, 3, 8, 8)), ("float16",)),
        "out is .*float16.*; the result is as x says, TensorSpec",
    ),
    "an output that lies otherwise": Case(
        lambda b: make_gradient(b.handle, dnn.TensorSpec((1, 3, 8, 8)), ("float32", "NHWC")),
        "out is .*NHWC.*; the result is as x says",
    ),
}
