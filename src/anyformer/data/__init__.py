"""Data for training: sources, vocabularies, records on disk, the order of the examples, and batches."""

from anyformer.data.captions import Captions, Worded
from anyformer.data.conversations import Conversations
from anyformer.data.episodes import Episodes
from anyformer.data.loader import Loader, StepBatches
from anyformer.data.media import ImageFolder, JoinedRecordings, Recordings, SoundFolder
from anyformer.data.mixed import MixedPlan, plan_of
from anyformer.data.mixture import Mixture, Share, TextToText
from anyformer.data.oversample import Oversample
from anyformer.data.plan import Plan
from anyformer.data.prepare import Data, Splits, prepare, tokenizer_digest
from anyformer.data.shards import DataSplit
from anyformer.data.source import Beside, First, Held, Numbers, Row, Source, Where
from anyformer.data.table import CSV, IDX, TSV, Arrays, HFDataset, JSONLines, Parquet, SQuAD, open_table
from anyformer.data.text_files import Columns, ParallelText, PythonDocs, TextFiles
from anyformer.data.vocabulary import (
    Bytes,
    Stored,
    TrainedBPE,
    TrainedUnigram,
    TrainedWordPiece,
    Vocabulary,
    Words,
    texts_of,
)

__all__ = [
    "Data", "Splits", "DataSplit", "prepare", "Plan", "MixedPlan", "plan_of", "Loader", "StepBatches",
    "tokenizer_digest", "Source", "Row", "Beside", "Held", "First", "Numbers", "Where", "Oversample", "Mixture",
    "Share", "TextToText", "TextFiles", "ParallelText", "Columns", "PythonDocs", "JSONLines",
    "CSV", "TSV", "Parquet", "HFDataset", "Arrays", "IDX", "SQuAD", "Captions", "Conversations", "Worded",
    "Episodes", "ImageFolder", "SoundFolder", "Recordings", "JoinedRecordings", "Vocabulary", "Bytes",
    "TrainedBPE", "TrainedUnigram", "TrainedWordPiece", "Words", "Stored", "texts_of", "open_table",
]  # fmt: skip
