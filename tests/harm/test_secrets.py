"""No secret is kept or shown: of arguments, exceptions, problems, source lines; not in the run
folder, on a screen or in a report, plain or redacted. Invented secrets only."""

import gzip
import io
import json
import shlex
import zipfile

import pytest
from patching import at, project
from story_reading import unpacked

from stepscope.cli.main import main
from stepscope.launch.observed_run import _initial_record, complete_folder
from stepscope.launch.program import Program
from stepscope.measure.journal import JOURNAL_FILE, JournalIdentity, MadeWith, open_journal
from stepscope.measure.runner import run_command
from stepscope.measure.trial.folder import OUTPUT_FILE, last_output_line, tidy_folder
from stepscope.probe.observer import program_error
from stepscope.record.facts import EndFact, ProblemFact, SiteFact, SiteKind
from stepscope.record.privacy import masked_arguments, masked_source, masked_text
from stepscope.record.problems import ProblemKind
from stepscope.report.render.formats import RENDERERS
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.narrator import screen_of, story_of
from stepscope.results.load import load
from stepscope.results.redact import redact_result
from stepscope.store.folder import read_run, write_run
from stepscope.store.json_lines import FactLog
from stepscope.store.source import read_sources
from stepscope.tune.request import TuneRequest

HEX = "0123456789abcdef"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.zq72Kd8fPq"

