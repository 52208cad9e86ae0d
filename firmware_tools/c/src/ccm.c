/* AES-128 (FIPS 197, encryption only) and CCM with a tag of 8 bytes and a nonce of 13 (RFC 3610). */
#include <string.h>

#include "ternmesh.h"

static const uint8_t SBOX[256] = {
    0x63, 0x7c, 0x77, 0x7b, 0xf2, 0x6b, 0x6f, 0xc5, 0x30, 0x01, 0x67, 0x2b, 0xfe, 0xd7, 0xab, 0x76,
    0xca, 0x82, 0xc9, 0x7d, 0xfa, 0x59, 0x47, 0xf0, 0xad, 0xd4, 0xa2, 0xaf, 0x9c, 0xa4, 0x72, 0xc0,
    0xb7, 0xfd, 0x93, 0x26, 0x36, 0x3f, 0xf7, 0xcc, 0x34, 0xa5, 0xe5, 0xf1, 0x71, 0xd8, 0x31, 0x15,
    0x04, 0xc7, 0x23, 0xc3, 0x18, 0x96, 0x05, 0x9a, 0x07, 0x12, 0x80, 0xe2, 0xeb, 0x27, 0xb2, 0x75,
    0x09, 0x83, 0x2c, 0x1a, 0x1b, 0x6e, 0x5a, 0xa0, 0x52, 0x3b, 0xd6, 0xb3, 0x29, 0xe3, 0x2f, 0x84,
    0x53, 0xd1, 0x00, 0xed, 0x20, 0xfc, 0xb1, 0x5b, 0x6a, 0xcb, 0xbe, 0x39, 0x4a, 0x4c, 0x58, 0xcf,
    0xd0, 0xef, 0xaa, 0xfb, 0x43, 0x4d, 0x33, 0x85, 0x45, 0xf9, 0x02, 0x7f, 0x50, 0x3c, 0x9f, 0xa8,
    0x51, 0xa3, 0x40, 0x8f, 0x92, 0x9d, 0x38, 0xf5, 0xbc, 0xb6, 0xda, 0x21, 0x10, 0xff, 0xf3, 0xd2,
    0xcd, 0x0c, 0x13, 0xec, 0x5f, 0x97, 0x44, 0x17, 0xc4, 0xa7, 0x7e, 0x3d, 0x64, 0x5d, 0x19, 0x73,
    0x60, 0x81, 0x4f, 0xdc, 0x22, 0x2a, 0x90, 0x88, 0x46, 0xee, 0xb8, 0x14, 0xde, 0x5e, 0x0b, 0xdb,
    0xe0, 0x32, 0x3a, 0x0a, 0x49, 0x06, 0x24, 0x5c, 0xc2, 0xd3, 0xac, 0x62, 0x91, 0x95, 0xe4, 0x79,
    0xe7, 0xc8, 0x37, 0x6d, 0x8d, 0xd5, 0x4e, 0xa9, 0x6c, 0x56, 0xf4, 0xea, 0x65, 0x7a, 0xae, 0x08,
    0xba, 0x78, 0x25, 0x2e, 0x1c, 0xa6, 0xb4, 0xc6, 0xe8, 0xdd, 0x74, 0x1f, 0x4b, 0xbd, 0x8b, 0x8a,
    0x70, 0x3e, 0xb5, 0x66, 0x48, 0x03, 0xf6, 0x0e, 0x61, 0x35, 0x57, 0xb9, 0x86, 0xc1, 0x1d, 0x9e,
    0xe1, 0xf8, 0x98, 0x11, 0x69, 0xd9, 0x8e, 0x94, 0x9b, 0x1e, 0x87, 0xe9, 0xce, 0x55, 0x28, 0xdf,
    0x8c, 0xa1, 0x89, 0x0d, 0xbf, 0xe6, 0x42, 0x68, 0x41, 0x99, 0x2d, 0x0f, 0xb0, 0x54, 0xbb, 0x16};

static uint8_t twice(uint8_t x) {
    return (uint8_t)(x << 1 ^ (x >> 7) * 0x1b);
}

static void set_key(void *context, const uint8_t key[16]) {
    uint8_t *w = ((tm_aes128 *)context)->round_keys, round = 1;
    memcpy(w, key, 16);
    for (unsigned i = 16; i < 176; i += 4) {
        uint8_t t[4] = {w[i - 4], w[i - 3], w[i - 2], w[i - 1]};
        if (i % 16 == 0) {
            uint8_t first = t[0];
            t[0] = (uint8_t)(SBOX[t[1]] ^ round);
            t[1] = SBOX[t[2]];
            t[2] = SBOX[t[3]];
            t[3] = SBOX[first];
            round = twice(round);
        }
        for (unsigned j = 0; j < 4; j++) {
            w[i + j] = w[i + j - 16] ^ t[j];
        }
    }
}

static void encrypt(void *context, const uint8_t in[16], uint8_t out[16]) {
    const uint8_t *w = ((const tm_aes128 *)context)->round_keys;
    uint8_t s[16], t[16];
    for (unsigned i = 0; i < 16; i++) {
        s[i] = in[i] ^ w[i];
    }
    for (unsigned round = 1; round <= 10; round++) {
        for (unsigned i = 0; i < 16; i++) {
            t[i] = SBOX[s[(i + 4 * (i % 4)) % 16]]; /* SubBytes and ShiftRows */
        }
        w += 16;
        for (unsigned i = 0; i < 16; i += 4) {
            uint8_t all = t[i] ^ t[i + 1] ^ t[i + 2] ^ t[i + 3], first = t[i];
            for (unsigned j = i; j < i + 4 && round < 10; j++) { /* MixColumns */
                uint8_t next = j == i + 3 ? first : t[j + 1];
                s[j] = (uint8_t)(t[j] ^ all ^ twice(t[j] ^ next));
            }
            for (unsigned j = i; j < i + 4; j++) {
                s[j] = (round < 10 ? s[j] : t[j]) ^ w[j];
            }
        }
    }
    memcpy(out, s, 16);
}

