"""Models of pictures and sounds.

GSPMD's announcement (Google AI blog, December 2021) says that modes may be switched "in different parts of a model", which suits
"multimodal models"; no paper describes one. The composition is ours, of published towers.
"""

from configs.conformer import conformer
from configs.experiment import Checkpointing, Experiment, Finetuning, Train
from configs.optimizers import Adafactor, AdamW, Cosine, InverseSqrt
from configs.vit import VIT_22B, vit
from configs.whisper import model as whisper
from data.config import Decode
from data.multimodal.config import MultimodalData, Packing
from data.speech.config import SpecAugment
from models.execution import Execution
from models.multimodal.config import MultimodalConfig, Towers
from models.multimodal.layouts import gathered_towers
from models.parts.attention.config import GroupedQuery, Learned
from models.parts.moe.config import Capacity, ExpertsConfig, MoeConfig
from models.parts.nested import changed
from models.parts.transformer_config import Dense
from models.sharding.layouts import data_parallel
from models.vit.config import MeanPooling

# What released weights of Whisper have beside the encoder.
_WHISPERS_DECODER = ("audio_tower.decoder", "audio_tower.decoder_norm", "audio_tower.embedding", "audio_tower.positions")

TOWER = {"head.classes": 0, "pooling": MeanPooling()}  # a ViT without classes


def quickstart() -> Experiment:
    """Names emoji in 28 languages, and writes Czech speech down in Czech and in English.

        scripts.prepare_data multimodal
        scripts.train multimodal.quickstart --workdir runs/multimodal

    An image tower of 64 x 64 pixels from scratch, Whisper base's encoder, which is not trained, and a decoder of four layers,
    every second a mixture of eight experts. What is asked for is the first token: <|cs|>, <|en|>, <|ja|> ...

    A batch is 32 texts in two packs. Sounds are 2,897 of the 94,041 texts; with T = 1.7 they are 12 % of those that are read, and
    parts are interleaved so evenly that 32 texts in a row have three or four sounds: two slots a pack had room for all of the
    first 1,600 texts, and 93 % of them were used. 16 texts have 196 tokens on average; with 240 a row, 0.2 % of them fit nowhere.
    """
    model = MultimodalConfig(
        vocab=4096,
        layers=4,
        model_dim=256,
        attention=GroupedQuery(heads=4, head_dim=64, biases="qkvo"),
        positions=Learned(rows=48),
        feed_forward=Dense(hidden_dim=1024, bias=True),
        dropout=0.1,
        # Packs have no padding to spare.
        moe=MoeConfig(experts=ExpertsConfig(count=8), group_size=240, capacity=Capacity(factor=4.0)),
        towers=Towers(
            vision=changed(vit(4, 256, 1024, 4, 8, dropout=0.1), TOWER | {"patches.height": 64, "patches.width": 64}),
            audio=whisper(512, 6, 6),
        ),
    )
    return Experiment(
        model=model,
        layout=data_parallel(1, 1),
        data=MultimodalData(
            cache="multimodal",
            batch_size=2,
            packing=Packing(texts=16, pool=2, row_length=240, pictures=16, sounds=2),
            shift=4,
            targets_length=48,
            temperature=1.7,
            augment=SpecAugment(bands=2, stretches=2),
        ),
        optimizer=AdamW(schedule=Cosine(peak=1e-3, steps=1500, warmup=100), b2=0.98, weight_decay=0.05),
        train=Train(
            steps=1500,
            clip_norm=1.0,
            checkpoint=Checkpointing(every=500, keep=1),
            finetune=Finetuning(init_from="audio_tower=whisper_base", freeze=("audio_tower",), fresh=_WHISPERS_DECODER),
        ),
        eval=Decode(split="test", beams=1, max_length=40, batch_size=32, length_penalty=0.0, limit=600),
    )


def pod() -> Experiment:
    """ViT-22B, Conformer G and a decoder with 512 experts, on 2,048 chips: 21.8 B + 7.8 B + 140 B parameters.

    Every text has a picture of 224 x 224 and a sound of 16 s, in a row of its own: no slot is empty. As many rows a batch as
    ViT-22B's. Not trained, and not run: the plan of it is in BENCHMARKS.md.
    """
    model = MultimodalConfig(
        vocab=64_000,
        layers=16,
        model_dim=4096,
        attention=GroupedQuery(heads=32, head_dim=128, biases="qkvo"),
        positions=Learned(rows=128),
        feed_forward=Dense(hidden_dim=4096, bias=True),
        dropout=0.0,
        moe=MoeConfig(experts=ExpertsConfig(count=512), group_size=512),
        towers=Towers(vision=changed(vit(48, 6144, 24_576, 48, 14), TOWER | VIT_22B), audio=conformer(36, 3072, 16, dropout=0.0)),
    )
    return Experiment(
        model=model,
        layout=gathered_towers(4, 8, 64),
        data=MultimodalData(batch_size=65_536, height=224, width=224, seconds=16.0, targets_length=128),
        optimizer=Adafactor(schedule=InverseSqrt()),
        train=Train(steps=100_000, clip_norm=1.0, checkpoint=Checkpointing(every=1000, keep=3)),
        eval=Decode(beams=4, max_length=128, batch_size=2048),
        execution=Execution(dtype="bfloat16", remat="full"),
    )


def emoji() -> Experiment:
    """Names emoji in 28 languages: `quickstart` without ears, whose steps on two cores take a tenth of the time.

    scripts.prepare_data emoji_names
    scripts.train multimodal.emoji --workdir runs/emoji
    """
    data = {"cache": "emoji_names", "seconds": 0.0, "packing.sounds": 1, "batch_size": 4, "temperature": 1.0}
    train = Train(steps=2000, clip_norm=1.0, checkpoint=Checkpointing(every=500, keep=1))
    run = {"model.towers.audio": None, "optimizer.schedule.steps": 2000, "train": train}
    return changed(quickstart(), run | {f"data.{path}": value for path, value in data.items()})
