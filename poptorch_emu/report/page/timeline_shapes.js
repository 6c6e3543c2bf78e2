// Shapes of events, phases and the path of a micro-batch on a timeline.
"use strict";

// Opacity of events beside a lit micro-batch.
const FAINT = 0.22;

function eventSeries(view, data) {
  return {
    id: "events", type: "custom", data, clip: true, dimensions: 7,
    encode: { x: [1, 2], y: 0 },
    renderItem: (params, api) => eventShape(view, params, api),
  };
}

const LETTER_PIXELS = 6.5;

// Returns fill, main and flush as bands, with their names where there is room.
function phaseSeries(view, plotPixels) {
  const quiet = colour("quiet");
  const [from, to] = view.range;
  const pixels = (span) => ((Math.min(span.end, to) - Math.max(span.start, from)) / (to - from)) * plotPixels;
  return {
    id: "phases", type: "custom", data: [], renderItem: () => null,
    markArea: {
      silent: true,
      label: { color: quiet, position: "top", distance: 8 },
      data: view.timeline.spans.map((span) => [{
        name: span.name, xAxis: span.start, label: { show: pixels(span) > span.name.length * LETTER_PIXELS },
        itemStyle: { color: colour("accent"), opacity: span.name === "main" ? 0.03 : 0.1, borderColor: quiet, borderWidth: 0 },
      }, { xAxis: span.end }]),
    },
  };
}

// Returns the path of the followed micro-batch, from its first event to its last.
function pathSeries(view) {
  const events = eventsOfTag(view.index, view.followed);
  const { lane } = view.timeline.columns;
  return {
    id: "path", type: "custom", silent: true, clip: true, z: 5, encode: { x: 0, y: 1 },
    data: events.length > 1 ? [[view.index.starts[events[0]], lane[events[0]]]] : [],
    renderItem: (_, api) => ({
      type: "polyline",
      shape: { points: events.flatMap((event) => [view.index.starts[event], view.index.ends[event]]
        .map((time) => atFoot(api, time, lane[event]))) },
      style: { stroke: colour("text"), lineWidth: 1.5, fill: "none", opacity: 0.8 },
    }),
  };
}

// Returns a point at the foot of a lane, below the text of an event.
function atFoot(api, time, lane) {
  const [x, y] = api.coord([time, lane]);
  return [x, y + api.size([0, 1])[1] * 0.36];
}

function eventShape(view, params, api) {
  const [lane, kind, event, count, part] = [0, 3, 4, 5, 6].map((axis) => api.value(axis));
  const [left, middle] = api.coord([api.value(1), lane]);
  const right = api.coord([api.value(2), lane])[0];
  const band = api.size([0, 1])[1] * 0.78;
  const isWhole = part < 0;
  const isDivided = isWhole && event >= 0 && hasParts(view, event, right - left);
  const y = middle - band / 2 + (isWhole ? 0 : band * 0.55);
  const height = isWhole ? band * (isDivided ? 0.53 : 1) : band * 0.45;
  const rectangle = { x: left, y, width: Math.max(right - left, 1), height };
  const shape = echarts.graphic.clipRectByRect(rectangle, params.coordSys);
  if (!shape) return null;
  const style = { fill: termColour(KINDS[kind]) };
  if (shape.width > 9) {
    style.stroke = colour("card");
    style.lineWidth = 1;
    const decal = pattern(KINDS[kind]);
    if (decal.symbol && isWhole) style.decal = decal;
  }
  if (part >= 0) style.opacity = part % 2 ? 0.5 : 0.75;
  if (count > 1) style.opacity = 0.85;
  if (view.isFaint(event)) style.opacity = FAINT;
  if (event >= 0 && event === view.selected && isWhole) {
    style.stroke = colour("text");
    style.lineWidth = 2.5;
  }
  return { type: "rect", shape: { ...shape, r: shape.width > 12 ? 2 : 0 }, style,
    ...eventCaption(view, shape, event, part) };
}

function hasParts(view, event, width) {
  const label = view.timeline.columns.label[event];
  return width > PARTS_PIXELS && view.index.operations.has(view.timeline.labels[label].name);
}

function eventCaption(view, shape, event, part) {
  // Empty text is necessary, because ECharts reuses the element and keeps its previous text.
  const none = { textContent: { style: { text: "" } } };
  if (event < 0 || shape.width < 18 || shape.height < 11 || view.isFaint(event)) return none;
  const [name, short] = part >= 0
    ? [view.rowOf(event, part).name, ""]
    : [view.nameOf(event), view.shortNameOf(event)];
  const text = shape.width > name.length * 7.5 + 8 ? name : short;
  if (!text || shape.width < text.length * 7 + 5) return none;
  const kind = KINDS[view.index.kinds[event]];
  const ink = part >= 0 ? colour("text") : inkOn(kind);
  const halo = part >= 0 ? {} : { textBorderColor: termColour(kind), textBorderWidth: 3 };
  return {
    textContent: { style: { text, fill: ink, fontSize: 11, ...halo } },
    textConfig: { position: "inside" },
  };
}
