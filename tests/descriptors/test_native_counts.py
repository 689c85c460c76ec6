"""Every checked C call fails once.

The error names the call, nothing is leaked, and nothing was written too early.
"""

import gc
import warnings

import numpy as np
import pytest
from helpers.harness import World
from rnn_oracles import onnx_rnn, random_weights

import cudnnlite as dnn
from cudnnlite import ConvolutionDescriptor, FilterDescriptor, Handle, TensorDescriptor
from cudnnlite.enums import Status

X, W = (2, 4, 6, 5), (3, 4, 3, 3)
CONV = dnn.ConvolutionSpec(1)
FORWARD, EXECUTE = "cudnnConvolutionForward", "cudnnBackendExecute"
FIND = "cudnnFindConvolutionForwardAlgorithmEx"
RNN_FORWARD, RNN_DATA, RNN_WEIGHTS = (
    "cudnnRNNForward",
    "cudnnRNNBackwardData_v8",
    "cudnnRNNBackwardWeights_v8",
)
WRITING = {FORWARD, EXECUTE, FIND, RNN_FORWARD, RNN_DATA, RNN_WEIGHTS}
PLAIN = dnn.RNNSpec(
    "tanh", 2, 3, 2, dtype="float64"
)  # few weights, so few calls of cudnnGetRNNWeightParams
LSTM = dnn.RNNSpec("lstm", 2, 3, dtype="float64")
STEPS, BATCH = 3, 2
rng = np.random.default_rng(3)
IMAGES, FILTERS = rng.standard_normal(X, np.float32), rng.standard_normal(W, np.float32)
SEQUENCES = rng.standard_normal((STEPS, BATCH, 2))
WEIGHTS = {PLAIN: random_weights(rng, "tanh", 2, 3, 2), LSTM: random_weights(rng, "lstm", 2, 3)}


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    """Take what earlier tests left (their reports) out of the thousands of collections here."""
    gc.collect()
    gc.freeze()


class Run:
    """One run of a scenario: its world, and the output that must not be touched too early."""

    def __init__(self, world):
        self.device = world.device
        self.out = None

    def operands(self, handle):
        return handle.array(IMAGES), handle.array(FILTERS)

    def output(self, handle):
        """An output that is filled with a pattern."""
        self.out = handle.array(np.full((2, 3, 6, 5), 7, np.float32))
        return self.out


def handle(run):
    with Handle(run.device) as h:
        assert h.version >= 90000
        h.stream = run.device.create_stream()


def tensor_descriptor(run):
    with TensorDescriptor(X) as d:
        d.read_back()
        assert d.nbytes == 4 * 2 * 4 * 6 * 5


def filter_descriptor(run):
    with FilterDescriptor(W) as d:
        d.read_back()
        assert d.nbytes == 4 * 3 * 4 * 3 * 3


def convolution_descriptor(run):
    with (
        TensorDescriptor(X) as x,
        FilterDescriptor(W) as w,
        ConvolutionDescriptor(1, groups=1) as d,
    ):
        d.read_back()
        d.set_math_type(dnn.MathType.FMA)
        assert d.output_shape(x, w) == (2, 3, 6, 5)


def plan_and_call(run):
    with Handle(run.device) as h:
        x, w = run.operands(h)
        with dnn.convolution_forward.plan(h, x, w, CONV, interface="descriptor") as plan:
            plan(x, w)


def forward(run):
    with Handle(run.device) as h:
        x, w = run.operands(h)
        dnn.convolution_forward(h, x, w, CONV, interface="descriptor")


def forward_out(run):
    with Handle(run.device) as h:
        x, w = run.operands(h)
        dnn.convolution_forward(h, x, w, CONV, out=run.output(h), interface="descriptor")


def find(run):
    with Handle(run.device) as h:
        x, w = run.operands(h)
        dnn.convolution_forward.find(h, x, w, CONV)


def find_out(run):
    with Handle(run.device) as h:
        x, w = run.operands(h)
        dnn.convolution_forward.find(h, x, w, CONV, out=run.output(h))


