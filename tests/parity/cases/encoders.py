"""Encoders of text."""

from .case import Case

_BERT = dict(
    vocab_size=101,
    hidden_size=27,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=23,
    type_vocab_size=2,
)
_ROBERTA = _BERT | dict(vocab_size=103, type_vocab_size=1, max_position_embeddings=21, layer_norm_eps=1e-5, pad_token_id=1)
_DISTILBERT = dict(vocab_size=101, dim=27, n_layers=2, n_heads=3, hidden_dim=20, max_position_embeddings=23)
_NARROW = _BERT | dict(vocab_size=61, hidden_size=15, intermediate_size=14)
_ELECTRA = _NARROW | dict(embedding_size=7)
_ALBERT = _NARROW | dict(embedding_size=11, num_hidden_layers=4)
_MPNET = _NARROW | dict(max_position_embeddings=21, layer_norm_eps=1e-5)
# Distances of up to 12 in 4 buckets to either side, of which two are logarithmic.
_DEBERTA = {key: value for key, value in _NARROW.items() if key != "type_vocab_size"} | dict(
    relative_attention=True,
    position_buckets=4,
    max_position_embeddings=11,
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    position_biased_input=False,
    pos_att_type="p2c|c2p",
)
# A window of 3 to either side, in rows of 13; 3 heads of 6 or 11 of 2.
_MODERNBERT = dict(
    vocab_size=97,
    hidden_size=18,
    num_hidden_layers=5,
    num_attention_heads=3,
    intermediate_size=14,
    local_attention=7,
    pad_token_id=0,
    cls_token_id=1,
    sep_token_id=2,
    bos_token_id=1,
    eos_token_id=2,
)
_BASES = {
    "full_attention": {"rope_type": "default", "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
}

CASES = {
    "bert": Case("BertModel", _BERT),
    "bert_masked_lm": Case("BertForMaskedLM", _BERT | dict(hidden_act="gelu_new", type_vocab_size=3)),
    "bert_pretraining": Case("BertForPreTraining", _BERT | dict(num_hidden_layers=3)),
    "bert_classification": Case("BertForSequenceClassification", _BERT | dict(num_labels=5, hidden_act="relu")),
    "bert_tagging": Case("BertForTokenClassification", _BERT | dict(num_labels=7)),
    "bert_span": Case("BertForQuestionAnswering", _BERT),
    # Positions count from the row behind padding's, whatever padding is; the XLM-R has two types, as a file that doesn't say.
    "roberta": Case("RobertaModel", _ROBERTA, left=True),
    "roberta_masked_lm": Case("RobertaForMaskedLM", _ROBERTA | dict(num_hidden_layers=3), left=True),
    "roberta_classification": Case("RobertaForSequenceClassification", _ROBERTA | dict(num_labels=5, hidden_act="relu")),
    "roberta_tagging": Case("RobertaForTokenClassification", _ROBERTA | dict(num_labels=7, pad_token_id=4), left=True),
    "roberta_span": Case("RobertaForQuestionAnswering", _ROBERTA),
    "xlm_roberta": Case("XLMRobertaModel", _ROBERTA | dict(pad_token_id=0, type_vocab_size=2), left=True),
    "xlm_roberta_masked_lm": Case("XLMRobertaForMaskedLM", _ROBERTA | dict(hidden_size=22, num_attention_heads=11)),
    "distilbert": Case("DistilBertModel", _DISTILBERT, left=True),
    "distilbert_masked_lm": Case(
        "DistilBertForMaskedLM", _DISTILBERT | dict(activation="relu", sinusoidal_pos_embds=True), left=True
    ),
    "distilbert_classification": Case("DistilBertForSequenceClassification", _DISTILBERT | dict(num_labels=5)),
    "distilbert_tagging": Case("DistilBertForTokenClassification", _DISTILBERT | dict(num_labels=7, n_layers=3), left=True),
    "distilbert_span": Case("DistilBertForQuestionAnswering", _DISTILBERT),
    # Embeddings of another size than the model's, and of the model's.
    "electra": Case("ElectraModel", _ELECTRA, left=True),
    "electra_discriminator": Case("ElectraForPreTraining", _ELECTRA | dict(embedding_size=15, hidden_act="relu")),
    "electra_masked_lm": Case("ElectraForMaskedLM", _ELECTRA | dict(embedding_size=31, num_hidden_layers=3), left=True),
    "electra_classification": Case("ElectraForSequenceClassification", _ELECTRA | dict(num_labels=5, hidden_act="gelu_new")),
    # One layer run four times; two, each run twice.
    "albert": Case("AlbertModel", _ALBERT, left=True),
    "albert_masked_lm": Case("AlbertForMaskedLM", _ALBERT | dict(num_hidden_groups=2, type_vocab_size=3), left=True),
    "albert_classification": Case("AlbertForSequenceClassification", _ALBERT | dict(num_labels=5, hidden_act="relu")),
    "deberta": Case("DebertaV2Model", _DEBERTA, left=True),
    "deberta_masked_lm": Case("DebertaV2ForMaskedLM", _DEBERTA | dict(num_hidden_layers=3, hidden_act="relu"), left=True),
    "deberta_masked_lm_new": Case("DebertaV2ForMaskedLM", _DEBERTA | dict(legacy=False, type_vocab_size=3), left=True),
    "deberta_classification": Case("DebertaV2ForSequenceClassification", _DEBERTA | dict(num_labels=5, position_buckets=5)),
    "mpnet": Case("MPNetModel", _MPNET, left=True),
    "mpnet_masked_lm": Case("MPNetForMaskedLM", _MPNET | dict(num_hidden_layers=3), left=True),
    "mpnet_classification": Case("MPNetForSequenceClassification", _MPNET | dict(num_labels=5, hidden_act="relu")),
    # Layers that see everything, then near positions alone; every kind of bias; and one pattern that has no period.
    "modernbert": Case("ModernBertModel", _MODERNBERT, left=True),
    "modernbert_masked_lm": Case(
        "ModernBertForMaskedLM", _MODERNBERT | dict(num_hidden_layers=7, rope_parameters=_BASES), left=True
    ),
    "modernbert_biased": Case(
        "ModernBertForMaskedLM",
        _MODERNBERT
        | dict(
            hidden_size=22,
            num_attention_heads=11,
            norm_bias=True,
            attention_bias=True,
            mlp_bias=True,
            classifier_bias=True,
            decoder_bias=False,
            hidden_activation="silu",
            classifier_activation="silu",
            layer_types=["sliding_attention"] * 3 + ["full_attention", "sliding_attention"],
        ),
        left=True,
    ),
    "modernbert_classification": Case("ModernBertForSequenceClassification", _MODERNBERT | dict(num_labels=5)),
    "modernbert_classification_mean": Case(
        "ModernBertForSequenceClassification",
        _MODERNBERT | dict(num_labels=3, classifier_pooling="mean", global_attn_every_n_layers=2),
        left=True,
    ),
    "modernbert_tagging": Case("ModernBertForTokenClassification", _MODERNBERT | dict(num_labels=7), left=True),
    "modernbert_span": Case("ModernBertForQuestionAnswering", _MODERNBERT),
    # The same model as version 4 computes it, and writes its settings.
    "modernbert_version4": Case("ModernBertForMaskedLM", _MODERNBERT | dict(global_rope_theta=500.0), version=4, left=True),
}
