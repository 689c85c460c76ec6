"""A forked child computes, whatever other threads do meanwhile."""

from __future__ import annotations

import os

import pytest
from helpers.harness import run_python


@pytest.mark.processes
def test_a_fork_beside_threads_in_their_first_calls():
    """Modules that first calls import are imported whole before a process is forked.

    The child would otherwise wait for an import lock that nobody releases.
    """
    process = run_python(
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
        for _ in range(6):
            child = os.fork()
            if not child:
                signal.alarm(1000)
                compute()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            time.sleep(0.01)
        for thread in threads:
            thread.join()
        """
    )
    assert process.returncode == 0


@pytest.mark.processes
def test_a_fork_beside_a_thread_that_loads_libcudnn(commands):
    process = commands.run_code(
        """
        import os, signal, threading, time, warnings
        import cudnnlite as dnn

        warnings.simplefilter("ignore")

        def make():
            dnn.TensorDescriptor(dnn.TensorSpec((1, 2, 3, 4))).close()

        def child_of(thread, milliseconds):
            if not (child := os.fork()):
                signal.alarm(1000)
                if thread:
                    thread.start()
                    time.sleep(milliseconds / 1000)
                    grandchild = child_of(None, 0)
                    thread.join()
                    os._exit(os.waitpid(grandchild, 0)[1] != 0)
                make()
                os._exit(0)
            return child

        for milliseconds in (0, 3, 8, 20):
            assert os.waitpid(child_of(threading.Thread(target=make), milliseconds), 0)[1] == 0, milliseconds
        """
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.processes
def test_no_fork_in_the_midst_of_a_first_call(commands):
    """libcudnn looks a function up in its first call, under locks that a child would not get back.

    Later calls are only C's.
    """
    process = commands.run_code(
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
    assert process.stdout.split() == ["1", "True"], process.stderr


@pytest.mark.processes
def test_a_fork_whose_wait_a_signal_handler_ends_leaves_the_child_free(commands):
    """Python goes on with the fork, and says that the exception was lost."""
    process = commands.run_code(
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
            if forking:
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise KeyboardInterrupt

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        forking = False
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
        forking = True
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(1000)
            dnn.TensorDescriptor(dnn.TensorSpec((1, 2, 3, 4))).close()
            os._exit(0)
        done.set()
        thread.join()
        print(os.waitpid(child, 0)[1], fork_lock.acquire(blocking=False))
        """
    )
    assert process.stdout.split() == ["0", "True"], process.stderr
    assert "RuntimeError" not in process.stderr


@pytest.mark.processes
def test_a_first_call_does_not_wait_for_ever(commands):
    """A finalizer's may come on a thread that holds what the one with the lock waits for."""
    process = commands.run_code(
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
    assert process.stdout.split() == ["False"], process.stderr


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_beside_threads_that_compute(commands):
    process = commands.run_code(
        """
        import os, signal, sys, threading, time, warnings
        import numpy as np
        import cudnnlite as dnn
        from cudnnlite.devices.device_choice import get_device

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
            deadline = time.monotonic() + 200
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
        os.environ.get("CUDNNLITE_FORKS", "8"),
    )
    assert process.stdout.split() == ["0", "0"], process.stderr
