// The laboratory: a slider for each setting, with precomputed plans for all choices. The reader
// first guesses how much of the time the IPUs wait, then sees the answer, then its reasons.
"use strict";

const SETTING_TITLES = {
  micro_batch: "Rows of a micro-batch", accumulation: "Micro-batches of an update", num_ipus: "IPUs of a replica", split: "IPUs of a new split",
  schedule: "Schedule", recomputation: "Recomputation", offload: "In streaming memory", replicas: "Replicas",
  device_iterations: "Device iterations", sharding: "Optimiser state sharded", proportion: "Available memory proportion",
  output_mode: "Output mode", overlap: "Overlapped input and output", system: "System",
};
const FIT_WORDS = { yes: ["fits", "good"], close: ["may fit", ""], no: ["does not fit", "bad"] };

class Laboratory {
  constructor(data) {
    this.data = data;
    this.chosen = [...data.start];
    this.timelines = [];
    this.guess = null;
    this.asks = true;
    this.main = document.getElementById("panel");
    this.place = element("div", { class: "grid", "aria-live": "polite" });
    this.place.style.gridColumn = "span 12";
    document.getElementById("model-name").textContent = data.name;
    document.getElementById("tabs").hidden = true;
    document.getElementById("foot").textContent = data.foot;
    makeSwitches(() => this.draw());
    this.main.append(element("div", { class: "grid" }, card("Settings", {
      note: "Move a slider, and everything below changes at once.", tools: [this.askSwitch()] }, this.sliders()), this.place));
    document.addEventListener("keydown", (event) => passKey(event, this.timelines));
    this.draw();
  }

  askSwitch() {
    this.askButton = element("button", { type: "button", "aria-pressed": "true", onclick: () => this.setAsks(!this.asks) }, "Ask me first");
    return this.askButton;
  }

  setAsks(asks, guess = null) {
    this.asks = asks;
    this.guess = guess;
    this.askButton.setAttribute("aria-pressed", String(asks));
    this.draw();
  }

  sliders() {
    return element("div", { class: "sliders" }, ...this.data.settings.map(({ name, values }, at) => {
      const shown = element("output", {}, values[this.chosen[at]]);
      const slider = element("input", { type: "range", min: 0, max: values.length - 1, step: 1, disabled: values.length < 2,
        "aria-label": SETTING_TITLES[name] || name, "aria-valuetext": values[this.chosen[at]],
        oninput: () => {
          this.chosen[at] = Number(slider.value);
          shown.textContent = values[this.chosen[at]];
          slider.setAttribute("aria-valuetext", values[this.chosen[at]]);
          this.guess = null;
          this.draw();
        } });
      slider.value = this.chosen[at];
      return element("label", {}, element("span", { class: "note" }, SETTING_TITLES[name] || name), slider, shown);
    }));
  }

  // Points are ordered with the last setting varying fastest.
  point() {
    const index = this.data.settings.reduce((sum, { values }, at) => sum * values.length + this.chosen[at], 0);
    return this.data.points[index];
  }

  draw() {
    forgetCharts();
    this.timelines = [];
    const point = this.point();
    clock.hz = point.clock_hz || null;
    if (point.fault) this.place.replaceChildren(card("These settings cannot be combined", {}, element("p", {}, point.fault)));
    else if (this.asks) this.place.replaceChildren(this.question());
    else this.place.replaceChildren(...this.answer(point));
  }

  question() {
    const shown = element("output", {}, "50 %");
    const slider = element("input", { type: "range", min: 0, max: 100, step: 1, "aria-label": "Your guess in percent",
      oninput: () => { shown.textContent = `${slider.value} %`; } });
    slider.value = 50;
    const show = () => {
      // From now on the answer is shown at once, until the reader asks for questions again.
      this.setAsks(false, Number(slider.value) / 100);
    };
    return card("How much of the time do the IPUs wait?", {
      note: "They wait for other IPUs or for the host. Guess before you look." },
    element("div", { class: "sliders" }, element("label", {}, element("span", { class: "note" }, "Your guess"), slider, shown)),
    element("button", { type: "button", class: "more", onclick: show }, "Show me"));
  }

