#include "relay.h"

#include <string.h>

enum { KISS_DATA = 0x00, SET_HARDWARE = 0x06, SET_RADIO = 0x09, SET_POWER = 0x0A };
enum { MODEM_OK = 0xF0, MODEM_ERROR = 0xF1, TX_DONE = 0xF8 };
enum { READY = 2, ANSWER_MS = 2000, SENT_MS = 4000, HOST = 0, ALL = 255 };

static void command(const uint8_t *data, size_t size) {
    uint8_t out[2 * 16 + 4];
    relay_modem_write(out, tm_kiss_frame(SET_HARDWARE, data, size, out));
}

/* Tune the modem: radio, then power. It forgets both with its power. */
static void set_up(relay *own, uint32_t now) {
    const relay_settings *s = &own->settings;
    if (own->set_up == 0) {
        uint32_t bandwidth = s->bandwidth_khz * 1000u;
        uint8_t data[11] = {SET_RADIO};
        for (unsigned i = 0; i < 4; i++) {
            data[1 + i] = (uint8_t)(s->frequency_hz >> 8 * i);
            data[5 + i] = (uint8_t)(bandwidth >> 8 * i);
        }
        data[9] = s->spreading_factor;
        data[10] = (uint8_t)(s->coding_rate + 4);
        command(data, sizeof data);
    } else {
        const uint8_t data[2] = {SET_POWER, s->power_dbm};
        command(data, sizeof data);
    }
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

static void hardware(relay *own, uint8_t code, uint32_t now) {
    if (code == TX_DONE && own->is_sending) {
        own->is_sending = false;
        own->down++;
    } else if (code == MODEM_OK && own->set_up < READY) {
        own->set_up++;
        own->answer_due_ms = now;
    } else if (code == MODEM_ERROR && own->is_sending) {
        own->is_sending = false; /* it has not left; the link repeats what counts */
        own->dropped++;
    }
}

void relay_modem_byte(relay *own, uint8_t byte, uint32_t now) {
    size_t size = 0;
    if (!tm_kiss_feed(&own->kiss, byte, &size) || size < 2) {
        return;
    }
    if (own->kiss_buffer[0] == KISS_DATA) {
        receive(own, own->kiss_buffer + 1, size - 1);
    } else if (own->kiss_buffer[0] == SET_HARDWARE) {
        hardware(own, own->kiss_buffer[1], now);
    }
}

static void transmit(relay *own, uint32_t now) {
    static uint8_t out[2 * (2 + RELAY_FRAME_MAX) + 4];
    const relay_settings *s = &own->settings;
    size_t size = own->sizes[own->first] + 2u;
    uint32_t air_us = tm_airtime_us(s->spreading_factor, s->bandwidth_khz, s->coding_rate, 16, size);
    uint32_t air_ms = air_us / 1000 + 1;
    relay_modem_write(out, tm_kiss_frame(KISS_DATA, own->queue[own->first], size, out));
    own->first = (uint8_t)((own->first + 1) % RELAY_QUEUE);
    own->count--;
    own->is_sending = true;
    own->answer_due_ms = now + air_ms + SENT_MS;
    own->quiet_until_ms = now + air_ms * 1000 / s->duty_permille;
}

void relay_work(relay *own, uint32_t now) {
    size_t size;
    bool is_due = (int32_t)(now - own->answer_due_ms) >= 0;
    if (own->set_up < READY && is_due) {
        set_up(own, now);
    }
    if (own->is_sending && is_due) { /* it may have restarted: tune it again */
        own->is_sending = false;
        own->set_up = 0;
        own->dropped++;
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
