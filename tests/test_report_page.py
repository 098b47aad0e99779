"""The report as people meet it: the command, the files, the page in a parser and in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import cli
from made_runs import HOSTILE, add_bank, add_dynamic, add_search, begin, whole

pytest.importorskip("matplotlib")

from entmtp_calib.report.answer import answer
from entmtp_calib.report.build import figures
from entmtp_calib.report.drawing import to_png, to_svg
from entmtp_calib.report.drawing_trees import best_nodes, leaf_lines
from entmtp_calib.report.figure import Figure
from entmtp_calib.report.material import read_material
from entmtp_calib.report.page import page, visible
from entmtp_calib.report.speed import search_time

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
ALL = {"throughput", "frontier", "gain", "timeline", "trees", "hit-rates", "signal", "reliability", "cost-model"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with its report; the prompt with the hostile name is the one that is shown."""
    folder = whole(tmp_path_factory.mktemp("reports") / "run").path
    result = cli("report", folder, "--prompt", HOSTILE)
    assert result.exit_code == 0, result.output
    assert "report.html" in result.stderr
    return folder


class Page(HTMLParser):
    """Tags, attributes and text of a page; complains of a tag that is closed in the wrong place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_every_figure_has_a_picture_its_numbers_and_a_place_on_the_page(run: Path) -> None:
    assert {path.name for path in (run / "figures").iterdir()} == {f"{name}.{kind}" for name in ALL for kind in ("png", "csv")}
    for name in ALL:
        assert (run / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (run / "figures" / f"{name}.csv").read_text().count("\n") > 1
    tags = Page((run / "report.html").read_text()).tags
    assert {attrs["id"] for tag, attrs in tags if tag == "section" and "id" in attrs} == ALL
    assert {attrs["href"] for tag, attrs in tags if tag == "a"} == {f"#{name}" for name in ALL}
    assert [tag for tag, _attrs in tags if re.fullmatch("h[1-6]", tag)] == ["h1", *["h2"] * (len(ALL) + 2)]
    assert sum(tag == "svg" and attrs.get("role") == "img" and bool(attrs["aria-label"]) for tag, attrs in tags) == len(ALL)


def test_the_page_asks_for_nothing_outside_itself_and_runs_nothing(run: Path) -> None:
    text = (run / "report.html").read_text()
    tags = Page(text).tags
    assert not {"script", "link", "iframe", "object", "embed", "base", "img"} & {tag for tag, _attrs in tags}
    for _tag, attrs in tags:
        assert not any(name.startswith("on") for name in attrs)
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert attrs.get(name, "#").startswith("#"), (name, attrs[name])
    assert all(target.startswith("#") for target in re.findall(r"url\(\s*['\"]?([^)]*)\)", text))
    assert "@import" not in text
    ids = [attrs["id"] for _tag, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    inner = {attrs["xlink:href"][1:] for _tag, attrs in tags if "xlink:href" in attrs}
    assert inner <= set(ids)


def test_the_page_begins_with_what_to_use(tmp_path: Path) -> None:
    made = whole(tmp_path / "run")
    about, use, known = answer(read_material(made.path))
    assert "tiny with the heads heads, on tests" in about
    assert use == "Use the policy static: always wide."
    assert known.startswith("The tree wide alone writes 1.0 tokens/s as timed, 1.00 times plain decoding")
    add_dynamic(made, 3)
    _about, use, known = answer(read_material(made.path))
    assert re.fullmatch(r"Use the policy dynamic: of \d+ drafted nodes it verifies the 3 that the heads are surest of.", use)
    assert "By replay" not in known  # the bank recorded nothing about it
    add_bank(made, "hysteresis")
    _about, use, known = answer(read_material(made.path))
    assert use == "Use the policy hysteresis: at every step chain or wide, by path_value_2."
    assert "By replay hysteresis gives 0.900 times the best static tree (95 % interval 0.800 to 1.050)." in known


def test_control_characters_are_shown_and_other_scripts_left_alone() -> None:
    assert visible("a\x00\x1b[0m\t\n\x85\ud800\u202e") == "a\u2400\u241b[0m\t\n\ufffd\ufffd\ufffd"
    plain = "שלום 你好 🎉 e\u0301"
    assert visible(plain) == plain


def test_what_came_from_files_stays_text(run: Path) -> None:
    found = Page((run / "report.html").read_text())
    assert "alert" not in "".join(value for _tag, attrs in found.tags for value in attrs.values())
    assert found.words.count(HOSTILE) == 2  # the prompt and the machine
    assert found.words.count("<script>") == 3  # the command too, quoted as a shell would want it
    assert "<script" not in (run / "report.html").read_text()


def test_the_page_says_how_far_to_trust_it_and_where_it_comes_from(run: Path) -> None:
    words = Page((run / "report.html").read_text()).words
    assert "too small to trust: time 3 prompts" in words
    assert "fewer than 20 prompts is marked" in words
    for told in ("entmtp run", "python 3", "abc", "float32", "sha256:", "What is not here", "Time of a search"):
        assert told in words


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    material = read_material(run)
    found = [item for item in figures(material) if isinstance(item, Figure)]
    assert page(material, found, {item.name: to_svg(item) for item in found}) == page(
        material, found, {item.name: to_svg(item) for item in found}
    )
    assert to_png(found[0]) == to_png(found[0])


def test_a_figure_that_is_no_more_takes_its_files_with_it(tmp_path: Path) -> None:
    made = whole(tmp_path / "run")
    assert cli("report", made.path, "--out", tmp_path / "out", "--quiet").exit_code == 0
    assert not (made.path / "report.html").exists()
    made.file("bank.json").unlink()
    result = cli("report", made.path, "--out", tmp_path / "out", "--json")
    document = json.loads(result.stdout)
    assert {item["figure"] for item in document["missing"]} >= {"gain", "signal", "trees", "timeline"}
    assert not (tmp_path / "out/figures/gain.png").exists()
    assert (tmp_path / "out/figures/frontier.png").exists()
    assert document["rows"]["frontier"]


def test_a_run_with_a_search_alone_has_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    made = begin(tmp_path / "run")
    add_search(made)
    made.file("rollouts/fit/00001.npz").unlink()
    result = cli("report", made.path)
    assert result.exit_code == 0, result.output
    assert "unfinished: 4 of 5 fit prompts" in result.stderr
    words = Page((made.path / "report.html").read_text()).words
    assert "nothing has been timed (comes with entmtp time)" in words
    assert "The run has no bank yet, so it does not say what to use." in words


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert cli("report", tmp_path).exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_search_times_are_drawn_when_they_are_given(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("prompts,rollout_s,growth_s\n25,10,1\n50,20,1\n")
    figure = search_time(path)
    assert isinstance(figure, Figure)
    assert to_svg(figure).startswith("<svg")


def test_signs_of_mathematics_and_markup_in_labels_are_only_signs() -> None:
    rows = [{"prompts": 1, "rollout_s": 1.0, "growth_s": 1.0}]
    figure = Figure("search-time", "<b>$x$</b>", "", ("prompts",), rows, ())
    assert to_svg(figure).count("<svg") == 1
    tree = [{"tree": "<b>$\\bad$</b>", "node": "0", "depth": 1, "rank": 0, "accepted": 0.5, "steps": 3}]
    drawn = to_svg(Figure("trees", "", "", (), tree, (), {"drawn": [tree[0]["tree"]]}))
    assert "&lt;b&gt;$\\bad$&lt;/b&gt;" in drawn


def test_a_tree_has_a_line_for_every_leaf_and_parents_beside_their_first_child() -> None:
    nodes = ("0", "0.0", "0.0.0", "0.1", "1", "2", "2.0")
    assert leaf_lines([{"node": node} for node in nodes]) == {
        "": 0, "0": 0, "0.0": 0, "0.0.0": 0, "0.1": 1, "1": 2, "2": 3, "2.0": 3,
    }  # fmt: skip


def test_of_a_large_tree_the_nodes_that_are_accepted_most_are_drawn_and_the_figure_says_so() -> None:
    shares = {"0": 0.5, "0.0": 0.2, "0.1": 0.2, "1": 0.2, "1.0": 0.1}
    rows = [{"tree": "t", "node": node, "depth": node.count(".") + 1, "rank": int(node[-1]), "accepted": share, "steps": 9}
            for node, share in shares.items()]  # fmt: skip
    assert [row["node"] for row in best_nodes(rows, 3)] == ["0", "0.0", "1"]
    wide = [{"tree": "t", "node": str(n), "depth": 1, "rank": n, "accepted": 0.5 / (n + 1), "steps": 9} for n in range(30)]
    assert "20 of its 30 nodes" in to_svg(Figure("trees", "", "", (), wide, (), {"drawn": ["t"]}))
    assert "of its" not in to_svg(Figure("trees", "", "", (), rows, (), {"drawn": ["t"]}))


def test_matplotlib_is_loaded_only_when_something_is_drawn() -> None:
    code = (
        "import entmtp_calib.report.build, entmtp_calib.report.page, entmtp_calib.commands, sys; "
        "assert not {'matplotlib', 'pandas', 'datasets'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def browse(page: Path, profile: Path, width: int, *words: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--enable-logging=stderr", f"--user-data-dir={profile}", f"--window-size={width},900")  # fmt: skip
    return subprocess.run([BROWSER, *flags, *words, page.as_uri()], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_a_browser_opens_the_page_without_an_error_or_a_request(run: Path, tmp_path: Path) -> None:
    """The page's own policy forbids requests and scripts, so the browser's console names each that is tried."""
    found = browse(run / "report.html", tmp_path / "profile", 1200, "--dump-dom")
    assert "</html>" in found.stdout
    assert "CONSOLE" not in found.stderr, found.stderr
    text = (run / "report.html").read_text()
    for bad in (
        '<img src="http://127.0.0.1:9/x.png">',
        "<script>1</script>",
        '<p onclick="1" style="background:url(https://127.0.0.1:9/)">',
    ):
        (tmp_path / "bad.html").write_text(text.replace("<h1>", f"{bad}<h1>", 1))
        assert "CONSOLE" in browse(tmp_path / "bad.html", tmp_path / "profile", 1200, "--dump-dom").stderr, bad


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [320, 390, 1200])
def test_the_page_is_no_wider_than_a_phone(run: Path, tmp_path: Path, width: int) -> None:
    """In a frame, since browsers open no window as narrow as a phone."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", (run / "report.html").read_text())
    script = "<script>parent.document.title = [document.documentElement.scrollWidth, innerWidth].join(' of ')</script>"
    inside = escape(text.replace("</body>", f"{script}</body>"))
    frame = f'<title>none</title><iframe srcdoc="{inside}" style="width:{width}px;height:800px;border:0"></iframe>'
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{frame}")
    dom = browse(tmp_path / "frame.html", tmp_path / "profile", 1300, "--dump-dom").stdout
    took, of = map(int, re.findall(r"<title>(\d+) of (\d+)</title>", dom)[0])
    assert took <= of == width
