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
  shared.update(data);
  drawHead(data);
  drawProgress(data);
  drawAnswers(data);
  drawCurves(data);
  timeline.update(data);
  drawCosts(data);
  drawWorkers(data);
  drawServers(data);
  drawMachines(data);
  drawEvents(data);
  drawProcesses(data);
}

// ---- curves ----

function chart(title) {
  if (!store.charts.has(title)) {
    const made = new Chart(title);
    made.node.open = store.charts.size < 2 || !narrow();
    store.charts.set(title, made);
    byId("curves").append(made.node);
  }
  return store.charts.get(title);
}

// The mean of the points around each point; the geometric mean of positive numbers, as a loss falls
// by factors.
function smooth(points) {
  const known = points.filter(([, y]) => typeof y === "number");
  const log = known.every(([, y]) => y > 0), half = Math.max(2, Math.min(25, Math.floor(known.length / 40)));
  const sums = [0];
  for (const [, y] of known) sums.push(sums.at(-1) + (log ? Math.log(y) : y));
  return known.map(([time, , step], place) => {
    const reach = Math.min(half, place, known.length - 1 - place);
    const mean = (sums[place + reach + 1] - sums[place - reach]) / (2 * reach + 1);
    return [time, log ? Math.exp(mean) : mean, step];
  });
}

function curveOf(name) {
  return store.samples.map(([time, step, values]) => [time, values[name] ?? null, step]);
}

// Records per second over five samples. The rate in a sample is that of ten seconds: it would show a
// standstill as a slope.
function rateCurve() {
  const all = store.samples, names = ["rate/records_per_s", "rate/steps_per_s"];
  let begin = 0, size = 0;
  return all.map(([time, step, values], i) => {
    const [records, steps] = names.map((name) => values[name]);
    if (records && steps) size = records / steps; // records of a minibatch
    if (i && (step < all[i - 1][1] || shared.stands.some(([from, to]) => from < time && all[i - 1][0] < to - 0.5 && to - 0.5 <= time))) begin = i;
    const [since, first] = all[Math.max(begin, i - 5)];
    if (!size) return [time, records ?? null, step];
    return [time, time > since ? (size * (step - first)) / (time - since) : null, step];
  });
}

function drawCurves(data) {
  const parts = [data.samples_total, data.generation, data.status.evaluations?.length, data.incidents.length, shared.stands];
  if (!changed("curves", parts, data.over ? 0 : Math.floor(data.now))) return;
  const evaluations = data.status.evaluations || [];
  const evaluated = evaluations.filter((e) => e.steps);
  const has = (name) => store.samples.some(([, , values]) => typeof values[name] === "number");
  const points = (name) => evaluated.map((e) => [data.evaluated_at[e.steps] ?? timeAt(e.steps), e.metrics[name] ?? null, e.steps])
    .filter(([time]) => time !== null);
  if (has("train/loss") || data.status.kind === "train") {
    const loss = curveOf("train/loss"), dots = points("loss").filter(([, y]) => y !== null);
    const smoothed = loss.length > 30;
    const series = [{ name: "training", points: standing(loss), kind: smoothed ? "raw" : "", tone: "s0" }];
    if (smoothed) series.push({ name: "smoothed", points: standing(smooth(loss)), tone: "s0", derived: true });
    if (dots.length) series.push({ name: "evaluation", points: dots, dots: true, tone: "s1" });
    chart("Loss").update({ series, log: true, empty: "No loss yet" });
  }
  if (store.samples.length || trains(data)) {
    chart("Records per second").update({ zero: true, format: (v) => `${short(v)}/s`,
      series: [{ name: "records/s", points: standing(rateCurve(), true), area: true, tone: "s2" }] });
  }
  const metrics = new Set(evaluated.flatMap((e) => Object.keys(e.metrics)).filter((n) => n !== "loss"));
  for (const name of [...metrics].sort().slice(0, 6)) {
    chart(`Evaluation: ${name}`).update({ series: [{ name, dots: true, tone: "s1", points: points(name) }] });
  }
  const logged = new Set(store.samples.slice(-5).flatMap(([, , v]) => Object.keys(v))
    .filter((n) => n.startsWith("train/") && !["train/loss", "train/workers"].includes(n)));
  for (const name of [...logged].sort().slice(0, 6)) {
    chart(name.slice(6)).update({ series: [{ name, tone: "s0", points: standing(curveOf(name)) }] });
  }
  if (has("servers/rows")) {
    chart("Embedding rows").update({ zero: true, format: short,
      series: [{ name: "rows", points: standing(curveOf("servers/rows")), area: true, tone: "s3" }] });
  }
  const workers = curveOf("train/workers");
  if (new Set(workers.map(([, y]) => y).filter(Boolean)).size > 1) {
    chart("Workers that run").update({ zero: true, whole: true, series: [{ name: "workers", points: standing(workers), area: true, tone: "s0" }] });
  }
  const none = !store.charts.size;
  byId("curve-tools").hidden = byId("to-curves").hidden = none;
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

const narrow = () => matchMedia("(max-width: 640px)").matches;

// On a narrow screen, the long parts are folded until somebody opens them or goes to them.
function listenToFolds() {
  if (narrow()) for (const fold of document.querySelectorAll(".fold[data-long]")) fold.open = false;
  document.querySelector("nav").addEventListener("click", (event) => {
    const part = document.querySelector(event.target.getAttribute("href") || "#none");
    const fold = part?.querySelector(".fold");
    if (fold) fold.open = true;
  });
}

function begin() {
  timeline = new Timeline(byId("lanes"), byId("legend"));
  listenToRecords();
  listenToFolds();
  byId("by").addEventListener("change", (event) => shared.show({ by: event.target.value }));
  byId("range").addEventListener("change", (event) => shared.show({ seconds: Number(event.target.value) }));
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
