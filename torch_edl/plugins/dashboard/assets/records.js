"use strict";
// Events with filters, and the logs of processes.

const MOST_SHOWN = 300;
// They come again and again, and would bury the deaths.
const ROUTINE = ["model_evaluated", "epoch_done", "checkpoint_written"];
const isRoutine = (event) => ROUTINE.includes(event.kind);

const filters = {
  get level() { return byId("level").value; },
  get kind() { return byId("kind").value; },
  get text() { return byId("text").value.trim().toLowerCase(); },
};

function matches(event) {
  return (!filters.level || event.level === filters.level) && (!filters.kind || event.kind === filters.kind || (filters.kind === "main" && !isRoutine(event))) &&
    event.text.toLowerCase().includes(filters.text);
}

function eventItem(event) {
  const name = event.process && event.text.startsWith(event.process) ? event.process : "";
  const [line, ...more] = event.text.split("\n");
  const rest = [more.join("\n"), event.traceback].filter(Boolean).join("\n");
  return el("li", { class: `event ${event.level} ${event.kind}`, "data-sequence": event.sequence },
    el("time", { datetime: new Date(event.time * 1000).toISOString() }, clock(event.time)),
    el("span", { class: "level" }, event.level === "info" ? "" : event.level),
    el("div", { class: "text" },
      name ? el("button", { type: "button", class: "name", "aria-label": `Log of ${name}`,
        onclick: () => showLog(name) }, name) : null,
      name ? line.slice(name.length) : line,
      rest ? el("details", null, el("summary", null, "Details"), el("pre", null, rest)) : null));
}

// The events that the browser has, newest first; a filter asks the server for those that match.
async function filterEvents(older = false) {
  const list = byId("event-list");
  const last = older && list.lastElementChild ? Number(list.lastElementChild.dataset.sequence) : 0;
  let found;
  if (store.exported) {
    found = store.data.events.filter((e) => (!last || e.sequence < last) && matches(e)).reverse().slice(0, MOST_SHOWN);
  } else {
    const query = new URLSearchParams({ level: filters.level, kind: filters.kind, text: filters.text });
    if (last) query.set("before", last);
    const answer = await fetch(`events?${query}`);
    if (!answer.ok) return;
    found = await answer.json();
  }
  const items = found.map(eventItem);
  if (older) list.append(...items);
  else list.replaceChildren(...items);
  byId("more").hidden = found.length < MOST_SHOWN;
  byId("routine").hidden = filters.kind !== "main";
  if (!list.children.length) list.append(el("li", { class: "empty" }, "No such event"));
}

function drawEvents(data) {
  const kinds = Object.entries(data.kinds).sort((a, b) => b[1] - a[1]);
  if (changed("kinds", kinds)) {
    const select = byId("kind"), chosen = select.value;
    select.replaceChildren(el("option", { value: "main" }, "all but evaluations, epochs, checkpoints"), el("option", { value: "" }, "all"), ...kinds.map(([kind, n]) =>
      el("option", { value: kind }, `${kind.replaceAll("_", " ")} (${whole(n)})`)));
    select.value = chosen;
  }
  const hidden = ROUTINE.reduce((sum, kind) => sum + (data.kinds[kind] || 0), 0), routine = byId("routine");
  routine.hidden = !hidden || filters.kind !== "main";
  if (changed("routine", hidden)) {
    routine.replaceChildren(`${whole(hidden)} evaluations, epochs and checkpoints are not listed. `,
      el("button", { type: "button", class: "name", onclick: () => { byId("kind").value = ""; filterEvents(); } }, "List them"));
  }
  const list = byId("event-list"), fresh = data.fresh.filter(matches);
  if (!store.listed) {
    store.listed = true;
    list.replaceChildren(...data.fresh.filter(matches).reverse().slice(0, MOST_SHOWN).map(eventItem));
    byId("more").hidden = data.fresh.length < MOST_SHOWN;
    if (!list.children.length) list.append(el("li", { class: "empty" }, "No such event"));
  } else if (fresh.length) {
    list.querySelector(".empty")?.remove();
    list.prepend(...fresh.reverse().map(eventItem));
    while (list.children.length > 4 * MOST_SHOWN) list.lastElementChild.remove();
  }
}

