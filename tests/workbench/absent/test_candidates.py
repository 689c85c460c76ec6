"""GPUs that are absent: cuDNN plans for them in a process with a stand-in for the driver."""

import os
import shutil
import signal
from pathlib import Path

import pytest

import cudnnlite as dnn
from cudnnlite._raw.api import library_api
from cudnnlite.enums import MathType
from cudnnlite.workbench.absent import driver_stub as stub_module
from cudnnlite.workbench.absent import planner as planner_module
from cudnnlite.workbench.absent.candidates import Subject, ask_planner
from cudnnlite.workbench.absent.planner import Planner

COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not COMPILER, reason="there is no C compiler"),
    pytest.mark.skipif(
        library_api().library.version < 90800, reason="cuDNN 9.8 added properties of devices"
    ),
]


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def convolution(dtype="float16", **options):
    x = dnn.TensorSpec((4, 32, 14, 12), dtype, "NHWC")
    w = dnn.FilterSpec((64, 32, 3, 3), dtype, "NHWC")
    return dnn.convolution_forward.problem(x, w, dnn.ConvolutionSpec(padding=1, **options))


def product():
    graph = dnn.Graph()
    a = graph.input("a", (1, 128, 256), "float16")
    b = graph.input("b", (1, 256, 512), "float16")
    graph.output("y", graph.relu(graph.matmul(a, b)), "float16")
    return graph


def attention():
    q = dnn.TensorSpec((2, 4, 128, 64), "float16")
    return dnn.scaled_dot_product_attention_forward.graph(q, q, q)


def poolings():
    """Problems that are graphs: those of padding which differs at the ends of an axis."""
    x = dnn.TensorSpec((2, 16, 9, 11), "float16", "NHWC")
    uneven = dnn.PoolingSpec(
        3, padding=((0, 1), (1, 0)), stride=2, mode="average_count_exclude_padding"
    )
    y = uneven.output_spec(x)
    return [dnn.pooling_forward.problem(x, uneven), dnn.pooling_backward.problem(y, y, x, uneven)]


def subject(graph):
    return Subject(graph, MathType.DEFAULT, "it")


def properties(name):
    return dnn.types.DeviceProperties.named(name)


@pytest.fixture(scope="module")
def found_for_h200(cache_folder):
    """What one process says of several problems."""
    problems = [convolution(), product(), attention(), *poolings()]
    return dnn.candidates(problems, properties("h200"))


def test_a_compiled_kernel_is_for_the_architecture_and_each_gpu_has_a_process():
    """cuDNN 9.28 puts what it compiled for one architecture into the plans for another."""
    gpus = {"a100": "sm80", "h200": "sm90"}
    processes = []
    with Planner() as planner:
        for name in ("a100", "a100", "h200"):
            found = ask_planner(planner, subject(product()), properties(name))
            assert found.served
            assert found.choice.compiled
            assert found.choice.seconds > 0
            assert all(f"_{gpus[name]}_" in kernel for kernel in found.choice.kernels)
            assert found.choice.kernels
            processes.append(planner._process)
    assert processes[0] is processes[1]
    assert processes[1].pid != processes[2].pid
    assert None not in [process.returncode for process in processes]  # none is left behind
    planner.close()


def test_properties_of_an_older_cudnn_are_planned_for(found_for_h200):
    """cuDNN 9.19 does not write the width of the memory's bus, and 9.28 reads it."""
    values = dict(properties("h200").values)
    del values["memoryBusWidth"]
    found = dnn.candidates(product(), dnn.types.DeviceProperties(values))
    assert found.served
    assert [row.engine for row in found] == [row.engine for row in found_for_h200[1]]


def test_a_problem_is_asked_about_as_it_is_planned(found_for_h200):
    found = found_for_h200[0]
    assert found.served
    assert found.why_not == ""
    assert found[0].served
    assert found.choice is found[0]
    # The others are in cuDNN's order, and no plan was made for them.
    assert all(row.workspace is None and not row.why_not for row in found[1:])
    assert found.cudnn == library_api().library.version_text
    assert len({row.engine for row in found}) == len(found)
    assert "NVIDIA H200" in str(found)
    assert "not tried" in str(found)


def test_every_engine_is_finalised_if_asked():
    found = dnn.candidates(convolution(), "a100", every=True)
    assert all(row.served != bool(row.why_not) for row in found)
    assert sum(row.served for row in found) > 1


def test_engines_that_round_are_passed_over():
    problem = convolution("float32", math_type="fma")
    found = dnn.candidates(problem, "a100")
    reasons = {row.why_not for row in found}
    assert "it multiplies in fewer bits, math type FMA was asked for" in reasons
    assert "TENSOR_CORE" not in found.choice.notes


def test_several_problems_are_asked_about_in_one_process(found_for_h200):
    assert [answer.served for answer in found_for_h200] == [True] * 5
    assert [answer.subject for answer in found_for_h200[3:]] == [*map(str, poolings())]


