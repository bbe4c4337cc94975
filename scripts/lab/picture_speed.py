"""Measures how many pictures a second the reader decodes, cuts and changes, with several numbers of workers.

    python -m scripts.lab.picture_speed                                     # pictures of 500 x 375 made here, to 224 x 224
    python -m scripts.lab.picture_speed --cache imagenet2012 --workers 0,4,16 --json
    python -m scripts.lab.picture_speed --experiment vit.b16 --layers 2     # beside what that experiment's step needs

Pictures go through random resized crops, flips, mixup and, with --layers, RandAugment, into global batches on the device, as
training reads them. Without --cache they are JPEG files of noise with the spectrum of photographs (1 / frequency). Numbers of
workers are measured by turns, and figures are medians. Beside images/s stands the time of a core that an image takes, in all
processes together, which other programs on the machine change less.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from configs import registry
from configs.experiment import Experiment
from configs.registry import ConfigError
from data.images.caches import ImageCache
from data.images.config import Augmentation, ImageData
from data.images.task import ImageTask
from data.paths import data_dir
from data.prepare import prepare
from data.reading.batches import Batches
from data.reading.caches import read_manifest
from data.reading.examples import AugmentedSource, CacheSource
from scripts import cli

WIDTH, HEIGHT, QUALITY = 500, 375, 90  # of a made picture; ImageNet's mean is near that size and 110 KB
_ROUNDS = 3
_WARM = 3  # batches that are read before the clock runs: what was read ahead is not counted


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each number of workers, and what a step needs where an experiment is named."""
    parser = cli.parser(__doc__)
    parser.add_argument("--cache", help="a prepared cache of pictures; by default pictures are made")
    parser.add_argument("--pictures", type=int, default=128, metavar="N", help="how many are made")
    parser.add_argument("--size", type=int, default=224, metavar="PIXELS", help="height and width of the result")
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="pictures of a batch")
    parser.add_argument("--batches", type=int, default=10, metavar="N", help="batches of a round")
    parser.add_argument("--layers", type=int, default=0, metavar="N", help="operations of RandAugment")
    parser.add_argument("--workers", type=cli.numbers, default=[0, 1, 2], help="numbers of workers, comma-separated")
    parser.add_argument("--experiment", help="whose step is measured too, on random data")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    e = cli.synthetic(registry.load(options.experiment)) if options.experiment else None
    if e:
        cli.use_devices(e.layout)
    with _folder(options) as folder:
        report = measure(folder, options)
    if e:
        report["experiment"] = e.name
        report["needed_per_s"] = round(_needed(e, options.batches))
    if options.json:
        cli.print_json(report)
        return 0
    print(f"{report['pictures']} pictures of {report['kilobytes']} KB, to {options.size} x {options.size}")
    for workers, rate in report["images_per_s"].items():
        print(f"  {workers} workers: {rate:>6} images/s, {report['core_ms_per_image'][workers]:5.2f} ms of a core each")
    if options.experiment:
        print(f"  {options.experiment} needs {report['needed_per_s']} images/s")
    return 0


def measure(folder: Path, options: Any) -> dict[str, Any]:
    """Returns images/s by number of workers, and what was read."""
    manifest = read_manifest(folder)
    how = Augmentation(crop="resized", flip=True, layers=options.layers, mixup=0.2)
    data = ImageData(
        cache=folder.name,
        batch_size=options.batch,
        height=options.size,
        width=options.size,
        channels=manifest["channels"],
        augmentation=how,
    )
    task = ImageTask(data)
    source = AugmentedSource(task, CacheSource(task, folder), None)
    rates: dict[int, list[float]] = {workers: [] for workers in options.workers}
    cores: dict[int, list[float]] = {workers: [] for workers in options.workers}
    images = options.batches * options.batch
    for _ in range(_ROUNDS):
        for workers, measured in rates.items():
            batches = Batches(source, data, dict.fromkeys(data.features()), workers)
            # Rounds read the same batches, and what the workers have in hand when the clock starts is read before it.
            warm = _WARM if workers else 1
            for step in range(warm):
                batches(step)
            start, used = time.monotonic(), _core_seconds()
            for step in range(warm, warm + options.batches):
                batches(step)
            measured.append(images / (time.monotonic() - start))
            cores[workers].append(1000 * (_core_seconds() - used) / images)
            batches.close()
    rows = manifest["parts"]["all"]["rows"]
    size = (folder / "train" / "all.array_record").stat().st_size
    return {
        "cache": manifest["cache"],
        "pictures": rows,
        "kilobytes": round(size / rows / 1000),
        "size": options.size,
        "batch": options.batch,
        "layers": options.layers,
        "images_per_s": {workers: round(statistics.median(measured)) for workers, measured in rates.items()},
        "core_ms_per_image": {workers: round(statistics.median(measured), 2) for workers, measured in cores.items()},
    }


def _core_seconds() -> float:
    """Returns the seconds of a core that this process and its workers have used."""
    process = psutil.Process()
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


@contextlib.contextmanager
def _folder(options: Any) -> Iterator[Path]:
    """Yields the folder of the cache to read."""
    if options.cache:
        yield data_dir() / "caches" / options.cache
        return
    with tempfile.TemporaryDirectory() as temporary:
        rng, root = np.random.default_rng(0), Path(temporary)
        for number in range(options.pictures):
            file = root / "pictures" / f"class{number % 2}" / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            photograph(rng).save(file, quality=QUALITY)
        settings = ImageCache.from_source(str(root / "pictures"))
        yield prepare("picture_speed", settings, data_dir=root, progress=lambda line: None)


def photograph(rng: np.random.Generator) -> Image.Image:
    """Returns a picture of noise whose amplitudes fall with their frequency, as those of photographs do; mostly grey."""
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    frequency[0, 0] = 1.0
    white = rng.normal(size=(4, HEIGHT, WIDTH))
    noise = np.fft.irfft2(np.fft.rfft2(white) / frequency, s=(HEIGHT, WIDTH))
    noise /= noise.std(axis=(1, 2), keepdims=True)
    pixels = 128 + 50 * noise[0, ..., None] + 15 * np.moveaxis(noise[1:], 0, -1)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _needed(e: Experiment, steps: int) -> float:
    """Returns the images/s of an experiment's step; raises ConfigError for a model that does not count images."""
    from trainers.measure import throughput

    units = throughput.measure(e, steps)["units_per_s"]
    if "images" not in units:
        raise ConfigError(f"--experiment {e.name}: its work is counted in {', '.join(units)}, not in images")
    return units["images"]


if __name__ == "__main__":
    cli.run(main)
