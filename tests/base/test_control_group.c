#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/control_group.h"
#include "base/cpus.h"
#include "base/memory.h"
#include "base/util.h"

static char root[64], path[128];

static void write_below(const char *folder, const char *name, const char *text) {
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "we");

    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void write_file(const char *name, const char *text) {
    write_below(root, name, text);
}

static void remove_below(const char *folder, const char *name) {
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    cr_assert_eq(remove(path), 0, "%s", path);
}

static void set_up(void) {
    strcpy(root, "/tmp/weft-group-XXXXXX");
    cr_assert(mkdtemp(root));
    snprintf(path, sizeof(path), "%s/a", root);
    cr_assert_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/a/b", root);
    cr_assert_eq(mkdir(path, 0700), 0);
}

static void tear_down(void) {
    static const char *const names[] = {"a/b/memory.max",
                                        "a/b/memory.current",
                                        "a/b/memory.stat",
                                        "a/memory.max",
                                        "a/b/memory.limit_in_bytes",
                                        "a/b/memory.usage_in_bytes",
                                        "a/memory.limit_in_bytes",
                                        "a/memory.usage_in_bytes",
                                        "a/memory.stat",
                                        "a/b/cpu.max",
                                        "a/cpu.max",
                                        "a/b",
                                        "a",
                                        ""};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        snprintf(path, sizeof(path), "%s/%s", root, names[i]);
        remove(path);
    }
}

TestSuite(control_group, .init = set_up, .fini = tear_down);

