/* One libFuzzer target for every function that reads what came over the air. */
#include <stdlib.h>
#include <string.h>

#include "ternmesh.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool holds) {
    if (!holds) {
        abort();
    }
}

/* A cipher that is none: AES would take nine tenths of the time, and has no branches to find. */
static void no_key(void *context, const uint8_t key[16]) {
    memcpy(context, key, 16);
}

static void no_cipher(void *context, const uint8_t in[16], uint8_t out[16]) {
    const uint8_t *key = context;
    uint8_t mixed[16], sum = 1;
    for (unsigned i = 0; i < 16; i++) {
        sum = (uint8_t)(sum * 5 + (in[i] ^ key[i]));
        mixed[15 - i] = sum;
    }
    memcpy(out, mixed, sizeof mixed);
}

static void frames(const uint8_t *data, size_t n) {
    static const uint8_t secret[32] = {1};
    static uint8_t body[TM_FRAME_MAX], marks[TM_WINDOW][4], key[16];
    static const tm_aes aes = {key, no_key, no_cipher};
    static tm_traffic traffic;
    tm_header header;
    tm_window window;
    size_t size = 0;
    if (tm_plain_open(&header, data, n, &size) == TM_OK) {
        check(size + TM_FRAME_OVERHEAD == n);
    }
    if (n < 9 || n > TM_FRAME_MAX) {
        return;
    }
    uint64_t highest;
    memcpy(&highest, data, 8);
    if (data[8] & 3) { /* another key is derived for each 2^20 counters, which takes long */
        highest %= 1u << 19;
    }
    if (!traffic.has_key) {
        tm_traffic_init(&traffic, secret, aes);
    }
    tm_window_init(&window, highest, marks);
    (void)tm_keyed_open(&traffic, &window, 1, NULL, data + 8, n - 8, &header, body);
    /* What is sealed opens, once. */
    size_t length = n - 8 > 64 ? 64 : n - 8;
    tm_header own = {1, 0, 1, 0};
    uint8_t frame[64 + TM_FRAME_OVERHEAD];
    uint64_t counter = highest + data[8];
    size = tm_keyed_seal(&traffic, &own, counter, NULL, data + 8, length, frame);
    if (counter >= highest) {
        check(tm_keyed_open(&traffic, &window, 1, NULL, frame, size, &header, body) == TM_OK);
        check(memcmp(body, data + 8, length) == 0);
        check(tm_keyed_open(&traffic, &window, 1, NULL, frame, size, &header, body) == TM_REPLAY);
    }
}

static void counters(const uint8_t *data, size_t n) {
    static uint8_t marks[TM_WINDOW][4];
    tm_window window;
    uint64_t counter = 0;
    tm_window_init(&window, 0, n % 2 ? marks : NULL);
    for (size_t at = 0; at + 4 <= n; at += 4) {
        uint32_t low = data[at] | (uint32_t)data[at + 1] << 8 | (uint32_t)data[at + 2] << 16;
        counter = tm_whole_counter(window.highest, data[at + 3] & 1 ? low % 2048 : low);
        (void)tm_window_take(&window, counter, data + at);
        check(tm_window_take(&window, counter, data + at) != TM_OK);
    }
}

static void places(const uint8_t *data, size_t n) {
    tm_order order;
    uint32_t numbers[3];
    size_t size = 0;
    if (n < 44) {
        return;
    }
    memcpy(numbers, data + 32, sizeof numbers);
    uint32_t dimension = numbers[1] % (1u << 24) + 1, span = numbers[2] % 4096;
    tm_order_init(&order, data, numbers[0], dimension);
    check(tm_order_at(&order, dimension) == dimension);
    if (tm_slice_size(dimension, span, (uint16_t)numbers[0], &size) == TM_OK) {
        uint32_t at = (uint16_t)numbers[0] * span;
        check(size && size <= span && at + size <= dimension);
        check(tm_order_at(&order, at) < dimension);
    }
}

static void chunks(const uint8_t *data, size_t n) {
    static int8_t values[4096];
    tm_chunk chunk;
    if (n < 2) {
        return;
    }
    size_t size = (data[0] | (size_t)data[1] << 8) % (sizeof values + 1);
    if (tm_chunk_read(&chunk, data + 2, n - 2) == TM_OK) {
        if (tm_chunk_decode(&chunk, values, size) == TM_OK) {
            size_t count = 0;
            for (size_t i = 0; i < size; i++) {
                count += values[i] != 0;
            }
            check(count == chunk.count);
        }
    }
}

