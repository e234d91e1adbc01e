#pragma once

/* stream - the requests and chunks that the tests of generating endpoints share. */

#include "world.h"

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define HI R"("messages":[{"role":"user","content":"hi"}])"
/* a name of a function that is too long to be forced: 129 bytes */
#define NAME_32 "abcdefghijklmnopqrstuvwxyz_12345"
#define NAME_128 NAME_32 NAME_32 NAME_32 NAME_32
#define NAME_256 NAME_128 NAME_128
#define HI_TOKENS 21 /* <im_start>user\nhi<im_end>\n<im_start>assistant\n */

#define CHUNK(choice)                                                                              \
    R"(data: {"id":"X","object":"chat.completion.chunk","created":X,"model":"tiny",)"              \
    R"("choices":[)" choice "]}\n\n"
#define ROLE                                                                                       \
    CHUNK(R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)"               \
          R"("finish_reason":null})")
#define DELTA(text)                                                                                \
    CHUNK(R"({"index":0,"delta":{"content":")" text R"("},"logprobs":null,)"                       \
          R"("finish_reason":null})")
#define FINISH(why) CHUNK(R"({"index":0,"delta":{},"logprobs":null,"finish_reason":")" why R"("})")
#define DONE "data: [DONE]\n\n"

/* Replaces ids and times, which differ from run to run. */
void reply_normalise(struct buf *b);
/* Asserts the status and the normalised body, and frees the reply. */
void reply_expect(struct reply *r, int status, const char *want);
