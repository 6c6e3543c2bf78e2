// The laboratory: a control for each setting, with precomputed plans for the choices, or with plans
// that the page asks its server for. The reader first guesses how much of the time the IPUs wait,
// then sees the answer, then its reasons.
"use strict";

const SETTING_TITLES = {
  micro_batch: "Rows of a micro-batch", accumulation: "Micro-batches of an update", num_ipus: "IPUs of a replica", split: "IPUs of a new split",
  stages: "Blocks of each IPU", schedule: "Schedule", recomputation: "Recomputation", offload: "In streaming memory", replicas: "Replicas",
  device_iterations: "Device iterations", sharding: "Optimiser state sharded", proportion: "Available memory proportion",
  output_mode: "Output mode", overlap: "Overlapped input and output", system: "System",
};

// Returns the values in a chunk of a bench, which is JSON compressed by gzip, in base64.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// A bench: its settings, the values that are chosen, and the plans of the choices.
class Bench {
  constructor(view) {
    this.view = view;
    this.chosen = [...view.start];
    this.places = new Map(view.places.map((place, index) => [place, index]));
    this.chunks = new Map();
    this.lastAnswer = Promise.resolve({});
    this.titles = view.settings.map(({ name }) => SETTING_TITLES[name] || name);
  }

  get texts() {
    return this.chosen.map((index, at) => this.view.settings[at].values[index]);
  }

  // Numbers of the settings that differ from the start.
  get changed() {
    return this.chosen.flatMap((index, at) => (index === this.view.start[at] ? [] : [at]));
  }

  // Returns the point of the choice; undefined if there is no plan for it, or if the choice of a
  // live laboratory has changed before its turn.
  async point() {
    const place = this.view.settings.reduce((sum, { values }, at) => sum * values.length + this.chosen[at], 0);
    if (this.view.is_live) return this.ask(this.chosen.join("."));
    const index = this.places.get(place);
    if (index === undefined) return undefined;
    const number = Math.floor(index / this.view.chunk_size);
    if (!this.chunks.has(number)) this.chunks.set(number, unpacked(this.view.chunks[number]));
    return (await this.chunks.get(number))[index % this.view.chunk_size];
  }

  // Asks the server for a choice. It gets one question at a time, none twice in succession, and none
  // about a choice that a moving slider has left meanwhile.
  async ask(indices) {
    this.lastAnswer = this.lastAnswer.then(async (last) => {
      const isOver = indices !== this.chosen.join(".") || (last.indices === indices && !last.point.silence);
      return isOver ? last : { indices, point: await answerOf(indices) };
    });
    const last = await this.lastAnswer;
    return last.indices === indices ? last.point : undefined;
  }
}

// Returns the server's answer, or the reason why there is none.
async function answerOf(question) {
  try {
    const response = await fetch(question);
    return response.ok ? await response.json() : { silence: await response.text() };
  } catch {
    return { silence: "The laboratory does not answer: it was stopped, or its program has ended." };
  }
}

class Laboratory {
  constructor(data) {
    this.benches = data.benches.map((view) => new Bench(view));
    this.shown = 0;
    this.timelines = [];
    this.guess = null;
    this.asks = true;
    this.isChecked = false;
    // The choice before the last change, and the one that is shown: texts, titles and point.
    this.before = null;
    this.now = null;
    this.isMoving = false;
    this.turn = 0;
    this.drawn = 0;
    this.controls = element("div", { class: "lab-settings" });
    this.place = element("div", { class: "grid", "aria-live": "polite" });
    document.getElementById("model-name").textContent = data.name;
    document.getElementById("foot").textContent = data.foot;
    document.getElementById("panel").append(element("div", { class: "lab" }, this.controls, this.place));
    this.tabs = document.getElementById("tabs");
    this.tabs.hidden = this.benches.length < 2;
    makeTabs(this.tabs, this.benches.map(({ view }) => view.title), (index) => this.goTo(index));
    makeSwitches(() => this.draw());
    document.addEventListener("keydown", (event) => passKey(event, this.timelines));
    addEventListener("hashchange", () => this.follow());
    this.ready = this.follow();
  }

