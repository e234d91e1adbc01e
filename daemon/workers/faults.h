#pragma once

/*
 * faults - counts the deaths of workers at which each request was present. The request that caused
 * a death is not known, so all requests in flight are counted. A request that was present at
 * several deaths runs alone (the scheduler's quarantine), and then fails.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/buf.h"
#include "proto/crash_page.h"

#define FAULTS_ALONE 2 /* deaths after which a request runs alone */
/* deaths for want of memory, of a step of this request alone beside a compilation or the reverse,
 * that count as one */
#define FAULTS_DOUBTS 4
#define FAULTS_MAX 256 /* requests whose deaths are remembered */

/* Table of requests. A new id takes the oldest row, since an id that was present at a death and
 * submitted again is among the newest. Row i is in use when i < n. */
struct faults {
    struct {
        uint64_t id;
        /* n_doubts: deaths that are not counted in n yet */
        uint32_t n, n_doubts;
    } row[FAULTS_MAX];
    /* number of rows written so far; the next one is row[n % FAULTS_MAX] */
    uint32_t n;
    /* records that faults_write() left out */
    uint32_t n_lost;
};

/* Counts a death for all requests in @page. The page was shared with a crashed process, so its
 * content is not trusted. @is_short: memory was short, which no request among several has to have
 * caused: they run alone after that, which needs the least memory, but none of them fails. Where
 * one runs alone and a grammar is compiled meanwhile, FAULTS_DOUBTS such deaths count as one for
 * each of the two, since either may be the cause. */
void faults_note(struct faults *f, const struct crash_page *page, bool is_short);
/* Returns the number of remembered deaths at which request @id was present. */
uint32_t faults_of(const struct faults *f, uint64_t id);
/* Begins to write the record of death number @n to a file in folder @dir ("": the service manager's
 * state folder), in place of an older one, by a thread, of which @loop is told, and takes the bytes
 * of @record. Sets @path to the file's path, or to "" if nothing will be written; a later failure
 * is logged. While an earlier record of @payer is being written, as in a folder that hangs, this
 * one is left out, counted and logged. */
void faults_write(struct faults *payer, uv_loop_t *loop, struct buf *record, const char *dir,
                  uint32_t n, char *path, size_t size);
