"""Compiled plans in a tuning cache: restored, signed, damaged, foreign, of another device."""

import errno
import hashlib
import json
import logging
import os
import shutil
import stat

import numpy as np
import pytest
from tolerances import GRAPH_BOUNDS, assert_close

import cudnnlite as dnn
from cudnnlite.emulated.engines import FORMULA_ENGINE
from cudnnlite.plans.choice import set_chooser
from cudnnlite.types import BackendDescriptor
from cudnnlite.workbench.tuning import account_key as account_module
from cudnnlite.workbench.tuning.account_key import account_key
from cudnnlite.workbench.tuning.cache import TuningCache
from cudnnlite.workbench.tuning.entries import DeviceIdentity
from cudnnlite.workbench.tuning.plan_files import PlanFiles, plan_files

H200 = DeviceIdentity("NVIDIA H200", "9.0", "580.1", 91900)
SUBJECT = "ab" * 32
TEXT = '{"cudnnVersion":91900,"engine":{"cubin":"f0VMRgIBATMHAAAA"}}'


@pytest.fixture(autouse=True)
def account(monkeypatch, tmp_path):
    """Give the tests an account of their own: a cache folder with its key."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "account"))


@pytest.fixture
def other_account(monkeypatch, tmp_path):
    """Return a function that lets the rest of a test run as another account."""
    return lambda name="other": monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))


@pytest.fixture
def messages(caplog):
    caplog.set_level(logging.DEBUG, "cudnnlite")
    return lambda: " | ".join(record.getMessage() for record in caplog.records)


def store(folder, device=H200, *, read_only=False, trust_code=False):
    return PlanFiles(folder, device, read_only=read_only, trust_code=trust_code)


def product(rows=6, columns=10):
    graph = dnn.Graph()
    a = graph.input("a", (1, rows, 8), "float16")
    b = graph.input("b", (1, 8, columns), "float16")
    graph.output("y", graph.relu(graph.matmul(a, b)), "float16")
    return graph


def run(handle, graph, **how):
    """Return the result of a plan that is made now, after a comparison with NumPy."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(t.shape).astype(np.float16) for t in graph.inputs.values())
    with graph.plan(handle, **how) as plan:
        y = plan(handle.array(a), handle.array(b))["y"].numpy()
    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0)
    assert_close(y, expected, GRAPH_BOUNDS["product"]["float16"])
    return y


@pytest.fixture
def texts(monkeypatch):
    """Return the list of all JSON that a descriptor is given."""
    given = []
    real_set = BackendDescriptor.set

    def recording_set(self, name, value, type_name=None):
        if name == "json_representation":
            given.append(value)
        real_set(self, name, value, type_name)

    monkeypatch.setattr(BackendDescriptor, "set", recording_set)
    return given


def change(folder, old, new):
    """Replace bytes in the only plan of a cache."""
    (file,) = plan_files(folder)
    data = file.read_bytes()
    assert old in data
    file.write_bytes(data.replace(old, new, 1))


# ---------------------------------------------------------------- files


def test_what_is_kept_is_found(tmp_path):
    assert store(tmp_path).find(SUBJECT) is None
    store(tmp_path).keep(SUBJECT, TEXT)
    assert store(tmp_path).find(SUBJECT) == TEXT
    assert store(tmp_path).find("cd" * 32) is None
    store(tmp_path).keep(SUBJECT, TEXT + " ")
    assert store(tmp_path).find(SUBJECT) == TEXT + " "
    assert len(plan_files(tmp_path)) == 1


def test_the_driver_does_not_matter(tmp_path):
    store(tmp_path).keep(SUBJECT, TEXT)
    assert store(tmp_path, DeviceIdentity("NVIDIA H200", "9.0", "999.9", 91900)).find(SUBJECT)


