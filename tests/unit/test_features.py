"""The table of features in docs/features.md and the tool that writes it."""

import importlib.util
from pathlib import Path

import pytest
from support.forked_programs import run_forked

ROOT = Path(__file__).parents[2]

spec = importlib.util.spec_from_file_location("features", ROOT / "tools" / "features.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

COMMENTS = [tool.marked_tables.begin("some"), tool.marked_tables.end("some")]
DOCUMENT = "by hand\n\n{}\nold\n{}\n\nby hand too\n".format(*COMMENTS)


def features(folder: Path, **sources: str) -> dict:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return tool.features_of(folder)


def test_document_in_the_repository_then_is_up_to_date():
    # In a process of its own: PyTorch wraps methods of optimisers once one is used.
    path = ROOT / "tools" / "features.py"
    done = run_forked([str(path), "--check"])
    assert done.returncode == 0, done.stderr


def test_table_then_has_one_sorted_line_a_feature_with_all_words_and_files(tmp_path):
    found = features(
        tmp_path,
        test_a='pytestmark = [pytest.mark.feature("zoo", fidelity="refused")]',
        test_b='@pytest.mark.feature("zoo", fidelity="exact")\ndef test(): pass',
        test_c='@pytest.mark.feature("Ant", fidelity="modelled")\nclass Test: pass',
    )
    assert tool.table(found).splitlines()[2:] == [
        "| Ant | modelled | test_c.py |",
        "| zoo | exact, refused | test_a.py, test_b.py |",
    ]


def test_new_table_then_what_was_written_by_hand_stays_and_a_second_time_changes_nothing():
    once = tool.marked_tables.with_table(DOCUMENT, "some", "| new |")
    assert once == DOCUMENT.replace("old", "| new |")
    assert tool.marked_tables.with_table(once, "some", "| new |") == once


@pytest.mark.parametrize("comment", COMMENTS)
def test_new_table_when_a_comment_is_missing_then_refuses(comment):
    with pytest.raises(ValueError, match="must have one line"):
        tool.marked_tables.with_table(DOCUMENT.replace(comment, ""), "some", "")


@pytest.mark.parametrize(
    "marker",
    ['("A")', '(name, fidelity="exact")', '("A", "exact")', '("A", fidelity="exact", more=1)'],
)
def test_marker_when_it_cannot_be_read_then_names_the_place(marker, tmp_path):
    with pytest.raises(ValueError, match=r"test_x\.py:1: write the marker as"):
        features(tmp_path, test_x=f"x = pytest.mark.feature{marker}")


def test_marker_when_the_word_is_unknown_then_lists_the_words(tmp_path):
    with pytest.raises(ValueError, match="'perfect' is none of exact, modelled"):
        features(tmp_path, test_x='x = pytest.mark.feature("A", fidelity="perfect")')


def test_marker_when_under_another_name_then_names_the_place(tmp_path):
    with pytest.raises(ValueError, match=r"test_x\.py:1: a marker under another name"):
        features(tmp_path, test_x='f = pytest.mark.feature\n@f("A", fidelity="exact")\ndef t(): 0')


def test_names_when_no_test_uses_one_then_refuses():
    with pytest.raises(ValueError, match=r"No test uses Options\.b, c\."):
        tool.public_names.table(
            {"Options.a": "exact", "Options.b": "exact", "c": "refused"}, {"a": ["test_a.py"]}
        )


def test_names_then_have_words_and_lines_with_files():
    rows = tool.public_names.table(
        {"b.c": "exact", "A": "modelled"}, {"A": ["x.py"], "c": ["x.py", "y.py", "z.py"]}
    )
    assert rows.splitlines()[2:] == [
        "| A | modelled | x.py |",
        "| b.c | exact | x.py, y.py and others |",
    ]


def test_users_then_are_files_whose_code_has_the_name(tmp_path):
    (tmp_path / "test_a.py").write_text("import m\nm.one(two=3)\nSHOWN = ['three', 'no name']")
    found = tool.public_names.users(tmp_path)
    assert {name for name in found if name in ("one", "two", "three", "no name")} == {
        "one",
        "two",
        "three",
    }
