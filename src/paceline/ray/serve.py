"""Runs replicas on Ray Serve until a signal comes."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from ray import serve

from paceline.administration.address import free_port
from paceline.config.memory import available_memory
from paceline.config.server import ServeSettings
from paceline.errors import ConfigError, ServingError
from paceline.models.download import resolve
from paceline.ray.cluster import Cluster, connected
from paceline.ray.front import Front
from paceline.ray.placement import Share, share_of
from paceline.ray.ray_hub import end_replicas, start_hub, stop_hub
from paceline.ray.replica import Replica
from paceline.ray.settings import with_share

APP, REPLICAS, FRONT, HUB = "paceline", "Replica", "Front", "paceline-hub"
LOGGING = {"log_level": "WARNING", "enable_access_log": False}
SIGNALS = (signal.SIGTERM, signal.SIGINT)
KV_SHARE = 0.25
"""Share of the memory beside the weights that the KV caches of all replicas of a machine take."""
MANY = 200
"""Requests beyond those that a replica answers and queues that reach it, so that it is the replica who
refuses them, in OpenAI's form; and those that administrate."""
MOST_STARTS = 2
"""Tries of a replica to load, before starting counts as failed."""
HEALTH_EVERY_S, HEALTH_WITHIN_S = 2.0, 60.0
FRONT_LATER_S = 10.0
"""What the front has beyond the replicas' time, to say what became of their requests."""
SENT_AFTER_S = 0.5
"""By then the proxy has sent what the front gave it last."""

Say = Callable[[str], None]


def run(settings: ServeSettings, num_replicas: int, address: str | None, say: Say) -> None:
    """Serve until SIGTERM or SIGINT; then let answers end, as far as there is time, and take all of it down.

    Args:
        settings: as they were read.
        num_replicas: how many engines.
        address: of a Ray cluster; none starts one here.
        say: told what a person should know.

    Raises:
        PacelineError: it cannot be started; what was is taken down again.
    """
    engine = settings.engine
    sizes = sum(_size(name) for name in {engine.target, *engine.draft_models.values()})
    port = _port(settings, is_here=address is None)
    with connected(address) as cluster:
        share = share_of(cluster.node_cpus, num_replicas, engine.threads)
        kv_memory = _kv_memory(sizes, num_replicas) if cluster.is_ours else None
        with _stopping() as stop, _deployed(settings, num_replicas, share, kv_memory, cluster, port, stop):
            say(
                f"serving {settings.model_name} at {_url(settings.server.host, port)} "
                f"({num_replicas} replicas of {share.threads} threads)"
                + ("" if cluster.is_ours else f", on the head node {cluster.head_ip}")
            )
            stop.wait()
            say("stopping: answers that run are finished first")
            say(_end(settings.server.shutdown_timeout_s))


@contextlib.contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Give an event that a signal sets; a second signal interrupts."""
    stop = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _deployed(
    settings: ServeSettings,
    num_replicas: int,
    share: Share,
    kv_memory: int | None,
    cluster: Cluster,
    port: int,
    stop: threading.Event,
) -> Iterator[None]:
    if not cluster.is_ours and serve.status().proxies:
        raise ConfigError(
            given="a cluster on which Ray Serve runs already, with an address of its own",
            expected="one where it can be started with this configuration's",
            remedy="Stop it with serve shutdown, or take another cluster",
        )
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    # The hub has what the file says, since it tells what of it changed.
    start_hub(HUB, settings, num_replicas)
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": settings.server.host, "port": port},
            logging_config=LOGGING,
        )
        _deploy(with_share(settings, share.threads, kv_memory), num_replicas, share)
        _wait_until_it_runs(stop)
        yield
    finally:
        if not cluster.is_ours:  # one of our own ends as a whole
            serve.shutdown()
            stop_hub(HUB)


def _deploy(settings: ServeSettings, num_replicas: int, share: Share) -> None:
    server, engine = settings.server, settings.engine
    at_once = engine.max_num_seqs + server.max_queued + MANY
    replicas = serve.deployment(Replica).options(
        name=REPLICAS,
        num_replicas=num_replicas,
        ray_actor_options={
            "num_cpus": share.num_cpus,
            "num_gpus": 1 if engine.device == "cuda" else 0,
        },
        max_ongoing_requests=at_once,
        health_check_period_s=HEALTH_EVERY_S,
        health_check_timeout_s=HEALTH_WITHIN_S,
        graceful_shutdown_timeout_s=server.shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.5,
        max_constructor_retry_count=MOST_STARTS,
    )
    front = serve.deployment(Front).options(
        name=FRONT,
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=at_once * num_replicas,
        health_check_period_s=HEALTH_EVERY_S,
        health_check_timeout_s=HEALTH_WITHIN_S,
        graceful_shutdown_timeout_s=server.shutdown_timeout_s + FRONT_LATER_S,
        graceful_shutdown_wait_loop_s=0.5,
    )
    app = front.bind(replicas.bind(settings, HUB, num_replicas), server)
    serve.run_many(
        [serve.RunTarget(app, name=APP, route_prefix="/", logging_config=LOGGING)],
        wait_for_applications_running=False,
    )


def _wait_until_it_runs(stop: threading.Event) -> None:
    while not stop.wait(0.5):
        app = serve.status().applications[APP]
        if app.status == "RUNNING":
            return
        if app.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            raise ServingError(
                given="replicas that do not start: "
                + _reason(app.deployments[REPLICAS].message or app.message),
                expected="replicas that load their models",
                remedy="Put right what it says, and start again",
            )
    raise KeyboardInterrupt


def _end(within_s: float) -> str:
    """Let all requests end; returns what became of them, in words."""
    num_finished, num_ended = end_replicas(HUB, within_s)
    serve.get_app_handle(APP).idle.remote(FRONT_LATER_S).result()
    time.sleep(SENT_AFTER_S)
    return f"stopped: {num_finished} answers finished, {num_ended} ended unfinished"


def _reason(message: str) -> str:
    """Return the last line of a traceback that says something of ours, or the last of all."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("paceline.errors.")]
    return (ours or lines or ["nothing is known"])[-1].removeprefix("paceline.errors.")


def _size(name: str) -> int:
    path = resolve(name)
    files = path.rglob("*.safetensors") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files)


def _kv_memory(weights: int, num_replicas: int) -> int | None:
    """Return the KV memory of each of the replicas of this machine; none where there is hardly any."""
    rest = available_memory() / num_replicas - weights
    return int(KV_SHARE * rest) if rest > 0 else None


def _port(settings: ServeSettings, *, is_here: bool) -> int:
    """Return the port to listen on, and refuse one that is taken while that can still be said clearly."""
    host, port = settings.server.host, settings.server.port
    if not is_here:
        if port == 0:
            raise ConfigError(
                given="port 0 on a cluster", expected="a port that is free on its head node",
                remedy="Name one with --port",
            )  # fmt: skip
        return port
    return free_port(host, port)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
