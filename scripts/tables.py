"""Tables that scripts write into documents, between two markers each."""

import re
import sys


def place(path, name):
    """The text of a Markdown file before the table between the markers `NAME: begin` and `NAME: end`, in it, and after it."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    parts = re.fullmatch(rf"(.*<!-- {name}: begin -->\n)(.*?)(<!-- {name}: end -->.*)", text, re.DOTALL)
    if not parts:
        sys.exit(f"{path} has no place for the table: the markers `{name}: begin` and `{name}: end` are missing")
    return parts.groups()


def write(path, name, table):
    """Puts the table there."""
    before, _, after = place(path, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + table + after)
