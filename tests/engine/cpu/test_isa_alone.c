/* Finds the kernels of a build that has those of one instruction set only (meson option isa). That
 * this program links is the larger half of the test: isa.c must refer to no code of another set. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "engine/cpu/cpu.h"

int main(int argc, char **argv) {
    struct err err = {0};
    const struct cpu_kernels *named = isa_find(argv[1], &err);
    const struct cpu_kernels *best = isa_find("auto", &err);

    assert(argc == 2);
    if (!best) {
        assert(!named && strstr(err.message, "built for another processor"));
        puts("this machine lacks the instruction set");
        return 77;
    }
    assert(named && strcmp(named->name, argv[1]) == 0);
    assert(named == best || strcmp(argv[1], "avx512") == 0); /* BF16 and AMX are built with it */
    assert(!isa_find("sse9", &err) && strstr(err.message, "is unknown"));
    return 0;
}
