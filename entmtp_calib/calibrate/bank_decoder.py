"""A bank with its model and heads, ready to decode: what `entmtp decode` runs, for programs.

    from entmtp_calib import open_bank

    model = open_bank("outputs/demo/bank.json")
    for piece in model.stream("Write a limerick about trees."):
        print(piece, end="", flush=True)

Says nothing; what the command would warn of is in `BankDecoder.elsewhere`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from entmtp_calib.bank import TopologyBank, load_bank
from entmtp_calib.engine.acceptance import rule_from
from entmtp_calib.engine.context import Context
from entmtp_calib.engine.decoder import Step
from entmtp_calib.engine.graph_decoder import decoder_with
from entmtp_calib.engine.loading import choose_placement
from entmtp_calib.engine.pair import Pair, load_pair, with_graphs
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.errors import UsageError
from entmtp_calib.graph_mode import wants_graphs
from entmtp_calib.guard import Guard
from entmtp_calib.policy import Static
from entmtp_calib.provenance import machine
from entmtp_calib.template import encode, template_about
from entmtp_calib.text_stream import TextStream
from entmtp_calib.topology import Topology

AR = "ar"
Prompt = str | Sequence[tuple[str, str]]


class BankDecoder:
    """Decodes prompts with a policy of a bank; the text is that of plain decoding if the bank's acceptance is exact.

    Args:
        bank, pair: belong together; see `open_bank`.
        policy: of the bank by name, "auto" for the recommended one, "ar" for none.
        seed: of the noise, if the bank was made at a temperature above 0.
        guard: hold trees back while they are slower than plain decoding.

    Attributes:
        policy: name of the policy; labels: of what `Step.index` means; elsewhere: what differs from where the bank was
        timed, as "name value"; empty if its timings hold here.

    Raises:
        UsageError: the bank has no such policy.
    """

    def __init__(self, bank: TopologyBank, pair: Pair, policy: str = "auto", seed: int = 0, guard: Guard | None = None) -> None:
        self.bank = bank
        self.pair = pair
        self.policy = bank.recommended if policy == "auto" else policy
        self.labels = [AR] if policy == AR else [label for label, _nodes in bank.choices(bank.policy(policy))]
        self.elsewhere = timed_elsewhere(bank, pair)
        rule = rule_from(bank.acceptance, seed)
        if policy == AR:
            self.decoder = decoder_with(pair.graphs, pair.target, None, [Topology()], Static(0), rule=rule)
        else:
            chosen = bank.policy(policy)
            parts = (pair.target, pair.heads, bank.topologies, chosen, bank.signal, rule, guard)
            self.decoder = decoder_with(pair.graphs, *parts)

    @property
    def plain_tokens_per_s(self) -> float:
        """Plain decoding in the bank's calibration, prefill included; NaN if it was timed elsewhere or is not in the bank."""
        rates = {tree.topology.size: tree.figures["tokens_per_s"] for tree in self.bank.trees}
        return rates.get(0, math.nan) or math.nan if not self.elsewhere else math.nan

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, or of a conversation as (role, text), as the bank's prompts were encoded.

        Raises:
            UsageError: an empty prompt, one that is not Unicode text, or messages that the template does not take.
        """
        messages = [("user", prompt)] if isinstance(prompt, str) else list(prompt)
        if not messages or not messages[-1][1]:
            raise UsageError("the prompt is empty.", "Give some text.")
        try:
            "".join(text for _role, text in messages).encode()
        except UnicodeEncodeError:
            raise UsageError("the prompt is not Unicode text.", "Give it in UTF-8.") from None
        return encode(messages, self.pair.tokenizer, self.bank.template["style"])

    def steps(
        self, ids: Sequence[int], max_new_tokens: int = 256, stop: Sequence[str] = (), context: Context | None = None
    ) -> Iterator[Step]:
        """Decode token ids step by step; the prefill is done when this returns.

        Args:
            stop: texts after which it ends; context: of `decoder.new_context`, whose common beginning is not computed again.

        Raises:
            UsageError: a prompt that fills the context, a cap below 1, or an empty stop text.
        """
        if "" in stop:
            raise UsageError("a stop text is empty.", "Leave it out, or give one with at least a character.")
        rule = StopRule(self.pair.target.end_ids, max_new_tokens, tuple(stop), self.pair.tokenizer.decode)
        return self.decoder.steps(ids, rule, context)

    def stream(self, prompt: Prompt, max_new_tokens: int = 256, stop: Sequence[str] = ()) -> Iterator[str]:
        """The answer to a prompt, piece by piece; the pieces joined are the text of all its tokens."""
        return self.text_of(self.steps(self.encode(prompt), max_new_tokens, stop))

    def text_of(self, steps: Iterator[Step]) -> Iterator[str]:
        """Steps as text, whole characters only until the last piece."""
        stream = TextStream(self.pair.tokenizer)
        for step in steps:
            yield stream.push(step.tokens)
        yield stream.finish()


def open_bank(
    path: str | Path, policy: str = "auto", model: str | None = None, heads: str | None = None, device: str = "auto",
    dtype: str = "auto", seed: int = 0, guard: Guard | None = None, graphs: str = "auto",
) -> BankDecoder:  # fmt: skip
    """Load a bank and what it was made for.

    Args:
        policy, seed, guard: see `BankDecoder`.
        model, heads: where they are here, if not under the bank's names.
        device: "auto", "cpu", "cuda", "cuda:N" or "mps"; dtype: "auto", "float32", "bfloat16" or "float16".
        graphs: "on" or "off" for steps captured as CUDA graphs or not, "auto" for CUDA with exact acceptance.

    Raises:
        ArtefactError: a file that is missing or broken, another model, heads or template. UsageError: an unknown option.
    """
    bank = load_bank(path)
    if policy != AR:
        bank.policy(policy)  # a typo should not cost a model's loading time
    placement = choose_placement(device, dtype)
    wanted = wants_graphs(graphs, str(placement.device), bank.acceptance["rule"] == "exact")
    pair = load_pair(model or bank.target["name"], heads or bank.heads["name"], placement)
    check_pair(bank, pair)
    return BankDecoder(bank, with_graphs(pair, wanted), policy, seed, guard)


def check_pair(bank: TopologyBank, pair: Pair) -> None:
    """Refuse what a bank was not made for.

    Raises:
        ArtefactError: another model, other heads or another template.
    """
    assert pair.loaded is not None, "a bank needs heads"
    template = template_about(pair.tokenizer, bank.template["style"])
    bank.check_fits(pair.target.identity, pair.loaded.identity, template["hash"])


def timed_elsewhere(bank: TopologyBank, pair: Pair) -> list[str]:
    """What differs between here and where a bank was timed, as "name value"; empty if its timings hold here."""
    about = machine()
    here = {"cpu": about["cpu"], "cores": about["cores"], "device": str(pair.target.device), "dtype": pair.placement.dtype_name,
            "graphs": "off" if pair.graphs is None else "on"}  # fmt: skip
    measured = {"graphs": "off"} | dict(bank.measured)
    return [f"{name} {measured.get(name)}" for name, value in here.items() if measured.get(name) != value]
