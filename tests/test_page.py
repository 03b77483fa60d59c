"""The page in a real browser, held against what the library answers."""

import json
import re
import shutil
import threading
import time
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

import perfmodel
from perfmodel.hardware.catalog import bundled_gpu
from perfmodel.page.state import pack

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
pytest.importorskip("nicegui", reason="needs the extra `server`")
TIMEOUT_MS = 30_000
playwright.expect.set_options(timeout=TIMEOUT_MS)
expect = playwright.expect
"""Waits until it is so: what a slow machine draws later counts."""


@pytest.fixture(scope="module")
def address():
    """The server of this module, on a free port."""
    import uvicorn

    from perfmodel.server.app import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(), port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser.new_context()  # one for all: what the first page loads is in its cache for the others
        browser.close()


@pytest.fixture
def visit(address, browser):
    """`visit(query)` opens the page and waits for its answer; whatever it loads comes from the server, and nothing goes wrong there."""
    pages, problems = [], []

    def open_page(query="", *, width=1400, height=1000, scheme="light", wait=".headline >> text=/TFLOPS of|best:/"):
        page = browser.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.set_default_timeout(TIMEOUT_MS)
        own = (address, address.replace("http", "ws"), "data:", "blob:")
        page.on("request", lambda request: None if request.url.startswith(own) else problems.append(request.url))
        page.on("websocket", lambda socket: None if socket.url.startswith(own) else problems.append(socket.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(address + "/" + query)
        page.wait_for_selector(wait)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not problems


def wait_for(page, name, figure, at=0):
    """Wait until the tile shows the figure."""
    tile = page.locator(".tile", has_text=name).nth(at).locator(".value", has_text=re.compile(f"^{re.escape(figure)}$"))
    tile.wait_for()


def microseconds(result, tokens=64):
    from perfmodel.report.numbers import number

    return f"{number(next(row for row in result['rows'] if row['tokens'] == tokens)['latency_us'])} µs"


def choose(page, field, option, at=0):
    """Choose an option with the keyboard alone."""
    box = page.get_by_label(field, exact=True).nth(at)
    box.focus()
    page.keyboard.press("Enter")
    page.get_by_role("option", name=option, exact=True).wait_for()
    page.keyboard.type(option)
    page.keyboard.press("Enter")


def test_the_document_names_nothing_from_elsewhere(address):
    """Also what a crawler without scripts sees."""
    with urlopen(address + "/") as answer:
        html = answer.read().decode()
    assert html.lstrip().lower().startswith("<!doctype html")
    assert "<title>perfmodel" in html
    tags = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=[\"'](.*?)[\"']", html)
    assert tags
    assert not [url for url in tags if not url.startswith(("/", "data:"))]
    assert not re.findall(r"@import url\(\"(?!/)", html)


@pytest.mark.parametrize("path", ["/nowhere", "/etc/passwd", "/_nicegui/../../etc/passwd", "/v1/nowhere"])
def test_other_paths_are_not_the_pages(address, path):
    from urllib.error import HTTPError

    with pytest.raises(HTTPError) as error:
        urlopen(address + path)
    assert error.value.code == 404


def test_a_flood_of_visitors_is_turned_away(address, monkeypatch):
    from urllib.error import HTTPError

    monkeypatch.setattr("perfmodel.page.view.MOST_OPEN", -1)
    with pytest.raises(HTTPError) as error:
        urlopen(address + "/")
    assert (error.value.code, error.value.headers["retry-after"]) == (503, "60")


@needs_browser
def test_the_page_says_what_the_api_says(address, visit):
    question = {"model": "gpt-oss-20b", "gpu": "h200", "format": "bf16", "tokens": [64, 4096], "ep": 2}
    with urlopen(Request(address + "/v1/gap", json.dumps(question).encode())) as answer:
        row = json.load(answer)["rows"][1]
    page = visit("?model=gpt-oss-20b&gpu=h200&format=bf16&tokens=64,4096&ep=2&at=4096")
    expect(page.locator(".headline")).to_contain_text(f"4,096 tokens on H200: {row['tflops']:,.0f} TFLOPS of 989;")
    wait_for(page, "Time of the layer", f"{row['latency_us']:,.0f} µs")
    lasting = [loss["cause"] for loss in row["losses"] if loss["us"] >= 0.0005 * row["latency_us"]]
    expect(page.locator(".causes .main th")).to_have_text(["FLOPs at the peak", *lasting])
    page.locator(".plot .bars path").nth(4).wait_for(state="attached")


@needs_browser
def test_another_gpu_other_numbers_and_another_address(visit):
    page = visit()
    wait_for(page, "Time of the layer", microseconds(perfmodel.gap("gpt-oss-20b", "b200", format="nvfp4")))
    choose(page, "GPU", "h200")  # it has no FP4 units: the format falls back to the model's own
    wait_for(page, "Time of the layer", microseconds(perfmodel.gap("gpt-oss-20b", "h200")))
    assert "gpu=h200" in page.url
    page.reload()
    wait_for(page, "Time of the layer", microseconds(perfmodel.gap("gpt-oss-20b", "h200")))
    page.get_by_label("Expert parallel (ep)").fill("3")
    page.locator(
        ".notice:visible", has_text="Expert parallel (ep): does not divide the experts (got 3). Choose a divisor of the number of experts."
    ).wait_for()
    page.get_by_label("Expert parallel (ep)").fill("4")
    wait_for(page, "Time of the layer", microseconds(perfmodel.gap("gpt-oss-20b", "h200", ep=4)))


@needs_browser
def test_a_spec_is_edited_wrongly_and_rightly(visit):
    text = "".join(line for line in bundled_gpu("b200").read_text().splitlines(keepends=True) if "yaml-language-server" not in line)
    wrong = text.replace("bandwidth_GBps", "bandwith_GBps", 1)
    right = text.replace("bandwidth_GBps: {value: 7672", "bandwidth_GBps: {value: 9600", 1)
    page = visit()
    page.get_by_role("button", name="Edit the GPU").click()
    page.locator(".good", has_text="the same as the bundled b200").wait_for()
    assert "spec=" not in page.url  # to look is not to change
    editor = page.locator(".cm-content")
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(wrong)
    line = 1 + wrong.split("bandwith_GBps")[0].count("\n")
    page.locator(".verdict", has_text=f"Line {line}").wait_for()
    expect(page.locator(".verdict")).to_contain_text("memory.bandwith_GBps:")
    expect(page.locator(".verdict")).to_contain_text("Did you mean bandwidth_GBps?")
    marked = page.locator(".cm-line.wrongline", has_text="bandwith_GBps")
    marked.wait_for()
    inside = (
        "(e) => [e, e.closest('.cm-scroller')].map(x => x.getBoundingClientRect()).reduce((a, b) => a.top >= b.top && a.bottom <= b.bottom)"
    )
    page.wait_for_function(inside, arg=marked.element_handle())  # scrolled to
    expect(page.locator(".result.stale")).to_have_count(1)
    expect(page.locator(".body.stale")).to_have_count(1)
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(right)
    expected = microseconds(perfmodel.gap("gpt-oss-20b", "b200", format="nvfp4", changes=["memory.bandwidth_GBps=9600"]))
    wait_for(page, "Time of the layer", expected)
    expect(page.locator(".stale")).to_have_count(0)
    expect(page.locator(".changes")).to_contain_text("7,672 → 9,600")
    page.keyboard.press("Escape")  # no trap: Escape, then Tab leaves the editor
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.closest('.cm-editor')")
    page.reload()  # the address holds the text
    wait_for(page, "Time of the layer", expected)
    expect(page.locator(".headline")).to_contain_text("B200 (edited)")


@needs_browser
def test_an_address_restores_a_comparison(visit):
    page = visit("?model=deepseek-v3&gpu=h200&format=fp8-block&at=16&b.gpu=b200&b.tokens=16,64")
    a, b = (perfmodel.gap("deepseek-v3", gpu, format="fp8-block", tokens=[16]) for gpu in ("h200", "b200"))
    wait_for(page, "Time of the layer", microseconds(a, 16))
    wait_for(page, "Time of the layer", microseconds(b, 16), at=1)
    ratio = a["rows"][0]["latency_us"] / b["rows"][0]["latency_us"]
    expect(page.locator(".comparison")).to_contain_text(f"B is {ratio:.3g} times as fast")
    page.get_by_role("button", name="One scenario").click()
    page.locator(".comparison").wait_for(state="hidden")
    assert "b.gpu" not in page.url


@needs_browser
def test_a_service_is_planned(visit):
    result = perfmodel.plan("gpt-oss-20b", "h200", mode="aggregated", isl=1000, osl=100, tpot_ms=20.0)
    query = "?view=service&plan.model=gpt-oss-20b&plan.gpu=h200&plan.mode=aggregated&plan.isl=1000&plan.osl=100&plan.tpot_ms=20&plan.rate="
    page = visit(query)
    expect(page.locator(".figures tbody tr")).to_have_count(len(result.plans))
    cells = page.locator(".figures tbody tr").first.locator("td").all_inner_texts()
    best = result.plans[0]
    assert cells[0] == f"{best.gpus} × H200"
    assert cells[6] == f"{best.tokens_per_s_per_gpu:,.0f}"
    page.get_by_label("Each token (TPOT)").fill("0.001")
    page.locator(".notice:visible", has_text="TPOT").wait_for()


@needs_browser
def test_a_service_starts_from_the_edited_gpu_that_was_looked_at(visit):
    spec = bundled_gpu("h200").read_text().replace("bandwidth_GBps: {value: 4800", "bandwidth_GBps: {value: 9600", 1)
    page = visit(f"?gpu=yours&format=&tokens=64&spec={pack(spec)}")
    expect(page.get_by_label("Start from")).to_have_value("h200")
    page.get_by_role("button", name="Whole service").click()
    page.locator(".headline", has_text=re.compile(r"\d H200 \(edited\) serves? gpt-oss-20b best")).wait_for()
    expect(page.locator(".own:visible")).to_have_count(1)
    page.get_by_label("GPUs, up to").focus()
    for _ in range(2):
        page.keyboard.press("Backspace")
    page.locator(".own:visible").wait_for(state="detached")


CUT = """() => [...document.querySelectorAll(".plot .main-svg text")].filter(e => e.checkVisibility({visibilityProperty: true}))
  .map(e => [e, e.getBoundingClientRect(), e.closest(".plot").getBoundingClientRect()])
  .filter(([_, text, plot]) => text.width && (text.left < plot.left || text.right > plot.right))
  .map(([e]) => e.textContent)"""
"""Labels that stick out of their plots."""


@needs_browser
@pytest.mark.parametrize("query", ["?b.gpu=h200&b.format=", "?view=service&plan.model=gpt-oss-20b&plan.gpu=h200&plan.mode=aggregated"])
def test_nothing_is_wider_than_a_phone(visit, query):
    page = visit(query, width=390, height=844, scheme="dark")
    page.wait_for_function("document.querySelectorAll('.plot .main-svg').length > 0")
    if "service" not in query:
        page.locator(".xaxislayer-above .xtick text:visible", has_text="16,384").first.wait_for()
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    page.wait_for_function(f"({CUT})().length === 0")
    assert page.evaluate("document.body.classList.contains('body--dark')")  # as the system has it


@needs_browser
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?gpu=../../etc/passwd", "GPU: no such GPU (got '../../etc/passwd')."),
        ("?routing=counts:/etc/passwd", "Routing: reads no files here (got 'counts:/etc/passwd')."),
        ("?tokens=" + quote("1,<img src=x>"), "Token counts: must be whole numbers from 1 (got '<img src=x>')."),
        ("?spec=AAAA", "spec: cannot be read (got 'AAAA'). Copy the whole address."),
    ],
)
def test_a_mistake_is_said_not_thrown(visit, query, message):
    page = visit(query, wait=".notice:visible")
    page.locator(".notice:visible", has_text=message).first.wait_for()
    assert "root:" not in page.content()
    assert "Traceback" not in page.content()


