/* The erasure code: SPEC.md section 8.1. */
#include <string.h>

#include "ternmesh.h"

tm_result tm_layout_check(const tm_layout *layout) {
    bool is_symbol = layout->symbol_bytes && layout->symbol_bytes <= TM_SYMBOL_BYTES_MAX;
    uint32_t most = (uint32_t)TM_SOURCES_MAX * layout->symbol_bytes;
    return is_symbol && layout->size && layout->size <= most ? TM_OK : TM_SYMBOL;
}

uint32_t tm_layout_count(const tm_layout *layout) {
    return (layout->size + layout->symbol_bytes - 1) / layout->symbol_bytes;
}

uint32_t tm_layout_generations(const tm_layout *layout) {
    return (tm_layout_count(layout) + TM_GENERATION_MAX - 1) / TM_GENERATION_MAX;
}

uint32_t tm_layout_generation(const tm_layout *layout, uint16_t index) {
    uint32_t count = tm_layout_count(layout);
    return (index < count ? index : index - count) % tm_layout_generations(layout);
}

uint32_t tm_layout_sources(const tm_layout *layout, uint32_t generation) {
    uint32_t generations = tm_layout_generations(layout);
    return (tm_layout_count(layout) - generation + generations - 1) / generations;
}

uint8_t tm_gf_multiply(uint8_t a, uint8_t b) {
    unsigned product = 0, x = a;
    for (unsigned bits = b; bits; bits >>= 1) {
        product ^= bits & 1 ? x : 0;
        x = x << 1 ^ (x & 0x80 ? TM_POLYNOMIAL : 0);
    }
    return (uint8_t)product;
}

/* a^254: the inverse, as a^255 is 1. */
static uint8_t inverse(uint8_t a) {
    uint8_t power = 1, square = a;
    for (unsigned i = 1; i < 8; i++) {
        square = tm_gf_multiply(square, square);
        power = tm_gf_multiply(power, square);
    }
    return power;
}

/* The products of a factor with all low and all high halves of a byte. */
typedef struct {
    uint8_t low[16], high[16];
} Products;

static void products_of(Products *products, uint8_t factor) {
    for (unsigned i = 0; i < 16; i++) {
        products->low[i] = tm_gf_multiply(factor, (uint8_t)i);
        products->high[i] = tm_gf_multiply(factor, (uint8_t)(i << 4));
    }
}

void tm_gf_add(uint8_t *to, uint8_t factor, const uint8_t *from, size_t size) {
    Products products;
    if (!factor) {
        return;
    }
    products_of(&products, factor);
    for (size_t i = 0; i < size; i++) {
        to[i] ^= products.low[from[i] & 15] ^ products.high[from[i] >> 4];
    }
}

static tm_key key_of(const uint8_t name[4]) {
    tm_sha256 hash;
    tm_key_begin(&hash, "symbol");
    tm_key_add(&hash, name, 4);
    return tm_key_end(&hash);
}

/* c(i, j) for places j to j + 15, of which j is a multiple of 16. */
static void coefficients(tm_key key, uint16_t index, uint32_t j, uint8_t out[16]) {
    uint32_t words[4];
    tm_philox(key, (uint64_t)index * (TM_GENERATION_MAX / 16) + j / 16, words);
    for (unsigned i = 0; i < 16; i++) {
        uint8_t byte = (uint8_t)(words[i / 4] >> 8 * (i % 4));
        out[i] = byte ? byte : 1;
    }
}

/* The bytes that a source symbol has of its object; the rest of it is zeros. */
static size_t part_of(const tm_layout *layout, uint32_t source) {
    uint32_t left = layout->size - source * layout->symbol_bytes;
    return left < layout->symbol_bytes ? left : layout->symbol_bytes;
}

void tm_symbol_make(const tm_layout *layout, const uint8_t name[4], const uint8_t *object,
                    uint16_t index, uint8_t *symbol) {
    uint32_t count = tm_layout_count(layout), step = tm_layout_generations(layout);
    memset(symbol, 0, layout->symbol_bytes);
    if (index < count) {
        memcpy(symbol, object + (size_t)index * layout->symbol_bytes, part_of(layout, index));
        return;
    }
    tm_key key = key_of(name);
    uint8_t factors[16];
    uint32_t j = 0;
    for (uint32_t at = tm_layout_generation(layout, index); at < count; at += step, j++) {
        if (j % 16 == 0) {
            coefficients(key, index, j, factors);
        }
        tm_gf_add(symbol, factors[j % 16], object + (size_t)at * layout->symbol_bytes,
                  part_of(layout, at));
    }
}

