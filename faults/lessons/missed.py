"""Why tests usually miss a fault: what people test, against what it takes to see it. Derived from what is known, not written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

from faults.fault import Fault, sections_of, subject_of
from faults.killers import known_killers, names_of_killers
from faults.lessons.habits import blind_habits
from faults.lessons.worked import Worked
from properties.case import sample
from properties.laws import PROPERTIES

LOOSE = 0.02  # a relative error that a tolerance like rtol=1e-2 lets pass, more or less


def why_missed(fault: type[Fault], example: Worked | None = None, where: str = "") -> list[str]:
    """Sentences, those that say most first; `where` it raises, if an ordinary call does not (see `laws.raises_where`)."""
    sections = sections_of(fault)
    said = []
    severity = " ".join(sections.get("Severity", "").split())
    right_at_first = "a first call in evaluation is right" in severity
    met = sections.get("Symptom", "").partition(":")[0]
    if where:
        said.append(f"In an ordinary call nothing is raised; {where} it raises, and only a test that goes there sees it.")
    elif met == "Silent":
        # Of what is wrong only elsewhere nothing is known about shapes.
        shapes = not right_at_first and "the_result_has_the_shape_of_the_question" not in names_of_killers(fault)
        said.append(f"Nothing is raised{', and the result has the right shape' if shapes else ''}: a test that it runs passes.")
    elif met == "Either" and example is not None and example.raised and example.where.startswith("in "):
        said.append(f"That it raises depends on the dtype: {example.where} it does, and a test in another one may see nothing.")
    elif met == "Either":
        said.append("Where the shapes do not fit it raises; where they happen to fit it is silently wrong.")
    elif met == "Loud":
        said.append("Wherever it shows it raises, so any test that gets there sees it.")
    if right_at_first:
        wrong = severity.partition("wrong: ")[2].rstrip(".")
        said.append(
            "The output of one call in evaluation, which is all that most tests look at, is right"
            + (f"; wrong {'are' if ',' in wrong or wrong.endswith('weights') else 'is'} {wrong}." if wrong else ".")
        )
    blind = blind_habits(fault)
    if blind:
        said.append(f"It never shows with {_joined(blind)}.")
    share = share_visible(fault)
    said.append(f"On {share} of 100 random cases it can show{'' if share < 100 else ', if one looks'}.")
    error = re.match(r"(below )?([0-9.e-]+), the median relative error", severity)
    if error and float(error[2]) <= LOOSE:
        said.append(
            f"Where it does, the output is off by {error[1] or ''}{error[2]} of itself: to a loose tolerance that is rounding."
        )
    number = len(known_killers(fault))
    said.append(f"{number} of the {len(PROPERTIES)} properties see{'s' if number == 1 else ''} it.")
    return said


def symptom(sections: Mapping[str, str], where: str) -> str:
    """What was measured of how it is met, which is about an ordinary call; and `where` else it raises."""
    if not where:
        return sections.get("Symptom", "")
    right = "a first call in evaluation is right" in " ".join(sections.get("Severity", "").split())
    return f"{'An ordinary call is right' if right else 'Silent in an ordinary call'}; {where} it raises."


def share_visible(fault: type[Fault]) -> int:
    """On how many of 100 random cases it can show."""
    random, fields = Random("0 any"), subject_of(fault).supports.fields()
    return sum(fault.visible(sample(random, fields)) for _ in range(100))


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, or {words[-1]}"
