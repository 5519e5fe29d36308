// What opens: the lesson of a fault, or the law of a property, in a dialog with an address of its own.

const sheet = byId("sheet");
const HUES = 8; // of the rows of a tensor, as many as the style has

const linkTo = {
  fault: (f, text = FAULTS[f].name) => el("a", { href: `#fault-${FAULTS[f].name}` }, text),
  property: (p, text = PROPERTIES[p].words) => el("a", { href: `#property-${PROPERTIES[p].name}` }, text),
};

function section(title, ...content) {
  const filled = content.flat().filter(Boolean);
  return filled.length ? el("section", {}, el("h3", {}, title), ...filled) : null;
}

function faultSheet(f, pointed) {
  const fault = FAULTS[f], lesson = fault.lesson;
  const symptoms = {
    silent: "Silent: nothing is raised, the result is wrong.",
    loud: "Loud: it raises wherever it shows.",
    either: "Either: on some cases it raises, on others the result is silently wrong.",
  };
  return [
    el("p", { class: "kicker" }, `Fault · ${fault.family} · ${fault.root_cause}`),
    el("h2", { id: "sheet-title" }, fault.name),
    el("p", { class: "summary" }, prose(lesson.summary)),
    pointed === undefined ? null : cellNote(f, pointed),
    el("dl", { class: "facts" },
      el("div", {}, el("dt", {}, "Symptom"), el("dd", {}, lesson.symptom || symptoms[fault.symptom] || fault.symptom)),
      el("div", {}, el("dt", {}, "Severity"), el("dd", {}, fault.severity || "Not measured.")),
      el("div", {}, el("dt", {}, "Caught"), el("dd", {}, caught(fault))),
    ),
    section("Why it is wrong", el("p", {}, prose(lesson.why))),
    section("When it shows", el("p", {}, prose(lesson.when))),
    section("Why tests miss it", el("p", {}, prose(lesson.missed))),
    section(`The step, ${fault.step}`, diffOf(lesson.diff), el("p", { class: "note" }, "− the clean layer, + the fault")),
    section("See it", ...worked(lesson)),
    lesson.found && section("A counterexample", counterexample(lesson.found)),
    section(`What kills it: ${fault.killers.length || "nothing"}`, killersOf(fault)),
    section("Seen in the wild", el("ul", { class: "links" },
      lesson.seen.map((line) => el("li", {}, /^https:\/\/\S+$/.test(line) ? el("a", { href: line, rel: "noreferrer" }, line.slice(8)) : line)))),
  ];
}

// What is in the cell that it was opened from.
function cellNote(f, p) {
  const { letter, state, detail } = told({ row: grid.faults.indexOf(f), column: grid.properties.indexOf(p) });
  return el("aside", { class: "cell", "aria-label": "The cell it was opened from" },
    el("p", {}, el("i", { class: `mark ${letter}` }), linkTo.property(p), `: ${state}`),
    el("p", { class: "detail" }, detail));
}

function caught(fault) {
  const applicable = PROPERTIES.length - Object.keys(fault.not_applicable).length;
  const parts = [`${fault.killers.length} of the ${applicable} properties that apply kill it.`];
  if (fault.drawn !== null) parts.push(`The ${ordinal(fault.drawn)} random case is the first on which any fails.`);
  const lacking = fault.unnoticed.filter((words) => words !== "neither");
  if (lacking.length) parts.push(`In a layer of somebody else's it goes unseen if ${lacking.join(", or ")}.`);
  else if (fault.unnoticed.length) parts.push("In a layer of somebody else's it goes unseen if weights can neither be loaded nor are returned.");
  return parts.join(" ");
}

function diffOf(lines) {
  const words = { "-": ["del", "clean: "], "+": ["ins", "fault: "] };
  const rows = lines.map((line) => {
    const [tag, said] = words[line[0]] || ["span", ""];
    return el(tag, {}, said && el("span", { class: "unseen" }, said), `${line.replace(/^-/, "−")}\n`);
  });
  return el("pre", { class: "diff", tabindex: 0, "aria-label": "Difference to the clean step" }, el("code", {}, ...rows));
}

