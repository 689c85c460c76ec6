"""Small ELF files for tests: the doctor can read them, and nothing can load them."""

import struct


def elf(version=None, name="cudnn_graph_version", needed_name=None):
    """The bytes of a 64-bit ELF file that states a version of cuDNN.

    `version` is (9, 10, 2); `needed_name` is a symbol that it needs from another library, which is
    listed first.
    """
    strings = b"\0"

    def text(value):
        nonlocal strings
        offset = len(strings)
        strings += value.encode() + b"\0"
        return offset

    data = struct.pack(
        "<8xI4x", 0 if version is None else version[0] << 16 | version[1] << 8 | version[2]
    )
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    if needed_name:
        symbols += struct.pack("<IBBHQQ", text(needed_name), 0x11, 0, 0, 0, 4)
    if version is not None:
        symbols += struct.pack(
            "<IBBHQQ", text(name), 0x11, 0, 3, 0x7008, 4
        )  # section 3 begins at 0x7000
    contents = [b"", strings, symbols, data]
    kinds = [(0, 0, 0), (3, 0, 0), (11, 1, 0), (1, 0, 0x7000)]
    body, headers = b"", b""
    for content, (kind, link, address) in zip(contents, kinds, strict=True):
        headers += struct.pack(
            "<IIQQQQIIQQ", 0, kind, 0, address, 64 + len(body), len(content), link, 0, 0, 0
        )
        body += content
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(contents), 0
    )
    return header + body + headers


def write_copy(folder, version=(9, 10, 2), parts=("graph", "ops", "adv"), front="libcudnn.so.9"):
    """A folder as a libcudnn of some version has it; returns the front's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / front).write_bytes(elf())
    for part in parts:
        symbol = "cudnn_graph_version" if part == "graph" else f"cudnn_{part}_infer_version"
        (folder / f"libcudnn_{part}.so.9").write_bytes(
            elf(version, symbol, needed_name="cudnn_graph_version")
        )
    (folder / "libcudnn_cnn.so.9").write_bytes(elf())
    return folder / front
