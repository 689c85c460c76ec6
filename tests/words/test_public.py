"""The public names: complete, sorted, documented, annotated; and the package around them."""

import copy
import dataclasses
import enum
import importlib
import importlib.metadata
import importlib.resources
import inspect
import pathlib
import pickle
import pkgutil
import pydoc
import re
import types
import typing
from collections import Counter

import pytest
from helpers.extensions import load
from in_one import in_one_test

import cudnnlite as dnn
from cudnnlite.plans.function import OperationFunction
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.unknown import SELDOM_SPECS

REFERENCE = pathlib.Path(__file__).parents[2] / "docs" / "reference"
MODULES, PATHS = load("public_names").MODULES, load("public_names").paths()
PUBLIC = load("public_names").things()
NAMES = [*PUBLIC]
CALLABLES = [name for name in NAMES if callable(PUBLIC[name])]
FUNCTIONS = [
    name
    for name in NAMES
    if inspect.isfunction(PUBLIC[name]) or isinstance(PUBLIC[name], OperationFunction)
]
CLASSES = [name for name in NAMES if inspect.isclass(PUBLIC[name])]
# Made by functions, never by users: their constructors are nobody's to call.
MADE_FOR_YOU = {
    "AlgorithmTable",
    "AlgorithmResult",
    "DeviceArray",
    "CudnnError",
    "RNNGradients",
    "OperationPlan",
    "RNNOutput",
    "RNNPlan",
    "RNNReserve",
    "RNNTrainingOutput",
    "WeightLayout",
    "WeightPlace",
    "Candidate",
    "Candidates",
    "GraphTensor",
    "ListedProblem",
    "ModelTuning",
    "SkippedNode",
    "TunedProblem",
    "AttentionGradients",
    "AttentionReserve",
    "AttentionTrainingOutput",
    "CapturedGraph",
    "PackedSequences",
    "Replay",
    "ReplayCosts",
    "Trace",
    "TracedCall",
}
# What stands above cuDNN: no one C function is behind it.
ABOVE_CUDNN = {
    "autotuned",
    "candidates",
    "fold_batch_normalization",
    "pack_sequences",
    "problems_from_onnx",
    "record_problems",
    "trace",
    "tune",
    "tune_model",
}
# Functions of a handle that run nothing of cuDNN's by themselves.
NO_OPERATIONS = {"autotuned", "capture", "tune"}
CONVOLUTIONS = {
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_bias_activation_forward",
    "convolution_forward",
    "convolution_transpose",
}
# What is written as a graph, which takes the place of a problem.
GRAPHS = {
    "instance_normalization_backward",
    "instance_normalization_forward",
    "layer_normalization_backward",
    "layer_normalization_forward",
    "matmul",
    "matmul_backward_a",
    "matmul_backward_b",
    "pooling_with_indices_forward",
    "rms_normalization_backward",
    "rms_normalization_forward",
    "scaled_dot_product_attention_backward",
    "scaled_dot_product_attention_forward",
}
# Where there is a choice of algorithms: they are ranked, and searched.
CHOOSING = {*CONVOLUTIONS, "rnn_forward"}
FUNCTIONS_OF_OPERATIONS = [
    (name, function_name)
    for name in FUNCTIONS
    for function_name in ("plan", "graph", "problem", "find", "heuristic")
    if hasattr(PUBLIC[name], function_name)
]
# What constructors take through **options.
THROUGH_OPTIONS = {
    "ConvolutionDescriptor": {"mode", "compute_type", "math_type", "reorder_type"},
    "RNNDataDescriptor": {"dtype", "layout", "padding_fill"},
}
# What stands before the options of each function that is neither an operation nor about a
# convolution.
OPERANDS = {
    "autotuned": "handle",
    "dropout_backward": "handle dy dropout reserve",
    "dropout_forward": "handle x dropout",
    "transform_filter": "handle w",
    "fold_batch_normalization": "w bias scale shift mean var epsilon",
    "candidates": "problems properties",
    "capture": "handle",
    "ctc_loss": "handle x labels label_lengths input_lengths ctc",
    "instance_normalization_backward": "handle dy x scale mean inv_variance",
    "instance_normalization_forward": "handle x scale bias",
    "layer_normalization_backward": "handle dy x scale mean inv_variance",
    "layer_normalization_forward": "handle x scale bias",
    "matmul": "handle a b",
    "matmul_backward_a": "handle dy b",
    "matmul_backward_b": "handle dy a",
    "multi_head_attention_backward_data": "handle reserve dy",
    "multi_head_attention_backward_weights": "handle reserve",
    "multi_head_attention_forward": "handle spec weights q k v",
    "pack_sequences": "sequences",
    "pooling_with_indices_forward": "handle x pooling",
    "problems_from_onnx": "model",
    "record_problems": "",
    "trace": "",
    "tune": "handle operation arguments options",
    "tune_model": "problems",
    "rms_normalization_backward": "handle dy x scale inv_variance",
    "rms_normalization_forward": "handle x scale",
    "rnn_backward_data": "handle reserve dy dhy dcy",
    "rnn_backward_weights": "handle reserve",
    "rnn_forward": "handle spec weights x hx cx",
    "scaled_dot_product_attention_backward": "handle q k v o do stats",
    "scaled_dot_product_attention_forward": "handle q k v",
}


