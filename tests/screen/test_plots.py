"""Pictures of answers: labels next to the data identify it, whatever names and numbers are drawn."""

import html
import math
import os
import re
import resource
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.analyze.lib.answer import Column, make_answer, plot
from gpt.screen import plots
from gpt.screen.density import spread
from tests.tiers import examples, first

NAME, TIME = Column("name", "text", "kernel"), Column("time", "u64?", "ns")
LONG = "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_{}<float>, std::array<char*, 3ul> >(int)"


def drawn(folder, columns, rows, *told, name="kernels"):
    """Return the texts of a picture."""
    path = folder / "p.svg"
    plots.draw(path, [make_answer(name, columns, rows, ["so it is"], plots=told)])
    return [html.unescape(text.strip()) for text in re.findall(r"<!--(.*?)-->", path.read_text(), re.S)]


def test_longest_bars_come_first_and_invisible_ones_are_merged(tmp_path):
    rows = [(f"k{n}", 5) for n in range(31)] + [("none", None)]
    rows += [(LONG.format("mul"), 20_000), (LONG.format("add"), 3_000_000), ("_attn_fwd", 9_000)]
    texts = drawn(tmp_path, [NAME, TIME], rows)
    names = [text for text in texts if text.startswith(("vectorized", "_attn", "and", "k1", "none"))]
    assert len({*names}) == 4 and max(map(len, names)) <= 48
    assert list(dict.fromkeys(names))[2:] == ["_attn_fwd", "and 31 more"]
    assert {"3.00ms", "20.0\N{MICRO SIGN}s", "9.00\N{MICRO SIGN}s", "155ns", "time (ms)"} <= {*texts}


@pytest.mark.full
def test_as_many_bars_as_there_is_room_for(tmp_path):
    texts = drawn(tmp_path, [NAME, TIME], [(f"k{n}", 100 + n) for n in range(40)])
    assert {"k39", "k10", "and 10 more", "1.04\N{MICRO SIGN}s"} <= {*texts} and "k9" not in texts


@pytest.mark.parametrize("unit", ["", "%", "ns"])
def test_ratios_are_not_added_up(unit, tmp_path):
    column = Column("slow", "f64", unit)
    texts = drawn(tmp_path, [NAME, column], [(f"k{n}", 1.0 + n) for n in range(40)], plot("bars", "name", "slow"))
    added = {"55", "55 %", "55ns", "55.0ns"} & {*texts}
    assert "and 10 more" in texts and bool(added) == (unit == "ns")


def test_bars_of_several_parts_stay_in_their_order(tmp_path):
    columns = [NAME, TIME, TIME._replace(name="more")]
    texts = drawn(tmp_path, columns, [("a", 1, 1), ("b", 9, 9)], plot("bars", "name", "time", "more"))
    assert [text for text in texts if text in "ab"] == ["a", "b"]


@pytest.mark.parametrize(
    ("small", "names"), [((4, 3), ["most 99.3 %", "2 others 0.7 %"]), ((4,), ["most 99.6 %", "s0 0.4 %"])]
)
def test_invisible_parts_of_a_bar_are_merged(small, names, tmp_path):
    rows = [("most", 1000), *((f"s{n}", value) for n, value in enumerate(small)), ("none", 0)]
    texts = drawn(tmp_path, [NAME, TIME], rows, plot("stack", "name", "time"))
    assert [text for text in texts if text.endswith(" %")] == names


def test_bars_on_a_logarithmic_axis_are_all_seen(tmp_path):
    rows = [("long", 2_000_000_000), ("short", 700), ("middle", 50_000), ("none", None)]
    texts = drawn(tmp_path, [NAME, TIME], rows, plot("bars", "name", "time", log=1))
    assert [text for text in texts if text in ("long", "middle", "short", "none")] == ["long", "middle", "short"]
    assert {"1\N{MICRO SIGN}s", "1ms", "1s", "2.00s", "700ns"} <= {*texts}
    assert "and 1 more" not in texts


