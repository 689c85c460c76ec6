"""What the doctor reads from disk: versions in libraries, places, copies, what the loader would find, toolkits."""

import os
import subprocess
import sys

import pytest

from cudnnlite._raw.library import format_version, load_library
from cudnnlite.doctor import copies, places
from cudnnlite.doctor.copies import find_copies, look_at_copy, part_versions, wheel_of
from cudnnlite.doctor.elf import NotElfError, read_shared_library
from cudnnlite.doctor.loader import Wanted, look_up
from cudnnlite.doctor.places import Place, Reach, all_places, loader_cache
from cudnnlite.doctor.toolkits import find_toolkits, toolkit_version

from .elf_files import elf, write_copy

# ---------------------------------------------------------------- versions in libraries


def test_the_installed_parts_state_the_version_that_cudnn_reports():
    library = load_library()
    versions = part_versions(library.path)
    assert {"graph", "ops"} <= set(versions)
    assert set(versions.values()) == {library.version_text}


@pytest.mark.parametrize(("version", "number"), [((9, 28, 0), 92800), ((9, 1, 1), 90101), ((8, 9, 7), 8907)])
def test_a_version_is_read_from_the_file(tmp_path, version, number):
    path = tmp_path / "lib.so"
    path.write_bytes(elf(version, needed_name="cudnn_ops_infer_version"))
    found = read_shared_library(path)
    assert found.cudnn_version == number
    assert format_version(number) == ".".join(map(str, version))
    assert found.search_path == ()


def test_a_version_that_another_library_is_to_supply_is_not_this_ones(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf(needed_name="cudnn_graph_version"))
    assert read_shared_library(path).cudnn_version is None


def test_the_folders_in_which_a_library_looks(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(elf(runpath="$ORIGIN:${ORIGIN}/../x:/opt/y"))
    assert read_shared_library(path).search_path == (str(tmp_path), f"{tmp_path}/../x", "/opt/y")


WHOLE = elf((9, 28, 0), runpath="$ORIGIN")


@pytest.mark.parametrize(
    "content",
    [b"", b"text", b"\x7fELF", b"\x7fELF\x01\x01" + WHOLE[6:], b"\x7fELF\x02\x02" + WHOLE[6:], WHOLE[:100]],
    ids=["empty", "text", "short", "32 bits", "big-endian", "cut off"],
)
def test_what_is_no_library_is_told(tmp_path, content):
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    with pytest.raises(NotElfError):
        read_shared_library(path)
    assert copies.file_version(str(path)) == ""


def test_any_damage_is_told_or_harmless(tmp_path):
    path = tmp_path / "lib.so"
    for place in range(len(WHOLE)):
        path.write_bytes(WHOLE[:place] + b"\xff" + WHOLE[place + 1 :])
        copies.file_version(str(path))  # does not raise


# ---------------------------------------------------------------- copies


def place(folder, how="LD_LIBRARY_PATH", reach=Reach.LOADER):
    return Place(str(folder), how, reach)


def test_a_copy_is_described(tmp_path):
    path = write_copy(tmp_path / "lib")
    copy = look_at_copy(str(path))
    assert (copy.version, copy.version_from) == ("9.10.2", "the library")
    assert copy.part_versions == {"adv": "9.10.2", "graph": "9.10.2", "ops": "9.10.2"}
    assert (copy.folder, copy.wheel) == (str(tmp_path / "lib"), "")
    assert str(copy) == f"9.10.2, {path}"


def test_a_copy_that_is_found_twice_is_one(tmp_path):
    path = write_copy(tmp_path / "a" / "lib")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "lib" / "libcudnn.so").symlink_to("libcudnn.so.9")
    found = find_copies(
        [
            place(tmp_path / "b" / "lib", "CUDNN_PATH", Reach.PACKAGES),
            place(tmp_path / "a" / "lib"),
            place(tmp_path / "gone"),
        ]
    )
    assert [copy.path for copy in found] == [str(path)]
    assert found[0].reach is Reach.LOADER
    assert found[0].how == "LD_LIBRARY_PATH"
    assert len(found[0].places) == 2


