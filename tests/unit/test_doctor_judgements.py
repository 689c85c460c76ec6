"""What the doctor says of made-up facts: each problem, how bad it is, and its fix."""

from dataclasses import replace

import pytest

from cudnnlite.autotune.keys import DeviceIdentity
from cudnnlite.devices.cuda import CudaState
from cudnnlite.devices.device import DeviceFacts
from cudnnlite.doctor.cache import CacheFacts, judge_cache
from cudnnlite.doctor.child import Probe
from cudnnlite.doctor.copies import CudnnCopy
from cudnnlite.doctor.cuda import CudaFacts, judge_cuda
from cudnnlite.doctor.environment import VARIABLES
from cudnnlite.doctor.finding import Finding, Verdict, worst
from cudnnlite.doctor.libraries import LibraryFacts, judge_libraries
from cudnnlite.doctor.loader import Wanted
from cudnnlite.doctor.needs import NeedsFacts, judge_needs
from cudnnlite.doctor.places import Place, Reach
from cudnnlite.doctor.settings import gather_settings, judge_settings

from .elf_files import write_copy

OK, NOTE, WARNING, BROKEN = Verdict


def said(findings):
    """check -> its findings; each problem has a fix of one line."""
    found = {}
    for finding in findings:
        assert "\n" not in finding.text + finding.fix
        found.setdefault(finding.check, []).append(finding)
    return found


def only(findings, check):
    """The only finding of a check."""
    (finding,) = said(findings)[check]
    return finding


# ---------------------------------------------------------------- findings


def test_a_problem_needs_a_fix():
    for verdict in (WARNING, BROKEN):
        with pytest.raises(ValueError, match="a problem without a fix"):
            Finding("a.b", verdict, "text")
    assert Finding("a.b", NOTE, "text").area == "a"


def test_the_worst():
    assert worst([]) is OK
    assert worst([Finding("a.b", WARNING, "t", "f"), Finding("a.b", NOTE, "t")]) is WARNING
    assert [verdict.word for verdict in sorted(Verdict)] == ["ok", "note", "warning", "broken"]


# ---------------------------------------------------------------- libcudnn

FRONT = "/env/site-packages/nvidia/cudnn/lib/libcudnn.so.9"
LOADED = {
    "path": FRONT,
    "how": "site-packages",
    "version": "9.28.0",
    "number": 92800,
    "cudart": 12090,
    "newest_gpu": 1210,
    "mapped": [],
    "warnings": [],
}
PARTS = {"graph": "9.28.0", "ops": "9.28.0"}
IN_USE = CudnnCopy(FRONT, "9.28.0", "the library", PARTS, "nvidia-cudnn-cu12 9.28.0.42",
                   (Place("/env/site-packages/nvidia/cudnn/lib", "site-packages", Reach.PACKAGES),))  # fmt: skip
MAPPED = (FRONT, FRONT.replace("cudnn.so", "cudnn_graph.so"))
HEALTHY = LibraryFacts(
    LOADED, MAPPED, {}, IN_USE, (IN_USE,), ("nvidia-cudnn-cu12 9.28.0.42",), {}, {IN_USE.folder: "9.28.0"}
)


def failed(error, message, *causes):
    return {"error": error, "message": message, "causes": list(causes), "mapped": [], "warnings": []}


def other(version="9.10.2", how="LD_LIBRARY_PATH", reach=Reach.LOADER, folder="/other/lib"):
    return CudnnCopy(f"{folder}/libcudnn.so.9", version, "the library", {}, "", (Place(folder, how, reach),))


def test_a_healthy_library():
    found = said(judge_libraries(HEALTHY))
    assert set(found) == {"library.loaded", "library.parts", "library.copies"}
    assert {finding.verdict for (finding,) in found.values()} == {OK}
    text = found["library.loaded"][0].text
    assert text == f"cuDNN 9.28.0 is in use: {FRONT}, found through site-packages, built with CUDA 12.9"
    assert found["library.parts"][0].lines == (f"{IN_USE.folder} (9.28.0): libcudnn.so.9, libcudnn_graph.so.9",)
    assert "graph 9.28.0, ops 9.28.0" in found["library.parts"][0].text