def find_beta(run):
    with Handle(run.device) as h:
        x, w = run.operands(h)
        dnn.convolution_forward.find(h, x, w, CONV, out=run.output(h), beta=1)


def get(run):
    with Handle(run.device) as h:
        x, w = run.operands(h)
        dnn.convolution_forward.heuristic(h, x, w, CONV)


def rnn_descriptors(run):
    with (
        dnn.RNNDescriptor(LSTM.replace(clip=(-1, 1))) as rnn,
        dnn.descriptors.RNNDataDescriptor((3, 2, 2)) as data,
    ):
        assert rnn.read_back().clip == (-1, 1)
        data.set(dnn.specs.RNNDataSpec((4, 2, 2)))
        assert data.read_back().max_length == 4


def rnn_operands(h, spec=PLAIN):
    return dnn.RNNWeights.from_arrays(h, spec, WEIGHTS[spec]), h.array(SEQUENCES)


def rnn_output(run, h, spec=PLAIN):
    """Outputs that are filled with a pattern; the run looks at y."""
    states = spec.hidden_shape(BATCH)
    arrays = [
        h.array(np.full(shape, 7, np.float64)) for shape in ((STEPS, BATCH, 3), states, states)
    ]
    run.out = arrays[0]
    return arrays if spec is LSTM else arrays[:2]


def rnn_weights(run):
    with Handle(run.device) as h:
        weights = dnn.RNNWeights(h, LSTM)
        weights.update(WEIGHTS[LSTM])
        assert len(weights.layout()) == 16


def rnn_dropout(run):
    with Handle(run.device) as h:
        state = dnn.DropoutState(h, 3)
        state.restore(state.save())


def rnn_forward(run):
    with Handle(run.device) as h:
        weights, x = rnn_operands(h)
        dnn.rnn_forward(h, PLAIN, weights, x)


def rnn_forward_out(run):
    with Handle(run.device) as h:
        weights, x = rnn_operands(h, LSTM)
        dnn.rnn_forward(h, LSTM, weights, x, lengths=[3, 2], out=rnn_output(run, h, LSTM))


def rnn_plan(run):
    with Handle(run.device) as h:
        weights, x = rnn_operands(h)
        with dnn.rnn_forward.plan(h, PLAIN, None, x, lengths=[3, 1], algorithm="standard") as plan:
            for lengths in ([3, 2], [3, 1]):
                plan(weights, x, lengths=lengths)


def rnn_dynamic(run):
    with Handle(run.device) as h:
        weights, x = rnn_operands(h)
        dnn.rnn_forward(h, PLAIN, weights, x, algorithm="persist_dynamic")


def rnn_training(run):
    with Handle(run.device) as h:
        weights, x = rnn_operands(h)
        dropping = PLAIN.replace(dropout=0.5)
        dnn.rnn_forward(
            h, dropping, weights, x, training=True, dropout_state=dnn.DropoutState(h, 1)
        )


def rnn_training_and_backward(run):
    with Handle(run.device) as h:
        weights, x = rnn_operands(h)
        trained = dnn.rnn_forward(h, PLAIN, weights, x, training=True, lengths=[3, 2])
        dnn.rnn_forward(
            h, PLAIN, weights, x, training=True, lengths=[2, 1]
        )  # the backward passes describe theirs again
        dnn.rnn_backward_data(h, trained.reserve, trained.y)
        gradients = dnn.rnn_backward_weights(h, trained.reserve)
        dnn.rnn_backward_weights(h, trained.reserve, out=gradients, accumulate=True)


