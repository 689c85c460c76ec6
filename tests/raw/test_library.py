"""Finding and loading libcudnn: the override, missing files, loaded libraries, mixed copies."""

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.harness import run_python

from cudnnlite._raw import library
from cudnnlite._raw.library import Library, format_version, load_library
from cudnnlite.errors import LibraryError, LibraryNotFoundError, MixedLibrariesError

REPORT = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        import cudnnlite as dnn
        from cudnnlite._raw.library import load_library
        found = load_library()
        report = {"path": found.path, "how": found.how, "version": found.version, "parts": found.parts()}
        d, w, c = dnn.TensorDescriptor((1, 2, 3, 4)), dnn.FilterDescriptor((1, 2, 3, 4)), dnn.ConvolutionDescriptor(1)
        with d, w, c:
            report["read"] = repr([d.read_back(), w.read_back(), c.output_shape(d, w)])
    except dnn.errors.LibraryError as error:
        report = {"error": type(error).__name__, "message": str(error)}
report["warnings"] = [[warning.category.__name__, str(warning.message)] for warning in caught]
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def libcudnn():
    """The libcudnn of this environment."""
    return Path(load_library().path)


@pytest.fixture
def report(commands):
    """Return a function that says what a process finds, which has loaded nothing before `code`."""

    def run(code="", *arguments, **environment):
        return json.loads(commands.run_code(code + REPORT, *arguments, **environment).stdout)

    return run


# ---------------------------------------------------------------- CUDNNLITE_LIBCUDNN


@pytest.mark.processes
def test_the_override_as_a_folder(report, libcudnn):
    findings = report(CUDNNLITE_LIBCUDNN=libcudnn.parent)
    assert (findings["path"], findings["how"]) == (str(libcudnn), "CUDNNLITE_LIBCUDNN")
    assert findings["version"] == load_library().version
    assert findings["warnings"] == []
    assert "TensorSpec((1, 2, 3, 4)" in findings["read"]


@pytest.mark.processes
def test_the_override_as_a_file_through_a_link(report, libcudnn, tmp_path):
    link = tmp_path / "any-name.so"
    link.symlink_to(libcudnn)
    findings = report(CUDNNLITE_LIBCUDNN=link)
    assert (findings["path"], findings["how"]) == (str(libcudnn), "CUDNNLITE_LIBCUDNN")
    assert {str(Path(path).parent) for path in findings["parts"]} == {str(libcudnn.parent)}
    assert {"libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_cnn.so.9"} <= {
        Path(path).name for path in findings["parts"]
    }


