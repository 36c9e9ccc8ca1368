// A worker of the published SQS transport: node sqs_worker.mjs ENDPOINT PREFIX GROUP. Says when it begins.
import { SQSClient } from '@aws-sdk/client-sqs';
import { FatalError } from '@dudousxd/nestjs-durable-core';
import { SqsTransport } from '@dudousxd/nestjs-durable-transport-sqs';

const [endpoint, prefix, group] = process.argv.slice(2);
const client = new SQSClient({ endpoint, region: 'eu-central-1' });
const transport = new SqsTransport({
  client, prefix, group, autoCreate: true, waitTimeSeconds: 1, visibilityTimeoutSec: 5,
});

transport.handle('who', async () => 'node');
transport.handle('echo', async (input) => input);
transport.handle('rain', async () => {
  throw Object.assign(new Error('it rains'), { code: 'wet' });
});
transport.handle('fatal', async () => {
  throw new FatalError('card declined', 'declined');
});
let showers = 0;
transport.handle('shower', async (input) => {
  if (++showers < 3) throw new Error('a shower');
  return input;
});
transport.handle('hold', () => new Promise(() => {}));
process.stdout.write('ready\n');
