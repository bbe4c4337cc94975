"""Hugging Face's side of the comparison: `transformers` on PyTorch, in the environment of `make parity`.

Depends on the fields of an experiment only, not on the zoo's code. The training loop is plain, with the fastest options on
a CPU: fused attention where available (SDPA; not in SwitchTransformers), the fused AdamW, GELU as one operation, no cache of
keys and values, and no attention mask, as no row is padded. Adapters are PEFT's.
"""

import functools
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]

from scripts.lab.peers import sizes
from scripts.lab.peers.serve import Run, serve
from scripts.lab.peers.torch_training import description, training

ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}  # the zoo's names, where theirs differ


def causal_batch(m: dict[str, Any], d: dict[str, Any]) -> dict[str, Any]:
    """Returns a batch of a causal decoder: random tokens, each of which is to be foretold."""
    ids = torch.randint(m["vocab"], (d["batch_size"], d["length"]))
    return {"input_ids": ids, "labels": ids}


def gpt(m: dict[str, Any], d: dict[str, Any]) -> tuple[Any, Any]:
    config = transformers.GPT2Config(
        vocab_size=m["vocab"],
        n_layer=m["layers"],
        n_embd=m["model_dim"],
        n_inner=m["feed_forward"]["hidden_dim"],
        n_head=m["attention"]["heads"],
        n_positions=m["positions"]["rows"],
        activation_function=ACTIVATIONS.get(m["feed_forward"]["activation"], m["feed_forward"]["activation"]),
        layer_norm_epsilon=m["norm"]["eps"],
        attn_pdrop=m["dropout"],
        embd_pdrop=m["dropout"],
        resid_pdrop=m["dropout"],
        use_cache=False,
    )

    return transformers.GPT2LMHeadModel(config), functools.partial(causal_batch, m, d)


def chat(m: dict[str, Any], d: dict[str, Any]) -> tuple[Any, Any]:
    config = transformers.LlamaConfig(
        vocab_size=m["vocab"],
        **sizes.layers(m),
        num_key_value_heads=m["attention"]["kv_heads"],
        head_dim=m["attention"]["head_dim"],
        rms_norm_eps=m["norm"]["eps"],
        rope_parameters={"rope_type": "default", "rope_theta": m["positions"]["base"]},
        tie_word_embeddings=m["output"]["tied"],
    )

    return transformers.LlamaForCausalLM(config), functools.partial(causal_batch, m, d)


def bert(m: dict[str, Any], d: dict[str, Any]) -> tuple[Any, Any]:
    config = transformers.BertConfig(
        vocab_size=m["vocab"],
        **sizes.layers(m),
        max_position_embeddings=m["positions"]["rows"],
        type_vocab_size=m["embedding"]["types"],
        hidden_act=ACTIVATIONS.get(m["feed_forward"]["activation"], m["feed_forward"]["activation"]),
        layer_norm_eps=m["norm"]["eps"],
        hidden_dropout_prob=m["dropout"],
        attention_probs_dropout_prob=m["dropout"],
    )

    def batch() -> dict[str, Any]:
        tokens = torch.randint(m["vocab"], (d["batch_size"], d["length"]))
        predicted = torch.rand(tokens.shape) < d["rate"]
        return {"input_ids": tokens, "labels": torch.where(predicted, tokens, -100)}

    return transformers.BertForMaskedLM(config), batch


def _encoder_decoder(m: dict[str, Any], d: dict[str, Any], vocab: int) -> Any:
    """T5, or with a mixture SwitchTransformers, every `moe.every`-th layer of which has experts."""
    layers, moe = m["layers"] // 2, m["moe"]
    common = dict(
        vocab_size=vocab,
        num_layers=layers,
        num_decoder_layers=layers,
        d_model=m["model_dim"],
        d_ff=m["feed_forward"]["hidden_dim"],
        d_kv=m["attention"]["head_dim"],
        num_heads=m["attention"]["heads"],
        dropout_rate=m["dropout"],
        decoder_start_token_id=0,
    )
    if moe is None:
        return transformers.T5ForConditionalGeneration(transformers.T5Config(feed_forward_proj="relu", **common))
    config = transformers.SwitchTransformersConfig(
        num_sparse_encoder_layers=layers // moe["every"],
        num_sparse_decoder_layers=layers // moe["every"],
        num_experts=moe["experts"]["count"],
        expert_capacity=int(
            moe["capacity"]["factor"] * d["source_length"] / moe["experts"]["count"]
        ),  # of a row; the zoo's of a group
        router_jitter_noise=0.0,
        **common,
    )
    return transformers.SwitchTransformersForConditionalGeneration(config)


