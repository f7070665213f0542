// What node and the pages have in common: a Map of records that are functions of their numbers.
"use strict";
const WORDS = ("the order was left with a neighbour because nobody opened please call before delivery and ask for " +
  "size exchange wrong colour agreed refund customer parcel").split(" ");
const NAMES = "Anna Boris Chiara David Elif Farid Greta Hugo Ines Jonas Keiko Luis Mira Nils Olga Pavel".split(" ");
const EACH = 1750; // bytes that a record takes, about
const HOT_ONE_IN = 20; // so many records for each that stays in use
const BURST = 100, PERIOD = 1000; // ms at work, out of so many
const KEPT = 16384; // so many units' times at most go into a percentile

// Random numbers of 31 bits, from the record's number alone.
function numbers(number) {
  let state = (number ^ 0x5eed) | 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0;
    const mixed = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d);
    return (mixed ^ (mixed >>> 12)) >>> 1;
  };
}

function record(number) {
  const next = numbers(number), hex = () => next().toString(16).padStart(8, "0");
  const name = NAMES[next() % 16], words = [];
  for (let i = 0; i < 60; i++) words.push(WORDS[next() % WORDS.length]);
  return {
    id: number, name, mail: `${name.toLowerCase()}.${next() % 1000}@example.org`, token: hex() + hex() + hex() + hex(),
    balance: next() % 1000000 / 100, orders: Array.from({ length: 8 }, () => next() % 100000), notes: words.join(" "),
  };
}

class Heap {
  // Those that stay in use are in runs of so many that were made one after another.
  constructor(bytes, run) {
    this.count = Math.max(HOT_ONE_IN, Math.floor(bytes / EACH));
    this.run = Math.max(1, Math.min(run, Math.floor(this.count / HOT_ONE_IN)));
    this.inUse = Math.floor(this.count / (HOT_ONE_IN * this.run)) * this.run;
    this.map = new Map();
    this.steps = 256;
    for (let number = 0; number < this.count; number++) this.map.set(number, record(number));
  }

  // Looks at so many steps' records of those in use.
  unit(turn) {
    let total = 0;
    for (let step = 0; step < this.steps; step++) {
      const at = (turn * this.steps + step) * 7919 % this.inUse, within = at % this.run;
      const found = this.map.get((at - within) * HOT_ONE_IN + within);
      total += found.id + found.notes.length;
    }
    return total;
  }

  // Works in bursts for so many ms.
  async hot(millis) {
    const now = () => performance.now(), kept = new Float64Array(KEPT), end = now() + millis;
    let units = 0, busy = 0;
    for (;;) {
      const began = now(), until = Math.min(began + BURST, end);
      let last = began;
      while (last < until) {
        this.unit(units);
        const after = now();
        kept[units++ % KEPT] = after - last;
        last = after;
      }
      busy += last - began;
      if (last >= end) break;
      await new Promise(resolve => setTimeout(resolve, Math.max(0, Math.min(began + PERIOD, end) - now())));
    }
    const times = kept.slice(0, Math.min(units, KEPT)).sort();
    const p99 = times.length ? times[Math.ceil(times.length * 0.99) - 1] : 0;
    return { units, busy_ns: Math.round(busy * 1e6), p99_ns: Math.round(p99 * 1e6) };
  }

  spoil() {
    this.map.get(this.count >> 1).balance += 1;
  }

  verify() {
    let wrong = 0;
    for (let number = 0; number < this.count; number++) {
      const found = this.map.get(number), made = record(number);
      if (JSON.stringify(found) !== JSON.stringify(made)) wrong++;
    }
    return wrong;
  }
}

if (typeof module !== "undefined") module.exports = { Heap };
