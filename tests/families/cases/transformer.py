from catalogue import Case

SMALL = {
    "d_model": 32, "encoder_layers": 2, "encoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_layers": 2,
    "decoder_ffn_dim": 40, "decoder_attention_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
MARIAN = {**SMALL, "vocab_size": 99, "pad_token_id": 3, "decoder_start_token_id": 3, "eos_token_id": 0}
TWO = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 71}
ODD = {
    "d_model": 27, "encoder_attention_heads": 3, "decoder_attention_heads": 9, "scale_embedding": True, "init_std": 0.1,
    "activation_function": "swish", "encoder_layerdrop": 0.3, "decoder_layerdrop": 0.2, "attention_dropout": 0.1,
    "activation_dropout": 0.2, "dropout": 0.3, "max_position_embeddings": 60,
}  # fmt: skip
# with use_cache the published class reads a whole text without a causal mask; it is meant for one token at a time
FSMT = {**SMALL, "src_vocab_size": 99, "tgt_vocab_size": 71, "use_cache": False}

UNTIED = {"tie_word_embeddings": False}
TIED = {"tie_word_embeddings": True, "src_vocab_size": 71}

CASES = [
    Case("marian", "MarianMTModel", MARIAN),
    Case("marian", "MarianMTModel", {**MARIAN, **ODD, **TWO}, "two-vocabularies"),
    Case("marian", "MarianMTModel", {**MARIAN, **TWO, **UNTIED, "activation_function": "relu"}, "untied"),
    Case("marian", "MarianMTModel", {**MARIAN, **ODD, **UNTIED}, "spare"),
    Case("marian", "MarianModel", MARIAN),
    Case("marian", "MarianModel", {**MARIAN, **ODD, **TWO}, "odd"),
    Case("marian", "MarianForCausalLM", MARIAN),
    Case("marian", "MarianForCausalLM", {**MARIAN, **ODD, **TWO, **UNTIED}, "odd"),
    Case("fsmt", "FSMTForConditionalGeneration", FSMT),
    Case("fsmt", "FSMTForConditionalGeneration", {**FSMT, **ODD, **TIED}, "tied"),
    Case("fsmt", "FSMTForConditionalGeneration", {**FSMT, **ODD, "scale_embedding": False, "pad_token_id": 4}, "odd"),
    Case("fsmt", "FSMTModel", {**FSMT, "activation_function": "gelu_new"}),
    Case("fsmt", "FSMTModel", {**FSMT, **TIED}, "tied"),
]