def test_panel_with_one_value_is_dropped_or_labelled(tmp_path):
    columns = [Column("name", "text"), *(Column(name, "f64", "%") for name in ("low", "high")), Column("warps", "u64")]
    equal = plot("histogram", "low", "warps", end="high", of="equal", title="divergence of warps")
    differ = plot("histogram", "low", "warps", end="high", of="differ", title="others")
    rows = [("equal", 0, 1, 256), ("differ", 0, 1, 3), ("differ", 1, 2, 4)]
    texts = drawn(tmp_path, columns, rows, equal, differ)
    assert "others" in texts and "divergence of warps" not in texts
    texts = drawn(tmp_path, columns, rows, equal)
    assert {"divergence of warps", "all 256 warps: from 0 to 1 %"} <= {*texts}


@pytest.mark.full
@pytest.mark.parametrize("form", ["lines", "histogram"])
def test_every_series_is_in_the_legend(form, tmp_path):
    columns = [NAME, Column("x", "u64", "cycles"), Column("end", "u64", "cycles"), Column("y", "u64")]
    names = ["_attn_fwd", "$x$", *(LONG.format(n) for n in range(12)), "only one point"]
    rows = [(name, 1_000_000 * x, 1_000_000 * (x + 1), x + at) for at, name in enumerate(names[:-1]) for x in (1, 2, 3)]
    rows.append((names[-1], 5_000_000, 6_000_000, 7))
    texts = drawn(tmp_path, columns, rows, plot(form, "x", "y", color="name", end="end"))
    assert {"_attn_fwd", "only one point", "3,000,000"} <= {*texts} and not [text for text in texts if "1e" in text]
    assert len({text for text in texts if "CUDAFunctor_" in text or text.startswith("vectorized")}) == 12


@pytest.mark.full
def test_settings_in_the_working_directory_count_for_nothing(tmp_path):
    """Another user may have put them there."""
    code = (
        "import sys, pathlib, gpt.screen.plots as plots; from tests.screen import test_plots as t\n"
        "answer = t.make_answer('kernels', [t.NAME, t.TIME], [('k', 5)])\n"
        "plots.draw(pathlib.Path(sys.argv[1]), [answer])"
    )
    setting = "text.usetex: True\nfigure.hooks: gpt.no_such_module:run\nfont.size: 90\n"
    pictures = []
    for name, text in (("plain", ""), ("planted", setting)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "matplotlibrc").write_text(text)
        line = [sys.executable, "-c", code, "p.png"]
        env = os.environ | {"PYTHONPATH": os.getcwd()}
        subprocess.run(line, cwd=tmp_path / name, env=env, check=True)
        pictures.append((tmp_path / name / "p.png").read_bytes())
    assert pictures[0] == pictures[1]


def draw_alone(tmp_path, home, limit=resource.RLIM_INFINITY):
    """Draw a plot in a process with this HOME, and with a limit on the size of files; it must print nothing."""
    code = (
        "import pathlib, resource, sys, gpt.screen.plots as plots; from tests.screen import test_plots as t\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)\n"
        "plots.draw(pathlib.Path('p.svg'), [t.make_answer('kernels', [t.NAME, t.TIME], [('k', 5)])])"
    )
    env = os.environ | {"PYTHONPATH": os.getcwd(), "HOME": str(home), "TMPDIR": str(tmp_path)}
    env = {name: value for name, value in env.items() if name not in ("XDG_CACHE_HOME", "MPLCONFIGDIR")}
    line = [sys.executable, "-c", code, str(limit)]
    done = subprocess.run(line, cwd=tmp_path, env=env, check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.full
def test_uncacheable_font_list_causes_no_warning(tmp_path):
    draw_alone(tmp_path, tmp_path / "home", 32_000)
    (fonts,) = (tmp_path / "home" / ".cache" / "gpt" / "matplotlib").glob("fontlist-*")
    assert fonts.stat().st_size < 32_001  # which matplotlib ignores the next time
    draw_alone(tmp_path, tmp_path / "home")
    draw_alone(tmp_path, "/dev/null")


@pytest.mark.parametrize("link", first(".cache/matplotlib", ".cache/gpt/matplotlib"))
def test_fonts_are_not_listed_where_another_users_link_leads(link, tmp_path):
    """Root may have that user's HOME. matplotlib would overwrite the file, and complains if it can't keep the list."""
    from matplotlib.font_manager import FontManager

    folder = tmp_path / "home" / link
    folder.mkdir(parents=True)
    (tmp_path / "home").chmod(0o777)
    (tmp_path / "victim").write_text("mine")
    (folder / f"fontlist-v{FontManager.__version__}.json").symlink_to(tmp_path / "victim")
    draw_alone(tmp_path, tmp_path / "home")
    assert (tmp_path / "victim").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"home", "victim", "p.svg"}


