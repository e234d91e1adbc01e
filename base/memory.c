#include "base/memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include "base/util.h"

/*
 * The smallest of three: what the machine has available (caches that can be dropped count as
 * available), what is left below each limit of the control groups above this process, the limit of
 * the address space. Memory that other processes may claim later is not foreseen: the caller takes
 * a part of the answer.
 */

#define UNKNOWN (4ull << 30) /* assumed where /proc/meminfo cannot be read */
#define GROUPS "/sys/fs/cgroup"

/* Returns the number in a file that holds one, or UINT64_MAX if the file holds "max" or does not
 * exist. */
static uint64_t read_number(const char *root, const char *path, const char *name) {
    char file[1024];
    unsigned long long v;

    if ((size_t)snprintf(file, sizeof(file), "%s%s/%s", root, path, name) >= sizeof(file))
        return UINT64_MAX;
    FILE *f = fopen(file, "re");
    int n = f ? fscanf(f, "%llu", &v) : 0;
    if (f)
        fclose(f);
    return n == 1 ? v : UINT64_MAX;
}

uint64_t memory_in_group(const char *root, const char *path) {
    uint64_t room = UINT64_MAX;
    char group[512];

    if ((size_t)snprintf(group, sizeof(group), "%s", path) >= sizeof(group))
        return room;
    for (;;) {
        uint64_t max = read_number(root, group, "memory.max");
        uint64_t now = read_number(root, group, "memory.current");

        if (max != UINT64_MAX)
            room = MIN(room, now == UINT64_MAX ? max : max - MIN(now, max));
        char *slash = strrchr(group, '/');
        if (!slash)
            return room;
        *slash = 0;
    }
}

/* The room of the control group (version 2) that this process is in. */
static uint64_t in_our_group(void) {
    char line[600];
    uint64_t room = UINT64_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");

    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "0::", 3) == 0)
            room = memory_in_group(GROUPS, line + 3);
    }
    if (f)
        fclose(f);
    return room;
}

/* MemAvailable of /proc/meminfo, in bytes. */
static uint64_t of_machine(void) {
    unsigned long long kib = UNKNOWN >> 10;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib << 10;
}

uint64_t memory_available(void) {
    uint64_t room = MIN(of_machine(), in_our_group());
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        room = MIN(room, limit.rlim_cur);
    return room;
}
