"""functions.py against the headers' text, gcc's view of it, and the loaded library."""

import ctypes
import re

import header_text
import pytest

from cudnnlite._raw.calls import CallArgumentError, convert
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.types import HEADER_VERSION
from cudnnlite.raw import enums, types

SCALARS = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "unsigned": ctypes.c_uint,
    "unsigned long long": ctypes.c_ulonglong,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "libraryPropertyType": ctypes.c_int,
}


def in_both():
    """Prototypes that the installed headers and functions.py share.

    Where the versions agree, these are all.
    """
    return [
        (FUNCTIONS[name], prototype)
        for name, prototype in header_text.prototypes().items()
        if name in FUNCTIONS
    ]


def expected_type(parameter):
    """ctypes type of a parameter, by its spelling."""
    base, depth = header_text.split_parameter(parameter)
    if base == "void":
        return {1: ctypes.c_void_p, 2: ctypes.POINTER(ctypes.c_void_p)}[depth]
    if base == "char":
        return {1: ctypes.c_char_p}[depth]
    if base in header_text.enums():
        kind = ctypes.c_int
    elif base in SCALARS:
        kind = SCALARS[base]
    elif (
        base in header_text.handles() or base in header_text.structs() or base == "cudnnCallback_t"
    ):
        kind = getattr(types, base)
    else:
        assert (base, depth) == ("cudnnRuntimeTag_t", 1)  # never defined: only ever an address
        return ctypes.c_void_p
    return {0: kind, 1: ctypes.POINTER(kind)}[depth]


def test_headers_are_those_of_the_generated_files():
    if not header_text.is_generation_version():
        pytest.skip(
            f"installed headers are {header_text.version()}, the generated files are from "
            f"{HEADER_VERSION}: "
            "only what both have is compared"
        )


def test_every_exported_prototype_is_present():
    in_headers = set(header_text.prototypes())
    # The count does not use the prototype's pattern, so a prototype that the pattern cannot read
    # makes a difference.
    count = sum(
        len(re.findall(r"\bCUDNNWINAPI\s+cudnn\w+\s*\(", text))
        for text in header_text.texts().values()
    )
    assert count == len(in_headers)
    if header_text.is_generation_version():
        assert in_headers == set(FUNCTIONS)
        assert count == len(FUNCTIONS)
    else:
        newer = in_headers if header_text.version() > HEADER_VERSION else set(FUNCTIONS)
        assert in_headers | set(FUNCTIONS) == newer


def test_functions_are_sorted_and_consistent():
    records = list(FUNCTIONS.values())
    assert records == sorted(records, key=lambda function: (function.header, function.name))
    for name, function in FUNCTIONS.items():
        assert function.name == name
        assert len(function.argnames) == len(function.argtypes)
        assert all(argument.isidentifier() for argument in function.argnames)


def test_argument_types_follow_the_text():
    for function, prototype in in_both():
        assert [expected_type(p) for p in prototype.parameters] == list(function.argtypes), (
            function.name
        )


def test_argument_names_follow_the_text():
    if not header_text.is_generation_version():
        pytest.skip("parameter names are no interface: they may differ between versions")
    for function, prototype in in_both():
        names = [re.search(r"(\w+)\s*(?:\[[^]]*\])?$", p)[1] for p in prototype.parameters]
        assert names == list(function.argnames), function.name


def test_every_enum_parameter_takes_members_of_its_own_and_integers():
    kinds, enum_parameters = {name: kind for kind, name in enums.C_NAMES.items()}, []
    for function, prototype in in_both():
        # numbers of 1, and null pointers where the call does not look
        allowed = [
            1 if issubclass(kind, ctypes._SimpleCData) and kind._type_ not in "zP" else kind()
            for kind in function.argtypes
        ]
        convert(function, tuple(allowed))
        for number, (type_name, depth) in enumerate(
            map(header_text.split_parameter, prototype.parameters)
        ):
            if type_name in header_text.enums() and depth == 0:
                enum_parameters.append(type_name)
                for name, kind in kinds.items():
                    arguments = (*allowed[:number], next(iter(kind)), *allowed[number + 1 :])
                    if name == type_name:
                        convert(function, arguments)
                        continue
                    with pytest.raises(
                        CallArgumentError, match=rf" is no {kinds[type_name].__name__}$"
                    ):
                        convert(function, arguments)
    assert len(enum_parameters) > 150, len(enum_parameters)
    assert len({*enum_parameters}) > 40