# For each scenario: how many native objects it makes, and C functions that it has to call. Without
# these the loop below would prove nothing.
SCENARIOS = {
    handle: (1, {"cudnnCreate", "cudnnSetStream", "cudnnDestroy"}),
    tensor_descriptor: (
        1,
        {"cudnnSetTensorNdDescriptor", "cudnnGetTensorNdDescriptor", "cudnnGetTensorSizeInBytes"},
    ),
    filter_descriptor: (
        1,
        {"cudnnSetFilterNdDescriptor", "cudnnGetFilterNdDescriptor", "cudnnGetFilterSizeInBytes"},
    ),
    convolution_descriptor: (
        3,
        {
            "cudnnSetConvolutionNdDescriptor",
            "cudnnSetConvolutionGroupCount",
            "cudnnSetConvolutionMathType",
            "cudnnSetConvolutionReorderType",
            "cudnnGetConvolutionNdDescriptor",
            "cudnnGetConvolutionNdForwardOutputDim",
        },
    ),
    plan_and_call: (
        5,
        {
            FORWARD,
            "cudnnGetConvolutionForwardAlgorithm_v7",
            "cudnnGetConvolutionForwardWorkspaceSize",
        },
    ),
    forward: (
        5,
        {
            FORWARD,
            "cudnnGetConvolutionForwardAlgorithm_v7",
            "cudnnGetConvolutionForwardWorkspaceSize",
        },
    ),
    forward_out: (5, {FORWARD}),
    find: (
        5,
        {
            FIND,
            "cudnnGetConvolutionForwardAlgorithmMaxCount",
            "cudnnGetConvolutionForwardWorkspaceSize",
        },
    ),
    find_out: (5, {FIND}),
    find_beta: (5, {FIND}),
    get: (5, {"cudnnGetConvolutionForwardAlgorithm_v7"}),
    rnn_descriptors: (
        2,
        {
            "cudnnSetRNNDescriptor_v8",
            "cudnnGetRNNDescriptor_v8",
            "cudnnRNNSetClip_v9",
            "cudnnRNNGetClip_v9",
            "cudnnSetRNNDataDescriptor",
            "cudnnGetRNNDataDescriptor",
        },
    ),
    rnn_weights: (4, {"cudnnGetRNNWeightSpaceSize", "cudnnGetRNNWeightParams"}),
    rnn_dropout: (2, {"cudnnDropoutGetStatesSize", "cudnnSetDropoutDescriptor"}),
    rnn_forward: (8, {RNN_FORWARD, "cudnnGetRNNTempSpaceSizes", "cudnnSetRNNDataDescriptor"}),
    rnn_forward_out: (9, {RNN_FORWARD}),
    rnn_plan: (8, {RNN_FORWARD, "cudnnSetRNNDataDescriptor"}),
    rnn_dynamic: (8, {RNN_FORWARD, "cudnnBuildRNNDynamic"}),
    rnn_training: (
        10,
        {RNN_FORWARD, "cudnnRestoreDropoutDescriptor", "cudnnDestroyDropoutDescriptor"},
    ),
    rnn_training_and_backward: (8, {RNN_FORWARD, RNN_DATA, RNN_WEIGHTS}),
}
by_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)


def memory_left(world):
    """Return the device memory in use; what a collection would free is not counted."""
    return world.device.memory.used and world.memory_used


def attempt(world, scenario):
    """Run a scenario; return the error's function, status and text, `out`, and leak warnings."""
    run = Run(world)
    failure = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            scenario(run)
        except dnn.CudnnError as error:
            failure = (error.function, error.status, str(error))
        world.ledger.disarm()
        out = None if run.out is None else run.out.numpy()
        del run
        gc.collect()
    return failure, out, [str(warning.message) for warning in caught]


@by_scenario
def test_without_a_failure_all_is_given_back(world, scenario):
    objects, needed = SCENARIOS[scenario]
    failure, _, leaks = attempt(world, scenario)
    assert failure is None
    assert leaks == []
    calls = world.ledger.finished
    assert needed <= set(calls)
    assert sum(name.startswith(("cudnnCreate", "cudnnBackendCreate")) for name in calls) == objects
    assert (
        sum(name.startswith(("cudnnDestroy", "cudnnBackendDestroy")) for name in calls) == objects
    )
    assert world.ledger.leaked() == {}
    assert world.memory_used == 0


# An allocation failure takes the same way through cudnnlite as another failure. RNNs make many
# calls, so one of the two is enough for them.
STATUSES = (Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, Status.EXECUTION_FAILED)
FAILURES = [
    pytest.param(scenario, status, id=f"{scenario.__name__}-{status}")
    for scenario in SCENARIOS
    for status in (STATUSES[:1] if scenario.__name__.startswith("rnn") else STATUSES)
]


