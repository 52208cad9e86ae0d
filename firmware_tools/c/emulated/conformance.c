/* Runs test cases: the golden vectors and mutated frames, with the answers that Python gave.
 *
 * A case is: function (u8), sizes of input and answer (u16 each), input, answer. The first byte of an
 * answer is the tm_result. Board layers: semihosting.c for Cortex-M, posix.c for Linux.
 */
#include <string.h>

#include "board.h"
#include "ternmesh.h"

enum { ROOM = 2560 };

static uint8_t input[ROOM], expected[ROOM], out[ROOM], memory[4096];
static const uint8_t *in; /* at the end of `input`, so that a sanitizer sees each byte too far */
static tm_aes128 aes_context;

static uint16_t u16_at(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t u32_at(const uint8_t *p) {
    return u16_at(p) | (uint32_t)u16_at(p + 2) << 16;
}

static void put_u32(uint8_t *p, uint32_t value) {
    for (unsigned i = 0; i < 4; i++) {
        p[i] = (uint8_t)(value >> 8 * i);
    }
}

/* in: a frame. out: address u16, counter u32, key phase, body. */
static size_t plain_open(size_t n) {
    tm_header header;
    size_t size = 0;
    out[0] = (uint8_t)tm_plain_open(&header, in, n, &size);
    if (out[0]) {
        return 1;
    }
    put_u32(out + 1, header.address);
    put_u32(out + 3, header.counter);
    out[7] = header.key_phase;
    memcpy(out + 8, in + TM_HEAD_SIZE, size);
    return 8 + size;
}

/* in: size u16, a chunk's body. out: the values. */
static size_t chunk_decode(size_t n) {
    tm_chunk chunk;
    size_t size = u16_at(in);
    if (size >= ROOM) {
        return 0;
    }
    tm_result result = tm_chunk_read(&chunk, in + 2, n - 2);
    if (result == TM_OK) {
        result = tm_chunk_decode(&chunk, (int8_t *)(out + 1), size);
    }
    out[0] = (uint8_t)result;
    return result == TM_OK ? size + 1 : 1;
}

/* in: secret (32), highest u64, suite u8, has run u8, run (8), a frame. out: the body. */
static size_t keyed_open(size_t n) {
    tm_traffic traffic;
    tm_window window;
    tm_header header;
    uint64_t highest = u32_at(in + 32) | (uint64_t)u32_at(in + 36) << 32;
    tm_traffic_init(&traffic, in, tm_aes128_portable(&aes_context));
    tm_window_init(&window, highest, NULL);
    const uint8_t *run = in[41] ? in + 42 : NULL;
    out[0] = (uint8_t)tm_keyed_open(&traffic, &window, in[40], run, in + 50, n - 50, &header,
                                    out + 1);
    return out[0] ? 1 : n - 50 - TM_FRAME_OVERHEAD + 1;
}

/* in: symbol bytes u16, index u16, name (4), an object. out: the symbol. */
static size_t symbol_make(size_t n) {
    tm_layout layout = {(uint32_t)n - 8, u16_at(in)};
    out[0] = (uint8_t)tm_layout_check(&layout);
    if (out[0]) {
        return 1;
    }
    tm_symbol_make(&layout, in + 4, in + 8, u16_at(in + 2), out + 1);
    return layout.symbol_bytes + 1u;
}

/* in: size u16, symbol bytes u16, name (4), indexes and symbols of generation 0. out: the object. */
static size_t collect(size_t n) {
    tm_layout layout = {u16_at(in), u16_at(in + 2)};
    tm_collector collector;
    out[0] = (uint8_t)tm_collector_init(&collector, &layout, in + 4, 0, memory, sizeof memory);
    if (out[0] || layout.size >= ROOM) {
        return 1;
    }
    memset(out + 1, 0, layout.size);
    for (size_t at = 8; at + 2 + layout.symbol_bytes <= n; at += 2u + layout.symbol_bytes) {
        bool is_new;
        (void)tm_collector_add(&collector, u16_at(in + at), in + at + 2, layout.symbol_bytes, &is_new);
    }
    tm_collector_write(&collector, out + 1);
    return layout.size + 1;
}

/* in: a payload. out: its COBS frame; and it is found in that again. */
static size_t cobs(size_t n) {
    static uint8_t buffer[512];
    tm_unframer unframer;
    size_t size = tm_cobs_frame(in, n, out + 1), found = 0;
    bool is_found = false;
    tm_unframer_init(&unframer, buffer, sizeof buffer);
    for (size_t i = 0; i < size; i++) {
        is_found |= tm_cobs_feed(&unframer, out[1 + i], &found);
    }
    out[0] = !(is_found && found == n && memcmp(buffer, in, n) == 0);
    return size + 1;
}

/* in: model hash (32), round u32, dimension u32. out: the first 16 places. */
static size_t order(size_t n) {
    tm_order found;
    uint32_t dimension = u32_at(in + n - 4), count = dimension < 16 ? dimension : 16;
    tm_order_init(&found, in, u32_at(in + 32), dimension);
    out[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        put_u32(out + 1 + 4 * i, tm_order_at(&found, i));
    }
    return 1 + 4 * (size_t)count;
}

/* In the order of bench/c_cases.py. */
static size_t (*const functions[])(size_t) = {plain_open, chunk_decode, keyed_open, symbol_make,
                                              collect,    cobs,         order};

int main(void) {
    uint8_t head[5];
    unsigned cases = 0, failed = 0;
    while (board_read(head, sizeof head)) {
        size_t n = u16_at(head + 1), m = u16_at(head + 3);
        if (n > ROOM || m > ROOM || head[0] >= sizeof functions / sizeof functions[0] ||
            !board_read(input + ROOM - n, n) || !board_read(expected, m)) {
            board_print("bad case ", cases);
            return board_exit(2);
        }
        in = input + ROOM - n;
        size_t size = functions[head[0]](n);
        if (size != m || memcmp(out, expected, m) != 0) {
            board_print("differs: case ", cases);
            failed++;
        }
        cases++;
    }
    board_print("cases ", cases);
    board_print("failed ", failed);
    return board_exit(failed || !cases);
}
