// Helpers for all charts: colours from the style sheet, patterns, axes, creation and redrawing.
"use strict";

const settings = { patterns: true };
const charts = new Set();

// Each shape of a timeline needs these, so they are cached until the theme or the patterns change.
const known = { colours: new Map(), patterns: new Map() };

function forgetColours() {
  known.colours.clear();
  known.patterns.clear();
}

function colour(name) {
  if (!known.colours.has(name)) {
    const style = getComputedStyle(document.documentElement);
    known.colours.set(name, style.getPropertyValue(`--${name}`).trim());
  }
  return known.colours.get(name);
}

// ECharts decal for each hatch of the table of terms; its lines have the colour of text.
const PATTERNS = {
  "": {},
  "/": { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 7], rotation: -Math.PI / 4 },
  "\\": { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 7], rotation: Math.PI / 4 },
  "-": { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [1, 4], rotation: 0 },
  "|": { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 6], rotation: Math.PI / 2 },
  "o": { symbol: "circle", dashArrayX: [[8, 8], [0, 8, 8, 0]], dashArrayY: [6, 0], symbolSize: 0.45 },
  "O": { symbol: "circle", dashArrayX: [[12, 12], [0, 12, 12, 0]], dashArrayY: [10, 2], symbolSize: 0.8 },
  ".": { symbol: "rect", dashArrayX: [[6, 6], [0, 6, 6, 0]], dashArrayY: [6, 0], symbolSize: 0.5 },
  "+": { symbol: "rect", dashArrayX: [[6, 6], [0, 6, 6, 0]], dashArrayY: [6, 0], symbolSize: 0.9 },
  "x": { symbol: "diamond", dashArrayX: [[7, 7], [0, 7, 7, 0]], dashArrayY: [7, 0], symbolSize: 0.6 },
  "*": { symbol: "triangle", dashArrayX: [[9, 9], [0, 9, 9, 0]], dashArrayY: [7, 2], symbolSize: 0.5 },
  "//": { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [3, 3], rotation: -Math.PI / 4 },
  "\\\\": { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [3, 3], rotation: Math.PI / 4 },
  "--": { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [3, 3], rotation: 0 },
  "||": { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [3, 3], rotation: Math.PI / 2 },
  "xx": { symbol: "diamond", dashArrayX: [[5, 3], [0, 3, 5, 0]], dashArrayY: [5, 0], symbolSize: 0.8 },
};

// Returns the term of a word; TERMS is the table of report/terms.py.
function term(word) {
  return Object.hasOwn(TERMS, word) ? TERMS[word] : TERMS.other;
}

// ECharts needs an empty object for "no pattern" on an item.
function pattern(word) {
  const { hatch } = term(word);
  const shape = PATTERNS[hatch];
  if (!settings.patterns || !shape.symbol) return {};
  if (!known.patterns.has(hatch)) {
    const ink = isDark() ? "rgba(0,0,0,0.24)" : "rgba(255,255,255,0.34)";
    known.patterns.set(hatch, { ...shape, color: ink });
  }
  return known.patterns.get(hatch);
}

function termColour(word) {
  return term(word)[isDark() ? "dark" : "light"];
}

// Returns the colour of text on a term's colour.
function inkOn(word) {
  return term(word)[isDark() ? "ink_on_dark" : "ink_on_light"];
}

function itemStyle(word, more = {}) {
  const decal = pattern(word);
  return { color: termColour(word), ...(decal.symbol ? { decal } : {}), ...more };
}

function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

function axis(more) {
  const quiet = colour("quiet");
  return {
    nameTextStyle: { color: quiet },
    ...more,
    axisLabel: { color: quiet, hideOverlap: true, ...(more.axisLabel || {}) },
    axisLine: { lineStyle: { color: colour("line") }, ...(more.axisLine || {}) },
    axisTick: { show: false },
    splitLine: { lineStyle: { color: colour("line"), opacity: 0.7 }, ...(more.splitLine || {}) },
  };
}

// Returns an axis of bytes with ticks at round numbers of KiB or MiB, and room above `most`.
function bytesAxis(most, more = {}) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(1, most / (more.splitNumber || 5))));
  return axis({ type: "value", min: 0, interval: step, max: Math.max(most * 1.06, 1),
    ...more, axisLabel: { formatter: bytesText, showMaxLabel: false } });
}

function limitLine(limit, along, position) {
  return {
    silent: true, symbol: "none", lineStyle: { color: colour("bad"), width: 2, type: "dashed" },
    label: { formatter: `limit ${bytesText(limit)}`, color: colour("bad"), position,
      backgroundColor: colour("card"), padding: [1, 3], borderRadius: 3 },
    data: [{ [along]: limit }],
  };
}

function tooltip(formatter, more = {}) {
  return {
    backgroundColor: colour("card"),
    borderColor: colour("line"),
    textStyle: { color: colour("text"), fontSize: 13 },
    confine: true,
    transitionDuration: 0.1,
    formatter,
    ...more,
  };
}

