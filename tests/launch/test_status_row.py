"""Our row at the bottom of a terminal: what the program draws looks as it would without it."""

import fcntl
import os
import pty
import random
import struct
import sys
import termios

import pyte
import pytest

from stepscope.launch.live_line import StatusRow

COLUMNS, ROWS = 60, 12
OUR = "stepscope  step 412"


class Terminal:
    """A pseudo-terminal and the screen that it shows."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=10_000, ratio=0.01)
        self._stream = pyte.ByteStream(self.screen)
        self.resize(ROWS)
        os.set_blocking(self.master, False)

    def fileno(self):
        return self.slave

    def resize(self, rows, columns=COLUMNS):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def write(self, text):
        os.write(self.slave, text.encode())
        self.read()

    def read(self):
        """Take what was written."""
        try:
            while data := os.read(self.master, 1 << 16):
                self._stream.feed(data)
        except BlockingIOError:
            pass

    def lines(self):
        """Everything that was ever shown, without what is blank at the end."""
        self.read()
        blank = self.screen.default_char
        above = [
            "".join(row.get(x, blank).data for x in range(COLUMNS)).rstrip()
            for row in self.screen.history.top
        ]
        lines = above + [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def close(self):
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture(autouse=True)
def usual(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def bare():
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def shared():
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def row(shared):
    row = StatusRow(shared)
    yield row
    row.close()


def prints(rng):
    return [f"epoch {n} loss {rng.random():.4f}\n" for n in range(rng.randrange(1, 60))]


def partial_lines(rng):
    return [rng.choice(["loss ", "2.403", "\n", " a", "."]) for _ in range(200)]


def one_bar(rng):
    """As tqdm draws."""
    made = []
    for epoch in range(rng.randrange(1, 5)):
        made += [f"\r{epoch}: {n:3d}%|{'#' * (n // 10):10s}|" for n in range(0, 101, 5)]
        made += ["\n", f"loss {rng.random():.3f}\n"]
    return made


def nested_bars(rng):
    """As tqdm draws an inner bar below an outer one."""
    made = []
    for n in range(rng.randrange(3, 20)):
        made += [f"\router {n}", "\n", f"\rinner {n % 4}", "\x1b[A"]
    return [*made, "\n\n", "done\n"]


def live_table(rng):
    """As rich redraws several rows: up, erase, again."""
    made = ["first\nsecond\nthird"]
    for n in range(rng.randrange(3, 30)):
        made += [f"\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2Kfirst {n}\nsecond {n}\nthird {n}"]
        if rng.random() < 0.3:
            made += ["\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2K", f"log {n}\n", "first\nsecond\nthird"]
    return [*made, "\n"]


def long_lines(rng):
    return ["x" * rng.randrange(1, 200) + "\n" for _ in range(20)]


@pytest.mark.parametrize(
    "program", [prints, partial_lines, one_bar, nested_bars, live_table, long_lines]
)
@pytest.mark.parametrize("seed", range(8))
def test_the_programs_screen_is_the_same_with_our_row_below(program, seed, bare, shared, row):
    rng = random.Random(seed)
    for chunk in program(rng):
        bare.write(chunk)
        shared.write(chunk)
        if rng.random() < 0.3:
            row.show(OUR)
            *above, last = shared.lines()
            assert last == OUR
            assert [line for line in above if line] == [line for line in bare.lines() if line]
    row.close()
    assert shared.lines() == bare.lines()
    shared.write("then\n" * 30)
    bare.write("then\n" * 30)
    assert shared.lines() == bare.lines()


def test_the_row_never_wraps(shared, row):
    row.show("y" * 500)
    assert shared.lines()[-1] == "y" * (COLUMNS - 1)


def test_it_moves_with_the_terminals_last_row(shared, row):
    shared.write("hello\n")
    row.show(OUR)
    shared.resize(ROWS + 6)
    row.show(OUR)
    assert [line for line in shared.lines() if line] == ["hello", OUR]
    assert shared.screen.display[-1].rstrip() == OUR
    assert shared.screen.margins.bottom == ROWS + 6 - 2


def test_a_prompt_or_full_screen_program_has_the_terminal_alone(shared, row):
    shared.write("hello\n")
    row.show(OUR)
    settings = termios.tcgetattr(shared.slave)
    raw = [*settings[:3], settings[3] & ~(termios.ICANON | termios.ECHO), *settings[4:]]
    termios.tcsetattr(shared.slave, termios.TCSANOW, raw)
    row.show(OUR)
    assert shared.lines() == ["hello"]
    termios.tcsetattr(shared.slave, termios.TCSANOW, settings)
    row.show(OUR)
    assert shared.lines()[-1] == OUR


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_cannot_move_its_cursor_gets_no_row(shared, row, term, monkeypatch):
    if term is None:
        monkeypatch.delenv("TERM")
    else:
        monkeypatch.setenv("TERM", term)
    row.show(OUR)
    assert shared.lines() == []


def test_a_tiny_terminal_gets_no_row(shared, row):
    shared.resize(4)
    row.show(OUR)
    assert shared.lines() == []


def test_a_terminal_that_is_gone_does_no_harm(tmp_path):
    with open(tmp_path / "file", "w") as file:
        row = StatusRow(file)
        row.show(OUR)
        row.close()
    assert (tmp_path / "file").read_text() == ""


TRAINING = """
import time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
def step(x, y):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.02)
    return loss.item()
"""
PROGRAMS = {
    "print": """
for epoch in range(6):
    for batch in loader:
        print("loss", round(step(*batch), 3))
""",
    "tqdm": """
from tqdm import tqdm
for epoch in range(6):
    bar = tqdm(loader, bar_format="{desc} {n}/{total} |{bar:20}|", mininterval=0)
    for batch in bar:
        bar.set_description(f"epoch {epoch} loss {step(*batch):.3f}")
    tqdm.write(f"epoch {epoch} ended")
""",
    "rich": """
from rich.progress import BarColumn, Progress, TextColumn
columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}")
with Progress(*columns) as progress:
    outer, inner = (progress.add_task(name, total=t) for name, t in (("epochs", 6), ("steps", 48)))
    for epoch in range(6):
        for batch in loader:
            loss = step(*batch)
            progress.advance(inner)
        progress.console.print(f"epoch {epoch} loss {loss:.3f}")
        progress.advance(outer)
""",
}


def _at_a_terminal(command, folder):
    """All that a terminal has shown once a command has ended."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execv(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    data = b""
    try:
        while chunk := os.read(master, 1 << 16):
            data += chunk
    except OSError:  # the terminal's last user has gone
        pass
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, data
    screen = pyte.HistoryScreen(80, 24, history=10_000, ratio=0.01)
    pyte.ByteStream(screen).feed(data)
    blank = screen.default_char
    above = ["".join(row.get(x, blank).data for x in range(80)) for row in screen.history.top]
    return data, [line.rstrip() for line in (*above, *screen.display)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_real_programs_screen_is_the_same_with_our_row_below(name, tmp_path):
    (tmp_path / "train.py").write_text(TRAINING + PROGRAMS[name])
    _, bare = _at_a_terminal([sys.executable, "train.py"], tmp_path)
    while not bare[-1]:
        bare.pop()
    command = [sys.executable, "-m", "stepscope.cli.main", "run", "train.py"]
    data, observed = _at_a_terminal(command, tmp_path)
    assert b"stepscope  starting" in data
    assert b"stepscope  step " in data
    assert observed[: len(bare)] == bare
    assert not any(line.startswith("stepscope  st") for line in observed)
