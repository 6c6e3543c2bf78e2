// The page: its tabs, its theme, and the report that it shows.
"use strict";

const PANELS = [
  ["Summary", summaryPanel],
  ["Timeline", timelinePanel],
  ["Memory", memoryPanel],
  ["Operations", operationsPanel],
  ["Graph", graphPanel],
  ["Numbers", numbersPanel],
  ["Options", optionsPanel],
  ["Log", logPanel],
];

class ReportPage {
  constructor(data) {
    this.reports = data.reports;
    this.files = data.files;
    this.shown = 0;
    this.panels = [...PANELS];
    if (this.reports.length > 1) this.panels.unshift(["Compare", comparePanel]);
    // Visible timelines, which receive the keys.
    this.timelines = [];
    this.main = document.getElementById("panel");
    this.tabs = document.getElementById("tabs");
    makeSwitches(() => this.redraw());
    this.makeReportSwitch();
    this.makeTabs();
    this.current = this.panelAt(location.hash) ?? 0;
    addEventListener("hashchange", () => {
      const index = this.panelAt(location.hash);
      if (index !== undefined && index !== this.current) this.showPanel(index);
    });
    document.addEventListener("keydown", (event) => passKey(event, this.timelines));
    this.showReport(0);
    document.getElementById("foot").textContent = data.foot;
  }

  report() {
    return this.reports[this.shown];
  }

  get timeline() {
    return this.timelines[0];
  }

  makeReportSwitch() {
    if (this.reports.length < 2) return;
    const place = document.getElementById("report-switch");
    place.hidden = false;
    const names = reportNames(this.reports, this.files);
    place.append(...choice("Report shown", names, 0, (index) => this.showReport(index)).children);
  }

  makeTabs() {
    this.tabs.append(...this.panels.map(([name], index) => element("button", {
      type: "button", role: "tab", id: `tab-${name.toLowerCase()}`, "aria-controls": "panel",
      onclick: () => this.goTo(index),
    }, name)));
    this.tabs.addEventListener("keydown", (event) => {
      const count = this.panels.length;
      const next = { ArrowRight: this.current + 1, ArrowLeft: this.current - 1, Home: 0, End: count - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      this.goTo((next + count) % count);
      this.tabs.children[this.current].focus();
    });
  }

  showReport(index) {
    this.shown = index;
    const report = this.report();
    document.getElementById("model-name").textContent = report.name;
    const fits = { yes: ["Fits", "good"], close: ["May fit", ""], no: ["Does not fit", "bad"] }[report.verdict]
      || [`Whether it fits is ${UNKNOWN}`, ""];
    const badges = [fits, [plainText(report.mode), ""], [plainText(report.machine.system), ""]];
    if (isKnown(report.written)) badges.push([report.written, ""]);
    document.getElementById("badges").replaceChildren(
      ...badges.map(([text, kind]) => element("span", { class: `badge ${kind}` }, text)));
    this.redraw();
  }

  // Returns the number of the panel for an address such as "#memory"; undefined if there is none.
  panelAt(hash) {
    const found = this.panels.findIndex(([name]) => `#${name.toLowerCase()}` === hash);
    return found < 0 ? undefined : found;
  }

  // Each panel has an address, so that readers can link to it and go back in the browser.
  goTo(index) {
    this.showPanel(index);
    location.hash = this.panels[index][0].toLowerCase();
  }

  showPanel(index) {
    this.current = index;
    this.timelines = [];
    [...this.tabs.children].forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(at === index));
      tab.setAttribute("tabindex", at === index ? "0" : "-1");
    });
    const shown = this.tabs.children[index];
    this.tabs.scrollLeft = shown.offsetLeft - (this.tabs.clientWidth - shown.offsetWidth) / 2;
    const [name, make] = this.panels[index];
    this.main.setAttribute("aria-labelledby", `tab-${name.toLowerCase()}`);
    forgetCharts();
    this.setClock(name);
    const grid = element("div", { class: "grid" }, ...make(this.report(), this));
    this.main.replaceChildren(grid);
    scrollTo(0, 0);
  }

  // Two compared reports show times only if their clocks are equal.
  setClock(panel) {
    const clocks = panel === "Compare" ? this.reports.map((report) => report.machine.clock_hz) : [this.report().machine.clock_hz];
    clock.hz = clocks.every((hz) => hz === clocks[0]) ? clocks[0] : null;
  }

  redraw() {
    this.showPanel(this.current);
  }

  // Shows the timeline at the first run of an operation's segment.
  showOperation(row) {
    this.goTo(this.panelAt("#timeline"));
    const view = this.timeline;
    if (!view) return;
    const isFound = view.find(row.name) || view.find(row.segment);
    const text = isFound ? `${row.name} runs in ${row.segment}.`
      : `When ${row.name} runs is ${UNKNOWN}.`;
    view.detail.prepend(element("p", { class: "note found" }, text));
    view.plot.focus();
  }
}

const page = new ReportPage(JSON.parse(document.getElementById("report-data").textContent));
markReady();
