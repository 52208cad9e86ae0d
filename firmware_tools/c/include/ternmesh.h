/* ternmesh for microcontrollers: frames, seals, chunks, symbols and serial framing.
 *
 * C99 without malloc, recursion, variable-length arrays or global state that changes. All memory is
 * the caller's; every function says how much it needs. Buffers may overlap only where that is said.
 * Numbers on the wire are little-endian. What the bytes mean is in docs/SPEC.md; the constants
 * are made of those of the Python program (ternmesh_constants.h).
 *
 * A function that reads what came over the air returns a tm_result. TM_OK is 0; any other result
 * has changed nothing but outputs, and its reason is the one that Python counts.
 */
#ifndef TERNMESH_H
#define TERNMESH_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ternmesh_constants.h"

#if UINT_MAX < 0xFFFFFFFF
#error "int must have 32 bits: AVR boards are too small"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    TM_OK = 0,
    TM_LENGTH,  /* the size of a frame or body is impossible */
    TM_VERSION, /* another version of the wire, or a reserved bit is set */
    TM_SUITE,   /* another seal suite than expected */
    TM_SEAL,    /* the tag is wrong: damaged, forged, or sealed with another key */
    TM_REPLAY,  /* a counter that was used, or that is older than the window */
    TM_CLONE,   /* a used counter with another tag: two senders have one key */
    TM_CODING,  /* the code of a chunk is not canonical or ends early */
    TM_TRITS,   /* a dense chunk with bytes that are no trits */
    TM_SCALE,   /* a scale that is not canonical, or does not fit the count */
    TM_SYMBOL,  /* a symbol or layout of an impossible size */
    TM_VECTOR,  /* a slice that the vector does not have */
    TM_ROLE,    /* an address that this function is not for */
    TM_KEY,     /* an identity or key that no session can be made with */
    TM_ROOM     /* a buffer of the caller's is too small: never the sender's fault */
} tm_result;

/* The reason in SPEC.md section 6.6, for example "coding"; "" for TM_OK, "room" for TM_ROOM. */
const char *tm_reason(tm_result result);

/* ---- Frames (SPEC.md section 3) ------------------------------------------------------------- */

typedef struct {
    uint16_t address;
    uint32_t counter; /* the low 24 bits of the sender's */
    uint8_t suite;
    uint8_t key_phase; /* the low bit of a broadcast key's epoch */
} tm_header;

/* Read the header of `frame`, which is not authenticated by this.
 * TM_LENGTH, TM_VERSION, or TM_SUITE for a suite that does not exist. */
tm_result tm_header_read(tm_header *header, const uint8_t *frame, size_t size);

/* Write TM_HEAD_SIZE bytes. Suite, key phase and counter must fit their 3, 1 and 24 bits. */
void tm_header_write(uint8_t *frame, const tm_header *header);

/* Suite 0: a frame of TM_HEAD_SIZE + body_size + TM_TAG_SIZE bytes; its tag detects damage only.
 * `body` may be frame + TM_HEAD_SIZE. The header's suite is not looked at. Returns the size of the
 * frame; 0 where the body does not have 1 to TM_BODY_MAX bytes. */
size_t tm_plain_seal(uint8_t *frame, const tm_header *header, const uint8_t *body,
                     size_t body_size);

/* The body is at frame + TM_HEAD_SIZE, *body_size bytes. TM_LENGTH, TM_VERSION, TM_SUITE, TM_SEAL. */
tm_result tm_plain_open(tm_header *header, const uint8_t *frame, size_t size, size_t *body_size);

/* ---- AES-128-CCM, tag of 8 bytes (RFC 3610) ------------------------------------------------- */

/* A block cipher: the portable one below, or a driver of the chip's own AES unit. The key is set
 * before each frame, so one unit may serve all traffic. `set_key` must copy the key; `encrypt` is
 * called with in == out, too. */
typedef struct {
    void *context;
    void (*set_key)(void *context, const uint8_t key[16]);
    void (*encrypt)(void *context, const uint8_t in[16], uint8_t out[16]);
} tm_aes;

typedef struct {
    uint8_t round_keys[176];
} tm_aes128;

/* The portable cipher: 256 bytes of table. It is not constant in time on a CPU with a data cache. */
tm_aes tm_aes128_portable(tm_aes128 *context);

