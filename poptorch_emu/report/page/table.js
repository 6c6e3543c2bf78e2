// A table that sorts, searches and folds, by mouse and by keyboard.
"use strict";

const ROWS_AT_ONCE = 200;

// Options: caption, rows (objects by key), search, sortKey ("" keeps the order), descending,
// groups: [{name, key}], where no key means one flat table,
// columns: [{key, title, help, format(value, row), numeric, share, total, keep, link(row), mark(row)}].
// A `total` column shows the sum of a group's known values, a `share` column has a bar, and a
// `keep` column does not wrap.
// onShown(rows, group): is told the rows that match the search, and the key of their groups.
class DataTable {
  constructor(options) {
    this.columns = options.columns;
    this.rows = options.rows;
    this.groups = options.groups || [];
    this.sortKey = options.sortKey ?? this.columns[0].key;
    this.descending = options.descending !== false;
    this.group = this.groups.length ? this.groups[0].key : null;
    this.query = "";
    this.onShown = options.onShown || (() => {});
    this.open = new Set();
    this.limit = ROWS_AT_ONCE;
    this.texts = this.rows.map((row) =>
      this.columns.map((column) => plainText(row[column.key])).join("\n").toLowerCase());
    this.head = element("tr");
    this.body = element("tbody");
    this.found = element("span", { class: "note", role: "status" });
    this.more = element("button", { type: "button", class: "more", onclick: () => this.showMore() });
    const tools = this.tools(options);
    this.root = element("div", {}, tools.children.length ? tools : null, element(
      "div", { class: "table-frame" },
      element("table", {}, element("caption", { class: "skip" }, options.caption),
        element("thead", {}, this.head), this.body)), this.more);
    this.render();
  }

  tools(options) {
    const tools = element("div", { class: "tools above" });
    if (this.groups.length > 1) {
      tools.append(choice("Group by", this.groups.map((group) => group.name), 0,
        (index) => this.groupBy(this.groups[index].key)));
    }
    if (options.search !== false) {
      tools.append(element("input", {
        type: "search", placeholder: "Search", "aria-label": `Search: ${options.caption}`,
        oninput: (event) => this.search(event.target.value),
      }), this.found);
    }
    if (this.groups.length) {
      tools.append(
        element("button", { type: "button", onclick: () => this.foldAll(true) }, "Unfold all"),
        element("button", { type: "button", onclick: () => this.foldAll(false) }, "Fold all"));
    }
    return tools;
  }

  showMore() {
    this.limit += 5 * ROWS_AT_ONCE;
    this.render();
  }

  search(text) {
    this.query = text.trim().toLowerCase();
    this.limit = ROWS_AT_ONCE;
    this.render();
  }

  groupBy(key) {
    this.group = key;
    this.open.clear();
    this.render();
  }

  foldAll(isOpen) {
    this.open = new Set(isOpen ? this.rows.map((row) => plainText(row[this.group])) : []);
    this.render();
  }

  sortBy(column) {
    this.descending = this.sortKey === column.key ? !this.descending : Boolean(column.numeric);
    this.sortKey = column.key;
    this.render();
    this.head.querySelector(`[aria-sort$="ending"] button`).focus();
  }

  toggle(name) {
    if (!this.open.delete(name)) this.open.add(name);
    this.render();
    const buttons = [...this.body.querySelectorAll("button[data-group]")];
    const button = buttons.find((candidate) => candidate.dataset.group === name);
    if (button) button.focus();
  }

  // Unknown values come last in either sorting order.
  compare(first, second) {
    const [a, b] = [first[this.sortKey], second[this.sortKey]];
    if (!isKnown(a) || !isKnown(b)) return Number(isKnown(b)) - Number(isKnown(a));
    const order = typeof a === "number" && typeof b === "number" ? Number(a > b) - Number(a < b)
      : String(a).localeCompare(String(b), "en", { numeric: true });
    return this.descending ? -order : order;
  }

  sorted(rows) {
    return [...rows].sort((first, second) => this.compare(first, second));
  }

