"use strict";
// Asks the server for what is new each second while the page is visible, and draws it.

const EVERY_MS = 1000, AFTER_END_MS = 10000, MOST_SAMPLES = 4000;
const store = { data: null, samples: [], events: 0, generation: "", total: 0, charts: new Map() };
let timeline = null, timer = 0, failures = 0, seen = 0;

function take(data) {
  store.data = data;
  if (data.generation !== store.generation) {
    store.samples = [];
    store.listed = false;
  }
  store.generation = data.generation;
  store.total = data.samples_total;
  store.samples.push(...data.samples);
  if (store.samples.length > MOST_SAMPLES) {
    store.samples = store.samples.filter((_, i) => (store.samples.length - 1 - i) % 2 === 0);
  }
  data.fresh = data.events;
  store.events = data.events_last;
}

function draw() {
  const { data } = store;
  drawHead(data);
  drawProgress(data);
  drawAnswers(data);
  drawCurves(data);
  timeline.update(data);
  drawCosts(data);
  drawWorkers(data);
  drawServers(data);
  drawEvents(data);
  drawProcesses(data);
}

// ---- curves ----

function chart(title) {
  if (!store.charts.has(title)) {
    const made = new Chart(title);
    store.charts.set(title, made);
    byId("curves").append(made.node);
  }
  return store.charts.get(title);
}

// The mean of the points around each point; of positive numbers the geometric mean, as a loss falls
// by factors.
function smooth(points) {
  const known = points.filter(([, y]) => typeof y === "number");
  const log = known.every(([, y]) => y > 0), half = Math.max(2, Math.min(25, Math.floor(known.length / 40)));
  const sums = [0];
  for (const [, y] of known) sums.push(sums.at(-1) + (log ? Math.log(y) : y));
  return known.map(([x], place) => {
    const reach = Math.min(half, place, known.length - 1 - place);
    const mean = (sums[place + reach + 1] - sums[place - reach]) / (2 * reach + 1);
    return [x, log ? Math.exp(mean) : mean];
  });
}

function curveOf(name, by) {
  return store.samples.map(([time, step, values]) => [by === "step" ? step : time, values[name] ?? null]);
}

function drawCurves(data) {
  if (!changed("curves", data.samples_total, data.generation, data.status.evaluations?.length, data.incidents.length)) return;
  const evaluations = data.status.evaluations || [];
  const evaluated = evaluations.filter((e) => e.steps);
  const has = (name) => store.samples.some(([, , values]) => typeof values[name] === "number");
  if (has("train/loss") || data.status.kind === "train") {
    const loss = curveOf("train/loss", "step"), dots = evaluated.map((e) => [e.steps, e.metrics.loss ?? null])
      .filter(([, y]) => y !== null);
    const smoothed = loss.length > 30;
    const series = [{ name: "training", points: loss, kind: smoothed ? "raw" : "", tone: "s0" }];
    if (smoothed) series.push({ name: "smoothed", points: smooth(loss), tone: "s0", derived: true, lead: true });
    if (dots.length) series.push({ name: "evaluation", points: dots, dots: true, tone: "s1" });
    chart("Loss").update({ x: "step", series, log: true, empty: "No loss yet" });
  }
  const rate = curveOf("rate/records_per_s", "time");
  const explained = data.incidents.length ? "Dashed lines: deaths (red), preemptions and moves." : "";
  const marks = data.incidents.map((i) => ({ x: i.time, text: `${clock(i.time)} ${i.text}`,
    tone: i.kind === "lost" || i.kind === "restored" ? "bad" : "" }));
  chart("Records per second").update({ x: "time", zero: true, marks, format: (v) => `${short(v)}/s`,
    series: [{ name: "records/s", points: rate, area: true, tone: "s2" }],
    note: explained });
  const metrics = new Set(evaluated.flatMap((e) => Object.keys(e.metrics)).filter((n) => n !== "loss"));
  for (const name of [...metrics].sort().slice(0, 6)) {
    chart(`Evaluation: ${name}`).update({ x: "step", series: [{ name, dots: true, tone: "s1",
      points: evaluated.map((e) => [e.steps, e.metrics[name] ?? null]) }] });
  }
  const logged = new Set(store.samples.slice(-5).flatMap(([, , v]) => Object.keys(v))
    .filter((n) => n.startsWith("train/") && !["train/loss", "train/workers"].includes(n)));
  for (const name of [...logged].sort().slice(0, 6)) {
    chart(name.slice(6)).update({ x: "step", series: [{ name, tone: "s0", points: curveOf(name, "step") }] });
  }
  if (has("servers/rows")) {
    chart("Embedding rows").update({ x: "time", zero: true, marks, format: short, note: explained,
      series: [{ name: "rows", points: curveOf("servers/rows", "time"), area: true, tone: "s3" }] });
  }
  const workers = curveOf("train/workers", "time");
  if (new Set(workers.map(([, y]) => y).filter(Boolean)).size > 1) {
    chart("Workers that run").update({ x: "time", zero: true, whole: true, marks, note: explained, series: [{ name: "workers", points: workers, area: true, tone: "s0" }] });
  }
}

// ---- the loop ----

async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  const query = new URLSearchParams({ after: store.events, first: store.total, generation: store.generation });
  if (byId("frequent").open) query.set("ids", "1");
  try {
    const answer = await fetch(`data?${query}`, { signal: AbortSignal.timeout(15000) });
    if (!answer.ok) throw new Error(answer.status === 403 ? "the address of the page is out of date: run torch-edl dashboard again" : `HTTP ${answer.status}`);
    take(await answer.json());
    setTimeout(draw); // an error in it is one of this page, not of the connection
    if (store.data.events.length || byId("log").dataset.at !== String(Math.floor(Date.now() / 3000))) {
      byId("log").dataset.at = String(Math.floor(Date.now() / 3000));
      if (!store.data.over) readLog();
    }
    failures = 0;
    seen = Date.now();
  } catch (error) {
    failures += 1;
    byId("live").dataset.problem = error.name === "TypeError" ? "the dashboard was ended" : error.message;
  }
  live();
  timer = setTimeout(poll, failures ? Math.min(10000, EVERY_MS * 2 ** failures) : store.data.over ? AFTER_END_MS : EVERY_MS);
}

function live() {
  const node = byId("live");
  node.className = `live ${failures ? "bad" : store.data?.over ? "" : "good"}`;
  const text = failures ? `No connection since ${seen ? clock(seen / 1000) : "the start"}: ${node.dataset.problem}`
    : store.data.over ? "The job has ended" : "Live, updated each second";
  if (node.textContent !== text) node.textContent = text;
}

function begin() {
  timeline = new Timeline(byId("lanes"), byId("legend"), byId("range"));
  listenToRecords();
  const kept = byId("data");
  if (kept) {
    const data = JSON.parse(kept.textContent);
    store.exported = true;
    take(data);
    draw();
    byId("live").textContent = `Written ${clock(data.now)}`;
    setText("about", "A page of torch-edl dashboard, with the data of the time at which it was written.");
    return;
  }
  if (location.search) history.replaceState(null, "", location.pathname);
  setText("about", "torch-edl dashboard reads the job once a second while this page is visible.");
  document.addEventListener("visibilitychange", poll);
  poll();
}

begin();
