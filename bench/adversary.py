"""A whole fleet against enemies, over a real mosquitto: what they say is refused and told.

A host and three nodes are real processes with keys. Enemies hear all, say all, stand in between,
have stolen keys and copied disks. The yardstick is a run in peace: rounds are deterministic, so the
fleet must have learned the same to the last bit.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import adversary_scenes as scenes
from bench.adversary_air import air
from bench.adversary_attacks import Attack, refusals
from bench.adversary_scenes import BY_BROKER, Scene, Stage, copies_told
from bench.result import Figure, Result
from ternmesh_cli.mosquitto import find_mosquitto

ROUNDS, ROUNDS_QUICK = 12, 4
MESSAGES, MESSAGES_QUICK = 400, 20  # of those heard, in each attack
NOISE = 0.05  # accuracy, of 96 clips
RADIO_ROUNDS = 6
SAME = (scenes.wiretap, scenes.middle, scenes.access)
Pair = tuple[Scene, Scene]  # a run with enemies, and the one in peace to hold it against


def measure(*, quick: bool) -> Result:
    """The run in peace, then each scene."""
    program = find_mosquitto()
    if program is None:
        raise SystemExit("mosquitto is not installed: apt install mosquitto")
    rounds, messages = (ROUNDS_QUICK, MESSAGES_QUICK) if quick else (ROUNDS, MESSAGES)
    with tempfile.TemporaryDirectory() as place:
        stage = Stage(Path(place), program, rounds, messages)
        peace = scenes.peace(stage)
        same = [(_played(scene(stage)), peace) for scene in SAME]
        other = []
        if not quick:
            radio = replace(stage, rounds=RADIO_ROUNDS)
            same.append((_played(air(radio)), air(radio, is_peace=True)))
            other = [(_played(scenes.copies(stage)), peace)]
        control = scenes.without_keys(stage)
    return result(same, other, control, quick=quick)


def result(same: Sequence[Pair], other: Sequence[Pair], control: Attack, *, quick: bool) -> Result:
    """The figures. `same`: scenes after which the fleet must have learned what it had in peace."""
    played = [scene for scene, _ in (*same, *other)]
    made = [attack for scene in played for attack in scene.attacks]
    told = [is_told(attack, scene) for scene in played for attack in scene.attacks]
    shown = [
        is_seen for attack, is_seen in zip(made, told, strict=True) if attack.name != BY_BROKER
    ]
    figures = {
        "attacks": Figure(len(made)),
        "frames_heard": Figure(sum(attack.heard for attack in made)),
        "frames_refused": Figure(sum(attack.refused for attack in made)),
        "frames_accepted": Figure(sum(attack.accepted for attack in made), "<=0"),
        "honest_rounds_lost": Figure(sum(scene.lost for scene in played), "<=0"),
        "attacks_visible": Figure(sum(shown) / len(shown), ">=1"),
        "adapter_unchanged": Figure(
            sum(scene.adapter == peace.adapter for scene, peace in same) / len(same), ">=1"
        ),
    }
    figures["control_frames_accepted"] = Figure(control.accepted, ">=1")
    if other:
        change = max(peace.accuracy - scene.accuracy for scene, peace in other)
        figures["accuracy_lost_to_copies"] = Figure(change, f"<={NOISE}")
    notes = (
        "a host and three node processes with keys on a real mosquitto, on one machine; frames "
        "heard: frames of an attack times the ends that were sent them; a frame counts as accepted "
        "where the end that heard it has not counted a refusal for it",
        "messages are said while a round is held open by a board that is stopped, so that the "
        "fleet is at rest and each frame is accounted for; the man in the middle (a TCP proxy "
        "before each board) works all the time: bends bits, swallows, swaps, repeats, misdirects",
        "visible: by its reason, or as a clone, in `ternmesh status --json`; what the broker's own "
        "access rules refuse never reaches a fleet and is told to the one who tried alone",
        "adapter_unchanged: what the fleet learned has the same SHA-256 as in the run in peace; "
        "not after copies: a copied disk is a member's key in two hands, which is seen and told, "
        "and an old copy takes a board's residual back",
        "control: forged frames that a fleet without keys does not refuse",
        "of the man in the middle, frames bent, repeated and misdirected are compared with what "
        "all ends have refused together; likewise on the air, where whole runs go over emulated "
        "radios (no hardware) whose modems hear frames bent, once more and forged: symbols, repair "
        "symbols, status and all else, in both layers of seals",
    )
    details = {
        attack.name: {
            "heard": attack.heard,
            "refused": attack.refused,
            "accepted": attack.accepted,
            "reasons": dict(attack.reasons),
            "note": attack.note,
        }
        for attack in made
    }
    details["scenes"] = {
        "seconds": [round(scene.seconds) for scene in played],
        "accuracy": [scene.accuracy for scene in played],
        "accuracy_in_peace": [peace.accuracy for _, peace in (*same, *other)],
    }
    return Result("adversary", figures, notes=notes, details=details, quick=quick)


def is_told(attack: Attack, scene: Scene) -> bool:
    """Whether `ternmesh status --json` showed an attack by its reasons, or as a clone."""
    if "clones" in attack.reasons:
        return any(copies_told(status) for status in scene.seen.values())
    shown = sum(map(refusals, scene.seen.values()), Counter[str]())
    return bool(attack.reasons) and all(
        shown[reason] >= count for reason, count in attack.reasons.items()
    )


def _played(scene: Scene) -> Scene:
    for attack in scene.attacks:
        reasons = ", ".join(f"{reason} {count}" for reason, count in attack.reasons.items())
        print(
            f"{attack.name:36} {attack.heard:5} heard {attack.refused:5} refused "
            f"{attack.accepted:3} accepted  {reasons}"
        )
        if attack.note:
            print(f"{'':36} {attack.note}")
    print(f"{'':36} rounds lost: {scene.lost}, {scene.seconds:.0f} s", flush=True)
    return scene
