/* Made by `python -m bench.c_constants`: do not edit. */
#ifndef TERNMESH_CONSTANTS_H
#define TERNMESH_CONSTANTS_H
#define TM_WIRE_VERSION 0x1u
#define TM_HEAD_SIZE 0x6u
#define TM_TAG_SIZE 0x8u
#define TM_FRAME_OVERHEAD 0xeu
#define TM_FRAME_MAX 0x1000u
#define TM_BODY_MAX 0xff2u
#define TM_SUITE_OPEN 0x0u
#define TM_SUITE_END 0x1u
#define TM_SUITE_HOP 0x2u
#define TM_UNASSIGNED 0x0u
#define TM_BROADCAST 0xffffu
#define TM_COUNTER_BITS 0x18u
#define TM_GENERATION_BITS 0x14u
#define TM_WINDOW 0x400u
#define TM_IDENTITY_MIN 0x44u
#define TM_IDENTITY_MAX 0x63u
#define TM_BLE_WINDOW 0x20u
#define TM_BLE_VALUE_MAX 0x200u
#define TM_RUN_SIZE 0x8u
#define TM_CHUNK_KIND 0x2u
#define TM_CHUNK_HEAD_SIZE 0xau
#define TM_MANTISSA_BITS 0xbu
#define TM_EXPONENT_MAX 0x13u
#define TM_RICE_MAX 0xfu
#define TM_DENSE 0x80u
#define TM_CODEBOOK 0xc0u
#define TM_SPAN_MAX 0x400u
#define TM_CODEBOOK_KEY_0 0x619387u
#define TM_CODEBOOK_KEY_1 0x720d6d54u
#define TM_POLYNOMIAL 0x11du
#define TM_GENERATION_MAX 0x80u
#define TM_SOURCES_MAX 0x8000u
#define TM_SYMBOL_BYTES_MAX 0xfefu
#endif
