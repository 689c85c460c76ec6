"""What the doctor says of made-up facts: each problem, how bad it is, and its fix."""

import pytest
from helpers.elf_files import write_copy

from cudnnlite.workbench.doctor import Examination, cuda, environment, library_checks
from cudnnlite.workbench.doctor.finding import Finding, Verdict
from cudnnlite.workbench.doctor.libraries import Copy, LibraryFacts
from cudnnlite.workbench.doctor.probe import Probe

OK, NOTE, WARNING, BROKEN = Verdict


def said(findings):
    """check -> its findings; each problem has a fix of one line."""
    by_check = {}
    for finding in findings:
        assert "\n" not in finding.text + finding.fix
        by_check.setdefault(finding.check, []).append(finding)
    return by_check


def only(findings, check):
    """The only finding of a check."""
    (finding,) = said(findings)[check]
    return finding


# ---------------------------------------------------------------- findings


def test_a_problem_needs_a_fix():
    for verdict in (WARNING, BROKEN):
        with pytest.raises(ValueError, match="a problem without a fix"):
            Finding("a.b", verdict, "text")


def test_the_worst():
    assert Examination(()).verdict is OK
    assert (
        Examination((Finding("a.b", WARNING, "t", "f"), Finding("a.b", NOTE, "t"))).verdict
        is WARNING
    )
    assert [verdict.word for verdict in sorted(Verdict)] == ["ok", "note", "warning", "broken"]


# ---------------------------------------------------------------- libcudnn

FOLDER = "/env/site-packages/nvidia/cudnn/lib"
FRONT = f"{FOLDER}/libcudnn.so.9"
STEP = {"mapped": []}
LOADED = {
    "path": FRONT,
    "how": "site-packages",
    "version": "9.28.0",
    "number": 92800,
    "cudart": 12090,
    "newest_gpu": 1210,
    **STEP,
}
IN_USE = Copy(FRONT, "9.28.0", {"graph": "9.28.0", "ops": "9.28.0"}, {"site-packages": FOLDER})
TORN = IN_USE._replace(parts={"graph": "9.28.0", "ops": "9.10.2"})
MAPPED = (FRONT, FRONT.replace("cudnn.so", "cudnn_graph.so"))
HEALTHY = LibraryFacts(LOADED, MAPPED, {}, (IN_USE,), ("nvidia-cudnn-cu12 9.28.0.42",))


def failed(error, message):
    return {"error": error, "message": message, **STEP}


def other(version="9.10.2", how="LD_LIBRARY_PATH", parts=None, folder="/other/lib"):
    return Copy(f"{folder}/libcudnn.so.9", version, parts or {}, {how: folder})


EIGHT = other("8.9.7")._replace(path="/other/lib/libcudnn.so.8")
ASIDE = other("9.1.0", "a CUDA folder, where nothing here looks", folder="/opt/cudnn/lib")


def judged(facts, check, **changes):
    return only(library_checks.judge(facts._replace(**changes)), check)


def test_a_healthy_library():
    by_check = said(library_checks.judge(HEALTHY))
    assert set(by_check) == {"library.loaded", "library.parts"}
    assert {finding.verdict for (finding,) in by_check.values()} == {OK}
    text = by_check["library.loaded"][0].text
    assert (
        text
        == f"cuDNN 9.28.0 is in use: {FRONT}, found through site-packages, built with CUDA 12.9"
    )
    assert by_check["library.parts"][0].lines == (
        f"{FOLDER} (9.28.0): libcudnn.so.9, libcudnn_graph.so.9",
    )
    assert "graph 9.28.0, ops 9.28.0" in by_check["library.parts"][0].text


def test_a_library_that_another_package_has_loaded():
    loaded = {**LOADED, "how": "already loaded"}
    assert (
        f"{FRONT}, which was already loaded, built"
        in judged(HEALTHY, "library.loaded", loaded=loaded).text
    )


