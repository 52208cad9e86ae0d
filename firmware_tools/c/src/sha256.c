/* SHA-256, HMAC and HKDF: FIPS 180-4, RFC 2104, RFC 5869. */
#include <string.h>

#include "ternmesh.h"

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, unsigned bits) {
    return x >> bits | x << (32u - bits);
}

static void compress(uint32_t state[8], const uint8_t block[64]) {
    uint32_t w[16], v[8];
    memcpy(v, state, sizeof v);
    for (unsigned i = 0; i < 64; i++) {
        uint32_t word;
        if (i < 16) {
            const uint8_t *b = block + 4 * i;
            word = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
        } else {
            uint32_t a = w[(i + 1) % 16], b = w[(i + 14) % 16];
            uint32_t low = rotate(a, 7) ^ rotate(a, 18) ^ a >> 3;
            uint32_t high = rotate(b, 17) ^ rotate(b, 19) ^ b >> 10;
            word = w[i % 16] + low + w[(i + 9) % 16] + high;
        }
        w[i % 16] = word;
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t major = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t e = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        uint32_t a = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t one = v[7] + e + choice + K[i] + word, two = a + major;
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += one;
        v[0] = one + two;
    }
    for (unsigned i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

void tm_sha256_init(tm_sha256 *hash) {
    static const uint32_t begin[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, begin, sizeof begin);
    hash->size = 0;
}

void tm_sha256_add(tm_sha256 *hash, const void *data, size_t size) {
    const uint8_t *bytes = data;
    while (size) {
        size_t at = (size_t)(hash->size % 64), part = 64 - at;
        if (part > size) {
            part = size;
        }
        memcpy(hash->block + at, bytes, part);
        hash->size += part;
        bytes += part;
        size -= part;
        if (at + part == 64) {
            compress(hash->state, hash->block);
        }
    }
}

void tm_sha256_end(tm_sha256 *hash, uint8_t digest[32]) {
    size_t at = (size_t)(hash->size % 64);
    hash->block[at++] = 0x80;
    if (at > 56) {
        memset(hash->block + at, 0, 64 - at);
        compress(hash->state, hash->block);
        at = 0;
    }
    memset(hash->block + at, 0, 56 - at);
    uint64_t bits = hash->size * 8;
    for (unsigned i = 0; i < 8; i++) {
        hash->block[63 - i] = (uint8_t)(bits >> 8 * i);
    }
    compress(hash->state, hash->block);
    for (unsigned i = 0; i < 32; i++) {
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

typedef struct {
    tm_sha256 hash;
    uint8_t pad[64];
} Hmac;

static void hmac_begin(Hmac *hmac, const uint8_t *key, size_t size) {
    memset(hmac->pad, 0, sizeof hmac->pad);
    if (size > sizeof hmac->pad) {
        tm_sha256_init(&hmac->hash);
        tm_sha256_add(&hmac->hash, key, size);
        tm_sha256_end(&hmac->hash, hmac->pad);
    } else if (size) {
        memcpy(hmac->pad, key, size);
    }
    for (unsigned i = 0; i < 64; i++) {
        hmac->pad[i] ^= 0x36;
    }
    tm_sha256_init(&hmac->hash);
    tm_sha256_add(&hmac->hash, hmac->pad, sizeof hmac->pad);
}

static void hmac_end(Hmac *hmac, uint8_t tag[32]) {
    tm_sha256_end(&hmac->hash, tag);
    for (unsigned i = 0; i < 64; i++) {
        hmac->pad[i] ^= 0x36 ^ 0x5c;
    }
    tm_sha256_init(&hmac->hash);
    tm_sha256_add(&hmac->hash, hmac->pad, sizeof hmac->pad);
    tm_sha256_add(&hmac->hash, tag, 32);
    tm_sha256_end(&hmac->hash, tag);
}

void tm_wipe(void *secret, size_t size) {
    volatile uint8_t *bytes = secret; /* or the compiler would see that nobody reads the zeros */
    while (size--) {
        *bytes++ = 0;
    }
}

void tm_hkdf(const uint8_t *secret, size_t secret_size, const uint8_t *salt, size_t salt_size,
             const uint8_t *info, size_t info_size, uint8_t *out, size_t size) {
    Hmac hmac;
    uint8_t extracted[32], block[32];
    hmac_begin(&hmac, salt, salt_size);
    tm_sha256_add(&hmac.hash, secret, secret_size);
    hmac_end(&hmac, extracted);
    for (uint8_t number = 1; size; number++) {
        hmac_begin(&hmac, extracted, sizeof extracted);
        if (number > 1) {
            tm_sha256_add(&hmac.hash, block, sizeof block);
        }
        tm_sha256_add(&hmac.hash, info, info_size);
        tm_sha256_add(&hmac.hash, &number, 1);
        hmac_end(&hmac, block);
        size_t part = size < sizeof block ? size : sizeof block;
        memcpy(out, block, part);
        out += part;
        size -= part;
    }
    tm_wipe(&hmac, sizeof hmac);
    tm_wipe(extracted, sizeof extracted);
    tm_wipe(block, sizeof block);
}
