#pragma once

/*
 * gguf_cmd - the commands of weft-gguf. Each takes the arguments from its own name on and returns
 * an exit code of cli.h.
 */

int gguf_cmd_info(int argc, char **argv);   /* what is in a file */
int gguf_cmd_verify(int argc, char **argv); /* whether it is whole and has no number that is none */
int gguf_cmd_tokenize(int argc, char **argv);   /* text to ids */
int gguf_cmd_detokenize(int argc, char **argv); /* and back */
int gguf_cmd_picture(int argc, char **argv);    /* pictures as a model sees them */
int gguf_cmd_render(int argc, char **argv);     /* messages by its chat template */
