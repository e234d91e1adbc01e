#pragma once

/*
 * nearest - the known architectures that are nearest to the one of a file, which is unknown: every
 * row of the table of architectures is tried on the file, and the differences are counted. Only
 * names and shapes are compared, so a file that a row accepts may still need other arithmetic.
 */

#include "base/err.h"
#include "base/gguf.h"
#include "engine/bind/survey.h"

/* A known architecture beside a file. A try ends with the first layer that does not fit, so names
 * that only later layers have may be missing from @missing. */
struct nearest {
    const char *name;
    /* it would read the file, which has no more tensors */
    bool accepts;
    /* the first difference, unless it accepts */
    char why[sizeof(((struct err *)0)->message)];
    /* tensors that it needs and the file lacks */
    struct survey_names missing;
    /* tensors of the file that it does not have */
    struct survey_names unknown;
    /* keys of the file that it does not read */
    struct survey_names keys;
};

enum { NEAREST = 3 };

/* Tries a row of a table of architectures: arch_try(). */
typedef int (*nearest_try)(const struct gguf *file, uint32_t i, struct survey *s, const char **name,
                           struct err *err);

/* Fills @out with the @n <= NEAREST known architectures that differ least from the file, the
 * nearest first; the name of the file's own is left out. Returns their number, 0 if the file has no
 * name of an architecture, or -ENOMEM. */
int nearest_find(const struct gguf *file, nearest_try try_row, struct nearest *out, int n);
/* Does so for the known architectures (arch/arch.c). */
int engine_nearest(const struct gguf *file, struct nearest *out, int n);
