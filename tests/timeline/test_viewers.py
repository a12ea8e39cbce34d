"""gpt-analyze's timelines, as read by viewers: Perfetto's own trace processor, Chrome's page."""

import json

import pytest

from tests.analyze.asked import run
from tests.timeline import browser, viewers
from tests.timeline.made import US, ZERO, call, launch, segment, small
from tests.trace import forge

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not browser.CHROMIUM, reason="no chromium (Debian: apt-get install chromium)"),
]
SPANS = """SELECT thread_track.name, slice.name, slice.ts, slice.dur FROM slice
    JOIN track AS thread_track ON thread_track.id = track_id WHERE slice.id NOT IN (SELECT id FROM gpu_slice)"""
WORK = """SELECT track.name, gpu_slice.name, ts, dur, extract_arg(arg_set_id, 'description') FROM gpu_slice
    JOIN track ON track.id = track_id"""
COUNTERS = "SELECT track.name, ts, value FROM counter JOIN counter_track AS track ON track.id = track_id"
FAULTS = "SELECT name FROM stats WHERE value AND severity IN ('error', 'data_loss')"
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
UNKNOWN = [["unknown_extension_fields"]]  # the arrows, which are newer than this version of Perfetto


def draw(form, data):
    done = run("timeline", "--format", form, data=data)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


def microseconds(rows):
    return sorted([name, what, round((begin - ZERO) / US), round(took / US)] for name, what, begin, took in rows)


def test_perfetto_finds_the_chrome_events(tmp_path):
    data = forge.pack(small())
    told = json.loads(draw("chrome", data))["traceEvents"]
    tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in told if event["name"] == "thread_name"}
    spans = {True: [], False: []}
    for event in (event for event in told if event["ph"] in "Xi"):
        row = tracks[event["pid"], event["tid"]], event["name"], event["ts"] * 1000, event.get("dur", 0) * 1000
        spans[event["cat"] in ON_GPU].append(row)
    with viewers.perfetto(draw("perfetto", data), tmp_path / "browser") as shown:
        assert microseconds(shown.query(SPANS)) == microseconds(spans[False])
        work = shown.query(WORK)
        assert microseconds(row[:4] for row in work) == microseconds(spans[True])
        assert {row[4] for row in work} == {"kernel", "memcpy"}
        counters = {(event["name"], round(event["ts"] * 1000)) for event in told if event["ph"] == "C"}
        assert len(shown.query(COUNTERS)) == len(counters) > 0
        assert shown.query(FAULTS) == UNKNOWN


def test_perfetto_marks_what_is_incomplete(tmp_path):
    cut = segment(call("cuStreamSynchronize", 5, 0), launch(1, 40, 1, thread=2))[:-1]
    with viewers.perfetto(draw("perfetto", forge.pack(cut)), tmp_path / "browser") as shown:
        assert shown.query("SELECT name FROM slice WHERE dur = 0") == [
            ["incomplete: no end of process 10: killed, still running, or no longer recorded"]
        ]
        assert shown.query(FAULTS) == []


def test_the_page_of_chrome_shows_all(tmp_path):
    text = draw("chrome", forge.pack(small()))
    told = json.loads(text)["traceEvents"]
    with viewers.chrome(text, tmp_path / "browser") as page:
        model = f"{viewers.CHROME}.timelineView.model"
        assert page.ask(f"{model}.importWarnings.map((one) => one.message)") == []
        found = page.ask(f"[...{model}.getDescendantEvents()].filter((one) => one.duration !== undefined).length")
        assert found >= sum(event["ph"] == "X" for event in told)
        assert page.ask(f"{model}.flowEvents.length") == sum(event["ph"] == "f" for event in told) > 0
