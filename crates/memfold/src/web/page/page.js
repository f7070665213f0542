"use strict";
// Texts are set as texts and never as HTML: a program's name may be anything.
const $ = (id) => document.getElementById(id);

function make(tag, words, ...children) {
  const element = document.createElement(tag);
  if (words) element.className = words;
  element.append(...children);
  return element;
}

// Sets a text only where it is another, so that what is selected stays so.
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function digits(value) {
  return value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0);
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0, value = n;
  while (value >= 1000 && unit + 1 < units.length) { value /= 1024; unit += 1; }
  return unit === 0 ? `${n} B` : `${digits(value)} ${units[unit]}`;
}

function nanos(ns) {
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${digits(ns / 1e3)} us`;
  return ns < 1e9 ? `${digits(ns / 1e6)} ms` : `${digits(ns / 1e9)} s`;
}

function span(seconds) {
  const s = Math.round(seconds);
  return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")} min` : `${(s / 3600).toFixed(1)} h`;
}

// Colours.

const theme = $("theme");
const system = matchMedia("(prefers-color-scheme: dark)");

function paint() {
  const dark = theme.value ? theme.value === "dark" : system.matches;
  document.documentElement.toggleAttribute("data-dark", dark);
  if (picture) drawHeat();
}

function remembered(key, value) {
  // A browser may forbid it.
  try {
    if (value === undefined) return localStorage.getItem(key) ?? "";
    localStorage.setItem(key, value);
  } catch { /* as if it were new each time */ }
  return "";
}

theme.addEventListener("change", () => { remembered("memfold-theme", theme.value); paint(); });
system.addEventListener("change", paint);

// A curve over time, up to now.

const SVG = $("past").namespaceURI;

function curve(svg, points, label) {
  let line = svg.firstElementChild;
  if (!line) {
    line = document.createElementNS(SVG, "polyline");
    svg.append(line);
    svg.setAttribute("viewBox", "0 0 1000 100");
  }
  const [from, to] = [points.length ? points[0][0] : 0, points.length ? points[points.length - 1][0] : 1];
  const most = points.reduce((most, point) => Math.max(most, point[1]), 0) || 1;
  const place = ([at, value]) => `${((at - from) / Math.max(to - from, 1e-9) * 1000).toFixed(1)},${(96 - value / most * 92).toFixed(1)}`;
  line.setAttribute("points", points.map(place).join(" "));
  if (label) svg.setAttribute("aria-label", label);
}

// The table of all programs. `from` is how wide the page must be for a column, 1 for always.

const COLUMNS = [
  { key: "name", title: "NAME", from: 1, words: true },
  { key: "pid", title: "PID", from: 2, up: true },
  { key: "user", title: "USER", from: 5, words: true },
  { key: "resident_bytes", title: "RESIDENT", from: 1, show: bytes },
  { key: "managed_bytes", title: "MANAGED", from: 4, show: bytes },
  { key: "evicted_bytes", title: "FOLDED", from: 3, show: bytes },
  { key: "stored_bytes", title: "INTO", from: 5, show: bytes },
  { key: "overhead_bytes", title: "COST", from: 4, show: bytes },
  { key: "saved_bytes", title: "SAVED", from: 1, show: bytes },
  { key: "saved_pct", title: "SAVED%", from: 2, show: (n) => n.toFixed(1) },
  { key: "trend", title: "TREND", from: 6, help: "saved, since this page was opened" },
  { key: "faults_per_s", title: "FAULTS/S", from: 3, show: (n) => n.toFixed(0) },
  { key: "waits_pct", title: "WAITS%", from: 3, show: (n) => n.toFixed(3) },
  { key: "cpu_pct", title: "CPU%", from: 4, show: (n) => n.toFixed(2) },
  { key: "policy", title: "POLICY", from: 5, words: true },
  { key: "tier_bytes", title: "TIER", from: 6, show: (n) => n === 0 ? "-" : bytes(n) },
  { key: "why", title: "WHY NOT MORE", from: 4, words: true },
];
const MANY_WAITS = 0.5;
const TREND = 60;
let sort = { key: "saved_bytes", upwards: false };
let programs = [], total = null, history = [];
const rows = new Map();

