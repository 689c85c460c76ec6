"""The database: rows and their JSON, what is looked up where, and what is passed over."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.harness import World

import cudnnlite as dnn
from cudnnlite.autotune.database import (
    best_on_a_typical_host,
    install_database,
    new_database,
    record_database,
    write_database,
)
from cudnnlite.bench.lists import attention_problem
from cudnnlite.bench.networks import network_names, network_problems
from cudnnlite.devices.arrays import part_of
from cudnnlite.devices.device import DeviceFacts
from cudnnlite.operations.convolution.plan import ConvolutionPlan
from cudnnlite.problems.results import DATABASE, HEURISTIC
from cudnnlite.search import database as database_module
from cudnnlite.search.database import (
    VARIABLE,
    Database,
    database_of,
    digest_of,
    family_of,
    find_choice,
    read_database,
    version_of,
)

A, M = dnn.ConvolutionFwdAlgo, dnn.MathType
X, W = dnn.TensorSpec((2, 4, 9, 8)), dnn.FilterSpec((6, 4, 3, 3))
CONV = dnn.ConvolutionSpec(padding=1)
PROBLEM = dnn.convolution_forward.problem(X, W, CONV)
ENGINE = dnn.AlgorithmResult(dnn.Engine(0, {2: 0}), M.FMA, workspace=0, error=1.5e-7)
ALGORITHM = dnn.AlgorithmResult(A.IMPLICIT_GEMM, M.FMA, deterministic=True)
CONVERTED = dnn.ConvolutionResult(dnn.Engine(1, {2: 1}), M.FMA, workspace=1 << 16, layout="NHWC")

SHIPPED_FILE = next(database_module.SHIPPED.glob("*.json"))
HEAD = (
    '{"format": 2, "gpu": "", "compute_capability": "", "cudnn": "", "cudnnlite": "", "families": '
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An emulated device that says that it is a GPU."""
    device = World(monkeypatch).device
    device.kind = "cuda"
    device.facts = lambda: DeviceFacts("Pretend H200", "9.0", "1", "GPU-1")
    database_module._read.cache_clear()
    yield device
    database_module._read.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of installed files, without those that come along."""
    monkeypatch.setattr(database_module, "SHIPPED", tmp_path / "none")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "databases"))
    return tmp_path / "databases"


def install(device: Any, path: Path, choice: dnn.AlgorithmResult, **facts: str) -> None:
    """Install a database with one row."""
    database = new_database(device)
    for name, value in facts.items():
        setattr(database, name, value)
    database.put(PROBLEM, choice)
    write_database(database, path / "source.json")
    install_database(path / "source.json")
    database_module._read.cache_clear()


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("choice", [ENGINE, ALGORITHM, CONVERTED], ids=str)
def test_a_row_is_read_as_it_was_written(choice: dnn.AlgorithmResult) -> None:
    database = Database("a", "9.0", "9.19", "0")
    database.put(PROBLEM, choice)
    copy = Database.from_json(database.to_json(), "a text")
    assert copy == database
    assert copy.find(PROBLEM) == choice
    assert copy.find(PROBLEM).source == DATABASE
    assert copy.find(dnn.convolution_forward.problem(X, W)) is None
    assert len(copy) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is no JSON: Expecting value: line 1 column 1"),
        ("[" * 100_000, "it is no JSON: "),
        ("[]", "it is no object of JSON"),
        ("{}", 'it has no field "format"'),
        ('{"format": 3}', "it has format 3; this cudnnlite reads 2"),
        ('{"format": 2}', 'it has no field "gpu"'),
        (HEAD.rpartition(",")[0] + "}", 'it has no field "families"'),
        (HEAD.replace('"gpu": ""', '"gpu": 1') + "{}}", 'its field "gpu" is no text, but 1'),
        (HEAD + "[]}", 'its field "families" is no object of JSON'),
        (HEAD + '{"x": []}}', "its family 'x' is no object of JSON"),
        (HEAD + '{"x": {"y": 1}}}', "its row 'y' of 'x' is no choice"),
    ],
)
def test_what_is_no_database(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "database.json"
    file.write_text(text)
    with pytest.raises(dnn.ArgumentError) as refused:
        read_database(file)
    assert str(refused.value).startswith(f"{file} is no database of cudnnlite: {why}")


@pytest.mark.parametrize(
    "text",
    [
        HEAD + '{"x": {"y": ["ConvolutionFwdAlgo.NONE", "FMA", 0, true, null, ""]}}}',
        HEAD + '{"x": {"y": [[1, {}], "FMA", Infinity, true, null, ""]}}}',
        HEAD + '{"x": {"y": [1]}}}',
        # Engines 1 and 2 of the first rows are no excuse for those of the others.
        HEAD + '{"x": {"y": [[1, {}], "FMA", 0, true, null, ""], '
        '"z": [[true, {}], "FMA", 0, true, null, ""]}}}',
        HEAD + '{"x": {"y": [[2, {"3": 1}], "FMA", 0, true, null, ""], '
        '"z": [[2, {"3": 1.0}], "FMA", 0, true, null, ""]}}}',
    ],
)
def test_a_row_that_is_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "database.json"
    file.write_text(text)
    with pytest.raises(dnn.ArgumentError, match=r"database\.json is .* of 'x' is no choice$"):
        read_database(file)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "database.json"
    file.write_bytes(b"\xff")
    with pytest.raises(dnn.ArgumentError, match=r"no database of cudnnlite: it is no text$"):
        read_database(file)


def test_the_rows_above_are_refused_for_what_is_wrong_in_them() -> None:
    row = '{"x": {"y": [[1, {"3": 1}], "FMA", 0, true, null, ""]}}}'
    assert len(Database.from_json(HEAD + row, "a text")) == 1


def test_half_precision_has_one_row_for_two_math_types_and_all_scalars() -> None:
    x, w = dnn.TensorSpec((2, 8, 9, 8), "float16"), dnn.FilterSpec((8, 8, 3, 3), "float16")
    problems = [
        dnn.convolution_forward.problem(x, w, dnn.ConvolutionSpec(1, math_type=math_type))
        for math_type in ("default", "tensor_op", "fma")
    ]
    problems.append(problems[0].replace(beta=1.0))
    default, tensor_op, fma, accumulating = map(digest_of, problems)
    assert default == tensor_op == accumulating != fma
    assert family_of(problems[0]) == family_of(problems[1]) != family_of(problems[2])


def test_true_float32_has_rows_of_its_own() -> None:
    true_float32 = PROBLEM.replace(conv=CONV.replace(math_type="fma"))
    assert digest_of(PROBLEM) != digest_of(true_float32)


@pytest.mark.parametrize(("number", "version"), [(91900, "9.19"), (92801, "9.28"), (90100, "9.1")])
def test_minor_versions(number: int, version: str) -> None:
    assert version_of(number) == version


# ---------------------------------------------------------------- what is looked up


def test_a_call_without_an_algorithm_uses_it(gpu: Any, folder: Path, tmp_path: Path) -> None:
    install(gpu, tmp_path, ALGORITHM)
    with dnn.Handle(gpu) as handle:
        with dnn.convolution_forward.plan(handle, X, W, CONV) as plan:
            assert plan.choice.source == DATABASE
            assert plan.choice.algorithm == A.IMPLICIT_GEMM
        with dnn.convolution_forward.plan(handle, X, W, CONV, algorithm="GEMM") as plan:
            assert plan.choice.source == ""
        with dnn.convolution_forward.plan(handle, X, W, CONV, interface="graph") as plan:
            assert plan.choice.source == HEURISTIC
        x, w = (handle.array(np.ones(spec.shape, np.float32)) for spec in (X, W))
        y = dnn.convolution_forward(handle, x, w, CONV)
        assert y.numpy()[0, 0, 1, 1] == 36
        (plan,) = (plan for plan, _ in handle.plans._cached.values())
        assert plan.choice.source == DATABASE


def test_off_leaves_it_out(
    gpu: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(gpu, tmp_path, ALGORITHM)
    monkeypatch.setenv(VARIABLE, "OFF")
    assert database_of(gpu) is None
    assert find_choice(gpu, PROBLEM) is None
    with pytest.raises(dnn.ArgumentError, match=f"{VARIABLE}=off"):
        install_database(tmp_path / "source.json")


def test_a_tilde_in_the_setting_is_the_home_folder(
    gpu: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "~/mine")
    monkeypatch.chdir(tmp_path)
    install(gpu, tmp_path, ALGORITHM)
    assert not (tmp_path / "~").exists()
    assert len([*(tmp_path / "mine").glob("*.json")]) == 1
    assert find_choice(gpu, PROBLEM) == ALGORITHM


def test_calls_go_on_if_the_setting_is_not_a_path(
    gpu: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "~nobody-has-this-name/databases")
    assert find_choice(gpu, PROBLEM) is None
    assert "CUDNNLITE_DATABASE='~nobody-has-this-name/databases' is not the path" in caplog.text
    with pytest.raises(dnn.ArgumentError, match="is not the path of a folder"):
        install_database(SHIPPED_FILE)


def test_calls_go_on_beside_a_file_that_is_no_database(
    gpu: Any, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(gpu, tmp_path, ALGORITHM)
    (folder / "a.json").write_text("{}")
    assert find_choice(gpu, PROBLEM) == ALGORITHM
    (record,) = caplog.records
    assert record.message.startswith(f"a database is not used: {folder / 'a.json'} is no database")


@pytest.mark.parametrize(
    "facts", [{"cudnn": "9.0"}, {"compute_capability": "8.0"}], ids=["cudnn", "architecture"]
)
def test_other_versions_and_architectures_are_not_used(
    gpu: Any, folder: Path, tmp_path: Path, facts: dict[str, str]
) -> None:
    install(gpu, tmp_path, ALGORITHM, **facts)
    assert find_choice(gpu, PROBLEM) is None


def test_rows_of_the_same_model_count_more(gpu: Any, folder: Path, tmp_path: Path) -> None:
    install(gpu, tmp_path, ALGORITHM, gpu="Pretend H100")
    assert find_choice(gpu, PROBLEM) == ALGORITHM
    install(gpu, tmp_path, ENGINE)
    assert find_choice(gpu, PROBLEM) == ENGINE
    install(gpu, tmp_path, CONVERTED, gpu="A Pretend H100")
    assert find_choice(gpu, PROBLEM) == ENGINE


@pytest.mark.parametrize(
    "choice",
    [
        dnn.AlgorithmResult(dnn.Engine(99), M.FMA),
        dnn.AlgorithmResult(dnn.Engine(0, {2: 99}), M.FMA),
        dnn.AlgorithmResult(A.WINOGRAD_NONFUSED, M.TENSOR_OP_ALLOW_CONVERSION),
    ],
    ids=str,
)
def test_a_row_that_cannot_be_used_is_passed_over(
    gpu: Any,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    choice: dnn.AlgorithmResult,
) -> None:
    install(gpu, tmp_path, choice)
    with (
        caplog.at_level("INFO", "cudnnlite"),
        dnn.Handle(gpu) as handle,
        dnn.convolution_forward.plan(handle, X, W, CONV) as plan,
    ):
        assert plan.choice.source == HEURISTIC
    assert "passed over" in caplog.text


def test_a_row_beyond_the_workspace_limit(gpu: Any, folder: Path, tmp_path: Path) -> None:
    install(gpu, tmp_path, CONVERTED)
    assert find_choice(gpu, PROBLEM, limit=1 << 16) == CONVERTED
    assert find_choice(gpu, PROBLEM, limit=(1 << 16) - 1) is None
    assert find_choice(gpu, PROBLEM, interface="graph") == CONVERTED
    assert find_choice(gpu, PROBLEM, interface="descriptor") is None


def test_a_tuner_that_does_not_measure_asks_it(gpu: Any, folder: Path, tmp_path: Path) -> None:
    install(gpu, tmp_path, ALGORITHM)
    with dnn.Handle(gpu) as handle, dnn.Tuner(handle, ":memory:", measure=False) as tuner:
        assert tuner.choose(PROBLEM, for_call=True).source == DATABASE


def test_a_policy_without_layouts_takes_no_conversion(
    gpu: Any, folder: Path, tmp_path: Path
) -> None:
    install(gpu, tmp_path, CONVERTED)
    with dnn.Handle(gpu) as handle:
        for layouts, source in ((None, DATABASE), ("NHWC", DATABASE), ((), HEURISTIC)):
            policy = dnn.TuningPolicy(layouts=layouts)
            with (
                warnings.catch_warnings(),
                dnn.Tuner(handle, ":memory:", policy, measure=False) as tuner,
            ):
                warnings.simplefilter("ignore", dnn.TuningWarning)  # nothing was tuned
                choice = tuner.choose(PROBLEM, for_call=True)
                assert choice.source == source
                assert bool(choice.layout) == (source == DATABASE)


def test_an_allowed_choice_takes_the_place_of_a_row_that_cannot_be_used(
    gpu: Any, folder: Path, tmp_path: Path
) -> None:
    install(gpu, tmp_path, dnn.AlgorithmResult(dnn.Engine(99), M.FMA))
    with dnn.Handle(gpu) as handle:
        x, w = handle.full(X.shape, 1), handle.full(W.shape, 1)
        policy = dnn.TuningPolicy(math_type="fma")
        with (
            warnings.catch_warnings(),
            dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False),
        ):
            warnings.simplefilter("ignore", dnn.TuningWarning)  # nothing was tuned
            with dnn.convolution_forward.plan(handle, x, w, CONV) as plan:
                assert plan.choice.source == HEURISTIC
                assert plan.choice.math_type == M.FMA


@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
def test_what_replaces_a_row_that_cannot_be_used_is_each_tuners(
    gpu: Any, folder: Path, tmp_path: Path
) -> None:
    row = dnn.AlgorithmResult(dnn.Engine(99), M.FMA, deterministic=True, error=1e-7)
    install(gpu, tmp_path, row)
    rng = np.random.default_rng(0)
    with dnn.Handle(gpu) as handle:
        x = handle.array(rng.standard_normal(X.shape), dtype="float32")
        w = handle.array(rng.standard_normal(W.shape), dtype="float32")
        fma = CONV.replace(math_type="fma")
        expected = dnn.convolution_forward(handle, x, w, fma, algorithm="IMPLICIT_GEMM").numpy()
        results = []
        for policy in (dnn.TuningPolicy(), dnn.TuningPolicy(allow_tf32=False)):
            with dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False):
                results.append(dnn.convolution_forward(handle, x, w, CONV).numpy())
        tf32, exact = (np.abs(result - expected).max() for result in results)
        assert exact < 1e-5 < tf32


@pytest.mark.filterwarnings("ignore::cudnnlite.TuningWarning")
def test_a_row_that_a_policy_excludes_is_not_used_because_a_call_used_it(
    gpu: Any, folder: Path, tmp_path: Path
) -> None:
    install(gpu, tmp_path, dnn.AlgorithmResult(A.IMPLICIT_GEMM, M.FMA, error=1e-2))
    with dnn.Handle(gpu) as handle:
        x, w = handle.full(X.shape, 1), handle.full(W.shape, 1)
        dnn.convolution_forward(handle, x, w, CONV)
        policy = dnn.TuningPolicy(max_error=1e-6)
        with dnn.autotuned(handle, cache=":memory:", policy=policy, measure=False):
            dnn.convolution_forward(handle, x, w, CONV)
        kept = [entry for entry, _ in handle.plans._cached.values()]
        sources = {entry.choice.source for entry in kept if isinstance(entry, ConvolutionPlan)}
        assert sources == {DATABASE, HEURISTIC}


def test_operands_that_are_not_aligned(gpu: Any, folder: Path, tmp_path: Path) -> None:
    """A row's engine needs aligned operands, and other calls of the plan do not fail."""
    install(gpu, tmp_path, ENGINE)
    with dnn.Handle(gpu) as handle:
        memory = handle.full((X.size + 1,), 1)
        x = part_of(memory, X, 4)
        w = handle.full(W.shape, 1)
        with dnn.convolution_forward.plan(handle, X, W, CONV) as plan:
            assert plan.choice.source == DATABASE
            assert plan(x, w).numpy()[0, 0, 1, 1] == 36
        assert dnn.convolution_forward(handle, x, w, CONV).numpy()[0, 0, 1, 1] == 36
        memory.close()