function worked(lesson) {
  const tensors = lesson.pictures.map((drawn) => tensor(drawn, lesson.raised));
  return [
    lesson.inputs && el("p", {}, prose(lesson.inputs)),
    lesson.step && el("p", {}, "The first step whose result differs is ", el("code", {}, lesson.step), "."),
    ...tensors,
    lesson.raised && el("pre", { class: "evidence", tabindex: 0 }, lesson.raised),
    lesson.remark && el("p", {}, prose(lesson.remark)),
  ];
}

// A tensor as it should be and as it is. What is wrong is framed; where numbers only went to wrong places, colours show from where.
function tensor(drawn, raised) {
  const sources = new Map(drawn.sources.map(([to, from]) => [to.join(), from]));
  const differs = new Set(drawn.differs.map((place) => place.join()));
  const hue = (hues, r, c) => {
    const row = hues[r] && hues[r][c];
    return row === undefined || row === null ? "" : ` row${row % HUES}`;
  };
  const same = drawn.wrong && !differs.size;
  const right = array(same ? "the same in both" : "as it should be", drawn, drawn.right, (r, c) => `number${hue(drawn.hues, r, c)}`);
  const wrong = drawn.wrong && !same && array("as it is", drawn, drawn.wrong, (r, c) => {
    const colour = hue(drawn.wrong_hues, r, c);
    return differs.has([r, c].join()) ? `number wrong${colour || " strange"}` : `number${colour}`;
  }, (r, c) => {
    const from = sources.get([r, c].join());
    if (from) return `belongs to ${[drawn.rows[from[0]], drawn.columns[from[1]]].filter(Boolean).join(", ")}`;
    return differs.has([r, c].join()) ? "wrong" : "";
  });
  return el("figure", { class: "tensor" },
    el("figcaption", {}, drawn.title),
    el("div", { class: "pair" }, right, wrong || ""),
    el("p", { class: "note" }, tensorNote(drawn, raised)));
}

function tensorNote(drawn, raised) {
  const wrong = drawn.differs.length, all = drawn.right.flat().length;
  if (!drawn.wrong) return raised ? "It raised, and there is nothing beside it." : "What came instead has another shape.";
  if (!wrong) return drawn.coloured ? "A colour for each row, to be found again below." : "";
  const count = wrong === all ? "All numbers are wrong" : `${plural(wrong, "number is", "numbers are")} wrong, framed`;
  if (drawn.coloured === "handed") return `${count}; the colour is that of the row above from which a number came.`;
  if (drawn.coloured) return `${count}; the colour is that of the row to which a number belongs.`;
  return `${count}.`;
}

function array(caption, drawn, numbers, kind, remark = () => "") {
  const body = numbers.map((row, r) => el("tr", {}, el("th", { scope: "row" }, drawn.rows[r] || String(r)),
    row.map((value, c) => {
      const said = remark(r, c);
      return el("td", { class: kind(r, c), title: said || undefined }, value, said && el("span", { class: "unseen" }, `, ${said}`));
    })));
  const columns = numbers[0] ? numbers[0].map((_, c) => el("th", { scope: "col" }, drawn.columns[c] || String(c))) : [];
  return el("table", { class: "array" }, el("caption", {}, caption), el("thead", {}, el("tr", {}, el("td"), columns)), el("tbody", {}, body));
}

function counterexample(found) {
  const p = PROPERTIES.findIndex((property) => property.name === found.property);
  return el("div", {},
    el("p", {}, "The law ", linkTo.property(p), ": ", PROPERTIES[p].law[0]),
    el("pre", { class: "evidence", tabindex: 0, "aria-label": "Counterexample" }, `on ${found.case}\n${found.evidence}`),
    el("details", {}, el("summary", {}, "To see it again"), el("pre", { tabindex: 0 }, found.again)),
  );
}

function killersOf(fault) {
  if (!fault.killers.length) return el("p", {}, "It survives: on the cases tried, every property held.");
  const ways = "A red mark: it fails on the first random case, drawn from all, on which any property fails. " +
    "Its 1st, 2nd, 3rd case: each property is also tried on cases drawn for it alone, and those on which the fault can show are counted.";
  return el("div", { class: "killers" }, el("p", { class: "note" }, ways), grouped(fault.killers, (p) => PROPERTIES[p].family).map(([family, members]) => [
    el("h4", {}, family),
    el("ul", {}, members.map((p) => {
      const kill = fault.kills[p];
      return el("li", {},
        el("i", { class: `mark ${fault.states[p]}`, role: "img", "aria-label": WORDS[fault.states[p]] }), linkTo.property(p),
        kill && el("details", {}, el("summary", {}, `its ${ordinal(kill[0])} case`), el("pre", { tabindex: 0 }, `on ${kill[1]}\n${kill[2]}`)));
    })),
  ]));
}

