"""What goes wrong at the command line: one sentence each, and nothing of the user's is lost."""

import json
import os
import shutil
import sys

import pytest

from unskew.cli import main
from unskew.cli._output import stdout

BRACKETS = ("[/x] film", "[b]bold[/b]", "two :cat: friends")


def write_ratings(path):
    """Twelve users with six of twenty items each."""
    rows = [(user, (user * 3 + k) % 20, 1_600_000_000 + k) for user in range(12) for k in range(6)]
    lines = [f"[u]{user},[/i]{item},{at}" for user, item, at in rows]
    path.write_text("user,item,timestamp\n" + "\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a file full of brackets, and runs on it under two protocols."""
    place = tmp_path_factory.mktemp("faults")
    write_ratings(place / "[own].csv")
    titles = [f"[/i]{item},{BRACKETS[item % 3]} {item}" for item in range(20)]
    (place / "titles.csv").write_text("item,title\n" + "\n".join(titles) + "\n")
    before = os.getcwd()
    os.chdir(place)
    try:
        data = ("--data", "[own].csv", "--titles", "titles.csv")
        for out, *options in (("run", "leak-free"), ("[paper]", "paper"), ("[b]", "leak-free")):
            words = ["run", *data, "--method", "popularity", "--protocol", *options, "--out", out]
            assert command(*words) == 0
    finally:
        os.chdir(before)
    return place


def command(*words):
    """Run the command in this process; its exit code."""
    argv = sys.argv
    sys.argv = ["unskew", *map(str, words)]
    try:
        main()
    except SystemExit as done:
        return done.code or 0
    finally:
        sys.argv = argv
    return 0


@pytest.fixture
def unskew(place, monkeypatch, capsys, threads_restored):
    monkeypatch.chdir(place)

    def run(*words, expect=0):
        capsys.readouterr()
        code = command(*words)
        told = capsys.readouterr()
        assert code == expect, told
        return told.out, told.err

    return run


@pytest.fixture
def refused(unskew):
    """The one sentence with which a command is refused."""

    def run(*words):
        out, err = unskew(*words, expect=2)
        assert out == ""
        assert err.startswith("unskew: ")
        assert err.count("\n") == 1
        return err

    return run


def test_brackets_are_printed_as_they_are(unskew, refused):
    out, _ = unskew("recommend", "run", "--user", "[u]3", "-k", 20)
    for title in BRACKETS:
        assert title in out
    assert "[/i]" in out
    out, _ = unskew("compare", "run", "[b]")
    assert "[b]" in out
    out, _ = unskew("resume", "[paper]")
    assert "[own].csv: 12 users" in out
    assert "Run: [paper]" in out
    assert 'no user "[/u]"' in refused("recommend", "run", "--user", "[/u]")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("seeds = 3", "a list such as [0, 1, 2]"),
        ('seeds = ["a"]', "a whole number"),
        ("seeds = [true]", "a whole number"),
        ("seeds = [99999999999999999999]", "whole numbers from 0 to 2^63 - 1"),
        ("settings = 3", "a table"),
        ('columns = "x"', "a table"),
        ("columns = { user = 3 }", "columns.user = 3 must be text"),
        ('min_user_rows = "a"', "a whole number"),
        ("min_user_rows = 0", "a whole number of at least 1"),
        ("data = 3", "text in quotes"),
        ("titles = 3", "text in quotes"),
        ("method = [1]", "text in quotes"),
        ("protocol = [1]", "text in quotes"),
        ('skip_bad_rows = "no"', "true or false"),
        ("ldp = 3", "a table"),
        ("ldp = { nois = 3 }", 'ldp has no setting "nois"'),
        ("speed = 3", 'A run has no setting "speed"'),
        (f"speed = {'9' * 5000}", "wrong.toml is not a TOML file"),
        (f"speed = {'[' * 5000}", "wrong.toml is not a TOML file"),
    ],
)
def test_a_value_of_the_wrong_kind_in_a_config_file(refused, place, line, wanted):
    (place / "wrong.toml").write_text(line + "\n")
    options = ("--preset", "ml-100k") if line.startswith("method") else ("--rounds", 1)
    err = refused("run", "--config", "wrong.toml", *options, "--out", "never")
    assert line.split()[0] in err or "not a TOML file" in err
    assert wanted in err
    assert not (place / "never").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "--method", "popularity", "--out", "titles.csv/x"), "titles.csv/x"),
        (("report", "run", "--out", "."), ". is a folder"),
        (("report", "run", "--out", "titles.csv/x.html"), "titles.csv: "),
        (("recommend", "run", "--all", "--out", "titles.csv/x.csv"), "titles.csv: "),
        (("report", "--reproduce", "--results", "titles.csv"), "titles.csv"),
        (("resume", "nowhere"), "There is no nowhere/run.json; check the path."),
        (("compare", "nowhere"), "There is no nowhere/run.json; check the path."),
        (("run", "--seeds", "0-999999999999"), "must look like 0,1,2"),
        (("run", "--seeds", "4-0"), "must look like 0,1,2"),
    ],
)
def test_places_that_cannot_be_used(refused, words, sentence):
    assert sentence in refused(*words)