typedef struct {
    uint8_t bytes[13];
} tm_nonce;

/* Of a frame with this address and whole counter. */
tm_nonce tm_nonce_of(uint16_t address, uint64_t counter);

/* What the tag covers besides the body: two parts, of which the second may be empty. */
typedef struct {
    const uint8_t *head;
    size_t head_size;
    const uint8_t *run; /* TM_RUN_SIZE bytes that do not travel (R3-10), or NULL */
} tm_associated;

/* Write size + TM_TAG_SIZE bytes to `out`, which may be `body`. The key must be set, and the nonce
 * never used with it. At most TM_BODY_MAX bytes. */
void tm_ccm_seal(const tm_aes *aes, const tm_nonce *nonce, const tm_associated *associated,
                 const uint8_t *body, size_t size, uint8_t *out);

/* Write size - TM_TAG_SIZE bytes to `out`, which may be `sealed`, if the tag is right: TM_SEAL, and
 * nothing is written, if it is not. */
tm_result tm_ccm_open(const tm_aes *aes, const tm_nonce *nonce, const tm_associated *associated,
                      const uint8_t *sealed, size_t size, uint8_t *out);

/* ---- The replay window (SPEC.md section 9.4) ------------------------------------------------ */

typedef struct {
    uint64_t highest;
    uint8_t seen[TM_WINDOW / 8]; /* bit `counter mod TM_WINDOW` */
    uint8_t (*marks)[4];         /* TM_WINDOW of them, or NULL: a clone is then a TM_REPLAY */
} tm_window;

/* A window near whose `highest` the first counter will be. */
void tm_window_init(tm_window *window, uint64_t highest, uint8_t (*marks)[4]);

/* The counter nearest to `near` whose low 24 bits are `low`. */
uint64_t tm_whole_counter(uint64_t near_to, uint32_t low);

/* Enter a frame whose tag was checked. TM_REPLAY, TM_CLONE. */
tm_result tm_window_take(tm_window *window, uint64_t counter, const uint8_t *tag);

/* ---- Sessions (SPEC.md sections 9.2 and 9.3) ------------------------------------------------ */

/* One direction of a session: the secret from which the key of each 2^20 frames follows. */
typedef struct {
    uint8_t secret[32];
    uint8_t key[16];
    uint64_t generation; /* of the key */
    bool has_key;
    tm_aes aes;
} tm_traffic;

void tm_traffic_init(tm_traffic *traffic, const uint8_t secret[32], tm_aes aes);

/* A frame of TM_HEAD_SIZE + body_size + TM_TAG_SIZE bytes. `counter` must never have been used with
 * this secret, also not before a restart (R3-7). `body` may be frame + TM_HEAD_SIZE. Returns the
 * size of the frame; 0 for a body that does not have 1 to TM_BODY_MAX bytes, and for the addresses
 * TM_UNASSIGNED and TM_BROADCAST, which have keys of their own. */
size_t tm_keyed_seal(tm_traffic *traffic, const tm_header *header, uint64_t counter,
                     const uint8_t *run, const uint8_t *body, size_t body_size, uint8_t *frame);

/* Open a frame of suite `suite` and enter it into the window. `body` takes size - TM_FRAME_OVERHEAD
 * bytes and may be frame + TM_HEAD_SIZE; it is written only where the tag is right. `run` is NULL but
 * in a run's frames between host and node (R3-10).
 * TM_OK proves that the peer of this session has sealed the frame, not that it may use the address
 * in the header (R9.1-1): compare that with the one it was given. TM_ROLE: TM_UNASSIGNED and
 * TM_BROADCAST have other keys. TM_LENGTH, TM_VERSION, TM_SUITE, TM_SEAL, TM_REPLAY, TM_CLONE. */
tm_result tm_keyed_open(tm_traffic *traffic, tm_window *window, uint8_t suite, const uint8_t *run,
                        const uint8_t *frame, size_t size, tm_header *header, uint8_t *body);

/* X25519 (RFC 7748): shared = scalar * point. Monocypher's crypto_x25519 fits. */
typedef void (*tm_x25519)(uint8_t shared[32], const uint8_t scalar[32], const uint8_t point[32]);

