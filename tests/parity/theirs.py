"""The side of `transformers`, in an environment of its own (`make parity`); knows nothing of the zoo's code.

theirs.py make TO [NAME...]            a folder for each case, with inputs and the model's outputs in expected.safetensors
theirs.py odd CASES TO                 the same of the cases in a JSON file: class, settings, padding in front
theirs.py defaults TO TYPE...          the settings of configs of these model types that are given none
theirs.py run FOLDER...                the outputs of models that the zoo wrote, to outputs.safetensors beside them
theirs.py edited FOLDER...             the same of folders that may not be read, of which nothing is written then
theirs.py embed MODEL TO               the embeddings of some sentences
theirs.py encode FOLDER TEXT [FROM]    ids of a text by the folder's tokenizer, from a language
theirs.py hear TO                      a sound and its log-mel frames
theirs.py continue FOLDER              ids and logits that follow the prompts of given.json, greedily, to written*.safetensors
theirs.py transcribe FOLDER            the same of the sounds of given.safetensors, by Whisper
theirs.py texts FOLDER...              ids of texts by each folder's tokenizer, and how its model continues them, to texts.json
theirs.py chat FOLDER                  ids of the prompt at each of the user's turns of the messages of given.json
theirs.py translators PIECES TO        a folder for each translator: its vocabulary, model, and translations.json
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from cases import CASES, SENTENCES  # pyright: ignore[reportMissingImports]
from cases.translators import TRANSLATED, TRANSLATOR_SETTINGS, TRANSLATORS  # pyright: ignore[reportMissingImports]
from safetensors.numpy import load_file, save_file
from vocabularies import TEXTS, TOKENS  # pyright: ignore[reportMissingImports]

# Of which vectors are compared too; and those that have a pooler.
POOLED = ("BertModel", "RobertaModel", "XLMRobertaModel", "AlbertModel", "MPNetModel")
BARE = (*POOLED, "DistilBertModel", "ModernBertModel", "ElectraModel", "DebertaV2Model")
PICTURES = ("logits", "last_hidden_state", "pooler_output")  # what is compared of a model of pictures
VERSION = int(transformers.__version__.partition(".")[0])


def inputs(config, rng: np.random.Generator, left: bool = False) -> dict[str, np.ndarray]:
    """Rows of unequal length, with token types where the model has them. An encoder-decoder's third row has its padding in front,
    and that of an encoder with `left`."""
    mask = (np.arange(13) < np.array([[13], [9]])).astype(np.int32)
    if hasattr(config, "vision_config"):
        return pictures_and_texts(config, rng)
    picture = getattr(config, "encoder", config)
    if hasattr(picture, "patch_size"):
        shape = 2, picture.image_size, picture.image_size, picture.num_channels
        arrays = {"images": rng.normal(size=shape).astype(np.float32), "mask": mask}
        if picture is not config:
            arrays["targets"] = rng.integers(2, config.decoder.vocab_size, (2, 11)).astype(np.int32)
        return arrays
    if hasattr(config, "conv_stride"):  # without padding, which changes what their models hear
        samples = rng.normal(size=(2, 3531)).astype(np.float32)
        return {"samples": samples, "mask": np.ones((2, 10), np.int32)}
    if hasattr(config, "feature_projection_input_dim"):  # pairs of frames; the second row is the shorter one
        shape = 2, 13, config.feature_projection_input_dim
        return {"pairs": rng.normal(size=shape).astype(np.float32), "mask": mask}
    if hasattr(config, "num_mel_bins"):  # every row is as long as the model hears
        frames = rng.normal(size=(2, 2 * config.max_source_positions, config.num_mel_bins)).astype(np.float32)
        return {"frames": frames, "targets": rng.integers(2, config.vocab_size, (2, 11)).astype(np.int32), "mask": mask}
    if config.is_encoder_decoder or left:
        mask = np.concatenate([mask, mask[1:, ::-1]])
    least = 2 if config.is_encoder_decoder else 0  # 0 is padding there, and 1 the end
    tokens = rng.integers(least, config.vocab_size, mask.shape).astype(np.int32) * mask
    if "roberta" in config.model_type or config.model_type == "mpnet":  # their positions count what is not padding
        tokens = np.where(mask > 0, np.where(tokens == config.pad_token_id, 7, tokens), config.pad_token_id)
    arrays = {"tokens": tokens.astype(np.int32), "mask": mask}
    if config.is_encoder_decoder:  # the second row has no target
        real = (np.arange(11) < np.array([[11], [0], [7]])).astype(np.int32)
        arrays |= {"targets": rng.integers(2, config.vocab_size, real.shape).astype(np.int32) * real, "real": real}
    if types := getattr(config, "type_vocab_size", 0):
        arrays["types"] = np.sort(rng.integers(0, types, mask.shape).astype(np.int32)) * mask
    return arrays


def pictures_and_texts(config, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Three pictures and texts, which end; SigLIP's rows are as long as its table, CLIP's third has its padding in front."""
    vision, text = config.vision_config, config.text_config
    shape = 3, vision.image_size, vision.image_size, vision.num_channels
    length = text.max_position_embeddings
    mask = (np.arange(length) < np.array([[length], [max(2, length - 4)], [max(1, length - 7)]])).astype(np.int32)
    tokens = np.where(mask > 0, rng.integers(4, text.vocab_size, mask.shape), text.pad_token_id).astype(np.int32)
    tokens[np.arange(3), mask.sum(axis=1) - 1] = text.eos_token_id
    if config.model_type == "clip":
        tokens[2], mask[2] = (np.roll(row[2], length - mask[2].sum()) for row in (tokens, mask))
    return {"images": rng.normal(size=shape).astype(np.float32), "tokens": tokens, "mask": mask}


