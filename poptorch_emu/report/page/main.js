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
    makeTabs(this.tabs, this.panels.map(([name]) => name), (index) => this.goTo(index));
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
    showTab(this.tabs, index);
    const [name, make] = this.panels[index];
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