@pytest.mark.parametrize(
    ("how", "reach", "why", "fix"),
    [
        ("LD_LIBRARY_PATH", Reach.LOADER, "looks there first", "take /other/lib out of LD_LIBRARY_PATH"),
        ("the loader's cache", Reach.LOADER, "asks the loader", "remove one of the two, or set CUDNNLITE_LIBCUDNN"),
        (
            "CUDNN_PATH",
            Reach.PACKAGES,
            "looked at after the wheels",
            "set CUDNNLITE_LIBCUDNN=/other/lib to use it, or unset CUDNN_PATH",
        ),
        ("site-packages", Reach.PACKAGES, "cannot hold both", "set CUDNNLITE_LIBCUDNN=/other/lib where"),
    ],
)
def test_a_second_copy_of_another_version(how, reach, why, fix):
    facts = replace(HEALTHY, copies=(IN_USE, other(how=how, reach=reach)))
    finding = only(judge_libraries(facts), "library.copy")
    assert finding.verdict is WARNING
    assert f"another copy, cuDNN 9.10.2: /other/lib/libcudnn.so.9, found through {how}" in finding.text
    assert f"in use is 9.28.0, {FRONT}" in finding.text
    assert why in finding.text
    assert finding.fix.startswith(fix)
    assert finding.facts["path"] == "/other/lib/libcudnn.so.9"
    assert finding.facts["version"] == "9.10.2"
    assert finding.facts["found"] == [{"folder": "/other/lib", "how": how, "reach": reach.value}]


def test_a_library_that_another_package_has_loaded():
    facts = replace(HEALTHY, loaded={**LOADED, "how": "already loaded"})
    assert f"{FRONT}, which was already loaded, built with" in only(judge_libraries(facts), "library.loaded").text


def test_a_second_copy_that_is_preloaded():
    environment = {"LD_PRELOAD": "/other/lib/libcudnn.so.9"}
    facts = replace(HEALTHY, copies=(IN_USE, other(how="LD_PRELOAD")), environment=environment)
    finding = only(judge_libraries(facts), "library.copy")
    assert (finding.verdict, finding.fix) == (WARNING, "unset LD_PRELOAD, or take cuDNN's files out of it")


def test_a_second_copy_of_the_same_version_is_noted():
    finding = only(judge_libraries(replace(HEALTHY, copies=(IN_USE, other("9.28.0")))), "library.copy")
    assert finding.verdict is NOTE
    assert "the same version" in finding.text


def test_a_second_copy_of_cudnn_8_is_in_nobodys_way():
    finding = only(judge_libraries(replace(HEALTHY, copies=(IN_USE, EIGHT))), "library.copy")
    assert (finding.verdict, finding.fix) == (NOTE, "")
    assert "another copy, cuDNN 8.9.7: /other/lib/libcudnn.so.8" in finding.text


def test_a_second_copy_that_is_a_mixture_is_a_problem():
    copy = replace(other("9.28.0"), part_versions={"graph": "9.28.0", "ops": "9.10.2"})
    assert only(judge_libraries(replace(HEALTHY, copies=(IN_USE, copy))), "library.copy").verdict is WARNING


def test_a_second_copy_of_unknown_version_is_a_problem():
    finding = only(judge_libraries(replace(HEALTHY, copies=(IN_USE, other("")))), "library.copy")
    assert finding.verdict is WARNING
    assert "cuDNN of unknown version" in finding.text


def test_copies_that_nobody_looks_at_are_noted_together():
    others = [other(f"9.{n}.0", "another Python environment", Reach.ELSEWHERE, f"/env{n}") for n in range(3)]
    finding = only(judge_libraries(replace(HEALTHY, copies=(IN_USE, *others))), "library.elsewhere")
    assert finding.verdict is NOTE
    assert finding.text.startswith("3 more")
    assert finding.lines[2] == "9.2.0, /env2/libcudnn.so.9 (another Python environment)"
    assert [copy["version"] for copy in finding.facts["copies"]] == ["9.0.0", "9.1.0", "9.2.0"]


MIXTURE = "libcudnn 9.10.2 at /a: it refuses its own parts. This process has mapped a mixture of copies:\n  /a\n  /b"
MIXED = LibraryFacts(
    failed("MixedLibrariesError", MIXTURE),
    (FRONT, "/other/lib/libcudnn_graph.so.9"),
    copies=(IN_USE, other()),
    environment={},
    versions={IN_USE.folder: "9.28.0", "/other/lib": "9.10.2"},
)


@pytest.mark.parametrize(
    ("environment", "imports", "fix"),
    [
        ({"LD_PRELOAD": "/other/lib/libcudnn_graph.so.9"}, {}, "unset LD_PRELOAD, or take cuDNN's files out of it"),
        ({"LD_LIBRARY_PATH": "/x:/other/lib"}, {}, "take /other/lib out of LD_LIBRARY_PATH"),
        (
            {},
            {"torch": {"mapped": ["/other/lib/libcudnn_graph.so.9"]}},
            "set CUDNNLITE_LIBCUDNN to the folder that torch",
        ),
        ({}, {}, "set CUDNNLITE_LIBCUDNN to the folder of one copy"),
    ],
)
def test_a_mixture_in_the_process_is_broken(environment, imports, fix):
    findings = list(judge_libraries(replace(MIXED, environment=environment, imports=imports)))
    finding = only(findings, "library.mixed")
    assert finding.verdict is BROKEN
    assert "it refuses its own parts" in finding.text
    assert finding.lines == (
        f"{IN_USE.folder} (9.28.0): libcudnn.so.9",
        "/other/lib (9.10.2): libcudnn_graph.so.9",
    )
    assert finding.fix.startswith(fix)
    assert {each.verdict for each in said(findings)["library.copy"]} == {NOTE}