@pytest.mark.parametrize(
    ("how", "why", "fix"),
    [
        ("LD_LIBRARY_PATH", "looks there first", "take /other/lib out of LD_LIBRARY_PATH"),
        ("LD_PRELOAD", "loads it", "unset LD_PRELOAD, or take cuDNN's files out of it"),
        (
            "the loader's cache",
            "ask the loader",
            "remove one of the two, or set CUDNNLITE_LIBCUDNN",
        ),
        (
            "the system's folders",
            "programs that search that folder",
            "set CUDNNLITE_LIBCUDNN=/other/lib beside",
        ),
        (
            "CUDNN_PATH",
            "looked at last",
            "set CUDNNLITE_LIBCUDNN=/other/lib to use it, or unset CUDNN_PATH",
        ),
        (
            "site-packages",
            "programs that search that folder",
            "set CUDNNLITE_LIBCUDNN=/other/lib beside",
        ),
    ],
)
def test_a_second_copy_of_another_version(how, why, fix):
    finding = judged(HEALTHY, "library.copy", copies=(IN_USE, other(how=how)))
    assert finding.verdict is WARNING
    assert (
        f"another copy, cuDNN 9.10.2: /other/lib/libcudnn.so.9, found through {how}" in finding.text
    )
    assert f"in use is 9.28.0, {FRONT}" in finding.text
    assert why in finding.text
    assert finding.fix.startswith(fix)
    assert finding.facts == {
        "path": "/other/lib/libcudnn.so.9",
        "version": "9.10.2",
        "found": {how: "/other/lib"},
    }


@pytest.mark.parametrize(
    ("copy", "verdict", "text"),
    [
        (other("9.28.0"), NOTE, "the same version"),
        (EIGHT, NOTE, "another copy, cuDNN 8.9.7: /other/lib/libcudnn.so.8"),
        (
            ASIDE,
            NOTE,
            "/opt/cudnn/lib/libcudnn.so.9, found through a CUDA folder, where nothing here looks",
        ),
        (
            other("9.28.0", parts=TORN.parts),
            WARNING,
            "of several versions: graph 9.28.0, ops 9.10.2",
        ),
        (other(""), WARNING, "cuDNN of unknown version"),
    ],
    ids=["same", "cuDNN 8", "aside", "mixture", "unknown"],
)
def test_a_second_copy(copy, verdict, text):
    finding = judged(HEALTHY, "library.copy", copies=(IN_USE, copy))
    assert (finding.verdict, bool(finding.fix)) == (verdict, verdict is WARNING)
    assert text in finding.text


MIXTURE = (
    "libcudnn 9.10.2 at /a: it refuses its own parts. This process has mapped a mixture of "
    "copies:\n  /a\n  /b"
)
MIXED = LibraryFacts(
    failed("MixedLibrariesError", MIXTURE),
    (FRONT, "/other/lib/libcudnn_graph.so.9"),
    copies=(IN_USE, other()),
    wheels=HEALTHY.wheels,
)


@pytest.mark.parametrize(
    ("variables", "imports", "fix"),
    [
        (
            {"LD_PRELOAD": "/other/lib/libcudnn_graph.so.9"},
            {},
            "unset LD_PRELOAD, or take cuDNN's files out of it",
        ),
        ({"LD_LIBRARY_PATH": "/x:/other/lib"}, {}, "take /other/lib out of LD_LIBRARY_PATH"),
        (
            {},
            {"torch": {"mapped": ["/other/lib/libcudnn_graph.so.9"]}},
            "set CUDNNLITE_LIBCUDNN to the folder that torch",
        ),
        ({}, {}, "set CUDNNLITE_LIBCUDNN to the folder of one copy"),
    ],
)
def test_a_mixture_in_the_process_is_broken(variables, imports, fix):
    findings = list(library_checks.judge(MIXED._replace(environment=variables, imports=imports)))
    finding = only(findings, "library.mixed")
    assert finding.verdict is BROKEN
    assert "it refuses its own parts" in finding.text
    assert finding.lines == (
        f"{FOLDER} (9.28.0): libcudnn.so.9",
        "/other/lib (9.10.2): libcudnn_graph.so.9",
    )
    assert finding.fix.startswith(fix)
    assert {finding.verdict for finding in said(findings)["library.copy"]} == {NOTE}


def test_a_mixture_that_comes_with_the_first_kernel_is_a_warning():
    """cuDNN opens its engine libraries late.

    CUDA libraries beside them do not mislead the fix.
    """
    mapped = (
        *MAPPED,
        "/other/lib/libcudnn_engines_precompiled.so.9",
        "/cuda/lib/libcublasLt.so.12",
    )
    variables = {"LD_LIBRARY_PATH": f"/cuda/lib:{FOLDER}:/other/lib"}
    finding = judged(HEALTHY, "library.mixed", mapped=mapped, environment=variables)
    assert (finding.verdict, finding.fix) == (WARNING, "take /other/lib out of LD_LIBRARY_PATH")
    assert [line.partition(" ")[0] for line in finding.lines] == [FOLDER, "/other/lib"]


