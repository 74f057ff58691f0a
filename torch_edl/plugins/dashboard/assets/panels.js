"use strict";
// Progress, the four answers, curves, and tables of processes.

const TRAINING = ["train", "script"];
const STRATEGIES = { ps: "strategy ps: the model is on parameter servers",
  allreduce: "strategy allreduce: a ring of workers", local: "strategy local: one worker has the model" };

// What a job of each kind does, as in "trained for 1 h" and "1 h of training".
const WORK = { evaluate: ["evaluated", "evaluation"], predict: ["predicted", "prediction"] };
const work = (data) => WORK[data.status.kind] || ["trained", "training"];

function trains(data) {
  return TRAINING.includes(data.status.kind);
}

function drawHead(data) {
  const { status } = data;
  setText("name", data.name);
  document.title = `${data.name}: ${status.state || "starting"} - torch-edl`;
  const pill = byId("state");
  setText("state", status.state || "starting");
  pill.className = `pill ${({ running: "good", finished: "good", failed: "bad", dead: "bad",
    stopping: "warn", stopped: "warn" })[status.state] || ""}`;
  const roles = data.processes.filter((p) => p.state === "running").map((p) => p.role);
  const have = (role) => roles.filter((r) => r === role).length;
  const facts = [STRATEGIES[status.strategy] || "", `started ${clock(data.started)}`];
  if (!data.over) {
    const workers = have("worker"), wanted = status.workers_wanted;
    facts.push(wanted && workers < wanted ? `${workers} of ${wanted} workers` : count(workers, "worker"));
    if (have("ps")) facts.push(count(have("ps"), "server"));
    if (have("spare")) facts.push(count(have("spare"), "spare"));
  }
  facts.push(`times in ${zone(data.now)}`);
  setText("facts", facts.filter(Boolean).join(" · "));
  const problem = byId("problem");
  const dead = status.state === "dead" ? "The processes of the job are gone, and its result is unknown." +
    (status.kind === "train" ? ` torch-edl continue ${data.name} continues it.` : "") : "";
  const text = data.problem || (data.over && status.error) || dead;
  problem.hidden = !text;
  setText("problem", text && (data.problem ? `The master does not answer: ${text}` : text));
}

function drawProgress(data) {
  const { status } = data, { done, total } = status.records || { done: 0, total: 0 };
  byId("progress").hidden = !total && !done;
  const share = total ? done / total : 0;
  const bar = byId("bar");
  bar.value = Math.floor(share * 1000);
  bar.className = status.state === "failed" || status.state === "dead" ? "bad"
    : data.over ? "good" : "";
  setText("progress-left", total ? `${share >= 1 ? 100 : Math.min(99.9, share * 100).toFixed(1)} %`
    : `${whole(done)} records`);
  const parts = [total ? `${whole(done)} of ${whole(total)} records done` : ""];
  if (status.epochs > 1) parts.push(`epoch ${whole(Math.min(status.epoch + 1, status.epochs))} of ${whole(status.epochs)}`);
  if (status.steps) parts.push(`step ${whole(status.steps)}`);
  setText("progress-text", parts.filter(Boolean).join(" · "));
  setText("progress-right", endText(data, total - done));
}

// The end from the rate of the last ten seconds and the mean rate: a range, as they differ.
function endText(data, left) {
  const { status } = data;
  if (data.over) {
    return status.wall_s ? `${work(data)[0]} for ${duration(status.wall_s)}, ended ${clock(data.last)}`
      : `ended ${clock(data.last)}`;
  }
  const { records_per_s: now, mean_records_per_s: mean } = status.rates || {};
  if (!(left > 0)) return "";
  if (!now && !mean) return "no progress yet";
  if (!now) return "no progress in the last 10 s; the end is unknown";
  const ends = [now, mean || now].map((rate) => left / rate).sort((a, b) => a - b);
  const [soon, late] = ends;
  const same = duration(late) === duration(soon);
  const range = same ? duration(soon) : `${duration(soon)} to ${duration(late)}`;
  const at = clock(data.now + soon, soon < 3600), until = clock(data.now + late, soon < 3600);
  return `${range} left · ends ${at === until ? `at ${at}` : `between ${at} and ${until}`}`;
}