def test_a_mixture_that_works_is_a_warning():
    text = "parts of another cuDNN copy are mapped beside /a; their versions agree, so it may work:\n  /a\n  /b"
    loaded = {**LOADED, "warnings": [text, "CUDA_HOME and CUDA_PATH differ"]}
    facts = replace(HEALTHY, loaded=loaded, mapped=(*MAPPED, "/other/lib/libcudnn_graph.so.9"))
    found = said(judge_libraries(facts))
    (mixed,), (warned,) = found["library.mixed"], found["library.warned"]
    assert mixed.verdict is WARNING
    assert [line.partition(" ")[0] for line in mixed.lines] == [IN_USE.folder, "/other/lib"]
    assert (warned.verdict, warned.text) == (NOTE, "CUDA_HOME and CUDA_PATH differ")


def test_a_mixture_that_comes_with_the_first_kernel_is_a_warning():
    """cuDNN opens its engine libraries late; the libraries of CUDA beside it do not mislead the fix."""
    facts = replace(
        HEALTHY,
        mapped=(*MAPPED, "/other/lib/libcudnn_engines_precompiled.so.9", "/cuda/lib/libcublasLt.so.12"),
        environment={"LD_LIBRARY_PATH": f"/cuda/lib:{IN_USE.folder}:/other/lib"},
    )
    finding = only(judge_libraries(facts), "library.mixed")
    assert (finding.verdict, finding.fix) == (WARNING, "take /other/lib out of LD_LIBRARY_PATH")


def test_a_package_that_crashes_is_to_blame():
    probe = Probe({}, "was killed by SIGSEGV", "import torch")
    facts = LibraryFacts(probe.step("library"), imports={"torch": probe.step("import torch")})
    finding = only(judge_libraries(facts), "library.loaded")
    assert (finding.verdict, finding.fix) == (BROKEN, "update or reinstall torch, or leave out --import torch")
    assert finding.text.startswith(
        "nothing is known of libcudnn: it was not tried: the process was killed by SIGSEGV before"
    )
    probe = Probe({}, "ended with 1", "start")
    facts = LibraryFacts(probe.step("library"), imports={"torch": probe.step("import torch")})
    assert "torch" not in only(judge_libraries(facts), "library.loaded").fix


def test_parts_of_several_versions_in_one_folder_are_broken():
    copy = replace(IN_USE, part_versions={"graph": "9.28.0", "ops": "9.10.2"})
    finding = only(judge_libraries(replace(HEALTHY, in_use=copy)), "library.parts")
    assert finding.verdict is BROKEN
    assert "graph 9.28.0, ops 9.10.2" in finding.text
    assert finding.fix == "pip install --force-reinstall --no-deps nvidia-cudnn-cu12"
    finding = only(judge_libraries(replace(HEALTHY, in_use=replace(copy, wheel=""))), "library.parts")
    assert finding.fix == f"reinstall cuDNN in {IN_USE.folder}"


def test_parts_that_state_no_version_are_noted():
    facts = replace(HEALTHY, in_use=replace(IN_USE, part_versions={}))
    assert only(judge_libraries(facts), "library.parts").verdict is NOTE


@pytest.mark.parametrize("error", ["MixedLibrariesError", "LibraryError"])
def test_a_folder_with_parts_of_several_versions_is_to_be_reinstalled(error):
    copy = replace(IN_USE, part_versions={"graph": "9.28.0", "ops": "9.10.2"})
    loaded = failed(error, "libcudnn 9.28.0 is broken", "because\n")
    facts = replace(MIXED, loaded=loaded, mapped=MAPPED, copies=(copy,), versions={copy.folder: copy.told})
    found = said(judge_libraries(facts))
    ((broken,), (told,)) = found.get("library.mixed") or found["library.loaded"], found["library.copy"]
    assert broken.fix == "pip install --force-reinstall --no-deps nvidia-cudnn-cu12"
    assert told.text.startswith("a copy, cuDNN of several versions: graph 9.28.0, ops 9.10.2: ")


def test_what_the_message_says_is_not_told_twice():
    loaded = failed(
        "LibraryNotFoundError", "none: cuda-pathfinder says: not here; nor there", "not here\nnor there", "other"
    )
    assert only(judge_libraries(LibraryFacts(loaded)), "library.loaded").lines == ("other",)


