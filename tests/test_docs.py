"""Every block of code of the README and of docs/ runs, and prints what the page says."""

import importlib.util
import re
from pathlib import Path

import pytest
from doc_blocks import OPEN, ROOT, Block, Reader, blocks_of, matched, pages, table_commands

SET_UP = "bash"
"""Blocks of set-up commands in the README, which .ci/run runs."""


@pytest.fixture(scope="module", autouse=True)
def closed_server():
    with OPEN:
        yield


def not_run():
    return [(path.name, block.line, block.not_run) for path in pages() for block in blocks_of(path.read_text()) if block.not_run]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_page(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = Reader()
    for block in blocks_of(path.read_text()):
        if block.language == SET_UP:
            assert path.stem == "README", f"{path.name}:{block.line}: commands of perfmodel stand in blocks marked sh"
            continue
        try:
            now = reader.run(block)
        except Exception as error:
            raise AssertionError(f"{path.name}:{block.line}: {error}") from error
        if now is not None:
            assert block.text == now, f"{path.name}:{block.line}: prints something else now; make docs-output renews it"


@pytest.mark.parametrize("command", table_commands((ROOT / "README.md").read_text()))
def test_command_of_the_readmes_table(command, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # so that what a command writes does not end up in the checkout
    monkeypatch.chdir(tmp_path)
    Reader().run_sh(command)


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_no_page_holds_a_place_for_a_figure_to_come(path):
    assert not re.findall(r"@@ %|\b(?:TODO|FIXME|TBD|XXX)\b", path.read_text())


@pytest.mark.parametrize(("name", "line", "reason"), not_run(), ids=lambda value: str(value)[:20])
def test_what_is_not_run_says_why(name, line, reason):
    pytest.skip(f"{name}:{line}: {reason}")


class TestBlocks:
    PAGE = """a

<!-- not run: needs a GPU -->

```sh
perfmodel measure
```

```yaml title="x.yaml"
a: 1
```
- b

  ```python
  if 1:
      2
  ```
"""

    def test_are_found_with_titles_reasons_and_without_their_indent(self):
        assert blocks_of(self.PAGE) == [
            Block(5, "sh", None, "perfmodel measure", "needs a GPU"),
            Block(9, "yaml", "x.yaml", "a: 1", None),
            Block(14, "python", None, "if 1:\n    2", None),
        ]

    def test_commands_in_tables_are_found(self):
        page = "`perfmodel gpus`\n| a | b |\n| --- | --- |\n| x | `perfmodel gap x`, `perfmodel serve`, `pip` | `perfmodel formats` |\n"
        assert table_commands(page) == ["perfmodel gap x", "perfmodel formats"]

    def test_a_fence_that_is_never_closed_is_said(self):
        with pytest.raises(ValueError, match="line 2"):
            blocks_of("a\n```sh\nperfmodel gpus\n")

    @pytest.mark.parametrize(
        ("shown", "wanted"),
        [
            ("one\ntwo\nthree", "one\ntwo\nthree"),
            ("one\n...", "one\n..."),
            ("...\nthree", "...\nthree"),
            ("one\n...\nthree", "one\n...\nthree"),
            ("...\ntwo\n...", "...\ntwo\n..."),
            ("one\n...\n3", "one\n...\nthree"),  # not what is printed: the comparison fails
            ("zero\ntwo\nthree", "one\ntwo\nthree"),
        ],
    )
    def test_lines_that_the_page_leaves_out_are_left_out(self, shown, wanted):
        assert matched(shown, "one\ntwo  \nthree\n") == wanted

    def test_a_command_that_fails_and_one_of_others_are_said(self):
        with pytest.raises(AssertionError, match="exit code 2\nperfmodel: GPU"):
            Reader().run_sh("perfmodel gap gpt-oss-20b --gpu h2000")
        with pytest.raises(AssertionError, match="only perfmodel and curl"):
            Reader().run_sh("rm -r x")

    def test_wrong_output_differs(self):
        block = Block(1, "console", None, "$ perfmodel formats --help\nnothing", None)
        assert Reader().run(block) != block.text


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestSite:
    def test_every_command_with_its_options_is_in_the_reference(self, hooks):
        import typer

        from perfmodel.cli import COMMANDS, build_app

        text = hooks.command_reference(typer.main.get_command(build_app()))
        assert all(f"## perfmodel {name}\n" in text for name in COMMANDS)
        assert "### perfmodel spec set\n" in text
        assert "| `--kernel STR` | Kernel profile (`perfmodel profiles`); auto takes the fastest measured one. | `auto` |\n" in text
        assert "| `tables\\|silicon\\|runs\\|serving\\|FILE.csv` |" in text  # a bar in a table

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("[a](model.md#x)", "[a](model.md#x)"),
            ("[the kernels](../kernels/README.md)", "[the kernels](kernels.md)"),
            ("[prices](../perfmodel/planning/prices.yaml)", "prices"),
            ("[out](https://example.org)", "[out](https://example.org)"),
            ("```python\nkernel[1](a.md)\n```", "```python\nkernel[1](a.md)\n```"),
        ],
    )
    def test_links_are_those_of_the_site(self, hooks, text, wanted):
        assert hooks.site_links(text, Path("docs")) == wanted

    @pytest.mark.parametrize(
        "tag", ['<script src="https://x.org/a.js">', '<link rel="stylesheet" href="//x.org/a.css">', "<img src=http://x.org/a>"]
    )
    def test_what_a_page_would_fetch_is_found(self, hooks, tag):
        assert hooks.FETCHED.search(tag)

    def test_links_and_own_files_are_not_fetched(self, hooks):
        assert not hooks.FETCHED.search('<a href="https://x.org"> <script src="assets/a.js"> <link href="site.css" rel="stylesheet">')