const classes = (column) => `${column.words ? "words " : ""}${column.key} w${column.from}`;

function makeTable() {
  for (const column of COLUMNS) {
    const head = make("th", classes(column));
    head.scope = "col";
    if (column.key === "trend") {
      head.append(column.title);
      head.title = column.help;
    } else {
      const button = make("button", "", column.title);
      button.type = "button";
      button.addEventListener("click", () => sortBy(column));
      head.append(button);
      $("sort").append(new Option(column.title.toLowerCase(), column.key));
    }
    $("list").tHead.rows[0].append(head);
    $("list").tFoot.rows[0].append(make("td", classes(column)));
  }
  $("sort").value = sort.key;
  $("sort").addEventListener("change", () => sortBy(COLUMNS.find((column) => column.key === $("sort").value)));
  $("filter").addEventListener("input", arrange);
}

function sortBy(column) {
  const first = Boolean(column.words || column.up);
  sort = { key: column.key, upwards: sort.key === column.key ? !sort.upwards : first };
  $("sort").value = sort.key;
  arrange();
}

function matches(program, text) {
  const words = [program.name, program.user, program.policy, program.why, String(program.pid)];
  return words.some((word) => word.toLowerCase().includes(text));
}

function fill(cells, program, trend) {
  COLUMNS.forEach((column, n) => {
    const cell = cells[n], value = program[column.key];
    if (column.key === "trend") {
      if (trend && trend.length > 1) {
        if (!cell.firstElementChild) {
          const svg = document.createElementNS(SVG, "svg");
          svg.setAttribute("preserveAspectRatio", "none");
          svg.setAttribute("aria-hidden", "true");
          cell.append(svg);
        }
        curve(cell.firstElementChild, trend.map((saved, at) => [at, saved]));
      }
    } else if (column.key === "name" && program.pid) {
      const link = cell.firstElementChild ?? cell.appendChild(make("a"));
      put(link, value);
      link.href = `#/${program.pid}`;
      cell.title = value;
    } else {
      put(cell, column.key === "pid" && !value ? "" : column.show ? column.show(value) : String(value));
      if (column.key === "why") cell.title = value;
    }
  });
}

