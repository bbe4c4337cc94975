"""Prints how alike texts are by a sentence encoder, or writes their vectors.

    python -m scripts.embed --checkpoint DIR "I forgot my password" "How do I reset it?" "Rates rose sharply"
    python -m scripts.embed --checkpoint DIR --prompt query "how to reset a password" "rates in spring"
    python -m scripts.embed --checkpoint DIR --file texts.jsonl --to vectors.npy

DIR is a run's workdir, a release, or a folder of Hugging Face's, with the files of sentence-transformers or without: then a
text's vector is the mean of its tokens'. Each text has a line: its cosine similarity with each of the texts, and the text. A file
has one example a line, {"text": ...} or {"text": ..., "prompt": NAME}. A prompt is what the folder puts before a text of some
kind, such as "query: "; without a name it is the folder's default, or nothing. --to writes vectors of length 1, float32
[texts, dimensions].
"""

from pathlib import Path

from models.sharding.layouts import ONE_DEVICE
from scripts import cli
from scripts.classify import read


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_checkpoint(parser, "a workdir, a release or a folder of Hugging Face's")
    parser.add_argument(
        "--prompt", default="", metavar="NAME", help="the name of what stands before each text; by default the folder's own"
    )
    parser.add_argument("--file", type=cli.folder, metavar="FILE", help="a file of texts, one JSON object a line")
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="write the vectors to this .npy file; by default cosines are printed"
    )
    parser.add_argument("text", nargs="*", help="texts to compare")
    args = parser.parse_args()
    if bool(args.text) == bool(args.file):
        raise cli.ConfigError("give either texts or --file")
    if args.to and (args.to.suffix != ".npy" or args.to.exists()):
        raise cli.ConfigError(f"--to {args.to}: {'exists' if args.to.exists() else 'must end with .npy'}; choose a new .npy file")

    cli.use_devices(ONE_DEVICE)
    import numpy as np

    from trainers.inference.embedding import TextEmbedder
    from trainers.inference.load import load
    from trainers.weights import sentences

    e, weights = cli.opened(args.checkpoint, args.step, args.dtype)
    if weights.vocabulary is None:
        raise cli.ConfigError(f"--checkpoint {args.checkpoint}: nothing beside the weights says what tokens are")
    examples = read(args.file, "text") if args.file else [{"text": text} for text in args.text]
    names = [str(example.get("prompt", args.prompt)) for example in examples]
    prompts = {name: sentences.prompt(weights.vocabulary, name) for name in dict.fromkeys(names)}
    texts = [prompts[name] + example["text"] for name, example in zip(names, examples, strict=True)]
    served = load(weights, e.execution)
    vectors = TextEmbedder(served.model, e, weights.vocabulary)(served.params, texts)
    if args.to:
        np.save(args.to, vectors)
        print(f"{args.to}: {len(vectors):,} vectors of {vectors.shape[1]:,} dimensions")
        return 0
    for example, cosines in zip(examples, vectors @ vectors.T, strict=True):
        print(f"{' '.join(f'{cosine:6.3f}' for cosine in cosines)}  {example['text']}")
    return 0


if __name__ == "__main__":
    cli.run(main)
