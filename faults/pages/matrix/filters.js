// Which faults and which properties are shown.

const CONTROLS = ["fault-text", "fault-family", "root-cause", "symptom", "killed", "property-text", "property-family", "smallest"];

for (const fault of FAULTS) {
  const { summary, why, when, missed } = fault.lesson;
  fault.text = [fault.name, fault.family, fault.root_cause, fault.step, summary, why, when, missed].join(" ").toLowerCase();
}
for (const property of PROPERTIES) property.text = [property.words, property.name, property.family, ...property.law].join(" ").toLowerCase();

function fillChoices() {
  const options = (words) => [...new Set(words)].map((word) => el("option", { value: word }, word));
  byId("fault-family").append(...options(FAULTS.map((fault) => fault.family)));
  byId("property-family").append(...options(PROPERTIES.map((property) => property.family)));
  const causes = [...new Set(FAULTS.map((fault) => fault.root_cause))].sort();
  for (const [category, members] of grouped(causes, (cause) => cause.split(": ")[0])) {
    const group = el("optgroup", { label: category }, el("option", { value: category }, `${category}: all`));
    group.append(...members.map((cause) => el("option", { value: cause }, cause.split(": ")[1])));
    byId("root-cause").append(group);
  }
}

const hasWords = (text, words) => words.every((word) => text.includes(word));
const wordsIn = (id) => byId(id).value.toLowerCase().split(/\s+/).filter(Boolean);

function shownFaults() {
  const words = wordsIn("fault-text");
  const [family, cause, symptom, killed] = ["fault-family", "root-cause", "symptom", "killed"].map((id) => byId(id).value);
  const wanted = { one: (fault) => fault.killers.length === 1, none: (fault) => !fault.killers.length }[killed];
  return FAULTS.map((_, f) => f).filter((f) => {
    const fault = FAULTS[f];
    return (
      hasWords(fault.text, words) &&
      (!family || fault.family === family) &&
      (!cause || fault.root_cause === cause || fault.root_cause.startsWith(`${cause}: `)) &&
      (!symptom || fault.symptom === symptom) &&
      (!wanted || wanted(fault))
    );
  });
}

function shownProperties() {
  const words = wordsIn("property-text"), family = byId("property-family").value, smallest = byId("smallest").checked;
  return PROPERTIES.map((_, p) => p).filter(
    (p) => hasWords(PROPERTIES[p].text, words) && (!family || PROPERTIES[p].family === family) && (!smallest || FACTS.smallest.includes(p)),
  );
}

function applyFilters() {
  const faults = shownFaults(), properties = shownProperties();
  drawGrid(faults, properties);
  const killed = faults.filter((f) => properties.some((p) => FAULTS[f].killers.includes(p))).length;
  const all = faults.length === FAULTS.length && properties.length === PROPERTIES.length;
  byId("shown").textContent = `${all ? "All: " : ""}${plural(faults.length, "fault")}, ${plural(properties.length, "property", "properties")}; ${killed} killed`;
  byId("clear").hidden = CONTROLS.every((id) => (byId(id).type === "checkbox" ? !byId(id).checked : !byId(id).value));
}

let waiting = 0;
byId("filters").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(applyFilters, 60); // not for every letter of a quick typist
});
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("reset", () => {
  setTimeout(() => {
    applyFilters();
    byId("fault-text").focus(); // the button that was pressed is gone
  });
});
