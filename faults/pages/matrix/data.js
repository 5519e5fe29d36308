// The facts, and words for them.

const FACTS = JSON.parse(document.getElementById("facts").textContent);
const FAULTS = FACTS.faults;
const PROPERTIES = FACTS.properties;
const byId = (id) => document.getElementById(id);

const NOT_APPLICABLE = "n", HELD = "h", KILLED = "k", FIRST = "f";
const WORDS = { n: "not applicable", h: "held", k: "killed", f: "killed on the first case" };

// The state of each cell: a string of one letter for each property.
for (const fault of FAULTS) {
  const states = PROPERTIES.map((_, p) => (p in fault.not_applicable ? NOT_APPLICABLE : p in fault.kills ? KILLED : HELD));
  for (const p of fault.first) states[p] = FIRST;
  fault.states = states.join("");
  fault.killers = PROPERTIES.map((_, p) => p).filter((p) => states[p] === KILLED || states[p] === FIRST);
}
PROPERTIES.forEach((property, p) => {
  property.victims = FAULTS.map((_, f) => f).filter((f) => FAULTS[f].killers.includes(p));
  property.words = property.name.replaceAll("_", " ");
});

function plural(number, one, many = one + "s") {
  return `${number} ${number === 1 ? one : many}`;
}

// 1st, 2nd, 3rd.
function ordinal(number) {
  const last = number % 10, teen = Math.floor((number % 100) / 10) === 1;
  return number + (!teen && last === 1 ? "st" : !teen && last === 2 ? "nd" : !teen && last === 3 ? "rd" : "th");
}

// An element; attributes that are false or undefined are left out, children are text unless they are elements.
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== "" && child !== null && child !== undefined));
  return element;
}

// Text with what stands between backticks as code.
function prose(text) {
  return text.split("`").map((part, n) => (n % 2 ? el("code", {}, part) : part));
}

// Neighbours of the same family, as [family, [items]].
function grouped(items, family) {
  const groups = [];
  for (const item of items) {
    if (!groups.length || groups.at(-1)[0] !== family(item)) groups.push([family(item), []]);
    groups.at(-1)[1].push(item);
  }
  return groups;
}
