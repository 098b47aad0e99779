"""The study of a scheduler from models to printed tables, on the tiny world."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import VOCAB, plain, random_heads
from entmtp_calib.commands._output import Output
from entmtp_calib.commands._scheduler import report_study, verdict

from entmtp_calib.calibrate.dynamic import Drafts, Offer, compare_sizes
from entmtp_calib.calibrate.fitting import fit_policies
from entmtp_calib.calibrate.path_values import path_values
from entmtp_calib.calibrate.scheduler_study import other_orders, study_json
from entmtp_calib.calibrate.switching_costs import SwitchingCosts
from entmtp_calib.calibrate.timing import Timed
from entmtp_calib.engine.acceptance import GREEDY
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.engine.tracing import trace_text
from entmtp_calib.replay import Replayer
from entmtp_calib.signals import signal_names
from entmtp_calib.storage import Journal, to_json
from entmtp_calib.topology import Topology, chain, published_default


def test_a_study_compares_orders_and_dynamic_trees_and_is_printed(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads, rng = random_heads(target, "hydra"), random.Random(0)
    prompts = [(f"p{number}", [rng.randrange(VOCAB) for _ in range(4)]) for number in range(6)]
    stop = StopRule(frozenset(), 20)
    traces = [trace_text(target, heads, name, ids, plain(target, ids, stop)) for name, ids in prompts]
    arms = [Timed(label, tree, 1, 1, 1 + 0.01 * tree.size, 0.001 * tree.depth, 1, 1, 1, 1, 0)
            for label, tree in (("ar", Topology()), ("n2", chain(2)), ("default-63", published_default()))]  # fmt: skip
    costs = SwitchingCosts(
        SimpleNamespace(target=target, heads=heads, graphs=None), arms[:2], GREEDY, Journal(tmp_path / "t.jsonl")
    )  # type: ignore[arg-type]
    fit, test = (Replayer(costs.trees, part) for part in (traces[:3], traces[3:]))
    fitted = fit_policies("auto", arms[:2], {}, costs.of, fit, test, 0)
    orders = other_orders(fitted, costs, fit, test)
    assert set(orders) == {"union", "chain_first", "early_stop"}
    tree = published_default()
    values = [path_values(target, heads, tree, ids, seen) for (_name, ids), seen in zip(prompts[3:], traces[3:], strict=True)]
    offer = Offer(tree, (1, 63), (1.0, 1.5), costs.best_nodes(tree), costs.best_nodes(tree, fitted.signal.name))
    document = study_json(fitted, orders | {"dynamic": compare_sizes(arms, offer, Drafts(tree, traces[3:], values), 0)})
    last = document["dynamic"]["rows"][-1]
    assert (last["size"], last["static_accepted"]) == (63, last["dynamic_accepted"])  # all that was drafted is the tree itself
    (tmp_path / "study.json").write_bytes(to_json(document))
    report_study(Output(), tmp_path / "study.json")
    printed = capsys.readouterr().out
    for words in (
        *signal_names(4),
        "Reliability of",
        "chain drafted, then the chosen tree",
        "Trees of the best of 63 drafted nodes",
    ):
        assert words in printed
    screen = Output(as_json=True)
    report_study(screen, tmp_path / "study.json")
    screen.finish("study")
    assert len(json.loads(capsys.readouterr().out)["orders"]) == 3


def bank(static: float, ceiling: float, shared: float, recommended: str) -> SimpleNamespace:
    policies = {"static": {"test_tokens_per_s": static}, "ladder": {"headroom": 0.25}}
    said = {"policies": policies, "oracle_test_tokens_per_s": ceiling, "oracle_shared_draft_test_tokens_per_s": shared}
    return SimpleNamespace(evaluation=said, recommended=recommended)


def test_a_verdict_says_how_much_room_there_is_and_what_to_take() -> None:
    wide, small = verdict(bank(100, 120, 110, "ladder")), verdict(bank(100, 104, 99, "static"))
    assert "20.0%" in wide[0]
    assert "+10.0%" in wide[0]
    assert "small" not in wide[0]
    assert wide[1] == "Recommended: ladder, 25% of the headroom."
    assert "The headroom on this bank is small." in small[0]
    assert "-1.0%" in small[0]
    assert small[1].startswith("No measurable gain")


@pytest.mark.parametrize(("kept", "words"), [(["ar", "n3"], "keeps the same trees"), (["ar", "n3", "n9"], "would keep n9 too")])
def test_where_the_headroom_is_small_the_conditional_rule_is_tried(kept: list[str], words: str) -> None:
    found = bank(100, 104, 99, "static")
    found.trees = [SimpleNamespace(label="ar"), SimpleNamespace(label="n3")]
    found.evaluation |= {"conditional_trees": kept, "bank_rule": "hull"}
    assert words in verdict(found)[1]
    found.evaluation["bank_rule"] = "conditional"
    assert len(verdict(found)) == 2
