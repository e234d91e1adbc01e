#pragma once

/*
 * ctl_hub - a client of the Hugging Face hub, or of a mirror with the same interface: lists a
 * repository and reads bytes of its files. The access token is sent to the hub's own address only,
 * never to the target of a redirect. All answers of the hub are checked before they are used.
 */

#include <signal.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"

/* A parsed model specification: "hf:OWNER/REPO[:QUANT|:FILE][@REVISION]". */
struct hub_spec {
    char repo[200];
    /* "main" */
    char revision[128];
    /* quantisation, path of a file, or "safetensors"; "": the default */
    char what[256];
    bool is_file;
};

/* Parses a specification, also "OWNER/REPO", "hf.co/OWNER/REPO" and the address of the repository's
 * page. Returns 0 or -EINVAL. */
int hub_spec_parse(struct hub_spec *out, const char *text, struct err *err);

struct hub_file {
    /* path in the repository; no part is hidden or leads upwards */
    char *path;
    /* checksum; "": not published */
    char sha256[65];
    uint64_t size;
};

struct hub_listing {
    /* commit of the repository from which the files are loaded */
    char commit[65];
    struct hub_file *file;
    size_t n;
};

void hub_listing_deinit(struct hub_listing *l); /* accepts a zeroed one */
/* Reads a listing from the hub's JSON. Returns 0, -ENOMEM, or -EINVAL. */
int hub_listing_read(struct hub_listing *out, const char *json, size_t len, struct err *err);

/* The files of one model: indices into a listing. A GGUF model: first its shards in their order, as
 * many as a name can say (base/model_dir.h), then its projector, if there is one. A folder: first
 * its n_small descriptions and vocabularies, then its weights; all of them are shards. */
struct hub_choice {
    uint32_t file[512 + 16];
    uint32_t n, n_shards;
    bool folder;
    uint32_t n_small;
    uint64_t bytes;
    /* has more bytes than fit into the memory that was given */
    bool too_large;
    /* was chosen because another model does not fit, or is not usual */
    bool instead;
    /* name of the model */
    char stem[256];
};

/* Chooses the model of @l that @spec means, and the projector that suits it best. Without a
 * quantisation it chooses the only GGUF model, or the first that fits into @memory bytes in a
 * documented order (docs/reference/commands.md); else the folder of safetensors if that fits; else
 * the first of the order. @memory 0: everything fits. Returns 0, or -EINVAL with @err, which names
 * the available models. */
int hub_choose(const struct hub_listing *l, const struct hub_spec *spec, uint64_t memory,
               struct hub_choice *out, struct err *err);

/* Chooses the files of a folder of safetensors that the engine reads. Returns 0; -ENOENT: it is
 * none; or -EINVAL with @err. */
int hub_choose_folder(const struct hub_listing *l, const struct hub_spec *spec,
                      struct hub_choice *out, struct err *err);

/* Returns the model whose first file is file @i < l->n in *out; false: no model begins with this
 * file. */
bool hub_model_at(const struct hub_listing *l, uint32_t i, struct hub_choice *out);

/* ---- transfers ---- */

enum {
    HUB_OK,
    /* a later attempt may succeed: a broken or slow connection, 429, 5xx */
    HUB_AGAIN,
    /* the hub refuses: the file does not exist, or access is not allowed */
    HUB_REFUSED,
    /* the caller's stop flag is set */
    HUB_STOPPED,
    /* the caller did not take the data */
    HUB_LOCAL,
};

struct hub_options {
    /* address of the hub; NULL: $HF_ENDPOINT, or the hub's own address */
    const char *endpoint;
    /* time without data after which a connection is closed */
    uint32_t stall_s;
    const volatile sig_atomic_t *stop;
};

struct hub;

/* Makes a client. The token is $HF_TOKEN, or else in the file $HF_TOKEN_PATH, $HF_HOME/token or
 * ~/.cache/huggingface/token. Returns 0 or -errno with @err. */
int hub_new(struct hub **out, const struct hub_options *o, struct err *err);
struct hub *hub_free(struct hub *h);
DEFINE_FREEP(struct hub, hub)

/* Head of the answer to one request. */
struct hub_reply {
    /* HTTP status; 0: there was no answer */
    long status;
    /* offset of the body's first byte in the file: from the answer 206, else 0 */
    int64_t from;
    /* size of the whole file; -1: unknown */
    int64_t total;
    /* seconds; -1: unknown */
    int64_t retry_after_s;
};

struct hub_sink {
    /* Called once before the first byte of a 200 or 206. Returns false to end the transfer
     * (HUB_LOCAL). */
    bool (*begin)(void *ctx, const struct hub_reply *reply);
    bool (*data)(void *ctx, const void *data, size_t len);
    /* called several times a second */
    void (*tick)(void *ctx);
    void *ctx;
};

/* Makes one attempt at GET of @path below the endpoint, from byte @from on. Returns HUB_OK, or
 * another HUB_... with the reason in @err. */
int hub_get(struct hub *h, const char *path, uint64_t from, const struct hub_sink *sink,
            struct hub_reply *reply, struct err *err);

/* Returns the milliseconds to wait before attempt @n (from 1) after @reply; -1: the hub asks for a
 * longer wait than is reasonable. */
int64_t hub_wait_ms(const struct hub_reply *reply, uint32_t n);

/* Make paths for hub_get(). Return false if the path is too long. */
bool hub_listing_path(const struct hub_spec *spec, char *out, size_t size);
bool hub_file_path(const struct hub_spec *spec, const char *commit, const char *file, char *out,
                   size_t size);
