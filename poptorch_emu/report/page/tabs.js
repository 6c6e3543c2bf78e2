// The tabs of a page. Arrow keys move between them.
"use strict";

function tabId(name) {
  return `tab-${name.toLowerCase().replace(/\W+/g, "-")}`;
}

// Fills `host` with a tab for each name; `onChoose` receives the number of the chosen one.
function makeTabs(host, names, onChoose) {
  host.append(...names.map((name, index) => element("button", {
    type: "button", role: "tab", id: tabId(name), "aria-controls": "panel", onclick: () => onChoose(index),
  }, name)));
  host.addEventListener("keydown", (event) => {
    const now = [...host.children].findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    const count = names.length;
    const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: count - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    onChoose((next + count) % count);
    host.children[(next + count) % count].focus();
  });
}

// Marks a tab as chosen, and moves it into sight.
function showTab(host, index) {
  [...host.children].forEach((tab, at) => {
    tab.setAttribute("aria-selected", String(at === index));
    tab.setAttribute("tabindex", at === index ? "0" : "-1");
  });
  const shown = host.children[index];
  host.scrollLeft = shown.offsetLeft - (host.clientWidth - shown.offsetWidth) / 2;
  document.getElementById("panel").setAttribute("aria-labelledby", shown.id);
}
