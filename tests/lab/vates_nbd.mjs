// SPDX-License-Identifier: Apache-2.0
// Reads an image by @vates/nbd-client, which Xen Orchestra uses: vates_nbd.mjs PACKAGES PORT EXPORT COPY CERTIFICATE
// With a certificate by TLS. Without one it prints the map, too, which it asks nbdinfo for.

import { open, readFile } from 'node:fs/promises'
import { pathToFileURL } from 'node:url'

const [packages, port, exportname, copy, certificate] = process.argv.slice(2)
const url = pathToFileURL(`${packages}/@vates/nbd-client/multi.mjs`)
const { default: MultiNbdClient } = await import(url)

const cert = certificate === undefined ? undefined : await readFile(certificate, 'utf8')
const client = new MultiNbdClient([{ address: '127.0.0.1', port: Number(port), exportname, cert }], {
  nbdConcurrency: 8,
  readBlockRetries: 1,
})
await client.connect()
const size = Number(client.exportSize)
const piece = 2 * 1024 * 1024
const file = await open(copy, 'w')
await file.truncate(size)

function* pieces() {
  for (let index = 0; index * piece < size; index++) {
    yield { index, size: piece } // the client cuts the last one
  }
}

let at = 0
for await (const block of client.readBlocks(pieces)) {
  await file.write(block, 0, block.length, at)
  at += block.length
}
await file.close()
if (certificate === undefined) {
  console.log(JSON.stringify(await client.getMap()))
}
await client.disconnect()
