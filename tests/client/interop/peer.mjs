// The npm client, told what to do by one JSON object on the command line; says what it gets as JSON lines.

import { createHash } from "node:crypto"

import { DurableStream, IdempotentProducer } from "@durable-streams/client"
import { createStateSchema } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import * as Y from "yjs"

const command = JSON.parse(process.argv[2])
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n")
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const digest = (bytes) => createHash("sha256").update(bytes).digest("hex")

// Yjs has a server of its own, which keeps everything in Durable Streams: documents, their snapshots, and an index.
async function withDocument({ url, compaction, liveMode }, work) {
  console.log = console.error // it tells what it does, and we have our own lines to say
  const server = new YjsServer({ port: 0, dsServerUrl: url, compactionThreshold: compaction ?? Infinity })
  await server.start()
  const doc = new Y.Doc()
  const provider = new YjsProvider({ doc, baseUrl: `${server.url}/v1/yjs/interop`, docId: "large", liveMode, connect: false })
  provider.on("error", (error) => say({ error: String(error) }))
  await provider.connect()
  await work(doc, provider, server)
  await provider.disconnect()
  await server.stop()
}

// Any value passes; what is tested is the way there and back.
const anything = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const state = createStateSchema({ users: { schema: anything, type: "user", primaryKey: "id" } })

const acts = {
  async append({ url, items, pauseMs, close }) {
    const stream = await DurableStream.create({ url, contentType: "application/json" })
    for (const item of items) {
      await stream.append(JSON.stringify(item))
      if (pauseMs) await pause(pauseMs)
    }
    if (close) await stream.close()
  },

  async produce({ url, items, pauseMs, close, id = "npm" }) {
    const stream = await DurableStream.create({ url, contentType: "application/json" })
    const producer = new IdempotentProducer(stream, id, { autoClaim: true, maxInFlight: 1, onError: (e) => say({ error: String(e) }) })
    for (const item of items) {
      producer.append(JSON.stringify(item))
      if (pauseMs) await pause(pauseMs)
    }
    await producer.flush()
    if (close) await producer.close()
  },

  async read({ url, live, count }) {
    const stream = new DurableStream({ url })
    const response = await stream.stream({ live, offset: "-1" })
    let seen = 0
    for await (const item of response.jsonStream()) {
      say(item)
      seen += 1
      if (seen === count) break
    }
  },

  async readBytes({ url, live }) {
    const stream = new DurableStream({ url })
    const response = await stream.stream({ live, offset: "-1" })
    const pieces = []
    for await (const piece of response.bodyStream()) pieces.push(Buffer.from(piece))
    say(Buffer.concat(pieces).toString("base64"))
  },

  // Everything in one go, as one who wants to have it all would ask for it.
  async readWhole({ url, live, how }) {
    const response = await new DurableStream({ url }).stream({ live, offset: "-1" })
    const whole = await response[how]()
    if (how === "json") for (const item of whole) say({ length: item.length, digest: digest(item) })
    else say({ length: whole.length, digest: digest(whole) })
  },

  async appendBytes({ url, pieces, size }) {
    const stream = await DurableStream.create({ url, contentType: "application/octet-stream" })
    for (let piece = 0; piece < pieces; piece += 1) await stream.append(Buffer.alloc(size, piece))
  },

  async writeYjs(command) {
    await withDocument(command, async (doc, provider, server) => {
      const pages = doc.getMap("pages")
      for (let page = 0; page < command.pages; page += 1) {
        pages.set(`page ${page}`, `${page}`.padStart(8, "0").repeat(command.size / 8))
        await provider.flush()
      }
      while (command.compaction && !isCompacted(server)) await pause(50)
    })
  },

  async readYjs(command) {
    await withDocument(command, async (doc, provider) => {
      const pages = doc.getMap("pages")
      for (let tries = 0; pages.size < command.pages && tries < 100; tries += 1) await pause(50)
      for (let page = 0; page < command.pages; page += 1) say(digest(pages.get(`page ${page}`) ?? ""))
    })
  },

  async writeState({ url, users }) {
    const stream = await DurableStream.create({ url, contentType: "application/json" })
    for (const user of users) await stream.append(JSON.stringify(state.users.insert({ value: user })))
    await stream.append(JSON.stringify(state.users.delete({ key: users[0].id })))
  },

  async readState({ url, live }) {
    const db = createStreamDB({ streamOptions: { url, contentType: "application/json" }, live, state })
    await db.preload()
    for (const user of db.collections.users.toArray) say({ id: user.id, name: user.name })
    db.close()
  },
}

function isCompacted(server) {
  const state = server.getDocumentState("interop", "large")
  return state?.snapshotOffset && !state.compacting
}

await acts[command.act](command)
process.exit(0)