@pytest.mark.parametrize(("scenario", "status"), FAILURES)
def test_each_call_fails_once(monkeypatch, scenario, status):
    problems, calls = [], 0
    while True:
        world = World(monkeypatch)
        world.ledger.fail(calls + 1, status)
        failure, out, leaks = attempt(world, scenario)
        failed = world.ledger.failed
        if failed is None:
            break
        calls += 1
        at = f"call {calls}, {failed}"
        if failure is None:
            problems.append(f"{at}: no error surfaced")
        elif failure[:2] != (failed, status):
            problems.append(f"{at}: the error is about {failure[0]} and {failure[1]}")
        elif f"{failed} returned {status.name} ({int(status)})" not in failure[2]:
            problems.append(f"{at}: the message is {failure[2]!r}")
        # an object whose own destruction failed cannot be given back; nothing else may go with it
        if world.ledger.leaked() != world.ledger.not_destroyed():
            problems.append(f"{at}: left {world.ledger.leaked()}")
        if memory_left(world):
            problems.append(f"{at}: {memory_left(world)} bytes of device memory left")
        if leaks:
            problems.append(f"{at}: {leaks}")
        written = WRITING.intersection(world.ledger.finished)
        if out is not None and not written and not (out == 7).all():
            problems.append(f"{at}: out was written")
    assert calls == len(world.ledger.started) > 2 * SCENARIOS[scenario][0]
    assert SCENARIOS[scenario][1] <= set(world.ledger.started)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "scenario",
    [
        plan_and_call,
        forward,
        forward_out,
        find,
        find_out,
        find_beta,
        rnn_forward,
        rnn_forward_out,
        rnn_dynamic,
        rnn_training_and_backward,
        rnn_weights,
        rnn_dropout,
    ],
    ids=lambda s: s.__name__,
)
def test_each_allocation_fails_once(monkeypatch, scenario):
    allocations = 0
    while True:
        world = World(monkeypatch)
        allocate, sizes = world.device.allocate, []

        def failing(nbytes, stream, allocate=allocate, sizes=sizes, fail_at=allocations):
            sizes.append(nbytes)
            if len(sizes) == fail_at + 1:
                raise dnn.DeviceMemoryError("no more")
            return allocate(nbytes, stream)

        monkeypatch.setattr(world.device, "allocate", failing)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            failed = ""
            try:
                scenario(Run(world))
            except dnn.DeviceMemoryError as error:
                failed = str(error)
        assert world.ledger.leaked() == {}
        assert world.memory_used == 0
        if not failed:
            break
        allocations += 1
        assert failed == "no more"
        assert scenario is rnn_training_and_backward or not WRITING.intersection(
            world.ledger.finished
        )
    assert allocations == len(sizes) >= 1


def test_a_search_passes_over_what_cudnn_does_not_support(world):
    """A refused workspace query is no failure: that algorithm is not searched for."""
    with Handle(world.device) as h:
        x, w = h.array(IMAGES), h.array(FILTERS)
        world.ledger.fail_next("cudnnGetConvolutionForwardWorkspaceSize", Status.NOT_SUPPORTED)
        assert dnn.convolution_forward.find(h, x, w, CONV)[0].ok
        assert world.ledger.failed is not None


def test_beta_zero_leaves_the_output_of_a_find_written(world):
    """The check of `out` above can see a write: after the search it is there."""
    _, out, _ = attempt(world, find_out)
    assert not (out == 7).any()


def test_with_beta_a_find_leaves_the_output_alone(world):
    _, out, _ = attempt(world, find_beta)
    assert (out == 7).all()


def test_a_failed_plan_is_not_kept(world):
    """The next call of the same kind must try again."""
    with Handle(world.device) as h:
        x, w = h.array(IMAGES), h.array(FILTERS)
        world.ledger.fail(len(world.ledger.started) + 3)
        with pytest.raises(dnn.errors.AllocationError):
            dnn.convolution_forward(h, x, w, CONV)
        world.ledger.disarm()
        assert world.ledger.leaked() == {"Handle": 1}
        assert dnn.convolution_forward(h, x, w, CONV).shape == (2, 3, 6, 5)


