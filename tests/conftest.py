"""The tiny world: a random two-layer Llama, random heads, scripted drafters and a byte-level tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from entmtp_calib.commands import app
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

from entmtp_calib.engine.decoder import autoregressive
from entmtp_calib.engine.heads import DraftHeads, HeadShape
from entmtp_calib.engine.kv_cache import KVCache
from entmtp_calib.engine.prefix import PrefixShape
from entmtp_calib.engine.stopping import StopRule
from entmtp_calib.engine.target import Target
from entmtp_calib.topology import Topology

VOCAB = 97
END = 5


def tiny_model(vocab: int = VOCAB, positions: int = 128, seed: int = 0, **more: object) -> LlamaForCausalLM:
    """A random Llama whose greedy text is not constant."""
    torch.manual_seed(seed)
    options: dict[str, object] = {
        "vocab_size": vocab, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": positions, "initializer_range": 0.5, "eos_token_id": None,
        "bos_token_id": None, "tie_word_embeddings": False,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(options | more)))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target() -> Target:
    return Target(tiny_model(), frozenset([END]), "tiny", "sha256:tiny")


def random_heads(target: Target, architecture: str, heads: int = 4, seed: int = 1) -> DraftHeads:
    torch.manual_seed(seed)
    prefix = PrefixShape(target.hidden_size, target.hidden_size // 2, 48) if architecture == "hydra++" else None
    made = DraftHeads(HeadShape(architecture, heads, 2, target.hidden_size, target.vocab_size, "own", prefix=prefix))
    return made.requires_grad_(False).bind(target)


@pytest.fixture(scope="session", params=["hydra", "hydra++", "medusa"])
def heads(request: pytest.FixtureRequest, target: Target) -> DraftHeads:
    return random_heads(target, request.param)


class TableModel(nn.Module):
    """A model whose greedy next token is a fixed table of the current one: the text is known in closed form.

    Args:
        table: next token of every token.
    """

    def __init__(self, table: Sequence[int], positions: int = 128) -> None:
        super().__init__()
        self.table = torch.tensor(list(table))
        self.embed = nn.Embedding(len(table), 8)
        self.lm_head = nn.Linear(8, len(table), bias=False)
        self.config = SimpleNamespace(num_hidden_layers=1, hidden_size=8, max_position_embeddings=positions)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, use_cache: bool,
                output_hidden_states: bool, logits_to_keep: int | Tensor, cache: KVCache | None) -> SimpleNamespace:  # fmt: skip
        hidden = self.embed(input_ids)
        if cache is not None:
            rows = hidden[:, None]
            cache.update(rows, rows, 0)
        logits = nn.functional.one_hot(self.table[input_ids], len(self.table)).float()
        if isinstance(logits_to_keep, Tensor):
            logits = logits[:, logits_to_keep]
        return SimpleNamespace(logits=logits, hidden_states=[hidden])


class Memoryless:
    """The part of a drafter that looks at one state alone."""

    max_positions = 2**31

    def new_memory(self, capacity: int) -> None:
        return None

    def read(self, hidden: Tensor, start: int = 0, memory: KVCache | None = None) -> Tensor:
        return hidden


class ScriptedDrafter(Memoryless):
    """A drafter that knows the table and puts the true next token at a dictated rank.

    Args:
        table: next token of every token.
        rank: rank of the true token, given (last token, head); a rank beyond the vocabulary means never among the guesses.
    """

    sequential = True

    def __init__(self, table: Sequence[int], rank: Callable[[int, int], int], depth: int = 4) -> None:
        self.table = list(table)
        self.rank = rank
        self.vocabulary = len(table)
        self.depth = depth

    def start(self, hidden: Tensor, root: Tensor) -> Tensor:
        return root[:, None]

    def extend(self, context: Tensor, tokens: Tensor) -> Tensor:
        return torch.cat((context, tokens[:, None]), 1)

    def to_target_ids(self, guesses: Tensor) -> Tensor:
        return guesses

    def logits(self, level: int, context: Tensor) -> Tensor:
        rows = []
        for last in context[:, -1].tolist():
            order = [token for token in range(self.vocabulary) if token != self.table[last]]
            order.insert(min(self.rank(last, level), self.vocabulary - 1), self.table[last])
            row = torch.empty(self.vocabulary)
            row[torch.tensor(order)] = -torch.arange(self.vocabulary, dtype=torch.float32)
            rows.append(row)
        return torch.stack(rows)


def table_target(table: Sequence[int], ends: Sequence[int] = (), positions: int = 128) -> Target:
    """A target over a table."""
    return Target(TableModel(table, positions), frozenset(ends), "table", "sha256:table")


def random_tree(rng: random.Random, size: int, depth: int = 4) -> Topology:
    """A random topology grown by admissible nodes."""
    nodes: tuple[tuple[int, ...], ...] = ()
    for _ in range(size):
        nodes = (*nodes, rng.choice(Topology(nodes).candidates(depth)))
    return Topology(nodes)


def plain(target: Target, prompt: Sequence[int], stop: StopRule) -> list[int]:
    """Plain greedy text, the oracle."""
    return [token for step in autoregressive(target, prompt, stop) for token in step.tokens]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes with an end token and no chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(["<end>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a byte tokenizer, saved as transformers saves models."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    model = tiny_model(vocab=257, positions=512, eos_token_id=0, initializer_range=0.25)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short prompts in JSON Lines, enough for two shards of distilled text."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(f'{{"prompt": "Q{number}: after {number * 7 % 31}?"}}\n' for number in range(520)))
    return path


def cli(*words: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="session")
def tiny_heads(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path, prompt_file: Path) -> Path:
    """Hydra heads trained on the tiny model's own text with the real command."""
    folder = tmp_path_factory.mktemp("heads") / "tiny-hydra"
    result = cli("train-heads", "--out", folder, "--base", tiny_folder, "--prompts", prompt_file, "--heads", 3, "--layers", 1,
                 "--max-new-tokens", 24, "--steps", 250, "--batch", 1024, "--rate", 0.003,
                 "--dtype", "float32", "--quiet")  # fmt: skip
    assert result.exit_code == 0, result.output
    return folder
