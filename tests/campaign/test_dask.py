"""The workers of a dask cluster give what processes of this machine give; what goes wrong with them is said."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import LONG, Command, here, needed, rows, until

from properties.campaign import CampaignError, asked, dask, engine, run

distributed = needed("distributed")
Module = Callable[[str], None]

SOURCE = """
import os, signal, time, traceback
from pathlib import Path
from own import Own

def is_asked():
    return "_result" in [frame.name for frame in traceback.extract_stack(limit=40)]

class Mine(Own):
    pass

class Slow(Own):
    def forward(self, x, mask=None):
        if is_asked():
            time.sleep(0.01)
        return super().forward(x, mask)

class DiesOnce(Own):
    def forward(self, x, mask=None):
        if is_asked() and x.shape[1] == 3:
            dead = Path(__file__).with_name("dead")
            try:
                dead.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x, mask)

class Dies(Own):
    def forward(self, x, mask=None):
        if is_asked() and x.shape[1] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x, mask)
"""


def cluster() -> Any:
    return distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)


@pytest.fixture
def address(module: Module) -> Iterator[str]:
    module(SOURCE)  # before the workers are started, which look for it where this process does
    with cluster() as made:
        yield made.scheduler_address


def command_for(name: str, last: int = 40) -> list[str]:
    return ["run", "it.db", f"theirs:{name}", "-d", "dtypes=float64", "--only", "dependence-", "--seeds", f"0:{last}"]


def expected(name: str, last: int = 40) -> list[tuple[Any, ...]]:
    Path("dead").touch()
    run("plain.db", asked(f"theirs:{name}", dtypes=("float64",)), seeds=(0, last), only="dependence-", workers=here())
    return rows(Path("plain.db"))


def test_a_cluster_gives_the_same_results_and_a_worker_may_die(address: str, command: Command, tmp_path: Path) -> None:
    code, out, err = command.run(*command_for("DiesOnce"), "--dask", address)
    assert code == 0, err
    assert "no failure" in out
    assert (tmp_path / "dead").exists()
    assert len(rows(tmp_path / "it.db")) == 8
    assert rows(tmp_path / "it.db") == expected("DiesOnce")


def test_a_case_that_kills_every_worker_is_a_failure(module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dask as configured

    module(SOURCE)
    monkeypatch.setattr(engine, "TRIES", 1)
    with (
        configured.config.set({"distributed.scheduler.allowed-failures": 0}),
        cluster() as made,
        dask(made.scheduler_address) as workers,
    ):
        progress = run("it.db", asked("theirs:Dies", dtypes=("float64",)), seeds=(0, 20), only="query_counts", workers=workers)
    ((*_, cases, result),) = rows(tmp_path / "it.db")
    assert cases == 20
    assert progress.retries == 2
    shown = json.loads(result)["shown"]
    assert shown
    assert {evidence for _, evidence in shown} == {"its process died, of SIGKILL"}
    assert all("queries=3" in case for case, _ in shown)


def test_a_scheduler_that_goes_ends_the_run_which_then_goes_on(module: Module, command: Command, tmp_path: Path) -> None:
    module(SOURCE)
    file = tmp_path / "it.db"
    with cluster() as made:
        process = command.start(*command_for("Slow"), "--dask", made.scheduler_address)
        until(lambda: rows(file) or process.poll() is not None, "the first unit")
        before = rows(file)
    out, err = process.communicate(timeout=LONG)
    assert (process.returncode, out) == (2, "")
    assert "is gone; what is done is kept, and the same command goes on" in err
    assert "Traceback" not in err
    assert 0 < len(rows(file)) < 8
    assert set(before) <= set(rows(file))
    with cluster() as made:
        code, _, err = command.run(*command_for("Slow"), "--dask", made.scheduler_address)
    assert code == 0, err
    assert rows(file) == expected("Slow")


def test_no_scheduler_is_an_error(command: Command, module: Module, tmp_path: Path) -> None:
    module(SOURCE)
    start = time.monotonic()
    code, out, err = command.run(*command_for("Mine"), "--dask", "tcp://127.0.0.1:1")
    assert (code, out) == (2, "")
    assert "no dask scheduler answers at tcp://127.0.0.1:1: " in err
    assert "Traceback" not in err
    assert time.monotonic() - start < 60
    assert not (tmp_path / "it.db").exists()


@pytest.mark.parametrize("address", ["nowhere", "carrier-pigeon://here:1"])
def test_what_is_no_address_is_an_error(address: str) -> None:
    with pytest.raises(CampaignError, match=f"no dask scheduler answers at {address}: "), dask(address):
        pass


def test_a_cluster_without_workers_is_an_error() -> None:
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as empty,
        pytest.raises(CampaignError, match="has no workers"),
        dask(empty.scheduler_address),
    ):
        pass