def test_a_folder_whose_name_is_not_unicode(unskew, refused, place):
    """Its other bytes are lone halves of characters to Python, which UTF-8 cannot write."""
    name = os.fsdecode(b"run-\xff")
    out, _ = unskew("run", "--data", "[own].csv", "--method", "popularity", "--out", name)
    assert out.endswith("Run: run-\\udcff\n")
    out, _ = unskew("resume", name, "--json")
    assert name in json.loads(out)["command"]
    assert "run-� already holds a run" in refused("run", "--data", "[own].csv", "--out", name)


def test_damaged_runs_are_named_by_every_command(refused, place):
    for lost, words in (
        ("seed-0/users.parquet", ("compare",)),
        ("seed-0/rounds.jsonl", ("report", "--out", "page.html")),
        ("users.parquet", ("report", "--out", "page.html")),
        ("items.parquet", ("recommend", "--user", "[u]3")),
    ):
        shutil.copytree(place / "run", place / "hurt")
        (place / "hurt" / lost).write_bytes(b"PAR1 and then nothing")
        assert lost in refused(words[0], "hurt", *words[1:])
        shutil.rmtree(place / "hurt")
    assert not (place / "page.html").exists()


def test_only_runs_on_the_same_footing_are_compared(refused, unskew, place):
    assert "protocol paper, the first run has leak-free" in refused("compare", "run", "[paper]")
    text = (place / "[own].csv").read_text()
    (place / "copy.csv").write_text(text)
    unskew("run", "--data", "copy.csv", "--method", "popularity", "--out", "same")
    out, _ = unskew("compare", "run", "same", "--json")
    assert json.loads(out)["runs"][1]["difference"] == 0, "the same data under another name"
    (place / "copy.csv").write_text("\n".join(text.splitlines()[:-6]) + "\n")
    for out in ("fewer", "fewer again"):
        unskew("run", "--data", "copy.csv", "--method", "popularity", "--out", out)
    assert "same footing" in refused("compare", "run", "fewer")
    assert "fewer has other data than same" in refused("compare", "same", "fewer")
    unskew("compare", "fewer", "fewer again")


@pytest.mark.parametrize(
    "option",
    [
        ("--data", "demo"),
        ("--protocol", "paper"),
        ("--set", "dim=4"),
        ("--preset", "ml-100k"),
        ("--rounds", "1"),
        ("--ldp-epsilon", "1"),
        ("--ldp-clip", "1"),
        ("--ldp-delta", "0.1"),
        ("--ldp-norm", "l2"),
        ("--ldp-kind", "gaussian"),
    ],
)
def test_a_run_is_audited_as_it_was(refused, option):
    assert f"{option[0]} cannot stand beside a run" in refused("audit", "privacy", "run", *option)


def test_an_audit_has_one_noise_and_one_method(refused):
    both = ("--ldp-epsilon", 1, "--ldp-clip", 1, "--noise", "0.1")
    assert "leave out --noise" in refused("audit", "privacy", "fedmf", *both)
    assert "two methods" in refused("audit", "privacy", "fedmf", "--method", "pfedclr")
    of_run = refused("audit", "privacy", "run", "--method", "fedmf")
    assert "The run is of popularity, not of fedmf" in of_run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--data", "demo,mll-100k"), "did you mean 'ml-100k'"),
        (("--data", "nowhere.csv"), "nowhere.csv: no such file"),
        (("--protocol", "leak-free,honest"), 'There is no protocol "honest"'),
    ],
)
def test_reproduce_checks_names_before_it_runs_anything(refused, place, words, sentence):
    assert sentence in refused("reproduce", "main", "--methods", "popularity", *words)
    assert not (place / "results").exists()


def test_the_demo_removes_nothing_but_runs(refused, place):
    mine = place / "mine" / "popularity-leak-free"
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("mine")
    shutil.copytree(place / "run", place / "mine" / "pfedclr-paper")
    assert "popularity-leak-free is in the way" in refused("demo", "--out", "mine")
    assert (mine / "notes.txt").read_text() == "mine"
    assert (place / "mine/pfedclr-paper/run.json").exists(), "nothing is removed before the check"


def test_a_column_can_be_left_out_at_the_command_line(unskew, place):
    text = "user,item,date\n" + "".join(f"a,{n},0{n}/02/21\n" for n in range(1, 5))
    (place / "dated.csv").write_text(text)
    out, _ = unskew("data", "info", "dated.csv", "--columns", "timestamp=", "--json")
    assert json.loads(out)["clock"] == "none"


NARROW = {
    ("compare", "run", "[b]"): ("popularity", "leak-free", "NDCG@10", "interval"),
    ("resume", "run"): ("popularity", "leak-free", "candidates", "NDCG@10"),
    ("recommend", "run", "--user", "[u]3"): ("[/i]15", "friends"),
    ("methods",): ("popularity", "aggregation", "factorisation"),
    ("data", "list"): ("ml-latest-small", "redistribution", "acknowledgement;"),
}


@pytest.mark.parametrize("width", [40, 60])
@pytest.mark.parametrize("words", NARROW)
def test_narrow_terminals_get_whole_words(unskew, monkeypatch, words, width):
    monkeypatch.setattr(stdout, "width", width)
    out, _ = unskew(*words)
    table = out.partition("Differences are")[0].partition(" s per round")[0]
    assert max(map(len, table.splitlines())) <= width
    for word in NARROW[words]:
        assert word in table
