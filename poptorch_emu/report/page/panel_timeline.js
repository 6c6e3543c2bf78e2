// The timeline: IPUs by time, to zoom and pan with wheel, mouse and keys.
"use strict";

const LANE_PIXELS = 46;
const TOP_PIXELS = 46;
const BOTTOM_PIXELS = 82;
// From this width an event shows the operations of its segment below it.
const PARTS_PIXELS = 120;

class TimelineView {
  constructor(timeline, operations, isShort = false) {
    this.timeline = timeline;
    this.index = indexEvents(timeline);
    if (timeline.unit === "cycles") addOperations(this.index, operations);
    this.range = [0, this.index.end || 1];
    this.hidden = new Set();
    this.selected = -1;
    this.chart = null;
    this.pending = false;
    this.text = UNIT_TEXT[timeline.unit];
    const lanePixels = isShort ? 30 : LANE_PIXELS;
    this.height = Math.max(190, timeline.lanes.length * lanePixels + TOP_PIXELS + BOTTOM_PIXELS);
    this.shown = element("span", { class: "note range", role: "status" });
    this.detail = element("div", { class: "detail-line", "aria-live": "polite" },
      element("span", { class: "note" }, "Click an event, or step with n and p, to see all about it."));
    this.plot = element("div", {
      class: "plot", tabindex: "0", role: "application",
      "aria-label": `${timeline.title}: arrow keys pan, plus and minus zoom, 0 shows all, n and p step`,
      onkeydown: (event) => this.onKey(event),
    });
    this.plot.append(chartElement(`${timeline.title}, one row an IPU`, this.height,
      () => this.option(), (chart) => this.connect(chart)));
    this.root = element("div", {}, this.legend(), this.plot,
      element("div", { class: "tools" }, this.shown, isShort ? null : keyHelp()), this.detail);
  }

  legend() {
    const present = [...new Set(this.index.kinds)].sort((a, b) => a - b);
    return element("div", { class: "legend", role: "group", "aria-label": "Kinds shown" },
      ...present.map((kind) => element("button", {
        type: "button", "aria-pressed": "true", title: term(KINDS[kind]).meaning,
        onclick: (event) => {
          const isHidden = !this.hidden.delete(kind);
          if (isHidden) this.hidden.add(kind);
          event.currentTarget.setAttribute("aria-pressed", String(!isHidden));
          this.redraw();
        },
      }, swatch(KINDS[kind]), KINDS[kind])));
  }

  // Makes the axis as long as that of another timeline.
  setEnd(end) {
    this.index.end = end;
    this.range = [0, end];
  }

  option() {
    const lanes = this.timeline.lanes;
    return {
      grid: { left: 92, right: 24, top: TOP_PIXELS, bottom: BOTTOM_PIXELS },
      tooltip: tooltip((item) => this.tipOf(item.value), { trigger: "item" }),
      xAxis: axis({
        type: "value", min: 0, max: this.index.end || 1,
        axisLabel: { formatter: (value) => tickText(value, this.range, this.timeline.unit), showMinLabel: false, showMaxLabel: false },
        name: this.timeline.unit, nameLocation: "end", nameGap: 6, splitNumber: 7,
        nameTextStyle: { color: colour("quiet"), align: "right", verticalAlign: "top", padding: [26, 0, 0, 0] },
      }),
      yAxis: axis({
        type: "category", data: lanes, inverse: true,
        axisLabel: { color: colour("text"), width: 80, overflow: "truncate" },
        splitLine: { show: false },
        splitArea: { show: true, interval: 0, areaStyle: { color: [colour("card"), colour("ground")] } },
      }),
      dataZoom: [
        { type: "inside", xAxisIndex: 0, filterMode: "none", startValue: this.range[0],
          endValue: this.range[1], zoomOnMouseWheel: true, moveOnMouseMove: true },
        { type: "slider", xAxisIndex: 0, filterMode: "none", bottom: 10, height: 22,
          labelFormatter: (value) => this.text(value), ...sliderStyle() },
      ],
      series: [this.events([]), this.phases()],
    };
  }

  events(data) {
    return {
      id: "events", type: "custom", data, clip: true, dimensions: 7,
      encode: { x: [1, 2], y: 0 },
      renderItem: (params, api) => this.shape(params, api),
    };
  }

