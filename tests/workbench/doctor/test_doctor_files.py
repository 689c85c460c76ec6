"""What the doctor reads from disk: versions, places, copies, and what the loader would find."""

import os
import resource
import struct
import subprocess
import sys
from contextlib import suppress

import pytest
from helpers.elf_files import elf, write_copy

from cudnnlite._raw.elf import read_version, why_unloadable
from cudnnlite._raw.library import load_library
from cudnnlite.workbench.doctor import libraries
from cudnnlite.workbench.doctor.libraries import all_places, find_copies, loader_cache, look_up
from cudnnlite.workbench.doctor.probe import Probe

# ---------------------------------------------------------------- versions in libraries


def test_the_installed_parts_state_the_version_that_cudnn_reports():
    library = load_library()
    (copy,) = find_copies([("here", os.path.dirname(library.path))])
    assert {"graph", "ops"} <= set(copy.parts)
    assert set(copy.parts.values()) == {library.version_text}


@pytest.mark.parametrize("version", [(9, 28, 0), (9, 1, 1), (8, 9, 7)])
def test_a_version_is_read_from_the_file(tmp_path, version):
    path = tmp_path / "lib.so"
    path.write_bytes(elf(version, needed_name="cudnn_ops_infer_version"))
    assert read_version(path) == ".".join(map(str, version))


def test_a_version_that_another_library_is_to_supply_is_not_this_ones(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf(needed_name="cudnn_graph_version"))
    assert read_version(path) == ""


WHOLE = elf((9, 28, 0))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        b"\x7fELF",
        b"\x7fELF\x01\x01" + WHOLE[6:],
        b"\x7fELF\x02\x02" + WHOLE[6:],
        WHOLE[:100],
    ],
    ids=["empty", "text", "short", "32 bits", "big-endian", "cut off"],
)
def test_what_is_no_library_is_told(tmp_path, content):
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"lib\.so: "):
        read_version(path)


def test_any_damage_is_told_or_harmless(tmp_path):
    path = tmp_path / "lib.so"
    for place in range(len(WHOLE)):
        path.write_bytes(WHOLE[:place] + b"\xff" + WHOLE[place + 1 :])
        with suppress(ValueError):
            read_version(path)
        assert isinstance(why_unloadable(path), str)


def test_a_file_is_as_long_as_its_header_says(tmp_path):
    path = tmp_path / "lib.so"
    segment = struct.pack(
        "<I4xQ16xQ16x", 1, 8, len(WHOLE) + 56
    )  # to be loaded, so much from byte 8 on
    start, size = struct.pack("<Q", len(WHOLE)), struct.pack("<HH", len(segment), 1)
    content = WHOLE[:32] + start + WHOLE[40:54] + size + WHOLE[58:] + segment
    for missing in (8, 1, 0):
        path.write_bytes(content + bytes(8 - missing))
        assert why_unloadable(path) == (f"lacks {missing} bytes at its end" if missing else "")


def test_a_large_file_is_looked_at_without_room_for_it(tmp_path):
    """As under `ulimit -v`: a part of cuDNN that is not loaded then has 500 MB."""
    path = tmp_path / "lib.so"
    path.write_bytes(WHOLE)
    os.truncate(path, 1 << 34)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 33, before[1]))
    try:
        assert why_unloadable(path) == ""
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# ---------------------------------------------------------------- copies


def test_a_copy_is_described_and_one_that_is_found_twice_is_one(tmp_path):
    path = write_copy(tmp_path / "a" / "lib")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "lib" / "libcudnn.so").symlink_to("libcudnn.so.9")
    places = [
        ("CUDNN_PATH", tmp_path / "b/lib"),
        ("LD_LIBRARY_PATH", tmp_path / "a/lib"),
        ("x", tmp_path / "gone"),
    ]
    (copy,) = find_copies([(how, str(folder)) for how, folder in places])
    assert (copy.path, copy.version, str(copy)) == (str(path), "9.10.2", "9.10.2")
    assert copy.parts == {"adv": "9.10.2", "graph": "9.10.2", "ops": "9.10.2"}
    assert copy.origins == {how: str(folder) for how, folder in places[:2]}


