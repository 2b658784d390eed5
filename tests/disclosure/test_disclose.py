"""The disclosure page and PDF of a party: they list everything that left it, with the figures of
the run's files, unprotected values first.
"""

from __future__ import annotations

import html
import io
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pypdf import PageObject, PdfReader

import comity
from comity import algorithms
from comity.algorithms import names
from comity.checksums import with_crc
from comity.cli import main
from comity.core.signature import party_functions, reply_contents
from comity.core.wrapper import Wrapper
from comity.data.importing import import_federation
from comity.data.patients import number_patients
from comity.disclosure.content import Page
from comity.disclosure.pdf import HEIGHT, MARGIN, MISSING, WIDTH, Sheets, pdf
from comity.disclosure.sent_values import KINDS
from comity.errors import ComityError, UsageError
from comity.privacy.account import Account
from comity.reporting.blocks import Facts, Section, Table
from comity.runs.folder import RunFolder

SMALL: dict[str, Any] = {"rounds": 2, "model": "mlp2(width=8)"}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavg+dp(noise=2)": {},
    "fedavg+dp(level=party,noise=1)": {},
    "fedavg+dbe": {},
    "adcol": {"disc": "linear"},
    "adcol(noise=lap_l1,epsilon=1)": {"disc": "linear"},
    "relay": {},
    "relay+ldp(noise=3)": {},
    "relay+ldp(noise=3,level=party)": {},
    "fd+ldp(noise=3)+dp(noise=2)": {},
    "fed-sps": {},
    "relay-p2p": {},
    "solo": {},
}
PARTY = "p1"


@pytest.fixture(scope="module")
def federation() -> comity.Federation:
    return comity.load("digits").partition("iid", parties=3, seed=0)


@pytest.fixture(scope="module")
def run_folders(
    tmp_path_factory: pytest.TempPathFactory, federation: comity.Federation
) -> dict[str, Path]:
    """The folders of a run of each method with its disclosure, by method."""
    home = tmp_path_factory.mktemp("disclosed")
    folders = {}
    for k, (method, settings) in enumerate(METHODS.items()):
        result = comity.run(method, federation, out=home / str(k), **SMALL, **settings)
        comity.disclose(result, PARTY)
        folders[method] = result.folder
    return folders


def page_of(folder: Path, party: str = PARTY) -> str:
    """The HTML of a party's disclosure."""
    return (folder / f"disclosure-{party}.html").read_text(encoding="utf-8")