by_interface = pytest.mark.parametrize(
    ("interface", "function"), [("descriptor", FORWARD), ("graph", EXECUTE)]
)


@by_interface
def test_a_failed_call_leaves_the_plan_usable(world, interface, function):
    with Handle(world.device) as h:
        x, w = h.array(IMAGES), h.array(FILTERS)
        out = h.empty((2, 3, 6, 5))
        expected = dnn.convolution_forward(h, x, w, CONV, out=out, interface=interface).numpy()
        world.ledger.fail(len(world.ledger.started) + 1)
        with pytest.raises(
            dnn.CudnnError, match=rf"{function}[\s\S]*x = TensorSpec[\s\S]*w = FilterSpec"
        ):
            dnn.convolution_forward(h, x, w, CONV, out=out, interface=interface)
        world.ledger.disarm()
        count = world.ledger.finished.count("cudnnCreateTensorDescriptor")
        assert (
            dnn.convolution_forward(h, x, w, CONV, out=out, interface=interface).numpy() == expected
        ).all()
        assert world.ledger.finished.count("cudnnCreateTensorDescriptor") == count


@by_interface
def test_a_plan_is_made_once_for_calls_of_one_kind(world, interface, function):
    with Handle(world.device) as h:
        x, w = h.array(IMAGES), h.array(FILTERS)
        out = dnn.convolution_forward(h, x, w, CONV)
        dnn.convolution_forward(h, x, w, CONV, out=out, interface=interface)
        before = len(world.ledger.started)
        for _ in range(5):
            dnn.convolution_forward(h, x, w, CONV, out=out, interface=interface)
        assert world.ledger.started[before:] == [function] * 5


# ------------------------------------------------------ RNNs: one handle goes on after each failure


class Network:
    """A network on a handle that lives through a failure, and what it should compute."""

    expected = onnx_rnn("tanh", WEIGHTS[PLAIN], SEQUENCES, lengths=[3, 2])

    def __init__(self, handle):
        self.handle = handle
        self.weights, self.x = rnn_operands(handle)
        self.state = dnn.DropoutState(handle, 1)

    def forward(self, spec=PLAIN, **options):
        return dnn.rnn_forward(self.handle, spec, self.weights, self.x, lengths=[3, 2], **options)

    def dropped(self):
        self.forward(PLAIN.replace(dropout=0.5), training=True, dropout_state=self.state)
        return self.forward()

    def backward(self):
        trained = self.forward(training=True)
        dnn.rnn_backward_data(self.handle, trained.reserve, trained.y)
        dnn.rnn_backward_weights(self.handle, trained.reserve)
        return trained

    def planned(self):
        with dnn.rnn_forward.plan(self.handle, PLAIN, None, self.x, lengths=[3, 2]) as plan:
            return plan(self.weights, self.x, lengths=[3, 2])

    def made(self):
        self.weights = rnn_operands(self.handle)[0]
        return self.forward()

    def drawn(self):
        dnn.DropoutState(self.handle, 2)
        return self.forward()

    def assert_right(self, out):
        for result, expected in zip(out, self.expected, strict=False):
            if expected is not None:
                np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", ["forward", "dropped", "backward", "planned", "made", "drawn"])
def test_one_handle_works_on_after_each_failure(monkeypatch, way):
    """Fail each call of the operation once, on a new handle; the operation then succeeds on it."""
    status, nth = Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, 0
    while True:
        world, error_function = World(monkeypatch), None
        with Handle(world.device) as h:
            network = Network(h)
            world.ledger.fail(len(world.ledger.started) + nth + 1, status)
            try:
                getattr(network, way)()
            except dnn.CudnnError as error:
                error_function = error.function
            failed = world.ledger.failed
            world.ledger.disarm()
            at = f"call {nth + 1}, {failed}"
            assert error_function == failed, at
            network.assert_right(getattr(network, way)())
            network.assert_right(network.forward())
            network = None
        assert world.ledger.leaked() == world.ledger.not_destroyed(), at
        assert memory_left(world) == 0, at
        if failed is None:
            break
        nth += 1
    assert nth >= 8
