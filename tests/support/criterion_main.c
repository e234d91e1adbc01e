/* main() of test programs, over that of Criterion:
 *
 *   test_api [--file test_tools.c] [Criterion's options]
 *
 * --file: only the tests of this source. Where no person reads it, stdout has the results as TAP;
 * what tests write goes to stderr. */

#include <criterion/criterion.h>
#include <criterion/internal/ordered-set.h>
#include <criterion/output.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/plain_git2.h"

typedef struct criterion_ordered_set_node node;

static node *others; /* tests and suites that do not run; LeakSanitizer finds them here */

/* Takes the node at @link out of @set. */
static void take_out(struct criterion_ordered_set *set, node **link) {
    node *n = *link;

    *link = n->next;
    n->next = others;
    others = n;
    set->size--;
}

/* Removes the tests of other sources than @file, and returns how many are left. Criterion's own
 * filters count what they exclude as skipped. */
static size_t keep_tests(struct criterion_ordered_set *tests, const char *file) {
    node **link = &tests->first;

    while (*link) {
        const struct criterion_test *test = (const void *)(*link + 1);

        if (strcmp(basename((char *)test->data->file_), file) == 0)
            link = &(*link)->next;
        else
            take_out(tests, link);
    }
    return tests->size;
}

static void keep_file(struct criterion_test_set *set, const char *file) {
    node **link = &set->suites->first;

    set->tests = 0;
    while (*link) {
        const struct criterion_suite_set *suite = (const void *)(*link + 1);
        size_t n = keep_tests(suite->tests, file);

        set->tests += n;
        if (n > 0)
            link = &(*link)->next;
        else
            take_out(set->suites, link);
    }
}

/* Gives stdout to the results. Tests inherit only stderr. */
static void write_tap(void) {
    static char path[32];
    int results = dup(STDOUT_FILENO);

    snprintf(path, sizeof(path), "/proc/self/fd/%d", results);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    criterion_add_output("tap", path);
}

int main(int argc, char *argv[]) {
#ifdef PLAIN_GIT2
    git_libgit2_init(); /* the linker keeps a library that is called */
#endif
    struct criterion_test_set *set = criterion_initialize();
    bool passed = set->tests > 0; /* Criterion did not find its section of the program */

    criterion_options.jobs = 1; /* meson test runs several programs */
    if (argc > 2 && strcmp(argv[1], "--file") == 0) {
        keep_file(set, argv[2]);
        passed &= set->tests > 0;
        argv[2] = argv[0];
        argc -= 2;
        argv += 2;
    }
    if (criterion_handle_args(argc, argv, true)) {
        if (!isatty(STDOUT_FILENO))
            write_tap();
        passed &= criterion_run_all_tests(set) != 0;
    }
    criterion_finalize(set);
    return passed ? 0 : 1;
}
