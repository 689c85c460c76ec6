"""Handle: which device it is on, its stream, its thread, and its end."""

import copy
import gc
import pickle
import threading
import warnings

import numpy as np
import pytest
from helpers.harness import drop, run_python

import cudnnlite as dnn
from cudnnlite import ArgumentError, Handle, NoDeviceError
from cudnnlite.devices import device_choice as choice
from cudnnlite.devices.device_choice import get_device
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.errors import ClosedError, ThreadError

X = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
W = np.ones((3, 2, 3, 3), np.float32)


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without a GPU, also where there is one; nothing is remembered from other tests."""
    indices = []

    class NoCuda:
        def __init__(self, index):
            indices.append(index)
            raise NoDeviceError(f"no CUDA device {index}: no driver")

    monkeypatch.setattr("cudnnlite.devices.cuda.CudaDevice", NoCuda)
    monkeypatch.setattr(choice, "devices", choice.Devices(choice.make_device))
    return indices


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("name", "index"), [("emulated", 0), ("Emulated", 0), ("emulated:0", 0), ("emulated:3", 3)]
)
def test_emulated_by_name(name, index):
    with Handle(name) as handle:
        assert (handle.device.kind, handle.device.index) == ("emulated", index)
        assert handle.device is get_device(f"emulated:{index}")
        assert handle.spec is handle.device


def test_one_device_object_for_each_index():
    assert get_device("emulated") is get_device("emulated:0")
    assert get_device("emulated") is not get_device("emulated:1")


def test_a_device_object_is_taken_as_it_is(own_device):
    assert get_device(own_device) is own_device
    with Handle(own_device) as handle:
        assert handle.device is own_device
        assert handle.api is own_device.api


@pytest.mark.parametrize(
    ("variable", "kind"),
    [("emulated", "emulated"), ("EMULATED", "emulated"), ("emulated:2", "emulated")],
)
def test_the_environment_decides_where_nothing_is_given(monkeypatch, variable, kind):
    monkeypatch.setenv("CUDNNLITE_DEVICE", variable)
    with Handle() as handle:
        assert handle.device.kind == kind
        assert handle.device is get_device(variable)


def test_an_argument_wins_over_the_environment(monkeypatch, own_device):
    monkeypatch.setenv("CUDNNLITE_DEVICE", "nonsense")
    with Handle(own_device) as handle:
        assert handle.device is own_device


def test_an_empty_variable_is_as_none(monkeypatch, no_gpu):
    monkeypatch.setenv("CUDNNLITE_DEVICE", "")
    with pytest.raises(NoDeviceError):
        Handle()


def test_a_bad_variable(monkeypatch):
    monkeypatch.setenv("CUDNNLITE_DEVICE", "tpu")
    with pytest.raises(ArgumentError, match=r"tpu.*allowed: 'cuda'"):
        Handle()


@pytest.mark.parametrize("argument", [None, "cuda", "cuda:0", 0])
def test_without_a_gpu_the_error_says_what_to_do(no_gpu, argument):
    with pytest.raises(NoDeviceError) as caught:
        Handle(argument)
    text = str(caught.value)
    assert text.startswith("no CUDA device 0: no driver. ")
    assert "CUDNNLITE_DEVICE=emulated" in text
    assert "=auto" in text
    assert 'Handle(device="emulated")' in text
    assert no_gpu == [0]


@pytest.mark.parametrize(("argument", "index"), [("cuda:3", 3), (3, 3), ("CUDA:1", 1)])
def test_the_index_reaches_the_device(no_gpu, argument, index):
    with pytest.raises(NoDeviceError, match=f"no CUDA device {index}"):
        Handle(argument)
    assert no_gpu == [index]


def test_auto_falls_back_and_says_so_once(no_gpu):
    with pytest.warns(
        RuntimeWarning, match="^running on the emulated device: no CUDA device 0: no driver$"
    ) as caught:
        first = Handle("auto")
    assert [warning.filename for warning in caught] == [
        __file__
    ]  # the warning points at the caller
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = Handle("auto")
    assert first.device is second.device
    assert first.device.kind == "emulated"
    first.close()
    second.close()


def test_auto_through_the_environment(no_gpu, monkeypatch):
    monkeypatch.setenv("CUDNNLITE_DEVICE", "auto")
    with pytest.warns(RuntimeWarning, match="running on the emulated device"), Handle() as handle:
        assert handle.device.kind == "emulated"


def test_only_auto_falls_back(no_gpu):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NoDeviceError):
            Handle()


@pytest.mark.processes
def test_a_process_that_sees_no_gpu(commands):
    """The real thing: no CUDA device is visible, with or without a driver."""
    process = commands.run_code(
        """
        import warnings
        import cudnnlite as dnn
        try:
            dnn.Handle()
        except dnn.NoDeviceError as error:
            print(error)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dnn.Handle("auto").close()
            dnn.Handle("auto").close()
        print(len(caught), caught[0].category.__name__, caught[0].message)
        """,
        CUDA_VISIBLE_DEVICES="",
    )
    refusal, fallback = process.stdout.splitlines()
    assert refusal.startswith("no CUDA device")
    assert "CUDNNLITE_DEVICE=emulated" in refusal
    assert fallback.startswith("1 RuntimeWarning running on the emulated device: no CUDA device")
    assert process.stderr == ""


# ---------------------------------------------------------------- what a handle is


def test_a_handle_is_made_and_destroyed(world):
    with Handle(world.device) as handle:
        assert world.ledger.leaked() == {"Handle": 1}
        assert handle.ptr.value in world.device.api.handles
        assert handle.version == handle.api.cudnnGetVersion()
        assert not handle.closed
    assert handle.closed
    assert world.ledger.leaked() == {}
    assert world.device.api.handles == {}
    handle.close()
    assert world.ledger.finished.count("cudnnDestroy") == 1


def test_repr(own_device):
    with Handle(own_device) as handle:
        assert repr(handle) == f"<Handle <emulated:5>, at {handle.ptr.value:#x}>"
    assert repr(handle) == "<Handle <emulated:5>, closed>"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_second_owner(own_handle, duplicate):
    with pytest.raises(
        TypeError, match="a Handle cannot be copied or pickled; make another Handle on its device"
    ):
        duplicate(own_handle)


def test_options_are_keywords(own_device):
    with pytest.raises(TypeError):
        Handle(own_device, None)


def test_a_bad_limit_makes_no_handle(world):
    with pytest.raises(ArgumentError, match="limit='lots'"):
        Handle(world.device, workspace_limit="lots")
    assert world.ledger.started == []


# ---------------------------------------------------------------- streams


def told_stream(handle):
    """The stream as cuDNN has it."""
    from cudnnlite._raw.types import cudaStream_t

    stream = cudaStream_t()
    handle.api.cudnnGetStream(handle.ptr, stream)
    return stream.value


def test_the_default_stream(own_device):
    with Handle(own_device) as handle:
        assert handle.stream is own_device.default_stream
        assert told_stream(handle) == own_device.default_stream.handle


def test_a_stream_at_the_start(own_device):
    stream = own_device.create_stream()
    with Handle(own_device, stream=stream) as handle:
        assert handle.stream is stream
        assert told_stream(handle) == stream.handle


def test_setting_the_stream(world):
    one, other = world.device.create_stream(), world.device.create_stream()
    with Handle(world.device) as handle:
        for argument, expected in (
            (one, one),
            (other.handle, other),
            (None, world.device.default_stream),
        ):
            handle.stream = argument
            assert handle.stream is expected
            assert told_stream(handle) == expected.handle
        before = world.ledger.finished.count("cudnnSetStream")
        handle.stream = None
        assert world.ledger.finished.count("cudnnSetStream") == before  # cuDNN has it already
        handle.synchronize()


@pytest.mark.parametrize(
    "bad", ["stream", 12345, 1.5, object()], ids=lambda value: type(value).__name__
)
def test_a_bad_stream_changes_nothing(own_device, bad):
    with pytest.raises(ArgumentError, match="stream="):
        Handle(own_device, stream=bad)
    with Handle(own_device) as handle:
        with pytest.raises(ArgumentError, match="stream="):
            handle.stream = bad
        assert handle.stream is own_device.default_stream


def test_a_stream_that_cudnn_refuses_is_not_taken(world):
    with Handle(world.device) as handle:
        world.ledger.fail_next("cudnnSetStream", dnn.enums.Status.BAD_PARAM_STREAM_MISMATCH)
        with pytest.raises(dnn.errors.BadParamError, match="cudnnSetStream"):
            handle.stream = world.device.create_stream()
        assert handle.stream is world.device.default_stream
        assert told_stream(handle) == world.device.default_stream.handle


# ---------------------------------------------------------------- closed, threads

USES = {
    "ptr": lambda h, x, w: h.ptr,
    "use": lambda h, x, w: h._use(),
    "array": lambda h, x, w: h.array(X),
    "array of a device array": lambda h, x, w: h.array(x),
    "empty": lambda h, x, w: h.empty((1, 2, 3, 4)),
    "view": lambda h, x, w: h.view(x),
    "stream": lambda h, x, w: setattr(h, "stream", None),
    "synchronize": lambda h, x, w: h.synchronize(),
    "convolution_forward": lambda h, x, w: dnn.convolution_forward(h, x, w),
    "find": lambda h, x, w: dnn.convolution_forward.find(h, x, w),
    "get": lambda h, x, w: dnn.convolution_forward.heuristic(h, x, w),
    "plan": lambda h, x, w: dnn.convolution_forward.plan(h, x, w).close(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_use_after_close(own_device, use):
    handle = Handle(own_device)
    x, w = handle.array(X), handle.array(W)
    use(handle, x, w)
    handle.close()
    with pytest.raises(ClosedError, match="this Handle was closed"):
        use(handle, x, w)


def on_another_thread(work):
    """Run it there; return what it raised."""
    raised = []

    def run():
        try:
            work()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="another thread")
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.mark.parametrize(
    "use", [pytest.param(use, id=name) for name, use in USES.items() if name != "ptr"]
)
def test_another_thread_is_refused(own_handle, use):
    x, w = own_handle.array(X), own_handle.array(W)
    dnn.convolution_forward(own_handle, x, w)  # a plan that is there already must not get by
    error = on_another_thread(lambda: use(own_handle, x, w))
    assert isinstance(error, ThreadError)
    assert "'another thread'" in str(error)
    assert "check_same_thread=False" in str(error)


def test_a_plan_on_another_thread_is_refused(own_handle):
    x, w = own_handle.array(X), own_handle.array(W)
    with dnn.convolution_forward.plan(own_handle, x, w) as plan:
        plan(x, w)
        assert isinstance(on_another_thread(lambda: plan(x, w)), ThreadError)


def test_another_thread_is_allowed_if_asked(own_device):
    with Handle(own_device, check_same_thread=False) as handle:
        x, w = handle.array(X), handle.array(W)
        expected = dnn.convolution_forward(handle, x, w).numpy()
        results = []
        with dnn.convolution_forward.plan(handle, x, w) as plan:
            plan(x, w)
            assert on_another_thread(lambda: results.append(plan(x, w).numpy())) is None
        assert (
            on_another_thread(lambda: results.append(dnn.convolution_forward(handle, x, w).numpy()))
            is None
        )
        assert all((result == expected).all() for result in results)
        assert len(results) == 2


def test_a_handle_may_be_closed_on_another_thread(world):
    """Garbage collection runs anywhere, so closing must too."""
    handle = Handle(world.device)
    assert on_another_thread(handle.close) is None
    assert world.ledger.leaked() == {}


# ---------------------------------------------------------------- the end


def test_close_closes_plans(world):
    handle = Handle(world.device)
    x, w = handle.array(X), handle.array(W)
    plan = dnn.convolution_forward.plan(
        handle, x, w, dnn.ConvolutionSpec(1), interface="descriptor"
    )
    dnn.convolution_forward(handle, x, w)
    plan(x, w)
    assert world.ledger.live["ConvolutionDescriptor"] == 1  # an engine needs none
    assert handle.workspace.size > 0
    handle.close()
    assert plan.closed
    assert world.ledger.leaked() == {}
    assert handle.workspace.size == 0
    with pytest.raises(ClosedError):
        plan(x, w)
    x.close()
    w.close()
    assert world.memory_used == 0


def test_a_plan_closed_by_itself(world):
    with Handle(world.device) as handle:
        x, w = handle.array(X), handle.array(W)
        with dnn.convolution_forward.plan(handle, x, w) as plan:
            assert repr(plan).startswith("<plan of convolution forward of TensorSpec((1, 2, 4, 4)")
        assert plan.closed
        assert repr(plan).startswith("<closed plan of convolution forward of ")
        with pytest.raises(ClosedError, match=r"plan of convolution forward of .* was closed"):
            plan(x, w)
        plan.close()
        assert world.ledger.leaked() == {"Handle": 1}


@pytest.mark.parametrize("duplicate", [copy.copy, pickle.dumps])
def test_a_plan_has_no_second_owner(own_handle, duplicate):
    plan = dnn.convolution_forward.plan(
        own_handle, dnn.TensorSpec(X.shape), dnn.FilterSpec(W.shape)
    )
    with plan, pytest.raises(TypeError, match="belongs to a handle"):
        duplicate(plan)


def test_a_leaked_handle_warns_and_is_destroyed(world):
    handle = Handle(world.device)
    dnn.convolution_forward(handle, handle.array(X), handle.array(W))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del handle
        gc.collect()
    texts = [str(warning.message) for warning in caught]
    assert all(warning.category is ResourceWarning for warning in caught)
    assert any(text.startswith("Handle <emulated:7> was never closed") for text in texts)
    assert world.ledger.leaked() == {}
    assert world.memory_used == 0


def test_a_leaked_plan_warns_and_is_destroyed(world):
    with Handle(world.device) as handle:
        leaked = [
            dnn.convolution_forward.plan(handle, dnn.TensorSpec(X.shape), dnn.FilterSpec(W.shape))
        ]
        with pytest.warns(
            ResourceWarning, match=r"plan of convolution forward of .* was never closed"
        ):
            drop(leaked)
        assert world.ledger.leaked() == {"Handle": 1}


def test_a_leaked_plan_is_destroyed_even_where_the_warning_is_an_error(world, monkeypatch):
    import sys

    errors = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: errors.append(type(args.exc_value)))
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: errors.append(kind))
    with Handle(world.device) as handle:
        plan = dnn.convolution_forward.plan(
            handle, dnn.TensorSpec(X.shape), dnn.FilterSpec(W.shape)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del plan
            gc.collect()
        assert errors == [ResourceWarning]
        assert world.ledger.leaked() == {"Handle": 1}


EVERYTHING_OPEN = """
    import sys, threading
    import numpy as np
    import cudnnlite as dnn
    handle = dnn.Handle("emulated")
    x, w = handle.array(np.ones((1, 2, 5, 5), np.float32)), handle.array(np.ones((3, 2, 3, 3), np.float32))
    descriptors = [dnn.TensorDescriptor((1, 2, 3, 4)), dnn.FilterDescriptor((1, 2, 3, 4)), dnn.ConvolutionDescriptor(1)]
    plan = dnn.convolution_forward.plan(handle, x, w)
    y = dnn.convolution_forward(handle, x, w, dnn.ConvolutionSpec(1))
    exported = np.from_dlpack(y)
    cycle = [handle, plan]
    cycle.append(cycle)
    other = threading.Thread(target=lambda: setattr(sys, "kept", dnn.TensorDescriptor((1,))))
    other.start()
    other.join()
