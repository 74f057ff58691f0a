"use strict";
// Line charts.

const HEIGHT = 210, LEFT = 52, RIGHT = 14, TOP = 12, BOTTOM = 26;

// A chart of lines over steps or times, with marks; arrow keys read it out point by point.
class Chart {
  constructor(title) {
    this.spec = null;
    this.at = null; // index of the point that is read
    this.title = el("h2");
    this.value = el("p", { class: "value", "aria-live": "off" });
    // Arrow keys must arrive here: a screen reader keeps them for itself in an image.
    this.plot = el("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart" });
    this.note = el("p", { class: "muted note" });
    this.table = behind(title, () => this.rows());
    this.node = el("figure", { class: "panel chart" },
      el("figcaption", { class: "row" }, this.title, this.value), this.plot, this.note, this.table);
    this.title.textContent = title;
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.read(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.read(null));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  // spec: {x: "step"|"time", series: [{name, points: [[x, y]], kind}], marks: [{x, text, tone}],
  //        log, zero, format, note, origin}
  update(spec) {
    this.spec = spec;
    const named = spec.series.filter((s) => !s.derived);
    this.note.replaceChildren(...(named.length > 1
      ? named.map((s) => el("span", { class: `key ${s.tone}` }, s.name)) : []), spec.note || "");
    this.note.hidden = !this.note.textContent;
    this.draw();
  }

  rows() {
    const [main, ...others] = this.spec.series.filter((s) => !s.derived);
    const found = others.map((s) => new Map(s.points));
    return [
      [this.spec.x, `>${main.name}`, ...others.map((s) => `>${s.name}`)],
      main.points.map(([x, y]) => [this.where(x), number(y),
        ...found.map((s) => (s.has(x) ? number(s.get(x)) : ""))]),
    ];
  }

  where(x) {
    return this.spec.x === "step" ? whole(x) : clock(x);
  }

