"""The page in a real browser: nothing in it fails, keys reach everything, hostile content stays text.

Needs Debian's `chromium` and `chromium-driver`, and `selenium`.
"""

from __future__ import annotations

import shlex
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from shardtool.dataset.find import open_dataset
from shardtool.verbs.inspect.page.page import write_page
from tests.helpers import PHOTOS, tool
from tests.tied import tied
from tests.verbs.inspect.made import HOSTILE_KEYS, hostile, image, mask, showing, sound, write_shard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

webdriver = pytest.importorskip("selenium.webdriver")
keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
select = pytest.importorskip("selenium.webdriver.support.ui").Select
wait = pytest.importorskip("selenium.webdriver.support.wait")

_CHROMIUM, _DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip

pytestmark = [pytest.mark.clients, pytest.mark.skipif(not _CHROMIUM or not _DRIVER, reason="no chromium")]

_CONTRAST = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (colour) => {
  const [r, g, b] = colour.map((one) => one / 255)
    .map((one) => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour.slice(0, 3);
  }
  return [255, 255, 255];
};
const bad = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || element.closest("script, style, dialog") || !element.getClientRects().length) continue;
  const style = getComputedStyle(element);
  const ink = parse(element.namespaceURI.endsWith("svg") ? style.fill : style.color).slice(0, 3);
  const [one, other] = [light(ink), light(behind(element))].sort((a, b) => b - a);
  const ratio = (one + .05) / (other + .05);
  const name = element.className.baseVal ?? element.className;
  if (ratio < 4.5) bad.push(`${element.tagName}.${name}: ${ratio.toFixed(2)}`);
}
return [...new Set(bad)];
"""
_FOCUSED = "return document.activeElement.id || document.activeElement.className"
_HERE = "return [...document.querySelectorAll('.sheet > li:not([hidden]) .tile')].indexOf(document.activeElement)"
_SHOWN = "return [...document.querySelector('.sheet').children].filter((one) => one.offsetParent).length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a headless Chromium, which exits with its driver and with the tests."""
    assert _DRIVER
    tied_driver = tmp_path_factory.mktemp("driver") / "chromedriver"
    tied_driver.write_text(f'#!/bin/sh\nexec {shlex.join(tied(_DRIVER))} "$@"\n', encoding="utf-8")
    tied_driver.chmod(0o755)
    options = webdriver.ChromeOptions()
    options.binary_location = _CHROMIUM
    for switch in _SWITCHES:
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=webdriver.ChromeService(str(tied_driver)), options=options)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the page of the sample photographs."""
    folder = tmp_path_factory.mktemp("page")
    ran = tool("create", PHOTOS, folder / "p-{000000..}.tar", "--max-size", "500kB", "--label-from-folder")
    assert ran.code == 0, ran
    with showing(40):
        write_page(open_dataset(folder / "p.json"), str(folder / "page.html"))
    return folder / "page.html"


def _look(browser: Any, page: Path, *, width: int = 1280, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())


def _wait(browser: Any, said: str) -> None:
    for _ in range(100):
        if browser.execute_script(f"return {said}"):
            return
        time.sleep(0.05)
    raise AssertionError(said)


def _press(browser: Any, *pressed: str) -> None:
    for one in pressed:
        webdriver.ActionChains(browser).send_keys(one).perform()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_the_page_opens_and_can_be_read(browser: Any, page: Path, width: int, scheme: str) -> None:
    """No request fails, all pictures decode, nothing exceeds the window's width, and text has AA contrast."""
    _look(browser, page, width=width, scheme=scheme)
    assert browser.get_log("browser") == []
    whole = "[...document.images].every((one) => one.complete && one.naturalWidth > 0)"
    drawn = f"return {whole} && document.querySelector('.sheet').children.length"
    assert browser.execute_script(drawn) == 40
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(_CONTRAST) == []
    dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(19, 21, 25)"
    assert dark == (scheme == "dark")


def test_keys_reach_everything(browser: Any, page: Path) -> None:
    """`/` focuses the search, arrows walk the grid, Enter opens a sample, arrows turn over, Escape leads back."""
    _look(browser, page)
    _press(browser, "/")
    assert browser.execute_script(_FOCUSED) == "search"
    _press(browser, keys.TAB, keys.TAB)
    assert browser.execute_script(_HERE) == 0
    columns = browser.execute_script(
        "return getComputedStyle(document.querySelector('.sheet')).gridTemplateColumns.split(' ').length"
    )
    _press(browser, keys.ARROW_RIGHT, keys.ARROW_DOWN)
    assert browser.execute_script(_HERE) == columns + 1
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    _press(browser, keys.ARROW_UP, keys.END, keys.HOME, keys.ARROW_LEFT)
    assert browser.execute_script(_HERE) == 0
    _press(browser, keys.ENTER)
    assert browser.execute_script("return document.getElementById('view').open")
    first = browser.execute_script("return document.getElementById('view-key').textContent")
    _press(browser, keys.ARROW_RIGHT)
    second = browser.execute_script("return document.getElementById('view-key').textContent")
    assert first != second
    _press(browser, keys.ESCAPE)
    assert not browser.execute_script("return document.getElementById('view').open")
    wait.WebDriverWait(browser, 10).until(lambda one: one.execute_script(_HERE) == 1)  # once the view has closed


def test_one_tab_stop_leads_past_the_grid(browser: Any, page: Path) -> None:
    """Of all tiles only one is a stop of the Tab key."""
    _look(browser, page)
    assert browser.execute_script("return document.querySelectorAll('.tile[tabindex=\"0\"]').length") == 1