def test_only_fronts_are_copies(tmp_path):
    front = write_copy(tmp_path / "lib")
    (tmp_path / "lib" / "libcudnn_frontend.so").write_bytes(elf())
    (tmp_path / "lib" / "libcudnn.so.9.txt").write_text("")
    (tmp_path / "lib" / "libcudnn.so.7").mkdir()
    assert [copy.path for copy in find_copies([place(tmp_path / "lib")])] == [str(front)]


def test_cudnn_8_and_9_in_one_folder_are_two_copies(tmp_path):
    """As Debian's packages install them: each has its own parts."""
    nine = write_copy(tmp_path, (9, 1, 2))
    eight = tmp_path / "libcudnn.so.8"
    eight.write_bytes(elf())
    (tmp_path / "libcudnn_ops_infer.so.8").write_bytes(elf((8, 9, 7), "cudnn_ops_infer_version"))
    found = {copy.path: copy for copy in find_copies([place(tmp_path)])}
    assert {path: (copy.version, copy.major) for path, copy in found.items()} == {
        str(nine): ("9.1.2", "9"),
        str(eight): ("8.9.7", "8"),
    }
    assert not any(copy.is_mixed for copy in found.values())


def test_links_that_were_copied_as_files_are_one_copy(tmp_path):
    front = write_copy(tmp_path)
    for name in ("libcudnn.so", "libcudnn.so.9.10.2"):
        (tmp_path / name).write_bytes(front.read_bytes())
    assert [copy.path for copy in find_copies([place(tmp_path)])] == [str(front)]


def test_a_repaired_wheels_copy_is_found(tmp_path):
    folder = tmp_path / "site-packages" / "thing.libs"
    write_copy(folder, parts=(), front="libcudnn-74a4c495.so.9.1.0")
    (copy,) = find_copies([place(folder)])
    assert (copy.version, copy.version_from) == ("9.1.0", "its file name")


def test_a_version_from_the_real_file_name(tmp_path):
    (tmp_path / "libcudnn.so.9.5.1").write_bytes(b"not read")
    (tmp_path / "libcudnn.so.9").symlink_to("libcudnn.so.9.5.1")
    (copy,) = find_copies([place(tmp_path)])
    assert (copy.path, copy.version) == (str(tmp_path / "libcudnn.so.9.5.1"), "9.5.1")
    assert copy.version_from == "its file name"


def test_a_version_from_the_header(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "include").mkdir()
    (tmp_path / "lib" / "libcudnn.so.9").write_bytes(elf())
    header = tmp_path / "include" / "cudnn_version.h"
    header.write_text("#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 3\n")
    assert look_at_copy(str(tmp_path / "lib" / "libcudnn.so.9")).version == ""
    header.write_text("#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 3\n#define CUDNN_PATCHLEVEL 1\n")
    copy = look_at_copy(str(tmp_path / "lib" / "libcudnn.so.9"))
    assert (copy.version, copy.version_from) == ("9.3.1", "its header")


def wheel(packages, name, version, *files):
    info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in files))


def test_the_wheel_that_lists_a_file(tmp_path):
    packages = tmp_path / "site-packages"
    path = write_copy(packages / "nvidia" / "cudnn" / "lib")
    assert wheel_of(str(path)) == ""
    wheel(packages, "nvidia-cublas-cu12", "12.9.1.4", "nvidia/cublas/lib/libcublasLt.so.12")
    wheel(packages, "nvidia-cudnn-cu12", "9.10.2.21", "nvidia/cudnn/lib/libcudnn.so.9")
    assert wheel_of(str(path)) == "nvidia-cudnn-cu12 9.10.2.21"
    assert wheel_of(str(path.with_name("other"))) == ""
    assert wheel_of(str(packages / "nvidia/cublas/lib/libcublasLt.so.12"), "cublas") == "nvidia-cublas-cu12 12.9.1.4"


