// Two reports side by side, with their differences.
"use strict";

function comparePanel(_, page) {
  const { reports, files } = page;
  const names = reportNames(reports, files);
  return [
    card("What changed", {}, changeList(reports, names)),
    card("Differences", { note: "Each difference is the second report minus the first." },
      differenceTable(reports, names)),
    card("Memory of the fullest tile", { width: "half" }, pairChart(names, "IPU", tilePairs(reports), bytesText)),
    card("Cycles by family", { width: "half" }, pairChart(names, "family", familyPairs(reports), cyclesText)),
    ...timelinePair(reports, names, page),
    card("Operations that differ", { note: "Operations are matched by module, operator and direction, wherever they run; several of one kind are added up. Cycles are for one micro-batch." },
      operationDifferences(reports, names)),
    card("Machine and findings that differ", {}, textDifferences(reports, names)),
    card("Options that differ", {}, optionDifferences(reports, names)),
  ];
}

// Returns names for two reports from their files and dates, or times if the dates are equal.
function reportNames(reports, files) {
  const written = reports.map((report) => String(report.written || ""));
  const isOneDay = written[0].slice(0, 10) === written[1].slice(0, 10);
  const names = reports.map((report, at) => {
    const time = isOneDay ? written[at].slice(11) : written[at];
    return [files[at] || report.name, time].filter(Boolean).join(", ");
  });
  return names[0] === names[1] ? [`${names[0]} (1)`, `${names[1]} (2)`] : names;
}

// [name, value of a report, text of a value, whether less is better]
const MEASURES = [
  ["Predicted throughput", (report) => report.speed.predicted_rows_per_second, rateText, false],
  ["Predicted step", (report) => report.speed.predicted_step_seconds, secondsText, true],
  ["Measured throughput", (report) => report.speed.measured_rows_per_second, rateText, false],
  ["Measured step", (report) => report.speed.measured_step_seconds, secondsText, true],
  ["Rows in a step", (report) => report.speed.rows_per_step, countText, null],
  ["Fullest tile", (report) => (fullestIpu(report) || {}).bytes, bytesText, true],
  ["IPUs", (report) => report.machine.num_ipus, countText, null],
  ["Operations", (report) => operationRows(report).length || null, countText, null],
  ["Cycles of all operations", (report) => sumOfCycles(report), cyclesText, true],
];

function sumOfCycles(report) {
  const known = operationRows(report).map((row) => row.cycles).filter(isKnown);
  return known.length ? known.reduce((sum, cycles) => sum + cycles, 0) : null;
}

function differenceTable(reports, names) {
  const rows = MEASURES.map(([name, valueOf, text, isLessBetter]) => {
    const [first, second] = reports.map(valueOf);
    const isBoth = isKnown(first) && isKnown(second);
    return { name, first: text(first), second: text(second),
      difference: isBoth ? differenceText(second - first, text) : null,
      ratio: isBoth && first ? second / first : null, isLessBetter };
  });
  const columns = [
    { key: "name", title: "Measure" },
    { key: "first", title: names[0], numeric: true },
    { key: "second", title: names[1], numeric: true },
    { key: "difference", title: "Difference", numeric: true },
    { key: "ratio", title: "Ratio", numeric: true, format: orUnknown((ratio) => `${ratio.toFixed(3)} ×`), mark: verdict },
  ];
  return makeTable({ caption: "Differences", columns, rows, sortKey: "", search: false });
}

// [name, text of a report]
const FINDINGS = [
  ["System", (report) => report.machine.system],
  ["Chip", (report) => report.machine.chip],
  ["Replicas", (report) => report.machine.num_replicas],
  ["Mode", (report) => report.mode],
  ["Fits", (report) => report.verdict],
  ["Limited by", (report) => report.bottleneck],
];

function textDifferences(reports, names) {
  const rows = FINDINGS.map(([name, textOf]) => ({ name, first: textOf(reports[0]), second: textOf(reports[1]) }))
    .filter((row) => row.first !== row.second);
  if (!rows.length) return empty("None differ.");
  const columns = [
    { key: "name", title: "Finding" },
    { key: "first", title: names[0], format: plainText },
    { key: "second", title: names[1], format: plainText },
  ];
  return makeTable({ caption: "Machine and findings that differ", columns, rows, sortKey: "", search: false });
}

function verdict(row) {
  if (!isKnown(row.ratio) || row.isLessBetter === null || Math.abs(row.ratio - 1) < 0.001) return "";
  return row.ratio < 1 === row.isLessBetter ? "better" : "worse";
}

function differenceText(difference, text) {
  if (difference === 0) return "none";
  return `${difference > 0 ? "+" : "−"}${text(Math.abs(difference))}`;
}

function tilePairs(reports) {
  return pairs(reports.map((report) =>
    new Map(report.ipus.map((ipu) => [`IPU ${ipu.ipu}`, ipu.fullest_tile_bytes]))));
}

function familyPairs(reports) {
  const all = pairs(reports.map((report) => new Map(sumsBy(operationRows(report), "family"))));
  return all.sort((a, b) => Math.max(b[1] || 0, b[2] || 0) - Math.max(a[1] || 0, a[2] || 0)).slice(0, 10);
}

