// The events of a timeline, and the selection of those that a picture can show.
//
// A timeline of 100,000 events cannot draw one shape for each event. Therefore neighbours in a lane
// that are thinner than a pixel or two are merged into a shape of the kind that takes longest.
"use strict";

const KINDS = Object.keys(TERMS);
const MOST_SHAPES = 9000;

function kindIndex(name) {
  const index = KINDS.indexOf(name);
  return index < 0 ? KINDS.indexOf("other") : index;
}

// Returns the timeline with its events ordered by start in each lane.
function indexEvents(timeline) {
  const columns = timeline.columns;
  const lanes = timeline.lanes.map(() => []);
  columns.lane.forEach((lane, event) => lanes[lane].push(event));
  const starts = Float64Array.from(columns.start);
  const ends = starts.map((start, event) => start + columns.duration[event]);
  const kinds = Uint8Array.from(columns.kind, (kind) => kindIndex(timeline.kinds[kind]));
  let end = 0;
  const ordered = lanes.map((events) => {
    const order = Int32Array.from(events).sort((a, b) => starts[a] - starts[b]);
    // Latest end so far, which never falls, because events of one lane may overlap.
    const latest = new Float64Array(order.length);
    let reached = -Infinity;
    order.forEach((event, position) => {
      reached = Math.max(reached, ends[event]);
      latest[position] = reached;
    });
    end = Math.max(end, reached);
    return { order, latest };
  });
  for (const span of timeline.spans) end = Math.max(end, span.end);
  return { timeline, lanes: ordered, starts, ends, kinds, end, operations: new Map(), ...tagsOf(timeline) };
}

// Larger numbers are not micro-batches.
const MOST_MICRO_BATCHES = 2 ** 20;

// Returns `tags` of events: one number for each micro-batch, -1 for other events. A later update or
// call repeats the micro-batches, so its tags are larger by `numMicroBatches`.
function tagsOf({ columns, lanes, kinds }) {
  const isCounted = (micro) => Number.isInteger(micro) && micro >= 0 && micro < MOST_MICRO_BATCHES;
  const numMicroBatches = columns.micro_batch.reduce((most, micro) =>
    (isCounted(micro) ? Math.max(most, micro + 1) : most), 0);
  const times = new Map();
  const tags = Int32Array.from(columns.micro_batch, (micro, event) => {
    if (!isCounted(micro)) return -1;
    const kind = columns.label[event] * kinds.length + columns.kind[event];
    const key = `${kind * lanes.length + columns.lane[event]} ${micro}`;
    const time = times.get(key) || 0;
    times.set(key, time + 1);
    return time * numMicroBatches + micro;
  });
  return { tags, numMicroBatches };
}

// Returns the events of a micro-batch, by start.
function eventsOfTag(index, tag) {
  const found = [];
  if (tag >= 0) index.tags.forEach((other, event) => { if (other === tag) found.push(event); });
  return found.sort((a, b) => index.starts[a] - index.starts[b]);
}

// Returns a timeline repeated `count` times.
function repeated(timeline, count) {
  const { columns, spans } = timeline;
  const ends = columns.start.map((start, event) => start + columns.duration[event]);
  const length = [...ends, ...spans.map((span) => span.end)].reduce((a, b) => Math.max(a, b), 0);
  const shifts = Array.from({ length: count }, (_, time) => time * length);
  const again = Object.entries(columns).map(([name, values]) => [name, shifts.flatMap((shift) =>
    (name === "start" ? values.map((start) => start + shift) : values))]);
  return { ...timeline, columns: Object.fromEntries(again),
    spans: shifts.flatMap((shift) => spans.map((span) =>
      ({ ...span, start: span.start + shift, end: span.end + shift }))) };
}

// Returns the position of the first value above `limit` in a sorted array.
function firstAbove(values, limit) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Returns [lane, start, end, kind, event, count, part] of each shape between two times. `event` is
// -1 for merged events, and `part` is the number of an operation within its event or -1.
function visibleShapes(index, from, to, pixels, hidden, followed = -1) {
  const perLane = Math.max(50, Math.min(pixels / 2, MOST_SHAPES / index.lanes.length));
  const bin = (to - from) / perLane;
  const shapes = [];
  index.lanes.forEach((lane, number) => {
    laneShapes(index, lane, number, { from, to, bin, hidden, followed, pixel: (to - from) / pixels }, shapes);
  });
  return shapes;
}

function laneShapes(index, lane, number, view, shapes) {
  const { starts, ends, kinds } = index;
  const spent = new Float64Array(KINDS.length);
  let current = null;
  const flush = () => {
    if (!current) return;
    const kind = spent.indexOf(Math.max(...spent));
    const event = current.count === 1 ? current.event : -1;
    const end = Math.max(current.end, current.start + view.pixel);
    shapes.push([number, current.start, end, kind, event, current.count, -1]);
    spent.fill(0);
    current = null;
  };
  const order = lane.order;
  for (let i = firstAbove(lane.latest, view.from); i < order.length; i += 1) {
    const event = order[i];
    const start = starts[event];
    if (start >= view.to) break;
    if (view.hidden.has(kinds[event]) || ends[event] < view.from) continue;
    const length = ends[event] - start;
    if (length >= view.bin || (view.followed >= 0 && index.tags[event] === view.followed)) {
      flush();
      shapes.push([number, start, ends[event], kinds[event], event, 1, -1]);
      if (length > PARTS_PIXELS * view.pixel) operationShapes(index, number, event, view, shapes);
      continue;
    }
    const slot = Math.floor((start - view.from) / view.bin);
    if (current && current.slot !== slot) flush();
    if (!current) current = { slot, start, end: ends[event], event, count: 0 };
    current.end = Math.max(current.end, ends[event]);
    current.count += 1;
    spent[kinds[event]] += Math.max(length, 1e-12);
  }
  flush();
}

// Adds the operations of a segment, in order, as shapes within an event that is wide enough.
function operationShapes(index, lane, event, view, shapes) {
  const label = index.timeline.columns.label[event];
  const operations = index.operations.get(index.timeline.labels[label].name);
  if (!operations) return;
  const start = index.starts[event];
  const scale = (index.ends[event] - start) / operations.total;
  let previous = -Infinity;
  operations.rows.forEach((row, part) => {
    const begin = start + operations.begins[part] * scale;
    const end = begin + row.cycles * scale;
    if (end < view.from || begin > view.to || end - previous < view.pixel) return;
    previous = end;
    const kind = row.is_recomputed ? kindIndex("recompute") : index.kinds[event];
    if (!view.hidden.has(kind)) shapes.push([lane, begin, end, kind, event, 1, part]);
  });
}

// Returns the event of a backward segment's recomputed operations, which is separate.
function recomputing(segment) {
  return segment.replace("backward", "recompute");
}

// Adds the operations of the segments to a timeline in cycles.
function addOperations(index, rows) {
  const segments = new Map();
  for (const row of rows) {
    if (!isKnown(row.cycles) || !row.segment) continue;
    const name = row.is_recomputed ? recomputing(row.segment) : row.segment;
    if (!segments.has(name)) segments.set(name, { rows: [], begins: [], total: 0 });
    const segment = segments.get(name);
    segment.rows.push(row);
    segment.begins.push(segment.total);
    segment.total += row.cycles;
  }
  for (const [name, segment] of segments) {
    if (segment.total > 0) index.operations.set(name, segment);
  }
}
