"""Timed runs: the few settings of each route and load in turns, batch by batch, until the budget is used.

In a turn every setting answers the same batch of a route's requests, one setting after another and each time
from another one on, so that a machine that slows down slows all of them. Ratios are of runs of one turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.measure.bench import Bench, TimedRun
from paceline.measure.journal import Journal
from paceline.measure.options import MeasureOptions
from paceline.measure.reading import Answer
from paceline.measure.replay import Reading
from paceline.measure.setting import Setting
from paceline.measure.turns import in_turns

MOST_SWEEPS = 3
"""Times that every prompt is timed in each setting, at most."""
CLOSE = 0.95
"""Another draft model is timed on a route where its best forecast is within so much of the best of all."""
FIRST_TURNS_SHARE = 0.8
"""Of the time that is left: what first turns of all groups may take before less is timed."""
LEAST_SETTINGS = 2
MARGIN = 1.1
"""Of what a turn may take beyond its estimate, so that the last one ends within the budget."""


@dataclass(slots=True)
class Group:
    """One route at one load, with one draft model."""

    route: str
    concurrency: int
    draft: str | None
    settings: list[Setting]
    """Plain decoding first, then the most important."""
    answers: Sequence[Answer]
    turn_s: float
    """What a turn takes, forecast or as the last one took."""
    num_turns: int = 0

    @property
    def batch_size(self) -> int:
        """Requests of a turn: one for each client, as far as there are any."""
        return min(len(self.answers), self.concurrency)

    @property
    def most_turns(self) -> int:
        """Turns after which every prompt was timed as often as it may be."""
        return MOST_SWEEPS * -(-len(self.answers) // self.batch_size)

    @property
    def coverage(self) -> float:
        """Share of its turns that were run."""
        return self.num_turns / self.most_turns

    def batch(self) -> list[Answer]:
        """Return the requests of the next turn."""
        start = self.num_turns * self.batch_size
        return [self.answers[(start + i) % len(self.answers)] for i in range(self.batch_size)]


class Timing:
    """Runs turns, the group first that has had the least of its own.

    Args:
        options: what is asked for.
        journal: with forecasts, and runs of earlier starts.
        bench: the engine.
        budget_left: seconds.
    """

    def __init__(
        self, options: MeasureOptions, journal: Journal, bench: Bench, budget_left: Callable[[], float]
    ) -> None:
        self._options = options
        self._journal = journal
        self._bench = bench
        self._budget_left = budget_left
        self._chosen = chosen_settings(list(journal.of_kind("forecast")))
        self._stretches: list[float] = []
        self.left_s = 0.0
        """Seconds of the turns that are still to be run, an estimate."""

    def drafts(self) -> list[str | None]:
        """Return the draft models that are timed on any route, and none where only look-ups are."""
        wanted = {draft for _, _, draft in self._chosen}
        return [name for name in self._options.draft_names if name in wanted]

    def run(
        self, draft: str | None, routes: Mapping[str, Sequence[Answer]], readings: Mapping[str, Reading]
    ) -> Iterator[str]:
        """Time all groups of a draft model, and yield after each turn what was timed.

        Args:
            draft: its name.
            routes: answers of each route.
            readings: of this draft model, by request.
        """
        groups = self._groups(draft, routes)
        share = self._share(draft)
        until = self._budget_left() * (1 - share)
        if not self._next(groups, until):
            return
        self._bench.open(draft)
        for route, answers in routes.items():
            found = (readings.get(one.request.id) for one in answers)
            self._bench.teach(route, [one for one in found if one is not None])
        self._warm_up(groups)
        self._trim(groups, self._budget_left() - until)
        while (group := self._next(groups, until)) is not None:
            self._turn(group)
            self.left_s = sum(one.turn_s * (one.most_turns - one.num_turns) for one in groups)
            yield f"{group.route}, {group.concurrency} at once, turn {group.num_turns}"

    def _share(self, draft: str | None) -> float:
        """Return the part of the time left that is a draft model's: by its groups, among those to come."""
        later = self.drafts()[self.drafts().index(draft) :]
        counts = [sum(name == one for _, _, one in self._chosen) for name in later]
        return counts[0] / sum(counts)

    def _groups(self, draft: str | None, routes: Mapping[str, Sequence[Answer]]) -> list[Group]:
        runs = [one for one in self._journal.of_kind("run") if one["draft"] == draft]
        found = []
        for (route, concurrency, name), (settings, speeds) in self._chosen.items():
            answers = routes.get(route, ())
            if name != draft or not answers:
                continue
            group = Group(route, concurrency, draft, [Setting(), *settings], answers, 0.0)
            num_tokens = sum(len(answer.token_ids) for answer in group.batch())
            group.turn_s = num_tokens * sum(1 / speed for speed in speeds)
            own = [one for one in runs if (one["route"], one["concurrency"]) == (route, concurrency)]
            group.num_turns = max((int(one["turn"]) for one in own), default=0)
            found.append(group)
        return found

    def _next(self, groups: Sequence[Group], until: float) -> Group | None:
        """Return the group whose turn it is, of those that have turns left and fit into the time."""
        left = self._budget_left() - until
        fitting = [one for one in groups if one.num_turns < one.most_turns and self._needed(one) <= left]
        # First turns are short ones first, so that as few groups as may be are left without any.
        return min(fitting, key=lambda one: (one.coverage, one.turn_s), default=None)

    def _needed(self, group: Group) -> float:
        """Return the seconds that a turn has to be given: what the last one took, and where there was none,
        what is forecast, by as much longer as first turns took than theirs."""
        stretch = 1.0 if group.num_turns else max(1.0, statistics.median(self._stretches or [1.0]))
        return MARGIN * stretch * group.turn_s

    def _trim(self, groups: Sequence[Group], left: float) -> None:
        """Leave the least important settings out, of the longest turns first, until every group is likely to
        have a turn; plain decoding and one setting stay."""
        waiting = [one for one in groups if not one.num_turns]
        while sum(one.turn_s for one in waiting) > FIRST_TURNS_SHARE * left:
            longer = [one for one in waiting if len(one.settings) > LEAST_SETTINGS]
            if not longer:
                return
            group = max(longer, key=lambda one: one.turn_s)
            group.turn_s *= 1 - 1 / len(group.settings)
            group.settings.pop()

    def _warm_up(self, groups: Sequence[Group]) -> None:
        """Draft once with each drafter, for the shortest prompt."""
        settings = [setting for group in groups for setting in group.settings]
        modes = {setting.drafter: setting.mode for setting in settings}
        requests = [answer.request for group in groups for answer in group.answers]
        shortest = min(requests, key=lambda one: len(one.prompt_token_ids))
        self._bench.warm_up(shortest, list(modes.values()))

    def _turn(self, group: Group) -> None:
        batch = group.batch()
        in_batch = {answer.request.id for answer in batch}
        others = [answer for answer in group.answers if answer.request.id not in in_batch]
        modes = {setting.mode: setting for setting in group.settings}
        group.num_turns += 1
        records = []
        for mode in in_turns(list(modes), group.num_turns, group.concurrency):
            run = self._bench.time([one.request for one in batch], group.concurrency, mode, others)
            records.append(_record(group, modes[mode].label, batch, run))
        # All or none of a turn, since its runs are compared with each other.
        for record in records:
            self._journal.add("run", record)
        seconds = sum(record["wall_s"] for record in records)
        if group.num_turns == 1:
            self._stretches.append(seconds / group.turn_s)
        group.turn_s = seconds


