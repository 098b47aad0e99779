"""Laws of choosing the bank from timed trees."""

from __future__ import annotations

import random

from conftest import random_tree

from entmtp_calib.calibrate.bank_rules import hull
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.topology import Topology, chain


def rates(arms: list[Timed]) -> dict[str, float]:
    return {arm.label: arm.tokens_per_s for arm in arms}


def timed(label: str, topology: Topology, rate: float) -> Timed:
    return Timed(label, topology, rate, rate, 0.1, 0.01, 1.5, 1.0, 0.9, 1.1, 0.01)


def test_the_hull_keeps_exactly_what_is_faster_than_every_smaller_tree() -> None:
    rng = random.Random(0)
    for _ in range(50):
        sizes = [0, *rng.sample(range(1, 30), 6)]
        arms = [timed(f"n{size}", random_tree(rng, size), float(rng.randrange(8))) for size in sizes]
        rng.shuffle(arms)
        wanted = [arm for arm in arms if not arm.topology.size
                  or all(arm.tokens_per_s > o.tokens_per_s for o in arms if o.topology.size < arm.topology.size)]  # fmt: skip
        assert hull(arms, rates(arms)) == sorted(wanted, key=lambda arm: arm.topology.size)


def test_plain_decoding_always_stays_and_equal_speed_adds_nothing() -> None:
    plain, small, large = timed("ar", Topology(), 50.0), timed("n1", chain(1), 40.0), timed("n4", chain(4), 50.0)
    assert hull([large, small, plain], rates([large, small, plain])) == [plain]
    assert hull([plain], rates([plain])) == [plain]
    more = [small, timed("n2", chain(2), 40.0), timed("n3", chain(3), 41.0), plain]
    assert hull(more, rates(more))[0] is plain
