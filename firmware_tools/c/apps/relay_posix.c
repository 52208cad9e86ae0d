/* The relay as a process of Linux, to test it: a modem's serial port, and BLE values through a socket.
 *
 * relay PORT SOCKET FREQUENCY SF BANDWIDTH CR POWER DUTY_PERMILLE ADDRESS SPEED
 *
 * SOCKET is a Unix socket of packets (SOCK_SEQPACKET): whoever accepts is the radio. It is opened again
 * when it ends. SPEED: how many times faster than time the emulated modem is.
 */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "relay.h"

static relay own;
static int modem, radio = -1;
static double speed;

static uint32_t now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)(((double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6) * speed);
}

void relay_modem_write(const uint8_t *data, size_t size) {
    while (size) {
        ssize_t n = write(modem, data, size);
        if (n < 0 && errno != EINTR) {
            exit(1); /* the modem is gone: whoever watches this process starts it again */
        }
        data += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
}

void relay_ble_write(const uint8_t *value, size_t size) {
    if (radio >= 0) {
        (void)!send(radio, value, size, MSG_NOSIGNAL | MSG_DONTWAIT); /* else it is lost */
    }
}

static void open_modem(const char *path) {
    struct termios settings;
    modem = open(path, O_RDWR | O_NOCTTY);
    if (modem < 0 || tcgetattr(modem, &settings)) {
        perror(path);
        exit(1);
    }
    cfmakeraw(&settings);
    (void)cfsetspeed(&settings, B115200);
    (void)tcsetattr(modem, TCSANOW, &settings);
}

static void open_radio(const char *path) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    (void)snprintf(name.sun_path, sizeof name.sun_path, "%s", path);
    radio = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (radio >= 0 && connect(radio, (struct sockaddr *)&name, sizeof name)) {
        (void)close(radio);
        radio = -1;
    }
    if (radio >= 0) {
        relay_ble_connected(&own, now_ms());
    }
}

int main(int argc, char **argv) {
    uint8_t data[512];
    struct {
        uint32_t identity;
        uint16_t session;
    } random;
    if (argc != 11) {
        (void)fprintf(stderr, "usage: relay PORT SOCKET HZ SF KHZ CR DBM PERMILLE ADDRESS SPEED\n");
        return 2;
    }
    uint32_t n[11];
    for (int i = 3; i < 10; i++) {
        n[i] = (uint32_t)strtoul(argv[i], NULL, 10);
    }
    relay_settings settings = {n[3],          (uint8_t)n[4], (uint8_t)n[6], (uint16_t)n[5],
                               (uint8_t)n[7], (uint16_t)n[8], (uint8_t)n[9]};
    speed = strtod(argv[10], NULL);
    if (getrandom(&random, sizeof random, 0) != sizeof random) {
        return 1;
    }
    relay_init(&own, &settings, random.identity | 1, random.session);
    open_modem(argv[1]);
    for (;;) {
        if (radio < 0 || own.ble.has_failed) {
            if (radio >= 0) {
                (void)close(radio);
                relay_ble_disconnected(&own);
            }
            open_radio(argv[2]);
        }
        relay_work(&own, now_ms());
        struct pollfd ready[2] = {{modem, POLLIN, 0}, {radio, POLLIN, 0}};
        (void)poll(ready, radio < 0 ? 1 : 2, 5);
        if (ready[0].revents) {
            ssize_t size = read(modem, data, sizeof data);
            if (size <= 0) {
                return 1;
            }
            for (ssize_t i = 0; i < size; i++) {
                relay_modem_byte(&own, data[i], now_ms());
            }
        }
        if (radio >= 0 && ready[1].revents) {
            ssize_t size = recv(radio, data, sizeof data, 0);
            if (size <= 0) {
                (void)close(radio);
                radio = -1;
                relay_ble_disconnected(&own);
            } else {
                relay_ble_value(&own, data, (size_t)size, now_ms());
            }
        }
    }
}
