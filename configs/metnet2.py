"""MetNet-2's experiments: the paper's model, and a small one on eleven days of radar.

Deep learning for twelve hour precipitation forecasts, arXiv 2111.07470. models/metnet2/README.md says which numbers are the
paper's.
"""

from configs.experiment import Checkpointing, Experiment, Train
from configs.optimizers import AdamW, Constant, Cosine, Linear
from data.grids.config import Area, Forecasts, GridData
from models.execution import Execution
from models.metnet2.config import RAIN, ContextConfig, DetailConfig, Edges, EqualBins, MetNet2Config
from models.metnet2.layouts import spatial

RATES = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0, 48.0)


def paper() -> Experiment:
    """218,914,176 parameters; 512 x 512 positions of 4 km in, 512 x 512 points of 1 km out; 16 devices an example.

    What an input frame holds is not known exactly: 53 channels here, 49 of observations and analyses and four of place and time,
    since 13 x 49 + 4 = 641 is the number of input channels that a re-implementation states. Optimizer, batch and steps are ours.
    """
    return Experiment(
        model=MetNet2Config(channels=53, masks=53),
        layout=spatial(8, 4, 4),
        data=GridData(
            batch_size=8,
            channels=tuple(f"channel_{i}" for i in range(53)),
            target="channel_0",
            leads=360,
            area=Area(height=512, width=512, target_height=128, target_width=128),
            thresholds=RAIN,
            scored=(30, 60, 120, 180, 240, 360),
        ),
        optimizer=AdamW(schedule=Linear(peak=1e-4, steps=300_000, warmup=5_000), weight_decay=0.01),
        train=Train(steps=300_000, clip_norm=1.0, log_every=100, checkpoint=Checkpointing(every=5_000, keep=3)),
        eval=Forecasts(batch_size=8),
        execution=Execution(dtype="bfloat16", remat="full"),
    )


def quickstart() -> Experiment:
    """Rain of the next two hours from an hour of radar, on two cores."""
    return Experiment(
        model=MetNet2Config(
            channels=16,
            masks=1,
            ahead=True,
            leads=24,
            lead_dim=64,
            frame_dim=24,
            context=ContextConfig(stacks=2, dilations=(1, 2, 4, 8), dim=48),
            crop=(28, 37),
            detail=DetailConfig(upsampling="subpixel", blocks=1, dim=16, hidden_dim=32),
            bins=Edges(lower_edges=RATES),
        ),
        layout=spatial(1, 1, 1),
        data=GridData(
            cache="radolan",
            batch_size=4,
            channels=("rain",),
            target="rain",
            leads=24,
            area=Area(height=48, width=57, stacked=True, target_height=28, target_width=37),
            ahead=True,
            flip=True,
            thresholds=RAIN,
            scored=(1, 3, 6, 12, 24),
        ),
        optimizer=AdamW(schedule=Cosine(peak=2e-3, steps=1000, warmup=50, floor=0.02), weight_decay=0.01),
        train=Train(steps=1000, clip_norm=1.0, log_every=10, checkpoint=Checkpointing(every=250, keep=2), eval_every=250),
        eval=Forecasts(batch_size=8),
        execution=Execution(unroll=0),
    )


def bench_2m() -> Experiment:
    """The paper's network, narrow and on small grids, in single precision on random ones: what speed on CPUs is compared on."""
    return Experiment(
        model=MetNet2Config(
            channels=8,
            masks=8,
            leads=24,
            lead_dim=64,
            frame_dim=32,
            context=ContextConfig(stacks=1, dilations=(1, 2, 4, 8, 16), dim=96),
            crop=(32, 32),
            detail=DetailConfig(upsample=2, blocks=2, dim=96, hidden_dim=384),
            bins=EqualBins(count=64),
        ),
        layout=spatial(1, 1, 1),
        data=GridData(
            batch_size=2,
            channels=tuple(f"channel_{i}" for i in range(8)),
            target="channel_0",
            frames=6,
            leads=24,
            area=Area(height=64, width=64, scale=2, target_height=32, target_width=32),
            thresholds=RAIN,
            scored=(1, 12, 24),
        ),
        optimizer=AdamW(schedule=Constant(value=1e-4), weight_decay=0.01),
        train=Train(steps=1000),
        eval=Forecasts(batch_size=2),
        execution=Execution(unroll=0),
    )