@pytest.fixture
def fresh():
    """The module as a process has it that has loaded nothing."""
    spec = importlib.util.find_spec(library.__name__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_override_that_is_not_there(fresh, monkeypatch, tmp_path, kind):
    wrong = tmp_path / "libcudnn.so.9" if kind == "file" else tmp_path
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", str(wrong))
    with pytest.raises(LibraryNotFoundError) as caught:
        fresh.load_library()
    assert (
        str(caught.value)
        == f"CUDNNLITE_LIBCUDNN={wrong}: there is no file {tmp_path / 'libcudnn.so.9'}"
    )
    assert isinstance(caught.value, ImportError)
    assert fresh._loaded is None


@pytest.mark.parametrize("kind", ["folder", "folder of lib", "file"])
def test_an_override_with_another_version_alone(fresh, monkeypatch, tmp_path, kind):
    folder = tmp_path / "lib" if kind == "folder of lib" else tmp_path
    folder.mkdir(exist_ok=True)
    for name in ("libcudnn.so.8", "libcudnn.so.8.9.7"):
        (folder / name).touch()
    prefix = "lib/" if kind == "folder of lib" else ""
    override = tmp_path / "libcudnn.so.9" if kind == "file" else tmp_path
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", str(override))
    with pytest.raises(
        LibraryNotFoundError,
        match=rf"has {prefix}libcudnn.so.8, {prefix}libcudnn.so.8.9.7, and cudnnlite needs cuDNN 9 "
        r"\(CUDNNLITE_ALLOW_UNKNOWN_CUDNN=1 tries another, named by its file\)$",
    ):
        fresh.load_library()


@pytest.mark.parametrize(("number", "machine"), [(183, "aarch64"), (62, "x86_64")])
def test_an_override_for_another_machine(fresh, monkeypatch, libcudnn, tmp_path, number, machine):
    """The system's loader says that there is no such file."""
    here = {"aarch64": "x86_64", "x86_64": "aarch64"}[machine]
    monkeypatch.setattr("platform.machine", lambda: here)
    content = bytearray(Path(libcudnn).read_bytes())
    content[18:20] = number.to_bytes(2, "little")
    front = tmp_path / "libcudnn.so.9"
    front.write_bytes(content)
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", str(front))
    with pytest.raises(
        LibraryNotFoundError,
        match=rf"cannot be loaded .*: it is for {machine}, and this process runs on {here}$",
    ):
        fresh.load_library()


def test_an_override_that_is_no_library(fresh, monkeypatch, tmp_path):
    text = tmp_path / "libcudnn.so.9"
    text.write_text("not a library")
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", str(text))
    with pytest.raises(
        LibraryNotFoundError,
        match=r"libcudnn.so.9 \(found through CUDNNLITE_LIBCUDNN\) cannot be loaded",
    ):
        fresh.load_library()


def test_an_override_that_is_another_library(fresh, monkeypatch):
    import _ctypes

    load_library()  # whose parts are there: only the front is another
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", _ctypes.__file__)
    with pytest.raises(
        LibraryNotFoundError, match=r"cannot be loaded as libcudnn: .*cudnnGetVersion"
    ):
        fresh.load_library()


@pytest.mark.parametrize("kind", ["another library", "no library"])
def test_an_override_beside_which_there_is_no_part(fresh, monkeypatch, tmp_path, kind):
    """As of the system's libm; and of a cuDNN whose parts are missing something else is said."""
    import _ctypes

    wrong = tmp_path / "wrong.so"
    shutil.copyfile(_ctypes.__file__ if kind == "another library" else "/proc/self/cmdline", wrong)
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", str(wrong))
    monkeypatch.setattr(fresh, "mapped_cudnn_files", list)
    with pytest.raises(
        LibraryNotFoundError, match=r"wrong.so \(found .*\) has no cudnnGetVersion: it is no cuDNN$"
    ):
        fresh.load_library()


def test_an_override_whose_parts_are_missing(fresh, monkeypatch, libcudnn, tmp_path):
    front = Path(shutil.copyfile(libcudnn, tmp_path / "libcudnn.so.9"))
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", str(front))
    monkeypatch.setattr(fresh, "mapped_cudnn_files", list)
    with pytest.raises(
        LibraryError,
        match=r"is not whole: libcudnn_graph.so.9 is not beside it\. Install it again",
    ):
        fresh.load_library()


@pytest.mark.parametrize(("version", "text"), [(8907, "8.9.7"), (100100, "10.1.0")])
def test_a_library_of_another_major_version(fresh, monkeypatch, libcudnn, version, text):
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", str(libcudnn))
    monkeypatch.setattr(
        ctypes, "CDLL", lambda path: type("Fake", (), {"cudnnGetVersion": FakeFunction(version)})
    )
    monkeypatch.delenv("CUDNNLITE_ALLOW_UNKNOWN_CUDNN", raising=False)
    with pytest.raises(
        LibraryError,
        match=rf"cudnnlite needs cuDNN 9.x; .* is {text}\. Install .* or set "
        r"CUDNNLITE_ALLOW_UNKNOWN_CUDNN=1 to try it",
    ):
        fresh.load_library()
    monkeypatch.setenv("CUDNNLITE_ALLOW_UNKNOWN_CUDNN", "1")
    assert fresh.load_library().version_text == text


def test_the_parts_of_another_major_version_have_its_number(fresh, monkeypatch, tmp_path, libcudnn):
    """As the name of the front has it; the name of a link says nothing."""
    front = Path(shutil.copyfile(libcudnn, tmp_path / "libcudnn.so.10"))
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", str(front))
    with pytest.raises(LibraryError, match=r"is not whole: libcudnn_graph.so.10 is not beside it"):
        fresh.load_library()
    assert fresh.part_of(tmp_path / "libcudnn.so.9.28.0", "adv").name == "libcudnn_adv.so.9"
    assert fresh.part_of(tmp_path / "any-name.so", "adv").name == "libcudnn_adv.so.9"


# An installation whose engines are all compiled at run time has these parts.
RUNTIME_COMPILED = ("", "_graph", "_ops", "_heuristic", "_engines_runtime_compiled")
PARTIAL = """
import json, sys
import numpy as np
import cudnnlite as dnn
with dnn.Handle(sys.argv[1]) as handle:
    a = handle.array(np.ones((2, 16, 16), np.float16))
    q = handle.array(np.ones((1, 2, 16, 32), np.float16))
    x, scale = handle.array(np.ones((8, 16, 1, 1), np.float16)), handle.array(np.ones((1, 16, 1, 1), np.float16))
    # Of channels first `cudnnTransformTensor` would make channels last; its kernels are missing.
    images = handle.array(np.ones((1, 4, 5, 5), np.float32), layout="NHWC")
    w = handle.array(np.ones((4, 4, 1, 1), np.float32), layout="NHWC")
    w3 = handle.array(np.ones((4, 4, 3, 3), np.float32), layout="NHWC")
    results = [
        dnn.convolution_forward(handle, images, w), dnn.convolution_forward(handle, images, w3),
        dnn.matmul(handle, a, a), dnn.scaled_dot_product_attention_forward(handle, q, q, q),
        dnn.rms_normalization_forward(handle, x, scale),
    ]
    values = [float(result.numpy()[0, 0].ravel()[0]) for result in results]
    errors = []
    for function in (
        "cudnnCreateRNNDescriptor", "cudnnCreateConvolutionDescriptor", "cudnnCausalConv1dForward"
    ):
        assert not handle.api.has(function)
        try:
            getattr(handle.api, function)
        except dnn.errors.SymbolNotFoundError as error:
            errors.append(str(error))
    print(json.dumps([values, errors, handle.api.library.missing_parts]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("device", ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_installation_without_some_parts(commands, libcudnn, tmp_path, device):
    """What needs no missing part runs; a function of one says which."""
    names = [f"libcudnn{part}.so.9" for part in RUNTIME_COMPILED]
    names = [name for name in names if libcudnn.with_name(name).is_file()]
    try:
        for name in names:
            os.link(libcudnn.with_name(name), tmp_path / name)
    except OSError:  # another file system
        second_copy(libcudnn, tmp_path, *names)
    result = commands.run_code(PARTIAL, device, CUDNNLITE_LIBCUDNN=tmp_path)
    values, errors, missing = json.loads(result.stdout)
    assert values == [4, 36, 16, 1, 1]
    has_ext = load_library().version >= 92200
    assert missing == (["cnn", "adv", "ext"] if has_ext else ["cnn", "adv"])
    parts = ["adv", "cnn", "ext"] if has_ext else ["adv", "cnn"]
    for error, part in zip(errors, parts, strict=False):
        assert (
            f"needs libcudnn_{part}.so.9, which is not beside the loaded libcudnn: {tmp_path}"
            in error
        )


class FakeFunction:
    restype = None

    def __init__(self, value):
        self._value = value

    def __call__(self):
        return self._value


# ---------------------------------------------------------------- none there


@pytest.mark.parametrize("kind", ["DynamicLibNotFoundError", "RuntimeError"])
def test_none_found(fresh, monkeypatch, kind):
    from cuda import pathfinder

    def find(name):
        assert name == "cudnn"
        raise getattr(pathfinder, kind, RuntimeError)("nowhere")

    monkeypatch.delenv("CUDNNLITE_LIBCUDNN", raising=False)
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", find)
    with pytest.raises(LibraryNotFoundError) as caught:
        fresh.load_library()
    text = str(caught.value)
    for hint in ("nvidia-cudnn-cu12", "pip install", "CUDNN_PATH", "CUDNNLITE_LIBCUDNN", "conda"):
        assert hint in text
    assert caught.value.__cause__ is not None


def test_a_failed_search_is_tried_again(fresh, monkeypatch):
    """What was not there may have been installed since."""
    with monkeypatch.context() as patch:
        patch.setenv("CUDNNLITE_LIBCUDNN", "/nowhere")
        with pytest.raises(LibraryNotFoundError):
            fresh.load_library()
    assert fresh.load_library().version // 10000 == 9


def test_it_is_loaded_once():
    assert load_library() is load_library()


# ---------------------------------------------------------------- there before


@pytest.mark.processes
def test_a_library_that_was_already_loaded(report, libcudnn):
    findings = report(
        "import ctypes, sys\nctypes.CDLL(sys.argv[1])\n", libcudnn, CUDNNLITE_LIBCUDNN=None
    )
    assert (findings["path"], findings["how"]) == (str(libcudnn), "already loaded")
    assert findings["warnings"] == []


def second_copy(libcudnn, folder, *parts):
    """Return another copy of some parts.

    The files are copied, because the loader knows hard links to be the same file.
    """
    if shutil.disk_usage(folder).free < 2 << 30:
        pytest.skip(
            f"a second copy of libcudnn's parts takes 250 MB, and {folder} has not 2 GB free"
        )
    folder.mkdir(exist_ok=True)
    return [Path(shutil.copyfile(libcudnn.with_name(part), folder / part)) for part in parts]


LOAD_FIRST = "import ctypes, sys\nfor path in sys.argv[1:]: ctypes.CDLL(path)\n"
PARTS = ("libcudnn_graph.so.9", "libcudnn_ops.so.9")


@pytest.mark.processes
def test_hard_links_in_another_folder_are_told(report, libcudnn, tmp_path):
    """The loader takes the linked file for the one in our folder.

    The process then has the path of the other copy.
    """
    paths = [tmp_path / name for name in PARTS]
    try:
        for path in paths:
            os.link(libcudnn.with_name(path.name), path)
    except OSError:  # another file system
        paths = second_copy(libcudnn, tmp_path, *PARTS)
    findings = report(LOAD_FIRST, *paths, CUDNNLITE_LIBCUDNN=libcudnn)
    check_mixture(findings, [*paths, libcudnn])


@pytest.mark.processes
def test_a_second_copy_of_the_same_version_is_told(report, libcudnn, tmp_path):
    paths = second_copy(libcudnn, tmp_path, *PARTS)
    findings = report(LOAD_FIRST, *paths, CUDNNLITE_LIBCUDNN=libcudnn)
    check_mixture(findings, [*paths, libcudnn])


def check_mixture(findings, paths):
    """Either it works, and a warning names the paths, or an error does."""
    if "error" in findings:
        assert findings["error"] == "MixedLibrariesError"
        text = findings["message"]
    else:
        ((category, text),) = findings["warnings"]
        assert category == "RuntimeWarning"
        assert "parts of another cuDNN copy are mapped" in text
        assert "TensorSpec" in findings["read"]
    for path in paths:
        assert f"  {path}" in text.splitlines()


@pytest.mark.processes
def test_an_incompatible_copy_is_refused_with_all_paths(report, libcudnn, tmp_path):
    """A graph library without a function that its siblings need, as one of another version is."""
    (path,) = second_copy(libcudnn, tmp_path, "libcudnn_graph.so.9")
    needed = b"_Z28traceback_api_set_last_errorPKc"
    content = path.read_bytes()
    if needed not in content:
        pytest.skip(
            f"this libcudnn has no {needed.decode()}, with which the test makes an "
            "incompatible copy"
        )
    path.write_bytes(content.replace(needed, needed.replace(b"traceback", b"backtrace")))
    findings = report(LOAD_FIRST, path, CUDNNLITE_LIBCUDNN=libcudnn)
    if "error" in findings:  # where a sibling needs it at load time (9.28)
        assert findings["error"] == "MixedLibrariesError"
        assert "backtrace" not in findings["message"]
        assert "CUDNNLITE_LIBCUDNN" in findings["message"]
    else:  # where not (9.19): the mixture works, and is warned of
        assert [category for category, _ in findings["warnings"]] == ["RuntimeWarning"]
    message = findings.get("message") or findings["warnings"][0][1]
    for line in (f"  {path}", f"  {libcudnn}"):
        assert line in message.splitlines() or str(libcudnn) in message.splitlines()[0]


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A libcudnn of a few empty files, whose loading and version checks are decided by the test."""
    for part in ("", "_graph", "_ops", "_cnn", "_adv"):
        (tmp_path / f"libcudnn{part}.so.9").touch()
    loaded = []

    class Fake:
        refused = ()
        broken = ""
        strays = ()

        def load(self):
            def open_library(path):
                loaded.append(Path(path).name)
                if self.broken and self.broken in path:
                    raise OSError(f"{path}: undefined symbol: x")

            class Front:
                def __getattr__(_, name):
                    return FakeFunction(1002 if name in self.refused else 0)

            monkeypatch.setattr(
                library,
                "mapped_cudnn_files",
                lambda: sorted([*self.strays, str(tmp_path / "libcudnn.so.9")]),
            )
            monkeypatch.setattr(ctypes, "CDLL", open_library)
            library._load_parts(Library(str(tmp_path / "libcudnn.so.9"), "a test", 92800, Front()))
            return loaded

    return Fake()


def test_parts_are_loaded_from_the_folder_of_the_front_in_order(fake):
    assert fake.load() == [f"libcudnn_{part}.so.9" for part in ("graph", "ops", "cnn", "adv")]


def test_parts_that_a_copy_has_not_got_are_left_out(fake, tmp_path):
    (tmp_path / "libcudnn_adv.so.9").unlink()
    assert "libcudnn_adv.so.9" not in fake.load()


def test_refused_version_checks_are_an_error(fake, tmp_path):
    fake.refused, fake.strays = (
        ("cudnnOpsVersionCheck", "cudnnCnnVersionCheck"),
        ["/other/libcudnn_ops.so.9"],
    )
    with pytest.raises(MixedLibrariesError) as caught:
        fake.load()
    text = str(caught.value)
    assert "cudnnOpsVersionCheck, cudnnCnnVersionCheck" in text
    assert {"  /other/libcudnn_ops.so.9", f"  {tmp_path / 'libcudnn.so.9'}"} <= set(
        text.splitlines()
    )


def test_a_part_that_cannot_be_loaded_beside_another_copy_is_a_mixture(fake):
    fake.broken, fake.strays = "libcudnn_ops", ["/other/libcudnn_graph.so.9"]
    with pytest.raises(
        MixedLibrariesError, match=r"undefined symbol: x[\s\S]*/other/libcudnn_graph.so.9"
    ):
        fake.load()


def test_a_part_that_cannot_be_loaded_by_itself_is_an_error_too(fake, tmp_path):
    fake.broken = "libcudnn_ops"
    with pytest.raises(LibraryError, match=r"libcudnn_ops.so.9: undefined symbol: x") as caught:
        fake.load()
    assert not isinstance(caught.value, MixedLibrariesError)
    assert str(tmp_path) in str(caught.value)


def test_strays_that_agree_are_warned_about(fake):
    fake.strays = ["/other/libcudnn_graph.so.9"]
    with pytest.warns(
        RuntimeWarning, match=r"parts of another cuDNN copy[\s\S]*  /other/libcudnn_graph.so.9"
    ):
        fake.load()


# ---------------------------------------------------------------- what a Library says


@pytest.mark.parametrize(
    ("number", "text"),
    [(92800, "9.28.0"), (90102, "9.1.2"), (91900, "9.19.0"), (8907, "8.9.7"), (100100, "10.1.0")],
)
def test_versions(number, text):
    assert format_version(number) == text


def test_a_library_describes_itself(libcudnn):
    loaded = load_library()
    assert loaded.version_text == format_version(loaded.version)
    assert 11000 <= loaded.cudart_version < 20000
    assert (
        Library(loaded.path, "", 91900, SimpleNamespace()).cudart_version == 0
    )  # of one that lacks the function
    assert str(libcudnn) in loaded.parts()
    assert "cdll" not in repr(loaded)


# ---------------------------------------------------------------- importing

PROBE = """
import sys
before = set(sys.modules)  # an editable installation's hook may have imported some at the start
import cudnnlite
lines = [line for line in open("/proc/self/maps") if "libcudnn" in line or "libcuda" in line or "libcudart" in line]
heavy = ("cuda", "ml_dtypes", "typer", "rich", "click", "matplotlib", "PIL", "torch", "importlib.metadata",
         "cudnnlite.workbench.tuning", "cudnnlite.emulated", "cudnnlite.devices.cuda", "cudnnlite.cli", "cudnnlite.cli.demo")
new = set(sys.modules) - before
print(lines, sorted(name for name in new if any(name == h or name.startswith(h + ".") for h in heavy)))
"""


@pytest.mark.processes
def test_importing_loads_nothing():
    """Neither a library of NVIDIA's nor a heavy module."""
    assert run_python(PROBE).stdout == "[] []\n"


@pytest.mark.processes
def test_the_probe_sees_what_is_loaded():
    code = PROBE.replace(
        "import cudnnlite\n",
        "import cudnnlite, ml_dtypes\ncudnnlite.TensorDescriptor((1,)).close()\n",
    )
    rest = run_python(code).stdout
    assert "libcudnn.so.9" in rest
    assert "'ml_dtypes'" in rest
    assert "'cuda.pathfinder'" in rest


@pytest.mark.processes
def test_the_package_runs_without_cuda_core(tmp_path):
    """A laptop without cuda-core: the emulated device must not need it."""
    blocker = tmp_path / "sitecustomize.py"
    blocker.write_text(
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith(('cuda.core', 'cuda.bindings')):\n"
        "            raise ImportError(f'{name} is blocked')\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    code = """
        import numpy as np, cudnnlite as dnn
        with dnn.Handle("emulated") as h:
            print(dnn.convolution_forward(h, h.array(np.ones((1, 1, 3, 3))), h.array(np.ones((1, 1, 3, 3)))).numpy().sum())
        try:
            dnn.Handle("cuda")
        except dnn.NoDeviceError as error:
            print(error)
    """
    lines = run_python(code, PYTHONPATH=tmp_path).stdout.splitlines()
    assert lines[0] == "9.0"
    assert "is blocked" in lines[1]
    assert "extra cu12 or cu13" in lines[1]


@pytest.mark.processes
def test_python_optimised_away_its_asserts():
    """`python -O` must not change what is checked."""
    code = """
        import cudnnlite as dnn
        for make in (lambda: dnn.TensorDescriptor((0, 1)), lambda: dnn.ConvolutionDescriptor(-1)):
            try:
                make()
            except dnn.ArgumentError as error:
                print("refused")
        with dnn.ConvolutionDescriptor(1) as d:
            print(d.read_back().compute_type.name)
    """
    process = subprocess.run(
        [sys.executable, "-O", "-c", "\n".join(line[8:] for line in code.splitlines())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.split() == ["refused", "refused", "FLOAT"]