@pytest.mark.processes
def test_the_installed_copy_is_among_the_places_of_this_machine():
    paths = [copy.path for copy in find_copies(all_places(os.environ, loader_cache()))]
    assert os.path.realpath(load_library().path) in paths


@pytest.mark.processes
def test_looking_at_copies_loads_nothing(tmp_path):
    write_copy(tmp_path)
    code = (
        "import os, sys\nfrom cudnnlite.doctor.copies import find_copies\nfrom cudnnlite.doctor.places import *\n"
        f"found = find_copies([*all_places(os.environ, loader_cache()), Place({str(tmp_path)!r}, 'x', Reach.LOADER)])\n"
        "assert len(found) > 1\nassert 'libcudnn' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- places


def hows(found, folder):
    return {each.how for each in found if each.folder == str(folder)}


def test_the_variables_name_places(tmp_path):
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
    )
    folders = {name: tmp_path / name for name in names}
    for folder in folders.values():
        folder.mkdir(parents=True)
    environment = {
        "CUDNNLITE_LIBCUDNN": str(folders["override"] / "libcudnn.so.9"),
        "LD_PRELOAD": f"libplain.so {folders['preload']}/libcudnn.so.9:{folders['plain']}/libjemalloc.so.2",
        "LD_LIBRARY_PATH": f"{folders['one']}::{folders['two']}:{tmp_path}/gone",
        "CUDNN_PATH": str(tmp_path / "cudnn"),
        "CUDA_HOME": str(tmp_path / "toolkit"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
    }
    found = all_places(environment, {}, root=str(tmp_path / "root"), home=str(tmp_path / "home"))
    wanted = {
        "override": "CUDNNLITE_LIBCUDNN",
        "preload": "LD_PRELOAD",
        "one": "LD_LIBRARY_PATH",
        "two": "LD_LIBRARY_PATH",
        "cudnn/lib": "CUDNN_PATH",
        "toolkit/lib64": "CUDA_HOME",
        "toolkit/targets/x/lib": "CUDA_HOME",
        "conda/lib": "CONDA_PREFIX",
    }
    assert {name: hows(found, folders[name]) for name in wanted} == {name: {how} for name, how in wanted.items()}
    assert not hows(found, tmp_path / "gone")
    assert not hows(found, folders["plain"])
    assert {each.reach for each in found if each.how in ("LD_LIBRARY_PATH", "LD_PRELOAD")} == {Reach.LOADER}
    assert {each.reach for each in found if each.how in ("CUDNN_PATH", "CUDA_HOME")} == {Reach.PACKAGES}


def test_the_system_the_toolkits_and_other_environments_are_places(tmp_path, monkeypatch):
    root, home = tmp_path / "root", tmp_path / "home"
    cached, system, toolkit = tmp_path / "cached", root / "usr/lib/x86_64-linux-gnu", root / "usr/local/cuda-13.0/lib64"
    beside = tmp_path / "envs/other/lib/python3.11/site-packages/nvidia/cudnn/lib"
    listed, cupy = tmp_path / "listed/lib", home / ".cupy/cuda_lib/12.x/cudnn/9.0/lib"
    on_path = tmp_path / "venv/lib/python3.12/site-packages/torch/lib"
    for folder in (
        cached,
        system,
        toolkit,
        beside,
        listed,
        cupy,
        on_path,
        tmp_path / "listed/conda-meta",
        home / ".conda",
    ):
        folder.mkdir(parents=True)
    (home / ".conda" / "environments.txt").write_text(f"{tmp_path / 'listed'}\n{tmp_path / 'gone'}\n")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "envs" / "mine"))
    found = all_places({"PATH": str(tmp_path / "venv/bin")}, {"x": (f"{cached}/x",)}, root=str(root), home=str(home))
    assert hows(found, cached) == {"the loader's cache"}
    assert hows(found, system) == {"the system's folders"}
    assert hows(found, toolkit) == {"a CUDA folder"}
    assert hows(found, cupy) == {"CuPy's folder"}
    assert hows(found, beside) == hows(found, on_path) == {"another Python environment"}
    assert hows(found, listed) == {"another conda environment"}
    reach = {each.how: each.reach for each in found}
    assert reach["the loader's cache"] is reach["the system's folders"] is Reach.LOADER
    assert reach["a CUDA folder"] is reach["another Python environment"] is Reach.ELSEWHERE


