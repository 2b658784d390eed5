"""Text for a screen. Names come from files, folders and people, and a terminal obeys some
characters instead of showing them.
"""

from __future__ import annotations


def escape_terminal(text: str) -> str:
    """One line in which nothing moves the cursor, colours, hides or turns the text around: such
    characters are written out.

    Examples:
        >>> escape_terminal("two\\nlines, \\x1b[2Ja clean screen, \\u202eright to left")
        'two\\\\nlines, \\\\x1b[2Ja clean screen, \\\\u202eright to left'
        >>> escape_terminal("größer als 方法 [red] \\\\ is text")
        'größer als 方法 [red] \\\\ is text'
    """
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    )


def first_paragraph(docstring: str) -> str:
    """The first paragraph of a docstring as one line.

    Examples:
        >>> first_paragraph("A title that\\ngoes on.\\n\\nMore.")
        'A title that goes on.'
    """
    return " ".join(docstring.strip().partition("\n\n")[0].split())


class Turns:
    """Numbers for runs that come one after another, as in `3/21 adcol seed 1`: which of how many it
    is.

    Examples:
        >>> told = Turns(12)
        >>> told("solo"), told("fedavg"), told("solo")
        (' 1/12 solo', ' 2/12 fedavg', ' 1/12 solo')
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._seen: dict[str, int] = {}

    def __call__(self, title: str) -> str:
        """The title with its number; one that is looked at again keeps it."""
        turn = self._seen.setdefault(title, len(self._seen) + 1)
        return f"{turn:>{len(str(self._total))}}/{self._total} {title}"