// ---- the four answers ----

function drawAnswers(data) {
  const answers = [learning(data), time(data), died(data), trust(data)];
  if (!changed("answers", answers)) return;
  byId("answers").replaceChildren(...answers.map(({ question, tone, head, lines, bar }) =>
    el("article", { class: `card ${tone}` },
      el("h2", null, question),
      el("p", { class: "head" }, el("span", { class: `tone ${tone}`, role: "img", "aria-label": {
        good: "good", warn: "attention", bad: "problem", calm: "neutral" }[tone] }, { good: "✓", warn: "!", bad: "×", calm: "–" }[tone]), head),
      bar ? shares(bar) : null,
      lines.filter(Boolean).map((line) => el("p", { class: "muted" }, line)))));
}

function shares(parts) {
  const total = parts.reduce((sum, [, value]) => sum + value, 0) || 1;
  let x = 0;
  const bars = parts.filter(([, value]) => value > 0).map(([name, value, tone]) => {
    const width = (100 * value) / total;
    const rect = svg("rect", { class: `share ${tone}`, x, width, y: 0, height: 8 },
      svg("title", null, `${name}: ${span(value)}`));
    x += width;
    return rect;
  });
  return svg("svg", { class: "shares", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img",
    "aria-label": parts.map(([name, value]) => `${name} ${span(value)}`).join(", ") }, bars);
}

function mean(points) {
  return points.reduce((sum, p) => sum + p, 0) / points.length;
}

function learning(data) {
  const question = "Is it learning?", { status } = data;
  if (!trains(data)) return result(data);
  const values = store.samples.map(([, , v]) => v["train/loss"]);
  const losses = values.filter((v) => typeof v === "number");
  const evaluated = evaluationText(status);
  if (values.length && !losses.length) {
    return { question, tone: "calm", head: status.steps ? `Step ${whole(status.steps)}` : "No step yet", lines: [evaluated] };
  }
  if (status.nan_steps) {
    return { question, tone: "warn", head: `${count(status.nan_steps, "step")} had no finite loss`, lines: [evaluated] };
  }
  if (losses.length < 4) {
    return { question, tone: "calm", head: losses.length ? `Loss ${number(losses.at(-1))}` : "No loss yet", lines: [evaluated] };
  }
  const part = Math.max(2, Math.floor(losses.length / 10));
  const now = mean(losses.slice(-part)), before = mean(losses.slice(-2 * part, -part));
  const first = mean(losses.slice(0, part));
  const change = (now - before) / Math.abs(before || 1);
  const ended = data.over, share = (100 * Math.abs(change)).toFixed(0);
  const word = change < -0.01 ? `${ended ? "fell" : "falls"} by ${share} %`
    : change > 0.05 ? `${ended ? "rose" : "rises"} by ${share} %` : ended ? "was level" : "is level";
  const worse = overfits(status);
  return {
    question,
    tone: worse || (change > 0.05 && now > first) ? "warn" : now < first ? "good" : "calm",
    head: `Loss ${number(losses.at(-1))}`,
    lines: [`It began at ${number(first)}, and ${word} in the last tenth of the training${ended ? "" : " so far"}`,
      evaluated, worse],
  };
}

// What a job found that does not train.
function result(data) {
  const { status } = data, metrics = Object.entries((status.evaluations || []).at(-1)?.metrics || {});
  if (status.kind === "predict") {
    return { question: "What was predicted?", tone: "calm", head: count(status.records?.done || 0, "record"), lines: [] };
  }
  const [first, ...others] = metrics.map(([name, value]) => `${name} ${number(value)}`);
  return { question: "What did the evaluation find?", tone: first ? "good" : "calm",
    head: first || (data.over ? "No result" : "No result yet"), lines: others };
}

