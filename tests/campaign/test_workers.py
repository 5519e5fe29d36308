"""The same results, to the bit, whoever does the work; a worker that dies costs a retry, not the run."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from running import Command, Here, here, rows

from properties import Case
from properties.campaign import Asked, CampaignError, Summary, Workers, asked, engine, processes, run, trial
from properties.campaign import workers as ours
from properties.campaign.bounds import at_most
from properties.campaign.trial import SEEDS
from properties.conformance import find

Module = Callable[[str], None]
LAW = "constant_values_come_back"

PLAIN = """
import functools, itertools, multiprocessing, os, signal, time, traceback
from pathlib import Path
import torch
from own import Own

class Plain(Own):
    def forward(self, x, mask=None):
        if x.shape[1] == 3 and "_result" in [frame.name for frame in traceback.extract_stack(limit=30)]:
            self.at_three()  # when it is asked a law, not when it is looked at
        return super().forward(x, mask)

    def at_three(self):
        pass

class Halved(Own):
    def forward(self, x, mask=None):
        return super().forward(x, mask) / 2

class DiesOnce(Plain):
    def at_three(self):
        if multiprocessing.parent_process() is not None:
            try:
                Path(__file__).with_name("dead").touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

class Dies(Plain):
    def at_three(self):
        os.kill(os.getpid(), signal.SIGKILL)

class Exits(Plain):
    def at_three(self):
        raise SystemExit("enough")

class NeverReturns(Plain):
    def at_three(self):
        sum(itertools.repeat(1))  # looks at no signal, and lets no other thread run

class Sleeps(Plain):
    def at_three(self):
        time.sleep(1000)

class Threads:
    def __call__(self, alive):
        number = torch.get_num_threads()
        torch.set_num_threads(3)
        return {"cases": 1, "threads": number}

    def differs(self):
        return ""

class Interrupts(Plain):
    def at_three(self):
        raise KeyboardInterrupt("not by anybody")

class Prints(Plain):
    def forward(self, x, mask=None):
        if multiprocessing.parent_process() is not None:
            print("out")
            os.write(1, b"straight out")
            os.write(2, b"straight to the other")
        return super().forward(x, mask)

class SaysMuch(Plain):
    def at_three(self):
        raise ValueError("one\\ntwo \\x1b[31m \\ud800")

class DiesWhenLookedAt(Own):
    def forward(self, x, mask=None):
        os._exit(7)

class InterruptsWhenLookedAt(Own):
    def __init__(self, d_model, num_heads):
        raise KeyboardInterrupt

def impatient():
    import properties.campaign.workers
    import properties.isolated
    properties.campaign.workers._begin()
    properties.campaign.workers._GRACE = properties.isolated._GRACE = 1.0
