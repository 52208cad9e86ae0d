#include "relay.h"

#include <string.h>

/* Commands of RNode firmware; it repeats those of the radio, 1 to 6, as it has set them. */
enum { RNODE_DATA = 0x00, RNODE_READY = 0x0F, RNODE_RESET = 0x55, RNODE_ERROR = 0x90 };
enum { READY = 6, ANSWER_MS = 2000, ASKED_MAX = 3, HOST = 0, ALL = 255 };

static void command(uint8_t number, uint32_t value, size_t size) {
    uint8_t data[4], out[2 * sizeof data + 4];
    for (size_t i = 0; i < size; i++) {
        data[i] = (uint8_t)(value >> 8 * (size - 1 - i));
    }
    relay_modem_write(out, tm_kiss_frame(number, data, size, out));
}

/* Send the next setting; the last turns the radio on. The modem forgets all with its power. */
static void set_up(relay *own, uint32_t now) {
    const relay_settings *s = &own->settings;
    const uint32_t values[READY] = {s->frequency_hz, s->bandwidth_khz * 1000u, s->power_dbm,
                                    s->spreading_factor, s->coding_rate + 4u, 1};
    command((uint8_t)(own->set_up + 1), values[own->set_up], own->set_up < 2 ? 4 : 1);
    own->answer_due_ms = now + ANSWER_MS;
}

void relay_init(relay *own, const relay_settings *settings, uint32_t identity, uint16_t session) {
    memset(own, 0, sizeof *own);
    own->settings = *settings;
    tm_unframer_init(&own->kiss, own->kiss_buffer, sizeof own->kiss_buffer);
    tm_ble_init(&own->ble, true, identity, session, own->ring, RELAY_RING, own->slots, RELAY_WINDOW,
                RELAY_VALUE_MAX);
}

void relay_ble_connected(relay *own, uint32_t now) {
    tm_ble_connected(&own->ble, now);
}

void relay_ble_disconnected(relay *own) {
    tm_ble_disconnected(&own->ble);
}

/* Queue a frame of the bridge for the board. */
static void send_down(relay *own, size_t size) {
    tm_header header;
    if (size > RELAY_FRAME_MAX || tm_header_read(&header, own->frame, size) != TM_OK ||
        own->count == RELAY_QUEUE) {
        own->dropped++;
        return;
    }
    unsigned place = (own->first + (unsigned)own->count++) % RELAY_QUEUE;
    uint8_t *payload = own->queue[place];
    payload[0] = header.address == TM_BROADCAST ? ALL : own->settings.address;
    payload[1] = HOST;
    memcpy(payload + 2, own->frame, size);
    own->sizes[place] = (uint8_t)size;
}

void relay_ble_value(relay *own, const uint8_t *value, size_t size, uint32_t now) {
    tm_ble_value(&own->ble, value, size, now);
}

static void receive(relay *own, const uint8_t *payload, size_t size) {
    tm_header header;
    if (size < 3 || payload[0] != HOST || payload[1] != own->settings.address ||
        tm_header_read(&header, payload + 2, size - 2) != TM_OK) {
        return; /* of somebody else, or damaged: the seal tells the host */
    }
    if (tm_ble_offer(&own->ble, payload + 2, size - 2)) {
        own->up++;
    } else {
        own->dropped++;
    }
}

void relay_modem_byte(relay *own, uint8_t byte, uint32_t now) {
    size_t size = 0;
    if (!tm_kiss_feed(&own->kiss, byte, &size) || size < 2) {
        return;
    }
    const uint8_t *data = own->kiss_buffer + 1;
    uint8_t number = own->kiss_buffer[0];
    bool has_left = (int32_t)(now - own->left_ms) >= 0;
    if (number == RNODE_DATA) {
        receive(own, data, size - 1);
    } else if (number == own->set_up + 1 && (number < READY || (number == READY && data[0] == 1))) {
        own->set_up = number; /* a state of 0: its radio stays off */
        own->answer_due_ms = now;
    } else if (number == RNODE_READY && data[0] == 1 && own->is_sending && has_left) {
        own->is_sending = false;
        own->down++;
    } else if (number == RNODE_ERROR && own->is_sending) {
        own->is_sending = false; /* it has not left; the link repeats what counts */
        own->dropped++;
    } else if (number == RNODE_RESET && own->set_up == READY) {
        own->dropped += own->is_sending;
        own->is_sending = false;
        own->set_up = 0;
        own->answer_due_ms = now;
    }
}

/* The firmware's preamble lasts 18 symbols and 24 ms at least, and a byte of its own is in front. */
static uint32_t air_ms(const relay_settings *s, size_t size) {
    uint32_t symbol_us = (1000u << s->spreading_factor) / s->bandwidth_khz;
    uint32_t symbols = 24000 / symbol_us + 1;
    uint16_t preamble = (uint16_t)(symbols < 18 ? 18 : symbols);
    return tm_airtime_us(s->spreading_factor, s->bandwidth_khz, s->coding_rate, preamble, size + 1) /
               1000 +
           1;
}

static void transmit(relay *own, uint32_t now) {
    static uint8_t out[2 * (2 + RELAY_FRAME_MAX) + 4];
    size_t size = own->sizes[own->first] + 2u;
    uint32_t air = air_ms(&own->settings, size);
    relay_modem_write(out, tm_kiss_frame(RNODE_DATA, own->queue[own->first], size, out));
    own->first = (uint8_t)((own->first + 1) % RELAY_QUEUE);
    own->count--;
    own->is_sending = true;
    own->asked = 0;
    own->left_ms = own->answer_due_ms = now + air;
    own->quiet_until_ms = now + air * 1000 / own->settings.duty_permille;
}

void relay_work(relay *own, uint32_t now) {
    size_t size;
    bool is_due = (int32_t)(now - own->answer_due_ms) >= 0;
    if (own->set_up < READY && is_due) {
        set_up(own, now);
    }
    if (own->is_sending && is_due) {
        if (own->asked++ < ASKED_MAX) { /* only some versions say that they are ready */
            command(RNODE_READY, 0, 1);
            own->answer_due_ms = now + ANSWER_MS;
        } else { /* it may have restarted: tune it again */
            own->is_sending = false;
            own->set_up = 0;
            own->dropped++;
        }
    }
    while (own->count < RELAY_QUEUE &&
           (size = tm_ble_frame(&own->ble, own->frame, sizeof own->frame)) > 0) {
        send_down(own, size);
    }
    if (own->set_up == READY && !own->is_sending && own->count &&
        (int32_t)(now - own->quiet_until_ms) >= 0) {
        transmit(own, now);
    }
    tm_ble_pause(&own->ble, own->count == RELAY_QUEUE); /* what was granted waits in its slots */
    tm_ble_timeout(&own->ble, now);
    while ((size = tm_ble_value_to_send(&own->ble, own->frame, RELAY_VALUE_MAX, now)) > 0) {
        relay_ble_write(own->frame, size);
    }
}