function evaluationText(status) {
  const last = (status.evaluations || []).at(-1);
  if (!last) return "";
  const text = Object.entries(last.metrics).slice(0, 3).map(([k, v]) => `${k} ${number(v)}`).join(", ");
  return `Evaluation${last.steps ? ` at step ${whole(last.steps)}` : ""}: ${text}`;
}

function overfits(status) {
  const losses = (status.evaluations || []).map((e) => [e.steps, e.metrics.loss])
    .filter(([, v]) => typeof v === "number");
  if (losses.length < 3) return "";
  const best = losses.reduce((a, b) => (b[1] < a[1] ? b : a)), last = losses.at(-1)[1];
  return last > best[1] * 1.1
    ? `The evaluation loss was lowest at step ${whole(best[0])}, ${number(best[1])}, and is ${number(last)} now: ` +
      "the model may overfit" : "";
}

function time(data) {
  const question = "Where does the time go?", { status } = data;
  const until = data.over ? data.last : data.now, wall = status.wall_s || 0;
  const start = Math.max(0, until - data.started - wall);
  const waits = Math.min(wall, status.stalled_s || 0);
  const before = data.over ? "before the first step and after the last" : "before the first step";
  const doing = work(data)[1];
  const bar = wall ? [[before, start, "starting"], [doing, wall - waits, "worker"],
    ["without a step", waits, "bad"]] : null;
  const rate = data.over ? status.rates?.mean_records_per_s || (wall ? status.records.done / wall : 0)
    : status.rates?.records_per_s;
  const share = wall ? waits / wall : 0;
  return {
    question,
    tone: !wall ? "calm" : share > 0.1 ? "warn" : "good",
    head: rate ? `${short(rate)} records/s${data.over ? " on average" : ""}` : wall && !data.over ? "No step in the last 10 s" : "No step yet",
    bar,
    lines: wall ? [`${span(start)} ${before}, ${span(wall - waits)} of ${doing}, ` + (waits < 0.1 ? "no standstill"
      : `${span(waits)} without a step after losses and moves (${(share * 100).toFixed(0)} %)`)] : [],
  };
}

function died(data) {
  const question = "Who died, and what did it cost?";
  const losses = data.incidents.filter(isFatal);
  const taken = data.incidents.filter((i) => i.end === "taken").length;
  const moved = taken ? `${count(taken, "process")} ${taken === 1 ? "was" : "were"} taken away` : "";
  const again = data.status.rolled_back?.records || 0;
  const masters = losses.filter((i) => i.kind === "master_restarted").length;
  const named = new Set(losses.filter((i) => i.process && i.kind !== "master_restarted").map((i) => i.process)).size;
  const deaths = Math.max(data.deaths, named) + masters;
  if (!deaths) {
    return { question, tone: "good", head: "Nobody died", lines: [moved, `No record is ${work(data)[0]} again`] };
  }
  const stalled = data.status.stalled_s, stands = !data.over && losses.find((i) => i.stands);
  const last = losses.at(-1);
  return {
    question,
    tone: again ? "bad" : "warn",
    head: `${count(deaths, "process")} died`,
    lines: [
      last ? `The last one: ${last.process || "the model"} at ${clock(last.time)}` : "", moved,
      `${again ? count(again, "record") : "No record"} ${again === 1 || !again ? "is" : "are"} ${work(data)[0]} again`,
      stands ? `No step since ${clock(stands.time)}` : "",
      stalled > 0 ? `No step for ${span(stalled)} after losses and moves, in total` : "",
    ],
  };
}

