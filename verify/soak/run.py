"""One soak from beginning to end: right answers, traffic, what is left behind, and a report of it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.engine.engine import Engine
from paceline.llm import LLM
from verify.soak.answers import RightAnswer, faults_of_sampled, right_answers
from verify.soak.load import Traffic, make_plan
from verify.soak.templates import KINDS, Sizes, Template, make_templates

MOST_GROWTH = 0.02
"""Of resident memory, from the end of the warm-up to the end."""
WARM_UP_SHARE = 0.25
REFUSED = ("bad form", "empty prompt", "long prompt", "cannot go on")


@dataclass(frozen=True, slots=True)
class Profile:
    """Models, and traffic that is a load for them."""

    target: str
    draft: str
    num_requests: int
    num_templates: int
    sizes: Sizes
    kv_memory: str
    """So little that requests are preempted."""
    max_num_seqs: int = 8
    concurrency: int = 12


ITSELF = Profile(
    target="smollm2-135m-instruct",
    draft="smollm2-135m-instruct",
    num_requests=2000,
    num_templates=126,
    sizes=Sizes(context_length=192, max_prompt=60, max_output=80),
    kv_memory="6MB",
)
PAIR = Profile(
    target="qwen2.5-coder-1.5b-instruct",
    draft="qwen2.5-coder-0.5b-instruct",
    num_requests=100,
    num_templates=42,
    sizes=Sizes(context_length=128, max_prompt=64, max_output=16),
    kv_memory="11MB",
)


@dataclass(frozen=True, slots=True)
class Resident:
    """This process's resident memory."""

    own: int
    """Bytes of its own: RssAnon and RssShmem of /proc/self/status."""
    files: int
    """Bytes of mapped files (RssFile): mostly the models', which count from the first time that they are read
    and which the system can drop whenever it likes."""

    @classmethod
    def now(cls) -> Resident:
        """Measure, once garbage is collected."""
        gc.collect()
        lines = Path("/proc/self/status").read_text().splitlines()
        sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.startswith("Rss")}
        return cls(sizes["RssAnon"] + sizes["RssShmem"], sizes["RssFile"])


@dataclass(slots=True)
class Report:
    """What a soak came to."""

    profile: Profile
    first: int
    num_requests: int
    num_aborted: int
    num_ended: Counter[str]
    num_right: Counter[str]
    num_sampled: int
    """Answers under rejection verification, which were looked into one by one."""
    num_preemptions: int
    num_prefix_hits: int
    num_prefix_queries: int
    num_drafted: int
    num_accepted: int
    num_blocks: int
    warm: Resident
    end: Resident
    faults: list[str]

    @property
    def growth(self) -> float:
        """Of the process's own memory since the warm-up."""
        return self.end.own / self.warm.own - 1

    def lines(self) -> list[str]:
        """Return it as text."""
        rows = [f"{kind:20}{self.num_ended[kind]:8}{self.num_right[kind]:8}" for kind in KINDS]
        total = sum(self.num_ended.values())
        return [
            f"target {self.profile.target}, draft {self.profile.draft}, "
            f"requests {self.first} to {self.first + self.num_requests - 1}",
            f"{'kind':20}{'ended':>8}{'right':>8}",
            *rows,
            f"{'all':20}{total:8}{sum(self.num_right.values()):8}",
            f"aborted: {self.num_aborted} of {self.num_requests}",
            f"looked into token by token, under rejection verification: {self.num_sampled} answers",
            f"preemptions: {self.num_preemptions}; prefix hits: {self.num_prefix_hits} of "
            f"{self.num_prefix_queries} tokens; drafted {self.num_drafted}, accepted {self.num_accepted}",
            f"KV blocks: {self.num_blocks}, none of them in use at the end"
            if not self.faults
            else f"KV blocks: {self.num_blocks}",
            f"resident memory: {self.warm.own / 2**20:.1f} MiB after the warm-up, "
            f"{self.end.own / 2**20:.1f} MiB at the end ({self.growth:+.2%}); "
            f"pages of model files {self.warm.files / 2**20:.1f} and {self.end.files / 2**20:.1f} MiB",
        ]


