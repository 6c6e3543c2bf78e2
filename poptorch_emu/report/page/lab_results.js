// The results of one choice of the laboratory: figures with their formulas, memory, reasons.
"use strict";

const FIT_WORDS = { yes: ["fits", "good"], close: ["may fit", ""], no: ["does not fit", "bad"] };
// Results of which less is better, or more.
const LESS = new Set(["Time of all micro-batches", "Bubble", "Time of a call", "Fullest tile", "Largest stash",
  "Sum of gradients over replicas"]);
const MORE = new Set(["Throughput"]);

function labFigure(name, text, ...details) {
  return element("div", { class: "figure" }, element("div", { class: "name" }, name),
    element("div", { class: `value ${text === UNKNOWN ? "unknown" : ""}` }, text),
    ...details.filter(Boolean).map((detail) => element("div", { class: "detail" }, detail)));
}

// Returns a figure with its formula: in words, and with the numbers of this choice.
function formulaFigure(formula, point) {
  const likely = formula.name === "Throughput" ? likelyText(point.likely_rows_per_second, number) : "";
  const figure = labFigure(formula.place ? `${formula.name}, ${formula.place}` : formula.name, formula.result, likely.replace(/\W+$/, ""));
  figure.append(element("div", { class: "formula" }, formula.words), element("div", { class: "formula numbers" }, formula.numbers));
  return figure;
}

function labFigures(point, guess) {
  const ipus = `${plural(point.num_ipus, "IPU")} · ${countText(point.num_micro_batches)} ${
    point.num_micro_batches === 1 ? "micro-batch" : "micro-batches"} in a window`;
  return element("div", { class: "figures wide" },
    labFigure("The IPUs wait", shareText(point.waits), guess === null ? "for each other or for the host" : `you guessed ${shareText(guess)}`),
    labFigure("The model", FIT_WORDS[point.fits][0], fullestText(point), ipus),
    ...point.formulas.map((formula) => formulaFigure(formula, point)));
}

function fullestText(point) {
  const [ipu, bytes] = point.fullest_bytes.reduce((most, each) => (each[1] > most[1] ? each : most));
  const likely = (point.likely_fullest_bytes || []).find((each) => each[0] === ipu);
  return `${likelyText(likely, bytesText)}fullest tile, on IPU ${ipu}: ${bytesText(bytes)} of ${bytesText(point.limit_bytes)}`;
}

// Returns what differs between two choices: settings, and results.
function labChanges(before, now) {
  const changed = now.texts.map((text, at) => [now.titles[at], before.texts[at], text]).filter(([, was, is]) => was !== is);
  if (!changed.length) return null;
  const list = element("ul", { class: "sentences plain" }, ...changed.map(([title, was, is]) =>
    element("li", {}, `${title}: ${was} → ${is}`)));
  if (before.point.fault || now.point.fault) return card("What changed", {}, list);
  const known = new Map(before.point.formulas.map((formula) => [formula.name, formula]));
  const rows = now.point.formulas.filter(({ name, result }) => known.has(name) && known.get(name).result !== result)
    .map((formula) => changeRow(known.get(formula.name), formula));
  const same = rows.length ? "" : element("p", { class: "note" }, "No result changed.");
  return card("What changed", { note: "Since the last setting." }, list,
    element("div", { class: "changes" }, ...rows.flat()), same);
}

function changeRow(was, is) {
  const factor = was.value ? is.value / was.value - 1 : null;
  const isBetter = MORE.has(is.name) ? is.value > was.value : LESS.has(is.name) ? is.value < was.value : null;
  const share = factor === null ? "" : `${factor > 0 ? "+" : "−"}${Math.abs(factor * 100).toFixed(Math.abs(factor) < 0.1 ? 1 : 0)} %`;
  return [element("span", { class: "name" }, is.name), element("span", {}, `${was.result} → ${is.result}`),
    element("span", { class: isBetter === null ? "" : isBetter ? "better" : "worse" }, share)];
}

// Returns bars with the mean tile of each IPU by content, and a mark for the fullest tile.
function labMemory(point) {
  const rows = point.fullest_bytes;
  const words = [...new Set(point.parts.flatMap(Object.keys))];
  const most = Math.max(point.limit_bytes, ...rows.map(([, bytes]) => bytes));
  return chartElement("Bars: contents of the mean tile of each IPU; marks: its fullest tile", 150 + 34 * rows.length, () => ({
    grid: { left: 56, right: 30, top: 64, bottom: 30 },
    legend: legend(),
    tooltip: tooltip((item) => tip(item.seriesName, [["where", item.name], ["bytes", bytesText(Array.isArray(item.value) ? item.value[0] : item.value)]])),
    xAxis: bytesAxis(most, { splitNumber: 4 }),
    yAxis: axis({ type: "category", inverse: true, data: rows.map(([ipu]) => `IPU ${ipu}`) }),
    series: [
      ...words.map((word) => ({ name: word, type: "bar", stack: "tile", barMaxWidth: 22, itemStyle: itemStyle(word),
        data: point.parts.map((parts) => parts[word] || 0) })),
      { name: "fullest tile", type: "scatter", symbol: "diamond", symbolSize: 12, markLine: limitLine(point.limit_bytes, "xAxis", "start"),
        data: rows.map(([ipu, bytes]) => ({ value: [bytes, `IPU ${ipu}`],
          itemStyle: { color: termColour(bytes > point.limit_bytes ? "over the limit" : "fullest tile") } })) },
    ],
  }));
}

// Returns explanations of the picture, the most important one first.
function reasons(point) {
  const parts = Object.entries(point.shares).filter(([, share]) => share >= 0.005).sort((a, b) => b[1] - a[1]);
  const sentences = [`What limits the step: ${point.limited_by}.`];
  if (point.num_ipus > 1 && isKnown(point.bubble)) {
    sentences.push(`While micro-batches run, IPUs wait for each other during ${shareText(point.bubble)} of the time. It would be `
      + `${shareText(point.bubble_if_alike)} if forward and each half of backward took equally long on all IPUs. `
      + "The more micro-batches a window has, the less it matters that the pipeline fills and empties.");
  }
  sentences.push(`The IPUs' time is spent on: ${parts.map(([part, share]) => `${part} ${shareText(share)}`).join(", ")}.`);
  return element("ul", { class: "sentences" }, ...sentences.map((text) => element("li", {}, text)));
}
