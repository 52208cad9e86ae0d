"""MQTT through a real mosquitto: messages a second with disk and receipts, and a broker that dies.

The broker is one of its own with its default settings, so it keeps nothing on disk. The peer in the
same run is plain paho-mqtt at QoS 1, whose last word is on_publish.
"""

import logging
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from bench import mqtt_kills, mqtt_outbox, mqtt_plain
from bench.mosquitto import mosquitto_in
from bench.mqtt_kills import Outcome, Plan
from bench.mqtt_outbox import BODY, WINDOW, Sent
from bench.result import Figure, Result, mean_figure

RUNS, RUNS_QUICK = 8, 2
MESSAGES, MESSAGES_QUICK = 10_000, 3_000
SEEDS, SEEDS_QUICK = 8, 1
PLAN = Plan(objects=500, rate=25.0, up_s=(2.0, 4.0), down_s=(0.0, 0.5))
PLAN_QUICK = Plan(objects=200, rate=25.0, up_s=(2.0, 4.0), down_s=(0.0, 0.5))


def measure(*, quick: bool) -> Result:
    """Both claims, and paho beside them."""
    logging.getLogger("transports").setLevel(logging.ERROR)  # Kills are no news here.
    runs, messages = (RUNS_QUICK, MESSAGES_QUICK) if quick else (RUNS, MESSAGES)
    plan, seeds = (PLAN_QUICK, SEEDS_QUICK) if quick else (PLAN, SEEDS)
    with tempfile.TemporaryDirectory() as name:
        folders = (Path(name, str(number)) for number in count())
        sent, plain = _throughput(next(folders), runs, messages)
        outcomes = []
        for seed in range(seeds):
            folder = next(folders)
            folder.mkdir()
            outcomes.append(mqtt_kills.run(folder, plan, seed))
    rates = [messages / run.seconds for run in sent]
    packets = plan.objects * seeds
    figures = {
        "messages_per_s": mean_figure(rates, ">=1500"),
        "messages_right": Figure(sum(run.is_right for run in sent) / runs, ">=1"),
        "messages_per_commit_sender": mean_figure([messages / run.commits for run in sent]),
        "messages_per_commit_receiver": mean_figure(
            [messages / run.receiver_commits for run in sent]
        ),
        "kills_packets": Figure(packets, None if quick else ">=500"),
        "kills_packets_lost": Figure(sum(outcome.lost for outcome in outcomes), "<=0"),
        "kills_packets_twice": Figure(sum(outcome.twice for outcome in outcomes), "<=0"),
        "kills_packets_not_forgotten": Figure(sum(o.not_forgotten for o in outcomes), "<=0"),
        "kills": Figure(sum(outcome.kills for outcome in outcomes)),
    }
    peers = {
        "paho_messages_per_s": sum(messages / seconds for seconds, _ in plain) / runs,
        "paho_messages_lost_share": 1 - sum(arrived for _, arrived in plain) / messages / runs,
        "paho_kills_lost_share": sum(outcome.paho_lost for outcome in outcomes) / packets,
        "paho_kills_twice_share": sum(outcome.paho_twice for outcome in outcomes) / packets,
    }
    details = _details(sent, outcomes)
    return Result("mqtt", figures, peers, _notes(plan, messages), details, quick=quick)


def _throughput(
    folder: Path, runs: int, messages: int
) -> tuple[list[Sent], list[tuple[float, int]]]:
    """Ours and paho by turns, through one broker."""
    folder.mkdir()
    sent, plain = [], []
    with mosquitto_in(folder) as broker:
        for number in range(runs):
            files = folder / str(number)
            files.mkdir()
            sent.append(mqtt_outbox.run(broker.url, files, messages, number))
            payloads = list(mqtt_outbox.messages(messages, number))
            published = mqtt_plain.run(broker.port, payloads, f"plain-{number}")
            plain.append((published.seconds, published.arrived))
    return sent, plain


def _notes(plan: Plan, messages: int) -> tuple[str, ...]:
    return (
        f"{messages:,} messages of {BODY} bytes a run, each a PUBLISH of its own at QoS 1, between "
        "two processes, through a mosquitto with its defaults on this machine; time ends when the "
        f"sender has the receipt of every message on disk; at most {WINDOW} are without one",
        "SQLite, synchronous=FULL, at both ends; what happens while a commit lasts shares the next "
        "one, and the receipts of a commit share a message",
        "paho: all messages handed over at once, no disk, time ends with the last on_publish (the "
        "broker has it); lost: what its subscriber did not get",
        f"kills: SIGKILL after {plan.up_s[0]:g} to {plan.up_s[1]:g} s of life, until all is "
        f"delivered; {plan.objects} objects of 1.1 to 1.3 kB a seed, {plan.rate:g} a second, over "
        "the reliable link in frames of 184 bytes, with its file at both ends; paho publishes the "
        "same objects at the same pace, to a subscriber with a session, over the same broker",
    )


def _details(sent: Sequence[Sent], outcomes: Sequence[Outcome]) -> dict[str, object]:
    return {
        "sent_again": [run.again for run in sent],
        "kills": [outcome.kills for outcome in outcomes],
        "kills_seconds": [round(outcome.seconds, 1) for outcome in outcomes],
        "kills_messages_gone": [outcome.gone for outcome in outcomes],
        "kills_reconnects": [outcome.reconnects for outcome in outcomes],
        "paho_kills_lost": [outcome.paho_lost for outcome in outcomes],
    }
