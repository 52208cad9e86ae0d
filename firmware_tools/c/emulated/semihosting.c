/* The board layer of an emulated Cortex-M or RISC-V: files through semihosting, and for a Cortex-M
 * its start-up. The cases are in the file cases.bin of the emulator's folder.
 */
#include "board.h"

enum { SYS_OPEN = 0x01, SYS_WRITE0 = 0x04, SYS_READ = 0x06, SYS_EXIT_EXTENDED = 0x20 };

static uintptr_t call(uintptr_t operation, const void *block) {
#ifdef __riscv
    register uintptr_t a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = block;
    __asm__ volatile(".option push\n.option norvc\n.balign 16\n" /* the three on one page */
                     "slli x0, x0, 0x1f\nebreak\nsrai x0, x0, 7\n.option pop"
                     : "+r"(a0)
                     : "r"(a1)
                     : "memory");
    return a0;
#else
    register uintptr_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
#endif
}

bool board_read(uint8_t *out, size_t size) {
    static const char name[] = "cases.bin";
    static uintptr_t file;
    if (!file) {
        const uintptr_t block[3] = {(uintptr_t)name, 1 /* rb */, sizeof name - 1};
        file = call(SYS_OPEN, block);
    }
    const uintptr_t block[3] = {file, (uintptr_t)out, size};
    return size == 0 || call(SYS_READ, block) == 0; /* how many bytes are lacking */
}

void board_print(const char *text, unsigned number) {
    char digits[12];
    unsigned at = sizeof digits;
    digits[--at] = 0;
    digits[--at] = '\n';
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    (void)call(SYS_WRITE0, text);
    (void)call(SYS_WRITE0, digits + at);
}

int board_exit(int code) {
    const uintptr_t block[2] = {0x20026 /* the application ended */, (uintptr_t)code};
    (void)call(SYS_EXIT_EXTENDED, block);
    return code;
}

#ifndef __riscv
extern uint32_t stack_top[], data_begin[], data_end[], data_image[], bss_begin[], bss_end[];
int main(void);

static void reset(void) {
    uint32_t *from = data_image;
    for (uint32_t *to = data_begin; to < data_end; to++) {
        *to = *from++;
    }
    for (uint32_t *to = bss_begin; to < bss_end; to++) {
        *to = 0;
    }
    (void)main();
    for (;;) {
    }
}

static void fault(void) {
    (void)board_exit(3);
    for (;;) {
    }
}

typedef void (*Handler)(void);
__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    Handler handlers[15];
} vectors = {stack_top, {reset, fault, fault}};
#endif
