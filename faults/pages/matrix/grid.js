// The picture: one table, a light cell for each fault and property, drawn anew when a filter changes.
// One cell at a time can be reached with Tab (the current one); the arrows make another the current one.

const grid = {
  table: byId("matrix"),
  frame: byId("frame"),
  band: byId("band"),
  faults: [], // what is shown, by number, in this order
  properties: [],
  lines: [], // the table's rows of these faults
  at: { row: 0, column: 0 }, // the current cell; -1 is the heading
  marked: [], // the row and the heading that are pointed at
  whole: false,
};

const NAMES = 208, NARROW_NAMES = 128, FAMILY_GAP = 4; // px
const CELL = { least: 7, most: 22 };
const LINE = { named: 14, least: 2 };

function drawGrid(faults, properties) {
  const kept = { fault: grid.faults[grid.at.row], property: grid.properties[grid.at.column] };
  Object.assign(grid, { faults, properties });
  const blank = !faults.length || !properties.length;
  grid.table.hidden = blank;
  byId("nothing").hidden = !blank;
  point(null);
  if (blank) {
    grid.lines = [];
    grid.table.replaceChildren();
    return;
  }
  const families = grouped(properties, (p) => PROPERTIES[p].family);
  const begins = new Set(families.map(([, members]) => members[0]));
  const columns = properties.map((p) => `<col class="${begins.has(p) ? "begins" : ""}">`).join("");
  const labels = families
    .map(([family, members]) => `<th scope="colgroup" colspan="${members.length}" class="family g"><span>${family}</span></th>`)
    .join("");
  const names = properties
    .map((p, c) => `<th scope="col" data-c="${c}" class="name${begins.has(p) ? " g" : ""}"><span>${PROPERTIES[p].words}</span></th>`)
    .join("");
  let row = 0;
  const bodies = grouped(faults, (f) => FAULTS[f].family).map(([family, members]) => {
    const label = `<tr class="label"><th scope="rowgroup" colspan="${properties.length + 1}"><span>${family}</span></th></tr>`;
    const lines = members.map((f) => {
      const { name, states } = FAULTS[f];
      const cells = properties.map((p) => `<td class="${states[p]}${begins.has(p) ? " g" : ""}"></td>`).join("");
      return `<tr data-r="${row++}"><th scope="row"><span>${name}</span></th>${cells}</tr>`;
    });
    return `<tbody>${label}${lines.join("")}</tbody>`;
  });
  sizeGrid(); // before the cells are there, so that they are laid out once
  // Names and families are identifiers of the project's own source, letters and digits: nothing in them needs escaping.
  grid.table.innerHTML =
    `<colgroup><col class="names">${columns}</colgroup>` +
    `<thead><tr class="families"><td class="corner"></td>${labels}</tr><tr class="columns"><td class="corner"></td>${names}</tr></thead>` +
    bodies.join("");
  grid.lines = [...grid.table.querySelectorAll("tr[data-r]")];
  const place = { row: faults.indexOf(kept.fault), column: properties.indexOf(kept.property) };
  grid.at = { row: Math.max(place.row, 0), column: Math.max(place.column, 0) };
  makeReachable(grid.at);
}

// As wide as the window allows, and no wider than is pleasant; if it does not fit, the frame scrolls, and otherwise the page does.
function sizeGrid() {
  if (!grid.faults.length || !grid.properties.length) return;
  const room = grid.frame.clientWidth;
  const names = room < 640 ? NARROW_NAMES : NAMES;
  const families = grouped(grid.properties, (p) => PROPERTIES[p].family).length, gaps = families * FAMILY_GAP;
  const fitting = Math.floor(((room - names - gaps - 2) / grid.properties.length) * 4) / 4;
  const cell = Math.min(CELL.most, Math.max(CELL.least, fitting));
  const labels = grouped(grid.faults, (f) => FAULTS[f].family).length;
  const height = (innerHeight - 130 - labels * 3) / grid.faults.length;
  const line = grid.whole ? Math.min(LINE.named, Math.max(LINE.least, Math.floor(height * 4) / 4)) : LINE.named;
  const style = grid.frame.style;
  for (const [name, size] of Object.entries({ names, cell, line, gap: FAMILY_GAP })) style.setProperty(`--${name}`, `${size}px`);
  style.setProperty("--columns", grid.properties.length);
  style.setProperty("--families", families);
  grid.frame.classList.toggle("scrolls", fitting < CELL.least);
  grid.frame.classList.toggle("whole", grid.whole);
  grid.frame.classList.toggle("thin", line < 9);
}

function cellAt({ row, column }) {
  const line = row < 0 ? grid.table.querySelector("tr.columns") : grid.lines[row];
  return line.cells[column + 1];
}

function placeOf(target) {
  const cell = target instanceof Element ? target.closest("td, th") : null;
  const line = cell && cell.parentElement;
  if (line && line.dataset.r !== undefined) return { row: Number(line.dataset.r), column: cell.cellIndex - 1 };
  if (cell && cell.dataset.c !== undefined) return { row: -1, column: Number(cell.dataset.c) };
  return null;
}

