#include "sensor.h"

#include <string.h>

void sensor_init(sensor *own, const sensor_settings *settings, const uint8_t secret[32],
                 uint64_t kept) {
    memset(own, 0, sizeof *own);
    own->settings = *settings;
    own->counter = own->reserved = kept;
    tm_traffic_init(&own->traffic, secret, tm_aes128_portable(&own->aes));
}

void sensor_row(sensor *own, const float *values) {
    size_t row = 4u * own->settings.columns;
    if (own->size == 0) {
        own->body[own->size++] = SENSOR_ROWS;
        own->body[own->size++] = own->settings.columns;
    }
    for (unsigned i = 0; i < own->settings.columns; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        for (unsigned k = 0; k < 4; k++) {
            own->body[own->size++] = (uint8_t)(bits >> 8 * k);
        }
    }
    if (own->size + row > SENSOR_BODY_MAX || own->size >= 2 + row * own->settings.batch) {
        sensor_flush(own);
    }
}

void sensor_flush(sensor *own) {
    uint8_t frame[SENSOR_BODY_MAX + TM_FRAME_OVERHEAD], out[SENSOR_COBS_MAX];
    if (own->size == 0) {
        return;
    }
    if (own->counter == own->reserved) {
        own->reserved += SENSOR_RESERVED;
        sensor_keep(own->reserved);
    }
    tm_header header = {own->settings.address, (uint32_t)(own->counter & 0xFFFFFF), 1, 0};
    size_t size = tm_keyed_seal(&own->traffic, &header, own->counter++, NULL, own->body, own->size,
                                frame);
    size = tm_cobs_frame(frame, size, out);
    for (unsigned i = 0; i < own->settings.copies; i++) {
        sensor_write(out, size);
    }
    own->size = 0;
}
