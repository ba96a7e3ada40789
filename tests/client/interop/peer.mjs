// The npm client, told what to do by one JSON object on the command line; says what it gets as JSON lines.

import { DurableStream, IdempotentProducer } from "@durable-streams/client"
import { createStateSchema } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const command = JSON.parse(process.argv[2])
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n")
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

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

await acts[command.act](command)
process.exit(0)
