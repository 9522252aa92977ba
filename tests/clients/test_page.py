"""The page in a real browser: nothing in it fails, keys reach everything, hostile content stays text.

Needs Debian's `chromium` and `chromium-driver`, and `selenium`.
"""

from __future__ import annotations

import shlex
import shutil
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardtool import CreateOptions, create
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
_COUNT = "return document.getElementById('count').textContent"
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


def _has_no_view(browser: Any) -> Any:
    return browser.execute_script("return !document.getElementById('view').open")


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
    for _ in range(15):
        _press(browser, *([keys.TAB] if browser.execute_script(_HERE) < 0 else []))
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
    assert browser.execute_script(_COUNT) == "16 of 98 samples, 5 cards"
    _press(browser, *"nowhere")
    assert browser.execute_script(_SHOWN) == 0
    assert browser.execute_script("return document.getElementById('none').offsetParent !== null")
    _press(browser, keys.ESCAPE)
    assert browser.execute_script(_SHOWN) == 30  # five rows, from all over the dataset
    browser.find_element("css selector", "#more button").click()
    assert browser.execute_script(_SHOWN) == 40
    assert browser.execute_script(_HERE) == 1  # the first new one
    select(browser.find_element("id", "label")).select_by_visible_text("cat (14)")
    assert browser.execute_script(_SHOWN) == 5
    assert browser.execute_script(_COUNT) == "14 of 98 samples, 5 cards"


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
    browser.find_element("id", "overlays").click()
    assert browser.execute_script(drawn) == 0
    assert browser.get_log("browser") == []


def test_hostile_content_stays_text(browser: Any, tmp_path: Path) -> None:
    """Of a shard made to break out nothing runs, and each of its samples opens and shows its key."""
    hostile(tmp_path / "d")
    write_page(open_dataset(tmp_path / "d"), str(tmp_path / "page.html"))
    _look(browser, tmp_path / "page.html")
    shown, opened = [], []
    for at in range(len(HOSTILE_KEYS) + 1):
        browser.execute_script("document.querySelectorAll('.tile')[arguments[0]].click()", at)
        shown.append(browser.execute_script("return document.getElementById('view-key').textContent"))
        opened.append(browser.execute_script("return document.querySelectorAll('#view-body .chat li').length"))
        _press(browser, keys.ESCAPE)
        wait.WebDriverWait(browser, 10).until(_has_no_view)
    assert shown[0] == HOSTILE_KEYS[0]
    assert opened == [1] * len(HOSTILE_KEYS) + [0]
    browser.find_element("id", "as-table").click()
    assert browser.execute_script("return document.querySelectorAll('#rows script, #rows img, #rows b').length") == 0
    assert shown[4] == "turned\\u202egnp"
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.scripts.length") == 3


_ROWS = 130
_WORDS = ("plain", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "x < y & z", "")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the page of a table with numbers, hostile texts and lists; it has a card for 20 of 130 rows."""
    folder = tmp_path_factory.mktemp("rows")
    source = pa.table({
        "key": [f"k{at:03}" for at in range(_ROWS)],
        "txt": ["text"] * _ROWS,
        "score": [None if at == 9 else (at * 37 % 100) / 10 for at in range(_ROWS)],
        "words": [_WORDS[at % 5] for at in range(_ROWS)],
        "<b>tags": [["a"] * (at % 4) for at in range(_ROWS)],
    })  # fmt: skip
    create(source, f"{folder}/r-{{0..}}.tar", CreateOptions(field=("txt=txt",), max_count=50, workers=0))
    with showing(20):
        write_page(open_dataset(folder / "r.json"), str(folder / "page.html"))
    return folder / "page.html"


def _filter(browser: Any, column: str, operator: str, value: str) -> None:
    browser.find_element("id", "add-filter").click()
    columns, operators, field = browser.find_elements("css selector", "#filters li:last-child > :not(datalist, button)")
    select(columns).select_by_visible_text(column)
    select(operators).select_by_visible_text(operator)
    if value:
        field.send_keys(value)


_KEYS = "return [...document.querySelectorAll('#rows tbody th')].map((one) => one.textContent)"


def test_every_row_is_found(browser: Any, rows: Path) -> None:
    """Search finds each key, also without a card; a filter of each kind leaves exactly the rows with such a value."""
    _look(browser, rows)
    assert browser.execute_script("return !document.getElementById('table').hidden")  # there are no pictures
    assert browser.execute_script(_COUNT) == "130 samples"
    found = """
    const search = document.getElementById("search"), found = [];
    for (let at = 0; at < 130; at++) {
      search.value = "k" + String(at).padStart(3, "0");
      search.dispatchEvent(new Event("input"));
      found.push([...document.querySelectorAll("#rows tbody th")].map((one) => one.textContent).join());
    }
    search.value = "";
    search.dispatchEvent(new Event("input"));
    return found;
    """
    assert browser.execute_script(found) == [f"k{at:03}" for at in range(_ROWS)]
    scores = {f"k{at:03}": None if at == 9 else (at * 37 % 100) / 10 for at in range(_ROWS)}
    cases = (
        ("score", "at least", "9.5", [key for key, score in scores.items() if score is not None and score >= 9.5]),
        ("score", "is", "3.7", [key for key, score in scores.items() if score == 3.7]),
        ("score", "is empty", "", ["k009"]),
        ("words", "contains", "<IMG", [f"k{at:03}" for at in range(2, _ROWS, 5)]),
        ("<b>tags", "length at least", "3", [f"k{at:03}" for at in range(3, _ROWS, 4)]),
        ("<b>tags", "lacks", "a", [f"k{at:03}" for at in range(0, _ROWS, 4)]),
    )
    for column, operator, value, expected in cases:
        _filter(browser, column, operator, value)
        assert browser.execute_script(_KEYS) == expected
        assert browser.execute_script(_COUNT) == f"{len(expected)} of 130 samples"
        browser.find_element("css selector", "#filters button").click()
    browser.execute_script("document.querySelector('[data-column=\"<b>tags\"] button').click()")  # below its chart
    assert (
        browser.execute_script("return document.querySelector('#filters select').selectedOptions[0].text") == "<b>tags"
    )
    browser.find_element("css selector", "#filters button").click()
    _filter(browser, "score", "at least", "ten")
    assert browser.execute_script("return document.querySelector('#filters [aria-invalid=true]') !== null")
    assert browser.execute_script(_COUNT) == "130 samples"
    assert browser.get_log("browser") == []


def test_rows_are_sorted(browser: Any, rows: Path) -> None:
    """A column's head sorts all rows, up and down; rows without a value are last; cards have the same order."""
    _look(browser, rows)
    scores = {f"k{at:03}": (at * 37 % 100) / 10 for at in range(_ROWS) if at != 9}
    for sign in (1, -1):
        browser.find_elements("css selector", "#rows thead button")[1].click()
        ordered = sorted(scores, key=lambda key: (sign * scores[key], key))
        assert browser.execute_script(_KEYS) == ordered[:50]
        assert browser.execute_script("return document.activeElement.closest('th').ariaSort") == (
            "ascending" if sign > 0 else "descending"
        )
    for _ in range(2):
        browser.find_element("id", "rows-next").click()
    assert browser.execute_script(_KEYS)[-1] == "k009"
    browser.find_element("id", "as-cards").click()
    keys_of_cards = "return [...document.querySelectorAll('.sheet:first-of-type > li .key')].map((one) => one.title)"
    cards = browser.execute_script(keys_of_cards)
    assert cards[:20] == sorted(cards[:20], key=lambda key: (-scores.get(key, -1), key))
    select(browser.find_element("id", "order")).select_by_visible_text("dataset order")
    assert browser.execute_script(keys_of_cards)[:20] == sorted(cards[:20])