INSTALL = "pip install 'cudnnlite[cu12]' (for CUDA 13: 'cudnnlite[cu13]')"
EIGHT = replace(other("8.9.7"), path="/other/lib/libcudnn.so.8")
# what cuda-pathfinder says where cuBLAS is missing, and where all is
NO_CUBLAS = failed("LibraryNotFoundError", "which also wants the cuBLAS", 'Failure finding "libcublasLt.so.12"')
NOT_FOUND = failed("LibraryNotFoundError", "no libcudnn.so.9 was found", "nowhere\nat all")


@pytest.mark.parametrize(
    ("loaded", "copies", "environment", "fix"),
    [
        (NOT_FOUND, (), {}, "pip install 'cudnnlite[cu12]'"),
        (NOT_FOUND, (other(),), {}, f"{INSTALL}, or set CUDNNLITE_LIBCUDNN=/other/lib to use the copy that is there"),
        (NOT_FOUND, (EIGHT,), {}, INSTALL),
        (NO_CUBLAS, (other(),), {}, "pip install --force-reinstall nvidia-cublas-cu12"),
        (NO_CUBLAS, (), {}, INSTALL),
        (NO_CUBLAS, (other(reach=Reach.ELSEWHERE),), {}, INSTALL),
        (
            failed("LibraryNotFoundError", f"{FRONT} cannot be loaded"),
            (IN_USE,),
            {},
            "pip install --force-reinstall --no-deps",
        ),
        (
            failed("LibraryError", f"{FRONT} is broken: libz.so.1: cannot open shared object file: No"),
            (IN_USE,),
            {},
            "install the package of your system that has libz.so.1",
        ),
        (
            failed("LibraryError", f"{FRONT} is broken: libcudnn_ops.so.9: cannot open shared object file: No"),
            (IN_USE,),
            {},
            "pip install --force-reinstall --no-deps nvidia-cudnn-cu12",
        ),
        (failed("LibraryNotFoundError", "no file"), (), {"CUDNNLITE_LIBCUDNN": "/gone"}, "unset CUDNNLITE_LIBCUDNN"),
        (failed("LibraryError", "/x is 8.9.7"), (other("9.1.0"),), {}, "pip install 'cudnnlite[cu12]'"),
        (failed("ProbeError", "was killed by SIGSEGV"), (), {}, "set CUDNNLITE_LIBCUDNN to another copy"),
    ],
)
def test_no_library_is_broken(loaded, copies, environment, fix):
    facts = LibraryFacts(loaded, copies=copies, environment=environment)
    finding = only(judge_libraries(facts), "library.loaded")
    assert finding.verdict is BROKEN
    assert loaded["message"] in finding.text
    assert finding.fix.startswith(fix)
    if loaded is NOT_FOUND:
        assert finding.lines == ("nowhere", "at all")


def test_packages_that_are_imported_first():
    imports = {
        "torch": {"mapped": ["/t/libcudnn.so.9", "/t/libcublasLt.so.12"]},
        "nope": failed("ImportError", "no\nbecause"),
    }
    torch, nope = said(judge_libraries(replace(HEALTHY, imports=imports)))["library.import"]
    assert (torch.verdict, torch.lines) == (OK, ("/t/libcudnn.so.9",))
    assert torch.text == "torch was imported first, and had loaded 1 file of cuDNN then"
    assert nope.verdict is WARNING
    assert nope.text == "nope cannot be imported before cudnnlite: ImportError: no"
    assert nope.lines == ("because",)


def test_wheels_for_two_versions_of_cuda():
    facts = replace(HEALTHY, wheels=("nvidia-cudnn-cu12 9.28.0.42", "nvidia-cudnn-cu13 9.19.1.2"))
    finding = only(judge_libraries(facts), "library.wheels")
    assert finding.verdict is WARNING
    assert finding.fix.startswith("pip uninstall nvidia-cudnn-cu12 nvidia-cudnn-cu13, then install the one")


def test_a_wheel_whose_file_was_replaced():
    facts = replace(HEALTHY, in_use=replace(IN_USE, wheel="nvidia-cudnn-cu12 9.10.2.21"))
    finding = only(judge_libraries(facts), "library.wheels")
    assert finding.verdict is WARNING
    assert "nvidia-cudnn-cu12 9.10.2.21 lists the file in use, which is cuDNN 9.28.0" in finding.text


def test_other_libraries_of_cuda_are_told():
    facts = replace(HEALTHY, mapped=(*MAPPED, "/usr/lib/libcuda.so.580.1", "/x/libcublasLt.so.12"))
    assert only(judge_libraries(facts), "library.others").lines == ("/usr/lib/libcuda.so.580.1",)


# ---------------------------------------------------------------- cuBLAS and NVRTC


