// The graph: stages by IPU, forward above and backward below, and the tensors that cross.
"use strict";

// Boxes and what is written on the lines between them need as much, in pixels.
const LEAST_STAGE_WIDTH = 150;
// Where each direction stands, from below.
const ROWS = { forward: 1, recompute: 0.5, backward: 0, weights: -1 };

function graphPanel(report) {
  const { stages, edges } = report.graph;
  if (!stages.length) return [card("Graph", {}, empty(`The stages are ${UNKNOWN}.`))];
  const note = "Forward stages above, backward below, and below that what of it is apart for weights; a line is what crosses, as thick as its bytes are many.";
  return [
    card("Stages", { note }, element("div", { class: "sideways" }, graphChart(stages, edges))),
    card("Stages and blocks", { width: "half" }, stageTable(stages)),
    card("Tensors that cross", { width: "half" }, edgeTable(edges)),
  ];
}

function graphChart(stages, edges) {
  const column = stageColumns(stages);
  const directions = new Set(stages.map((stage) => stage.direction));
  const [hasBackward, hasWeights] = ["backward", "weights"].map((name) => directions.has(name));
  const count = Math.max(...column.values()) + 1;
  const most = Math.max(1, ...edges.map((edge) => edge.bytes || 0));
  const nodes = stages.map((stage) => ({
    id: stage.name, name: stage.name, stage,
    value: [column.get(stage.name), ROWS[stage.direction]],
    itemStyle: { color: termColour(stage.direction) },
    label: { color: inkOn(stage.direction) },
  }));
  const height = hasWeights ? 520 : hasBackward ? 360 : 200;
  const chart = chartElement("Graph of the stages and what crosses between them", height, () => ({
    tooltip: tooltip((item) => (item.dataType === "edge" ? edgeTip(edges[item.dataIndex]) : stageTip(item.data.stage))),
    grid: { left: 20, right: 20, top: 20, bottom: 20 },
    xAxis: { show: false, type: "value", min: -0.5, max: count - 0.5 },
    yAxis: { show: false, type: "value", min: hasWeights ? -1.35 : hasBackward ? -0.35 : 0.2, max: hasBackward ? 1.35 : 1.8 },
    series: [{
      type: "graph", coordinateSystem: "cartesian2d", symbol: "roundRect",
      // Square, since the library ends a line at the same distance from each side.
      symbolSize: Math.min(84, Math.max(50, 1000 / count)),
      label: { show: true, fontSize: 11.5, lineHeight: 15, formatter: (item) => stageLabel(item.data.stage) },
      labelLayout: { hideOverlap: false },
      edgeSymbol: ["none", "arrow"], edgeSymbolSize: 9,
      emphasis: { focus: "adjacency" },
      data: nodes,
      links: edges.map((edge) => ({
        source: edge.from, target: edge.to, value: edge.bytes,
        lineStyle: { width: 1.5 + 6 * Math.sqrt((edge.bytes || 0) / most), color: colour("quiet"), opacity: 0.55, curveness: curve(edge, column) },
        label: { show: edges.length <= 24, rotate: 0, position: "middle", verticalAlign: "middle", formatter: () => bytesText(edge.bytes), color: colour("text"), opacity: 1, fontSize: 11,
          backgroundColor: colour("card"), padding: [1, 4], borderRadius: 4 },
      })),
    }],
  }));
  chart.style.minWidth = `${LEAST_STAGE_WIDTH * count}px`;
  return chart;
}

// Stages of one number stand in one column.
function stageColumns(stages) {
  const numbers = [...new Set(stages.map((stage) => stage.stage))].sort((a, b) => a - b);
  return new Map(stages.map((stage) => [stage.name, numbers.indexOf(stage.stage)]));
}

// What skips a stage goes around it.
function curve(edge, column) {
  const distance = Math.abs((column.get(edge.from) || 0) - (column.get(edge.to) || 0));
  return distance > 1 ? 0.28 : 0;
}

function stageLabel(stage) {
  const lines = [stage.name, `IPU ${plainText(stage.ipu)}`];
  if (isKnown(stage.cycles)) lines.push(cyclesText(stage.cycles).replace("cycles", "cyc."));
  return lines.join("\n");
}

function stageTip(stage) {
  return tip(stage.name, [["IPU", plainText(stage.ipu)], ["blocks", stage.blocks.join(", ") || "none"],
    ["cycles for a micro-batch", cyclesText(stage.cycles)], ["weights", bytesText(stage.weight_bytes)]]);
}

function edgeTip(edge) {
  const listed = edge.tensors.slice(0, 12).map((tensor) => [tensor.name, bytesText(tensor.bytes)]);
  if (edge.tensors.length > 12) listed.push([`${edge.tensors.length - 12} more`, ""]);
  return tip(`${edge.from} → ${edge.to}`, [["bytes of a micro-batch", bytesText(edge.bytes)], ...listed]);
}

function stageTable(stages) {
  const rows = stages.map((stage) => ({ ...stage, block_names: stage.blocks.join(", ") }));
  const columns = [
    { key: "name", title: "Stage" },
    { key: "ipu", title: "IPU", numeric: true, format: plainText },
    { key: "block_names", title: "Blocks", format: (text) => text || "" },
    { key: "cycles", title: "Cycles", numeric: true, format: countText },
    { key: "num_operations", title: "Operations", numeric: true, format: countText },
    { key: "weight_bytes", title: "Weights", numeric: true, format: bytesText },
  ].filter((column) => rows.some((row) => isKnown(row[column.key])));
  return makeTable({ caption: "Stages", columns, rows, sortKey: "", search: false });
}

function edgeTable(edges) {
  if (!edges.length) return empty("Nothing crosses between stages.");
  const rows = edges.flatMap((edge) => edge.tensors.map((tensor) => ({ ...tensor, edge: `${edge.from} → ${edge.to}` })));
  const columns = [
    { key: "name", title: "Tensor" },
    { key: "edge", title: "From and to" },
    { key: "shape", title: "Shape" },
    { key: "bytes", title: "Bytes", numeric: true, format: bytesText, total: true },
  ].filter((column) => rows.some((row) => isKnown(row[column.key])));
  return makeTable({ caption: "Tensors that cross", columns, rows, sortKey: "bytes", groups: [{ name: "Edge", key: "edge" }] });
}