def gshard_m4(m: dict[str, Any], d: dict[str, Any]) -> tuple[Any, Any]:
    def batch() -> dict[str, Any]:
        rows = d["batch_size"]
        return {
            "input_ids": torch.randint(m["source_vocab"], (rows, d["source_length"])),
            "labels": torch.randint(m["target_vocab"], (rows, d["target_length"])),
            "output_router_logits": True,  # the loss that balances the experts
        }

    return _encoder_decoder(m, d, m["target_vocab"]), batch


def t5(m: dict[str, Any], d: dict[str, Any]) -> tuple[Any, Any]:
    extra = {"output_router_logits": True} if m["moe"] else {}

    def batch() -> dict[str, Any]:
        ids, rows = (lambda *shape: torch.randint(1, m["vocab"], shape)), d["batch_size"]
        return {"input_ids": ids(rows, d["source_length"]), "labels": ids(rows, d["target_length"]), **extra}

    return _encoder_decoder(m, d, m["vocab"]), batch


def vit(m: dict[str, Any], d: dict[str, Any]) -> tuple[Any, Any]:
    activation = ACTIVATIONS.get(m["feed_forward"]["activation"], m["feed_forward"]["activation"])
    config = transformers.ViTConfig(hidden_act=activation, **sizes.vit(m))

    def batch() -> dict[str, Any]:
        rows = d["batch_size"]
        pixels = torch.rand(rows, *(m["patches"][side] for side in ("channels", "height", "width")))
        return {"pixel_values": pixels, "labels": torch.randint(m["head"]["classes"], (rows,))}

    return transformers.ViTForImageClassification(config), batch


def whisper(m: dict[str, Any], d: dict[str, Any]) -> tuple[Any, Any]:
    sizes = {
        "d_model": m["model_dim"],
        "vocab_size": m["vocab"],
        "num_mel_bins": m["mels"],
        "dropout": m["dropout"],
        "max_source_positions": m["source_positions"],
        "max_target_positions": m["positions"]["rows"],
        "decoder_start_token_id": m["decoder"]["start_id"],
        "bos_token_id": 1,
        "pad_token_id": 1,
        "eos_token_id": 1,
    }
    for side in ("encoder", "decoder"):
        sizes |= {
            f"{side}_layers": m["layers"] // 2,
            f"{side}_attention_heads": m["attention"]["heads"],
            f"{side}_ffn_dim": m["feed_forward"]["hidden_dim"],
        }

    def batch() -> dict[str, Any]:
        rows = d["batch_size"]
        frames = torch.randn(rows, m["mels"], 2 * m["source_positions"])
        return {"input_features": frames, "labels": torch.randint(m["vocab"], (rows, d["targets_length"]))}

    return transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes)), batch


FAMILIES = {
    "whisper": whisper,
    "chat": chat,
    "gpt": gpt,
    "bert": bert,
    "gshard_m4": gshard_m4,
    "t5": t5,
    "switch": t5,
    "vit": vit,
}


def made(fields: dict[str, Any]) -> tuple[Any, Any]:
    """Returns the model, and a function that draws a batch."""
    torch.manual_seed(0)
    return FAMILIES[fields["name"].split(".")[0]](fields["model"], fields["data"])


def described(model: Any) -> dict[str, Any]:
    return description(model, model.config._attn_implementation, transformers=transformers.__version__)


def train(fields: dict[str, Any]) -> tuple[dict[str, Any], Run]:
    model, batch = made(fields)
    model.config.use_cache = False
    lora = fields["train"]["finetune"]["lora"]
    if lora["rank"]:  # of all projections of the layers, as the experiment's targets are
        import peft  # pyright: ignore[reportMissingImports]

        config = peft.LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"], target_modules="all-linear", task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, config)
    model.train()
    return described(model), training(model, fields["optimizer"], lambda: model(**batch()).loss)


def generate(fields: dict[str, Any]) -> tuple[dict[str, Any], Run]:
    """Beam search over random sources, or a decoder's greedy continuation of half of each row, with keys and values cached.

    No token ends an output, so that all have the same length.
    """
    model, batch = made(fields)
    model.eval()
    e, prompt = fields["eval"], fields["data"].get("length", 0) // 2
    length = e.get("max_length", prompt)
    settings = dict(num_beams=e.get("beams", 1), do_sample=False, max_new_tokens=length, eos_token_id=None, use_cache=True)

    def outputs_of(given: dict[str, Any]) -> Any:
        if "input_ids" in given:
            ids = given["input_ids"][:, : prompt or None]
            return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        # The search that is common to their models: Whisper's own adds windows and rules about timestamps.
        search = transformers.GenerationMixin.generate
        return search(model, inputs=given["input_features"], **settings)

    def run(steps: int) -> float:
        outputs = torch.zeros(0, 1)
        with torch.inference_mode():
            for _ in range(steps):
                outputs = outputs_of(batch())
        return float(outputs.shape[1] - (prompt or 1))  # without the prompt, or the token that starts an output

    return described(model), run


if __name__ == "__main__":
    serve(train=train, generate=generate)