@pytest.mark.parametrize(("major", "suffix"), [(12, "-cu12"), (13, "")])
@pytest.mark.parametrize("gpu", [True, False])
def test_what_cudnn_needs_and_is_not_there(major, suffix, gpu):
    names = [f"libcublasLt.so.{major}", f"libnvrtc.so.{major}"]
    found = said(judge_needs(NeedsFacts(major, *map(Wanted, names), gpu)))
    (cublas,), (nvrtc,) = found["library.cublas"], found["library.nvrtc"]
    assert (cublas.verdict, nvrtc.verdict) == ((BROKEN, WARNING) if gpu else (NOTE, NOTE))
    assert f"cuBLAS (libcublasLt.so.{major}) was not found" in cublas.text
    assert (cublas.fix, nvrtc.fix) == (f"pip install nvidia-cublas{suffix}", f"pip install nvidia-cuda-nvrtc{suffix}")


def test_what_cudnn_needs_and_does_not_see():
    wanted = Wanted("libcublasLt.so.12", out_of_sight="/cuda/lib/libcublasLt.so.12")
    finding = only(judge_needs(NeedsFacts(12, wanted, wanted, True)), "library.cublas")
    assert finding.verdict is BROKEN
    assert finding.fix.startswith("add /cuda/lib to LD_LIBRARY_PATH")


def test_what_cudnn_needs_and_is_there():
    wanted = Wanted("libcublasLt.so.12", "/x/libcublasLt.so.12", "site-packages", "nvidia-cublas-cu12 12.9.3.13")
    finding = only(judge_needs(NeedsFacts(12, wanted, wanted)), "library.cublas")
    assert finding.verdict is OK
    assert finding.text.endswith("found through site-packages, of nvidia-cublas-cu12 12.9.3.13")
    assert list(judge_needs(NeedsFacts(0))) == []


# ---------------------------------------------------------------- CUDA

H200 = DeviceFacts("NVIDIA H200", "9.0", "580.65.06", "GPU-1")
STATE = CudaState("12.9.10", 13000, "580.65.06", devices=(H200,))
TRIAL = {"device": "cuda:0", "name": "NVIDIA H200", "right": True, "free": 3 << 30, "total": 4 << 30}
GPU = CudaFacts(
    STATE, cudnn=92800, cudart=12090, newest_gpu=1210, toolkits={"/usr/local/cuda-12.9": "12.9"}, trial=TRIAL
)
NO_DRIVER = CudaState("12.9.10", error="libcuda cannot be found")
NO_DEVICE = CudaState(
    "12.9.10", 13000, "580.65.06", "CUDA_ERROR_NO_DEVICE", "cuInit returned CUDA_ERROR_NO_DEVICE (100)"
)


def test_a_healthy_gpu():
    found = said(judge_cuda(GPU))
    assert {name: finding.verdict for name, (finding,) in found.items()} == dict.fromkeys(
        ("cuda.driver", "cuda.compatibility", "cuda.bindings", "cuda.toolkit", "cuda.device", "cuda.trial"), OK
    )
    assert found["cuda.driver"][0].text == "the driver 580.65.06 supports CUDA 13.0"
    assert found["cuda.device"][0].text == "cuda:0 is NVIDIA H200, compute capability 9.0"
    assert found["cuda.trial"][0].text.endswith("is right; 3 GiB of 4 GiB of its memory are free")


WITHOUT_A_DRIVER = {"": WARNING, "auto": NOTE, "emulated": NOTE, "cuda": BROKEN, "cuda:1": BROKEN, "Emulated:1": NOTE}
WITH_A_DRIVER = {"": BROKEN, "auto": WARNING, "emulated": NOTE, "cuda": BROKEN, "CUDA": BROKEN}


@pytest.mark.parametrize(("wanted", "verdict"), WITHOUT_A_DRIVER.items())
def test_no_driver_is_as_bad_as_what_was_asked_for(wanted, verdict):
    finding = only(judge_cuda(CudaFacts(NO_DRIVER, wanted)), "cuda.driver")
    assert finding.verdict is verdict
    assert "there is no NVIDIA driver" in finding.text
    assert ("CUDNNLITE_DEVICE=emulated" in finding.fix) == (verdict > NOTE)


@pytest.mark.parametrize(("wanted", "verdict"), WITH_A_DRIVER.items())
def test_a_driver_that_cannot_be_used(wanted, verdict):
    finding = only(judge_cuda(CudaFacts(NO_DEVICE, wanted)), "cuda.driver")
    assert finding.verdict is verdict
    assert "the driver 580.65.06 is there, but cannot be used: cuInit returned CUDA_ERROR_NO_DEVICE" in finding.text


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("CUDA_ERROR_STUB_LIBRARY", "take the folder 'stubs' out"),
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine"),
        ("CUDA_ERROR_UNKNOWN", "look at nvidia-smi"),
    ],
)
def test_what_cuda_says_has_a_fix(code, fix):
    finding = only(judge_cuda(CudaFacts(CudaState("13.0", 0, "", code, f"cuInit returned {code}"))), "cuda.driver")
    assert finding.verdict is BROKEN
    assert finding.fix.startswith(fix)


