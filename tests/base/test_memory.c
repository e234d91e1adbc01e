#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/memory.h"

static char root[64], path[128];

static void write_file(const char *name, const char *text) {
    snprintf(path, sizeof(path), "%s/%s", root, name);
    FILE *f = fopen(path, "we");

    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void set_up(void) {
    strcpy(root, "/tmp/weft-memory-XXXXXX");
    cr_assert(mkdtemp(root));
    snprintf(path, sizeof(path), "%s/a", root);
    cr_assert_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/a/b", root);
    cr_assert_eq(mkdir(path, 0700), 0);
}

static void tear_down(void) {
    static const char *const names[] = {
        "a/b/memory.max", "a/b/memory.current", "a/memory.max", "a/b", "a", ""};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        snprintf(path, sizeof(path), "%s/%s", root, names[i]);
        remove(path);
    }
}

TestSuite(memory, .init = set_up, .fini = tear_down);

Test(memory, group_without_limit_has_none) {
    write_file("a/b/memory.max", "max\n");
    write_file("a/b/memory.current", "4096\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), UINT64_MAX);
    cr_expect_eq(memory_in_group(root, "/"), UINT64_MAX);
    cr_expect_eq(memory_in_group("/nonexistent", "/a/b"), UINT64_MAX);
}

Test(memory, tightest_group_above_counts) {
    write_file("a/b/memory.max", "10000\n");
    write_file("a/b/memory.current", "4096\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), 10000 - 4096);
    write_file("a/memory.max", "5000\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), 5000);
    cr_expect_eq(memory_in_group(root, "/a"), 5000);
}

Test(memory, group_that_is_full_has_no_room) {
    write_file("a/b/memory.max", "10000\n");
    write_file("a/b/memory.current", "10001\n");
    cr_expect_eq(memory_in_group(root, "/a/b"), 0);
}

Test(memory, something_is_available_here) {
    cr_expect_gt(memory_available(), 1 << 20);
}
