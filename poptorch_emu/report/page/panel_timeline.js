// The timeline: IPUs over time, with zoom and pan by wheel, mouse and keys.
"use strict";

const LANE_PIXELS = 46;
const TOP_PIXELS = 46;
const BOTTOM_PIXELS = 82;
// Smallest width at which an event shows the operations of its segment.
const PARTS_PIXELS = 120;
// Number of windows in the view of several windows.
const SEVERAL = 3;

class TimelineView {
  constructor(timeline, operations, isShort = false) {
    this.timeline = timeline;
    this.index = indexEvents(timeline);
    if (timeline.unit === "cycles") addOperations(this.index, operations);
    this.range = [0, this.index.end || 1];
    this.hidden = new Set();
    this.selected = -1;
    // Tags of micro-batches: the one under the mouse, and the one that is followed.
    this.lit = -1;
    this.followed = -1;
    this.chart = null;
    this.pending = false;
    this.text = UNIT_TEXT[timeline.unit];
    this.exactText = timeline.unit === "cycles" ? cyclesAndTimeText : this.text;
    const lanePixels = isShort ? 30 : LANE_PIXELS;
    this.height = Math.max(190, timeline.lanes.length * lanePixels + TOP_PIXELS + BOTTOM_PIXELS);
    this.shown = element("span", { class: "note range", role: "status" });
    this.detail = element("div", { class: "detail-line", "aria-live": "polite" },
      this.hint());
    this.plot = element("div", {
      class: "plot", tabindex: "0", role: "application",
      "aria-label": `${timeline.title}: a and d pan, w and s zoom, 0 shows all, n and p step, f follows a micro-batch`,
    });
    this.plot.append(chartElement(`${timeline.title}, one row for each IPU`, this.height,
      () => this.option(), (chart) => this.connect(chart)));
    this.root = element("div", {}, this.legend(), this.plot,
      element("div", { class: "tools" }, this.followTools(), this.shown, isShort ? null : keyHelp()), this.detail);
  }

  // Returns a field for the number of the micro-batch to follow.
  followTools() {
    const count = this.index.numMicroBatches;
    if (count < 2) return null;
    this.field = element("input", { type: "number", min: 0, max: count - 1, step: 1, placeholder: "none",
      "aria-label": "Micro-batch to follow",
      onchange: () => {
        const number = this.field.valueAsNumber;
        this.follow(Number.isInteger(number) && number >= 0 && number < count ? number : -1);
      } });
    return element("label", { class: "note" }, "Follow micro-batch ", this.field);
  }

  // Follows a micro-batch from its first stage to its last; -1 follows none.
  follow(tag) {
    const events = eventsOfTag(this.index, tag);
    this.followed = events.length ? tag : -1;
    if (this.field) this.field.value = events.length ? tag % this.index.numMicroBatches : "";
    this.detail.replaceChildren(...(events.length ? this.wayOf(events) : [this.hint()]));
    if (events.length) {
      const [from, to] = this.spanOf(events);
      this.show(from - (to - from) * 0.06, to + (to - from) * 0.06);
    }
    this.redraw();
  }

  spanOf(events) {
    const { starts, ends } = this.index;
    return [starts[events[0]], Math.max(...events.map((event) => ends[event]))];
  }

  // Returns sentences on the micro-batch that is followed.
  wayOf(events) {
    const [from, to] = this.spanOf(events);
    const { columns, lanes } = this.timeline;
    const busy = events.reduce((sum, event) => sum + columns.duration[event], 0);
    const way = [...new Set(events.map((event) => lanes[columns.lane[event]]))].join(", ");
    const micro = this.followed % this.index.numMicroBatches;
    return [element("strong", {}, `Micro-batch ${micro}`),
      element("div", {}, `from ${this.text(from)} to ${this.text(to)} · ${this.text(to - from)} in all, `
        + `of which it waits ${this.text(Math.max(0, to - from - busy))} · on ${way}`)];
  }

  hint() {
    return element("span", { class: "note" }, "Click an event, or move with n and p, to see its details.");
  }

  // Returns whether an event is faint, because another micro-batch is lit; -1 is a merged event.
  isFaint(event) {
    const lit = this.lit >= 0 ? this.lit : this.followed;
    return lit >= 0 && (event < 0 || this.index.tags[event] !== lit);
  }

