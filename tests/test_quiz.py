"""`python -m faults quiz`: what it shows, what it keeps to itself, and how it keeps the score."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from random import Random

import pytest

from faults import __main__ as command
from faults.catalog import catalog, find
from faults.fault import Fault, FaultError, family_of, name_of, step_of
from faults.killers import names_of_killers
from faults.lessons.quiz import CHOICES, Score, choices, chosen, hints, quiz
from faults.lessons.source import clean_step, disguised

NAME = "missing-contiguous"


class Learner:
    """Answers from a list; the terminal is closed when there is none left."""

    def __init__(self, answers: Iterable[str | BaseException]) -> None:
        self.answers: Iterator[str | BaseException] = iter(answers)
        self.read: list[str] = []
        self.read_before: list[str] = []  # up to each answer

    def ask(self, prompt: str) -> str:
        self.read_before.append("\n".join(self.read))
        answer = next(self.answers, EOFError())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def text(self) -> str:
        return "\n".join(self.read)


def play(*answers: str | BaseException, name: str = NAME, seed: int = 0) -> tuple[Learner, Score]:
    learner = Learner(answers)
    return learner, quiz([find(name)], rounds=1, seed=seed, ask=learner.ask, say=learner.read.append)


def test_the_right_name_at_once() -> None:
    learner, score = play(NAME)
    (before,) = learner.read_before
    shown, choice = before.split("Which mistake is it?")
    assert "class Attention(MultiHeadAttention)" in shown
    assert "heads.transpose(1, 2)" in shown and ".contiguous()" not in shown
    assert "on Case(queries=2" in shown  # the counterexample of the first law
    assert NAME not in shown and NAME in choice
    after = learner.text[len(before) :]
    assert "Yes: three points" in after and "\n    -    heads = heads.transpose(1, 2).contiguous()" in after
    assert f"python -m faults explain {NAME}" in after and "https://" in after
    assert score.points == [3] and "3 of 3 points; 1 of 1 named at once" in after


def test_help_and_wrong_names_cost_a_point_each() -> None:
    wrong = "wrong-merge-order"
    learner, score = play("h", wrong, NAME)
    assert "No. wrong-merge-order would be: Merge the heads with one `reshape`" in learner.text
    assert "Yes: one point." in learner.text and score.points == [1]
    assert play("c", "c", NAME)[1].points == [2]  # once looked at, it may be looked at again
    assert play(wrong, wrong, wrong, wrong, NAME)[1].points == [0]


def test_another_law_comes_with_its_counterexample() -> None:
    learner, _ = play("h", "s")
    first, second = learner.read_before
    assert len(re.findall(r"\n    on Case\(", second[len(first) :])) == 1


def test_the_clean_step_is_shown_on_demand_only() -> None:
    learner, _ = play("c")
    before, after = learner.read_before
    line = "heads = heads.transpose(1, 2).contiguous()"
    assert line not in before and line in after


def test_an_answer_may_be_a_number() -> None:
    listed = play()[0].text
    (number,) = re.findall(rf"(\d)  {NAME}\n", listed + "\n")
    assert play(number)[1].points == [3]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "Answer with"),
        ("9", "There are numbers from 1 to 5"),
        ("missing-contigous", "did you mean missing-contiguous"),
    ],
)
def test_what_is_no_answer_costs_nothing(answer: str, said: str) -> None:
    learner, score = play(answer, NAME)
    assert said in learner.text and score.points == [3]


@pytest.mark.parametrize("end", ["q", EOFError(), KeyboardInterrupt()])
def test_it_ends_politely(end: str | BaseException) -> None:
    learner, score = play(end)
    assert learner.read[-2:] == [f"\n\nIt was {NAME}.", "\nNothing answered, nothing scored."]
    assert score.points == []


def test_who_has_guessed_has_answered() -> None:
    learner, score = play("wrong-merge-order")
    assert learner.read[-1] == "\nGuessed, but not named: nothing scored." and score.points == []


def test_what_a_point_is_and_how_to_be_asked_the_same_is_said_at_the_start() -> None:
    learner, _ = play("s", seed=4)
    before = " ".join(learner.read_before[0].split())
    assert "(--seed 4 --rounds 1 asks the same again)" in before
    assert before.count("A name at once is worth 3 points") == 1


def test_it_keeps_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.lessons.quiz.width", lambda: 60)
    learner, _ = play("h", "wrong-merge-order", "", "nothing", "s")
    prose = [
        line for line in learner.text.splitlines() if not re.match(r"    [ +-]? |    class|https|Why|Somebody|There is no", line)
    ]
    assert max(map(len, prose)) <= 60


def test_giving_up_scores_nothing_and_tells() -> None:
    learner, score = play("s")
    assert score.points == [0] and f"It is {NAME}: " in learner.text


def test_the_same_seed_asks_the_same() -> None:
    pool = [find(name) for name in ("missing-scale", "missing-transpose", NAME)]

    def asked(seed: int) -> str:
        learner = Learner("s")
        quiz(pool, rounds=1, seed=seed, ask=learner.ask, say=learner.read.append)
        return learner.text.partition("\n")[2]

    assert asked(1) == asked(1)
    assert asked(1) != asked(2)


def test_there_are_no_more_rounds_than_mistakes() -> None:
    learner = Learner("ssss")
    assert len(quiz([find(NAME)], rounds=3, seed=0, ask=learner.ask, say=learner.read.append).points) == 1


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([NAME])
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    # The default of `ask` was bound when the module was imported.
    monkeypatch.setitem(quiz.__kwdefaults__, "ask", input)
    assert command.main(["quiz", "--name", NAME, "--seed", "4"]) == 0
    assert "3 of 3 points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--family", "rotten"], "there is no family 'rotten'; there are lesson, alibi"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--name", "mising-contiguous"], "did you mean missing-contiguous"),
    ],
)
def test_what_cannot_be_asked(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["quiz", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_family_is_written_as_its_file_or_in_words() -> None:
    assert chosen([], "mask_application") == chosen([], "mask application")
    assert {family_of(fault) for fault in chosen([], "mask application")} == {"mask application"}


class NewAndNotBlessed(Fault):
    """A new one."""


def test_a_quiz_needs_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faults.lessons.quiz.find", lambda name: NewAndNotBlessed)
    with pytest.raises(FaultError, match="nothing is known to kill new-and-not-blessed"):
        chosen(["new-and-not-blessed"], None)


@pytest.mark.parametrize("fault", catalog().values(), ids=catalog())
def test_a_disguise_tells_nothing_but_the_code(fault: type[Fault]) -> None:
    shown = disguised(fault)
    definitions = ast.parse(shown).body
    assert step_of(fault) in [step.name for step in ast.walk(definitions[-1]) if isinstance(step, ast.FunctionDef)]
    assert not any(isinstance(n, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(n) for n in ast.walk(ast.parse(shown)))
    assert "#" not in shown and "visible" not in shown and "root_cause" not in shown
    assert fault.__name__ not in shown and name_of(fault) not in shown


def test_what_the_step_needs_is_shown_with_it() -> None:
    assert "remembered: Tensor | None = None" in disguised(find("mask-remembered"))
    assert "def _rms_norm(" in disguised(find("norm-over-the-projection"))


def test_the_clean_step_keeps_its_comments() -> None:
    assert "# [B, h, T, d_head] @ [B, h, d_head, S]" in clean_step(find("missing-scale"))


@pytest.mark.parametrize("name", list(catalog())[::25])
def test_choices_are_near_misses(name: str) -> None:
    fault = find(name)
    names = choices(fault, Random(0))
    assert name in names and len(set(names)) == len(names) == CHOICES
    near = [other for other in map(find, names) if step_of(other) == step_of(fault) or family_of(other) == family_of(fault)]
    assert len(near) == CHOICES


def test_what_does_the_same_is_no_choice() -> None:
    # sqrt(d_head) twice is d_head.
    for seed in range(3):
        assert "scale-without-root" not in choices(find("double-scale"), Random(seed), number=10)


def test_laws_come_from_the_vague_to_the_telling() -> None:
    names = ["softmax-over-queries", "softmax-over-heads", "missing-scale", "scale-by-d-model", "swapped-keys-and-values"]
    given = list(hints(find(names[0]), names))
    counts = [int(count) for hint in given for count in re.findall(r"mistakes \w+, (\d) break it", hint)]
    assert counts[0] == len(names) and counts[-1] < counts[0]
    laws = [re.search(r"\(\w+-(\w+)\)", hint.replace("\n", " ")) for hint in given]
    told = [law[1] for law in laws if law]
    assert len(set(told)) == len(given) >= 3
    # Together they leave nothing but the answer.
    left = [name for name in names if names_of_killers(find(name)) >= set(told)]
    assert left == names[:1]
