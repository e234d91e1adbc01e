#pragma once

/*
 * environment - variables by which containers configure llama-server, Ollama and vLLM, as a command
 * line that args.c translates. Variables that weftd or its libraries read themselves (WEFT_MODELS,
 * OLLAMA_MODELS, HF_TOKEN, ...) are not among them.
 */

#include "base/buf.h"

struct environment {
    /* v[0] is the program; owned, ends with NULL */
    char **v;
    int n;
    /* list of the variables that are taken: "LLAMA_ARG_PORT, OLLAMA_DEBUG" */
    struct buf used;
    /* list of those of the three programs that stand for nothing here */
    struct buf unread;
};

/* Reads the variables NAME=VALUE of @envp. Returns 0 or -ENOMEM; environment_deinit() must follow
 * in either case. */
int environment_read(struct environment *e, char **envp);
void environment_deinit(struct environment *e);
