"""A real Chromium for tests, driven over its debugging protocol on a free port."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.debian_package import require_package
from tests.waiting import HANG_S

_FLAGS = [
    "--headless=new", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--remote-debugging-port=0", "--remote-allow-origins=*", "--no-sandbox", "about:blank",
]  # fmt: skip


class Chromium:
    """The process of a browser with one page, and the calls to it."""

    def __init__(self) -> None:
        require_package("chromium", lambda: shutil.which("chromium") is not None)
        self._folder = Path(tempfile.mkdtemp(prefix="edl-chromium-"))
        self._process = subprocess.Popen(
            ["chromium", f"--user-data-dir={self._folder}", *_FLAGS],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.errors: list[str] = []
        """Errors that the browser reported: of scripts, of the content policy, of loading."""
        self._loop = asyncio.new_event_loop()
        self._numbers = itertools.count(1)
        self._loop.run_until_complete(self._connect())
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    async def _connect(self) -> None:
        port = self._folder / "DevToolsActivePort"
        end = time.monotonic() + HANG_S
        while not port.exists() or not port.read_text():
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"chromium did not start: exit code {self._process.returncode}")
            await asyncio.sleep(0.05)
        self._session = aiohttp.ClientSession()
        place = f"http://127.0.0.1:{port.read_text().split()[0]}/json"
        async with self._session.get(place) as answer:
            pages = [each for each in await answer.json() if each["type"] == "page"]
        self._socket = await self._session.ws_connect(
            pages[0]["webSocketDebuggerUrl"], max_msg_size=0
        )

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the debugging protocol, and return its result."""
        return self._loop.run_until_complete(asyncio.wait_for(self._call(method, params), HANG_S))

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = json.loads((await self._socket.receive()).data)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message}"
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:1000])
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    def show(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Set the size of the window in CSS pixels, and the colour scheme of the user."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Load a page, and wait until its script has drawn the name of the job."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.querySelector('#name')?.textContent.length > 1")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page, as JSON."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, f"{script}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def wait_for(self, condition: str, timeout_s: float = HANG_S) -> float:
        """Wait until an expression is true in the page; return the seconds that took."""
        began = time.monotonic()
        while not self.evaluate(condition):
            if time.monotonic() - began > timeout_s:
                text = self.evaluate("document.body.innerText.slice(0, 3000)")
                pytest.fail(f"{condition} did not come about: {self.errors}\n{text}")
            time.sleep(0.02)
        return time.monotonic() - began

    def picture(self, file: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page, or of the part that the window shows."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """End the browser, and delete its files."""
        self._loop.run_until_complete(self._socket.close())
        self._loop.run_until_complete(self._session.close())
        self._loop.close()
        self._process.terminate()
        self._process.wait(HANG_S)
        shutil.rmtree(self._folder, ignore_errors=True)
