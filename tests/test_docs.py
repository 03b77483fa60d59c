"""Every block of code of the README and of docs/ runs, and prints what the page says."""

import pytest
from doc_blocks import Block, Reader, blocks_of, matched, pages

SET_UP = "bash"
"""Blocks of set-up commands in the README, which .ci/run runs."""


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_page(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = Reader()
    for block in blocks_of(path.read_text()):
        if block.not_run:
            print(f"{path.name}:{block.line}: not run: {block.not_run}")
            continue
        if block.language == SET_UP:
            assert path.stem == "README", f"{path.name}:{block.line}: commands of perfmodel stand in blocks marked sh"
            continue
        try:
            now = reader.run(block)
        except Exception as error:
            raise AssertionError(f"{path.name}:{block.line}: {error}") from error
        if now is not None:
            assert block.text == now, f"{path.name}:{block.line}: prints something else now; python tests/doc_blocks.py --write renews it"


class TestBlocks:
    PAGE = 'a\n\n<!-- not run: needs a GPU -->\n\n```sh\nperfmodel measure\n```\n\n```yaml title="x.yaml"\na: 1\n```\n- b\n\n  ```python\n  if 1:\n      2\n  ```\n'

    def test_are_found_with_titles_reasons_and_without_their_indent(self):
        assert blocks_of(self.PAGE) == [
            Block(5, "sh", None, "perfmodel measure", "needs a GPU"),
            Block(9, "yaml", "x.yaml", "a: 1", None),
            Block(14, "python", None, "if 1:\n    2", None),
        ]

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
        with pytest.raises(AssertionError, match="only commands of perfmodel"):
            Reader().run_sh("rm -r x")

    def test_wrong_output_differs(self):
        block = Block(1, "console", None, "$ perfmodel formats --help\nnothing", None)
        assert Reader().run(block) != block.text