def test_a_package_that_crashes_is_to_blame():
    probe = Probe({}, "was killed by SIGSEGV", "import torch")
    facts = LibraryFacts(probe.step("library"), imports={"torch": probe.step("import torch")})
    finding = judged(facts, "library.loaded")
    assert (finding.verdict, finding.fix) == (
        BROKEN,
        "update or reinstall torch, or leave out --import torch",
    )
    assert "it was not tried: the process was killed by SIGSEGV before" in finding.text
    probe = Probe({}, "ended with 1", "start")
    facts = LibraryFacts(probe.step("library"), imports={"torch": probe.step("import torch")})
    assert "torch" not in judged(facts, "library.loaded").fix


def test_parts_of_several_versions_in_one_folder_are_broken():
    finding = judged(HEALTHY, "library.parts", copies=(TORN,))
    assert finding.verdict is BROKEN
    assert "graph 9.28.0, ops 9.10.2" in finding.text
    assert finding.fix == "pip install --force-reinstall --no-deps nvidia-cudnn-cu12"
    assert (
        judged(HEALTHY, "library.parts", copies=(TORN,), wheels=()).fix
        == f"reinstall cuDNN in {FOLDER}"
    )


@pytest.mark.parametrize("error", ["MixedLibrariesError", "LibraryError"])
def test_a_folder_with_parts_of_several_versions_is_to_be_reinstalled(error):
    facts = MIXED._replace(
        loaded=failed(error, "libcudnn 9.28.0 is broken"), mapped=MAPPED, copies=(TORN,)
    )
    by_check = said(library_checks.judge(facts))
    ((broken,), (copy,)) = (
        by_check.get("library.mixed") or by_check["library.loaded"],
        by_check["library.copy"],
    )
    assert broken.fix == "pip install --force-reinstall --no-deps nvidia-cudnn-cu12"
    assert copy.text.startswith("a copy, cuDNN of several versions: graph 9.28.0, ops 9.10.2: ")


INSTALL = "pip install 'cudnnlite[cu12]' (for CUDA 13: 'cudnnlite[cu13]')"
MISSING = "cannot open shared object file: No such file or directory"
# what cuda-pathfinder says where cuBLAS is missing, and where all is
NO_CUBLAS = failed(
    "LibraryNotFoundError", 'which also wants the cuBLAS, says: Failure finding "libcublasLt.so.12"'
)
NOT_FOUND = failed("LibraryNotFoundError", "no libcudnn.so.9 was found\n nowhere\nat all")


@pytest.mark.parametrize(
    ("loaded", "copies", "variables", "fix"),
    [
        (NOT_FOUND, (), {}, INSTALL),
        (
            NOT_FOUND,
            (other(),),
            {},
            f"{INSTALL}, or set CUDNNLITE_LIBCUDNN=/other/lib to use the copy that is there",
        ),
        (NOT_FOUND, (EIGHT,), {}, INSTALL),
        (
            NO_CUBLAS,
            (other(),),
            {},
            "pip install --force-reinstall nvidia-cublas-cu12 (for CUDA 13: nvidia-cublas)",
        ),
        (NO_CUBLAS, (), {}, INSTALL),
        (
            NO_CUBLAS,
            (ASIDE,),
            {},
            f"{INSTALL}, or set CUDNNLITE_LIBCUDNN=/opt/cudnn/lib to use the copy that is there",
        ),
        (
            failed("LibraryNotFoundError", f"{FRONT} cannot be loaded as libcudnn: file too short"),
            (IN_USE,),
            {},
            "pip install --force-reinstall --no-deps nvidia-cudnn-cu12",
        ),
        (
            failed("LibraryError", f"{FRONT} is broken: libz.so.1: {MISSING}"),
            (IN_USE,),
            {},
            "install the package of your system that has libz.so.1",
        ),
        (
            failed("LibraryError", f"{FRONT} is broken: libcudnn_ops.so.9: {MISSING}"),
            (IN_USE,),
            {},
            "pip install --force-reinstall --no-deps nvidia-cudnn-cu12",
        ),
        (
            failed("LibraryNotFoundError", "no file"),
            (),
            {"CUDNNLITE_LIBCUDNN": "/gone"},
            "unset CUDNNLITE_LIBCUDNN, or set it to a folder that has libcudnn.so.9",
        ),
        (failed("LibraryError", "/x is 8.9.7"), (other("9.1.0"),), {}, INSTALL),
        (
            failed("ProbeError", "was killed by SIGSEGV"),
            (),
            {},
            "set CUDNNLITE_LIBCUDNN to another copy, and update or reinstall this one",
        ),
    ],
)
def test_no_library_is_broken(loaded, copies, variables, fix):
    facts = LibraryFacts(loaded, copies=copies, environment=variables, wheels=HEALTHY.wheels)
    finding = judged(facts, "library.loaded")
    assert (finding.verdict, finding.fix) == (BROKEN, fix)
    assert loaded["message"].splitlines()[0] in finding.text
    if loaded is NOT_FOUND:
        assert finding.lines == ("nowhere", "at all")