def test_no_cuda_python():
    state = CudaState("", error="cuda-python cannot be imported (No module named 'cuda')", driver="580.65.06")
    finding = only(judge_cuda(CudaFacts(state)), "cuda.driver")
    assert finding.verdict is BROKEN
    assert finding.fix.startswith("pip install 'cudnnlite[cu12]'")


def test_cuda_that_could_not_be_asked():
    facts = CudaFacts(CudaState(""), unasked="the process was killed by SIGSEGV")
    finding = only(judge_cuda(facts), "cuda.driver")
    assert (finding.verdict, finding.fix) == (WARNING, "mend what is broken above first")
    for wanted, verdict in {"": BROKEN, "cuda": BROKEN, "auto": BROKEN, "emulated": WARNING}.items():
        finding = only(judge_cuda(replace(facts, wanted=wanted, crashed=True)), "cuda.driver")
        assert finding.verdict is verdict
        assert "SIGSEGV" in finding.text


@pytest.mark.parametrize(
    ("supports", "built", "verdict", "fix"),
    [
        (
            12080,
            13000,
            BROKEN,
            "update the driver, or pip uninstall nvidia-cudnn-cu13 and pip install nvidia-cudnn-cu12",
        ),
        (11080, 12090, BROKEN, "update the driver to one for CUDA 12 or newer"),
        (12040, 12090, NOTE, ""),
        (12090, 12090, OK, ""),
        (13000, 12090, OK, ""),
    ],
)
def test_the_driver_against_cudnn(supports, built, verdict, fix):
    facts = replace(GPU, state=STATE._replace(supports=supports), cudart=built)
    finding = only(judge_cuda(facts), "cuda.compatibility")
    assert (finding.verdict, finding.fix) == (verdict, fix)
    assert f"{built // 1000}.{built % 1000 // 10}" in finding.text


def test_a_driver_that_is_too_old_does_not_break_the_emulated_device():
    facts = replace(GPU, state=STATE._replace(supports=12080), cudart=13000, wanted="emulated")
    assert only(judge_cuda(facts), "cuda.compatibility").verdict is NOTE


@pytest.mark.parametrize(
    ("bindings", "supports", "built", "verdict", "text"),
    [
        ("12.9.10", 13000, 13000, WARNING, "is for CUDA 12, the libcudnn in use for CUDA 13"),
        ("13.0.1", 12080, 12090, WARNING, "is for CUDA 13, the driver supports 12.8"),
        ("13.0.1", 13000, 13000, OK, "cuda-bindings 13.0.1"),
        ("12.9.10", 0, 0, OK, "cuda-bindings 12.9.10"),
    ],
)
def test_cuda_python_against_the_rest(bindings, supports, built, verdict, text):
    facts = replace(GPU, state=STATE._replace(bindings=bindings, supports=supports), cudart=built)
    finding = only(judge_cuda(facts), "cuda.bindings")
    assert finding.verdict is verdict
    assert text in finding.text


def test_a_toolkit_that_is_newer_than_the_driver():
    facts = replace(GPU, state=STATE._replace(supports=12080), toolkits={"/cuda": "13.0", "/odd": "of unknown version"})
    newer, odd = said(judge_cuda(facts))["cuda.toolkit"]
    assert newer.verdict is NOTE
    assert "does not run on this driver, which supports CUDA 12.8" in newer.text
    assert odd.verdict is OK


@pytest.mark.parametrize(
    ("capability", "cudnn", "built", "verdict", "fix"),
    [
        ("6.1", 92800, 12090, BROKEN, "pip install 'nvidia-cudnn-cu12<9.11'"),
        ("7.0", 91100, 12090, BROKEN, "pip install 'nvidia-cudnn-cu12<9.11'"),
        ("7.0", 91002, 12090, OK, ""),
        ("7.0", 91002, 13000, BROKEN, "pip install 'nvidia-cudnn-cu12<9.11'"),
        ("3.5", 91002, 12090, BROKEN, "use a newer GPU"),
        ("7.5", 92800, 13010, OK, ""),
        ("12.1", 92800, 12090, OK, ""),
        ("12.2", 92800, 12090, WARNING, "install a newer cuDNN"),
        ("7.0", 0, 0, OK, ""),
    ],
)
def test_the_gpu_against_cudnn(capability, cudnn, built, verdict, fix):
    device = H200._replace(compute_capability=capability)
    facts = replace(GPU, state=STATE._replace(devices=(device,)), cudnn=cudnn, cudart=built)
    finding = only(judge_cuda(facts), "cuda.device")
    assert (finding.verdict, finding.fix) == (verdict, fix)