def randomize(model, rng: np.random.Generator) -> None:
    """Weights of a size that makes every one of them matter; biases and norms too, which start as zeros and ones."""
    computed = {name for name, module in model.named_modules() if "Sinusoidal" in type(module).__name__}
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            if name.rpartition(".")[0] in computed:
                continue
            draw = rng.normal(size=p.shape) / (p.shape[-1] ** 0.5 if p.ndim > 1 else 3)
            is_norm = p.ndim == 1 and name.endswith("weight")
            p.copy_(torch.from_numpy(np.asarray(draw + is_norm)))
        for name, kept in sorted(model.named_buffers()):
            if name.endswith(("running_mean", "running_var", "e_score_correction_bias", "final_logits_bias")):
                kept.copy_(torch.from_numpy(rng.uniform(0.5, 2, size=kept.shape)))


def outputs(model, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All that the model gives, and for a bare one of texts also unit mean vectors."""
    if "images" in given:
        pictures = torch.from_numpy(given["images"]).permute(0, 3, 1, 2)
        if "targets" in given:
            return written(model, {"pixel_values": pictures}, torch.from_numpy(given["targets"]).long())
        if "tokens" in given:
            return compared(model, pictures, torch.from_numpy(given["tokens"]).long(), torch.from_numpy(given["mask"]).long())
        with torch.no_grad():
            out = model(pixel_values=pictures)
        # Of a DeiT with a teacher's head their mean is enough.
        return {k: np.ascontiguousarray(v.numpy()) for k, v in out.items() if k in PICTURES}
    if "samples" in given or "pairs" in given:
        with torch.no_grad():
            if "samples" in given:
                out = model(input_values=torch.from_numpy(given["samples"]))
            else:
                out = model(input_features=torch.from_numpy(given["pairs"]), attention_mask=torch.from_numpy(given["mask"]))
        name = "logits" if "logits" in out else "last_hidden_state"
        return {name: out[name].numpy()}
    if "frames" in given:
        frames = {"input_features": torch.from_numpy(given["frames"]).mT}
        return written(model, frames, torch.from_numpy(given["targets"]).long())
    batch = {k: torch.from_numpy(v).long() for k, v in given.items()}
    if "targets" in batch:  # M2M-100 counts positions from the first token that is not its padding, 1
        batch["tokens"] = batch["tokens"].masked_fill(batch["mask"] == 0, model.config.pad_token_id)
    more = {"token_type_ids": batch["types"]} if "types" in batch else {}
    if "targets" in batch:
        start = torch.full_like(batch["targets"][:, :1], start_id(model))
        more["decoder_input_ids"] = torch.cat([start, batch["targets"][:, :-1]], 1)
    with torch.no_grad():
        out = model(input_ids=batch["tokens"], attention_mask=batch["mask"], **more)
    if "targets" in batch:
        return {"logits": out.logits.numpy()} | decoded(model, batch)
    arrays = {k: v.numpy() for k, v in out.items() if isinstance(v, torch.Tensor)}
    if "prompts" in given:
        arrays["greedy"] = continuations(model, given)
    arrays.pop("pooler_output", None)
    if type(model).__name__ in BARE:
        arrays["embedding"] = unit(arrays["last_hidden_state"], given["mask"])
    return {k: np.ascontiguousarray(v) for k, v in arrays.items()}


def continuations(model, given: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the eight tokens that a decoder writes after each row without padding, greedily; 0 is no word, and none ends."""
    ids = []
    for tokens, mask in zip(given["tokens"], given["mask"], strict=True):
        row = torch.from_numpy(tokens[mask > 0]).long()[None]
        settings = dict(attention_mask=torch.ones_like(row), max_new_tokens=8, do_sample=False, pad_token_id=0)
        with torch.no_grad():
            ids.append(model.generate(row, **settings, eos_token_id=10_000, suppress_tokens=[0])[0, row.shape[1] :].numpy())
    return np.stack(ids).astype(np.int32)


def compared(model, pictures: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> dict[str, np.ndarray]:
    """Vectors and logits of pictures and texts, and the loss of all pairs. SigLIP sees padding as it sees words."""
    more = {}
    if model.config.model_type == "clip":  # a text's positions count from its first token
        more = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    with torch.no_grad():
        out = model(pixel_values=pictures, input_ids=tokens, return_loss=True, **more)
    names = ("logits_per_image", "image_embeds", "text_embeds", "loss")
    return {name: np.ascontiguousarray(out[name].numpy()) for name in names}


def written(model, source: dict[str, torch.Tensor], targets: torch.Tensor) -> dict[str, np.ndarray]:
    """Logits of given targets, and what a model of sounds or pictures writes by itself, greedily; 0 is no word, and 1 the end."""
    start = torch.full_like(targets[:, :1], start_id(model))
    with torch.no_grad():
        logits = model(**source, decoder_input_ids=torch.cat([start, targets[:, :-1]], 1)).logits
        ids, ended = start, torch.zeros(len(start), dtype=torch.bool)
        for _ in range(8):
            last = model(**source, decoder_input_ids=ids).logits[:, -1]
            last[:, 0] = -1e9
            new = torch.where(ended, 0, last.argmax(-1))
            ended |= new == 1
            ids = torch.cat([ids, new[:, None]], 1)
    return {"logits": logits.numpy(), "greedy": ids[:, 1:].numpy().astype(np.int32)}


def start_id(model) -> int:
    """The token that a decoder begins with; where the config names none, that of a text's beginning, or 0."""
    start = getattr(model.config, "decoder_start_token_id", None)
    return (getattr(model.config, "bos_token_id", None) if start is None else start) or 0


def decoded(model, batch) -> dict[str, np.ndarray]:
    """Returns what an encoder-decoder writes by itself, greedily and by beams; padding is no word.

    Beams have no end: what is cut at the last step competes here with what ended, and in the zoo comes after it.
    """
    settings = dict(input_ids=batch["tokens"], attention_mask=batch["mask"], max_new_tokens=8, do_sample=False)
    ends = dict(pad_token_id=0, decoder_start_token_id=start_id(model), length_penalty=0.0, suppress_tokens=[0])
    arrays = {}
    for name, beams, eos in (("greedy", 1, 1), ("beams", 3, 10_000)):
        with torch.no_grad():
            ids = model.generate(**settings, **ends, num_beams=beams, eos_token_id=eos)
        arrays[name] = np.pad(ids.numpy()[:, 1:], ((0, 0), (0, 8 - ids.shape[1] + 1))).astype(np.int32)
    return arrays


def unit(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Unit vectors along the mean of the tokens'."""
    mean = np.sum(hidden * mask[..., None], 1) / np.sum(mask, 1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def load(folder: Path, more: bool = False):
    """A folder's model, all of whose tensors are there, and with `more` perhaps others."""
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, report = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    allowed = ["pooler."] if architecture in (*POOLED, "VisionEncoderDecoderModel") else []
    if "Conformer" in architecture:  # what the model never uses, or computes itself
        allowed = ["pos_conv_embed", "num_batches_tracked", "inv_freq"]
    if more:
        report.pop("unexpected_keys")
    if "Pegasus" in architecture:
        allowed = ["embed_positions."]
    wrong = {k: lost for k, v in report.items() if (lost := [n for n in v if not any(a in n for a in allowed)])}
    assert not wrong, f"{folder}: {wrong}"
    return prepared(model)


def prepared(model):
    """The model for evaluation; its experts are multiplied one by one, as grouped products want sizes that are multiples of 4.

    Version 5 loads TrOCR's sinusoids on no device, so that it cannot run such a folder; without them it makes them anew.
    """
    if VERSION > 4:
        model.set_experts_implementation("eager")
    for module in model.modules():
        if type(module).__name__ == "TrOCRSinusoidalPositionalEmbedding":
            module.weights = None
    return model.eval()


def make(to: Path, names: list[str]) -> None:
    for name, case in CASES.items():
        if case.version != VERSION or name not in (names or CASES):
            continue
        make_one(to / name, case.architecture, case.settings, left=case.left, continued=case.continued)


def make_one(to: Path, architecture: str, settings: dict, *, left: bool = False, continued: bool = False) -> None:
    rng = np.random.default_rng(list(to.name.encode()))
    model_class = getattr(transformers, architecture)
    model = prepared(model_class(model_class.config_class(**settings)))
    randomize(model, rng)
    model.save_pretrained(to)
    (to / "generation_config.json").unlink(missing_ok=True)
    given = inputs(model.config, rng, left)
    if continued:
        given["prompts"] = given["mask"].sum(1, dtype=np.int32)
    save_file(given | outputs(model, given), to / "expected.safetensors")


def defaults(to: Path, types: list[str]) -> None:
    settings = {name: transformers.AutoConfig.for_model(name).to_dict() for name in types}
    to.write_text(json.dumps(settings, indent=1, sort_keys=True, default=str) + "\n")


def run(folder: Path, more: bool = False) -> None:
    save_file(outputs(load(folder, more), load_file(folder / "inputs.safetensors")), folder / "outputs.safetensors")


def edited(folder: Path) -> None:
    try:
        run(folder, more=True)
    except Exception as error:  # whatever a model that is no model raises
        print(f"{folder.name}: {error}", file=sys.stderr)


def embed(folder: Path, to: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="np")
    ids, mask = batch["input_ids"].astype(np.int32), batch["attention_mask"].astype(np.int32)
    given = {"tokens": ids, "mask": mask, "types": batch["token_type_ids"].astype(np.int32)}
    save_file(given | {"embedding": outputs(load(folder), given)["embedding"]}, to)


def hear(to: Path) -> None:
    """Writes a second of tones and noise, and its frames as Whisper's and Kaldi's conventions have them."""
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function  # pyright: ignore

    rng, times = np.random.default_rng(0), np.arange(17_003) / 16_000
    sound = 0.3 * np.sin(2 * np.pi * 440 * times**2) + 0.01 * rng.normal(size=times.shape)
    arrays = {"sound": sound.astype(np.float32)}
    for mels in (80, 128):
        extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
        frames = extractor._np_extract_fbank_features(arrays["sound"][None], "cpu")[0]
        arrays[f"whisper{mels}"] = np.ascontiguousarray(frames.T).astype(np.float32)
    filters = mel_filter_bank(257, 80, 20, 8000, 16_000, norm=None, mel_scale="kaldi", triangularize_in_mel_space=True)
    frames = spectrogram(
        arrays["sound"] * 2**15,
        window_function(400, "povey", periodic=False),
        400,
        160,
        fft_length=512,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=filters,
        log_mel="log",
        mel_floor=1.1920929e-07,
        remove_dc_offset=True,
    )
    arrays["kaldi80"] = np.ascontiguousarray(frames.T).astype(np.float32)
    save_file(arrays, to)


def translators(pieces: Path, to: Path) -> None:
    """Makes tokenizers from a SentencePiece model, and beside it in vocab.json M2M-100's ids of its pieces."""
    for name, case in TRANSLATORS.items():
        if case.version != VERSION:
            continue
        files = [str(pieces)] if case.tokenizer.startswith("Nllb") else [str(pieces.parent / "vocab.json"), str(pieces)]
        tokenizer = getattr(transformers, case.tokenizer)(*files, **case.settings)
        languages = getattr(tokenizer, "lang_token_to_id", {})  # M2M-100's, which its length leaves out
        model_class = transformers.M2M100ForConditionalGeneration
        size = len(tokenizer) + len(languages)
        model = model_class(model_class.config_class(**TRANSLATOR_SETTINGS | dict(vocab_size=size))).eval()
        randomize(model, np.random.default_rng(list(name.encode())))
        model.save_pretrained(to / name)
        tokenizer.save_pretrained(to / name)
        superfluous = [pieces.name] if case.tokenizer.endswith("Fast") else []
        for file in ("generation_config.json", "added_tokens.json", *superfluous):
            (to / name / file).unlink(missing_ok=True)
        translations = [translation(model, tokenizer, text, *direction) for direction in case.directions for text in TRANSLATED]
        (to / name / "translations.json").write_text(json.dumps(translations, ensure_ascii=False, indent=1) + "\n")


def translation(model, tokenizer, text: str, source: str, target: str) -> dict:
    """A text's ids on both sides, and what the model makes of it: ids of at most 8 tokens, the target's language first.

    Beams have no end, as in `decoded`.
    """
    tokenizer.src_lang, tokenizer.tgt_lang = source, target
    ids, labels = tokenizer(text)["input_ids"], tokenizer(text_target=text)["input_ids"]
    first = labels[-1] if getattr(tokenizer, "legacy_behaviour", False) else labels[0]
    row = {"from": source, "to": target, "text": text, "ids": ids, "labels": labels}
    for name, beams, eos in (("greedy", 1, 2), ("beams", 3, 10_000)):
        with torch.no_grad():
            out = model.generate(
                input_ids=torch.tensor([ids]),
                forced_bos_token_id=first,
                num_beams=beams,
                eos_token_id=eos,
                max_new_tokens=8,
                do_sample=False,
                length_penalty=0.0,
                suppress_tokens=[0],
            )
        row[name] = out[0, 1:].tolist()
    return row


def greedily(logits_of, ids: list[int], tokens: int, ends: list[int], barred=lambda written: []) -> dict[str, np.ndarray]:
    """Ids and the logits [T, V] that each new one is the greatest of, up to one of `ends`, which is the last.

    Args:
      logits_of: the model's logits [V] behind ids [1, S].
      barred: ids that may not follow so many.
    """
    logits = []
    for written in range(tokens):
        with torch.no_grad():
            logits_V = logits_of(torch.tensor([ids])).float().numpy().copy()
        logits.append(logits_V)
        allowed_V = logits_V.copy()
        allowed_V[barred(written)] = -np.inf
        ids = [*ids, int(allowed_V.argmax())]
        if ids[-1] in ends:
            break
    return {"ids": np.array(ids, np.int32), "logits": np.stack(logits)}


def continue_(folder: Path) -> None:
    """Writes what follows each prompt; keys and values are cached."""
    given, model = json.loads((folder / "given.json").read_text()), load(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for i, text in enumerate(given["prompts"]):
        cache = transformers.DynamicCache()

        def behind(ids, cache=cache):
            return model(input_ids=ids[:, cache.get_seq_length() :], past_key_values=cache).logits[0, -1]

        written = greedily(behind, tokenizer(text)["input_ids"], given["tokens"], given["ends"])
        save_file(written, folder / f"written{i}.safetensors")


def texts(folder: Path) -> None:
    """Writes the ids of each text, and those that the model continues it with, up to where its own settings end it."""
    tokenizer, model, rows = transformers.AutoTokenizer.from_pretrained(folder), load(folder), []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        row = {"text": text, "ids": ids}
        if ids:
            given = torch.tensor([ids])
            with torch.no_grad():
                out = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=TOKENS, do_sample=False)
            row["continued"] = out[0, len(ids) :].tolist()
        rows.append(row)
    (folder / "texts.json").write_text(json.dumps(rows) + "\n")


def chat(folder: Path) -> list[list[int]]:
    """Ids of a conversation up to each answer."""
    tokenizer, messages = transformers.AutoTokenizer.from_pretrained(folder), json.loads((folder / "given.json").read_text())
    ends = [i + 1 for i, message in enumerate(messages) if message["role"] == "user"]
    return [tokenizer.apply_chat_template(messages[:end], add_generation_prompt=True)["input_ids"] for end in ends]


def transcribe(folder: Path) -> None:
    """Writes what is said in each sound, a window of 30 s; each token is computed from all before it, without a cache."""
    given, model = json.loads((folder / "given.json").read_text()), load(folder)
    extractor = transformers.WhisperFeatureExtractor(feature_size=model.config.num_mel_bins)
    sounds, prefix = load_file(folder / "given.safetensors"), [model.config.decoder_start_token_id, *given["prefix"]]
    for i in range(len(sounds)):
        frames = extractor(sounds[str(i)], sampling_rate=16_000, return_tensors="pt").input_features
        with torch.no_grad():
            encoded = model.model.encoder(frames)

        def behind(ids, encoded=encoded):
            return model(encoder_outputs=encoded, decoder_input_ids=ids).logits[0, -1]

        def barred(written):
            return given["never"] + given["first"] if written == 0 else given["never"]

        written = greedily(behind, prefix, given["tokens"], given["ends"], barred)
        written["ids"] = written["ids"][1:].copy()  # the start is no target
        save_file(written, folder / f"written{i}.safetensors")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["make", to, *names]:
            make(Path(to), names)
        case ["odd", cases, to]:
            for name, (architecture, settings, left) in json.loads(Path(cases).read_text()).items():
                make_one(Path(to) / name, architecture, settings, left=left)
        case ["defaults", to, *types]:
            defaults(Path(to), types)
        case ["run", *folders]:
            for folder in folders:
                run(Path(folder))
        case ["edited", *folders]:
            for folder in folders:
                edited(Path(folder))
        case ["embed", folder, to]:
            embed(Path(folder), Path(to))
        case ["encode", folder, text, *language]:
            source = {"src_lang": language[0]} if language else {}
            print(json.dumps(transformers.AutoTokenizer.from_pretrained(folder, **source)(text)["input_ids"]))
        case ["hear", to]:
            hear(Path(to))
        case ["continue", folder]:
            continue_(Path(folder))
        case ["chat", folder]:
            print(json.dumps(chat(Path(folder))))
        case ["texts", *folders]:
            for folder in folders:
                texts(Path(folder))
        case ["transcribe", folder]:
            transcribe(Path(folder))
        case ["translators", pieces, to]:
            translators(Path(pieces), Path(to))
        case _:
            sys.exit(__doc__)
