#pragma once

/* session - which session (the requests of one agent or conversation) a request belongs to. */

#include <stdint.h>
#include <yyjson.h>

struct api;
struct http;
struct gen_request;

struct session_key {
    uint64_t id;      /* 0: unknown */
    const char *from; /* the header or field that told, "conversation", or NULL */
};

/* What the header block says. */
struct session_key session_of_head(const struct api *a, uint32_t tenant, const struct http *h);
/* What the body says; its conversation comes last. */
struct session_key session_of_body(const struct api *a, uint32_t tenant,
                                   const struct gen_request *r);
/* A number for how a chat begins: everything up to the first message of the user. 0: it has none. On any thread. */
uint64_t session_conversation(const struct api *a, yyjson_val *messages);
