// Shows no figure at less than 70 % of its size, so that its text stays readable; its frame scrolls.
"use strict";

addEventListener("load", () => {
  for (const image of document.querySelectorAll("div.cell_output img, p > img")) {
    image.style.minWidth = `${Math.round(0.7 * image.naturalWidth)}px`;
  }
});
