"use strict";
// Elements and texts. Texts of a job are set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

const el = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

function setText(id, text) {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
}

// Draws a part of the page again only if what it shows has changed.
const drawn = new Map();
function changed(key, ...what) {
  const text = JSON.stringify(what);
  if (drawn.get(key) === text) return false;
  drawn.set(key, text);
  return true;
}

function whole(value) {
  return Math.round(value).toLocaleString("en-US");
}

function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "not a number";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return whole(value);
  if (size < 1e-4) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return Number((value / 1e9).toPrecision(3)) + " G";
  if (size >= 1e6) return Number((value / 1e6).toPrecision(3)) + " M";
  if (size >= 1e4) return Number((value / 1e3).toPrecision(3)) + " k";
  if (size >= 1e3) return whole(value);
  if (size >= 1) return String(Number(value.toPrecision(4)));
  if (size >= 1e-3 || size === 0) return String(Number(value.toPrecision(3)));
  return value.toExponential(0);
}

function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let place = 0;
  while (value >= 1000 && place < units.length - 1) { value /= 1000; place += 1; }
  return `${Number(value.toPrecision(3))} ${units[place]}`;
}

// Seconds as the two largest units, such as "1 h 05 min".
function duration(seconds) {
  const total = Math.max(0, Math.round(seconds));
  const two = (n) => String(n).padStart(2, "0");
  const days = Math.floor(total / 86400), hours = Math.floor(total / 3600) % 24;
  const minutes = Math.floor(total / 60) % 60;
  if (days) return `${days} d ${two(hours)} h`;
  if (hours) return `${hours} h ${two(minutes)} min`;
  return minutes ? `${minutes} min ${two(total % 60)} s` : `${total} s`;
}

function span(seconds) {
  if (seconds < 0.1) return "at once";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Number((seconds / 3600).toPrecision(2))} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// Formats are made once: to make one takes longer than to use it.
const TO_MINUTES = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const MINUTES = new Intl.DateTimeFormat("en-GB", TO_MINUTES);
const SECONDS = new Intl.DateTimeFormat("en-GB", { ...TO_MINUTES, second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" });

function clock(time, seconds = true) {
  const date = new Date(time * 1000), text = (seconds ? SECONDS : MINUTES).format(date);
  const far = Math.abs(Date.now() - date.getTime()) > 20 * 3600 * 1000;
  return far ? `${DAY.format(date)} ${text}` : text;
}

// The label of an axis of some seconds: the time of the day, with the date if they are days.
function dayTime(time, range) {
  const date = new Date(time * 1000), text = (range < 600 ? SECONDS : MINUTES).format(date);
  return range < 72000 ? text : `${DAY.format(date).slice(5)} ${text}`;
}

// The time zone of all times of the page, such as "Europe/Berlin, UTC+01:00".
function zone(time) {
  const minutes = -new Date(time * 1000).getTimezoneOffset(), size = Math.abs(minutes);
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return minutes || name !== "UTC" ? `${name}, UTC${minutes < 0 ? "-" : "+"}${two(size / 60)}:${two(size % 60)}` : "UTC";
}

function count(n, noun) {
  return `${whole(n)} ${noun}${n === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
}

// Replaces the content of a node that is drawn again, and keeps the focus and the scroll positions.
function redraw(node, ...children) {
  const scrolled = [...node.querySelectorAll(".scroll")].map((box) => [box.scrollTop, box.scrollLeft]);
  const reachable = () => [...node.querySelectorAll("button, summary, select, .scroll")];
  const focused = reachable().indexOf(document.activeElement);
  node.replaceChildren(...children);
  node.querySelectorAll(".scroll").forEach((box, place) => {
    if (scrolled[place]) [box.scrollTop, box.scrollLeft] = scrolled[place];
  });
  const next = focused < 0 ? null : reachable()[focused];
  if (!next) return;
  if (next.matches(".scroll")) next.tabIndex = 0; // before its size is known
  next.focus({ preventScroll: true });
}

// The numbers at which an axis has lines: 1, 2 or 5 times a power of ten.
function ticks(low, high, most) {
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.7) || power * 10;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

// The label of a line of an axis, which differs from that of the next line.
function tickLabel(value, step) {
  const size = Math.abs(value), decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  if (size >= 1e4) return step >= size / 200 ? short(value) : whole(value);
  if (value === 0) return "0";
  return decimals > 5 ? value.toExponential(2) : value.toLocaleString("en-US",
    { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

// The lines of a logarithmic axis between two exponents: powers of ten.
function decades(low, high) {
  const stride = Math.max(1, Math.ceil((high - low) / 5)), found = [];
  for (let p = Math.ceil(low / stride) * stride; p <= high; p += stride) found.push(Number(`1e${p}`));
  return found;
}

function timeTicks(low, high, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600,
    43200, 86400, 172800, 604800];
  const step = steps.find((s) => (high - low) / s <= most + 0.5) || 604800 * 4;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) found.push(t);
  return found;
}

// A table; a row is a list of cells: texts, nodes, or [text, class].
function table(caption, heads, rows, attributes) {
  const cell = (value, place) => {
    const [text, name] = Array.isArray(value) ? value : [value, ""];
    const right = heads[place].startsWith(">") ? "number" : "";
    const label = heads[place].replace(/^>/, "");
    return place === 0
      ? el("th", { scope: "row", class: name || null }, text)
      : el("td", { class: `${right} ${name || ""}`.trim() || null, "data-label": label }, text);
  };
  const box = el("div", { class: "scroll", role: "group", "aria-label": caption },
    el("table", attributes,
      el("caption", { class: "hidden" }, caption),
      el("thead", null, el("tr", null, heads.map((head) => el("th", {
        scope: "col", class: head.startsWith(">") ? "number" : null,
      }, head.replace(/^>/, ""))))),
      el("tbody", null, rows.map((row) => el("tr", null, row.map(cell))))));
  // A stop of the Tab key only if the arrow keys have something to scroll.
  requestAnimationFrame(() => {
    if (box.scrollHeight > box.clientHeight + 1 || box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
  });
  return box;
}

// The numbers of a chart as a table, which is made when it is opened; make() returns heads and rows.
function behind(caption, make) {
  const details = el("details", { class: "behind" }, el("summary", null, "Data as a table"));
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    const [heads, rows] = make();
    const stride = Math.ceil(rows.length / 200);
    const kept = rows.filter((_, i) => (rows.length - 1 - i) % stride === 0);
    details.replaceChildren(details.firstChild, table(caption, heads, kept));
  });
  return details;
}