static void symbols(const uint8_t *data, size_t n) {
    static uint8_t object[1024], memory[4096], symbol[64];
    if (n < 10) {
        return;
    }
    tm_layout layout = {data[0] % 64, data[1] % 16};
    tm_collector collector;
    uint32_t generation = data[3] % 2;
    if (tm_collector_init(&collector, &layout, data + 4, generation, memory, sizeof memory) != TM_OK) {
        return;
    }
    for (size_t i = 0; i < layout.size; i++) {
        object[i] = data[i % n];
    }
    for (size_t at = 8; at + 2 <= n && tm_collector_missing(&collector); at += 2) {
        bool is_new;
        uint16_t index = (uint16_t)(data[at] | data[at + 1] << 8);
        uint32_t missing = tm_collector_missing(&collector);
        tm_symbol_make(&layout, data + 4, object, index, symbol);
        size_t size = layout.symbol_bytes + (index == 7u);
        if (tm_collector_add(&collector, index, symbol, size, &is_new) == TM_OK) {
            check(tm_collector_missing(&collector) == missing - is_new);
        }
    }
    if (!tm_collector_missing(&collector)) { /* all symbols were of one object: so it is that */
        static uint8_t found[1024];
        uint32_t step = tm_layout_generations(&layout);
        memset(found, 0, sizeof found);
        tm_collector_write(&collector, found);
        for (size_t i = 0; i < layout.size; i++) {
            check(i / layout.symbol_bytes % step != generation || found[i] == object[i]);
        }
    }
}

static void streams(const uint8_t *data, size_t n) {
    static uint8_t buffer[300], again[2 * 300 + 8];
    tm_unframer unframer;
    size_t size = 0;
    for (unsigned kiss = 0; kiss < 2; kiss++) {
        tm_unframer_init(&unframer, buffer, sizeof buffer - n % 7);
        for (size_t i = 0; i < n; i++) {
            if (kiss ? tm_kiss_feed(&unframer, data[i], &size)
                     : tm_cobs_feed(&unframer, data[i], &size)) {
                check(size <= sizeof buffer);
                /* A frame is found again in what it is written as. */
                uint8_t copy[300], first = buffer[0];
                tm_unframer other;
                bool is_found = false;
                size_t length = kiss ? tm_kiss_frame(first, buffer + 1, size - 1, again)
                                     : tm_cobs_frame(buffer, size, again);
                tm_unframer_init(&other, copy, sizeof copy);
                size_t found = 0;
                for (size_t j = 0; j < length; j++) {
                    is_found |= kiss ? tm_kiss_feed(&other, again[j], &found)
                                     : tm_cobs_feed(&other, again[j], &found);
                }
                if (length <= sizeof copy) {
                    check(is_found && found == size && memcmp(copy, buffer, size) == 0);
                }
            }
        }
    }
    if (n && n <= 200) {
        size_t length = tm_cobs_encode(data, n, again);
        check(tm_cobs_decode(again, length, buffer, &size) && size == n);
        check(memcmp(buffer, data, n) == 0);
    }
}

static void links(const uint8_t *data, size_t n) {
    static uint8_t rings[2][256], slots[2][TM_BLE_WINDOW * 56], frame[2][100];
    static tm_ble ends[2];
    uint8_t value[60];
    uint32_t now = 0;
    size_t size;
    for (unsigned i = 0; i < 2; i++) {
        tm_ble_init(&ends[i], i == 0, i + 1, (uint16_t)i, rings[i], 256, slots[i], i ? 4 : 32, 60);
        tm_ble_connected(&ends[i], 0);
    }
    while (n >= 2) { /* each step: what happens, a size, and bytes */
        unsigned own = data[0] & 1, what = data[0] >> 1 & 7;
        size_t part = data[1] < n - 2 ? data[1] : n - 2;
        const uint8_t *bytes = data + 2;
        now += data[0];
        if (what == 0) {
            tm_ble_value(&ends[own], bytes, part, now);
        } else if (what == 1) {
            tm_ble_pause(&ends[own], part & 1);
        } else if (what == 2) {
            tm_ble_connected(&ends[own], now);
        } else {
            (void)tm_ble_offer(&ends[own], bytes, part);
        }
        for (unsigned i = 0; i < 2; i++) {
            while ((size = tm_ble_value_to_send(&ends[i], value, sizeof value, now)) > 0) {
                if (what != 3) { /* else it is lost */
                    tm_ble_value(&ends[1 - i], value, size, now);
                }
            }
            while (tm_ble_frame(&ends[i], frame[i], sizeof frame[i])) {
            }
            tm_ble_timeout(&ends[i], now);
        }
        data += 2 + part;
        n -= 2 + part;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static void (*const targets[])(const uint8_t *, size_t) = {frames, counters, chunks,
                                                               symbols, streams, places, links};
#ifdef ONLY /* one target: some take a hundred times as long as others */
    targets[ONLY](data, n);
#else
    if (n) {
        targets[data[0] % 7](data + 1, n - 1);
    }
#endif
    return 0;
}