Test(control_group, without_limit_has_all_memory) {
    write_file("a/b/memory.max", "max\n");
    write_file("a/b/memory.current", "4096\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), UINT64_MAX);
    cr_expect_eq(memory_in_group(root, "/"), UINT64_MAX);
    cr_expect_eq(memory_in_group("/nonexistent", "/a/b"), UINT64_MAX);
}

Test(control_group, tightest_memory_above_counts) {
    write_file("a/b/memory.max", "10000\n");
    write_file("a/b/memory.current", "4096\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), 10000 - 4096);
    write_file("a/memory.max", "5000\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), 5000);
    cr_expect_eq(memory_in_group(root, "/a"), 5000);
}

Test(control_group, that_is_full_has_no_room) {
    write_file("a/b/memory.max", "10000\n");
    write_file("a/b/memory.current", "10001\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), 0);
}

Test(control_group, cached_files_are_room) {
    write_file("a/b/memory.max", "10000\n");
    write_file("a/b/memory.current", "9000\n");
    write_file("a/b/memory.stat", "anon 1000\nfile 8000\nshmem 500\ninactive_file 3000\n"
                                  "active_file 4500\nunevictable 0\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), 10000 - (9000 - 7500));
    write_file("a/b/memory.current", "7000\n"); /* the two files are not of one moment */
    cr_expect_eq(memory_in_group(root, "/a/b"), 10000);
}

/* Version 1 writes no word for "no limit", but a number that no machine has. */
Test(control_group, limits_of_version_1_count) {
    write_file("a/b/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("a/b/memory.usage_in_bytes", "4096\n");
    write_file("a/memory.limit_in_bytes", "10000\n");
    write_file("a/memory.usage_in_bytes", "9000\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), 1000);
    write_file("a/memory.stat", "inactive_file 100\nactive_file 200\ntotal_inactive_file 3000\n"
                                "total_active_file 400\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), 1000 + 3400);
}

Test(control_group, some_memory_is_available_here) {
    cr_expect_gt(memory_available(), 1 << 20);
}

Test(control_group, whole_processors_of_the_tightest_limit_count) {
    static const struct {
        const char *inner, *outer;
        uint32_t n;
    } cases[] = {
        {"max 100000\n", "max 100000\n", UINT32_MAX}, {"400000 100000\n", "max 100000\n", 4},
        {"400000 100000\n", "250000 100000\n", 2},    {"50000 100000\n", "250000 100000\n", 1},
        {"what\n", "300000 0\n", UINT32_MAX},
    };

    cr_expect_eq(cpus_in_group(root, "/a/b"), UINT32_MAX);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        write_file("a/b/cpu.max", cases[i].inner);
        write_file("a/cpu.max", cases[i].outer);
        cr_expect_eq(cpus_in_group(root, "/a/b"), cases[i].n, "case %zu", i);
    }
}

/* Trees of version 1: one for memory alone, one for several controllers with and without a link. */
Test(control_group, memory_is_found_beside_other_controllers) {
    static const struct {
        const char *folder, *groups;
        uint64_t room;
    } cases[] = {
        {"memory", "3:cpu,cpuacct:/a\n2:memory:/b\n", 5000},
        {"memory,hugetlb", "3:cpu,cpuacct:/a\n2:memory,hugetlb:/b\n", 5000},
        {"hugetlb,memory", "2:hugetlb,memory:/b\n", 5000},
        {"memory", "2:hugetlb,memory,pids:/b\n", 5000},
        {"memory", "2:memory:/other/place\n", 9000},
        {"memory", "2:memory2,memo:/b\n1:name=memory:/b\n", UINT64_MAX},
        {"memory", "2:memory\nmemory:/b\nmemory\n\n", UINT64_MAX},
        {"memory", "0::/b\n", UINT64_MAX},
        {"", "0::/b\n", 5000},
    };
    char tree[64], self[128];

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        cr_assert(snprintf(tree, sizeof(tree), "%s/%s", root, cases[i].folder) > 0);
        mkdir(tree, 0700);
        snprintf(path, sizeof(path), "%s/b", tree);
        cr_assert_eq(mkdir(path, 0700), 0);
        write_below(tree, "b/memory.limit_in_bytes", "5000\n");
        write_below(tree, "memory.limit_in_bytes", "9000\n");
        write_file("self", cases[i].groups);
        snprintf(self, sizeof(self), "%s/self", root);
        cr_expect_eq(memory_in_groups(self, root), cases[i].room, "case %zu", i);
        remove_below(tree, "b/memory.limit_in_bytes");
        remove_below(tree, "memory.limit_in_bytes");
        remove_below(tree, "b");
        rmdir(tree); /* the root stays, as it is not empty */
        remove_below(root, "self");
    }
    cr_expect_eq(memory_in_groups("/nonexistent", root), UINT64_MAX);
}

/* The machine's own group, as the kernel names it. */
Test(control_group, of_this_process_limits_its_processors) {
    struct control_group group = {.path = ""};
    char line[CONTROL_GROUP_PATH + 3];
    bool found = false;
    cpu_set_t set;
    FILE *f = fopen("/proc/self/cgroup", "re");

    cr_assert(f);
    while (!found && fscanf(f, "%514[^\n]\n", line) == 1)
        found = strncmp(line, "0::", 3) == 0;
    fclose(f);
    cr_assert_eq(control_group_find(CONTROL_GROUP_SELF, "", &group), found);
    cr_expect_str_eq(group.path, found ? line + 3 : "");
    cr_expect_str_eq(group.names, "");
    uint32_t limit = found ? cpus_in_group(CONTROL_GROUP_ROOT, group.path) : UINT32_MAX;
    cr_assert_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    cr_expect_eq(cpus_usable(), MIN((uint32_t)CPU_COUNT(&set), limit));
}

/* The limits are relative to what is mapped: the sanitizers map more than any memory. */
Test(memory, limit_of_the_address_space_counts_without_what_is_mapped) {
    unsigned long long pages;
    FILE *f = fopen("/proc/self/statm", "re");

    cr_assert(f && fscanf(f, "%llu", &pages) == 1 && fclose(f) == 0);
    rlim_t mapped = pages * (rlim_t)sysconf(_SC_PAGESIZE);
    struct rlimit limit = {mapped + (64u << 20), RLIM_INFINITY};
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    uint64_t room = memory_available();
    cr_expect_leq(room, 64u << 20);
    cr_expect_gt(room, 48u << 20);
    cr_expect_leq(memory_part(room, 64u << 20, 1), 8u << 20);
    cr_expect_gt(memory_part(room, 64u << 20, 1), 6u << 20);
    cr_expect_eq(memory_part(room, 64u << 20, 32u << 20), 32u << 20);
    cr_expect_eq(memory_part(room, 1u << 20, 1), 1u << 20);
#ifndef __SANITIZE_ADDRESS__ /* which maps memory to read a file */
    limit.rlim_cur = mapped / 2;
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
    cr_expect_eq(memory_available(), 0);
#endif
    limit.rlim_cur = RLIM_INFINITY;
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
}