def test_only_the_gpu_that_is_asked_for_can_be_broken():
    state = STATE._replace(devices=(H200._replace(compute_capability="6.1"), H200))
    for wanted, verdicts in {"": [BROKEN, OK], "cuda:1": [WARNING, OK], "emulated": [WARNING, OK]}.items():
        devices = said(judge_cuda(replace(GPU, state=state, wanted=wanted)))["cuda.device"]
        assert [finding.verdict for finding in devices] == verdicts, wanted


def test_a_gpu_that_is_asked_for_and_is_not_there():
    *_, finding = said(judge_cuda(replace(GPU, wanted="cuda:3")))["cuda.device"]
    assert (finding.verdict, finding.text) == (BROKEN, "CUDNNLITE_DEVICE=cuda:3, but there is 1 device")


@pytest.mark.parametrize(
    ("mask", "seen", "verdict", "text"),
    [
        ("0,1", 2, OK, "2 of 4 GPUs"),
        ("", 0, BROKEN, "CUDA_VISIBLE_DEVICES= hides all GPUs; there are 4"),
        ("-1", 0, BROKEN, "hides all GPUs"),
        ("0,7,1", 1, WARNING, "'7' is no GPU here (there are 4)"),
        ("GPU-1, GPU-9", 1, WARNING, "'GPU-9' is no GPU here"),
    ],
)
def test_hidden_gpus(mask, seen, verdict, text):
    state = STATE._replace(devices=(H200,) * seen) if seen else NO_DEVICE
    findings = list(judge_cuda(replace(GPU, state=state, mask=mask, unmasked=4, trial={})))
    finding = only(findings, "cuda.visible")
    assert finding.verdict is verdict
    assert text in finding.text
    assert only(findings, "cuda.driver").verdict is OK


def test_a_mask_on_a_machine_without_gpus_is_not_judged():
    for unmasked in (None, 0):
        findings = said(judge_cuda(CudaFacts(NO_DEVICE, mask="0", unmasked=unmasked)))
        assert findings["cuda.driver"][0].verdict is BROKEN
        assert "cuda.visible" not in findings


def test_trials():
    def trial(wanted="", **values):
        return only(judge_cuda(replace(GPU, wanted=wanted, trial=values)), "cuda.trial")

    crashed = trial(error="ProbeError", message="the process that tried it was killed by SIGABRT")
    assert crashed.verdict is BROKEN
    assert "SIGABRT" in crashed.text
    refused = trial(error="NotInitializedError", message="cudnnCreate returned X (1001)\n  x = 1")
    assert (refused.verdict, refused.lines) == (BROKEN, ("x = 1",))
    unknown = trial("gpu", error="ArgumentError", message="device='gpu' is not a device")
    assert (unknown.verdict, unknown.text) == (BROKEN, "CUDNNLITE_DEVICE=gpu names no device")
    assert trial(**{**TRIAL, "right": False}).verdict is BROKEN
    emulated = trial(**{**TRIAL, "device": "emulated:0"})
    assert "memory" not in emulated.text


# ---------------------------------------------------------------- environment variables


def settings(**environment):
    return said(judge_settings(gather_settings(environment, VARIABLES)))


def test_no_variables():
    assert list(settings(PATH="/bin")) == ["environment.variables"]


