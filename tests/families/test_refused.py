"""Configs that cannot be: one line names the field and what would do. A row is a family, what its small config says
otherwise, and what the line says: the last field, unless given."""

from __future__ import annotations

from typing import Any

import pytest
from cases.llava import TEXT
from catalogue import every_case
from unpublished import SMALL, SOUND

import anyformer as af
from anyformer import families

REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "albert": [
        ({"num_hidden_groups": 4}, ""), ({"num_hidden_groups": 0}, ""), ({"inner_group_num": 0}, ""),
        ({"hidden_size": 33}, ""), ({"type_vocab_size": 0}, ""),
        ({"architectures": ["AlbertForPreTraining"], "num_labels": 3}, ""),
        ({"architectures": ["AlbertForQuestionAnswering"], "num_labels": 3}, ""),
    ],
    "bart": [
        ({"pad_token_id": 50265}, ""),
        ({"eos_token_id": [2, 3], "architectures": ["BartForSequenceClassification"]}, "token"),
    ],
    "bert": [
        ({"add_cross_attention": True}, ""), ({"type_vocab_size": 0}, ""), ({"hidden_size": 770}, ""),
        ({"architectures": ["BertForQuestionAnswering"], "num_labels": 3}, ""),
    ],
    "big_bird": [
        ({"attention_type": "sparse"}, ""), ({"add_cross_attention": True}, ""), ({"block_size": 0}, ""),
        ({"num_random_blocks": -1}, "random_blocks"),
    ],
    "bloom": [({"slow_but_exact": True, "pretraining_tp": 2}, "slow_but_exact")],
    "conformer": [
        ({"encoder_attention_heads": 5}, "multiple of 5"), ({"pad_token_id": 99}, "pad_token_id 99"),
        ({"conv_kernel_size": 0}, "kernel"), ({"decoder_layers": 1, "decoder_attention_heads": 3}, "multiple"),
    ],
    "ctrl": [({"n_head": 7}, "")],
    "deberta": [
        ({"hidden_size": 33}, ""), ({"architectures": ["DebertaForQuestionAnswering"], "num_labels": 3}, ""),
        ({"architectures": ["DebertaForSequenceClassification"], "pooler_hidden_size": 40}, ""),
        ({"hidden_act": "gelv"}, "gelv"),
        ({"architectures": ["DebertaForMaskedLM"], "legacy": False, "embedding_size": 20}, ""),
    ],
    "deberta-v2": [
        ({"hidden_size": 33}, ""), ({"architectures": ["DebertaV2ForQuestionAnswering"], "num_labels": 3}, ""),
        ({"architectures": ["DebertaV2ForSequenceClassification"], "pooler_hidden_size": 40}, ""),
        ({"hidden_act": "gelv"}, "gelv"), ({"conv_kernel_size": 4}, ""), ({"attention_head_size": 5}, ""),
        ({"architectures": ["DebertaV2ForMaskedLM"], "legacy": False, "embedding_size": 20}, ""),
        ({"position_buckets": 1}, "buckets"), ({"conv_kernel_size": 3, "conv_act": "tanj"}, "tanj"),
    ],
    "deepseek_v2": [({"num_experts_per_tok": 2, "num_key_value_heads": 1}, "")],
    "deepseek_v3": [({"num_key_value_heads": 2}, "num_key_value_heads=2"), ({"head_dim": 7}, "")],
    "distilbert": [
        ({"n_heads": 5}, ""), ({"architectures": ["DistilBertForQuestionAnswering"], "num_labels": 3}, ""),
    ],
    "dmca": [
        ({"layers": "LMX"}, ""), ({"layers": ""}, ""), ({"stride": 0}, ""), ({"block_size": 0}, "size"),
        ({"num_heads": 5}, "5 heads"), ({"activation_function": "relv"}, "relu"),
    ],
    "electra": [
        ({"add_cross_attention": True}, ""), ({"hidden_size": 33}, ""), ({"type_vocab_size": 0}, ""),
        ({"architectures": ["ElectraForQuestionAnswering"], "num_labels": 3}, ""),
    ],
    "fsmt": [({"tie_word_embeddings": True}, "src_vocab_size"), ({"pad_token_id": None}, "")],
    "funnel": [
        ({"block_repeats": [1]}, ""), ({"block_repeats": [1, 0, 1]}, ""), ({"block_sizes": []}, ""),
        ({"attention_type": "factorised"}, "did you mean 'factorized'"), ({"pooling_type": "min"}, "mean"),
        ({"d_model": 27}, "width"),
    ],
    "gpt_neox": [({"rotary_pct": 0.0}, "fraction"), ({"head_dim": 7}, "head_dim=7 .*hidden_size")],
    "limoe": [
        ({"num_expert_layers": 3}, "num_expert_layers.* 5 layers"), ({"num_expert_layers": 0}, ""),
        ({"num_attention_heads": 5}, "multiple of 5"), ({"num_experts": 0}, ""), ({"text_experts": 0}, "experts"),
        ({"entropy_weight": -1.0}, ""),
    ],
    "linformer": [({"sharing": "all"}, ""), ({"projected": 0}, "")],
    "llava": [
        ({"text_config": {**TEXT, "model_type": "mistral"}}, r"text_config\.model_type=\'mistral\'.*llama"),
        ({"vision_config": 3}, "vision_config.* 3"), ({"vision_feature_layer": 9}, "no hidden state 9.*3"),
        ({"vision_feature_select_strategy": "some"}, "vision_feature_select_strategy='some'.*default, full"),
        ({"image_token_index": 60}, r"image\.token.* 60.*60"),
    ],
    "longformer": [
        ({"attention_window": 7}, ""), ({"attention_window": [512] * 11}, ""), ({"attention_window": 0}, ""),
        ({"pad_token_id": None}, ""),
    ],
    "m2m_100": [({"pad_token_id": None}, ""), ({"decoder_attention_heads": 7}, "decoder_att")],
    "marian": [
        ({"pad_token_id": 99}, ""), ({"d_model": 30}, "d_model 30"),
        ({"activation_function": "relv"}, "did you mean 'relu'"),
    ],
    "nystromformer": [
        ({"inv_coeff_init_option": True}, ""), ({"conv_kernel_size": 4}, ""), ({"hidden_size": 33}, ""),
        ({"num_landmarks": 7}, "landmarks|segments"),
    ],
    "openai-gpt": [
        ({"afn": "mish"}, ""),
        ({"architectures": ["OpenAIGPTDoubleHeadsModel"], "summary_type": "attn"}, ""),
    ],
    "opt": [({"num_attention_heads": 5}, "hidden_size")],
    "perceiver": [
        ({"v_channels": 4}, "v_channels .* 4"),
        ({"qk_channels": 8, "v_channels": 32, "num_self_attention_heads": 3}, "multiple of 3"),
        ({"cross_attention_shape_for_attention": "v"}, "did you mean 'kv'"), ({"d_model": 12}, "d_model 12 "),
        ({"architectures": ["PerceiverForOpticalFlow"]}, "'PerceiverForOpticalFlow'.*PerceiverFor"),
        ({"architectures": ["PerceiverModel"]}, "'PerceiverModel'.*PerceiverFor"),
    ],
    "reformer": [
        ({"attn_layers": ["lsh", "global"]}, "attn_layers.*'lsh'.*'local'"), ({"attn_layers": []}, "attn_layers"),
        ({"num_buckets": 7}, "buckets"), ({"axial_pos_embds_dim": [10, 20]}, "axial_pos_embds_dim.*hidden_size 32"),
        ({"lsh_attn_chunk_length": 0}, "lsh_attn_chunk_length.* 0"),
        ({"lsh_attn_chunk_length": None}, "lsh_attn_chunk_length.* None"),
        ({"architectures": ["ReformerModelWithLMHead"]}, "is_decoder=True.*ReformerForMaskedLM"),
        ({"is_decoder": True, "architectures": ["ReformerForMaskedLM"]}, "is_decoder=False.*ReformerModelWithLMHead"),
        ({"is_decoder": True, "architectures": ["ReformerModelWithLMHead"], "lsh_num_chunks_after": 1}, ""),
        ({"architectures": ["ReformerForQuestionAnswering"], "num_labels": 3}, "num_labels.* 2 .* 3"),
    ],
    "reka": [
        ({"audio_config": {**SOUND, "decoder_layers": 3}}, r"audio_config\.decoder_layers.*valid: d_model"),
        ({"audio_config": {"model_type": "wav2vec2"}}, r"audio_config\.model_type=\'wav2vec2\'.*whisper"),
        ({"audio_token_index": 60}, r"audio\.token.* 60.*60"),
        ({"audio_token_index": 4}, r"image\.token.*audio\.token.* 4"),
    ],
    "reserve": [
        ({"num_attention_heads": 5}, "multiple of num_attention_heads"), ({"text_mask_index": 7}, "text.*audio.* 7"),
        ({"text_mask_index": 4}, " 4"), ({"audio_mask_index": 60}, " 60"),
        ({"audio_token_index": 4}, r"image\.token.*audio_token_index.* 4"),
    ],
    "roberta": [
        ({"pad_token_id": None}, ""), ({"max_position_embeddings": 2}, ""), ({"add_cross_attention": True}, ""),
        ({"type_vocab_size": 0}, ""), ({"hidden_size": 770}, ""),
        ({"architectures": ["RobertaForQuestionAnswering"], "num_labels": 3}, ""),
    ],
    "swinv2": [
        ({"use_absolute_embeddings": True}, ""), ({"pretrained_window_sizes": [0]}, "pretrained_window_sizes.*depths"),
        ({"image_size": 7}, "image_size 7 .*stage 1"), ({"num_heads": [2, 5]}, "multiple of 5 heads"),
    ],
    "torchaudio-conformer": [({"depthwise_conv_kernel_size": 30}, "kernel_size must be odd.* got 30")],
    "vatt": [
        ({"num_attention_heads": 5}, "multiple of num_attention_heads 5"), ({"token_drop": 1.0}, ""),
        ({"segment_size": 0}, "size"), ({"temperature": 0.0}, ""), ({"patch_size": 9}, "patch"),
    ],
    "wav2vec2-conformer": [
        ({"position_embeddings_type": "rotory"}, "rotary"), ({"feat_extract_norm": "batch"}, "group"),
        ({"num_feat_extract_layers": 4}, ""), ({"conv_kernel": [3, 3]}, "2 kernels"),
        ({"conv_depthwise_kernel_size": 4}, "odd"), ({"num_attention_heads": 5}, "multiple"),
        ({"architectures": ["Wav2Vec2ConformerForCTC"], "vocab_size": None}, ""),
        ({"architectures": ["Wav2Vec2ConformerForCTC"], "ctc_loss_reduction": "max"}, "mean"),
    ],
    "xlnet": [
        ({"attn_type": "both"}, "valid: bi, uni"), ({"n_head": 5}, ""), ({"d_head": 9}, ""),
        ({"ff_activation": "gelv"}, "did you mean 'gelu'"),
        ({"architectures": ["XLNetForSequenceClassification"], "summary_type": "attn"}, ""),
        ({"architectures": ["XLNetForSequenceClassification"], "summary_proj_to_labels": True}, ""),
    ],
}  # fmt: skip
ROWS = [(family, change, line or [*change][-1]) for family, rows in REFUSED.items() for change, line in rows]
FIRST = {case.model_type: case.config for case in reversed(every_case())} | SMALL


@pytest.mark.parametrize(("family", "change", "line"), ROWS, ids=lambda value: str(value)[:40])
def test_refused(family: str, change: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line) as error:
        af.build(families.find(family).read({**FIRST[family], **change}), device="meta")
    assert "\n" not in str(error.value)
