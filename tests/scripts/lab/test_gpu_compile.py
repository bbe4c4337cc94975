"""scripts.lab.gpu_compile refuses in one line, before anything is compiled."""

import re
import sys

import pytest

from models.errors import UserError
from scripts.lab import gpu_compile
from trainers.gpus import compiler


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "h10"], "--gpu 'h10': no such GPU; did you mean 'h100'?"),
        (["--xla", "xla_gpu_autotune_level"], "--xla 'xla_gpu_autotune_level': write OPTION=VALUE"),
        ([], "XLA's GPU compiler is not installed: run `make setup DEVICE=plan-gpu`"),
    ],
)
def test_bad_arguments_are_refused(monkeypatch, arguments, message):
    monkeypatch.setattr(compiler, "PLUGINS", ("xla_of_nobody",))
    monkeypatch.setattr(sys, "argv", ["gpu_compile", "gpt.quickstart", *arguments])
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        gpu_compile.main()
    assert len(str(caught.value).splitlines()) == 1
