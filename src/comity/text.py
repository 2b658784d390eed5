"""Text for a screen. Names come from files, folders and people, and a terminal obeys some characters instead of showing them."""

from __future__ import annotations


def harmless(text: str) -> str:
    """One line in which nothing moves the cursor, colours, hides or turns the text around: such characters are written out.

    Examples:
        >>> harmless("two\\nlines, \\x1b[2Ja clean screen, \\u202eright to left")
        'two\\\\nlines, \\\\x1b[2Ja clean screen, \\\\u202eright to left'
        >>> harmless("größer als 方法 [red] \\\\ is text")
        'größer als 方法 [red] \\\\ is text'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
