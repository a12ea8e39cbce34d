"""gpt-analyze timeline --format html, in headless Chromium."""

import pytest

from gpt.stream import records
from tests.analyze.asked import run
from tests.timeline import browser
from tests.timeline.made import US, ZERO, call, launch, pushed, segment, small
from tests.trace import forge

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not browser.CHROMIUM, reason="no chromium (Debian: apt-get install chromium)"),
]
SPANS = """Array.from(view.timeline.begin, (begin, i) => [view.timeline.lineOf(i).label, begin, view.timeline.took[i],
    view.timeline.names[view.timeline.name[i]], view.timeline.notes[view.timeline.note[i]]])"""
PAN = """(() => {
    const times = [];
    view.zoom(0.2, 700);
    for (let i = 0; i < 400; i++) {
        const began = performance.now();
        view.move((view.timeline.to - view.timeline.from) / 50 * (i % 200 < 100 ? 1 : -1), 0);
        view.draw();
        times.push(performance.now() - began);
    }
    return times.sort((a, b) => a - b)[380];
})()"""


def page(folder, data):
    path = folder / "t.html"
    done = run("timeline", "--format", "html", "-o", path, data=data)
    assert (done.returncode, done.stderr) == (0, b"")
    return browser.opened(path.absolute().as_uri(), folder / "browser")


