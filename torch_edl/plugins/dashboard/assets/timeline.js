"use strict";
// One lane per process, from its start to its end.

const LANE = 22, BAR = 14, AXIS = 24;
const STATES = {
  "worker running": ["worker", "worker"],
  "ps running": ["ps", "parameter server"],
  "master running": ["master", "master"],
  "agent running": ["agent", "agent"],
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

class Timeline {
  constructor(host, legend, range) {
    this.host = host;
    this.range = range;
    this.data = null;
    this.tip = el("p", { class: "tip muted", role: "status" });
    this.plot = el("div", { class: "plot", role: "img" });
    this.table = behind("Processes from start to end", () => this.rows());
    host.append(this.plot, this.tip, this.table);
    range.addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.legend = legend;
  }

  update(data) {
    this.data = data;
    if (changed("timeline", data.lanes, data.over ? 0 : Math.floor(data.now), data.incidents.length, data.rings.length)) {
      this.draw();
    }
  }

  rows() {
    const heads = ["process", "started", "ended", "how it ended", "states"];
    return [heads, this.data.lanes.rows.map(([name, segments, end, exit]) => [name,
      clock(segments[0][0]), end === null ? "" : clock(end), exit,
      segments.map(([, state]) => state).join(", ")])];
  }

  draw() {
    const { data } = this, width = this.plot.clientWidth;
    if (!data || !width) return;
    const { rows, plain, plain_since: since, hidden } = data.lanes;
    const until = data.over ? data.last : data.now;
    const first = Math.min(data.started, ...rows.map((r) => r[1][0][0]));
    const seconds = Number(this.range.value);
    const from = seconds ? Math.max(first, until - seconds) : first;
    const left = width < 560 ? 74 : 96, right = 10;
    const extra = plain ? 1 : 0;
    const height = (rows.length + extra) * LANE + AXIS;
    const sx = (t) => left + ((Math.max(from, Math.min(until, t)) - from) /
      Math.max(1e-3, until - from)) * (width - left - right);
    const parts = [svg("g", { class: "axis" }, timeTicks(0, until - from, Math.max(2, Math.floor(width / 110)))
      .map((t) => [
        svg("line", { x1: sx(from + t), x2: sx(from + t), y1: 0, y2: height - AXIS }),
        svg("text", { x: Math.max(left, Math.min(width - 18, sx(from + t))), y: height - 7, "text-anchor": "middle" },
          seconds ? clock(from + t) : elapsed(t)),
      ]), svg("text", { x: left - 24, y: height - 7, "text-anchor": "end" }, seconds ? "time" : until - from < 3600 ? "min:s" : "h:min:s"))];
    for (const [time, text] of data.rings.filter(([t]) => t >= from)) {
      parts.push(svg("line", { class: "ring", x1: sx(time), x2: sx(time), y1: 0, y2: height - AXIS },
        svg("title", null, `${clock(time)} ${text}`)));
    }
    for (const mark of data.incidents.filter((i) => i.kind !== "lost" && i.time >= from)) {
      parts.push(svg("line", { class: "sign", x1: sx(mark.time), x2: sx(mark.time), y1: 0, y2: height - AXIS },
        svg("title", null, `${clock(mark.time)} ${mark.text}`)));
    }
    rows.forEach((row, place) => parts.push(this.lane(row, place * LANE, sx, from, until, left)));
    if (plain) {
      const y = rows.length * LANE;
      parts.push(svg("text", { class: "label", x: left - 8, y: y + 15, "text-anchor": "end" }, `${whole(plain)} more`),
        svg("rect", { class: "lane worker many", x: sx(since), y: y + 3, rx: 3, height: BAR + 2,
          width: Math.max(2, sx(until) - sx(since)) },
        svg("title", null, `${count(plain, "worker")} without an event since the start`)));
    }
    this.plot.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`,
      "aria-hidden": "true" }, parts));
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
    const signs = data.incidents.some((i) => i.kind !== "lost"), rings = data.rings.length > 0;
    const present = new Set(rows.flatMap((r) => r[1].map(([, state]) => stateOf(state)[0])));
    if (!changed("legend", [...present], dead > 0, signs, rings)) return;
    this.legend.replaceChildren(...Object.values(STATES).filter(([name]) => present.has(name))
      .map(([name, text]) => el("li", { class: `key ${name}` }, text)),
    dead ? el("li", { class: "key cross-key" }, "died") : "",
    rings ? el("li", { class: "key ring-key" }, "a new ring of workers") : "",
    signs ? el("li", { class: "key mark-key" }, "preemption, move, restore or restart") : "");
  }

  lane([name, segments, end, exit, died], y, sx, from, until, left) {
    const parts = [svg("text", { class: "label", x: left - 8, y: y + 15, "text-anchor": "end" }, name)];
    const stop = end === null ? until : end;
    segments.forEach(([start, state], place) => {
      const next = place + 1 < segments.length ? segments[place + 1][0] : stop;
      if (next < from || start > until) return;
      const [kind, text] = stateOf(state);
      parts.push(svg("rect", { class: `lane ${kind}`, x: sx(start), y: y + 4, rx: 3, height: BAR,
        width: Math.max(1.5, sx(next) - sx(start)) },
      svg("title", null, `${name} ${text}: ${clock(start)} to ${end === null && next === until
        ? "now" : clock(next)}, ${span(next - start)}`)));
    });
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
