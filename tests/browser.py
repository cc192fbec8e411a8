"""A headless Chromium driven over its own pipe, without any package: real keys, real clicks."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
    "about:blank",
)
PATIENCE = 60.0
CONTRAST = """(() => {
        const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255)
          .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
          return .2126 * r + .7152 * g + .0722 * b; };
        const back = e => { for (; e; e = e.parentElement) {
          const c = getComputedStyle(e).backgroundColor;
          if (!/rgba\\(.*, 0\\)/.test(c)) return c; } };
        return Math.min(...[...document.querySelectorAll(
          'p, td, th, h1, h2, h3, h4, a, b, li, dt, dd, code, .name, .tag, .spread, button, '
          + 'summary, svg text, figcaption, label, input, select, dt, bdi, .number')]
          .map(e => { const s = getComputedStyle(e);
            const [a, b] = [light(e.matches('svg text') ? s.fill : s.color), light(back(e))];
            return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); }));
        })()"""


def chromium() -> str | None:
    return shutil.which("chromium")


class Browser:
    """One page in one Chromium. Everything it complains about or asks for is kept."""

    def __init__(self, program: str, profile: Path) -> None:
        command = [program, f"--user-data-dir={profile}", *FLAGS]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._buffer, self._number = b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def press(self, key: str, shift: bool = False) -> None:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "End": 35, " ": 32}
        event: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        event["modifiers"] = 8 if shift else 0
        text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def drag(self, selector: str, onto: str) -> None:
        """Drag the middle of one element onto the lower edge of another."""
        start, end = (
            self.run(
                f"(() => {{ const b = document.querySelector({json.dumps(one)})"
                ".getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2, "
                "b.bottom]; })()"
            )
            for one in (selector, onto)
        )
        pressed = {"button": "left", "buttons": 1, "clickCount": 1}
        from_, to = {"x": start[0], "y": start[1]}, {"x": start[0], "y": end[2] - 1}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **from_)
        self.call("Input.dispatchMouseEvent", type="mousePressed", **from_, **pressed)
        for _ in range(5):  # a row steps aside per movement
            self.call("Input.dispatchMouseEvent", type="mouseMoved", **to, **pressed)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **to, **pressed)

    def worst_contrast(self) -> float:
        """The lowest contrast of any text with what is behind it."""
        worst: float = self.run(CONTRAST)
        return worst

    def point_at(self, selector: str, across: float = 0.5, click: bool = False) -> None:
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height]; })()"
        )
        at = {"x": box[0] + box[2] * across, "y": box[1] + box[3] / 2}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def complaints(self) -> list[str]:
        """Errors on the console, exceptions, and what the page's policy had to block."""
        self.run("0")
        bad = []
        for event in self.events:
            params = event["params"]
            wrong = params.get("type") in ("error", "warning") or "entry" in params
            if event["method"] == "Runtime.exceptionThrown" or wrong:
                bad.append(json.dumps(params))
        return bad

    def requests(self) -> list[str]:
        """Addresses asked for since the page was opened, the page itself included."""
        self.run("0")
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def close(self) -> None:
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(PATIENCE)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for end in (self._process.stdin, self._process.stdout):
            if end is not None:
                end.close()

    def _receive(self) -> dict[str, Any]:
        """The next message; events are kept, answers handed back."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._from, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("Chromium does not answer.")
            self._buffer += piece
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append(message)
        return message
