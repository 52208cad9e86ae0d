/* Frames in a serial stream: COBS with a CRC, and KISS. SPEC.md section 7.3. */
#include <string.h>

#include "ternmesh.h"

enum { FEND = 0xC0, FESC = 0xDB, TFEND = 0xDC, TFESC = 0xDD, CRC_BYTES = 4 };

uint32_t tm_crc32(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (unsigned bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        }
    }
    return ~crc;
}

/* ---- COBS ---- */

typedef struct {
    uint8_t *out;
    size_t at, code_at;
} Cobs;

static void cobs_begin(Cobs *cobs, uint8_t *out) {
    cobs->out = out;
    cobs->code_at = 0;
    cobs->at = 1;
}

static void cobs_block(Cobs *cobs) {
    cobs->out[cobs->code_at] = (uint8_t)(cobs->at - cobs->code_at);
    cobs->code_at = cobs->at++;
}

static void cobs_add(Cobs *cobs, const uint8_t *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (data[i]) {
            cobs->out[cobs->at++] = data[i];
        }
        if (!data[i] || cobs->at - cobs->code_at == 255) {
            cobs_block(cobs);
        }
    }
}

static size_t cobs_end(Cobs *cobs) {
    cobs->out[cobs->code_at] = (uint8_t)(cobs->at - cobs->code_at);
    return cobs->at;
}

size_t tm_cobs_encode(const uint8_t *data, size_t n, uint8_t *out) {
    Cobs cobs;
    cobs_begin(&cobs, out);
    cobs_add(&cobs, data, n);
    return cobs_end(&cobs);
}

bool tm_cobs_decode(const uint8_t *encoded, size_t n, uint8_t *out, size_t *size) {
    size_t at = 0, to = 0;
    while (at < n) {
        size_t code = encoded[at++];
        if (!code || code - 1 > n - at) {
            return false;
        }
        for (size_t i = 1; i < code; i++) {
            if (!encoded[at]) {
                return false;
            }
            out[to++] = encoded[at++];
        }
        if (code < 255 && at < n) {
            out[to++] = 0;
        }
    }
    *size = to;
    return true;
}

size_t tm_cobs_frame(const uint8_t *payload, size_t n, uint8_t *out) {
    uint32_t crc = tm_crc32(0, payload, n);
    uint8_t tail[CRC_BYTES];
    Cobs cobs;
    for (unsigned i = 0; i < CRC_BYTES; i++) {
        tail[i] = (uint8_t)(crc >> 8 * i);
    }
    out[0] = 0;
    cobs_begin(&cobs, out + 1);
    cobs_add(&cobs, payload, n);
    cobs_add(&cobs, tail, CRC_BYTES);
    size_t size = cobs_end(&cobs);
    out[1 + size] = 0;
    return size + 2;
}

/* ---- KISS ---- */

static size_t escape(uint8_t byte, uint8_t *out) {
    if (byte == FEND || byte == FESC) {
        out[0] = FESC;
        out[1] = byte == FEND ? TFEND : TFESC;
        return 2;
    }
    out[0] = byte;
    return 1;
}

size_t tm_kiss_frame(uint8_t command, const uint8_t *data, size_t n, uint8_t *out) {
    size_t at = 0;
    out[at++] = FEND;
    at += escape(command, out + at);
    for (size_t i = 0; i < n; i++) {
        at += escape(data[i], out + at);
    }
    out[at++] = FEND;
    return at;
}

/* ---- Streams ---- */

void tm_unframer_init(tm_unframer *unframer, uint8_t *buffer, size_t room) {
    unframer->buffer = buffer;
    unframer->room = room;
    unframer->size = 0;
    unframer->is_overlong = false;
    unframer->malformed = 0;
}

/* Keep a byte that is no delimiter. */
static void keep(tm_unframer *unframer, uint8_t byte) {
    if (unframer->size == unframer->room) { /* noise may have no end */
        unframer->is_overlong = true;
        unframer->malformed++;
        unframer->size = 0;
    }
    unframer->buffer[unframer->size++] = byte;
}

/* Begin anew; the size of what is in the buffer, or 0 where it is too long or no more than `idle`. */
static size_t finish(tm_unframer *unframer, size_t idle) {
    size_t size = unframer->size;
    bool is_overlong = unframer->is_overlong;
    unframer->size = 0;
    unframer->is_overlong = false;
    return is_overlong || size <= idle ? 0 : size;
}

bool tm_cobs_feed(tm_unframer *unframer, uint8_t byte, size_t *size) {
    if (byte) {
        keep(unframer, byte);
        return false;
    }
    size_t n = finish(unframer, 1), found = 0; /* some modems add one byte of RSSI to each frame */
    if (!n) {
        return false;
    }
    uint8_t *buffer = unframer->buffer;
    if (tm_cobs_decode(buffer, n, buffer, &found) && found > CRC_BYTES) {
        found -= CRC_BYTES;
        uint32_t crc = tm_crc32(0, buffer, found);
        uint8_t given[CRC_BYTES] = {(uint8_t)crc, (uint8_t)(crc >> 8), (uint8_t)(crc >> 16),
                                    (uint8_t)(crc >> 24)};
        if (memcmp(given, buffer + found, CRC_BYTES) == 0) {
            *size = found;
            return true;
        }
    }
    unframer->malformed++;
    return false;
}

bool tm_kiss_feed(tm_unframer *unframer, uint8_t byte, size_t *size) {
    if (byte != FEND) {
        keep(unframer, byte);
        return false;
    }
    size_t n = finish(unframer, 0), to = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t next = unframer->buffer[i];
        if (next == FESC) {
            next = ++i < n ? unframer->buffer[i] : 0;
            if (next != TFEND && next != TFESC) {
                unframer->malformed++;
                return false;
            }
            next = next == TFEND ? FEND : FESC;
        }
        unframer->buffer[to++] = next;
    }
    *size = to;
    return n > 0;
}

/* ---- Airtime: Semtech AN1200.13 ---- */

uint32_t tm_airtime_us(uint8_t spreading_factor, uint16_t bandwidth_khz, uint8_t coding_rate,
                       uint16_t preamble_symbols, size_t bytes) {
    enum { LOW_RATE_SYMBOL_US = 16000 };
    uint32_t symbol_us = ((uint32_t)1 << spreading_factor) * 1000 / bandwidth_khz;
    int32_t low_rate = symbol_us >= LOW_RATE_SYMBOL_US;
    int32_t bits = 8 * (int32_t)bytes - 4 * (int32_t)spreading_factor + 28 + 16;
    int32_t each = 4 * ((int32_t)spreading_factor - 2 * low_rate);
    uint32_t blocks = bits > 0 ? (uint32_t)((bits + each - 1) / each) : 0;
    uint32_t quarters = 4 * (preamble_symbols + 8u + blocks * (coding_rate + 4u)) + 17;
    return quarters * symbol_us / 4;
}
