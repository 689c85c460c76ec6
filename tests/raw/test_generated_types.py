"""types.py against the C compiler."""

import ctypes

import header_text
import pytest

from cudnnlite.raw import types


def test_every_handle_is_a_class_of_its_own():
    classes = [getattr(types, name) for name in header_text.handles() if hasattr(types, name)]
    assert all(issubclass(kind, ctypes.c_void_p) for kind in classes)
    if header_text.is_generation_version():
        class_names = {
            name
            for name, kind in vars(types).items()
            if isinstance(kind, type) and kind.__module__ == types.__name__
        }
        class_names -= {
            name
            for name in class_names
            if issubclass(getattr(types, name), (ctypes.Structure, ctypes._CFuncPtr))
        }
        assert class_names == header_text.handles()
    assert len(set(classes)) == len(classes)


@pytest.mark.processes
def test_structures_lie_as_the_compiler_lays_them(tmp_path):
    ours = {name: kind for name, kind in vars(types).items() if isinstance(kind, type)}
    ours = {name: kind for name, kind in ours.items() if hasattr(kind, "_fields_")}
    names = header_text.structs().keys() & ours.keys()
    if header_text.is_generation_version():
        assert names == header_text.structs().keys() == ours.keys()
        assert len(names) == 7
    statements = []
    for name in sorted(names):
        fields = header_text.structs()[name]
        assert [field[0] for field in ours[name]._fields_] == fields
        statements.append(f'printf("{name} . 0 %zu 0\\n", sizeof({name}));')
        for field in fields:
            value = f"(({name} *)0)->{field}"
            statements.append(
                f'printf("{name} {field} %zu %zu %d\\n", offsetof({name}, {field}), '
                f"sizeof({value}), "
                f"__builtin_classify_type({value}));"
            )
    for name, field, *numbers in header_text.run_c(tmp_path, statements):
        kind, (offset, size, c_class) = ours[name], map(int, numbers)
        if field == ".":
            assert ctypes.sizeof(kind) == size, name
            continue
        descriptor = getattr(kind, field)
        assert (descriptor.offset, descriptor.size) == (offset, size), (name, field)
        assert header_text.c_class(dict(kind._fields_)[field]) == c_class, (name, field)


@pytest.mark.processes
def test_constants_have_the_compilers_values(tmp_path):
    ours = {name: value for name, value in vars(types).items() if name.startswith("CUDNN_")}
    statements = [
        f'printf("{name} %.17g\\n", (double)({name}));'
        for name in header_text.macros()
        if name in ours
    ]
    compiled = {name: float(value) for name, value in header_text.run_c(tmp_path, statements)}
    moving = {
        name for name in ours if name.startswith("CUDNN_MAX_")
    }  # grow with the GPUs that a version knows
    same = ours.keys() if header_text.is_generation_version() else ours.keys() - moving
    assert {name: ours[name] for name in same} == {name: compiled[name] for name in same}
    versions = {
        name
        for name in header_text.macros()
        if name.endswith(("_MAJOR", "_MINOR", "_PATCH", "_PATCHLEVEL"))
    }
    other = {"CUDNN_VERSION", "CUDNN_DEPRECATED", "CUDNN_DEPRECATED_ENUM"}
    if header_text.is_generation_version():
        assert set(header_text.macros()) - versions - other == ours.keys()


def test_callback_can_be_called_through_c():
    calls = []
    callback = types.cudnnCallback_t(
        lambda severity, user, debug, text: calls.append((severity, user, debug[0].pid, text))
    )
    callback(2, 0x10, ctypes.pointer(types.cudnnDebug_t(pid=7)), b"text")
    assert calls == [(2, 0x10, 7, b"text")]


def test_a_structure_field_refuses_the_wrong_handle():
    debug = types.cudnnDebug_t()
    debug.handle = types.cudnnHandle_t(0x10)
    with pytest.raises(TypeError):
        debug.handle = types.cudnnTensorDescriptor_t(0x10)
