"""Texts of others in a program in C: `comment` and `string_literal` are the only ways in."""

from __future__ import annotations

import re

# The places between two characters that would end a comment, begin one in it, or begin a trigraph.
# A space goes there.
_BETWEEN = re.compile(r"(?<=\*)(?=/)|(?<=/)(?=\*)|(?<=\?)(?=\?)")
_PLAIN = frozenset(
    b" !#$%&'()*+,-./0123456789:;<=>@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~"
)


def comment(*lines: str) -> str:
    """Return a comment of one or several lines, whatever characters they have.

    A backslash becomes a slash, because at the end of a line it would join the next line to it.  A
    character that cannot be printed (a line break, a control, half a character, a mark that turns
    the direction of writing) becomes its number.
    """
    text = "\n * ".join(map(_printed, lines))
    return f"/* {text}\n */" if len(lines) > 1 else f"/* {text} */"


def string_literal(text: str) -> str:
    """Return a string literal of a text's UTF-8 bytes; what means something in C is in octal."""
    content = text.encode(errors="surrogatepass")
    return '"' + "".join(chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in content) + '"'


def _printed(text: str) -> str:
    """Return a text in a form that a C comment can contain."""
    printed = "".join(sign if sign.isprintable() else f"<U+{ord(sign):04X}>" for sign in text)
    return _BETWEEN.sub(" ", printed.replace("\\", "/"))
