// Starts the Node reference server of Durable Streams, the peer of every benchmark.
//
//   node node_server.mjs PORT              streams in memory
//   node node_server.mjs PORT DATA_DIR     one log file per stream, LMDB beside it
//
// Everything else stays at the package's defaults.

import { DurableStreamTestServer } from "@durable-streams/server"

const [port, dataDir] = process.argv.slice(2)
if (!port) {
  console.error("usage: node node_server.mjs PORT [DATA_DIR]")
  process.exit(2)
}

const server = new DurableStreamTestServer({
  host: "127.0.0.1",
  port: Number(port),
  ...(dataDir ? { dataDir } : {}),
})

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => process.exit(0))
}

console.log(await server.start())