def chosen_settings(
    forecasts: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, int, str | None], tuple[list[Setting], list[float]]]:
    """Return what is timed, by route, load and draft model: settings, and tokens/s to reckon turns with.

    Of several draft models those are timed whose best forecast there comes near the best of all.
    """
    best: dict[tuple[str, int], float] = {}
    for record in forecasts:
        for load in record["loads"]:
            key = (record["route"], load["concurrency"])
            best[key] = max(best.get(key, 0.0), load["forecasts"][0]["speedup"])
    found = {}
    for record in forecasts:
        for load in record["loads"]:
            speeds = {one["setting"]: one["tokens_per_second"] for one in load["forecasts"]}
            first = load["forecasts"][0]
            if first["speedup"] < CLOSE * best[record["route"], load["concurrency"]]:
                continue
            labels = record["chosen"][str(load["concurrency"])]
            plain = first["tokens_per_second"] / first["speedup"]
            settings = [Setting.parse(label) for label in labels]
            expected = [speeds.get(label, max(plain, first["tokens_per_second"])) for label in labels]
            found[record["route"], load["concurrency"], record["draft"]] = (settings, [plain, *expected])
    return found


def _record(group: Group, label: str, batch: Sequence[Answer], run: TimedRun) -> dict[str, Any]:
    plain = {answer.request.id: answer.token_ids for answer in batch}
    results, counts = list(run.results.values()), run.counts
    return {
        "route": group.route,
        "concurrency": group.concurrency,
        "draft": group.draft,
        "turn": group.num_turns,
        "setting": label,
        "num_outputs": len(results),
        "num_identical": sum(one.token_ids == plain[one.id] for one in results),
        "num_tokens": sum(one.usage.completion_tokens for one in results),
        "wall_s": counts.wall_s,
        "ttft_s": [round(one, 5) for one in counts.ttft_s],
        "itl_s": [round(one, 5) for one in counts.token_gaps_s],
        "num_drafted": sum(one.speculation.num_drafted for one in results),
        "num_accepted": sum(one.speculation.num_accepted for one in results),
        "num_decode_steps": sum(one.speculation.num_steps for one in results),
        "target_rows": run.target_rows,
        "draft_rows": run.draft_rows,
        "num_steps": counts.steps.num_steps,
        "step_s": counts.steps.step_s,
        "draft_s": counts.steps.draft_s,
        "verify_s": counts.steps.verify_s,
    }