  light(tag) {
    if (tag === this.lit) return;
    this.lit = tag;
    this.redraw();
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

  // Sets the end of the axis to that of another timeline.
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
        name: inTime(this.timeline.unit) ? "seconds" : this.timeline.unit, nameLocation: "end", nameGap: 6, splitNumber: 7,
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
      series: [eventSeries(this, []), phaseSeries(this, 0), pathSeries(this)],
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
      ["starts at", this.exactText(this.index.starts[event])],
      [this.timeline.unit === "cycles" ? "takes" : "took", this.exactText(columns.duration[event])],
      ["bytes", bytesText(columns.bytes[event])],
    ];
    pairs.push(["your line", plainText(label.source)]);
    return pairs;
  }

  tipOf(value) {
    const [lane, start, end, kind, event, count, part] = value;
    if (part >= 0) {
      const row = this.rowOf(event, part);
      return tip(row.name, [["in", this.nameOf(event)], ["operator", plainText(row.operator)],
        ["module", plainText(row.module)], ["takes", cyclesAndTimeText(row.cycles)],
        ["bytes", bytesText(row.bytes)], ["your line", plainText(row.source)]]);
    }
    if (event >= 0) return tip(this.nameOf(event), this.pairsOf(event));
    return tip(`${countText(count)} events`, [["where", this.timeline.lanes[lane]],
      ["mostly", KINDS[kind]], ["from", this.exactText(start)], ["to", this.exactText(end)],
      ["zoom in", "to see each"]]);
  }

  connect(chart) {
    this.chart = chart;
    chart.on("datazoom", () => {
      const zoom = chart.getOption().dataZoom[0];
      this.range = [zoom.startValue, zoom.endValue];
      this.redraw();
    });
    const eventOf = (item) => (item.seriesId === "events" && item.value ? item.value[4] : -1);
    chart.on("click", (item) => {
      if (eventOf(item) >= 0) this.select(eventOf(item));
    });
    chart.on("mouseover", (item) => this.light(eventOf(item) >= 0 ? this.index.tags[eventOf(item)] : -1));
    chart.on("mouseout", () => this.light(-1));
    chart.on("globalout", () => this.light(-1));
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
    const data = visibleShapes(this.index, from, to, pixels, this.hidden, this.followed);
    const zoom = { startValue: from, endValue: to };
    this.chart.setOption({ dataZoom: [zoom, zoom], series: [eventSeries(this, data), phaseSeries(this, pixels), pathSeries(this)] }, { lazyUpdate: false });
    const tick = (value) => tickText(value, this.range, this.timeline.unit, 200);
    this.shown.textContent = `Showing ${tick(from)} to ${tick(to)} of ${tick(this.index.end)}`;
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

  // Handles a key; returns whether the key has a meaning here.
  onKey(event) {
    const [left, right] = [() => this.pan(-0.2), () => this.pan(0.2)];
    const [closer, farther, all] = [() => this.zoom(0.5), () => this.zoom(2), () => this.show(0, this.index.end)];
    const actions = {
      ArrowLeft: left, a: left, ArrowRight: right, d: right,
      w: closer, "+": closer, "=": closer, s: farther, "-": farther, 0: all,
      n: () => this.step(1), p: () => this.step(-1), f: () => this.followSelected(),
      // Outside of the plot these keys scroll the page.
      ...(this.plot.contains(event.target) ? { ArrowUp: closer, ArrowDown: farther, Home: all } : {}),
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (action) action();
    return Boolean(action);
  }

  followSelected() {
    const tag = this.selected >= 0 ? this.index.tags[this.selected] : -1;
    this.follow(tag === this.followed ? -1 : tag);
  }

  // Selects the next event of the lane or of the followed micro-batch; at first a visible event.
  step(direction) {
    if (this.followed >= 0) {
      const way = eventsOfTag(this.index, this.followed);
      const next = way[way.indexOf(this.selected) + direction];
      if (next !== undefined) this.select(next, true);
      return;
    }
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
    const tag = this.index.tags[event];
    this.detail.replaceChildren(element("strong", {}, this.nameOf(event)), element("div", {}, pairs),
      tag >= 0 && this.index.numMicroBatches > 1 ? element("button", { type: "button",
        onclick: () => this.follow(tag === this.followed ? -1 : tag) },
      tag === this.followed ? "Follow no micro-batch" : `Follow micro-batch ${tag % this.index.numMicroBatches}`) : "");
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
  const keys = [["a d", "pan"], ["w s", "zoom"], ["0", "all"], ["n p", "next and previous event"],
    ["f", "follow its micro-batch"]];
  return element("span", { class: "note" }, "Wheel zooms, dragging pans. ",
    ...keys.flatMap(([key, text]) => [element("kbd", {}, key), ` ${text}  `]));
}

function timelinePanel(report, page) {
  const timelines = report.timelines;
  if (!timelines.length) {
    return [card("Timeline", {}, empty(`The timeline is ${UNKNOWN}: this report has none.`))];
  }
  const views = new Map();
  const place = element("div");
  const chosen = { number: 0, times: 1 };
  const noun = report.mode === "training" ? "update" : "call";
  const several = choice("Windows", [`One ${noun}`, `Several ${noun}s`], 0,
    (index) => show({ times: index ? SEVERAL : 1 }));
  const show = (change) => {
    Object.assign(chosen, change);
    const timeline = timelines[chosen.number];
    const isModelled = timeline.unit === "cycles";
    several.hidden = !isModelled;
    const times = isModelled ? chosen.times : 1;
    const key = `${chosen.number} ${times}`;
    if (!views.has(key)) {
      views.set(key, new TimelineView(times > 1 ? repeated(timeline, times) : timeline, operationRows(report)));
    }
    page.timelines = [views.get(key)];
    place.replaceChildren(noteOf(timeline), views.get(key).root);
  };
  show({});
  const clock = choice("Clock", timelines.map((timeline) => timeline.title), 0, (number) => show({ number }));
  return [card("Timeline", { tools: timelines.length > 1 ? [several, clock] : [several] }, place)];
}

function noteOf(timeline) {
  const left = timeline.num_left_out
    ? ` ${countText(timeline.num_left_out)} events between the first and the last calls are left out.` : "";
  const note = element("p", { class: "note" }, (timeline.note || "") + left);
  note.style.marginBottom = "10px";
  return note;
}
