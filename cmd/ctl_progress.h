#pragma once

/*
 * ctl_progress - shows the progress of a transfer: one line that is redrawn on a terminal, a line
 * now and then elsewhere, or JSON lines for programs. On a terminal it goes to stderr, JSON to
 * stdout.
 */

#include <stdbool.h>
#include <stdio.h>

#include "base/util.h"

/* Forms of output: lines for a log; one line that changes; JSON. */
enum progress_form { PROGRESS_PLAIN, PROGRESS_TERMINAL, PROGRESS_JSON };

/* State of a download. Invariants: done <= size, done_before + size <= total; the caller has
 * refused data beyond them. */
struct progress {
    enum progress_form form;
    FILE *out;
    /* last reported activity, for JSON: "listing", "downloading", ... */
    const char *what;
    /* name of the model; outlives this struct */
    const char *name;
    /* file that is being loaded; outlives its loading */
    const char *file;
    /* checksum of the file; "" while unknown */
    const char *sha256;
    /* total: bytes of the model; done_before: bytes of its complete files */
    uint64_t total, done_before;
    /* size and loaded bytes of this file */
    uint64_t size, done;
    /* times when the line was drawn and the rate was measured */
    int64_t drawn_ns, rate_ns;
    /* bytes of the model at rate_ns */
    uint64_t rate_done;
    /* bytes per second, smoothed; 0: not known */
    double rate;
    /* a line is shown on the terminal */
    bool is_drawn;
};

/* Shows nothing yet. Without @json the form depends on whether stderr is a terminal. */
void progress_init(struct progress *p, bool json);
/* Begins a model of @total bytes. */
void progress_model(struct progress *p, const char *name, uint64_t total);
/* Begins the next file of the model; the one before is complete. */
void progress_file(struct progress *p, const char *file, const char *sha256, uint64_t size);
/* Shows the current activity ("downloading"), and @done bytes of the file. */
void progress_at(struct progress *p, const char *what, uint64_t done);
/* Prints a separate line; in JSON {"status": @what, "message": ...}. */
void progress_print(struct progress *p, const char *what, const char *fmt, ...) PRINTF(3, 4);
/* Removes the line from the terminal. */
void progress_clear(struct progress *p);

struct size_text {
    char s[24];
};
/* Renders a size: "1.2 GiB". */
struct size_text size_text(uint64_t bytes);
