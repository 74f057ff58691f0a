"use strict";
// Parameter servers and their tables; numbers that a job does not tell have no column.

function drawServers(data) {
  const servers = data.processes.filter((p) => p.role === "ps");
  const none = !servers.length;
  drawFrequent(data);
  byId("servers").hidden = byId("to-servers").hidden = none;
  if (none || !changed("servers", servers, data.tables)) return;
  const columns = serverColumns(servers);
  redraw(byId("server-table"),
    table("Parameter servers", ["server", "state", ...columns.map(([head]) => head), "problem"], servers.map((p) => [
      [`ps-${p.id}`, "strong"], stateTag(p.state, "ps"), ...columns.map(([, cell]) => cell(p)),
      [p.problem || "none", p.problem ? "bad-text" : ""]]), { class: "stack" }),
    data.tables.length ? el("h3", null, "Tables of embeddings") : "",
    data.tables.length ? table("Tables of embeddings", ["table", ">rows", ">size", ">rows added", ">rows removed", ">on the fullest server"],
      data.tables.map((t) => [[t.name, "strong"], whole(t.rows), bytes(t.bytes), perSecond(t.new_s),
        `${whole(t.evicted)}${t.evicted_s ? `, ${perSecond(t.evicted_s)}` : ""}`,
        t.rows ? `${((100 * t.most) / t.rows).toFixed(0)} %` : ""]), { class: "stack" }) : "");
}

function serverColumns(servers) {
  const some = (test) => servers.some(test);
  const rows = Math.max(0, ...servers.map((p) => p.rows || 0));
  const call = (name) => (p) => {
    const rate = p.load?.[`${name}_s`], half = p.load?.[`${name}_p50`], most = p.load?.[`${name}_p99`];
    const known = (value) => value !== null && value !== undefined;
    return [known(rate) ? `${short(rate)}/s` : "", known(half) ? `≤ ${milliseconds(half)} / ${milliseconds(most)}` : ""]
      .filter(Boolean).join(", ");
  };
  return [
    [">updates/s", (p) => (p.rate === null ? "" : short(p.rate))],
    ...(some((p) => p.load) ? [
      [">pulls (50 %, 99 %)", call("pull")],
      [">pushes (50 %, 99 %)", call("push")],
      [">busy", (p) => meter(Math.round((p.load?.busy || 0) * 100), 100, "ps", " %")],
      [">staleness (99 %)", (p) => (typeof p.load?.staleness_p99 === "number" ? `≤ ${count(p.load.staleness_p99, "update")}` : "")],
    ] : [["address", (p) => p.address || ""]]),
    ...(some((p) => p.load?.journal_bytes) ? [[">journal", (p) => [
      `${bytes(p.load?.journal_bytes || 0)}${p.load?.journal_lag_s > 0.1 ? `, ${span(p.load.journal_lag_s)} behind` : ""}`,
      p.load?.journal_lag_s > 1 ? "warn-text" : ""]]] : []),
    ...(rows ? [[">rows", (p) => meter(p.rows || 0, rows, "ps")], [">size", (p) => bytes(p.bytes || 0)]] : []),
    ...(some((p) => p.used) ? [[">CPU, memory", used]] : []),
    ...(some((p) => p.kept) ? [["copy on another server", (p) => (p.kept ? "yes" : "not yet")]] : []),
  ];
}

// The servers look for these ids only while this part is open.
function drawFrequent(data) {
  const all = data.tables;
  byId("frequent").hidden = !all.length;
  const select = byId("frequent-of"), chosen = select.value;
  if (changed("frequent-names", all.map((t) => t.name))) {
    select.replaceChildren(...all.map((t) => el("option", { value: t.name }, t.name)));
    select.value = chosen;
    if (select.selectedIndex < 0) select.selectedIndex = 0;
  }
  const shown = all.find((t) => t.name === select.value);
  if (!shown || !changed("frequent", shown.name, shown.frequent)) return;
  const percent = (share) => (share === null ? "" : `${Number((100 * share).toPrecision(3))} %`);
  redraw(byId("frequent-table"), ...(shown.frequent
    ? [table(`Most frequent ids of ${shown.name}`, ["id", ">updates of its row", ">share of all updates"],
      shown.frequent.map(([id, n, share]) => [[id, "strong"], whole(n), percent(share)])),
    el("p", { class: "muted" }, "A minibatch counts once, however often it contains the id. An id with 100 % is in every " +
      "minibatch, as an id for padding is. The count of a row that was removed starts again from zero.")]
    : [el("p", { class: "empty" }, store.exported ? "The servers were not asked for these ids"
      : "The servers are looking for these ids. If none appear, no row of this table was updated.")]));
}

function perSecond(rate) {
  return rate === null || rate === undefined ? "" : rate ? `${short(rate)}/s` : "none";
}

function milliseconds(seconds) {
  return seconds < 1 ? `${Number((seconds * 1000).toPrecision(3))} ms` : `${Number(seconds.toPrecision(3))} s`;
}