def similar(size: int) -> Any:
    """Return a problem of the family of PROBLEM."""
    return dnn.convolution_forward.problem(dnn.TensorSpec((2, 4, size, 8)), W, CONV)


def test_problems_of_other_types_and_filters_are_another_family() -> None:
    half = dnn.convolution_forward.problem(
        dnn.TensorSpec(X.shape, "float16"), dnn.FilterSpec(W.shape, "float16"), CONV
    )
    point = dnn.convolution_forward.problem(X, dnn.FilterSpec((6, 4, 1, 1)), CONV)
    grouped = dnn.convolution_forward.problem(
        X, dnn.FilterSpec((6, 2, 3, 3)), CONV.replace(groups=2)
    )
    depthwise = dnn.convolution_forward.problem(
        X, dnn.FilterSpec((8, 1, 3, 3)), CONV.replace(groups=4)
    )
    others = (half, point, grouped, depthwise)
    assert len({family_of(problem) for problem in (PROBLEM, *others)}) == 5


def test_graphs_of_other_operations_or_filters_are_another_family() -> None:
    """cuDNN numbers the engines of each operation anew."""
    x = dnn.TensorSpec((2, 8, 9, 7), "float16")
    convolutions = [
        dnn.convolution_forward.problem(
            x, dnn.FilterSpec(shape, "float16"), CONV.replace(groups=groups), epilogue="gelu"
        )
        for shape, groups in (
            ((16, 8, 3, 3), 1),
            ((16, 8, 1, 1), 1),
            ((16, 4, 3, 3), 2),
            ((16, 1, 3, 3), 8),
        )
    ]
    problems = [attention_problem(1, 2, 64, 32, "float16"), *convolutions]
    assert {problem.kind for problem in problems} == {"graph"}
    assert len({family_of(problem) for problem in problems}) == len(problems)


