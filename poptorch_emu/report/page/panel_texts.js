// Options and log: what was set, and what was said.
"use strict";

function optionsPanel(report) {
  if (!report.options.length) return [card("Options", {}, empty(`The options are ${UNKNOWN}.`))];
  const rows = report.options.map(([name, value, standard]) => ({
    name, value, standard, changed: isKnown(standard) ? (standard === value ? "" : "changed") : null }));
  const hasStandards = rows.some((row) => isKnown(row.standard));
  const columns = [{ key: "name", title: "Option" }, { key: "value", title: "Value" }];
  if (hasStandards) {
    columns.push({ key: "standard", title: "Default" },
      { key: "changed", title: "Changed", format: (text) => text || "" });
  }
  return [card("Options", { note: "As the model was compiled with them." },
    makeTable({ caption: "Options", columns, rows, sortKey: "name", descending: false }))];
}

function logPanel(report) {
  if (!report.log) return [card("Log", {}, empty(`What was logged is ${UNKNOWN}: this report was made without it.`))];
  if (!report.log.length) return [card("Log", {}, empty("Nothing was logged."))];
  const rows = report.log.map((line, at) => ({ number: at + 1, ...line }));
  const columns = [
    { key: "number", title: "Line", numeric: true, format: countText },
    { key: "time", title: "Time" },
    { key: "level", title: "Level", mark: (row) => `level-${String(row.level).replace(/\W/g, "")}` },
    { key: "text", title: "Message" },
  ];
  return [card("Log", { note: "What the process had logged when the report was made; POPTORCH_LOG_LEVEL says how much." }, makeTable({ caption: "Log", columns, rows, sortKey: "number", descending: false }))];
}
