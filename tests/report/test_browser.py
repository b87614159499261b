"""The daily report in a browser: nothing is requested, nothing scrolls sideways, tooltips work."""

import shutil
from typing import NamedTuple

import pytest

from tests.report.conftest import build
from tests.report.warehouse import DAY

sync_api = pytest.importorskip("playwright.sync_api", reason="install playwright with pip")

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FOUND = next(filter(None, map(shutil.which, PROGRAMS)), None)
# A browser as root, in a container, that asks for nothing of its own.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOUND is None, reason="no Chromium: apt-get install chromium"),
]


class Opened(NamedTuple):
    """A page, and what happened while it was opened."""

    page: object
    requests: list[str]
    errors: list[str]

    @property
    def widths(self):
        """Of the content and of the window."""
        return self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=FOUND, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def files(page, static_page, unfinished, tmp_path_factory):
    directory = tmp_path_factory.mktemp("pages")
    pages = {"live": page, "static": static_page, "unfinished": build(unfinished, DAY)}
    for name, text in pages.items():
        (directory / f"{name}.html").write_text(text, encoding="utf-8")
    return directory


@pytest.fixture
def open_page(browser, files):
    contexts = []

    def open_(name, width=1280, scheme="light", javascript=True):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=javascript,
            offline=True,
        )
        contexts.append(context)
        opened = Opened(context.new_page(), [], [])
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
        opened.page.on(
            "console",
            lambda message: (
                opened.errors.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        opened.page.goto((files / f"{name}.html").as_uri())
        return opened

    yield open_
    for context in contexts:
        context.close()


def scroll_through(page):
    """Every plot is drawn once it is in view."""
    plots = page.locator("figure.plot")
    for number in range(plots.count()):
        plots.nth(number).scroll_into_view_if_needed()
        plots.nth(number).locator("[data-live]").wait_for(state="attached")
    return plots.count()


def test_nothing_is_requested_and_tooltips_show_the_numbers(open_page):
    opened = open_page("live")
    assert scroll_through(opened.page) == 9
    plot = opened.page.locator("figure.plot").first
    plot.scroll_into_view_if_needed()
    box = plot.locator(".wide svg").bounding_box()
    opened.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"])
    tooltip = opened.page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    hour, this_day, _ = tooltip.inner_text().splitlines()
    shown = hour.split("\t")[1]
    plot.locator("summary").click()
    row = plot.locator("tbody tr", has=opened.page.get_by_text(shown, exact=True))
    assert row.locator("td").nth(1).inner_text() == this_day.split("\t")[1]
    assert [url for url in opened.requests if not url.startswith("file:")] == []
    assert len(opened.requests) == 1 and opened.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["live", "static", "unfinished"])
def test_a_small_screen_does_not_scroll_sideways(open_page, name, scheme):
    opened = open_page(name, 360, scheme)
    if name == "live":
        scroll_through(opened.page)
    for summary in opened.page.locator("summary").all():
        summary.click()
    content, window = opened.widths
    assert content <= window == 360
    plot = opened.page.locator("figure.plot").first
    assert plot.locator(".narrow").is_visible() and not plot.locator(".wide").is_visible()
    assert opened.errors == []


def test_colors_follow_the_scheme(open_page):
    def colors(scheme):
        opened = open_page("live", scheme=scheme)
        scroll_through(opened.page)
        line = opened.page.locator('figure.plot .wide [stroke="#2f6fde"]').first
        text = opened.page.locator("figure.plot .wide text").first
        section = opened.page.locator("section").first
        return (
            section.evaluate("element => getComputedStyle(element).backgroundColor"),
            line.evaluate("element => getComputedStyle(element).stroke"),
            text.evaluate("element => getComputedStyle(element).fill"),
        )

    light, dark = colors("light"), colors("dark")
    assert all(one != other for one, other in zip(light, dark, strict=True))


def test_the_page_is_complete_without_scripts(open_page):
    opened = open_page("live", 640, javascript=False)
    plots = opened.page.locator("figure.plot .wide svg")
    assert plots.count() == 9 and all(plot.is_visible() for plot in plots.all())
    assert opened.errors == []


def test_numbers_are_offered_as_a_file(open_page):
    opened = open_page("static")
    plot = opened.page.locator("figure.plot").first
    plot.locator("summary").click()
    with opened.page.expect_download() as download:
        plot.get_by_text("CSV", exact=True).click()
    with open(download.value.path(), encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert download.value.suggested_filename == "traffic-1.csv"
    assert lines[0] == "hour,views,views_before" and len(lines) == 25
