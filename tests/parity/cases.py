"""Small random models of `transformers`, of odd sizes, in every variant that the zoo reads and writes. Plain data."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Case:
    """A model: its class and the settings of its config."""

    architecture: str
    settings: dict[str, Any]


_BERT = dict(
    vocab_size=101, hidden_size=27, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
    max_position_embeddings=23, type_vocab_size=2,
)  # fmt: skip
_GPT2 = dict(vocab_size=101, n_embd=27, n_layer=3, n_head=3, n_positions=23, bos_token_id=None, eos_token_id=None)
_LLAMA = dict(
    vocab_size=101, hidden_size=27, num_hidden_layers=2, intermediate_size=20, head_dim=10, rms_norm_eps=1e-5,
    bos_token_id=None, eos_token_id=None,
)  # fmt: skip
_THETA = {"rope_theta": 500.0, "rope_type": "default"}

CASES = {
    "bert": Case("BertModel", _BERT),
    "bert_masked_lm": Case("BertForMaskedLM", _BERT | dict(hidden_act="gelu_new", type_vocab_size=3)),
    "bert_pretraining": Case("BertForPreTraining", _BERT | dict(num_hidden_layers=3)),
    "bert_classification": Case("BertForSequenceClassification", _BERT | dict(num_labels=5, hidden_act="relu")),
    "bert_tagging": Case("BertForTokenClassification", _BERT | dict(num_labels=7)),
    "bert_span": Case("BertForQuestionAnswering", _BERT),
    "gpt2": Case("GPT2LMHeadModel", _GPT2 | dict(n_inner=20)),
    "gpt2_untied": Case("GPT2LMHeadModel", _GPT2 | dict(n_layer=1, tie_word_embeddings=False)),
    "llama": Case("LlamaForCausalLM", _LLAMA | dict(num_attention_heads=9, num_key_value_heads=3)),
    "llama_tied": Case(
        "LlamaForCausalLM",
        _LLAMA | dict(num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=_THETA),
    ),
    "llama_biased": Case(
        "LlamaForCausalLM",
        _LLAMA
        | dict(num_attention_heads=3, num_hidden_layers=3, attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    ),
}

# What MiniLM's embeddings are compared on: two pairs of paraphrases, then strangers.
SENTENCES = (
    "The cat sits on the mat.",
    "A cat is lying on a rug.",
    "How do I reset my password?",
    "I forgot my password and need a new one.",
    "Interest rates rose sharply in the last quarter.",
    "Unrelated: 1,234 protons, naïve café!",
)
