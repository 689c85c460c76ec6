"""Read cuDNN's headers with libclang into plain records; only names, types, values and version numbers are kept."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# All that the headers need from the CUDA toolkit and the C library, so that neither has to be
# installed.
_STUBS = {
    "cuda_runtime_api.h": "typedef struct CUstream_st *cudaStream_t; typedef struct CUgraph_st *cudaGraph_t;",
    "cuda_runtime.h": "#include <cuda_runtime_api.h>",
    "library_types.h": "typedef enum { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;",
    "stddef.h": "typedef __SIZE_TYPE__ size_t;\n#define NULL ((void *)0)",
    "stdint.h": "#include <stddef.h>\n"
    + "".join(
        f"typedef __{u}INT{n}_TYPE__ {u.lower()}int{n}_t;\n"
        for u in ("", "U")
        for n in (8, 16, 32, 64)
    ),
}

SCALARS = {
    "char": "c_char",
    "int": "c_int",
    "unsigned int": "c_uint",
    "unsigned long long": "c_ulonglong",
    "float": "c_float",
    "double": "c_double",
    "size_t": "c_size_t",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "int64_t": "c_int64",
    "uint64_t": "c_uint64",
}


class HeaderError(Exception):
    """The headers cannot be read, or hold something that the generator has no rule for."""


@dataclass(frozen=True)
class Prototype:
    """An exported function; types are ctypes expressions, None for a void result."""

    name: str
    restype: str | None
    parameters: tuple[tuple[str, str], ...]
    returns_status: bool
    header: str
    since: str | None
    deprecated: str | None
    c_types: tuple[str, ...] = ()


@dataclass
class Headers:
    """All that the generated files are made from, by the names in C."""

    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    # By enumerator: the CUDNN_VERSION that introduced it, where the header says.
    since: dict[str, int] = field(default_factory=dict)
    handles: list[str] = field(default_factory=lambda: ["cudaStream_t", "cudaGraph_t"])
    structs: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # the fields' types as ctypes expressions
    callbacks: dict[str, str] = field(default_factory=dict)
    constants: dict[str, int | float] = field(default_factory=dict)
    functions: list[Prototype] = field(default_factory=list)

    @property
    def version(self) -> int:
        """The value of CUDNN_VERSION, such as 92800."""
        return int(self.constants["CUDNN_VERSION"])


def read_version(directory: Path) -> int:
    """Return CUDNN_VERSION of the headers in `directory`, without libclang."""
    try:
        text = (directory / "cudnn_version.h").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise HeaderError(f"no cuDNN headers in {directory}: {error}") from error
    parts = [
        re.search(rf"#define\s+CUDNN_{part}\s+(\d+)", text)
        for part in ("MAJOR", "MINOR", "PATCHLEVEL")
    ]
    major, minor, patch = (int(part[1]) if part else 0 for part in parts)
    return major * 10000 + minor * 100 + patch


def parse_headers(directory: Path) -> Headers:
    """Parse every cuDNN header in `directory`.

    Raises
    ------
    HeaderError
        If there are no headers, or libclang is missing, reports an error, or meets a type without a
        ctypes rule.
    """
    if not (directory / "cudnn.h").is_file():
        raise HeaderError(f"no cuDNN headers in {directory}")
    try:
        from clang import cindex
    except ImportError as error:
        raise HeaderError('libclang is not installed; pip install "cudnnlite[dev]"') from error

    names = sorted(
        path.name for path in directory.glob("cudnn_*.h") if not path.stem.endswith("_v9")
    )
    driver = "\n".join(f'#include "{name}"' for name in ["cudnn.h", *names])
    with tempfile.TemporaryDirectory() as stubs:
        for name, text in _STUBS.items():
            Path(stubs, name).write_text(text + "\n", encoding="utf-8")
        # CUDNN_WARN_DEPRECATED turns the headers' deprecation marks into attributes that libclang
        # reports
        arguments = ["-xc", "-nostdinc", f"-I{stubs}", f"-I{directory}", "-DCUDNN_WARN_DEPRECATED"]
        unit = cindex.Index.create().parse(
            "cudnnlite.h",
            args=arguments,
            unsaved_files=[("cudnnlite.h", driver)],
            options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
        )
        errors = [
            str(message)
            for message in unit.diagnostics
            if message.severity >= cindex.Diagnostic.Error
        ]
        if errors:
            raise HeaderError(
                f"libclang cannot parse the headers in {directory}: " + "; ".join(errors[:5])
            )
        return _collect(unit.cursor, directory)


def _collect(root: Any, directory: Path) -> Headers:
    headers = Headers()
    macros: dict[str, str] = {}
    for cursor in root.get_children():
        file = cursor.location.file
        if file is None or Path(file.name).parent != directory:
            continue
        kind = cursor.kind.name
        if kind == "TYPEDEF_DECL":
            _add_typedef(headers, cursor)
        elif kind == "FUNCTION_DECL":
            headers.functions.append(_prototype(headers, cursor, Path(file.name).stem))
        elif kind == "MACRO_DEFINITION" and cursor.spelling.startswith("CUDNN_"):
            macros[cursor.spelling] = " ".join(token.spelling for token in _replacement(cursor))
    values = {name: value for members in headers.enums.values() for name, value in members.items()}
    for name, text in macros.items():
        value = _evaluate(text, {**values, **headers.constants})
        if value is not None:
            headers.constants[name] = value
    headers.functions.sort(key=lambda function: (function.header, function.name))
    return headers


def _replacement(cursor: Any) -> list[Any]:
    """Tokens that a macro stands for; none for a macro with parameters, whose bracket touches the name."""
    name, *rest = cursor.get_tokens()
    return [] if rest and rest[0].extent.start.offset == name.extent.end.offset else rest


def _evaluate(text: str, names: dict[str, int | float]) -> int | float | None:
    """Value of a macro, or None for what is no constant: an include guard, an attribute."""
    try:
        value = eval(re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text), {"__builtins__": {}}, names)
    except (SyntaxError, NameError, TypeError):
        return None
    return value if isinstance(value, (int, float)) else None


def _add_typedef(headers: Headers, cursor: Any) -> None:
    name = cursor.spelling
    target = cursor.underlying_typedef_type.get_canonical()
    if target.kind.name == "ENUM":
        children = target.get_declaration().get_children()
        members = [c for c in children if c.kind.name == "ENUM_CONSTANT_DECL"]
        headers.enums[name] = {c.spelling: c.enum_value for c in members}
        for member in members:
            if since := _since(member):
                headers.since[member.spelling] = version_number(since)
    elif target.kind.name == "RECORD":
        if fields := {c.spelling: _ctype(headers, c.type) for c in target.get_fields()}:
            headers.structs[name] = fields
    elif target.kind.name == "POINTER":
        pointee = target.get_pointee()
        if pointee.kind.name == "FUNCTIONPROTO":
            # the parameters' own types keep typedef names, which the canonical function type has
            # lost
            arguments = [c.type for c in cursor.get_children() if c.kind.name == "PARM_DECL"]
            kinds = [_ctype(headers, kind) for kind in (pointee.get_result(), *arguments)]
            headers.callbacks[name] = f"CFUNCTYPE({', '.join(kinds)})"
        else:
            # cudnnBackendDescriptor_t is void * in C; a class of its own keeps it apart from data
            # pointers all the same
            headers.handles.append(name)
    else:
        raise HeaderError(f"no rule for the typedef {name}: {target.spelling}")


def _since(cursor: Any) -> str | None:
    """Return the version of cuDNN that introduced something, where its comment says."""
    found = re.search(r"@since\s+(?:cuDNN\s+)?v?(\d+(?:\.\d+)+)", cursor.raw_comment or "")
    return found[1] if found else None


def version_number(version: str) -> int:
    """Return CUDNN_VERSION of a version of cuDNN 9: 92800 of "9.28" and of "9.28.0"."""
    major, minor, patch, *_ = (*map(int, version.split(".")), 0, 0)
    return major * 10000 + minor * 100 + patch


def _prototype(headers: Headers, cursor: Any, stem: str) -> Prototype:
    comment = cursor.raw_comment or ""
    marked = re.search(
        r"@deprecated\s+Since\s+(?:cuDNN\s+)?v?(\d+(?:\.\d+)*)", comment, re.IGNORECASE
    )
    deprecated = cursor.availability.name == "DEPRECATED"
    return Prototype(
        name=cursor.spelling,
        restype=None
        if cursor.result_type.kind.name == "VOID"
        else _ctype(headers, cursor.result_type),
        parameters=tuple((a.spelling, _ctype(headers, a.type)) for a in cursor.get_arguments()),
        returns_status=_plain(cursor.result_type) == "cudnnStatus_t",
        header=re.sub(r"^cudnn_|_v\d+$", "", stem),
        since=_since(cursor),
        deprecated=(marked[1] if marked else "yes") if deprecated else None,
        c_types=tuple(
            " ".join(a.type.spelling.replace("enum ", "").split()) for a in cursor.get_arguments()
        ),
    )


def _plain(kind: Any) -> str:
    """Spelling of a type without its qualifiers and the words struct and enum."""
    return re.sub(r"\b(const|struct|enum)\s+", "", str(kind.spelling)).strip()


def _ctype(headers: Headers, kind: Any) -> str:
    """Return the ctypes expression for a C type."""
    plain = _plain(kind)
    if plain in (*headers.handles, *headers.structs, *headers.callbacks):
        return plain
    if plain in SCALARS:
        return SCALARS[plain]
    canonical = kind.get_canonical()
    match canonical.kind.name:
        case "VOID":
            return "None"
        case "ENUM":
            return "c_int"
        case "CONSTANTARRAY":
            return f"{_ctype(headers, kind.element_type)} * {kind.element_count}"
        case "INCOMPLETEARRAY":
            return f"POINTER({_ctype(headers, kind.element_type)})"
        case "POINTER":
            # the sugared pointee keeps typedef names such as size_t, which the canonical type has
            # lost
            pointee = kind.get_pointee()
            target = pointee.get_canonical()
            incomplete = target.kind.name == "RECORD" and not list(target.get_fields())
            if target.kind.name == "VOID" or incomplete:
                return "c_void_p"
            inner = _ctype(headers, pointee)
            return "c_char_p" if inner == "c_char" else f"POINTER({inner})"
    raise HeaderError(f"no ctypes rule for the C type {kind.spelling}")