def soak(
    profile: Profile,
    *,
    first: int = 0,
    seed: int = 1,
    say: Callable[[str], None] = lambda _: None,
    spoil: Callable[[dict[int, RightAnswer]], None] = lambda _: None,
) -> Report:
    """Run `profile.num_requests` requests from number `first` on.

    Args:
        profile: what to run.
        first: so that a long soak can be run in pieces.
        seed: the same one makes the same requests.
        say: is told what goes on.
        spoil: may change what counts as right, to prove that a wrong answer is found.
    """
    sizes = profile.sizes
    say("computing right answers")
    with LLM(profile.target, context_length=sizes.context_length, max_num_seqs=1) as plain:
        templates = make_templates(plain, profile.num_templates, sizes, seed)
        right = right_answers(plain, templates)
        spoil(right)
    with LLM(
        profile.target,
        profile.draft,
        context_length=sizes.context_length,
        kv_memory=profile.kv_memory,
        max_num_seqs=profile.max_num_seqs,
        max_num_batched_tokens=96,
        prefill_chunk=48,
        max_overtaking_s=0.0,  # a wait in seconds would make two runs differ
        answer_store_tokens=1024,  # full early, so that memory may be compared
    ) as llm:
        report, traffic = _run(llm, profile, templates, right, first, seed, say)
    say(f"looking into {len(traffic.sampled)} sampled answers")
    with LLM(profile.target, context_length=2 * sizes.context_length, max_num_seqs=1) as plain:
        for answer in traffic.sampled:
            report.faults += [f"{answer.result.id}: {fault}" for fault in faults_of_sampled(plain, answer)]
    return report


def _run(
    llm: LLM,
    profile: Profile,
    templates: Sequence[Template],
    right: dict[int, RightAnswer],
    first: int,
    seed: int,
    say: Callable[[str], None],
) -> tuple[Report, Traffic]:
    engine = llm.loaded.engine
    drafters = list(engine.drafters)
    plans = [
        make_plan(number, templates, drafters, seed) for number in range(first, first + profile.num_requests)
    ]
    third, warm = len(plans) // 3, int(WARM_UP_SHARE * len(plans))
    traffic = Traffic(engine, right, profile.concurrency)
    say(f"warming up with {warm} requests")
    traffic.run(plans[:warm])
    resident = Resident.now()
    say(f"running {len(plans) - warm} requests")
    traffic.run(plans[warm:third])
    # A third of the way the draft model goes, and comes back while requests run that would like to have it.
    engine.unload_drafter("model")
    traffic.run(plans[third : third + third // 4])
    engine.load_drafter("model")
    traffic.run(plans[third + third // 4 :])
    end, kv = Resident.now(), engine.kv_stats()
    faults = [*traffic.faults, *traffic.counts.faults, *_left_behind(engine)]
    report = Report(
        profile,
        first,
        traffic.num_requests,
        traffic.num_aborted,
        traffic.num_ended,
        traffic.num_right,
        len(traffic.sampled),
        engine.num_preemptions,
        kv.num_prefix_hits,
        kv.num_prefix_queries,
        traffic.counts.num_drafted,
        traffic.counts.num_accepted,
        kv.num_blocks,
        resident,
        end,
        faults,
    )
    return report, traffic


def _left_behind(engine: Engine) -> list[str]:
    """Return what an engine without requests still holds."""
    engine.clear_prefix_cache()
    kv = engine.kv_stats()
    found = {
        "requests that run": engine.num_running,
        "requests that wait": engine.num_waiting,
        "blocks in use": kv.num_used,
        "blocks held by drafts": kv.num_held_by_drafts,
        "blocks cached after all was forgotten": kv.num_cached,
        "blocks that are not free": kv.num_blocks - engine.pool.num_free,
    }
    return [f"left behind: {count} {what}" for what, count in found.items() if count]


def shortcomings(report: Report) -> list[str]:
    """Return what the soak did not do, so that it proved less than it should, and memory that grew."""
    wanted = {
        "no request was preempted: lower kv_memory": report.num_preemptions,
        "no prefix was found again": report.num_prefix_hits,
        "no draft stood": report.num_accepted,
        "no draft fell": report.num_drafted - report.num_accepted,
        "nobody left": report.num_aborted,
    }
    missing = [what for what, count in wanted.items() if not count]
    if report.growth > MOST_GROWTH:
        missing.append(f"resident memory grew by {report.growth:.2%}, more than {MOST_GROWTH:.0%}")
    return missing


def with_requests(profile: Profile, num_requests: int | None) -> Profile:
    """Return a profile with another number of requests."""
    return profile if num_requests is None else replace(profile, num_requests=num_requests)