@needs_browser
def test_it_works_by_keyboard(visit):
    page = visit("?tokens=16,64")
    page.locator(".plot .main-svg").first.wait_for()
    page.get_by_role("button", name="CSV").first.wait_for()
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("(e => e.getAttribute('aria-label') || e.innerText || e.id || e.tagName)(document.activeElement)"))
        if seen.count(seen[0]) > 1 and len(seen) > 20:
            break
    words = "\n".join(seen)
    for control in ("Model", "GPU", "Kernel", "Token counts", "Compare", "Share", "PNG", "CSV", "Theme", "Breakdown by cause"):
        assert control in words, control
    theme = page.get_by_role("button", name="Theme: system")
    theme.focus()
    assert theme.evaluate("e => getComputedStyle(e).outlineStyle + getComputedStyle(e).outlineWidth") == "solid2px"
    page.keyboard.press("Enter")
    page.wait_for_function("document.body.classList.contains('body--dark')")


NAMELESS = """() => {
  const named = e => e.getAttribute("aria-label") || e.innerText?.trim() || e.labels?.[0]?.innerText || e.getAttribute("aria-labelledby");
  const shown = e => e.checkVisibility() && !e.closest("[aria-hidden=true]");
  const roles = "button, input, textarea, a[href], [role=img], [role=region], [role=combobox], th, nav";
  return [...document.querySelectorAll(roles)].filter(e => shown(e) && !named(e)).map(e => e.outerHTML.slice(0, 200));
}"""


@needs_browser
@pytest.mark.parametrize("query", ["?b.gpu=h200&b.format=", "?view=service&plan.model=gpt-oss-20b&plan.gpu=h200&plan.mode=aggregated"])
def test_all_has_a_name_to_be_read_out(visit, query):
    page = visit(query)
    page.wait_for_function("document.querySelectorAll('.plot .main-svg').length > 0")
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate("[...document.querySelectorAll('main, h1')].map(e => e.tagName).sort().join()") == "H1,MAIN"
    assert page.evaluate("document.documentElement.lang").startswith("en")


@needs_browser
def test_what_is_shown_can_be_saved(visit, tmp_path):
    page = visit("?tokens=16,64")
    saved = {}
    for name, label in (("png", "PNG"), ("csv", "CSV"), ("yaml", "YAML")):
        with page.expect_download() as download:
            page.get_by_role("button", name=label).first.click()
        saved[name] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[name])
        assert saved[name].suffix == f".{name}"
    assert saved["png"].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(saved["csv"].read_text().splitlines()) == 3
    assert "tokens: 16,64" in saved["yaml"].read_text()