function arrange() {
  const text = $("filter").value.trim().toLowerCase();
  const shown = programs.filter((program) => matches(program, text));
  const sign = sort.upwards ? 1 : -1;
  const compare = (a, b) => typeof a === "string" ? a.localeCompare(b) : a - b;
  shown.sort((a, b) => sign * compare(a[sort.key], b[sort.key]) || a.pid - b.pid);
  COLUMNS.forEach((column, n) => {
    const head = $("list").tHead.rows[0].cells[n];
    if (column.key === sort.key) head.setAttribute("aria-sort", sort.upwards ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
  const body = $("list").tBodies[0];
  const there = new Set();
  shown.forEach((program, at) => {
    const key = `${program.pid} ${program.started_ns}`;
    there.add(key);
    const row = rows.get(key).row;
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null);
  });
  for (const [key, { row }] of rows) if (!there.has(key)) row.remove();
  const sum = text ? sumOf(shown) : total;
  if (sum) fill($("list").tFoot.rows[0].cells, sum);
  put($("count"), text ? `${shown.length} of ${programs.length}` : "");
  $("nobody").hidden = shown.length > 0;
  put($("nobody"), programs.length ? "No folded program matches the filter." : "No folded programs. `memfold run -- COMMAND` starts one.");
}

function sumOf(some) {
  const sum = { pid: 0, name: `${some.length} program${some.length === 1 ? "" : "s"}`, user: "", policy: "", why: "" };
  for (const { key, show } of COLUMNS) if (show) sum[key] = some.reduce((all, program) => all + program[key], 0);
  sum.saved_pct = sum.saved_bytes > 0 ? sum.saved_bytes * 100 / (sum.resident_bytes + sum.saved_bytes) : 0;
  return sum;
}

function onList(news) {
  ({ programs, total } = news);
  const there = new Set();
  for (const program of programs) {
    const key = `${program.pid} ${program.started_ns}`;
    there.add(key);
    let known = rows.get(key);
    if (!known) {
      known = { row: make("tr", "", ...COLUMNS.map((column) => make("td", classes(column)))), trend: [] };
      rows.set(key, known);
    }
    known.trend.push(program.saved_bytes);
    if (known.trend.length > TREND) known.trend.shift();
    fill(known.row.cells, program, known.trend);
    known.row.querySelector(".saved_bytes").classList.toggle("good", program.saved_bytes > 0);
    known.row.querySelector(".waits_pct").classList.toggle("bad", program.waits_pct > MANY_WAITS);
  }
  for (const [key, { row }] of rows) if (!there.has(key)) { row.remove(); rows.delete(key); }
  arrange();
  history.push([Date.now() / 1000, total]);
  if (history.length > 3600) history.shift();
  drawCurves();
}

function drawCurves() {
  const time = history.length ? span(history[history.length - 1][0] - history[0][0]) : "";
  for (const [id, key, show] of [["saved", "saved_bytes", bytes], ["resident", "resident_bytes", bytes], ["faults", "faults_per_s", (n) => n.toFixed(0)]]) {
    const now = total ? show(total[key]) : "";
    put($(`${id}-now`), now);
    curve($(`${id}-curve`), history.map(([at, sum]) => [at, sum[key]]), `${now} now; the last ${time}`);
  }
}

// One program.

const KINDS = { "#": "in-use", "+": "cooling", "-": "cold", "o": "aside", ":": "folded", "x": "other", "m": "own" };
let one = null, picture = null, cells = [], chosen = -1;

function bars(place, list, most) {
  const wanted = list.flatMap(({ name, kind, amount, rate }) => {
    const fill = make("span", `k-${kind}`);
    fill.style.width = `${most > 0 ? amount / most * 100 : 0}%`;
    const parts = [make("span", "", name), make("div", "bar", fill), make("span", "amount", bytes(amount))];
    return rate ? [...parts, make("span", "rate", rate)] : parts;
  });
  // Bars that are there move.
  if (place.children.length === wanted.length) {
    wanted.forEach((part, n) => {
      const old = place.children[n];
      if (part.classList.contains("bar")) {
        old.firstElementChild.style.width = part.firstElementChild.style.width;
        old.firstElementChild.className = part.firstElementChild.className;
      } else put(old, part.textContent);
    });
  } else place.replaceChildren(...wanted);
}

function onProcess(news) {
  const isNew = !one || one.pid !== news.pid || one.started_ns !== news.started_ns;
  one = news;
  document.title = `${news.name} ${news.pid} - memfold`;
  put($("name"), `${news.name} ${news.pid}`);
  put($("state"), news.state);
  $("state").classList.toggle("error", news.has_ended);
  put($("about"), `user ${news.user}, policy ${news.policy}, source ${news.source}${news.deaf ? `; ${news.deaf}` : ""}`);
  const sizes = [["resident", news.resident_bytes], ["managed", news.managed_bytes], ["set aside", news.aside_bytes], ["folded", news.evicted_bytes],
    ["into", news.stored_bytes], ["cost", news.overhead_bytes], ["saved", news.saved_bytes]].map(([name, n]) => [name, bytes(n)]);
  sizes.push(["saved of all", `${news.saved_pct.toFixed(1)} %`]);
  if (news.tier_bytes) sizes.push(["in the tier", bytes(news.tier_bytes)]);
  const boxes = $("sizes");
  if (boxes.children.length !== sizes.length) boxes.replaceChildren(...sizes.map(([name]) => make("div", "", make("dt", "", name), make("dd"))));
  sizes.forEach(([, text], n) => put(boxes.children[n].lastElementChild, text));
  const most = Math.max(...news.flow.map((step) => step.bytes));
  bars($("flow"), news.flow.map((step) => ({
    name: step.name, kind: KINDS[step.kind], amount: step.bytes,
    rate: step.in_bytes_per_s === null ? "" : `in ${bytes(Math.round(step.in_bytes_per_s))}/s, back ${bytes(Math.round(step.back_bytes_per_s))}/s`,
  })), most);
  curve($("past"), news.past.map(([ago, folded]) => [-ago, folded]), `${bytes(news.evicted_bytes)} folded now`);
  put($("past-now"), bytes(news.evicted_bytes));
  showWaits(news);
  const reasons = news.reasons?.bytes.filter(([, amount]) => amount > 0).slice(0, 8) ?? [];
  bars($("reasons"), reasons.map(([name, amount]) => ({ name, kind: "other", amount, rate: "" })), Math.max(0, ...reasons.map(([, amount]) => amount)));
  if (!reasons.length) $("reasons").replaceChildren(make("span", "rate", news.why || "not counted yet"));
  showSettings(news);
  showActions(news);
  if (isNew) { picture = null; cells = []; chosen = -1; }
  if (!picture) {
    $("heat").hidden = true;
    put($("cell"), news.refused ? `no picture of the address space: ${news.refused}` : news.deaf ? "no picture of the address space" : "on its way");
  }
}

function showWaits(news) {
  const parts = { count: "count", p50: "p50", p95: "p95", p99: "p99", p999: "p99.9", max: "longest" };
  const table = $("waits");
  if (!table.tBodies[0].rows.length) {
    const head = (scope, name) => Object.assign(make("th", "", name), { scope });
    table.tHead.rows[0].append(make("td"), head("col", "all"), head("col", "last minute"));
    for (const name of Object.values(parts)) table.tBodies[0].append(make("tr", "", head("row", name), make("td"), make("td")));
  }
  Object.keys(parts).forEach((part, row) => [news.waits.all, news.waits.last_minute].forEach((waits, n) => {
    // The longest of the last minute is not known.
    const unknown = waits.count === 0 || (n === 1 && part === "max");
    const text = part === "count" ? waits.count.toLocaleString("en").replaceAll(",", " ") : unknown ? "-" : nanos(waits[part]);
    put(table.tBodies[0].rows[row].cells[n + 1], text);
  }));
  put($("rates"), `waiting ${news.waits_pct.toFixed(3)} %, folding ${news.cpu_pct.toFixed(2)} % of a CPU, ${news.faults_per_s.toFixed(0)} faults/s`);
}

function showSettings(news) {
  const body = $("settings").tBodies[0];
  if (body.rows.length !== news.settings.length) {
    body.replaceChildren(...news.settings.map(({ name, help }) => {
      const head = make("th", "", name);
      head.scope = "row";
      head.title = help;
      const change = make("button", "", "change");
      change.type = "button";
      change.setAttribute("aria-label", `change ${name}`);
      change.addEventListener("click", () => changeSetting(name, help));
      return make("tr", "", head, make("td"), make("td", "", change));
    }));
  }
  news.settings.forEach(({ value }, n) => {
    put(body.rows[n].cells[1], value);
    body.rows[n].cells[2].hidden = !steers() || Boolean(news.deaf);
  });
  put($("read-only"), hello.may_steer ? steers() ? "" : "Enter the token to change settings." : "To look at only: `memfold web --token-file FILE` lets them be changed here.");
}

const ACTIONS = {
  evict: ["Evict", "Fold everything that can be folded now, whatever its age."],
  restore: ["Restore", "Bring everything back, then go on."],
  pause: ["Pause", "Fold no more until it is resumed; what is folded comes back on touch."],
  resume: ["Resume", "Fold again."],
  sleep: ["Sleep", "Fold everything now, down to the lowest tier, until the program wants it."],
  wake: ["Wake", "Bring back what the program wanted when it last woke."],
};

function showActions(news) {
  const place = $("actions");
  place.hidden = !steers() || Boolean(news.deaf);
  const wanted = ["evict", "restore", news.is_paused ? "resume" : "pause", news.is_asleep ? "wake" : "sleep"];
  if (place.dataset.shown === wanted.join()) return;
  place.dataset.shown = wanted.join();
  place.replaceChildren(...wanted.map((action) => {
    const button = make("button", "", ACTIONS[action][0]);
    button.type = "button";
    button.title = ACTIONS[action][1];
    button.addEventListener("click", () => ask({
      title: `${ACTIONS[action][0]} ${one.name} ${one.pid}?`, text: ACTIONS[action][1], yes: ACTIONS[action][0],
      then: () => order({ action }),
    }));
    return button;
  }));
}

function changeSetting(name, help) {
  const now = one.settings.find((setting) => setting.name === name).value;
  ask({
    title: `${name} of ${one.name} ${one.pid}`, text: `${help} Now ${now}.`, yes: "Change", label: "New value", type: "text",
    then: (value) => order({ action: "set", setting: name, value }),
  });
}

// The address space.

function onHeat(news) {
  picture = news;
  cells = [];
  for (const [start, letters] of news.runs) {
    [...letters].forEach((letter, n) => cells.push([BigInt(`0x${start}`) + BigInt(n) * BigInt(news.each_bytes), letter]));
  }
  put($("each"), `${bytes(news.each_bytes)} a square`);
  $("legend").replaceChildren(...news.legend.map(([letter, name, n]) => make("li", "", make("i", `k-${KINDS[letter]}`), `${name} `, make("b", "", bytes(n)))));
  $("heat").setAttribute("aria-label", `Address space: ${news.legend.map(([, name, n]) => `${name} ${bytes(n)}`).join(", ")}. Arrow keys go from square to square.`);
  if ($("heat").hidden) put($("cell"), "");
  $("heat").hidden = false;
  drawHeat();
}

// How wide a square is: as large as all of them can be in about 400 pixels of height.
function side() {
  const width = $("heat").clientWidth || 320;
  return Math.max(6, Math.min(20, Math.floor(Math.sqrt(width * 400 / Math.max(cells.length, 1)))));
}

const across = () => Math.max(1, Math.floor(($("heat").clientWidth || 320) / side()));

function drawHeat() {
  const canvas = $("heat");
  if (canvas.hidden || !cells.length) return;
  const columns = across(), size = side(), scale = devicePixelRatio || 1;
  const height = Math.ceil(cells.length / columns) * size;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const colours = Object.fromEntries(Object.entries(KINDS).map(([letter, name]) => [letter, style.getPropertyValue(`--${name}`)]));
  const nothing = style.getPropertyValue("--nothing");
  cells.forEach(([, letter], n) => {
    context.fillStyle = colours[letter] ?? nothing;
    context.fillRect((n % columns) * size, Math.floor(n / columns) * size, size - 1, size - 1);
  });
  if (chosen >= 0 && chosen < cells.length) {
    context.strokeStyle = style.getPropertyValue("--text");
    context.lineWidth = 2;
    context.strokeRect((chosen % columns) * size, Math.floor(chosen / columns) * size, size - 1, size - 1);
  }
}

function choose(n) {
  if (!cells.length) return;
  chosen = Math.max(0, Math.min(cells.length - 1, n));
  const [address, letter] = cells[chosen];
  const name = picture.legend.find(([mark]) => mark === letter)?.[1] ?? "nothing";
  put($("cell"), `0x${address.toString(16)}: ${name}`);
  drawHeat();
}

$("heat").addEventListener("pointermove", (event) => {
  const columns = across();
  const [x, y] = [Math.floor(event.offsetX / side()), Math.floor(event.offsetY / side())];
  if (x < columns && y * columns + x < cells.length) choose(y * columns + x);
});
$("heat").addEventListener("keydown", (event) => {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across(), ArrowDown: across(), Home: -Infinity, End: Infinity };
  if (!(event.key in steps)) return;
  event.preventDefault();
  choose((chosen < 0 ? 0 : chosen) + steps[event.key]);
});
addEventListener("resize", drawHeat);

// Questions, and what is asked of programs.

const dialog = $("ask");
let answered = null;

function ask({ title, text, yes, label, type, then }) {
  put($("ask-title"), title);
  put($("ask-text"), text);
  put($("ask-yes"), yes);
  $("ask-field").hidden = !label;
  put($("ask-label"), label ?? "");
  $("ask-value").type = type ?? "text";
  $("ask-value").value = "";
  $("ask-error").hidden = true;
  $("ask-yes").disabled = false;
  answered = then;
  dialog.showModal();
  (label ? $("ask-value") : $("ask-yes")).focus();
}

async function yes() {
  $("ask-yes").disabled = true;
  const error = await answered($("ask-value").value);
  $("ask-yes").disabled = false;
  put($("ask-error"), error ?? "");
  $("ask-error").hidden = !error;
  if (!error) dialog.close();
}

$("ask-yes").addEventListener("click", yes);
$("ask-no").addEventListener("click", () => dialog.close());
$("ask-value").addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); yes(); } });
dialog.addEventListener("close", () => { $("ask-value").value = ""; });

