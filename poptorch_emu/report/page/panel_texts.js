// Options and log: the settings of the run, and its messages.
"use strict";

function optionsPanel(report) {
  if (!report.options.length) return [card("Options", {}, empty(`The options are ${UNKNOWN}.`))];
  const rows = report.options.map(([name, value, standard]) => ({ name, value, standard }));
  // Fields that users cannot set have no default.
  const isSet = (row) => isKnown(row.standard) && row.standard !== row.value;
  return [
    card("What you set", { note: "Options that you changed, by the name of the method that sets them." },
      optionTable("What you set", rows.filter(isSet), "Every option has its default.")),
    card("At their defaults", { note: "The text after a colon names one of several settings of the method before it." },
      optionTable("At their defaults", rows.filter((row) => isKnown(row.standard) && !isSet(row)), "No option has its default.")),
    card("What follows from the model and the system", { note: "Settings of the compiler that no option sets." },
      optionTable("What follows from the model and the system", rows.filter((row) => !isKnown(row.standard)), "Nothing.")),
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
  return [card("Log", { note: "Messages that the process had logged when the report was made. POPTORCH_LOG_LEVEL sets the lowest level that is logged." }, makeTable({ caption: "Log", columns, rows, sortKey: "number", descending: false }))];
}
