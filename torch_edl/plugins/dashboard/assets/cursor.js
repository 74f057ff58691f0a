"use strict";
// What all charts and the timeline share: the part of the job that is shown, and the cursor.

const STANDS_S = 1.5; // shorter outages are not visible in samples of one second

const shared = {
  by: "time", // horizontal axis of the charts: time or step
  seconds: 0, // length of the part that is shown; 0: the whole job
  first: 0,
  until: 0,
  at: null, // Unix time of the cursor
  stands: [], // [from, to] of the times without a step
  incidents: [],
  parts: new Set(), // charts and the timeline, with draw() and cross()

  update(data) {
    const starts = [store.samples[0]?.[0], ...data.lanes.rows.map((row) => row[1][0][0])];
    this.first = Math.min(data.started, ...starts.filter((time) => time !== undefined));
    this.until = data.over ? data.last : data.now;
    this.incidents = data.incidents;
    this.stands = standstills(data.status.outages || [], this.until);
  },

  get from() {
    return this.seconds ? Math.max(this.first, this.until - this.seconds) : this.first;
  },

  point(at) {
    this.at = at;
    for (const part of this.parts) part.cross();
  },

  show(change) {
    Object.assign(this, change);
    for (const part of this.parts) part.draw();
  },
};

// The outages as [from, to], merged where they overlap. One that is not over lasts until now.
function standstills(outages, until) {
  const found = [];
  const spans = outages.map(({ since, stalled_s: s }) => [since, s === null ? until : since + s])
    .filter(([from, to]) => to - from >= STANDS_S).sort((a, b) => a[0] - b[0]);
  for (const [from, to] of spans) {
    const last = found.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else found.push([from, to]);
  }
  return found;
}

// Points of a curve, with a gap for each time without a step; a rate is zero there.
function standing(points, isRate) {
  const found = [];
  let next = 0;
  for (const [from, to] of shared.stands) {
    // A sample is as late as a heartbeat: its steps may be older than the standstill.
    while (next < points.length && points[next][0] < to - 0.5) {
      if (!isRate || points[next][0] <= from) found.push(points[next]);
      next += 1;
    }
    const last = found.at(-1);
    if (!last) continue;
    const begin = Math.max(from, last[0]), step = last[2];
    if (isRate) found.push([begin, 0, step], [to, 0, step]);
    else found.push([begin, null, step]);
  }
  return [...found, ...points.slice(next)];
}

function nearest(points, time) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < time) low = middle + 1;
    else high = middle;
  }
  return low > 0 && time - points[low - 1][0] < points[low][0] - time ? low - 1 : low;
}

// The step at a time, from the samples; null before the first.
function stepAt(time) {
  const all = store.samples;
  if (!all.length || time < all[0][0]) return null;
  const near = nearest(all, time), before = all[near][0] > time ? near - 1 : near;
  return all[before][1];
}

// The newest time at which the job had made so many steps; null if it is not known.
function timeAt(step) {
  const all = store.samples;
  for (let i = all.length - 1; i >= 0; i -= 1) {
    if (all[i][1] > step) continue;
    const [time, at] = all[i], next = all[i + 1];
    return next && next[1] > at ? time + ((step - at) / (next[1] - at)) * (next[0] - time) : time;
  }
  return all.length && all[0][1] - step < all[0][1] * 0.1 ? all[0][0] : null;
}

const isFatal = (incident) => incident.end === "died" || incident.kind === "model_restored";

// Signs of deaths and moves; signs at the same place are one.
function signs(sx, x0, x1, y0, y1) {
  const groups = new Map();
  for (const incident of shared.incidents) {
    const x = sx(incident.time);
    if (x === null || x < x0 || x > x1) continue;
    const place = Math.round(x / 6);
    if (isFatal(incident) || !groups.has(place)) groups.set(place, { x, kind: isFatal(incident) ? "fatal" : "other" });
  }
  return [...groups.values()].map(({ x, kind }) => svg("g", { class: `mark ${kind}` },
    svg("line", { x1: x, x2: x, y1: y0, y2: y1 }),
    kind === "fatal" ? svg("path", { d: `M${x - 4} ${y0 - 10}l8 8m0 -8l-8 8` })
      : svg("path", { d: `M${x} ${y0 - 11}l5 5l-5 5l-5 -5z` })));
}

let hatches = 0;

// A pattern of lines, with the name by which a part of the same picture uses it.
function hatch(name) {
  hatches += 1;
  const id = `hatch-${hatches}`;
  return [svg("defs", null, svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse",
    patternTransform: "rotate(45)" }, svg("line", { class: `hatch hatch-${name}`, x1: 0, x2: 0, y1: 0, y2: 6 }))), `url(#${id})`];
}

// What was at the cursor, beside the pointer.
const reading = el("div", { class: "reading", "aria-hidden": "true", hidden: true });

function tell(event, near) {
  if (!reading.isConnected) document.body.append(reading);
  if (!event || shared.at === null) { reading.hidden = true; return; }
  const at = shared.at, step = stepAt(at), stand = shared.stands.find(([from, to]) => from <= at && at <= to);
  reading.replaceChildren(
    el("strong", null, clock(at) + (step === null ? "" : ` · step ${whole(step)}`)),
    stand ? el("p", null, `no step for ${span(stand[1] - stand[0])}, from ${clock(stand[0])}`) : "",
    ...shared.incidents.filter((i) => near(i.time)).slice(-4)
      .map((i) => el("p", null, `${clock(i.time)} ${i.text}`)));
  reading.hidden = false;
  const { width, height } = reading.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - 16 - width : event.clientX + 16;
  reading.style.left = `${Math.max(4, left)}px`;
  reading.style.top = `${Math.max(4, Math.min(innerHeight - height - 4, event.clientY + 16))}px`;
}
