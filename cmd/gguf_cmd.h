#pragma once

/*
 * gguf_cmd - the commands of weft-gguf. Each takes the arguments from its own name on and returns
 * an exit code of cli.h.
 */

int gguf_cmd_info(int argc, char **argv);       /* prints metadata, tensors and sizes */
int gguf_cmd_verify(int argc, char **argv);     /* checks structure and finite weights */
int gguf_cmd_tokenize(int argc, char **argv);   /* converts text to token ids */
int gguf_cmd_detokenize(int argc, char **argv); /* converts token ids to text */
int gguf_cmd_picture(int argc, char **argv);    /* decodes, resizes and encodes pictures */
int gguf_cmd_render(int argc, char **argv);     /* renders messages by a chat template */
