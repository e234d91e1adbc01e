#pragma once

/* fields - a row of the table of fields (read_request.c), and readers of values. */

#include "api/generation/gen_request.h"

struct field {
    const char *name;
    /* enum field_set: endpoints that know the field */
    uint8_t kinds;
    int (*parse)(struct gen_request *r, const struct model *m, const struct field *f, yyjson_val *v,
                 struct err *err);
    /* offset of the member that is set */
    size_t at;
    /* integers; unsupported: lo is the value that changes nothing */
    double lo, hi;
    /* description of a valid value, for error messages */
    const char *is;
};

#define READER(name)                                                                               \
    int name(struct gen_request *r, const struct model *m, const struct field *f, yyjson_val *v,   \
             struct err *err)

/* Refuses with a 400: "FIELD must be ...". */
int field_refuse(const struct field *f, struct err *err);
/* Makes @v that number, in its document, if it is a string that is a number and nothing else.
 * Programs send such a string that keep their settings as text. */
void field_number(yyjson_val *v);
/* Reads a whole number in [lo, hi]; field_number() is also taken. */
int field_whole(const struct field *f, yyjson_val *v, int64_t *out, struct err *err);
/* Reads the members of the object @v, which have the @n rows @inner; their names begin with that of
 * @f and a dot. */
int field_members(struct gen_request *r, const struct model *m, const struct field *f,
                  const struct field *inner, size_t n, yyjson_val *v, struct err *err);
/* Copies string @v, so that it outlives the body. Returns 0 or -ENOMEM. */
int field_copy(struct gen_request *r, yyjson_val *v, struct str *out);

/* Readers; each sets the member at field.at. */
READER(field_bool);
READER(field_not);    /* the opposite of a flag */
READER(field_uint);   /* a whole number in [lo, hi] */
READER(field_string); /* a string of at most @hi bytes */
READER(field_array);  /* an array of @lo to @hi entries, kept as a value of the body */
READER(field_value);  /* any value of the body */

/* Restrict the tokens that may be sampled; bad words: at most @hi of them. */
READER(field_allowed);
READER(field_bad_words);
READER(field_breakers);
/* Looks up the tokens of r->breakers if DRY is on, or of llama-server's four breakers if none are
 * given. Takes milliseconds. Returns 0 or -ENOMEM. */
int fields_find_breakers(struct gen_request *r, const struct model *m);

/* Readers of the fields with which clients limit the model's reasoning. */
READER(field_effort);
READER(field_budget);
READER(field_thinking);
READER(field_reasoning);
READER(field_switch);
READER(field_think); /* Ollama's: a boolean, or an effort */

/* Readers of how long the model stays loaded: Ollama's keep_alive, a number of seconds or a
 * duration as Go writes it ("1h30m"), negative for good; LM Studio's ttl, at most @hi seconds. */
READER(field_keep_alive);
READER(field_ttl);
