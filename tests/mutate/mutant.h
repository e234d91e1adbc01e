/*
 * Linked into every file that tests/mutate/run has changed. MUTANT(k) is true while mutant k is
 * switched on. The file of the state (MUTANT_STATE in the environment, or the one that was compiled
 * in) begins with the number of that mutant, or with -1: then the byte with the number of each
 * mutant that is reached becomes 1.
 */
#ifndef MUTANT_H
#define MUTANT_H

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((weak)) int mutant_on;
__attribute__((weak)) unsigned char *mutant_state;

__attribute__((weak, cold, noinline)) int mutant_is(int k);
__attribute__((weak, cold, noinline)) int mutant_is(int k) {
    if (mutant_on < 0)
        mutant_state[k] = 1;
    return mutant_on == k;
}

#define MUTANT(k) (__builtin_expect(mutant_on, 0) && mutant_is(k))

static __attribute__((constructor)) void mutant_begin(void) {
    const char *path = getenv("MUTANT_STATE");
    int fd = mutant_state ? -1 : open(path ? path : MUTANT_STATE, O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return;
    void *map = mmap(NULL, MUTANT_STATE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return;
    mutant_state = map;
    mutant_on = *(const int *)map;
}

#endif