  answer(point) {
    const view = new TimelineView(point.timeline, [], true);
    this.timelines = [view];
    const figures = element("div", { class: "figures" },
      labFigure("The IPUs wait", shareText(point.waits), this.guess === null ? "" : `you guessed ${shareText(this.guess)}`),
      labFigure("Throughput", rateText(point.rows_per_second),
        `${likelyText(point.likely_rows_per_second, number)}one step: ${secondsText(point.step_seconds)}`),
      labFigure("IPUs", countText(point.num_ipus), `${plural(point.num_micro_batches, "micro-batch")
        .replace("batchs", "batches")} in a window`),
      labFigure("The model", FIT_WORDS[point.fits][0], fullestText(point)));
    return [figures, card("When each IPU does what", {}, view.root),
      card("Memory of the fullest tile", { width: "half" }, labMemory(point)),
      card("Why", { width: "half" }, element("ul", { class: "sentences" }, ...reasons(point).map((text) => element("li", {}, text))))];
  }
}

function labFigure(name, text, detail) {
  return element("div", { class: "figure" }, element("div", { class: "name" }, name),
    element("div", { class: `value ${text === UNKNOWN ? "unknown" : ""}` }, text), element("div", { class: "detail" }, detail));
}

function fullestOf(point) {
  return point.fullest_bytes.reduce((most, each) => (each[1] > most[1] ? each : most));
}

function fullestText(point) {
  const [ipu, bytes] = fullestOf(point);
  const likely = (point.likely_fullest_bytes || []).find((each) => each[0] === ipu);
  return `${likelyText(likely, bytesText)}fullest tile, on IPU ${ipu}: ${bytesText(bytes)} of ${bytesText(point.limit_bytes)}`;
}

function labMemory(point) {
  const rows = point.fullest_bytes;
  const most = Math.max(point.limit_bytes, ...rows.map(([, bytes]) => bytes));
  return chartElement("Bars: memory of the fullest tile of each IPU", 110 + 34 * rows.length, () => ({
    grid: { left: 66, right: 70, top: 28, bottom: 30 },
    xAxis: bytesAxis(most, { splitNumber: 4 }),
    yAxis: axis({ type: "category", inverse: true, data: rows.map(([ipu]) => `IPU ${ipu}`) }),
    series: [{ type: "bar", barMaxWidth: 22, markLine: limitLine(point.limit_bytes, "xAxis", "start"),
      label: { show: true, position: "right", color: colour("text"), formatter: (item) => bytesText(item.value) },
      data: rows.map(([, bytes]) => ({ value: bytes,
        itemStyle: itemStyle(bytes > point.limit_bytes ? "over the limit" : "fullest tile", { borderRadius: [0, 4, 4, 0] }) })) }],
  }));
}

// Returns explanations of the picture, the most important one first.
function reasons(point) {
  const parts = Object.entries(point.shares).filter(([, share]) => share >= 0.005).sort((a, b) => b[1] - a[1]);
  const sentences = [`What limits the step: ${point.limited_by}.`];
  if (point.num_ipus > 1 && isKnown(point.bubble)) {
    sentences.push(`While micro-batches run, IPUs wait for each other during ${shareText(point.bubble)} of the time. It would be `
      + `${shareText(point.bubble_if_alike)} if forward and each half of backward took equally long on all IPUs. `
      + "The more micro-batches a window has, the less it matters that the pipeline fills and empties.");
  }
  sentences.push(`The IPUs' time is spent on: ${parts.map(([part, share]) => `${part} ${shareText(share)}`).join(", ")}.`);
  return sentences;
}

const laboratory = new Laboratory(JSON.parse(document.getElementById("report-data").textContent));
markReady();
