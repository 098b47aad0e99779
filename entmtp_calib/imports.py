"""Trees of others: node lists from Python, JSON or YAML text, closed under prefixes and checked; and the file that keeps them.

Reads literals only and evaluates nothing. Of banks it takes the trees alone.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entmtp_calib.bank import FORMAT as BANK
from entmtp_calib.bank import load_bank
from entmtp_calib.errors import ArtefactError
from entmtp_calib.storage import read_json
from entmtp_calib.topology import MAX_DEPTH, Node, Topology, from_lists, published_default

FORMAT, VERSION = "entmtp-trees", 1
MAX_CHARACTERS, MAX_NODES = 250_000, 4096  # a text of this length is parsed in seconds
MAX_NESTING = 3
MAX_LABEL = 60
RESERVED = ("ar", "ar-again", "default-63")
_LOOKS = "A node list looks like [[0], [0, 0], [1]], one child rank a level."
_HINT = "Make one with: entmtp import"


@dataclass(frozen=True, slots=True)
class Imported:
    """A tree with a name, in the order (depth, ranks); added: the nodes that the list only implied."""

    label: str
    topology: Topology
    added: tuple[Node, ...] = ()


def import_text(text: str, label: str, only: str = "") -> list[Imported]:
    """Read node lists.

    Args:
        text: a list of lists or tuples of ranks as Python, JSON or YAML; or several under names, as Python assignments or as a
            mapping, whose values may be mappings again, of which all that hold lists are read.
        label: name of a list that has none of its own.
        only: of several named lists, the one to read; all of them if none is called so.

    Raises:
        ArtefactError: nothing of the kind, or a list that `close_prefixes` refuses; the message names the list.
    """
    if len(text) > MAX_CHARACTERS:
        raise ArtefactError(f"{label} has more than {MAX_CHARACTERS} characters, too many for trees.", _LOOKS)
    value = _unquoted(_literals(text.removeprefix("\ufeff"), label))
    if isinstance(value, Mapping) and str(value.get("format")).startswith("entmtp-"):
        raise ArtefactError(f"{label} is a file of this tool, {value['format']}, and not a node list.",
                            "A tree file or a bank goes to --add-trees and to `entmtp export` as it is.")  # fmt: skip
    named = _named(value, label)
    found = [(name, item) for name, item in named if any(isinstance(node, (list, tuple)) for node in item)] or named
    if not found:
        raise ArtefactError(f"{label} holds no node list.", _LOOKS)
    wanted = [(name, nodes) for name, nodes in found if name == only] or found
    return [close_prefixes(nodes, name) for name, nodes in wanted]


def close_prefixes(nodes: Sequence[Any], label: str) -> Imported:
    """A tree from a node list, full or leaves only: every parent that is missing is added.

    Raises:
        ArtefactError: something that is no list of ranks, a duplicate, a gap between siblings, or more than is sensible.
    """
    if not nodes:
        raise ArtefactError(f"the list of {label} is empty.", _LOOKS)
    if len(nodes) > MAX_NODES:
        raise ArtefactError(f"{label} has {len(nodes)} nodes; {MAX_NODES} are the most that are read.")
    given = [_node(item, label) for item in nodes]
    seen = set(given)
    if len(seen) != len(given):
        twice = next(node for place, node in enumerate(given) if node in given[:place])
        raise ArtefactError(f"{label} has node {list(twice)} twice.", "Remove one of them.")
    closed = {node[:depth] for node in given for depth in range(1, len(node) + 1)}
    if len(closed) > MAX_NODES:
        raise ArtefactError(f"{label} has {len(closed)} nodes with those that it implies; {MAX_NODES} are the most.")
    for node in sorted(closed):
        if node[-1] and (*node[:-1], node[-1] - 1) not in closed:
            raise ArtefactError(
                f"{label} leaves a gap: it has {list(node)} and not {[*node[:-1], node[-1] - 1]}.",
                "Engines fill the children of a node with its best guesses in order, so that a gap would move every guess "
                "behind it. Add the node.",
            )
    order = sorted(closed, key=lambda node: (len(node), node))
    return Imported(label, Topology(tuple(order)), tuple(node for node in order if node not in seen))


def trees_to_json(trees: Sequence[Imported]) -> dict[str, Any]:
    """Plain values for a tree file.

    Raises:
        ArtefactError: two trees of one name, or a name that the pipeline uses itself.
    """
    labels = [tree.label for tree in trees]
    for label in labels:
        if labels.count(label) > 1:
            raise ArtefactError(f"two trees are called {label!r}.", "Import one at a time, with --label.")
        if label in RESERVED or label.isdigit() or not label.strip() or not label.isprintable() or len(label) > MAX_LABEL:
            raise ArtefactError(f"a tree cannot be called {label!r}.", "Give another name with --label.")
    rows = [{"label": tree.label, "nodes": tree.topology.to_lists()} for tree in trees]
    return {"format": FORMAT, "version": VERSION, "trees": rows}


def load_trees(path: Path) -> dict[str, Topology]:
    """The trees of a tree file, by label; or those of a bank, with its task before their labels.

    Raises:
        ArtefactError: missing, another format or version, or a tree that cannot be.
    """
    value = read_json(path, "tree file", _HINT)
    if isinstance(value, dict) and value.get("format") == BANK:
        return _trees_of_bank(path)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ArtefactError(f"{path} is not a tree file.", _HINT)
    if type(value.get("version")) is not int or value["version"] != VERSION:
        raise ArtefactError(f"{path} has version {value.get('version')!r}; this tool reads {VERSION}.", _HINT)
    rows = value.get("trees")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ArtefactError(f"{path} holds no trees.", _HINT)
    trees: dict[str, Topology] = {}
    for number, row in enumerate(rows):
        label = row.get("label")
        if not isinstance(label, str) or label in trees or label in RESERVED:
            raise ArtefactError(f"{path}: trees[{number}].label is not a name of its own.", _HINT)
        trees[label] = from_lists(row.get("nodes"), f"{path}: trees[{number}].nodes")
    return trees


def _trees_of_bank(path: Path) -> dict[str, Topology]:
    bank = load_bank(path)
    task = Path(bank.task).stem[: MAX_LABEL // 2]
    own = Topology(), published_default().sorted()  # what every run measures by itself
    trees = {f"{task} {tree.label}": tree.topology for tree in bank.trees if tree.topology.sorted() not in own}
    if not trees:
        raise ArtefactError(f"the bank {path} holds no tree of its own.", "Give another bank, or a tree file.")
    return trees


def _literals(text: str, label: str) -> Any:
    """The literal that a text is, or a mapping of the literals that it assigns to names."""
    lines = [line.lstrip() for line in text.splitlines()]
    first = next((line for line in lines if line and not line.startswith("#")), "")
    if not first:
        return None
    if first.startswith(("-", "%")):
        return _yaml(text, label)  # a line "- [0]" would be Python too: minus a list
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            body = ast.parse(text.lstrip()).body
            if len(body) == 1 and isinstance(body[0], ast.Expr):
                return ast.literal_eval(body[0].value)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return _json(text, label)
    return dict(_assigned(body)) or _yaml(text, label)  # "tree: [[0]]" is Python too: an annotation


def _assigned(body: Sequence[ast.stmt]) -> list[tuple[str, Any]]:
    found = []
    for statement in body:
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if isinstance(target, ast.Name):
            try:
                found.append((target.id, ast.literal_eval(statement.value)))
            except (ValueError, TypeError, RecursionError, MemoryError):
                continue  # not a literal, so not a node list
    return found


def _json(text: str, label: str) -> Any:
    """What a text holds that is not Python; YAML reads JSON too, but no tabs."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _yaml(text, label)