@pytest.mark.parametrize(
    ("name", "value", "verdict", "text"),
    [
        ("NVIDIA_TF32_OVERRIDE", "0", NOTE, "never uses TF32"),
        ("NVIDIA_TF32_OVERRIDE", "1", WARNING, "only 0 has a documented meaning"),
        ("CUDA_LAUNCH_BLOCKING", "1", WARNING, "each kernel is waited for"),
        ("CUDA_LAUNCH_BLOCKING", "0", OK, ""),
        ("CUDA_MODULE_LOADING", "EAGER", NOTE, "slow to begin"),
        ("CUDA_MODULE_LOADING", "LAZY", OK, ""),
        ("CUDNN_LOGLEVEL_DBG", "3", NOTE, "calls are slower"),
        ("CUDNN_LOGLEVEL_DBG", "0", OK, ""),
        ("CUDNN_PATH", "/gone", WARNING, "/gone does not exist"),
        ("CUDA_HOME", "/gone", WARNING, "/gone does not exist"),
        ("LD_LIBRARY_PATH", "/gone:/", NOTE, "/gone does not exist"),
        ("LD_LIBRARY_PATH", "/cuda/lib64/stubs/", WARNING, "'stubs'"),
        ("LD_PRELOAD", "/gone/libx.so", WARNING, "/gone/libx.so does not exist"),
        ("LD_PRELOAD", "libjemalloc.so.2", OK, ""),
        ("LD_PRELOAD", "libcudnn.so.9", WARNING, "every program started from here"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", OK, ""),
        ("CUDNNLITE_DEVICE", "auto", OK, ""),
    ],
)
def test_what_a_variable_means(name, value, verdict, text):
    ((finding,),) = settings(**{name: value}).values()
    assert (finding.check, finding.verdict) == (f"environment.{name}", verdict)
    assert finding.text.startswith(f"{name}={value}")
    assert text in finding.text
    assert (finding.facts["name"], finding.facts["value"]) == (name, value)


def test_a_cudnn_path_without_libcudnn(tmp_path):
    (tmp_path / "lib").mkdir()
    assert "there is no libcudnn.so.9" in settings(CUDNN_PATH=str(tmp_path))["environment.CUDNN_PATH"][0].text
    write_copy(tmp_path / "lib")
    assert settings(CUDNN_PATH=str(tmp_path))["environment.CUDNN_PATH"][0].verdict is OK


def test_two_toolkits_by_two_names(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    home = settings(CUDA_HOME=str(tmp_path), CUDA_PATH=str(tmp_path / "a"))["environment.CUDA_HOME"][0]
    assert (home.verdict, home.fix) == (WARNING, "unset one of the two")
    same = settings(CUDA_HOME=str(tmp_path / "link"), CUDA_PATH=str(tmp_path / "a"))["environment.CUDA_HOME"][0]
    assert same.verdict is OK


def test_a_variable_that_is_misspelt():
    found = settings(CUDNNLITE_LIB_CUDNN="/x", CUDNNLITE_ZZZZZZ="1")["environment.unknown"]
    assert [finding.verdict for finding in found] == [WARNING, WARNING]
    assert found[0].fix == "set CUDNNLITE_LIBCUDNN instead"
    assert found[1].fix.startswith("unset CUDNNLITE_ZZZZZZ")


# ---------------------------------------------------------------- the tuning cache

HERE = DeviceIdentity("NVIDIA H200", "9.0", "580.65.06", 92800)
CACHE = CacheFacts("/c/tuning.sqlite", exists=True, entries=((HERE, 3),), here=(HERE,), cudnn=92800)


def test_a_healthy_cache():
    finding = only(judge_cache(CACHE), "cache.file")
    assert (finding.verdict, finding.text) == (OK, "3 entries: /c/tuning.sqlite")
    assert len(list(judge_cache(CACHE))) == 1


def test_caches_without_a_file():
    assert only(judge_cache(CacheFacts("/c")), "cache.file").text == "nothing was tuned yet: /c"
    assert only(judge_cache(CacheFacts(":memory:")), "cache.file").verdict is NOTE
    assert (
        only(judge_cache(CacheFacts("/c", "CUDNNLITE_TUNING_CACHE='/c' is a folder")), "cache.file").verdict is BROKEN
    )


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        ("damaged", "rename or remove it"),
        ("foreign", "rename or remove it"),
        ("newer", "update"),
        ("", "make it readable"),
    ],
)
def test_a_cache_that_cannot_be_used(kind, fix):
    finding = only(judge_cache(CacheFacts("/c", exists=True, error="/c is odd", kind=kind)), "cache.file")
    assert (finding.verdict, finding.text, finding.facts["kind"]) == (WARNING, "/c is odd", kind)
    assert finding.fix.startswith(fix)


def test_a_cache_that_cannot_be_written():
    assert only(judge_cache(replace(CACHE, writable=False)), "cache.writable").verdict is WARNING


def test_entries_that_cannot_be_read():
    finding = only(judge_cache(replace(CACHE, unreadable=1)), "cache.entries")
    assert (finding.verdict, finding.text) == (WARNING, "1 entry of /c/tuning.sqlite cannot be read")


@pytest.mark.parametrize(
    ("entries", "verdict", "text"),
    [
        (((replace(HERE, cudnn=90100), 2),), WARNING, "no entry is used here, where cuDNN is 9.28.0: 2 of 9.1.0"),
        (((replace(HERE, driver="570.1"), 1),), WARNING, "are of NVIDIA H200 with driver 570.1"),
        (((HERE, 1), (replace(HERE, cudnn=90100), 2)), NOTE, "2 of 9.1.0, 1 of 9.28.0"),
    ],
)
def test_entries_of_something_else(entries, verdict, text):
    finding = only(judge_cache(replace(CACHE, entries=entries)), "cache.use")
    assert finding.verdict is verdict
    assert text in finding.text


def test_entries_are_not_judged_where_nothing_is_known():
    old = ((replace(HERE, cudnn=90100), 2),)
    assert "cache.use" not in said(judge_cache(replace(CACHE, entries=old, cudnn=0)))
    other_gpu = ((replace(HERE, gpu="NVIDIA H100"), 2),)
    assert "cache.use" not in said(judge_cache(replace(CACHE, entries=other_gpu, here=())))
