"""The examples in docstrings run, on the emulated device, and the main names have one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re

import numpy as np
import pytest
from helpers.extensions import load
from in_one import in_one_test

import cudnnlite as dnn
from cudnnlite._raw.api import CudnnApi
from cudnnlite.devices.device_choice import get_device

PUBLIC = load("public_names").things()
coverage_table = load("coverage_table")
MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(dnn.__path__, "cudnnlite.")
    if not module.name.endswith("__main__")
]
FINDER = doctest.DocTestFinder(exclude_empty=True)
OPERATION_FUNCTIONS = load("operation_functions")


def find_examples():
    """The examples of all docstrings by full name; those of an operation's functions too."""
    tests = [test for module in (dnn, *MODULES) for test in FINDER.find(module)]
    for name, operation in OPERATION_FUNCTIONS.operations().items():
        for function_name, function in OPERATION_FUNCTIONS.functions_of(name).items():
            module = inspect.getmodule(operation._bind)
            full_name = f"{operation.__module__}.{operation.__qualname__}.{function_name}"
            tests += FINDER.find(function, full_name, module=False, globs=vars(module))
    return {test.name: test for test in tests if test.examples}


EXAMPLES = find_examples()
HAVE_AN_EXAMPLE = (
    "AttentionDescriptor",
    "AttentionSpec",
    "AttentionWeights",
    "CTCLossDescriptor",
    "CTCLossSpec",
    "SeqDataDescriptor",
    "SeqDataSpec",
    "ctc_loss",
    "multi_head_attention_backward_data",
    "multi_head_attention_forward",
    "AlgorithmTable",
    "ConvolutionDescriptor",
    "ConvolutionSpec",
    "DeviceArray",
    "DropoutDescriptor",
    "DropoutState",
    "FilterDescriptor",
    "FilterSpec",
    "Handle",
    "ProblemList",
    "RNNDataDescriptor",
    "RNNDataSpec",
    "RNNDescriptor",
    "RNNSpec",
    "RNNWeights",
    "TensorDescriptor",
    "TensorSpec",
    "Tuner",
    "TuningCache",
    "TuningPolicy",
    "Workspace",
    "autotuned",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "convolution_transpose",
    "multi_head_attention_forward.plan",
    "problems_from_onnx",
    "record_problems",
    "rnn_backward_data",
    "rnn_backward_weights",
    "rnn_forward",
    "rnn_forward.heuristic",
    "rnn_forward.plan",
    "rnn_forward.problem",
    "tune_model",
)
# Functions that the example of their operation shows.
SHOWN_BY_THE_OPERATION = (
    "convolution_backward_data.find",
    "convolution_backward_data.plan",
    "convolution_backward_filter.find",
    "convolution_backward_filter.plan",
    "convolution_forward.find",
    "convolution_forward.heuristic",
    "convolution_forward.plan",
)
# C functions that a docstring names and its example has no occasion to call.
NO_OCCASION = {
    "RNNDescriptor": {"cudnnRNNSetClip_v8", "cudnnRNNGetClip_v8"},  # of older libraries
    "TensorDescriptor": {"cudnnSetTensorNdDescriptorEx"},  # for NCHW_VECT_C
    "convolution_backward_filter": {"cudnnConvolutionBackwardFilter"},  # where no engine serves
    "convolution_transpose": {"cudnnConvolutionBackwardData"},
    "rnn_forward.plan": {"cudnnBuildRNNDynamic"},  # for PERSIST_DYNAMIC
    "convolution_backward_data.plan": {"cudnnTransformTensor"},  # for a choice in another layout
    "convolution_backward_filter.plan": {
        "cudnnConvolutionBackwardFilter",  # where no engine serves
        "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
        "cudnnTransformTensor",
    },
    "convolution_forward.plan": {"cudnnTransformTensor"},
}


def thing_of(name):
    """Return what is public under a name, such as "matmul" or "matmul.plan"."""
    first, _, function_name = name.partition(".")
    return getattr(PUBLIC[first], function_name) if function_name else PUBLIC[first]


def noted(name: str) -> set[str]:
    """Return the C functions that the docstring of a public name says it calls."""
    functions: set[str] = coverage_table.called_according_to(
        inspect.cleandoc(thing_of(name).__doc__), is_member=False
    )
    return functions


# a spec calls nothing: it holds the arguments of the functions that it names
CALLING = [
    name
    for name in (*HAVE_AN_EXAMPLE, *SHOWN_BY_THE_OPERATION)
    if noted(name) and not name.endswith("Spec")
]


def run(test: doctest.DocTest) -> None:
    """Run an example; what it printed instead of what it should is the failure.

    `dnn` and `np` are there, as the reference says; whatever else it needs an example imports.
    """
    output: list[str] = []
    test.globs = {"dnn": dnn, "np": np}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.REPORT_NDIFF)
    runner.run(test, out=output.append)
    assert not runner.failures, "".join(output)


@pytest.fixture
def _somewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDNNLITE_DEVICE", "emulated")
    monkeypatch.chdir(tmp_path)  # where examples write their files


@pytest.mark.usefixtures("_somewhere")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name):
    run(EXAMPLES[name])


def full_name(name):
    """The key in `EXAMPLES`."""
    first, *function_name = name.split(".")
    thing = PUBLIC[first]
    return ".".join((thing.__module__, thing.__qualname__, *function_name))


@in_one_test(HAVE_AN_EXAMPLE)
def test_the_main_names_have_an_example(name):
    doc = inspect.cleandoc(thing_of(name).__doc__)
    assert re.search(r"^Examples\n--------\n", doc, re.MULTILINE)
    assert any(example.want for example in EXAMPLES[full_name(name)].examples)  # it shows something


@in_one_test(SHOWN_BY_THE_OPERATION)
def test_the_example_of_an_operation_shows_its_function(name):
    operation, _, function_name = name.partition(".")
    assert any(
        f"dnn.{operation}.{function_name}(" in example.source
        for example in EXAMPLES[full_name(operation)].examples
    )


def test_the_first_example_is_the_packages():
    assert len(EXAMPLES["cudnnlite"].examples) == 2


def test_no_example_is_skipped():
    options = [
        option
        for test in EXAMPLES.values()
        for example in test.examples
        for option in example.options
    ]
    assert doctest.SKIP not in options


def test_all_modules_were_looked_at():
    assert len(MODULES) > 90
    assert {"cudnnlite", "cudnnlite.raw", "cudnnlite.operations.rnn.passes.rnn_forward"} <= set(
        EXAMPLES
    )
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    with pytest.raises(AssertionError, match="Failed example"):
        run(wrong)


@pytest.mark.usefixtures("_somewhere")
@pytest.mark.parametrize("name", CALLING)
def test_an_example_calls_the_c_functions_that_its_docstring_names(name, monkeypatch):
    behind = get_device(
        "emulated"
    ).api.real  # through which the emulated device asks libcudnn, for itself
    names = set()

    def look_up(table, attribute):
        if attribute.startswith("cudnn") and table is not behind:
            names.add(attribute)
        return object.__getattribute__(table, attribute)

    monkeypatch.setattr(CudnnApi, "__getattribute__", look_up, raising=False)
    shown_by = name.partition(".")[0] if name in SHOWN_BY_THE_OPERATION else name
    run(EXAMPLES[full_name(shown_by)])
    assert noted(name) - names == NO_OCCASION.get(name, set())
