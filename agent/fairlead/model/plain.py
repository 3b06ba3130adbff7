"""Text of others made fit to be shown: on a node it may be a user's, on the admin host a node's.

Standard library only and nothing imported: the bundle carries this text to where Ansible runs.
"""


def printable(text: str) -> str:
    """Text without what steers a terminal: control characters, and those that change the direction of writing, become spaces."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def one_line(text: str, limit: int = 0) -> str:
    """Text as one printable line: what is not printable (control characters, line ends, marks that turn the direction of writing)
    becomes a space, runs of white space one space. limit: how many characters are kept, 0 for all."""
    if limit and len(text) > 4 * limit:
        text = text[: 4 * limit]
    line = " ".join(printable(text).split())
    return line if not limit or len(line) <= limit else line[: limit - 3] + "..."


def page(text: str, limit: int = 0) -> str:
    """Text of several lines, of which each is printable; tabs stay. What is not printable becomes a question mark."""
    if limit and len(text) > limit:
        text = text[:limit] + "\n..."
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() else "?" for c in text.replace("\r\n", "\n"))
