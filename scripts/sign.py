"""Signs a release, or checks its signature and every checksum (trainers/weights/signing.py makes and reads signatures).

    python -m scripts.sign releases/m4 --key key.pem
    python -m scripts.sign releases/m4 --check public.pem

With SHARDZOO_RELEASE_KEY=public.pem in the environment every command refuses what is no release that its owner signed.
"""

from scripts import cli


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("release", type=cli.folder, help="the folder")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--key", type=cli.folder, metavar="FILE", help="a private key: signs")
    chosen.add_argument("--check", type=cli.folder, metavar="FILE", help="a public key: checks")
    args = parser.parse_args()
    from trainers.audit import log as audit
    from trainers.weights import release, signing

    release.verify(args.release, args.check)
    if args.key:
        signing.sign(args.release / release.SUMS, args.key)
        signature = signing.signature_of(args.release / release.SUMS).name
        audit.record("signed", args.release, command=audit.command(), files=audit.digests(args.release, release.SUMS, signature))
    print(f"{args.release}: {'signed' if args.key else 'signature and checksums are right'}")
    return 0


if __name__ == "__main__":
    cli.run(main)
