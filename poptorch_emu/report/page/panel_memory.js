// The memory of an IPU: over the program, by tile, by category and value, at the peak, and ways to
// save it.
"use strict";

function memoryPanel(report) {
  const ipus = report.memory.ipus;
  if (!ipus.length) return [card("Memory", {}, empty(`Memory is ${UNKNOWN}: the report holds no memory plan.`))];
  const place = element("div", { class: "grid" });
  place.style.gridColumn = "span 12";
  const show = (number) => place.replaceChildren(...memoryCards(report, ipus[number]));
  const fullest = fullestIpu(report);
  const first = Math.max(0, ipus.findIndex((ipu) => fullest && ipu.ipu === fullest.ipu));
  const picker = choice("IPU", ipus.map((ipu) => `IPU ${ipu.ipu}`), first, show);
  picker.style.gridColumn = "span 12";
  show(first);
  return [picker, place, waysOut(report)];
}

function memoryCards(report, ipu) {
  return [
    card("Over the program", { note: report.memory.steps_note }, stepsChart(ipu)),
    card("By category", { width: "third" }, categoryChart(ipu)),
    card("Live at the peak", { width: "two-thirds", note: peakNote(ipu) }, peakTable(ipu)),
    fullestTileCard(ipu, report.memory.fullest_note),
    tilesCard(ipu, report.memory.tiles_note),
  ];
}

function isNearLimit(most, limit) {
  return isKnown(limit) && most > limit / 3;
}

// Returns the end of the axis: the limit, unless it would make the bars too small to see.
function topOf(most, ipu) {
  return isNearLimit(most, ipu.limit_bytes) ? Math.max(most, ipu.limit_bytes) : most;
}

function decalArea(word) {
  const decal = pattern(word);
  return decal.symbol ? { decal } : {};
}

function categoryChart(ipu) {
  const rows = ipu.categories.filter((row) => row.bytes > 0).sort((a, b) => b.bytes - a.bytes);
  if (!rows.length) return empty(`What takes the memory is ${UNKNOWN}.`);
  return chartElement(`Bars: memory of IPU ${ipu.ipu} by category`, 80 + 34 * rows.length, () => ({
    grid: { left: 158, right: 74, top: 8, bottom: 28 },
    tooltip: tooltip((item) => tip(rows[item.dataIndex].name, [["bytes", bytesText(item.value)],
      ["live", plainText(rows[item.dataIndex].live)]])),
    xAxis: bytesAxis(rows[0].bytes, { splitNumber: 3 }),
    yAxis: axis({ type: "category", inverse: true, data: rows.map((row) => row.name),
      axisLabel: { width: 148, overflow: "truncate" } }),
    series: [{ type: "bar", barMaxWidth: 20,
      data: rows.map((row) => ({ value: row.bytes,
        itemStyle: itemStyle(row.name, { borderRadius: [0, 4, 4, 0] }) })),
      label: { show: true, position: "right", color: colour("text"), formatter: (item) => bytesText(item.value) } }],
  }));
}

function peakNote(ipu) {
  return ipu.peak ? `Tensors that are not always live, at ${ipu.peak.name}.` : "";
}

function peakTable(ipu) {
  if (!ipu.peak || !ipu.peak.tensors.length) return empty(`What is live at the peak is ${UNKNOWN}.`);
  const total = ipu.peak.tensors.reduce((sum, tensor) => sum + (tensor.bytes || 0), 0);
  const rows = ipu.peak.tensors.map((tensor) => ({ ...tensor, share: total ? tensor.bytes / total : null }));
  const columns = [
    { key: "name", title: "Tensor" },
    { key: "bytes", title: "Bytes", numeric: true, format: bytesText },
    { key: "share", title: "Share", numeric: true, format: shareText, share: true },
  ].filter((column) => rows.some((row) => isKnown(row[column.key])));
  const table = makeTable({ caption: "Live at the peak", columns, rows, sortKey: "bytes" });
  table.querySelector(".table-frame").style.maxHeight = "360px";
  return table;
}