/* ---- Collecting ---- */

static size_t width_of(const tm_layout *layout, uint32_t generation) {
    return tm_layout_sources(layout, generation) + (size_t)layout->symbol_bytes;
}

size_t tm_collector_room(const tm_layout *layout, uint32_t generation) {
    size_t rows = tm_layout_sources(layout, generation) + (size_t)1;
    return rows * width_of(layout, generation) + TM_GENERATION_MAX;
}

tm_result tm_collector_init(tm_collector *collector, const tm_layout *layout, const uint8_t name[4],
                            uint32_t generation, uint8_t *memory, size_t room) {
    if (tm_layout_check(layout) != TM_OK || generation >= tm_layout_generations(layout)) {
        return TM_SYMBOL;
    }
    if (room < tm_collector_room(layout, generation)) {
        return TM_ROOM;
    }
    collector->layout = *layout;
    memcpy(collector->name, name, 4);
    collector->generation = generation;
    collector->pivots = memory;
    collector->row = memory + TM_GENERATION_MAX;
    collector->rows = collector->row + width_of(layout, generation);
    collector->held = 0;
    return TM_OK;
}

uint32_t tm_collector_missing(const tm_collector *collector) {
    return tm_layout_sources(&collector->layout, collector->generation) - collector->held;
}

static void coefficient_row(const tm_collector *collector, uint16_t index, uint32_t sources,
                            uint8_t *row) {
    memset(row, 0, sources);
    if (index < tm_layout_count(&collector->layout)) {
        row[index / tm_layout_generations(&collector->layout)] = 1;
        return;
    }
    tm_key key = key_of(collector->name);
    uint8_t factors[16];
    for (uint32_t j = 0; j < sources; j++) {
        if (j % 16 == 0) {
            coefficients(key, index, j, factors);
        }
        row[j] = factors[j % 16];
    }
}

tm_result tm_collector_add(tm_collector *collector, uint16_t index, const uint8_t *symbol,
                           size_t size, bool *is_new) {
    const tm_layout *layout = &collector->layout;
    uint8_t *row = collector->row;
    *is_new = false;
    if (size != layout->symbol_bytes || tm_layout_generation(layout, index) != collector->generation) {
        return TM_SYMBOL;
    }
    uint32_t sources = tm_layout_sources(layout, collector->generation), pivot = 0;
    size_t width = sources + size;
    if (collector->held == sources) {
        return TM_OK;
    }
    coefficient_row(collector, index, sources, row);
    memcpy(row + sources, symbol, size);
    for (unsigned r = 0; r < collector->held; r++) {
        tm_gf_add(row, row[collector->pivots[r]], collector->rows + r * width, width);
    }
    while (pivot < sources && !row[pivot]) {
        pivot++;
    }
    if (pivot == sources) {
        return TM_OK; /* it depends on those that are there */
    }
    uint8_t *own = collector->rows + collector->held * width;
    memset(own, 0, width);
    tm_gf_add(own, inverse(row[pivot]), row, width);
    for (unsigned r = 0; r < collector->held; r++) {
        uint8_t *other = collector->rows + r * width;
        tm_gf_add(other, other[pivot], own, width);
    }
    collector->pivots[collector->held++] = (uint8_t)pivot;
    *is_new = true;
    return TM_OK;
}

void tm_collector_write(const tm_collector *collector, uint8_t *object) {
    const tm_layout *layout = &collector->layout;
    uint32_t sources = tm_layout_sources(layout, collector->generation);
    size_t width = sources + (size_t)layout->symbol_bytes;
    for (unsigned r = 0; r < collector->held; r++) {
        uint32_t source = collector->pivots[r] * tm_layout_generations(layout) + collector->generation;
        memcpy(object + (size_t)source * layout->symbol_bytes,
               collector->rows + r * width + sources, part_of(layout, source));
    }
}
