// Formats values as text, and text as elements. Text of a report becomes text nodes, never markup.
// Values that are not known are shown as unknown.
"use strict";

const UNKNOWN = "not known";

function isKnown(value) {
  return value !== null && value !== undefined && !Number.isNaN(value);
}

function orUnknown(format) {
  return (value) => (isKnown(value) ? format(value) : UNKNOWN);
}

// Returns three significant digits, with thousands separators.
function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  return Number(value.toPrecision(3)).toString();
}

// Formats a value with steps of [scale, prefix, optional smallest value].
function scaled(value, steps, unit) {
  const [scale, prefix] = stepOf(Math.abs(value), steps);
  return `${number(value / scale)} ${prefix}${unit}`;
}

function stepOf(size, steps) {
  return steps.find(([scale, , from]) => size >= (from || scale * 0.9995)) || [1, ""];
}

// Unit of cycles in texts: the clock of the report shown, or null if it is unknown.
const clock = { hz: null, isTime: false };

function inTime(unit) {
  return unit === "cycles" && clock.isTime && clock.hz;
}

// Returns the text of a tick: all ticks of an axis share a unit and have enough digits to differ.
function tickText(value, range, unit, numTicks = 8) {
  if (inTime(unit)) return tickText(value / clock.hz, range.map((end) => end / clock.hz), "seconds", numTicks);
  const steps = unit === "seconds" ? SMALL : DECIMAL;
  const [scale, prefix] = stepOf(Math.abs(range[1]), steps);
  const digits = Math.ceil(-Math.log10((range[1] - range[0]) / numTicks / scale));
  const text = (value / scale).toLocaleString("en-US", {
    minimumFractionDigits: 0, maximumFractionDigits: Math.min(12, Math.max(0, digits)) });
  return `${text} ${prefix}${unit === "seconds" ? "s" : ""}`.trim();
}

function plural(count, noun) {
  return isKnown(count) ? `${countText(count)} ${noun}${count === 1 ? "" : "s"}` : `${noun}s ${UNKNOWN}`;
}

const BINARY = [[2 ** 40, "Ti"], [2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"]];
const DECIMAL = [[1e12, "T "], [1e9, "G "], [1e6, "M "], [1e3, "k ", 1e4]];
const SMALL = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

const countText = orUnknown((value) => Math.round(value).toLocaleString("en-US"));
const bytesText = orUnknown((value) => scaled(value, BINARY, "B"));
const secondsText = orUnknown((value) => (value === 0 ? "0 s" : scaled(value, SMALL, "s")));
const cyclesText = orUnknown((value) => (inTime("cycles") ? secondsText(value / clock.hz) : scaled(value, DECIMAL, "cycles")));
// Returns cycles and seconds together, for explanations.
const cyclesAndTimeText = orUnknown((value) => `${countText(value)} cycles`
  + (clock.hz ? `, ${secondsText(value / clock.hz)}` : ""));
const shareText = orUnknown((value) => `${(value * 100).toFixed(1)} %`);
const rateText = orUnknown((value) => `${number(value)} rows/s`);
// The interval of a predicted figure, in which four of five real figures lie.
const likelyText = (range, text) => (isKnown(range) ? `likely ${range.slice(-2).map(text).join(" to ")}; ` : "");
const plainText = orUnknown((value) => (value === "" ? UNKNOWN : String(value)));
const UNIT_TEXT = { cycles: cyclesText, seconds: secondsText };

// element("p", {class: "note", onclick: f}, "text", child): attributes that are functions become
// listeners; strings among the children become text.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Returns a value for a cell or a card, marked if it is unknown.
function valueElement(text) {
  return text === UNKNOWN ? element("span", { class: "unknown" }, UNKNOWN) : text;
}

function card(title, options, ...children) {
  const tools = options.tools || [];
  return element(
    "section",
    { class: `card ${options.width || ""}`, "aria-label": title, id: options.id },
    element("header", {}, element("h2", {}, title), element("div", { class: "tools" }, ...tools)),
    options.note ? element("p", { class: "note" }, options.note) : null,
    ...children,
  );
}

function facts(pairs) {
  const list = element("dl", { class: "facts" });
  for (const [name, text] of pairs) {
    list.append(element("dt", {}, name), element("dd", {}, valueElement(text)));
  }
  return list;
}

function empty(text) {
  return element("p", { class: "empty" }, text);
}

// Returns lines of code, with a button that copies them if the browser allows it.
function codeElement(text) {
  const copy = () => navigator.clipboard.writeText(text);
  return element("div", { class: "code" }, element("pre", {}, text),
    navigator.clipboard ? element("button", { type: "button", onclick: copy }, "Copy") : null);
}

// Returns the content of a tooltip: a heading and pairs of name and text.
function tip(heading, pairs) {
  return element(
    "div",
    { class: "tip" },
    element("b", {}, heading),
    ...pairs.map(([name, text]) =>
      element("div", {}, element("span", {}, name), element("span", {}, text))),
  );
}

// Returns a group of buttons of which one is pressed.
function choice(label, names, chosen, onChoose) {
  const group = element("div", { class: "segmented", role: "group", "aria-label": label });
  names.forEach((name, index) => {
    const press = () => {
      [...group.children].forEach((button, other) =>
        button.setAttribute("aria-pressed", String(other === index)));
      onChoose(index);
    };
    group.append(
      element("button", { type: "button", "aria-pressed": String(index === chosen), onclick: press },
        name));
  });
  return group;
}