def test_spans_arrows_search_and_notes(tmp_path):
    with page(tmp_path, forge.pack(small())) as shown:
        spans = [
            (label, round(begin - ZERO) // US, round(took) // US, *more)
            for label, begin, took, *more in shown.ask(SPANS)
        ]
        shape = "grid 1 x 2 x 3, block 32 x 4 x 1, 128 bytes of shared memory\nrange: step"
        assert ("default stream", 16, 20, "add(float*, int)", shape) in spans
        assert ("thread 1", 0, 100, "step", "") in spans
        assert ("", 1, 9, "cuMemcpyHtoD", "4,096 bytes\nrange: step") in spans
        assert len(spans) == 13
        names = "view.timeline.names[view.timeline.name[i]]"
        call_ = f"[...Array({len(spans)}).keys()].find((i) => {names} == 'cuGraphLaunch')"
        assert shown.ask(f"view.timeline.madeBy({call_}).map((i) => {names})") == ["graphed", "graphed"]
        assert shown.ask("view.search('LAUNCH'), document.getElementById('found').textContent") == (
            "3 spans, 20 us together; Enter: next"
        )
        assert shown.ask(f"view.next(), [view.timeline.chosen].map((i) => {names})[0]") == "cuLaunchKernel"
        assert shown.ask("document.getElementById('incomplete').textContent") == ""


def test_hostile_names_are_text(tmp_path):
    evil = "</script><script>document.title = 'evil'</script><!-- \u202e"
    copy = records.make("api", id=90, name="cuMemcpyXtoY", symbol="cuMemcpyXtoY", type="memcpy", op=evil)
    copied = forge.calls([(ZERO, 9 * US, 90, 0, 0, 0, 4096, 0)], forge.MEMORY, 1)
    calls = [call("cuStreamSynchronize", 5, 0), launch(1, 9, 2), copy, copied]
    cut = segment(*pushed(1, evil, 0, 10), *calls, argv=[evil])[:-1]
    with page(tmp_path, forge.pack(cut)) as shown:
        evil = evil.replace("\u202e", r"\u202e")  # the character would reverse the text after it
        assert shown.ask("view.timeline.names").count(evil) == 1
        assert f"bytes copied {evil}" in shown.ask("view.timeline.counters.map((counter) => counter[1])")
        assert shown.ask("document.title") == f"process 10 on here: {evil}".replace("  ", " ")
        assert shown.ask("document.getElementById('incomplete').textContent").startswith(
            "incomplete: no end of process 10"
        )
        notes = {name: note for *_, name, note in shown.ask(SPANS)}
        assert notes["cuStreamSynchronize"] == "its end is not in the trace"


def test_times_that_a_double_rounds(tmp_path):
    """A step of the axis may be smaller than the distance between two doubles."""
    late = records.make("range", type="mark", thread=1, name="late", start=2**63 - 1)
    with page(tmp_path, forge.pack(segment(*pushed(1, "early", 0, 10), late))) as shown:
        shown.ask("view.zoom(1e-18, 800), view.draw()")
        assert shown.ask("view.timeline.from + 1 == view.timeline.from")


def test_keys_wheel_hover_and_clicks(tmp_path):
    """The browser gets the same events as from a person's input."""
    view = "[view.timeline.from, view.timeline.to, view.timeline.scroll]"
    with page(tmp_path, forge.pack(small())) as shown:

        def press(key):
            for type_ in ("keyDown", "keyUp"):
                shown.call("Input.dispatchKeyEvent", type=type_, key=key, text=key if len(key) == 1 else "")
            return shown.ask(view)

        def mouse(type_, x, y, **more):
            shown.call("Input.dispatchMouseEvent", type=type_, x=x, y=y, **more)
            return shown.ask(view)

        all_ = shown.ask(view)
        zoomed = press("+")
        assert (zoomed[1] - zoomed[0]) < 0.8 * (all_[1] - all_[0])
        assert press("d")[0] > zoomed[0] and press("a")[0] == pytest.approx(zoomed[0])
        assert press("0") == pytest.approx(all_)
        wheeled = mouse("mouseWheel", 800, 300, deltaX=0, deltaY=-200)
        assert (wheeled[1] - wheeled[0]) < 0.8 * (all_[1] - all_[0])
        press("0")
        x, y = shown.ask("""(() => {
            const t = view.timeline, i = [...t.name.keys()].find((i) => t.names[t.name[i]] === "cuGraphLaunch");
            const box = document.getElementById("canvas").getBoundingClientRect();
            return [view.x(t.begin[i] + t.took[i] / 2) + box.x, t.lineOf(i).y + 24 + 9 + box.y];
        })()""")
        mouse("mouseMoved", x, y)
        tip = "document.getElementById('tip')"
        assert shown.ask(f"[{tip}.style.display, {tip}.textContent.split('\\n')[0]]") == ["block", "cuGraphLaunch"]
        for type_ in ("mousePressed", "mouseReleased"):
            mouse(type_, x, y, button="left", clickCount=1)
        assert shown.ask("view.timeline.madeBy(view.timeline.chosen).length") == 2
        press("Escape")
        assert shown.ask("view.timeline.chosen") == -1
        press("/")
        assert shown.ask("document.activeElement.id") == "search"
        shown.call("Input.insertText", text="add(")
        assert shown.ask("document.getElementById('found').textContent") == "1 span, 20 us together; Enter: next"


def test_marks_counters_and_what_probes_saved(tmp_path):
    mark = records.make("range", type="mark", thread=9, name="alone", start=ZERO + 500 * US)
    cut = segment(
        call("cuStreamSynchronize", 5, 0), launch(1, 40, 1, thread=2), call("cuMemcpyHtoD", 50, 9, size=4096), mark
    )
    with page(tmp_path, forge.pack(cut)) as shown:
        assert shown.ask("view.timeline.marked.map((one) => one.names)") == [["alone"]]
        assert shown.ask("view.timeline.last") > ZERO + 500 * US
        names = shown.ask("view.timeline.counters.map((one) => one[1])")
        assert names == ["bytes copied HtoD", "HtoD a second"]
        assert shown.ask("Array.from(view.timeline.category, (one) => one >> 7)").count(1) == 1


def test_long_range_starting_in_the_pixel_of_a_short_one_is_drawn(tmp_path):
    cut = segment(*pushed(1, "short", 0, 1), *pushed(2, "long", 2, 100_000))
    with page(tmp_path, forge.pack(cut)) as shown:
        shown.ask("window.written = [], view.write = (text) => written.push(text), view.draw(), 0")
        assert "long" in shown.ask("written")


def test_a_million_spans_move_smoothly(tmp_path):
    told = []
    for thread in (1, 2):
        for at in range(0, 500_000, 5000):
            rows = [forge.launch(ZERO + (at + i) * 5000 + thread, 3000, 1, 1 + i % 3) for i in range(5000)]
            told.append(forge.calls(rows, forge.LAUNCH, thread))
    with page(tmp_path, forge.pack(segment(*told))) as shown:
        assert shown.ask("view.timeline.spans") == 1_000_000
        assert shown.ask(PAN) < 50  # ms, the 95th percentile