def test_packages_that_are_imported_first():
    imports = {
        "torch": {"mapped": ["/t/libcudnn.so.9", "/t/libcublasLt.so.12"]},
        "nope": failed("ImportError", "no\nbecause"),
    }
    torch, nope = said(library_checks.judge(HEALTHY._replace(imports=imports)))["library.import"]
    assert (torch.verdict, torch.text.rpartition("then: ")[2]) == (OK, "/t: libcudnn.so.9")
    assert nope.verdict is WARNING
    assert nope.text == "nope cannot be imported: ImportError: no because"


def test_wheels_for_two_versions_of_cuda():
    wheels = ("nvidia-cudnn-cu13 9.19.1.2", "nvidia-cudnn-cu12 9.28.0.42")
    finding = judged(HEALTHY, "library.wheels", wheels=wheels)
    assert finding.verdict is WARNING
    assert finding.fix.startswith(
        "pip uninstall nvidia-cudnn-cu13 nvidia-cudnn-cu12, then install the one"
    )


def test_a_wheel_whose_file_was_replaced():
    finding = judged(HEALTHY, "library.wheels", wheels=("nvidia-cudnn-cu12 9.10.2.21",))
    assert finding.verdict is WARNING
    assert (
        "nvidia-cudnn-cu12 9.10.2.21 is installed, but the file in use is cuDNN 9.28.0"
        in finding.text
    )


@pytest.mark.parametrize(("major", "suffix"), [(12, "-cu12"), (13, "")])
@pytest.mark.parametrize("gpu", [True, False])
def test_what_cudnn_needs_and_is_not_there(major, suffix, gpu):
    needs = ((f"libcublasLt.so.{major}", "", ""), (f"libnvrtc.so.{major}", "", ""))
    by_check = said(library_checks.judge(HEALTHY._replace(needs=needs, uses_gpu=gpu)))
    (cublas,), (nvrtc,) = by_check["library.cublas"], by_check["library.nvrtc"]
    assert (cublas.verdict, nvrtc.verdict) == ((BROKEN, WARNING) if gpu else (NOTE, NOTE))
    assert f"cuBLAS (libcublasLt.so.{major}) was not found" in cublas.text
    assert (cublas.fix, nvrtc.fix) == (
        f"pip install nvidia-cublas{suffix}",
        f"pip install nvidia-cuda-nvrtc{suffix}",
    )


def test_what_cudnn_needs_and_does_not_see():
    needs = (
        ("libcublasLt.so.12", "", "/cuda/lib/libcublasLt.so.12"),
        ("libnvrtc.so.12", "/n/libnvrtc.so.12", ""),
    )
    by_check = said(library_checks.judge(HEALTHY._replace(needs=needs, uses_gpu=True)))
    (cublas,), (nvrtc,) = by_check["library.cublas"], by_check["library.nvrtc"]
    assert (cublas.verdict, cublas.fix) == (BROKEN, "add /cuda/lib to LD_LIBRARY_PATH")
    assert (nvrtc.verdict, nvrtc.text) == (OK, "NVRTC is there: /n/libnvrtc.so.12")


# ---------------------------------------------------------------- CUDA

