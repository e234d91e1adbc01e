// Sends requests to the daemon that served this page.

import { apiKey } from "./settings.js";

// Resolves addresses relative to the page, so that a proxy may serve it under any path.
function url(path) {
  return new URL(path, document.baseURI);
}

export class ApiError extends Error {
  constructor(status, code, message, retryMs) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryMs = retryMs;
  }
}

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // The body is not JSON: a proxy answered.
  }
  const retry =
    Number(response.headers.get("retry-after-ms")) ||
    1000 * Number(response.headers.get("retry-after"));
  return new ApiError(
    response.status,
    error.code ?? "",
    error.message ?? `The server answered ${response.status}.`,
    retry || 0,
  );
}

async function request(path, options) {
  const headers = { Accept: "application/json", ...options?.headers };
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  let response;
  try {
    response = await fetch(url(path), {
      cache: "no-store",
      credentials: "omit",
      ...options,
      headers,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(
      0,
      "unreachable",
      "weft does not answer. Is it running, and is the network there?",
      0,
    );
  }
  if (!response.ok && !options?.any) throw await refusal(response);
  return response;
}

export async function get(path, options) {
  return (await request(path, options)).json();
}

export async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return (await request(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

export async function text(path) {
  return (await request(path)).text();
}

// Returns {status, state, reason?} of the service; the state is "unreachable" if it does not answer.
export async function health() {
  try {
    const response = await request("health", { any: true });
    return await response.json();
  } catch {
    return { status: "unavailable", state: "unreachable" };
  }
}

// Calls @onChunk with every chunk of a streamed chat completion, and @onComment with what the server
// says while there is none: what the request waits for.
export async function stream(body, signal, onChunk, onComment) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify({
      ...body,
      stream: true,
      reasoning_format: "auto", // apart, whatever the server's option says
      stream_options: { include_usage: true, continuous_usage_stats: true },
    }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const id = response.headers.get("x-request-id");
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "broken", "The connection was lost during the answer.", 0);
    }
    if (part.done) break;
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith(":")) onComment(line.slice(1).trim());
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return id;
      const chunk = JSON.parse(data);
      if (chunk.error)
        throw new ApiError(
          chunk.error.status ?? 500,
          chunk.error.code ?? "",
          chunk.error.message,
          0,
        );
      onChunk(chunk);
    }
  }
  throw new ApiError(0, "broken", "The connection was closed before the answer was complete.", 0);
}
