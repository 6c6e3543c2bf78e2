// Memory of an IPU at each operation, over strips that show direction and block.
"use strict";

const STRIP_PIXELS = 20;
const STRIP_NAMES = ["direction", "block"];

function stepsChart(ipu) {
  const steps = ipu.steps;
  if (!steps || !steps.names.length) return empty(`How memory changes over the program is ${UNKNOWN}.`);
  const totals = steps.always.map((bytes, at) => bytes + steps.live[at]);
  const peak = totals.indexOf(Math.max(...totals));
  const strips = STRIP_NAMES.map((name) => runsOf(steps[name]));
  const areas = [["always live", steps.always], ["not always live", steps.live]];
  const sides = { left: 82, right: 30 };
  const ofStrips = { gridIndex: 1, show: false, inverse: true };
  return chartElement(`Area: memory of IPU ${ipu.ipu} over the steps of the program, by direction and block`, 370, () => ({
    grid: [{ ...sides, top: 44, bottom: 96 }, { ...sides, bottom: 48, height: STRIP_NAMES.length * STRIP_PIXELS }],
    legend: legend({ data: areas.map(([name]) => name) }),
    tooltip: tooltip((given) => (Array.isArray(given) ? stepTip(steps, totals, given[0].dataIndex)
      : stripTip(steps, strips[given.value[0]][given.value[3]])), { trigger: "axis" }),
    xAxis: [axis({ type: "category", data: steps.names.map((_, at) => at), axisLabel: { show: false } }),
      { type: "value", min: 0, max: steps.names.length, gridIndex: 1, show: false }],
    yAxis: [bytesAxis(topOf(totals[peak], ipu)), axis({ ...ofStrips, show: true, type: "category", data: STRIP_NAMES,
      axisLine: { show: false }, splitLine: { show: false } })],
    dataZoom: [{ type: "inside", xAxisIndex: [0, 1], filterMode: "none" },
      { type: "slider", xAxisIndex: [0, 1], filterMode: "none", bottom: 8, height: 20, labelFormatter: "", ...sliderStyle() }],
    series: [...areas.map(([name, data]) => ({
      name, data, type: "line", stack: "memory", step: "middle", symbol: "none", sampling: "max",
      lineStyle: { width: 1.5 }, areaStyle: { opacity: 0.55, ...decalArea(name) }, itemStyle: itemStyle(name),
      ...(name === "not always live" ? stepMarks(ipu, peak, totals[peak], steps) : {}),
    })), stripSeries(strips)],
  }));
}

function stepTip(steps, totals, at) {
  return tip(steps.names[at], [["block", blockText(steps.block[at])], ["always live", bytesText(steps.always[at])],
    ["not always live", bytesText(steps.live[at])], ["together", bytesText(totals[at])]]);
}

function stripTip(steps, run) {
  const most = Math.max(...steps.live.slice(run.start, run.end).map((bytes, at) => bytes + steps.always[run.start + at]));
  return tip(blockText(run.value), [["operations", countText(run.end - run.start)], ["most", bytesText(most)]]);
}

function blockText(name) {
  return name || "no block";
}

// Returns runs of equal neighbours as {value, start, end}; `end` is exclusive.
function runsOf(values) {
  const runs = [];
  values.forEach((value, at) => {
    const last = runs[runs.length - 1];
    if (last && last.value === value) last.end = at + 1;
    else runs.push({ value, start: at, end: at + 1 });
  });
  return runs;
}

function stripSeries(strips) {
  return {
    id: "strips", type: "custom", xAxisIndex: 1, yAxisIndex: 1, clip: true, encode: { x: [1, 2], y: 0 },
    tooltip: { trigger: "item" },
    data: strips.flatMap((runs, strip) => runs.map((run, at) => [strip, run.start, run.end, at])),
    renderItem: (params, api) => stripShape(params, api, strips[api.value(0)][api.value(3)]),
  };
}

// Draws a run of a strip, or nothing without a block; neighbouring blocks differ in background.
function stripShape(params, api, run) {
  const strip = api.value(0);
  if (!run.value) return null;
  const [left, middle] = api.coord([run.start, strip]);
  const right = api.coord([run.end, strip])[0];
  const whole = { x: left, y: middle - STRIP_PIXELS / 2 + 1, width: Math.max(2, right - left), height: STRIP_PIXELS - 2 };
  const shape = echarts.graphic.clipRectByRect(whole, params.coordSys);
  if (!shape) return null;
  const isDirection = strip === 0;
  const ground = colour(api.value(3) % 2 ? "line" : "raised");
  const text = shape.width > run.value.length * 6.5 + 6 ? run.value : "";
  return {
    type: "rect", shape: { ...shape, r: 2 },
    style: { fill: isDirection ? termColour(run.value) : ground, stroke: colour("card"), lineWidth: shape.width > 4 ? 1 : 0 },
    textContent: { style: { text, fontSize: 11, fill: isDirection ? inkOn(run.value) : colour("text") } },
    textConfig: { position: "inside" },
  };
}

function stepMarks(ipu, peak, bytes, steps) {
  const limit = isNearLimit(bytes, ipu.limit_bytes) ? limitLine(ipu.limit_bytes, "yAxis", "insideStartTop") : null;
  const lines = limit ? [{ ...limit.data[0], lineStyle: limit.lineStyle, label: limit.label }] : [];
  // The update is one step, which is too narrow for a name in its strip.
  const update = steps.direction.indexOf("update");
  if (update > 0) {
    lines.push({ xAxis: update, lineStyle: { color: colour("quiet"), type: "dotted", width: 1 },
      label: { formatter: "update", position: "end", color: colour("quiet") } });
  }
  return {
    markLine: { silent: true, symbol: "none", data: lines },
    markPoint: {
      symbol: "circle", symbolSize: 11, itemStyle: { color: colour("text") },
      label: { formatter: `peak ${bytesText(bytes)}`, position: "top", distance: 8, color: colour("text"), fontWeight: 600,
        backgroundColor: colour("card"), borderColor: colour("line"), borderWidth: 1, borderRadius: 5, padding: [3, 7] },
      data: [{ coord: [peak, bytes] }],
    },
  };
}
