"""Whisper's experiments: the released sizes (Robust Speech Recognition via Large-Scale Weak Supervision, arXiv 2212.04356).

Table 1 of the paper has tiny to large; large-v2, large-v3 and turbo are of the released code. The paper's 680,000 hours are not
public: the experiments of the sizes read random frames, with the paper's optimizer (appendix F): AdamW, beta2 .98, epsilon 1e-6,
decay .1, gradients clipped to 1, the rate falling linearly to 0 after 2,048 steps, batches of 256 rows of 30 s.
"""

from dataclasses import replace

from configs.experiment import Checkpointing, Experiment, Finetuning, Train
from configs.optimizers import AdamW, Constant, Linear
from data.config import Decode
from data.speech.config import SpecAugment, SpeechData
from models.execution import Execution
from models.parts.attention.config import GroupedQuery
from models.parts.nested import changed
from models.parts.transformer_config import DecoderConfig, Dense
from models.sharding.layout import Layout
from models.sharding.layouts import data_parallel, fully_sharded
from models.whisper.config import WhisperConfig

SINUSOIDS = ("front.positions",)  # of the encoder, which are not trained


def model(dim: int, encoder: int, decoder: int, vocab: int = 51_865, mels: int = 80) -> WhisperConfig:
    """Returns a released size: heads of 64, four times the width inside."""
    return WhisperConfig(
        vocab=vocab,
        layers=encoder + decoder,
        model_dim=dim,
        attention=GroupedQuery(heads=dim // 64, head_dim=64, biases="qvo"),
        feed_forward=Dense(hidden_dim=4 * dim, activation="gelu", bias=True),
        mels=mels,
        decoder=DecoderConfig(start_id=50_257 if vocab == 51_864 else 50_258, layers=0 if encoder == decoder else decoder),
    )


def experiment(model: WhisperConfig, layout: Layout, peak: float, **execution: str) -> Experiment:
    """Returns a size's experiment with the paper's optimizer; `peak` is table 17's."""
    return Experiment(
        model=model,
        layout=layout,
        data=SpeechData(
            batch_size=256,
            seconds=30.0,
            mels=model.mels,
            padding="silence",
            targets_length=448,
            augment=SpecAugment(bands=2, stretches=2),
        ),
        optimizer=AdamW(schedule=Linear(peak=peak, steps=2**20, warmup=2048), b2=0.98, eps=1e-6, weight_decay=0.1),
        train=Train(
            steps=2**20,
            clip_norm=1.0,
            checkpoint=Checkpointing(every=5000, keep=5),
            log_every=100,
            finetune=Finetuning(freeze=SINUSOIDS),
        ),
        eval=Decode(beams=5, max_length=224, batch_size=64, length_penalty=0.0),
        execution=Execution(dtype="bfloat16", **execution),  # pyright: ignore[reportArgumentType]
    )


def tiny() -> Experiment:
    """Whisper tiny: 37,760,640 parameters (printed: 39 M), 576,000 of them the encoder's sinusoids."""
    return experiment(model(384, 4, 4), data_parallel(16, 1), 1.5e-3)


def tiny_en() -> Experiment:
    """Whisper tiny.en: 37,760,256 parameters, a vocabulary of 51,864 ids."""
    return experiment(model(384, 4, 4, vocab=51_864), data_parallel(16, 1), 1.5e-3)


def base() -> Experiment:
    """Whisper base: 72,593,920 parameters (printed: 74 M)."""
    return experiment(model(512, 6, 6), data_parallel(16, 1), 1e-3)


def small() -> Experiment:
    """Whisper small: 241,734,912 parameters (printed: 244 M)."""
    return experiment(model(768, 12, 12), fully_sharded(32, 1), 5e-4)


def medium() -> Experiment:
    """Whisper medium: 763,857,920 parameters (printed: 769 M)."""
    return experiment(model(1024, 24, 24), fully_sharded(64, 1), 2.5e-4)


def large_v2() -> Experiment:
    """Whisper large and large-v2: 1,543,304,960 parameters (printed: 1,550 M)."""
    return experiment(model(1280, 32, 32), fully_sharded(64, 1), 1.75e-4, remat="full")


def large_v3() -> Experiment:
    """Whisper large-v3: 1,543,490,560 parameters; 128 bands, a token for Cantonese."""
    sizes = model(1280, 32, 32, vocab=51_866, mels=128)
    return experiment(sizes, fully_sharded(64, 1), 1.75e-4, remat="full")


def turbo() -> Experiment:
    """Whisper large-v3-turbo: 808,878,080 parameters (printed: 809 M), four decoder layers."""
    sizes = model(1280, 32, 4, vocab=51_866, mels=128)
    return experiment(sizes, fully_sharded(64, 1), 1.75e-4, remat="full")


def czech() -> Experiment:
    """Fine-tunes Whisper base on 1.2 h of Czech game speech, as text and as English, levels of the game held out.

        scripts.train whisper.czech --workdir runs/czech --prepare

    Not from the paper. In training the encoder hears rows of 8 s, of which its positions are the first 400; it is evaluated in
    windows of 30 s, by what `scripts.transcribe` writes. See BENCHMARKS.md for error rates before and after.
    """
    return replace(
        base(),
        layout=data_parallel(1, 1),
        data=SpeechData(
            cache="fillets_whisper",
            batch_size=8,
            seconds=8.0,
            slots=4,
            targets_length=128,
            augment=SpecAugment(bands=2, stretches=2),
        ),
        optimizer=AdamW(schedule=Linear(peak=3e-5, steps=340, warmup=30), b2=0.98, weight_decay=0.01),
        train=Train(
            steps=340,
            clip_norm=1.0,
            checkpoint=Checkpointing(every=170, keep=1),
            finetune=Finetuning(init_from="whisper_base", freeze=("front",)),
        ),
        eval=Decode(split="validation", beams=1, max_length=224, batch_size=16, length_penalty=0.0),
        execution=Execution(),
    )


def english() -> Experiment:
    """Fine-tunes the decoder of Whisper base on the same speech with the game's English texts: speech in, its translation out.

        scripts.train whisper.english --workdir runs/english --prepare

    Not from the paper. The encoder stays as it was released.
    """
    run = {"train.steps": 200, "train.checkpoint.every": 100, "train.finetune.freeze": ("front", "encoder")}
    data = {"data.cache": "fillets_english", "data.batch_size": 4, "data.targets_length": 96}
    schedule = {"optimizer.schedule.steps": 200, "optimizer.schedule.warmup": 20}
    return changed(czech(), run | data | schedule | {"eval.split": "test", "eval.limit": 60})


def bench_tiny() -> Experiment:
    """Whisper tiny on four windows of 30 s with 64 tokens: for comparing speed with other systems (scripts.lab.peers.compare)."""
    return replace(
        tiny(),
        layout=data_parallel(1, 1),
        data=SpeechData(batch_size=4, seconds=30.0, padding="silence", targets_length=64),
        optimizer=AdamW(schedule=Constant(value=1e-4), weight_decay=0.01),
        train=Train(steps=100),
        eval=Decode(beams=1, max_length=64, batch_size=4, length_penalty=0.0),
        execution=Execution(unroll=0),
    )
