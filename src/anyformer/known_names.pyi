# Written by `python -m anyformer.cli.listing`.
# fmt: off
# ruff: noqa: E501

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

from torch import Tensor

from anyformer.models import TransformerModule
from anyformer.runtime.state import State

DecoderName = Literal["bloom-560m", "bloom-1.1b", "bloom-1.7b", "bloom-3b", "bloom-7.1b", "bloom", "ctrl", "decision-transformer-gym", "deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "t-dmca", "t-dmca-moe-128", "t-dmca-moe-256", "transformer-d", "gemma2-2b", "gemma2-9b", "gemma2-27b", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-small", "gpt3-medium", "gpt3-large", "gpt3-xl", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b", "gpt-neox-20b", "pythia-70m", "pythia-160m", "pythia-410m", "pythia-1.4b", "pythia-12b", "gpt-oss-20b", "gpt-oss-120b", "imagegpt-small", "imagegpt-medium", "imagegpt-large", "llama3-8b", "llama3.2-1b", "llama3.1-405b", "mamba-130m", "mamba-370m", "mamba-790m", "mamba-1.4b", "mamba-2.8b", "mamba2-130m", "mamba2-370m", "mamba2-780m", "mamba2-1.3b", "mamba2-2.7b", "mistral-7b", "mistral-7b-v0.3", "mixtral-8x7b", "mixtral-8x22b", "olmo2-1b", "olmo2-7b", "olmo2-13b", "olmo2-32b", "gpt1", "opt-125m", "opt-350m", "opt-1.3b", "opt-2.7b", "opt-6.7b", "opt-13b", "opt-30b", "opt-66b", "opt-175b", "qwen2-7b", "qwen3-0.6b", "qwen3-8b", "qwen3-30b-a3b", "reformer-crime-and-punishment", "reformer-enwik8", "rwkv-4-169m", "rwkv-4-430m", "rwkv-4-1b5", "rwkv-4-3b", "rwkv-4-7b", "rwkv-4-14b"]
EncoderName = Literal["albert-base", "albert-large", "albert-xlarge", "albert-xxlarge", "lr-net-26", "lr-net-50", "sasa-resnet-26", "sasa-resnet-38", "sasa-resnet-50", "halonet-h0", "halonet-h1", "halonet-h2", "bert-base", "bert-large", "bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-multilingual", "bigbird-roberta-base", "bigbird-roberta-large", "conformer-s", "conformer-m", "conformer-l", "deberta-base", "deberta-large", "deberta-xlarge", "deberta-v2-xlarge", "deberta-v2-xxlarge", "deberta-v3-xsmall", "deberta-v3-small", "deberta-v3-base", "deberta-v3-large", "deit-tiny", "deit-small", "deit-base", "dinov2-small", "dinov2-base", "dinov2-large", "dinov2-giant", "dinov2-with-registers-small", "dinov2-with-registers-base", "dinov2-with-registers-large", "dinov2-with-registers-giant", "distilbert-base", "dit-s-2", "dit-s-4", "dit-s-8", "dit-b-2", "dit-b-4", "dit-b-8", "dit-l-2", "dit-l-4", "dit-l-8", "dit-xl-2", "dit-xl-4", "dit-xl-8", "dit-text-s-2", "electra-small", "electra-base", "electra-large", "electra-small-generator", "electra-base-generator", "electra-large-generator", "ernie-1.0-base", "ernie-2.0-base", "ernie-2.0-large", "etc-base", "etc-tiny", "funnel-small", "funnel-medium", "funnel-intermediate", "funnel-large", "funnel-xlarge", "funnel-small-base", "funnel-medium-base", "funnel-intermediate-base", "funnel-large-base", "funnel-xlarge-base", "linformer-base", "longformer-base", "longformer-large", "modernbert-base", "modernbert-large", "mvit-v1-b", "mvit-v2-s", "mvitv2-tiny", "mvitv2-small", "mvitv2-base", "mvitv2-large", "mvitv2-base-cls", "mvitv2-large-cls", "mvitv2-huge-cls", "nystromformer-512", "parakeet-ctc-0.6b", "parakeet-ctc-1.1b", "perceiver-language", "resnet-18", "resnet-26", "resnet-34", "resnet-50", "resnet-101", "resnet-152", "roberta-base", "roberta-large", "xlm-roberta-base", "xlm-roberta-large", "camembert-base", "camembert-large", "efficient-mlm", "xlm-roberta-xl", "xlm-roberta-xxl", "swin-tiny", "swin-small", "swin-base", "swin-large", "swinv2-tiny", "swinv2-small", "swinv2-base", "swinv2-large", "vit-b16", "vit-b32", "vit-l16", "vit-l32", "vit-h14", "wav2vec2-base", "wav2vec2-large", "wav2vec2-large-stable", "wav2vec2-conformer-rel-pos-large", "wav2vec2-conformer-rope-large", "xlm-mlm-en-2048", "xlm-mlm-100-1280", "xlm-clm-enfr-1024", "xlnet-base-cased", "xlnet-large-cased"]
EncoderDecoderName = Literal["bart-base", "bart-large", "mass-base", "mass-middle", "conformer-transformer-s", "conformer-transformer-m", "conformer-transformer-l", "m2m100-418m", "m2m100-1.2b", "transformer-base", "transformer-big", "switch-base-8", "switch-base-16", "switch-base-32", "switch-base-64", "switch-base-128", "switch-base-256", "switch-large-128", "switch-c-2048", "t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b", "t5-v1.1-small", "t5-v1.1-base", "t5-v1.1-large", "t5-v1.1-xl", "t5-v1.1-xxl", "whisper-tiny", "whisper-base", "whisper-small", "whisper-medium", "whisper-tiny.en", "whisper-base.en", "whisper-small.en", "whisper-medium.en", "whisper-large-v2", "whisper-large-v3", "whisper-large-v3-turbo"]

class GenerateOptions(TypedDict, total=False):
    actions: Tensor
    assistant_model: TransformerModule | None
    attention_mask: Tensor | None
    bad_words_ids: list[list[int]] | None
    begin_suppress_tokens: list[int] | None
    bos_token_id: int | None
    compile: bool | None
    decoder_attention_mask: Tensor
    decoder_document_ids: Tensor
    decoder_input_ids: Tensor
    decoder_inputs_embeds: Tensor
    decoder_position_ids: Tensor
    decoder_start_token_id: int | None
    decoder_token_type_ids: Tensor
    diversity_penalty: float
    do_sample: bool
    document_ids: Tensor
    early_stopping: bool | str
    encoder_no_repeat_ngram_size: int
    encoder_outputs: Any
    encoder_repetition_penalty: float
    eos_token_id: int | list[int] | None
    epsilon_cutoff: float
    eta_cutoff: float
    exponential_decay_length_penalty: tuple[int, float] | None
    forced_bos_token_id: int | None
    forced_decoder_ids: list[list[int | None]] | None
    forced_eos_token_id: int | list[int] | None
    frequency_penalty: float
    input_features: Tensor
    input_mask: Tensor
    inputs_embeds: Tensor | None
    is_multilingual: bool | None
    lang_to_id: dict[str, int] | None
    language: str | list[str] | None
    length_penalty: float
    logits_to_keep: Any
    max_initial_timestamp_index: int | None
    max_length: int | None
    max_matching_ngram_size: int
    max_new_tokens: int | None
    mems: Any
    min_length: int
    min_new_tokens: int | None
    min_p: float | None
    no_repeat_ngram_size: int
    no_timestamps_token_id: int | None
    num_assistant_tokens: int
    num_beam_groups: int
    num_beams: int
    num_return_sequences: int
    output_logits: bool
    output_scores: bool | None
    pad_token_id: int | None
    past_key_values: State | None
    penalty_alpha: float | None
    perm_mask: Tensor
    pixel_values: Tensor
    position_ids: Tensor
    prefill_chunk_size: int | None
    prefix_allowed_tokens_fn: Callable[[int, Any], list[int]] | None
    presence_penalty: float
    prompt_lookup_num_tokens: int | None
    remove_invalid_values: bool
    renormalize_logits: bool
    repetition_penalty: float
    return_timestamps: bool
    returns_to_go: Tensor
    rewards: Tensor
    seed: int | Sequence[int] | None
    sequence_bias: Any
    states: Tensor
    stop_strings: str | list[str] | None
    stream: Callable[[Tensor], None] | None
    suppress_tokens: list[int] | None
    target_mapping: Tensor
    task: str | None
    task_to_id: dict[str, int] | None
    temperature: float
    timesteps: Tensor
    token_type_ids: Tensor
    tokenizer: Any
    top_k: int
    top_p: float
    typical_p: float
    use_cache: bool
    use_mems: bool