typedef struct {
    const uint8_t *identity; /* the bytes of SPEC.md section 9.1; the X25519 key is at their end */
    size_t identity_size;    /* TM_IDENTITY_MIN to TM_IDENTITY_MAX */
    uint8_t ephemeral[32];   /* the public key of the process */
} tm_end;

/* The secrets of both directions, 32 bytes each. `own_static` and `own_ephemeral` are private keys;
 * `suite` is 1 or 2. TM_KEY for an identity of an impossible size, and for a key of small order: the
 * secrets are then not written. */
tm_result tm_session_secrets(tm_x25519 x25519, uint8_t suite, const uint8_t fleet[16], const tm_end *own,
                        const uint8_t own_static[32], const uint8_t own_ephemeral[32],
                        const tm_end *peer, uint8_t outgoing[32], uint8_t incoming[32]);

/* At most 8,160 bytes (RFC 5869). `out` must not overlap the others. */
void tm_hkdf(const uint8_t *secret, size_t secret_size, const uint8_t *salt, size_t salt_size,
             const uint8_t *info, size_t info_size, uint8_t *out, size_t size);

/* Overwrite a secret that is needed no more. */
void tm_wipe(void *secret, size_t size);

/* ---- SHA-256 (FIPS 180-4) ------------------------------------------------------------------- */

typedef struct {
    uint32_t state[8];
    uint64_t size;
    uint8_t block[64];
} tm_sha256;

void tm_sha256_init(tm_sha256 *hash);
void tm_sha256_add(tm_sha256 *hash, const void *data, size_t size);
void tm_sha256_end(tm_sha256 *hash, uint8_t digest[32]);

/* ---- The generator and the permutation (SPEC.md sections 2.1 and 2.2) ----------------------- */

typedef struct {
    uint32_t k0, k1;
} tm_key;

/* The key of a label and of parts, each behind its u16 length. */
void tm_key_begin(tm_sha256 *hash, const char *label);
void tm_key_add(tm_sha256 *hash, const uint8_t *part, uint16_t size);
tm_key tm_key_end(tm_sha256 *hash);

/* Words 4 * block to 4 * block + 3 of the stream of a key. */
void tm_philox(tm_key key, uint64_t block, uint32_t words[4]);

typedef struct {
    uint32_t keys[8];
    uint32_t dimension;
    uint8_t low_bits, high_bits;
} tm_order;

/* The permutation of `dimension` (1 to 2^24) coordinates in a round. */
void tm_order_init(tm_order *order, const uint8_t model_hash[32], uint32_t round,
                   uint32_t dimension);

/* The coordinate at position i; the dimension itself where i is not below it. */
uint32_t tm_order_at(const tm_order *order, uint32_t i);

/* ---- Chunks (SPEC.md sections 2.3 to 2.6 and 4.1) ------------------------------------------- */

typedef struct {
    uint16_t round_low;
    uint16_t index; /* of the slice */
    uint16_t scale;
    uint16_t count; /* of nonzeros */
    uint8_t coding;
    const uint8_t *data;
    size_t data_size;
} tm_chunk;

/* Read the head of a chunk's body. TM_LENGTH, TM_SCALE. */
tm_result tm_chunk_read(tm_chunk *chunk, const uint8_t *body, size_t size);

/* The value of a scale in units of 2^-24. TM_SCALE. */
tm_result tm_scale_decode(uint16_t code, uint32_t *units);

/* How many values slice `index` of a vector has, in a plan's span. TM_VECTOR where there is none:
 * an index comes over the air. Its first value is at position index * span. */
tm_result tm_slice_size(uint32_t dimension, uint32_t span, uint16_t index, size_t *size);

/* Decode a chunk to `size` values: -1, 0 and 1. TM_CODING, TM_TRITS: `values` is then undefined. */
tm_result tm_chunk_decode(const tm_chunk *chunk, int8_t *values, size_t size);

/* ---- The erasure code (SPEC.md section 8.1) -------------------------------------------------- */

typedef struct {
    uint32_t size;         /* of the object in bytes */
    uint16_t symbol_bytes; /* 1 to TM_SYMBOL_BYTES_MAX */
} tm_layout;

/* TM_SYMBOL for an empty object, or one of too many symbols. A layout comes over the air: the other
 * functions need one that was checked. */
