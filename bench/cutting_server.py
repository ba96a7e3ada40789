"""A server of one endless JSON stream that ends the connection after each message. Prints its port.

Every message a client gets from it costs a reconnect; nothing else happens here.
"""

from __future__ import annotations

import asyncio
import re

OFFSET = re.compile(rb"[?&]offset=([0-9]+)")


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HEAD"):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nStream-Next-Offset: 0\r\n\r\n")
        writer.close()
        return
    found = OFFSET.search(head)
    number = int(found[1]) if found else 0
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        + _chunk(b'event: data\ndata:[%d]\n\nevent: control\ndata:{"streamNextOffset":"%d"}\n\n' % (number, number + 1))
    )
    await writer.drain()
    writer.close()  # without the last chunk: the connection broke


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def main() -> None:
    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