let token = "";
const steers = () => hello.may_steer && token !== "";

async function post(word, body) {
  try {
    const answer = await fetch("order", { method: "POST", headers: { Authorization: `Bearer ${word}`, "Content-Type": "application/json" }, body });
    return [answer.ok, (await answer.json()).said];
  } catch {
    return [false, "the server does not answer"];
  }
}

// What is wrong with it, or nothing.
async function order(what) {
  const [pid, started_ns] = [one.pid, one.started_ns];
  const [done, words] = await post(token, JSON.stringify({ pid, started_ns, ...what }));
  if (done) say(`${one.name} ${pid}: ${words}`);
  return done ? undefined : words;
}

let silence = 0;
function say(words, isError) {
  const said = $("said");
  put(said, words);
  said.classList.toggle("error", Boolean(isError));
  said.hidden = false;
  clearTimeout(silence);
  silence = setTimeout(() => { said.hidden = true; }, 8000);
}

$("steer").addEventListener("click", () => {
  if (token) { setToken(""); return; }
  ask({
    title: "Token", text: "What is in the file that `--token-file` names. This page keeps it until it is closed.", yes: "Use", label: "Token", type: "password",
    then: async (word) => {
      const [right, words] = await post(word.trim(), "");
      if (right) setToken(word.trim());
      return right ? undefined : words;
    },
  });
});

