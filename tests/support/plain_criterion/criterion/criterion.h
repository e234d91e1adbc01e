#pragma once

/*
 * The part of Criterion's interface that the tests use, for cross builds: Criterion starts its
 * program anew for each test, which QEMU's user emulation cannot follow. Here each test is a child
 * made by fork(). plain_criterion.c writes TAP.
 */

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Options behind the names of a test or a suite. @signal: signal that must end the test; 0: none.
 * @timeout: seconds after which SIGALRM ends it; 0: no limit. */
struct plain_options {
    void (*init)(void), (*fini)(void);
    int signal;
    unsigned timeout;
};

struct criterion_test_params {
    size_t size;
    void *params;
    size_t length;
};

struct plain_test {
    const char *suite, *name;
    /* NULL: run_with is set */
    void (*run)(void);
    /* called for each of the parameters */
    void (*run_with)(void *arg);
    struct criterion_test_params (*params)(void);
    struct plain_options options;
    /* source of the test, as the compiler was given it */
    const char *file;
};

/* Runs the tests that the arguments name, or all tests. Returns the exit status. */
int plain_main(int argc, char *argv[]);
/* Register tests and suites; called before main(). */
void plain_add_test(const struct plain_test *t);
void plain_add_suite(const char *name, struct plain_options o);

/* Records a failure. @fatal: ends the test. @format: "" or a message that is printed behind
 * @text. */
__attribute__((cold, format(printf, 5, 6))) void
plain_fail(bool fatal, const char *file, int line, const char *text, const char *format, ...);
/* Ends the test as skipped. */
__attribute__((noreturn, format(printf, 1, 2))) void plain_skip(const char *format, ...);
__attribute__((format(printf, 1, 2))) void plain_log(const char *format, ...);

#define PLAIN_ADD(name, ...)                                                                       \
    static void name##_add(void) __attribute__((constructor));                                     \
    static void name##_add(void) {                                                                 \
        __VA_ARGS__;                                                                               \
    }
#define Test(s, n, ...)                                                                            \
    static void s##_##n##_test(void);                                                              \
    PLAIN_ADD(s##_##n, plain_add_test(&(struct plain_test){                                        \
                           #s, #n, s##_##n##_test, NULL, NULL, {__VA_ARGS__}, __FILE__}))          \
    static void s##_##n##_test(void)
#define TestSuite(s, ...)                                                                          \
    PLAIN_ADD(s##_suite, plain_add_suite(#s, (struct plain_options){__VA_ARGS__}))                 \
    struct plain_options
#define ParameterizedTestParameters(s, n) static struct criterion_test_params s##_##n##_params(void)
#define ParameterizedTest(param, s, n, ...)                                                        \
    static void s##_##n##_test(param);                                                             \
    static void s##_##n##_any(void *arg) {                                                         \
        s##_##n##_test(arg);                                                                       \
    }                                                                                              \
    PLAIN_ADD(s##_##n,                                                                             \
              plain_add_test(&(struct plain_test){                                                 \
                  #s, #n, NULL, s##_##n##_any, s##_##n##_params, {__VA_ARGS__}, __FILE__}))        \
    static void s##_##n##_test(param)
#define cr_make_param_array(type, array, n, ...)                                                   \
    ((struct criterion_test_params){sizeof(type), (void *)(array), (n)})

#define PLAIN_CHECK(fatal, ok, text, ...)                                                          \
    ((ok) ? (void)0 : plain_fail(fatal, __FILE__, __LINE__, text, "" __VA_ARGS__))
#define PLAIN_STR(a, b) (strcmp((a), (b)) == 0)

#define cr_assert(c, ...) PLAIN_CHECK(true, c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...) PLAIN_CHECK(true, !(c), "not " #c, __VA_ARGS__)
#define cr_assert_null(a, ...) PLAIN_CHECK(true, (a) == NULL, #a " == NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...) PLAIN_CHECK(true, (a) != NULL, #a " != NULL", __VA_ARGS__)
#define cr_assert_eq(a, b, ...) PLAIN_CHECK(true, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) PLAIN_CHECK(true, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) PLAIN_CHECK(true, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) PLAIN_CHECK(true, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) PLAIN_CHECK(true, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) PLAIN_CHECK(true, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) PLAIN_CHECK(true, PLAIN_STR(a, b), #a " is " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...)                                                               \
    PLAIN_CHECK(true, !PLAIN_STR(a, b), #a " is not " #b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...)                                                             \
    PLAIN_CHECK(true, memcmp((a), (b), (n)) == 0, #a " has the bytes of " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...)                                                           \
    PLAIN_CHECK(true, __builtin_fabs((double)((a) - (b))) <= (e), #a " is near " #b, __VA_ARGS__)
#define cr_assert_fail(...) PLAIN_CHECK(true, false, "reached", __VA_ARGS__)
#define cr_expect(c, ...) PLAIN_CHECK(false, c, #c, __VA_ARGS__)
#define cr_expect_not(c, ...) PLAIN_CHECK(false, !(c), "not " #c, __VA_ARGS__)
#define cr_expect_null(a, ...) PLAIN_CHECK(false, (a) == NULL, #a " == NULL", __VA_ARGS__)
#define cr_expect_not_null(a, ...) PLAIN_CHECK(false, (a) != NULL, #a " != NULL", __VA_ARGS__)
#define cr_expect_eq(a, b, ...) PLAIN_CHECK(false, (a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) PLAIN_CHECK(false, (a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) PLAIN_CHECK(false, (a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) PLAIN_CHECK(false, (a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) PLAIN_CHECK(false, (a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) PLAIN_CHECK(false, (a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) PLAIN_CHECK(false, PLAIN_STR(a, b), #a " is " #b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...)                                                               \
    PLAIN_CHECK(false, !PLAIN_STR(a, b), #a " is not " #b, __VA_ARGS__)
#define cr_expect_str_empty(a, ...) PLAIN_CHECK(false, *(a) == 0, #a " is empty", __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...)                                                             \
    PLAIN_CHECK(false, memcmp((a), (b), (n)) == 0, #a " has the bytes of " #b, __VA_ARGS__)
#define cr_expect_float_eq(a, b, e, ...)                                                           \
    PLAIN_CHECK(false, __builtin_fabs((double)((a) - (b))) <= (e), #a " is near " #b, __VA_ARGS__)
#define cr_expect_fail(...) PLAIN_CHECK(false, false, "reached", __VA_ARGS__)
#define cr_skip(...) plain_skip("" __VA_ARGS__)
#define cr_skip_test(...) plain_skip("" __VA_ARGS__)
#define cr_log_info(...) plain_log("" __VA_ARGS__)
