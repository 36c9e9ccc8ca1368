// A worker of the published transport in a storm: `node storm.mjs URL GROUP FOLDER LEASE`. Every step that it serves is
// first written down in the ledger. It ends when its standard input does.
import { randomBytes } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { FatalError } from '@dudousxd/nestjs-durable-core';
import { DbTransport } from '@dudousxd/nestjs-durable-transport-db';
import { executor } from './executor.mjs';

const [url, group, folder, lease] = process.argv.slice(2);
process.stdin.resume().on('end', () => process.exit());
process.on('unhandledRejection', () => {}); // a database that is away: whoever looks after it would start it again

const note = (name, entry) => appendFileSync(`${folder}/${name}`, `${JSON.stringify(entry)}\n`);
const leaseMs = Number(lease) * 1000;
const transport = new DbTransport({
  executor: executor(url), group, pollMs: 50, leaseMs, batchSize: 3, autoCreate: false, instanceId: `node-${process.pid}`,
});

transport.handle('storm.serve', async (input) => {
  const dice = Math.random();
  const does = dice < input.odds / 5 ? 'fatal' : dice < input.odds ? 'failed' : 'completed';
  const nonce = randomBytes(8).toString('hex');
  const { run, what } = input;
  note('served', { at: Date.now() * 1000, run, what, maker: 'node', does, nonce, pid: process.pid, of: null });
  await new Promise((resolve) => setTimeout(resolve, Math.random() * input.pause * 1000));
  if (does === 'fatal') throw new FatalError(nonce);
  if (does === 'failed') throw new Error(nonce);
  return nonce;
});
transport.handle('storm.undo', async ({ input: { run, what }, output: of }) => {
  const nonce = randomBytes(8).toString('hex');
  note('served', { at: Date.now() * 1000, run, what, maker: 'node', does: 'completed', nonce, pid: process.pid, of });
  return nonce;
});
note('ready', { pid: process.pid });
