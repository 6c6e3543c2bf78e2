// Sentences on the largest changes between two reports, the most important one first.
"use strict";

function changeList(reports, names) {
  const sentences = [speedChange(reports, names), memoryChange(reports), operationChange(reports), optionChange(reports)];
  const known = sentences.filter(Boolean);
  if (!known.length) return empty("All values that both reports contain are equal.");
  return element("ul", { class: "sentences" }, ...known.map((text) =>
    element("li", {}, text)));
}

// Compares the time of a row, because calls may have different numbers of rows.
function speedChange(reports, names) {
  const speeds = reports.map((report) => report.speed);
  const [before, after] = speeds.map((speed) => speed.predicted_rows_per_second);
  if (!isKnown(before) || !isKnown(after) || !before || !after) return null;
  const ratio = after / before;
  const isAbout = Math.abs(Math.log(ratio)) <= ratioSpread(...speeds);
  const what = Math.abs(ratio - 1) < 0.001 ? "is as fast as"
    : isAbout ? "is about as fast as" : `is ${number(ratio)} × as fast as`;
  const most = mostChangedPart(reports);
  return `${names[1]} ${what} ${names[0]}: ${rateText(after)} instead of ${rateText(before)}.${most}`;
}

// Returns the logarithm of the smallest ratio of two speeds that the model of the machine can tell
// from 1: machine/spread.py.
function ratioSpread(before, after) {
  const [own, other] = [before.spread_weights || [], after.spread_weights || []];
  const distance = (set, at) => set.reduce((sum, weight, nth) => sum + Math.abs(weight - other[at][nth]), 0);
  return other.length ? Math.hypot(0.02, ...own.map(distance)) : 0.02;
}

// Returns the part of a step whose time for one row, on the mean IPU, changed most.
function mostChangedPart(reports) {
  const [before, after] = reports.map(partsOfRow);
  if (!before || !after) return "";
  const changes = [...new Set([...before.keys(), ...after.keys()])]
    .map((part) => [part, (after.get(part) || 0) - (before.get(part) || 0)])
    .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const total = [...before.values()].reduce((sum, seconds) => sum + seconds, 0);
  const [part, seconds] = changes[0];
  if (!total || Math.abs(seconds) < 0.001 * total) return "";
  return ` The time for ${part} (${term(part).meaning}) changed most: on average, an IPU spends ${secondsText(Math.abs(seconds))} ${seconds > 0 ? "more" : "less"} on each row.`;
}

function partsOfRow(report) {
  const ipus = report.ipus.filter((ipu) => ipu.parts);
  const rows = report.speed.rows_per_step;
  if (!ipus.length || !rows) return null;
  const parts = new Map();
  for (const ipu of ipus) {
    for (const [part, seconds] of Object.entries(ipu.parts)) {
      parts.set(part, (parts.get(part) || 0) + seconds / ipus.length / rows);
    }
  }
  return parts;
}

function memoryChange(reports) {
  const [before, after] = reports.map(fullestIpu);
  if (!before || !after || before.bytes === after.bytes) return null;
  return `The fullest tile holds ${bytesText(after.bytes)} instead of ${bytesText(before.bytes)}, `
    + `of ${bytesText(after.limit)}. It is on IPU ${after.ipu}.`;
}

function operationChange(reports) {
  const rows = changedOperations(reports).filter((row) => row.size);
  if (!rows.length) return null;
  const most = rows.reduce((a, b) => (b.size > a.size ? b : a));
  const lead = rows.length === 1 ? "One operation differs" : `${plural(rows.length, "operation")} differ, and most of all`;
  return `${lead}: ${most.title} (${most.direction}), by ${differenceText(most.difference, cyclesText)}.`;
}

function optionChange(reports) {
  const rows = changedOptions(reports);
  if (!rows.length) return null;
  const texts = rows.slice(0, 4).map((row) => `${row.name} ${plainText(row.second)} instead of ${plainText(row.first)}`);
  return `Settings that differ: ${texts.join("; ")}${rows.length > 4 ? ` and ${rows.length - 4} more` : ""}.`;
}