ARGUMENTS = {  # a command line, and what nobody may see of it
    "--pwd swordfish01": "swordfish01",
    "--pwd=swordfish02": "swordfish02",
    "--pass swordfish03": "swordfish03",
    "-p swordfish04": "swordfish04",
    "-pSw0rdfish05": "Sw0rdfish05",
    "--jwt swordfish06": "swordfish06",
    "--authorization 'Bearer swordfish07'": "swordfish07",
    "--secretkey swordfish08": "swordfish08",
    "--api-keys first09 swordfish09 --lr 1": "swordfish09",
    "--passwords swordfish10 other10": "other10",
    "-H 'Authorization: Bearer swordfish11'": "swordfish11",
    "--header 'Authorization: Basic c3dvcmRmaXNoMTI='": "c3dvcmRmaXNoMTI",
    "--header 'X-Api-Key: swordfish13'": "swordfish13",
    "--header 'Cookie: session=swordfish14; path=x'": "swordfish14",
    "'Bearer swordfish15'": "swordfish15",
    """--config '{"api_key": "swordfish16", "lr": 1}'""": "swordfish16",
    """--config='{"db": {"password": "swordfish17"}}'""": "swordfish17",
    """--config '{"api_keys": ["other18", "swordfish18"]}'""": "swordfish18",
    """--config "{'auth_token': 'swordfish19'}" """: "swordfish19",
    "'https://x.blob.example/y?sv=1&sig=swordfish20&token=swordfish21'": "swordfish20",
    "--url 'https://x.example/y?a=1&token=swordfish21'": "swordfish21",
    "'s3://b/k?X-Amz-Signature=swordfish22&X-Amz-Date=1'": "swordfish22",
    "'https://x.example/y?X-Amz-Security-Token=swordfish23'": "swordfish23",
    "'https://maps.example/?key=swordfish24'": "swordfish24",
    "'Server=db;User Id=me;Password=swordfish25;Port=1'": "swordfish25",
    "'--dsn=Server=db;Uid=me;Pwd=swordfish26;'": "swordfish26",
    "'DefaultEndpoints=x;AccountKey=swordfish27==;Suffix=y'": "swordfish27",
    "--host me:swordfish28@db.example": "swordfish28",
    "--db postgresql://me:swordfish29@db.example:5432/runs": "swordfish29",
    "redis://:swordfish30@cache.example:6379/0": "swordfish30",
    "--db=mysql://me:sword/fish31@db.example/x": "sword/fish31",
    "https://0a1b2c3d4e5f6a7b8c9d31@sentry.example/1": "0a1b2c3d4e5f6a7b8c9d31",
    "-u me:swordfish32": "swordfish32",
    "--user me:swordfish33": "swordfish33",
    "--opts user=me,password=swordfish34,lr=1": "swordfish34",
    "+trainer.logger.api_key=swordfish35": "swordfish35",
    "--env WANDB_API_KEY=swordfish36": "swordfish36",
    "--env=AWS_SECRET_ACCESS_KEY=swordfish37": "swordfish37",
    "PGPASSWORD=swordfish38": "swordfish38",
    "--hf_token swordfish39": "swordfish39",
    "--apiKey swordfish40": "swordfish40",
    "--clientSecret=swordfish41": "swordfish41",
    "--db.pass swordfish42": "swordfish42",
    "--user-pass=swordfish43": "swordfish43",
    "--wandb-key swordfish44": "swordfish44",
    "--key=swordfish45": "swordfish45",
    "--token swordfish46": "swordfish46",
    "--creds swordfish47": "swordfish47",
    "--passphrase 'sword fish48'": "sword fish48",
    "--cookie swordfish49": "swordfish49",
    "--otp 496050": "496050",
    "--shared-access-signature swordfish51": "swordfish51",
    f"--model {JWT}": JWT,
    "--x hf_AbCdEfGhIjKlMnOpQrSt": "AbCdEfGhIjKlMnOp",
    "--x sk-proj-Abc123def456ghi789": "Abc123def456",
    "--x sk_live_Abc123def456": "Abc123def456",
    "--x ghp_a1B2c3D4e5F6g7H8i9J0": "a1B2c3D4e5",
    "--x github_pat_11ABCDEFG0abcdefghij": "11ABCDEFG0",
    "--x glpat-abcdefghij0123456789": "abcdefghij0123",
    "--x xoxb-123456789012-abcdefghij": "123456789012",
    "--x AKIAIOSFODNN7EXAMPLE": "IOSFODNN7EXAMPLE",
    "--x AIzaSyA1234567890abcdefghijklmnop": "SyA1234567890",
    "--x ya29.a0AfH6SMBx7": "a0AfH6SMBx7",
    "--x npm_abcdefghijklmnopqrstuvwxyz0123456789": "abcdefghijklmnop",
    "--x pypi-AgEIcHlwaS5vcmcCJDE": "AgEIcHlwaS5",
    "--x SG.abcdefghij.klmnopqrst": "klmnopqrst",
    "--x nvapi-abcdefghijklmnop7": "abcdefghijklmnop7",
    "--x dapi" + HEX * 2: HEX * 2,
    "--x hvs.CAESIJabcdefghij12": "CAESIJabcdefghij12",
    "--x https://hooks.slack.com/services/T01/B02/swordfish68": "swordfish68",
    f"--x {HEX}{HEX}01234567": f"{HEX}{HEX}01234567",
}  # fmt: skip
TEXTS = {  # messages of exceptions and problems
    "401 Client Error for url: https://x.example/y?token=bluefin01": "bluefin01",
    "Incorrect API key provided: bluefin02. You can find it": "bluefin02",
    "invalid password 'bluefinX' for user me": "bluefinX",
    "password is bluefin03": "bluefin03",
    "Namespace(lr=0.1, password='bluefin04')": "bluefin04",
    "bad settings {'api_key': 'bluefin05', 'lr': 1}": "bluefin05",
    "error: unrecognized arguments: --pwd bluefin06": "bluefin06",
    "Command '['curl', '-u', 'me:bluefin07', 'x']' returned 1": "bluefin07",
    "Command '['x', '--password', 'bluefin08']' returned 1": "bluefin08",
    "cannot connect to me:bluefin09@db.example": "bluefin09",
    "OperationalError: postgresql://me:bluefin10@db.example/x refused": "bluefin10",
    "request headers: {'Authorization': 'Bearer bluefin11'}": "bluefin11",
    "could not parse 'host=db password=bluefin12 port=1'": "bluefin12",
    'body: {"access_token": "bluefin13", "expires": 3600}': "bluefin13",
    "machine db.example login me password bluefin14": "bluefin14",
    "-----BEGIN RSA PRIVATE KEY-----\nbluefin15\n-----END RSA PRIVATE KEY-----": "bluefin15",
    'escaped {\\"secret\\": \\"bluefin16\\"}': "bluefin16",
    f"login failed with {HEX[::-1]}{HEX[::-1]}fedcba98": f"{HEX[::-1]}{HEX[::-1]}fedcba98",
}
LINES = {  # source
    'password = "yellowtail01"': "yellowtail01",
    "login(token='yellowtail02', n=3)": "yellowtail02",
    'os.environ["HF_TOKEN"] = "yellowtail03"': "yellowtail03",
    'os.environ.setdefault("WANDB_API_KEY", "yellowtail04")': "yellowtail04",
    'key = os.getenv("API_KEY", "yellowtail05")': "yellowtail05",
    'p.add_argument("--password", default="yellowtail06")': "yellowtail06",
    'db = connect("host=x password=yellowtail07")': "yellowtail07",
    "x = 1  # password: yellowtail08": "yellowtail08",
    "secret: str = b'yellowtail09'": "yellowtail09",
    'd = {"client_secret": "yellowtail10", "lr": 3}': "yellowtail10",
    f'wandb.login(key="{HEX}{HEX}89abcdef")': f"{HEX}{HEX}89abcdef",
    'r = get(u, headers={"Authorization": "Bearer yellowtail11"})': "yellowtail11",
    'r = get(u, auth=("me", "yellowtail12"))': "yellowtail12",
    'u = "https://me:yellowtail13@x.example/y"': "yellowtail13",
    'smtp.login("me", "yellowtail14")': "yellowtail14",
    'if password == "yellowtail15":': "yellowtail15",
    'u = f"https://x.example/?api_key=yellowtail16&n={n}"': "yellowtail16",
}
HARMLESS_ARGUMENTS = """
    -p 8080 | -p 0.5 | -p 8080:80 | -p bf16 | -p 16-mixed | -p conf/a.yaml
    -pin_memory | -patience 3 | --vectors glove-wiki-gigaword-300 | --task glue-sst2-validation-set
    --tokenizer gpt2 | --max-tokens 512 | --max_new_tokens=128 | --tokens-per-batch 4096
    --pass-through | --pass-through x | --two-pass 3 | --passes 3 | --key-frames 3 | --num-keys 64
    password-free | --password-free x | --no-password x | --password-file /x/y | --token-dim 64
    --pad-token <pad> | --eos_token=</s> | --mask-token [MASK] | --image-key jpg | --sort-key=date
    --use-auth-token True | --token None | --password= | --auth basic | --author me | --secretary me
    --revision 0123456789abcdef0123456789abcdef01234567
    --commit=0123456789abcdef0123456789abcdef01234567
    --url https://x.example/a?part=3&n=4 | ssh://git@x.example/r.git | http://x.example:8080/a@b
    --image x.example/r:1.2@sha256:0123 | git@x.example:org/r.git | --ratio 16:9 | -u 16:9
    --loss-per-token 1 | --monkey x | --keys a b | --monitor val/loss | model.hidden=256 | -k 5
    --config {"lr":1,"tokenizer":"gpt2","max_tokens":5} | a=1,b=2 | --data=/d/tokens/train.bin
"""
HARMLESS_TEXTS = [
    "Unexpected key(s) in state_dict: layers.0.weight",
    "Missing key: layers.0.weight",
    "KeyError: 'weight'",
    "Unexpected token: foo",
    "Unknown token: <pad>",
    "Token indices sequence length is longer than 512",
    "Bearer token is missing",
    "password authentication failed for user me",
    "password is required",
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.1 GiB total)",
    "checkout of commit 0123456789abcdef0123456789abcdef01234567 failed",
    "mat1 and mat2 shapes cannot be multiplied (32x10 and 20x5)",
]
HARMLESS_LINES = [
    "key = self.k_proj(x)",
    "token: int = 3",
    "for key, value in batch.items():",
    "tokens = tokenizer(text, max_length=512)",
    'tokenizer.pad_token = "<pad>"',
    'api_key = os.environ["API_KEY"]',
    'p.add_argument("--token", "-t", help="the token")',
    'p.add_argument("--tokenizer", default="gpt2")',
    "password = getpass.getpass()",
    "attention = query @ key.transpose(-2, -1)",
    'kwargs["key"] = "weight"',
]
SECRETS = {*ARGUMENTS.values(), *TEXTS.values(), *LINES.values()}
NAME = "acme-fusion-7"


