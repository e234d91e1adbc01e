#pragma once

/*
 * Criterion's names for a program without Criterion, which starts each test in a process that
 * QEMU's user emulation cannot start. Tests run one after the other in this process; a failed
 * cr_assert() ends it. Included in one file of a program (packaging/check-aarch64).
 */

#include <stdio.h>
#include <stdlib.h>

static struct plain_test {
    const char *name;
    void (*run)(void);
} plain_tests[64];
static int plain_n_tests, plain_n_failed;

#define Test(suite, name, ...)                                                                     \
    static void suite##_##name(void);                                                              \
    __attribute__((constructor)) static void suite##_##name##_add(void) {                          \
        plain_tests[plain_n_tests++] = (struct plain_test){#suite "/" #name, suite##_##name};      \
    }                                                                                              \
    static void suite##_##name(void)

#define plain_check(c)                                                                             \
    ((c) ? 1 : (plain_n_failed++, printf("# %s:%d: %s\n", __FILE__, __LINE__, #c), 0))
#define cr_expect(c, ...) ((void)plain_check(c))
#define cr_assert(c, ...) (plain_check(c) ? (void)0 : exit(1))

int main(void) {
    int n_bad = 0;

    printf("1..%d\n", plain_n_tests);
    for (int i = 0; i < plain_n_tests; i++) {
        plain_n_failed = 0;
        plain_tests[i].run();
        n_bad += plain_n_failed > 0;
        printf("%s %d - %s\n", plain_n_failed ? "not ok" : "ok", i + 1, plain_tests[i].name);
    }
    return n_bad > 0;
}
