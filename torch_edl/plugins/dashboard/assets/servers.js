"use strict";
// Parameter servers and their tables; numbers that a job does not tell have no column.

function drawServers(data) {
  const servers = data.processes.filter((p) => p.role === "ps");
  const none = !servers.length;
  byId("servers").hidden = byId("to-servers").hidden = none;
  if (none || !changed("servers", servers, data.tables)) return;
  const columns = serverColumns(servers);
  byId("server-table").replaceChildren(
    table("Parameter servers", ["server", "state", ...columns.map(([head]) => head), "problem"], servers.map((p) => [
      [`ps-${p.id}`, "strong"], stateTag(p.state, "ps"), ...columns.map(([, cell]) => cell(p)),
      [p.problem || "none", p.problem ? "bad-text" : ""]]), { class: "stack" }),
    data.tables.length ? el("h3", null, "Tables of embeddings") : "",
    data.tables.length ? table("Tables of embeddings", ["table", ">rows", ">size", ">removed rows", ">largest share of a server"],
      data.tables.map((t) => [[t.name, "strong"], whole(t.rows), bytes(t.bytes), whole(t.evicted),
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
    [">updates/s", (p) => short(p.rate || 0)],
    ...(some((p) => p.load) ? [
      [">pulls, p50 / p99", call("pull")],
      [">pushes, p50 / p99", call("push")],
      [">busy", (p) => meter(Math.round((p.load?.busy || 0) * 100), 100, "ps", " %")],
      [">staleness p99", (p) => (p.load?.staleness_p99 === null ? "" : `≤ ${p.load?.staleness_p99} updates`)],
    ] : [["address", (p) => p.address || ""]]),
    ...(some((p) => p.load?.journal_bytes) ? [[">journal", (p) => [
      `${bytes(p.load?.journal_bytes || 0)}${p.load?.journal_lag_s > 0.1 ? `, ${span(p.load.journal_lag_s)} behind` : ""}`,
      p.load?.journal_lag_s > 1 ? "warn-text" : ""]]] : []),
    ...(rows ? [[">rows", (p) => meter(p.rows || 0, rows, "ps")], [">size", (p) => bytes(p.bytes || 0)]] : []),
    ...(some((p) => p.kept) ? [["copy on its peer", (p) => (p.kept ? "yes" : "not yet")]] : []),
  ];
}

function milliseconds(seconds) {
  return seconds < 1 ? `${Number((seconds * 1000).toPrecision(3))} ms` : `${Number(seconds.toPrecision(3))} s`;
}
