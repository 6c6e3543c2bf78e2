// The values on the fullest tile of an IPU: a treemap, and a table that searches and groups both.
"use strict";

const NO_GROUP = "all values";
const MAP_PIXELS = 420;
// A smaller rectangle has no room for a name.
const LEAST_LABELLED = 5000;

function fullestTileCard(ipu, reason) {
  const title = "On the fullest tile";
  if (!ipu.fullest_tile) return card(title, {}, empty(`What the fullest tile holds is ${UNKNOWN}.`));
  const rows = rowsOf(ipu.fullest_tile).map((row) => ({
    ...row, block: blockText(row.block), live: row.part.includes("at the peak") ? "at the peak" : "always" }));
  const total = rows.reduce((sum, row) => sum + row.tile_bytes, 0);
  for (const row of rows) row.share = total ? row.tile_bytes / total : null;
  const columns = [
    { key: "name", title: "Value" },
    { key: "part", title: "Kind", keep: true },
    { key: "block", title: "Block" },
    { key: "live", title: "Live", keep: true },
    { key: "tile_bytes", title: "On the tile", numeric: true, format: bytesText, total: true },
    { key: "share", title: "Share", numeric: true, format: shareText, total: true, share: true },
    { key: "ipu_bytes", title: "On the IPU", numeric: true, format: bytesText, total: true,
      help: "Bytes on all tiles of the IPU that compute." },
  ];
  const groups = [["Block", "block"], ["Kind", "part"], ["Live", "live"], ["All", null]]
    .map(([name, key]) => ({ name, key }));
  const map = new TileMap(ipu, rows);
  const table = makeTable({ caption: "On the fullest tile", columns, rows, groups, sortKey: "tile_bytes",
    onShown: (matching, group) => map.show(new Set(matching), group) });
  const note = `${bytesText(total)} on the fullest tile of IPU ${ipu.ipu}, at its peak: ${plainText(ipu.peak.name)}. `
    + `Search and groups of the table apply to the picture, too. ${reason}`;
  return card(title, { note, id: "fullest-tile" }, map.legend(), map.host, table);
}

// Rectangles in proportion to bytes, within rectangles of the groups of the table.
class TileMap {
  constructor(ipu, rows) {
    this.rows = rows.filter((row) => row.tile_bytes > 0);
    this.matching = new Set(rows);
    this.group = "block";
    this.chart = null;
    this.host = chartElement(`Treemap: values on the fullest tile of IPU ${ipu.ipu}`, MAP_PIXELS, () => this.option(),
      (chart) => { this.chart = chart; });
  }

  show(matching, group) {
    this.matching = matching;
    this.group = group;
    if (this.chart) this.chart.setOption(this.option());
  }

  legend() {
    const parts = [...new Set(this.rows.map((row) => row.part))];
    return element("div", { class: "legend" },
      ...parts.map((part) => element("span", {}, swatch(part), part)));
  }

  option() {
    const border = { borderColor: colour("raised"), borderWidth: 3, gapWidth: 1 };
    return {
      tooltip: tooltip((item) => this.tip(item)),
      series: [{
        id: "tile", type: "treemap", left: 0, right: 0, top: 6, bottom: 0,
        roam: false, nodeClick: false, breadcrumb: { show: false },
        levels: [{ itemStyle: { borderColor: colour("card"), borderWidth: 0, gapWidth: 3 } },
          { itemStyle: border, upperLabel: { show: true, height: 20, color: colour("text"), fontWeight: 600 } }],
        label: { overflow: "truncate", fontSize: 12, lineHeight: 15, position: [5, 4] },
        data: this.groups(),
      }],
    };
  }

  groups() {
    const members = new Map();
    for (const row of this.rows) {
      const name = this.group ? row[this.group] : NO_GROUP;
      members.set(name, [...(members.get(name) || []), row]);
    }
    return [...members].map(([name, rows]) => {
      const bytes = rows.reduce((sum, row) => sum + row.tile_bytes, 0);
      return { name: `${name}: ${bytesText(bytes)}`, value: bytes, itemStyle: { color: colour("raised") },
        children: rows.map((row) => this.leaf(row)) };
    });
  }

  leaf(row) {
    const isShown = this.matching.has(row);
    const area = row.share * this.host.clientWidth * MAP_PIXELS;
    return { name: row.name, value: row.tile_bytes, row,
      itemStyle: isShown ? itemStyle(row.part) : { color: colour("card") },
      label: { show: isShown && area > LEAST_LABELLED, color: inkOn(row.part),
        formatter: `${endOf(row.name)}\n${bytesText(row.tile_bytes)}` } };
  }

  tip({ data, name }) {
    if (!data || !data.row) return tip(name, []);
    const { row } = data;
    return tip(row.name, [["kind", row.part], ["block", row.block], ["live", row.live],
      ["on the tile", `${bytesText(row.tile_bytes)}, ${shareText(row.share)}`], ["on the IPU", bytesText(row.ipu_bytes)]]);
  }
}

// Returns the end of a dotted name, with the name before a number: "mlp.0.weight".
function endOf(name) {
  const parts = name.split(".");
  const first = Math.max(0, parts.length - 2);
  return parts.slice(/^\d+$/.test(parts[first]) ? Math.max(0, first - 1) : first).join(".");
}
