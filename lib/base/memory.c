/*
 * Three limits are compared, and the smallest counts: the available memory of the machine, the room
 * below the limits of the control groups of this process, and the room below the limit of the
 * address space. Caches of files count as available in the first two, since the kernel drops them:
 * a group in which a model has just been downloaded is full of them. Other processes may claim
 * memory later, so the caller uses only a part of the answer.
 */

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/control_group.h"
#include "base/util.h"

#define UNKNOWN (4ull << 30) /* bytes that are assumed where /proc/meminfo cannot be read */

/* Files of a group, and lines of its memory.stat with the bytes of cached files. */
struct memory_names {
    const char *max, *now, *cached[2];
};

/* Versions 2 and 1 of control groups. */
static const struct memory_names memory_versions[] = {
    {"memory.max", "memory.current", {"inactive_file ", "active_file "}},
    {"memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file ", "total_active_file "}},
};

/* Returns the bytes of cached files that are charged to a group and those below it. Files in memory
 * (tmpfs) do not count. */
static uint64_t cached(const char *folder, const struct memory_names *names) {
    uint64_t sum = 0;
    char file[1200], line[128];

    snprintf(file, sizeof(file), "%s/memory.stat", folder);
    FILE *f = fopen(file, "re");
    while (f && fgets(line, sizeof(line), f))
        for (int i = 0; i < 2; i++) {
            size_t n = strlen(names->cached[i]);

            if (strncmp(line, names->cached[i], n) == 0)
                sum += strtoull(line + n, NULL, 10);
        }
    if (f)
        fclose(f);
    return sum;
}

/* Lowers *@ctx to the bytes that the group may still take. */
static void memory_lower_room(const char *folder, void *ctx) {
    uint64_t *room = ctx;

    for (size_t i = 0; i < ARRAY_SIZE(memory_versions); i++) {
        const struct memory_names *names = &memory_versions[i];
        unsigned long long max, now = 0;

        if (control_group_read(folder, names->max, "%llu", &max) == 0)
            continue; /* another version, or the file holds "max" */
        (void)!control_group_read(folder, names->now, "%llu", &now);
        now -= MIN(now, cached(folder, names));
        *room = MIN(*room, max - MIN(now, max));
    }
}

uint64_t memory_in_group(const char *root, const char *path) {
    uint64_t room = UINT64_MAX;

    control_group_each(root, path, memory_lower_room, &room);
    return room;
}

/* Returns MemAvailable of /proc/meminfo, in bytes. */
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

/* Returns the bytes of the address space that this process has mapped; 0: not known. */
static uint64_t mapped(void) {
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    if (f && fscanf(f, "%llu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t memory_machine(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
}

uint64_t memory_in_groups(const char *self, const char *root) {
    struct control_group g;
    uint64_t room = UINT64_MAX;
    char tree[1024];

    if (control_group_find(self, "", &g))
        room = MIN(room, memory_in_group(root, g.path));
    if (!control_group_find(self, "memory", &g))
        return room;
    /* A tree of several controllers is mounted under their names, mostly with a link for each. */
    snprintf(tree, sizeof(tree), "%s/memory", root);
    room = MIN(room, memory_in_group(tree, g.path));
    snprintf(tree, sizeof(tree), "%s/%s", root, g.names);
    return MIN(room, memory_in_group(tree, g.path));
}

uint64_t memory_available(void) {
    uint64_t room = MIN(of_machine(), memory_in_groups(CONTROL_GROUP_SELF, CONTROL_GROUP_ROOT));
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        room = MIN(room, limit.rlim_cur - MIN(mapped(), limit.rlim_cur));
    return room;
}

uint64_t memory_for_model(uint64_t available) {
    if (access("/dev/nvidiactl", F_OK) == 0)
        return 0;
    return available;
}

uint64_t memory_part(uint64_t available, uint64_t most, uint64_t least) {
    return MAX(MIN(available / 8, most), least);
}
