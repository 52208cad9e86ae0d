/* The sensor as a process of Linux, to test it: its measurements are lines of numbers on stdin.
 *
 * sensor PORT SECRET KEPT ADDRESS COLUMNS BATCH COPIES
 *
 * SECRET has 64 hexadecimal digits; KEPT is the file in which the counter outlives the process.
 */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include "sensor.h"

enum { COLUMNS_MAX = (SENSOR_BODY_MAX - 2) / 4 };

static int port, kept;

void sensor_write(const uint8_t *data, size_t size) {
    if (write(port, data, size) != (ssize_t)size) {
        exit(1);
    }
}

void sensor_keep(uint64_t reserved) {
    if (pwrite(kept, &reserved, sizeof reserved, 0) != sizeof reserved || fsync(kept)) {
        exit(1);
    }
}

static void open_files(char **argv, uint8_t secret[32], uint64_t *reserved) {
    struct termios settings;
    FILE *file = fopen(argv[2], "r");
    for (unsigned i = 0; i < 32; i++) {
        unsigned byte;
        if (!file || fscanf(file, "%2x", &byte) != 1) {
            (void)fprintf(stderr, "%s must have 64 hexadecimal digits\n", argv[2]);
            exit(2);
        }
        secret[i] = (uint8_t)byte;
    }
    (void)fclose(file);
    port = open(argv[1], O_RDWR | O_NOCTTY);
    kept = open(argv[3], O_RDWR | O_CREAT, 0600);
    if (port < 0 || kept < 0) {
        perror("sensor");
        exit(1);
    }
    if (pread(kept, reserved, sizeof *reserved, 0) != sizeof *reserved) {
        *reserved = 0;
    }
    if (!tcgetattr(port, &settings)) {
        cfmakeraw(&settings);
        (void)tcsetattr(port, TCSANOW, &settings);
    }
}

int main(int argc, char **argv) {
    static sensor own;
    uint8_t secret[32];
    uint64_t reserved;
    float row[COLUMNS_MAX];
    if (argc != 8) {
        (void)fprintf(stderr, "usage: sensor PORT SECRET KEPT ADDRESS COLUMNS BATCH COPIES\n");
        return 2;
    }
    sensor_settings settings = {(uint16_t)atoi(argv[4]), (uint8_t)atoi(argv[5]),
                                (uint8_t)atoi(argv[6]), (uint8_t)atoi(argv[7])};
    if (settings.columns < 1 || settings.columns > COLUMNS_MAX) {
        return 2;
    }
    open_files(argv, secret, &reserved);
    sensor_init(&own, &settings, secret, reserved);
    for (;;) {
        for (unsigned i = 0; i < settings.columns; i++) {
            if (scanf("%f", &row[i]) != 1) {
                sensor_flush(&own);
                return 0;
            }
        }
        sensor_row(&own, row);
    }
}