// Returns [name, first value, second value] rows; null if a report lacks the value.
function pairs(maps) {
  const names = [...new Set(maps.flatMap((map) => [...map.keys()]))];
  return names.map((name) => [name, ...maps.map((map) => map.get(name) ?? null)]);
}

function pairChart(names, what, rows, text) {
  const known = rows.filter((row) => isKnown(row[1]) || isKnown(row[2]));
  if (!known.length) return empty("Neither report has these values.");
  return chartElement(`Bars: both reports by ${what}`, 90 + 48 * known.length, () => ({
    grid: { left: 132, right: 84, top: 34, bottom: 30 },
    legend: legend(),
    tooltip: tooltip((items) => tip(known[items[0].dataIndex][0], names.map((name, at) => [name, text(known[items[0].dataIndex][at + 1])])),
      { trigger: "axis", axisPointer: { type: "shadow" } }),
    xAxis: text === bytesText ? bytesAxis(Math.max(...known.flatMap((row) => [row[1] || 0, row[2] || 0])))
      : axis({ type: "value", axisLabel: { formatter: text }, splitNumber: 3 }),
    yAxis: axis({ type: "category", inverse: true, data: known.map((row) => row[0]), axisLabel: { width: 120, overflow: "truncate" } }),
    series: names.map((name, at) => ({
      name, type: "bar", barMaxWidth: 17, itemStyle: itemStyle(at === 0 ? "first report" : "second report", { borderRadius: [0, 4, 4, 0] }),
      label: { show: true, position: "right", color: colour("text"), formatter: (item) => text(item.value) },
      data: known.map((row) => row[at + 1]) })),
  }));
}

function timelinePair(reports, names, page) {
  if (!reports.every((report) => report.timelines.length)) {
    return [card("Timelines", {}, empty("One of the reports has no timeline."))];
  }
  const views = reports.map((report) => new TimelineView(report.timelines[0], operationRows(report), true));
  const isOneClock = views.every((view) => view.timeline.unit === views[0].timeline.unit);
  const end = Math.max(...views.map((view) => view.index.end));
  page.timelines = views;
  return views.map((view, at) => {
    // Both timelines have one scale, so that the shorter one looks shorter.
    if (isOneClock) view.setEnd(end);
    return card(`Timeline: ${names[at]}`, {}, view.root);
  });
}

// Returns [key, title, direction] of an operation's place, which is independent of its stage.
function placeOf(row) {
  const direction = row.is_recomputed ? "recompute" : plainText(row.segment).split(" ")[0];
  return [`${row.module}\n${row.operator}\n${direction}`, row.name.replace(/ \d+$/, ""), direction];
}

// Returns the operations of a report by place, with their cycles; null if any are unknown.
function operationsByPlace(report) {
  const places = new Map();
  for (const row of operationRows(report)) {
    const [key, title, direction] = placeOf(row);
    const place = places.get(key) || { title, direction, cycles: 0, count: 0 };
    place.cycles = isKnown(row.cycles) && isKnown(place.cycles) ? place.cycles + row.cycles : null;
    place.count += 1;
    places.set(key, place);
  }
  return places;
}

function changedOperations(reports) {
  const [first, second] = reports.map(operationsByPlace);
  const rows = [];
  for (const key of new Set([...first.keys(), ...second.keys()])) {
    const [a, b] = [first.get(key), second.get(key)];
    const cycles = [a, b].map((side) => (side ? side.cycles : 0));
    if (a && b && cycles[0] === cycles[1] && a.count === b.count) continue;
    const isBoth = cycles.every(isKnown);
    const text = (side) => (side ? `${countText(side.cycles)}${side.count > 1 ? ` (${side.count} ×)` : ""}` : "absent");
    rows.push({ title: (a || b).title, direction: (a || b).direction, first: text(a), second: text(b),
      size: isBoth ? Math.abs(cycles[1] - cycles[0]) : null,
      difference: isBoth ? cycles[1] - cycles[0] : null });
  }
  return rows;
}

function operationDifferences(reports, names) {
  const rows = changedOperations(reports);
  if (!rows.length) return empty("All operations cost the same in both.");
  const columns = [
    { key: "title", title: "Operation" }, { key: "direction", title: "Direction" },
    { key: "first", title: names[0], numeric: true }, { key: "second", title: names[1], numeric: true },
    { key: "size", title: "Difference", numeric: true,
      format: (_, row) => (isKnown(row.difference) ? differenceText(row.difference, countText) : UNKNOWN),
      mark: (row) => (row.difference > 0 ? "worse" : "better") },
  ];
  return makeTable({ caption: "Operations that differ", columns, rows, sortKey: "size" });
}

function changedOptions(reports) {
  const maps = reports.map((report) => new Map(report.options.map(([name, value]) => [name, value])));
  return pairs(maps).filter((row) => row[1] !== row[2])
    .map(([name, first, second]) => ({ name, first, second }));
}

function optionDifferences(reports, names) {
  const rows = changedOptions(reports);
  if (!rows.length) return empty("All options are the same.");
  const columns = [{ key: "name", title: "Option" }, { key: "first", title: names[0] }, { key: "second", title: names[1] }];
  return makeTable({ caption: "Options that differ", columns, rows, sortKey: "name", descending: false });
}
