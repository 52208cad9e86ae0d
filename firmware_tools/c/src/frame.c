/* Frames, their seals, the replay window and sessions: SPEC.md sections 3, 9.2 and 9.4. */
#include <string.h>

#include "ternmesh.h"

const char *tm_reason(tm_result result) {
    static const char *const reasons[] = {"",      "length", "version", "suite",
                                          "seal",  "replay", "clone",   "coding",
                                          "trits", "scale",  "symbol",  "vector length",
                                          "role",  "unknown key", "room"};
    return reasons[result];
}

/* ---- The header ---- */

tm_result tm_header_read(tm_header *header, const uint8_t *frame, size_t size) {
    if (size < TM_FRAME_OVERHEAD + 1 || size > TM_FRAME_MAX) {
        return TM_LENGTH;
    }
    if (frame[0] >> 5 != TM_WIRE_VERSION || frame[0] & 1) {
        return TM_VERSION;
    }
    header->suite = frame[0] >> 2 & 7;
    header->key_phase = frame[0] >> 1 & 1;
    header->address = (uint16_t)(frame[1] | frame[2] << 8);
    header->counter = frame[3] | (uint32_t)frame[4] << 8 | (uint32_t)frame[5] << 16;
    return header->suite > TM_SUITE_HOP ? TM_SUITE : TM_OK;
}

static bool is_body(size_t size) {
    return size && size <= TM_BODY_MAX;
}

void tm_header_write(uint8_t *frame, const tm_header *header) {
    frame[0] = (uint8_t)(TM_WIRE_VERSION << 5 | (unsigned)header->suite << 2 |
                         (unsigned)header->key_phase << 1);
    frame[1] = (uint8_t)header->address;
    frame[2] = (uint8_t)(header->address >> 8);
    frame[3] = (uint8_t)header->counter;
    frame[4] = (uint8_t)(header->counter >> 8);
    frame[5] = (uint8_t)(header->counter >> 16);
}

static tm_result read_suite(tm_header *header, const uint8_t *frame, size_t size, uint8_t suite) {
    tm_result result = tm_header_read(header, frame, size);
    if (result == TM_OK && header->suite != suite) {
        return TM_SUITE;
    }
    return result;
}

/* ---- Suite 0 ---- */

static void checksum(const uint8_t *content, size_t size, uint8_t digest[32]) {
    tm_sha256 hash;
    tm_sha256_init(&hash);
    tm_sha256_add(&hash, content, size);
    tm_sha256_end(&hash, digest);
}

size_t tm_plain_seal(uint8_t *frame, const tm_header *header, const uint8_t *body,
                     size_t body_size) {
    uint8_t digest[32];
    size_t size = TM_HEAD_SIZE + body_size;
    tm_header open = *header;
    if (!is_body(body_size)) {
        return 0;
    }
    open.suite = TM_SUITE_OPEN;
    memmove(frame + TM_HEAD_SIZE, body, body_size); /* the body may be in place already */
    tm_header_write(frame, &open);
    checksum(frame, size, digest);
    memcpy(frame + size, digest, TM_TAG_SIZE);
    return size + TM_TAG_SIZE;
}

tm_result tm_plain_open(tm_header *header, const uint8_t *frame, size_t size, size_t *body_size) {
    uint8_t digest[32];
    tm_result result = read_suite(header, frame, size, TM_SUITE_OPEN);
    if (result != TM_OK) {
        return result;
    }
    checksum(frame, size - TM_TAG_SIZE, digest);
    if (memcmp(digest, frame + size - TM_TAG_SIZE, TM_TAG_SIZE) != 0) {
        return TM_SEAL;
    }
    *body_size = size - TM_FRAME_OVERHEAD;
    return TM_OK;
}

/* ---- The window ---- */

void tm_window_init(tm_window *window, uint64_t highest, uint8_t (*marks)[4]) {
    memset(window->seen, 0, sizeof window->seen);
    window->highest = highest;
    window->marks = marks;
    if (marks) {
        memset(marks, 0, TM_WINDOW * sizeof *marks);
    }
}