function trust(data) {
  const question = "Can I trust the result?", { status } = data;
  const lost = status.updates_lost, { times, records } = status.rolled_back || { times: 0 };
  const notes = [
    lost && `${count(lost, "update")} lost for good in damaged journals`,
    times && `The model returned to a checkpoint ${count(times, "time")}: ${count(records, "record")} trained again`,
    status.damaged && `${count(status.damaged, "damaged record")} left out`,
    status.nan_steps && `${count(status.nan_steps, "step")} skipped: the loss was not finite`,
  ].filter(Boolean);
  if (status.state === "failed" || status.state === "dead") {
    return { question, tone: "bad", head: status.state === "failed" ? "The job failed" : "The job is dead", lines: notes };
  }
  const incomplete = data.over && status.records?.total && status.records.done < status.records.total;
  if (lost) return { question, tone: "bad", head: "Updates were lost", lines: notes };
  if (incomplete) notes.push("The job was stopped before its last record");
  return {
    question,
    tone: incomplete || status.damaged || status.nan_steps ? "warn" : "good",
    head: `No record was lost or counted twice${data.over ? "" : " so far"}`,
    lines: [...notes, notes.length ? "" : "No return to a checkpoint, no lost update, no damaged record, no skipped step"],
  };
}

// ---- tables of processes ----

function drawCosts(data) {
  const rows = data.incidents.slice(-60).reverse();
  if (!changed("costs", rows)) return;
  redraw(byId("cost-table"), rows.length
    ? table("What failures and moves cost", ["time", "process", "what happened", ">noticed after",
      ">without a step", ">replaced after", ">trained again"], rows.map((i) => [
      clock(i.time), [i.process || "model", "strong"], [i.text, isFatal(i) ? "what bad-text" : "what"],
      i.noticed_s === null ? (i.end ? "at once" : "") : span(i.noticed_s),
      i.stalled_s === null ? (i.stands ? (data.over ? "no step followed" : "not over yet") : "") : span(i.stalled_s),
      i.replaced_s === null ? "" : span(i.replaced_s),
      i.again ? count(i.again, "record") : i.end ? "none" : ""]), { class: "stack" })
    : el("p", { class: "empty" }, "Nothing failed or moved"));
}

// The worker that is longest without progress comes first: it turns red before the timeout ends it.
function drawWorkers(data) {
  const workers = data.processes.filter((p) => p.role === "worker" || p.role === "spare");
  byId("workers").hidden = byId("to-workers").hidden = data.over;
  if (data.over) return;
  const limit = data.task_timeout_s;
  const tone = (p) => (!p.leases || !limit ? "" : p.idle_s > limit / 4 ? "bad-text" : p.idle_s > limit / 10 ? "warn-text" : "");
  const order = (p) => [p.role === "spare", -(tone(p) ? p.idle_s : 0), p.id];
  const rows = workers.map((p) => [order(p), p]).sort(([a], [b]) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]).map(([, p]) => p);
  const shown = rows.slice(0, store.allWorkers ? 2000 : 12);
  if (!changed("workers", shown, rows.length)) return;
  const most = Math.max(1, ...rows.map((p) => p.rate || 0));
  const stuck = rows.filter((p) => tone(p) === "bad-text");
  redraw(byId("worker-table"),
    stuck.length ? el("p", { class: "banner slim" }, `${names(stuck.map((p) => `worker-${p.id}`))} made no progress for ` +
      `${span(stuck[0].idle_s)}. After ${span(limit)} (--task-timeout) a worker is declared lost, and its tasks go to others.`) : "",
    el("p", { class: "spent" }, spent(rows)),
    rows.length ? table("Workers", ["worker", "activity", ">records/s", ">records", ">time computing", ">CPU, memory", ">tasks held", ">oldest task", ">last progress"], shown.map((p) => [
      [`worker-${p.id}`, "strong"], activity(p),
      isTraining(p) && p.rate !== null ? meter(p.rate, most) : "", isTraining(p) ? whole(p.records || 0) : "", shareOf([p], "compute"), used(p),
      p.leases ? String(p.leases) : "", p.leases ? (p.lease_s < 1 ? "new" : `for ${span(p.lease_s)}`) : "",
      [p.leases ? (tone(p) ? "! " : "") + (p.idle_s < 1 ? "now" : `${span(p.idle_s)} ago`) : "", tone(p)]]), { class: "stack" })
      : el("p", { class: "empty" }, "No worker runs"),
    rows.length > shown.length ? el("button", { type: "button", onclick: () => {
      store.allWorkers = true;
      drawWorkers(store.data);
    } }, `Show all ${whole(rows.length)}`) : "");
}