tm_aes tm_aes128_portable(tm_aes128 *context) {
    tm_aes aes = {context, set_key, encrypt};
    return aes;
}

tm_nonce tm_nonce_of(uint16_t address, uint64_t counter) {
    tm_nonce nonce = {{(uint8_t)address, (uint8_t)(address >> 8)}};
    for (unsigned i = 0; i < 8; i++) {
        nonce.bytes[2 + i] = (uint8_t)(counter >> 8 * i);
    }
    return nonce;
}

/* The state of the CBC-MAC: what was mixed in, and how much of a block it is. */
typedef struct {
    const tm_aes *aes;
    uint8_t block[16];
    unsigned at;
} Mac;

static void mac_add(Mac *mac, const uint8_t *data, size_t size) {
    for (size_t i = 0; i < size; i++) {
        mac->block[mac->at++] ^= data[i];
        if (mac->at == 16) {
            mac->aes->encrypt(mac->aes->context, mac->block, mac->block);
            mac->at = 0;
        }
    }
}

static void mac_pad(Mac *mac) {
    if (mac->at) {
        mac->aes->encrypt(mac->aes->context, mac->block, mac->block);
        mac->at = 0;
    }
}

static void block_of(uint8_t block[16], uint8_t flags, const tm_nonce *nonce, size_t number) {
    block[0] = flags;
    memcpy(block + 1, nonce->bytes, 13);
    block[14] = (uint8_t)(number >> 8);
    block[15] = (uint8_t)number;
}

static void mac_begin(Mac *mac, const tm_aes *aes, const tm_nonce *nonce, const tm_associated *with,
                      size_t size) {
    size_t run = with->run ? TM_RUN_SIZE : 0, all = with->head_size + run;
    uint8_t first[16];
    mac->aes = aes;
    mac->at = 0;
    memset(mac->block, 0, 16);
    block_of(first, all ? 0x59 : 0x19, nonce, size); /* a tag of 8 bytes, a length of 2 */
    mac_add(mac, first, 16);
    if (all) {
        uint8_t length[2] = {(uint8_t)(all >> 8), (uint8_t)all};
        mac_add(mac, length, 2);
        mac_add(mac, with->head, with->head_size);
        mac_add(mac, with->run, run);
        mac_pad(mac);
    }
}

static void key_stream(const tm_aes *aes, const tm_nonce *nonce, size_t number, uint8_t out[16]) {
    uint8_t counter[16];
    block_of(counter, 0x01, nonce, number);
    aes->encrypt(aes->context, counter, out);
}

/* Encrypt or decrypt. */
static void crypt(const tm_aes *aes, const tm_nonce *nonce, const uint8_t *in, size_t size,
                  uint8_t *out) {
    uint8_t stream[16];
    for (size_t i = 0; i < size; i++) {
        if (i % 16 == 0) {
            key_stream(aes, nonce, i / 16 + 1, stream);
        }
        out[i] = in[i] ^ stream[i % 16];
    }
    tm_wipe(stream, sizeof stream);
}

static void mac_end(Mac *mac, const tm_nonce *nonce, uint8_t tag[TM_TAG_SIZE]) {
    uint8_t stream[16];
    mac_pad(mac);
    key_stream(mac->aes, nonce, 0, stream);
    for (unsigned i = 0; i < TM_TAG_SIZE; i++) {
        tag[i] = mac->block[i] ^ stream[i];
    }
    tm_wipe(mac, sizeof *mac);
    tm_wipe(stream, sizeof stream);
}

void tm_ccm_seal(const tm_aes *aes, const tm_nonce *nonce, const tm_associated *associated,
                 const uint8_t *body, size_t size, uint8_t *out) {
    Mac mac;
    mac_begin(&mac, aes, nonce, associated, size);
    mac_add(&mac, body, size);
    crypt(aes, nonce, body, size, out);
    mac_end(&mac, nonce, out + size);
}

tm_result tm_ccm_open(const tm_aes *aes, const tm_nonce *nonce, const tm_associated *associated,
                      const uint8_t *sealed, size_t size, uint8_t *out) {
    Mac mac;
    uint8_t tag[TM_TAG_SIZE], block[16], different = 0;
    if (size < TM_TAG_SIZE) {
        return TM_SEAL;
    }
    size -= TM_TAG_SIZE;
    mac_begin(&mac, aes, nonce, associated, size);
    for (size_t at = 0; at < size; at += 16) { /* first only for the tag: `out` may be `sealed` */
        size_t part = size - at;
        part = part < 16 ? part : 16;
        key_stream(aes, nonce, at / 16 + 1, block);
        for (size_t i = 0; i < part; i++) {
            block[i] ^= sealed[at + i];
        }
        mac_add(&mac, block, part);
    }
    tm_wipe(block, sizeof block);
    mac_end(&mac, nonce, tag);
    for (unsigned i = 0; i < TM_TAG_SIZE; i++) { /* in constant time */
        different |= tag[i] ^ sealed[size + i];
    }
    if (different) {
        return TM_SEAL;
    }
    crypt(aes, nonce, sealed, size, out);
    return TM_OK;
}