// What a cell says: in the line at the bottom, and to a screen reader.
function told({ row, column }) {
  const fault = row < 0 ? null : FAULTS[grid.faults[row]];
  const p = column < 0 ? null : grid.properties[column];
  const property = p === null ? null : PROPERTIES[p];
  if (!property) return { fault, state: `killed by ${plural(fault.killers.length, "property", "properties")}`, detail: fault.lesson.summary };
  if (!fault) return { property, state: `kills ${plural(property.victims.length, "fault")}`, detail: property.law[0] };
  const letter = fault.states[p], kill = fault.kills[p];
  let detail = property.law[0];
  if (letter === NOT_APPLICABLE) detail = FACTS.reasons[fault.not_applicable[p]];
  if (kill) detail = `${kill[2]}\non ${kill[1]}`;
  return { fault, property, letter, state: WORDS[letter], detail };
}

// Mark the row and the column of a place, and say what is there; of null, nothing.
function point(place) {
  for (const marked of grid.marked) marked.classList.remove("on");
  grid.marked = [];
  grid.band.hidden = true;
  const readout = byId("readout");
  readout.replaceChildren();
  readout.classList.toggle("empty", !place);
  if (!place) return;
  if (place.row >= 0) grid.marked.push(grid.lines[place.row]);
  if (place.column >= 0) {
    const heading = cellAt({ row: -1, column: place.column });
    grid.marked.push(heading);
    grid.band.hidden = false;
    grid.band.style.left = `${heading.offsetLeft}px`;
    grid.band.style.width = `${heading.offsetWidth}px`;
    grid.band.style.height = `${grid.table.offsetHeight}px`;
  }
  for (const marked of grid.marked) marked.classList.add("on");
  const { fault, property, letter, state, detail } = told(place);
  readout.append(
    el("p", {}, fault ? el("b", {}, fault.name) : "", fault && property ? " × " : "", property ? el("b", {}, property.words) : "",
      " ", el("span", { class: `state ${letter || ""}` }, letter ? el("i", { class: `mark ${letter}` }) : "", state)),
    el("p", { class: "detail" }, detail.replaceAll("\n", " · ")),
  );
}

// Let Tab lead to this cell, and a screen reader say what is in it; ten thousands of others are spared it.
function makeReachable(place) {
  const cell = cellAt(place), { fault, property, state, detail } = told(place);
  cell.tabIndex = 0;
  cell.setAttribute("aria-label", [fault && fault.name, property && property.words, `${state}: ${detail}`].filter(Boolean).join(", "));
}

function go(place) {
  const last = { row: grid.faults.length - 1, column: grid.properties.length - 1 };
  const next = { row: Math.min(Math.max(place.row, -1), last.row), column: Math.min(Math.max(place.column, -1), last.column) };
  if (next.row < 0 && next.column < 0) next.column = 0;
  cellAt(grid.at).removeAttribute("tabindex");
  grid.at = next;
  makeReachable(next);
  const cell = cellAt(next);
  cell.focus({ preventScroll: true });
  cell.scrollIntoView({ block: "nearest", inline: "nearest" });
  point(next);
}

// The first row of the family before, or after, the one of this row.
function familyFrom(row, step) {
  const starts = grid.faults.map((_, r) => r).filter((r) => !r || FAULTS[grid.faults[r]].family !== FAULTS[grid.faults[r - 1]].family);
  return step > 0 ? starts.find((r) => r > row) ?? grid.faults.length - 1 : starts.findLast((r) => r < row) ?? 0;
}

const MOVES = {
  ArrowUp: ({ row, column }) => ({ row: row - 1, column }),
  ArrowDown: ({ row, column }) => ({ row: row + 1, column }),
  ArrowLeft: ({ row, column }) => ({ row, column: column - 1 }),
  ArrowRight: ({ row, column }) => ({ row, column: column + 1 }),
  Home: ({ row }, all) => ({ row: all ? 0 : row, column: all ? 0 : -1 }),
  End: ({ row }, all) => ({ row: all ? Infinity : row, column: Infinity }),
  PageUp: ({ row, column }) => ({ row: familyFrom(row, -1), column }),
  PageDown: ({ row, column }) => ({ row: familyFrom(row, 1), column }),
};

grid.table.addEventListener("keydown", (event) => {
  if (event.altKey || event.metaKey) return;
  if (event.key in MOVES) {
    event.preventDefault();
    go(MOVES[event.key](grid.at, event.ctrlKey));
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    openAt(grid.at);
  }
});
grid.table.addEventListener("click", (event) => {
  const place = placeOf(event.target);
  if (!place) return;
  go(place);
  openAt(place);
});
grid.table.addEventListener("mouseover", (event) => {
  const place = placeOf(event.target);
  if (place) point(place);
});
grid.table.addEventListener("mouseleave", () => point(grid.table.contains(document.activeElement) ? grid.at : null));
grid.table.addEventListener("focusin", (event) => {
  if (event.target === grid.table) go(grid.at);
  else if (placeOf(event.target)) point(placeOf(event.target));
});
grid.table.addEventListener("focusout", () => point(null));

function openAt({ row, column }) {
  if (row < 0) openSheet("property", grid.properties[column]);
  else openSheet("fault", grid.faults[row], column < 0 ? undefined : grid.properties[column]);
}
