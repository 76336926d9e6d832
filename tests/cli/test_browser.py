"""The report in a real browser: nothing loads, nothing runs that is not ours, everything is readable on a phone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from builders.hostile import CLASSES, FILE, train_hostile
from vitlet.analysis.report.page import report_runs

pytestmark = pytest.mark.heavy

PHONE = 390


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reported")
    return report_runs(train_hostile(root), root / "<s>report.html", device="cpu")


def opened(browser: Any, page: Path, *, width: int = 1280, scheme: str = "light") -> Any:
    """The page, at this width and with this taste of the user."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get_log("browser")
    browser.get(page.as_uri())
    return browser


def test_nothing_complains_and_all_pictures_load(browser: Any, page: Path) -> None:
    opened(browser, page)
    assert browser.get_log("browser") == []
    sizes = browser.execute_script("return [...document.images].map(image => image.naturalWidth)")
    assert len(sizes) > 20
    assert min(sizes) > 0
    inside = browser.execute_script(
        "return [...document.querySelectorAll('svg image')].map(image => image.href.baseVal)"
    )
    assert inside
    assert all(source.startswith("data:image/webp") for source in inside)
    decoded = browser.execute_async_script(
        "const done = arguments[1]; const image = new Image();"
        "image.onload = () => done(image.naturalWidth); image.onerror = () => done(0); image.src = arguments[0];",
        inside[0],
    )
    assert decoded > 0
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map(each => each.name.slice(0, 5))"
    )
    assert set(loaded) <= {"data:"}


def test_names_are_text(browser: Any, page: Path) -> None:
    opened(browser, page)
    text = browser.execute_script("return document.body.textContent")
    for name in (*CLASSES, "<i>drloc & co", FILE.replace("\u202e", "\ufffd")):
        assert name in text
    assert browser.title == "Report: <i>drloc & co, plain"
    made = (
        "return document.querySelectorAll('main i:not(.key):not(.dot), main s, [onerror], [onload], [onclick]').length"
    )
    assert browser.execute_script(made) == 0
    assert browser.execute_script("return document.scripts.length") == 1
    # Even markup that got in would not run: the page allows its own script alone.
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned = 1\">')")
    time.sleep(0.5)
    assert browser.execute_script("return window.owned") is None


def test_tables_sort_on_a_click(browser: Any, page: Path) -> None:
    opened(browser, page)
    column = (
        "const table = [...document.querySelectorAll('table.sortable')]"
        ".find(each => each.textContent.includes('last less first'));"
        "const index = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent === arguments[0]);"
        "return [...table.tBodies[0].rows].map(row => row.cells[index].textContent)"
    )
    click = (
        "const table = [...document.querySelectorAll('table.sortable')]"
        ".find(each => each.textContent.includes('last less first'));"
        "const head = [...table.tHead.rows[0].cells].find(cell => cell.textContent === arguments[0]);"
        "head.querySelector('button').click(); return head.getAttribute('aria-sort')"
    )
    before = browser.execute_script(column, "class")
    assert sorted(before) == sorted(CLASSES)
    assert browser.execute_script(click, "class") == "ascending"
    ascending = browser.execute_script(column, "class")
    assert browser.execute_script(click, "class") == "descending"
    assert browser.execute_script(column, "class") == ascending[::-1]
    assert sorted(ascending) == sorted(before)
    assert browser.execute_script(click, "plain") == "descending"
    values = browser.execute_script(column, "plain")
    assert values[-1] == "–"  # the class without test images stays last, whichever way round
    assert float(values[0]) >= float(values[1])
    assert browser.execute_script(click, "plain") == "ascending"
    values = browser.execute_script(column, "plain")
    assert values[-1] == "–"
    assert float(values[0]) <= float(values[1])


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_nothing_is_wider_than_the_screen(browser: Any, page: Path, width: int) -> None:
    opened(browser, page, width=width)
    browser.execute_script("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    small = (
        "return [...document.querySelectorAll('p, td, th, dd, dt, figcaption, h2, h3, li')]"
        ".map(each => parseFloat(getComputedStyle(each).fontSize)).reduce((a, b) => Math.min(a, b))"
    )
    assert browser.execute_script(small) >= 12
    scaled = (
        "return [...document.querySelectorAll('svg.plot')].map(each =>"
        "11.5 * each.getBoundingClientRect().width / each.viewBox.baseVal.width)"
        ".reduce((a, b) => Math.min(a, b))"
    )
    assert browser.execute_script(scaled) >= 8  # pixels of the letters in charts


