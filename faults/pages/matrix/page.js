// The head of the page, light and dark, and the beginning.

function drawHead() {
  const n = FACTS.numbers;
  byId("title").textContent = `${plural(n.faults, "way")} to break attention, ${plural(n.properties, "property", "properties")} that notice`;
  const smallest = FACTS.smallest.length;
  const shown = [
    [`${n.killed} of ${n.faults}`, n.killed === n.faults ? "faults killed" : "faults killed; the others survive"],
    [n.silent, "are silent: nothing is raised, the result is wrong"],
    n.drawn === null ? null : [n.at_once, `fall to the first random case; in the median it takes ${n.drawn}`],
    [n.alone, "killed by only one property"],
    [smallest, `${smallest === 1 ? "property kills" : "properties kill"} as many as all ${n.properties}`],
    n.correct ? [n.flagged.length, `of ${n.correct} correct layers flagged${n.flagged.length ? `: ${n.flagged.join(", ")}` : ""}`] : null,
  ];
  byId("numbers").append(...shown.filter(Boolean).map(([number, words]) => el("div", {}, el("dt", {}, words), el("dd", {}, String(number)))));
}

function drawFoot() {
  byId("measured").textContent =
    `Measured with seed ${FACTS.seed}: each property on up to ${FACTS.tried} random cases on which the fault can show, until it fails. ` +
    `Held: it failed on none of these, or there were none: the fault can show on none of the ${FACTS.drawn} cases drawn for the property.`;
}

const THEMES = ["auto", "light", "dark"];

function remembered(value) {
  try {
    if (value !== undefined) localStorage.setItem("attention-theme", value);
    return localStorage.getItem("attention-theme");
  } catch {
    return value; // a page of a file may remember nothing
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Colours: ${theme}`;
}

byId("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  remembered(next);
  setTheme(next);
});
byId("whole").addEventListener("click", () => {
  grid.whole = !grid.whole;
  byId("whole").setAttribute("aria-pressed", String(grid.whole));
  sizeGrid();
});
addEventListener("resize", sizeGrid);

// In a narrow window the filters are folded away, so that the page opens on the picture.
const narrow = matchMedia("(max-width: 700px)");
const fold = () => (byId("filter-box").open = !narrow.matches);
narrow.addEventListener("change", fold);
fold();

setTheme(THEMES.includes(remembered()) ? remembered() : "auto");
drawHead();
drawFoot();
fillChoices();
applyFilters();
followAddress();
