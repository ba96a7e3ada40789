// The npm client's producer: sends COUNT small JSON messages to URL and prints one JSON line.
//
//   node npm_producer.mjs URL COUNT

import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const [url, count] = [process.argv[2], Number(process.argv[3])]
const stream = await DurableStream.create({ url, contentType: "application/json" })
const failures = []
const producer = new IdempotentProducer(stream, "npm", { onError: (error) => failures.push(error) })

const began = performance.now()
for (let n = 0; n < count; n++) {
  producer.append(JSON.stringify({ n, device: "sensor-17", text: "hello world" }))
}
await producer.flush()
const seconds = (performance.now() - began) / 1000

if (failures.length) throw failures[0]
console.log(JSON.stringify({ messages_per_s: count / seconds }))
process.exit(0)
