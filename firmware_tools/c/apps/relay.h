/* A relay between one board on a LoRa modem and the bridge of that board at a host or gateway.
 *
 * It passes sealed frames on, which it can neither read nor forge. The modem has RNode
 * firmware. On the radio the relay stands for the host (radio address 0), on BLE for the board: it is
 * the central of the link. After each transmission it is silent for so long that it keeps the duty
 * cycle in any hour. Only the board layer (relay_posix.c) knows the machine.
 */
#ifndef RELAY_H
#define RELAY_H

#include "ternmesh.h"

enum {
    RELAY_FRAME_MAX = 252, /* bytes that the modem takes, without the 2 of the radio addresses */
    RELAY_QUEUE = 2,       /* frames that wait for the modem */
    RELAY_RING = 512,      /* bytes of frames that wait for the bridge; a power of two */
    RELAY_WINDOW = 3,      /* BLE values out of order */
    RELAY_VALUE_MAX = 244  /* of BLE: the board asks for an ATT MTU of 3 more, and no more */
};

typedef struct {
    uint32_t frequency_hz;
    uint8_t spreading_factor, coding_rate; /* 7 to 12, 1 to 4 */
    uint16_t bandwidth_khz;
    uint8_t power_dbm;
    uint16_t duty_permille; /* of the region's law, 1,000 for none */
    uint8_t address;        /* of the board on the radio, 1 to 254 */
} relay_settings;

typedef struct {
    relay_settings settings;
    tm_ble ble;
    tm_unframer kiss;
    uint8_t kiss_buffer[264], ring[RELAY_RING], slots[RELAY_WINDOW * (RELAY_VALUE_MAX - 4)];
    uint8_t frame[RELAY_FRAME_MAX]; /* one from BLE, or a value on its way there */
    uint8_t queue[RELAY_QUEUE][2 + RELAY_FRAME_MAX];
    uint8_t sizes[RELAY_QUEUE], first, count;
    uint8_t set_up; /* commands that the modem has confirmed: all of them at RELAY_READY */
    bool is_sending;
    uint8_t asked; /* times, whether it is ready again */
    uint32_t left_ms, quiet_until_ms, answer_due_ms;
    uint32_t up, down, dropped; /* frames */
} relay;

/* What the board does for the relay. */
void relay_modem_write(const uint8_t *data, size_t size);
void relay_ble_write(const uint8_t *value, size_t size);

void relay_init(relay *own, const relay_settings *settings, uint32_t identity, uint16_t session);
void relay_ble_connected(relay *own, uint32_t now);
void relay_ble_disconnected(relay *own);
void relay_ble_value(relay *own, const uint8_t *value, size_t size, uint32_t now);
void relay_modem_byte(relay *own, uint8_t byte, uint32_t now);

/* Do what is due; call it after each of the others, and at least ten times in a second. */
void relay_work(relay *own, uint32_t now);

#endif
