"""What scripts that fold programs have in common, most of them as harshly as can be."""

import os
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# What was not touched for 20 ms goes, whatever that costs.
SETTINGS = ["--cold-age", "20ms", "--recompress-age", "50ms", "--max-stall", "100", "--max-cpu", "100", "--start-at", "0"]


def built(name):
    """The path of what cargo has built, such as `release/memfold`."""
    directory = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(os.path.abspath(directory), name)


def memfold():
    """The path of the executable: what MEMFOLD_BIN names, or what was built. Ends the script where it is not there."""
    path = os.environ.get("MEMFOLD_BIN", built("release/memfold"))
    if not os.access(path, os.X_OK):
        sys.exit(f"{path} is not there: run `make build`, or name another in MEMFOLD_BIN")
    return path
