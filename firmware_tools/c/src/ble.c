/* One end of a BLE link: SPEC.md section 7.4, with the behaviour of transports/ble/protocol.py. */
#include <string.h>

#include "ternmesh.h"

enum { HELLO = 1, ANSWER, DATA, DATA_ASK, ASK, STATUS };
enum { HELLO_BYTES = 19, ASK_BYTES = 3, STATUS_BYTES = 9, CRC_BYTES = 2, LENGTH_BYTES = 2 };
enum { HELLO_START = 0xFFFF, ASK_EVERY = 8, ROUND_TRIPS = 4 };
enum { PATIENCE_FIRST_MS = 500, PATIENCE_MIN_MS = 100, PATIENCE_MAX_MS = 2000 };
enum { SILENCE_MS = 10000, FULL_MAX_MS = 60000 };

static uint16_t crc16(const uint8_t *data, size_t size, uint16_t crc) {
    for (size_t i = 0; i < size; i++) {
        crc = (uint16_t)(crc ^ data[i] << 8);
        for (unsigned bit = 0; bit < 8; bit++) {
            crc = (uint16_t)(crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0));
        }
    }
    return crc;
}

static uint32_t u32_at(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_u32(uint8_t *p, uint32_t value) {
    for (unsigned i = 0; i < 4; i++) {
        p[i] = (uint8_t)(value >> 8 * i);
    }
}

static size_t with_crc(uint8_t *value, size_t size, uint16_t start) {
    uint16_t crc = crc16(value, size, start);
    value[size] = (uint8_t)crc;
    value[size + 1] = (uint8_t)(crc >> 8);
    return size + CRC_BYTES;
}

/* ---- Frames that go out: a ring of frames, each behind its length ---- */

static uint8_t ring_at(const tm_ble *ble, uint32_t offset) {
    return ble->ring[offset % ble->ring_room];
}

static uint32_t length_at(const tm_ble *ble, uint32_t offset) {
    return ring_at(ble, offset) | (uint32_t)ring_at(ble, offset + 1) << 8;
}

bool tm_ble_offer(tm_ble *ble, const uint8_t *frame, size_t size) {
    uint32_t used = ble->end - ble->start;
    if (!size || size > TM_FRAME_MAX || size + LENGTH_BYTES > ble->ring_room - used) {
        return false;
    }
    uint8_t head[LENGTH_BYTES] = {(uint8_t)size, (uint8_t)(size >> 8)};
    for (size_t i = 0; i < size + LENGTH_BYTES; i++) {
        uint8_t byte = i < LENGTH_BYTES ? head[i] : frame[i - LENGTH_BYTES];
        ble->ring[ble->end++ % ble->ring_room] = byte;
    }
    ble->frames++;
    return true;
}

static void drop_frame(tm_ble *ble) {
    ble->start += length_at(ble, ble->start) + LENGTH_BYTES;
    ble->frames--;
}

/* Begin a session at the first frame that the peer does not have. */
static bool restart_sender(tm_ble *ble, bool is_known, uint32_t frames_taken, uint8_t window) {
    if (is_known) {
        uint32_t confirmed = frames_taken - ble->taken;
        if (confirmed > ble->frames) {
            return false;
        }
        while (confirmed--) {
            drop_frame(ble);
        }
    }
    ble->taken = is_known ? frames_taken : 0;
    ble->credits = window < TM_BLE_WINDOW ? window : TM_BLE_WINDOW;
    ble->first = ble->sent_count = 0;
    ble->order = 0;
    ble->cut = ble->start;
    ble->leaving = 0;
    return true;
}

static tm_ble_sent *sent_at(tm_ble *ble, unsigned index) {
    return &ble->sent[(ble->sent_head + index) % TM_BLE_WINDOW];
}

/* Remove the oldest value, and the frames that end in it: they are confirmed. */
static void pop_value(tm_ble *ble) {
    const tm_ble_sent *oldest = sent_at(ble, 0);
    uint32_t end = oldest->at + oldest->size;
    ble->sent_head = (uint8_t)((ble->sent_head + 1) % TM_BLE_WINDOW);
    ble->sent_count--;
    while (ble->frames && end - ble->start >= length_at(ble, ble->start) + LENGTH_BYTES) {
        drop_frame(ble);
        ble->taken++;
    }
}

static uint32_t patience(const tm_ble *ble) {
    return ble->credits ? ble->patience_ms : PATIENCE_MAX_MS;
}

/* Take a status; true where the peer has more values than before. */
static bool take_news(tm_ble *ble, const uint8_t *value, uint32_t now) {
    uint8_t confirmed = (uint8_t)(value[1] - ble->first);
    uint32_t later = u32_at(value + 3), newest = 0, newest_at = 0;
    bool is_news = false, is_measured = false;
    if (confirmed > ble->sent_count) {
        return false; /* an old status, or an impossible one */
    }
    ble->credits = value[2] < TM_BLE_WINDOW ? value[2] : TM_BLE_WINDOW;
    for (unsigned i = 0; i < ble->sent_count; i++) {
        tm_ble_sent *sent = sent_at(ble, i);
        bool has = i < confirmed || (i > confirmed && later >> (i - confirmed - 1) & 1);
        if (has && !sent->is_received) {
            sent->is_received = is_news = true;
            if (sent->order >= newest) {
                newest = sent->order;
                newest_at = sent->sent_ms;
                is_measured = sent->is_first;
            }
        }
    }
    ble->first = value[1];
    while (confirmed--) {
        pop_value(ble);
    }
    if (!is_news) {
        return false;
    }
    for (unsigned i = 0; i < ble->sent_count; i++) {
        tm_ble_sent *sent = sent_at(ble, i);
        sent->is_lost = !sent->is_received && (sent->is_lost || sent->order < newest);
    }
    if (is_measured) {
        uint32_t wanted = ROUND_TRIPS * (now - newest_at);
        wanted = wanted < PATIENCE_MIN_MS ? PATIENCE_MIN_MS : wanted;
        wanted = wanted > PATIENCE_MAX_MS ? PATIENCE_MAX_MS : wanted;
        ble->patience_ms = (7 * ble->patience_ms + wanted + 4) / 8;
    }
    return true;
}

/* The next data value, or 0 where none may leave. */
static size_t data_value(tm_ble *ble, uint8_t *out, size_t value_max, uint32_t now) {
    size_t room = value_max - (LENGTH_BYTES + CRC_BYTES);
    while (ble->cut != ble->end && ble->sent_count < ble->credits) {
        uint32_t left = ble->end - ble->cut;
        tm_ble_sent *sent = sent_at(ble, ble->sent_count++);
        memset(sent, 0, sizeof *sent);
        sent->at = ble->cut;
        sent->size = (uint16_t)(left < room ? left : room);
        sent->is_lost = true;
        ble->cut += sent->size;
    }
    unsigned index = 0, others = 0;
    while (index < ble->sent_count && !sent_at(ble, index)->is_lost) {
        index++;
    }
    for (unsigned i = index + 1; i < ble->sent_count; i++) {
        others += sent_at(ble, i)->is_lost;
    }
    if (index == ble->sent_count || sent_at(ble, index)->size > room) {
        return 0;
    }
    tm_ble_sent *sent = sent_at(ble, index);
    sent->is_first = sent->order == 0;
    sent->sent_ms = now;
    sent->order = ++ble->order;
    sent->is_lost = false;
    bool is_asking = !others || ++ble->leaving % ASK_EVERY == 0;
    ble->leaving = others ? ble->leaving : 0;
    out[0] = is_asking ? DATA_ASK : DATA;
    out[1] = (uint8_t)(ble->first + index);
    for (unsigned i = 0; i < sent->size; i++) {
        out[2 + i] = ring_at(ble, sent->at + i);
    }
    return with_crc(out, 2u + sent->size, ble->session);
}

/* ---- Frames that come in: slots for values out of order, and one unfinished frame ---- */

static void restart_receiver(tm_ble *ble) {
    ble->next = 0;
    ble->slot_at = 0;
    ble->frame_size = 0;
    memset(ble->slot_sizes, 0, sizeof ble->slot_sizes);
}

static void take_data(tm_ble *ble, const uint8_t *value, size_t size) {
    uint8_t ahead = (uint8_t)(value[1] - ble->next);
    unsigned slot = value[1] % ble->window;
    size -= 2 + CRC_BYTES;
    if (ahead < ble->window && !ble->slot_sizes[slot] && size <= ble->slot_room) {
        memcpy(ble->slots + slot * ble->slot_room, value + 2, size);
        ble->slot_sizes[slot] = (uint16_t)size;
    }
}

static void fail(tm_ble *ble) {
    tm_ble_disconnected(ble);
    ble->has_failed = true;
}

size_t tm_ble_frame(tm_ble *ble, uint8_t *frame, size_t room) {
    while (ble->slot_sizes[ble->next % ble->window]) {
        unsigned slot = ble->next % ble->window;
        while (ble->slot_at < ble->slot_sizes[slot]) {
            uint8_t byte = ble->slots[slot * ble->slot_room + ble->slot_at++];
            if (ble->frame_size < LENGTH_BYTES) {
                ble->frame_head[ble->frame_size] = byte;
            } else if (ble->frame_size - LENGTH_BYTES < room) {
                frame[ble->frame_size - LENGTH_BYTES] = byte;
            }
            ble->frame_size++;
            size_t length = ble->frame_head[0] | (size_t)ble->frame_head[1] << 8;
            if (ble->frame_size == LENGTH_BYTES && (!length || length > TM_FRAME_MAX)) {
                fail(ble);
                restart_receiver(ble);
                return 0;
            }
            if (ble->frame_size >= LENGTH_BYTES && ble->frame_size == length + LENGTH_BYTES) {
                ble->frame_size = 0;
                ble->frames_taken++;
                return length;
            }
        }
        ble->slot_sizes[slot] = 0;
        ble->slot_at = 0;
        ble->next++;
    }
    return 0;
}

static size_t status_value(tm_ble *ble, uint8_t *out) {
    uint32_t later = 0;
    for (unsigned i = 0; i + 1 < ble->window; i++) {
        later |= (uint32_t)(ble->slot_sizes[(ble->next + 1 + i) % ble->window] != 0) << i;
    }
    out[0] = STATUS;
    out[1] = ble->next;
    out[2] = ble->is_paused ? 0 : ble->window;
    put_u32(out + 3, later);
    return with_crc(out, STATUS_BYTES - CRC_BYTES, ble->session);
}

/* ---- The session ---- */

void tm_ble_init(tm_ble *ble, bool is_initiator, uint32_t identity, uint16_t session, uint8_t *ring,
                 size_t ring_room, uint8_t *slots, uint8_t window, size_t value_max) {
    memset(ble, 0, sizeof *ble);
    ble->is_initiator = is_initiator;
    ble->identity = identity;
    ble->last_session = session;
    ble->ring = ring;
    ble->ring_room = (uint32_t)ring_room;
    ble->slots = slots;
    ble->window = window;
    ble->slot_room = value_max - (2 + CRC_BYTES);
    ble->patience_ms = PATIENCE_FIRST_MS;
    ble->credits = TM_BLE_WINDOW;
}

static void await(tm_ble *ble, uint32_t now) {
    ble->since_ms = now;
    ble->deadline_ms = now + patience(ble);
    ble->has_deadline = true;
}

void tm_ble_connected(tm_ble *ble, uint32_t now) {
    tm_ble_disconnected(ble);
    ble->has_failed = false;
    if (ble->is_initiator) {
        ble->session = ++ble->last_session;
        ble->has_session = ble->is_hello_due = true;
    }
    await(ble, now);
}

void tm_ble_disconnected(tm_ble *ble) {
    ble->is_established = ble->has_session = false;
    ble->is_hello_due = ble->is_ask_due = ble->is_status_due = false;
    ble->is_full = ble->has_deadline = false;
}

void tm_ble_pause(tm_ble *ble, bool is_paused) {
    ble->is_status_due |= ble->is_paused && !is_paused;
    ble->is_paused = is_paused;
}

static size_t hello_value(const tm_ble *ble, uint8_t *out) {
    out[0] = ble->is_initiator ? HELLO : ANSWER;
    out[1] = 1;
    out[2] = (uint8_t)ble->session;
    out[3] = (uint8_t)(ble->session >> 8);
    put_u32(out + 4, ble->identity);
    put_u32(out + 8, ble->frames_taken ? ble->peer_identity : 0);
    put_u32(out + 12, ble->frames_taken);
    out[16] = ble->is_paused ? 0 : ble->window;
    return with_crc(out, HELLO_BYTES - CRC_BYTES, HELLO_START);
}

static bool take_hello(tm_ble *ble, const uint8_t *value) {
    uint16_t session = (uint16_t)(value[2] | value[3] << 8);
    uint32_t identity = u32_at(value + 4), about = u32_at(value + 8), taken = u32_at(value + 12);
    bool is_wrong = !identity || (taken == 0) != (about == 0) || value[1] != 1;
    if (is_wrong || (value[0] == ANSWER) != ble->is_initiator ||
        (ble->is_initiator && session != ble->session)) {
        return false;
    }
    if (!ble->is_established || session != ble->session) {
        if (!restart_sender(ble, about == ble->identity, taken, value[16])) {
            return false;
        }
        restart_receiver(ble);
        if (identity != ble->peer_identity) {
            ble->peer_identity = identity;
            ble->frames_taken = 0;
        }
        ble->session = session;
        ble->has_session = ble->is_established = true;
        ble->is_full = ble->has_deadline = false;
    }
    if (!ble->is_initiator) {
        ble->is_hello_due = true;
        ble->is_ask_due = false;
    }
    return true;
}

static void take_status(tm_ble *ble, const uint8_t *value, uint32_t now) {
    if (take_news(ble, value, now)) {
        ble->is_full = ble->has_deadline = false;
    } else if (value[2] == 0) {
        ble->full_ms = ble->is_full ? ble->full_ms : now;
        ble->is_full = true;
        ble->has_deadline = false;
        if (now - ble->full_ms >= FULL_MAX_MS) {
            fail(ble);
        }
    } else {
        ble->is_full = false;
    }
}

static bool take(tm_ble *ble, const uint8_t *value, size_t size, uint32_t now) {
    if (size < 1 + CRC_BYTES || size > TM_BLE_VALUE_MAX) {
        return false;
    }
    bool is_hello = value[0] == HELLO || value[0] == ANSWER;
    uint16_t crc = crc16(value, size - CRC_BYTES, is_hello ? HELLO_START : ble->session);
    if ((!is_hello && !ble->has_session) || value[size - 2] != (uint8_t)crc ||
        value[size - 1] != crc >> 8) {
        return false;
    }
    if (is_hello) {
        return size == HELLO_BYTES && take_hello(ble, value);
    }
    if (!ble->is_established) {
        return false;
    }
    if ((value[0] == DATA || value[0] == DATA_ASK) && size > 2 + CRC_BYTES) {
        ble->is_status_due |= value[0] == DATA_ASK;
        take_data(ble, value, size);
        return true;
    }
    if (value[0] == ASK && size == ASK_BYTES) {
        ble->is_status_due = true;
        return true;
    }
    if (value[0] == STATUS && size == STATUS_BYTES) {
        take_status(ble, value, now);
        return true;
    }
    return false;
}

void tm_ble_value(tm_ble *ble, const uint8_t *value, size_t size, uint32_t now) {
    if (!take(ble, value, size, now)) {
        ble->refused++;
    }
}

size_t tm_ble_value_to_send(tm_ble *ble, uint8_t *out, size_t value_max, uint32_t now) {
    if (ble->is_hello_due) {
        ble->is_hello_due = false;
        return hello_value(ble, out);
    }
    if (!ble->is_established) {
        return 0;
    }
    if (ble->is_ask_due) {
        ble->is_ask_due = false;
        out[0] = ASK;
        return with_crc(out, ASK_BYTES - CRC_BYTES, ble->session);
    }
    if (ble->is_status_due) {
        ble->is_status_due = false;
        return status_value(ble, out);
    }
    size_t size = data_value(ble, out, value_max, now);
    if (!ble->has_deadline && ble->frames) {
        await(ble, now);
    }
    return size;
}

void tm_ble_timeout(tm_ble *ble, uint32_t now) {
    if (!ble->has_deadline || (int32_t)(now - ble->deadline_ms) < 0) {
        return;
    }
    if (now - ble->since_ms >= SILENCE_MS) {
        fail(ble);
        return;
    }
    ble->deadline_ms = now + patience(ble);
    if (!ble->is_established) {
        ble->is_hello_due = ble->is_initiator;
    } else if (ble->sent_count) {
        sent_at(ble, 0)->is_lost = true;
    } else {
        ble->is_ask_due = true;
    }
}