@pytest.mark.full
def test_a_letter_without_a_glyph_is_not_warned_of(tmp_path, recwarn):
    plots.draw(tmp_path / "p.png", [make_answer("kernels", [NAME, TIME], [("\u6f22\u5b57", 5)])])
    assert not recwarn.list


@pytest.mark.full
def test_bins_of_a_logarithmic_histogram_have_a_logarithmic_axis(tmp_path):
    columns = [Column("time", "u64", "ns", "run time"), Column("warps", "u64")]
    texts = drawn(tmp_path, columns, [(1 << n, n) for n in range(4, 32)], plot("lines", "time", "warps"))
    assert {"100ns", "10\N{MICRO SIGN}s", "1ms", "1s", "run time"} <= {*texts}


@pytest.mark.full
@pytest.mark.parametrize("form", ["bars", "lines", "levels"])
@pytest.mark.parametrize(
    "rows",
    [[("k", 0)], [("k", None)], [("k" * 4000, 1e300)], [("", 1)], [("a", math.inf), ("b", math.nan), ("c", -math.inf)],
     [("a", -5), ("b", 3)], [("a", -math.inf)]],
)  # fmt: skip
def test_little_and_much_is_drawn(form, rows, tmp_path):
    columns = [NAME, Column("time", "f64?", "ns"), Column("x", "f64?")]
    rows = [(*row, row[1]) for row in rows]
    assert "time" in " ".join(drawn(tmp_path, columns, rows, plot(form, "name" if form == "bars" else "x", "time")))


def test_clocks_and_addresses_are_distinguished(tmp_path):
    columns = [Column("low", "f64"), Column("high", "f64"), Column("records", "u64")]
    rows = [(94_291_116_962_816.0 + 4096 * n, 94_291_116_962_816.0 + 4096 * (n + 1), 3) for n in range(5)]
    texts = drawn(tmp_path, columns, rows, plot("histogram", "low", "records", end="high"))
    ticks = texts[: texts.index("low")]
    assert len({*ticks}) == len(ticks) and not [text for text in ticks if "e+" in text]
    assert [text for text in texts if text.startswith("from 94,291,116,9")]


@pytest.mark.parametrize(("value", "end"), [(4, 5), (0, 1)])
def test_whole_numbers_have_whole_ticks(value, end, tmp_path):
    columns = [Column("low", "f64"), Column("high", "f64"), Column("records", "u64")]
    texts = drawn(tmp_path, columns, [(value, end, 8)], plot("histogram", "low", "records", end="high"))
    ticks = texts[: texts.index("low")]
    assert str(value) in ticks and len(ticks) > 3  # a constant isn't drawn as wide as the picture
    assert not [text for text in ticks if "." in text]


def test_one_block_has_no_scale_of_colors(tmp_path):
    columns = [Column(name, "u64") for name in ("sm", "begin", "end", "block")]
    told = plot("spans", "begin", "sm", end="end", color="block")
    assert "block" not in drawn(tmp_path, columns, [(0, 0, 9, 0)], told)
    assert "block" in drawn(tmp_path, columns, [(0, 0, 9, 0), (1, 0, 9, 1)], told)


