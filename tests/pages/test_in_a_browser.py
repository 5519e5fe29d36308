"""The matrix page in a real browser: what it shows, by mouse and by keyboard alone, and that it keeps to itself."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from faults.matrix import glance
from faults.pages.facts import Entry, entry, facts
from faults.pages.matrix_page import matrix_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

expect = pytest.importorskip("playwright.sync_api", reason="no playwright here: `tox run -e pages` has it").expect

NAMES = ("wrong-merge-order", "missing-transpose", "unexpanded-kv-heads", "reset-of-the-tensors-alone", "causal-flag-sticks")
SURVIVOR = "missing-scale"  # made one below: there is none
HOSTILE = "</script><script>alert(1)</script><img src='https://example.com/x.png'>"

Opened = Callable[..., "Page"]


@pytest.fixture(scope="session")
def told() -> dict[str, Any]:
    """The facts about a handful of faults, measured; one of them made a survivor, and the evidence of one hostile."""
    found = [entry(name, look=glance) for name in (*NAMES, SURVIVOR, "dropped-key-bias")]
    hostile = [replace(kill, evidence=HOSTILE) for kill in found[0].row.kills]
    found[0] = replace(found[0], row=replace(found[0].row, kills=tuple(hostile)))
    found[1] = replace(found[1], row=replace(found[1].row, symptom="either"))  # which six cases are too few to tell
    found[5] = Entry(replace(found[5].row, kills=(), first=(), cases=None), found[5].lesson)
    return facts(found)


@pytest.fixture(scope="session")
def small(told: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "matrix.html"
    path.write_text(matrix_page(told), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def large(told: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of as many faults as there are."""
    many = copy.deepcopy(told)
    many["faults"] = [
        fault | {"name": f"{fault['name']}-{n}", "family": f"family {n}"} for n in range(42) for fault in told["faults"]
    ]
    path = tmp_path_factory.mktemp("page") / "large.html"
    path.write_text(matrix_page(many), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Browser, small: Path) -> Iterator[Opened]:
    """Opens the page; afterwards nothing may have been logged, and nothing asked for besides the file."""
    logged: list[str] = []
    contexts = []

    def open_(fragment: str = "", path: Path = small, width: int = 1280, height: int = 800, scheme: Any = "light") -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: logged.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: logged.append(f"error: {error}"))
        page.on("request", lambda request: request.url.startswith(path.as_uri()) or logged.append(f"asked for {request.url}"))
        page.on("dialog", lambda dialog: (logged.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(path.as_uri() + fragment)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert logged == []


def faults_shown(page: Page) -> list[str]:
    return page.locator("tr[data-r] th").all_inner_texts()


def properties_shown(page: Page) -> int:
    return page.locator("tr.columns th").count()


def focused(page: Page) -> str:
    """Where the focus is: the name of the cell, or the id."""
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.id"))


def settled(page: Page) -> Page:
    page.wait_for_timeout(150)  # a filter waits for the next key
    return page


# What is drawn.


def test_the_picture_is_what_was_measured(opened: Opened, told: dict[str, Any]) -> None:
    page = opened()
    assert faults_shown(page) == [*NAMES, SURVIVOR]
    assert properties_shown(page) == len(told["properties"])
    lines = page.locator("tr[data-r]").evaluate_all(
        "rows => rows.map(row => [...row.cells].slice(1).map(cell => cell.classList[0]))"
    )
    for line, fault in zip(lines, told["faults"], strict=True):
        for number, letter in enumerate(line):
            first, killed = number in fault["first"], number in fault["kills"]
            assert letter == ("f" if first else "k" if killed else "n" if number in fault["not_applicable"] else "h")
    assert {letter for line in lines for letter in line} == set("fknh")


def test_families_label_both_sides(opened: Opened, told: dict[str, Any]) -> None:
    page = opened()
    below = [fault["family"] for fault in told["faults"]]
    across = [property_["family"] for property_ in told["properties"]]
    assert page.locator("tr.label th").all_inner_texts() == [f for n, f in enumerate(below) if not n or f != below[n - 1]]
    assert page.locator("tr.families th").all_inner_texts() == [f for n, f in enumerate(across) if not n or f != across[n - 1]]


def test_numbers_at_the_head(opened: Opened) -> None:
    page = opened()
    text = page.locator("#numbers").inner_text()
    assert "5 of 6" in text and "the others survive" in text
    assert page.locator("h1").inner_text().startswith("6 ways to break attention, ")


def test_a_screen_reader_meets_a_grid(opened: Opened) -> None:
    page = opened()
    expect(page.get_by_role("grid", name="Kill matrix")).to_be_visible()
    expect(page.get_by_role("rowheader", name="wrong-merge-order")).to_be_visible()
    expect(page.get_by_role("columnheader", name="rows sum to one")).to_be_visible()
    assert page.get_by_role("gridcell").count() >= 6 * properties_shown(page)
    expect(page.get_by_role("search", name="Filters of the matrix")).to_be_visible()
    unnamed = page.locator("input, select, button").evaluate_all(
        "all => all.filter(one => !(one.labels && one.labels.length) && !one.textContent.trim()).map(one => one.outerHTML)"
    )
    assert unnamed == []


def test_states_differ_in_more_than_colour(opened: Opened) -> None:
    page = opened()
    drawn = {}
    for letter in "fkhn":
        style = page.locator(f"td.{letter}:not(.g)").first.evaluate(
            "cell => [getComputedStyle(cell).backgroundImage, getComputedStyle(cell).backgroundColor]"
        )
        drawn[letter] = ("radial-gradient" in style[0], style[1] != "rgba(0, 0, 0, 0)")
    assert drawn == {"f": (True, True), "k": (False, True), "h": (True, False), "n": (False, False)}


def test_the_readout_follows_the_pointer(opened: Opened, told: dict[str, Any]) -> None:
    page = opened()
    expect(page.locator("#readout")).to_be_hidden()
    cell = page.locator("tr[data-r='3'] td.f").first
    cell.hover()
    expect(page.locator("#readout")).to_contain_text("reset-of-the-tensors-alone × ")
    expect(page.locator("#readout")).to_contain_text("killed on the first case")
    expect(page.locator("#readout")).to_contain_text("Case(")
    page.locator("tr[data-r='0'] td.n").first.hover()
    expect(page.locator("#readout")).to_contain_text("not applicable")
    expect(page.locator("#readout .detail")).to_have_text(
        told["reasons"][next(iter(told["faults"][0]["not_applicable"].values()))]
    )
    page.locator("tr[data-r='4'] th").hover()
    expect(page.locator("#readout")).to_contain_text("killed by 1 property")
    page.locator("h1").hover()
    expect(page.locator("#readout")).to_be_hidden()


def test_headings_stay_in_sight(opened: Opened, large: Path) -> None:
    page = opened(path=large)
    page.mouse.move(640, 600)
    page.mouse.wheel(0, 1500)
    page.wait_for_function("scrollY > 1000")
    assert 0 <= page.locator("tr.columns th").first.bounding_box()["y"] < 200  # type: ignore[index]
    narrow = opened(path=large, width=390)
    narrow.locator("#frame").evaluate("frame => frame.scrollTo(500, 1200)")
    heading, name = narrow.locator("tr.columns th").nth(60), narrow.locator("tr[data-r='70'] th")
    top = narrow.locator("#frame").bounding_box()["y"]  # type: ignore[index]
    assert heading.bounding_box()["y"] - top < 200  # type: ignore[index]
    assert 0 <= name.bounding_box()["x"] < 40  # type: ignore[index]


def test_the_whole_picture_fits_the_window(opened: Opened, large: Path) -> None:
    page = opened(path=large, width=1600, height=1000)
    page.get_by_role("button", name="Whole picture").click()
    height = page.locator("#matrix").bounding_box()["height"]  # type: ignore[index]
    assert height < 1100
    expect(page.get_by_role("button", name="Whole picture")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Whole picture").click()
    assert page.locator("#matrix").bounding_box()["height"] > 3000  # type: ignore[index]


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(opened: Opened, large: Path, small: Path, width: int) -> None:
    for path in (large, small):
        page = opened(path=path, width=width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    for fragment in ("#fault-wrong-merge-order", "#property-rows_sum_to_one"):
        page = opened(fragment, width=width)
        expect(page.locator("#sheet")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#sheet").evaluate("sheet => sheet.scrollWidth - sheet.clientWidth") <= 0


# Filters.


@pytest.mark.parametrize(
    ("control", "value", "left"),
    [
        ("fault-text", "MERGE heads", ["wrong-merge-order"]),
        ("fault-family", "cache", ["reset-of-the-tensors-alone"]),
        ("symptom", "loud", ["unexpanded-kv-heads"]),
        ("symptom", "either", ["missing-transpose"]),
        ("root-cause", "qkv projection", ["wrong-merge-order", "missing-transpose"]),
        ("root-cause", "score: normalization", [SURVIVOR]),
        ("killed", "one", ["reset-of-the-tensors-alone", "causal-flag-sticks"]),
        ("killed", "none", [SURVIVOR]),
    ],
)
def test_filters_of_faults(opened: Opened, control: str, value: str, left: list[str]) -> None:
    page = opened()
    if control == "fault-text":
        page.fill(f"#{control}", value)
    else:
        page.select_option(f"#{control}", value)
    assert faults_shown(settled(page)) == left
    assert page.locator("#shown").inner_text().startswith(f"{len(left)} fault")
    page.get_by_role("button", name="Clear filters").click()
    assert len(faults_shown(settled(page))) == 6
    expect(page.get_by_role("button", name="Clear filters")).to_be_hidden()


def test_filters_of_properties(opened: Opened, told: dict[str, Any]) -> None:
    page = opened()
    page.select_option("#property-family", "decoding")
    assert properties_shown(settled(page)) == sum(p["family"] == "decoding" for p in told["properties"])
    assert "1 killed" in page.locator("#shown").inner_text()
    page.fill("#property-text", "requests do not")
    assert settled(page).locator("tr.columns th").all_inner_texts() == ["requests do not see each other"]
    page.get_by_role("button", name="Clear filters").click()
    settled(page).check("#smallest")
    assert properties_shown(settled(page)) == len(told["smallest"])
    assert "5 killed" in page.locator("#shown").inner_text()


def test_nothing_left(opened: Opened) -> None:
    page = opened()
    page.fill("#fault-text", "no such words")
    expect(page.locator("#nothing")).to_be_visible()
    expect(page.locator("#matrix")).to_be_hidden()
    page.fill("#fault-text", "")
    expect(page.locator("#nothing")).to_be_hidden()
    assert len(faults_shown(page)) == 6


# Lessons.


def test_a_click_on_a_fault_opens_its_lesson(opened: Opened) -> None:
    page = opened()
    page.locator("tr[data-r='0'] th").click()
    lesson = page.get_by_role("dialog", name="wrong-merge-order")
    expect(lesson).to_contain_text("Merge the heads with one reshape of")
    for heading in (
        "Why it is wrong",
        "When it shows",
        "The step, merge_heads",
        "See it",
        "A counterexample",
        "What kills it: ",
        "Seen in the wild",
    ):
        expect(lesson.get_by_role("heading", name=re.compile(f"^{heading}"))).to_be_visible()
    expect(lesson.locator("ins")).to_contain_text("heads.reshape")
    expect(lesson.locator("del").first).to_contain_text("heads.transpose(1, 2)")
    expect(lesson).to_contain_text("Silent: nothing is raised")
    expect(lesson.locator("figure.tensor td.number.wrong").first).to_be_visible()
    assert page.url.endswith("#fault-wrong-merge-order")


def test_evidence_is_text_whatever_stands_in_it(opened: Opened) -> None:
    page = opened("#fault-wrong-merge-order")
    page.locator("#sheet .killers summary").first.click()
    expect(page.locator("#sheet .killers pre").first).to_contain_text(HOSTILE)
    assert page.locator("#sheet img").count() == 0


def test_a_cell_opens_the_lesson_with_what_is_in_it(opened: Opened) -> None:
    page = opened()
    page.locator("tr[data-r='3'] td.f").first.click()
    expect(page.locator("#sheet .cell")).to_contain_text("killed on the first case")
    page.keyboard.press("Escape")
    page.locator("tr[data-r='3'] td.n").first.click()
    expect(page.locator("#sheet .cell")).to_contain_text("not applicable")


def test_a_click_on_a_property_shows_its_law_and_what_it_kills(opened: Opened, told: dict[str, Any]) -> None:
    page = opened()
    page.get_by_role("columnheader", name="rows sum to one").click()
    law = page.get_by_role("dialog", name="rows sum to one")
    expect(law).to_contain_text("The weights of a query that sees a key sum to 1.")
    number = [p["name"] for p in told["properties"]].index("rows_sum_to_one")
    victims = [fault["name"] for fault in told["faults"] if number in fault["kills"]]
    assert victims and law.locator(".killers a").all_inner_texts() == victims
    law.get_by_role("link", name=victims[0]).click()
    expect(page.get_by_role("dialog", name=victims[0])).to_be_visible()


def test_links_lead_into_the_page_and_back(opened: Opened) -> None:
    page = opened("#property-rows_sum_to_one")
    expect(page.get_by_role("dialog", name="rows sum to one")).to_be_visible()
    page.goto(page.url.partition("#")[0] + "#fault-missing-transpose")
    expect(page.get_by_role("dialog", name="missing-transpose")).to_be_visible()
    page.get_by_role("link", name="next →").click()
    expect(page.get_by_role("dialog", name="unexpanded-kv-heads")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("dialog", name="missing-transpose")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page).not_to_have_url(re.compile("#"))
    page.goto(page.url + "#fault-no-such-fault")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_survivor_says_so(opened: Opened) -> None:
    expect(opened(f"#fault-{SURVIVOR}").get_by_role("dialog")).to_contain_text("It survives")


# The keyboard alone.


def test_everything_by_keyboard(opened: Opened) -> None:
    page = opened()
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(focused(page))
        if "wrong-merge-order" in reached[-1]:
            break
    assert {
        "theme",
        "fault-text",
        "fault-family",
        "root-cause",
        "symptom",
        "killed",
        "property-text",
        "property-family",
        "smallest",
        "whole",
    } <= {*reached}
    assert reached[-1].startswith("wrong-merge-order, output is the formula, killed")
    outline = page.evaluate(
        "getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth"
    )
    assert outline == "solid2px"
    for key, at in (
        ("ArrowDown", "missing-transpose, output is the formula, "),
        ("ArrowRight", "missing-transpose, weights are the formula, "),
        ("Home", "missing-transpose, killed by "),
        ("ArrowUp", "wrong-merge-order, killed by "),
        ("ArrowUp", "output is the formula, kills "),  # the corner is nothing
        ("PageDown", "wrong-merge-order, output is the formula"),
        ("PageDown", "unexpanded-kv-heads, output is the formula"),
        ("PageUp", "wrong-merge-order, output is the formula"),
        ("End", "wrong-merge-order, a reset reaches every parameter, "),
        ("ArrowRight", "wrong-merge-order, a reset reaches every parameter, "),
        ("Control+End", f"{SURVIVOR}, a reset reaches every parameter, "),
        ("Control+Home", "wrong-merge-order, output is the formula, "),
    ):
        page.keyboard.press(key)
        assert focused(page).startswith(at), key
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="wrong-merge-order")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.getElementById('sheet').contains(document.activeElement)")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert focused(page).startswith("wrong-merge-order, output is the formula, ")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="output is the formula")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+Tab")
    assert focused(page) == "whole"


def test_focus_is_never_behind_what_stays_in_sight(opened: Opened, large: Path) -> None:
    page = opened(path=large)
    page.locator("tr[data-r='0'] td").first.focus()
    for key in ("Control+End", "PageUp", "PageUp", "PageUp", "PageUp", "ArrowUp", "Control+Home", "ArrowUp"):
        page.keyboard.press(key)
        box = page.evaluate(
            """() => {
                const cell = document.activeElement.getBoundingClientRect();
                const seen = document.elementFromPoint(cell.x + cell.width / 2, cell.y + cell.height / 2);
                return seen.closest("td, th") === document.activeElement;
            }"""
        )
        assert box, key


def test_a_filter_keeps_the_place(opened: Opened) -> None:
    page = opened()
    page.locator("tr[data-r='3'] td.f").first.click()
    page.keyboard.press("Escape")
    before = focused(page)
    page.select_option("#fault-family", "cache")
    settled(page).locator("#matrix [tabindex='0']").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    assert focused(page) == before


# Light, dark, paper.


def _lightness(colour: str) -> float:
    """Relative luminance, of `rgb(1, 2, 3)` or `color(srgb 0.1 0.2 0.3)`."""
    whole = 1 if colour.startswith("color(srgb ") else 255
    channels = [float(part) / whole for part in re.findall(r"[\d.]+", colour)[:3]]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _contrast(page: Page, selector: str) -> float:
    text, ground = page.locator(selector).first.evaluate(
        """element => {
            let ground = element;
            while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
            return [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor];
        }"""
    )
    low, high = sorted((_lightness(text), _lightness(ground)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_are_legible(opened: Opened, scheme: str) -> None:
    page = opened("#fault-wrong-merge-order", scheme=scheme)
    ground = _lightness(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (ground > 0.5) == (scheme == "light")
    for selector in (
        ".lede",
        "#numbers dt",
        "tr[data-r] th",
        "tr.columns th span",
        ".legend li",
        "h2",
        ".note",
        "del",
        "ins",
        "td.number.wrong",
    ):
        assert _contrast(page, selector) >= 4.5, selector


def test_the_scheme_can_be_chosen(opened: Opened) -> None:
    page = opened(scheme="light")
    button = page.locator("#theme")
    seen = []
    for _ in range(3):
        button.click()
        seen.append((button.inner_text(), _lightness(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.5))
    assert seen == [("Colours: light", True), ("Colours: dark", False), ("Colours: auto", True)]


def test_on_paper_there_is_what_can_be_read_and_nothing_to_press(opened: Opened) -> None:
    page = opened(scheme="dark")
    page.emulate_media(media="print")
    expect(page.locator("#matrix")).to_be_visible()
    expect(page.locator("#filters")).to_be_hidden()
    assert _lightness(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.5
    lesson = opened("#fault-wrong-merge-order")
    lesson.emulate_media(media="print")
    expect(lesson.locator("#matrix")).to_be_hidden()
    expect(lesson.locator("#sheet article")).to_be_visible()
    expect(lesson.locator("#sheet nav")).to_be_hidden()


def test_the_facts_are_there_for_others(opened: Opened, told: dict[str, Any]) -> None:
    page = opened()
    assert json.loads(page.locator("#facts").inner_text()) == json.loads(json.dumps(told))