  get bench() {
    return this.benches[this.shown];
  }

  // Shows the bench and the choice of the page's address, such as "#bench=0&accumulation=16".
  follow() {
    const given = new URLSearchParams(location.hash.slice(1));
    const index = Number(given.get("bench"));
    this.shown = this.benches[index] ? index : 0;
    this.bench.view.settings.forEach(({ name, values }, at) => {
      const found = values.indexOf(given.get(name));
      if (found >= 0) this.bench.chosen[at] = found;
    });
    return this.goTo(this.shown);
  }

  goTo(index) {
    this.shown = index;
    this.before = this.now = null;
    this.isChecked = false;
    showTab(this.tabs, index);
    this.makeControls();
    return this.draw();
  }

  address() {
    const pairs = this.bench.view.settings.map(({ name }, at) => [name, this.bench.texts[at]]);
    return `#${new URLSearchParams([["bench", this.shown], ...pairs])}`;
  }

  makeControls() {
    const { view } = this.bench;
    this.askButton = element("button", { type: "button", "aria-pressed": String(this.asks), onclick: () => this.setAsks(!this.asks) }, "Ask me first");
    const reset = element("button", { type: "button", onclick: () => this.choose([...view.start]) }, "Back to the start");
    const note = view.task || "Move a slider or choose from a list, and everything changes at once.";
    this.controls.replaceChildren(card(view.task ? "Task" : "Settings", { note, tools: view.task ? [reset] : [this.askButton, reset] },
      element("div", { class: "sliders" }, ...view.settings.map((setting, at) => this.control(setting, at)))));
  }

  // Returns a slider for numbers, and a list for names.
  control({ values, is_number: isNumber }, at) {
    const title = this.bench.titles[at];
    const label = element("span", { class: "note" }, title);
    if (!isNumber) {
      const list = element("select", { "aria-label": title, onchange: () => this.set(at, list.selectedIndex) },
        ...values.map((text) => element("option", {}, text)));
      list.selectedIndex = this.bench.chosen[at];
      return element("label", {}, label, list);
    }
    const shown = element("output", {}, values[this.bench.chosen[at]]);
    const slider = element("input", { type: "range", min: 0, max: values.length - 1, step: 1, disabled: values.length < 2,
      "aria-label": title, "aria-valuetext": values[this.bench.chosen[at]],
      onchange: () => { this.isMoving = false; },
      oninput: () => {
        const index = Number(slider.value);
        shown.textContent = values[index];
        slider.setAttribute("aria-valuetext", values[index]);
        this.set(at, index, true);
      } });
    slider.value = this.bench.chosen[at];
    return element("label", {}, label, slider, shown);
  }

  // Chooses a value. While a slider moves, the choice before its movement stays the last one.
  set(at, index, isMoving = false) {
    if (!this.isMoving) this.before = this.now;
    this.isMoving = isMoving;
    this.bench.chosen[at] = index;
    this.guess = null;
    this.isChecked = false;
    return this.draw();
  }

  choose(indices) {
    this.before = this.now;
    this.bench.chosen = indices;
    this.guess = null;
    this.isChecked = false;
    this.makeControls();
    return this.draw();
  }

  setAsks(asks, guess = null) {
    this.asks = asks;
    this.guess = guess;
    this.askButton.setAttribute("aria-pressed", String(asks));
    this.draw();
  }

  async draw() {
    const turn = ++this.turn;
    const { titles, texts } = this.bench;
    this.place.setAttribute("aria-busy", "true");
    const point = await this.bench.point();
    if (turn !== this.turn) return;
    this.place.removeAttribute("aria-busy");
    forgetCharts();
    this.timelines = [];
    clock.hz = (point && point.clock_hz) || null;
    if (point && !point.silence) this.now = { titles, texts, point };
    this.place.replaceChildren(...this.cards(point).filter(Boolean));
    // A page in a frame of a notebook has no address of its own.
    if (location.protocol !== "about:") history.replaceState(null, "", this.address());
    this.drawn = turn;
  }