  // Ramp-up, steady state and drain, as bands with their names.
  phases() {
    const quiet = colour("quiet");
    return {
      id: "phases", type: "custom", data: [], renderItem: () => null,
      markArea: {
        silent: true,
        label: { color: quiet, position: "top", distance: 8 },
        data: this.timeline.spans.map((span) => [{
          name: span.name, xAxis: span.start,
          itemStyle: { color: colour("accent"), opacity: span.name === "steady state" ? 0.03 : 0.1, borderColor: quiet, borderWidth: 0 },
        }, { xAxis: span.end }]),
      },
    };
  }

  shape(params, api) {
    const [lane, kind, event, count, part] = [0, 3, 4, 5, 6].map((axis) => api.value(axis));
    const [left, middle] = api.coord([api.value(1), lane]);
    const right = api.coord([api.value(2), lane])[0];
    const band = api.size([0, 1])[1] * 0.78;
    const isWhole = part < 0;
    const hasParts = isWhole && event >= 0 && this.hasParts(event, right - left);
    const y = middle - band / 2 + (isWhole ? 0 : band * 0.55);
    const height = isWhole ? band * (hasParts ? 0.53 : 1) : band * 0.45;
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
    if (event >= 0 && event === this.selected && isWhole) {
      style.stroke = colour("text");
      style.lineWidth = 2.5;
    }
    return { type: "rect", shape: { ...shape, r: shape.width > 12 ? 2 : 0 }, style,
      ...this.caption(shape, event, part) };
  }

  hasParts(event, width) {
    const label = this.timeline.columns.label[event];
    return width > PARTS_PIXELS && this.index.operations.has(this.timeline.labels[label].name);
  }

  caption(shape, event, part) {
    // Without a word an element keeps the text of the event that it stood for before.
    const none = { textContent: { style: { text: "" } } };
    if (event < 0 || shape.width < 18 || shape.height < 11) return none;
    const [name, short] = part >= 0
      ? [this.rowOf(event, part).name, ""]
      : [this.nameOf(event), this.shortNameOf(event)];
    const text = shape.width > name.length * 7.5 + 8 ? name : short;
    if (!text || shape.width < text.length * 7 + 5) return none;
    const kind = this.index.kinds[event];
    const ink = part >= 0 ? colour("text") : inkOn(KINDS[kind]);
    const halo = part >= 0 ? {} : { textBorderColor: termColour(KINDS[kind]), textBorderWidth: 3 };
    return {
      textContent: { style: { text, fill: ink, fontSize: 11, ...halo } },
      textConfig: { position: "inside" },
    };
  }

  nameOf(event) {
    const { columns, labels } = this.timeline;
    const micro = columns.micro_batch[event];
    return labels[columns.label[event]].name + (isKnown(micro) ? ` · ${micro}` : "");
  }

  shortNameOf(event) {
    const micro = this.timeline.columns.micro_batch[event];
    return isKnown(micro) ? String(micro) : "";
  }

  rowOf(event, part) {
    const label = this.timeline.columns.label[event];
    return this.index.operations.get(this.timeline.labels[label].name).rows[part];
  }

  pairsOf(event) {
    const { columns, labels, lanes } = this.timeline;
    const label = labels[columns.label[event]];
    const pairs = [
      ["where", lanes[columns.lane[event]]],
      ["kind", KINDS[this.index.kinds[event]]],
      ["micro-batch", countText(columns.micro_batch[event])],
      ["starts at", this.text(this.index.starts[event])],
      [this.timeline.unit === "cycles" ? "takes" : "took", this.text(columns.duration[event])],
      ["bytes", bytesText(columns.bytes[event])],
    ];
    if (label.operator) pairs.push(["operator", label.operator]);
    pairs.push(["your line", plainText(label.source)]);
    return pairs;
  }

  tipOf(value) {
    const [lane, start, end, kind, event, count, part] = value;
    if (part >= 0) {
      const row = this.rowOf(event, part);
      return tip(row.name, [["in", this.nameOf(event)], ["operator", plainText(row.operator)],
        ["module", plainText(row.module)], ["takes", cyclesText(row.cycles)],
        ["bytes", bytesText(row.bytes)], ["your line", plainText(row.source)]]);
    }
    if (event >= 0) return tip(this.nameOf(event), this.pairsOf(event));
    return tip(`${countText(count)} events`, [["where", this.timeline.lanes[lane]],
      ["mostly", KINDS[kind]], ["from", this.text(start)], ["to", this.text(end)],
      ["zoom in", "to see each"]]);
  }

  connect(chart) {
    this.chart = chart;
    chart.on("datazoom", () => {
      const zoom = chart.getOption().dataZoom[0];
      this.range = [zoom.startValue, zoom.endValue];
      this.redraw();
    });
    chart.on("click", (item) => {
      if (item.value && item.value[4] >= 0) this.select(item.value[4]);
    });
    this.draw();
  }