def _yaml(text: str, label: str) -> Any:
    import yaml  # type: ignore[import-untyped]  # transformers brings it

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ArtefactError(f"{label} is neither Python nor JSON nor YAML{where}.", _LOOKS) from None


def _named(value: Any, label: str, nesting: int = 0) -> list[tuple[str, Sequence[Any]]]:
    """The lists in a value, with the names that they are under."""
    if isinstance(value, (list, tuple)):
        return [(label, _unwrapped(value))]
    if not isinstance(value, Mapping) or nesting > MAX_NESTING:
        return []
    return [found for name, item in value.items() for found in _named(_unquoted(item), str(name), nesting + 1)]


def _unwrapped(value: Sequence[Any]) -> Sequence[Any]:
    """A list without the tuple that a comma behind it makes, as in `choices = [[0], [1]],`."""
    inner = value[0] if isinstance(value, tuple) and len(value) == 1 else None
    return inner if isinstance(inner, (list, tuple)) and any(isinstance(item, (list, tuple)) for item in inner) else value


def _unquoted(item: Any) -> Any:
    """What a text holds that is a list itself, as in vLLM's `speculative_token_tree`."""
    if not isinstance(item, str) or not item.startswith("["):
        return item
    try:
        return ast.literal_eval(item)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return item


def _node(item: Any, label: str) -> Node:
    if not isinstance(item, (list, tuple)):
        raise ArtefactError(f"{label} holds a value of type {type(item).__name__} where a node should be.", _LOOKS)
    if not item:
        raise ArtefactError(f"{label} holds an empty node.", "The root is implied; leave it out.")
    if len(item) > MAX_DEPTH:
        raise ArtefactError(f"{label} has a node {len(item)} deep; {MAX_DEPTH} is the most that is read.")
    for rank in item:
        if type(rank) is not int or not 0 <= rank < MAX_NODES:
            small = type(rank) in (float, str) or (type(rank) is int and abs(rank) < 10**18)  # others may be too large to print
            shown = f"{rank!r:.20}" if small else f"a value of type {type(rank).__name__}"
            raise ArtefactError(f"{label} has {shown} for a child rank.", f"Ranks are whole numbers from 0 to {MAX_NODES - 1}.")
    return tuple(item)
