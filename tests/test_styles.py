"""The mistakes in other styles, which the diagnosis is measured by (`benchmarks/diagnosis.py`): they are what they say."""

from __future__ import annotations

import pytest

from faults.catalog import catalog
from faults.diagnosis import of_report
from properties import check_attention
from tests.styles.edited import broken, clean, edited, styles, written_for

WRITTEN = [(style, fault) for style, faults in styles().items() for fault in faults]


def test_no_mistake_is_written_twice_and_all_are_of_the_catalog() -> None:
    names = [fault for _, fault in WRITTEN]
    assert len(set(names)) == len(names)
    assert set(names) <= catalog().keys()


@pytest.mark.parametrize("style", styles())
def test_a_style_is_correct(style: str) -> None:
    assert check_attention(clean(style, written_for(style)), only="formula", cases=8).ok


@pytest.mark.parametrize(("style", "fault"), WRITTEN, ids=[fault for _, fault in WRITTEN])
def test_a_mistake_is_an_edit_of_it(style: str, fault: str) -> None:
    assert callable(edited(style, fault).subject)


@pytest.mark.parametrize(
    ("style", "fault", "only"),
    [
        ("loop", "tiled-kv-heads", "reference"),
        ("einsum", "transposed-mask", "reference"),
        ("rows", "keep-probability-for-drop-probability", "the_share_of_dropped_weights"),
        ("alibi_loop", "far-costs-less", "reference"),
        ("window_bmm", "window-one-too-wide", "reference"),
    ],
)
def test_a_mistake_in_another_style_is_recognised(style: str, fault: str, only: str) -> None:
    found = of_report(check_attention(broken(style, fault), only=only, cases=8))
    assert fault in found.answers[0].names