tm_result tm_layout_check(const tm_layout *layout);

uint32_t tm_layout_count(const tm_layout *layout); /* of source symbols */
uint32_t tm_layout_generations(const tm_layout *layout);
uint32_t tm_layout_generation(const tm_layout *layout, uint16_t index);

/* Of the source symbols of a generation, which is below tm_layout_generations: at most
 * TM_GENERATION_MAX. */
uint32_t tm_layout_sources(const tm_layout *layout, uint32_t generation);

uint8_t tm_gf_multiply(uint8_t a, uint8_t b);

/* to += factor * from, over GF(256), byte by byte. */
void tm_gf_add(uint8_t *to, uint8_t factor, const uint8_t *from, size_t size);

/* The symbol with this index of an object that is held whole (layout->size bytes): what a relay sends
 * in its own right. Writes symbol_bytes bytes. */
void tm_symbol_make(const tm_layout *layout, const uint8_t name[4], const uint8_t *object,
                    uint16_t index, uint8_t *symbol);

/* Collects the symbols of one generation. Memory: count * (count + symbol_bytes) bytes of rows, in
 * which row r has a one in column pivots[r]. */
typedef struct {
    tm_layout layout;
    uint8_t name[4];
    uint32_t generation;
    uint8_t *rows;
    uint8_t *row;    /* one row: sources + symbol_bytes bytes */
    uint8_t *pivots; /* TM_GENERATION_MAX bytes */
    uint8_t held;    /* rows so far */
} tm_collector;

/* The bytes of memory that a generation needs: its rows, one more, and the pivots. */
size_t tm_collector_room(const tm_layout *layout, uint32_t generation);

/* Begin with no symbol. TM_SYMBOL for an impossible layout or generation, TM_ROOM where `memory` is
 * smaller than tm_collector_room. */
tm_result tm_collector_init(tm_collector *collector, const tm_layout *layout, const uint8_t name[4],
                            uint32_t generation, uint8_t *memory, size_t room);

/* How many more independent symbols it needs. */
uint32_t tm_collector_missing(const tm_collector *collector);

/* Add a symbol of this generation; *is_new tells whether it was independent of those before.
 * TM_SYMBOL for one of another size or generation. */
tm_result tm_collector_add(tm_collector *collector, uint16_t index, const uint8_t *symbol,
                           size_t size, bool *is_new);

/* Write the source symbols of a generation that lacks none to their places in the object. */
void tm_collector_write(const tm_collector *collector, uint8_t *object);

/* ---- Serial framing (SPEC.md section 7.3) ---------------------------------------------------- */

uint32_t tm_crc32(uint32_t crc, const uint8_t *data, size_t size); /* begin with crc 0 */

/* COBS of n bytes: at most n + n / 254 + 1. Returns the size. */
size_t tm_cobs_encode(const uint8_t *data, size_t n, uint8_t *out);

/* At most n - 1 bytes; `out` may be `encoded`. False where these bytes are not COBS. */
bool tm_cobs_decode(const uint8_t *encoded, size_t n, uint8_t *out, size_t *size);

/* A payload as it goes through a stream: zero, COBS of payload and CRC, zero. Returns the size. */
size_t tm_cobs_frame(const uint8_t *payload, size_t n, uint8_t *out);
#define TM_COBS_FRAME_MAX(n) ((n) + 4u + ((n) + 4u) / 254u + 3u)

/* A KISS command: at most 2 * n + 4 bytes. Returns the size. */
size_t tm_kiss_frame(uint8_t command, const uint8_t *data, size_t n, uint8_t *out);

/* Finds frames between delimiters, byte by byte. `room` must hold what is between two delimiters:
 * n + 4 + (n + 4) / 254 + 1 bytes for COBS payloads of n bytes, 2 * (n + 1) for KISS data of n. */
typedef struct {
    uint8_t *buffer;
    size_t room, size;
    bool is_overlong;
    uint32_t malformed; /* frames that were damaged and skipped */
} tm_unframer;

void tm_unframer_init(tm_unframer *unframer, uint8_t *buffer, size_t room);

/* Take one byte. True at the end of a sound frame: its payload is in the buffer, *size bytes, until
 * the next byte. For KISS the first byte of the buffer is the command. */