function legend(more = {}) {
  return {
    top: 0,
    left: 0,
    type: "scroll",
    icon: "roundRect",
    itemWidth: 16,
    itemHeight: 12,
    itemGap: 16,
    textStyle: { color: colour("text") },
    inactiveColor: colour("line"),
    pageTextStyle: { color: colour("quiet") },
    ...more,
  };
}

function sliderStyle() {
  return {
    borderColor: colour("line"),
    fillerColor: isDark() ? "rgba(134,168,255,0.18)" : "rgba(43,89,217,0.12)",
    handleStyle: { color: colour("card"), borderColor: colour("accent") },
    moveHandleStyle: { color: colour("accent"), opacity: 0.5 },
    emphasis: { moveHandleStyle: { color: colour("accent"), opacity: 0.8 } },
    dataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } },
    selectedDataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } },
    textStyle: { color: colour("quiet") },
    brushSelect: false,
  };
}

// Returns an element that draws `option()` when it is shown, and again when the theme changes.
// Screen readers read `label`.
function chartElement(label, height, option, onMade = null) {
  const host = element("div", { class: "chart", role: "img", "aria-label": label });
  host.style.height = `${height}px`;
  const draw = () => {
    const chart = echarts.init(host, null, { renderer: "canvas" });
    chart.setOption({
      animation: false,
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily },
      ...option(),
    });
    if (onMade) onMade(chart);
    return chart;
  };
  const entry = { host, draw, chart: null };
  entry.observer = new ResizeObserver(() => {
    if (!host.isConnected || host.clientWidth === 0) return;
    if (entry.chart) entry.chart.resize();
    else entry.chart = draw();
  });
  entry.observer.observe(host);
  charts.add(entry);
  return host;
}

function forgetCharts() {
  for (const entry of charts) {
    entry.observer.disconnect();
    if (entry.chart) entry.chart.dispose();
  }
  charts.clear();
}

function setTheme(theme) {
  forgetColours();
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

// Sets the theme, and connects the switches in the head of a page; each change calls `redraw`.
function makeSwitches(redraw) {
  const [theme, asTime, patterns] = ["theme", "clock", "patterns"].map((id) => document.getElementById(id));
  const onChange = (target, type, change) => target.addEventListener(type, () => {
    change();
    redraw();
  });
  const system = matchMedia("(prefers-color-scheme: dark)");
  const followSystem = () => setTheme(system.matches ? "dark" : "light");
  followSystem();
  onChange(system, "change", followSystem);
  onChange(theme, "click", () => setTheme(isDark() ? "light" : "dark"));
  onChange(asTime, "click", () => {
    clock.isTime = !clock.isTime;
    asTime.setAttribute("aria-pressed", String(clock.isTime));
  });
  onChange(patterns, "click", () => {
    settings.patterns = !settings.patterns;
    forgetColours();
    patterns.setAttribute("aria-pressed", String(settings.patterns));
  });
}

// Passes a key to the visible timelines, unless the focused element uses the key itself.
function passKey(event, timelines) {
  const isTaken = event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey;
  if (isTaken || event.target.closest("input, select, textarea")) return;
  if (timelines.map((view) => view.onKey(event)).some(Boolean)) event.preventDefault();
}

// Says when the first picture is drawn, after the browser has laid out the page.
function markReady() {
  requestAnimationFrame(() => requestAnimationFrame(() => {
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  }));
}

// Returns a swatch with a term's colour and pattern. Legends of buttons need it, because the
// keyboard reaches buttons but not the legend of a chart.
function swatch(word) {
  const host = element("span", { "aria-hidden": "true" });
  const canvas = element("canvas", { width: 32, height: 22 });
  canvas.style.width = "16px";
  canvas.style.height = "11px";
  const context = canvas.getContext("2d");
  context.fillStyle = termColour(word);
  context.fillRect(0, 0, 32, 22);
  const shape = pattern(word);
  if (shape.symbol) {
    context.strokeStyle = shape.color;
    context.fillStyle = shape.color;
    context.lineWidth = 3;
    for (let x = -22; x < 40; x += 10) {
      if (shape.symbol === "rect" && typeof shape.dashArrayX[0] === "number") {
        const slope = Math.round(Math.sin(2 * shape.rotation) * 22);
        context.beginPath();
        if (shape.rotation === 0) {
          context.moveTo(0, x + 22);
          context.lineTo(32, x + 22);
        } else {
          context.moveTo(x, slope > 0 ? 0 : 22);
          context.lineTo(x + Math.abs(slope), slope > 0 ? 22 : 0);
        }
        context.stroke();
      } else {
        context.fillRect(x + 2, 4, 5, 5);
        context.fillRect(x + 7, 13, 5, 5);
      }
    }
  }
  host.append(canvas);
  return host;
}