def test_choices_are_added_to_those_that_are_installed(
    gpu: Any, folder: Path, tmp_path: Path
) -> None:
    install(gpu, tmp_path, ENGINE)
    other = new_database(gpu)
    other.put(similar(20), ALGORITHM)
    write_database(other, tmp_path / "other.json")
    target = install_database(tmp_path / "other.json")
    assert list(target.parent.glob("*")) == [target]
    both = read_database(target)
    assert both.find(PROBLEM) == ENGINE
    assert both.find(similar(20)) == ALGORITHM
    install(gpu, tmp_path, CONVERTED)
    assert read_database(target).find(PROBLEM) == CONVERTED
    assert len(read_database(target)) == 2
    other_format = target.read_text().replace('"format": 2', '"format": 3')
    target.write_text(other_format)
    with pytest.raises(dnn.ArgumentError, match="format 3; this cudnnlite reads 2"):
        install(gpu, tmp_path, ENGINE)
    assert target.read_text() == other_format


def test_a_whole_networks_plans_are_kept(
    gpu: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tuner's plan has two keys; training ResNet-50 has 69 problems."""
    database = new_database(gpu)
    sizes = range(10, 160)
    for size in sizes:
        database.put(similar(size), dnn.AlgorithmResult(A.IMPLICIT_GEMM, M.FMA))
    write_database(database, tmp_path / "source.json")
    install_database(tmp_path / "source.json")
    prepare, plans = ConvolutionPlan.prepare, []

    def counted(plan: ConvolutionPlan) -> ConvolutionPlan:
        plans.append(plan.choice)
        return prepare(plan)

    monkeypatch.setattr(ConvolutionPlan, "prepare", counted)
    with dnn.Handle(gpu) as handle, dnn.autotuned(handle, cache=":memory:", measure=False):
        w = handle.full(W.shape, 1)
        for _ in range(2):
            for size in sizes:
                dnn.convolution_forward(handle, handle.empty((2, 4, size, 8)), w, CONV)
        assert len(plans) == len(sizes)


# ---------------------------------------------------------------- recording


def test_recording_goes_on_where_it_stopped(gpu: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    other = dnn.convolution_forward.problem(X, W)
    empty = dnn.convolution_forward.problem(dnn.TensorSpec((0, 4, 9, 8)), W)
    lines: list[str] = []
    with dnn.Handle(gpu) as handle:
        nothing = record_database(handle, [PROBLEM], file, seconds=-1.0)
        assert nothing == (0, 0, 0, 1)
        first = record_database(handle, [PROBLEM, empty], file, report=lines.append)
        assert first == (0, 1, 1, 0)
        second = record_database(handle, [PROBLEM, other], file)
        assert second == (1, 1, 0, 0)
    assert len(lines) == 1
    database = read_database(file)
    assert len(database) == 2
    assert (database.gpu, database.compute_capability) == ("Pretend H200", "9.0")
    assert database.find(PROBLEM).ok


def timed(algorithm: Any, time_ms: float, call_us: float | None, **fields: Any) -> Any:
    return dnn.AlgorithmResult(
        algorithm, M.FMA, time_ms=time_ms, spread_ms=0.0, call_us=call_us, **fields
    )


def test_the_shortest_call_on_a_typical_host_is_recorded() -> None:
    """The device waits for the host of the one that launches many kernels."""
    fastest = timed(A.GEMM, 0.010, 19.0, host_us=9.0)
    slower = timed(A.DIRECT, 0.014, 14.0, host_us=8.0)
    many_kernels = timed(A.FFT, 0.009, 70.0, host_us=70.0)
    not_timed = timed(A.WINOGRAD, 0.050, None)
    replayed = timed(A.GEMM, 0.008, 9.0, replay=True)
    failed = timed(A.FFT_TILING, 0.001, 1.0, why_not="wrong")
    rows = [replayed, slower, fastest, many_kernels, not_timed, failed]
    chosen = best_on_a_typical_host(rows)
    assert chosen is not None
    assert (chosen.algorithm, chosen.time_ms) == (A.GEMM, 0.010)
    assert best_on_a_typical_host([failed, replayed]) is None


@pytest.mark.parametrize("host_ratio", [1.0, 1.5])
def test_a_slow_host_does_not_change_what_is_recorded(host_ratio: float) -> None:
    """The calls take 15 us, of the device, and 12 us, of a typical host."""
    few_launches = timed(A.GEMM, 0.015, 15.0, host_us=8.0 * host_ratio)
    more_launches = timed(A.DIRECT, 0.005, 12.0 * host_ratio, host_us=12.0 * host_ratio)
    chosen = best_on_a_typical_host([few_launches, more_launches])
    assert chosen is not None
    assert chosen.algorithm == A.DIRECT


def test_candidates_that_all_take_the_host_long_are_not_scaled_to_a_typical_host() -> None:
    long_call = timed(A.GEMM, 0.3, 900.0, host_us=890.0)
    other = timed(A.DIRECT, 0.5, 500.0, host_us=390.0)
    chosen = best_on_a_typical_host([long_call, other])
    assert chosen is not None
    assert chosen.algorithm == A.DIRECT


def test_the_device_decides_between_calls_that_the_host_makes_equal() -> None:
    slow, fast = timed(A.GEMM, 0.007, 8.0, host_us=8.0), timed(A.DIRECT, 0.004, 8.3, host_us=8.3)
    chosen = best_on_a_typical_host([slow, fast])
    assert chosen is not None
    assert chosen.algorithm == A.DIRECT


def test_the_workspace_decides_between_equals() -> None:
    small = timed(A.GEMM, 0.0100, 19.0, host_us=6.3)
    large = timed(A.DIRECT, 0.0100, 12.0, host_us=6.0, workspace=1 << 20)
    chosen = best_on_a_typical_host([small, large])
    assert chosen is not None
    assert chosen.algorithm == A.GEMM


@pytest.mark.parametrize(
    ("compiled_ms", "ready_ms", "is_worth_it"),
    [(0.100, 0.105, False), (0.100, 0.115, True), (0.004, 0.005, False), (0.004, 0.007, True)],
)
def test_a_compiled_engine_has_to_gain_enough(
    compiled_ms: float, ready_ms: float, is_worth_it: bool
) -> None:
    """More than a tenth, and two microseconds; it makes the first call long."""
    compiled = timed(dnn.Engine(70), compiled_ms, 1000 * compiled_ms, compiled=True)
    untimed = dnn.AlgorithmResult(dnn.Engine(71), M.FMA, compiled=True)
    ready = timed(dnn.Engine(62), ready_ms, 1000 * ready_ms)
    chosen = best_on_a_typical_host([untimed, compiled, ready])
    assert chosen is not None
    assert chosen.algorithm == (compiled if is_worth_it else ready).algorithm
    for rows in ([untimed, compiled], [compiled], [untimed]):  # as for attention
        only = best_on_a_typical_host(rows)
        assert only is not None
        assert only.algorithm == (untimed if rows == [untimed] else compiled).algorithm


def test_no_first_call_compiles_for_a_minute() -> None:
    R = dnn.RNNAlgo
    compiled, standard = timed(R.PERSIST_DYNAMIC, 0.1, 100.0), timed(R.STANDARD, 0.2, 200.0)
    chosen = best_on_a_typical_host([compiled, standard])
    assert chosen is not None
    assert chosen.algorithm == R.STANDARD


def test_nothing_is_recorded_if_a_candidate_lacked_memory(
    gpu: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the best: another time it is recorded."""
    file = tmp_path / "new.json"
    lines: list[str] = []
    with dnn.Handle(gpu) as handle:
        allocate = gpu.allocate

        def lacking(nbytes: int, stream: Any) -> Any:
            if nbytes > 20_000:
                raise dnn.DeviceMemoryError("not now")
            return allocate(nbytes, stream)

        monkeypatch.setattr(gpu, "allocate", lacking)
        with pytest.warns(dnn.TuningWarning, match="perhaps temporarily"):
            assert record_database(handle, [PROBLEM], file, report=lines.append)[:3] == (0, 0, 1)
        free_bytes, total_bytes = gpu.memory_info()
        monkeypatch.setattr(gpu, "memory_info", lambda: (20_000, total_bytes))
        # What does not fit the memory that was free will not fit the next time.
        small = tmp_path / "small.json"
        with pytest.warns(dnn.TuningWarning, match="perhaps temporarily"):
            assert record_database(handle, [PROBLEM], small)[:3] == (0, 1, 0)
        monkeypatch.setattr(gpu, "memory_info", lambda: (free_bytes, total_bytes))
        monkeypatch.setattr(gpu, "allocate", allocate)
        assert record_database(handle, [PROBLEM], file)[:3] == (0, 1, 0)
    assert "perhaps temporarily" in lines[0]


def test_a_file_of_another_gpu_is_not_continued(gpu: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    database = new_database(gpu)
    database.gpu = "Another"
    write_database(database, file)
    with dnn.Handle(gpu) as handle, pytest.raises(dnn.ArgumentError, match="gpu='Another'"):
        record_database(handle, [PROBLEM], file)
    assert read_database(file).gpu == "Another"


def test_an_interrupt_keeps_what_was_recorded(gpu: Any, folder: Path, tmp_path: Path) -> None:
    def problems() -> Any:
        yield PROBLEM
        raise KeyboardInterrupt

    file = tmp_path / "new.json"
    with dnn.Handle(gpu) as handle, pytest.raises(KeyboardInterrupt):
        record_database(handle, problems(), file)
    assert len(read_database(file)) == 1


def test_nothing_of_the_emulated_device_is_recorded(tmp_path: Path) -> None:
    with dnn.Handle("emulated") as handle, pytest.raises(dnn.ArgumentError, match="never recorded"):
        record_database(handle, [PROBLEM], tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
    with dnn.Handle("emulated") as handle:
        assert database_of(handle.device) is None


def test_the_files_that_come_along_are_of_gpus() -> None:
    files = sorted(database_module.SHIPPED.glob("*.json"))
    for file in files:
        database = read_database(file)
        assert "emulated" not in database.gpu
        assert file.name == database_module.file_name_of(database)
        assert file.stat().st_size < 1 << 20
        listed = {digest_of(problem) for problem in network_problems()}
        assert all(listed.issuperset(rows) for rows in database.families.values())


# ---------------------------------------------------------------- the list of layers


def test_the_list_has_no_problem_twice() -> None:
    problems = list(network_problems())
    assert len({digest_of(problem) for problem in problems}) == len(problems)


def test_the_list_has_resnet50() -> None:
    """The same layers as in the list of the benchmarks, which was written by hand."""
    text = (Path(dnn.__file__).parent / "bench" / "lists" / "resnet50.json").read_text()
    digests = {digest_of(problem) for problem in network_problems(["resnet50"])}
    for c, h, w, k, r, s, padding, stride, _ in json.loads(text)["rows"]:
        problem = dnn.convolution_forward.problem(
            dnn.TensorSpec((32, c, h, w)),
            dnn.FilterSpec((k, c, r, s)),
            dnn.ConvolutionSpec(padding=padding, stride=stride),
        )
        assert digest_of(problem) in digests


def test_names_of_networks() -> None:
    assert {"resnet50", "whisper", "c3d", "llama_7b", "lstm"} <= set(network_names())
    kinds = {problem.kind for problem in network_problems(["lstm", "gpt2"])}
    assert kinds == {"rnn_forward", "graph"}
    with pytest.raises(dnn.ArgumentError, match="nonesuch"):
        next(network_problems(["nonesuch"]))


def test_the_kinds_that_have_rows() -> None:
    """What has none is not looked up: each call of a recurrent network would be."""
    database = Database("NVIDIA H200", "9.0", "9.19")
    assert database.kinds == frozenset()
    database.put(PROBLEM, dnn.AlgorithmResult(dnn.Engine(3), dnn.MathType.FMA))
    assert database.kinds == {PROBLEM.kind}
    assert Database.from_json(database.to_json(), "text").kinds == {PROBLEM.kind}