H200 = ["NVIDIA H200", "9.0", "580.65.06", "GPU-1"]
GPU = {
    "bindings": "12.9.10",
    "supports": 13000,
    "driver": "580.65.06",
    "code": "",
    "error": "",
    "devices": [H200],
    **STEP,
}
TRIAL = {"device": "cuda:0", "right": True, "free": 3 << 30, "total": 4 << 30, **STEP}
NO_DRIVER = {**GPU, "supports": 0, "driver": "", "error": "libcuda cannot be found", "devices": []}
NO_DEVICE = {
    **GPU,
    "code": "CUDA_ERROR_NO_DEVICE",
    "error": "cuInit returned CUDA_ERROR_NO_DEVICE (100)",
    "devices": [],
}


def of_cuda(state, device="", library=LOADED, trial=None, mask=None):
    steps = {"cuda": state, "library": library} | (
        {} if trial is None else {"trial": {**trial, **STEP}}
    )
    variables = {"CUDNNLITE_DEVICE": device} | (
        {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    )
    return list(cuda.judge_cuda(variables, Probe(steps)))


def built_with(cudart, number=92800):
    return {**LOADED, "cudart": cudart, "number": number}


def test_a_healthy_gpu():
    by_check = said(of_cuda(GPU, trial=TRIAL))
    assert {name: finding.verdict for name, (finding,) in by_check.items()} == dict.fromkeys(
        ("cuda.driver", "cuda.compatibility", "cuda.bindings", "cuda.device", "cuda.trial"), OK
    )
    assert by_check["cuda.driver"][0].text == "the driver 580.65.06 supports CUDA 13.0"
    assert by_check["cuda.device"][0].text == "cuda:0 is NVIDIA H200, compute capability 9.0"
    assert by_check["cuda.trial"][0].text.endswith("on cuda:0 is right")


WITHOUT_A_DRIVER = {
    "": WARNING,
    "auto": NOTE,
    "emulated": NOTE,
    "cuda": BROKEN,
    "cuda:1": BROKEN,
    "Emulated:1": NOTE,
}
WITH_A_DRIVER = {"": BROKEN, "auto": WARNING, "emulated": NOTE, "cuda": BROKEN, "CUDA": BROKEN}


@pytest.mark.parametrize(("device", "verdict"), WITHOUT_A_DRIVER.items())
def test_no_driver_is_as_bad_as_what_was_asked_for(device, verdict):
    finding = only(of_cuda(NO_DRIVER, device), "cuda.driver")
    assert finding.verdict is verdict
    assert "there is no NVIDIA driver" in finding.text
    assert ("CUDNNLITE_DEVICE=emulated" in finding.fix) == (verdict > NOTE)


@pytest.mark.parametrize(("device", "verdict"), WITH_A_DRIVER.items())
def test_a_driver_that_cannot_be_used(device, verdict):
    finding = only(of_cuda(NO_DEVICE, device), "cuda.driver")
    assert finding.verdict is verdict
    assert (
        "the driver 580.65.06 is there, but cannot be used: cuInit returned CUDA_ERROR_NO_DEVICE"
        in finding.text
    )


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("CUDA_ERROR_STUB_LIBRARY", "take the folder 'stubs' out"),
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine"),
        ("CUDA_ERROR_UNKNOWN", "look at nvidia-smi"),
    ],
)
def test_what_cuda_says_has_a_fix(code, fix):
    finding = only(
        of_cuda({**NO_DRIVER, "code": code, "error": f"cuInit returned {code}"}), "cuda.driver"
    )
    assert finding.verdict is BROKEN
    assert finding.fix.startswith(fix)


def test_no_cuda_python():
    state = {
        **NO_DEVICE,
        "bindings": "",
        "error": "cuda-python cannot be imported (No module named 'cuda')",
    }
    finding = only(of_cuda(state), "cuda.driver")
    assert finding.verdict is BROKEN
    assert finding.fix.startswith("pip install 'cudnnlite[cu12]'")


def test_cuda_that_could_not_be_asked():
    finding = only(
        cuda.judge_cuda({}, Probe({}, "was killed by SIGSEGV", "library")), "cuda.driver"
    )
    assert (finding.verdict, finding.fix) == (WARNING, "fix what is broken above first")
    for device, verdict in {
        "": BROKEN,
        "cuda": BROKEN,
        "auto": BROKEN,
        "emulated": WARNING,
    }.items():
        probe = Probe({}, "was killed by SIGSEGV", "cuda")
        finding = only(cuda.judge_cuda({"CUDNNLITE_DEVICE": device}, probe), "cuda.driver")
        assert finding.verdict is verdict
        assert "SIGSEGV" in finding.text


