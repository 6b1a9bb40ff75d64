"""What a policy could make of a draft model at most: one that knew beforehand which drafts will stand.

    python -m benchmarks.oracle D --prompts prompts.jsonl --answers answers.jsonl \\
        --target-ms 61,62,65,72,84,97,112,126,145 --draft-ms 16 --prompt-ms 11.6 --draft-prompt-ms 3.6

Answers are made as `benchmarks.draft_acceptance` says. The draft model reads each of them once, which gives
the tokens that it guesses. The oracle drafts none that will be rejected, and of those that will stand as many
in each step as make the whole answer quickest (dynamic programming from its end). It still pays for draft
passes, verification and both models' reading of the prompt; nothing else takes time. Look-ups have no part
in it. No policy with this draft model alone can be faster, whatever it knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.draft_acceptance import answers_parser, load_variant, matches, read_answers

from paceline.models.chat_template import require_chat_template
from paceline.records import SamplingParams


@dataclass(frozen=True)
class Milliseconds:
    """What things take, one stream alone."""

    target: tuple[float, ...]
    """Of the target's pass by rows, from 1."""
    draft: float
    """Of a draft pass."""
    prompt: float
    """Of a token of a prompt in the target."""
    draft_prompt: float
    """The same in the draft model."""


def plain_ms(num_prompt: int, num_tokens: int, each: Milliseconds) -> float:
    """Return the time of an answer without drafts; its first token comes out of the prompt's pass."""
    return num_prompt * each.prompt + (num_tokens - 1) * each.target[0]


def oracle_ms(num_prompt: int, matched: Sequence[bool], each: Milliseconds) -> float:
    """Return the least time of an answer of which the draft model guesses these tokens."""
    num_tokens, most = len(matched), len(each.target) - 1
    least = [0.0] * (num_tokens + 1)
    for begin in range(num_tokens - 1, 0, -1):
        run = 0
        while run < most and begin + run < num_tokens and matched[begin + run]:
            run += 1
        least[begin] = min(
            each.target[drafts] + drafts * each.draft + least[min(num_tokens, begin + drafts + 1)]
            for drafts in range(run + 1)
        )
    return num_prompt * (each.prompt + each.draft_prompt) + least[min(1, num_tokens)]


def main() -> None:
    """Print a line for each route."""
    parser = answers_parser(__doc__)
    parser.add_argument("--routes", help="only these, R,R,...")
    parser.add_argument("--target-ms", required=True, help="of 1, 2, 3, ... rows")
    parser.add_argument("--draft-ms", type=float, required=True)
    parser.add_argument("--prompt-ms", type=float, required=True, help="a token")
    parser.add_argument("--draft-prompt-ms", type=float, required=True, help="a token")
    given = parser.parse_args()
    target = tuple(float(part) for part in given.target_ms.split(","))
    each = Milliseconds(target, given.draft_ms, given.prompt_ms, given.draft_prompt_ms)
    draft = load_variant(given.draft, "int4/auto")
    template = require_chat_template(draft.chat_template, draft.name)
    totals = defaultdict[str, list[tuple[float, float, int, int]]](list)
    for answer in read_answers(given.prompts, given.answers):
        if given.routes is not None and answer.route not in given.routes.split(","):
            continue
        matched = matches(draft, answer, SamplingParams(temperature=0.0), 0).tolist()
        num_prompt = len(template.encode(answer.messages))
        plain = plain_ms(num_prompt, len(matched), each)
        totals[answer.route].append((plain, oracle_ms(num_prompt, matched, each), sum(matched), len(matched)))
    print("route", "answers", "guessed", "oracle / plain", sep="\t")
    for route, found in totals.items():
        plain, oracle, num_guessed, num_tokens = (sum(column) for column in zip(*found, strict=True))
        print(route, len(found), f"{num_guessed / num_tokens:.3f}", f"{plain / oracle:.2f}", sep="\t")


if __name__ == "__main__":
    main()