function setToken(word) {
  token = word;
  put($("steer"), token ? "Forget token" : "Enter token");
  if (one) onProcess(one);
}

// News.

let hello = { may_steer: false }, source = null, retry = 0;

function link(words, isLost) {
  put($("link"), words);
  $("link").classList.toggle("lost", isLost);
}

function connect() {
  source?.close();
  clearTimeout(retry);
  if (document.hidden) return;
  const pid = location.hash.match(/^#\/(\d+)$/)?.[1];
  $("list-view").hidden = Boolean(pid);
  $("one-view").hidden = !pid;
  if (!pid) document.title = "memfold";
  if (!pid || one?.pid !== Number(pid)) {
    [one, picture, cells] = [null, null, []];
    for (const id of ["name", "state", "about", "rates", "read-only", "each", "cell"]) put($(id), "");
    for (const id of ["sizes", "flow", "reasons", "legend"]) $(id).replaceChildren();
    $("heat").hidden = $("actions").hidden = true;
    if (pid) put($("name"), `process ${pid}`);
  }
  source = new EventSource(pid ? `events?pid=${pid}` : "events");
  const hear = (name, what) => source.addEventListener(name, (event) => what(JSON.parse(event.data)));
  hear("hello", (news) => {
    hello = news;
    put($("where"), `${news.user}@${news.host}`);
    $("steer").hidden = !news.may_steer;
    link(`live, every ${news.every_s} s`, false);
    const now = Date.now() / 1000;
    history = news.history.map((point) => [now - point.ago_s, point]);
  });
  hear("list", onList);
  hear("process", onProcess);
  hear("heat", onHeat);
  source.addEventListener("error", () => {
    if (source.readyState !== EventSource.CLOSED) {
      link("no connection; trying again", true);
      return;
    }
    // It was refused: there is no such process, or not any more.
    link("no connection", true);
    if (pid && !one) put($("about"), `There is no folded process ${pid}.`);
    retry = setTimeout(connect, 5000);
  });
}

addEventListener("hashchange", connect);
document.addEventListener("visibilitychange", () => { if (document.hidden) { source?.close(); link("asleep", false); } else connect(); });
theme.value = remembered("memfold-theme");
paint();
makeTable();
connect();