// ---- logs ----

function drawProcesses(data) {
  const live = data.processes.map((p) => [`${p.role === "spare" ? "worker" : p.role}-${p.id}`, p.role === "spare" ? " (spare)" : ""]);
  const names = store.exported ? Object.keys(data.logs) : null;
  if (!changed("processes", live, data.ended)) return;
  const select = byId("process"), chosen = select.value;
  const option = ([name, more]) => el("option", { value: name }, name + more);
  // A job of a cluster that is over tells no processes, but its history does.
  const told = data.ended.length || live.length ? data.ended : data.lanes.rows.map(([name]) => name);
  const ended = told.map((n) => n.replace("spare-", "worker-")).reverse();
  const group = (label, found) => (found.length ? el("optgroup", { label }, found.map(option)) : null);
  const kept = ([name]) => !names || names.includes(name);
  select.replaceChildren(...[group("running", live.slice(0, 1000).filter(kept)),
    group("ended", ended.map((n) => [n, ""]).filter(kept))].filter(Boolean));
  select.value = chosen || interesting(data);
  if (select.selectedIndex < 0) select.selectedIndex = 0;
  if (!store.logOf) readLog();
}

// The process whose log is shown first: of a failed job the last one that died, else a worker.
function interesting(data) {
  const died = data.lanes.rows.filter((row) => row[4]).sort((a, b) => a[2] - b[2]);
  const last = data.status.state === "failed" || data.status.state === "dead" ? died.at(-1) : null;
  const live = data.processes.find((p) => p.role === "worker" && p.state === "running");
  if (!last && live) return `worker-${live.id}`;
  return (last || data.lanes.rows.find(([name]) => name.startsWith("worker")) || [""])[0];
}

function showLog(name) {
  const select = byId("process");
  const value = name.replace("spare-", "worker-");
  if (![...select.options].some((o) => o.value === value)) select.append(el("option", { value }, value));
  select.value = value;
  readLog();
  byId("logs").scrollIntoView();
  byId("log").focus({ preventScroll: true });
}

async function readLog() {
  const name = byId("process").value, log = byId("log");
  if (!name) return;
  let lines = [], problem = "";
  if (store.exported) lines = store.data.logs[name] || [];
  else {
    const answer = await fetch(`log?${new URLSearchParams({ process: name })}`);
    if (!answer.ok) return;
    ({ lines, error: problem } = await answer.json());
  }
  if (name !== byId("process").value) return;
  const same = store.logOf === name;
  const bottom = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  store.logOf = name;
  const text = lines.join("\n").trimEnd() || problem || "This process has printed nothing yet";
  if (same && log.dataset.text === text) return;
  log.dataset.text = text;
  log.replaceChildren(...folded(text.split("\n")).map(([line, times]) => el("span", {
    class: / ERROR |^Traceback|Error:/.test(line) ? "error" : / WARNING /.test(line) ? "warning" : null }, line,
  times > 1 ? el("span", { class: "times" }, `  (${whole(times)} times)`) : null, "\n")));
  if (bottom || !same) log.scrollTop = log.scrollHeight;
}

// Lines with the number of times that each came one after another, apart from its clock. The newest of
// them is shown.
function folded(lines) {
  const found = [], same = (line) => line.replace(/^\d\d:\d\d:\d\d(\.\d+)? /, "");
  for (const line of lines) {
    const last = found.at(-1);
    if (last && line && same(last[0]) === same(line)) found[found.length - 1] = [line, last[1] + 1];
    else found.push([line, 1]);
  }
  return found;
}

function listenToRecords() {
  byId("frequent-of").addEventListener("change", () => drawFrequent(store.data));
  byId("frequent").addEventListener("toggle", () => { if (!store.exported) poll(); });
  let timer = 0;
  const later = () => { clearTimeout(timer); timer = setTimeout(filterEvents, 200); };
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const id of ["level", "kind"]) byId(id).addEventListener("change", () => filterEvents());
  byId("text").addEventListener("input", () => later());
  byId("more").addEventListener("click", () => filterEvents(true));
  byId("process").addEventListener("change", readLog);
}
