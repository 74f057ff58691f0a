"use strict";
// Line charts.

const HEIGHT = 236, LEFT = 52, RIGHT = 14, TOP = 22, BOTTOM = 42;

// A chart of lines over times or steps; its cursor is that of all charts. Points are [time, value,
// step]. Arrow keys read it out point by point.
class Chart {
  constructor(title) {
    this.spec = null;
    this.title = el("h2");
    this.value = el("span", { class: "value", "aria-live": "off" });
    // Arrow keys must arrive here: a screen reader keeps them for itself in an image.
    this.plot = el("div", { class: "plot", tabindex: "0", role: "application", "aria-roledescription": "chart" });
    this.note = el("p", { class: "muted note" });
    this.table = behind(title, () => this.rows());
    this.node = el("details", { class: "panel chart fold", open: true },
      el("summary", { class: "row" }, this.title, this.value), this.plot, this.note, this.table);
    this.title.textContent = title;
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.leave());
    new ResizeObserver(() => this.draw()).observe(this.plot);
    shared.parts.add(this);
  }

  // spec: {series: [{name, points, kind}], log, zero, whole, format}
  update(spec) {
    this.spec = spec;
    const named = spec.series.filter((s) => !s.derived);
    this.note.replaceChildren(...(named.length > 1
      ? named.map((s) => el("span", { class: `key ${s.tone}${s.dots ? " dashed" : ""}` }, s.name)) : []));
    this.note.hidden = !this.note.textContent;
    this.draw();
  }

  rows() {
    const [main, ...others] = this.spec.series.filter((s) => !s.derived);
    const found = others.map((s) => new Map(s.points.map(([, y, step]) => [step, y])));
    return [
      ["time", ">step", `>${main.name}`, ...others.map((s) => `>${s.name}`)],
      main.points.filter(([, y]) => y !== null).map(([time, y, step]) => [clock(time), whole(step), number(y),
        ...found.map((s) => (s.has(step) ? number(s.get(step)) : ""))]),
    ];
  }

  draw() {
    const { spec } = this, width = this.plot.clientWidth;
    if (!spec || !width) return;
    const from = shared.from, by = shared.by === "step" ? 2 : 0;
    const series = spec.series.map((s) => ({ ...s, points: s.points.filter(([time]) => time >= from) }));
    const all = series.flatMap((s) => s.points).filter(([, y]) => y !== null);
    if (!all.length) {
      this.plot.replaceChildren(el("p", { class: "empty" }, this.main().length ? "No numbers in this time" : spec.empty || "No numbers yet"));
      this.plot.setAttribute("aria-label", `${this.title.textContent}: no numbers yet`);
      this.scale = this.line = null;
      this.value.textContent = "";
      return;
    }
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const point of all) {
      x0 = Math.min(x0, point[by]); x1 = Math.max(x1, point[by]);
      y0 = Math.min(y0, point[1]); y1 = Math.max(y1, point[1]);
    }
    if (!by) [x0, x1] = [Math.max(from, store.samples[0]?.[0] ?? x0), Math.max(x1, shared.until)];
    const log = spec.log && y0 > 0 && y1 / y0 > 30;
    if (spec.zero && !log) y0 = Math.min(0, y0);
    const only = x1 === x0 ? x0 : null;
    if (only !== null) { x0 -= 1; x1 += 1; }
    const value = log ? Math.log10 : (v) => v;
    let low = value(y0), high = value(y1);
    const room = (high - low) * 0.06 || Math.abs(high) * 0.02 || 1;
    if (!(spec.zero && low === 0)) low -= room;
    high += room;
    const floor = HEIGHT - BOTTOM, right = width - RIGHT;
    const sx = (x) => LEFT + ((x - x0) / (x1 - x0)) * (right - LEFT);
    const sy = (y) => TOP + (1 - (value(y) - low) / (high - low)) * (floor - TOP);
    const at = (time) => (by ? stepAt(time) : time);
    const place = (time) => (at(time) === null ? null : sx(at(time)));
    this.scale = { sx, sy, x0, x1, width, by, place };
    const lines = log
      ? decades(low, high)
      : ticks(low, high, 4).filter((y) => !spec.whole || Number.isInteger(y));
    const across = Math.max(2, Math.floor((width - LEFT) / 90));
    const marks = (by ? ticks(x0, x1, across).filter(Number.isInteger) : timeTicks(x0, x1, across))
      .filter((x) => only === null || x === only).filter((x) => sx(x) > LEFT + 20 || sx(x) > right - 40);
    const other = by ? timeAt : stepAt, range = by ? shared.until - from : x1 - x0;
    const label = (x, isStep) => (x === null ? "" : isStep ? short(x) : dayTime(x, range));
    const axis = svg("g", { class: "axis" },
      lines.map((y) => [
        svg("line", { x1: LEFT, x2: right, y1: sy(y), y2: sy(y) }),
        svg("text", { x: LEFT - 8, y: sy(y) + 4, "text-anchor": "end" },
          log || lines.length < 2 ? short(y) : tickLabel(y, lines[1] - lines[0])),
      ]),
      marks.map((x) => [[x, !!by, 22], [other(x), !by, 6]].map(([what, isStep, up]) =>
        svg("text", { x: Math.min(sx(x), width - 26), y: HEIGHT - up, "text-anchor": "middle" }, label(what, isStep)))),
      [[by ? "step" : "time", 22], [by ? "time" : "step", 6]].map(([text, up]) =>
        svg("text", { x: LEFT - 8, y: HEIGHT - up, "text-anchor": "end" }, text)));
    const [pattern, fill] = hatch("still");
    const stands = by ? [] : shared.stands.filter(([, to]) => to > x0).map(([start, end]) => svg("rect", { class: "still", fill,
      x: sx(Math.max(x0, start)), width: Math.max(1, sx(Math.min(x1, end)) - sx(Math.max(x0, start))), y: TOP, height: floor - TOP }));
    const curves = series.map((s, number) => this.curve(s, number, (p) => sx(p[by]), sy));
    this.line = svg("g", { class: "cross", visibility: "hidden" });
    this.plot.replaceChildren(svg("svg", { width, height: HEIGHT, "aria-hidden": "true",
      viewBox: `0 0 ${width} ${HEIGHT}` }, pattern, axis, stands, signs(place, LEFT, right, TOP, floor), curves, this.line));
    this.cross();
    const known = this.main().filter(([, y]) => y !== null);
    this.plot.setAttribute("aria-label", `${this.title.textContent} by ${shared.by}: from ` +
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
    for (const point of series.points) {
      const y = point[1];
      if (y === null) { close(); continue; }
      last = sx(point).toFixed(1);
      const step = `${first === null ? "M" : "L"}${last} ${sy(y).toFixed(1)}`;
      path += step;
      area += step;
      first = first === null ? last : first;
    }
    close();
    if (series.area) parts.push(svg("path", { class: `area ${tone}`, d: area }));
    parts.push(svg("path", { class: `line ${tone} ${series.kind || ""}${series.dots ? " dashed" : ""}`, d: path }));
    if (series.dots && series.points.length <= 80) {
      for (const point of series.points) {
        if (point[1] !== null) parts.push(svg("circle", { class: `dot ${tone}`, cx: sx(point), cy: sy(point[1]), r: 3.5 }));
      }
    }
    return parts;
  }

  main() {
    return this.spec.series[0].points;
  }

  point(event) {
    if (!this.scale) return;
    const { x0, x1, width, by, place } = this.scale;
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    const wanted = x0 + ((x - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0);
    shared.point(by ? timeAt(wanted) : Math.max(x0, Math.min(x1, wanted)));
    tell(event, (time) => Math.abs((place(time) ?? Infinity) - x) <= 8);
  }

  leave() {
    shared.point(null);
    tell(null);
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10, Home: -1e9, End: 1e9 };
    if (!(event.key in steps) || !this.scale) return;
    event.preventDefault();
    const points = this.main().filter(([time, y]) => y !== null && time >= shared.from), last = points.length - 1;
    if (last < 0) return;
    const from = shared.at === null ? last : nearest(points, shared.at);
    this.value.setAttribute("aria-live", "polite");
    shared.point(points[Math.max(0, Math.min(last, from + steps[event.key]))][0]);
  }

  // Draws the cursor, and the value at it.
  cross() {
    if (!this.line) return;
    const points = this.main(), { at } = shared, text = this.spec.format || number;
    if (at === null || !points.length) {
      const last = points.findLast(([, y]) => y !== null);
      this.value.textContent = last ? text(last[1]) : "";
      this.line.setAttribute("visibility", "hidden");
      return;
    }
    const point = points[nearest(points, at)], [time, y, step] = point, { sx, sy, by, place, width } = this.scale;
    const x = place(at);
    this.value.replaceChildren(y === null ? "no value" : text(y), el("span", { class: "muted" },
      ` at ${clock(y === null ? at : time)}, step ${whole(step)}`));
    if (x === null || x < LEFT || x > width - RIGHT + 1) { this.line.setAttribute("visibility", "hidden"); return; }
    this.line.replaceChildren(
      svg("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }),
      y === null || time < shared.from ? "" : svg("circle", { cx: sx(point[by]), cy: sy(y), r: 4 }));
    this.line.setAttribute("visibility", "visible");
  }
}
