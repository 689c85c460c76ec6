"""What a hostile user found: dead processes, leaks, forks, silent conversions, crashes of the raw layer."""

import ctypes
import itertools
import os
import shutil
import time
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from helpers.harness import run_python
from typer.testing import CliRunner

import cudnnlite as dnn
from cudnnlite._raw.api import library_api
from cudnnlite._raw.library import load_library
from cudnnlite.cli.app import app
from cudnnlite.devices.cuda import stream_address
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.emulated.memory import host_memory

MIB = 1 << 20


# ---------------------------------------------------------------- the process does not die


@pytest.fixture
def copy(tmp_path):
    """Links to the files of this libcudnn, in a folder of their own; the parts can be replaced."""
    here = Path(load_library().path).resolve().parent
    for file in here.glob("libcudnn*.so.9"):
        (tmp_path / file.name).symlink_to(file)
    front = tmp_path / "libcudnn.so.9"
    front.unlink()
    shutil.copy(here / front.name, front)  # a link would lead back to the whole ones
    return tmp_path


@pytest.mark.processes
@pytest.mark.parametrize("part", ["graph", "ops", "cnn", "adv"])
@pytest.mark.parametrize("kept", [None, 0, 100, 1_000_000])
def test_a_part_that_is_missing_or_cut_off_is_told(copy, part, kept):
    file = copy / f"libcudnn_{part}.so.9"
    content = file.read_bytes()[:kept] if kept else b""
    file.unlink()
    if kept is not None:
        file.write_bytes(content)
    done = run_python(
        """
        import cudnnlite as dnn
        try:
            dnn.TensorDescriptor((1, 2, 3, 4))
        except dnn.LibraryError as error:
            print(error)
        """,
        CUDNNLITE_LIBCUDNN=copy,
    )
    assert file.name in done.stdout


def test_lengths_of_2_to_the_31_sequences_are_not_written_down():
    with pytest.raises(dnn.ArgumentError, match="2147483647 sequences"):
        dnn.RNNDataSpec((1, 2**31 - 1, 1))
    with pytest.raises(dnn.ArgumentError, match="too many"):
        dnn.RNNDataSpec((4, 2), itertools.repeat(1), layout="packed")
    assert dnn.RNNDataSpec((2**31 - 1, 1, 1)).lengths == (2**31 - 1,)


@pytest.mark.parametrize(
    "call",
    [
        lambda: dnn.TensorSpec(itertools.count(1)),
        lambda: dnn.ConvolutionSpec(itertools.count(1)),
        lambda: dnn.RNNSpec("lstm", 2, 3, clip=itertools.count(1)),
        lambda: dnn.TuningPolicy(layouts=itertools.count()),
        lambda: dnn.ProblemList(itertools.count()),
        lambda: dnn.TensorSpec((1, 2), strides=range(2**62)),
    ],
)
def test_what_is_endless_is_not_read_to_its_end(call):
    with pytest.raises(dnn.ArgumentError):
        call()


def test_the_emulated_device_has_no_more_memory_than_the_host():
    device = EmulatedDevice(6, capacity="1 TiB")
    free, total = device.memory_info()
    assert total == 1 << 40
    assert free == host_memory()
    with pytest.raises(dnn.DeviceMemoryError, match="the host has left"):
        device.allocate(free * 2, None)
    assert device.memory_used() == 0


@pytest.fixture
def removed_folder(tmp_path, monkeypatch):
    """Make a folder that does not exist any more the current one."""
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


@pytest.mark.usefixtures("removed_folder")
def test_a_removed_current_folder_is_named(monkeypatch):
    removed = "'x' is relative to the current folder, which was removed"
    with pytest.raises(dnn.ArgumentError, match=f"^path={removed}"):
        dnn.TuningCache("x")
    monkeypatch.setenv("CUDNNLITE_TUNING_CACHE", "x")
    with pytest.raises(dnn.ArgumentError, match=f"^CUDNNLITE_TUNING_CACHE={removed}"):
        dnn.TuningCache()


@pytest.mark.usefixtures("removed_folder")
@pytest.mark.parametrize("command", ["demo --output x.png", "autotune --problems x --html x.html"])
def test_commands_name_a_removed_current_folder(command):
    ended = CliRunner().invoke(app, command.split())
    assert ended.exit_code == 2
    assert "is relative to the current folder, which was removed" in ended.output


NO_DESCRIPTORS_LEFT = """
    import os
    import resource

    import numpy as np

    import cudnnlite as dnn

    {before}
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (50, most))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    result = None
    try:
        result = {work}
    except dnn.CudnnliteError as error:
        result = error
    finally:  # Python's traceback needs one
        for descriptor in taken:
            os.close(descriptor)
    print(type(result).__name__, result)
    """