def test_the_selection_is_saved(browser: Any, rows: Path, tmp_path: Path) -> None:
    """The saved file has the selected keys, one per line; without a selection, the keys of all matching rows."""
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    _look(browser, rows)
    chosen = []
    for number in (7, 3, 20):
        browser.find_elements("css selector", "#rows tbody .pick")[number].click()
        chosen.append(f"k{number:03}")
    _filter(browser, "score", "at least", "9.5")
    browser.find_element("id", "pick-all").click()
    matching = browser.execute_script(_KEYS)
    assert browser.execute_script("return document.querySelectorAll('#rows tbody .pick:checked').length") == len(
        matching
    )
    saved = {"selected": [*sorted({*chosen, *matching})], "matching": matching}
    for expected in saved.values():
        browser.find_element("id", "save").click()
        file = tmp_path / "r.keys"
        _wait_for(file.exists)
        assert file.read_text("utf-8") == "".join(f"{key}\n" for key in expected)
        file.unlink()
        browser.find_element("id", "pick-none").click()
    assert browser.get_log("browser") == []


def _wait_for(condition: Any) -> None:
    for _ in range(100):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(condition)


def test_keys_reach_the_table(browser: Any, rows: Path) -> None:
    """A row opens with Enter, arrows turn over, `Select` selects it, Escape leads back; `x` selects a card."""
    _look(browser, rows)
    browser.execute_script("document.querySelectorAll('#rows tbody button')[2].focus()")
    _press(browser, keys.ENTER, keys.ARROW_RIGHT)
    assert browser.execute_script("return document.getElementById('view-key').textContent") == "k003"
    assert "x < y & z" in browser.find_element("id", "view-body").text
    browser.find_element("id", "view-pick").click()
    _press(browser, keys.ESCAPE)
    wait.WebDriverWait(browser, 10).until(
        lambda one: one.execute_script("return document.activeElement.textContent") == "k003"
    )
    assert browser.execute_script("return document.querySelector('#rows .pick:checked').dataset.row") == "3"
    browser.find_element("id", "as-cards").click()
    browser.execute_script("document.querySelectorAll('.tile')[1].focus()")
    _press(browser, "x")
    assert browser.execute_script("return document.getElementById('picked').textContent") in {
        "2 samples selected", "No sample selected",
    }  # fmt: skip
    assert browser.execute_script("return document.scripts.length") == 3
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_table_fits(browser: Any, rows: Path, width: int, scheme: str) -> None:
    """The page with a table and filters does not exceed the window's width, and texts have AA contrast."""
    _look(browser, rows, width=width, scheme=scheme)
    _filter(browser, "score", "at least", "1")
    browser.find_elements("css selector", "#rows tbody .pick")[1].click()
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(_CONTRAST) == []


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