"""


@pytest.mark.processes
@pytest.mark.parametrize("flags", ["default", "error"])
def test_a_process_may_end_with_everything_open(flags):
    process = run_python(EVERYTHING_OPEN + "\n    print(exported.sum())", PYTHONWARNINGS=flags)
    assert process.stdout.strip() == str(float(3 * (9 * 18 + 4 * 3 * 12 + 4 * 8)))
    assert "Traceback" not in process.stderr
    assert process.stderr == ""


@pytest.mark.processes
def test_a_process_may_end_in_an_exception_with_everything_open():
    process = run_python(EVERYTHING_OPEN + "\n    raise SystemExit(3)", check=False)
    assert process.returncode == 3
    assert "Traceback" not in process.stderr


def test_two_handles_do_not_share(own_device):
    with Handle(own_device) as one, Handle(own_device) as other:
        assert one.ptr.value != other.ptr.value
        assert one.workspace is not other.workspace
        x, w = one.array(X), one.array(W)
        assert (
            dnn.convolution_forward(one, x, w).numpy()
            == dnn.convolution_forward(other, x, w).numpy()
        ).all()
        one.close()
        assert dnn.convolution_forward(other, x, w).shape == (1, 3, 2, 2)


def test_handles_of_two_devices():
    first, second = EmulatedDevice(1, capacity="1 MiB"), EmulatedDevice(2, capacity="1 MiB")
    with (
        Handle(first) as one,
        Handle(second) as other,
        pytest.raises(dnn.errors.BadParamError, match="is not a live handle"),
    ):
        one.api.cudnnSetStream(other.ptr, None)
