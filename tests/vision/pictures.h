#pragma once

/* pictures - the files of the test data, and random damage to them. */

#include "base/rng.h"
#include "base/util.h"
#include "vision/picture.h"

struct file {
    uint8_t *data;
    size_t len;
};

/* Reads golden-vision/@folder/@name; fails the test where there is none. */
struct file file_read(const char *folder, const char *name);
void file_deinit(struct file *f);

/* Decodes golden-vision/@folder/@name in this process; fails the test where that fails. */
struct picture picture_read(const char *folder, const char *name);

/* An entry of decode/expected.json. sha256 "": the file must be refused. */
struct expected {
    char name[64], sha256[65];
    uint32_t width, height;
};

/* Reads all entries, of oriented pixels where there are any. Returns how many. */
size_t expected_read(struct expected *out, size_t max);

/* The checksum of the pixels. */
void picture_sha256(const struct picture *p, char out[65]);

/* Changes a copy of @f at random, malloc'ed: bytes changed, cut off, moved or repeated. */
struct file file_damage(const struct file *f, struct rng *r);
