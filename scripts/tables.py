"""Tables that scripts write into documents, between two markers each."""

import re
import sys


def write(path, name, table):
    """Puts the table between the markers `NAME: begin` and `NAME: end` of a Markdown file."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    between = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    if not between.search(text):
        sys.exit(f"{path} has no place for the table: the markers `{name}: begin` and `{name}: end` are missing")
    with open(path, "w", encoding="utf-8") as file:
        file.write(between.sub(lambda match: match[1] + table + match[2], text))
