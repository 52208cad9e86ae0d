/* A sleepy sensor: it measures, sleeps, and now and then sends its rows to a board, sealed.
 *
 * One way, over a serial port or a modem that passes bytes on: a frame of suite 1 in COBS. Its body
 * is SENSOR_ROWS, the number of columns, and rows of float32, lowest byte first. The board opens it
 * with the same secret (`key_file` of the source `serial`). Only the board layer (sensor_posix.c)
 * knows the machine.
 */
#ifndef SENSOR_H
#define SENSOR_H

#include "ternmesh.h"

enum {
    SENSOR_ROWS = 1,       /* the kind of a body */
    SENSOR_BODY_MAX = 208, /* bytes: with seal, checksum and COBS a frame has 228 */
    SENSOR_RESERVED = 256, /* frames between two writes to flash memory */
    SENSOR_COBS_MAX = 240
};

typedef struct {
    uint16_t address;  /* of this sensor among those with the same secret, 1 to 65,534 */
    uint8_t columns;   /* numbers in a row, 1 to 51 */
    uint8_t batch;     /* rows in a frame; as many as fit, if that is less */
    uint8_t copies;    /* how often a frame is sent: nothing tells that it was lost */
} sensor_settings;

typedef struct {
    sensor_settings settings;
    tm_aes128 aes;
    tm_traffic traffic;
    uint64_t counter, reserved; /* the next, and the first that may not be used yet */
    size_t size;                /* of the body so far */
    uint8_t body[SENSOR_BODY_MAX];
} sensor;

/* What the board does for the sensor. */
void sensor_write(const uint8_t *data, size_t size);
/* Keep a number over a loss of power, before it returns: no counter may be used twice. */
void sensor_keep(uint64_t reserved);

/* `kept` is the last number given to sensor_keep; 0 for a new secret. The struct must not move. */
void sensor_init(sensor *own, const sensor_settings *settings, const uint8_t secret[32],
                 uint64_t kept);

/* Add a row of `columns` numbers, and send all of them if the batch is full. */
void sensor_row(sensor *own, const float *values);

/* Send what there is, before a long sleep say. */
void sensor_flush(sensor *own);

#endif
