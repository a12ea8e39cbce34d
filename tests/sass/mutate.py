"""Mutate woven kernels, and count the mutations that the checker finds.

python -m tests.sass.mutate 10000       counts by kind; exits with 1 if something passed that does harm
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass

from tests.sass.corpus import make_pool
from tests.sass.equivalent import explain
from tests.sass.mutations import KINDS, Mutation, mutate
from tests.sass.weaver import Woven


@dataclass
class Tally:
    """Counts of mutations: by kind, by the rule that found them, and accepted ones by kind and class. Accepted ones
    that may do harm are listed.
    """

    kinds: Counter[str]
    rules: Counter[str]
    passed: Counter[tuple[str, str]]
    unexplained: list[Mutation]


def run(pool: list[Woven], count: int, seed: int = 1) -> Tally:
    """Make mutations and check them."""
    tally = Tally(Counter(), Counter(), Counter(), [])
    rnd = random.Random(seed)
    for _, one in zip(range(count), mutate(rnd, pool, list(KINDS)), strict=False):
        tally.kinds[one.kind] += 1
        if findings := one.find():
            tally.rules[findings[0].rule] += 1
        elif reason := explain(one):
            tally.passed[one.kind, reason] += 1
        else:
            tally.unexplained.append(one)
    return tally


def main() -> int:
    """Print the counts."""
    tally = run(make_pool(), int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    for kind, number in sorted(tally.kinds.items()):
        print(f"{number:6} {kind}")
    print("found by rule:", dict(tally.rules.most_common()))
    for (kind, reason), number in sorted(tally.passed.items()):
        print(f"{number:6} {kind}: {reason}")
    print(len(tally.unexplained), "unexplained")
    for one in tally.unexplained[:20]:
        print(one.kind, one.woven.original.kernel.name, one.at, one.registers)
    return 1 if tally.unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