uint64_t tm_whole_counter(uint64_t near_to, uint32_t low) {
    const uint64_t span = (uint64_t)1 << TM_COUNTER_BITS, half = span / 2;
    uint64_t ahead = (low - near_to + half) % span; /* half more than the distance */
    uint64_t counter = near_to + ahead - half;
    if (ahead < half && half - ahead > near_to) { /* below zero */
        return counter + span;
    }
    if (ahead > half && counter < near_to) { /* above the highest */
        return counter - span;
    }
    return counter;
}

static bool seen(const tm_window *window, uint64_t counter) {
    return window->seen[counter % TM_WINDOW / 8] >> counter % 8 & 1;
}

tm_result tm_window_take(tm_window *window, uint64_t counter, const uint8_t *tag) {
    uint64_t place = counter % TM_WINDOW;
    if (counter > window->highest) {
        uint64_t ahead = counter - window->highest;
        if (ahead >= TM_WINDOW) {
            memset(window->seen, 0, sizeof window->seen);
        } else {
            for (uint64_t i = 1; i <= ahead; i++) {
                uint64_t between = (window->highest + i) % TM_WINDOW;
                window->seen[between / 8] &= (uint8_t) ~(1u << between % 8);
            }
        }
        window->highest = counter;
    } else if (window->highest - counter >= TM_WINDOW) {
        return TM_REPLAY;
    } else if (seen(window, counter)) {
        bool is_same = !window->marks || memcmp(window->marks[place], tag, 4) == 0;
        return is_same ? TM_REPLAY : TM_CLONE;
    }
    window->seen[place / 8] |= (uint8_t)(1u << place % 8);
    if (window->marks) {
        memcpy(window->marks[place], tag, 4);
    }
    return TM_OK;
}

/* ---- Sessions ---- */

void tm_traffic_init(tm_traffic *traffic, const uint8_t secret[32], tm_aes aes) {
    memcpy(traffic->secret, secret, 32);
    traffic->has_key = false;
    traffic->generation = 0;
    traffic->aes = aes;
}

/* The AES unit may have had another key since, or none after a deep sleep. */
static void set_key_of(tm_traffic *traffic, uint64_t counter) {
    static const uint8_t info[] = "ternmesh generation";
    uint64_t generation = counter >> TM_GENERATION_BITS;
    if (!traffic->has_key || traffic->generation != generation) {
        uint8_t salt[8];
        for (unsigned i = 0; i < 8; i++) {
            salt[i] = (uint8_t)(generation >> 8 * i);
        }
        tm_hkdf(traffic->secret, 32, salt, 8, info, sizeof info - 1, traffic->key, 16);
        traffic->generation = generation;
        traffic->has_key = true;
    }
    traffic->aes.set_key(traffic->aes.context, traffic->key);
}

static bool is_own_key(uint16_t address) {
    return address != TM_UNASSIGNED && address != TM_BROADCAST;
}

size_t tm_keyed_seal(tm_traffic *traffic, const tm_header *header, uint64_t counter,
                     const uint8_t *run, const uint8_t *body, size_t body_size, uint8_t *frame) {
    tm_header low = *header;
    tm_nonce nonce = tm_nonce_of(header->address, counter);
    tm_associated associated = {frame, TM_HEAD_SIZE, run};
    if (!is_body(body_size) || !is_own_key(header->address)) {
        return 0;
    }
    memmove(frame + TM_HEAD_SIZE, body, body_size);
    low.counter = (uint32_t)(counter & (((uint32_t)1 << TM_COUNTER_BITS) - 1));
    tm_header_write(frame, &low);
    set_key_of(traffic, counter);
    tm_ccm_seal(&traffic->aes, &nonce, &associated, frame + TM_HEAD_SIZE, body_size,
                frame + TM_HEAD_SIZE);
    return body_size + TM_FRAME_OVERHEAD;
}

tm_result tm_keyed_open(tm_traffic *traffic, tm_window *window, uint8_t suite, const uint8_t *run,
                        const uint8_t *frame, size_t size, tm_header *header, uint8_t *body) {
    tm_result result = read_suite(header, frame, size, suite);
    if (result != TM_OK) {
        return result;
    }
    if (!is_own_key(header->address)) {
        return TM_ROLE;
    }
    uint8_t tag[4];
    uint64_t counter = tm_whole_counter(window->highest, header->counter);
    tm_nonce nonce = tm_nonce_of(header->address, counter);
    tm_associated associated = {frame, TM_HEAD_SIZE, run};
    memcpy(tag, frame + size - TM_TAG_SIZE, 4); /* `body` may be inside `frame` */
    set_key_of(traffic, counter);
    result = tm_ccm_open(&traffic->aes, &nonce, &associated, frame + TM_HEAD_SIZE,
                         size - TM_HEAD_SIZE, body);
    return result == TM_OK ? tm_window_take(window, counter, tag) : result;
}