@pytest.mark.parametrize(
    ("supports", "built", "verdict", "fix"),
    [
        (
            12080,
            13000,
            BROKEN,
            (
                "update the driver, or pip uninstall nvidia-cudnn-cu13 and pip install "
                "nvidia-cudnn-cu12"
            ),
        ),
        (11080, 12090, BROKEN, "update the driver to one for CUDA 12 or newer"),
        (12040, 12090, OK, ""),  # within CUDA 12 an older driver will do
        (13000, 12090, OK, ""),
    ],
)
def test_the_driver_against_cudnn(supports, built, verdict, fix):
    state = {**GPU, "supports": supports}
    finding = only(of_cuda(state, library=built_with(built)), "cuda.compatibility")
    assert (finding.verdict, finding.fix) == (verdict, fix)
    assert f"{built // 1000}.{built % 1000 // 10}" in finding.text
    if verdict is BROKEN:  # the emulated device does without
        assert (
            only(of_cuda(state, "emulated", built_with(built)), "cuda.compatibility").verdict
            is NOTE
        )


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
    state = {**GPU, "bindings": bindings, "supports": supports}
    finding = only(of_cuda(state, library=built_with(built)), "cuda.bindings")
    assert finding.verdict is verdict
    assert text in finding.text


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
    state = {**GPU, "devices": [["a GPU", capability, "", ""]]}
    finding = only(of_cuda(state, library=built_with(built, cudnn)), "cuda.device")
    assert (finding.verdict, finding.fix) == (verdict, fix)


def test_only_the_gpu_that_is_asked_for_can_be_broken():
    state = {**GPU, "devices": [["old", "6.1", "", ""], H200]}
    for device, verdicts in {
        "": [BROKEN, OK],
        "cuda:1": [WARNING, OK],
        "emulated": [WARNING, OK],
    }.items():
        assert [
            finding.verdict for finding in said(of_cuda(state, device))["cuda.device"]
        ] == verdicts, device


def test_a_gpu_that_is_asked_for_and_is_not_there():
    for index in (1, 3):
        *_, finding = said(of_cuda(GPU, f"cuda:{index}"))["cuda.device"]
        text = f"CUDNNLITE_DEVICE=cuda:{index}, but the last device is cuda:0"
        assert (finding.verdict, finding.text) == (BROKEN, text)


@pytest.mark.parametrize(
    ("mask", "count", "verdict", "text"),
    [
        ("0,1", 2, OK, "CUDA_VISIBLE_DEVICES=0,1: 2 GPUs"),
        ("0,7,1", 1, WARNING, "1 GPU, because '7' is not a GPU of this machine"),
        ("GPU-1, GPU-9", 1, WARNING, "because 'GPU-9' is not a GPU"),
        ("", 0, BROKEN, "is there, but CUDA_VISIBLE_DEVICES= leaves no GPU"),
        ("-1", 0, BROKEN, "CUDA_VISIBLE_DEVICES=-1 leaves no GPU"),
    ],
)
def test_hidden_gpus(mask, count, verdict, text):
    findings = of_cuda({**GPU, "devices": [H200] * count} if count else NO_DEVICE, mask=mask)
    finding = only(findings, "cuda.visible" if count else "cuda.driver")
    assert finding.verdict is verdict
    assert text in finding.text
    assert ("unset it" in finding.fix) == (verdict is not OK)


@pytest.mark.parametrize(
    ("trial", "text"),
    [
        (failed("ProbeError", "the process that tried it was killed by SIGABRT"), "SIGABRT"),
        (
            failed("NotInitializedError", "cudnnCreate returned X (1001)\n  x = 1"),
            "cudnnCreate returned X (1001)",
        ),
        (failed("ArgumentError", "x=3"), "ArgumentError: x=3"),
        ({**TRIAL, "right": False}, "returns wrong numbers"),
    ],
)
def test_trials_that_fail(trial, text):
    finding = only(of_cuda(GPU, "cuda", trial=trial), "cuda.trial")
    assert finding.verdict is BROKEN
    assert text in finding.text
    assert finding.lines == (("x = 1",) if "x = 1" in trial.get("message", "") else ())


# ---------------------------------------------------------------- environment variables


def settings(**variables):
    return said(environment.judge_variables(variables))


