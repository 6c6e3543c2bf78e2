// The numbers of a window in half precision: histograms by exponent, loss scales, operations.
"use strict";

function numbersPanel(report) {
  const numbers = report.numbers;
  if (!isKnown(numbers)) {
    return [card("Numbers", { note: "This panel needs a run of the model. Write the page with:" },
      empty(`What half precision loses is ${UNKNOWN}.`),
      codeElement("emulator.page(model, path, numerics=emulator.numerics(model, *inputs))"))];
  }
  return [
    card("What half precision loses", { note: numbers.notes.join(" ") },
      listElement(numbers.sentences),
      ...(numbers.suggestions.length ? [element("p", { class: "note" }, "What to do:"), listElement(numbers.suggestions)] : [])),
    card("Magnitudes", { width: "half",
      note: `Numbers of a run in float64, by exponent of two. Dotted lines: beyond them, ${numbers.type.name} rounds to zero, has fewer digits, or becomes infinite.` },
    magnitudesChart(numbers)),
    card("Loss scales", { width: "half", note: "Shares of the gradients in half precision that would underflow or overflow." }, scalesChart(numbers)),
    card("Operations", { note: "Shares are of the numbers that are not zero; errors are relative to the run in float64." },
      numbersTable(numbers)),
  ];
}

function listElement(texts) {
  return element("ul", { class: "texts" }, ...texts.map((text) => element("li", {}, text)));
}

// Returns a power of two with its exponent in superscript, as in the sentences.
function powerText(exponent) {
  return `2${[...String(exponent)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;
}

const lostText = orUnknown((value) => {
  if (value > 0 && value < 5e-4) return "< 0.1 %";
  return `${(value * 100).toFixed(value === 0 || value >= 0.1 ? 0 : 1)} %`;
});

function magnitudesChart(numbers) {
  const shown = numbers.histograms.filter((each) => each.bins.length);
  if (!shown.length) return empty("There are no numbers of half precision.");
  const limits = [numbers.type.zero, numbers.type.normal, numbers.type.overflow];
  const ends = shown.flatMap((each) => each.bins.map(([exponent]) => exponent)).concat(limits);
  const range = [ends.reduce((a, b) => Math.min(a, b)) - 1, ends.reduce((a, b) => Math.max(a, b)) + 1];
  return exponentChart("Lines: share of the numbers by exponent and direction", range,
    shown.map((each) => ({ name: each.name, word: each.word, data: each.bins, step: "middle" })),
    () => ({ label: { show: false }, lineStyle: { color: colour("bad"), type: "dotted", width: 2 },
      data: limits.map((limit) => ({ xAxis: limit - 0.5 })) }));
}

function scalesChart(numbers) {
  if (!numbers.scales.length) return empty("There are no gradients of half precision.");
  const lines = [["underflow", 1, "not always live"], ["overflow", 2, "over the limit"]];
  return exponentChart("Lines: what gradients lose by loss scale", [numbers.scales[0][0], numbers.scales.at(-1)[0]],
    lines.map(([name, column, word]) => ({ name, word, data: numbers.scales.map((row) => [row[0], row[column]]) })),
    () => ({ lineStyle: { color: colour("text"), type: "dotted", width: 2 },
      label: { formatter: `best ${powerText(numbers.best)}`, color: colour("text") },
      data: isKnown(numbers.best) ? [{ xAxis: numbers.best }] : [] }));
}

// Draws shares by exponent of two as lines, and vertical lines that `marks()` describes.
function exponentChart(label, [min, max], lines, marks) {
  return chartElement(label, 300, () => ({
    grid: { left: 58, right: 20, top: 40, bottom: 34 },
    legend: legend(),
    tooltip: tooltip((items) => tip(powerText(items[0].value[0]),
      items.map((item) => [item.seriesName, lostText(item.value[1])])), { trigger: "axis" }),
    xAxis: axis({ type: "value", min, max, axisLabel: { formatter: powerText } }),
    yAxis: axis({ type: "value", min: 0, axisLabel: { formatter: lostText } }),
    series: lines.map(({ word, ...line }, index) => ({
      ...line, type: "line", showSymbol: false,
      lineStyle: { color: termColour(word), width: 2 }, itemStyle: { color: termColour(word) },
      ...(index === 0 ? { markLine: { silent: true, symbol: "none", ...marks() } } : {}),
    })),
  }));
}

function numbersTable(numbers) {
  const small = orUnknown((value) => (value === 0 ? "0" : value === Infinity ? "infinite" : value.toExponential(1)));
  const rows = rowsOf(numbers.operations).map((row) => (row.error === "infinite" ? { ...row, error: Infinity } : row));
  const columns = [
    { key: "name", title: "Operation" },
    { key: "module", title: "Module", keep: true, format: (value) => value || "" },
    { key: "direction", title: "Direction" },
    { key: "type", title: "Type", keep: true },
    { key: "largest", title: "Largest", numeric: true, format: small },
    { key: "smallest", title: "Smallest", numeric: true, format: small, help: "Of those that are not zero." },
    { key: "overflow", title: "Infinite", numeric: true, format: lostText },
    { key: "flushed", title: "Zero", numeric: true, format: lostText },
    { key: "subnormal", title: "Fewer digits", numeric: true, format: lostText },
    { key: "error", title: "Error", numeric: true, format: small },
    { key: "source", title: "Your line", keep: true, format: (value) => value || "" },
  ];
  const groups = [["All", null], ["Module", "module"], ["Direction", "direction"]].map(([name, key]) => ({ name, key }));
  return makeTable({ caption: "Numbers of operations", columns, rows, groups, sortKey: "error" });
}