@pytest.mark.parametrize(
    "identity",
    [
        DeviceIdentity("NVIDIA H200", "9.0", "580.1", 92800),
        DeviceIdentity("NVIDIA H100 PCIe", "9.0", "580.1", 91900),
        DeviceIdentity("NVIDIA H200", "10.0", "580.1", 91900),
    ],
)
def test_a_plan_for_another_device_or_version_is_made_anew(tmp_path, messages, identity):
    store(tmp_path).keep(SUBJECT, TEXT)
    other = store(tmp_path, identity)
    assert other.find(SUBJECT) is None
    assert "it is for NVIDIA H200 with cuDNN 9.19.0; the plan is made anew" in messages()
    other.keep(SUBJECT, "{}")
    assert (store(tmp_path).find(SUBJECT), other.find(SUBJECT)) == (TEXT, "{}")


@pytest.mark.parametrize("length", [0, 1, 10, 100, 300, -1])
def test_a_file_that_is_cut_off_is_a_miss(tmp_path, messages, length):
    store(tmp_path).keep(SUBJECT, TEXT)
    (file,) = plan_files(tmp_path)
    file.write_bytes(file.read_bytes()[:length])
    assert store(tmp_path).find(SUBJECT) is None
    assert "it is damaged; the plan is made anew" in messages()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"f0VMRg", b"f0VMRh"),
        (b'"format": 1', b'"format": 2'),
        (b"abababab", b"abababac"),
        (b"NVIDIA H200", b"NVIDIA H100"),
        (b"{", b"["),
        (b'"signature": "', b'"signature": 3, "other": "'),
        (b'"signature": "', b'"signature": "\\u00e4'),
    ],
)
def test_a_file_that_was_changed_is_a_miss(tmp_path, messages, old, new):
    store(tmp_path).keep(SUBJECT, TEXT)
    change(tmp_path, old, new)
    for trust_code in (False, True):
        if not (trust_code and old == b'"signature": "'):
            assert store(tmp_path, trust_code=trust_code).find(SUBJECT) is None
    assert "the plan is made anew" in messages()


def test_a_file_with_the_name_of_another_is_a_miss(tmp_path):
    for subject in ("ab" * 32, "cd" * 32):
        store(tmp_path).keep(subject, TEXT)
    first, second = plan_files(tmp_path)
    shutil.copy(first, second)
    assert store(tmp_path).find("cd" * 32) is None
    assert store(tmp_path).find("ab" * 32) == TEXT


def test_a_signature_of_another_account_is_no_signature(tmp_path, other_account):
    store(tmp_path).keep(SUBJECT, TEXT)
    (file,) = plan_files(tmp_path)
    other_account()
    assert store(tmp_path).find(SUBJECT) is None
    # Nor is it one under the name that this account would have given the file.
    ours = store(tmp_path)._own_file(SUBJECT)
    shutil.copy(file, ours)
    assert store(tmp_path).find(SUBJECT) is None
    assert store(tmp_path, trust_code=True).find(SUBJECT) == TEXT


def test_accounts_do_not_replace_each_other_s_plans(tmp_path, other_account):
    store(tmp_path).keep(SUBJECT, TEXT)
    other_account()
    store(tmp_path).keep(SUBJECT, "{}")
    assert store(tmp_path).find(SUBJECT) == "{}"
    other_account("account")
    assert store(tmp_path).find(SUBJECT) == TEXT


def test_a_read_only_cache_is_not_written(tmp_path):
    store(tmp_path, read_only=True).keep(SUBJECT, TEXT)
    assert not (tmp_path / "plans").exists()
    store(tmp_path).keep(SUBJECT, TEXT)
    store(tmp_path, read_only=True).discard(SUBJECT, "cuDNN refuses it")
    assert store(tmp_path, read_only=True).find(SUBJECT) == TEXT


def test_a_folder_that_cannot_be_written_is_logged(tmp_path, messages):
    (tmp_path / "plans").write_text("a file")
    store(tmp_path).keep(SUBJECT, TEXT)
    assert "the compiled plan is not kept" in messages()
    assert store(tmp_path).find(SUBJECT) is None


