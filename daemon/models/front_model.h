#pragma once

/*
 * front_model - the front's part of a served model: metadata and tokens of its file, its chat
 * template and the file of its draft model, all of them private copies. The weights are read by the
 * worker, which gets the descriptors.
 */

#include "api/api.h"
#include "base/gguf.h"
#include "daemon/config/config.h"
#include "daemon/config/sampling_defaults.h"
#include "daemon/models/model_header.h"
#include "daemon/models/projector_file.h"
#include "engine/engine.h"
#include "proto/messages.h"

/* Zeroed before front_model_open(). Pointers of `api` lead into the other members. */
struct front_model {
    /* draft: file of the draft model; NULL: none */
    struct gguf *file, *draft;
    struct projector_file projector;
    struct tokenizer *tokenizer;
    /* never NULL once opened */
    struct template *template;
    /* text of the configured or built-in template */
    struct buf template_text;
    struct buf system_text;
    /* NULL: none */
    struct yyjson_doc *template_kwargs;
    /* name that clients use */
    char *name;
    /* api.pair points into it; NULL: the model does not rank */
    char *pair;
    struct sampling_defaults sampling;
    struct model_header header;
    char fingerprint[24];
    /* Keys under which the packed weights of the file and of the draft model's file are kept. */
    uint8_t keep_key[2][ENGINE_KEEP_KEY];
    /* fingerprint of the file, computed where it is opened: it reads a megabyte */
    uint8_t print[16];
    /* bytes that its worker will need, as far as files and options tell */
    uint64_t memory_bytes;
    /* of the CPU; without the draft model */
    struct engine_fit fit;
    /* reason why it does not fit; "" */
    struct err fit_why;
    struct api_model api;
};

/* Opens the files that the options name and checks that the engine can compute the model. @room:
 * values of OPEN besides the options, on which memory_bytes depends. Returns 0, or -errno with
 * @err; front_model_deinit() must follow in either case. */
int front_model_open(struct front_model *m, const struct config *c, const struct msg_open *room,
                     struct err *err);
void front_model_deinit(struct front_model *m);

/* Sets the values that only a serving worker knows, in m->api and in its copy @info, which threads
 * may read. */
void front_model_ready(struct front_model *m, const struct msg_ready *ready,
                       struct api_model *info);
/* Logs a warning if the model supports less than the context @asked for (max-context), or, with 0,
 * if the pages do not hold the model's context. */
void front_model_warn_of_context(const struct front_model *m, uint32_t asked);
