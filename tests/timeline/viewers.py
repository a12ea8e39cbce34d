"""Viewers of timelines in headless Chromium: Perfetto's UI, whose trace processor answers SQL, and the page of
chrome://tracing. They come from a wheel on PyPI (tests/packages.py), which is fetched on demand.
"""

import json
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from tests import packages
from tests.timeline import browser

SIZE = 1600, 900
SETTLED = 3  # seconds after which a viewer has drawn everything
EXPANDED = """(() => {
    try { app.trace.commands.runCommand("dev.perfetto.ExpandAllGroups"); return true; } catch { return false; }
})()"""  # fails until the trace is loaded
ASKED = """(async () => {
    const answer = await app.trace.engine.query(%s), columns = answer.columns(), rows = [];
    const plain = (value) => typeof value == "bigint" ? Number(value) : value;
    for (const row = answer.iter({}); row.valid(); row.next()) rows.push(columns.map((name) => plain(row.get(name))));
    return rows;
})()"""
NO_BALLOON = "document.querySelectorAll('.pf-popup').forEach((one) => one.remove())"  # docs/analyses.md says why
CHROME = "document.querySelector('x-profiling-view')"


class _Pages(SimpleHTTPRequestHandler):
    """Serves the files of a folder, and the trace at the place where the UI looks for one."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".wasm": "application/wasm"}

    def do_GET(self):
        data = {"/vizviewer_info": b"{}", "/localtrace": self.server.trace}.get(self.path)
        if data is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        return self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextmanager
def _served(trace):
    """Yield the address of the viewers, and the version of Perfetto."""
    pages = packages.fetch_viewers()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Pages, directory=pages)) as server:
        server.trace = trace
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", next(pages.glob("v*")).name
        finally:
            server.shutdown()


class Perfetto:
    """A trace in Perfetto's UI."""

    def __init__(self, page):
        self.page = page

    def query(self, sql):
        """Return the rows of an answer."""
        return self.page.ask(ASKED % json.dumps(sql))

    def shoot(self, path):
        """Take a picture with all tracks."""
        time.sleep(SETTLED)  # some come later
        self.page.ask(EXPANDED)
        self.page.ask(NO_BALLOON)
        shoot(self.page, path)


@contextmanager
def perfetto(trace, folder, size=SIZE):
    """Open a trace, as bytes, in Perfetto's UI."""
    with _served(trace) as (url, _), browser.opened(url, folder, "window.app", size) as page:
        end = time.monotonic() + 60
        while not page.ask(EXPANDED):
            assert time.monotonic() < end, "the trace is not shown"
            time.sleep(0.1)
        yield Perfetto(page)


@contextmanager
def chrome(trace, folder, size=SIZE):
    """Open a trace in the page of chrome://tracing."""
    with _served(b"") as (url, version):
        url = f"{url}/{version}/assets/catapult_trace_viewer.html"
        # For its old web components.
        ready = f"(window.__hideTraceViewerPolyfillWarning = true) && {CHROME}?.setActiveTrace"
        with browser.opened(url, folder, ready, size) as page:
            page.ask(f"{CHROME}.setActiveTrace('t.json', {json.dumps(trace.decode())}), 1")
            end = time.monotonic() + 60
            while not page.ask(f"!!{CHROME}.timelineView?.model?.bounds?.range"):
                assert time.monotonic() < end, "the trace is not shown"
                time.sleep(0.1)
            yield page


def shoot(page, path):
    """Take a screenshot of the whole page, once it's drawn."""
    time.sleep(SETTLED)
    for x in (700, 900):  # viewers only redraw when something moves
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=5)
        time.sleep(SETTLED / 2)
    page.shoot(path)