function propertySheet(p) {
  const property = PROPERTIES[p];
  const alone = property.victims.filter((f) => FAULTS[f].killers.length === 1);
  const asked = FAULTS.filter((fault) => !(p in fault.not_applicable)).length;
  const first = FAULTS.filter((fault) => fault.first.includes(p)).length;
  return [
    el("p", { class: "kicker" }, `Property · ${property.family} · ${property.name}`),
    el("h2", { id: "sheet-title" }, property.words),
    el("p", { class: "summary" }, prose(property.law[0])),
    ...property.law.slice(1).map((paragraph) => el("p", {}, prose(paragraph.replace(/\s+/g, " ").trim()))),
    el("dl", { class: "facts" },
      el("div", {}, el("dt", {}, "Kills"), el("dd", {}, `${property.victims.length} of the ${plural(asked, "fault")} to which it applies`)),
      el("div", {}, el("dt", {}, "First"), el("dd", {}, `It fails on the first case on which anything fails for ${plural(first, "fault")}.`)),
      el("div", {}, el("dt", {}, "Alone"), el("dd", {}, alone.length ? ["Nothing else kills ", ...commas(alone.map((f) => linkTo.fault(f))), "."] : "Whatever it kills, something else kills too.")),
    ),
    section(`The faults that it kills: ${property.victims.length || "none"}`, property.victims.length > 0 && el("div", { class: "killers" },
      grouped(property.victims, (f) => FAULTS[f].family).map(([family, members]) => [
        el("h4", {}, family),
        el("ul", {}, members.map((f) => el("li", {},
          el("i", { class: `mark ${FAULTS[f].states[p]}`, role: "img", "aria-label": WORDS[FAULTS[f].states[p]] }), linkTo.fault(f),
          el("span", { class: "note" }, prose(FAULTS[f].lesson.summary))))),
      ]))),
  ];
}

function commas(nodes) {
  return nodes.flatMap((node, n) => (n ? [", ", node] : [node]));
}

const SHEETS = { fault: { all: FAULTS, draw: faultSheet }, property: { all: PROPERTIES, draw: propertySheet } };

// Open it, and let the address say so; `pointed` is the property of the cell it was opened from.
function openSheet(kind, number, pointed) {
  const { all, draw } = SHEETS[kind];
  const move = (step, words) => {
    const other = all[number + step];
    return other ? el("a", { href: `#${kind}-${other.name}`, class: "quiet", rel: step < 0 ? "prev" : "next", title: other.name }, words) : null;
  };
  const close = el("button", { type: "button", class: "quiet" }, "Close");
  close.addEventListener("click", () => sheet.close());
  sheet.replaceChildren(
    el("nav", { "aria-label": `Other ${kind === "fault" ? "faults" : "properties"}` }, ...[move(-1, "← previous"), move(1, "next →"), close].filter(Boolean)),
    el("article", {}, ...draw(number, pointed).filter(Boolean)),
  );
  if (!sheet.open) sheet.showModal();
  sheet.scrollTop = 0;
  close.focus({ preventScroll: true });
  const hash = `#${kind}-${all[number].name}`;
  if (location.hash !== hash) history.pushState(null, "", hash);
  document.title = `${all[number].name} · attention: the kill matrix`;
}

sheet.addEventListener("close", () => {
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  document.title = "Attention: the kill matrix";
});
sheet.addEventListener("click", (event) => {
  if (event.target === sheet) sheet.close(); // on what is behind it
});

// Open what the address names, or close.
function followAddress() {
  const [, kind, name] = location.hash.match(/^#(fault|property)-(.+)$/) || [];
  const number = kind ? SHEETS[kind].all.findIndex((one) => one.name === name) : -1;
  if (number < 0) {
    if (sheet.open) sheet.close();
    return;
  }
  const line = kind === "fault" ? grid.faults.indexOf(number) : -1;
  const column = kind === "property" ? grid.properties.indexOf(number) : -1;
  if (!sheet.open && (line >= 0 || column >= 0)) go({ row: line, column }); // where the focus is when it closes
  openSheet(kind, number);
}
addEventListener("hashchange", followAddress);
