#pragma once

/*
 * test_data - paths of files that tests read (tests/data/README.md). The build unpacks them and
 * names their folder in WEFT_DATA. A file that is missing fails the test.
 */

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TEST_DATA_PATH 1024

/* Returns the folder with golden/, models/, templates/, vocab/ and formats/. */
static inline const char *test_data(void) {
    const char *folder = getenv("WEFT_DATA");

    cr_assert(folder && *folder, "WEFT_DATA must name the folder of the test data; `meson test` "
                                 "sets it");
    return folder;
}

/* Returns true if `./check --data DIR` set the folder, which then has the larger sets too. */
static inline bool test_data_is_larger(void) {
    const char *larger = getenv("WEFT_DATA_LARGER");

    return larger && *larger == '1';
}

/* Writes "FOLDER/DIR/NAME.END" to @out and returns it. */
static inline const char *test_data_file(char out[TEST_DATA_PATH], const char *dir,
                                         const char *name, const char *end) {
    int n = snprintf(out, TEST_DATA_PATH, "%s/%s/%s%s", test_data(), dir, name, end);

    cr_assert(n < TEST_DATA_PATH && access(out, R_OK) == 0, "the test data has no %s", out);
    return out;
}
