// An MCP server with one tool, on stdin and stdout: a line of JSON each way.
import { createInterface } from "node:readline";

const tool = { name: "twist", description: "Twists a word.", inputSchema: { type: "object", properties: { word: { type: "string" } }, required: ["word"] } };
const answers = {
    initialize: ({ protocolVersion }) => ({ protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "loom", version: "1.0.0" } }),
    "tools/list": () => ({ tools: [tool] }),
    "tools/call": ({ arguments: { word } }) => ({ content: [{ type: "text", text: [...word].reverse().join("") }] }),
    "resources/list": () => ({ resources: [] }),
    "resources/templates/list": () => ({ resourceTemplates: [] }),
    ping: () => ({}),
};

for await (const line of createInterface({ input: process.stdin })) {
    const { id, method, params } = JSON.parse(line);
    if (id === undefined) continue;
    const answer = answers[method] ? { result: answers[method](params ?? {}) } : { error: { code: -32601, message: "unknown method" } };
    process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id, ...answer }) + "\n");
}