"""


def of(name: str) -> dict[str, Asked]:
    return asked(f"theirs:{name}", dtypes=("float64",))


def cases(subject: Asked, seeds: range) -> list[Case]:
    return [find(LAW).sample(Random(f"{seed} {LAW}"), subject.subject()) for seed in seeds]


def results(file: Path) -> dict[int, dict[str, Any]]:
    """Of each block, if only one law was asked."""
    return {block: json.loads(result) for *_, block, _, result in rows(file)}


def test_results_do_not_depend_on_the_workers(module: Module, tmp_path: Path) -> None:
    module(PLAIN)
    subjects = of("Halved") | of("Plain")
    found = []
    several = [here(), processes(1), processes(2), processes(3), Workers(lambda: ThreadPoolExecutor(2), 2), Workers(Here, 5)]
    for number, workers in enumerate(several):
        file = tmp_path / f"{number}.db"
        run(file, subjects, seeds=(20, 60), only="rows-", workers=workers)
        found.append(rows(file))
    assert any(json.loads(result)["failures"] for *_, result in found[0])
    assert len(found[0]) == 8
    assert all(one == found[0] for one in found)


def test_a_worker_has_one_thread_of_torch(module: Module) -> None:
    module(PLAIN)
    import theirs

    with processes(1).make() as pool:
        for _ in range(2):
            result, _ = pool.submit(ours.perform, theirs.Threads(), ours.here()).result()
            assert result["threads"] == 1
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(1) as threads:
            for _ in range(2):
                assert threads.submit(ours.perform, theirs.Threads(), ours.here()).result()[0]["threads"] == 1
    finally:
        torch.set_num_threads(before)


def test_a_worker_that_dies_costs_a_retry(module: Module, tmp_path: Path) -> None:
    module(PLAIN)
    subjects, died, quiet = of("DiesOnce"), tmp_path / "died.db", tmp_path / "quiet.db"
    progress = run(died, subjects, seeds=(0, 80), only=LAW, workers=processes(2))
    assert (tmp_path / "dead").exists()
    assert 1 <= progress.retries <= 2 * engine.AHEAD  # all that were handed out then
    assert run(quiet, subjects, seeds=(0, 80), only=LAW, workers=here()).retries == 0
    assert rows(died) == rows(quiet)
    assert len(rows(died)) == 4


def test_a_case_that_kills_every_time_is_a_failure_and_no_other_is(module: Module, tmp_path: Path) -> None:
    module(PLAIN)
    dies, plain = tmp_path / "dies.db", tmp_path / "plain.db"
    run(dies, of("Dies"), seeds=(0, 40), only=LAW, workers=processes(2))
    run(plain, of("Plain"), seeds=(0, 40), only=LAW, workers=here())
    expected = results(plain)
    (subject,) = of("Dies").values()
    for block, result in results(dies).items():
        deadly = [repr(case) for case in cases(subject, range(block * SEEDS, (block + 1) * SEEDS)) if case.T == 3]
        assert result["failures"] == len(deadly)
        assert result["shown"] == [[case, "its process died, of SIGKILL"] for case in deadly[:3]]
        assert result | {"failures": 0, "shown": []} == expected[block]
    assert sum(result["failures"] for result in results(dies).values()) > 0
    assert len(results(dies)) == 2


class _Alone(Executor):
    """Its first workers die of whatever they are given, the others of nothing."""

    deaths = 0

    def submit(self, do: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        future = Here().submit(do, *arguments, **named)
        if _Alone.deaths < 40:
            _Alone.deaths += 1
            future = type(future)()
            future.set_exception(BrokenExecutor("dead"))
        return future


def test_units_that_were_only_near_have_their_ordinary_results(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suspected too often, they are tried alone; in processes of their own is only what dies there, too."""
    module(PLAIN)
    monkeypatch.setattr("properties.campaign.trial.Trial.in_a_child", lambda self: pytest.fail("it kills nobody"))
    monkeypatch.setattr(engine, "processes", lambda number: here())
    subjects = of("Plain")
    run(tmp_path / "a.db", subjects, seeds=(0, 80), only=LAW, workers=Workers(_Alone, 4))
    run(tmp_path / "b.db", subjects, seeds=(0, 80), only=LAW, workers=here())
    assert _Alone.deaths == 40 or _Alone.deaths == 4 * engine.TRIES
    assert rows(tmp_path / "a.db") == rows(tmp_path / "b.db")


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("NeverReturns", "it has not ended after 3 seconds, and could only be stopped with its process"),
        ("Sleeps", "it has not ended after 3 seconds"),
        ("Exits", "it raised SystemExit: enough"),
    ],
)
def test_a_case_that_never_ends_or_ends_everything_is_a_failure(
    name: str, evidence: str, module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(PLAIN)
    import theirs

    context = multiprocessing.get_context("forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn")

    def make(number: int) -> Workers:
        return Workers(lambda: ProcessPoolExecutor(number, context, initializer=theirs.impatient), number)

    monkeypatch.setattr(engine, "processes", make)
    monkeypatch.setattr(engine, "TRIES", 1)
    (subject,) = of(name).values()
    block = next(n for n in range(1000) if sum(case.T == 3 for case in cases(subject, range(n * SEEDS, (n + 1) * SEEDS))) == 1)
    seeds = range(block * SEEDS, (block + 1) * SEEDS)
    file, plain = tmp_path / "it.db", tmp_path / "plain.db"
    run(file, of(name), seeds=(seeds.start, seeds.stop), only=LAW, time_limit=3, workers=make(1))
    run(plain, of("Plain"), seeds=(seeds.start, seeds.stop), only=LAW, workers=here())
    (case,) = [repr(case) for case in cases(subject, seeds) if case.T == 3]
    assert results(file)[block]["shown"] == [[case, evidence]]
    assert results(file)[block] | {"failures": 0, "shown": []} == results(plain)[block]


def test_patience_is_lost_in_a_child_as_it_is_elsewhere(module: Module, tmp_path: Path) -> None:
    """A case that hangs makes those that hang later wait less; were it not so, a retried unit would differ."""
    from properties.campaign.trial import Trial

    module(PLAIN.replace("time.sleep(1000)", "time.sleep(1000 * (os.getpid() > 0))"))
    (subject,) = of("Sleeps").values()
    block = next(n for n in range(1000) if sum(case.T == 3 for case in cases(subject, range(n * SEEDS, (n + 1) * SEEDS))) == 2)
    trial = Trial(subject, LAW, block, 1.6)
    found = trial(lambda seconds: None)
    assert [evidence for _, evidence in found["shown"]] == [f"it has not ended after {n} seconds" for n in ("1.6", "1")]
    with processes(1).make() as pool:
        assert pool.submit(trial.in_a_child).result() == found


def test_what_a_worker_lacks_is_said(command: Command, module: Module, tmp_path: Path) -> None:
    module("import multiprocessing\nif multiprocessing.parent_process(): import nothing_of_the_kind\n" + PLAIN)
    with pytest.raises(CampaignError, match="a worker cannot do .*No module named 'nothing_of_the_kind'"):
        run(tmp_path / "it.db", of("Plain"), cases=1, only=LAW, workers=processes(1))
    code, out, err = command.run("run", "again.db", "theirs:Plain", "--only", LAW, "--cases", "1", "--workers", "1")
    assert (code, out) == (2, "")
    assert "No module named 'nothing_of_the_kind'" in err
    assert "Traceback" not in err


def test_workers_with_another_torch_are_refused(module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(PLAIN)
    monkeypatch.setattr(trial, "about", lambda: {"versions": "Python 3.11.0, torch 0.4", "laws": "other"})  # what a worker has
    with pytest.raises(
        CampaignError, match=r"a worker on .* has laws other instead of .*; versions Python 3\.11\.0, torch 0\.4 instead"
    ):
        run(tmp_path / "it.db", of("Plain"), cases=1, only=LAW, workers=here())
    assert not rows(tmp_path / "it.db")


def test_workers_with_another_source_of_the_subject_are_refused(module: Module, tmp_path: Path) -> None:
    module(PLAIN)
    subjects = of("Plain")
    module(PLAIN + "\n# another machine has this")
    with pytest.raises(CampaignError, match="a worker on .* has source .* instead of"):
        run(tmp_path / "it.db", subjects, cases=1, only=LAW, workers=processes(1))


def test_an_interrupt_that_a_subject_raises_is_its_own(module: Module, tmp_path: Path) -> None:
    module(PLAIN)
    run(tmp_path / "it.db", of("Interrupts"), seeds=(0, 20), only=LAW, workers=processes(1))
    assert results(tmp_path / "it.db")[0]["shown"][0][1] == "it raised KeyboardInterrupt: not by anybody"


def test_what_a_message_has_in_it_is_shown_and_not_obeyed(module: Module, tmp_path: Path) -> None:
    module(PLAIN)
    run(tmp_path / "it.db", of("SaysMuch"), seeds=(0, 20), only=LAW, workers=processes(1))
    assert "it raised ValueError: one\\ntwo \\x1b[31m \\ud800" in str(Summary.of(tmp_path / "it.db"))


def test_what_a_subject_prints_stays_with_the_worker(command: Command, module: Module) -> None:
    module(PLAIN)
    arguments = ("run", "it.db", "theirs:Prints", "-d", "dtypes=float64", "--only", LAW, "--seeds", "0:20", "--workers", "1")
    code, out, err = command.run(*arguments)
    assert code == 0
    assert "straight" not in out + err and "out\n" not in out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("DiesWhenLookedAt", "theirs:DiesWhenLookedAt ended the process in which it was asked what it supports"),
        ("InterruptsWhenLookedAt", "theirs:InterruptsWhenLookedAt"),
    ],
)
def test_a_subject_that_cannot_be_looked_at_is_said(name: str, message: str, command: Command, module: Module) -> None:
    module(PLAIN)
    code, out, err = command.run("run", "it.db", f"theirs:{name}", "--cases", "1", "--workers", "1")
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_bound_counts_an_input_once_in_all_dtypes(module: Module, tmp_path: Path) -> None:
    module(PLAIN)
    run(tmp_path / "it.db", asked("theirs:Plain"), seeds=(0, 20), only=LAW, workers=here())
    summary = Summary.of(tmp_path / "it.db")
    assert (summary.whole.cases, summary.inputs) == (80, 20)
    assert summary.bound == pytest.approx(at_most(0, 20))
    assert "1 subject in up to 4 dtypes" in str(summary)
    assert "fewer than 1 in 6 inputs like these fail in any dtype (20 inputs, the dtypes not counted)" in str(summary)