def test_what_an_architecture_lacks_is_not_served():
    found = dnn.candidates(attention(), "v100")
    assert not found.served
    assert found.choice is None
    assert found.why_not == "cuDNN's heuristics name no engine"
    assert "not served" in str(found)


def test_the_caller_survives_the_end_of_the_process():
    """Which is asked again in another one."""
    with Planner() as planner:
        for number in (signal.SIGSEGV, signal.SIGKILL):
            assert ask_planner(planner, subject(product()), properties("h200")).served
            planner._process.send_signal(number)
            planner._process.wait()
            found = ask_planner(planner, subject(product()), properties("h200"))
            assert not found.served
            end = f"was killed by {number.name}"
            assert found.why_not == f"the process in which cuDNN was asked {end}"


def test_a_question_that_takes_too_long_is_told():
    found = dnn.candidates(product(), "h200", timeout=0.001)
    assert found.why_not == "cuDNN had no answer after 0.001 s"


@pytest.mark.usefixtures("found_for_h200")
def test_the_caller_loads_no_driver():
    library = stub_module.driver_stub()
    assert str(library) not in Path("/proc/self/maps").read_text()


def test_what_is_wrong_is_named_before_a_process_starts(monkeypatch):
    monkeypatch.setattr(planner_module, "driver_stub", lambda: pytest.fail("a process was started"))
    problem = dnn.softmax_forward.problem(dnn.TensorSpec((2, 3, 4, 5)))
    with pytest.raises(dnn.ArgumentError, match="only a GPU can be asked about it"):
        dnn.candidates(problem, "h200")
    with pytest.raises(dnn.ArgumentError, match="problems has 3; needed: problems and graphs"):
        dnn.candidates([3], "h200")
    with pytest.raises(dnn.ArgumentError, match="every=1"):
        dnn.candidates(product(), "h200", every=1)
    with pytest.raises(dnn.ArgumentError, match="timeout=0; needed"):
        dnn.candidates(product(), "h200", timeout=0)
    with pytest.raises(dnn.ArgumentError, match="properties: name='h900'"):
        dnn.candidates(product(), "h900")


def test_a_folder_without_cudnn_is_named(tmp_path):
    with pytest.raises(dnn.errors.LibraryError, match="there is no file"):
        dnn.candidates(product(), "h200", cudnn=tmp_path)


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_stand_in_is_compiled_once(empty_cache, monkeypatch):
    library = stub_module.driver_stub()
    assert library.is_relative_to(empty_cache)
    assert [file.name for file in library.parent.iterdir()] == ["libcuda.so.1"]
    monkeypatch.setenv("CC", "false")
    assert stub_module.driver_stub() == library


def test_a_missing_compiler_is_told(empty_cache, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(empty_cache))
    with pytest.raises(dnn.errors.LibraryError, match="needs a C compiler, once"):
        dnn.candidates(product(), "h200")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("false", "false cannot compile .*driver_stub.c: exit status 1"),
        ("no-such-compiler", "no-such-compiler cannot compile .*: .*No such file"),
        ("sh -c 'echo broken >&2; exit 3'", "sh cannot compile .*: broken"),
    ],
)
def test_a_compiler_that_fails_is_told(empty_cache, monkeypatch, command, message):
    monkeypatch.setenv("CC", command)
    with pytest.raises(dnn.errors.LibraryError, match=message):
        stub_module.driver_stub()
    assert not list(empty_cache.rglob("libcuda*"))


def test_a_cache_folder_that_cannot_be_written_is_told(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    with pytest.raises(dnn.errors.LibraryError, match="cannot be written"):
        stub_module.driver_stub()


def test_a_pooling_that_is_a_descriptor_call():
    x = dnn.TensorSpec((2, 16, 9, 11), "float16", "NHWC")
    with pytest.raises(dnn.ArgumentError, match="only a GPU can be asked about it"):
        dnn.candidates(dnn.pooling_forward.problem(x, dnn.PoolingSpec(3)), "h200")


def test_a_stand_in_that_others_can_write_is_not_loaded(empty_cache):
    library = stub_module.driver_stub()
    library.parent.chmod(0o777)
    with pytest.raises(
        dnn.errors.LibraryError, match="is not this user's alone, and is not loaded"
    ):
        stub_module.driver_stub()
    library.parent.chmod(0o700)
    assert stub_module.driver_stub() == library
    copy = library.rename(empty_cache / "elsewhere")
    library.symlink_to(copy)
    with pytest.raises(dnn.errors.LibraryError, match=r"libcuda\.so\.1 is not this user's alone"):
        stub_module.driver_stub()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_stand_in_of_another_user_is_not_loaded(empty_cache):
    library = stub_module.driver_stub()
    os.chown(library, 65534, 65534)
    with pytest.raises(dnn.errors.LibraryError, match=r"libcuda\.so\.1 is not this user's alone"):
        stub_module.driver_stub()
