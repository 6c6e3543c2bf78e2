// Options and log: what was set, and what was said.
"use strict";

function optionsPanel(report) {
  if (!report.options.length) return [card("Options", {}, empty(`The options are ${UNKNOWN}.`))];
  const rows = report.options.map(([name, value, standard]) => ({ name, value, standard }));
  // What nobody sets has no default.
  const isSet = (row) => isKnown(row.standard) && row.standard !== row.value;
  return [
    card("What you set", { note: "Of Options, by the names that set them; emulator and replicaGrouping are elsewhere." },
      optionTable("What you set", rows.filter(isSet), "Nothing differs from the defaults.")),
    card("At their defaults", {},
      optionTable("At their defaults", rows.filter((row) => isKnown(row.standard) && !isSet(row)), "All are set.")),
    card("What follows from the model and the system", {},
      optionTable("What follows", rows.filter((row) => !isKnown(row.standard)), "Nothing.")),
  ];
}

function optionTable(caption, rows, otherwise) {
  if (!rows.length) return empty(otherwise);
  const columns = [{ key: "name", title: "Option" }, { key: "value", title: "Value" }];
  if (rows.some((row) => isKnown(row.standard) && row.standard !== row.value)) columns.push({ key: "standard", title: "Default" });
  return makeTable({ caption, columns, rows, sortKey: "name", descending: false, search: rows.length > 20 });
}

function logPanel(report) {
  if (!report.log) return [card("Log", {}, empty(`The log is ${UNKNOWN}: this report was made without one.`))];
  if (!report.log.length) return [card("Log", {}, empty("Nothing was logged."))];
  const rows = report.log.map((line, at) => ({ number: at + 1, ...line }));
  const columns = [
    { key: "number", title: "Line", numeric: true, format: countText },
    { key: "time", title: "Time" },
    { key: "level", title: "Level", mark: (row) => `level-${String(row.level).replace(/\W/g, "")}` },
    { key: "text", title: "Message" },
  ];
  return [card("Log", { note: "What the process had logged when the report was made. POPTORCH_LOG_LEVEL sets how much that is." }, makeTable({ caption: "Log", columns, rows, sortKey: "number", descending: false }))];
}