bool tm_cobs_feed(tm_unframer *unframer, uint8_t byte, size_t *size);
bool tm_kiss_feed(tm_unframer *unframer, uint8_t byte, size_t *size);

/* ---- Airtime (SPEC.md section 8.3) ------------------------------------------------------------ */

/* The time on air of a LoRa frame in microseconds: explicit header, CRC on. Spreading factor 7 to 12,
 * bandwidth 125, 250 or 500 kHz, coding rate 1 (4/5) to 4 (4/8), at most 255 bytes. */
uint32_t tm_airtime_us(uint8_t spreading_factor, uint16_t bandwidth_khz, uint8_t coding_rate,
                       uint16_t preamble_symbols, size_t bytes);

/* ---- A BLE link (SPEC.md section 7.4) --------------------------------------------------------- */

typedef struct {
    uint32_t at; /* in the stream */
    uint32_t order, sent_ms;
    uint16_t size;
    bool is_received, is_lost, is_first; /* is_first: sent once, so its round trip is known */
} tm_ble_sent;

/* One end of a link. Its fields are for the functions below, but for those named here. */
typedef struct {
    bool is_established; /* frames can pass */
    bool has_failed;     /* end the connection; tm_ble_connected begins the next */
    bool has_deadline;   /* call tm_ble_timeout at deadline_ms */
    uint32_t deadline_ms;
    uint32_t refused; /* values that fit no rule */
    uint32_t frames;  /* that the peer has not confirmed */

    bool is_initiator, has_session, is_paused, is_full;
    bool is_hello_due, is_ask_due, is_status_due;
    uint16_t session, last_session;
    uint32_t identity, peer_identity, since_ms, full_ms, patience_ms;
    /* out */
    uint8_t *ring;
    uint32_t ring_room, start, end, cut, taken, order;
    uint8_t credits, first, sent_head, sent_count, leaving;
    tm_ble_sent sent[TM_BLE_WINDOW];
    /* in */
    uint8_t *slots;
    size_t slot_room, slot_at, frame_size;
    uint8_t next, window, frame_head[2];
    uint16_t slot_sizes[TM_BLE_WINDOW];
    uint32_t frames_taken;
} tm_ble;

/* `identity` (not 0) and `session` are random, new at each start. The central of a link (the board) is
 * the initiator. `ring` holds frames until the peer has them: each takes its size and 2 bytes;
 * `ring_room` is a power of two.
 * `slots` has window * (value_max - 4) bytes: `window`, a power of two up to TM_BLE_WINDOW, is how many
 * values may come out of order, and value_max (19 to TM_BLE_VALUE_MAX) is the largest value of this
 * link: longer ones are not taken. */
void tm_ble_init(tm_ble *ble, bool is_initiator, uint32_t identity, uint16_t session, uint8_t *ring,
                 size_t ring_room, uint8_t *slots, uint8_t window, size_t value_max);

/* Times are in milliseconds of any steady clock, which may overflow. */
void tm_ble_connected(tm_ble *ble, uint32_t now);
void tm_ble_disconnected(tm_ble *ble);
void tm_ble_timeout(tm_ble *ble, uint32_t now);

/* Keep a frame for the peer; false where the ring has no room for it. */
bool tm_ble_offer(tm_ble *ble, const uint8_t *frame, size_t size);

/* Take no more values, or take them again. */
void tm_ble_pause(tm_ble *ble, bool is_paused);

/* A value has come; its bytes may be anything. Call tm_ble_frame until it returns 0 afterwards. */
void tm_ble_value(tm_ble *ble, const uint8_t *value, size_t size, uint32_t now);

/* The size of the next whole frame, or 0. `frame` keeps the begin of an unfinished one, so it must be
 * the same buffer each time. Of a frame that is longer than `room` only the begin is there. */
size_t tm_ble_frame(tm_ble *ble, uint8_t *frame, size_t room);

/* The next value that must leave, written to `out` (`value_max` bytes, at most that of tm_ble_init and
 * at least 19), or 0. */
size_t tm_ble_value_to_send(tm_ble *ble, uint8_t *out, size_t value_max, uint32_t now);

#ifdef __cplusplus
}
#endif
#endif