# Processes that write one plan after the other are killed, most of them when they have written one;
# prints after how many there was a plan.
_KILL_WRITERS = """
import os, random, signal, sys, time
from pathlib import Path
from cudnnlite.workbench.tuning.entries import DeviceIdentity
from cudnnlite.workbench.tuning.plan_files import PlanFiles

kills, subject, found = int(sys.argv[2]), "ab" * 32, 0
device = DeviceIdentity("NVIDIA H200", "9.0", "580.1", 91900)
files = PlanFiles(Path(sys.argv[1]), device, read_only=False, trust_code=False)
random.seed(7)
for kill in range(kills):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        number = 0
        while True:
            number += 1
            files.keep(subject, f"{kill}.{number} " * 15000)
            if number == 1:
                os.write(writer, b"1")
    os.close(writer)
    if kill % 4:
        os.read(reader, 1)
    time.sleep(random.uniform(0, 0.01))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    text = files.find(subject)
    if text is not None:
        found += 1
        start = text.split(" ", 1)[0]
        assert text == f"{start} " * 15000, text[:100]
print(found)
"""


@pytest.mark.processes
def test_a_process_that_is_killed_leaves_no_half_of_a_plan(commands, tmp_path):
    """With CUDNNLITE_TEST_KILLS=1000 it takes half a minute."""
    kills = int(os.environ.get("CUDNNLITE_TEST_KILLS", "50"))
    process = commands.run_code(_KILL_WRITERS, tmp_path, kills)
    assert int(process.stdout) > kills // 2
    assert len(plan_files(tmp_path)) == 1
    assert store(tmp_path).find(SUBJECT)


# ---------------------------------------------------------------- the key of an account


def test_the_key_is_private_and_made_once(tmp_path):
    key = account_key()
    assert len(key) == 32
    assert account_key() == key
    file = account_module._key_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_key_that_others_know_is_not_used(tmp_path, messages, mode):
    store(tmp_path).keep(SUBJECT, TEXT)
    account_module._key_file().chmod(mode)
    assert account_key() is None
    assert store(tmp_path).find(SUBJECT) is None
    store(tmp_path).keep("cd" * 32, TEXT)
    assert len(plan_files(tmp_path)) == 1
    assert "is not a private key of this user" in messages()


def test_a_damaged_key_is_not_used(tmp_path):
    account_key()
    account_module._key_file().write_bytes(b"short")
    assert account_key() is None


def test_a_cache_folder_that_cannot_be_written_has_no_key(monkeypatch, tmp_path, messages):
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert account_key() is None
    assert "compiled plans are not kept" in messages()
    store(tmp_path).keep(SUBJECT, TEXT)
    assert plan_files(tmp_path) == []


# ---------------------------------------------------------------- caches


def test_merge_takes_choices_and_no_code(tmp_path, other_account):
    store(tmp_path / "theirs").keep(SUBJECT, TEXT)
    other_account()
    with TuningCache(tmp_path / "ours") as cache:
        cache.merge(tmp_path / "theirs")
        assert plan_files(tmp_path / "ours") == []
        cache.merge(tmp_path / "theirs", trust_code=True)
    assert store(tmp_path / "ours").find(SUBJECT) == TEXT


def test_merge_leaves_out_what_is_damaged(tmp_path, other_account, messages):
    store(tmp_path / "theirs").keep(SUBJECT, TEXT)
    change(tmp_path / "theirs", b"f0VMRg", b"f0VMRh")
    other_account()
    with TuningCache(tmp_path / "ours") as cache:
        cache.merge(tmp_path / "theirs", trust_code=True)
    assert plan_files(tmp_path / "ours") == []
    assert "is damaged, and not taken over" in messages()


