from bench import mqtt


def test_each_message_is_on_disk_once_and_every_receipt_has_come(mosquitto, tmp_path) -> None:
    _, is_right = mqtt.send_messages(mosquitto.url, tmp_path, 600, 1)
    assert is_right


def test_nothing_is_lost_or_doubled_while_the_broker_is_killed(
    mosquitto, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(mqtt, "UP_S", (1.5, 2.0))
    outcome = mqtt.survive_kills(tmp_path, 60, 1)
    assert (outcome["lost"], outcome["twice"], outcome["not_forgotten"]) == (0, 0, 0)
    assert outcome["kills"] > 0