def test_search_and_filter(browser: Any, page: Path) -> None:
    """Part of a key and a label filter the page, which shows the number of matches, or that there are none."""
    _look(browser, page)
    _press(browser, "/", *"COFFEE")
    assert browser.execute_script(_SHOWN) == 5
    assert browser.execute_script("return document.getElementById('count').textContent") == "5 of 40 shown"
    _press(browser, *"nowhere")
    assert browser.execute_script(_SHOWN) == 0
    assert browser.execute_script("return document.getElementById('none').offsetParent !== null")
    _press(browser, keys.ESCAPE)
    assert browser.execute_script(_SHOWN) == 30  # five rows, from all over the dataset
    browser.find_element("css selector", "#more button").click()
    assert browser.execute_script(_SHOWN) == 40
    assert browser.execute_script(_HERE) == 1  # the first new one
    select(browser.find_element("id", "label")).select_by_visible_text("cat")
    assert browser.execute_script(_SHOWN) == 5


def test_texts_are_searched(browser: Any, tmp_path: Path) -> None:
    """Words of a text or of a label find the sample; ten thousand of them are searched within a frame or a few."""
    samples = {f"{at:05}": {"txt": f"the harbour of {at:05} boats".encode(), "cls": b"%d" % at} for at in range(2000)}
    write_shard(tmp_path / "d" / "s-000000.tar", samples)
    write_page(open_dataset(tmp_path / "d"), str(tmp_path / "page.html"))
    _look(browser, tmp_path / "page.html")
    _press(browser, "/", *"of 01234 b")
    assert browser.execute_script(_SHOWN) == 1
    took = """
    const search = document.getElementById("search"), start = performance.now();
    search.value = arguments[0];
    search.dispatchEvent(new Event("input"));
    return performance.now() - start;
    """
    assert browser.execute_script(took, "boats") < 1000
    assert browser.execute_script(_SHOWN) == 2000


def test_links_open_samples(browser: Any, page: Path) -> None:
    """A link to a sample opens it, also if it is not in the first rows; an open sample has its link in the address."""
    _look(browser, page)
    browser.execute_script("location.hash = document.querySelector('.sheet > li[hidden]').id")
    _wait(browser, "document.getElementById('view').open")
    opened = "return document.querySelector('.sheet').children[arguments[0]].id === location.hash.slice(1)"
    _press(browser, keys.ESCAPE)
    _wait(browser, "location.hash === ''")
    browser.execute_script("document.querySelectorAll('.tile')[7].click()")
    assert browser.execute_script(opened, 7)
    address = browser.current_url
    browser.get("about:blank")
    browser.get(address)
    assert browser.execute_script("return document.getElementById('view').open")
    assert browser.execute_script(opened, 7)
    assert browser.get_log("browser") == []


def test_audio_plays_and_masks_can_be_hidden(browser: Any, tmp_path: Path) -> None:
    """The page plays audio in the grid and in the detail view; masks cover pictures until they are hidden."""
    size = (64, 48)
    samples = {"a": {"wav": sound(1.5)}, "b": {"jpg": image(1, size=size), "mask.png": mask((0, 3, 9), size=size)}}
    write_shard(tmp_path / "d" / "s-000000.tar", samples)
    write_page(open_dataset(tmp_path / "d"), str(tmp_path / "page.html"))
    _look(browser, tmp_path / "page.html")
    _press(browser, keys.TAB)
    browser.execute_script("document.querySelector('audio').load()")
    _wait(browser, "document.querySelector('audio').play() && document.querySelector('audio').duration === 1.5")
    browser.execute_script("document.querySelectorAll('.tile')[0].click()")
    assert browser.execute_script("return document.querySelectorAll('#view-body audio').length") == 1
    _press(browser, keys.ARROW_RIGHT)
    boxes = (
        "return [...document.querySelectorAll('.stack img')].map((one) => JSON.stringify(one.getBoundingClientRect()))"
    )
    photo, over, own = browser.execute_script(boxes)
    assert photo == over != own
    assert browser.execute_script("return document.querySelectorAll('.legend i').length") == 3
    _press(browser, keys.ESCAPE)
    drawn = "return document.querySelector('.pic img.mask').getClientRects().length"
    assert browser.execute_script(drawn) == 1
    browser.find_element("id", "masks").click()
    assert browser.execute_script(drawn) == 0
    assert browser.get_log("browser") == []


def test_hostile_content_stays_text(browser: Any, tmp_path: Path) -> None:
    """Of a shard made to break out nothing runs, and each of its samples opens and shows its key."""
    hostile(tmp_path / "d")
    write_page(open_dataset(tmp_path / "d"), str(tmp_path / "page.html"))
    _look(browser, tmp_path / "page.html")
    shown = []
    for at in range(len(HOSTILE_KEYS) + 1):
        browser.execute_script("document.querySelectorAll('.tile')[arguments[0]].click()", at)
        shown.append(browser.execute_script("return document.getElementById('view-key').textContent"))
        _press(browser, keys.ESCAPE)
    assert shown[0] == HOSTILE_KEYS[0]
    assert shown[4] == "turned\\u202egnp"
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.scripts.length") == 2


def test_the_page_works_without_scripts(browser: Any, page: Path) -> None:
    """Without JavaScript, numbers, tables and pictures are shown; controls that require it are hidden."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        _look(browser, page)
        found = browser.find_elements("css selector", ".sheet:first-of-type .tile img")
        assert len(found) >= 40
        assert found[0].is_displayed()
        assert not browser.find_element("id", "tools").is_displayed()
        assert "samples" in browser.find_element("css selector", ".numbers").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
