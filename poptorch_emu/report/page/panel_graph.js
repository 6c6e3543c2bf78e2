// The graph: stages by IPU, forward above and backward below, and the tensors that cross.
"use strict";

const MOST_PITCH = 300;

function graphPanel(report) {
  const { stages, edges } = report.graph;
  if (!stages.length) return [card("Graph", {}, empty(`The stages are ${UNKNOWN}.`))];
  const note = "A row for each direction, a column for each stage. A line shows the data that is sent for a micro-batch; the more bytes, the thicker the line.";
  return [
    card("Stages", { note }, element("div", { class: "sideways", tabindex: "0", role: "group", "aria-label": "Graph of the stages" },
      graphPicture(stages, edges))),
    card("Stages and blocks", { width: "half" }, stageTable(stages)),
    card("Tensors sent between segments", { width: "half" }, edgeTable(edges)),
  ];
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

function graphPicture(stages, edges) {
  const count = new Set(stages.map((stage) => stage.stage)).size;
  const pitch = Math.min(MOST_PITCH, Math.max(LEAST_PITCH, (innerWidth - 300) / count));
  const { width, height, boxes, ways } = graphLayout(stages, edges, pitch);
  const most = Math.max(1, ...edges.map((edge) => edge.bytes || 0));
  const host = element("div", { class: "graph" });
  const hover = hoverTip(host);
  const lines = ways.map((way) => wayElement(way, most));
  const labels = ways.map(wayLabel);
  ways.forEach((way, at) => {
    for (const part of [lines[at], labels[at]]) hover(part, () => edgeTip(way.edge), () => [lines[at], labels[at]]);
  });
  const drawn = boxes.map((box) => {
    const made = boxElement(box);
    const isOf = ({ edge }) => edge.from === box.stage.name || edge.to === box.stage.name;
    hover(made, () => stageTip(box.stage), () => [made, ...ways.flatMap((way, at) => (isOf(way) ? [lines[at], labels[at]] : []))]);
    return made;
  });
  host.style.width = `${width}px`;
  host.append(svg("svg", { width, height, role: "img", "aria-label": "Graph of the stages and what crosses between them" },
    ...lines, ...drawn, ...labels));
  return host;
}

function boxElement({ stage, x, y }) {
  const lines = [stage.name, `IPU ${plainText(stage.ipu)}`];
  if (isKnown(stage.cycles)) lines.push(cyclesText(stage.cycles));
  return svg("g", { class: "box", tabindex: "0", "aria-label": lines.join(", ") },
    svg("rect", { x: x - BOX.width / 2, y: y - BOX.height / 2, width: BOX.width, height: BOX.height, rx: 10, fill: termColour(stage.direction) }),
    ...lines.map((text, at) => svg("text", { x, y: y + (at - (lines.length - 1) / 2) * 16, fill: inkOn(stage.direction) }, shortened(text, 20))));
}

function shortened(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

const ARROW = 9;

function wayElement({ edge, points }, most) {
  const [before, end] = points.slice(-2);
  const [dx, dy] = [Math.sign(end[0] - before[0]), Math.sign(end[1] - before[1])];
  const tail = [end[0] - dx * ARROW, end[1] - dy * ARROW];
  const half = ARROW * 0.6;
  const head = [end, [tail[0] + dy * half, tail[1] + dx * half], [tail[0] - dy * half, tail[1] - dx * half]];
  const thickness = 1.5 + 5 * Math.sqrt((edge.bytes || 0) / most);
  return svg("g", { class: "way" },
    svg("path", { d: roundedPath([...points.slice(0, -1), tail]), "stroke-width": thickness }),
    svg("polygon", { points: head.map((point) => point.join(",")).join(" ") }));
}

// Returns the path of a line through points, with round corners.
function roundedPath(points) {
  const towards = (from, to) => {
    const length = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
    const share = Math.min(8, length / 2) / length;
    return [from[0] + (to[0] - from[0]) * share, from[1] + (to[1] - from[1]) * share];
  };
  const corners = points.slice(1, -1).map((point, at) =>
    `L ${towards(point, points[at])} Q ${point} ${towards(point, points[at + 2])}`);
  return [`M ${points[0]}`, ...corners, `L ${points[points.length - 1]}`].join(" ");
}

function wayLabel({ edge, label: [x, y] }) {
  const text = bytesText(edge.bytes);
  const width = text.length * 6.4 + 8;
  return svg("g", { class: "way-label" },
    svg("rect", { x: x - width / 2, y: y - 9, width, height: 18, rx: 4 }), svg("text", { x, y }, text));
}

// Returns a function that gives an element a tip on hover or focus; the tip fades all elements
// except `related`.
function hoverTip(host) {
  const place = element("div", { class: "float-tip", role: "status" });
  place.hidden = true;
  host.append(place);
  return (target, content, related) => {
    const show = () => {
      const [box, frame] = [target.getBoundingClientRect(), host.getBoundingClientRect()];
      place.replaceChildren(content());
      place.hidden = false;
      const left = Math.min(Math.max(0, box.left - frame.left), Math.max(0, host.offsetWidth - place.offsetWidth));
      const isAbove = box.bottom - frame.top + place.offsetHeight + 8 > host.offsetHeight && box.top - frame.top > place.offsetHeight + 8;
      place.style.left = `${left}px`;
      place.style.top = `${isAbove ? box.top - frame.top - place.offsetHeight - 8 : box.bottom - frame.top + 8}px`;
      const shown = new Set(related());
      host.querySelectorAll("svg > g").forEach((each) => each.classList.toggle("faint", !shown.has(each)));
    };
    const hide = () => {
      place.hidden = true;
      host.querySelectorAll(".faint").forEach((each) => each.classList.remove("faint"));
    };
    target.addEventListener("pointerenter", show);
    target.addEventListener("pointerleave", hide);
    target.addEventListener("focus", show);
    target.addEventListener("blur", hide);
  };
}

function stageTip(stage) {
  return tip(stage.name, [["IPU", plainText(stage.ipu)], ["blocks", stage.blocks.join(", ") || "none"],
    ["for a micro-batch", cyclesAndTimeText(stage.cycles)]]);
}

function edgeTip(edge) {
  const listed = edge.tensors.slice(0, 12).map((tensor) => [tensor.name, bytesText(tensor.bytes)]);
  if (edge.tensors.length > 12) listed.push([`${edge.tensors.length - 12} more`, ""]);
  return tip(`${edge.from} → ${edge.to}`, [["bytes of a micro-batch", bytesText(edge.bytes)], ...listed]);
}

function stageTable(stages) {
  const rows = stages.map((stage) => ({ ...stage, block_names: stage.blocks.join(", ") }));
  const columns = [
    { key: "name", title: "Stage", keep: true },
    { key: "ipu", title: "IPU", numeric: true, format: plainText },
    { key: "block_names", title: "Blocks", format: (text) => text || "" },
    { key: "cycles", title: "Cycles", numeric: true, format: countText },
    { key: "num_operations", title: "Operations", numeric: true, format: countText },
  ].filter((column) => rows.some((row) => isKnown(row[column.key])));
  return makeTable({ caption: "Stages", columns, rows, sortKey: "", search: false });
}

function edgeTable(edges) {
  if (!edges.length) return empty("Nothing is sent between stages.");
  const rows = edges.flatMap((edge) => edge.tensors.map((tensor) => ({ ...tensor, edge: `${edge.from} → ${edge.to}` })));
  const columns = [
    { key: "name", title: "Tensor" },
    { key: "edge", title: "From and to" },
    { key: "shape", title: "Shape" },
    { key: "bytes", title: "Bytes", numeric: true, format: bytesText, total: true },
  ].filter((column) => rows.some((row) => isKnown(row[column.key])));
  return makeTable({ caption: "Tensors sent between segments", columns, rows, sortKey: "bytes", groups: [{ name: "Edge", key: "edge" }] });
}
