"""What scripts that fold programs as harshly as can be have in common."""

import os

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# What was not touched for 20 ms goes, whatever that costs.
SETTINGS = ["--cold-age", "20ms", "--recompress-age", "50ms", "--max-stall", "100", "--max-cpu", "100", "--start-at", "0"]


def built(name):
    """The path of what cargo has built, such as `release/memfold`."""
    directory = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(os.path.abspath(directory), name)
