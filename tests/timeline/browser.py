"""A page in headless Chromium, controlled through its debugging protocol over pipes.

https://chromedevtools.github.io/devtools-protocol
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
from contextlib import contextmanager

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WIDTH, HEIGHT = 1400, 700
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
READY = "document.body?.dataset.ready"


class Page:
    def __init__(self, to, from_):
        self._to, self._from, self._count, self._session = to, from_, 0, None

    def call(self, method, **params):
        """Call a method of the protocol and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            data = bytearray()
            while not data.endswith(b"\0"):
                part = self._from.read(1)
                assert part, "chromium has ended"
                data += part
            answer = json.loads(data[:-1])
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, url, ready, size):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)
        self.ask(f"""new Promise((done) => {{
            const look = () => {ready} ? done(1) : setTimeout(look, 20);
            look();
        }})""")

    def ask(self, code):
        """Return the value of an expression; a promise is awaited."""
        told = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def shoot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def opened(url, folder, ready=READY, size=(WIDTH, HEIGHT)):
    """Open a page, and wait until it's `ready`; `folder` is for the browser's own files."""
    low = [*os.pipe(), *os.pipe()]
    theirs, ours, answers, back = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in low)  # none of them is 3 or 4
    for one in low:
        os.close(one)
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={folder}"]
    with subprocess.Popen(
        ["bash", "-c", 'exec "$@" 3<&"$IN" 4>&"$OUT"', "bash", *command],
        env=os.environ | {"IN": str(theirs), "OUT": str(back)},
        pass_fds=(theirs, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as browser:  # fmt: skip
        os.close(theirs)
        os.close(back)
        try:
            page = Page(ours, os.fdopen(answers, "rb"))
            page.open(url, ready, size)
            yield page
        finally:
            browser.kill()
            os.close(ours)
