#pragma once

/*
 * simt_banks - counts the bank conflicts of shared memory in the emulator. Shared memory has 32
 * banks of 4 bytes, and one pass reads or writes one word of each bank, so a load or store of a
 * warp takes as many passes as the busiest bank has different words (CUDA C++ Programming Guide,
 * "Shared Memory"). Lanes that access 8 bytes are served 16 at a time, with 16 bytes 8 at a time.
 *
 * Lanes run one after the other, so accesses are collected until a barrier of the block, and the
 * k-th access of each lane by an instruction counts as one access of the warp. Copies in bulk and
 * operands of wgmma are not counted: they have their own ways to shared memory.
 *
 * If SIMT_BANKS names a file, each process adds to it, when it ends, a line for each kernel:
 * the name, loads and stores of warps, passes, and the least passes for the same words.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Loads and stores of warps, their passes, and the least passes for the same words. */
struct simt_banks {
    const char *kernel;
    uint64_t accesses, passes, least;
};

/* accesses are counted */
extern bool simt_banks_on;

/* Notes that thread @thread of @kernel accesses @n bytes at @a; @pc: the instruction. */
void simt_banks_note(const char *kernel, uint32_t thread, uintptr_t a, size_t n, const void *pc);
/* Counts what was noted since the last call; all threads are at a barrier or have ended. */
void simt_banks_count(void);
/* Returns the counts of @kernel so far. */
struct simt_banks simt_banks_of(const char *kernel);

#ifdef __cplusplus
}
#endif