HANDLE = "handle = dnn.Handle('emulated'); x = handle.array(np.ones((1, 2, 3, 4), np.float32))"
PROBLEM = (
    "dnn.convolution_forward.problem(dnn.TensorSpec((1, 2, 5, 5)), dnn.FilterSpec((3, 2, 3, 3)))"
)
WITHOUT_DESCRIPTORS = {
    "handle": ("", "dnn.Handle('emulated')", "NoDeviceError emulated:0 cannot be used"),
    "descriptor": ("", "dnn.TensorDescriptor((1, 2))", "LibraryError libcudnn cannot be loaded"),
    "tuner": ("", "dnn.Tuner", "CudnnliteError cudnnlite.Tuner cannot be imported"),
    "trace": ("dnn.trace", "type(dnn.trace().__enter__())", "type <class 'cudnnlite.tracing"),
    "cache": ("dnn.TuningCache", "dnn.TuningCache()", "TuningCacheError the user's cache folder"),
    "onnx": ("dnn.problems_from_onnx", "dnn.problems_from_onnx('x')", "ArgumentError model cannot"),
    "call": (HANDLE, "dnn.activation_forward(handle, x, 'relu').shape", "tuple (1, 2, 3, 4)"),
    "dropout": (
        f"{HANDLE}; state = dnn.DropoutState(handle)",
        "dnn.dropout_forward(handle, x, 0.5, dropout_state=state)[0].shape",
        "tuple (1, 2, 3, 4)",
    ),
    "tuning": (
        f"{HANDLE}; tuner = dnn.Tuner(handle, cache=':memory:')",
        f"type(tuner.tune({PROBLEM}))",
        "ABCMeta <class 'cudnnlite.problems.table.AlgorithmTable'",
    ),
    "traced": (
        f"{HANDLE}\n    with dnn.trace() as trace:\n        dnn.scale_tensor(handle, x, 2)",
        "trace.save('x')",
        "CudnnliteError cudnnlite/tracing/prelude.c cannot be read",
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize("case", WITHOUT_DESCRIPTORS)
def test_where_no_file_descriptor_is_left(case, tmp_path):
    before, work, told = WITHOUT_DESCRIPTORS[case]
    done = run_python(
        NO_DESCRIPTORS_LEFT.format(before=before, work=work),
        CUDNNLITE_TUNING_CACHE=None,
        PYTHONWARNINGS="ignore",
    )
    assert done.stdout.startswith(told), done.stdout
    assert "Error" not in told or done.stdout.endswith(": Too many open files\n")


@pytest.mark.processes
def test_a_limit_of_the_process_is_an_error_of_ours():
    done = run_python("""
        import resource
        from cudnnlite.emulated.memory import EmulatedMemory
        import cudnnlite as dnn
        memory = EmulatedMemory(1 << 40)
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        try:
            memory.allocate(3 << 30)
        except dnn.DeviceMemoryError as error:
            print(error, memory.used)
        with dnn.Handle("emulated") as handle:
            print(handle.device.memory_info()[0] == 2 << 30)
    """)
    told, limited = done.stdout.splitlines()
    assert told == (
        "3 GiB of emulated device memory are not there: the host gives this process no more 0"
    )
    assert limited == "True"


def nested(depth):
    """A model whose functions call each other twice: of 2 ** depth nodes."""
    helper, opset = (
        onnx.helper,
        [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("m", 1)],
    )
    functions = [
        helper.make_function(
            "m", "f0", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], opset
        )
    ]
    for level in range(1, depth + 1):
        nodes = [helper.make_node(f"f{level - 1}", [a], [b], domain="m") for a, b in ("xt", "ty")]
        functions.append(helper.make_function("m", f"f{level}", ["x"], ["y"], nodes, opset))
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2, 4, 4])
        for name in "xy"
    ]
    graph = helper.make_graph(
        [helper.make_node(f"f{depth}", ["x"], ["y"], domain="m")], "g", ends[:1], ends[1:]
    )
    return helper.make_model(graph, functions=functions, opset_imports=opset)


def test_functions_that_double_with_each_are_bounded():
    assert len(dnn.problems_from_onnx(nested(4))) == 0
    start = time.monotonic()
    for depth in (17, 22, 60):
        with pytest.raises(dnn.ArgumentError, match="more than 65536 nodes, its functions inlined"):
            dnn.problems_from_onnx(nested(depth))
    assert time.monotonic() - start < 5


def test_many_problems_take_time_in_proportion():
    helper, number = onnx.helper, 4000
    nodes = [helper.make_node("Conv", ["x", f"w{count}"], [f"y{count}"]) for count in range(number)]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 4, 4])
    kinds = {"data_type": onnx.TensorProto.FLOAT, "data_location": onnx.TensorProto.EXTERNAL}
    weights = [
        onnx.TensorProto(name=f"w{count}", dims=[1 + count, 2, 3, 3], **kinds)
        for count in range(number)
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [], weights))
    start = time.process_time()
    assert len(dnn.problems_from_onnx(model)) == number
    assert time.process_time() - start < 8  # each in the square of their number: 20


def test_a_function_that_calls_itself_is_refused():
    model = nested(2)
    model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "f2", "m"
    with pytest.raises(dnn.ArgumentError):
        dnn.problems_from_onnx(model)


# ---------------------------------------------------------------- leaks


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_small_arrays_take_no_memory():
    number = int(os.environ.get("CUDNNLITE_SMALL_ARRAYS", "100000"))
    memory = EmulatedDevice(6).memory
    for _ in range(1000):
        memory.allocate(4).close()
    before = resident()
    for _ in range(number):
        memory.allocate(4).close()
    assert resident() - before < 32 * MIB


def test_a_search_leaves_no_stream(own_handle):
    x, w = (
        own_handle.array(np.ones((1, 2, 5, 4), np.float32)),
        own_handle.array(np.ones((2, 2, 3, 3), np.float32)),
    )
    lstm = dnn.RNNSpec("lstm", 4, 3)
    weights, sequence = (
        dnn.RNNWeights(own_handle, lstm),
        own_handle.array(np.ones((2, 1, 4), np.float32)),
    )
    stream = own_handle.device.create_stream()
    address = stream.handle
    assert own_handle.device.stream(address) is stream
    del stream
    before = len(own_handle.device._streams)
    for _ in range(2):
        dnn.convolution_forward.find(own_handle, x, w)
        dnn.rnn_forward.find(own_handle, lstm, weights, sequence)
        dnn.Tuner(own_handle, cache=None).tune(
            dnn.convolution_forward.problem(x.spec, dnn.FilterSpec(w.shape))
        )
    assert len(own_handle.device._streams) == before
    with pytest.raises(dnn.ArgumentError, match="is not a stream"):
        own_handle.device.stream(address)


# ---------------------------------------------------------------- forks


@pytest.mark.processes
def test_a_fork_beside_threads_in_their_first_calls():
    """What those import is imported whole before a process is forked, which would wait for a lock that nobody gives back."""
    done = run_python(
        """
        import os, signal, threading, time, warnings
        import cudnnlite as dnn

        warnings.simplefilter("ignore")

        def compute():
            with dnn.Handle("emulated") as handle:
                dnn.activation_forward(handle, handle.zeros((1, 2, 5, 4)), "relu").numpy()

        threads = [threading.Thread(target=compute) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(12):
            child = os.fork()
            if not child:
                signal.alarm(20)
                compute()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            time.sleep(0.01)
        for thread in threads:
            thread.join()
        """
    )
    assert done.returncode == 0


