// Positions of the graph's stages, and routes of the edges between them.
//
// Each stage number has a column, and each direction a row. Only edges to direct neighbours are
// straight. All others run through a channel above, between or below the rows, where each has a
// lane with room for its label. So no line and no label crosses a box or leaves the picture.
"use strict";

const BOX = { width: 124, height: 58 };
const LANE = 22;
const EDGE_OF_GRAPH = 26;
// Distance of columns that leaves room for a label on a line between two boxes.
const LEAST_PITCH = BOX.width + 84;
const ROW_ORDER = ["forward", "recompute", "backward", "weights"];

// Returns {width, height, boxes, ways}. A box is {stage, x, y} with its centre, a way {edge,
// points, label: [x, y]} is the route of an edge.
function graphLayout(stages, edges, pitch) {
  const numbers = [...new Set(stages.map((stage) => stage.stage))].sort((a, b) => a - b);
  const directions = new Set(stages.map((stage) => stage.direction));
  const rows = [...ROW_ORDER.filter((row) => directions.has(row)),
    ...[...directions].filter((row) => !ROW_ORDER.includes(row))];
  const boxes = new Map(stages.map((stage) => [stage.name,
    { stage, column: numbers.indexOf(stage.stage), row: rows.indexOf(stage.direction) }]));
  for (const box of boxes.values()) box.x = EDGE_OF_GRAPH + BOX.width / 2 + box.column * pitch;
  const known = edges.filter((edge) => edge.from !== edge.to && boxes.has(edge.from) && boxes.has(edge.to));
  const channels = Array.from({ length: rows.length + 1 }, () => []);
  const ports = new Map();
  const straight = new Set();
  const drafts = known.map((edge) => draftWay(edge, boxes.get(edge.from), boxes.get(edge.to), { channels, ports, pitch, straight }));
  const tops = channelTops(channels);
  for (const box of boxes.values()) box.y = tops[box.row + 1] - BOX.height / 2;
  return {
    width: EDGE_OF_GRAPH + Math.max(EDGE_OF_GRAPH + BOX.width + (numbers.length - 1) * pitch,
      ...drafts.map((draft) => draft.aside || 0)),
    height: tops[rows.length] + channelHeight(channels[rows.length]),
    boxes: [...boxes.values()],
    ways: drafts.map((draft) => draft.finish(tops)),
  };
}

// Reserves room for an edge in its channels; `finish` computes the route once they are placed.
function draftWay(edge, from, to, room) {
  const [columns, rows] = [to.column - from.column, to.row - from.row];
  // If two edges connect the same neighbours, only the first one is straight.
  const pair = [edge.from, edge.to].sort().join("\n");
  if (Math.abs(columns) + Math.abs(rows) > 1 || room.straight.has(pair)) return throughChannels(edge, from, to, room);
  room.straight.add(pair);
  return rows === 0 ? straightAcross(edge, from, to) : straightDown(edge, from, to, room);
}

function straightAcross(edge, from, to) {
  const side = Math.sign(to.x - from.x) * BOX.width / 2;
  return { finish: () => ({ edge, points: [[from.x + side, from.y], [to.x - side, to.y]],
    label: [(from.x + to.x) / 2, from.y] }) };
}

function straightDown(edge, from, to, room) {
  const number = Math.max(from.row, to.row);
  const lane = takeLane(room.channels[number], from.x - 40, from.x + 40);
  const side = Math.sign(to.row - from.row) * BOX.height / 2;
  return { finish: (tops) => ({ edge, points: [[from.x, from.y + side], [to.x, to.y - side]],
    label: [from.x, laneHeight(tops, number, lane)] }) };
}

function throughChannels(edge, from, to, room) {
  // Sides of the boxes at which the edge leaves and arrives: 1 is below, -1 above.
  const out = Math.sign(to.row - from.row) || (from.row === 0 ? -1 : 1);
  const into = to.row === from.row ? out : -out;
  const [first, last] = [from.row + (out > 0 ? 1 : 0), to.row + (into > 0 ? 1 : 0)];
  const heading = Math.sign(to.x - from.x) || 1;
  const [begin, end] = [portOf(room, from, out, heading), portOf(room, to, into, to.x === from.x ? heading : -heading)];
  if (first === last) {
    const lane = takeLane(room.channels[first], ...withLabel(begin, end));
    return { finish: (tops) => {
      const y = laneHeight(tops, first, lane);
      return { edge, label: [(begin + end) / 2, y],
        points: [[begin, from.y + out * BOX.height / 2], [begin, y], [end, y], [end, to.y + into * BOX.height / 2]] };
    } };
  }
  // The edge passes other rows beside the column of its target.
  const aside = to.x + room.pitch / 2;
  const [upper, lower] = [[begin, first], [end, last]].map(([x, number]) =>
    takeLane(room.channels[number], ...withLabel(x, aside)));
  return { aside, finish: (tops) => {
    const [y, z] = [laneHeight(tops, first, upper), laneHeight(tops, last, lower)];
    return { edge, label: [(begin + aside) / 2, y],
      points: [[begin, from.y + out * BOX.height / 2], [begin, y], [aside, y], [aside, z], [end, z], [end, to.y + into * BOX.height / 2]] };
  } };
}

// Returns the interval between two ends, wide enough for a label in the middle.
function withLabel(a, b) {
  const half = Math.max(Math.abs(a - b) / 2, 40) + 6;
  return [(a + b) / 2 - half, (a + b) / 2 + half];
}

// Returns the x of the next free position on a box's side, counted from the middle outwards.
function portOf(room, box, side, heading) {
  const key = `${box.stage.name} ${side} ${heading}`;
  const count = room.ports.get(key) || 0;
  room.ports.set(key, count + 1);
  return box.x + heading * Math.min(BOX.width / 2 - 8, 14 + 11 * count);
}

// Returns the number of the first lane of a channel that is free from `left` to `right`.
function takeLane(lanes, left, right) {
  const isFree = (taken) => taken.every(([from, to]) => right < from || left > to);
  const found = lanes.findIndex(isFree);
  const number = found < 0 ? lanes.push([]) - 1 : found;
  lanes[number].push([left, right]);
  return number;
}

function channelHeight(lanes) {
  return lanes.length ? lanes.length * LANE + 24 : 16;
}

// Returns the upper end of each channel.
function channelTops(channels) {
  let y = 0;
  return channels.map((lanes) => {
    const top = y;
    y += Math.max(channelHeight(lanes), 16) + BOX.height;
    return top;
  });
}

function laneHeight(tops, channel, lane) {
  return tops[channel] + 12 + (lane + 0.5) * LANE;
}
