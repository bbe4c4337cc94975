"""Models of sounds."""

from .case import Case

_WHISPER = dict(
    vocab_size=101,
    d_model=24,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=28,
    decoder_ffn_dim=28,
    num_mel_bins=7,
    max_source_positions=15,
    max_target_positions=19,
    decoder_start_token_id=2,
    bos_token_id=1,
    eos_token_id=1,
    pad_token_id=1,
    suppress_tokens=None,
    begin_suppress_tokens=None,
)
_WAVE = dict(
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=28,
    conv_dim=[10] * 7,
    vocab_size=13,
    mask_time_prob=0.0,
    num_conv_pos_embeddings=6,
    num_conv_pos_embedding_groups=4,
)
_STABLE = dict(feat_extract_norm="layer", conv_bias=True, do_stable_layer_norm=True)
_FRAMES = dict(
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=28,
    feature_projection_input_dim=14,
    conv_depthwise_kernel_size=5,
    vocab_size=13,
    mask_time_prob=0.0,
)

CASES = {
    "whisper": Case("WhisperForConditionalGeneration", _WHISPER),
    # Fewer layers in the decoder, as large-v3-turbo.
    "whisper_turbo": Case("WhisperForConditionalGeneration", _WHISPER | dict(encoder_layers=4, num_mel_bins=12)),
    # Sounds: a norm over time, layers normed behind; norms by position, layers normed before; two kinds of positions.
    "wav2vec2": Case("Wav2Vec2ForCTC", _WAVE | dict(num_hidden_layers=3)),
    "wav2vec2_stable": Case("Wav2Vec2Model", _WAVE | _STABLE | dict(num_conv_pos_embeddings=5, num_conv_pos_embedding_groups=2)),
    "wav2vec2_conformer": Case(
        "Wav2Vec2ConformerForCTC", _WAVE | dict(hidden_act="swish", conv_depthwise_kernel_size=7, conv_bias=True)
    ),
    "wav2vec2_conformer_rotary": Case(
        "Wav2Vec2ConformerModel",
        _WAVE
        | dict(hidden_act="swish", conv_depthwise_kernel_size=5, position_embeddings_type="rotary", feat_extract_norm="layer"),
    ),
    "hubert": Case(
        "HubertForCTC", _WAVE | _STABLE | dict(num_conv_pos_embeddings=7, num_conv_pos_embedding_groups=3, conv_bias=False)
    ),
    # As distilled: no norm before the map to the model's width.
    "hubert_distilled": Case(
        "HubertModel",
        _WAVE | dict(feat_proj_layer_norm=False, hidden_size=30, num_attention_heads=5, num_conv_pos_embedding_groups=5),
    ),
    # Gated biases of relative positions, with norms behind and before; few buckets, of which rows of ten fill all.
    "wavlm": Case("WavLMForCTC", _WAVE | dict(num_buckets=12, max_bucket_distance=7)),
    "wavlm_stable": Case("WavLMModel", _WAVE | _STABLE | dict(num_buckets=320, max_bucket_distance=800, num_hidden_layers=3)),
    # Frames, not a waveform: vectors of distances, and the positions that its config also names.
    "wav2vec2_bert": Case("Wav2Vec2BertForCTC", _FRAMES | dict(left_max_position_embeddings=4, right_max_position_embeddings=2)),
    "wav2vec2_bert_relative": Case(
        "Wav2Vec2BertModel", _FRAMES | dict(position_embeddings_type="relative", conv_depthwise_kernel_size=7)
    ),
}