def test_export_takes_plans_that_only_their_account_restores(tmp_path, other_account):
    store(tmp_path / "cache").keep(SUBJECT, TEXT)
    with TuningCache(tmp_path / "cache") as cache:
        cache.export(tmp_path / "exported")
    assert store(tmp_path / "exported").find(SUBJECT) == TEXT
    other_account()
    assert store(tmp_path / "exported").find(SUBJECT) is None
    with TuningCache(tmp_path / "exported", trust_code=True, read_only=True) as cache:
        assert cache.plans_for(H200).find(SUBJECT) == TEXT


def test_clear_removes_plans(tmp_path):
    newer = DeviceIdentity("NVIDIA H200", "9.0", "580.1", 92800)
    for device in (H200, newer):
        store(tmp_path, device).keep(SUBJECT, TEXT)
    with TuningCache(tmp_path) as cache:
        cache.clear(kind="rnn_forward")
        assert len(plan_files(tmp_path)) == 2
        cache.clear(cudnn=91900)
        assert store(tmp_path, newer).find(SUBJECT) == TEXT
        assert store(tmp_path).find(SUBJECT) is None
        cache.clear()
    assert plan_files(tmp_path) == []


def test_a_cache_in_memory_has_no_plans():
    with TuningCache(":memory:") as cache:
        assert cache.plans_for(H200) is None


# ---------------------------------------------------------------- plans


@pytest.fixture
def stored(own_handle, tmp_path):
    """Return a handle whose compiled plans are kept in a folder."""
    set_chooser(own_handle, None, store(tmp_path, DeviceIdentity.of(own_handle.device)))
    return own_handle


def test_a_restored_plan_computes_the_same_bits(stored, tmp_path, texts):
    first = run(stored, product())
    assert texts == []
    (file,) = plan_files(tmp_path)
    second = run(stored, product())
    assert len(texts) == 1
    assert file.read_bytes().endswith(texts[0].encode())
    assert first.tobytes() == second.tobytes()


def test_another_graph_or_engine_has_another_plan(stored, tmp_path, texts):
    for graph in (product(), product(rows=7), product(columns=11)):
        run(stored, graph)
    run(stored, product(), engine=dnn.types.Engine(FORMULA_ENGINE, {"TILE_SIZE": 1}))
    assert len(plan_files(tmp_path)) == 4
    assert texts == []
    run(stored, product(rows=7))
    assert len(texts) == 1


def test_engines_that_are_not_compiled_have_no_file(stored, tmp_path):
    x, w = stored.zeros((2, 4, 5, 6)), stored.zeros((8, 4, 3, 3))
    with dnn.convolution_forward.plan(stored, x, w, algorithm=dnn.types.Engine(1)):
        assert plan_files(tmp_path) == []
    with dnn.convolution_forward.plan(stored, x, w, algorithm=dnn.types.Engine(6)):
        assert len(plan_files(tmp_path)) == 1


def test_nothing_of_a_foreign_plan_is_executed(stored, tmp_path, texts, other_account):
    """A plan with a mark, of another account: cuDNN never sees it, and the plan is made anew."""
    run(stored, product())
    (file,) = plan_files(tmp_path)
    head, _, plan = file.read_bytes().partition(b"\n")
    marked = plan.replace(b'"emulated"', b'"MARK": 1, "emulated"')
    header = json.loads(head)
    header["sha256"] = hashlib.sha256(marked).hexdigest()
    file.write_bytes(json.dumps(header).encode() + b"\n" + marked)
    run(stored, product())
    assert not any("MARK" in text for text in texts)
    assert b"MARK" not in file.read_bytes()  # it was made anew
    # As another account writes it, with a key of its own.
    identity = DeviceIdentity.of(stored.device)
    other_account()
    store(tmp_path, identity).keep("ef" * 32, marked.decode())
    (foreign,) = [path for path in plan_files(tmp_path) if path != file]
    shutil.copy(foreign, file)
    other_account("account")
    run(stored, product())
    assert not any("MARK" in text for text in texts)


