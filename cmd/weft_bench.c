/*
 * weft-bench - measures the engine, and servers under the load of agents.
 */

#include "cmd/bench_cmd.h"
#include "cmd/cli.h"

static const struct cli_command commands[] = {
    {"engine", bench_cmd_engine, "measure prefill and decode without a server"},
#ifdef HAVE_CURL
    {"serve", bench_cmd_serve, "measure latency and throughput of an OpenAI-compatible server"},
    {"agents", bench_cmd_agents, "replay the agents of a trace against a server, by tenant"},
    {"identity", bench_cmd_identity, "count the answers that are the same alone and under load"},
#endif
};

int main(int argc, char **argv) {
    return cli_run("weft-bench", commands, ARRAY_SIZE(commands), argc, argv);
}
