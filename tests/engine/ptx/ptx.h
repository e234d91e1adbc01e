#pragma once

/*
 * ptx - an interpreter of PTX, the assembly language to which nvcc compiles kernels. It runs on the
 * CPU the code that the driver of a device would get, instruction by instruction, for 32 lanes at a
 * time. It is written from NVIDIA's PTX ISA. Unknown forms of instructions are errors, and so are
 * accesses outside of allocated memory, misaligned accesses, barriers in divergent code, and
 * missing lanes at instructions of a whole warp.
 *
 * Asynchronous work is executed as late as possible: copies to shared memory and products of
 * warpgroups when they are waited for. Addresses of global memory are those of the host.
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
    /* of dynamic shared memory */
    uint32_t shared_bytes;
    /* blocks of a cluster, consecutive in x; 0: as the kernel declares */
    uint32_t cluster;
    /* the kernel's one argument */
    const void *args;
    size_t args_bytes;
    /* programmatic dependent launch: block (0, 0) must execute griddepcontrol.wait, and others
     * before they write */
    bool early;
    /* 0: warps and blocks run in ascending order, and the first block of a cluster as far ahead of
     * the others as possible. Other values: a pseudo-random order, and another block ahead, or
     * none. */
    uint64_t order;
    /* sums of wgmma are rounded differently from those of mma */
    bool other_wgmma;
};

/* Reads the functions of a module; errors name it @name. */
void ptx_read(const char *name, const char *text);
/* Reads all files *.ptx of @folder. */
void ptx_read_folder(const char *folder);
/* Returns the compute capability that the modules are compiled for, such as 90. */
int ptx_target(void);
/* Returns the kernel that the source calls @name, or NULL. */
struct ptx_kernel *ptx_find(const char *name);
/* Runs all blocks of a launch. */
void ptx_run(struct ptx_kernel *k, const struct ptx_launch *l);
/* Returns the number of instructions that warps have executed. */
uint64_t ptx_executed(void);
/* Writes a line for each kernel that ran, and a line for each of its instructions that was not
 * executed. */
void ptx_report(FILE *f);

/* Registers or removes memory that kernels may access: @n bytes at @p. */
void ptx_memory_add(const void *p, size_t n);
void ptx_memory_drop(const void *p);

/* If set, an error stores its text in ptx_message and jumps here; otherwise it ends the process. */
extern jmp_buf *ptx_catch;
extern char ptx_message[512];

#ifdef __cplusplus
}
#endif