def operands(name):
    """What stands before the options: of an operation, what its declaration says."""
    operation = OPERATIONS.get(name)
    if operation is None or not operation.writes:
        return OPERANDS.get(name, "handle x w conv")
    specs = [option for option, kind in operation.options.items() if issubclass(kind, FrozenSpec)]
    updated = [
        argument
        for argument in operation.caller_provided.values()
        if argument != "out" and not operation.outputs
    ]
    signature = inspect.signature(PUBLIC[name]).parameters
    numbers = [
        n
        for n in (*operation.scalars, *operation.by_address)
        if n in signature and signature[n].default is inspect.Parameter.empty
    ]
    return " ".join(["handle", *operation.reads, *updated, *specs, *numbers])


def is_plain_kind(kind):
    """Enums and exceptions without an __init__ of their own document only themselves."""
    return issubclass(kind, (enum.Enum, Exception))


def section(doc, title):
    """The body of a NumPy-style section; None if there is none."""
    match = re.search(
        rf"^{title}\n-{{{len(title)}}}\n(.*?)(?=^\S[^\n]*\n-+$|\Z)",
        inspect.cleandoc(doc),
        re.S | re.M,
    )
    return match and match[1]


def documented(doc, title="Parameters"):
    """The names that a section speaks of: `a, b : int` and plain `a, b` lines at the margin."""
    heads = re.findall(r"^(?:\*\*)?(\w[\w, ]*?)(?: :.*)?$", section(doc, title) or "", re.M)
    return {name.strip() for head in heads for name in head.split(",")}


def parameters(function):
    return [
        p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")
    ]


def annotated(thing, module):
    """The names of a module's own classes that an object's annotations have."""
    words = set(re.findall(r"\w+", " ".join(map(str, thing.__annotations__.values()))))
    return [
        name
        for name in words
        if getattr(vars(module).get(name), "__module__", "") == module.__name__
    ]


def members(kind):
    """A class's public methods and properties, its own and those of cudnnlite's base classes."""
    for base in kind.__mro__:
        if base.__module__.startswith("cudnnlite"):
            for name, member in vars(base).items():
                plain = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if not name.startswith("_") and inspect.isfunction(plain):
                    yield f"{base.__name__}.{name}", plain


@pytest.mark.parametrize("module", [dnn, *map(dnn.__getattribute__, MODULES)], ids=str)
def test_all_is_sorted(module):
    names = module.__all__
    in_order = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert in_order == names
    assert len(names) == len(set(names))


def test_messages_know_which_specs_stand_at_the_top():
    assert {name for name in dnn.specs.__all__ if name not in dnn.__all__} == SELDOM_SPECS


def test_what_stands_at_the_top_is_read_in_one_glance():
    assert len(dnn.__all__) <= 110