def test_result_types_follow_the_text():
    kinds = {
        "cudnnStatus_t": ctypes.c_int,
        "size_t": ctypes.c_size_t,
        "const char *": ctypes.c_char_p,
        "void": None,
    }
    for function, prototype in in_both():
        assert function.restype is kinds[prototype.result], function.name
        assert function.returns_status == (prototype.result == "cudnnStatus_t")


@pytest.mark.processes
def test_gcc_agrees_on_every_arguments_size_and_class(tmp_path):
    pairs = [pair for pair in in_both() if pair[1].parameters]
    statements = []
    for function, prototype in pairs:
        lines = [
            (
                f'{{ {header_text.declared_type(p)} v; printf(" %zu:%d", sizeof v, '
                f"__builtin_classify_type(v)); }}"
            )
            for p in prototype.parameters
        ]
        statements += [f'printf("{function.name}");', *lines, 'printf("\\n");']
    for (function, _), (name, *sizes_and_classes) in zip(
        pairs, header_text.run_c(tmp_path, statements), strict=True
    ):
        assert name == function.name
        assert [
            f"{ctypes.sizeof(kind)}:{header_text.c_class(kind)}" for kind in function.argtypes
        ] == sizes_and_classes, name


def test_deprecation_follows_the_mark():
    if not header_text.is_generation_version():
        pytest.skip("a function may be deprecated in one version and not in the other")
    for function, prototype in in_both():
        assert (function.deprecated is not None) == prototype.deprecated, function.name
    versions = {function.deprecated for function in FUNCTIONS.values()} - {None, "yes"}
    assert all(re.fullmatch(r"9\.\d+(\.\d+)?", version) for version in versions)


def test_since_follows_the_comment_before():
    if not header_text.is_generation_version():
        pytest.skip("the marks may differ between versions")
    for function, prototype in in_both():
        text = header_text.raw_texts()[prototype.header]
        start = re.search(rf"^[\w *]*CUDNNWINAPI\s+{function.name}\s*\(", text, flags=re.M).start()
        comments, before = "", text[:start].rstrip()
        while before.endswith("*/"):
            comments += before[before.rindex("/*") :]
            before = before[: before.rindex("/*")].rstrip()
        mark = re.search(r"@since cuDNN ([\d.]+\d)", comments)
        assert function.since == (mark[1] if mark else None), function.name


def test_device_need_follows_the_text():
    for function, prototype in in_both():
        kinds = {header_text.split_parameter(p)[0] for p in prototype.parameters}
        assert function.needs_device == bool(kinds & {"cudnnHandle_t", "cudaStream_t"}), (
            function.name
        )


def test_header_follows_the_file():
    for function, prototype in in_both():
        assert function.header == prototype.header


def test_every_name_is_in_the_library():
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        path = load_nvidia_dynamic_lib("cudnn").abs_path
    except DynamicLibNotFoundError as error:
        pytest.skip(f"libcudnn cannot be loaded: {error}")
    library = ctypes.CDLL(path)
    library.cudnnGetVersion.restype = ctypes.c_size_t
    loaded = library.cudnnGetVersion()

    def may_be_missing(function):
        if loaded >= HEADER_VERSION:
            return False
        if function.since is None or function.header in ("gnn_ops", "subquadratic_ops"):
            return function.header in (
                "gnn_ops",
                "subquadratic_ops",
            )  # these headers came after 9.1, partly unmarked
        major, minor, patch = (int(part) for part in function.since.split("."))
        return major * 10000 + minor * 100 + patch > loaded

    missing = [
        f.name for f in FUNCTIONS.values() if not hasattr(library, f.name) and not may_be_missing(f)
    ]
    assert not missing, f"{path} (version {loaded}) lacks {missing}"


def test_prototype_is_one_type_per_function():
    function = FUNCTIONS["cudnnSetTensor4dDescriptor"]
    assert function.prototype is function.prototype
    assert function.prototype._argtypes_ == function.argtypes
    assert function.prototype._restype_ is ctypes.c_int


def test_a_swapped_descriptor_is_refused():
    calls = []
    function = FUNCTIONS["cudnnDestroyTensorDescriptor"]
    pointer = function.prototype(lambda descriptor: calls.append(descriptor.value) or 0)
    assert pointer(types.cudnnTensorDescriptor_t(0x10)) == 0
    for wrong in (types.cudnnFilterDescriptor_t(0x10), ctypes.c_void_p(0x10)):
        with pytest.raises(ctypes.ArgumentError):
            pointer(wrong)
    assert calls == [0x10]
