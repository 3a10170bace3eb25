from catalogue import Case

from cases.bert import CROSS, DECODER, ODD, SMALL, WARNS

TASKS = {**SMALL, "use_task_id": True, "task_type_vocab_size": 4}
CLASSES = ("ErnieForPreTraining", "ErnieForMaskedLM", "ErnieModel", "ErnieForNextSentencePrediction",
           "ErnieForQuestionAnswering", "ErnieForMultipleChoice")  # fmt: skip
LABELLED = ("ErnieForSequenceClassification", "ErnieForTokenClassification")

CASES = [
    *[Case("ernie", name, TASKS) for name in CLASSES],
    *[Case("ernie", name, {**TASKS, "num_labels": 5, "pad_token_id": 3}) for name in LABELLED],
    *[Case("ernie", name, {**TASKS, **ODD}, "odd") for name in ("ErnieForMaskedLM", *LABELLED)],
    Case("ernie", "ErnieForMaskedLM", {**SMALL, "hidden_act": "relu"}, "no-tasks"),
    Case("ernie", "ErnieForPreTraining", {**TASKS, "tie_word_embeddings": False}, "untied"),
    Case("ernie", "ErnieForCausalLM", {**TASKS, **DECODER}),
    Case("ernie", "ErnieForCausalLM", {**TASKS, **ODD, **CROSS, "pad_token_id": 7}, "cross"),
    Case("ernie", "ErnieForCausalLM", {**TASKS, "hidden_act": "relu"}, "both-sides", skip={"L5": WARNS}),
    Case("ernie", "ErnieModel", {**TASKS, **CROSS, "task_type_vocab_size": 1}, "cross"),
]