function tilesCard(ipu, reason) {
  const title = "By tile";
  if (!ipu.tiles) return card(title, {}, empty(`What each tile holds is ${UNKNOWN}. ${reason || ""}`));
  const names = Object.keys(ipu.tiles);
  const held = Object.fromEntries(names.map((name) => [name, unfolded(ipu.tiles[name])]));
  const count = held[names[0]].length;
  const place = element("div");
  const chosen = { isSorted: false, names };
  const show = (change) => {
    Object.assign(chosen, change);
    const totals = Array.from({ length: count }, (_, tile) =>
      chosen.names.reduce((sum, name) => sum + held[name][tile], 0));
    const order = [...totals.keys()];
    if (chosen.isSorted) order.sort((a, b) => totals[b] - totals[a]);
    place.replaceChildren(tilesChart(ipu, { held, names: chosen.names, all: names, order, totals }));
  };
  show({});
  const note = `${countText(count)} tiles at the peak. Drag the handles below the chart to zoom in. ${reason || ""}`;
  const order = choice("Order", ["By number", "Sorted"], 0, (index) => show({ isSorted: index === 1 }));
  const category = choice("Category", ["All", ...names], 0,
    (index) => show({ names: index ? [names[index - 1]] : names }));
  return card(title, { note, tools: [order] }, element("div", { class: "tools above" }, category), place);
}

// Returns a value for each tile from runs of [bytes, number of tiles].
function unfolded(runs) {
  return runs.flatMap(([bytes, count]) => Array(count).fill(bytes));
}

// Returns the line of the model's fullest tile, if all categories are shown, and of a near limit.
function tileLines(ipu, isWhole, most) {
  const lines = [];
  if (isWhole && isKnown(ipu.fullest_tile_bytes)) {
    lines.push({ yAxis: ipu.fullest_tile_bytes, lineStyle: { color: colour("text"), type: "dotted", width: 2 },
      label: { formatter: `fullest tile ${bytesText(ipu.fullest_tile_bytes)}`, color: colour("text"),
        position: "insideEndTop" } });
  }
  if (isNearLimit(most, ipu.limit_bytes)) {
    const { lineStyle, label, data } = limitLine(ipu.limit_bytes, "yAxis", "insideStartTop");
    lines.push({ ...data[0], lineStyle, label });
  }
  return { silent: true, symbol: "none", data: lines };
}

function tilesChart(ipu, { held, names, all, order, totals }) {
  const isWhole = names.length === all.length;
  const most = Math.max(...totals, isWhole && isKnown(ipu.fullest_tile_bytes) ? ipu.fullest_tile_bytes : 0);
  return chartElement(`Bars: memory of each tile of IPU ${ipu.ipu}`, 320, () => ({
    grid: { left: 82, right: 30, top: 40, bottom: 66 },
    legend: legend(),
    tooltip: tooltip((items) => {
      const tile = order[items[0].dataIndex];
      return tip(`Tile ${tile}`, [...names.map((name) => [name, bytesText(held[name][tile])]),
        ["together", bytesText(totals[tile])]]);
    }, { trigger: "axis", axisPointer: { type: "shadow" } }),
    xAxis: axis({ type: "category", data: order.map(String) }),
    yAxis: bytesAxis(topOf(most, ipu)),
    dataZoom: [{ type: "inside" }, { type: "slider", bottom: 8, height: 20, ...sliderStyle() }],
    series: names.map((name, index) => ({
      name, type: "bar", stack: "tile", barCategoryGap: "0%", itemStyle: itemStyle(name),
      data: order.map((tile) => held[name][tile]),
      ...(index === 0 ? { markLine: tileLines(ipu, isWhole, most) } : {}),
    })),
  }));
}

function waysOut(report) {
  const rows = report.memory.ways_out;
  const note = "What each change alone would save on the fullest tile, by the same model.";
  if (!rows.length) return card("Ways to use less memory", {}, empty(`What other settings would save is ${UNKNOWN}.`));
  const columns = [
    { key: "name", title: "Change", mark: () => "words" },
    { key: "saves_bytes", title: "Saves", numeric: true, format: bytesText },
    { key: "then_bytes", title: "Fullest tile afterwards", numeric: true, format: bytesText },
    { key: "slower", title: "Time of a row", numeric: true,
      format: orUnknown((ratio) => `${ratio.toFixed(2)} × as long`) },
    { key: "text", title: "How", format: (text) => text || "", mark: () => "lines" },
  ].filter((column) => column.key !== "text" || rows.some((row) => row.text));
  return card("Ways to use less memory", { note },
    makeTable({ caption: "Ways to use less memory", columns, rows, sortKey: "saves_bytes", search: false }));
}
