"""What is kept of a command line and an environment; invented secrets only."""

import pytest

from stepscope.record.privacy import MASK, Secrecy, kept_environment, masked_arguments, secrecy

HF = "hf_" + "AbCdEfGhIjKlMnOpQrSt"
OPENAI = "sk-" + "proj-Abc123def456ghi789"

SECRETS = [
    ["--token=abc123"],
    ["--token", "abc123"],
    ["--hf-token", "abc123"],
    ["--hf_token=abc123"],
    ["--hub_token", "abc123"],
    ["--use-auth-token=abc123"],
    ["--api-key", "abc123"],
    ["--api_key=abc123"],
    ["--apikey=abc123"],
    ["--wandb-api-key", "abc123"],
    ["--access-key=abc123"],
    ["--secret", "abc123"],
    ["--client-secret=abc123"],
    ["--password", "abc123"],
    ["--db.password=abc123"],
    ["--passwd=abc123"],
    ["--passphrase", "abc123"],
    ["--credentials=abc123"],
    ["--TOKEN=abc123"],
    ["-token", "abc123"],
    ["token=abc123"],
    ["+trainer.logger.api_key=abc123"],
    ["WANDB_API_KEY=abc123"],
    ["AWS_SECRET_ACCESS_KEY=abc123"],
    ["--env", "AWS_SECRET_ACCESS_KEY=abc123"],
    ["--env=AWS_SECRET_ACCESS_KEY=abc123"],
    ["--key=abc123"],
    ["--private-key", "abc123"],
]

VALUES = [
    HF,
    OPENAI,
    "ghp_" + "a1B2c3D4e5F6g7H8i9J0",
    "github_pat_" + "11ABCDEFG0abcdefghij",
    "glpat-" + "abcdefghij0123456789",
    "xoxb-" + "123456789012-abcdefghij",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "AIza" + "SyA1234567890abcdefghijklmnop",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefgh",
    "0123456789abcdef" * 2 + "01234567",
    "https://me:abc123@example.org/data",
    "postgresql://user:abc123@db.example.org:5432/runs",
    "mysql+pymysql://user:p%40ss@host/db",
]

HARMLESS = [
    ["--tokenizer", "bert-base-uncased"],
    ["--tokenizer=bert-base-uncased"],
    ["--max-tokens", "512"],
    ["--max_new_tokens=128"],
    ["--tokens-per-batch", "4096"],
    ["--num-tokens=1000000"],
    ["--key-frames", "3"],
    ["--keyframes=3"],
    ["--num-keys", "64"],
    ["--lr", "1e-3"],
    ["--lr=0.001"],
    ["--author", "someone"],
    ["--secretary", "someone"],
    ["--data", "/home/me/data/imagenet"],
    ["--data=/home/me/tokens/train.bin"],
    ["/home/me/secret-project/train.py"],
    ["--out", "runs/token-embedding"],
    ["--url", "https://example.org/data.tar?part=3"],
    ["ssh://git@example.org/repository.git"],
    ["--ratio", "16:9"],
    ["--epochs", "3", "--batch-size=64", "-v", "--amp"],
    ["trainer.max_epochs=3", "model.hidden=256"],
    ["--skip-eval"],
    ["-"],
    ["--"],
    [""],
]


def text(arguments):
    return " ".join(arguments)


@pytest.mark.parametrize("arguments", SECRETS, ids=text)
def test_named_secrets_are_masked(arguments):
    masked = masked_arguments(arguments)
    assert "abc123" not in text(masked)
    assert MASK in text(masked)
    assert len(masked) == len(arguments)


@pytest.mark.parametrize("arguments", SECRETS, ids=text)
def test_the_name_of_what_was_masked_stays(arguments):
    name = arguments[0].partition("=")[0]
    assert masked_arguments(arguments)[0].startswith(name)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("before", [["--model", "x"], ["--thing"], []])
def test_values_that_look_secret_are_masked_under_any_name(value, before):
    assert value not in text(masked_arguments([*before, value]))
    assert value not in text(masked_arguments([*before, f"--thing={value}"]))


@pytest.mark.parametrize("arguments", HARMLESS, ids=text)
def test_what_is_no_secret_stays_as_it_is(arguments):
    assert masked_arguments(arguments) == arguments


def test_only_the_value_after_a_secrets_name_is_masked():
    masked = masked_arguments(["--lr", "1", "--token", "abc", "--epochs", "3", "abc"])
    assert masked == ["--lr", "1", "--token", MASK, "--epochs", "3", "abc"]


def test_a_switch_after_a_secrets_name_is_not_its_value():
    assert masked_arguments(["--use-auth-token", "--epochs", "3"]) == [
        "--use-auth-token",
        "--epochs",
        "3",
    ]


def test_a_header_with_a_bearer_token_is_masked():
    masked = masked_arguments(["--header", f"Authorization: Bearer {HF}"])
    assert HF not in text(masked)


def test_of_the_environment_only_what_bears_on_speed_is_kept():
    environ = {
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "MKL_NUM_THREADS": "4",
        "TORCH_LOGS": "dynamo",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/x",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "AWS_SECRET_ACCESS_KEY": "abc123",
        "HF_TOKEN": HF,
        "HOME": "/home/me",
        "PATH": "/bin",
        "MY_CUDA_THING": "1",
    }
    dropped = {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HOME", "PATH", "MY_CUDA_THING"}
    assert kept_environment(environ) == {
        name: value for name, value in environ.items() if name not in dropped
    }


def test_a_secret_in_a_kept_variable_is_masked():
    kept = kept_environment({"TORCH_HUB_TOKEN": "abc123", "TORCH_PROXY": "http://me:abc123@proxy"})
    assert kept == {"TORCH_HUB_TOKEN": MASK, "TORCH_PROXY": f"http://me:{MASK}@proxy"}


def test_a_name_says_how_surely_its_value_is_a_secret():
    assert secrecy("api_key") is secrecy("--hf-token") is secrecy("dbPassword") is Secrecy.SURE
    assert secrecy("token") is secrecy("--key") is Secrecy.PERHAPS
    assert secrecy("pad_token") is secrecy("password_file") is secrecy("model") is Secrecy.NONE
