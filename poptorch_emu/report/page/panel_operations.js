// The operations: a table by block, module, family or IPU. A click shows the timeline.
"use strict";

const rowsOfReport = new WeakMap();

// Returns the rows of the table of operations, which the file stores as columns.
function operationRows(report) {
  if (!rowsOfReport.has(report)) rowsOfReport.set(report, rowsOf(report.operations));
  return rowsOfReport.get(report);
}

function rowsOf(table) {
  const names = Object.keys(table);
  const length = names.length ? table[names[0]].length : 0;
  return Array.from({ length }, (_, at) => Object.fromEntries(names.map((name) => [name, table[name][at]])));
}

function operationsPanel(report, page) {
  const rows = operationRows(report);
  if (!rows.length) return [card("Operations", {}, empty(`The operations are ${UNKNOWN}.`))];
  const total = rows.reduce((sum, row) => sum + (row.cycles || 0), 0);
  for (const row of rows) {
    row.share = isKnown(row.cycles) && total ? row.cycles / total : null;
    row.ipu_name = isKnown(row.ipu) ? `IPU ${row.ipu}` : null;
  }
  const numUnknown = rows.filter((row) => !isKnown(row.cycles)).length;
  const columns = [
    { key: "name", title: "Operation", link: (row) => page.showOperation(row),
      linkTitle: (row) => `${row.operator}: show it in the timeline` },
    { key: "segment", title: "Segment", keep: true },
    { key: "cycles", title: inTime("cycles") ? "Time" : "Cycles", numeric: true,
      format: inTime("cycles") ? cyclesText : countText, total: true },
    { key: "share", title: "Share", numeric: true, format: shareText, total: true, share: true },
    { key: "bytes", title: "Bytes", numeric: true, format: bytesText, total: true,
      help: "What the operation reads and writes." },
    { key: "utilisation", title: "FLOP use", numeric: true, format: shareText,
      help: "Share of the chip's peak rate that the operation reaches." },
    { key: "source", title: "Your line" },
  ];
  const groups = [["Block", "block"], ["Module", "module"], ["Family", "family"], ["IPU", "ipu_name"],
    ["All", null]].map(([name, key]) => ({ name, key }));
  const note = numUnknown
    ? `The cost of ${countText(numUnknown)} of ${countText(rows.length)} operations is ${UNKNOWN}; shares count known costs only.`
    : "Cycles are for one run of an operation's segment. Click a name to see it in the timeline.";
  return [
    card("Where the cycles go", { width: "half", note: "By family of operations." }, shareChart(rows, "family")),
    card("By block", { width: "half", note: "By block of the model, in its order." }, shareChart(rows, "block")),
    card("Operations", { note },
      makeTable({ caption: "Operations", columns, rows, groups, sortKey: "cycles" })),
  ];
}

function sumsBy(rows, key) {
  const sums = new Map();
  for (const row of rows) {
    if (!isKnown(row.cycles)) continue;
    const name = plainText(row[key]);
    sums.set(name, (sums.get(name) || 0) + row.cycles);
  }
  return [...sums].sort((a, b) => b[1] - a[1]);
}

// Draws all bars; a long chart scrolls in its frame.
function shareChart(rows, key) {
  const sums = key === "block" ? inOrder(sumsBy(rows, key), rows, key) : sumsBy(rows, key);
  if (!sums.length) return empty(`The cycles are ${UNKNOWN}.`);
  const total = sums.reduce((sum, [, cycles]) => sum + cycles, 0);
  const chart = chartElement(`Bars: cycles by ${key}`, 60 + 28 * sums.length, () => ({
    grid: { left: 150, right: 70, top: 8, bottom: 28 },
    tooltip: tooltip((item) => tip(sums[item.dataIndex][0], [["takes", cyclesAndTimeText(item.value)],
      ["share", shareText(item.value / total)]])),
    xAxis: axis({ type: "value", axisLabel: { formatter: cyclesText }, splitNumber: 3 }),
    yAxis: axis({ type: "category", inverse: true, data: sums.map(([name]) => name),
      axisLabel: { width: 138, overflow: "truncate", interval: 0 } }),
    series: [{ type: "bar", barMaxWidth: 18, itemStyle: itemStyle("cycles", { borderRadius: [0, 4, 4, 0] }),
      label: { show: true, position: "right", color: colour("text"), formatter: (item) => shareText(item.value / total) },
      data: sums.map(([, cycles]) => cycles) }],
  }));
  return element("div", { class: "tall" }, chart);
}

// Sorts sums by the first run of their operations.
function inOrder(sums, rows, key) {
  const order = new Map();
  for (const row of rows) {
    const name = plainText(row[key]);
    if (!order.has(name)) order.set(name, order.size);
  }
  return sums.sort((a, b) => order.get(a[0]) - order.get(b[0]));
}
