// A Map of records; a request is a line on standard input, an answer a line of JSON.
"use strict";
const { Heap } = require("./heap.js");
const heap = new Heap(Number(process.argv[2]), Number(process.argv[3]));

function collect() {
  require("v8").setFlagsFromString("--expose-gc");
  require("vm").runInNewContext("gc")();
}

async function answer(line) {
  const [what, seconds] = line.split(" ");
  switch (what) {
    case "hot": return heap.hot(Number(seconds) * 1000);
    case "spoil": return heap.spoil(), {};
    case "collect": return collect(), {};
    case "verify": return { wrong: heap.verify() };
    default: throw new Error(`not a request: ${line}`);
  }
}

(async () => {
  console.log(JSON.stringify({ items: heap.count }));
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await answer(line)));
  }
})();