  get isDrawn() {
    return this.drawn === this.turn;
  }

  cards(point) {
    if (!point) return [this.missing()];
    if (point.silence) return [this.silent(point.silence)];
    if (point.fault) return [card("These settings cannot be combined", {}, element("p", {}, point.fault)), this.back()];
    if (this.asks && !this.bench.view.task) return [this.question()];
    return this.answer(point);
  }

  // Returns buttons that set a changed setting back to its start.
  back() {
    const { view, titles, changed, chosen } = this.bench;
    return element("div", { class: "tools wide" }, ...changed.map((at) => element("button", { type: "button",
      onclick: () => this.choose(chosen.map((index, each) => (each === at ? view.start[at] : index))) },
    `${titles[at]} back to ${view.settings[at].values[view.start[at]]}`)));
  }

  silent(reason) {
    return card("There is no plan", { tools: [element("button", { type: "button", onclick: () => this.draw() }, "Ask again")] },
      element("p", {}, reason));
  }

  missing() {
    const { view, changed, chosen } = this.bench;
    const sweep = view.settings.map(({ name, codes }, at) => `"${name}": [${codes[chosen[at]]}]`);
    return card("This page has no plan for these settings", {},
      element("p", {}, `It has the plans in which few settings differ from its start (IPUs, schedule and accumulation combine freely), but ${countText(changed.length)} differ now. `
        + "Set one of them back, or plan these settings in Python:"),
      codeElement(`emulator.what_if(model, *inputs, sweep={${sweep.join(", ")}})`),
      element("p", {}, "A live laboratory plans every choice when you make it. In a notebook, this cell opens it:"),
      codeElement("emulator.live_lab(model, *inputs)"), this.back());
  }

  question() {
    const shown = element("output", {}, "50 %");
    const slider = element("input", { type: "range", min: 0, max: 100, step: 1, "aria-label": "Your guess in percent",
      oninput: () => { shown.textContent = `${slider.value} %`; } });
    slider.value = 50;
    // From now on the answer is shown at once, until the reader asks for questions again.
    const show = () => this.setAsks(false, Number(slider.value) / 100);
    return card("How much of the time do the IPUs wait?", {
      note: "They wait for other IPUs or for the host. Guess before you look." },
    element("div", { class: "sliders" }, element("label", {}, element("span", { class: "note" }, "Your guess"), slider, shown)),
    element("button", { type: "button", class: "more", onclick: show }, "Show me"));
  }

  answer(point) {
    const view = new TimelineView(point.timeline, [], true);
    this.timelines = [view];
    return [point.verdict ? this.assessment(point.verdict) : null,
      this.before && this.now ? labChanges(this.before, this.now) : null,
      labFigures(point, this.guess),
      card("When each IPU does what", {}, view.root),
      card("Memory of each IPU", { width: "half", note: "Contents of the mean tile, and the fullest tile." }, labMemory(point)),
      card("Why", { width: "half" }, reasons(point)),
      card("The same configuration as code", { note: "The page's address holds these settings, too." }, codeElement(point.code))];
  }

  assessment(verdict) {
    const check = () => {
      this.isChecked = true;
      this.draw();
    };
    if (!this.isChecked) return card("Your answer", {}, element("button", { type: "button", onclick: check }, "Check"));
    if (!verdict.faults.length) return card("Your answer", {}, element("p", { class: "better" }, verdict.reason));
    return card("Your answer: not yet", {},
      element("ul", { class: "sentences plain" }, ...verdict.faults.map((text) => element("li", {}, text))));
  }
}

const laboratory = new Laboratory(JSON.parse(document.getElementById("report-data").textContent));
laboratory.ready.then(markReady);