def rows_of(page: str) -> list[list[str]]:
    """The cells of the table of what left."""
    table = page.split("<tbody>", 1)[1].split("</tbody>", 1)[0]
    return [
        [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in table.split("</tr>")[:-1]
    ]


def text_of(file: bytes) -> str:
    """The text of a PDF, with a single space in place of line breaks."""
    sheets = PdfReader(io.BytesIO(file)).pages
    return " ".join(" ".join(sheet.extract_text() for sheet in sheets).split())


def run_of(folder: Path) -> RunFolder:
    return RunFolder(folder)


@pytest.mark.parametrize("method", METHODS)
def test_every_field_in_the_account_is_on_the_page_and_in_the_pdf(
    method: str, run_folders: dict[str, Path]
) -> None:
    page, sheets = (
        page_of(run_folders[method]),
        (run_folders[method] / f"disclosure-{PARTY}.pdf").read_bytes(),
    )
    rows = rows_of(page)
    for row in run_of(run_folders[method]).read_privacy():
        for name in row.release.split(", ") if row.party == PARTY else ():
            assert any(f"({name})" in cells[0] for cells in rows), name
            assert f"({name})" in text_of(sheets), name
            if row.mechanism == "none":
                assert any(
                    f"({name})" in cells[0] and cells[5] == "nothing: it left as it is"
                    for cells in rows
                ), name


@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_those_of_the_ledger(method: str, run_folders: dict[str, Path]) -> None:
    charges = [row for row in run_of(run_folders[method]).read_ledger() if row.src == PARTY]
    page = html.unescape(page_of(run_folders[method]))
    for whom, those in (("the server", {"server"}), ("other parties", {"p0", "p2"})):
        if total := sum(row.bytes for row in charges if row.dst in those):
            assert f"{total:,} bytes to {whom}" in page
    byte_counts = [
        int(cells[4].split(" ")[0].strip(",").replace(",", ""))
        for cells in rows_of(page)
        if cells[4][0].isdigit()
    ]
    assert sum(byte_counts) == sum(row.bytes for row in charges)


def test_rounds_and_counts_are_those_of_the_ledger(run_folders: dict[str, Path]) -> None:
    cells = next(
        cells for cells in rows_of(page_of(run_folders["relay"])) if "(Upload.means)" in cells[0]
    )
    assert cells[3] == "to the server; rounds 0 to 2; 3 times"
    assert cells[1] == "10 x 8 numbers, 80 in all"
    sealed_messages = next(
        cells for cells in rows_of(page_of(run_folders["fed-sps"])) if "(Help.grads)" in cells[0]
    )
    assert sealed_messages[3].startswith("to p0, p2, sealed")


def test_epsilon_unit_and_noise_are_those_of_the_account(run_folders: dict[str, Path]) -> None:
    folder = run_folders["fedavg+dp(noise=2)"]
    page = html.unescape(page_of(folder))
    charges = [row for row in run_of(folder).read_privacy() if row.party == PARTY]
    (epsilon,) = {row.epsilon for row in charges}
    protection = next(cells for cells in rows_of(page) if "(Model.theta)" in cells[0])[5]
    assert f"(how much can be told at most) {epsilon:.3g} at delta" in protection
    assert "a training record" in protection
    assert "Gaussian" in protection
    assert f"charged {len(charges)} times" in protection
    summary = run_of(folder).read_summary()
    assert summary is not None
    assert (
        f"epsilon {summary['privacy']['parties'][PARTY]:.3g} at delta 1e-05, for a training record"
        in page
    )
    assert all(sentence in page for sentence in summary["privacy"]["assumptions"])
    assert "No noise hides" not in page
    assert "All that the method had this party send is behind noise" in page


def test_zero_noise_protects_nothing(federation: comity.Federation, tmp_path: Path) -> None:
    result = comity.run("fedavg+dp(noise=0)", federation, out=tmp_path / "run", **SMALL)
    page = html.unescape(comity.disclose(result, PARTY)[0].read_text(encoding="utf-8"))
    assert "No noise hides these from whoever gets them: the weights of the model" in page
    assert "behind noise" not in page
    assert "no guarantee (epsilon infinite)" in page


def test_protected_rows_are_not_called_records(run_folders: dict[str, Path]) -> None:
    page = html.unescape(page_of(run_folders["adcol(noise=lap_l1,epsilon=1)"]))
    assert "Rows are protected, not records" in page
    assert "Laplace" in next(cells for cells in rows_of(page) if "(Reps.z)" in cells[0])[5]


def test_page_names_a_trusted_server(run_folders: dict[str, Path]) -> None:
    page = html.unescape(page_of(run_folders["fedavg+dp(level=party,noise=1)"]))
    assert "No noise hides these from whoever gets them: the weights of the model" in page
    assert "Against the other parties, if the server is trusted: epsilon" in page
    assert any(
        cells[0].startswith("made by the server") and "Gaussian" in cells[5]
        for cells in rows_of(page)
    )


@pytest.mark.parametrize(
    "method", ["fedavg", "adcol", "relay", "fed-sps", "relay-p2p", "fedavg+dbe"]
)
def test_unprotected_values_come_first(method: str, run_folders: dict[str, Path]) -> None:
    page = html.unescape(page_of(run_folders[method]))
    start = page.index("No noise hides these from whoever gets them:")
    assert start < page.index("<h2>What left</h2>")
    assert "no guarantee (epsilon infinite)" in page
    warning = page[start : page.index("</p>", start)]
    for cells in rows_of(page):
        if cells[5].startswith("nothing") and "sealed messages contain none of it" not in cells[0] and cells[0][-10:-1] not in (
            "(evaluate", "introduce",
        ):  # fmt: skip
            assert cells[0] in warning


def test_evaluation_and_introduction_are_listed(run_folders: dict[str, Path]) -> None:
    page = html.unescape(page_of(run_folders["solo"]))
    assert "The method itself had this party send nothing." in page
    rows = rows_of(page)
    assert [cells[0].rpartition(" ")[2] for cells in rows] == ["(evaluate)", "(introduce)"]
    assert "for each test record the right answer and the model's" in rows[0][0]
    assert "Not protected in any run" in page


def test_samples_are_listed_only_if_sent(
    run_folders: dict[str, Path], federation: comity.Federation, tmp_path: Path
) -> None:
    quiet = html.unescape(page_of(run_folders["fed-sps"]))
    assert (
        "training records themselves"
        not in quiet[quiet.index("No noise hides") : quiet.index("<h2>What left</h2>")]
    )
    result = comity.run("fed-sps(mode=samples)", federation, out=tmp_path / "run", **SMALL)
    comity.disclose(result, PARTY)
    loud = html.unescape(page_of(result.folder))
    assert (
        "training records themselves"
        in loud[loud.index("No noise hides") : loud.index("<h2>What left</h2>")]
    )


def test_values_missing_from_the_account_are_unprotected(
    federation: comity.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Account, "note_reply", lambda *_: None)
        result = comity.run("relay-p2p", federation, out=tmp_path / "run", **SMALL)
    assert result.summary["privacy"]["epsilon"] == 0
    page = html.unescape(comity.disclose(result, PARTY)[0].read_text(encoding="utf-8"))
    assert "No noise hides these from whoever gets them: averages" in page
    assert "The run's own summary has epsilon 0 for p1." in page


def test_every_field_of_every_method_is_described() -> None:
    for name in names():
        host = "relay" if name == "ldp" else "fedavg"
        text = f"{host}+{name}" if issubclass(algorithms.find(name), Wrapper) else name
        algorithm = algorithms.compose(text)
        for place in party_functions(algorithm):
            for field, content in reply_contents(algorithm, *place).items():
                assert content, (name, field)
                assert content.kind in {*KINDS, ""}, (name, field)


def test_noise_shared_by_several_fields_is_named_once(run_folders: dict[str, Path]) -> None:
    cells = {
        row[0].rpartition("(")[2].rstrip(")"): row[-1]
        for row in rows_of(page_of(run_folders["relay+ldp(noise=3)"]))
    }
    for name in ("Upload.means", "Upload.counts", "Upload.obs", "Upload.seen"):
        assert "3 times as wide as the most that a row" in cells[name]
        assert (
            "One noise for Upload.means, Upload.counts, Upload.obs, Upload.seen together, counted"
            " once" in cells[name]
        )
    party = {
        row[0].rpartition("(")[2].rstrip(")"): row[-1]
        for row in rows_of(page_of(run_folders["relay+ldp(noise=3,level=party)"]))
    }
    assert "Protects all that a party has: one is replaced by any other" in party["Upload.means"]
    assert "depends on no record" in party["Upload.counts"]


def test_a_field_behind_two_kinds_of_noise_names_both(run_folders: dict[str, Path]) -> None:
    """Noisy means of a model that was trained with noise: the page names both."""
    cells = {
        row[0].rpartition("(")[2].rstrip(")"): row[-1]
        for row in rows_of(page_of(run_folders["fd+ldp(noise=3)+dp(noise=2)"]))
    }
    for name in ("Answers.logits", "Answers.counts"):
        assert "3 times as wide" in cells[name]
        assert "2 times as wide" in cells[name]
        assert "charged 2 times" in cells[name]
        assert "charged 4 times" not in cells[name]


OWN = '''
"""Mine: a method whose record is called as one of Comity's."""
from comity.algorithms.fedavg import FedAvg
from comity.core import *


@record
class Upload:
    means: Params


@algorithm
class Mine(FedAvg):
    def round(self, theta, server, t):
        server.call(self.tell, {i: Model(theta) for i in server.sample(t)})
        return super().round(theta, server, t)

    @on_party
    async def tell(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Upload]:
        return state, Upload(m.theta)
'''


def test_record_of_a_users_method_is_not_described_by_its_name(
    federation: comity.Federation, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    result = comity.run(str(tmp_path / "mine.py"), federation, out=tmp_path / "run", **SMALL)
    page = html.unescape(comity.disclose(result, PARTY)[0].read_text(encoding="utf-8"))
    cells = next(cells for cells in rows_of(page) if "(Upload.means)" in cells[0])
    assert cells[0].startswith(
        "a value that its method does not describe: ask the method's author. The method declares"
        " that parties send weights of a model"
    )


# --- Attacks


def write_audit(folder: Path, place: Path, **changes: Any) -> None:
    """Write an audit.json like that of `comity audit`."""
    summary = RunFolder(folder).read_summary()
    assert summary is not None
    attack = {
        "attack": "membership: weights", "how": "The server looks at the loss of candidates.", "measure": "AUC", "success": 0.75,
        "low": 0.7, "high": 0.8, "prior": 0.5, "epsilon": None, "figures": {}, "notes": [], "power": True, "says": "",
    }  # fmt: skip
    audit = {
        "run": str(folder), "method": "fedavg", "bytes": sum(summary["bytes"][kind] for kind in ("up", "down", "peer")),
        "attacks": [attack], "canaries": None, "untried": [{"attack": "inversion", "why": "it has no form for that"}], "says": [],
    }  # fmt: skip
    (place / "audit.json").write_text(
        json.dumps(with_crc({"runs": [audit | changes], "note": ""})), encoding="utf-8"
    )


@pytest.fixture
def run_copy(run_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the run of fedavg that a test may change."""
    shutil.copytree(run_folders["fedavg"], tmp_path / "fedavg" / "seed-0")
    return tmp_path / "fedavg" / "seed-0"


def disclosure_text(folder: Path, federation: comity.Federation) -> str:
    return html.unescape(
        comity.disclose(folder, PARTY, federation=federation)[0].read_text(encoding="utf-8")
    )


def test_page_without_an_audit_names_the_command(run_folders: dict[str, Path]) -> None:
    page = html.unescape(page_of(run_folders["fedavg"]))
    assert "No audit of this run was made" in page
    assert "--record-messages" in page


@pytest.mark.parametrize("up", [0, 2])
def test_results_of_attacks_are_beside_guessing(
    up: int, run_copy: Path, federation: comity.Federation
) -> None:
    write_audit(run_copy, [run_copy, *run_copy.parents][up])
    page = disclosure_text(run_copy, federation)
    assert "0.750 (0.700 to 0.800)" in page
    assert ">0.500</td>" in page
    assert "Not tried: inversion, as it has no form for that." in page
    assert "No audit" not in page


def test_an_audit_of_another_run_is_refused(run_copy: Path, federation: comity.Federation) -> None:
    write_audit(run_copy, run_copy, bytes=1)
    with pytest.raises(ComityError, match="another run"):
        disclosure_text(run_copy, federation)


def test_a_damaged_audit_is_refused(run_copy: Path, federation: comity.Federation) -> None:
    write_audit(run_copy, run_copy)
    path = run_copy / "audit.json"
    path.write_text(path.read_text(encoding="utf-8").replace("0.75", "0.55"), encoding="utf-8")
    with pytest.raises(ComityError, match=r"audit\.json cannot be read: it is damaged"):
        disclosure_text(run_copy, federation)


# --- Errors


@pytest.mark.parametrize("name", ["ledger.csv", "privacy.csv", "summary.json"])
def test_a_damaged_run_is_refused(name: str, run_copy: Path, federation: comity.Federation) -> None:
    path = run_copy / name
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("1", "2", 1), encoding="utf-8")
    (run_copy / f"disclosure-{PARTY}.html").unlink()
    with pytest.raises(ComityError, match=name):
        disclosure_text(run_copy, federation)
    assert not (run_copy / f"disclosure-{PARTY}.html").exists()


def test_a_run_that_has_not_ended_is_refused(run_copy: Path, federation: comity.Federation) -> None:
    (run_copy / "summary.json").unlink()
    with pytest.raises(UsageError, match="not finished"):
        disclosure_text(run_copy, federation)


def test_an_unknown_party_gets_a_hint(
    run_folders: dict[str, Path], federation: comity.Federation
) -> None:
    with pytest.raises(UsageError, match=r"There is no party called 'north'\. Known: p0, p1, p2\."):
        comity.disclose(run_folders["fedavg"], "north", federation=federation)


def test_temporary_run_needs_an_out_folder(federation: comity.Federation, tmp_path: Path) -> None:
    result = comity.run("solo", federation, **SMALL)
    with pytest.raises(UsageError, match="temporary"):
        comity.disclose(result, PARTY)
    assert [path.parent for path in comity.disclose(result, PARTY, tmp_path / "there")] == [
        tmp_path / "there"
    ] * 2


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    comity.run("fedavg", parties=2, rounds=1, model="linear", out=run)
    for words, code in ((["p1", "--out", str(tmp_path / "dpo")], 0), (["pp1"], 2)):
        monkeypatch.setattr(sys, "argv", ["comity", "disclose", str(run), "--party", *words])
        try:
            main()
        except SystemExit as ended:
            assert (ended.code or 0) == code  # noqa: PT017
    captured = capsys.readouterr()
    assert "disclosure-p1.html" in captured.out
    assert captured.err.strip() == "comity: There is no party called 'pp1'. Did you mean 'p1'?"
    assert sorted(path.name for path in (tmp_path / "dpo").iterdir()) == [
        "disclosure-p1.html",
        "disclosure-p1.pdf",
    ]


# --- PDF


def long_page(party: str) -> Page:
    rows = [[f"row {k}", "words " * 60, "x" * 400] for k in range(40)]
    return Page(
        f"What left {party}",
        Facts({"Party": party}),
        [Section("s", "All", [Table("t", "", ["a", "b", "c"], rows)])],
        "end",
    )


def test_a_long_page_has_several_sheets_and_loses_nothing() -> None:
    file = pdf(long_page("north (west)"))
    text = text_of(file)
    sheets = PdfReader(io.BytesIO(file)).pages
    assert len(sheets) > 3
    assert all(f"row {k} " in text for k in range(40))
    assert text.count("words") == 40 * 60
    assert text.count("x") >= 40 * 400
    assert "What left north (west)" in text
    assert all(f"sheet {k} of {len(sheets)}" in text for k in range(1, len(sheets) + 1))
    for sheet in sheets:
        assert sheet.mediabox.width > sheet.mediabox.height
        for x, y in positions_of(sheet):
            assert MARGIN - 1 <= x <= WIDTH - MARGIN
            assert 0 < y < HEIGHT - MARGIN


def positions_of(sheet: PageObject) -> list[tuple[float, float]]:
    """Where the pieces of text on a sheet begin, in points from its lower left corner."""
    positions: list[tuple[float, float]] = []

    def visit(text: str, cm: list[float], tm: list[float], font: Any, size: float) -> None:
        if text.strip():
            positions.append((tm[4], tm[5]))

    sheet.extract_text(visitor_text=visit)
    return positions


def test_a_row_that_is_higher_than_a_sheet_continues_on_the_next() -> None:
    words = [f"word{k}" for k in range(3000)]
    table = Table("t", "", ["a", "b"], [["first", " ".join(words)]])
    file = pdf(Page("title", Facts({}), [Section("s", "All", [table])], "end"))
    assert set(words) <= set(text_of(file).split())


def test_names_outside_western_europe_are_text_in_the_pdf() -> None:
    text = text_of(pdf(long_page("Łódź Αθήνα Москва İzmir")))
    assert "What left Łódź Αθήνα Москва İzmir" in text
    assert MISSING not in text


def test_pdf_lists_characters_without_a_glyph() -> None:
    file = pdf(long_page("Łódź 東京"))
    assert "What left Łódź ��" in text_of(file)
    assert f"{MISSING} U+6771" in text_of(file)
    assert "U+4EAC" in text_of(file)
    title = PdfReader(io.BytesIO(file)).metadata
    assert title is not None
    assert title.title == "What left Łódź 東京"


def test_wrapped_lines_fit_their_width() -> None:
    sheets = Sheets("title")
    lines = sheets.wrap("A word, and averyverylongonethatdoesnotfitanywhere", 60, 9)
    assert len(lines) > 3
    assert all(sheets.width(line, 9) <= 60 for line in lines)
    assert sheets.wrap("", 60, 9) == [""]


# --- whom the guarantee covers


def said_on(page: str, section: str) -> str:
    """The text of a section of the page."""
    part = page.split(f'<section id="{section}">', 1)[1].split("</section>", 1)[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", part)).split())


@pytest.mark.parametrize("method", METHODS)
def test_records_outside_the_guarantee_are_counted(
    method: str, run_folders: dict[str, Path], federation: comity.Federation
) -> None:
    folder = run_folders[method]
    party = federation.parties[PARTY]
    covered = said_on(page_of(folder), "covered")
    assert f"{len(party.validation)} for validation and {len(party.test)} for tests" in covered
    total = len(party.train) + len(party.validation) + len(party.test)
    assert f" of the {total} records of this party" in covered
    evaluations = sum(
        row.src == PARTY and row.kind == "eval" for row in run_of(folder).read_ledger()
    )
    assert evaluations
    assert f"Figures that were computed from them left {evaluations} times" in covered
    sheets = text_of((folder / f"disclosure-{PARTY}.pdf").read_bytes())
    assert f"Figures that were computed from them left {evaluations} times" in sheets


def test_the_unit_of_protection_is_named(run_folders: dict[str, Path]) -> None:
    protected = said_on(page_of(run_folders["fedavg+dp(noise=2)"]), "covered")
    assert "It does not cover" in protected
    assert "The unit of protection is a record." in protected
    assert "A patient with several records is protected less." in protected
    open_to_all = said_on(page_of(run_folders["fedavg"]), "covered")
    assert "Against the server no guarantee covers any of the" in open_to_all
    assert "and not a patient: a patient may have several records." in open_to_all
    party = said_on(page_of(run_folders["fedavg+dp(level=party,noise=1)"]), "covered")
    assert "Against the other parties the guarantee is for the" in party
    assert "The unit of protection is the party" in party


def test_patients_are_named_as_the_unit(tmp_path: Path) -> None:
    digits = comity.load("digits")
    patients = number_patients(np.arange(240) // 4)
    data = replace(digits, x=digits.x[:240], y=digits.y[:240], patients=patients)
    federation = data.partition("iid", parties=3, seed=0)
    count = federation.parties[PARTY].patient_count
    with pytest.warns(UserWarning, match="protected together"):
        done = comity.run("fedavg+dp(noise=2)", federation, out=tmp_path / "run", **SMALL)
    page = comity.disclose(done, PARTY)[0].read_text(encoding="utf-8")
    assert f"one of {count} patients together" in said_on(page, "covered")
    assert "for a patient with all its training records" in said_on(page, "guaranteed")
    assert "how many patients these are of" in said_on(page, "before")
    assert "How many patients each party has is no secret either." in html.unescape(page)


def test_the_smallest_class_mean_is_counted(tmp_path: Path) -> None:
    """A class of three records is behind a mean of three; a class of one is not sent."""
    digits = comity.load("digits")
    keep = [k for k in range(400) if digits.y[k] < 3]
    rare = [k for k in range(400) if digits.y[k] == 3][:3] + [
        k for k in range(400) if digits.y[k] == 4
    ][:1]
    x, y = digits.x[keep + rare], digits.y[keep + rare]
    parts = dict.fromkeys(("p0", PARTY), ((x, y), (digits.x[400:440], digits.y[400:440])))
    federation = comity.Federation.from_arrays(parts, validation=0.0, classes=10)
    for method, sizes in (
        (
            "relay",
            "The smallest class mean (Upload.means, Upload.obs) is of 3 records, and so of 3",
        ),
        ("relay(min_count=4,n_avg=5)", "The smallest class mean (Upload.obs) is of 5 records"),
        ("fedproto", "The smallest class mean (Prototypes.means) is of 3 records"),
        ("fd", "The smallest class mean (Answers.logits) is of one record, and so of one person"),
    ):
        done = comity.run(method, federation, out=tmp_path / method, **SMALL)
        page = comity.disclose(done, PARTY)[0].read_text(encoding="utf-8")
        assert sizes in said_on(page, "not"), method
    hidden = comity.run("relay+ldp(noise=3)", federation, out=tmp_path / "hidden", **SMALL)
    page = comity.disclose(hidden, PARTY)[0].read_text(encoding="utf-8")
    assert "The smallest class mean" not in page


def test_what_left_before_training_is_listed(run_folders: dict[str, Path], tmp_path: Path) -> None:
    before = said_on(page_of(run_folders["relay"]), "before")
    assert "Before anything was trained there left the party's name, how many training" in before
    assert "Before round 1 there also left: averages" in before
    assert "(Upload.means)" in before
    assert "schema" not in before
    assert "also left" not in said_on(page_of(run_folders["fedavg"]), "before")
    rng = np.random.default_rng(0)
    (tmp_path / "mine").mkdir()
    for name in ("p0", PARTY):
        rows = [f"{rng.integers(20, 90)},{'mf'[k % 2]},{k % 2}" for k in range(40)]
        text = "\n".join(["age,sex,label", *rows]) + "\n"
        (tmp_path / "mine" / f"{name}.csv").write_text(text)
    data = import_federation(tmp_path / "mine", tmp_path / "data", scale="shared")
    done = comity.run("fedavg", data.partition("auto"), out=tmp_path / "run", **SMALL)
    before = said_on(comity.disclose(done, PARTY)[0].read_text(encoding="utf-8"), "before")
    assert "their sum, and that of their squares" in before
    assert "The schema that the parties agreed on before the run names all columns" in before


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("relay", "may be of 2 records (min_count=2), and so of 2 people or fewer"),
        ("fedproto", "may be of 2 records (min_count=2), and so of 2 people or fewer"),
        ("fd", "may be of a single record"),
    ],
)
def test_cards_say_how_small_a_class_mean_may_be(method: str, words: str) -> None:
    assert words in algorithms.card(method).privacy
    assert "class mean" not in algorithms.card("fedavg").privacy


def test_the_report_says_how_small_a_class_mean_may_be(
    federation: comity.Federation, tmp_path: Path
) -> None:
    for k, method in enumerate(("relay(min_count=3)", "relay+ldp(noise=3)")):
        comity.run(method, federation, out=tmp_path / str(k), **SMALL)
    page = html.unescape(comity.report(tmp_path).read_text("utf-8"))
    assert page.count("a class mean may be of") == 1
    assert "may be of 3 records (min_count=3), and so of 3 people or fewer" in page
