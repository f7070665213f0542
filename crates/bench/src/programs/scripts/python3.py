"""A dict of records, each of them a dict."""

import sys
from heap import HOT_ONE_IN, InUse, record, serve

EACH = 1700  # bytes that a record takes, about
count = max(HOT_ONE_IN, int(sys.argv[1]) // EACH)
in_use = InUse(count, int(sys.argv[2]))
heap = {}


def load():
    for number in range(count):
        heap[number] = record(number)
    return count


def unit(turn):
    """Looks at 32 records of those in use."""
    total = 0
    for step in range(32):
        found = heap[in_use[turn * 32 + step]]
        total += found["id"] + len(found["notes"])
    return total


def spoil():
    heap[count // 2]["balance"] += 1


def verify():
    return sum(heap.get(number) != record(number) for number in range(count))


serve(load, unit, spoil, verify)
