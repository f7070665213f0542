"""A database in memory: a table of records as JSON, and an index on their tokens."""

import json
import sqlite3
import sys
from heap import HOT_ONE_IN, InUse, record, serve

EACH = 850  # bytes that a record takes, about
count = max(HOT_ONE_IN, int(sys.argv[1]) // EACH)
in_use = InUse(count, int(sys.argv[2]))
heap = sqlite3.connect(":memory:")


def load():
    heap.execute("create table record(id integer primary key, token text, body text)")
    made = (record(number) for number in range(count))
    heap.executemany("insert into record values(?, ?, ?)", ((r["id"], r["token"], json.dumps(r)) for r in made))
    heap.execute("create index token on record(token)")
    heap.commit()
    return count


def unit(turn):
    """Selects 8 records of those in use."""
    for step in range(8):
        heap.execute("select body from record where id = ?", (in_use[turn * 8 + step],)).fetchone()


def spoil():
    heap.execute("update record set body = replace(body, 'balance', 'ballance') where id = ?", (count // 2,))


def verify():
    rows = heap.execute("select id, token, body from record order by id")
    right = 0
    for number, row in enumerate(rows):
        made = record(number)
        right += row == (number, made["token"], json.dumps(made))
    found = sum(1 for _ in heap.execute("select token from record indexed by token order by token"))
    return max(count - right, abs(count - found))


serve(load, unit, spoil, verify)