const percent = (part) => (typeof part === "number" ? `${Math.round(100 * part)} %` : "");

// CPU in percent of one CPU, and memory, of a process; the same of its GPUs.
function used(process) {
  const { cpu, memory, gpu_memory: gpu, gpu: busy } = process.used || {};
  return [percent(cpu), memory ? bytes(memory) : "",
    gpu ? `GPU ${[percent(busy), bytes(gpu)].filter(Boolean).join(" ")}` : ""].filter(Boolean).join(", ");
}

function drawMachines(data) {
  const { machines } = data;
  byId("machines").hidden = byId("to-machines").hidden = !machines.length;
  if (!machines.length || !changed("machines", machines)) return;
  const gpus = machines.some((m) => m.gpus), shown = machines.slice(0, 200);
  const part = (value, total) => (total ? `${bytes(value)} of ${bytes(total)}` : "");
  redraw(byId("machine-table"), table("Machines", ["machine", "processes", ">CPU", ">memory", ...(gpus ? [">GPU", ">GPU memory"] : [])],
    shown.map((m) => [[m.name, "strong"], [names(m.processes), "what"],
      m.cpu === null || !m.cpus ? "" : `${Math.round((100 * m.cpu) / m.cpus)} % of ${count(m.cpus, "CPU")}`, part(m.memory, m.memory_total),
      ...(gpus ? [percent(m.gpu), part(m.gpu_memory, m.gpus)] : [])]), { class: "stack" }),
  machines.length > shown.length ? el("p", { class: "muted" }, `${whole(machines.length - shown.length)} more`) : "");
}

// Where the time of training loops went since these workers started.
const ACTIVITIES = { compute: "computing", pull: "waiting for parameters", push: "sending updates",
  data: "waiting for records, or in other work" };

function shareOf(workers, activity) {
  const sum = (name) => workers.reduce((all, p) => all + ((p.seconds || {})[name] || 0), 0);
  const all = Object.keys(ACTIVITIES).reduce((total, name) => total + sum(name), 0);
  return all ? `${Math.round((100 * sum(activity)) / all)} %` : "";
}

function spent(workers) {
  const parts = Object.entries(ACTIVITIES).map(([name, text]) => [shareOf(workers, name), text]);
  return parts[0][0] ? `Where the time of all workers goes: ${parts.map(([share, text]) => `${share} ${text}`).join(", ")}` : "";
}

function isTraining(process) {
  return process.role === "worker" && process.state === "running";
}

function activity(process) {
  if (process.state !== "running") {
    return stateTag(process.state === "pending" ? "waits for room in the cluster" : process.state, "");
  }
  if (process.waits_s) return stateTag(`${process.phase}, no step for ${span(process.waits_s)}`, "waits");
  return stateTag(process.phase || (process.role === "spare" ? "spare pod" : "running"), process.role);
}

function stateTag(text, role) {
  return el("span", { class: `state ${role}` }, text);
}

function names(all) {
  return all.length > 3 ? `${all.slice(0, 3).join(", ")} and ${whole(all.length - 3)} more` : all.join(", ");
}

function meter(value, most, tone = "worker", unit = "") {
  return el("span", { class: "meter" }, short(value) + unit, svg("svg", { viewBox: "0 0 100 6",
    preserveAspectRatio: "none", "aria-hidden": "true" },
  svg("rect", { class: "track", width: 100, height: 6 }),
  svg("rect", { class: `share ${tone}`, width: (100 * value) / most, height: 6 })));
}