@pytest.mark.parametrize(
    ("name", "value", "verdict", "text"),
    [
        ("NVIDIA_TF32_OVERRIDE", "0", NOTE, "never uses TF32"),
        ("NVIDIA_TF32_OVERRIDE", "1", WARNING, "only 0 has a documented meaning"),
        ("CUDA_LAUNCH_BLOCKING", "1", WARNING, "the host waits for each kernel"),
        ("CUDA_LAUNCH_BLOCKING", "0", OK, ""),
        ("CUDA_MODULE_LOADING", "eager", NOTE, "a slow start"),
        ("CUDA_MODULE_LOADING", "LAZY", OK, ""),
        ("CUDNN_LOGLEVEL_DBG", "3", NOTE, "calls are slower"),
        ("CUDNN_LOGLEVEL_DBG", "0", OK, ""),
        ("CUDNN_PATH", "/gone", WARNING, "/gone does not exist"),
        ("CUDA_HOME", "/gone", WARNING, "/gone does not exist"),
        ("LD_LIBRARY_PATH", "/gone:/", NOTE, "/gone does not exist"),
        ("LD_LIBRARY_PATH", "/cuda/lib64/stubs/", WARNING, "'stubs'"),
        ("LD_LIBRARY_PATH", "/:/cuda/lib64/stubs:/", WARNING, "'stubs'"),
        ("LD_PRELOAD", "/gone/libx.so", WARNING, "/gone/libx.so does not exist"),
        ("LD_PRELOAD", "libjemalloc.so.2", OK, ""),
        ("LD_PRELOAD", "libcudnn.so.9", WARNING, "every program started from here"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", OK, ""),
        (
            "CUDNNLITE_FAULTS",
            "nofile.json",
            BROKEN,
            "CUDNNLITE_FAULTS='nofile.json': it cannot be read",
        ),
        ("CUDNNLITE_FAULTS", "", OK, ""),
        ("CUDNNLITE_DEVICE", "auto", OK, ""),
        ("CUDNNLITE_DEVICE", "", OK, ""),
        ("CUDNNLITE_DEVICE", "gpu", BROKEN, "CUDNNLITE_DEVICE=gpu names no device"),
    ],
)
def test_what_a_variable_means(name, value, verdict, text):
    ((finding,),) = settings(**{name: value}).values()
    assert (finding.check, finding.verdict) == (f"environment.{name}", verdict)
    assert finding.text.startswith(f"{name}={value}")
    assert text in finding.text
    assert (finding.facts["name"], finding.facts["value"]) == (name, value)


def test_a_variable_that_names_no_device_is_told_of_once():
    refused = failed("ArgumentError", "CUDNNLITE_DEVICE='tpu' is not a device")
    assert [finding.verdict for finding in of_cuda(NO_DRIVER, "tpu", trial=refused)] == [
        WARNING,
        OK,
    ]
    assert {finding.verdict for finding in of_cuda(GPU, "tpu", trial=refused)} == {OK}


def test_a_cudnn_path_without_libcudnn(tmp_path):
    (tmp_path / "lib").mkdir()
    assert (
        "there is no libcudnn.so.9"
        in settings(CUDNN_PATH=str(tmp_path))["environment.CUDNN_PATH"][0].text
    )
    write_copy(tmp_path / "lib")
    assert settings(CUDNN_PATH=str(tmp_path))["environment.CUDNN_PATH"][0].verdict is OK


def test_two_toolkits_by_two_names(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    home = settings(CUDA_HOME=str(tmp_path), CUDA_PATH=str(tmp_path / "a"))[
        "environment.CUDA_HOME"
    ][0]
    assert (home.verdict, home.fix) == (WARNING, "unset one of the two")
    same = settings(CUDA_HOME=str(tmp_path / "link"), CUDA_PATH=str(tmp_path / "a"))[
        "environment.CUDA_HOME"
    ][0]
    assert same.verdict is OK


def test_a_variable_that_is_misspelt():
    unknown = settings(CUDNNLITE_LIB_CUDNN="/x", CUDNNLITE_ZZZZZZ="1")["environment.unknown"]
    assert [finding.verdict for finding in unknown] == [WARNING, WARNING]
    assert unknown[0].fix == "set CUDNNLITE_LIBCUDNN instead"
    assert unknown[1].fix.startswith("unset CUDNNLITE_ZZZZZZ")
