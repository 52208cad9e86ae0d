/* Chunks: the generator, the permutation, the code and the codebook. SPEC.md sections 2 and 4.1. */
#include <string.h>

#include "ternmesh.h"

/* ---- The generator (2.1) ---- */

static uint32_t little(const uint8_t *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

void tm_key_begin(tm_sha256 *hash, const char *label) {
    tm_sha256_init(hash);
    tm_key_add(hash, (const uint8_t *)label, (uint16_t)strlen(label));
}

void tm_key_add(tm_sha256 *hash, const uint8_t *part, uint16_t size) {
    uint8_t length[2] = {(uint8_t)size, (uint8_t)(size >> 8)};
    tm_sha256_add(hash, length, 2);
    tm_sha256_add(hash, part, size);
}

tm_key tm_key_end(tm_sha256 *hash) {
    uint8_t digest[32];
    tm_sha256_end(hash, digest);
    tm_key key = {little(digest), little(digest + 4)};
    return key;
}

void tm_philox(tm_key key, uint64_t block, uint32_t words[4]) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = 0, c3 = 0;
    for (unsigned round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)0xD2511F53 * c0, q = (uint64_t)0xCD9E8D57 * c2;
        c0 = (uint32_t)(q >> 32) ^ c1 ^ key.k0;
        c2 = (uint32_t)(p >> 32) ^ c3 ^ key.k1;
        c1 = (uint32_t)q;
        c3 = (uint32_t)p;
        key.k0 += 0x9E3779B9;
        key.k1 += 0xBB67AE85;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* ---- The permutation (2.2) ---- */

void tm_order_init(tm_order *order, const uint8_t model_hash[32], uint32_t round,
                   uint32_t dimension) {
    tm_sha256 hash;
    uint8_t number[4], bits = 0;
    for (unsigned i = 0; i < 4; i++) {
        number[i] = (uint8_t)(round >> 8 * i);
    }
    tm_key_begin(&hash, "order");
    tm_key_add(&hash, model_hash, 32);
    tm_key_add(&hash, number, 4);
    tm_key key = tm_key_end(&hash);
    tm_philox(key, 0, order->keys);
    tm_philox(key, 1, order->keys + 4);
    while ((dimension - 1) >> bits) {
        bits++;
    }
    bits = bits < 2 ? 2 : bits;
    order->dimension = dimension;
    order->low_bits = (uint8_t)((bits + 1) / 2);
    order->high_bits = (uint8_t)(bits / 2);
}

static uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x85EBCA6B;
    x = (x ^ x >> 13) * 0xC2B2AE35;
    return x ^ x >> 16;
}

uint32_t tm_order_at(const tm_order *order, uint32_t i) {
    if (i >= order->dimension) {
        return order->dimension; /* the walk might never come back into the vector */
    }
    uint32_t low_mask = ((uint32_t)1 << order->low_bits) - 1;
    uint32_t high_mask = ((uint32_t)1 << order->high_bits) - 1;
    do {
        uint32_t h = i >> order->low_bits, l = i & low_mask;
        for (unsigned n = 0; n < 8; n += 2) {
            h ^= mix(l + order->keys[n]) & high_mask;
            l ^= mix(h + order->keys[n + 1]) & low_mask;
        }
        i = h << order->low_bits | l;
    } while (i >= order->dimension);
    return i;
}

/* ---- The head of a chunk (4.1) and its scale (2.3) ---- */

tm_result tm_scale_decode(uint16_t code, uint32_t *units) {
    unsigned exponent = code >> TM_MANTISSA_BITS;
    uint32_t mantissa = code & (((uint32_t)1 << TM_MANTISSA_BITS) - 1);
    if (exponent > TM_EXPONENT_MAX || (exponent && mantissa >> (TM_MANTISSA_BITS - 1) == 0)) {
        return TM_SCALE;
    }
    *units = mantissa << exponent;
    return TM_OK;
}

