from catalogue import Case

SMALL = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 96, "type_vocab_size": 1, "initializer_range": 0.3, "layer_norm_eps": 1e-5,
}  # fmt: skip
ODD = {
    "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 3, "hidden_act": "silu", "layer_norm_eps": 1e-3,
    "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0, "type_vocab_size": 3, "pad_token_id": 4,
    "classifier_dropout": 0.2, "use_cache": False, "chunk_size_feed_forward": 1, "max_position_embeddings": 101,
}  # fmt: skip
CLASSES = ("ForMaskedLM", "Model", "ForQuestionAnswering", "ForMultipleChoice")
LABELLED = ("ForSequenceClassification", "ForTokenClassification")
WARNS = "the published class warns if it is built without is_decoder, but works"
DECODER, CROSS = {"is_decoder": True}, {"is_decoder": True, "add_cross_attention": True}
# classes with their own layers, and classes with RoBERTa's
BODIES = {"roberta": "Roberta", "xlm-roberta-xl": "XLMRobertaXL", "roberta-prelayernorm": "RobertaPreLayerNorm"}
WORDS = {"xlm-roberta": "XLMRoberta", "camembert": "Camembert"}


def every_class(family: str, classes: str) -> list[Case]:
    def case(ending: str, config: dict, name: str = "", **more) -> Case:
        return Case(family, classes + ending, {**SMALL, **config}, name, **more)

    first = [
        *[case(ending, {}) for ending in CLASSES],
        *[case(ending, {"num_labels": 5, "pad_token_id": 0}) for ending in LABELLED],
        case("ForMaskedLM", ODD, "odd"),
        case("ForCausalLM", DECODER),
        case("ForCausalLM", {**ODD, **CROSS}, "cross"),
    ]
    return first if family in WORDS else [
        *first,
        *[case(ending, ODD, "odd") for ending in (*CLASSES[1:], *LABELLED)],
        case(LABELLED[0], {"num_labels": 1, "hidden_act": "relu"}, "regression"),
        case("ForMaskedLM", {"tie_word_embeddings": False}, "untied"),
        case("ForCausalLM", {**DECODER, "tie_word_embeddings": False}, "untied"),
        case("ForCausalLM", {}, "both-sides", skip={"L5": WARNS}),
        case("Model", {**DECODER, "hidden_act": "quick_gelu"}, "decoder"),
        case("Model", CROSS, "cross"),
        case("ForTokenClassification", {**DECODER, "num_labels": 7}, "decoder"),
    ]  # fmt: skip


CASES = [case for names in {**BODIES, **WORDS}.items() for case in every_class(*names)]
