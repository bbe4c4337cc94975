"""Models of pictures, alone or beside texts."""

from typing import Any

from .case import Case
from .decoders import GPT2

_VIT = dict(
    hidden_size=30, num_hidden_layers=2, num_attention_heads=3, intermediate_size=22, image_size=21, patch_size=7, num_channels=3
)
_DEIT = _VIT | dict(hidden_size=18)
_BEIT = _DEIT | dict(use_relative_position_bias=True)
_DINOV2 = {key: value for key, value in _DEIT.items() if key != "intermediate_size"}
_TOWERS: dict[str, Any] = dict(
    vision_config=_DEIT | dict(num_hidden_layers=2),
    text_config=dict(
        vocab_size=47,
        hidden_size=18,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=22,
        max_position_embeddings=13,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=3,
    ),
)
_CAPTIONER: dict[str, Any] = dict(
    encoder=_VIT | dict(model_type="vit"),
    decoder=GPT2 | dict(model_type="gpt2", n_inner=20, add_cross_attention=True, is_decoder=True),
    decoder_start_token_id=2,
)
_READER: dict[str, Any] = dict(
    encoder=_VIT | dict(model_type="vit", qkv_bias=False),
    decoder=dict(
        model_type="trocr",
        vocab_size=101,
        d_model=20,
        decoder_layers=2,
        decoder_attention_heads=5,
        decoder_ffn_dim=26,
        max_position_embeddings=17,
        cross_attention_hidden_size=30,
        is_decoder=True,
        add_cross_attention=True,
    ),
    decoder_start_token_id=2,
)

CASES = {
    # Two resolutions; logits, and features with the pooled class token.
    "vit_classification": Case("ViTForImageClassification", _VIT | dict(num_labels=5, hidden_act="gelu_new")),
    "vit_classification_larger": Case("ViTForImageClassification", _VIT | dict(num_labels=3, image_size=35)),
    "vit_features": Case("ViTModel", _VIT),
    "vit_features_larger": Case("ViTModel", _VIT | dict(image_size=42, num_hidden_layers=3)),
    # A teacher's token, with a head of its own or none; factors of layers' outputs, and the mean of patches beside a class token.
    "deit": Case("DeiTForImageClassification", _DEIT | dict(num_labels=5)),
    "deit_teacher": Case(
        "DeiTForImageClassificationWithTeacher", _DEIT | dict(num_labels=3, image_size=35, hidden_act="gelu_new")
    ),
    "deit_features": Case("DeiTModel", _DEIT | dict(num_hidden_layers=1)),
    "dinov2": Case(
        "Dinov2ForImageClassification", _DINOV2 | dict(num_labels=5, use_swiglu_ffn=True, mlp_ratio=2, layer_norm_eps=1e-5)
    ),
    "dinov2_features": Case("Dinov2Model", _DINOV2 | dict(image_size=35, hidden_act="relu", mlp_ratio=1)),
    # Biases of offsets in the plane, and a norm behind pooling.
    "beit": Case("BeitForImageClassification", _BEIT | dict(num_labels=5)),
    "beit_features": Case("BeitModel", _BEIT | dict(image_size=28, layer_scale_init_value=0.0, num_hidden_layers=1)),
    # Pictures beside texts: a text's end, or the last of all positions; towers of one width and of two.
    "clip": Case("CLIPModel", _TOWERS | dict(projection_dim=10)),
    "siglip": Case("SiglipModel", _TOWERS),
    "siglip_widths": Case(
        "SiglipModel",
        dict(
            vision_config=_TOWERS["vision_config"] | dict(image_size=28, hidden_act="gelu"),
            text_config=_TOWERS["text_config"] | dict(hidden_size=22, num_attention_heads=11, projection_size=18, pad_token_id=0),
        ),
    ),
    # A picture's text, the two parts of unlike and of one width.
    "captioner": Case("VisionEncoderDecoderModel", _CAPTIONER),
    "captioner_of_one_width": Case(
        "VisionEncoderDecoderModel", _CAPTIONER | dict(encoder=_CAPTIONER["encoder"] | dict(hidden_size=27))
    ),
    # Lines of text: keys and values of the tower's own width, or of a projection; a table of positions, or sinusoids.
    "trocr": Case("VisionEncoderDecoderModel", _READER),
    "trocr_sinusoids": Case(
        "VisionEncoderDecoderModel",
        dict(
            encoder=_READER["encoder"] | dict(qkv_bias=True, hidden_act="relu"),
            decoder=_READER["decoder"]
            | dict(
                use_learned_position_embeddings=False,
                scale_embedding=True,
                layernorm_embedding=False,
                cross_attention_hidden_size=None,
                activation_function="relu",
                decoder_layers=3,
            ),
            decoder_start_token_id=2,
        ),
    ),
}
