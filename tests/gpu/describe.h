#pragma once

/* describe - prints in a few lines how a result is wrong, so that the cause can be found without
 * the device. */

#include <math.h>

#include "tests/gpu/on_device.h"

/* Prints how many elements of @n_rows rows of @n differ, in how many rows and columns, and the
 * first of them. */
static void describe_difference(const char *what, const float *got, const float *want,
                                size_t n_rows, size_t n) {
    size_t wrong = 0, rows = 0, first[4] = {0}, columns = 0;
    uint8_t *column = host_new(n);

    for (size_t r = 0; r < n_rows; r++) {
        size_t before = wrong;

        for (size_t i = 0; i < n; i++) {
            if (memcmp(got + r * n + i, want + r * n + i, sizeof(*got)) == 0)
                continue;
            if (wrong < ARRAY_SIZE(first))
                first[wrong] = r * n + i;
            wrong++;
            columns += !column[i];
            column[i] = 1;
        }
        rows += wrong > before;
    }
    report_detail("%s: %zu of %zu differ, in %zu of %zu rows and %zu of %zu columns", what, wrong,
                  n_rows * n, rows, n_rows, columns, n);
    for (size_t i = 0; i < MIN(wrong, ARRAY_SIZE(first)); i++) {
        float g = got[first[i]], w = want[first[i]];

        report_detail("row %zu column %zu: %.9g (%08x), expected %.9g (%08x)", first[i] / n,
                      first[i] % n, (double)g, mx_bits_of(g), (double)w, mx_bits_of(w));
    }
    free(column);
}

/* Prints the elements with errors of more than 2 % of @size, their usual magnitude. A pattern of
 * rows or columns shows which operand is wrong. */
static void describe_worst(const float *got, const float *want, size_t n, size_t n_columns,
                           double size) {
    size_t far = 0, shown = 0;

    for (size_t i = 0; i < n; i++)
        far += !(fabs((double)got[i] - (double)want[i]) <= 0.02 * size);
    report_detail("%zu of %zu are off by more than 2 %% of their usual size %.4g", far, n, size);
    for (size_t i = 0; i < n && shown < 8; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= 0.02 * size) && ++shown)
            report_detail("row %zu column %zu: %.7g, expected %.7g", i / n_columns, i % n_columns,
                          (double)got[i], (double)want[i]);
}

/* Returns 0 if all bits are equal; else prints the differences and returns 1. */
static double differs(const char *what, const float *got, const float *want, size_t n_rows,
                      size_t n) {
    if (memcmp(got, want, n_rows * n * sizeof(*got)) == 0)
        return 0;
    describe_difference(what, got, want, n_rows, n);
    return 1;
}
