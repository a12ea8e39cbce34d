"""Run a kernel of tests/sass/interp plain and woven, and compare what it computes."""

import pytest

from tests.probe.sass import running
from tests.sass.interp.cases import CASES

CASE = {case.name: case for case in CASES}
# The interpreter allows a uniform register to be read late; so do ptxas, which wrote these words, and the hardware.
UNIFORM = "writes UR"


def check(name, *probes):
    """Run a case plain and woven; return the woven kernel, and the records of each map."""
    case = CASE[name]
    try:
        made = running.woven(case, *probes)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    plain, probed = running.run(case), running.run(case, made)
    assert (plain.out == probed.out).all()
    assert [text for text in probed.early if UNIFORM not in text] == plain.early == []
    found = [running.records(case, *one) for one in zip(made.maps, probed.buffers, strict=True) if one[0].type != "log"]
    return made, found


def sites(made):
    return {(site.probe.partition(".")[2], site.position): (site.matched, site.woven) for site in made.sites}