  redraw() {
    if (this.pending || !this.chart) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (!this.chart.isDisposed()) this.draw();
    });
  }

  draw() {
    const [from, to] = this.range;
    const pixels = Math.max(100, this.chart.getWidth() - 116);
    const data = visibleShapes(this.index, from, to, pixels, this.hidden);
    const zoom = { startValue: from, endValue: to };
    this.chart.setOption({ dataZoom: [zoom, zoom], series: [this.events(data)] }, { lazyUpdate: false });
    const tick = (value) => tickText(value, this.range, this.timeline.unit, 200);
    this.shown.textContent = `Showing ${tick(from)} to ${tick(to)} of ${this.text(this.index.end)}`;
  }

  show(from, to) {
    const end = this.index.end || 1;
    const length = Math.min(end, Math.max(to - from, end * 1e-7));
    const start = Math.min(Math.max(0, from), end - length);
    this.range = [start, start + length];
    this.redraw();
  }

  zoom(factor) {
    const [from, to] = this.range;
    const [middle, half] = [(from + to) / 2, ((to - from) * factor) / 2];
    this.show(middle - half, middle + half);
  }

  pan(share) {
    const [from, to] = this.range;
    const step = (to - from) * share;
    this.show(from + step, to + step);
  }

  onKey(event) {
    const actions = {
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2),
      ArrowUp: () => this.zoom(0.5), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5),
      ArrowDown: () => this.zoom(2), "-": () => this.zoom(2),
      0: () => this.show(0, this.index.end), Home: () => this.show(0, this.index.end),
      n: () => this.step(1), p: () => this.step(-1),
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }

  // Selects the next event of the lane, or the first one that is to be seen.
  step(direction) {
    const lane = this.selected >= 0 ? this.timeline.columns.lane[this.selected] : 0;
    const order = this.index.lanes[lane].order;
    const at = this.selected >= 0
      ? order.indexOf(this.selected) + direction
      : firstAbove(this.index.lanes[lane].latest, this.range[0]);
    if (at >= 0 && at < order.length) this.select(order[at], true);
  }

  select(event, isMoved = false) {
    this.selected = event;
    const pairs = this.pairsOf(event).map(([name, text]) => `${name} ${text}`).join(" · ");
    this.detail.replaceChildren(element("strong", {}, this.nameOf(event)), element("div", {}, pairs));
    const { starts, ends } = this.index;
    const isOut = starts[event] < this.range[0] || ends[event] > this.range[1];
    if (isMoved && isOut) {
      const half = (this.range[1] - this.range[0]) / 2;
      const middle = (starts[event] + ends[event]) / 2;
      this.show(middle - half, middle + half);
    }
    this.redraw();
  }

  // Zooms to the first event of a name; returns whether there is one.
  find(name) {
    const label = this.timeline.labels.findIndex((candidate) => candidate.name === name);
    const event = label < 0 ? -1 : this.timeline.columns.label.indexOf(label);
    if (event < 0) return false;
    const length = Math.max(this.timeline.columns.duration[event], this.index.end * 1e-6);
    this.select(event);
    this.show(this.index.starts[event] - length * 0.15, this.index.starts[event] + length * 1.15);
    return true;
  }
}

function keyHelp() {
  const keys = [["← →", "pan"], ["+ −", "zoom"], ["0", "all"], ["n p", "next and previous event"]];
  return element("span", { class: "note" }, "Wheel zooms, dragging pans. ",
    ...keys.flatMap(([key, text]) => [element("kbd", {}, key), ` ${text}  `]));
}

function timelinePanel(report, page) {
  const timelines = report.timelines;
  if (!timelines.length) {
    return [card("Timeline", {}, empty("This report holds no timeline: it is not known what ran when."))];
  }
  const views = new Map();
  const place = element("div");
  const show = (number) => {
    if (!views.has(number)) {
      views.set(number, new TimelineView(timelines[number], operationRows(report)));
    }
    const view = views.get(number);
    page.timeline = view;
    place.replaceChildren(noteOf(timelines[number]), view.root);
  };
  show(0);
  const tools = timelines.length > 1
    ? [choice("Clock", timelines.map((timeline) => timeline.title), 0, show)] : [];
  return [card("Timeline", { tools }, place)];
}

function noteOf(timeline) {
  const left = timeline.num_left_out
    ? ` ${countText(timeline.num_left_out)} events between the first and the last calls are left out.` : "";
  const note = element("p", { class: "note" }, (timeline.note || "") + left);
  note.style.marginBottom = "10px";
  return note;
}