static uint16_t short_at(const uint8_t *bytes) {
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

tm_result tm_chunk_read(tm_chunk *chunk, const uint8_t *body, size_t size) {
    uint32_t units = 0;
    if (size < TM_CHUNK_HEAD_SIZE || size > TM_BODY_MAX || body[0] != TM_CHUNK_KIND) {
        return TM_LENGTH;
    }
    chunk->round_low = short_at(body + 1);
    chunk->index = short_at(body + 3);
    chunk->scale = short_at(body + 5);
    chunk->count = short_at(body + 7);
    chunk->coding = body[9];
    chunk->data = body + TM_CHUNK_HEAD_SIZE;
    chunk->data_size = size - TM_CHUNK_HEAD_SIZE;
    tm_result result = tm_scale_decode(chunk->scale, &units);
    if (result == TM_OK && (chunk->count == 0) != (units == 0)) {
        return TM_SCALE;
    }
    return result;
}

tm_result tm_slice_size(uint32_t dimension, uint32_t span, uint16_t index, size_t *size) {
    if (!span || (uint64_t)index * span >= dimension) {
        return TM_VECTOR;
    }
    uint32_t left = dimension - index * span;
    *size = left < span ? left : span;
    return TM_OK;
}

/* ---- The code (2.5) ---- */

typedef struct {
    const uint8_t *data;
    uint32_t at, end; /* in bits */
} Bits;

static unsigned next_bit(Bits *bits) {
    unsigned bit = bits->data[bits->at / 8] >> bits->at % 8 & 1u;
    bits->at++;
    return bit;
}

/* Zeros until a one; false where the data end before it. */
static bool read_unary(Bits *bits, uint32_t *number) {
    for (uint32_t zeros = 0; bits->at < bits->end; zeros++) {
        if (next_bit(bits)) {
            *number = zeros;
            return true;
        }
    }
    return false;
}

static tm_result decode_sparse(const tm_chunk *chunk, int8_t *values, size_t size) {
    unsigned rice = chunk->coding & TM_RICE_MAX;
    uint32_t all = (uint32_t)chunk->data_size * 8, number = 0;
    Bits low = {chunk->data, 0, all};
    for (uint32_t i = 0; i < chunk->count; i++) { /* the remainders begin behind the quotients */
        if (!read_unary(&low, &number)) {
            return TM_CODING;
        }
    }
    uint32_t fixed = (uint32_t)chunk->count * (rice + 1);
    if (fixed > all - low.at) {
        return TM_CODING;
    }
    Bits quotients = {chunk->data, 0, all};
    Bits signs = {chunk->data, low.at + chunk->count * rice, all};
    uint32_t place = 0;
    memset(values, 0, size);
    for (uint32_t i = 0; i < chunk->count; i++, place++) {
        (void)read_unary(&quotients, &number); /* it was read before */
        number <<= rice;
        for (unsigned bit = 0; bit < rice; bit++) {
            number |= next_bit(&low) << bit;
        }
        place += number;
        if (place >= size) {
            return TM_CODING;
        }
        values[place] = next_bit(&signs) ? -1 : 1;
    }
    if ((signs.at + 7) / 8 != chunk->data_size) {
        return TM_CODING;
    }
    while (signs.at < all) { /* padding */
        if (next_bit(&signs)) {
            return TM_CODING;
        }
    }
    return TM_OK;
}

static tm_result decode_dense(const tm_chunk *chunk, int8_t *values, size_t size) {
    if (chunk->data_size != (size + 4) / 5) {
        return TM_TRITS;
    }
    size_t count = 0;
    for (size_t i = 0; i < chunk->data_size; i++) {
        unsigned code = chunk->data[i];
        if (code >= 243) {
            return TM_TRITS;
        }
        for (size_t place = 5 * i; place < 5 * i + 5; place++, code /= 3) {
            if (place >= size) {
                if (code % 3 != 1) {
                    return TM_TRITS;
                }
                continue;
            }
            values[place] = (int8_t)((int)(code % 3) - 1);
            count += values[place] != 0;
        }
    }
    return count == chunk->count ? TM_OK : TM_CODING;
}

static unsigned parity(uint32_t x) {
    x ^= x >> 16;
    x ^= x >> 8;
    x ^= x >> 4;
    return 0x6996u >> (x & 15) & 1;
}

static tm_result decode_codebook(const tm_chunk *chunk, int8_t *values, size_t size) {
    static const tm_key key = {TM_CODEBOOK_KEY_0, TM_CODEBOOK_KEY_1};
    size_t names = chunk->data_size / 2;
    if (chunk->count != size || !names || chunk->data_size % 2) {
        return TM_CODING;
    }
    size_t span = (size + names - 1) / names;
    if (!size || span > TM_SPAN_MAX || names != (size + span - 1) / span) {
        return TM_CODING;
    }
    unsigned rows = 0; /* the logarithm of their number */
    while ((span - 1) >> rows) {
        rows++;
    }
    rows = rows ? rows : 1;
    uint32_t words[4] = {0}, loaded = UINT32_MAX;
    for (size_t i = 0; i < size; i++) {
        unsigned name = short_at(chunk->data + 2 * (i / span));
        uint32_t j = (uint32_t)(i % span), row = name >> 1 & ((1u << rows) - 1);
        uint32_t bit = ((uint32_t)(name >> 1) >> rows << rows) + j;
        if (bit / 128 != loaded) {
            loaded = bit / 128;
            tm_philox(key, loaded, words);
        }
        unsigned sign = words[bit / 32 % 4] >> bit % 32 & 1;
        values[i] = (name ^ parity(row & j) ^ sign) & 1 ? -1 : 1;
    }
    return TM_OK;
}

tm_result tm_chunk_decode(const tm_chunk *chunk, int8_t *values, size_t size) {
    if (chunk->count > size) {
        return TM_CODING;
    }
    if (chunk->coding == TM_DENSE) {
        return decode_dense(chunk, values, size);
    }
    if (chunk->coding == TM_CODEBOOK) {
        return decode_codebook(chunk, values, size);
    }
    if (chunk->coding & ~TM_RICE_MAX) {
        return TM_CODING;
    }
    return decode_sparse(chunk, values, size);
}