  // Returns [row, class, beginning of the first cell] of each line.
  lines(matching) {
    if (!this.group) return this.sorted(matching).map((row) => [row, "", null]);
    const members = new Map();
    for (const row of matching) {
      const name = plainText(row[this.group]);
      if (!members.has(name)) members.set(name, []);
      members.get(name).push(row);
    }
    const groups = this.sorted([...members].map(([name, rows]) => this.groupRow(name, rows)));
    return groups.flatMap((group) => {
      const isOpen = this.open.has(group.name_of_group);
      const children = isOpen ? this.sorted(group.members).map((row) => [row, "child", null]) : [];
      return [[group, "group", () => this.foldButton(group, isOpen)], ...children];
    });
  }

  groupRow(name, members) {
    const row = { [this.columns[0].key]: name, name_of_group: name, isGroup: true, partly: new Set(), members };
    for (const column of this.columns.filter((candidate) => candidate.total)) {
      const known = members.map((member) => member[column.key]).filter(isKnown);
      row[column.key] = known.length ? known.reduce((sum, value) => sum + value, 0) : null;
      if (known.length && known.length < members.length) row.partly.add(column.key);
    }
    return row;
  }

  foldButton(group, isOpen) {
    const name = group.name_of_group;
    return element("button", {
      type: "button", "data-group": name, "aria-expanded": String(isOpen), onclick: () => this.toggle(name),
    }, element("span", { class: "arrow", "aria-hidden": "true" }, isOpen ? "▾" : "▸"),
    `${name} (${countText(group.members.length)})`);
  }

  header(column) {
    const isSorted = column.key === this.sortKey;
    const arrow = isSorted ? (this.descending ? " ↓" : " ↑") : "";
    const sorted = isSorted ? (this.descending ? "descending" : "ascending") : "none";
    return element("th", { scope: "col", "aria-sort": sorted, class: column.numeric ? "numeric" : "" },
      element("button", { type: "button", "data-sort": column.key, title: column.help, onclick: () => this.sortBy(column) },
        column.title + arrow));
  }

  cell(column, row, lead, span = 1) {
    const value = row[column.key];
    const text = (column.format || plainText)(value, row);
    const content = [];
    const partly = row.partly && row.partly.has(column.key)
      ? element("span", { title: "The cost of some is not known." }, "≥ ") : null;
    if (column.share && isKnown(value)) {
      // All numbers take the width of the widest, so that all bars are aligned.
      content.push(shareBar(value / this.largest.get(column.key)), element("span", { class: "share" }, partly || "", text));
    } else if (partly) content.push(partly, text);
    else if (lead) content.push(lead());
    else if (column.link && !row.isGroup) {
      content.push(element("button", { type: "button", class: "link", title: column.linkTitle ? column.linkTitle(row) : null, onclick: () => column.link(row) },
        valueElement(text)));
    } else if (!row.isGroup || column.total) content.push(valueElement(text));
    const mark = column.mark ? column.mark(row) : "";
    return element("td", { class: `${column.numeric ? "numeric" : ""} ${column.keep ? "keep" : ""} ${mark}`, colspan: span > 1 ? span : null }, ...content);
  }

  render() {
    const matching = this.query ? this.rows.filter((_, at) => this.texts[at].includes(this.query)) : this.rows;
    const lines = this.lines(matching);
    this.largest = new Map(this.columns.filter((column) => column.share).map((column) =>
      [column.key, Math.max(1e-12, ...lines.slice(0, 5000).map(([row]) => row[column.key] || 0))]));
    this.head.replaceChildren(...this.columns.map((column) => this.header(column)));
    // The name of a group spans all columns before its first sum.
    const numLead = Math.max(1, this.columns.findIndex((column) => column.total));
    this.body.replaceChildren(...lines.slice(0, this.limit).map(([row, kind, lead]) => element("tr", { class: kind },
      ...this.columns.flatMap((column, at) => (lead && at > 0 && at < numLead ? []
        : [this.cell(column, row, at === 0 ? lead : null, lead && at === 0 ? numLead : 1)])))));
    if (!lines.length) {
      this.body.append(element("tr", {}, element("td", { colspan: this.columns.length }, "Nothing matches.")));
    }
    const left = lines.length - this.limit;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show more (${countText(Math.max(0, left))} left)`;
    this.found.textContent = `${countText(matching.length)} of ${countText(this.rows.length)}`;
    this.onShown(matching, this.group);
  }
}

function shareBar(share) {
  const fill = element("i");
  fill.style.width = `${Math.min(100, 100 * share)}%`;
  return element("span", { class: "bar", "aria-hidden": "true" }, fill);
}

function makeTable(options) {
  return new DataTable(options).root;
}