@pytest.mark.parametrize(("most", "ticks"), first((5, {"1", "2", "3", "4", "5"}), (5000, {"1", "10", "100", "1,000"})))
def test_colors_of_a_heat_map_stand_for_plain_numbers(most, ticks, tmp_path):
    columns = [Column(name, "u64") for name in ("page", "clock", "next", "accesses")]
    rows = [(0, 0, 1, 1), (0, 1, 2, 2), (4096, 1, 2, most)]
    texts = drawn(tmp_path, columns, rows, plot("heat", "clock", "page", end="next", color="accesses"))
    assert ticks <= {*texts} and not [text for text in texts if "10^" in text or "times" in text]


@pytest.mark.full
def test_bands_of_a_heat_map_have_names_as_far_as_there_is_room(tmp_path):
    """Names are data. Those of the bands with the most accesses stay."""
    columns = [Column("memory", "text"), *(Column(name, "u64") for name in ("row", "clock", "next", "accesses"))]
    told = plot("heat", "clock", "row", end="next", color="accesses", lane="memory")
    odd = "$x_1$\x1b[2J\n\u202e" + 90 * "a"
    texts = drawn(tmp_path, columns, [("q", 0, 0, 9, 1), ("q", 1, 0, 9, 1), (odd, 2, 9, 18, 5)], told)
    assert texts.count("q") == 1 and not any("more" in text for text in texts)
    (name,) = (text for text in texts if "x_1" in text)
    assert name.isprintable() and len(name) <= 50 and "…" in name
    texts = drawn(tmp_path, columns, [(f"t{at}", at, 0, 9, 1 + at) for at in range(90)], told)
    shown = [int(text[1:]) for text in texts if re.fullmatch(r"t\d+", text)]
    assert [*range(90 - len(shown), 90)] == shown and 20 < len(shown) < 90
    assert f"and {90 - len(shown)} more" in texts


@settings(max_examples=examples(200))
@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0.1, 2.4))
def test_names_that_would_overlap_move_apart(middles, apart):
    places = spread(sorted(middles), apart, 0, 100)
    assert len(places) == len(middles) and places[0] >= -1e-6 and places[-1] <= 100 + 1e-6
    assert all(later - one >= apart - 1e-6 for one, later in pairwise(places))
    alone = [-apart / 2, *sorted(middles), 100 + apart / 2]
    if all(later - one >= apart for one, later in pairwise(alone)):
        assert pytest.approx(sorted(middles)) == places


@pytest.mark.full
def test_panels_of_the_same_time_have_it_at_the_same_places(tmp_path, monkeypatch):
    """The upper panel has a color scale next to it."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figures = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    columns = [
        Column(name, "u64", unit) for name, unit in (("sm", "id"), ("begin", "ns"), ("end", "ns"), ("block", "id"))
    ]
    spans = make_answer("blocks", columns, [(0, 0, 5000, 1), (1, 2000, 8000, 2)],
                        plots=[plot("spans", "begin", "sm", end="end", color="block")])  # fmt: skip
    levels = make_answer("resident", [TIME, Column("warps", "u64")], [(0, 1), (2000, 2), (8000, 0)],
                         plots=[plot("levels", "time", "warps")])  # fmt: skip
    other = make_answer("other", [TIME, Column("warps", "u64")], [(0, 1), (900, 2)],
                        plots=[plot("levels", "time", "warps")])  # fmt: skip
    plots.draw(tmp_path / "p.png", [spans, levels, other])
    upper, _, lower, last = figures[0].axes  # the second one is the scale
    for at in (0, 2, 8):
        left, right = (axes.transData.transform((at, 0))[0] for axes in (upper, lower))
        assert left == pytest.approx(right, abs=0.01)
    assert last.get_xlim()[1] == pytest.approx(900)  # another time axis