def contrast(browser: Any) -> float:
    """Of the text on a card, as WCAG counts it."""
    colours = browser.execute_script(
        "const card = document.querySelector('main > section');"
        "return [getComputedStyle(document.body).color, getComputedStyle(card).backgroundColor]"
    )
    lights = []
    for colour in colours:
        channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
        lights.append(sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def background(browser: Any) -> int:
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])


def test_light_and_dark(browser: Any, page: Path) -> None:
    opened(browser, page, scheme="light")
    assert background(browser) > 600
    assert contrast(browser) > 7
    browser.execute_script("document.getElementById('theme').click()")
    assert background(browser) < 150
    opened(browser, page, scheme="dark")
    assert background(browser) < 150
    assert contrast(browser) > 7
    browser.execute_script("document.getElementById('theme').click()")
    assert background(browser) > 600


def test_folded_on_a_phone(browser: Any, page: Path) -> None:
    count = "return [...document.querySelectorAll('details.part')].filter(part => part.open).length"
    every = opened(browser, page).execute_script("return document.querySelectorAll('details.part').length")
    assert browser.execute_script(count) == every > 8
    opened(browser, page, width=PHONE)
    assert browser.execute_script(count) == 1
    assert browser.execute_script("return document.documentElement.scrollHeight") < 5 * 844
    link = "[...document.querySelectorAll('nav a')].find(link => link.textContent === 'Confusion')"
    browser.execute_script(f"{link}.click()")
    assert browser.execute_script(count) == 2
    assert browser.execute_script(f"return document.querySelector({link}.hash).querySelector('details').open")


def test_what_scrolls_says_so(browser: Any, page: Path) -> None:
    opened(browser, page, width=PHONE)
    browser.execute_script("for (const part of document.querySelectorAll('details')) part.open = true")
    time.sleep(0.3)  # observers are told after the next frame
    wide = "[...document.querySelectorAll('.wide')]"
    cut = browser.execute_script(f"return {wide}.map(box => box.scrollWidth > box.clientWidth + 1)")
    hints = browser.execute_script(f"return {wide}.map(box => box.previousElementSibling.offsetHeight > 0)")
    assert any(cut)
    assert hints == cut
    ended = f"const box = {wide}.find(box => box.scrollWidth > box.clientWidth + 1); box.scrollLeft = 9999; return box"
    box = browser.execute_script(ended)
    time.sleep(0.3)
    assert not browser.execute_script("return arguments[0].classList.contains('more')", box)


def test_pictures_are_enlarged_on_a_click(browser: Any, page: Path) -> None:
    opened(browser, page)
    small = browser.execute_script("return document.querySelector('.looks img.zoom').getBoundingClientRect().width")
    assert small >= 110
    for kind in ("img.zoom", "svg.zoom"):
        browser.execute_script(
            "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click', {bubbles: true}))", kind
        )
        shown = browser.execute_script(
            "const zoom = document.getElementById('zoom');"
            "return [zoom.open, zoom.firstElementChild.getBoundingClientRect().width, zoom.textContent]"
        )
        assert shown[0]
        assert shown[1] > 2 * small
        assert shown[2].strip()
        browser.execute_script("document.getElementById('zoom').click()")
        assert not browser.execute_script("return document.getElementById('zoom').open")


def test_values_under_the_pointer(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    opened(browser, page)
    chart = browser.execute_script("return document.querySelector('svg.plot')")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(browser).move_to_element(chart).perform()
    readout = browser.execute_script("return arguments[0].parentElement.querySelector('.readout').textContent", chart)
    assert readout.startswith("epoch ")
    assert "<i>drloc & co" in readout
