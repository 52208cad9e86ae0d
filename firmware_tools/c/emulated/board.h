/* What the conformance program needs of a board. */
#ifndef BOARD_H
#define BOARD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Read exactly so many bytes of the test cases; false at their end. */
bool board_read(uint8_t *out, size_t size);

/* Print a line. */
void board_print(const char *text, unsigned number);

/* End the program; returns the code where the board's main returns it. */
int board_exit(int code);
#endif