def test_what_cudnn_does_not_restore_is_made_anew(stored, tmp_path, texts, messages):
    run(stored, product())
    (file,) = plan_files(tmp_path)
    whole = file.read_bytes()
    subject = json.loads(whole.partition(b"\n")[0])["subject"]
    stored._plan_store.keep(subject, '{"emulated": true, "objects": []}')
    run(stored, product())
    assert "cuDNN does not restore it" in messages()
    assert file.read_bytes() == whole
    run(stored, product())
    assert len(texts) == 2


def test_a_plan_is_kept_beside_the_choice(own_handle, tmp_path, monkeypatch, texts):
    """What was tuned is restored by the next process; the emulated device stands for a GPU here."""
    folder = store(tmp_path, DeviceIdentity.of(own_handle.device))
    monkeypatch.setattr(dnn.Tuner, "plan_store", folder)
    graph = product()
    with dnn.autotuned(own_handle, cache=":memory:") as tuner:
        assert own_handle._plan_store is folder
        choice = tuner.tune(graph).best()
        (file,) = plan_files(tmp_path)
        assert texts == []
        run(own_handle, product())
        assert len(texts) == 1
        assert plan_files(tmp_path) == [file]
    assert own_handle._plan_store is None
    assert choice.algorithm.index == FORMULA_ENGINE


# ---------------------------------------------------------------- what is no file of a cache

NO_FILES = {
    "a pipe": (os.mkfifo, "is no regular file"),
    "a link to a device": (lambda file: file.symlink_to("/dev/zero"), "is no regular file"),
    "a folder": (os.mkdir, "is no regular file"),
    "terabytes": (lambda file: (file.touch(), os.truncate(file, 1 << 40)), "is larger than 64 MiB"),
    "a memory of a process": (lambda file: file.symlink_to("/proc/self/mem"), "cannot be read"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.timeout(60)
def test_what_is_no_plan_s_file_is_not_read(tmp_path, messages, kind):
    """It would never end, or wait for somebody who writes."""
    (make, why), folder = NO_FILES[kind], tmp_path / "tuning"
    store(folder).keep(SUBJECT, TEXT)
    (file,) = plan_files(folder)
    file.unlink()
    make(file)
    assert store(folder).find(SUBJECT) is None
    assert why in messages()
    other = store(folder, DeviceIdentity("NVIDIA H100", "9.0", "580.1", 91900))
    assert other.find(SUBJECT) is None
    if kind == "a memory of a process":
        return
    with TuningCache(folder) as cache:
        assert cache.export(tmp_path / "copy") == 0
        with TuningCache(tmp_path / "merged") as merged:
            assert merged.merge(folder, trust_code=True) == 0
    assert plan_files(tmp_path / "copy") == plan_files(tmp_path / "merged") == []


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.timeout(60)
def test_what_is_no_key_s_file_is_not_read(messages, kind):
    file = account_module._key_file()
    file.parent.mkdir(parents=True)
    NO_FILES[kind][0](file)
    assert account_key() is None
    assert "compiled plans are not kept" in messages()


def test_a_folder_that_cannot_be_listed_is_told_once(tmp_path, monkeypatch, messages):
    store(tmp_path).keep(SUBJECT, TEXT)
    files = store(tmp_path, DeviceIdentity("NVIDIA H100", "9.0", "580.1", 91900), trust_code=True)

    def refuse(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for name in ("listdir", "scandir", "stat", "open"):
        monkeypatch.setattr(os, name, refuse)
    assert [files.find(SUBJECT), files.find("cd" * 32)] == [None, None]
    monkeypatch.undo()
    assert messages().count("Too many open files; compiled plans cannot be read") == 1


def test_a_plan_that_is_no_text_is_a_miss(tmp_path, messages):
    files = store(tmp_path, trust_code=True)
    files._own_file(SUBJECT).parent.mkdir()
    files._own_file(SUBJECT).write_bytes(files._signed(SUBJECT, b"\xff", files._key))
    assert files.find(SUBJECT) is None
    assert "it is damaged" in messages()