def leaks(content):
    """The secrets that are in a text or in bytes."""
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    return sorted(secret for secret in SECRETS if secret in text)


def test_there_are_many_shapes():
    assert len(ARGUMENTS) >= 60
    assert len(SECRETS) >= 100


@pytest.mark.parametrize("line", ARGUMENTS)
def test_an_argument_is_masked_and_its_neighbours_stay(line):
    masked = masked_arguments(["--epochs", "3", *shlex.split(line), "--last", "x"])
    assert ARGUMENTS[line] not in " ".join(masked)
    assert masked[:2] + masked[-2:] == ["--epochs", "3", "--last", "x"]
    assert masked_arguments(masked) == masked


@pytest.mark.parametrize("text", TEXTS)
def test_a_message_is_masked(text):
    masked = masked_text(f"before {text} after")
    assert TEXTS[text] not in masked
    assert masked.startswith("before ")
    assert masked_text(masked) == masked


@pytest.mark.parametrize("line", LINES)
def test_a_source_line_is_masked(line):
    masked = masked_source(f"    {line}")
    assert LINES[line] not in masked
    assert masked[:6] == f"    {line}"[:6]
    assert masked_source(masked) == masked


def test_what_is_no_secret_stays_readable():
    lines = [one.strip() for row in HARMLESS_ARGUMENTS.split("\n") for one in row.split(" | ")]
    for arguments in (line.split() for line in lines if line):
        assert masked_arguments(arguments) == arguments
    assert [masked_text(text) for text in HARMLESS_TEXTS] == HARMLESS_TEXTS
    assert [masked_source(line) for line in HARMLESS_LINES] == HARMLESS_LINES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of a program that is given, says and holds every secret."""
    place = tmp_path_factory.mktemp("runs")
    source = place / "train.py"
    source.write_text("\n".join(LINES) + "\n")
    folder = unpacked("unfused_optimizer", place).rename(place / NAME)
    (folder / "facts.jsonl").write_text(
        "".join(
            line
            for line in (folder / "facts.jsonl").read_text().splitlines(keepends=True)
            if json.loads(line)["fact"] != "end"
        )
    )
    facts = FactLog(folder / "facts.jsonl")
    for number, _ in enumerate(LINES, start=1):
        at = {"file": str(source), "line": number, "function": "main"}
        facts.write(SiteFact(id=900 + number, kind=SiteKind.SAVE, **at))
    for text in TEXTS:
        facts.write(ProblemFact(kind=ProblemKind.NO_WINDOW, detail=text))
    error = RuntimeError("\n".join(TEXTS))
    error.__cause__ = ValueError(next(iter(TEXTS)))
    facts.write(EndFact(steps=3, error=program_error(error)))
    record = read_run(folder)
    arguments = [word for line in ARGUMENTS for word in shlex.split(line)]
    made = _initial_record(str(source), arguments, folder)
    made.run.exit_code, made.machine = 1, record.machine
    made.run.started_ns, made.run.ended_ns = record.run.started_ns, record.run.ended_ns
    complete_folder(folder, made)
    return folder


def test_the_run_folder_holds_no_secret(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"run.json", "facts.jsonl", "sources.json"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        assert not leaks(content), path
    (kept,) = (lines for file, lines in read_sources(folder).items() if file.endswith("train.py"))
    assert len(kept) == len(LINES)
    assert kept[1] == 'password = "***"'


@pytest.mark.parametrize("redacted", [False, True])
def test_no_screen_shows_one(folder, redacted):
    found = load(str(folder), folder.parent)
    found = redact_result(found) if redacted else found
    shown = io.StringIO()
    print_story(screen_of(found), shown)
    print_story(story_of(found), shown, detail=True)
    assert "RuntimeError" in shown.getvalue()
    assert not leaks(shown.getvalue())
    assert not redacted or NAME not in shown.getvalue()


def _report(*words):
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, words)])
    assert ended.value.code == 0


def _check_report(folder, tmp_path, capsys, redacted, *words):
    _report(folder, *words, *(["--redact"] if redacted else []))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    for path in written:
        contents = [path.read_bytes()]
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                contents = [archive.read(name) for name in archive.namelist()]
        for content in contents:
            assert not leaks(content), path
            assert not redacted or NAME.encode() not in content, path
    told = capsys.readouterr().err
    assert not leaks(told)
    assert ("redacted: " in told) == redacted
    if redacted:
        assert "1 result name," in told
        assert "source lines" in told
        assert "arguments" in told


@pytest.mark.parametrize("redacted", [False, True])
@pytest.mark.parametrize("ending", [".html", ".md", ".txt", ".json", ".csv", ".zip"])
def test_no_report_shows_one(folder, tmp_path, capsys, ending, redacted):
    _check_report(folder, tmp_path, capsys, redacted, "-o", tmp_path / f"out{ending}")


@pytest.mark.slow
@pytest.mark.launches
@pytest.mark.parametrize("redacted", [False, True])
@pytest.mark.parametrize("ending", [".tex", ".svg", ".ipynb"])
def test_no_report_with_pictures_shows_one(folder, tmp_path, capsys, ending, redacted):
    _check_report(folder, tmp_path, capsys, redacted, "-o", tmp_path / f"out{ending}")


@pytest.mark.parametrize("redacted", [False, True])
def test_no_log_for_tensorboard_shows_one(folder, tmp_path, capsys, redacted):
    _check_report(folder, tmp_path, capsys, redacted, "--tensorboard", tmp_path / "log")


def test_every_format_is_looked_at():
    looked_at = {"html", "md", "txt", "json", "csv", "tex", "zip", "images", "ipynb"}
    assert {one.name for one in RENDERERS} == looked_at | {"pdf"}  # which is the LaTeX, compiled


def test_two_redacted_results_keep_the_same_names_in_their_comparison(folder, tmp_path, capsys):
    other = unpacked("launch_bound", tmp_path).rename(tmp_path / "acme")  # its id is another
    _report(folder, other, "-o", tmp_path / "two.md", "--redact")
    page = (tmp_path / "two.md").read_text()
    assert NAME not in page
    assert "run1" in page
    assert "run2" in page
    assert "3 result names" in capsys.readouterr().err


def test_a_redacted_page_is_not_named_after_the_run(folder, capsys):
    _report(folder, "--redact")
    assert (folder / "run1.html").is_file()
    (folder / "run1.html").unlink()


def _program():
    words = tuple(word for line in ARGUMENTS for word in shlex.split(line))
    return Program("train.py", words, module=False)


def test_tune_keeps_no_secret(tmp_path):
    request = TuneRequest(_program(), budget_s=1.0)
    settings = {name: getattr(request.settings(), name) for name in ("program", "argv")}
    identity = JournalIdentity("stepscope.tune-journal/2", settings, MadeWith(), {})
    with open_journal(tmp_path, identity):
        pass
    assert not leaks((tmp_path / JOURNAL_FILE).read_bytes())
    assert not leaks(run_command(_program(), ("pin",)))


@pytest.mark.parametrize("text", TEXTS)
def test_a_trial_keeps_no_secret_of_the_output(tmp_path, text):
    (tmp_path / OUTPUT_FILE).write_text(f"start\n{text}")
    assert not leaks(last_output_line(tmp_path)) or "\n" in text
    tidy_folder(tmp_path, tmp_path / "scratch", tmp_path)
    kept = (tmp_path / OUTPUT_FILE).read_text()
    assert kept.startswith("start\n")
    assert not leaks(kept)


def test_a_run_file_is_masked_whoever_fills_it(folder, tmp_path):
    record = read_run(folder)
    record.run.processes = {"1": "curl -u me:bluefin07 https://x.example/?token=bluefin01"}
    record.run.program = "fit with password=bluefin12"  # as observe() may be told
    write_run(tmp_path, record)
    assert not leaks((tmp_path / "run.json").read_bytes())


def test_a_patch_never_shows_a_secret(tmp_path):
    text = """
    from torch.utils.data import DataLoader

    loader = DataLoader(data, batch_size=8)
    password = "yellowtail01"
    """
    patch = project(tmp_path, text).patch("workers=2", workers=at(3))
    assert patch.text is None
    assert "a nearby line holds a secret" in patch.by_hand[0].words


def test_a_masked_source_line_is_known_again(tmp_path):
    lines = ["loader = DataLoader(data)", *["x = 1"] * 6, 'password = "yellowtail01"']
    made = project(tmp_path, "\n".join(["from torch.utils.data import DataLoader", *lines]))
    patch = made.patch("workers=2", workers=at(2))
    assert "num_workers=2" in made.patched(patch)
    assert not leaks(patch.text)


def test_what_a_fix_reports_is_masked(tmp_path):
    FactLog(tmp_path / "facts.jsonl").write("fix", name="pin", text="\n".join(TEXTS))
    assert not leaks((tmp_path / "facts.jsonl").read_bytes())
