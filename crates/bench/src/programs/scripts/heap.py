"""What the Python programs have in common: records that are functions of their numbers, and answers to the experiment.

A request is a line on standard input, an answer a line of JSON; at the end of the input the program ends.
"""

import array
import gc
import json
import sys
import time

WORDS = ("the order was left with a neighbour because nobody opened please call before delivery and ask for "
         "size exchange wrong colour agreed refund customer parcel").split()
NAMES = "Anna Boris Chiara David Elif Farid Greta Hugo Ines Jonas Keiko Luis Mira Nils Olga Pavel".split()
HOT_ONE_IN = 20  # so many records for each that stays in use
BURST, PERIOD = 0.1, 1.0  # seconds at work, out of so many
KEPT = 16384  # so many units' times at most go into a percentile


class InUse:
    """The numbers of those of so many records that stay in use: runs of records that were made one after another."""

    def __init__(self, count, run):
        self.run = max(1, min(run, count // HOT_ONE_IN))
        self.count = count // (HOT_ONE_IN * self.run) * self.run

    def __getitem__(self, turn):
        at = turn * 7919 % self.count
        return at // self.run * self.run * HOT_ONE_IN + at % self.run


def numbers(number):
    """Random numbers of 64 bits, from the record's number alone."""
    state = number
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        yield state >> 11


def record(number):
    """A record: a tenth noise, a third numbers and names, the rest prose."""
    random = numbers(number)
    name = NAMES[next(random) % 16]
    return {
        "id": number,
        "name": name,
        "mail": "%s.%d@example.org" % (name.lower(), next(random) % 1000),
        "token": "%016x%016x" % (next(random), next(random)),
        "balance": next(random) % 1000000 / 100,
        "orders": [next(random) % 100000 for _ in range(8)],
        "notes": " ".join(WORDS[next(random) % len(WORDS)] for _ in range(60)),
    }


def hot(unit, seconds):
    """Works in bursts for so long; a unit is a call of `unit` with a counter."""
    now = time.perf_counter
    kept, units, busy, end = array.array("d", bytes(8 * KEPT)), 0, 0.0, now() + seconds
    while True:
        began = now()
        until = min(began + BURST, end)
        last = began
        while last < until:
            unit(units)
            after = now()
            kept[units % KEPT] = after - last
            last = after
            units += 1
        busy += last - began
        if last >= end:
            break
        time.sleep(max(0.0, min(began + PERIOD, end) - now()))
    times = sorted(kept[:min(units, KEPT)])
    p99 = times[(len(times) * 99 - 1) // 100] if times else 0.0
    return {"units": units, "busy_ns": int(busy * 1e9), "p99_ns": int(p99 * 1e9)}


def serve(load, unit, spoil, verify):
    """Builds the heap, says so, and does what is asked."""
    answer = {"items": load()}
    while True:
        print(json.dumps(answer), flush=True)
        words = sys.stdin.readline().split()
        if not words:
            return
        if words[0] == "hot":
            answer = hot(unit, float(words[1]))
        elif words[0] == "spoil":
            spoil()
            answer = {}
        elif words[0] == "collect":
            gc.collect()
            answer = {}
        elif words[0] == "verify":
            answer = {"wrong": verify()}
        else:
            raise SystemExit("not a request: %r" % words)
