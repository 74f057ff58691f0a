"""The page in a real Chromium."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.chromium import Chromium
from tests.job_folder import SimulatedJob, log_of
from tests.unit.plugins.dashboard.conftest import Serve
from torch_edl.config import JobConfig
from torch_edl.launch.jobs.folder import JobFolder

NASTY = "<img src=x onerror='window.hurt = 1'><script>window.hurt = 1</script>"
LANES = "[...document.querySelectorAll('#lanes .label')].map(each => each.textContent)"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    browser = Chromium()
    yield browser
    browser.close()


def test_the_page_of_a_large_job(chromium: Chromium, serve: Serve) -> None:
    """A thousand workers, 100,000 events, and a server that died; its texts are markup."""
    job = SimulatedJob("large", workers=1000, servers=2, deaths=20, events=100_000, seconds=900)
    path = log_of(job.folder.logs, "ps-1", f"{NASTY}\n")
    job.processes[2].update(state="exited", exit="signal 9", log=str(path))
    job.write_status(state="failed", steps=100, wall_s=890.0, error=NASTY)
    text = f"ps-1 ended with signal 9; {NASTY}"
    job.append(job.event(950, "warning", text, traceback=NASTY))
    server = serve("large")
    server.view.refresh()
    chromium.show(1400)
    chromium.open(server.url)
    assert chromium.evaluate("location.search") == ""  # the token is not in the history
    labels = chromium.evaluate(LANES)
    assert "981 more" in labels  # one replacement started with the first workers
    assert {"master-0", "ps-0", "ps-1", "worker-0", "worker-1019"} <= set(labels)
    assert chromium.evaluate("document.querySelectorAll('.death').length") == 21
    assert "21 processes died" in chromium.evaluate("document.querySelector('#answers').innerText")
    for part in ("#event-list li", "#cost-table", "#problem"):
        assert NASTY in chromium.evaluate(f"document.querySelector('{part}').innerText")
    chromium.evaluate("document.querySelector('#event-list button.name').click()")
    chromium.wait_for("document.querySelector('#log').textContent.includes('onerror')")
    _filter(chromium)
    _curves_are_read_by_keys(chromium)
    for width in (400, 1400):
        chromium.show(width)
        chromium.wait_for(f"document.documentElement.scrollWidth <= {width}")
    assert chromium.evaluate("window.hurt") is None
    assert chromium.errors == []


def _filter(chromium: Chromium) -> None:
    chromium.evaluate(
        "document.querySelector('#level').value = 'warning';"
        "document.querySelector('#level').dispatchEvent(new Event('change'))"
    )
    chromium.wait_for("document.querySelectorAll('#event-list li').length == 21")
    chromium.evaluate(
        "document.querySelector('#level').value = '';"
        "document.querySelector('#level').dispatchEvent(new Event('change'))"
    )
    chromium.wait_for("document.querySelectorAll('#event-list li').length == 300")


def _curves_are_read_by_keys(chromium: Chromium) -> None:
    """Each chart names itself, has its numbers as a table, and is read point by point."""
    chromium.evaluate(
        "(() => { const plot = document.querySelector('.chart .plot'); plot.focus();"
        "plot.dispatchEvent(new KeyboardEvent('keydown', {key: 'Home'})) })()"
    )
    value = "document.querySelector('.chart .value').textContent"
    assert chromium.evaluate(value).endswith("at step 20")
    nameless = (
        "[...document.querySelectorAll('[role=img], section, select, input, progress')].filter("
        "e => !(e.ariaLabel || e.getAttribute('aria-labelledby') || e.closest('label'))).length"
    )
    assert chromium.evaluate(nameless) == 0
    chromium.evaluate("document.querySelector('.chart summary').click()")
    chromium.wait_for("document.querySelectorAll('.chart table tbody tr').length > 100")


def test_a_job_that_did_nothing(chromium: Chromium, serve: Serve) -> None:
    """A job whose processes ended before they wrote a status has a page without an error."""
    folder = JobFolder("nothing")
    folder.dir.mkdir(parents=True)
    folder.config_file.write_text(JobConfig(name="nothing", model_file="model.py").to_json())
    chromium.show(400, dark=True)
    chromium.open(serve("nothing").url)
    chromium.wait_for("document.querySelector('#problem').textContent.includes('are gone')")
    assert chromium.errors == []
    assert "No loss yet" in chromium.evaluate("document.body.innerText")
    assert chromium.errors == []


def test_what_is_drawn_again_keeps_focus_and_place(chromium: Chromium, serve: Serve) -> None:
    """Tables are drawn each second while somebody reads them."""
    SimulatedJob("long", workers=4, deaths=60, events=100, seconds=900)
    chromium.show(1400)
    chromium.open(serve("long").url)
    box = "document.querySelector('#cost-table .scroll')"
    chromium.wait_for(f"{box}?.tabIndex == 0")  # it scrolls, so it is a stop of the Tab key
    place = chromium.evaluate(
        f"{box}.scrollTop = 200, {box}.focus(), drawn.delete('costs'), drawCosts(store.data),"
        f"[document.activeElement === {box}, {box}.scrollTop]"
    )
    assert place == [True, 200]
    # A table that shows all its rows is no stop.
    SimulatedJob("short", workers=4, deaths=2, events=20, seconds=90)
    chromium.open(serve("short").url)
    chromium.wait_for("document.querySelectorAll('#cost-table tbody tr').length == 2")
    frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    assert chromium.evaluate(f"{frames}.then(() => {box}.tabIndex)") == -1


def test_frequent_ids_and_gaps_are_drawn(chromium: Chromium, serve: Serve) -> None:
    SimulatedJob("ids", workers=2, deaths=0, events=10, seconds=60)
    chromium.show(400, dark=True)
    chromium.open(serve("ids").url)
    table = "{name: 'users', rows: 9, bytes: 9, evicted: 0, most: 5, new_s: 2, evicted_s: 0"
    ids = "[['9223372036854775807', 1200, 1], ['-1', 7, 0.0058]]"
    shown = (
        f"drawFrequent({{tables: [{table}, frequent: {ids}}}]}}),"
        "[...document.querySelectorAll('#frequent-table td, #frequent-table th[scope=row]')]"
        ".map(each => each.textContent)"
    )
    expected = ["9223372036854775807", "1,200", "100 %", "-1", "7", "0.58 %"]
    assert chromium.evaluate(shown) == expected
    # An area ends where numbers are missing: it has one closed path for each part.
    points = "[[1, 5], [2, 6], [3, null], [4, 7], [5, 8]]"
    area = (
        "chart('gap').update({x: 'step', zero: true, series: "
        f"[{{name: 'a', area: true, points: {points}}}]}}),"
        "[...document.querySelectorAll('.chart')].at(-1).querySelector('.area')"
        ".getAttribute('d').match(/M|Z/g).join('')"
    )
    assert chromium.evaluate(area) == "MZMZ"
    assert chromium.errors == []


def test_first_paint(chromium: Chromium, serve: Serve) -> None:
    """A browser that has started shows a large job in a second; busy cores take longer."""
    SimulatedJob("large", workers=1000, servers=2, deaths=20, events=100_000, seconds=900)
    server = serve("large")
    server.view.refresh()
    began = time.monotonic()
    chromium.open(server.url)
    chromium.wait_for("document.querySelectorAll('#lanes rect').length > 20")
    assert time.monotonic() - began < 10
