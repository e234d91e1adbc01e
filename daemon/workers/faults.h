#pragma once

/*
 * faults - in how many deaths of a worker each request was present. Who is to blame for a death is
 * not known: the requests that were in flight are counted, and one that was present at several is
 * run alone (the scheduler's quarantine), then failed.
 */

#include <stdint.h>
#include "base/buf.h"
#include "proto/crash_page.h"

#define FAULTS_MAX 256 /* requests whose deaths are remembered */

/* The oldest row is used again: an id that died twice and was submitted again is among the newest.
 * Row i is in use when i < n. */
struct faults {
    struct {
        uint64_t id;
        uint32_t n;
    } row[FAULTS_MAX];
    uint32_t n; /* written so far; the next is row[n % FAULTS_MAX] */
};

/* Counts a death for all that are in @page, which was shared with a process that has crashed and is
 * not trusted. */
void faults_note(struct faults *f, const struct crash_page *page);
/* Returns the number of remembered deaths at which request @id was present. */
uint32_t faults_of(const struct faults *f, uint64_t id);
/* Keeps the record of death number @n in a file of folder @dir ("": the service manager's for
 * state), which takes the place of an older one. Its @path, or "": it is not kept. */
void faults_write(const struct buf *record, const char *dir, uint32_t n, char *path, size_t size);
