#pragma once

/*
 * ptx - an interpreter of PTX, the assembly language that nvcc makes of kernels: it runs on the CPU
 * what a device's driver would be given, instruction by instruction, 32 lanes at a time. Written
 * from NVIDIA's PTX ISA. A form of an instruction that it does not know is an error, as is an
 * access outside of memory that was allocated, a misaligned one, a barrier in divergent code, and a
 * lane missing where an instruction asks for all of them.
 *
 * What a device does later happens as late as it may: copies to shared memory when they are waited
 * for, products of warpgroups likewise. Addresses of global memory are those of the host.
 */

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ptx_kernel;

struct ptx_launch {
    uint32_t grid_x, grid_y, n_threads;
    uint32_t shared_bytes; /* of dynamic shared memory */
    uint32_t cluster;      /* blocks of a cluster, side by side in x; 0: as the kernel says */
    const void *args;      /* the kernel's one argument */
    size_t args_bytes;
    bool early; /* the kernel must wait for the one before (griddepcontrol) */
    /* 0: warps and blocks in ascending order, the first block of a cluster as far ahead of the
     * others as it comes; else an order of its own, with another block ahead, or none. */
    uint64_t order;
    bool other_wgmma; /* sums of wgmma are rounded otherwise than those of mma */
};

/* Reads the entries of a module's @text, whose place is called @name in errors. */
void ptx_read(const char *name, const char *text);
/* Reads all files *.ptx of @folder. */
void ptx_read_folder(const char *folder);
/* Returns the compute capability that the modules are compiled for, such as 90. */
int ptx_target(void);
/* Returns the entry that the source calls @name, or NULL. */
struct ptx_kernel *ptx_find(const char *name);
/* Runs all blocks of a launch. */
void ptx_run(struct ptx_kernel *k, const struct ptx_launch *l);
/* Returns how many instructions warps have executed. */
uint64_t ptx_executed(void);
/* Writes a line for each kernel that ran, and one for each of its instructions that did not. */
void ptx_report(FILE *f);

/* Memory that kernels may access: @n bytes at @p from now on, and no longer. */
void ptx_memory_add(const void *p, size_t n);
void ptx_memory_drop(const void *p);

/* An error jumps here with its text in ptx_message, if it is set; else it ends the process. */
extern jmp_buf *ptx_catch;
extern char ptx_message[512];

#ifdef __cplusplus
}
#endif
