"""What a broker keeps for those who are away, or refuses to take."""

import pytest
from paho.mqtt import publish

from transports.base import HOST

WAIT_S = 20.0


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
@pytest.mark.parametrize("expiry_s", [3600, 0])
def test_what_is_sent_while_a_node_is_briefly_away_waits_where_there_is_a_session(
    mosquitto, new_end, eventually, protocol, expiry_s
) -> None:  # R7.2-7
    host = new_end(mosquitto.url, HOST, protocol=protocol)
    ada = new_end(mosquitto.url, "ada", protocol=protocol, session_expiry_s=expiry_s)
    eventually(lambda: host.connected and ada.connected)
    ada.close()
    if not expiry_s:
        # Once it has taken a message from the same name, the broker has noticed the goodbye.
        publish.single("gone", qos=1, port=mosquitto.port, client_id="ternmesh-barn-ada")
    host.send("ada", [b"while away".ljust(15)])
    eventually(lambda: host.status().numbers["acked"] == 1)  # so nobody may rely on that
    assert host.status().numbers["unheard"] == (protocol == "5" and not expiry_s)
    ada = new_end(mosquitto.url, "ada", protocol=protocol, session_expiry_s=expiry_s)
    eventually(lambda: ada.connected)
    host.send("ada", [b"now".ljust(15)])
    waited = [b"while away".ljust(15)] if expiry_s else []
    for frame in (*waited, b"now".ljust(15)):
        assert ada.receive(WAIT_S).frames == (frame,)


def test_messages_that_the_broker_does_not_let_us_send_are_counted_and_told(
    new_mosquitto, new_end, eventually, tmp_path, caplog
) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic read #\n")
    broker = new_mosquitto(f"acl_file {rules}")
    ada = new_end(broker.url, "ada")
    eventually(lambda: ada.connected)
    for i in range(3):
        ada.send(HOST, [bytes([i])])
    eventually(lambda: ada.status().numbers["rejected"] == 3)
    assert (ada.status().numbers["acked"], ada.status().numbers["in_flight"]) == (0, 0)
    assert caplog.text.count("refuses our messages: Not authorized") == 1