def test_only_fronts_are_copies(tmp_path):
    front = write_copy(tmp_path / "lib")
    (tmp_path / "lib" / "libcudnn_frontend.so").write_bytes(elf())
    (tmp_path / "lib" / "libcudnn.so.9.txt").write_text("")
    (tmp_path / "lib" / "libcudnn.so.7").mkdir()
    for name in ("libcudnn.so", "libcudnn.so.9.10.2"):  # links that were copied as files
        (tmp_path / "lib" / name).write_bytes(front.read_bytes())
    assert [copy.path for copy in find_copies([("x", str(tmp_path / "lib"))])] == [str(front)]


def test_cudnn_8_and_9_in_one_folder_are_two_copies(tmp_path):
    """As Debian's packages install them: each has its own parts."""
    nine = write_copy(tmp_path, (9, 1, 2))
    eight = tmp_path / "libcudnn.so.8"
    eight.write_bytes(elf())
    (tmp_path / "libcudnn_ops_infer.so.8").write_bytes(elf((8, 9, 7), "cudnn_ops_infer_version"))
    versions = {copy.path: str(copy) for copy in find_copies([("x", str(tmp_path))])}
    assert versions == {str(nine): "9.1.2", str(eight): "8.9.7"}


def test_parts_of_several_versions_and_damaged_ones(tmp_path):
    write_copy(tmp_path, (9, 1, 2), parts=("graph", "ops"))
    write_copy(tmp_path, (9, 2, 0), parts=("ext",))
    (tmp_path / "libcudnn_adv.so.9").write_bytes(b"\x7fELF")
    (copy,) = find_copies([("x", str(tmp_path))])
    assert (copy.version, str(copy)) == (
        "9.1.2",
        "of several versions: ext 9.2.0, graph 9.1.2, ops 9.1.2",
    )


def test_a_version_from_the_file_name(tmp_path):
    write_copy(
        tmp_path / "thing.libs", parts=(), front="libcudnn-74a4c495.so.9.1.0"
    )  # a repaired wheel's
    (tmp_path / "libcudnn.so.9.5.1").write_bytes(b"not read")
    (tmp_path / "libcudnn.so.9").symlink_to("libcudnn.so.9.5.1")
    repaired, linked = find_copies([("x", str(tmp_path / "thing.libs")), ("x", str(tmp_path))])
    assert (repaired.version, linked.version) == ("9.1.0", "9.5.1")
    assert linked.path == str(tmp_path / "libcudnn.so.9.5.1")


@pytest.mark.processes
def test_looking_at_copies_loads_nothing(commands, tmp_path):
    write_copy(tmp_path)
    code = (
        "import os\nfrom cudnnlite.workbench.doctor.libraries import all_places, find_copies\n"
        f"found = find_copies([*all_places(os.environ), ('x', {str(tmp_path)!r})])\n"
        f"assert {os.path.realpath(load_library().path)!r} in [copy.path for copy in found]\n"
        "assert len(found) > 1\nassert 'libcudnn' not in open('/proc/self/maps').read()"
    )
    commands.run_code(code)


# ---------------------------------------------------------------- places