def test_the_loaders_cache(monkeypatch):
    output = "2 libs found in cache\n\tlibx.so.1 (libc6,x86-64) => /b/libx.so.1\n\tlibx.so.1 (libc6) => /c/x\n"
    monkeypatch.setattr(places.shutil, "which", lambda name, path: "/sbin/ldconfig")
    monkeypatch.setattr(places.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, output))
    assert loader_cache() == {"libx.so.1": ("/b/libx.so.1", "/c/x")}
    monkeypatch.setattr(places.shutil, "which", lambda name, path: None)
    assert loader_cache() == {}


# ---------------------------------------------------------------- what the loader would find


@pytest.fixture
def folders(tmp_path):
    made = {}
    for name in ("early", "beside", "cached", "aside"):
        (tmp_path / name).mkdir()
        made[name] = tmp_path / name / "libq.so.12"
        made[name].write_bytes(b"")
    return made


def look(folders, *names, mapped=(), spots=()):
    where = {name: str(path.parent) for name, path in folders.items() if name in names}
    return look_up(
        "libq.so.12",
        mapped,
        [where["beside"]] if "beside" in where else [],
        {"LD_LIBRARY_PATH": where.get("early", "")},
        {"libq.so.12": (str(folders["cached"]),)} if "cached" in where else {},
        [place(path) for path in spots],
    )


def test_the_order_is_the_loaders(folders):
    assert look(folders, "early", "beside", "cached") == Wanted("libq.so.12", str(folders["early"]), "LD_LIBRARY_PATH")
    assert look(folders, "beside", "cached") == Wanted("libq.so.12", str(folders["beside"]), "beside cuDNN")
    assert look(folders, "cached") == Wanted("libq.so.12", str(folders["cached"]), "the loader's cache")
    assert look(folders) == Wanted("libq.so.12")


def test_what_is_loaded_needs_no_search(folders):
    path = str(folders["aside"])
    assert look(folders, "early", mapped=[path, "/x/libqq.so.12"], spots=[folders["aside"].parent]).path == path
    assert look(folders, mapped=[f"{path}.9.1"]).path == f"{path}.9.1"
    assert look(folders, mapped=[f"{path}.9.1"]).how == "another library that was loaded before"
    assert look(folders, mapped=[path], spots=[folders["aside"].parent]).how == "LD_LIBRARY_PATH"
    assert not look(folders, mapped=["/x/libq.so.120", "/x/libq.so.12b"]).path


def test_a_file_where_the_loader_does_not_look(folders):
    found = look(folders, spots=[folders["aside"].parent])
    assert found == Wanted("libq.so.12", out_of_sight=str(folders["aside"]))


# ---------------------------------------------------------------- toolkits


def test_toolkits(tmp_path):
    old, new, odd = (tmp_path / "usr/local" / name for name in ("cuda-12.9", "cuda-13.0", "cuda-x"))
    for folder, text in {old: "CUDA_VERSION 12090", new: "CUDA_VERSION 13000", odd: "CUDA_H"}.items():
        (folder / "include").mkdir(parents=True)
        (folder / "include" / "cuda.h").write_text(f"/* */\n#define {text}\n")
    (tmp_path / "usr/local/cuda").symlink_to("cuda-13.0")
    (tmp_path / "usr/local/cuda-empty").mkdir()
    found = find_toolkits({"CUDA_HOME": str(old), "CUDA_PATH": "/gone"}, str(tmp_path))
    assert found == {str(old): "12.9", str(new): "13.0", str(odd): "of unknown version"}
    assert toolkit_version("/gone") == ""
