"use strict";
// One lane per process, from its start to its end.

const LANE = 22, BAR = 14, AXIS = 24;
// States differ by form as well as by colour.
const THIN = ["starting", "leaving"];
// Its lane has a sign of its own.
const isDeath = (incident) => incident.end === "died" && incident.kind.endsWith("_lost");
const STATES = {
  "worker running": ["worker", "worker"],
  "ps running": ["ps", "parameter server"],
  "master running": ["master", "master"],
  "spare running": ["spare", "spare, waits for a place"],
  pending: ["pending", "waits for room in the cluster"],
  starting: ["starting", "starts"],
  leaving: ["leaving", "leaves"],
};
function stateOf(text) {
  if (STATES[text]) return STATES[text];
  if (text.endsWith("pending")) return STATES.pending;
  return /draining|stopping/.test(text) ? STATES.leaving : STATES.starting;
}

// The times in which a worker made no step; the last one may go on.
function waitsOf([name, , , , , waits], data) {
  const live = data.processes.find((p) => p.role === "worker" && `worker-${p.id}` === name);
  return live?.waits_s ? [...waits, [data.now - live.waits_s, null]] : waits;
}

class Timeline {
  constructor(host, legend) {
    this.host = host;
    this.data = null;
    this.tip = el("p", { class: "tip muted", role: "status" });
    this.plot = el("div", { class: "plot", role: "img" });
    this.table = behind("Processes from start to end", () => this.rows());
    host.append(this.plot, this.tip, this.table);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => { shared.point(null); tell(null); });
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.legend = legend;
    shared.parts.add(this);
  }

  update(data) {
    this.data = data;
    for (const row of data.lanes.rows) row[5] = waitsOf(row, data);
    if (changed("timeline", data.lanes, data.over ? 0 : Math.floor(data.now), data.incidents.length, data.rings.length)) {
      this.draw();
    }
  }

  point(event) {
    if (!this.scale) return;
    const { left, right, from, until, sx } = this.scale;
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    shared.point(Math.max(from, Math.min(until, from + ((x - left) / (right - left)) * (until - from))));
    tell(event, (time) => Math.abs(sx(time) - x) <= 8);
  }

  cross() {
    if (!this.line) return;
    const { at } = shared, { from, until, sx, height } = this.scale;
    const shown = at !== null && at >= from && at <= until;
    this.line.setAttribute("visibility", shown ? "visible" : "hidden");
    if (shown) this.line.replaceChildren(svg("line", { x1: sx(at), x2: sx(at), y1: 0, y2: height - AXIS }));
  }

  rows() {
    const heads = ["process", "started", "ended", "how it ended", "states", ">waited in total"];
    return [heads, this.data.lanes.rows.map(([name, segments, end, exit, , waits]) => [name,
      clock(segments[0][0]), end === null ? "" : clock(end), exit,
      segments.map(([, state]) => state).join(", "),
      waits.length ? span(waits.reduce((sum, [a, b]) => sum + (b ?? shared.until) - a, 0)) : ""])];
  }

  draw() {
    const { data } = this, width = this.plot.clientWidth;
    if (!data || !width) return;
    const { rows, plain, plain_since: since, hidden } = data.lanes;
    const { until, from, seconds } = shared;
    const left = width < 560 ? 74 : 96, right = width - 10;
    const extra = plain ? 1 : 0;
    const height = (rows.length + extra) * LANE + AXIS;
    const sx = (t) => left + ((Math.max(from, Math.min(until, t)) - from) /
      Math.max(1e-3, until - from)) * (right - left);
    this.scale = { left, right, from, until, sx, height };
    const [pattern, fill] = hatch("waits");
    const parts = [pattern, svg("g", { class: "axis" }, timeTicks(from, until, Math.max(2, Math.floor(width / 90)))
      .map((t) => [
        svg("line", { x1: sx(t), x2: sx(t), y1: 0, y2: height - AXIS }),
        svg("text", { x: Math.max(left + 12, Math.min(width - 28, sx(t))), y: height - 7, "text-anchor": "middle" },
          dayTime(t, until - from)),
      ]), svg("text", { x: left - 24, y: height - 7, "text-anchor": "end" }, "time"))];
    for (const [time, text] of data.rings.filter(([t]) => t >= from)) {
      parts.push(svg("line", { class: "ring", x1: sx(time), x2: sx(time), y1: 0, y2: height - AXIS },
        svg("title", null, `${clock(time)} ${text}`)));
    }
    for (const mark of data.incidents.filter((i) => !isDeath(i) && i.time >= from)) {
      parts.push(svg("line", { class: "sign", x1: sx(mark.time), x2: sx(mark.time), y1: 0, y2: height - AXIS },
        svg("title", null, `${clock(mark.time)} ${mark.text}`)));
    }
    rows.forEach((row, place) => parts.push(this.lane(row, place * LANE, fill)));
    this.line = svg("g", { class: "cross", visibility: "hidden" });
    if (plain) {
      const y = rows.length * LANE;
      parts.push(svg("text", { class: "label", x: left - 8, y: y + 15, "text-anchor": "end" }, `${whole(plain)} more`),
        svg("rect", { class: "lane worker many", x: sx(since), y: y + 3, rx: 3, height: BAR + 2,
          width: Math.max(2, sx(until) - sx(since)) },
        svg("title", null, `${count(plain, "worker")} without an event since the start`)));
    }
    this.plot.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`,
      "aria-hidden": "true" }, parts, this.line));
    this.cross();
    const dead = rows.filter((r) => r[4]).length;
    this.explain(rows, dead, data);
    this.plot.setAttribute("aria-label",
      `Timeline of ${count(rows.length + plain + hidden, "process")}, ` +
      `${dead} died. The table below lists them.`);
    this.tip.textContent = (hidden ? `Not shown: ${count(hidden, "process")} that died or joined earlier. ` : "") +
      (plain ? `One lane stands for ${count(plain, "worker")} that started with the job and have run ever since.` : "");
    this.tip.hidden = !this.tip.textContent;
  }

  explain(rows, dead, data) {
    const signs = data.incidents.some((i) => !isDeath(i)), rings = data.rings.length > 0;
    const present = new Set(rows.flatMap((r) => r[1].map(([, state]) => stateOf(state)[0])));
    const waits = rows.some((r) => r[5].length);
    if (!changed("legend", [...present], dead > 0, signs, rings, waits)) return;
    this.legend.replaceChildren(...Object.values(STATES).filter(([name]) => present.has(name))
      .map(([name, text]) => el("li", { class: `key ${name}` }, text)),
    waits ? el("li", { class: "key waits-key" }, "a worker that makes no step") : "",
    dead ? el("li", { class: "key cross-key" }, "died") : "",
    rings ? el("li", { class: "key ring-key" }, "a new ring of workers") : "",
    signs ? el("li", { class: "key mark-key" }, "move, restore, restart or a process taken away") : "");
  }

  lane([name, segments, end, exit, died, waits], y, fill) {
    const { from, until, sx, left } = this.scale;
    const parts = [svg("text", { class: "label", x: left - 8, y: y + 15, "text-anchor": "end" }, name)];
    const stop = end === null ? until : end;
    const bar = (start, next, name, text, thin, more) => {
      if (next < from || start > until) return;
      parts.push(svg("rect", { class: `lane ${name}`, x: sx(start), y: y + (thin ? 8 : 4), rx: 3,
        height: thin ? 6 : BAR, width: Math.max(1.5, sx(next) - sx(start)), ...more },
      svg("title", null, `${text}: ${clock(start)} to ${end === null && next === until ? "now" : clock(next)}, ${span(next - start)}`)));
    };
    segments.forEach(([start, state], place) => {
      const next = place + 1 < segments.length ? segments[place + 1][0] : stop;
      const [kind, text] = stateOf(state);
      bar(start, next, kind, `${name} ${text}`, THIN.includes(kind));
    });
    for (const [start, till] of waits) {
      const next = Math.min(stop, till ?? until);
      bar(start, next, "waited", "", false);
      bar(start, next, "waits", `${name} made no step`, false, { fill });
    }
    if (died && end >= from) {
      const x = sx(end), c = y + 4 + BAR / 2;
      parts.push(svg("g", { class: "death" },
        svg("circle", { cx: x, cy: c, r: 7 }),
        svg("path", { d: `M${x - 3} ${c - 3}l6 6m0 -6l-6 6` }),
        svg("title", null, `${name} died at ${clock(end)}: ${exit}`)));
    }
    return svg("g", { class: died ? "died" : null }, parts);
  }
}