  draw() {
    const { spec } = this, width = this.plot.clientWidth;
    if (!spec || !width) return;
    const all = spec.series.flatMap((s) => s.points).filter(([, y]) => y !== null);
    if (!all.length) {
      this.plot.replaceChildren(el("p", { class: "empty" }, spec.empty || "No numbers yet"));
      this.plot.setAttribute("aria-label", `${this.title.textContent}: no numbers yet`);
      this.scale = null;
      this.value.textContent = "";
      return;
    }
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const [x, y] of all) {
      x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
    }
    const log = spec.log && y0 > 0 && y1 / y0 > 30;
    if (spec.zero && !log) y0 = Math.min(0, y0);
    const only = x1 === x0 ? x0 : null;
    if (only !== null) { x0 -= 1; x1 += 1; }
    const value = log ? Math.log10 : (v) => v;
    let low = value(y0), high = value(y1);
    const room = (high - low) * 0.06 || Math.abs(high) * 0.02 || 1;
    if (!(spec.zero && low === 0)) low -= room;
    high += room;
    const sx = (x) => LEFT + ((x - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    const sy = (y) => TOP + (1 - (value(y) - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    this.scale = { sx, sy, x0, x1, width };
    const across = Math.max(2, Math.floor((width - LEFT) / 90));
    const lines = log
      ? decades(low, high)
      : ticks(low, high, 4).filter((y) => !spec.whole || Number.isInteger(y));
    const axis = svg("g", { class: "axis" },
      lines.map((y) => [
        svg("line", { x1: LEFT, x2: width - RIGHT, y1: sy(y), y2: sy(y) }),
        svg("text", { x: LEFT - 8, y: sy(y) + 4, "text-anchor": "end" },
          log || lines.length < 2 ? short(y) : tickLabel(y, lines[1] - lines[0])),
      ]),
      (spec.x === "step" ? ticks(x0, x1, across).filter(Number.isInteger) : timeTicks(x0, x1, across))
        .filter((x) => only === null || x === only).filter((x) => sx(x) > LEFT + (spec.x === "step" ? 6 : 28)).map((x) =>
        svg("text", { x: Math.min(sx(x), width - (spec.x === "step" ? 20 : 30)), y: HEIGHT - 6,
          "text-anchor": "middle" },
        spec.x === "step" ? short(x) : clock(x, x1 - x0 < 600))),
      svg("text", { x: LEFT - 8, y: HEIGHT - 6, "text-anchor": "end" }, spec.x));
    const marks = (spec.marks || []).filter((m) => m.x >= x0 && m.x <= x1).slice(-120)
      .map((m) => svg("g", { class: `mark ${m.tone || ""}` },
        svg("line", { x1: sx(m.x), x2: sx(m.x), y1: TOP, y2: HEIGHT - BOTTOM }),
        svg("title", null, m.text)));
    const curves = spec.series.map((s, place) => this.curve(s, place, sx, sy));
    this.cross = svg("g", { class: "cross", visibility: "hidden" });
    this.plot.replaceChildren(svg("svg", { width, height: HEIGHT, "aria-hidden": "true",
      viewBox: `0 0 ${width} ${HEIGHT}` }, axis, marks, curves, this.cross));
    this.read(this.at);
    const known = spec.series[0].points.filter(([, y]) => y !== null);
    this.plot.setAttribute("aria-label", `${this.title.textContent} by ${spec.x}: from ` +
      `${number(known[0]?.[1])} to ${number(known.at(-1)?.[1])}, lowest ${number(y0)}, ` +
      `highest ${number(y1)}. Arrow keys read single points.`);
  }

  curve(series, place, sx, sy) {
    const parts = [], floor = HEIGHT - BOTTOM, tone = series.tone || `s${place}`;
    let path = "", area = "", first = null, last = null;
    const close = () => {
      if (first !== null) area += `L${last} ${floor}L${first} ${floor}Z`;
      first = null;
    };
    for (const [x, y] of series.points) {
      if (y === null) { close(); continue; }
      last = sx(x).toFixed(1);
      const step = `${first === null ? "M" : "L"}${last} ${sy(y).toFixed(1)}`;
      path += step;
      area += step;
      first = first === null ? last : first;
    }
    close();
    if (series.area) parts.push(svg("path", { class: `area ${tone}`, d: area }));
    parts.push(svg("path", { class: `line ${tone} ${series.kind || ""}`, d: path }));
    if (series.dots && series.points.length <= 80) {
      for (const [x, y] of series.points) {
        if (y !== null) parts.push(svg("circle", { class: `dot ${tone}`, cx: sx(x), cy: sy(y), r: 3.5 }));
      }
    }
    return parts;
  }

  main() {
    return this.spec.series.find((s) => s.lead) || this.spec.series[0];
  }

  point(event) {
    if (!this.scale) return;
    const { x0, x1, width } = this.scale;
    const box = this.plot.getBoundingClientRect();
    const x = x0 + ((event.clientX - box.left - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0);
    const { points } = this.main();
    let best = 0;
    points.forEach(([at], i) => {
      if (Math.abs(at - x) < Math.abs(points[best][0] - x)) best = i;
    });
    this.read(best);
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10, Home: -1e9, End: 1e9 };
    if (!(event.key in steps) || !this.spec) return;
    event.preventDefault();
    const last = this.main().points.length - 1;
    const from = this.at === null ? last : this.at;
    this.value.setAttribute("aria-live", "polite");
    this.read(Math.max(0, Math.min(last, from + steps[event.key])));
  }

  read(place) {
    this.at = place;
    const { points } = this.main();
    const shown = place === null ? points.length - 1 : Math.min(place, points.length - 1);
    if (shown < 0 || !this.cross) return;
    const [x, y] = points[shown];
    const text = this.spec.format || number;
    const more = place === null ? "" : ` at ${this.spec.x === "step" ? "step " : ""}${this.where(x)}`;
    this.value.textContent = y === null ? "" : text(y) + more;
    if (place === null || y === null) { this.cross.setAttribute("visibility", "hidden"); return; }
    const cx = this.scale.sx(x), cy = this.scale.sy(y);
    this.cross.replaceChildren(
      svg("line", { x1: cx, x2: cx, y1: TOP, y2: HEIGHT - BOTTOM }),
      svg("circle", { cx, cy, r: 4 }));
    this.cross.setAttribute("visibility", "visible");
  }
}