def test_the_places(tmp_path, monkeypatch):
    toolkit = "usr/local/cuda-13.0/lib64"
    names = (
        "override",
        "preload",
        "plain",
        "one",
        "two",
        "cudnn/lib",
        "toolkit/lib64",
        "toolkit/targets/x/lib",
        "conda/lib",
        "cached",
        "usr/lib/x86_64-linux-gnu",
        toolkit,
        "site-packages/nvidia/cudnn/lib",
    )
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    variables = {
        "CUDNNLITE_LIBCUDNN": "override/libcudnn.so.9",
        "LD_PRELOAD": (
            f"libplain.so {tmp_path}/preload/libcudnn.so.9:{tmp_path}/plain/libjemalloc.so.2"
        ),
        "LD_LIBRARY_PATH": f"{tmp_path}/one::{tmp_path}/two:{tmp_path}/gone",
        "CUDNN_PATH": "cudnn",
        "CUDA_HOME": "toolkit",
        "CONDA_PREFIX": "conda",
    }
    environment = {
        name: value if str(tmp_path) in value else f"{tmp_path}/{value}"
        for name, value in variables.items()
    }
    monkeypatch.setattr(libraries, "loader_cache", lambda: [str(tmp_path / "cached")])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    places = all_places(environment, str(tmp_path))
    assert {folder.removeprefix(f"{tmp_path}/"): how for how, folder in places} == {
        "override": "CUDNNLITE_LIBCUDNN",
        "preload": "LD_PRELOAD",
        "one": "LD_LIBRARY_PATH",
        "two": "LD_LIBRARY_PATH",
        "cudnn/lib": "CUDNN_PATH",
        "toolkit/lib64": "CUDA_HOME",
        "toolkit/targets/x/lib": "CUDA_HOME",
        "conda/lib": "CONDA_PREFIX",
        "site-packages/nvidia/cudnn/lib": "site-packages",
        "cached": "the loader's cache",
        "usr/lib": "the system's folders",
        "usr/lib/x86_64-linux-gnu": "the system's folders",
        toolkit: "a CUDA folder, where nothing here looks",
    }


def test_the_loaders_cache(monkeypatch):
    output = (
        "2 libs found in cache\n\tlibx.so.1 (libc6,x86-64) => /b/libx.so.1\n"
        "\tlibx.so.1 (libc6) => /c/d/x\n"
    )
    monkeypatch.setattr(
        libraries.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, output)
    )
    assert loader_cache() == ["/b", "/c/d"]
    monkeypatch.undo()
    monkeypatch.setattr(libraries.shutil, "which", lambda name, path: None)
    assert loader_cache() == []


def test_what_the_loader_would_find(tmp_path):
    def look(*names, mapped=()):
        return look_up(
            "libq.so.12",
            mapped,
            {"seen", "beside"},
            [(name, str(tmp_path / name)) for name in names],
        )

    paths = {}
    for name in ("seen", "beside", "aside"):
        (tmp_path / name).mkdir()
        paths[name] = tmp_path / name / "libq.so.12"
        paths[name].write_bytes(b"")
    assert look("aside", "gone", "seen", "beside") == (str(paths["seen"]), "")
    assert look("aside", "beside") == (str(paths["beside"]), "")
    assert look("aside") == ("", str(paths["aside"]))
    assert look("gone") == ("", "")
    assert look("seen", mapped=["/x/libqq.so.12", "/x/libq.so.12.9.1"]) == ("/x/libq.so.12.9.1", "")
    assert look(mapped=["/x/libq.so.120", "/x/libq.so.12b"]) == ("", "")
    # A folder that is searched is searched, whatever else leads to it.
    places = [("seen", str(tmp_path / "aside")), ("aside", str(tmp_path / "aside"))]
    assert look_up("libq.so.12", (), {"seen"}, places) == (str(paths["aside"]), "")


@pytest.mark.parametrize("beside", [True, False])
def test_cublas_is_seen_where_libcudnn_was_installed(tmp_path, monkeypatch, beside):
    path = write_copy(tmp_path / "site-packages" / "nvidia" / "cudnn" / "lib")
    cublas = (
        tmp_path
        / ("site-packages/nvidia/cublas/lib" if beside else "toolkit/lib")
        / "libcublasLt.so.12"
    )
    cublas.parent.mkdir(parents=True)
    cublas.write_bytes(b"")
    monkeypatch.setattr(libraries, "loader_cache", list)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    probe = Probe({"library": {"path": str(path), "cudart": 12090, "mapped": []}})
    facts = libraries.gather({"CUDA_HOME": str(tmp_path / "toolkit")}, probe, ())
    assert facts.needs[0] == (
        "libcublasLt.so.12",
        *((str(cublas), "") if beside else ("", str(cublas))),
    )
