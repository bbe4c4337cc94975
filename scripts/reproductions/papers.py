"""The numbered tables and figures of papers, in order, and how each is answered here: plain data for paper_pages.py."""

import dataclasses

# How an item is answered where no entry answers it. "diagram": a drawing or pseudo-code without a figure that could be compared.
UNANSWERED = ("diagram", "impossible", "open")


@dataclasses.dataclass(frozen=True)
class Item:
    """A numbered table or figure of a paper.

    Attributes:
      label: "Table 1".
      shows: what it shows.
      entries: names of the reproductions that answer it; of a diagram, of those about the same matter.
      note: the reason why it is impossible or open; where the code of a diagram is; which part of it is answered.
      kind: one of UNANSWERED; empty of an item that is answered by its entries.
      partly: whether only a part of its figures is answered.
      recalled: whether the item is known from memory alone.
    """

    label: str
    shows: str
    entries: tuple[str, ...] = ()
    note: str = ""
    kind: str = ""
    partly: bool = False
    recalled: bool = False

    def __post_init__(self) -> None:
        assert self.kind in ("", *UNANSWERED)
        assert self.entries or self.kind, f"{self.label} has neither an entry nor a kind"
        assert self.note or not (self.kind or self.partly), f"{self.label} needs a note"


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper: `name` on the command line, `title` as the sources of reproductions call it, its items in their order.

    `source` says which text the list of items is from, and what it leaves out.
    """

    name: str
    title: str
    arxiv: str
    source: str
    items: tuple[Item, ...]

    @property
    def entries(self) -> tuple[str, ...]:
        """Returns the names of all reproductions of its items, each once."""
        return tuple(dict.fromkeys(name for item in self.items for name in item.entries))


def _diagram(label: str, shows: str, where: str, *entries: str, recalled: bool = False) -> Item:
    return Item(label, shows, entries, where, "diagram", recalled=recalled)


def _impossible(label: str, shows: str, why: str, *, recalled: bool = False) -> Item:
    return Item(label, shows, (), why, "impossible", recalled=recalled)


def _open(label: str, shows: str, missing: str, *, recalled: bool = False) -> Item:
    return Item(label, shows, (), missing, "open", recalled=recalled)


_HALOS = "the compiler exchanges halos; models/metnet2 cuts pictures in space (docs/LAYOUTS.md)"

GSHARD = Paper(
    "gshard",
    "GShard",
    "2006.16668",
    "The full text, appendix included, was read; Algorithms 1 and 2 are no figures of the paper's count.",
    (
        Item(
            "Figure 1",
            "average gain in BLEU and cost in core-years of six mixtures and a dense model",
            ("gshard.table_3_steps", "gshard.experts", "gshard.translation"),
            "the growth of the cost is modelled; the gain over bilingual models needs the private corpus of 100 languages",
            partly=True,
        ),
        _diagram(
            "Figure 2", "a product cut over four devices, as four programs and as one", "trainers/step.py compiles one program"
        ),
        _diagram(
            "Figure 3", "the encoder with mixtures, and how it is cut over devices", "models/gshard_m4, models/parts/moe/layer.py"
        ),
        _diagram(
            "Figure 4",
            "three ways to compute a cut product",
            "the compiler's; trainers/hlo/collectives.py reads its choice",
            "gshard.table_4",
        ),
        _diagram("Figure 5", "exchange of halos for convolutions and for data of another shape", _HALOS),
        Item(
            "Figure 6",
            "gain in BLEU of each language over a bilingual model, from most data to least, by model",
            ("gshard.translation", "gshard.depth"),
            "thirds of 102 languages by their data, over a dense model of the same corpus; the paper's needs its private corpus",
            partly=True,
        ),
        Item(
            "Figure 7",
            "memory of a device: weights and activations",
            ("gshard.figure_7",),
            "activations are not compared",
            partly=True,
        ),
        Item(
            "Figure 8",
            "time of the parts of a mixture and the layer beside it, measured and by the roofline",
            ("gshard.figure_8",),
            "matrix products and exchanges; attention and gating are not compared",
            partly=True,
        ),
        Item(
            "Figure 9",
            "time of all-reduce and all-to-all over 16 to 2048 devices",
            ("gshard.figure_9",),
            "all-to-all alone",
            partly=True,
        ),
        _diagram("Figure 10", "two orders of devices for one cut", "models/sharding/torus.py places the axes of a mesh"),
        _diagram("Figure 11", "a convolution whose halos differ in size", _HALOS),
        _diagram("Figure 12", "the steps of a halo exchange", _HALOS),
        _diagram("Figure 13", "cut convolutions with a dilated base", _HALOS),
        Item("Table 1", "sizes of seven mixtures", ("gshard.table_1", "gshard.table_1_experts")),
        Item(
            "Table 2",
            "tokens to a training cross-entropy of 0.7, 0.6 and 0.5 of six mixtures",
            ("gshard.experts", "gshard.depth"),
            "small decoders by tokens to the dense model's last loss; depth by the training loss at equal tokens",
            partly=True,
        ),
        Item(
            "Table 3",
            "steps a second, core-years, days and BLEU of six mixtures and a dense model",
            ("gshard.table_3", "gshard.table_3_steps", "gshard.translation", "gshard.depth"),
            "core-years are arithmetic, steps modelled, BLEU by direction of small models",
            partly=True,
        ),
        Item("Table 4", "how computation and communication of nine cut operators grow with devices", ("gshard.table_4",)),
    ),
)

_PRETRAINED = "pre-training on 34 to 576 billion tokens of C4 (10^20 to 10^21 FLOPs a model)"

_SMALL = "sizes at full size; losses of small models, by direction"
_MESSAGES = "small decoders on messages of programs in 96 languages; the paper has mC4 and a million steps"
_SPEED_UP = "needs mC4 and a million steps; languages could be evaluated one by one as small models train"

SWITCH = Paper(
    "switch",
    "Switch Transformer",
    "2101.03961",
    "The full text of the third version, appendix included, was read.",
    (
        Item(
            "Figure 1", "test loss by the number of parameters; loss by steps beside T5", ("t5.switch_steps", "t5.switch_scaling")
        ),
        _diagram("Figure 2", "an encoder block with four experts", "models/t5, models/parts/moe/layer.py"),
        _diagram("Figure 3", "tokens that find an expert full, by the capacity", "models/parts/moe/routing.py", "gshard.dropped"),
        Item(
            "Figure 4",
            "loss by parameters with 1 to 256 experts; loss by steps",
            ("t5.switch_scaling", "t5.switch_steps"),
            _SMALL,
            partly=True,
        ),
        Item(
            "Figure 5",
            "loss by hours on 32 cores, beside T5-Base",
            ("t5.switch_speeds",),
            "the time of a step by FLOPs; the losses of small runs are compared by steps, not by hours",
            partly=True,
        ),
        Item(
            "Figure 6",
            "loss by steps and by hours beside T5-Large, which takes 3.5 times the FLOPs",
            ("t5.switch_speeds",),
            "the FLOPs; no larger dense model is trained beside",
            partly=True,
        ),
        Item("Figure 7", "gain over mT5-Base of 101 languages", ("t5.switch_languages",), _MESSAGES, partly=True),
        _open("Figure 8", "histogram of the speed-up of 101 languages", _SPEED_UP),
        _diagram(
            "Figure 9",
            "how data and weights are cut in five kinds of parallelism",
            "models/sharding/layouts.py, expert_layouts.py; docs/LAYOUTS.md",
        ),
        _diagram("Figure 10", "experts in attention", "no code here: queries, keys and values are dense"),
        _diagram(
            "Figure 11", "tokens sent on to a second expert where the first is full", "no code here; the paper found no gain"
        ),
        Item("Figure 12", "loss by steps with 2, 4 and 8 experts", ("t5.switch_steps",), "8 experts", partly=True),
        _impossible("Figure 13", "loss of pre-training against SuperGLUE and TriviaQA", f"needs {_PRETRAINED} of every point"),
        _diagram("Figure 14", "pseudo-code of the loss of balance", "models/parts/moe/routing.py, `balance_loss`"),
        _diagram("Figure 15", "pseudo-code of the router", "models/parts/moe/router.py, routing.py"),
        _diagram("Figure 16", "pseudo-code of the layer", "models/parts/moe/layer.py, dispatch.py"),
        Item(
            "Table 1",
            "loss, hours to a loss and speed of T5, mixtures of two experts a token and of one",
            ("t5.switch_top1", "t5.switch_speeds"),
            "loss of small models by direction, speeds by FLOPs; hours need its 32 cores",
            partly=True,
        ),
        Item(
            "Table 2", "loss and speed with a router in float32 and bfloat16", ("t5.switch_stability",), "loss alone", partly=True
        ),
        Item("Table 3", "loss with a tenth of the initial variance", ("t5.switch_stability",)),
        _open(
            "Table 4",
            "dropout in fine-tuning on four tasks",
            f"needs {_PRETRAINED}; the direction could be trained at small size",
        ),
        _impossible("Table 5", "fine-tuning on eleven tasks", f"needs {_PRETRAINED} and fine-tuning of 17 billion tokens a task"),
        Item(
            "Table 6",
            "ways to distil a mixture into T5-Base",
            ("t5.switch_compression", "t5.switch_distillation"),
            f"the sizes, and a mix of hard and soft targets in a small decoder; the losses need {_PRETRAINED}",
            partly=True,
        ),
        Item(
            "Table 7",
            "distillation of mixtures of 1.1 to 14.7 billion parameters",
            ("t5.switch_compression", "t5.switch_scaling"),
            f"sizes and compression; the losses need {_PRETRAINED}",
            partly=True,
        ),
        Item(
            "Table 8",
            "distillation of a mixture fine-tuned on SuperGLUE",
            ("t5.switch_compression", "t5.switch_flops"),
            f"sizes and FLOPs; SuperGLUE needs {_PRETRAINED}",
            partly=True,
        ),
        Item(
            "Table 9",
            "sizes, FLOPs and losses of three dense and four sparse models",
            ("t5.switch_table_9", "t5.switch_flops"),
            f"sizes and FLOPs; the losses need {_PRETRAINED}",
            partly=True,
        ),
        _open("Table 10", "experts in attention", "attention has no experts here; small models could be trained with them"),
        _open(
            "Table 11",
            "four ways to explore: argmax, sampling, dropout, jitter",
            "argmax and jitter could be trained at small size",
        ),
    ),
)

MEGATRON = Paper(
    "megatron",
    "PTD-P",
    "2104.04473",
    "The full text, appendix included, was read.",
    (
        Item(
            "Figure 1",
            "sizes of language models by year",
            ("encoders.bert", "decoders.gpt"),
            "BERT, GPT-2 and GPT-3; the others' configurations are not in the paper",
            partly=True,
        ),
        _diagram("Figure 2", "tensor and pipeline parallelism together", "models/sharding/layouts.py, `pipelines`"),
        _diagram("Figure 3", "GPipe's schedule with 8 microbatches", "models/sharding/pipelines/gpipe.py", "gspmd.bubbles"),
        _diagram(
            "Figure 4",
            "1F1B, plain and interleaved",
            "models/sharding/pipelines/schedule.py, one_f_one_b.py; `scripts.show` draws them",
            "megatron.stashed",
            "gspmd.bubbles_measured",
        ),
        _diagram("Figure 5", "a layer's tensor-parallel products", "models/sharding/layouts.py, `tensor_parallel`"),
        Item("Figure 6", "the bubble by the number of copies", ("megatron.bubble_sizes",)),
        Item(
            "Figure 7", "throughput of an A100 by the microbatch", ("megatron.microbatch",), "the largest gain alone", partly=True
        ),
        Item(
            "Figure 8",
            "estimated throughput by the microbatch, of 8 stages",
            ("megatron.microbatch",),
            "the best alone",
            partly=True,
        ),
        _diagram(
            "Figure 9",
            "scatter/gather between stages",
            "no code here: a stage sends the whole to each device",
            "megatron.traffic",
        ),
        Item("Figure 10", "throughput of PTD-P and ZeRO-3 by GPUs", ("megatron.zero",)),
        Item("Figure 11", "throughput of 1 to 8 stages in two batches", ("megatron.weak_scaling",)),
        Item(
            "Figure 12",
            "throughput of the plain and the interleaved schedule",
            ("megatron.interleaving", "megatron.interleaved_plans"),
        ),
        Item("Figure 13", "throughput by the sizes of tensor and pipeline parallelism", ("megatron.tensor_or_pipeline",)),
        Item(
            "Figure 14",
            "throughput by the sizes of data and pipeline parallelism",
            ("megatron.pipeline_or_data",),
            "the order alone: the chart's values were not read",
            partly=True,
        ),
        Item(
            "Figure 15",
            "throughput by the sizes of data and tensor parallelism",
            ("megatron.traffic",),
            "the traffic of a layer, to which the text lays it; the chart's values were not read",
            partly=True,
        ),
        _impossible(
            "Figure 16",
            "throughput by the microbatch, 91 billion parameters",
            "needs 64 A100s: the optimum comes from how fast their kernels are by the microbatch, which no model here knows",
        ),
        Item("Figure 17", "throughput with and without recomputation", ("megatron.recomputation",)),
        Item(
            "Figure 18",
            "throughput with and without scatter/gather",
            ("megatron.traffic",),
            "the bytes that it saves; the gain of 11 % needs 96 A100s",
            partly=True,
        ),
        Item(
            "Table 1",
            "ten decoders: sizes, cuts and throughput",
            ("megatron.table_1_sizes", "megatron.iteration_flops"),
            "sizes and FLOPs; throughput needs 32 to 3072 A100s",
            partly=True,
        ),
        Item("Table 2", "throughput and days of PTD-P and ZeRO-3", ("megatron.zero", "megatron.table_2_days")),
    ),
)

_SPEECH = "needs the test sets, and the released weights of every size"
_HOURS = "needs the private corpus of 680,000 hours, and models trained on it"

WHISPER = Paper(
    "whisper",
    "Whisper",
    "2212.04356",
    "The main text was read; Tables 8 and on, of the appendix, are not listed.",
    (
        _diagram("Figure 1", "the model, its tasks and its tokens", "models/whisper"),
        _open("Figure 2", "error on other sets by the error on LibriSpeech, beside a human", _SPEECH),
        _impossible("Figure 3", "error by the hours of a language in training", _HOURS),
        _impossible("Figure 4", "BLEU by the hours of a language in training", _HOURS),
        _open(
            "Figure 5",
            "error under white noise and a pub's",
            "needs LibriSpeech; `scripts.transcribe` has the released base weights",
        ),
        _open(
            "Figure 6",
            "error on long recordings, beside four services",
            "needs seven test sets; the services' versions of 2022 are gone",
        ),
        _impossible(
            "Figure 7", "error beside transcribers on 25 recordings", "needs human transcripts, which were not published"
        ),
        _open("Figure 8", "errors by the size of the model", _SPEECH),
        _impossible("Figure 9", "error of English and of multilingual models by FLOPs of training", _HOURS),
        _open("Figure 10", "the normaliser beside another", "needs the test sets and FairSpeech's normaliser"),
        Item("Table 1", "five sizes", ("speech.whisper",)),
        _open("Table 2", "error on 14 sets beside wav2vec 2.0", _SPEECH),
        _open("Table 3", "error on two multilingual sets", _SPEECH),
        _open("Table 4", "BLEU on CoVoST 2", _SPEECH),
        _open("Table 5", "accuracy of recognising the language", _SPEECH),
        _impossible("Table 6", "errors by the size of the training set", _HOURS),
        _open("Table 7", "error on long recordings by heuristics of decoding", "needs seven test sets and the weights of Large"),
    ),
)

_POD = "could be modelled as Table 2 is; its figures were not at hand"

GSPMD = Paper(
    "gspmd",
    "GSPMD",
    "2105.04663",
    "The text was not at hand: the list is from memory, and the figures of the paper are left out.",
    (
        Item("Table 1", "three ways to cut a dense layer", ("gspmd.table_1",), "the last of three", partly=True, recalled=True),
        Item(
            "Table 2",
            "step time, utilisation and memory of dense decoders on up to 2048 cores",
            ("gspmd.table_2", "gspmd.table_2_sizes"),
            "utilisation and sizes",
            partly=True,
            recalled=True,
        ),
        _open("Table 3", "a narrow dense decoder by the shape of the mesh", _POD, recalled=True),
        Item(
            "Table 4",
            "pipelines of a decoder by stages and schedule",
            ("gspmd.bubbles", "gspmd.bubbles_measured"),
            "the bubbles of section 3.3; the table's figures were not at hand",
            partly=True,
            recalled=True,
        ),
        _open("Table 5", "pipelines of Conformers", _POD, recalled=True),
        _open("Table 6", "a mixture of experts on 32 to 2048 cores", _POD, recalled=True),
        _open("Table 7", "a mixture whose experts are cut too", _POD, recalled=True),
        _open("Table 8", "3D U-Net cut in space", "the zoo has no U-Net", recalled=True),
    ),
)

_FINETUNED = (
    "needs T5-Base pre-trained on 34 billion tokens of C4, and fine-tuned on GLUE, CNN/DM, SQuAD, SuperGLUE and WMT, for each row"
)

T5 = Paper(
    "t5",
    "T5",
    "1910.10683",
    "The list is from memory; tables of the appendix after Table 16 are not listed.",
    (
        _diagram("Figure 1", "every task as text to text", "models/t5", recalled=True),
        _diagram("Figure 2", "spans replaced by sentinels", "data/text/spans.py", recalled=True),
        _diagram("Figure 3", "three masks of attention", "models/parts/attention", recalled=True),
        _diagram("Figure 4", "three architectures", "models/t5, models/gpt", recalled=True),
        _diagram(
            "Figure 5", "the order of choices of an objective", "data/text/spans.py has the one that was chosen", recalled=True
        ),
        _impossible("Figure 6", "training loss with repeated data", _FINETUNED, recalled=True),
        _impossible("Table 1", "the baseline and its spread", _FINETUNED, recalled=True),
        _impossible("Table 2", "architectures", _FINETUNED, recalled=True),
        _diagram("Table 3", "examples of objectives' inputs and targets", "data/text/spans.py", recalled=True),
        *(
            _impossible(f"Table {number}", shows, _FINETUNED, recalled=True)
            for number, shows in enumerate(
                (
                    "objectives",
                    "variants of BERT's objective",
                    "rates of corruption",
                    "lengths of spans",
                    "data sets of pre-training",
                    "repeated data",
                    "ways to fine-tune",
                    "mixtures of tasks",
                    "multi-task pre-training",
                    "ways to use four times the FLOPs",
                ),
                4,
            )
        ),
        Item(
            "Table 14",
            "five sizes on all tasks",
            ("t5.sizes",),
            "the sizes; scores need 1 trillion tokens of pre-training a model",
            partly=True,
            recalled=True,
        ),
        _impossible("Table 15", "T5-Base by recipe", _FINETUNED, recalled=True),
        _impossible("Table 16", "all scores of all experiments", _FINETUNED, recalled=True),
    ),
)

_JFT = "needs JFT-300M, which is private"

VMOE = Paper(
    "vmoe",
    "V-MoE",
    "2106.05974",
    "The list is from memory, and has the items that are remembered; the appendix's others are not listed.",
    (
        _diagram("Figure 1", "a sparse vision transformer", "models/vit, models/parts/moe", recalled=True),
        _impossible("Figure 2", "accuracy on JFT by FLOPs and by days", _JFT, recalled=True),
        _impossible("Figure 3", "few-shot accuracy on ImageNet", _JFT, recalled=True),
        Item(
            "Figure 4",
            "accuracy by the experts' capacity, with and without priority",
            ("encoders.vmoe_priority",),
            "small models on other pictures, by direction",
            partly=True,
            recalled=True,
        ),
        Item("Table 8", "sizes of sparse models", ("encoders.vmoe",), recalled=True),
    ),
)

PAPERS = {paper.name: paper for paper in (GSHARD, SWITCH, GSPMD, MEGATRON, T5, VMOE, WHISPER)}