def test_all_is_complete():
    for name in dnn.__all__:
        getattr(dnn, name)  # the tuner's are imported when they are first asked for
    public = {
        name
        for name, value in vars(dnn).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public - {"TYPE_CHECKING", "import_module"} | {"raw", *MODULES} == set(dir(dnn))
    assert set(dir(dnn)) == set(dnn.__all__)
    with pytest.raises(AttributeError, match="module 'cudnnlite' has no attribute 'Hanlde'"):
        _ = dnn.Hanlde


def test_all_exceptions_are_public():
    kinds = {
        name
        for name, kind in vars(dnn.errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert kinds == set(dnn.errors.__all__)


@pytest.mark.parametrize("module", [dnn, *map(dnn.__getattribute__, MODULES)], ids=str)
def test_what_a_module_shows_is_public(module):
    assert set(dir(module)) == set(module.__all__)


@in_one_test([name for name, path in PATHS.items() if "." in path])
def test_a_name_of_another_module_says_where_it_is(name):
    with pytest.raises(AttributeError, match=rf"it is dnn\.{PATHS[name]}$"):
        getattr(dnn, name)


@in_one_test(CALLABLES)
def test_everything_has_a_docstring_of_its_own(name):
    thing = PUBLIC[name]
    doc = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert doc
    assert len(inspect.cleandoc(doc).splitlines()[0]) > 15
    if inspect.isclass(thing):
        assert doc not in [base.__doc__ for base in thing.__mro__[1:]]


@in_one_test(FUNCTIONS)
def test_functions_document_parameters_result_and_errors(name):
    function = PUBLIC[name]
    assert documented(function.__doc__) == {p.name for p in parameters(function)}
    assert section(function.__doc__, "Returns") or section(function.__doc__, "Yields")
    assert (
        section(function.__doc__, "Raises") or name == "record_problems"
    )  # which can fail in no way
    assert name in ABOVE_CUDNN or "cudnn" in (
        section(function.__doc__, "Notes") or ""
    )  # the C function behind it


@in_one_test(CLASSES)
def test_classes_document_what_they_are_made_of(name):
    kind = PUBLIC[name]
    if is_plain_kind(kind) or name in MADE_FOR_YOU:
        if dataclasses.is_dataclass(kind):
            bases = [base for base in kind.__bases__ if dataclasses.is_dataclass(base)]
            inherited = {item.name for base in bases for item in dataclasses.fields(base)}
            names = {item.name for item in dataclasses.fields(kind)} - inherited
            assert documented(kind.__doc__, "Attributes") == names
        return
    expected = {p.name for p in parameters(kind)}
    if name in THROUGH_OPTIONS:
        expected = expected - {"options"} | THROUGH_OPTIONS[name]
    assert documented(kind.__doc__) == expected
    assert expected


@in_one_test(
    sorted({where: member for name in CLASSES for where, member in members(PUBLIC[name])}.items())
)
def test_methods_and_properties_are_documented_and_annotated(where, member):
    assert member.__doc__
    assert inspect.cleandoc(member.__doc__).splitlines()[0].endswith((".", "`", "yes", "no"))
    names = {p.name for p in parameters(member)}
    names.discard("graph")  # the first parameter of a formula, which is a method of `Graph`
    names_in_docstring = documented(member.__doc__)
    assert names_in_docstring <= names | {"math_type"}
    assert (
        not names_in_docstring or names_in_docstring == names
    )  # all or none: a short method may say it in its one sentence
    assert set(member.__annotations__) >= names | {"return"}


@in_one_test(FUNCTIONS)
def test_functions_are_annotated(name):
    assert_annotated(PUBLIC[name])


def assert_annotated(function):
    """Fail unless each parameter, and what is returned, has a type that there is."""
    names = {**vars(typing), **PUBLIC, **vars(importlib.import_module(function.__module__))}
    signature = inspect.signature(function)
    for annotation in [
        signature.return_annotation,
        *(parameter.annotation for parameter in signature.parameters.values()),
    ]:
        assert annotation is not inspect.Signature.empty
        assert isinstance(annotation, str)
        eval(annotation, names)


@in_one_test(name for name in CLASSES if "__init__" in vars(PUBLIC[name]))
def test_constructors_are_annotated(name):
    init = PUBLIC[name].__init__
    assert set(init.__annotations__) >= {p.name for p in parameters(init)} | {"return"}


@in_one_test(FUNCTIONS)
def test_options_after_the_operands_are_keywords(name):
    positional = [p.name for p in parameters(PUBLIC[name]) if p.kind is not p.KEYWORD_ONLY]
    assert " ".join(positional) == operands(name)


# ---------------------------------------------------------------- the functions of operations


def test_whatever_runs_on_a_handle_is_an_operation():
    """An operation is one object to call and to ask; there is no find_..., get_... or plan_...."""
    run_on_a_handle = {
        name
        for name in FUNCTIONS
        if [*inspect.signature(PUBLIC[name]).parameters][:1] == ["handle"]
    }
    operations = {name for name in NAMES if isinstance(PUBLIC[name], OperationFunction)}
    assert run_on_a_handle - NO_OPERATIONS == operations
    assert {name for name in FUNCTIONS if name.startswith(("find_", "get_", "plan_"))} == set()
    assert operations >= {name for name in OPERATIONS if hasattr(dnn, name)}


def test_which_functions_operations_have():
    by_function_name = {
        function_name: {name for name, other in FUNCTIONS_OF_OPERATIONS if other == function_name}
        for _, function_name in FUNCTIONS_OF_OPERATIONS
    }
    operations = {name for name in NAMES if isinstance(PUBLIC[name], OperationFunction)}
    assert by_function_name == {
        "plan": operations,
        "graph": GRAPHS,
        "problem": operations,
        "find": CHOOSING - {"rnn_forward"},
        "heuristic": CHOOSING,
    }
    with_a_choice = {
        name for name in OPERATIONS if OPERATIONS[name].algorithms and hasattr(dnn, name)
    }
    assert with_a_choice <= CHOOSING


@in_one_test(FUNCTIONS_OF_OPERATIONS)
def test_a_function_of_an_operation_has_its_signature(name, function_name):
    function = PUBLIC[name]
    ask = getattr(function, function_name)
    expected = [*inspect.signature(function).parameters.values()]
    parameters = [*inspect.signature(ask).parameters.values()]
    # What belongs to the calls of a plan, and what chooses that which is asked for.
    refused = {"workspace"}
    if function_name != "plan" and name in CHOOSING:
        refused |= {"algorithm", "interface", "replay"}
    if function_name in ("problem", "graph", "heuristic"):
        refused |= {"workspace_limit"}
    if function_name in ("problem", "graph") and name in GRAPHS:
        refused |= {"math_type"}
    if function_name in ("problem", "heuristic") and name == "rnn_forward":
        refused |= {"out", "reserve"}
    expected = [parameter for parameter in expected if parameter.name not in refused]
    assert parameters == (expected[1:] if function_name in ("graph", "problem") else expected)
    assert (ask.__name__, ask.__qualname__) == (function_name, f"{name}.{function_name}")
    assert ask.__module__ == function.__module__


def refuses(ask):
    """Whether a function is there to say why there is none, and where to go."""
    return inspect.cleandoc(ask.__doc__).startswith("Raise ArgumentError: ")


@in_one_test(FUNCTIONS_OF_OPERATIONS)
def test_a_function_of_an_operation_says_what_it_returns(name, function_name):
    ask = getattr(PUBLIC[name], function_name)
    assert_annotated(ask)
    returned = inspect.signature(ask).return_annotation
    if refuses(ask):
        assert function_name in ("plan", "problem") or name == "convolution_bias_activation_forward"
        return
    plan = {"rnn_forward": "RNNPlan"}
    allowed = {
        "plan": plan.get(name, returned if returned.endswith("Plan") else "OperationPlan"),
        "graph": "Graph",
        "problem": "Problem",
        "find": "AlgorithmTable",
        "heuristic": "AlgorithmTable",
    }
    assert returned == allowed[function_name]
    assert returned in section(ask.__doc__, "Returns")


@in_one_test(FUNCTIONS_OF_OPERATIONS)
def test_a_function_of_an_operation_has_a_docstring_of_its_own(name, function_name):
    function = PUBLIC[name]
    ask = getattr(function, function_name)
    text = inspect.cleandoc(ask.__doc__)
    assert text != inspect.cleandoc(function.__doc__)
    assert section(text, "Raises")
    if refuses(ask):
        return
    assert f"`{name}`" in text
    names = {*inspect.signature(ask).parameters}
    names_in_docstring = documented(text)
    assert names_in_docstring <= names | {"others"}
    assert "others" in names_in_docstring or names_in_docstring == names
    if function_name in ("find", "heuristic") and (name, function_name) != (
        "rnn_forward",
        "heuristic",
    ):
        assert "cudnn" in section(text, "Notes")  # the C function behind it


@in_one_test(sorted({name for name, _ in FUNCTIONS_OF_OPERATIONS}))
def test_an_operation_looks_like_a_function(name):
    """To help, to documentation, to pickle and to who reads its source."""
    function = PUBLIC[name]
    assert callable(function)
    assert (function.__name__, function.__qualname__) == (name, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function
    assert f"def {name}(" in inspect.getsource(inspect.unwrap(function))
    assert repr(function) == f"<operation {name}{inspect.signature(function)}>"
    help_text = pydoc.plain(pydoc.render_doc(function))
    assert f"{name}(handle: 'Handle', " in help_text
    assert inspect.cleandoc(function.__doc__).splitlines()[0] in help_text


@in_one_test(name for name in CLASSES if name.endswith(("Descriptor", "Spec")))
def test_classes_name_their_c_functions(name):
    assert re.search("cudnn(Backend)?Set", section(PUBLIC[name].__doc__, "Notes"))


def test_constants_are_members_of_a_public_enum():
    assert dnn.TF32 is dnn.MathType.DEFAULT
    assert dnn.TRUE_FLOAT32 is dnn.MathType.FMA


def test_star_import():
    namespace = {}
    exec("from cudnnlite import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(dnn.__all__)


def test_the_version_is_the_packages():
    assert dnn.__version__ == importlib.metadata.version("cudnnlite")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", dnn.__version__)


def test_typing_information_is_shipped():
    assert importlib.resources.files("cudnnlite").joinpath("py.typed").is_file()


def test_every_module_has_a_docstring():
    modules = [module.name for module in pkgutil.walk_packages(dnn.__path__, "cudnnlite.")]
    assert len(modules) > 30
    for name in modules:
        if name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        assert isinstance(module, types.ModuleType)
        assert module.__doc__, name


def test_every_name_is_on_one_page_of_the_reference():
    mentions = Counter()
    for page in sorted(REFERENCE.glob("*.md")):
        mentions.update(
            re.findall(
                r"^\.\. auto(?:class|function|exception):: cudnnlite\.(?:[a-z]+\.)?(\w+)$",
                page.read_text(),
                re.M,
            )
        )
        mentions.update(re.findall(r"^\.\. automodule:: cudnnlite\.(raw)$", page.read_text(), re.M))
        mentions.update(re.findall(r"^`cudnnlite\.(\w+)` is ", page.read_text(), re.M))
        mentions.update(re.findall(r" and `cudnnlite\.(TRUE_FLOAT32)` is ", page.read_text()))
    assert {name for name in NAMES if mentions[name] != 1} == set()
    assert set(mentions) - set(MODULES) == set(NAMES)


def test_what_a_cache_holds_is_in_the_reference():
    """Though nobody makes it by hand, and it has no name of its own in the package."""
    page, module = (
        (REFERENCE / "tuning.md").read_text(),
        importlib.import_module("cudnnlite.workbench.tuning.entries"),
    )
    classes = {
        name
        for method in ("get", "put", "entries")
        for name in annotated(getattr(dnn.TuningCache, method), module)
    }
    classes |= set(annotated(module.TuningEntry, module)) | set(
        annotated(module.TuningKey.device.fget, module)
    )
    assert classes >= {"TuningEntry", "TuningKey", "DeviceIdentity"}
    assert {
        name
        for name in classes
        if f".. autoclass:: cudnnlite.workbench.tuning.entries.{name}\n" not in page
    } == set()
