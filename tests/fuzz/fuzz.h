#pragma once

/*
 * fuzz - the frame of every target in this folder. A target defines LLVMFuzzerTestOneInput(), which
 * gives one input to a parser and aborts when the parser breaks its contract. The same source is
 * linked twice: with libFuzzer, which searches for new inputs, and with replay.c, which needs no
 * clang and runs existing inputs.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Runs the target on @len bytes at @data, which end where the allocation ends. Returns 0; -1 keeps
 * the input out of the corpus. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
/* Changes the @len bytes at @data, which has room for @max, at random; returns the new length. A
 * target whose inputs have a grammar may define it. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t len, size_t max, unsigned seed);
/* The mutation of bytes of libFuzzer or of replay.c. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t len, size_t max);
/* Writes seed @i into the empty @out; false: there are no more. For inputs that no text file can
 * hold; a target may define it. */
bool fuzz_seed(size_t i, struct buf *out);
/* Calls fuzz_seed() of a target that has one. */
bool fuzz_made(size_t i, struct buf *out);
/* Appends JSON whose quotes are apostrophes in @text. Returns 0 or -ENOMEM. */
int fuzz_add_json(struct buf *out, const char *text);
/* Called at the start. With the arguments --seeds FOLDER, writes the seeds that the target makes
 * itself and ends the process. Returns 0. */
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Aborts with file, line and condition, which libFuzzer and replay.c report with the input. */
#define FUZZ_ASSERT(condition) ((condition) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #condition))
void fuzz_fail(const char *file, int line, const char *what) __attribute__((noreturn));

/* Closes @fd and waits until its peer @peer is hung up: a process that reads /proc/PID/fd holds
 * what is open there for a moment. */
void fuzz_hang_up(int fd, int peer);
/* Returns the path of a file in memory that holds @len bytes of @data until the next call. */
const char *fuzz_file(const void *data, size_t len);
/* Returns a descriptor of that file, which stays open. */
int fuzz_file_fd(void);
/* Returns a malloc'ed, NUL-terminated copy of @data. */
char *fuzz_text(const void *data, size_t len);
