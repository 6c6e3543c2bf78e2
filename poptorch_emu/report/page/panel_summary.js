// The summary: the main results in figures, two charts and sentences.
"use strict";

function figure(name, text, detail, isWords = false) {
  const style = text === UNKNOWN ? "unknown" : isWords ? "words" : "";
  return element("div", { class: "figure" }, element("div", { class: "name" }, name),
    element("div", { class: `value ${style}` }, text),
    element("div", { class: "detail" }, detail || ""));
}

function summaryPanel(report) {
  const { speed, machine } = report;
  const fullest = fullestIpu(report);
  const figures = element("div", { class: "figures" },
    figure("Predicted throughput", rateText(speed.predicted_rows_per_second),
      `${likelyText(speed.likely_rows_per_second, number)}one step: `
        + `${secondsText(speed.predicted_step_seconds)}, predicted for real IPUs`),
    figure("Measured throughput", rateText(speed.measured_rows_per_second),
      `one step: ${secondsText(speed.measured_step_seconds)}, measured on this computer`),
    figure("Fullest tile", fullest ? shareText(fullest.share) : UNKNOWN,
      fullest ? `${likelyText(fullest.likely, bytesText)}IPU ${fullest.ipu}: ${bytesText(fullest.bytes)} of ${bytesText(fullest.limit)}` : ""),
    figure("Rows in a step", countText(speed.rows_per_step),
      `${plural(machine.num_replicas, "replica")} × ${plural(machine.num_ipus, "IPU")}`),
    figure("Limited by", plainText(report.bottleneck), "", true));
  return [figures,
    card("Memory of the fullest tile", { width: "half",
      note: "What the fullest tile of each IPU must hold at its peak, compared with its memory." }, tileBars(report)),
    card("What each IPU does in a step", { width: "half",
      note: "Shares of the predicted time. The parts do not overlap and add up to the step." }, timeBars(report)),
    card("Insights", { width: "two-thirds" }, insightList(report)),
    card("Machine and program", { width: "third" }, facts(machineFacts(report)))];
}

function fullestIpu(report) {
  const known = report.ipus.filter((ipu) => isKnown(ipu.fullest_tile_bytes) && ipu.limit_bytes);
  const shares = known.map((ipu) => ({ ipu: ipu.ipu, bytes: ipu.fullest_tile_bytes,
    likely: ipu.likely_tile_bytes, limit: ipu.limit_bytes, share: ipu.fullest_tile_bytes / ipu.limit_bytes }));
  return shares.sort((a, b) => b.share - a.share)[0];
}

function tileBars(report) {
  const ipus = report.ipus.filter((ipu) => isKnown(ipu.fullest_tile_bytes));
  if (!ipus.length) return empty(`The tiles' memory is ${UNKNOWN}.`);
  const limit = ipus[0].limit_bytes;
  const most = Math.max(limit || 0, ...ipus.map((ipu) => ipu.fullest_tile_bytes));
  return chartElement("Bars: memory of the fullest tile of each IPU", 120 + 34 * ipus.length, () => ({
    grid: { left: 66, right: 40, top: 28, bottom: 30 },
    tooltip: tooltip((item) => {
      const ipu = ipus[item.dataIndex];
      return tip(`IPU ${ipu.ipu}`, [["fullest tile", bytesText(ipu.fullest_tile_bytes)],
        ["mean of the tiles", bytesText(ipu.mean_tile_bytes)], ["limit", bytesText(ipu.limit_bytes)]]);
    }),
    xAxis: bytesAxis(most),
    yAxis: axis({ type: "category", inverse: true, data: ipus.map((ipu) => `IPU ${ipu.ipu}`) }),
    series: [{
      type: "bar", barMaxWidth: 22,
      data: ipus.map((ipu) => ({
        value: ipu.fullest_tile_bytes,
        itemStyle: itemStyle(tileWord(ipu), { borderRadius: [0, 4, 4, 0] }),
        label: tileLabel(ipu, ipu.fullest_tile_bytes > most * 0.5),
      })),
      markLine: limit ? limitLine(limit, "xAxis", "start") : {},
    }],
  }));
}

function tileWord(ipu) {
  return ipu.fullest_tile_bytes > ipu.limit_bytes ? "over the limit" : "fullest tile";
}

// Puts the label inside the bar if there is room, so that the limit's line does not cross it. On a
// narrow screen the label is short, because half a bar must hold it.
function tileLabel(ipu, isInside) {
  const share = ipu.limit_bytes && innerWidth > 700 ? ` · ${shareText(ipu.fullest_tile_bytes / ipu.limit_bytes)}` : "";
  return { show: true, position: isInside ? "insideRight" : "right", fontWeight: 600,
    color: isInside ? inkOn(tileWord(ipu)) : colour("text"), formatter: bytesText(ipu.fullest_tile_bytes) + share };
}

function timeBars(report) {
  const ipus = report.ipus.filter((ipu) => ipu.parts);
  if (!ipus.length) return empty(`How long each IPU is busy is ${UNKNOWN}.`);
  const totals = ipus.map((ipu) => Object.values(ipu.parts).reduce((sum, part) => sum + part, 0));
  const used = Object.keys(ipus[0].parts).filter((part) => ipus.some((ipu) => ipu.parts[part] > 0));
  return chartElement("Bars: shares of the step of each IPU", 120 + 34 * ipus.length, () => ({
    grid: { left: 66, right: 24, top: 34, bottom: 34 },
    legend: legend(),
    tooltip: tooltip((item) => {
      const seconds = ipus[item.dataIndex].parts[item.seriesName];
      return tip(`IPU ${ipus[item.dataIndex].ipu}: ${item.seriesName}`, [["share", shareText(item.value)],
        ["time", secondsText(seconds)], ["is", term(item.seriesName).meaning]]);
    }),
    xAxis: axis({ type: "value", max: 1, axisLabel: { formatter: (value) => `${Math.round(value * 100)} %` } }),
    yAxis: axis({ type: "category", inverse: true, data: ipus.map((ipu) => `IPU ${ipu.ipu}`) }),
    series: used.map((part) => ({
      name: part, type: "bar", stack: "step", barMaxWidth: 22,
      itemStyle: itemStyle(part, { borderColor: colour("card"), borderWidth: 1 }),
      data: ipus.map((ipu, at) => (totals[at] ? ipu.parts[part] / totals[at] : 0)),
    })),
  }));
}

const INSIGHT_TAGS = { good: "Good", warning: "Look here", problem: "Problem", note: "Note" };

function insightList(report) {
  if (!report.insights.length) return empty("Nothing stands out.");
  return element("ul", { class: "insights" }, ...report.insights.map((insight) =>
    element("li", { class: `insight-${insight.kind}` }, element("span", { class: "tag" }, INSIGHT_TAGS[insight.kind]),
      element("div", { class: "text" }, insight.text, insight.code ? codeElement(insight.code) : null))));
}

function machineFacts(report) {
  const { machine } = report;
  return [
    ["System", plainText(machine.system)], ["Chip", plainText(machine.chip)],
    ["IPUs", countText(machine.num_ipus)], ["Replicas", countText(machine.num_replicas)],
    ["Tiles of an IPU", countText(machine.num_tiles)], ["Memory of a tile", bytesText(machine.tile_bytes)],
    ["Clock", isKnown(machine.clock_hz) ? `${number(machine.clock_hz / 1e9)} GHz` : UNKNOWN],
    ...report.facts.map(([name, text]) => [name, plainText(text)]),
    ...report.versions.map(([name, version]) => [name, plainText(version)]),
  ];
}
