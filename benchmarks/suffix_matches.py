"""How often what followed a suffix match is what the target says next, by the length of the match.

    python -m benchmarks.suffix_matches --target T --input FILE.jsonl --answers ANSWERS.jsonl

ANSWERS.jsonl holds the target's own answers to FILE.jsonl, one JSON object a line with `id` and `token_ids`,
as `paceline generate --json` prints them (under coupled verification, speculation on or off is the same).
Nothing is generated here: the suffix drafter is run over each answer token by token, as if the target were
saying it, and its proposal is held against what comes next. Answers are taken in by the route's store as they
end, in the order of the file, so that later ones see earlier ones.

The table says, for matches within the sequence itself and in earlier answers: at how many positions the
longest match had that length, how many of them proposed something, the share of proposals whose first token
was right, and how many of the next four tokens were right on average. The mixed drafter's `MIN_MATCH_LENGTH`
is where that share passes what a draft model reaches.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from paceline.cli.input_file import read_requests
from paceline.cli.output import print_table
from paceline.drafters.answer_store import AnswerStore
from paceline.drafters.interface import DraftRequest
from paceline.drafters.suffix import SuffixDrafter
from paceline.models.chat_template import require_chat_template
from paceline.models.download import resolve
from paceline.models.load import load_model
from paceline.records import SamplingParams, Verification
from paceline.sampling.state import SamplingState

DRAFT_LENGTH = 4
BOUNDS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 64)
STATE = SamplingState(SamplingParams(), 0, (), (), vocab_size=1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--input", required=True, type=Path)
    parser.add_argument("--answers", required=True, type=Path)
    arguments = parser.parse_args()
    loaded = load_model(resolve(arguments.target), "cpu")
    template = require_chat_template(loaded.chat_template, loaded.name)
    requests = {request.id: request for request in read_requests(arguments.input)}
    drafter = SuffixDrafter(answers=AnswerStore())
    counts: Counter[tuple[str, int, str]] = Counter()
    for number, line in enumerate(arguments.answers.read_text(encoding="utf-8").splitlines()):
        answer = json.loads(line)
        if answer.get("id") not in requests:
            continue
        request = requests[answer["id"]]
        prompt = template.encode(request.messages or [{"role": "user", "content": request.prompt}])
        replay(drafter, number, request.route, prompt, answer["token_ids"], counts)
    show(counts)


def replay(
    drafter: SuffixDrafter,
    sequence_id: int,
    route: str | None,
    prompt: list[int],
    answer: list[int],
    counts: Counter[tuple[str, int, str]],
) -> None:
    """Count what the drafter would have proposed at each position of an answer but the first."""
    for position in range(1, len(answer)):
        known = prompt + answer[:position]
        request = DraftRequest(sequence_id, known, DRAFT_LENGTH, STATE, Verification.COUPLED, route)
        match = drafter.match(request)
        drafted = drafter.propose_from(match, DRAFT_LENGTH).token_ids
        actual = answer[position : position + DRAFT_LENGTH]
        right = next(
            (i for i, pair in enumerate(zip(drafted, actual, strict=False)) if pair[0] != pair[1]), None
        )
        num_right = min(len(drafted), len(actual)) if right is None else right
        bound = max((b for b in BOUNDS if b <= match.length), default=0)
        key = ("itself" if match.is_own else "earlier answers", bound)
        counts[*key, "positions"] += 1
        counts[*key, "proposed"] += bool(drafted)
        counts[*key, "first right"] += num_right > 0
        counts[*key, "right"] += num_right
    drafter.learn(route, answer)
    drafter.release(sequence_id)


def show(counts: Counter[tuple[str, int, str]]) -> None:
    rows = []
    for source, bound in sorted({key[:2] for key in counts}, key=lambda key: (key[0] != "itself", key[1])):
        positions, proposed, first, right = (
            counts[source, bound, what] for what in ("positions", "proposed", "first right", "right")
        )
        share = f"{first / proposed:.2f}" if proposed else "-"
        mean = f"{right / proposed:.2f}" if proposed else "-"
        rows.append([source, f"{bound}+" if bound else "shorter", str(positions), str(proposed), share, mean])
    print_table(["MATCH IN", "TOKENS", "POSITIONS", "PROPOSED", "FIRST RIGHT", "RIGHT OF FOUR"], rows)


if __name__ == "__main__":
    main()
