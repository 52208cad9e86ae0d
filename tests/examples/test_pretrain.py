import torch

from examples.voice.keyword import SPEAKERS, load_clips
from examples.voice.pretrain_keyword import augment, pretrain
from models.zoo import fsdd_path


def test_only_the_three_training_speakers_are_loaded() -> None:
    clips, digits = load_clips(fsdd_path("train"), SPEAKERS)
    one, _ = load_clips(fsdd_path("train"), SPEAKERS[:1])
    assert clips.shape == (1200, 50, 32)
    assert one.shape == (400, 50, 32)
    assert digits.bincount().tolist() == [120] * 10
    assert clips.min() >= 0
    assert clips.max() <= 1


def test_augmentation_keeps_shape_and_range_and_follows_its_seed() -> None:
    clips, _ = load_clips(fsdd_path("train"), ("lucas",))
    first, same, other = (augment(clips, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert first.shape == clips.shape
    assert first.min() >= 0
    assert first.max() <= 1
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.corrcoef(torch.stack((first.flatten(), clips.flatten())))[0, 1] > 0.5


def test_training_is_repeatable_and_reports_each_step() -> None:
    clips, digits = load_clips(fsdd_path("train"), ("lucas",))
    steps: list[int] = []
    losses: list[float] = []

    def report(step: int, loss: float) -> None:
        steps.append(step)
        losses.append(loss)

    first = pretrain(clips, digits, steps=40, report=report)
    second = pretrain(clips, digits, steps=40)
    assert steps == list(range(1, 41))
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name
