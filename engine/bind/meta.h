#pragma once

/*
 * meta - the hyperparameters of a model file: `<architecture>.<key>`, each with the range that it
 * must lie in. The first error is kept in binder.r and later calls do nothing, so a caller reads
 * all keys and checks once.
 */

#include "engine/bind/bind.h"

/* A key with its architecture, returned by value. */
struct meta_key {
    char s[96];
};

struct meta_key meta_key(const struct binder *b, const char *key); /* "<architecture>.<key>" */
/* Returns true if the architecture of @file (general.architecture) is @name. */
bool meta_is_arch(const struct gguf *file, const char *name);
/* Reads a required integer. An array with one number per layer is accepted if all are equal. */
void meta_u32(struct binder *b, const char *key, uint32_t lo, uint32_t hi, uint32_t *out);
/* Reads @n numbers, one for each layer; all @out[i] are equal where the file has a single
 * number. */
void meta_u32_layers(struct binder *b, const char *key, uint32_t lo, uint32_t hi, uint32_t n,
                     uint32_t *out);
/* Reads an optional integer; *out is unchanged if the file does not have the key. */
void meta_u32_opt(struct binder *b, const char *key, uint32_t lo, uint32_t hi, uint32_t *out);
void meta_f32_opt(struct binder *b, const char *key, double lo, double hi, double *out);
/* Reads a string; "" if the file does not have the key. */
void meta_string(struct binder *b, const char *key, char *out, size_t size);
/* Reads an optional boolean; false if the file does not have the key. */
bool meta_bool(struct binder *b, const char *key);
/* Reads the first @n numbers of the array @key as type @as, one for each layer, into @out, as
 * gguf_array_read() does. Returns false, with @out undefined, if the file need not have the array
 * and does not, or if an error was found. */
bool meta_numbers(struct binder *b, enum bind_need need, const char *key, enum gguf_type as,
                  uint32_t n, void *out);
/* Refuses a file whose @key exists and is neither @allowed nor 0, since that feature is not
 * supported. */
void meta_refuse_other(struct binder *b, const char *key, uint32_t allowed);
/* Refuses the file of a drafter whose @key differs from @of_model, the value in its model's
 * file. */
void meta_must_be(struct binder *b, const char *key, uint32_t of_model);