@pytest.mark.processes
def test_a_fork_beside_a_thread_that_loads_libcudnn():
    done = run_python(
        """
        import os, signal, threading, time, warnings
        import cudnnlite as dnn

        warnings.simplefilter("ignore")

        def make():
            dnn.TensorDescriptor(dnn.TensorSpec((1, 2, 3, 4))).close()

        def child_of(thread, milliseconds):
            if not (child := os.fork()):
                signal.alarm(20)
                if thread:
                    thread.start()
                    time.sleep(milliseconds / 1000)
                    grandchild = child_of(None, 0)
                    thread.join()
                    os._exit(os.waitpid(grandchild, 0)[1] != 0)
                make()
                os._exit(0)
            return child

        for milliseconds in (0, 1, 3, 5, 8, 12, 20, 35):
            assert os.waitpid(child_of(threading.Thread(target=make), milliseconds), 0)[1] == 0, milliseconds
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.processes
def test_no_fork_in_the_midst_of_a_first_call():
    """In which libcudnn looks the function up, behind locks that a child would not get back; later ones are C's alone."""
    done = run_python(
        """
        import os, threading, time, warnings
        from cudnnlite._raw.calls import CFunction, PreparedCall
        from cudnnlite._raw.functions import FUNCTIONS
        from cudnnlite._raw.types import cudnnTensorDescriptor_t

        warnings.simplefilter("ignore")
        entered, ended = threading.Event(), []

        def slow(*arguments):
            entered.set()
            time.sleep(0.3)
            ended.append(arguments)
            return 0

        function = CFunction(slow, FUNCTIONS["cudnnDestroyTensorDescriptor"])
        prepared = PreparedCall(function, cudnnTensorDescriptor_t(4096))
        thread = threading.Thread(target=prepared)
        thread.start()
        entered.wait()
        child = os.fork()
        if not child:
            os._exit(len(ended))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), prepared.function is function.call is slow)
        """
    )
    assert done.stdout.split() == ["1", "True"], done.stderr


@pytest.mark.processes
def test_a_fork_whose_wait_a_signal_handler_ends_leaves_the_child_free():
    """Python goes on with the fork, and says that the exception was lost."""
    done = run_python(
        """
        import os, signal, threading, time, warnings
        import cudnnlite as dnn
        from cudnnlite._raw.fork_lock import fork_lock

        warnings.simplefilter("ignore")
        held, done = threading.Event(), threading.Event()

        def hold():
            with fork_lock:
                held.set()
                done.wait()

        def handler(number, frame):
            raise KeyboardInterrupt

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            dnn.TensorDescriptor(dnn.TensorSpec((1, 2, 3, 4))).close()
            os._exit(0)
        done.set()
        thread.join()
        print(os.waitpid(child, 0)[1], fork_lock.acquire(blocking=False))
        """
    )
    assert done.stdout.split() == ["0", "True"], done.stderr
    assert "RuntimeError" not in done.stderr


@pytest.mark.processes
def test_a_first_call_does_not_wait_for_ever():
    """A finalizer's may come on a thread that holds what the one with the lock waits for."""
    done = run_python(
        """
        import threading
        from cudnnlite._raw.calls import CFunction
        from cudnnlite._raw.functions import FUNCTIONS
        from cudnnlite._raw.types import cudnnTensorDescriptor_t
        from cudnnlite._raw.fork_lock import fork_lock

        function = CFunction(lambda *_: 0, FUNCTIONS["cudnnDestroyTensorDescriptor"])
        thread = threading.Thread(target=function, args=[cudnnTensorDescriptor_t(4096)])
        with fork_lock:
            thread.start()
            thread.join(30)
            print(thread.is_alive())
        """
    )
    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_beside_threads_that_compute():
    done = run_python(
        """
        import os, signal, sys, threading, time, warnings
        import numpy as np
        import cudnnlite as dnn
        from cudnnlite.devices.choice import get_device

        warnings.simplefilter("ignore")
        device, stop = get_device("emulated"), threading.Event()
        with dnn.trace(), dnn.record_problems():  # Python itself hangs in a child that was forked within an import
            dnn.activation_forward, dnn.convolution_forward

        def compute():
            with dnn.Handle(device) as handle:
                while not stop.is_set():
                    handle.array(np.ones((1, 2, 5, 4), np.float32)).numpy()

        def watch():
            with dnn.Handle(device) as handle:
                while not stop.wait(0.03):  # in which the others compute as they do where nobody looks
                    with dnn.trace(), dnn.record_problems():
                        for _ in range(20):
                            dnn.activation_forward(handle, handle.array(np.ones((1, 2, 5, 4), np.float32)), "relu")

        threads = [threading.Thread(target=each) for each in (compute, compute, compute, watch)]
        for thread in threads:
            thread.start()
        hung = wrong = 0
        for _ in range(int(sys.argv[1])):
            child = os.fork()
            if not child:
                with dnn.trace(), dnn.record_problems(), dnn.Handle(device) as handle:
                    x = handle.array(np.full((1, 1, 4, 4), 3.0, np.float32))
                    y = dnn.convolution_forward(handle, x, handle.array(np.ones((1, 1, 2, 2), np.float32)))
                    os._exit(0 if (y.numpy() == 12).all() else 3)
            deadline = time.monotonic() + 20
            while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
                time.sleep(0.001)
            if not ended[0]:
                hung += 1
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            wrong += ended[1] != 0
        stop.set()
        print(hung, wrong)
        """,
        os.environ.get("CUDNNLITE_FORKS", "20"),
    )
    assert done.stdout.split() == ["0", "0"], done.stderr


# ---------------------------------------------------------------- silent acceptance


@pytest.mark.parametrize(
    "kind", [dnn.ConvolutionFwdAlgo, dnn.MathType, dnn.ConvolutionMode, dnn.RNNMode]
)
@pytest.mark.parametrize("value", [2**32, 2**32 + 1, 2**31, -(2**31) - 1])
def test_enums_hold_what_a_c_int_does(kind, value):
    with pytest.raises(dnn.ArgumentError, match=f"is not a {kind.__name__}"):
        kind(value)
    assert kind(2**31 - 1).name == "UNKNOWN_2147483647"


LOSSES = {
    "overflow": ([300], "int8", 44),
    "fraction": ([1.5], "int32", 1),
    "sign": (np.array([-1]), "uint8", 255),
    "imaginary": ([2 + 1j], "float32", 2),
    "mask": (np.ma.masked_array([2.0, 3.0], [0, 1]), "float64", 2),
    "too large": ([1e300], "float16", np.inf),
    "of the device": (None, "int8", 1),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_would_be_lost_is_asked_for(own_handle, loss):
    values, dtype, got = LOSSES[loss]
    values = own_handle.array([1.5]) if values is None else values
    with pytest.raises(dnn.ArgumentError, match=r"would lose.*casting=\"unsafe\""):
        own_handle.array(values, dtype=dtype)
    assert own_handle.array(values, dtype=dtype, casting="unsafe").numpy()[0] == got
    with pytest.raises(dnn.ArgumentError, match="casting='same_kind'; allowed: 'unsafe', None"):
        own_handle.array(values, dtype=dtype, casting="same_kind")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_integer_is_made_of_what_is_no_number(own_handle, value):
    with pytest.raises(dnn.ArgumentError, match="would lose"):
        own_handle.array([value], dtype="int32")
    assert own_handle.array([value], dtype="float16").numpy().dtype == np.float16


@pytest.mark.parametrize("values", [["1"], np.array(["2020-01-01"], "M8[D]"), [b"x"]])
def test_what_is_no_number_is_no_array(own_handle, values):
    with pytest.raises(dnn.ArrayTypeError, match="no numbers"):
        own_handle.array(values, dtype="int64")


def test_what_loses_nothing_needs_no_word(own_handle):
    for values, dtype in (
        ([1.0, -2.0], "int8"),
        ([True], "float16"),
        (np.float64([1 / 3]), "float16"),
        ([3], "bfloat16"),
    ):
        assert own_handle.array(values, dtype=dtype).numpy() == pytest.approx(
            np.asarray(values, np.float64), rel=1e-2
        )
    assert own_handle.array(np.ma.masked_array([1.0, 2.0])).numpy().tolist() == [1, 2]


def test_a_heuristic_is_not_asked_for_fewer_than_no_algorithms(own_handle):
    x, conv = dnn.TensorSpec((1, 2, 5, 4)), dnn.ConvolutionSpec()
    results, count = (dnn.raw.types.cudnnConvolutionFwdAlgoPerf_t * 4)(), ctypes.c_int(77)
    ctypes.memset(results, 0x55, ctypes.sizeof(results))
    with (
        dnn.TensorDescriptor(x) as x_desc,
        dnn.FilterDescriptor((2, 2, 1, 1)) as w_desc,
        dnn.ConvolutionDescriptor(conv) as conv_desc,
        dnn.TensorDescriptor((1, 2, 5, 4)) as y_desc,
    ):
        for requested in (-5, 0):
            with pytest.raises((dnn.BadParamError, dnn.ArgumentError)):
                own_handle.api.cudnnGetConvolutionForwardAlgorithm_v7(
                    own_handle.ptr,
                    x_desc.ptr,
                    w_desc.ptr,
                    conv_desc.ptr,
                    y_desc.ptr,
                    requested,
                    count,
                    results,
                )
    assert bytes(results) == b"\x55" * ctypes.sizeof(results)


# ---------------------------------------------------------------- foreign exceptions

LSTM = dnn.RNNSpec("lstm", 2, 3)
FOREIGN = {
    "dtype of commas": lambda h: dnn.TensorSpec((1,), "f4,,,"),
    "dtype of half a character": lambda h: dnn.TensorSpec((1,), "\ud800"),
    "a spec as a dtype": lambda h: dnn.TensorSpec((1,), LSTM),
    "an array as a layout": lambda h: dnn.TensorSpec((1, 2, 3), layout=np.array([True, True])),
    "a set as a shape": lambda h: dnn.TensorSpec({3}),
    "digits as a limit": lambda h: dnn.Handle(h.device, workspace_limit="9" * 5000),
    "clip": lambda h: dnn.RNNSpec("lstm", 2, 3, clip=(0, 10**400)),
    "padding_fill": lambda h: dnn.RNNDataSpec((2, 3, 4), padding_fill=10**400),
    "max_error": lambda h: dnn.TuningPolicy(max_error=10**400),
    "array as a limit": lambda h: dnn.Handle(h.device, workspace_limit=np.zeros((2, 2))),
    "bool as a limit": lambda h: dnn.TuningPolicy(workspace_limit=True),
    "the home of nobody": lambda h: dnn.TuningCache("~nouser/x"),
    "a model of nobody": lambda h: dnn.problems_from_onnx("~nouser/x.onnx"),
    "too long a name": lambda h: dnn.TuningCache("x" * 5000).merge("y" * 5000),
    "zeros_like": lambda h: dnn.RNNWeights.zeros_like(None, dnn.RNNWeights(h, LSTM)),
    "cell": lambda h: dnn.RNNSpec(dnn.RNNMode(9), 2, 3),
    "from_tensor": lambda h: dnn.FilterSpec.from_tensor((3, 2, 3, 3)),
    "from_torch": lambda h: dnn.RNNWeights.from_torch(h, "lstm", {}),
    "from_onnx": lambda h: dnn.RNNWeights.from_onnx(h, LSTM, 3, 4),
    "from_keras": lambda h: dnn.RNNWeights.from_keras(h, None, []),
    "extend": lambda h: dnn.ProblemList().extend(3),
    "device": lambda h: dnn.Handle("emulated:" + "9" * 5000),
    "a bool as a step": lambda h: dnn.ConvolutionSpec(padding=True),
    "a bool among strides": lambda h: dnn.TensorSpec((2, 3), strides=(3, True)),
    "an array as a switch": lambda h: dnn.RNNDescriptor(LSTM, padded_io=np.zeros(2)),
    "an array as a mode": lambda h: dnn.batch_normalization_backward(
        h, *[None] * 5, mode=np.zeros(2)
    ),
    "an endless sequence as axes": lambda h: dnn.reduce_tensor(
        h, h.empty((2, 3)), "add", axes=itertools.repeat(1)
    ),
    "endless algorithms": lambda h: dnn.rnn_forward.find(
        h, LSTM, None, h.empty((4, 2, 2)), algorithms=itertools.repeat(1)
    ),
    "a bare list as x of a normalisation": lambda h: dnn.batch_normalization_inference(
        h, *[h.empty((6,))] * 5
    ),
    "softmax of one axis": lambda h: dnn.softmax_forward(h, h.empty((3,))),
    "softmax of a number": lambda h: dnn.softmax_backward(
        h, h.array(1.0), h.array(1.0), mode="instance"
    ),
    "half a device": lambda h: dnn.Handle(SimpleNamespace(copy_in=3)),
    "no device": lambda h: dnn.Workspace(itertools.count(), "10%"),
    "problems without an end": lambda h: dnn.tune_model(range(2**62), device=h),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_only_our_exceptions_come_out(own_handle, name):
    with pytest.raises((dnn.ArgumentError, dnn.ArrayTypeError)):
        FOREIGN[name](own_handle)


X, W = dnn.TensorSpec((0, 3, 8, 8)), dnn.FilterSpec((4, 3, 3, 3))
HEADS = dnn.AttentionSpec(1, 2)


def again(h, operation, *operands):
    """The second call of a kind finds its plan by what it is given."""
    operation(h, *operands[:-1], 1.0)
    operation(h, *operands)


def plan(h, padding=1, **options):
    return dnn.convolution_forward.plan(h, X, W, dnn.ConvolutionSpec(padding), **options)


def gradient(h, x, out):
    dy, w = h.empty((1, 4, 6, 6)), h.empty((4, 3, 3, 3))
    return dnn.convolution_backward_data(h, w, dy, x=x, out=h.empty((1, 3, 8, 8), *out))


def normalise(h, **options):
    x, one, mean, variance = h.zeros((2, 3, 4, 4)), *(h.full((1, 3, 1, 1), 1) for _ in range(3))
    return dnn.batch_normalization_training(
        h, x, one, one, running_mean=mean, running_var=variance, **options
    )


def rnn_trained(h):
    return dnn.rnn_forward(h, LSTM, dnn.RNNWeights(h, LSTM), h.zeros((4, 2, 2)), training=True)


WORDS = {
    "an array as a number, later": (
        lambda h: again(h, dnn.set_tensor, h.empty((2, 3)), np.ones(3)),
        r"value=array\(.*\) must be a real number",
    ),
    "a number as a spec": (
        lambda h: dnn.convolution_forward(h, h.empty((1, 3, 8, 8)), h.empty((4, 3, 3, 3)), 1),
        r"conv=1 is not a ConvolutionSpec: dnn.ConvolutionSpec\(padding, stride, dilation, ...\)",
    ),
    "an array as an address": (
        lambda h: h.api.cudnnSetTensor(h, dnn.TensorDescriptor((2, 3)), h.empty((2, 3)), None),
        r"cudnnSetTensor, argument 3 \(y\): a DeviceArray is no address; pass .ptr of a device array",
    ),
    "a number as a host scalar": (
        lambda h: h.api.cudnnSetTensor(h, dnn.TensorDescriptor((2, 3)), 0, 1.0),
        r"argument 4 \(valuePtr\): 1.0 is no address; a host scalar goes by ctypes.byref\(ctypes.c_float\(1.0\)\)",
    ),
    "enums in the order that filters have": (
        lambda h: h.api.cudnnSetTensor4dDescriptor(
            dnn.TensorDescriptor((2, 3)), dnn.DataType.FLOAT, dnn.TensorFormat.NHWC, 2, 3, 4, 5
        ),
        r"argument 2 \(format\): DataType.FLOAT is no TensorFormat",
    ),
    "enums swapped": (
        lambda h: h.api.cudnnSoftmaxForward(
            h, dnn.SoftmaxMode.INSTANCE, dnn.SoftmaxAlgorithm.ACCURATE, None, None, 0, None, None, 0
        ),
        r"argument 2 \(algo\): SoftmaxMode.INSTANCE is no SoftmaxAlgorithm",
    ),
    "an enum of another kind": (
        lambda h: h.api.cudnnSetConvolutionMathType(
            dnn.ConvolutionDescriptor(), dnn.DataType.DOUBLE
        ),
        r"argument 2 \(mathType\): DataType.DOUBLE is no MathType",
    ),
    "an enum of another kind, in C a const": (
        lambda h: h.api.cudnnSetPoolingNdDescriptor(
            dnn.PoolingDescriptor(dnn.PoolingSpec(2)),
            dnn.SoftmaxMode.CHANNEL,
            0,
            0,
            None,
            None,
            None,
        ),
        r"argument 2 \(mode\): SoftmaxMode.CHANNEL is no PoolingMode",
    ),
    "an enum of another kind in a prepared call": (
        lambda h: h.api.prepare(
            "cudnnSetConvolutionMathType", dnn.ConvolutionDescriptor(), 0
        ).replace(mathType=dnn.DataType.DOUBLE),
        r"cudnnSetConvolutionMathType, argument 2 \(mathType\): DataType.DOUBLE is no MathType",
    ),
    "text in a prepared call": (
        lambda h: h.api.prepare(
            "cudnnSetConvolutionMathType", dnn.ConvolutionDescriptor(), 0
        ).replace(mathType="fma"),
        r"argument 2 \(mathType\): 'fma' is not a MathType or an integer; pass one of dnn.MathType: DEFAULT, ",
    ),
    "a number as a scalar's address in a prepared call": (
        lambda h: h.api.prepare(
            "cudnnScaleTensor", h, dnn.TensorDescriptor((2, 3)), 0, ctypes.byref(ctypes.c_float(1))
        ).replace(alpha=1),
        r"argument 4 \(alpha\): 1 is no address; a host scalar goes by ctypes.byref",
    ),
    "no descriptor in a prepared call": (
        lambda h: h.api.prepare(
            "cudnnGetTensorSizeInBytes", dnn.TensorDescriptor((2, 3)), ctypes.c_size_t()
        ).replace(tensorDesc=None),
        r"argument 1 \(tensorDesc\): a null pointer, which C would follow",
    ),
    "a wider number in a prepared call": (
        lambda h: h.api.prepare(
            "cudnnSetConvolutionGroupCount", dnn.ConvolutionDescriptor(), 1
        ).replace(groupCount=ctypes.c_size_t(2**32 + 3)),
        r"argument 2 \(groupCount\)",
    ),
    "a wider number of NumPy's": (
        lambda h: h.api.cudnnSetConvolutionGroupCount(
            dnn.ConvolutionDescriptor(), np.int64(2**32 + 3)
        ),
        r"argument 2 \(groupCount\): .*4294967299.* does not fit into a c_int",
    ),
    "a float as an enum": (
        lambda h: h.api.cudnnSetActivationDescriptor(
            dnn.ActivationDescriptor(dnn.ActivationSpec("relu")), 1.0, 0, 0
        ),
        r"argument 2 \(mode\): 1.0 is not an ActivationMode or an integer; pass one of dnn.ActivationMode: SIGMOID, RELU, ",
    ),
    "nothing as an enum that only the raw layer has": (
        lambda h: h.api.cudnnBackendCreateDescriptor(None, None),
        r"None is not a BackendDescriptorType or an integer; pass one of dnn.raw.enums.BackendDescriptorType: POINT.* \.\.\.$",
    ),
    "an enum's name in a raw call": (
        lambda h: h.api.cudnnSetTensor4dDescriptor(
            dnn.TensorDescriptor((2, 3)), "NCHW", 0, 2, 3, 4, 5
        ),
        r"argument 2 \(format\): 'NCHW' is not a TensorFormat or an integer; pass one of dnn.TensorFormat: NCHW, NHWC, ",
    ),
    "a dtype's name in a raw call": (
        lambda h: h.api.cudnnSetTensor4dDescriptor(
            dnn.TensorDescriptor((2, 3)), 0, "float32", 2, 3, 4, 5
        ),
        r"argument 3 \(dataType\): 'float32' is not a DataType or an integer; pass one of dnn.DataType: FLOAT, DOUBLE, ",
    ),
    "a float as an integer of C": (
        lambda h: h.api.cudnnSetTensor4dDescriptor(
            dnn.TensorDescriptor((2, 3)), 0, 0, 2, 3, 4, 5.0
        ),
        r"argument 7 \(w\): 5.0 is not an integer",
    ),
    "a text as a number of C": (
        lambda h: h.api.cudnnSetActivationDescriptor(
            dnn.ActivationDescriptor(dnn.ActivationSpec("relu")), 0, 0, "1"
        ),
        r"argument 4 \(coef\): '1' is not a number",
    ),
    "an array as a descriptor": (
        lambda h: h.api.cudnnSetTensor(h, h.empty((2, 3)), 0, None),
        r"argument 2 \(yDesc\): a DeviceArray is no cudnnTensorDescriptor_t; .* dnn.TensorDescriptor\(x.spec\)",
    ),
    "an array as a result": (
        lambda h: h.api.cudnnGetTensorSizeInBytes(
            dnn.TensorDescriptor((2, 3)), np.zeros(1, np.uint64)
        ),
        r"a ndarray is no pointer to a c_ulong; pass one of ctypes, by ctypes.byref",
    ),
    "CTC of half": (
        lambda h: dnn.ctc_loss(h, h.empty((4, 2, 3), "float16"), [1, 1], [1, 1], [4, 3]),
        r"(?s)NOT_SUPPORTED.*x = TensorSpec\(\(4, 2, 3\), 'float16'.*ctc = CTCLossSpec",
    ),
    "attention of another size": (
        lambda h: dnn.multi_head_attention_forward(h, HEADS, None, *[h.empty((2, 3, 3))] * 3),
        r"q is TensorSpec\(\(2, 3, 3\), 'float32', 'NCW'\); needed: \(2, 3, 2\) in float32",
    ),
    "all that a training call returns as its reserve": (
        lambda h: dnn.rnn_backward_data(h, rnn_trained(h), h.empty((4, 2, 3))),
        r"reserve=RNNTrainingOutput.* is no RNNReserve; needed: the one among what rnn_forward\(..., training=True\) returns",
    ),
    "a momentum that destroys": (
        lambda h: normalise(h, momentum=-20),
        "momentum=-20.0; needed: a number from 0 to 1",
    ),
    "a momentum of nothing": (
        lambda h: normalise(h, momentum=float("nan")),
        "momentum=nan; needed",
    ),
    "another mode": (
        lambda h: normalise(h, mode="foo"),
        "mode='foo' is not a BatchNormMode; allowed: auto, PER_ACT",
    ),
    "a window of images whose channels are last": (
        lambda h: dnn.convolution_forward(
            h,
            h.empty((1, 8, 9, 9), layout="NHWC")[:, :, 1:, 1:],
            h.empty((4, 8, 3, 3), layout="NHWC"),
        ),
        r"(?m)^x: with gaps, or axes in an order of their own; .copy\(\) is without gaps$",
    ),
    "integers with the channels first": (
        lambda h: dnn.convolution_forward(
            h, h.empty((1, 8, 9, 9), "int8"), h.empty((4, 8, 3, 3), "int8")
        ),
        r"int8 runs with the channels last \(layout='NHWC'\) in x and w, and in multiples of four",
    ),
    "a bias of bfloat16": (
        lambda h: dnn.convolution_backward_bias(h, h.empty((1, 8, 9, 9), "bfloat16")),
        r"(?m)^bfloat16 is not summed: transform_tensor\(handle, dy, dtype='float32'\) converts it where it lies with the",
    ),
    "numbers of Python's that are no number of NumPy's": (
        lambda h: h.array([Decimal(1)]),
        "array of Decimal objects",
    ),
    "a replay of no images": (lambda h: plan(h, replay=3), "replay=3"),
    "both of no images": (
        lambda h: plan(h, interface="descriptor", algorithm=dnn.Engine(0)),
        "interface='descriptor' and",
    ),
    "uneven no images": (
        lambda h: plan(h, ((0, 1), 0), interface="descriptor"),
        "only graphs pad the two ends",
    ),
    "an output of another type": (
        lambda h: gradient(h, dnn.TensorSpec((1, 3, 8, 8)), ("float16",)),
        "out is .*float16.*; the result is as x says, TensorSpec",
    ),
    "an output that lies otherwise": (
        lambda h: gradient(h, dnn.TensorSpec((1, 3, 8, 8)), ("float32", "NHWC")),
        "out is .*NHWC.*; the result is as x says",
    ),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("what", WORDS)
def test_the_words_say_what_to_do(own_handle, what):
    call, words = WORDS[what]
    with pytest.raises(dnn.CudnnliteError, match=words):
        call(own_handle)


def test_a_field_of_a_spec_as_an_argument_is_told_where_it_belongs(own_handle):
    x = own_handle.empty((1, 3, 8, 8))
    for function in (
        dnn.convolution_forward,
        dnn.convolution_transpose,
        dnn.convolution_backward_filter,
    ):
        with pytest.raises(
            TypeError,
            match=r"'padding'; it is a field of conv: conv=dnn.ConvolutionSpec\(padding=1\)",
        ):
            function(own_handle, x, x, padding=1)
        with pytest.raises(
            TypeError, match=rf"^{function.__name__}\(\) got an unexpected keyword argument 'pad'$"
        ):
            function(own_handle, x, x, pad=1)
    hints = {
        (
            dnn.pooling_forward,
            "stride",
        ): r"'stride'; it is a field of pooling: pooling=dnn.PoolingSpec\(stride=1\)",
        (dnn.activation_backward, "alhpa"): r"'alhpa'; did you mean alpha\?",
        (dnn.convolution_transpose, "algoritm"): r"'algoritm'; did you mean algorithm\?",
        (dnn.rnn_forward, "lenghts"): r"'lenghts'; did you mean lengths\?",
        (dnn.convolution_forward.plan, "algoritm"): r"'algoritm'; did you mean algorithm\?",
        (
            dnn.pooling_forward.plan,
            "poling",
        ): r"^pooling_forward\.plan\(\) got an unexpected keyword argument 'poling'; did you mean pooling\?",
        (dnn.convolution_forward.find, "betta"): r"'betta'; did you mean beta\?",
        (
            dnn.convolution_forward.heuristic,
            "padding",
        ): r"'padding'; it is a field of conv: conv=dnn.ConvolutionSpec\(padding=1\)",
        (
            dnn.multi_head_attention_forward,
            "heads",
        ): r"field of spec: spec=dnn.AttentionSpec\(heads=1\)",
    }
    for (function, name), words in hints.items():
        with pytest.raises(TypeError, match=words):
            function(own_handle, x, x, **{name: 1})
    with pytest.raises(TypeError, match=r"'poling'; did you mean pooling\?"):
        dnn.pooling_forward.problem(x.spec, poling=1)
    for function in (dnn.pooling_forward, dnn.pooling_forward.plan):
        with pytest.raises(TypeError, match="missing"):
            function(own_handle)
    with pytest.raises(TypeError, match="missing"):
        dnn.pooling_forward.problem()


def test_what_a_ranking_or_a_search_cannot_take_is_named(own_handle):
    """Arguments that choose an algorithm, or belong to the calls of a plan."""
    x, w = own_handle.empty((1, 3, 8, 8)), own_handle.empty((4, 3, 3, 3))
    scratch = own_handle.empty((1024,), "uint8")
    for verb in ("find", "heuristic"):
        ask = getattr(dnn.convolution_forward, verb)
        chosen = {"algorithm": "GEMM", "interface": "graph", "workspace": scratch}
        for name, value in chosen.items():
            with pytest.raises(dnn.ArgumentError, match=f"^{name} is given to {verb}, which ranks"):
                ask(own_handle, x, w, **{name: value})
        with pytest.raises(dnn.ArgumentError, match=f"^replay is given to {verb}, which ranks"):
            ask(own_handle, x, w, replay=True)
    bias = own_handle.empty((1, 4, 1, 1))
    with pytest.raises(dnn.ArgumentError, match="cuDNN has no search for cudnnConvolutionBias"):
        dnn.convolution_forward.find(own_handle, x, w, bias=bias)
    assert len(dnn.convolution_forward.heuristic(own_handle, x, w, bias=bias)) > 1
    with pytest.raises(dnn.ArgumentError, match=r"^workspace is given to a plan; give it to"):
        dnn.convolution_forward.plan(own_handle, x, w, workspace=scratch)


def test_a_problem_takes_no_arguments_that_say_how_it_is_computed():
    x, w = dnn.TensorSpec((1, 3, 8, 8)), dnn.FilterSpec((4, 3, 3, 3))
    choices = {
        "algorithm": "nonsense",
        "interface": "graph",
        "replay": True,
        "workspace": w,
        "workspace_limit": 0,
    }
    for name, value in choices.items():
        with pytest.raises(dnn.ArgumentError, match=rf"^{name} is given to problem, which"):
            dnn.convolution_forward.problem(x, w, **{name: value})
    with pytest.raises(dnn.ArgumentError, match=r"^replay='no'; allowed: True, False"):
        dnn.convolution_forward.problem(x, w, replay="no")
    lstm, sequences = dnn.RNNSpec("lstm", 3, 4), dnn.RNNDataSpec((5, 2, 3))
    for name, value in {"algorithm": "STANDARD", "workspace": x, "reserve": x}.items():
        with pytest.raises(dnn.ArgumentError, match=rf"^{name} is given to problem, which"):
            dnn.rnn_forward.problem(lstm, None, sequences, **{name: value})


def test_reserve_space_belongs_to_the_calls_of_a_plan(own_handle):
    x, state = own_handle.empty((2, 3)), dnn.DropoutState(own_handle)
    with pytest.raises(dnn.ArgumentError, match=r"^reserve is given to a plan; give it to"):
        dnn.dropout_forward.plan(own_handle, x, 0.5, reserve=x, dropout_state=state)
    with dnn.dropout_backward.plan(own_handle, x, 0.5, None, dropout_state=state) as plan:
        with pytest.raises(dnn.ArgumentError, match=r"^reserve has to be given"):
            plan(x)
        with pytest.raises(TypeError, match="takes dy, reserve; 3 arrays were given"):
            plan(x, x, x)
        reserve = own_handle.zeros((plan.reserve,), "uint8")
        with pytest.raises(TypeError, match="multiple values for argument 'reserve'"):
            plan(x, reserve, reserve=reserve)


def test_a_verb_says_what_does_not_fit_its_own_signature():
    x = dnn.TensorSpec((1, 3, 8, 8))
    for arguments, why in (
        ((), r"missing a required argument: 'x'"),
        ((x,), r"missing a required argument: 'w'"),
        ((x,) * 4, r"too many positional arguments"),
    ):
        with pytest.raises(TypeError, match=rf"^convolution_forward\.problem\(\) {why}$"):
            dnn.convolution_forward.problem(*arguments)


def test_a_verb_of_other_operations_is_refused_with_a_reason():
    for verb in ("find", "heuristic"):
        with pytest.raises(AttributeError, match=f"pooling_forward has no {verb}: there are no"):
            getattr(dnn.pooling_forward, verb)
    with pytest.raises(AttributeError, match="pooling_forward has no attribute 'plans'"):
        _ = dnn.pooling_forward.plans


def test_a_name_that_is_gone_says_what_replaced_it():
    for name, hint in (
        ("plan_convolution_forward", "it is convolution_forward.plan now"),
        ("find_rnn_forward", "it is rnn_forward.find now"),
        ("get_convolution_backward_data", "it is convolution_backward_data.heuristic now"),
        ("pooling_foward", r"did you mean pooling_forward\?"),
    ):
        with pytest.raises(AttributeError, match=f"has no attribute {name!r}; {hint}$"):
            getattr(dnn, name)


def test_a_residual_is_added_whole_where_nobody_says_otherwise(own_handle):
    x, w = (
        own_handle.array(np.ones((1, 2, 3, 3), np.float32)),
        own_handle.array(np.ones((4, 2, 1, 1), np.float32)),
    )
    bias, z = (
        own_handle.array(np.ones((1, 4, 1, 1), np.float32)),
        own_handle.array(np.ones((1, 4, 3, 3), np.float32)),
    )
    for scale, sum_ in (({}, 4), ({"alpha2": 0.5}, 3.5), ({"alpha2": 0.0}, 3)):
        y = dnn.convolution_bias_activation_forward(own_handle, x, w, bias, z=z, **scale)
        assert (y.numpy() == sum_).all()


def test_gradients_like_weights_of_another_device_are_on_the_handles(own_handle):
    with dnn.Handle(EmulatedDevice(8, capacity="1 MiB")) as there:
        zeros = dnn.RNNWeights.zeros_like(own_handle, dnn.RNNWeights(there, LSTM))
        assert zeros.device is own_handle.device
        assert zeros.array.device is own_handle.device
        assert not zeros.array.numpy().any()


class BadDLPack:
    def __dlpack_device__(self):
        return "x"

    def __dlpack__(self, **options):
        return object()


@pytest.mark.parametrize("address", [3, 4095, -1, 2**64, True, 1.5])
def test_what_is_no_address_is_no_stream_of_a_gpu(address):
    with pytest.raises(dnn.ArgumentError, match=f"stream={address} is not a CUDA stream"):
        stream_address(address)


def test_a_bad_dlpack_is_told(own_handle):
    for call in (own_handle.view, own_handle.array):
        with pytest.raises(dnn.ArrayTypeError):
            call(BadDLPack())


# ---------------------------------------------------------------- the raw layer


def refused(name, *arguments):
    with pytest.raises(ctypes.ArgumentError, match=f"{name}, argument") as caught:
        getattr(library_api(), name)(*arguments)
    assert isinstance(caught.value, dnn.ArgumentError)


def test_what_crashes_and_is_known_is_refused_before_the_call():
    with (
        dnn.TensorDescriptor((1, 2, 3, 4)) as tensor,
        dnn.ConvolutionDescriptor() as conv,
        dnn.RNNDataDescriptor((2, 1, 3)) as data,
    ):
        one = ctypes.c_int()
        refused("cudnnGetTensorSizeInBytes", tensor.ptr, None)
        refused("cudnnGetConvolutionGroupCount", conv.ptr, None)
        refused("cudnnDeriveBNTensorDescriptor", tensor.ptr, None, 1)
        refused("cudnnSetLRNDescriptor", None, 5, 1e-4, 0.75, 2.0)
        refused("cudnnSetTensorNdDescriptor", tensor.ptr, 0, 4, None, None)
        refused(
            "cudnnSetTensorNdDescriptorEx", tensor.ptr, 0, 0, 100, (ctypes.c_int * 4)(1, 2, 3, 4)
        )
        refused("cudnnGetLastErrorString", 5, 100)
        refused("cudnnGetLastErrorString", ctypes.create_string_buffer(8), -1)
        refused("cudnnSetConvolutionGroupCount", conv.ptr, 2**32 + 1)
        refused("cudnnSetConvolutionMathType", conv.ptr, 2**32)
        refused("cudnnSetRNNDataDescriptor", data.ptr, 0, 0, 2, 1, 3, (ctypes.c_int * 1)(2), 1)
        library_api().cudnnGetConvolutionGroupCount(conv.ptr, one)
        assert one.value == 1


def test_a_small_integer_is_no_address_of_a_scalar(own_handle):
    with dnn.TensorDescriptor((1, 2, 3, 4)) as tensor:
        x = own_handle.array(np.ones((1, 2, 3, 4), np.float32))
        with pytest.raises(dnn.ArgumentError, match=r"alpha.*is no address"):
            own_handle.api.cudnnAddTensor(
                own_handle.ptr, 1, tensor.ptr, x.ptr, 1, tensor.ptr, x.ptr
            )


@pytest.mark.processes
def test_importing_changes_no_signal_handler_and_no_hook():
    """Whoever imports this package keeps his KeyboardInterrupt, whatever his program is called."""
    done = run_python("""
        import signal, sys
        before = signal.getsignal(signal.SIGINT), sys.excepthook
        sys.argv = ["/usr/bin/cudnnlite", "info"]
        import cudnnlite.cli
        print((signal.getsignal(signal.SIGINT), sys.excepthook) == before)
    """)
    assert done.stdout == "True\n"