/* How the identities of two ends sort: as their bytes, a shorter one first. */
static bool is_first(const tm_end *a, const tm_end *b) {
    size_t least = a->identity_size < b->identity_size ? a->identity_size : b->identity_size;
    int order = memcmp(a->identity, b->identity, least);
    return order < 0 || (order == 0 && a->identity_size < b->identity_size);
}

static void add_identity(tm_sha256 *hash, const tm_end *end) {
    uint8_t size = (uint8_t)end->identity_size;
    tm_sha256_add(hash, &size, 1);
    tm_sha256_add(hash, end->identity, end->identity_size);
}

static bool is_identity(const tm_end *end) {
    return end->identity_size >= TM_IDENTITY_MIN && end->identity_size <= TM_IDENTITY_MAX;
}

/* Whether an exchange gave zeros, as a key of small order makes it. */
static bool is_weak(uint8_t secrets[4][32]) {
    bool is_any = false;
    for (unsigned i = 0; i < 4; i++) {
        uint8_t all = 0;
        for (unsigned j = 0; j < 32; j++) {
            all |= secrets[i][j];
        }
        is_any |= all == 0;
    }
    return is_any;
}

tm_result tm_session_secrets(tm_x25519 x25519, uint8_t suite, const uint8_t fleet[16], const tm_end *own,
                        const uint8_t own_static[32], const uint8_t own_ephemeral[32],
                        const tm_end *peer, uint8_t outgoing[32], uint8_t incoming[32]) {
    static const uint8_t name[32] = "Noise_KK_25519_AESGCM_SHA256", label[] = "ternmesh session",
                         info[] = "ternmesh traffic";
    if (!is_identity(own) || !is_identity(peer)) {
        return TM_KEY;
    }
    const uint8_t *peer_static = peer->identity + peer->identity_size - 32;
    bool first = is_first(own, peer);
    const tm_end *initiator = first ? own : peer, *responder = first ? peer : own;
    uint8_t secrets[4][32], chain[64], script[32];
    /* es, ss, ee, se: e and s of the initiator and the responder */
    x25519(secrets[first ? 0 : 3], own_ephemeral, peer_static);
    x25519(secrets[1], own_static, peer_static);
    x25519(secrets[2], own_ephemeral, peer->ephemeral);
    x25519(secrets[first ? 3 : 0], own_static, peer->ephemeral);
    if (is_weak(secrets)) {
        tm_wipe(secrets, sizeof secrets);
        return TM_KEY;
    }
    memcpy(chain, name, 32);
    for (unsigned i = 0; i < 4; i++) {
        uint8_t salt[32];
        memcpy(salt, chain, 32);
        tm_hkdf(secrets[i], 32, salt, 32, NULL, 0, chain, 64);
        tm_wipe(salt, sizeof salt);
    }
    tm_wipe(secrets, sizeof secrets);
    memcpy(script, chain, 32);
    tm_hkdf(NULL, 0, script, 32, NULL, 0, chain, 64);
    tm_sha256 hash;
    tm_sha256_init(&hash);
    tm_sha256_add(&hash, label, sizeof label - 1);
    tm_sha256_add(&hash, &suite, 1);
    tm_sha256_add(&hash, fleet, 16);
    add_identity(&hash, initiator);
    add_identity(&hash, responder);
    tm_sha256_add(&hash, initiator->ephemeral, 32);
    tm_sha256_add(&hash, responder->ephemeral, 32);
    tm_sha256_end(&hash, script);
    tm_hkdf(chain, 32, script, 32, info, sizeof info - 1, first ? outgoing : incoming, 32);
    tm_hkdf(chain + 32, 32, script, 32, info, sizeof info - 1, first ? incoming : outgoing, 32);
    tm_wipe(chain, sizeof chain);
    tm_wipe(script, sizeof script);
    return TM_OK;
}
