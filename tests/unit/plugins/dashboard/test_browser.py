"""The page in a real Chromium."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.chromium import Chromium
from tests.job_folder import START, SimulatedJob, history_line, log_of
from tests.unit.plugins.dashboard.conftest import Serve
from torch_edl.config import JobConfig
from torch_edl.events import ServerLost, WorkerWaited
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
    lost = ServerLost(
        process="ps-1", way="ended", cause=f"signal 9; {NASTY}", shard=1, traceback=NASTY
    )
    job.append(job.event(950, lost))
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
    for width in (400, 900, 1400):
        chromium.show(width)
        chromium.wait_for(f"document.documentElement.scrollWidth <= {width}")
        cut = (
            "[...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth + 1)"
        )
        assert not chromium.evaluate(cut), f"no table has columns beyond {width} pixels"
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
    chromium.wait_for("document.querySelectorAll('#event-list li').length == 23")
    chromium.evaluate(
        "document.querySelector('#kind').value = '';"
        "document.querySelector('#kind').dispatchEvent(new Event('change'))"
    )
    chromium.wait_for("document.querySelectorAll('#event-list li').length == 300")


def _curves_are_read_by_keys(chromium: Chromium) -> None:
    """Each chart names itself, has its numbers as a table, and is read point by point."""
    chromium.evaluate(
        "(() => { const plot = document.querySelector('.chart .plot'); plot.focus();"
        "plot.dispatchEvent(new KeyboardEvent('keydown', {key: 'Home'})) })()"
    )
    value = "document.querySelector('.chart .value').textContent"
    assert chromium.evaluate(value).endswith(", step 20")
    nameless = (
        "[...document.querySelectorAll('[role=img], section, select, input, progress')].filter("
        "e => !(e.ariaLabel || e.getAttribute('aria-labelledby') || e.closest('label'))).length"
    )
    assert chromium.evaluate(nameless) == 0
    chromium.evaluate("document.querySelector('.chart .behind summary').click()")
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
    points = "[[1, 5, 1], [2, 6, 2], [3, null, 3], [4, 7, 4], [5, 8, 5]]"
    area = (
        "shared.first = 0, chart('gap').update({zero: true, series: "
        f"[{{name: 'a', area: true, points: {points}}}]}}),"
        "[...document.querySelectorAll('.chart')].at(-1).querySelector('.area')"
        ".getAttribute('d').match(/M|Z/g).join('')"
    )
    assert chromium.evaluate(area) == "MZMZ"
    assert chromium.errors == []


class TestFromALossToItsCause:
    """A server died after 300 s, and the job made no step for 38 s."""

    FROM, UNTIL = START + 300, START + 338

    @pytest.fixture
    def page(self, chromium: Chromium, serve: Serve) -> Chromium:
        job = SimulatedJob("jumped", workers=2, servers=2, deaths=0, events=30, seconds=600)
        lost = ServerLost(process="ps-1", way="ended", cause="signal 9", shard=1)
        wait = WorkerWaited(process="worker-0", seconds=38.0)
        job.append(job.event(300, lost), job.event(338, wait))
        outage = {
            "event": job.sequence - 1,
            "time": self.FROM,
            "since": self.FROM,
            "stalled_s": 38.0,
        }
        job.write_status(state="finished", steps=6000, outages=[outage], stalled_s=38.0)
        lines = [json.loads(line) for line in job.folder.history_file.read_text().splitlines()]
        stands = [
            line for line in lines
            if line["kind"] != "scalars" or not self.FROM < line["time"] < self.UNTIL
        ]  # fmt: skip
        job.folder.history_file.write_text("".join(map(history_line, stands)))
        chromium.show(1400)
        chromium.open(serve("jumped").url)
        chromium.wait_for("document.querySelectorAll('.chart svg').length >= 2")
        return chromium

    def test_one_cursor_shows_the_cause_on_all_charts(self, page: Chromium) -> None:
        page.evaluate(
            "(() => { const chart = store.charts.get('Loss');"
            "const box = chart.plot.getBoundingClientRect();"
            f"chart.plot.dispatchEvent(new PointerEvent('pointermove', {{clientX: box.left + "
            f"chart.scale.place({self.FROM + 1}), clientY: box.top + 50}})) }})()"
        )
        told = page.evaluate("document.querySelector('.reading').innerText")
        assert "no step for 38 s" in told
        assert "ps-1 ended with signal 9" in told
        assert "step 3,000" in told
        values = page.evaluate(
            "[...document.querySelectorAll('.chart .value')].map(e => e.innerText)"
        )
        assert all("step 3,000" in value for value in values[:2])
        crosses = page.evaluate("document.querySelectorAll('.cross[visibility=visible]').length")
        assert crosses == page.evaluate("store.charts.size + 1")  # of the timeline

    def test_deaths_and_standstills_are_marked_on_the_loss(self, page: Chromium) -> None:
        assert (
            page.evaluate("store.charts.get('Loss').plot.querySelectorAll('.mark.fatal').length")
            == 1
        )
        assert page.evaluate("store.charts.get('Loss').plot.querySelectorAll('.still').length") == 1
        # The worker waited: its lane is not solid.
        assert page.evaluate("document.querySelectorAll('#lanes .lane.waits').length") == 1
        rows = page.evaluate("timeline.rows()[1].map(row => [row[0], row.at(-1)])")
        assert ["worker-0", "38 s"] in rows

    def test_an_outage_is_a_drop(self, page: Chromium) -> None:
        rates = page.evaluate("store.charts.get('Records per second').main()")
        within = [y for time, y, _ in rates if self.FROM < time < self.UNTIL and y is not None]
        around = [y for time, y, _ in rates if self.FROM - 9 < time < self.FROM]
        after = [y for time, y, _ in rates if self.UNTIL + 2 < time < self.UNTIL + 9]
        assert not any(within)
        edges = [(time, y) for time, y, _ in rates if time in (self.FROM, self.UNTIL)]
        assert {(self.FROM, 0), (self.UNTIL, 0)} <= set(edges)
        assert min(around + after) > 0.8 * max(around)
        losses = page.evaluate("store.charts.get('Loss').main()")
        assert [y for time, y, _ in losses if y is None] == [None]

    def test_axis_of_steps_with_clock(self, page: Chromium) -> None:
        page.evaluate("shared.show({by: 'step'})")
        texts = page.evaluate(
            "[...store.charts.get('Loss').plot.querySelectorAll('.axis text')]"
            ".map(e => e.textContent)"
        )
        page.evaluate("shared.show({by: 'time'})")
        assert {"step", "time"} <= set(texts)
        assert any(text.count(":") for text in texts)

    def test_print_shows_all(self, page: Chromium) -> None:
        page.call("Emulation.setEmulatedMedia", media="print")
        try:
            wide = (
                "[...document.querySelectorAll('svg')].filter(e => e.clientWidth > "
                "e.parentElement.clientWidth + 1).length"
            )
            assert page.evaluate(wide) == 0
            assert (
                page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
            )
            colours = "getComputedStyle(document.body).printColorAdjust"
            assert page.evaluate(colours) == "exact"
        finally:
            page.call("Emulation.setEmulatedMedia", media="")

    def test_a_narrow_page_is_folded(self, page: Chromium, serve: Serve) -> None:
        page.show(400)
        page.open(serve("jumped").url)
        page.wait_for("document.querySelectorAll('.chart svg').length >= 2")
        assert page.evaluate("document.documentElement.scrollHeight") < 4000
        page.evaluate("document.querySelector('nav a[href=\"#logs\"]').click()")
        assert page.evaluate("document.querySelector('#logs .fold').open")
        assert page.errors == []


def test_an_evaluation_shows_its_metrics_first(chromium: Chromium, serve: Serve) -> None:
    job = SimulatedJob("evaluated", workers=1, servers=0, deaths=0, events=5, seconds=5)
    evaluation = {"steps": 0, "metrics": {"accuracy": 0.75, "auc": 0.5}}
    job.write_status(
        state="finished", steps=40, kind="evaluate", wall_s=1.0, evaluations=[evaluation]
    )
    chromium.show(1400)
    chromium.open(serve("evaluated").url)
    card = chromium.evaluate("document.querySelector('#answers article').innerText")
    assert card.startswith("What did the evaluation find?")
    assert card.index("accuracy 0.75") < card.index("auc 0.5")
    text = chromium.evaluate("document.querySelector('main').innerText")
    assert "evaluated for 1 s" in text
    assert "train" not in text.partition("Events")[0].lower()
    assert "times in " in chromium.evaluate("document.querySelector('#facts').innerText")


def test_repeated_lines_of_a_log_are_folded(chromium: Chromium, serve: Serve) -> None:
    job = SimulatedJob("told", workers=1, deaths=0, events=5, seconds=5)
    lines = [f"08:21:{s}.887 worker-0 INFO ps: shard 0: no connection\n" for s in range(10, 40)]
    path = log_of(
        job.folder.logs, "worker-0", "".join([*lines, "08:22:00.001 worker-0 INFO end\n"])
    )
    job.processes[-1].update(log=str(path))
    job.write_status(state="finished", steps=40)
    chromium.show(1400)
    chromium.open(serve("told").url)
    chromium.wait_for("document.querySelector('#log').innerText.includes('INFO end')")
    assert chromium.evaluate("document.querySelector('#log').innerText").strip().split("\n") == [
        "08:21:39.887 worker-0 INFO ps: shard 0: no connection  (30 times)",
        "08:22:00.001 worker-0 INFO end",
    ]


def test_first_paint(chromium: Chromium, serve: Serve) -> None:
    """A browser that has started shows a large job in a second; busy cores take longer."""
    SimulatedJob("large", workers=1000, servers=2, deaths=20, events=100_000, seconds=900)
    server = serve("large")
    server.view.refresh()
    began = time.monotonic()
    chromium.open(server.url)
    chromium.wait_for("document.querySelectorAll('#lanes rect').length > 20")
    assert time.monotonic() - began < 10
