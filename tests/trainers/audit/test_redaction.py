"""Credentials are left out of what is logged, and what is none stays."""

import pytest

from trainers.audit.redaction import REDACTED, CredentialError, redacted, redacted_values, refuse

SECRET = "Zq8x2vLw0pT4"
BY_FORM = [
    "hf_" + "aB3" * 12,
    "AKIA" + "ABCDEFGH12345678",
    "AIza" + "Sy0123456789abcdefghijklmnopqrstuvw",
    "ya29." + "a0AfH6SMBx-0123456789",
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "11ABC_def" * 3,
    "glpat-" + "x1y2z3" * 4,
    "xoxb-" + "123456789012-abcdef",
    "wandb_v1_" + "a1b2c3" * 5,
    "local-" + "0123456789abcdef" * 2 + "01234567",
    "sk-" + "proj-a1b2c3d4e5f6g7h8",
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN\n-----END PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", BY_FORM)
def test_a_credential_is_known_by_its_form(secret):
    """In a sentence, in an argument of a command, and where nothing follows."""
    for text in (f"cannot read it with {secret}, it says", f"--note={secret}", secret):
        assert redacted(text) == text.replace(secret, REDACTED)


@pytest.mark.parametrize(
    "text",
    [
        "--api-key={}",
        "HF_TOKEN={} python",
        "https://ana:{}@example.org/x.csv",
        "https://{}@example.org/x.git",
        "ftp://ana:p/q@{}@example.org",
        "https://example.org/x?user=ana&token={}&b=1",
        "https://s.example.org/x?X-Amz-Signature={}",
        '{{"password": "{}", "user": "ana"}}',
        "Authorization: Bearer {}",
        "dbPassword='{}'",
        "WANDB_API_KEY: {}",
    ],
)
def test_a_credential_is_known_by_its_name(text):
    """And what stands around it stays."""
    clean = redacted(text.format(SECRET))
    assert SECRET not in clean and REDACTED in clean
    assert ("example.org" in text) == ("example.org" in clean) and ('"user": "ana"' in text) == ('"user": "ana"' in clean)


def test_a_number_is_a_password_but_no_token():
    assert redacted("--password=1234 --moe.token=4 --token-dropout=0.1 --key=false") == (
        f"--password={REDACTED} --moe.token=4 --token-dropout=0.1 --key=false"
    )


def test_what_is_no_credential_stays(tmp_path):
    """Fields of experiments, revisions of git, digests, paths of keys, addresses, names that hold another word, and prose."""
    key = tmp_path / "key.pem"
    key.touch()
    for text in (
        "--data.tokens=big --model.moe.experts.token_dropout 0.1 --train.steps=200",
        "git 68bb01e07c13b2504d906ed27ea0e50e504394af+ config 7124048ffacf6baf",
        f"--key={key} --check {key}",
        "https://example.org:8080/a/b?c=d gs://bucket/runs/mine ana@example.org",
        "TOKENIZERS_PARALLELISM=false MONKEY=1 keyword=x task-learning-with-2-longer-names",
        "KeyError: 'missing' and the sharding key: heads; the tokens: 3",
    ):
        assert redacted(text) == text
    assert redacted_values(["--key", str(key), "--steps", "4"]) == ["--key", str(key), "--steps", "4"]


def test_values_of_json_are_cleaned_at_any_depth():
    values = {
        "command": ["-m", "scripts.train", "--hf-token", SECRET, "--steps", "4", "-p", "x"],
        "versions": {"jax": "0.10.2", "secret": SECRET},
        "steps": [{"url": f"https://a:{SECRET}@b.c/d"}, 4, None, 0.5],
    }
    clean = redacted_values(values)
    assert SECRET not in str(clean)
    assert clean["command"] == ["-m", "scripts.train", "--hf-token", REDACTED, "--steps", "4", "-p", "x"]
    assert clean["versions"]["jax"] == "0.10.2" and clean["steps"][1:] == [4, None, 0.5]


def test_what_a_variable_holds_is_known_everywhere(monkeypatch):
    """Without a name or a form in the text, as where a shell expanded it; variables that name something else do not count."""
    monkeypatch.setenv("CLUSTER_PASSWORD", SECRET)
    monkeypatch.setenv("SHORT_TOKEN", "train")
    monkeypatch.setenv("SHARDZOO_RELEASE_KEY", "missing.public.pem")
    assert redacted(f"connect {SECRET}x, train missing.public.pem") == f"connect {REDACTED}x, train missing.public.pem"


def test_an_experiment_with_a_credential_is_refused():
    """Its JSON is read again, so that nothing can be left out of it. The error names the field and does not show the value."""
    refuse("e", {"train.finetune.init_from": "runs/mine", "data.cache": "gs://bucket/x"})
    for value in (f"https://ana:{SECRET}@example.org/w", BY_FORM[0]):
        with pytest.raises(CredentialError, match=r"^e: train.finetune.init_from holds a credential") as caught:
            refuse("e", {"data.cache": "x", "train.finetune.init_from": value})
        assert value not in str(caught.value) and SECRET not in str(caught.value)
