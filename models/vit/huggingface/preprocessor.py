"""A folder's preprocessor_config.json as fields of data. No JAX."""

import json
from typing import Any

from models.interchange import InterchangeError
from models.interchange.settings import Settings, only, setting
from models.vit.config import VitConfig

_KINDS = ("ViTImageProcessor", "ViTImageProcessorFast", "ViTFeatureExtractor")


def data_fields(c: VitConfig, preprocessor: Settings) -> dict[str, Any]:
    """Returns `mean`, `std` and `eval_crop`. Raises InterchangeError where pictures are brought to size in a way, or to a
    size, that is not ours."""
    only(
        preprocessor,
        image_processor_type=_KINDS,
        feature_extractor_type=_KINDS,
        do_resize=(True,),
        resample=(2,),
        do_rescale=(True,),
        do_pad=(False,),
    )
    if abs(setting(preprocessor, "rescale_factor", float, 1 / 255) * 255 - 1) > 1e-4:
        raise InterchangeError(f"rescale_factor={preprocessor['rescale_factor']}: only 1/255")
    return {"eval_crop": _crop(c, preprocessor), **_normalization(c, preprocessor)}


def _crop(c: VitConfig, theirs: Settings) -> float:
    """Returns the share of a picture's shortest edge that a square in its middle has; 0 takes all of it."""
    size, crop = _sides(theirs.get("size", 224)), 0.0
    if setting(theirs, "do_center_crop", bool, False):
        cut = _sides(theirs.get("crop_size", 224))
        if len(size) != 1 or len(set(cut)) != 1 or cut[0] > size[0]:
            raise InterchangeError(f"crop_size={cut} of size={size}: only a square of a picture's shortest edge")
        size, crop = cut, cut[0] / size[0]
    if size != [c.patches.height, c.patches.width]:
        raise InterchangeError(
            f"size={size}: only the model's, [{c.patches.height}, {c.patches.width}], to which pictures are squeezed"
        )
    return crop


def _normalization(c: VitConfig, theirs: Settings) -> dict[str, tuple[float, ...]]:
    """Returns the mean and the deviation by which colours are shifted and divided, one number where all are alike."""
    normal = setting(theirs, "do_normalize", bool, True)
    numbers = {}
    for name, plain in (("mean", 0.0), ("std", 1.0)):
        values = setting(theirs, f"image_{name}", list, [0.5]) if normal else [plain]
        least = 1e-6 if name == "std" else -1e6
        if len(values) not in (1, c.patches.channels) or not all(type(v) in (int, float) and least < v < 1e6 for v in values):
            raise InterchangeError(
                f"image_{name}={json.dumps(values)[:60]}: only {c.patches.channels} numbers, a deviation above 0"
            )
        numbers[name] = tuple(map(float, values if len(set(values)) > 1 else values[:1]))
    return numbers


def _sides(size: Any) -> list[int]:
    """Returns height and width, or the shortest edge alone, of a preprocessor's size."""
    if isinstance(size, int):
        return [size, size]
    for keys in (("height", "width"), ("shortest_edge",)):
        if isinstance(size, dict) and set(size) == set(keys):
            return [setting(size, key, int) for key in keys]
    raise InterchangeError(f"size={json.dumps(size)[:60]}: only a height and a width, or a shortest edge")
