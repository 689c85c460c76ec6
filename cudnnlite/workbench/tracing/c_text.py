"""Foreign texts in a program in C: only `comment` and `string_literal` write them."""

from __future__ import annotations

import re

# Matches between two characters that would end a comment, begin a nested one, or begin a trigraph.
# A space is inserted there.
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
    text = "\n * ".join(map(_comment_text, lines))
    return f"/* {text}\n */" if len(lines) > 1 else f"/* {text} */"


def string_literal(text: str) -> str:
    """Return a string literal of a text's UTF-8 bytes; special characters are in octal."""
    content = text.encode(errors="surrogatepass")
    return '"' + "".join(chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in content) + '"'


def _comment_text(text: str) -> str:
    """Return a text in a form that a C comment can contain."""
    characters = [sign if sign.isprintable() else f"<U+{ord(sign):04X}>" for sign in text]
    return _BETWEEN.sub(" ", "".join(characters).replace("\\", "/"))
