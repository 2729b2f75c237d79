"""The page in a browser: headless Chromium draws it, and a user looks at it."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pages
import pytest
from fakes import FakeWorld, refusal, thread_cost
from test_writing import hostile_state

from autotune.facts import sample_models
from autotune.measure.outcome import Failure
from autotune.report.page.state import StudyState
from autotune.report.page.writing import write_page, write_report
from autotune.space.configuration import Configuration

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
TRIALS = 24

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("quiet")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium of this machine."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    with api.sync_playwright() as playwright:
        # a container's root has no sandbox of Chromium's own
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study whose measurements were computed; those without spinning fail."""

    def cost(configuration: Configuration) -> tuple[float, float] | Failure:
        if configuration.to_json().get("spinning") == "off":
            return refusal("it must spin")
        costs = thread_cost(configuration)
        assert not isinstance(costs, Failure)
        # no two points lie in one place
        luck = int(configuration.key, 16) / 2**64
        return costs[0] + luck, costs[1] + 20 * luck

    folder = tmp_path_factory.mktemp("browser")
    sample_models.write("lstm", folder / "lstm.onnx")
    FakeWorld(cost, on_disk=True).tune(
        folder / "lstm.onnx", trials=TRIALS, space="session", out=folder / "out", early_stop=False
    )
    return write_report(folder / "out")


class Look:
    """A page that a browser has drawn, with all that it complained about."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.complaints: list[str] = []
        self._file = file
        self.page = browser.new_page(**options)
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("request", lambda request: self._note("request", request.url))
        self.page.on("dialog", self._dismiss)
        self.page.goto(file.as_uri())

    def _dismiss(self, dialog: Any) -> None:
        self.complaints.append("dialog")
        dialog.dismiss()

    def _note(self, kind: str, text: str) -> None:
        own = kind == "request" and text.startswith((self._file.as_uri(), "data:", "blob:"))
        if not own and kind not in {"log", "info", "debug"}:
            self.complaints.append(f"{kind}: {text}")

    def text(self, selector: str) -> str:
        """Returns the text of the first element that the selector finds."""
        return str(self.page.locator(selector).first.text_content())

    def count(self, selector: str) -> int:
        """Returns how many elements the selector finds."""
        return int(self.page.locator(selector).count())


@pytest.fixture(scope="module")
def look(browser: Any, report: Path) -> Iterator[Look]:
    """The page of the study as a browser shows it; tests share it, as loading it takes long."""
    look = Look(browser, report, viewport={"width": 1280, "height": 900})
    yield look
    look.page.close()


def test_every_figure_is_drawn_without_a_complaint(look: Look) -> None:
    assert look.complaints == []
    for name in ("front", "search", "memory", "noise"):
        assert look.count(f"#figure-{name} .plane > :is(use, line:not(.grid))") > 0
    assert look.count("#figure-front use[data-trial]") >= TRIALS / 2


def test_the_filter_leaves_the_rows_that_fit(look: Look) -> None:
    rows = "#table tbody tr:visible"
    everything = look.count(rows)
    assert everything == TRIALS
    look.page.fill("#filter-text", "NO arena")
    fitting = look.page.locator(rows).all_inner_texts()
    assert 0 < len(fitting) < everything
    assert all("no" in text and "arena" in text for text in fitting)
    assert look.text("#filter-count") == f"{len(fitting)} of {everything}"
    look.page.fill("#filter-text", "spin")
    spinning = look.count(rows)
    look.page.select_option("#filter-state", "failed")
    failed = look.page.locator(rows).all_inner_texts()
    assert 0 < len(failed) < spinning
    assert all("it must spin" in text for text in failed)
    look.page.fill("#filter-text", "")
    look.page.select_option("#filter-state", "")
    assert look.count(rows) == everything
    assert look.complaints == []


def test_the_pointer_shows_the_configuration(look: Look) -> None:
    """The first line of what a mark says is what the browser shows beside the pointer."""
    trial = look.text("#table tr.chosen td")
    shown = look.text(f'#figure-front use[href="#star"][data-trial="{trial}"] title')
    assert shown.startswith(f"trial {trial}, final comparison: ")
    assert look.text("#table tr.chosen .clamp").split(",")[0] in shown


def test_a_click_selects_the_configuration(look: Look) -> None:
    chosen = look.text("#table tr.chosen td")
    assert look.text("#details-title") == f"Trial {chosen}: chosen"
    look.page.click('#figure-front use[href="#diamond"][data-trial="0"]')
    look.page.wait_for_selector("#details-title:text('Trial 0: the default')")
    assert look.page.get_attribute("#table tr.selected", "data-trial") == "0"
    look.page.click("#table tr.failed .words")
    assert "failed" in look.text("#details-title")
    assert "it must spin" in look.text("#details-lines")
    assert look.count("#table tr.selected") == 1
    assert look.complaints == []


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_look_follows_the_system(look: Look, scheme: str) -> None:
    look.page.emulate_media(color_scheme=scheme)
    red = look.page.evaluate(
        "['body', '#figure-front .plane text'].map((selector) => {"
        " const style = getComputedStyle(document.querySelector(selector));"
        " return Number((selector === 'body' ? style.backgroundColor : style.fill)"
        ".match(/\\d+/)[0]); })"
    )
    background, text = red
    assert (background < text) == (scheme == "dark")
    assert look.complaints == []


def test_a_phone_has_no_wide_page(browser: Any, report: Path) -> None:
    look = Look(browser, report, viewport={"width": 390, "height": 800})
    assert look.page.evaluate("document.documentElement.scrollWidth") == 390
    widths = "[...document.querySelectorAll('.plane')].map((svg) => svg.clientWidth)"
    assert max(look.page.evaluate(widths)) < 390
    assert look.complaints == []
    look.page.close()


def test_paper_has_every_row_and_fitting_figures(browser: Any, report: Path) -> None:
    look = Look(browser, report, viewport={"width": 1280, "height": 900}, color_scheme="dark")
    look.page.emulate_media(media="print")
    assert not look.page.locator("#filter").is_visible()
    height = look.page.evaluate("document.getElementById('table-scroll').clientHeight")
    assert height >= look.page.evaluate("document.getElementById('table').clientHeight")
    assert look.page.pdf().startswith(b"%PDF")
    assert look.complaints == []
    look.page.close()


@pytest.mark.parametrize(
    "state", [hostile_state(), pages.state()], ids=["names of strangers", "still running"]
)
def test_other_states_are_drawn(browser: Any, tmp_path: Path, state: StudyState) -> None:
    look = Look(browser, write_page(replace(state, folder=tmp_path)))
    assert look.complaints == []
    assert look.page.title() != "owned"
    assert look.count("#figure-front use[data-trial]") > 0
    look.page.close()
