#pragma once

/*
 * library - opens a shared library at run time, for functions that most processes never need.
 */

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/* A function of a library. `at` points to the function pointer that gets its address; if the
 * library does not have an optional function, it gets NULL. */
struct library_call {
    const char *name;
    void *at;
    bool optional;
};

/* Opens the first of the files that can be opened, looks up the calls, and returns the handle for
 * dlclose(). Returns NULL with "@what: " and the reason in @err, whose param is @param, if no file
 * can be opened (the reason of the first one), or if a call is missing. */
void *library_open(const char *const *file, size_t n_files, const struct library_call *call,
                   size_t n_calls, const char *param, const char *what, struct err *err);
